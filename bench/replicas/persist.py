"""The cost of a stage in memory, on disk or on replicas, by the number of unmerged layers.

The commit itself merges layers of less than a thousand rows, hence the column that counts the
existing ones; no other layer is merged until the log is opened again.

python -m bench.replicas.persist make FOLDER LEVEL ...  commits layers, then some epochs; dies
python -m bench.replicas.persist open FOLDER ...        opens the log, reads two stages
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from internals import services_of

import nosync_nb
from bench.r1 import IN_PROCESS, edge_table, node_table
from bench.replicas.servers import places
from bench.report import (
    Goals,
    MeasurementError,
    Table,
    percentiles,
    print_result,
    run,
    run_killed,
)
from bench.workload import Workload
from nosync_nb.session.durability.levels import LEVELS

LAYERS = (1, 4, 16, 64)
EPOCHS = 40
COUNT, QUORUM = 3, 2


def persist(options: argparse.Namespace, goals: Goals) -> None:
    """Measures each level by the number of layers; with replicas the disk is lost."""
    columns = (
        "kept     ",
        "layers",
        "of the stage",
        "epoch, p50 ms",
        "max",
        "MB written",
        "open to rows, s",
        "stages computed",
    )
    edges = options.edges or (100_000 if options.quick else 1_000_000)
    table = Table(f"Levels by layers that nobody merged, {edges:,} edges", *columns)
    tries = 1 if options.quick else 3
    times: dict[tuple[str, int], float] = {}
    for layers in LAYERS[::3] if options.quick else LAYERS:
        for level in LEVELS:
            found = [one(level, layers, edges, options.kind) for _ in range(tries)]
            each = {key: median(some[key] for some in found) for key in found[0]}
            times[level, layers] = each["seconds"]
            table.row(level, layers, *each.values())
    few, many = min(layers for _, layers in times), max(layers for _, layers in times)
    goals.add(f"opening, {many} layers / {few}", times["disk", many] / times["disk", few], 1.5)


def one(level: str, layers: int, edges: int, kind: str) -> dict[str, float]:
    """Makes a log, loses it as its level allows, and opens it again."""
    base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        with places(kind, base, COUNT if level == "replicas" else 0) as copies:
            common: tuple[Any, ...] = ("--replicas", *copies.urls)
            sizes = ("--edges", edges, "--layers", layers, "--level", level)
            made = run_killed("-m", "bench.replicas.persist", "make", base, *sizes, *common)
            if level == "replicas":
                shutil.rmtree(base / "x.nosync")
            found = run("-m", "bench.replicas.persist", "open", base, *common)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    if found["result"] != made["result"]:
        raise MeasurementError(f"what was kept on {level} is something else")
    epochs = percentiles(made["latencies_ms"])
    written = made["bytes"] / 1e6
    told = made["layers"], epochs["p50"], epochs["max"], written
    names = ("layers", "p50", "max", "written", "seconds", "recomputed")
    return dict(zip(names, (*told, found["seconds"], found["recomputed"]), strict=True))


def make(options: argparse.Namespace) -> None:
    """Loads a stage in so many epochs, commits some small ones, prints the figures, and dies."""
    workload = Workload(options.edges, seed=1)
    session: Any = nosync_nb.open(
        options.folder / "x.nosync",
        replicas=options.replicas,
        quorum=QUORUM if options.replicas else None,
        spark_rows=IN_PROCESS,
    )
    edges = session.input("edges", "src bigint, dst bigint")
    nodes = session.input("nodes", "node bigint, label bigint", key=None)
    joined = edges.join(nodes, on={"dst": "node"})
    joined = session.stage("joined", joined, persist=options.level)
    counted = joined.group_by("label").agg(n="count(*)")
    session.stage("per_label", counted, persist=options.level)
    nodes.insert(node_table(workload, strings=False))
    latencies = []
    with mock.patch.object(services_of(session).maintenance, "plan_merges", return_value=None):
        for part in range(options.layers):
            some = slice(part, None, options.layers)
            edges.insert(edge_table(workload.src[some], workload.dst[some], strings=False))
            session.commit()
        layers = len(session.info.layers("joined"))
        for change in workload.epochs(EPOCHS):
            started = time.perf_counter()
            edges.insert(edge_table(change.src, change.dst, strings=False))
            edges.remove(edge_table(change.gone_src, change.gone_dst, strings=False))
            session.commit()
            latencies.append(1000 * (time.perf_counter() - started))
    session.sync("replicas" if options.replicas else "disk")
    files = (path for path in (options.folder / "x.nosync").rglob("*") if path.is_file())
    print_result(
        {
            "latencies_ms": latencies,
            "layers": layers,
            "bytes": sum(path.stat().st_size for path in files),
            "result": state(session),
        }
    )
    os.kill(os.getpid(), signal.SIGKILL)


def reopen(options: argparse.Namespace) -> None:
    """Opens the remaining log, and reads."""
    started = time.perf_counter()
    session: Any = nosync_nb.open(
        options.folder / "x.nosync",
        replicas=options.replicas or None,
        quorum=QUORUM if options.replicas else None,
        spark_rows=IN_PROCESS,
    )
    result = state(session)
    seconds = time.perf_counter() - started
    print_result(
        {"seconds": seconds, "result": result, "recomputed": session.recovery.recomputed},
    )
    session.close()


def state(session: Any) -> list[Any]:
    """Returns the rows of the small stage, and the row count of the large one."""
    rows = sorted(map(list, session["per_label"].rows()))
    return [rows, session["joined"].count()]


def main() -> None:
    """Runs one of the two commands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["make", "open"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--level", choices=LEVELS, default="disk")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--edges", type=int, default=100_000)
    parser.add_argument("--replicas", nargs="*", default=[], metavar="URL")
    options = parser.parse_args()
    {"make": make, "open": reopen}[options.part](options)


if __name__ == "__main__":
    main()
