"""The peer Pathway on the workload of loops: run by its own Python, prints one line of JSON.

Distances are the fixpoint of `pw.iterate`, written as ours: the nodes found so far, one edge on,
and the minimum of each node. Measured as in pathway_r1.py, from the first row passed to it until
`on_time_end` of the time. Most changes leave all distances as they are, and then no output would
follow. So an epoch has one more row, its number, that bypasses the loop to the same output.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pathway as pw

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.workload import Change, Network

MARK = -1
"""Source of the edge that is no edge but the number of an epoch, and its node in the output."""


class Edge(pw.Schema):
    """An edge; `edge` makes equal edges distinct."""

    edge: int = pw.column_definition(primary_key=True)
    src: int
    dst: int


class Edges(pw.io.python.ConnectorSubject):
    """Feeds the edges, then one epoch after the other, waiting for each result."""

    def __init__(self, network: Network, changes: list[Change]) -> None:
        super().__init__()
        self.network, self.changes = network, changes
        self.ended: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
        self.found: dict[int, int] = {}
        self.latest = -1
        self.latencies: list[float] = []
        self.load_seconds = 0.0

    def changed(self, key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        """Keeps the result (callback of the subscription)."""
        node, dist = row["node"], row["dist"]
        if node == MARK:
            self.latest = max(self.latest, dist)
        elif is_addition:
            self.found[node] = dist
        elif self.found.get(node) == dist:
            del self.found[node]

    def closed(self, moment: int) -> None:
        """Reports a completed time (callback of the subscription)."""
        self.ended.put((self.latest, time.perf_counter()))

    def _end(self, epoch: int) -> float:
        """Commits an epoch, and waits until all of its effects are in the result."""
        self.next(edge=-1 - epoch, src=MARK, dst=epoch)
        self.commit()
        while True:
            seen, moment = self.ended.get(timeout=600)
            if seen >= epoch:
                return moment

    def run(self) -> None:
        """Loads, waits for the distances, then measures."""
        src, dst = self.network.src.tolist(), self.network.dst.tolist()
        started = time.perf_counter()
        for number, (one, other) in enumerate(zip(src, dst, strict=True)):
            self.next(edge=number, src=one, dst=other)
        self.load_seconds = self._end(0) - started
        rows = [
            (
                {"edge": int(c.ids[0]), "src": int(c.src[0]), "dst": int(c.dst[0])},
                {"edge": int(c.gone_ids[0]), "src": int(c.gone_src[0]), "dst": int(c.gone_dst[0])},
            )
            for c in self.changes
        ]
        for epoch, (new, gone) in enumerate(rows, 1):
            started = time.perf_counter()
            self.next(**new)
            self._remove_inner(None, gone)
            self.latencies.append(self._end(epoch) - started)
        self.close()


def distances(edges: Any, root: int) -> Any:
    """Describes rows (node, dist): the fixpoint."""
    start = pw.debug.table_from_rows(pw.schema_from_types(node=int, dist=int), [(root, 0)])
    start = start.groupby(pw.this.node).reduce(pw.this.node, dist=pw.reducers.min(pw.this.dist))

    def step(found: Any, start: Any, edges: Any) -> dict[str, Any]:
        on = edges.join(found, pw.left.src == pw.right.node)
        farther = on.select(node=pw.left.dst, dist=pw.right.dist + 1)
        both = pw.Table.concat_reindex(farther, start)
        least = pw.reducers.min(pw.this.dist)
        return {"found": both.groupby(pw.this.node).reduce(pw.this.node, dist=least)}

    return pw.iterate(step, found=pw.iterate_universe(start), start=start, edges=edges).found


def main() -> None:
    """Runs the epochs and prints their latencies in milliseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=500_000)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    network = Network(options.nodes, options.edges, seed=options.seed)
    changes = network.epochs(options.epochs)
    feed = Edges(network, changes)
    fed = pw.io.python.read(feed, schema=Edge, autocommit_duration_ms=None)
    edges = fed.filter(pw.this.src != MARK)
    marks = fed.filter(pw.this.src == MARK).select(node=MARK, dist=pw.this.dst)
    result = pw.Table.concat_reindex(distances(edges, network.root), marks)
    pw.io.subscribe(result, on_change=feed.changed, on_time_end=feed.closed)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    found = np.full(network.nodes_count, -1)
    found[list(feed.found)] = list(feed.found.values())
    assert (found == network.expected(changes)).all()
    print(
        json.dumps(
            {
                "peer": f"Pathway {pw.__version__}",
                "load_seconds": feed.load_seconds,
                "latencies_ms": [1000 * x for x in feed.latencies],
            }
        )
    )


if __name__ == "__main__":
    main()
