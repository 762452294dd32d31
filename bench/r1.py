"""NoSync on R1: from `insert` of an Arrow table to the return of `commit()`; one line of JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from internals import services_of

import nosync_nb
from bench.replicas.servers import computed, keepers
from bench.workload import LABELS, Change, Workload, label_names, node_names

IN_PROCESS = 1 << 40
"""Rows above which Spark computes: never here, no JVM shall take part in what is measured."""


def edge_table(src: Any, dst: Any, *, strings: bool) -> pa.Table:
    """Makes an Arrow table of edges."""
    if strings:
        return pa.table({"src": node_names(src), "dst": node_names(dst)})
    return pa.table({"src": src, "dst": dst})


def node_table(workload: Workload, *, strings: bool) -> pa.Table:
    """Makes the Arrow table of nodes."""
    node, label = workload.node, workload.label
    if strings:
        return pa.table({"node": node_names(node), "label": label_names(label)})
    return pa.table({"node": node, "label": label})


def define(session: Any, *, strings: bool) -> tuple[Any, Any, Any]:
    """Defines the inputs and the stage."""
    kind = "string" if strings else "bigint"
    edges = session.input("edges", f"src {kind}, dst {kind}")
    nodes = session.input("nodes", f"node {kind}, label {kind}", key=None)
    joined = edges.join(nodes, on={"dst": "node"})
    return edges, nodes, session.stage("per_label", joined.group_by("label").agg(n="count(*)"))


def load(session: Any, workload: Workload, *, strings: bool) -> tuple[Any, Any]:
    """Loads the base rows as the first epoch."""
    edges, nodes, stage = define(session, strings=strings)
    nodes.insert(node_table(workload, strings=strings))
    edges.insert(edge_table(workload.src, workload.dst, strings=strings))
    session.commit()
    return edges, stage


def check(stage: Any, workload: Workload, changes: list[Change], *, strings: bool) -> None:
    """Asserts that the result is the one computed from scratch."""
    values = np.arange(LABELS)
    names: list[Any] = label_names(values) if strings else values.tolist()
    expected = {names[label]: n for label, n in workload.expected(changes).items()}
    assert {row.label: row.n for row in stage.rows()} == expected


def without_log(session: Any) -> None:
    """Removes the log from the critical path, to measure its cost there.

    NOTE: users have no such switch; an epoch that is not in the log is not committed.
    """
    publisher = services_of(session).publisher

    def nowhere(*_: Any) -> Any:
        return publisher.next()

    mock.patch.object(publisher.store, "write_epoch", nowhere).start()
    mock.patch.object(publisher, "is_in_log", return_value=True).start()


def written(session: Any, options: Any) -> None:
    """Commits as a write-first policy does: each stage waits until all replicas have it.

    The frame of each stage but one is an epoch without a change.
    """
    for _ in range(options.write_first):
        session.commit(wait="replicas")


def measure(session: Any, workload: Workload, changes: list[Change], options: Any) -> Any:
    """Loads, then runs the epochs; returns the seconds of loading and of each epoch."""
    strings = options.strings
    tables = [
        (
            edge_table(c.src, c.dst, strings=strings),
            edge_table(c.gone_src, c.gone_dst, strings=strings),
        )
        for c in changes
    ]
    started = time.perf_counter()
    edges, stage = load(session, workload, strings=strings)
    load_seconds = time.perf_counter() - started
    if options.no_log:
        session.sync()
        without_log(session)
    latencies = []
    first = session.commit if not options.write_first else partial(written, session, options)
    clock = time.perf_counter
    period = 1 / options.hertz if options.hertz else 0.0
    due = clock()
    for inserts, removals in tables:
        due += period
        if period and (wait := due - clock()) > 0:
            time.sleep(wait)
        started = clock()
        edges.insert(inserts)
        edges.remove(removals)
        first()
        latencies.append(clock() - started)
    check(stage, workload, changes, strings=strings)
    return load_seconds, latencies


def main() -> None:
    """Runs R1 or R1s and prints its latencies in milliseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strings", action="store_true")
    parser.add_argument("--no-log", action="store_true")
    parser.add_argument("--replicas", nargs="*", default=[], metavar="URL")
    text = "so many stages wait, each in turn, until all replicas have its frame"
    parser.add_argument("--write-first", type=int, default=0, metavar="STAGES", help=text)
    parser.add_argument("--hertz", type=int, default=0, help="epochs a second; 0: back to back")
    options = parser.parse_args()
    workload = Workload(options.edges, seed=options.seed)
    changes = list(workload.epochs(options.epochs))
    folder = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        path = folder / "r1.nosync"
        quorum = len(options.replicas) if options.write_first else None
        session = nosync_nb.open(
            path, spark_rows=IN_PROCESS, replicas=options.replicas, quorum=quorum
        )
        load_seconds, latencies = measure(session, workload, changes, options)
        keeper_seconds = sum(map(computed, keepers(str(path))))
        session.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result = {"load_seconds": load_seconds, "keeper_seconds": keeper_seconds}
    print(json.dumps({"peer": "NoSync", **result, "latencies_ms": [1000 * x for x in latencies]}))


if __name__ == "__main__":
    main()
