"""Reads the rows of a trace in any order, a page at a time, and summarises its columns.

A page near the beginning of an order is read from the first rows of each layer, without merging the
layers. For later pages the layers are merged and sorted once; then a page costs only its own rows.
The profiles of columns count rows with their copies, exactly.

Threads: any may call. Results are assigned when they are complete; at worst two threads compute the
same.

The first rows are exact, and as strict as a merge. If a row might be there fewer than 0 times, or
if a merge would cost no more, the functions return None, and the caller merges the trace.

Design
    Each part is scanned once, by order codes, in blocks that fit the cache, for its first `m` rows.
    Rows beyond the last row of some part's list may be incomplete, so rows count only up to the
    least of these last rows. If removals leave too few of them, `m` grows. A layer does not change,
    so it caches its first rows in the last orders that were requested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb import rows
from nosync_nb.rows import Column, buffers
from nosync_nb.rows.count_arithmetic import add_runs
from nosync_nb.rows.order import CodesOf, Ordering, exact_codes, ordered
from nosync_nb.rows.types import is_nested
from nosync_nb.trace import stats
from nosync_nb.trace.batch import Batch, Diffs, Index, Updates, concat_updates, no_updates
from nosync_nb.trace.layer import Layer
from nosync_nb.trace.stats import is_cheaper_than_merge, is_nonnegative
from nosync_nb.trace.trace import Trace

_BLOCK_ROWS = 1 << 15
_TIES_MAX = 1 << 13
_CACHED_ROWS_MAX = 1 << 12
_GROWTH = 8


class FirstRows(NamedTuple):
    """The first rows of a part in an order, and whether there are more."""

    updates: Updates
    more: bool


def first_rows(trace: Trace, n: int, ordering: Ordering = ()) -> Updates | None:
    """Returns distinct rows in an order, enough that their copies are `n` rows or all.

    Args:
        ordering: columns that sort before the canonical order.

    Cost: O(rows) the first time, vectorised, some 2 ns a row; then that of the layers that are new.
    """
    if not is_nonnegative(trace):
        return None
    types = trace.layout.types
    want = max(n, 1)
    while is_cheaper_than_merge(trace, want * len(trace.layers)):
        firsts = [each for layer in trace.layers for each in _first_of_layer(layer, ordering, want)]
        updates = _sum_first_rows(firsts, types, ordering)
        if int(np.minimum(updates.diff, n).sum()) >= n or not any(each.more for each in firsts):
            return updates
        want *= _GROWTH
    return None


def _first_of_layer(layer: Layer, ordering: Ordering, n: int) -> Sequence[FirstRows]:
    """Returns the first rows of each part of a layer, at least `n` if it has so many."""
    if n > _CACHED_ROWS_MAX:
        return [_first_of_part(part, ordering, n) for part in layer.parts]
    order, facts = tuple(ordering), layer.facts()
    cached = facts.rows.first.get(order)
    if cached is not None and cached[0] >= n:
        return cached[1]
    first = [_first_of_part(part, ordering, n) for part in layer.parts]
    facts.cache_first_rows(order, n, first)
    return first


def _first_of_part(part: Batch, ordering: Ordering, n: int) -> FirstRows:
    types = part.layout.types
    candidates = _candidates(part, ordering, n)
    some = part.updates if candidates is None else part.updates.take(candidates)
    index = ordered(some.columns, types, ordering)[:n]
    return FirstRows(some.take(index), len(index) < len(part))


def _candidates(part: Batch, ordering: Ordering, n: int) -> Index | None:
    """Returns some rows of a part with the first `n` among them; None: all of them."""
    if len(part) <= _TIES_MAX:
        return None
    types = part.layout.types
    certain: list[Index] = []
    ties: Index | None = None
    for place, descending in (*ordering, *((i, False) for i in range(len(types)))):
        every = exact_codes(part.columns[place], types[place])
        if every is None:
            break  # rows that are equal so far are sorted with the others
        for codes_of in every:
            below, same = _smallest_codes(codes_of, ties, len(part), n, descending=descending)
            certain.append(below)
            n -= len(below)
            ties = same
            if len(ties) <= max(n, _TIES_MAX):
                return np.concatenate([*certain, ties])
    return None if ties is None else np.concatenate([*certain, ties])


def _smallest_codes(
    codes_of: CodesOf, index: Index | None, size: int, n: int, *, descending: bool
) -> tuple[Index, Index]:
    """Returns the rows of `index` (None: all) below the `n`-th least code, and those equal."""
    total = size if index is None else len(index)
    codes, places = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    fresh: list[tuple[Any, Index]] = []
    waiting, most = 0, None
    for start in range(0, total, _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, total)
        some = codes_of(slice(start, stop) if index is None else index[start:stop])
        if descending:
            some = ~some
        where = np.arange(stop - start) if most is None else (some <= most).nonzero()[0]
        if len(where):
            fresh.append((some[where], where + start))
            waiting += len(where)
        if waiting and (stop == total or waiting >= max(n, _BLOCK_ROWS, len(codes)) // 2):
            codes = np.concatenate([codes, *(c for c, _ in fresh)])
            places = np.concatenate([places, *(p for _, p in fresh)])
            fresh, waiting = [], 0
            if len(codes) >= n:
                most = np.partition(codes, n - 1)[n - 1]
                within = codes <= most
                codes, places = codes[within], places[within]
    rows_ = places if index is None else index[places]
    if most is None:
        return rows_, rows_[:0]
    return rows_[codes < most], rows_[codes == most]


def _sum_first_rows(
    firsts: Sequence[FirstRows], types: Sequence[str], ordering: Ordering
) -> Updates:
    """Adds up the first rows of parts, in order, as far as no copy can be missing."""
    updates = (
        concat_updates([each.updates for each in firsts], types) if firsts else no_updates(types)
    )
    if not len(updates.diff):
        return updates
    order = ordered(updates.columns, types, ordering)
    updates = updates.take(order)
    every = np.arange(len(order) - 1)
    same = np.ones(len(every), np.bool_)
    for column, type_ in zip(updates.columns, types, strict=True):
        same &= rows.equal(rows.take(column, every), rows.take(column, every + 1), type_)
    run = np.concatenate(([0], (~same).cumsum()))
    starts = np.concatenate(([0], (~same).nonzero()[0] + 1))
    ends = np.cumsum([len(each.updates.diff) for each in firsts]) - 1
    last = ends[[each.more and len(each.updates.diff) > 0 for each in firsts]]
    if len(last):
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        starts = starts[: int(run[place[last].min()]) + 1]
    stop = int((run < len(starts)).sum())
    diff = add_runs(updates.diff[:stop], starts)
    nonzero = diff.nonzero()[0]
    return Updates([rows.take(c, starts[nonzero]) for c in updates.columns], diff[nonzero])


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


BARS = 12
COMMON = 5


class Profile(NamedTuple):
    """A summary of a column.

    Attributes:
        nulls: rows without a value.
        distinct: the number of distinct values beside null; None for nested types.
        low, high: the least and the greatest value (of numbers the finite ones), or None.
        bars: of numbers, dates and times the rows in equal steps from `low` to `high`.
        common: of other values the most frequent, each with its rows.
    """

    nulls: int
    distinct: int | None
    low: Any = None
    high: Any = None
    bars: tuple[int, ...] = ()
    common: tuple[tuple[Any, int], ...] = ()


def profiles(updates: Updates, types: Sequence[str]) -> list[Profile]:
    """Computes a profile of each column of a state.

    Args:
        updates: they need not be consolidated, but no row may be there fewer than 0 times.

    Cost: some 100 ns a row and column, vectorised; only distinct values are sorted.
    """
    return [_profile(c, t, updates.diff) for c, t in zip(updates.columns, types, strict=True)]


def _profile(column: Column, type_: str, diff: Diffs) -> Profile:
    values = rows.to_arrow(column, type_)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if is_nested(type_):
        return Profile(int(diff[buffers.null_mask_of(values)].sum()), None)
    coded = values.dictionary_encode()
    codes: Any = buffers.numbers(coded.indices, np.int32)
    if coded.null_count:
        codes = np.where(buffers.null_mask_of(values), -1, codes)
    values = coded.dictionary
    counts = np.zeros(len(values) + 1, np.int64)
    np.add.at(counts, codes, diff)  # the counts of null, code -1, are the last
    nulls, counts = int(counts[-1]), counts[:-1]
    values, counts = _select(values, counts, counts != 0)
    distinct = len(values)
    numbers = _numbers(values)
    if numbers is None:
        return Profile(nulls, distinct, common=_common(values, counts))
    finite = np.isfinite(numbers)
    values, counts = _select(values, counts, finite)
    if not len(values):
        return Profile(nulls, distinct)
    numbers = numbers[finite]
    least, most = values[int(numbers.argmin())].as_py(), values[int(numbers.argmax())].as_py()
    return Profile(nulls, distinct, least, most, _bars(numbers, counts))


def _select(values: pa.Array, counts: Diffs, mask: Any) -> tuple[pa.Array, Diffs]:
    if mask.all():
        return values, counts
    index = np.flatnonzero(mask)
    return values.take(buffers.arrow_from_numpy(index)), counts[index]


def _numbers(values: pa.Array) -> Any:
    """Converts values to doubles if they can be spread over a line; else None."""
    type_ = values.type
    if pa.types.is_boolean(type_):
        return None
    if pa.types.is_date(type_):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        values = values.cast(pa.int64())
    elif not (pa.types.is_integer(type_) or pa.types.is_floating(type_)) and not (
        pa.types.is_decimal(type_)
    ):
        return None
    return buffers.values_of(pc.cast(values, pa.float64(), safe=False))


def _bars(numbers: Any, diff: Diffs) -> tuple[int, ...]:
    """Counts the rows in each of `BARS` equal steps."""
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return (int(diff.sum()),)
    scaled = (numbers / 2 - low / 2) / (high / 2 - low / 2)  # also over the whole range of doubles
    step = np.minimum((scaled * BARS).astype(np.int64), BARS - 1)
    return tuple(np.bincount(step, diff, BARS).astype(np.int64).tolist())


def _common(values: pa.Array, counts: Diffs) -> tuple[tuple[Any, int], ...]:
    """Returns the most frequent values; of equally frequent ones the least."""
    counted = pa.table([values, buffers.arrow_from_numpy(counts)], names=["value", "rows"])
    keys = [("rows", "descending"), ("value", "ascending")]
    first = counted.take(pc.select_k_unstable(counted, COMMON, keys))
    texts, many = (first.column(name).to_pylist() for name in ("value", "rows"))
    return tuple(zip(texts, many, strict=True))
