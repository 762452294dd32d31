"""Recovery after kill -9: the time from `open` to the rows of a small stage; lines of JSON.

python -m bench.recovery make FOLDER ...    makes a history, then kills itself
python -m bench.recovery open FOLDER        opens it and reads; imports are not counted
python -m bench.recovery again FOLDER ...   loads the inputs and computes everything from scratch
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from internals import log_of

import nosync_nb
from bench.r1 import IN_PROCESS, edge_table, load
from bench.report import print_result
from bench.workload import Workload
from nosync_nb.store.replication.backends.folder import FolderReplica


def add_stages(session: Any, edges: Any, count: int) -> None:
    """Adds stages beside the first one, a chain and its siblings, to make a larger graph."""
    previous = edges
    for number in range(count - 1):
        if number % 2:
            grouped = previous.group_by("src").agg(n="count(*)")
            session.stage(f"stage_{number}", grouped.filter("n > 100"))
        else:
            previous = session.stage(f"stage_{number}", edges.filter(f"src % 1000 = {number}"))


def make(options: argparse.Namespace) -> None:
    """Makes a session with a history, prints its result, and dies."""
    workload = Workload(options.edges, seed=options.seed)
    retain = options.retain or None
    session = nosync_nb.open(
        options.folder, spark_rows=IN_PROCESS, retain=retain, replicas=options.replicas
    )
    edges, stage = load(session, workload, strings=False)
    add_stages(session, edges, options.stages)
    changes = list(workload.epochs(options.epochs))
    for change in changes:
        edges.insert(edge_table(change.src, change.dst, strings=False))
        edges.remove(edge_table(change.gone_src, change.gone_dst, strings=False))
        session.commit()
    session.sync("replicas" if options.replicas else "disk")
    result = sorted((row.label, row.n) for row in stage.rows())
    print_result(
        {
            "result": result,
            "now": session.now,
            "bytes": folder_bytes(options.folder),
            "updates": workload.updates_count(changes),
        }
    )
    os.kill(os.getpid(), signal.SIGKILL)


def reopen(options: argparse.Namespace) -> None:
    """Opens after the death of the owner; then reads the past at a few epochs.

    Beside replicas it waits until enough of them have promised, and dies as well.
    """
    started, computed = time.perf_counter(), time.process_time()
    session = nosync_nb.open(options.folder, spark_rows=IN_PROCESS)
    rows = session["per_label"].rows()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - computed
    fence_seconds = promised(session, options.replicas or (), started)
    reads = []
    readable = session.epochs()
    for part in range(1, 20):
        epoch = readable[max(1, len(readable) * part // 20)].number
        started = time.perf_counter()
        session["per_label"].rows(at=epoch)
        reads.append(1000 * (time.perf_counter() - started))
    print_result(
        {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "fence_seconds": fence_seconds,
            "result": sorted((row.label, row.n) for row in rows),
            "now": session.now,
            "recomputed": session.recovery.recomputed,
            "lost": list(session.recovery.lost),
            "reads_ms": reads,
        }
    )
    if options.replicas:
        os.kill(os.getpid(), signal.SIGKILL)
    session.close()


def promised(session: Any, urls: Sequence[str], started: float) -> float:
    """Returns the seconds until a majority of the replicas obey this owner; 0 without any."""
    log = log_of(session)
    copies = [FolderReplica(url.removeprefix("file://"), log.id) for url in urls]
    waiting = set(range(len(copies)))
    while 2 * len(waiting) >= len(copies) > 0:
        for number in [*waiting]:
            said = copies[number].promised()
            if said is not None and said.generation == log.generation:
                waiting.discard(number)
        time.sleep(0.0005)
    return time.perf_counter() - started if urls else 0.0


def again(options: argparse.Namespace) -> None:
    """Computes all stages from inputs in memory: the work that recovery saves."""
    workload = Workload(options.edges, seed=options.seed)
    session = nosync_nb.open(options.folder, spark_rows=IN_PROCESS)
    started, computed = time.perf_counter(), time.process_time()
    edges, stage = load(session, workload, strings=False)
    add_stages(session, edges, options.stages)
    stage.rows()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - computed
    print_result({"seconds": seconds, "cpu_seconds": cpu_seconds})
    session.close()


def folder_bytes(folder: Path) -> int:
    """Returns the bytes on disk below a folder."""
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return sum(path.stat().st_blocks * 512 for path in files)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["make", "open", "again"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--retain", type=int, default=0)
    parser.add_argument("--replicas", nargs="+", metavar="URL")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    {"make": make, "open": reopen, "again": again}[options.what](options)


if __name__ == "__main__":
    main()
