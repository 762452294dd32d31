"""Defines updates and batches, the units of dataflow, of the log and of state.

An `Updates` is a list of (row, diff) in any order, stored by columns. A `Batch` contains updates
that are *arranged*: sorted by (key hash, order code, row hash) and consolidated, so that a row
occurs only once, and never with diff 0. Both are immutable; no function here changes its arguments.

The rows of a batch carry no time: the position of the batch in a trace defines its epochs.

Design: hashes reduce every comparison to a comparison of 64-bit integers. Two rows are equal only
if their hashes *and* values are equal. Different rows with equal hashes (true collisions) are
distinguished by their canonical encoding, in a slow path that is tested with forced collisions.

A few updates are consolidated by comparing their values in Python, without hashes. Small epochs
change a few rows at each stage. Hashing, sorting and comparing them takes a dozen numpy calls,
whatever the number of rows; a set of tuples is faster.

Many rows are sorted on all cores of the machine. Each core sorts a range of key hashes, and then
gathers one column after another. The order is the same as for a few rows, except among equal
hashes, which consolidation distinguishes later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import lt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Column, parallel
from nosync_nb.rows.array_ops import all_true, any_true, any_zero, sorted_by, stably_sorted_by
from nosync_nb.rows.count_arithmetic import CountError, add_runs
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.encoding import encode_column
from nosync_nb.rows.parallel import MANY
from nosync_nb.rows.types import FLOATS, INTEGERS

Hashes = npt.NDArray[np.uint64]
Diffs = npt.NDArray[np.int64]
Index = npt.NDArray[np.int64]

_FEW = 4
"""The maximum number of rows for which a test for ascending order is cheaper than a sort."""

_ndarray = np.ndarray


class Layout(NamedTuple):
    """The order of the rows in an arrangement.

    Args:
        types: the column types, as Spark's simple strings.
        key: the positions of the key columns. None means that the whole row is the key, and `()`
            that all rows have the same key.
        order: the position of the column whose order code sorts the rows of a key, if any.
    """

    types: tuple[str, ...]
    key: tuple[int, ...] | None = None
    order: int | None = None

    @property
    def places(self) -> tuple[int, ...]:
        """The positions of the key columns; all positions if the whole row is the key."""
        return tuple(range(len(self.types))) if self.key is None else self.key

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Layout:
        """Builds a layout from its JSON form, in which tuples are lists."""
        types, key, order = data
        return cls(tuple(types), None if key is None else tuple(key), order)


class Updates(NamedTuple):
    """Rows with signed counts (diffs), in any order; a row may occur several times."""

    columns: list[Column]
    diff: Diffs

    def __bool__(self) -> bool:
        return len(self.diff) > 0

    def take(self, index: npt.NDArray[np.int64]) -> Updates:
        """Returns the updates at some positions, in the order of `index`."""
        return Updates([rows.take(c, index) for c in self.columns], self.diff[index])

    def negated(self) -> Updates:
        """Returns the same rows with opposite diffs."""
        return Updates(self.columns, -self.diff)


def concat_updates(parts: Sequence[Updates], types: Sequence[str]) -> Updates:
    """Concatenates updates with the same column types."""
    if len(parts) <= 1:
        return parts[0] if parts else no_updates(types)
    pieces = zip(*[p.columns for p in parts], strict=True)
    columns = [rows.concat(each, t) for each, t in zip(pieces, types, strict=True)]
    return Updates(columns, np.concatenate([p.diff for p in parts]))


def size_bytes(batch: Batch) -> int:
    """Estimates the size of the values in bytes.

    Cost: reads the length of each text.
    """
    size = 0
    for column in batch.columns:
        size += column.nbytes
        if isinstance(column, np.ndarray) and column.dtype.hasobject:
            size += sum(len(one) for one in column.tolist() if isinstance(one, str | bytes))
    return size


def no_updates(types: Sequence[str]) -> Updates:
    """Returns updates without rows."""
    return Updates([rows.empty(t) for t in types], np.zeros(0, np.int64))


class Batch:
    """Consolidated updates in the order of a layout: sorted by (khash, code, rhash).

    Attributes:
        khash, rhash: the key hash and the row hash of each row.
        diff: the diff of each row.
        code: the order codes of the layout's `order` column; None if the layout has none.
    """

    __slots__ = ("__weakref__", "code", "columns", "diff", "khash", "layout", "rhash")

    def __init__(
        self,
        layout: Layout,
        columns: list[Column],
        khash: Hashes,
        rhash: Hashes,
        diff: Diffs,
        code: Hashes | None = None,
    ) -> None:
        self.layout = layout
        self.columns = columns
        self.khash = khash
        self.rhash = rhash
        self.diff = diff
        self.code = code

    def __len__(self) -> int:
        return len(self.diff)

    @property
    def updates(self) -> Updates:
        """The rows as updates, without a copy."""
        return Updates(self.columns, self.diff)

    def slice(self, start: int, stop: int) -> Batch:
        """Returns the rows `[start, stop)`, without a copy."""
        if start == 0 and stop >= len(self.diff):
            return self
        khash = self.khash[start:stop]
        return Batch(
            self.layout,
            [rows.slice_(c, start, stop) for c in self.columns],
            khash,
            khash if self.rhash is self.khash else self.rhash[start:stop],
            self.diff[start:stop],
            None if self.code is None else self.code[start:stop],
        )

    def take(self, index: Index, diff: Diffs | None = None) -> Batch:
        """Returns the rows at some positions; `diff` replaces their diffs."""
        khash = self.khash[index]
        return Batch(
            self.layout,
            [rows.take(c, index) for c in self.columns],
            khash,
            khash if self.rhash is self.khash else self.rhash[index],
            self.diff[index] if diff is None else diff,
            None if self.code is None else self.code[index],
        )

    def cut(self, low: int, high: int) -> Batch:
        """Returns the rows whose key hashes are in `[low, high)`; `high` may be 2**64."""
        if low > 2**64 - 1:
            return self.slice(len(self), len(self))
        start = self.khash.searchsorted(np.uint64(low)) if low else 0
        stop = self.khash.searchsorted(np.uint64(high)) if high < 2**64 else len(self)
        return self.slice(int(start), int(stop))

    def check(self) -> None:
        """Asserts the invariants of a batch, before it is written to a file and in tests."""
        assert len(self.khash) == len(self.rhash) == len(self.diff)
        assert bool(self.diff.all()), "a diff is 0"
        assert all(len(c) == len(self.diff) for c in self.columns)
        assert bool((self.khash[1:] >= self.khash[:-1]).all()), "not sorted by key hash"


def arrange(
    layout: Layout,
    updates: Updates,
    *,
    khash: Hashes | None = None,
    rhash: Hashes | None = None,
    consumed: bool = False,
) -> Batch:
    """Sorts and consolidates updates into a batch.

    Args:
        khash, rhash: the hashes of keys and rows, if the caller has computed them.
        consumed: True if the caller no longer needs the updates. Their list of columns becomes the
            batch's, and at most one column for each core is in memory twice.

    Cost: O(n log n) in the rows of `updates`.
    """
    columns, diff = updates
    n = len(diff)
    types, key, order = layout
    if key is None or key == all_rows(len(types)):
        if rhash is None:
            rhash = rows.hash_columns(columns, types, n) if khash is None else khash
        khash = rhash
    else:
        if khash is None:
            khash = rows.hash_columns([columns[i] for i in key], [types[i] for i in key], n)
        if rhash is None and key == all_rows(len(key)) and 0 < len(types) <= 64:
            first = len(key)
            rhash = rows.extend_hashes(khash, columns[first:], types[first:], n)
        if rhash is None:
            rhash = rows.hash_columns(columns, types, n)
    code = None if order is None else rows.order_codes(columns[order], types[order])
    return _sort_and_consolidate(
        layout, columns if consumed else [*columns], khash, rhash, diff, code
    )


def arranged_pieces(
    layout: Layout, updates: Updates, rhash: Hashes, rows_max: int
) -> Iterator[Batch]:
    """Yields the rows of `arrange` as batches that are disjoint and ascending in key hash.

    Each batch is computed when it is requested. A caller that drops it before the next one needs
    the memory of the updates, of their hashes, and of one batch.

    Args:
        rhash: the hashes of the rows.
        rows_max: the maximum number of rows of a batch. A batch may have more, because all rows of
            one key hash are in the same batch.
    """
    types, key, order = layout
    columns, diff = updates
    khash = rhash
    if key is not None and key != all_rows(len(types)):
        khash = rows.hash_columns([columns[i] for i in key], [types[i] for i in key], len(diff))
    code = None if order is None else rows.order_codes(columns[order], types[order])
    index = sort_order(khash, rhash, code)
    for start, stop in pairwise(hash_cuts(khash[index], rows_max)):
        piece = [*columns]
        sorted_ = _sort_by(index[start:stop], piece, khash, rhash, diff, code)
        yield consolidate(layout, piece, *sorted_)


def hash_cuts(khash: Hashes, rows_max: int) -> list[int]:
    """Returns positions that divide ascending hashes into ranges of about `rows_max` rows.

    The first position is 0, and the last one is the number of rows. All rows of one hash are in the
    same range, even if they are more than `rows_max`.
    """
    n = len(khash)
    count = -(-n // rows_max)
    middles = khash[np.arange(1, count) * n // count]
    return sorted({0, n, *khash.searchsorted(middles).tolist()})


UNORDERED = Layout(())
"""The layout of batches whose rows are consolidated, but not sorted."""

NO_HASHES: Hashes = np.zeros(0, np.uint64)
"""A placeholder for the hashes of an unordered batch, whose hashes are never read."""


def arrange_distinct(layout: Layout, updates: Updates, khash: Hashes) -> Batch:
    """Arranges rows with distinct keys, which are already in the order of their key hashes.

    Args:
        layout: the key must consist of the first columns.
        khash: the key hashes, ascending.
    """
    first = len(layout.key or ())
    if not any_true(khash[1:] == khash[:-1]):
        columns, types = updates.columns[first:], layout.types[first:]
        rhash = rows.extend_hashes(khash, columns, types, len(khash))
        if rhash is not None and len(layout.types) <= 64 and not any_zero(updates.diff):
            return Batch(layout, updates.columns, khash, rhash, updates.diff)
    return arrange(layout, updates, khash=khash)


@lru_cache(maxsize=128)
def all_rows(n: int) -> tuple[int, ...]:
    """The positions of all `n` columns, for a layout whose key is the whole row."""
    return tuple(range(n))


def do_ascend(parts: Sequence[Batch]) -> bool:
    """Returns True if the key hashes of each part are below those of the next one."""
    if len(parts) < 2:
        return True
    bounds = [(part.khash[0], part.khash[-1]) for part in parts if len(part)]
    return all(low[1] < high[0] for low, high in pairwise(bounds))


def joined_updates(layout: Layout, parts: Sequence[Batch]) -> Batch:
    """Concatenates parts that are disjoint in key hash.

    Cost: O(n) if the parts ascend, which is the normal case; that of `merge` otherwise.
    """
    parts = [part for part in parts if len(part)] or parts[:1]
    if not do_ascend(parts):
        return merge(layout, parts)
    return parts[0] if len(parts) == 1 else Batch(layout, *_concatenated(layout, parts))


def merge(layout: Layout, batches: Sequence[Batch]) -> Batch:
    """Merges batches of the same layout into one; rows whose diffs cancel are dropped.

    Cost: O(n) comparisons for a few batches, because the sort uses their order.
    """
    if len(batches) == 1:
        return batches[0]
    columns, khash, rhash, diff, code = _concatenated(layout, batches)
    index = _merge_order(khash, rhash, code) if len(diff) >= LINEAR else None
    return _sort_and_consolidate(layout, columns, khash, rhash, diff, code, index)


LINEAR = 1 << 14
"""The fewest rows that are merged in linear time; fewer are sorted in fewer calls."""


def _merge_order(khash: Numbers, rhash: Numbers, code: Numbers | None) -> Positions | None:
    """Returns the positions that sort the rows of a few sorted batches, in linear time.

    A stable sort finds the sorted batches and merges them. It sorts single numbers, so each row of
    a key is sorted by the rank of the key, and by the first bits of the order code or row hash.

    Returns None if these bits do not determine the order.
    """
    index = khash.argsort(kind="stable")
    if rhash is khash and code is None:
        return index
    hashes = khash[index]
    same = hashes[1:] == hashes[:-1]
    if not any_true(same):
        return index
    for numbers in (rhash,) if code is None else (code, rhash):
        rank = np.zeros(len(khash), np.uint64)
        np.cumsum(~same, out=rank[1:])
        mixed = np.empty_like(rank)
        least, most = numbers.min(), numbers.max()
        width = int(most - least).bit_length()
        room = 64 - int(rank[-1]).bit_length()
        mixed[index] = rank << np.uint64(min(width, room)) if room else rank
        mixed |= (numbers - least) >> np.uint64(max(width - room, 0))
        index = mixed.argsort(kind="stable")
        ordered = mixed[index]
        same = ordered[1:] == ordered[:-1]
    hashes = khash[index]
    same = hashes[1:] == hashes[:-1]
    if code is not None:
        codes = code[index]
        if any_true(same & (codes[1:] < codes[:-1])):
            return None
        same &= codes[1:] == codes[:-1]
    hashes = rhash[index]
    return None if any_true(same & (hashes[1:] < hashes[:-1])) else index


def _concatenated(
    layout: Layout, batches: Sequence[Batch]
) -> tuple[list[Column], Hashes, Hashes, Diffs, Hashes | None]:
    """Concatenates the rows of batches, with their hashes."""
    columns = [rows.concat([b.columns[i] for b in batches], t) for i, t in enumerate(layout.types)]
    khash = np.concatenate([b.khash for b in batches])
    rhash = khash
    if any(b.rhash is not b.khash for b in batches):
        rhash = np.concatenate([b.rhash for b in batches])
    diff = np.concatenate([b.diff for b in batches])
    code = None
    if layout.order is not None:
        code = np.concatenate([b.code for b in batches if b.code is not None])
    return columns, khash, rhash, diff, code


def _sort_and_consolidate(
    layout: Layout,
    columns: list[Column],
    khash: Hashes,
    rhash: Hashes,
    diff: Diffs,
    code: Hashes | None,
    index: Index | None = None,
) -> Batch:
    """Sorts rows with their hashes and consolidates them; takes ownership of `columns`.

    Args:
        index: the positions that sort the rows, if they are known.
    """
    if len(diff) <= _FEW:
        hashes, diffs = khash.tolist(), diff.tolist()
        if 0 not in diffs and all(map(lt, hashes, hashes[1:])):
            return Batch(layout, columns, khash, rhash, diff, code)
    if index is not None or len(diff) >= MANY:
        if index is None:
            index = sort_order(khash, rhash, code)
        batch = _without_cancelled(layout, columns, khash, rhash, diff, code, index)
        if batch is not None:
            return batch
        khash, rhash, diff, code = _sort_by(index, columns, khash, rhash, diff, code)
    elif len(diff) > 1:
        if code is not None:
            index = np.lexsort((rhash, code, khash))
        elif rhash is khash:
            index = khash.argsort()
        else:
            index = sorted_by(khash, rhash)
        rhash = khash if rhash is khash else rhash[index]
        for at, c in enumerate(columns):
            columns[at] = c[index] if type(c) is _ndarray else rows.take(c, index)
        diff = diff[index]
        if rhash is khash:
            khash = rhash = khash[index]
        else:
            khash = khash[index]
        code = None if code is None else code[index]
    return consolidate(layout, columns, khash, rhash, diff, code)


def _without_cancelled(
    layout: Layout,
    columns: list[Column],
    khash: Hashes,
    rhash: Hashes,
    diff: Diffs,
    code: Hashes | None,
    index: Index,
) -> Batch | None:
    """Consolidates rows, and copies only the rows that remain.

    When most rows cancel, sorting all columns first would copy each of them three times.

    Args:
        index: the positions that sort the rows.

    Returns:
        the batch; None if no two hashes are equal, or if rows of equal hash differ. Then nothing
        has changed.
    """
    khashes, rhashes = khash[index], None if rhash is khash else rhash[index]
    same = khashes[1:] == khashes[:-1]
    if rhashes is not None:
        same &= rhashes[1:] == rhashes[:-1]
    if code is not None:
        codes = code[index]
        same &= codes[1:] == codes[:-1]
    repeats = same.nonzero()[0]
    if not len(repeats):
        return None
    first, second = index[repeats], index[repeats + 1]
    for column, type_ in zip(columns, layout.types, strict=True):
        if not all_true(rows.equal(rows.take(column, first), rows.take(column, second), type_)):
            return None
    starts = np.concatenate(([0], (~same).nonzero()[0] + 1))
    try:
        sums = add_runs(diff[index], starts)
    except CountError as error:
        one = Updates(columns, diff).take(index[starts[[error.at]]])
        raise CountError(row=row_of(one.columns, layout.types)) from None
    nonzero = sums.nonzero()[0]
    kept = starts[nonzero]
    index, khashes = index[kept], khashes[kept]
    parallel.map_parallel(
        lambda at: columns.__setitem__(at, rows.take(columns[at], index)),
        len(columns),
        parallel.count(len(index)),
    )
    rhashes = khashes if rhashes is None else rhashes[kept]
    remaining = None if code is None else code[index]
    return Batch(layout, columns, khashes, rhashes, sums[nonzero], remaining)


def consolidate(
    layout: Layout,
    columns: list[Column],
    khash: Hashes,
    rhash: Hashes,
    diff: Diffs,
    code: Hashes | None,
) -> Batch:
    """Adds up the diffs of equal rows in sorted input, and drops rows with diff 0."""
    same = rhash[1:] == rhash[:-1]
    if rhash is not khash:
        same &= khash[1:] == khash[:-1]
    if code is not None:
        same &= code[1:] == code[:-1]
    if not any_true(same):
        if not any_zero(diff):
            return Batch(layout, columns, khash, rhash, diff, code)
        return Batch(layout, columns, khash, rhash, diff, code).take(diff.nonzero()[0])
    repeats = same.nonzero()[0]
    if not rows_equal(columns, layout.types, repeats):
        return has_collisions(layout, columns, khash, rhash, diff, code, same)
    batch = Batch(layout, columns, khash, rhash, diff, code)
    return _sum_runs(batch, same)


def _sum_runs(batch: Batch, same: npt.NDArray[np.bool_]) -> Batch:
    """Returns one row for each run of equal rows, with the sum of their diffs.

    Args:
        same: for each row except the last, True if the next row is equal.
    """
    starts = np.concatenate(([0], (~same).nonzero()[0] + 1))
    try:
        sums = add_runs(batch.diff, starts)
    except CountError as error:
        one = batch.updates.take(starts[[error.at]])
        raise CountError(row=row_of(one.columns, batch.layout.types)) from None
    nonzero = sums.nonzero()[0]
    return batch.take(starts[nonzero], sums[nonzero])


def row_of(columns: list[Column], types: Sequence[str]) -> tuple[Any, ...]:
    """Returns the first row of columns as Python values, for a message."""
    return tuple(
        rows.to_pylist(rows.slice_(c, 0, 1), t)[0] for c, t in zip(columns, types, strict=True)
    )


def row_text(columns: list[Column], types: Sequence[str]) -> str:
    """Formats the first row of the columns for a message, even with dates that Python lacks."""
    try:
        return repr(row_of(columns, types))
    except SchemaError:
        cells = (
            rows.to_arrow(rows.slice_(c, 0, 1), t) for c, t in zip(columns, types, strict=True)
        )
        return f"({', '.join(' '.join(str(cell).split())[2:-2] for cell in cells)})"


def rows_equal(columns: list[Column], types: Sequence[str], first: Index) -> bool:
    """Returns True if each row at the positions `first` equals the row after it."""
    for column, type_ in zip(columns, types, strict=True):
        same = rows.equal(rows.take(column, first), rows.take(column, first + 1), type_)
        if not all_true(same):
            return False
    return True


def has_collisions(
    layout: Layout,
    columns: list[Column],
    khash: Hashes,
    rhash: Hashes,
    diff: Diffs,
    code: Hashes | None,
    same: npt.NDArray[np.bool_],
) -> Batch:
    """Consolidates sorted rows, some of which have equal hashes and different values.

    Cost: Python work for each row in a run of equal hashes; numpy for all other rows.
    """
    run = np.concatenate(([0], np.cumsum(~same)))
    inside = np.zeros(len(diff), bool)
    inside[:-1] |= same
    inside[1:] |= same
    index = inside.nonzero()[0]
    parts = [
        encode_column(rows.take(c, index), t) for c, t in zip(columns, layout.types, strict=True)
    ]
    texts = list(zip(*parts, strict=True)) if parts else [()] * len(index)
    rank = np.zeros(len(diff), np.int64)
    order = {text: i for i, text in enumerate(sorted(set(texts)))}
    rank[index] = [order[text] for text in texts]
    sort = np.lexsort((rank, run))
    batch = Batch(layout, columns, khash, rhash, diff, code).take(sort)
    equal = (run[sort][1:] == run[sort][:-1]) & (rank[sort][1:] == rank[sort][:-1])
    return _sum_runs(batch, equal)


FEW_ROWS = 32
"""The maximum number of rows that are faster to convert to tuples than to hash."""

PLAIN_TYPES = frozenset(
    (*INTEGERS, *INTERVALS, "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")
)
"""The types whose values are equal in Python if and only if they are equal in rows. Floats are not
among them, because NaN is not equal to itself in Python."""

_LIMIT = 1 << 62


def consolidate_few(types: tuple[str, ...], updates: Updates) -> Updates | None:
    """Consolidates a few updates, in the order of first occurrence.

    Returns:
        the updates; the same object if no two rows are equal and no diff is 0. None if the updates
        cannot be consolidated in this way: there are more than `FEW_ROWS`, nested values, Arrow
        columns, or a count near the limit of 64 bits.

    Cost: about 0.1 us for each value.
    """
    columns, diff = updates
    n = len(diff)
    if n > FEW_ROWS or not _is_comparable(types):
        return None
    values = []
    for column, type_ in zip(columns, types, strict=True):
        if type(column) is not _ndarray:
            return None
        if type_ in FLOATS:  # canonical floats, NaN included, are equal if their bits are
            if column.dtype.kind != "f":
                return None
            values.append(column.view(np.int64 if column.itemsize == 8 else np.int32).tolist())
        else:
            values.append(column.tolist())
    rows = list(zip(*values, strict=True)) if values else [()] * n
    diffs = diff.tolist()
    if len(set(rows)) == n and 0 not in diffs:
        return updates
    first: dict[tuple[object, ...], int] = {}
    for at, row in enumerate(rows):
        before = first.setdefault(row, at)
        if before != at:
            diffs[before] += diffs[at]
            diffs[at] = 0
    if max(map(abs, diffs), default=0) > _LIMIT:
        return None
    nonzero = [at for at, count in enumerate(diffs) if count]
    index = np.array(nonzero, np.int64)
    return Updates(
        [column[index] for column in columns], np.array([diffs[at] for at in nonzero], np.int64)
    )


@lru_cache(maxsize=1024)
def _is_comparable(types: tuple[str, ...]) -> bool:
    """Returns True if rows of these types can be compared in Python; floats by their bits."""
    return all(each in PLAIN_TYPES or each in FLOATS for each in types)


GROUP = 1 << 16
"""The approximate number of rows that are sorted together, so that they stay in the cache."""

Numbers = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Positions = npt.NDArray[np.int64]


def sort_updates(
    columns: list[Column], khash: Numbers, rhash: Numbers, diff: Counts, code: Numbers | None
) -> tuple[Numbers, Numbers, Counts, Numbers | None]:
    """Sorts rows by (khash, code, rhash).

    Args:
        columns: the list is modified: each column is replaced when its sorted form is complete. So
            at most one column for each core is in memory twice.
        rhash: may be `khash` itself; then both results are the same array.

    Returns:
        the sorted khash, rhash, diff and code.
    """
    return _sort_by(sort_order(khash, rhash, code), columns, khash, rhash, diff, code)


def _sort_by(
    index: Positions,
    columns: list[Column],
    khash: Numbers,
    rhash: Numbers,
    diff: Counts,
    code: Numbers | None,
) -> tuple[Numbers, Numbers, Counts, Numbers | None]:
    """Returns the hashes, diffs and codes at some positions; replaces the columns likewise."""
    apart = rhash is not khash
    numbers: list[npt.NDArray[np.uint64]] = [khash]
    if apart:
        numbers.append(rhash)
    if code is not None:
        numbers.append(code)
    counts = [diff]

    def fetch(at: int) -> None:
        if at < len(columns):
            columns[at] = rows.take(columns[at], index)
        elif at == len(columns):
            counts[0] = counts[0][index]
        else:
            numbers[at - len(columns) - 1] = numbers[at - len(columns) - 1][index]

    parallel.map_parallel(fetch, len(columns) + 1 + len(numbers), parallel.count(len(index)))
    code = None if code is None else numbers[-1]
    return numbers[0], numbers[1] if apart else numbers[0], counts[0], code


def sort_order(khash: Numbers, rhash: Numbers, code: Numbers | None = None) -> Positions:
    """Returns the positions that sort rows by (khash, code, rhash); equal rows are in any order.

    Many rows are first divided into groups by the leading bits of their hashes. Each group fits
    into the processor's cache, and the cores sort the groups.
    """
    n = len(khash)
    bits = min(8, (n // GROUP).bit_length()) if n >= parallel.MANY else 0
    if not bits:
        return _order(khash, rhash, code)
    leading = np.ascontiguousarray(khash).view(np.uint8)[7::8] >> np.uint8(8 - bits)
    positions = leading.argsort(kind="stable")  # a radix sort, because the values are bytes
    starts = leading[positions].searchsorted(np.arange(1 << bits, dtype=np.uint8)).tolist()
    stops = [*starts[1:], n]

    def sort(group: int) -> None:
        span = slice(starts[group], stops[group])
        at = positions[span]
        first = khash[at]
        second = first if rhash is khash else rhash[at]
        positions[span] = at[_order(first, second, None if code is None else code[at])]

    parallel.map_parallel(sort, len(starts), parallel.count(n))
    return positions


def _order(khash: Numbers, rhash: Numbers, code: Numbers | None) -> Positions:
    if code is not None:
        return np.lexsort((rhash, code, khash))
    return stably_sorted_by(khash) if rhash is khash else sorted_by(khash, rhash)
