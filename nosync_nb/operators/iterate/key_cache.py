"""The key caches of a loop, as Python values, which make few changes cheap.

Following one edge through a loop touches a few rows in each round, and numpy costs the same for one
row as for hundreds. The caches have rows of the loop's traces, and of its arranged inputs, in dicts
by key. They live with the cost estimate of the loop (see `loop`), in memory and for one version of
the traces. They may be incomplete, but never wrong.

A key is looked up in its trace at its first use, together with all other keys that the same run of
a node needs. From then on it is cached, and changes of an epoch are applied to the cache. Caches
hold only columns whose values are equal in Python when they are equal in Spark: integers, booleans
and strings, nulls included.

For operators by key, the cache of a key's trace has changes; the contents of a key at a round are
their sum up to it. The evaluation of keys reads that sum again and again, each round of each epoch,
and most rows of a key are gone by the next round. Therefore the sums themselves are cached, one for
each round at which a key changes. A lookup finds the round, and a change is added to the sums from
its round on. The key is evaluated at all of these rounds anyway.

This holds only for loops that are not nested, because there rounds are totally ordered. A key whose
sums would take far more memory than its changes keeps the changes instead.

Counts are Python integers, and stay below the limit of 64-bit products; larger counts are left to
numpy, which detects an overflow of 64 bits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.base import GROUP, Step
from nosync_nb.operators.iterate.nested_trace import Time
from nosync_nb.operators.iterate.plan import AbandonedError, LoopBody
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


COUNT_MAX = 1 << 53
"""Larger counts and sums are left to numpy, which detects an overflow of 64 bits."""

RowCounts = dict[Row, int]
"""The count of each row."""

Changes = dict[tuple[Row, Time], int]

_EMPTY: RowCounts = {}
_NOTHING: tuple[RowCounts, Time | None] = _EMPTY, None

SUMS_MAX = 1 << 12
"""A key whose sums would take more rows keeps its changes."""


def add_pairs(held: RowCounts, pairs: Iterable[tuple[Row, int]]) -> None:
    """Adds rows to counts; rows that cancel stay with a count of 0."""
    for row, diff in pairs:
        held[row] = held.get(row, 0) + diff


def consolidated_pairs(parts: Iterable[Pairs]) -> RowCounts:
    """Returns the sum of lists of rows, without those that cancel.

    Raises:
        TooManyChangesError: if a count exceeds the limit of 64-bit products.
    """
    sums: RowCounts = {}
    for pairs in parts:
        add_pairs(sums, pairs)
    kept = without_zeros(sums)
    if kept and max(map(abs, kept.values())) > COUNT_MAX:
        raise TooManyChangesError
    return kept


def without_zeros(held: RowCounts) -> RowCounts:
    """Returns the rows that do not cancel; the same dict, if that is all."""
    if 0 in held.values():
        return {row: count for row, count in held.items() if count}
    return held


def least_upper_bound(time: Time, other: Time) -> Time:
    """Returns the least upper bound of two times."""
    if time == other:
        return time
    if len(time) == 1:
        return time if time > other else other
    return tuple(map(max, time, other))


class KeySteps:
    """The rows of one key from each of some rounds on, up to the next of them.

    Attributes:
        rounds: ascending.
        sums: for each of them.
        rows_count: the number of rows that it takes.
    """

    __slots__ = ("rounds", "rows_count", "sums")

    def __init__(self, changes: Changes) -> None:
        by_round: dict[int, list[tuple[Row, int]]] = {}
        for (row, (at,)), count in changes.items():
            by_round.setdefault(at, []).append((row, count))
        self.rounds = sorted(by_round)
        self.sums: list[RowCounts] = []
        sums: RowCounts = {}
        for at in self.rounds:
            sums = dict(sums)
            for row, count in by_round[at]:
                sums[row] = sums.get(row, 0) + count
            sums = {row: count for row, count in sums.items() if count}
            self.sums.append(sums)
        self.rows_count = sum(map(len, self.sums))

    @property
    def changes(self) -> Changes:
        """The changes whose sums are cached."""
        made: Changes = {}
        before: RowCounts = {}
        for at, sums in zip(self.rounds, self.sums, strict=True):
            for row in sums.keys() | before.keys():
                diff = sums.get(row, 0) - before.get(row, 0)
                if diff:
                    made[row, (at,)] = diff
            before = sums
        return made

    def add(self, row: Row, diff: int, at: int) -> int:
        """Adds to the count of a row from a round on; returns how many rows more it takes."""
        rounds, sums = self.rounds, self.sums
        place = bisect_left(rounds, at)
        more = 0
        if place == len(rounds) or rounds[place] != at:
            before = sums[place - 1].copy() if place else {}
            rounds.insert(place, at)
            sums.insert(place, before)
            more = len(before)
        for each in (
            sums[place:] if place else sums
        ):  # no function call for each: this is the hot path
            count = each.get(row)
            if count is None:
                each[row] = diff
                more += 1
            elif count + diff:
                each[row] = count + diff
            else:
                del each[row]
                more -= 1
        self.rows_count += more
        return more

    def let_go(self, place: int) -> int:
        """Drops the rounds from a position on whose rows equal those of the previous round.

        Returns:
            how many rows less it takes.
        """
        rounds, sums = self.rounds, self.sums
        held = sums[place - 1] if place else {}
        less = 0
        while place < len(rounds) and sums[place] == held:
            less += len(held)
            del rounds[place], sums[place]
        self.rows_count -= less
        return less


class RoundState(TimedKeyCache):
    """A trace of an operator by key, in a loop that is not nested."""

    __slots__ = ("_steps",)

    def __init__(self, layout: Layout, depth: int) -> None:
        super().__init__(layout, depth)
        self._steps: dict[Row, KeySteps] = {}

    def _count(self, pairs: Iterable[tuple[Row, int]], time: Time) -> None:
        """Counts changes at a time where their keys are cached."""
        key_of, steps_of, at = self.key, self._steps, time[0]
        rest: list[tuple[Row, int]] = []
        more = 0
        for pair in pairs:
            row, diff = pair
            key = key_of(row)
            steps = steps_of.get(key)
            if steps is None:
                rest.append(pair)
                continue
            more += steps.add(row, diff, at)
            if steps.rows_count > 2 * SUMS_MAX:
                changes = self.by_key[key] = steps_of.pop(key).changes
                more += len(changes) - steps.rows_count
        self.rows_count += more
        if rest:
            super()._count(rest, time)

    def at(self, key: Row, time: Time) -> tuple[RowCounts, Time | None]:
        """Returns a cached key's rows at a time, read-only, and the time of their next change."""
        steps = self._steps.get(key)
        if steps is None:
            changes = self.by_key[key]
            if not changes:
                return _NOTHING
            many = len(changes)
            if many > SUMS_MAX or many * len({at for _, at in changes}) > SUMS_MAX:
                return _looked_through(changes, time)
            steps = self._steps[key] = KeySteps(changes)
            self.rows_count += steps.rows_count - many
            self.by_key[key] = {}
        rounds, sums = steps.rounds, steps.sums
        place = bisect_right(rounds, time[0])
        held = sums[place - 1] if place else _EMPTY
        if place == len(rounds):
            return held, None
        if sums[place] == held:  # the change of that round was reverted since
            self.rows_count -= steps.let_go(place)
            if place == len(rounds):
                return held, None
        return held, (rounds[place],)


def _looked_through(changes: Changes, time: Time) -> tuple[RowCounts, Time | None]:
    """The sum of changes at a time, and the time of the next change."""
    sums: RowCounts = {}
    after: Time | None = None
    for (row, at), diff in changes.items():
        if at <= time:
            sums[row] = sums.get(row, 0) + diff
        elif after is None or at < after:
            after = at
    return {row: count for row, count in sums.items() if count}, after


class LoopKeyCaches:
    """The cached keys of all traces and inputs that a loop looks up.

    Attributes:
        states: of each trace of the loop, without its mark.
        outside: of each input that has a layout.
        known: for each row-wise node the output of a row, as rows with signs.
    """

    def __init__(self, loop: LoopBody) -> None:
        self.loop = loop
        by_key = {s for n in loop.nodes if n.kind == GROUP and n.depth == 1 for s in n.states}
        self.states = [
            (RoundState if number in by_key else TimedKeyCache)(layout, depth)
            for number, (layout, depth) in enumerate(zip(loop.state, loop.depths, strict=False))
        ]
        self.outside = {
            number: InputKeyCache(layout)
            for number, layout in enumerate(loop.layouts)
            if layout is not None
        }
        self.known: dict[int, dict[Row, Pairs]] = {}
        self._uppers: list[tuple[int, bool]] = []

    @property
    def rows_count(self) -> int:
        """The number of cached rows and keys."""
        every: list[KeyCache[Any]] = [*self.states, *self.outside.values()]
        return sum(each.rows_count for each in every)

    def follows(self, loop: LoopBody, step: Step) -> bool:
        """Returns True if the caches agree with the traces before an epoch.

        An epoch may have failed after the loop ran; its changes were discarded then.
        """
        if self.loop is not loop:
            return False
        for number, held in self.outside.items():
            trace = step.before[number]
            if trace is None or cached_upper(trace) != held.upper:
                return False
        return all(
            (cached_upper(trace) > upper) if changed else (cached_upper(trace) == upper)
            for trace, (upper, changed) in zip(step.state, self._uppers, strict=False)
        )

    def begin_epoch(self, step: Step) -> None:
        """Starts an epoch: keys that are not cached are looked up in its traces."""
        for state, trace in zip(self.states, step.state, strict=False):
            state.begin_epoch(trace)

    def leave(self, step: Step) -> None:
        """Emits the changes of the epoch, and ends it."""
        self._uppers = []
        for number, state in enumerate(self.states):
            batch = step.emitted[number] = state.emitted()
            self._uppers.append((cached_upper(step.state[number]), batch is not None))
            state.close()
        for held in self.outside.values():
            held.close()
