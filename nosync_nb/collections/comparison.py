"""Comparison: what two collections have in common, and what only one has, row beside row.

Two states are one difference: what one has more often counts above 0, what the other has below.
Rows of one key that are on both sides are one that was changed. So are two collections compared,
two versions of one, one at two epochs, or in two sessions. The difference is a collection, too,
which goes on with what goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import pairwise, zip_longest
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
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates

Places = npt.NDArray[np.int64]


class ComparisonSide(NamedTuple):
    """One of two states: what it is called, and the epoch it is read at."""

    name: str
    epoch: int

    @property
    def title(self) -> str:
        """It and its epoch, for people."""
        return f"{self.name} at epoch {self.epoch}"


class RowPair(NamedTuple):
    """A row that only one side has, None on the other; or one that was changed, as both have it."""

    a: Any
    b: Any


class DifferenceCounts(NamedTuple):
    """How many rows differ at an epoch."""

    epoch: int
    only_a: int
    only_b: int
    changed: int


class Comparison:
    """Two states beside each other; as of their epochs, whatever is committed later.

    Args:
        difference: the rows of b, less those of a.
        count: how many rows a has.
        by: the places of the columns that say which row became which; None: rows are equal or not.
        live: makes the difference as a collection, if it can be one.
        over: the same at so many epochs at most, up to that of both.

    Attributes:
        a, b: the two sides.
        schema: the columns.
        by: the names of those that say which row became which.
        only_a, only_b, changed: rows that one side has, and pairs of rows of one key that differ.
        same: rows that both have.
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
        self._order, new = self._keys(by)
        self._starts = new.nonzero()[0]
        diff = difference.diff[self._order]
        more, less = (self._sums(np.maximum(each, 0)) for each in (diff, -diff))
        self.changed = 0 if by is None else int(np.minimum(more, less).sum())
        self.only_a, self.only_b = (int(each.sum()) - self.changed for each in (less, more))
        self.same = count - self.only_a - self.changed

    def called(self, a: str, b: str) -> Comparison:
        """The same with other names of the sides, where theirs do not tell them apart."""
        other = copy.copy(self)
        other.a, other.b = self.a._replace(name=a), self.b._replace(name=b)
        return other

    @property
    def equal(self) -> bool:
        """Whether both sides have the same rows, each as often."""
        return not len(self._difference)

    @cached_property
    def collection(self) -> Collection:
        """The rows that differ, as a collection that goes on with both sides.

        It has the columns that are compared and last `side`: "a" for a row that the first has more
        often, "b" for the second. Of two that go on in this session `session.stage("changed",
        told.collection)` keeps and maintains it. Else it is a dataflow of this process alone, fed
        by the commits of both sessions, of which no log has anything: a side with an epoch stays
        as of it, and it ends when a session of the two is closed.

        Raises:
            StageError: a side is such a difference itself.

        Cost: in proportion to what changes; of two sessions, the rows of both in memory.
        """
        if self._live is None:
            raise StageError(
                f"{self.a.title} and {self.b.title} are not both collections of a session",
                hint="compare what a difference was made of",
            )
        return self._live()

    def counts(self, most: int = 48) -> list[DifferenceCounts]:
        """How many rows differed at epochs up to that of both, at equal distances.

        None if the sides are of two epochs, or of no name, as these have no past.

        Args:
            most: so many epochs at most.

        Cost: one comparison of the first epoch, and what changed since in both.
        """
        every = () if self._over is None else self._over(most)
        return [DifferenceCounts(c.a.epoch, c.only_a, c.only_b, c.changed) for c in every]

    def rows(self, limit: int | None = None) -> list[RowPair]:
        """What differs as pairs of named tuples, by key, or else in canonical order.

        Args:
            limit: so many pairs at most.

        Cost: O(limit), after the order that was made once.
        """
        pairs: list[RowPair] = []
        bounds = [*self._starts.tolist(), len(self._order)]
        for start, stop in pairwise(bounds):
            if limit is not None and len(pairs) >= limit:
                break
            pairs += self._pairs(self._order[start:stop], limit)
        return pairs[:limit]

    def to_arrow(self) -> pa.Table:
        """What differs, in no promised order: the columns, and last `diff`, below 0 in a."""
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

    def _keys(self, by: Sequence[int] | None) -> tuple[Places, npt.NDArray[np.bool_]]:
        """The rows that differ in order, and where a key begins; without keys each is one."""
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
        """The sum of each key."""
        return np.add.reduceat(counts, self._starts) if len(counts) else counts

    def _pairs(self, places: Places, limit: int | None) -> list[RowPair]:
        """The rows of one key: those of both sides in order, one beside the other."""
        diff = self._difference.diff[places]
        sides = (self._named(places, np.maximum(each, 0), limit) for each in (-diff, diff))
        return [RowPair(*pair) for pair in zip_longest(*sides)]

    def _named(self, places: Places, counts: Places, limit: int | None) -> list[Any]:
        """Rows as named tuples, each as often as its count says."""
        if limit is not None:
            counts = np.minimum(counts, limit)
        index = places.repeat(counts)
        taken = [rows.take(column, index) for column in self._difference.columns]
        return list(named_tuples(taken, self.schema, len(index)))


def restricted_comparison(batch: Batch, places: Sequence[int], types: Sequence[str]) -> Updates:
    """Some columns of a state or change."""
    return Updates([batch.columns[place] for place in places], batch.diff)


def row_difference(a: Updates, b: Updates, types: Sequence[str]) -> Batch:
    """The rows of b, less those of a."""
    return arrange(Layout(tuple(types)), concat_updates([b, a.negated()], types))


def differing_counts(a: Collection, b: Collection) -> Collection:
    """The rows that one of two has more often than the other, with a last column that says which.

    Args:
        a, b: of one host, with equal columns.
    """
    name = "side"
    while name in a.schema.names:
        name += "_"
    more = a.except_all(b).with_columns({name: "'a'"})
    return more.concat(b.except_all(a).with_columns({name: "'b'"}))
