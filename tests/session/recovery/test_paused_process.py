"""Paused processes: they continue later, fenced or as the owner, also without memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from internals import log_of
from machines.other_host import TOP

import nosync_nb

WAIT_S = 120.0
EPOCHS = 60

LIMITED = """
import resource, sys
import nosync_nb
from nosync_nb.errors import NosyncError

kind, path = sys.argv[1:]
session = nosync_nb.open(path)
numbers = session.input("numbers", "k int, v string")
session.stage("doubled", numbers.map(lambda row: (row.k, row.v * 2), "k int, v string"))
numbers.insert([(1, "a")])
session.commit(wait="disk")
limit = {"memory": resource.RLIMIT_AS, "descriptors": resource.RLIMIT_NOFILE}[kind]
before = resource.getrlimit(limit)
held = int(open("/proc/self/statm").read().split()[0]) * 4096
low = held + (48 << 20) if kind == "memory" else 3
resource.setrlimit(limit, (low, before[1]))
try:
    numbers.insert([(2, "b" * (64 << 20))] if kind == "memory" else [(2, "b")])
    if kind == "memory":
        session.commit(wait="disk")
    else:
        nosync_nb.open(path + "-another")
except (MemoryError, NosyncError, OSError) as error:
    reported = type(error).__name__
else:
    raise AssertionError("there was enough")
finally:
    resource.setrlimit(limit, before)
assert session.now == 1, session.now
assert session["doubled"].rows(at=1) == [(1, "aa")]
session.discard()
numbers.insert([(3, "c")])
session.commit(wait="disk")
assert [row.k for row in session["doubled"].rows()] == [1, 3]
session.close()
with nosync_nb.open(path) as again:
    assert [row.k for row in again["doubled"].rows()] == [1, 3]
print("refused with", reported)
"""


pytestmark = pytest.mark.usefixtures("own_key")


@pytest.mark.fault(28)
def test_stopped_keeper_does_not_block_commits_and_catches_up(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/replica-{i}" for i in range(3)]
    with nosync_nb.open(tmp_path / "x.nosync", replicas=urls) as session:
        edges = session.input("edges", "src int, dst int")
        session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        edges.insert([(0, 0)])
        session.commit(wait="replicas", timeout=WAIT_S)
        (pid,) = [
            int(folder.name)
            for folder in Path("/proc").iterdir()
            if folder.name.isdigit() and str(tmp_path / "x.nosync") in keeper_command(folder)
        ]
        os.kill(pid, signal.SIGSTOP)
        try:
            for epoch in range(1, EPOCHS):
                edges.insert([(epoch, epoch)])
                session.commit(wait="disk")
            assert session.now == EPOCHS
            assert session.frontiers["edges"].replicas == 1
            assert log_of(session).durable >= EPOCHS
        finally:
            os.kill(pid, signal.SIGCONT)
        session.sync("replicas", timeout=WAIT_S)
        assert session.frontiers["edges"].replicas == EPOCHS


def keeper_command(folder: Path) -> str:
    """The command of a process if it is a keeper, otherwise an empty text."""
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:  # it has ended
        return ""
    return command if "nosync_nb.keeper" in command else ""


@pytest.mark.fault(21, 47)
@pytest.mark.parametrize("kind", ["memory", "descriptors"])
def test_epoch_without_enough_memory_or_descriptors_is_refused(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, kind, str(tmp_path / "x.nosync")],
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("refused with")
