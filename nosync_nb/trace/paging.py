"""Reads the rows of a trace in any order, a page at a time.

A page near the beginning of an order is read from the first rows of each layer (first_rows.py),
without merging the layers. For later pages the layers are merged and sorted once; then a page costs
only its own rows.

Threads: any may call. Results are assigned when they are complete; at worst two threads compute the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nosync_nb import rows
from nosync_nb.rows import Column
from nosync_nb.rows.order import ordered
from nosync_nb.trace import stats
from nosync_nb.trace.batch import Batch, Index
from nosync_nb.trace.column_profiles import Profile, profiles
from nosync_nb.trace.first_rows import first_rows
from nosync_nb.trace.trace import Trace

SMALL_ROWS = 8192
"""Merging a trace of at most so many rows is cheaper than reading the first rows of each layer."""

NEAR_ROWS = 4096
"""Pages up to so many rows from the beginning of an order are read without making the order."""

ORDERS_MAX = 2
"""The number of cached orders: 8 bytes a row each."""

Order: TypeAlias = tuple[tuple[int, bool], ...]
"""Positions of columns, and whether they descend; ties are in canonical order."""


class _OrderIndex(NamedTuple):
    """The positions of rows in an order; the end of the copies of each, None without copies."""

    places: Index
    ends: Index | None


class OrderedRows:
    """The rows of a trace in orders.

    Args:
        check: raises if the consolidated rows are no valid state; called once, before any is shown.

    Attributes:
        made: the number of orders that were computed.
    """

    def __init__(self, trace: Trace, check: Callable[[Batch], None]) -> None:
        self._trace = trace
        self._check = check
        self._batch: Batch | None = None
        self._orders: dict[Order, _OrderIndex] = {}
        self._small = trace.rows_count <= SMALL_ROWS
        self.made = 0

    @property
    def types(self) -> tuple[str, ...]:
        """The column types."""
        return tuple(self._trace.layout.types)

    @property
    def batch(self) -> Batch:
        """The consolidated rows, computed at the first call. Cost: that of `Trace.consolidated`."""
        batch = self._batch
        if batch is None:
            batch = self._trace.consolidated()
            self._check(batch)
            self._batch = batch
        return batch

    def profiles(self) -> list[Profile]:
        """Computes a summary of each column.

        Cost: that of `profiles`; layers are not merged if no row is below zero.
        """
        apart = self._batch is None and stats.is_nonnegative(self._trace)
        return profiles(self._trace.updates() if apart else self.batch.updates, self.types)

    def count(self) -> int:
        """Counts the rows, copies included."""
        apart = self._batch is None and not self._small
        count = stats.row_count(self._trace) if apart else None
        return int(self.batch.diff.sum()) if count is None else count

    def page(self, order: Order, offset: int, limit: int) -> list[Column]:
        """Returns the rows `[offset, offset + limit)` of an order, a row n times, as columns.

        Cost: near the beginning 2 to 30 ns a row of the trace; else O(n log n) for the first page
        of an order, and O(limit) for others.
        """
        last = offset + limit
        if order not in self._orders and last <= NEAR_ROWS and not self._small:
            first = first_rows(self._trace, last, order)
            if first is not None:
                index = np.arange(len(first.diff)).repeat(np.minimum(first.diff, last))
                return [rows.take(c, index[offset:last]) for c in first.columns]
        index, ends = self._order_index(order)
        if ends is None:
            index = index[offset:last]
        else:
            stop = min(last, int(ends[-1])) if len(ends) else 0
            index = index[ends.searchsorted(np.arange(offset, stop), "right")]
        return [rows.take(c, index) for c in self.batch.columns]

    def all(self, order: Order) -> list[Column]:
        """Returns all rows in an order, a row n times. Cost: that of making the order."""
        return self.page(order, 0, max(self.count(), NEAR_ROWS + 1))

    def _order_index(self, order: Order) -> _OrderIndex:
        cached = self._orders.get(order)
        if cached is None:
            batch = self.batch
            index = ordered(batch.columns, self.types, order)
            diff: Any = batch.diff
            once = bool((diff == 1).all())
            cached = _OrderIndex(index, None if once else diff[index].cumsum())
            self.made += 1
            recent = list(self._orders.items())[-(ORDERS_MAX - 1) :]
            self._orders = {**dict(recent), order: cached}
        return cached
