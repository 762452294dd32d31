"""The contents of each key of a loop's operators by key, round by round, ready to be evaluated.

The trace of a key cache has changes; the contents of a key at a round are their sum up to it. The
evaluation of keys reads that sum again and again, each round of each epoch, and most rows of a key
are gone by the next round. Therefore the sums themselves are cached, one for each round at which a
key changes. A lookup finds the round, and a change is added to the sums from its round on. The key
is evaluated at all of these rounds anyway.

This holds only for loops that are not nested, because there rounds are totally ordered. A key whose
sums would take far more memory than its changes keeps the changes instead.

Counts are Python integers, and stay below the limit of 64-bit products; larger counts are left to
numpy, which detects an overflow of 64 bits.

The key caches of a loop, as Python values, which make few changes cheap.

Following one edge through a loop touches a few rows in each round, and numpy costs the same for one
row as for hundreds. The caches have rows of the loop's traces, and of its arranged inputs, in dicts
by key (see `key_cache`, and `round_state` for operators by key). They live with the cost estimate
of the loop (see `cost_estimate`), in memory and for one version of the traces. They may be
incomplete, but never wrong.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any

from nosync_nb.operators.base import GROUP, Step
from nosync_nb.operators.iterate.key_cache import (
    InputKeyCache,
    KeyCache,
    Pairs,
    Row,
    TimedKeyCache,
    TooManyChangesError,
    cached_upper,
)
from nosync_nb.operators.iterate.nested_trace import Time
from nosync_nb.operators.iterate.plan import LoopBody
from nosync_nb.trace.batch import Layout

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
