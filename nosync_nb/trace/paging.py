"""Reads the rows of a trace in any order, a page at a time, and summarises its columns.

A page near the beginning of an order is read from the first rows of each layer, without merging the
layers. For later pages the layers are merged and sorted once; then a page costs only its own rows.
The profiles of columns count rows exactly, including duplicates.

Threads: any may call. Results are assigned when they are complete; at worst two threads compute the
same.

The first rows are exact, and as strict as a merge. If a row may have a negative count, or if a
merge is not more expensive, the functions return None, and the caller merges the trace.

Design
    For its first `m` rows, each part is scanned once by order codes, in blocks that fit into the
    processor's cache. After the last of these rows, counts may be incomplete. So the sum uses only
    rows up to the least of these last rows. If removals leave too few rows, `m` grows. A layer does
    not change, so it caches its first rows for the last orders that were requested.
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
    """The first rows of a part in an order; `more` is True if the part has further rows."""

    updates: Updates
    more: bool


def first_rows(trace: Trace, n: int, ordering: Ordering = ()) -> Updates | None:
    """Returns the first distinct rows in an order, until their counts add up to `n`.

    Returns all rows if there are fewer, and None if the caller must merge the trace.

    Args:
        ordering: the columns to sort by; ties are in the canonical order.

    Cost: about 2 ns for each row the first time; later only new layers are scanned.
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
    """Returns the first rows of each part of a layer: at least `n`, or all if there are fewer."""
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
    """Returns positions that include the first `n` rows of a part; None if all rows may do."""
    if len(part) <= _TIES_MAX:
        return None
    types = part.layout.types
    certain: list[Index] = []
    ties: Index | None = None
    for place, descending in (*ordering, *((i, False) for i in range(len(types)))):
        every = exact_codes(part.columns[place], types[place])
        if every is None:
            break  # the ties so far are sorted by the caller
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
    """Returns the rows whose codes are below the `n`-th least code, and those equal to it.

    Args:
        index: the rows to search; `None` means all rows.
        size: the number of all rows.
    """
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
    """Adds up the first rows of parts, in order, as far as all counts are complete."""
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
"""A trace of at most this number of rows is merged, which is cheaper than reading first rows."""

NEAR_ROWS = 4096
"""Pages that end within this number of rows are read without sorting the whole trace."""

ORDERS_MAX = 2
"""The number of cached orders, each of which takes 8 bytes for each row."""

Order: TypeAlias = tuple[tuple[int, bool], ...]
"""The positions of the columns, each with True if it descends; ties are in canonical order."""


class _OrderIndex(NamedTuple):
    """The positions of the distinct rows in an order.

    `ends` has for each row the number of rows up to its last duplicate; None without duplicates.
    """

    places: Index
    ends: Index | None


class OrderedRows:
    """The rows of a trace in any order.

    Args:
        check: raises an error if the consolidated rows are not a valid state; called once, before
            any of these rows is returned.

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
        """The column types of the trace."""
        return tuple(self._trace.layout.types)

    @property
    def batch(self) -> Batch:
        """The consolidated rows.

        Cost: at the first call that of `Trace.consolidated`.
        """
        batch = self._batch
        if batch is None:
            batch = self._trace.consolidated()
            self._check(batch)
            self._batch = batch
        return batch

    def profiles(self) -> list[Profile]:
        """Computes a profile of each column.

        Cost: that of `profiles`; layers are not merged if no row has a negative count.
        """
        apart = self._batch is None and stats.is_nonnegative(self._trace)
        return profiles(self._trace.updates() if apart else self.batch.updates, self.types)

    def count(self) -> int:
        """Counts the rows, including duplicates."""
        apart = self._batch is None and not self._small
        count = stats.row_count(self._trace) if apart else None
        return int(self.batch.diff.sum()) if count is None else count

    def page(self, order: Order, offset: int, limit: int) -> list[Column]:
        """Returns the rows `[offset, offset + limit)` of an order as columns.

        A row with count n appears n times.

        Cost: near the beginning of an order 2 to 30 ns for each row of the trace. Otherwise
        O(n log n) for the first page of an order, and O(limit) for further pages.
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
        """Returns all rows in an order; a row with count n appears n times.

        Cost: that of sorting the rows.
        """
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
        nulls: the number of nulls.
        distinct: the number of distinct values, without null; None for nested types.
        low, high: for numbers, dates and times the least and the greatest finite value; else None.
        bars: for numbers, dates and times the number of rows in each of `BARS` equal steps from
            `low` to `high`.
        common: for all other values the most frequent ones, each with its number of rows.
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
        updates: the rows of the state; they need not be consolidated, but no row may have a
            negative count.

    Cost: about 100 ns for each row and column, vectorised; only distinct values are sorted.
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
    """Converts numbers, dates and times to doubles; returns None for any other type."""
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
    scaled = (numbers / 2 - low / 2) / (high / 2 - low / 2)  # halved to avoid an overflow
    step = np.minimum((scaled * BARS).astype(np.int64), BARS - 1)
    return tuple(np.bincount(step, diff, BARS).astype(np.int64).tolist())


def _common(values: pa.Array, counts: Diffs) -> tuple[tuple[Any, int], ...]:
    """Returns the most frequent values with their counts; ties in ascending order of values."""
    counted = pa.table([values, buffers.arrow_from_numpy(counts)], names=["value", "rows"])
    keys = [("rows", "descending"), ("value", "ascending")]
    first = counted.take(pc.select_k_unstable(counted, COMMON, keys))
    texts, many = (first.column(name).to_pylist() for name in ("value", "rows"))
    return tuple(zip(texts, many, strict=True))
