"""The key caches of a loop: rows as Python values, which reduce the cost of small changes.

A change of a single edge touches a few rows in each round of a loop, and a numpy call costs the
same for one row as for hundreds. The caches store rows of the loop's traces, and of its arranged
inputs, in dicts by key. They are attached to the cost estimate of the loop (see `loop`), are only
in memory, and belong to one version of the traces. They may be incomplete, but are never wrong.

A key is looked up in its trace at its first use, together with all other keys that the same run of
a node needs. Then it is cached, and the changes of each epoch are applied to the cache. Caches
support only types whose values are equal in Python if and only if they are equal in Spark:
integers, booleans and strings, including nulls.

For operators by key, a trace stores changes; the contents of a key at a round are the sum of the
changes up to this round. The evaluation of keys reads such sums in each round of each epoch, and
most rows of a key disappear by the next round. Therefore the sums themselves are cached: one for
each round in which a key changes. A change is added to all sums from its round on. This adds no
further cost, because the key is evaluated in all of these rounds.

Sums are cached only for loops that are not nested, because only their rounds are totally ordered.
A key whose sums would need far more memory than its changes is cached as changes.

Counts are Python integers below the limit of 64-bit products. Epochs with larger counts run on
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
"""The maximum number of rows and keys that are cached between epochs; about twenty megabytes."""

WHOLE_ROWS = 5000
"""The maximum number of rows of a trace that is cached as a whole, in about five milliseconds."""

SPREAD_ROWS = 5000
"""An epoch is abandoned if it looks up more rows of a trace than this and than half of its rows."""

PLAIN_TYPES = frozenset((*INTEGERS, "boolean", "string"))


class TooManyChangesError(Exception):
    """The epoch has too many changes for a run on rows, or cannot be run on rows."""


def value_picker(places: Sequence[int]) -> Pick:
    """Returns a function that extracts some values of a row as a tuple."""
    first = places[0] if places else 0
    if tuple(places) == tuple(range(first, first + len(places))):
        return itemgetter(slice(first, first + len(places)))
    return itemgetter(*places)


def key_picker(layout: Layout) -> Pick:
    """Returns a function that extracts the key of a row."""
    return value_picker(layout.places)


def rows_of_columns(columns: Sequence[Column], diff: Any) -> Pairs:
    """Converts columns to rows with diffs."""
    return list(zip(zip(*_values(columns), strict=True), diff.tolist(), strict=True))


def _values(columns: Sequence[Column]) -> list[list[Any]]:
    return [c.tolist() if isinstance(c, np.ndarray) else c.to_pylist() for c in columns]


def _tuples(values: Sequence[list[Any]], n: int) -> Iterable[Row]:
    """Converts the values of columns to `n` rows, even if there are no columns."""
    return zip(*values, strict=True) if values else [()] * n


def columns_of_rows(pairs: Iterable[tuple[Row, int]], types: Sequence[str]) -> Updates:
    """Converts at least one row to columns.

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
    """The rows of some keys of a trace.

    Attributes:
        by_key: the counts of the rows of each cached key; an empty dict for a key without rows.
        trace: the trace in which other keys are looked up while an epoch runs.
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
        self._looked = 0  # the number of rows that this epoch has looked up

    def learn(self, keys: Collection[Row]) -> None:
        """Looks up and caches the keys that are not cached.

        Raises:
            TooManyChangesError: if the keys have too many rows.
            AbandonedError: if the epoch has looked up half of a large trace, because its change
                will then spread further.

        Cost: one lookup for all missing keys; none if all keys are cached.
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
        """Caches the whole trace."""
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
        """Starts an epoch: keys that are not cached are looked up in `trace`."""
        self.trace, self._looked = trace, 0

    def close(self) -> None:
        """Ends the epoch and releases the trace."""
        self.trace = Trace(self.layout)

    def _places(self, values: Sequence[list[Any]], n: int) -> Iterable[Place]:
        """Returns the keys of the inner dicts for `n` rows that were read."""
        raise AssertionError("subclasses implement _places")

    def _complete(self, keys: Sequence[Row]) -> None:
        """Finishes a lookup: drops rows that cancel, and counts the remaining ones."""
        for key in keys:
            counts = self.by_key[key]
            if 0 in counts.values():
                counts = {place: count for place, count in counts.items() if count}
                self.by_key[key] = counts
            self.rows_count += len(counts)


class TimedKeyCache(KeyCache[tuple[Row, Time]]):
    """A cache of a trace of the loop; it counts (row, time) for each key.

    Attributes:
        width: the number of columns before the rounds.
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
        """Adds changes of this epoch at a time, and takes ownership; no count may be 0."""
        if change:
            self.added.append((time, change))
            self._count(change.items(), time)

    def _count(self, pairs: Iterable[tuple[Row, int]], time: Time) -> None:
        """Adds changes to the cached keys, and remembers those of other keys for a later lookup."""
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
        """Returns the sum of the additions of this epoch, and forgets them; None if it is empty."""
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
        # The rows are distinct, so they need no order; the first lookup sorts them.
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
    """A cache of an arranged input of the loop; it counts rows at the end of the epoch.

    Attributes:
        changed: the changes of this epoch, by key.
        upper: the end of the last epoch that the cache contains.
    """

    __slots__ = ("changed", "upper")

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.changed: dict[Row, dict[Row, int]] = {}
        self.upper = 0

    def follow(self, pairs: Pairs, after: Trace) -> None:
        """Applies the changes of an epoch; keys that are not cached are looked up in `after`."""
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
    """Returns the upper bound of the last layer of a trace, by which caches recognise versions."""
    return trace.layers[-1].upper if trace.layers else 0


COUNT_MAX = 1 << 53
"""The maximum count or sum in a run on rows. Numpy handles larger ones, and detects overflows."""

RowCounts = dict[Row, int]
"""The count of each row."""

Changes = dict[tuple[Row, Time], int]

_EMPTY: RowCounts = {}
_NOTHING: tuple[RowCounts, Time | None] = _EMPTY, None

SUMS_MAX = 1 << 12
"""The maximum number of rows in the sums of a key; a larger key is cached as changes."""


def add_pairs(held: RowCounts, pairs: Iterable[tuple[Row, int]]) -> None:
    """Adds rows to counts; rows that cancel remain with a count of 0."""
    for row, diff in pairs:
        held[row] = held.get(row, 0) + diff


def consolidated_pairs(parts: Iterable[Pairs]) -> RowCounts:
    """Returns the counts of rows in several lists, without rows that cancel.

    Raises:
        TooManyChangesError: if a count exceeds `COUNT_MAX`.
    """
    sums: RowCounts = {}
    for pairs in parts:
        add_pairs(sums, pairs)
    kept = without_zeros(sums)
    if kept and max(map(abs, kept.values())) > COUNT_MAX:
        raise TooManyChangesError
    return kept


def without_zeros(held: RowCounts) -> RowCounts:
    """Returns the counts that are not 0; the same dict if none is 0."""
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
    """The rows of one key in each round, stored for the rounds in which they change.

    Attributes:
        rounds: the rounds in which the key changes, ascending.
        sums: the counts of the rows from each of these rounds until the next one.
        rows_count: the number of rows in all sums.
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
        """The changes from which the sums result."""
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
        """Adds to the count of a row from a round on; returns the growth of `rows_count`."""
        rounds, sums = self.rounds, self.sums
        place = bisect_left(rounds, at)
        more = 0
        if place == len(rounds) or rounds[place] != at:
            before = sums[place - 1].copy() if place else {}
            rounds.insert(place, at)
            sums.insert(place, before)
            more = len(before)
        for each in sums[place:] if place else sums:  # inline, because this is the hot path
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
        """Drops rounds from a position on while their rows equal those of the previous round.

        Returns:
            the reduction of `rows_count`.
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
    """A cache of a trace of an operator by key, in a loop that is not nested; it caches sums."""

    __slots__ = ("_steps",)

    def __init__(self, layout: Layout, depth: int) -> None:
        super().__init__(layout, depth)
        self._steps: dict[Row, KeySteps] = {}

    def _count(self, pairs: Iterable[tuple[Row, int]], time: Time) -> None:
        """Adds changes to the sums of their keys; those of keys without sums to their changes."""
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
        """Returns a cached key's rows at a time (read-only) and the time of their next change."""
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
        if sums[place] == held:  # the change in that round has been reverted
            self.rows_count -= steps.let_go(place)
            if place == len(rounds):
                return held, None
        return held, (rounds[place],)


def _looked_through(changes: Changes, time: Time) -> tuple[RowCounts, Time | None]:
    """Returns the sum of the changes up to a time, and the time of the next change."""
    sums: RowCounts = {}
    after: Time | None = None
    for (row, at), diff in changes.items():
        if at <= time:
            sums[row] = sums.get(row, 0) + diff
        elif after is None or at < after:
            after = at
    return {row: count for row, count in sums.items() if count}, after


class LoopKeyCaches:
    """The key caches of all traces and inputs that a loop looks up.

    Attributes:
        states: the cache of each trace of the loop, except its mark.
        outside: the cache of each input that has a layout, by number of the input.
        known: for each row-wise node the cached outputs of rows, as rows with signs.
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
        """Returns True if the caches describe the traces before an epoch.

        They do not if the previous epoch failed after the loop ran, which discarded its changes.
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
        """Starts an epoch: keys that are not cached are looked up in the loop's own traces."""
        for state, trace in zip(self.states, step.state, strict=False):
            state.begin_epoch(trace)

    def leave(self, step: Step) -> None:
        """Emits the changes of the loop's traces, and ends the epoch."""
        self._uppers = []
        for number, state in enumerate(self.states):
            batch = step.emitted[number] = state.emitted()
            self._uppers.append((cached_upper(step.state[number]), batch is not None))
            state.close()
        for held in self.outside.values():
            held.close()
