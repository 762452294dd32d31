"""The first rows that changed between two epochs of a collection, with rows of one key paired.

Only the first inserted and the first removed rows are sorted, however large the change is. Their
number is chosen so that the result is the same as after sorting all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.user_functions import named_tuples
from nosync_nb.rows import Schema
from nosync_nb.rows.order import Ordering, ordered
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Updates, concat_updates
from nosync_nb.trace.paging import first_rows


class RowChange(NamedTuple):
    """An inserted row (no `a`), a removed row (no `b`), or a changed row of a key; with copies."""

    a: Any
    b: Any
    copies: int


class RowChanges(NamedTuple):
    """The first rows of a change.

    Attributes:
        by: the columns that pair old and new rows; none: rows were only inserted or removed.
        first: the first changes, by key, or else in canonical order.
        arrived: the first inserted rows, in canonical order.
        came, went: how many rows were inserted and removed, copies counted; changed rows count in
            both.
        more: True if there are more changes than `first` has.
    """

    by: tuple[str, ...]
    first: list[RowChange]
    arrived: list[Any]
    came: int
    went: int
    more: bool


def first_row_changes(batch: Batch, schema: Schema, by: Sequence[int], limit: int) -> RowChanges:
    """Returns the first rows of a change of a collection.

    Args:
        by: the places of the columns that pair old and new rows; empty: no pairs.
        limit: the most changes, and the most inserted rows.

    Cost: one pass over the change, in vectors.
    """
    ordering = [(place, False) for place in by]
    sides = [_one_side(batch, sign) for sign in (-1, 1)]
    firsts = [_first(side, limit + 1, ordering) for side in sides]
    went, came = (firsts[0].negated(), firsts[1])
    some = concat_updates([went, came], schema.types)
    some = some.take(ordered(some.columns, schema.types, ordering))
    listed = list(zip(_tuples(some, schema), some.diff.tolist(), strict=True))
    first = list(_pair_rows(listed, by)) if by else [_unpaired(row, diff) for row, diff in listed]
    arrived = _tuples(_first(sides[1], limit, ()), schema)
    totals = [int(side.diff.sum()) for side in sides]
    names = tuple(schema.names[place] for place in by)
    return RowChanges(
        names, first[:limit], arrived[:limit], totals[1], totals[0], more=len(first) > limit
    )


def _one_side(batch: Batch, sign: int) -> Batch:
    """The inserted (1) or removed (-1) rows of a change, with positive counts."""
    at = (batch.diff * sign > 0).nonzero()[0]
    if len(at) == len(batch) and sign > 0:
        return batch
    code = None if batch.code is None else batch.code[at]
    columns = [rows.take(column, at) for column in batch.columns]
    diff = np.abs(batch.diff[at])
    return Batch(batch.layout, columns, batch.khash[at], batch.rhash[at], diff, code)


def _first(side: Batch, n: int, ordering: Ordering) -> Updates:
    """The first rows of one side, in order."""
    updates = first_rows(Trace.from_batch(side), n, ordering)
    if updates is None:
        updates = side.updates.take(ordered(side.columns, side.layout.types, ordering))
    return updates.take(np.arange(min(n, len(updates.diff))))


def _tuples(updates: Updates, schema: Schema) -> list[Any]:
    return named_tuples(list(updates.columns), schema, len(updates.diff))


def _unpaired(row: Any, diff: int) -> RowChange:
    return RowChange(None, row, diff) if diff > 0 else RowChange(row, None, -diff)


def _pair_rows(listed: Sequence[tuple[Any, int]], by: Sequence[int]) -> Iterator[RowChange]:
    """Pairs the rows of one key; the rest were only inserted or removed."""

    def key(item: tuple[Any, int]) -> list[Any]:
        # NaN is one key although it does not equal itself.
        return ["NaN" if value != value else (value,) for value in (item[0][i] for i in by)]

    for _, group in groupby(listed, key):
        members = list(group)
        went = [[row, -diff] for row, diff in members if diff < 0]
        came = [[row, diff] for row, diff in members if diff > 0]
        while went and came:
            copies = min(went[0][1], came[0][1])
            yield RowChange(went[0][0], came[0][0], copies)
            for side in (went, came):
                side[0][1] -= copies
                if not side[0][1]:
                    side.pop(0)
        yield from (RowChange(row, None, copies) for row, copies in went)
        yield from (RowChange(None, row, copies) for row, copies in came)
