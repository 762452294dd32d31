"""The peer Pathway on R1: run by its own Python, prints one line of JSON.

Measured from the first row passed to the connector until `on_time_end` of the time that changed
the result, which is when a user of Pathway can see it. Rows enter as Python values, as Pathway
requires; commits are explicit, so that no timer adds to the latency. By default Pathway keeps
everything in memory alone; with `--persisted` it writes each commit to files, as NoSync always
does.
"""

from __future__ import annotations

import argparse
import json
import logging
import queue
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pathway as pw

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.workload import Change, Workload, label_names, node_names


class IntEdge(pw.Schema):
    """An edge with integer nodes; `edge` makes equal edges distinct."""

    edge: int = pw.column_definition(primary_key=True)
    src: int
    dst: int


class StringEdge(pw.Schema):
    """An edge of R1s."""

    edge: int = pw.column_definition(primary_key=True)
    src: str
    dst: str


class IntNode(pw.Schema):
    """A node and its label."""

    node: int = pw.column_definition(primary_key=True)
    label: int


class StringNode(pw.Schema):
    """A node of R1s."""

    node: str = pw.column_definition(primary_key=True)
    label: str


def rows(values: Any, ids: Any, other: Any) -> list[dict[str, Any]]:
    """Makes the rows of edges from columns."""
    return [{"edge": e, "src": s, "dst": d} for e, s, d in zip(ids, values, other, strict=True)]


class Nodes(pw.io.python.ConnectorSubject):
    """Feeds the nodes once."""

    deletions_enabled = False

    def __init__(self, table: list[dict[str, Any]]) -> None:
        super().__init__()
        self.table = table

    def run(self) -> None:
        """Feeds the rows; then the input stays as it is."""
        for row in self.table:
            self.next(**row)
        self.commit()


class Edges(pw.io.python.ConnectorSubject):
    """Feeds the edges, then one epoch after the other, waiting for each result."""

    def __init__(
        self,
        table: list[dict[str, Any]],
        changes: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]],
        total: int,
    ) -> None:
        super().__init__()
        self.table, self.changes, self.total = table, changes, total
        self.results: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.counts: dict[Any, int] = {}
        self.latencies: list[float] = []
        self.touched = False

    def changed(self, key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        """Keeps the result (callback of the subscription)."""
        if is_addition:
            self.counts[row["label"]] = row["n"]
        self.touched = True

    def closed(self, moment: int) -> None:
        """Reports a time that changed the result (callback of the subscription)."""
        if self.touched:
            self.touched = False
            self.results.put(time.perf_counter())

    def run(self) -> None:
        """Loads, waits until everything is counted, then measures."""
        started = time.perf_counter()
        for row in self.table:
            self.next(**row)
        self.commit()
        while sum(self.counts.values()) != self.total:
            self.results.get(timeout=600)
        self.load_seconds = time.perf_counter() - started
        for inserts, removals in self.changes:
            started = time.perf_counter()
            for row in inserts:
                self.next(**row)
            for row in removals:
                self._remove_inner(None, row)
            self.commit()
            self.latencies.append(self.results.get(timeout=60) - started)
        self.close()


def feed(workload: Workload, changes: list[Change], *, strings: bool) -> tuple[Nodes, Edges]:
    """Turns the workload into rows before anything is measured."""
    node: Any = node_names if strings else lambda v: v.tolist()
    label: Any = label_names if strings else lambda v: v.tolist()
    nodes = [
        {"node": n, "label": m}
        for n, m in zip(node(workload.node), label(workload.label), strict=True)
    ]
    edges = rows(node(workload.src), range(workload.edges_count), node(workload.dst))
    epochs = [
        (
            rows(node(c.src), c.ids.tolist(), node(c.dst)),
            rows(node(c.gone_src), c.gone_ids.tolist(), node(c.gone_dst)),
        )
        for c in changes
    ]
    return Nodes(nodes), Edges(edges, epochs, workload.edges_count)


def main() -> None:
    """Runs R1 or R1s and prints its latencies in milliseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strings", action="store_true")
    parser.add_argument("--persisted", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # a line for each chunk that is written takes its time, too
    workload = Workload(options.edges, seed=options.seed)
    changes = list(workload.epochs(options.epochs))
    node_feed, edge_feed = feed(workload, changes, strings=options.strings)
    nodes = pw.io.python.read(
        node_feed, schema=StringNode if options.strings else IntNode, autocommit_duration_ms=None
    )
    edges = pw.io.python.read(
        edge_feed, schema=StringEdge if options.strings else IntEdge, autocommit_duration_ms=None
    )
    joined = edges.join(nodes, pw.left.dst == pw.right.node).select(pw.right.label)
    counted = joined.groupby(pw.this.label).reduce(pw.this.label, n=pw.reducers.count())
    pw.io.subscribe(counted, on_change=edge_feed.changed, on_time_end=edge_feed.closed)
    with tempfile.TemporaryDirectory(prefix="pathway-bench-") as folder:
        kept = None
        if options.persisted:
            backend = pw.persistence.Backend.filesystem(folder)
            kept = pw.persistence.Config(backend, snapshot_interval_ms=0)
        pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=kept)
    expected = workload.expected(changes)
    keys = label_names if options.strings else lambda v: v.tolist()
    import numpy as np

    names = keys(np.arange(100))
    assert edge_feed.counts == {names[label]: n for label, n in expected.items()}
    print(
        json.dumps(
            {
                "peer": f"Pathway {pw.__version__}",
                "load_seconds": edge_feed.load_seconds,
                "latencies_ms": [1000 * x for x in edge_feed.latencies],
            }
        )
    )


if __name__ == "__main__":
    main()
