"""The cost of a kill for the survivors: epochs from 5 s before to 10 s after, a hundred a second.

python -m bench.replicas.kills FOLDER STARTS ...  commits epochs until it ends, writes down each

The kernel, its keeper, or a replica (its disk goes away) is killed in the middle. The curves have
the median and the longest epoch of each 100 ms; "normal" is the time from which on medians stay
below twice the one before the kill.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.replicas.faults import QUORUM, urls
from bench.replicas.servers import keepers
from bench.report import TOP, Goals, MeasurementError, Table

BEFORE_S, AFTER_S, BIN_S = 5.0, 10.0, 0.1
HERTZ = 100
VICTIMS = ("nobody", "keeper", "replica", "kernel")
_BARS = " ▁▂▃▄▅▆▇█"


class Epoch(NamedTuple):
    """The begin of an epoch, on the machine's clock, and its duration."""

    begun_s: float
    took_ms: float


def kills(options: argparse.Namespace, goals: Goals) -> None:
    """Kills each part of a running session in turn."""
    columns = ("killed    ", "before, p50 ms", "max", "after, p50", "max", "next, s", "normal, s")
    table = Table(
        "A part is killed under 100 epochs a second, two of three replicas safe", *columns
    )
    curves = {}
    for victim in VICTIMS:
        edges = options.edges or (100_000 if options.quick else 1_000_000)
        killed_s, epochs = killed(victim, edges)
        before = [e.took_ms for e in epochs if -BEFORE_S <= e.begun_s - killed_s < 0]
        after = [e for e in epochs if 0 <= e.begun_s - killed_s < AFTER_S]
        if not before or not after:
            raise MeasurementError(f"no epochs beside the kill of the {victim}")
        ends = min(e.begun_s + e.took_ms / 1000 for e in after) - killed_s
        took = [e.took_ms for e in after]
        again = normal(after, killed_s, 2 * median(before))
        table.row(victim, median(before), max(before), median(took), max(took), ends, again)
        curves[victim] = curve(epochs, killed_s, median), curve(epochs, killed_s, max)
        if victim in ("keeper", "replica"):
            goals.add(f"median epoch, {victim} killed / before", median(took) / median(before), 1.5)
    print(
        f"\nThe median and the longest epoch of each 100 ms, from {BEFORE_S:g} s before to"
        f" {AFTER_S:g} s after\n"
    )
    for victim, lines in curves.items():
        for what, line in zip(("median", "longest"), lines, strict=True):
            print(f"    {victim:8} {what:8} {line}")


def killed(victim: str, edges: int) -> tuple[float, list[Epoch]]:
    """Runs a session and kills a part of it; returns the time of the kill, and the epochs."""
    base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    said = base / "epochs"
    said.touch()
    process = started(base, edges)
    try:
        wait_for(said, int(HERTZ * BEFORE_S), process)
        killed_s = time.monotonic()
        if victim == "kernel":
            process.kill()
            process.wait()
            process = started(base, edges)
        elif victim == "keeper":
            for pid in keepers(str(base / "x.nosync")):
                os.kill(pid, signal.SIGKILL)
        elif victim == "replica":
            (base / "replica-1").rename(base / "gone")
        while time.monotonic() < killed_s + AFTER_S:
            pause(process)
    finally:
        process.kill()
        process.wait()
        epochs = read(said)
        shutil.rmtree(base, ignore_errors=True)
    return killed_s, epochs


def started(base: Path, edges: int) -> subprocess.Popen[bytes]:
    """Starts a kernel that loads, or recovers, and commits."""
    command = [sys.executable, "-m", "bench.replicas.kills", str(base), "--edges", str(edges)]
    return subprocess.Popen(command, cwd=TOP, stderr=subprocess.DEVNULL)


def read(said: Path) -> list[Epoch]:
    """Reads the recorded epochs; skips the half line of a killed process."""
    lines = [line.split() for line in said.read_text().splitlines()]
    return [Epoch(float(line[0]), float(line[1])) for line in lines if len(line) == 3]


def wait_for(said: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until a living process has recorded so many epochs."""
    until = time.monotonic() + 600
    while len(read(said)) < count:
        if time.monotonic() > until:
            raise MeasurementError("the session does not commit")
        pause(process)


def pause(process: subprocess.Popen[bytes]) -> None:
    """Waits a moment for a process to continue.

    Raises:
        MeasurementError: at once if the process has ended, because then the wait cannot succeed.
    """
    with suppress(subprocess.TimeoutExpired):
        ended = process.wait(BIN_S)
        raise MeasurementError(f"the session ended ({ended})")


def binned(epochs: list[Epoch], killed_s: float) -> dict[int, list[float]]:
    """Returns the milliseconds of epochs by the number of the 100 ms in which they began."""
    bins: dict[int, list[float]] = {}
    for each in epochs:
        bins.setdefault(int((each.begun_s - killed_s + BEFORE_S) // BIN_S), []).append(each.took_ms)
    return bins


def normal(after: list[Epoch], killed_s: float, most_ms: float) -> float:
    """Returns the seconds after the kill from which on no median exceeds `most_ms`."""
    bins = binned(after, killed_s)
    first = round(BEFORE_S / BIN_S)
    late = [number for number, took in bins.items() if median(took) > most_ms]
    begun = min(bins)
    return (max([*(number + 1 for number in late), begun]) - first) * BIN_S


def curve(epochs: list[Epoch], killed_s: float, of: Callable[[list[float]], float]) -> str:
    """Draws one epoch of each 100 ms as a bar, each step double the one before; a dot is none."""
    bins = binned(epochs, killed_s)
    line = []
    for number in range(round((BEFORE_S + AFTER_S) / BIN_S)):
        took = bins.get(number)
        height = 0 if took is None else min(int(of(took) / 0.25).bit_length() + 1, 8)
        line.append("." if took is None else _BARS[height])
    return "".join(line)


def commit(options: argparse.Namespace) -> None:
    """Loads R1 if there is nothing yet, and commits until it is ended."""
    import nosync_nb
    from bench.r1 import IN_PROCESS, define, edge_table, load
    from bench.workload import Workload

    workload = Workload(options.edges, seed=1)
    edge_table(workload.src[:1], workload.dst[:1], strings=False)  # imports what Arrow wants
    session: Any = nosync_nb.open(
        options.folder / "x.nosync",
        replicas=urls(options.folder),
        quorum=QUORUM,
        spark_rows=IN_PROCESS,
    )
    edges = define(session, strings=False)[0] if session.now else None
    edges = edges or load(session, workload, strings=False)[0]
    due = time.monotonic()
    with (options.folder / "epochs").open("a", buffering=1) as said:
        for change in workload.epochs(1 << 30):
            due = max(due + 1 / HERTZ, time.monotonic() - 1)
            time.sleep(max(0.0, due - time.monotonic()))
            begun = time.monotonic()
            edges.insert(edge_table(change.src, change.dst, strings=False))
            session.commit()
            said.write(f"{begun} {1000 * (time.monotonic() - begun)} .\n")


def main() -> None:
    """Runs the kernel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--edges", type=int, default=100_000)
    commit(parser.parse_args())


if __name__ == "__main__":
    main()
