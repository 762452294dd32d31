"""Pages: the rows of a trace in any order, a few at a time.

Near the beginning of an order a page is had by a glance at the layers (glance.py), without adding
them up. Further on the layers are added up and put in order once; then a page costs what it shows.

Threads: any may ask at once. What is made is assigned when it is whole; at worst two make it.
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
"""Of a trace of so few rows a glance at each layer is dearer than to add the layers up."""

NEAR_ROWS = 4096
"""How far from the beginning of an order a glance is taken for no dearer than the order."""

ORDERS_MAX = 2
"""Orders that are kept: 8 bytes a row each."""

Order: TypeAlias = tuple[tuple[int, bool], ...]
"""Positions of columns, and whether they descend; what is equal there is in canonical order."""


class _Sorted(NamedTuple):
    """The places of rows in an order; where the copies of each end, None if each is there once."""

    places: Index
    ends: Index | None


class OrderedRows:
    """The rows of a trace in orders.

    Args:
        check: raises if the rows, added up, are no state; called once, before any is shown.

    Attributes:
        made: how many orders were made.
    """

    def __init__(self, trace: Trace, check: Callable[[Batch], None]) -> None:
        self._trace = trace
        self._check = check
        self._batch: Batch | None = None
        self._orders: dict[Order, _Sorted] = {}
        self._small = trace.rows_count <= SMALL_ROWS
        self.made = 0

    @property
    def types(self) -> tuple[str, ...]:
        """Those of the columns."""
        return tuple(self._trace.layout.types)

    @property
    def batch(self) -> Batch:
        """The rows, added up: made at the first call. Cost: that of `Trace.consolidated`."""
        batch = self._batch
        if batch is None:
            batch = self._trace.consolidated()
            self._check(batch)
            self._batch = batch
        return batch

    def profiles(self) -> list[Profile]:
        """A summary of each column. Cost: that of `profiles`; layers that are sound stay apart."""
        apart = self._batch is None and stats.is_nonnegative(self._trace)
        return profiles(self._trace.updates() if apart else self.batch.updates, self.types)

    def count(self) -> int:
        """How many rows there are, copies counted."""
        apart = self._batch is None and not self._small
        count = stats.row_count(self._trace) if apart else None
        return int(self.batch.diff.sum()) if count is None else count

    def page(self, order: Order, offset: int, limit: int) -> list[Column]:
        """The rows `[offset, offset + limit)` of an order, a row n times, as columns.

        Cost: near the beginning 2 to 30 ns a row of the trace; else O(n log n) for the first page
        of an order, and O(limit) for others.
        """
        last = offset + limit
        if order not in self._orders and last <= NEAR_ROWS and not self._small:
            first = first_rows(self._trace, last, order)
            if first is not None:
                index = np.arange(len(first.diff)).repeat(np.minimum(first.diff, last))
                return [rows.take(c, index[offset:last]) for c in first.columns]
        index, ends = self._sorted(order)
        if ends is None:
            index = index[offset:last]
        else:
            stop = min(last, int(ends[-1])) if len(ends) else 0
            index = index[ends.searchsorted(np.arange(offset, stop), "right")]
        return [rows.take(c, index) for c in self.batch.columns]

    def all(self, order: Order) -> list[Column]:
        """All rows in an order, a row n times, as columns. Cost: that of making the order."""
        return self.page(order, 0, max(self.count(), NEAR_ROWS + 1))

    def _sorted(self, order: Order) -> _Sorted:
        made = self._orders.get(order)
        if made is None:
            batch = self.batch
            index = ordered(batch.columns, self.types, order)
            diff: Any = batch.diff
            once = bool((diff == 1).all())
            made = _Sorted(index, None if once else diff[index].cumsum())
            self.made += 1
            kept = list(self._orders.items())[-(ORDERS_MAX - 1) :]
            self._orders = {**dict(kept), order: made}
        return made
