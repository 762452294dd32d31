"""Compares two collections: the rows that both have, and those that only one has.

The difference of two states is a multiset. A row has a positive count if it is more frequent in the
second state, and a negative count if it is more frequent in the first. Rows with the same key on
both sides form one changed row. The same code compares two collections, two versions of one, one
collection at two epochs, or collections of two sessions. The difference of two collections of one
session is a collection itself, and follows later commits.

`first_row_changes` returns the first rows that changed between two epochs of a collection. It pairs
rows with the same key. Only the first inserted and the first removed rows are sorted, even in a
large change. Enough of them are sorted that the result is the same as after sorting all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.collections.collection import Collection
from nosync_nb.collections.readable import changes_table
from nosync_nb.errors import StageError, one_line
from nosync_nb.operators.user_functions import named_tuples
from nosync_nb.rows import Schema
from nosync_nb.rows.order import Ordering, ordered
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates
from nosync_nb.trace.paging import first_rows

Places = npt.NDArray[np.int64]


class ComparisonSide(NamedTuple):
    """One side of a comparison: its name, and the epoch at which it is read."""

    name: str
    epoch: int

    @property
    def title(self) -> str:
        """The name with the epoch, for messages."""
        return f"{self.name} at epoch {self.epoch}"


class RowPair(NamedTuple):
    """A row of one side, with None for the other side; or both versions of a changed row."""

    a: Any
    b: Any


class DifferenceCounts(NamedTuple):
    """The numbers of differing rows at an epoch; see `Comparison`."""

    epoch: int
    only_a: int
    only_b: int
    changed: int


class Comparison:
    """Two states compared at their epochs; later commits do not change it.

    Args:
        difference: the rows of b minus those of a.
        count: the number of rows of a.
        by: the positions of the key columns that pair changed rows; `None` means that rows are
            not paired.
        live: returns the difference as a collection; None if a side is at a given epoch or belongs
            to another session.
        over: returns comparisons at up to the given number of epochs, the last one at the epoch of
            both sides; None if there is no common history.

    Attributes:
        a, b: the two sides.
        schema: the columns.
        by: the names of the key columns that pair changed rows.
        only_a, only_b: the number of rows that only the first or only the second side has.
        changed: the number of pairs of differing rows with the same key.
        same: the number of rows that both sides have.
    """

    def __init__(
        self,
        a: ComparisonSide,
        b: ComparisonSide,
        schema: Schema,
        difference: Batch,
        count: int,
        by: Sequence[int] | None = None,
        live: Callable[[], Collection] | None = None,
        over: Callable[[int], Iterable[Comparison]] | None = None,
    ) -> None:
        self._live, self._over = live, over
        self.a, self.b, self.schema = a, b, schema
        self.by = tuple(schema.names[place] for place in by or ())
        self._difference = difference
        self._order, new = self._sorted_keys(by)
        self._starts = new.nonzero()[0]
        diff = difference.diff[self._order]
        more, less = (self._sums(np.maximum(each, 0)) for each in (diff, -diff))
        self.changed = 0 if by is None else int(np.minimum(more, less).sum())
        self.only_a, self.only_b = (int(each.sum()) - self.changed for each in (less, more))
        self.same = count - self.only_a - self.changed

    def called(self, a: str, b: str) -> Comparison:
        """Returns a copy with other names of the sides, to distinguish equal names."""
        other = copy.copy(self)
        other.a, other.b = self.a._replace(name=a), self.b._replace(name=b)
        return other

    @property
    def equal(self) -> bool:
        """True if both sides have the same rows with the same counts."""
        return not len(self._difference)

    @cached_property
    def collection(self) -> Collection:
        """The rows that differ, as a collection of the session that follows both sides.

        It has the compared columns, and last `side`: "a" for a row that is more frequent in the
        first side, "b" for the second. `session.stage("changed", comparison.collection)` stores and
        maintains it.

        Raises:
            StageError: if the sides belong to two sessions, or a side is at a given epoch.

        Cost: in proportion to the changes.
        """
        if self._live is None:
            raise StageError(
                f"{self.a.title} and {self.b.title}: a comparison of two sessions, or at a given"
                " epoch, does not follow commits",
                hint="read it with .rows() or .to_arrow(); or copy a side into an input,"
                f' session.input("copy", "{self.schema.ddl}").set(b.to_arrow({self.b.epoch})),'
                ' session.commit(), and use session.compare(a, "copy").collection',
            )
        return self._live()

    def counts(self, most: int = 48) -> list[DifferenceCounts]:
        """The numbers of differing rows at several epochs, at equal distances, up to the last one.

        Empty if the sides are at different epochs, or if one has no name and therefore no history.

        Args:
            most: the maximum number of epochs.

        Cost: one comparison at the first epoch, plus the later changes of both sides.
        """
        every = () if self._over is None else self._over(most)
        return [DifferenceCounts(c.a.epoch, c.only_a, c.only_b, c.changed) for c in every]

    def rows(self, limit: int | None = None) -> list[RowPair]:
        """The differing rows as pairs of named tuples, by key; without keys in canonical order.

        Args:
            limit: the maximum number of pairs.

        Cost: O(limit); the rows were sorted when the comparison was created.
        """
        pairs: list[RowPair] = []
        bounds = [*self._starts.tolist(), len(self._order)]
        for start, stop in pairwise(bounds):
            if limit is not None and len(pairs) >= limit:
                break
            pairs += self._pairs(self._order[start:stop], limit)
        return pairs[:limit]

    def to_arrow(self) -> pa.Table:
        """The differing rows in no particular order, with `diff`: below 0 for rows of side a."""
        return changes_table(self._difference, self.schema)

    def __str__(self) -> str:
        if self.equal:
            return (
                f"no difference: {self.a.title} and {self.b.title} have the same {self.same} rows"
            )
        by = f", changed by ({', '.join(self.by)})" if self.by else ""
        return (
            f"{self.a.title} and {self.b.title}: {self.changed} changed, {self.only_a} only in the"
            f" first, {self.only_b} only in the second, {self.same} in both{by}"
        )

    def __repr__(self) -> str:
        return one_line(f"<{self}>")

    def _sorted_keys(self, by: Sequence[int] | None) -> tuple[Places, npt.NDArray[np.bool_]]:
        """Sorts the differing rows, and marks the first row of each key; all rows without keys."""
        columns, types = self._difference.columns, self.schema.types
        first = list(by or ())
        places = [*first, *(i for i in range(len(types)) if i not in first)]
        order = rows.sort_indices([columns[i] for i in places], [types[i] for i in places])
        new = np.ones(len(order), bool)
        if by is not None and len(order):
            new[1:] = False
            for i in first:
                before, after = (rows.take(columns[i], each) for each in (order[:-1], order[1:]))
                new[1:] |= ~rows.equal(before, after, types[i])
        return order, new

    def _sums(self, counts: Places) -> Places:
        """Returns the sum of the counts of each key."""
        return np.add.reduceat(counts, self._starts) if len(counts) else counts

    def _pairs(self, places: Places, limit: int | None) -> list[RowPair]:
        """Pairs the rows of one key: the first rows of both sides, the second rows, and so on."""
        diff = self._difference.diff[places]
        sides = (self._named_rows(places, np.maximum(each, 0), limit) for each in (-diff, diff))
        return [RowPair(*pair) for pair in zip_longest(*sides)]

    def _named_rows(self, places: Places, counts: Places, limit: int | None) -> list[Any]:
        """Returns rows as named tuples, each repeated by its count, but at most `limit` times."""
        if limit is not None:
            counts = np.minimum(counts, limit)
        index = places.repeat(counts)
        taken = [rows.take(column, index) for column in self._difference.columns]
        return list(named_tuples(taken, self.schema, len(index)))


def restricted_comparison(batch: Batch, places: Sequence[int], types: Sequence[str]) -> Updates:
    """Returns some columns of a state or change, with the counts."""
    return Updates([batch.columns[place] for place in places], batch.diff)


def row_difference(a: Updates, b: Updates, types: Sequence[str]) -> Batch:
    """Returns the rows of b minus those of a, consolidated."""
    return arrange(Layout(tuple(types)), concat_updates([b, a.negated()], types))


def differing_counts(a: Collection, b: Collection) -> Collection:
    """Returns the rows whose counts differ; the last column names the side with the higher count.

    Args:
        a, b: collections of one session, with equal columns.
    """
    name = "side"
    while name in a.schema.names:
        name += "_"
    more = a.except_all(b).with_columns({name: "'a'"})
    return more.concat(b.except_all(a).with_columns({name: "'b'"}))


class RowChange(NamedTuple):
    """The change of one row from `a` to `b`, which occurs `copies` times.

    An inserted row has no `a`, a removed row has no `b`.
    """

    a: Any
    b: Any
    copies: int


class RowChanges(NamedTuple):
    """The first rows of a change.

    Attributes:
        by: the names of the key columns that pair old and new rows; empty if rows are not paired.
        first: the first changes, by key; without keys in canonical order.
        arrived: the first inserted rows, in canonical order.
        came, went: the numbers of inserted and removed rows, duplicates included. A changed row
            counts in both.
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
        by: the positions of the key columns that pair old and new rows; empty means no pairs.
        limit: the maximum number of changes, and of inserted rows.

    Cost: one vectorised pass over the change.
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
    """Returns the inserted (1) or removed (-1) rows of a change, with positive counts."""
    at = (batch.diff * sign > 0).nonzero()[0]
    if len(at) == len(batch) and sign > 0:
        return batch
    code = None if batch.code is None else batch.code[at]
    columns = [rows.take(column, at) for column in batch.columns]
    diff = np.abs(batch.diff[at])
    return Batch(batch.layout, columns, batch.khash[at], batch.rhash[at], diff, code)


def _first(side: Batch, n: int, ordering: Ordering) -> Updates:
    """Returns the first `n` distinct rows of one side of a change in an order."""
    updates = first_rows(Trace.from_batch(side), n, ordering)
    if updates is None:
        updates = side.updates.take(ordered(side.columns, side.layout.types, ordering))
    return updates.take(np.arange(min(n, len(updates.diff))))


def _tuples(updates: Updates, schema: Schema) -> list[Any]:
    return named_tuples(list(updates.columns), schema, len(updates.diff))


def _unpaired(row: Any, diff: int) -> RowChange:
    return RowChange(None, row, diff) if diff > 0 else RowChange(row, None, -diff)


def _pair_rows(listed: Sequence[tuple[Any, int]], by: Sequence[int]) -> Iterator[RowChange]:
    """Pairs removed and inserted rows with the same key; yields other rows without a partner."""

    def key(item: tuple[Any, int]) -> list[Any]:
        # because NaN does not equal itself, but all NaNs are the same key
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
