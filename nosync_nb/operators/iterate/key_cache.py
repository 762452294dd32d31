"""Caches of keys, as Python values: rows of a loop's traces and of its arranged inputs.

A key is looked up in its trace at its first use, together with all other keys that the same run of
a node needs. From then on it is cached, and changes of an epoch are applied to the cache. Caches
hold only columns whose values are equal in Python when they are equal in Spark: integers, booleans
and strings, nulls included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.iterate.nested_trace import Time
from nosync_nb.operators.iterate.plan import AbandonedError
from nosync_nb.rows import Column
from nosync_nb.rows.types import FIXED, INTEGERS
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import NO_HASHES, UNORDERED, Batch, Layout, Updates

Row = tuple[Any, ...]
Pairs = list[tuple[Row, int]]
"""Rows with their diffs, in any order."""

Pick = Callable[[Row], Any]
Place = TypeVar("Place", bound=tuple[Any, ...])

ROWS_MAX = 100_000
"""The rows and keys that are cached from one epoch to the next: some twenty megabytes."""

WHOLE_ROWS = 5000
"""A trace of at most this many rows is read as a whole, once: some five milliseconds."""

SPREAD_ROWS = 5000
"""An epoch that looks up more rows of a trace, and half of its rows, has spread over it."""

PLAIN_TYPES = frozenset((*INTEGERS, "boolean", "string"))


class TooManyChangesError(Exception):
    """The epoch has too many changes, or is unsuited to a run on rows for another reason."""


def value_picker(places: Sequence[int]) -> Pick:
    """Returns a function that takes some values of a row, as a tuple."""
    first = places[0] if places else 0
    if tuple(places) == tuple(range(first, first + len(places))):
        return itemgetter(slice(first, first + len(places)))
    return itemgetter(*places)


def key_picker(layout: Layout) -> Pick:
    """Returns a function that takes the key of a row."""
    return value_picker(layout.places)


def rows_of_columns(columns: Sequence[Column], diff: Any) -> Pairs:
    """Returns columns as rows."""
    return list(zip(zip(*_values(columns), strict=True), diff.tolist(), strict=True))


def _values(columns: Sequence[Column]) -> list[list[Any]]:
    return [c.tolist() if isinstance(c, np.ndarray) else c.to_pylist() for c in columns]


def _tuples(values: Sequence[list[Any]], n: int) -> Iterable[Row]:
    """The rows of some columns, `n` of them even if there is no column."""
    return zip(*values, strict=True) if values else [()] * n


def columns_of_rows(pairs: Iterable[tuple[Row, int]], types: Sequence[str]) -> Updates:
    """Returns rows as columns; there is at least one row.

    Raises:
        OverflowError: if a count has more than 64 bits.
    """
    tuples, diff = zip(*pairs, strict=True)
    return Updates(_columns(tuples, types), np.array(diff, np.int64))


def _columns(made: Sequence[Row], types: Sequence[str]) -> list[Column]:
    return [_column([*map(itemgetter(i), made)], type_) for i, type_ in enumerate(types)]


def _column(values: Sequence[Any], type_: str) -> Column:
    dtype = FIXED.get(type_)
    if dtype is not None and None not in values:
        return np.array(values, dtype)
    column = rows.objects(values)
    if len(values) > rows.SMALL:
        return rows.from_arrow(rows.to_arrow(column, type_), type_)
    return column


class KeyCache(Generic[Place]):
    """Some keys of a trace with their rows.

    Attributes:
        by_key: the counts of the rows of each cached key, empty for a key without rows.
        trace: where other keys are looked up, while an epoch runs.
        whole: True if the whole trace is cached.
        rows_count: the number of cached rows and keys.
    """

    __slots__ = ("_looked", "_types", "by_key", "key", "layout", "rows_count", "trace", "whole")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.key = key_picker(layout)
        self._types = tuple(layout.types[place] for place in layout.places)
        self.by_key: dict[Row, dict[Place, int]] = {}
        self.trace = Trace(layout)
        self.rows_count = 0
        self.whole = False
        self._looked = 0  # rows, by this epoch

    def learn(self, keys: Collection[Row]) -> None:
        """Looks up the keys that are not cached.

        Raises:
            TooManyChangesError: if they have too many rows.
            AbandonedError: if the epoch has looked up half of a large trace, because then it
                spreads further.

        Cost: one lookup for all of them, and none if all are cached.
        """
        by_key = self.by_key
        if all(map(by_key.__contains__, keys)):
            return
        missing = list({key: None for key in keys if key not in by_key})
        if not self.whole and self.trace.rows_count <= WHOLE_ROWS:
            self._learn_all()
            missing = [key for key in missing if key not in by_key]
        held: list[dict[Place, int]] = [{} for _ in missing]
        by_key.update(zip(missing, held, strict=True))
        if not self.whole:
            named = zip(zip(*missing, strict=True), self._types, strict=True)
            columns = [_column(values, type_) for values, type_ in named]
            khash = rows.hash_columns(columns, self._types, len(missing))
            found = self.trace.lookup(khash, columns)
            if found is not None:
                diffs = found.diff.tolist()
                if len(diffs) > ROWS_MAX:
                    raise TooManyChangesError
                self._looked += len(diffs)
                if self._looked > max(SPREAD_ROWS, self.trace.rows_count // 2):
                    raise AbandonedError
                places = self._places(_values(found.columns), len(diffs))
                for probe, place, diff in zip(found.probe.tolist(), places, diffs, strict=True):
                    counts = held[probe]
                    counts[place] = counts.get(place, 0) + diff
        self.rows_count += len(missing)
        self._complete(missing)

    def _learn_all(self) -> None:
        """Reads the whole trace."""
        contents: dict[Row, dict[Place, int]] = {}
        places = self.layout.places
        for part in self.trace.parts():
            values = _values(part.columns)
            keys = _tuples([values[place] for place in places], len(part))
            each = self._places(values, len(part))
            for key, place, diff in zip(keys, each, part.diff.tolist(), strict=True):
                counts = contents.get(key)
                if counts is None:
                    contents[key] = {place: diff}
                else:
                    counts[place] = counts.get(place, 0) + diff
        missing = [key for key in contents if key not in self.by_key]
        self.by_key.update((key, contents[key]) for key in missing)
        self.whole = True
        self.rows_count += len(missing)
        self._complete(missing)

    def begin_epoch(self, trace: Trace) -> None:
        """Starts an epoch: keys that are not cached are looked up in this trace."""
        self.trace, self._looked = trace, 0

    def close(self) -> None:
        """Ends the epoch and releases the trace."""
        self.trace = Trace(self.layout)

    def _places(self, values: Sequence[list[Any]], n: int) -> Iterable[Place]:
        """The keys under which the cache counts the rows that were read."""
        raise AssertionError("subclasses implement _places")

    def _complete(self, keys: Sequence[Row]) -> None:
        """Drops rows that cancel, after a lookup, and counts the rest."""
        for key in keys:
            counts = self.by_key[key]
            if 0 in counts.values():
                counts = {place: count for place, count in counts.items() if count}
                self.by_key[key] = counts
            self.rows_count += len(counts)


class TimedKeyCache(KeyCache[tuple[Row, Time]]):
    """A trace of the loop: by key the counts of (row, time).

    Attributes:
        added: the additions of this epoch, with their times.
    """

    __slots__ = ("_times", "_unknown", "added", "width")

    def __init__(self, layout: Layout, depth: int) -> None:
        super().__init__(layout)
        self.width = len(layout.types) - depth
        self.added: list[tuple[Time, Mapping[Row, int]]] = []
        self._unknown: dict[Row, list[tuple[tuple[Row, Time], int]]] = {}
        self._times: dict[Time, Time] = {}

    def add(self, change: Mapping[Row, int], time: Time) -> None:
        """Adds the changes of this epoch at a time, none with count 0; takes ownership of them."""
        if change:
            self.added.append((time, change))
            self._count(change.items(), time)

    def _count(self, pairs: Iterable[tuple[Row, int]], time: Time) -> None:
        """Counts changes at a time where their keys are cached."""
        by_key, key_of = self.by_key, self.key
        added_count = 0
        for row, diff in pairs:
            place = (row, time)
            key = key_of(row)
            counts = by_key.get(key)
            if counts is None:
                if self.whole:
                    by_key[key] = {place: diff}
                    added_count += 2
                else:
                    self._unknown.setdefault(key, []).append((place, diff))
                continue
            count = counts.get(place)
            if count is None:
                counts[place] = diff
                added_count += 1
            elif count + diff:
                counts[place] = count + diff
            else:
                del counts[place]
                added_count -= 1
        self.rows_count += added_count

    def emitted(self) -> Batch | None:
        """Returns all additions of this epoch, once."""
        added, self.added, self._unknown = self.added, [], {}
        by_time: dict[Time, Mapping[Row, int]] = {}
        for time, change in added:
            if time in by_time:
                sums = dict(by_time[time])
                for row, diff in change.items():
                    _count_in(sums, row, diff)
                change = sums
            by_time[time] = change
        rows_added: list[Row] = []
        diffs: list[int] = []
        for change in by_time.values():
            rows_added += change
            diffs += change.values()
        if not rows_added:
            return None
        types, width = self.layout.types, self.width
        columns = _columns(rows_added, types[:width])
        lengths = [*map(len, by_time.values())]
        for rounds, type_ in zip(zip(*by_time, strict=True), types[width:], strict=True):
            columns.append(np.array(rounds, FIXED[type_]).repeat(lengths))
        # Distinct rows in no order: they are sorted at the first lookup.
        return Batch(UNORDERED, columns, NO_HASHES, NO_HASHES, np.array(diffs, np.int64))

    def _places(self, values: Sequence[list[Any]], n: int) -> Iterable[tuple[Row, Time]]:
        width, shared = self.width, self._times
        times = [shared.setdefault(time, time) for time in _tuples(values[width:], n)]
        return zip(_tuples(values[:width], n), times, strict=True)

    def _learn_all(self) -> None:
        super()._learn_all()
        fresh = list(self._unknown)
        self.by_key.update((key, {}) for key in fresh)
        self.rows_count += len(fresh)
        self._complete(fresh)

    def _complete(self, keys: Sequence[Row]) -> None:
        for key in keys if self._unknown else ():
            for place, diff in self._unknown.pop(key, ()):
                counts = self.by_key[key]
                counts[place] = counts.get(place, 0) + diff
        super()._complete(keys)


class InputKeyCache(KeyCache[Row]):
    """An arranged input of the loop: by key the counts of rows, at the epoch's end."""

    __slots__ = ("changed", "upper")

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.changed: dict[Row, dict[Row, int]] = {}
        self.upper = 0

    def follow(self, pairs: Pairs, after: Trace) -> None:
        """Applies the changes of an epoch."""
        self.begin_epoch(after)
        self.upper = cached_upper(after)
        self.changed = {}
        for row, diff in pairs:
            key = self.key(row)
            _count_in(self.changed.setdefault(key, {}), row, diff)
            counts = self.by_key.get(key)
            if counts is None and self.whole:
                counts = self.by_key[key] = {}
                self.rows_count += 1
            if counts is not None:
                self.rows_count -= len(counts)
                _count_in(counts, row, diff)
                self.rows_count += len(counts)

    def at(self, key: Row, *, before: bool) -> dict[Row, int]:
        """Returns the rows of a cached key, at the end of the epoch or before it."""
        counts = self.by_key[key]
        if before and key in self.changed:
            counts = dict(counts)
            for row, diff in self.changed[key].items():
                _count_in(counts, row, -diff)
        return counts

    def _places(self, values: Sequence[list[Any]], n: int) -> Iterable[Row]:
        return _tuples(values, n)


def _count_in(counts: dict[Row, int], row: Row, diff: int) -> None:
    count = counts.get(row, 0) + diff
    if count:
        counts[row] = count
    else:
        counts.pop(row, None)


def cached_upper(trace: Trace) -> int:
    """Returns the epoch up to which the changes of a trace are known."""
    return trace.layers[-1].upper if trace.layers else 0
