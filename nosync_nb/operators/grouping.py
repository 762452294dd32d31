"""Sorts rows into groups of equal keys, for kernels that work by key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.rows import Column, dictionary
from nosync_nb.rows.array_ops import any_true, stably_sorted_by, starts_of
from nosync_nb.rows.types import FLOATS
from nosync_nb.trace.batch import (
    Batch,
    Hashes,
    Index,
    Layout,
    Updates,
    all_rows,
    arrange,
    has_collisions,
    rows_equal,
)

FEW = 64
"""The maximum number of rows that Python groups faster than numpy."""

MANY = 4096
"""More rows than this are grouped by the dictionary codes of their keys, if all keys have codes."""

_REPEATED = 8
"""Python groups more than `FEW` rows if the first rows have at least this number per key."""

_ndarray = np.ndarray


class Groups:
    """Rows sorted into groups of equal keys: group g is `order[starts[g]:starts[g + 1]]`.

    Attributes:
        keys: the key columns, with one row for each group.
        values: the keys as Python values, if the groups are few and their keys can be compared in
            Python; else None.
        khash: the hashes of the keys; always ascending if `values` is None.
    """

    __slots__ = ("_khash", "_types", "keys", "order", "starts", "values")

    def __init__(
        self,
        order: Index,
        starts: Index,
        keys: list[Column],
        *,
        khash: Hashes | None = None,
        types: Sequence[str] = (),
        values: Sequence[object] | None = None,
    ) -> None:
        self.order = order
        self.starts = starts
        self.keys = keys
        self.values = values
        self._khash = khash
        self._types = types

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def khash(self) -> Hashes:
        """The hashes of the groups' keys, computed at the first use."""
        if self._khash is None:
            self._khash = rows.hash_columns(self.keys, self._types, len(self.starts))
        return self._khash


def key_values(keys: list[Column], types: Sequence[str], n: int) -> Sequence[object] | None:
    """Returns the keys of a few rows as Python values, which are equal if the keys are equal.

    Returns None if there are more than `FEW` rows, or if Python does not compare values of a key's
    type as Spark does.
    """
    if n > FEW or not keys:
        return None
    for column, type_ in zip(keys, types, strict=True):
        if type(column) is not _ndarray or type_ in FLOATS:
            return None
    return _values(keys)


def _values(keys: list[Column]) -> Sequence[object]:
    """Converts keys in numpy columns to Python values."""
    columns: list[list[object]] = [column.tolist() for column in keys]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def group_few(keys: list[Column], types: Sequence[str], n: int) -> Groups | None:
    """Sorts rows into a few groups, in the order in which the keys first occur.

    More than `FEW` rows are accepted if most of them share the key of another row. Their groups are
    sorted by key hash, because the rows of large changes come in any order.

    Returns:
        the groups; None if there are too many, or if `key_values` does not support the key types.

    Cost: below 10 us for up to `FEW` rows, 0.2 us per row for more; no row is hashed.
    """
    if not keys:
        return Groups(np.arange(n), np.zeros(1, np.int64), [], values=[()]) if n else None
    values = _repeated_key_values(keys, types, n) if n > FEW else key_values(keys, types, n)
    if values is None:
        return None
    number_of = {value: number for number, value in enumerate(dict.fromkeys(values))}
    count, khash = len(number_of), None
    if count == n:
        rows_ = np.arange(n)
        return Groups(rows_, rows_, keys, types=types, values=values)
    if n > FEW:
        if count > FEW:
            return None
        each = np.array([values.index(value) for value in number_of])
        khash = rows.hash_columns([rows.take(column, each) for column in keys], types, count)
        place = khash.argsort()
        named = [*number_of]
        number_of = {named[old]: new for new, old in enumerate(place.tolist())}
        khash = khash[place]
    numbers = np.fromiter(map(number_of.__getitem__, values), np.uint16, n)
    order = numbers.argsort(kind="stable")
    starts = numbers[order].searchsorted(np.arange(count, dtype=np.uint16))
    keys = [rows.take(column, order[starts]) for column in keys]
    return Groups(order, starts, keys, khash=khash, types=types, values=list(number_of))


def _repeated_key_values(
    keys: list[Column], types: Sequence[str], n: int
) -> Sequence[object] | None:
    """Returns the result of `key_values` for more than `FEW` rows.

    Returns None if the first of them have many different keys.
    """
    if n > MANY:
        return None
    first = key_values([rows.slice_(column, 0, FEW) for column in keys], types, FEW)
    if first is None or len(set(first)) > FEW // _REPEATED:
        return None
    return _values(keys)


def group_rows(keys: list[Column], types: Sequence[str], n: int) -> Groups:
    """Sorts rows into groups by key, ascending in key hash.

    Cost: O(n log n). For keys of one or two dictionary-encoded columns O(n), without row hashes.
    """
    groups = _group_coded(keys, types) if n > MANY else None
    if groups is not None:
        return groups
    khash = rows.hash_columns(keys, types, n)
    order = stably_sorted_by(khash)
    khash = khash[order]
    same = khash[1:] == khash[:-1]
    keys = [rows.take(c, order) for c in keys]
    if not any_true(same):
        return Groups(order, np.arange(n), keys, khash=khash)
    if not rows_equal(keys, types, same.nonzero()[0]):
        order, khash, keys, same = _separate_collisions(order, khash, keys, types, same)
    starts = starts_of(same)
    return Groups(order, starts, [rows.take(c, starts) for c in keys], khash=khash[starts])


def _group_coded(keys: list[Column], types: Sequence[str]) -> Groups | None:
    """Groups rows by dictionary codes.

    Returns None if a column has no codes, or if codes or hashes do not identify keys.
    """
    if not 1 <= len(keys) <= 2 or not all(_codes_identify(column) for column in keys):
        return None
    every = [dictionary.codes_of(column) for column in keys]
    number = every[0] if len(every) == 1 else every[0].astype(np.uint16) << 8 | every[1]
    count = np.bincount(number)
    used = count.nonzero()[0]
    codes = [used >> 8 * place & 0xFF for place in reversed(range(len(keys)))]
    distinct: list[Column] = [
        dictionary.column_of_codes(own.astype(np.uint8), column)
        for own, column in zip(codes, keys, strict=True)
    ]
    khash = rows.hash_columns(distinct, types, len(used))
    place = khash.argsort()
    khash = khash[place]
    if (khash[1:] == khash[:-1]).any():  # two codes of one text, or equal hashes of two texts
        return None
    rank = np.zeros(len(count), number.dtype)
    rank[used[place]] = np.arange(len(used))
    order = rank[number].argsort(kind="stable")
    ends = count[used[place]].cumsum()
    starts = np.concatenate(([0], ends[:-1]))
    return Groups(order, starts, [rows.take(c, place) for c in distinct], khash=khash)


def _codes_identify(column: Column) -> bool:
    """Returns True if a column is dictionary-encoded and has no nulls."""
    return (
        type(column) is not _ndarray and dictionary.is_dictionary(column) and not column.null_count
    )


def _separate_collisions(
    order: Index,
    khash: Hashes,
    keys: list[Column],
    types: Sequence[str],
    same: npt.NDArray[np.bool_],
) -> tuple[Index, Hashes, list[Column], npt.NDArray[np.bool_]]:
    """Separates different keys with equal hashes: the slow path of `group_rows`."""
    n = len(order)
    layout = Layout((*types, "bigint"), all_rows(len(types)))
    ones = np.ones(n, np.int64)
    apart = has_collisions(layout, [*keys, order], khash, khash, ones, None, same)
    *keys, order = apart.columns
    index = np.arange(n - 1)
    same = np.ones(max(n - 1, 0), bool)
    for column, type_ in zip(keys, types, strict=True):
        same &= rows.equal(rows.take(column, index), rows.take(column, index + 1), type_)
    return order, apart.khash, keys, same


def with_key_numbers(updates: Updates, probe: Index, types: Sequence[str]) -> Batch:
    """Returns the rows of a lookup, consolidated, with the number of their key as last column."""
    layout = Layout((*types, "bigint"), (len(types),))
    return arrange(layout, Updates([*updates.columns, probe.astype(np.int64)], updates.diff))


def first_of_keys(batch: Batch) -> Index:
    """Returns the first row of each distinct key of an arranged batch.

    Different keys with equal hashes may alternate in the batch. So rows are also compared by value,
    and repetitions of a key are dropped.
    """
    new = np.ones(len(batch), bool)
    new[1:] = batch.khash[1:] != batch.khash[:-1]
    again = (~new).nonzero()[0]
    if not len(again):
        return np.arange(len(batch))
    places = batch.layout.places
    for place in places:
        column, type_ = batch.columns[place], batch.layout.types[place]
        same = rows.equal(rows.take(column, again), rows.take(column, again - 1), type_)
        new[again[~same]] = True
    index = new.nonzero()[0]
    khash = batch.khash[index]
    if (khash[1:] == khash[:-1]).any():
        return _without_repeats(batch, places, index)
    return index


def _without_repeats(batch: Batch, places: Sequence[int], index: Index) -> Index:
    """Drops repetitions of a key by canonical encoding: the slow path for equal hashes."""
    seen: dict[tuple[bytes, ...], int] = {}
    types = batch.layout.types
    parts = [
        [
            rows.encode(value, types[place])
            for value in rows.to_pylist(rows.take(batch.columns[place], index), types[place])
        ]
        for place in places
    ]
    for at, text in zip(index.tolist(), zip(*parts, strict=True), strict=True):
        seen.setdefault(text, at)
    return np.array(sorted(seen.values()), np.int64)
