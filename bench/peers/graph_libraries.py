"""Graph libraries without incremental updates, on the workload of loops; one line of JSON.

networkx keeps a graph that is changed in place, and searches all of it after each change. SciPy
stores the edges as arrays and builds its matrix from them each time, because a matrix in its form
does not accept a new edge. Measured from the change to the distances of all nodes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.workload import Change, Network

Search = Callable[[Change], Any]


def with_networkx(network: Network) -> Search:
    """Returns the function that applies a change and returns the distances."""
    import networkx as nx

    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(network.nodes_count))
    graph.add_edges_from(zip(network.src.tolist(), network.dst.tolist(), strict=True))

    def search(change: Change) -> Any:
        graph.add_edge(int(change.src[0]), int(change.dst[0]))
        graph.remove_edge(int(change.gone_src[0]), int(change.gone_dst[0]))
        lengths = nx.single_source_shortest_path_length(graph, network.root)
        found = np.full(network.nodes_count, -1)
        found[list(lengths)] = list(lengths.values())
        return found

    return search


def with_scipy(network: Network) -> Search:
    """Returns the function that applies a change and returns the distances."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    src, dst = network.src.copy(), network.dst.copy()
    size = network.nodes_count

    def search(change: Change) -> Any:
        place = change.gone_ids[0]
        src[place], dst[place] = change.src[0], change.dst[0]
        matrix = csr_array((np.ones(len(src)), (src, dst)), shape=(size, size))
        found = dijkstra(matrix, indices=network.root, unweighted=True)
        return np.where(np.isinf(found), -1, found).astype(np.int64)

    return search


def main() -> None:
    """Runs the epochs and prints their latencies in milliseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=["networkx", "scipy"])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=500_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    network = Network(options.nodes, options.edges, seed=options.seed)
    changes = network.epochs(options.epochs)
    search = (with_networkx if options.library == "networkx" else with_scipy)(network)
    latencies = []
    found = None
    for change in changes:
        started = time.perf_counter()
        found = search(change)
        latencies.append(1000 * (time.perf_counter() - started))
    assert (found == network.expected(changes)).all()
    print(json.dumps({"peer": options.library, "latencies_ms": latencies}))


if __name__ == "__main__":
    main()
