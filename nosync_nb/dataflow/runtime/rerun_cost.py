"""Estimates if a part of the graph is cheaper to run from scratch than over its changes.

The unit is the work on one row that is hashed and sorted. The number of changed rows is known. The
rest is estimated: filters select all rows, each row of a join has the same number of partners, and
the changed rows are spread over the groups at random. The two sides have the same assumptions, so
that errors matter less. The kind of an operator's work is its own (`Operator.update_cost`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nosync_nb.dataflow.graph import Node
from nosync_nb.dataflow.runtime.delta import Delta
from nosync_nb.operators.base import Operator, UpdateCost
from nosync_nb.trace import Trace

MERGED = 0.4
"""The work on a row that is merged, because it is hashed already."""

MATCHED = 0.1
"""The work on a row whose hash is compared with those of another state in the same order."""

COPIED = 0.2
"""The work on a row that is copied and written, but not sorted again."""

ROW_WISE = 0.2
"""The work on a row of an operator without lookups and without state."""

LOOKED_UP = 0.5
"""The work on a row that is looked up and may be part of the result."""

NEIGHBOURS = 2.0
"""The work on a row that is looked up beside a changed one, before and after the change."""

FIRST_ROWS = 64
"""The assumed maximum number of rows of a group that are looked up, if not all of them are."""

CLEARLY = 0.9
"""A run from scratch is chosen only if its estimate is below this share of the other one."""


class RowEstimate(NamedTuple):
    """The estimated rows of a node before and after the epoch, and of its change."""

    before: float
    after: float
    changed: float

    @property
    def is_replaced(self) -> bool:
        """True if the change probably removes all rows and inserts others."""
        return self.before > 0 and self.changed == self.before + self.after

    @property
    def share(self) -> float:
        """The changed rows as a share of the rows; 2 if all rows are replaced."""
        return self.changed / max(self.before, self.after, 1.0)


def row_estimate(trace: Trace, delta: Delta | None) -> RowEstimate:
    """Returns the rows of a node with a trace.

    Args:
        trace: one of its traces before the epoch.
        delta: its change.
    """
    before = float(trace.rows_count)
    if delta is None:
        return RowEstimate(before, before, 0.0)
    changed = len(delta)
    diffs = [part.diff for part in next(iter(delta.held.values())).parts] if delta.held else None
    inserted = sum(np.count_nonzero(diff > 0) for diff in diffs or [delta.updates.diff])
    return RowEstimate(before, max(before + 2.0 * inserted - changed, 0.0), float(changed))


class SegmentCost:
    """The work on one segment, in both ways. Nodes are added with inputs first.

    Attributes:
        following, from_scratch: the work of both ways.
        largest_share: the largest share of its rows that an input changes.
        is_load: True if no input had rows, so that both ways are the same.
        rows: the number of rows of the inputs after the epoch.
    """

    def __init__(self) -> None:
        self.following = 0.0
        self.from_scratch = 0.0
        self.largest_share = 0.0
        self.is_load = True
        self.rows = 0.0
        self._rows: dict[int, RowEstimate] = {}
        self._last = RowEstimate(0.0, 0.0, 0.0)

    @property
    def is_cheaper_from_scratch(self) -> bool:
        """True if a run from scratch is clearly cheaper."""
        return self.from_scratch < CLEARLY * self.following

    def add_leaf(self, number: int, rows: RowEstimate, merged: bool) -> None:
        """Adds a node whose rows are stored.

        Args:
            merged: True if its layers must be merged for a run from scratch.
        """
        self._rows[number] = rows
        self.largest_share = max(self.largest_share, rows.share)
        self.rows += rows.after
        self.is_load &= not rows.before
        if merged:
            self.from_scratch += MERGED * (rows.before + rows.changed)

    def add_node(self, node: Node, grouped: Trace | None) -> None:
        """Adds the work of a node.

        Args:
            grouped: a trace in the order of its groups, for an operator that works by group.
        """
        operator = node.operator
        assert operator is not None
        below = [self._rows[i] for i in node.inputs]
        read = [sum(each) for each in zip(*below, strict=True)] if below else [0.0, 0.0, 0.0]
        total = RowEstimate(*read)
        self.from_scratch += total.after
        self.following += total.changed
        if operator.update_cost is not UpdateCost.ROWS or _reads_neighbours(operator):
            output = self._grouped(total, node, grouped)
        elif len(below) > 1 and all(layout is not None for layout in operator.layouts):
            # Each change is looked up in the previous rows of the inputs that follow it, and in the
            # previous and the changed rows of those before it.
            looked_up = math.prod(each.before + each.changed for each in below)
            looked_up -= math.prod(each.before for each in below)
            before = max(each.before for each in below)
            after = max(each.after for each in below)
            pairs = math.prod(max(each.after, 1.0) for each in below)
            output = RowEstimate(before, after, after * looked_up / pairs)
            self.following += LOOKED_UP * output.changed
            self.from_scratch += LOOKED_UP * output.after
        else:
            output = total
            if not node.state and not any(operator.layouts):
                self.from_scratch -= (1 - ROW_WISE) * total.after
                self.following -= (1 - ROW_WISE) * total.changed
        self._rows[node.id] = self._last = output

    def add_output(self, stored: int) -> None:
        """Adds the work to publish the change of the last node.

        Args:
            stored: the number of its rows before the epoch.
        """
        output = self._last
        after = stored * output.after / max(output.before, 1.0) if stored else output.after
        self.following += output.changed * after / max(output.after, 1.0)
        # The rows that only one of the two states has are copied, unless that is all of them.
        share = min(output.changed / max(output.before + output.after, 1.0), 1.0)
        copied = 0.0 if share == 1.0 else share * (stored + after)
        self.from_scratch += after + MATCHED * (stored + after) + COPIED * copied

    def _grouped(self, rows: RowEstimate, node: Node, trace: Trace | None) -> RowEstimate:
        """Adds the lookups of an operator that works by group; returns its output."""
        operator = node.operator
        assert operator is not None
        groups = float(_groups_count(trace)) if trace is not None else max(rows.before, 1.0)
        groups = max(groups, 1.0)
        touched = groups * -math.expm1(-rows.changed / groups)
        share = touched / groups
        near = operator.update_cost is not UpdateCost.PARTITIONS
        if near and node.state:
            self.following += 2 * touched
            return RowEstimate(groups, groups, 2 * touched)
        looked_up = share * (rows.before + rows.after)
        if near:
            work = NEIGHBOURS if _reads_neighbours(operator) else LOOKED_UP
            self.following += work * min(looked_up, FIRST_ROWS * touched)
            return RowEstimate(rows.before, rows.after, min(looked_up, 2 * rows.changed))
        self.following += looked_up
        return RowEstimate(rows.before, rows.after, looked_up)


def _reads_neighbours(operator: Operator) -> bool:
    """Returns True if an operator reads rows beside the changed ones, in the order of a group."""
    layouts = operator.layouts
    if operator.update_cost is not UpdateCost.ROWS:
        return False
    return len(layouts) == 1 and layouts[0] is not None and layouts[0].order is not None


def _groups_count(trace: Trace) -> int:
    """Returns the number of different key hashes in the largest part of a trace."""
    layers = [layer for layer in trace.layers if layer.rows_count]
    if not layers:
        return 0
    part = max(max(layers, key=lambda each: each.rows_count).parts, key=len)
    return int(np.count_nonzero(part.khash[1:] != part.khash[:-1])) + 1 if len(part) else 0
