"""A mirror: what a small loop holds, as Python values by key, so that few changes cost little.

Following one edge through a small loop touches a few rows in each round, and numpy costs the same
for one row as for hundreds. A mirror has all rows of the loop's traces, and of the inputs that it
looks into, in dicts. It is kept with what the loop remembers (see `effort`): in memory, of one
trace at a time, never wrong but missing.

It is only made of columns whose values are equal in Python when they are equal in Spark: integers,
booleans and strings, nulls included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.operators.iterate.rounds import Time
from nosync_nb.rows import Column
from nosync_nb.rows.types import FIXED, INTEGERS
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import NO_HASHES, UNORDERED, Batch, Layout, Updates

if TYPE_CHECKING:
    from nosync_nb.operators.iterate.loop import Loop

Row = tuple[Any, ...]
Pairs = list[tuple[Row, int]]
"""Rows with their diffs, in any order."""

Pick = Callable[[Row], Any]

ROWS_MAX = 50_000
"""So many rows are mirrored: some fifty milliseconds to make it, and some ten megabytes."""

PLAIN_TYPES = frozenset((*INTEGERS, "boolean", "string"))


def picker(places: Sequence[int]) -> Pick:
    """What takes some values of a row, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        (one,) = places
        return lambda row: (row[one],)
    return lambda row: ()


def key_picker(layout: Layout) -> Pick:
    """What takes the key of a row."""
    return picker(layout.places)


def pairs_of(columns: Sequence[Column], diff: Any) -> Pairs:
    """Columns as rows."""
    return list(zip(zip(*_values(columns), strict=True), diff.tolist(), strict=True))


def _values(columns: Sequence[Column]) -> list[list[Any]]:
    return [c.tolist() if isinstance(c, np.ndarray) else c.to_pylist() for c in columns]


def _tuples(values: Sequence[list[Any]], n: int) -> Iterable[Row]:
    """The rows of some columns, `n` of them even if there is no column."""
    return zip(*values, strict=True) if values else [()] * n


def updates_of(pairs: Iterable[tuple[Row, int]], types: Sequence[str]) -> Updates:
    """Rows as columns; there is at least one.

    Raises:
        OverflowError: if a count has more than 64 bits.
    """
    made, diff = zip(*pairs, strict=True)
    columns = [_column(c, t) for c, t in zip(zip(*made, strict=True), types, strict=True)]
    return Updates(columns, np.array(diff, np.int64))


def _column(values: Sequence[Any], type_: str) -> Column:
    dtype = FIXED.get(type_)
    if dtype is not None and None not in values:
        return np.array(values, dtype)
    column = rows.objects(values)
    if len(values) > rows.SMALL:
        return rows.from_arrow(rows.to_arrow(column, type_), type_)
    return column


def loose(layout: Layout, pairs: Iterable[tuple[Row, int]]) -> Batch:
    """Distinct rows as a batch in no order: sorted when somebody looks at it."""
    columns, diff = updates_of(pairs, layout.types)
    return Batch(UNORDERED, columns, NO_HASHES, NO_HASHES, diff)


class Timed:
    """A trace of the loop: by key the counts of (row, time)."""

    __slots__ = ("added", "by_key", "depth", "key", "rows_count", "width")

    def __init__(self, trace: Trace, depth: int) -> None:
        layout = trace.layout
        self.depth = depth
        self.width = width = len(layout.types) - depth
        places = layout.key
        assert places is not None
        self.key = picker(places)
        self.rows_count = 0
        self.by_key: dict[Row, dict[tuple[Row, Time], int]] = {}
        for part in trace.parts():
            values = _values(part.columns)
            keys = _tuples([values[i] for i in places], len(part))
            own = _tuples(values[:width], len(part))
            times = _tuples(values[width:], len(part))
            self._load(keys, list(zip(own, times, strict=True)), part.diff.tolist())
        self.added: dict[tuple[Row, Time], int] = {}

    def _load(
        self, keys: Iterable[Row], places: Sequence[tuple[Row, Time]], diffs: Sequence[int]
    ) -> None:
        """Adds what a part of the trace holds, in which no (row, time) comes twice."""
        by_key = self.by_key
        for key, place, diff in zip(keys, places, diffs, strict=True):
            held = by_key.get(key)
            if held is None:
                by_key[key] = {place: diff}
                self.rows_count += 1
            elif place not in held:
                held[place] = diff
                self.rows_count += 1
            else:
                self._count(place, diff)

    def add(self, row: Row, time: Time, diff: int) -> None:
        """Adds a change of this epoch."""
        place = (row, time)
        self._count(place, diff)
        self.added[place] = self.added.get(place, 0) + diff

    def _count(self, place: tuple[Row, Time], diff: int) -> None:
        key = self.key(place[0])
        held = self.by_key.get(key)
        if held is None:
            held = self.by_key[key] = {}
        old = held.get(place, 0)
        if old + diff:
            held[place] = old + diff
            self.rows_count += not old
        else:
            del held[place]
            self.rows_count -= 1
            if not held:
                del self.by_key[key]

    def emitted(self, layout: Layout) -> Batch | None:
        """All that this epoch added, once."""
        added = [((*row, *time), diff) for (row, time), diff in self.added.items() if diff]
        self.added = {}
        return loose(layout, added) if added else None


class Outside:
    """An input of the loop that it looks into: by key the counts of rows, at the epoch's end."""

    __slots__ = ("by_key", "changed", "key", "upper")

    def __init__(self, trace: Trace) -> None:
        self.key = key_picker(trace.layout)
        self.by_key: dict[Row, dict[Row, int]] = {}
        self.changed: dict[Row, dict[Row, int]] = {}
        self.upper = upper_of(trace)
        for part in trace.parts():
            for row, diff in pairs_of(part.columns, part.diff):
                _count_in(self.by_key, self.key(row), row, diff)

    def follow(self, pairs: Pairs, after: Trace) -> None:
        """An epoch changes it."""
        self.changed = {}
        for row, diff in pairs:
            key = self.key(row)
            _count_in(self.by_key, key, row, diff)
            _count_in(self.changed, key, row, diff)
        self.upper = upper_of(after)

    def at(self, key: Row, *, before: bool) -> dict[Row, int]:
        """The rows of a key, at the end of the epoch or before it."""
        counts = self.by_key.get(key, {})
        if before and key in self.changed:
            counts = dict(counts)
            for row, diff in self.changed[key].items():
                counts[row] = counts.get(row, 0) - diff
        return counts


def _count_in(by_key: dict[Row, dict[Row, int]], key: Row, row: Row, diff: int) -> None:
    held = by_key.setdefault(key, {})
    count = held.get(row, 0) + diff
    if count:
        held[row] = count
    else:
        held.pop(row, None)
        if not held:
            del by_key[key]


class Mirror:
    """All that a loop looks into.

    Attributes:
        states: of each trace of the loop, without its mark.
        outside: of each input that has a layout.
        known: for each row-wise node what it made of a row, as rows with signs.
    """

    def __init__(self, loop: Loop, step: Step) -> None:
        self.loop = loop
        self.states = [
            Timed(trace, depth) for trace, depth in zip(step.state, loop.depths, strict=False)
        ]
        self.outside: dict[int, Outside] = {}
        for number, layout in enumerate(loop.layouts):
            trace = step.before[number]
            if layout is not None and trace is not None:
                self.outside[number] = Outside(trace)
        self.known: dict[int, dict[Row, Pairs]] = {}
        self._uppers: list[tuple[int, bool]] = []

    @property
    def rows_count(self) -> int:
        """The rows of the loop's traces."""
        return sum(state.rows_count for state in self.states)

    def follows(self, loop: Loop, step: Step) -> bool:
        """Whether it holds what the traces do before an epoch.

        An epoch may have failed after the loop ran: what it had changed was not kept then.
        """
        if self.loop is not loop:
            return False
        for number, held in self.outside.items():
            trace = step.before[number]
            if trace is None or upper_of(trace) != held.upper:
                return False
        return all(
            (upper_of(trace) > upper) if changed else (upper_of(trace) == upper)
            for trace, (upper, changed) in zip(step.state, self._uppers, strict=False)
        )

    def leave(self, step: Step) -> None:
        """Emits what the epoch changed."""
        self._uppers = []
        for number, state in enumerate(self.states):
            trace = step.state[number]
            batch = step.emitted[number] = state.emitted(trace.layout)
            self._uppers.append((upper_of(trace), batch is not None))


def upper_of(trace: Trace) -> int:
    """The epoch up to which a trace is known to have changed."""
    return trace.layers[-1].upper if trace.layers else 0


def mirrored_rows(step: Step) -> int:
    """How many rows a mirror would hold."""
    inputs = sum(trace.rows_count for trace in step.before if trace is not None)
    return inputs + sum(trace.rows_count for trace in step.state)
