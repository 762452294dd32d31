"""NoSync on graph algorithms, one edge in and one out an epoch; one line of JSON.

Each update is shown beside the cost of the first run, and beside `networkx`, which recomputes the
whole result. The first run of the stage is part of the commit that loads the edges. An update is
measured from `insert` to the return of `commit()`. A run ends after `--epochs` or `--seconds`,
whichever comes first.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from internals import log_of

import nosync_nb
from bench.r1 import IN_PROCESS
from nosync_nb.collections.library import graphs

PER_NODE = 4
AGAIN = 3
CORE = 3

ALGORITHMS: dict[str, Callable[[Any, Any], Any]] = {
    "pagerank": lambda edges, roots: graphs.pagerank(edges),
    "connected": lambda edges, roots: graphs.connected_components(edges),
    "labels": lambda edges, roots: graphs.label_propagation(edges),
    "core": lambda edges, roots: graphs.k_core(edges, CORE),
    "distances": graphs.distances,
    "strong": lambda edges, roots: graphs.strongly_connected_components(edges),
}


def peer(algorithm: str, edges: list[tuple[int, int]]) -> Callable[[], Any]:
    """Returns the function that recomputes the result with networkx, on the current graph."""
    import networkx as nx
    from networkx.algorithms.link_analysis.pagerank_alg import _pagerank_python  # without SciPy

    directed = nx.DiGraph(edges)
    plain = nx.Graph((a, b) for a, b in edges if a != b)
    found: dict[str, Callable[[], Any]] = {
        "pagerank": lambda: _pagerank_python(directed),
        "connected": lambda: list(nx.connected_components(plain)),
        "labels": lambda: list(nx.community.label_propagation_communities(plain)),
        "core": lambda: nx.k_core(plain, CORE),
        "distances": lambda: nx.single_source_shortest_path_length(directed, edges[0][0]),
        "strong": lambda: list(nx.strongly_connected_components(directed)),
    }
    return found[algorithm]


def timed(run: Callable[[], Any]) -> float:
    """Returns the milliseconds of a call."""
    started = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - started)


def measure(session: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Loads the edges and changes one after the other."""
    rng = np.random.default_rng(options.seed)
    live = [(int(a), int(b)) for a, b in rng.integers(0, options.nodes, (options.edges, 2))]
    edges, roots = (
        session.input("edges", "src bigint, dst bigint"),
        session.input("roots", "node bigint"),
    )
    stage = session.stage("stage", ALGORITHMS[options.algorithm](edges, roots))
    roots.insert([(live[0][0],)])
    edges.insert(live)
    first = timed(session.commit)
    latencies, touched, sizes = [], [], []
    gc.collect()
    gc.freeze()  # Python goes through all that was imported now and then, in 45 ms on two cores
    ends = time.perf_counter() + options.seconds
    while len(latencies) < options.epochs and time.perf_counter() < ends:
        place = 1 + int(rng.integers(len(live) - 1))
        old = live[place]
        live[place] = (int(rng.integers(options.nodes)), int(rng.integers(options.nodes)))
        before = session.stats["touched"], log_of(session).head.offset
        started = time.perf_counter()
        edges.insert([live[place]])
        edges.remove([old])
        session.commit()
        latencies.append(1000 * (time.perf_counter() - started))
        touched.append(session.stats["touched"] - before[0])
        sizes.append(log_of(session).head.offset - before[1])
    rows = sorted(map(tuple, stage.rows()))
    assert rows == sorted(map(tuple, ALGORITHMS[options.algorithm](edges, roots).rows()))
    result = {"first_ms": first, "latencies_ms": latencies, "touched": touched, "bytes": sizes}
    try:
        again = peer(options.algorithm, live)
        result["peer_ms"] = sorted(timed(again) for _ in range(AGAIN))[AGAIN // 2]
    except ImportError:
        result["peer_ms"] = None
    return result


def main() -> None:
    """Runs the epochs and prints their latencies in milliseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=list(ALGORITHMS))
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.edges = PER_NODE * options.nodes
    folder = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        session = nosync_nb.open(folder / "loops.nosync", spark_rows=IN_PROCESS)
        result = measure(session, options)
        session.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"peer": "NoSync", **result}))


if __name__ == "__main__":
    main()
