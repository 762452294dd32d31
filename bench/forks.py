"""A long log of a large state, and the cost of continuing from its epochs; lines of JSON.

python -m bench.forks make FOLDER ...      makes the log FOLDER/log, and prints the cost
python -m bench.forks first FOLDER ...     loads its rows again, beside it, for the first run
python -m bench.forks open FOLDER          opens it, reads some epochs, closes it
python -m bench.forks branch FOLDER ...    forks branches of it at some epochs
python -m bench.forks rewind FOLDER ...    rewinds a copy of it to one epoch

The log is that of R1: `edges` and `nodes` are loaded, then the stage is defined, which is its first
run, then each epoch changes ten rows. Rows are compared to those before. Bytes written are those
that this process, in any thread, passed to the system; files that it only links do not count.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from internals import checkpoint_now, settle_background

import nosync_nb
from bench.r1 import IN_PROCESS, edge_table, node_table
from bench.recovery import folder_bytes
from bench.workload import Change, Workload
from nosync_nb.files.safe_names import FOLDERS

WARM = 20
"""So many epochs are committed on what was opened before it is branched."""
MORE = 10 * WARM
"""So many epochs are known beyond those of a log; none removes what another one does."""


class Spent:
    """The cost of a block: ms by the clock, of this thread and of all, and bytes written.

    `queued_ms` is the time in which this thread could have run, but other threads had the cores.
    """

    def __init__(self) -> None:
        self.ms = self.cpu_ms = self.all_ms = self.queued_ms = 0.0
        self.bytes = 0

    def told(self) -> dict[str, float]:
        return vars(self)


@contextmanager
def spent() -> Iterator[Spent]:
    """Measures the cost of its block."""
    figures, before, queued = Spent(), _bytes_written(), _queued_ms()
    started, worked, every = time.perf_counter(), time.thread_time(), time.process_time()
    yield figures
    figures.ms = 1000 * (time.perf_counter() - started)
    figures.all_ms = 1000 * (time.process_time() - every)
    figures.cpu_ms = 1000 * (time.thread_time() - worked)
    figures.queued_ms = _queued_ms() - queued
    figures.bytes = _bytes_written() - before


def _queued_ms() -> float:
    place = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    return int(place.read_text().split()[1]) / 1e6 if place.exists() else 0.0


def _bytes_written() -> int:
    said = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(said["wchar"])


def commit(session: Any, change: Change) -> None:
    """Commits an epoch of R1."""
    edges = session.inputs["edges"]
    edges.insert(edge_table(change.src, change.dst, strings=False))
    edges.remove(edge_table(change.gone_src, change.gone_dst, strings=False))
    session.commit()


def changes_after(workload: Workload, epochs: int) -> Iterator[Change]:
    """Yields the epochs of R1 after those that a log was made of, up to `MORE`."""
    return islice(workload.epochs(epochs + MORE), epochs, None)


def first_run(session: Any, workload: Workload) -> Spent:
    """Loads rows, and runs the stage over them for the first time; returns the cost."""
    edges = session.input("edges", "src bigint, dst bigint")
    nodes = session.input("nodes", "node bigint, label bigint", key=None)
    nodes.insert(node_table(workload, strings=False))
    edges.insert(edge_table(workload.src, workload.dst, strings=False))
    session.commit()
    joined = edges.join(nodes, on={"dst": "node"})
    with spent() as taken:
        session.stage("per_label", joined.group_by("label").agg(n="count(*)"))
        session["per_label"].rows()
    return taken


def first(options: argparse.Namespace) -> dict[str, Any]:
    """Measures the first run again, because other work on the machine has changed."""
    path = options.folder / "first"
    shutil.rmtree(path, ignore_errors=True)
    with nosync_nb.open(path, spark_rows=IN_PROCESS) as session:
        taken = first_run(session, Workload(options.edges))
    shutil.rmtree(path)
    return taken.told()


def make(options: argparse.Namespace) -> dict[str, Any]:
    """Makes the log; measures the first run of its stage, and the disk usage of updates."""
    workload = Workload(options.edges)
    path = options.folder / "log"
    retain = options.retain or None
    with nosync_nb.open(path, spark_rows=IN_PROCESS, retain=retain) as session:
        taken = first_run(session, workload)
        session.sync()
        loaded_bytes, updates = folder_bytes(path), 0
        for change in islice(workload.epochs(options.epochs + MORE), options.epochs):
            commit(session, change)
            updates += workload.updates_count([change])
        settle_background(session)  # how far behind it is by now is another each time
        checkpoint_now(session)
    return {
        "edges": options.edges,
        "epochs": options.epochs,
        "first_run": taken.told(),
        "loaded_bytes": loaded_bytes,
        "bytes": folder_bytes(path),
        "updates": updates,
    }


def opening(options: argparse.Namespace) -> dict[str, Any]:
    """Measures the opening to the rows of its stage, right after a checkpoint; the minimum."""
    with nosync_nb.open(options.folder / "log", spark_rows=IN_PROCESS) as session:
        checkpoint_now(session)
    tries = []
    for _ in range(5):
        with spent() as taken:
            session = nosync_nb.open(options.folder / "log", spark_rows=IN_PROCESS)
            session["per_label"].rows()
        tries.append(taken)
        session.close()
    return {"ms": min(t.ms for t in tries), "cpu_ms": min(t.cpu_ms for t in tries)}


def warmed(session: Any, changes: Iterator[Change]) -> dict[str, float]:
    """Commits some epochs; returns the median of the later half."""
    figures = []
    for _ in range(WARM):
        with spent() as taken:
            commit(session, next(changes))
        figures.append(taken.told())
    return {what: median(each[what] for each in figures[WARM // 2 :]) for what in figures[0]}


def gone_on(session: Any, change: Change) -> dict[str, Any]:
    """Reads each stage of a new branch or rewind, and commits the first epoch there."""
    with spent() as read:
        session["per_label"].rows()
    with spent() as counted:
        session["edges"].head(20)
        count = session["edges"].count()
    with spent() as taken:
        commit(session, change)
    assert session["edges"].count() == count
    return {"read": read.told(), "counted": counted.told(), "first": taken.told()}


def seen(session: Any, epochs: list[int]) -> list[Any]:
    """Returns the rows at some epochs, as readers get them."""
    figures = []
    for at in epochs:
        rows = sorted((row.label, row.n) for row in session["per_label"].rows(at=at))
        figures.append((rows, session["edges"].rows(limit=3, at=at)))
    return figures


def digests(log: Path) -> dict[str, str]:
    """Returns the digests of all files of rows, and packs."""
    figures = {}
    for folder in sorted(set(FOLDERS.values())):
        for file in sorted((log / folder).iterdir()):
            with file.open("rb") as opened:
                figures[file.name] = hashlib.file_digest(opened, "blake2b").hexdigest()
    return figures


def branch(options: argparse.Namespace) -> dict[str, Any]:
    """Forks a branch at each epoch, commits there, and drops it; the log does not change."""
    made = json.loads((options.folder / "made.json").read_text())
    workload = Workload(made["edges"])
    changes = changes_after(workload, made["epochs"])
    path = copied(options.folder)
    with nosync_nb.open(path, spark_rows=IN_PROCESS) as session:
        usual = warmed(session, changes)
        session.sync()
        session.branch("before").close()  # makes the folder of branches
        before, files = seen(session, options.at), digests(path)
        figures = []
        for at in options.at:
            change = next(changes)
            with spent() as forked:
                there = session.branch("measured", at=at)
            figures.append({"at": at, "forked": forked.told(), **gone_on(there, change)})
            there.close()
            session.drop_branch("measured")
        assert before == seen(session, options.at), "the parent reads something else"
        after = digests(path)
        assert files.items() <= after.items(), "files of the parent are not what they were"
    shutil.rmtree(path)
    return {"usual": usual, "found": figures, "bytes": made["bytes"]}


def rewind(options: argparse.Namespace) -> dict[str, Any]:
    """Rewinds a copy of the log to an epoch, and commits from there."""
    made = json.loads((options.folder / "made.json").read_text())
    changes = changes_after(Workload(made["edges"]), made["epochs"])
    path, (at,) = copied(options.folder), options.at
    with nosync_nb.open(path, spark_rows=IN_PROCESS) as session:
        usual = warmed(session, changes)
        session.sync()
        session.branch("before").close()  # makes the folder of branches
        (before,) = seen(session, [at])
        with spent() as forked:
            report = session.rewind(to=at)
        figures = {"at": at, "forked": forked.told(), **gone_on(session, next(changes))}
        assert seen(session, [at]) == [before], "it did not go back to what there was"
        session.sync()
        session.rewind(to=at)
        with spent() as again:
            session.rewind(to=at - 1)
        figures["again"] = again.told()
        with nosync_nb.open(report.path, spark_rows=IN_PROCESS) as left:
            assert left.now == report.left
            assert seen(left, [at]) == [before], "what was left is not what it was"
    shutil.rmtree(path)
    return {"usual": usual, "found": [figures], "bytes": made["bytes"]}


def copied(folder: Path) -> Path:
    """Copies a closed log, to be changed; immutable files are hard links."""
    path = folder / "copy"
    shutil.rmtree(path, ignore_errors=True)

    def brought(source: str, target: str) -> None:
        linked = os.path.splitext(source)[1] in FOLDERS
        (os.link if linked else shutil.copyfile)(source, target)

    shutil.copytree(folder / "log", path, copy_function=brought)
    os.sync()  # what is measured waits for its own bytes alone
    return path


def main() -> None:
    """Runs one of the commands, and prints the measurement."""
    parser = argparse.ArgumentParser()
    steps = {"make": make, "first": first, "open": opening, "branch": branch, "rewind": rewind}
    parser.add_argument("what", choices=steps)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--edges", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=5000)
    parser.add_argument("--retain", type=int, default=0)
    parser.add_argument("--at", type=int, nargs="+", default=[])
    options = parser.parse_args()
    figures = steps[options.what](options)
    if options.what == "make":
        (options.folder / "made.json").write_text(json.dumps(figures))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
