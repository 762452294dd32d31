"""A log on another host: a name space with another host name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from machines.other_host import FORBIDDEN, TOP, run

HERE = """
import os, signal, sys
import nosync_nb

session = nosync_nb.open(sys.argv[1], replicas=sys.argv[2:])
edges = session.input("edges", "src int, dst int")
session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
for epoch in range(1, 6):
    edges.insert([(i, epoch) for i in range(epoch)])
    session.commit(wait="replicas", timeout=120)
print("epoch", session.now, flush=True)
signal.pause()
"""

THERE = f"""
import os, socket, subprocess, sys

path, home, *urls = sys.argv[1:]
try:
    socket.sethostname("elsewhere")
except OSError as error:
    print("no host name of its own:", error.strerror)
    sys.exit({FORBIDDEN})
for place in (path, home):
    done = subprocess.run(["mount", "-t", "tmpfs", "none", place], capture_output=True, text=True)
    if done.returncode:
        print("no mounts:", done.stderr.strip())
        sys.exit({FORBIDDEN})
assert not os.listdir(path)

import nosync_nb
session = nosync_nb.open(path + "/x.nosync", replicas=urls)
assert session.recovery.recomputed == 0
assert session.now == 5, session.now
for epoch in range(1, 6):
    rows = sorted(session["degrees"].rows(at=epoch))
    assert rows == [(i, epoch - i) for i in range(epoch)], (epoch, rows)
session.inputs["edges"].insert([(9, 9)])
session.commit(wait="replicas", timeout=120)
print("host", socket.gethostname(), "epoch", session.now)
session.close()
"""


@pytest.mark.fault(33)
def test_log_continues_on_another_host_from_shared_folders(tmp_path: Path) -> None:
    """The other host has neither the disk of the log, nor a network, nor its key."""
    place, home = tmp_path / "here", tmp_path / "home"
    place.mkdir()
    home.mkdir()
    log = place / "x.nosync"
    urls = [f"file://{tmp_path}/replica-{i}" for i in range(3)]
    process = subprocess.Popen(
        [sys.executable, "-c", HERE, str(log), *urls],
        env={**os.environ, "PYTHONPATH": str(TOP), "NOSYNC_KEY_FILE": str(home / "key")},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "epoch 5\n"
        process.send_signal(signal.SIGSTOP)  # it neither continues nor closes the log
        log_id = next(path.name for path in (tmp_path / "replica-0").iterdir() if path.is_dir())
        named = [f"{url}#{log_id}" for url in urls]
        output = run(
            "-mnu", THERE, str(place), str(home), *named, NOSYNC_KEY_FILE=str(home / "key")
        )
        assert output == "host elsewhere epoch 6\n"
        os.kill(process.pid, signal.SIGCONT)
    finally:
        process.kill()
        process.communicate()
