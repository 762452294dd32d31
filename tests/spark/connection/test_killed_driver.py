"""A kernel killed in a Spark job: its executors and the next kernel."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from internals import store_of
from machines.other_host import TOP

import nosync_nb

ROWS = 20
PROGRAM = """
import os, sys
import nosync_nb

path, begun, go, rows = sys.argv[1:]
session = nosync_nb.open(path)
session.spark_conf.update({"spark.master": "local[2]", "spark.log.level": "OFF"})
numbers = session.input("numbers", "k int, v int")

def slow(row):
    if row.v == 7:
        os.write(os.open(begun, os.O_WRONLY), b"!")
        os.read(os.open(go, os.O_RDONLY), 1)
    return row.k, row.v + 1

session.define({"later": numbers.map(slow, "k int, v int")}, on="spark")
numbers.insert([(1, 1)])
session.commit(wait="disk")
print("jvm", __import__("pyspark").SparkContext._gateway.proc.pid, flush=True)
numbers.insert([(k, 7) for k in range(int(rows))])
session.commit()
print("committed", flush=True)
"""


@contextmanager
def pipe(path: Path) -> Iterator[int]:
    """A named pipe; both ends are open here, so no process waits to open it."""
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def wait_for_pipe(told: int, process: subprocess.Popen[str]) -> None:
    """Waits until the pipe is written, while a process runs."""
    ended = os.pidfd_open(process.pid)
    try:
        assert select.select([told, ended], [], [], 120)[0] == [told]
    finally:
        os.close(ended)


def wait_for_exit(pid: int) -> None:
    """Waits for the end of a process that may not be a child of this one."""
    with suppress(ProcessLookupError):  # it has ended, and was reaped
        process = os.pidfd_open(pid)
        try:
            assert select.select([process], [], [], 60)[0]
        finally:
            os.close(process)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.fault(2, 25)
def test_kernel_killed_in_spark_job_leaves_no_partial_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    path, begun, go = tmp_path / "x.nosync", tmp_path / "begun", tmp_path / "go"
    with pipe(begun) as told, pipe(go) as tell:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path), str(begun), str(go), str(ROWS)],
            env={**os.environ, "PYTHONPATH": str(TOP), "PYTHONWARNINGS": "ignore"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        output = process.stdout
        word, jvm = output.readline().split()
        assert word == "jvm"
        wait_for_pipe(told, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        # The task runs on; the next kernel does not wait for it, and sees the epoch before.
        with nosync_nb.open(path) as session:
            assert session.now == 1
            assert session["later"].rows() == [(1, 2)]
            os.write(tell, bytes(ROWS))  # now the task ends, if the JVM let it run
            assert "committed" not in output.read()  # until all have ended who could write
            output.close()
            wait_for_exit(int(jvm))
            session.inputs["numbers"].insert([(2, 2)])
            session.commit(wait="disk")
            assert session.now == 2
    with nosync_nb.open(path) as session:
        assert session["numbers"].rows() == [(1, 1), (2, 2)]
        assert session.now == 2
        there = sorted(path.glob("layers/*"))
        assert store_of(session).sweep() == []  # nothing is missing
        assert there == sorted(path.glob("layers/*"))  # no file is left over
