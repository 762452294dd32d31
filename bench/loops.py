"""NoSync on loops: breadth-first distances, one edge in and one out an epoch; one line of JSON.

Measured from `insert` of an Arrow table to the return of `commit()`, as R1 is. Beside it the cost
of computing the same stage from scratch over the same inputs: dropped and defined again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import nosync_nb
from bench.r1 import IN_PROCESS, edge_table
from bench.workload import Change, Network
from nosync_nb.collections.library import graphs

AGAIN = 3


def define(session: Any) -> tuple[Any, Any, Any]:
    """Defines the inputs and the stage."""
    edges = session.input("edges", "src bigint, dst bigint")
    roots = session.input("roots", "node bigint")
    return edges, roots, session.stage("dist", graphs.distances(edges, roots))


def check(stage: Any, network: Network, changes: list[Change]) -> None:
    """Asserts that the result is the one computed from scratch."""
    table = stage.to_arrow()
    found = np.full(network.nodes_count, -1)
    found[np.asarray(table["node"])] = np.asarray(table["dist"])
    assert len(table) == np.count_nonzero(found >= 0)
    assert (found == network.expected(changes)).all()


def measure(session: Any, network: Network, changes: list[Change]) -> dict[str, Any]:
    """Loads, runs the epochs, then computes the stage from scratch some times."""
    tables = [
        (edge_table(c.src, c.dst, strings=False), edge_table(c.gone_src, c.gone_dst, strings=False))
        for c in changes
    ]
    clock = time.perf_counter
    edges, roots, stage = define(session)
    roots.insert([(network.root,)])
    edges.insert(edge_table(network.src, network.dst, strings=False))
    started = clock()
    session.commit()
    load_seconds = clock() - started
    latencies, touched = [], []
    for inserts, removals in tables:
        before = session.stats["touched"]
        started = clock()
        edges.insert(inserts)
        edges.remove(removals)
        session.commit()
        latencies.append(1000 * (clock() - started))
        touched.append(session.stats["touched"] - before)
    check(stage, network, changes)
    again = []
    for _ in range(AGAIN):
        session.drop("dist")
        started = clock()
        stage = define(session)[2]
        again.append(1000 * (clock() - started))
    check(stage, network, changes)
    return {
        "load_seconds": load_seconds,
        "latencies_ms": latencies,
        "touched": touched,
        "again_ms": sorted(again)[AGAIN // 2],
    }


def main() -> None:
    """Runs the epochs and prints their latencies in milliseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=500_000)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    network = Network(options.nodes, options.edges, seed=options.seed)
    changes = network.epochs(options.epochs)
    folder = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        session = nosync_nb.open(folder / "loops.nosync", spark_rows=IN_PROCESS)
        result = measure(session, network, changes)
        session.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"peer": "NoSync", **result}))


if __name__ == "__main__":
    main()
