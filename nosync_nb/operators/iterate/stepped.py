"""Stepped: what a loop's operators by key hold of each key, round by round, ready to be evaluated.

A mirror's trace has changes; what a key holds at a round is their sum up to it. Who evaluates keys
asks for that again and again, each round of each epoch, and most of what a key ever held is gone
by the next round. So the sums themselves are kept, one for each round at which a key changes: to
look is to find the round, and a change is added to the sums from its round on, at all of which
the key is evaluated then anyway.

Only in loops that are in no other one: there rounds are in one line. Keys whose sums would take
far more than their changes keep those instead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from nosync_nb.operators.iterate.known import Row, Timed
from nosync_nb.operators.iterate.rounds import Time
from nosync_nb.trace.batch import Layout

Counts = dict[Row, int]
Changes = dict[tuple[Row, Time], int]

SUMS_MAX = 1 << 12
"""A key whose sums would take more rows keeps its changes."""


class Steps:
    """What one key holds from each of some times on, up to the next of them.

    Attributes:
        rows_count: how many rows it takes.
    """

    __slots__ = ("rows_count", "sums", "times")

    def __init__(self, changes: Changes) -> None:
        by_time: dict[Time, list[tuple[Row, int]]] = {}
        for (row, at), count in changes.items():
            by_time.setdefault(at, []).append((row, count))
        self.times = sorted(by_time)
        self.sums: list[Counts] = []
        sums: Counts = {}
        for at in self.times:
            sums = dict(sums)
            for row, count in by_time[at]:
                sums[row] = sums.get(row, 0) + count
            sums = {row: count for row, count in sums.items() if count}
            self.sums.append(sums)
        self.rows_count = sum(map(len, self.sums))

    @property
    def changes(self) -> Changes:
        """The changes that it is the sums of."""
        made: Changes = {}
        before: Counts = {}
        for at, sums in zip(self.times, self.sums, strict=True):
            for row in sums.keys() | before.keys():
                diff = sums.get(row, 0) - before.get(row, 0)
                if diff:
                    made[row, at] = diff
            before = sums
        return made

    def add(self, row: Row, diff: int, time: Time) -> int:
        """Adds to the count of a row from a time on; returns how many rows more it takes."""
        times, sums = self.times, self.sums
        place = bisect_right(times, time)
        more = 0
        if not place or times[place - 1] != time:
            before = dict(sums[place - 1]) if place else {}
            times.insert(place, time)
            sums.insert(place, before)
            more, place = len(before), place + 1
        for each in sums[place - 1 :]:  # no call of a function for each: all changes come by here
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

    def at(self, time: Time) -> tuple[Counts, Time | None]:
        """What is there at a time, not to be changed; and the next time at which it is not."""
        times, sums = self.times, self.sums
        place = bisect_right(times, time)
        held = sums[place - 1] if place else {}
        while place < len(times):
            if sums[place] != held:
                return held, times[place]
            self.rows_count -= len(held)  # what changed there was taken back since
            del times[place], sums[place]
        return held, None


class Stepped(Timed):
    """A trace of an operator by key, in a loop that is in no other one."""

    __slots__ = ("_steps",)

    def __init__(self, layout: Layout, depth: int) -> None:
        super().__init__(layout, depth)
        self._steps: dict[Row, Steps] = {}

    def add(self, pairs: Iterable[tuple[Row, int]], time: Time) -> None:
        """Adds changes of this epoch at a time; none is 0."""
        key_of, steps_of, added = self.key, self._steps, self.added
        rest: list[tuple[Row, int]] = []
        more = 0
        for pair in pairs:
            row, diff = pair
            key = key_of(row)
            steps = steps_of.get(key)
            if steps is None:
                rest.append(pair)
                continue
            added.append(((row, time), diff))
            more += steps.add(row, diff, time)
            if steps.rows_count > 2 * SUMS_MAX:
                changes = self.by_key[key] = steps_of.pop(key).changes
                more += len(changes) - steps.rows_count
        self.rows_count += more
        if rest:
            super().add(rest, time)

    def at(self, key: Row, time: Time) -> tuple[Counts, Time | None]:
        """What a known key holds at a time, not to be changed; and when it holds another next."""
        steps = self._steps.get(key)
        if steps is None:
            changes = self.by_key[key]
            many = len(changes)
            if many > SUMS_MAX or many * len({at for _, at in changes}) > SUMS_MAX:
                return _looked_through(changes, time)
            if not changes:
                return {}, None
            steps = self._steps[key] = Steps(changes)
            self.rows_count += steps.rows_count - many
            self.by_key[key] = {}
        before = steps.rows_count
        found = steps.at(time)
        self.rows_count += steps.rows_count - before
        return found


def _looked_through(changes: Changes, time: Time) -> tuple[Counts, Time | None]:
    """What changes make at a time, and the next time of one."""
    sums: Counts = {}
    after: Time | None = None
    for (row, at), diff in changes.items():
        if at <= time:
            sums[row] = sums.get(row, 0) + diff
        elif after is None or at < after:
            after = at
    return {row: count for row, count in sums.items() if count}, after
