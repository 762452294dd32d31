"""The workload R1: a join and a count under small changes.

`edges(src, dst)` is joined with `nodes(node, label)` on `dst = node`; the result is the number of
edges per label. There are ten edges to a node and a hundred labels. An epoch changes ten rows:
five new random edges, five old ones removed. R1s is the same with strings for nodes and labels.
Everything follows from the seed, so that every engine sees the same changes. Imports nothing but
numpy: the peers run in environments of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LABELS = 100
INSERTS = 5
REMOVALS = 5
Values = NDArray[np.int64]


@dataclass(frozen=True)
class Change:
    """One epoch: the edges that appear and those that go; `ids` number all edges."""

    src: Values
    dst: Values
    ids: Values
    gone_src: Values
    gone_dst: Values
    gone_ids: Values


class Workload:
    """The rows before the first epoch, and the epochs."""

    def __init__(self, edges_count: int, *, seed: int = 1) -> None:
        self.edges_count = edges_count
        self.nodes_count = max(LABELS, edges_count // 10)
        self._rng = np.random.default_rng(seed)
        self.src = self._rng.integers(0, self.nodes_count, edges_count)
        self.dst = self._rng.integers(0, self.nodes_count, edges_count)
        self.node = np.arange(self.nodes_count)
        self.label = self._rng.permutation(self.nodes_count) % LABELS

    def epochs(self, count: int) -> Iterator[Change]:
        """Yields `count` epochs; no edge is removed twice.

        When all edges of the beginning are gone, those of the first epochs go, in their order.
        """
        rng = self._rng
        first_count = min(count, self.edges_count // REMOVALS)
        gone = rng.choice(self.edges_count, size=first_count * REMOVALS, replace=False)
        inserted: list[tuple[Values, Values, Values]] = []
        for number in range(count):
            first = self.edges_count + number * INSERTS
            src = rng.integers(0, self.nodes_count, INSERTS)
            dst = rng.integers(0, self.nodes_count, INSERTS)
            inserted.append((src, dst, np.arange(first, first + INSERTS)))
            if number < first_count:
                ids = gone[number * REMOVALS : (number + 1) * REMOVALS]
                old = self.src[ids], self.dst[ids], ids
            else:
                old = inserted[number - first_count]
            yield Change(*inserted[-1], *old)

    def updates_count(self, changes: list[Change]) -> int:
        """Returns the updates of these epochs: rows of edges, and of the result out and in."""
        count = 0
        for change in changes:
            net = np.bincount(self.label[change.dst], minlength=LABELS)
            net -= np.bincount(self.label[change.gone_dst], minlength=LABELS)
            count += len(change.src) + len(change.gone_src) + 2 * int(np.count_nonzero(net))
        return count

    def expected(self, changes: list[Change]) -> dict[int, int]:
        """Returns edges per label after these epochs, computed from scratch."""
        dst = np.concatenate([self.dst, *(c.dst for c in changes)])
        counts = np.bincount(self.label[dst], minlength=LABELS)
        for change in changes:
            counts -= np.bincount(self.label[change.gone_dst], minlength=LABELS)
        return {label: int(n) for label, n in enumerate(counts) if n}


def node_names(values: Values) -> list[str]:
    """Writes nodes as the strings of R1s."""
    return [f"node-{value:08d}" for value in values.tolist()]


def label_names(values: Values) -> list[str]:
    """Writes labels as the strings of R1s."""
    return [f"label-{value:03d}" for value in values.tolist()]


class Network:
    """The workload of loops: a random graph whose edges change one by one, and a start node.

    An epoch inserts one new random edge and removes an old one; no edge is removed twice. The
    result is the distance of each node, in edges.
    """

    def __init__(self, nodes_count: int, edges_count: int, *, seed: int = 1) -> None:
        self.nodes_count = nodes_count
        self.edges_count = edges_count
        self._rng = np.random.default_rng(seed)
        self.src, self.dst = self._rng.integers(0, nodes_count, (2, edges_count))
        self.root = int(self.src[0])

    def epochs(self, count: int) -> list[Change]:
        """Returns `count` epochs."""
        gone = self._rng.choice(self.edges_count, size=count, replace=False)
        new = self._rng.integers(0, self.nodes_count, (2, count))
        return [
            Change(
                new[0, i : i + 1],
                new[1, i : i + 1],
                np.array([self.edges_count + i]),
                self.src[gone[i : i + 1]],
                self.dst[gone[i : i + 1]],
                gone[i : i + 1],
            )
            for i in range(count)
        ]

    def edges(self, changes: list[Change]) -> tuple[Values, Values]:
        """Returns the edges after these epochs."""
        kept = np.ones(self.edges_count + len(changes), bool)
        kept[[change.gone_ids[0] for change in changes]] = False
        src = np.concatenate([self.src, *(change.src for change in changes)])
        dst = np.concatenate([self.dst, *(change.dst for change in changes)])
        return src[kept], dst[kept]

    def expected(self, changes: list[Change]) -> Values:
        """Returns how far each node is after these epochs, -1 if it cannot be reached."""
        src, dst = self.edges(changes)
        found = np.full(self.nodes_count, -1)
        found[self.root] = 0
        for far in range(1, self.nodes_count):
            reached = dst[found[src] == far - 1]
            reached = reached[found[reached] < 0]
            if not len(reached):
                break
            found[reached] = far
        return found
