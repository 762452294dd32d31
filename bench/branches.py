"""What branches cost: making one at epochs of a long log, and the first epoch on it.

A branch is made of hard links and a checkpoint, so its cost does not know how much is held. The
bytes are those of files that it shares with nobody: times and labels of epochs, and what had not
been packed. Of an epoch near now what operators remember is had by what was changed since; of an
older one they are run once over their inputs, before the first epoch on the branch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import nosync_nb
from bench.r1 import edge_table, load
from bench.report import Goals, Table
from bench.workload import Change, Workload
from nosync_nb.session.session import owners_of

NEAR = 1000
"""So many epochs before now are near."""
IN_PROCESS = 1 << 62


def branches(options: argparse.Namespace, goals: Goals) -> None:
    """Measures branches at epochs of a log."""
    count = options.epochs or (5_000 if options.quick else 100_000)
    edges_count = options.edges or (100_000 if options.quick else 10_000_000)
    base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    columns = ("epoch    ", "make ms", "new bytes", "open ms", "read ms", "first epoch ms")
    table = Table("Branches", *columns)
    try:
        workload = Workload(edges_count)
        session = nosync_nb.open(base / "log", spark_rows=IN_PROCESS)
        edges, _ = load(session, workload, strings=False)
        *changes, last = workload.epochs(count + 1)
        latencies = [_committed(session, edges, each) for each in changes]
        usual = median(latencies[-NEAR:])
        now = session.now
        figures = {
            at: _measured(session, at, last)
            for at in (now, now - 10, now - NEAR // 2, now - NEAR, now // 2, now // 5, 2)
        }
        for at, (make, new, opened, read, first) in figures.items():
            table.row(f"{at:,}", make, new, opened, read, first)
        session.close()
    finally:
        shutil.rmtree(base, ignore_errors=True)
    near = [first for at, (*_, first) in figures.items() if at >= now - NEAR]
    goals.add("branch(), any epoch, worst ms", max(each[0] for each in figures.values()), 50)
    goals.add("first epoch on a branch near now / median epoch", max(near) / usual, 10)


def _committed(session: Any, edges: Any, change: Change) -> float:
    """Commits an epoch; how long that took, in ms."""
    edges.insert(edge_table(change.src, change.dst, strings=False))
    edges.remove(edge_table(change.gone_src, change.gone_dst, strings=False))
    started = time.perf_counter()
    session.commit()
    return 1000 * (time.perf_counter() - started)


def _measured(session: Any, at: int, change: Change) -> tuple[float, int, float, float, float]:
    """Makes a branch, reads and commits there; in ms, and the bytes that are its own."""
    branching = owners_of(session).branching
    times = [time.perf_counter()]
    path = branching.make("measured", at)
    times.append(time.perf_counter())
    branch = branching.open("measured")
    times.append(time.perf_counter())
    branch["per_label"].rows()
    times.append(time.perf_counter())
    new = sum(
        status.st_size
        for folder, _, names in os.walk(path)
        for status in (os.stat(os.path.join(folder, name)) for name in names)
        if status.st_nlink == 1
    )
    first = _committed(branch, branch.inputs["edges"], change)
    branch.close()
    session.drop_branch("measured")
    make, opened, read = (1000 * (b - a) for a, b in pairwise(times))
    return make, new, opened, read, first
