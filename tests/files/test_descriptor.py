"""File descriptors: a log uses few, however many files it has, and mapped files use none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import internals
import pytest

PROGRAM = """
import os, resource, sys
import nosync_nb
from internals import checkpoint_now, settle_background
from nosync_nb.session.maintenance import maintenance
from nosync_nb.store import store

store.SPILL_ROWS = maintenance.SPILL_ROWS = 4  # each epoch is a part file, each checkpoint a pack
EPOCHS = 120
LIMIT = 64
resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
opened = lambda: len(os.listdir("/dev/fd"))

def use(session, start, stop):
    rows = session.inputs["rows"] if "rows" in session.inputs else session.input("rows", "k int")
    counts = []
    for epoch in range(start, stop):
        rows.insert([(epoch * 8 + i,) for i in range(8)])
        session.commit()
        checkpoint_now(session)
        counts.append(opened())
    return counts

with nosync_nb.open(sys.argv[1]) as session:
    counts = use(session, 0, EPOCHS)
    assert counts[-1] <= counts[10], counts
files = sum(len(found) for _, _, found in os.walk(sys.argv[1]))
assert files > 3 * LIMIT, files

with nosync_nb.open(sys.argv[1]) as session:
    before = opened()
    for at in range(EPOCHS + 1):
        assert len(session["rows"].rows(at=at)) == 8 * at
    assert opened() <= before + 16, (before, opened())  # segments that were looked up
    counts = use(session, EPOCHS, EPOCHS + 5)
    settle_background(session)
    assert len(session["rows"].rows()) == 8 * (EPOCHS + 5)
with nosync_nb.open(sys.argv[1], mode="r") as reader:
    assert len(reader["rows"].rows(at=EPOCHS)) == 8 * EPOCHS
"""


@pytest.mark.fault(21)
def test_log_of_many_files_uses_few_descriptors(
    tmp_path: Path,
) -> None:
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "log")]
    env = os.environ | {"PYTHONPATH": str(Path(internals.__file__).parent)}
    run = subprocess.run(program, capture_output=True, text=True, check=False, timeout=120, env=env)
    assert run.returncode == 0, run.stderr
