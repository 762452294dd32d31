"""Slot caches: the numbers of the groups that changed last, which saves their lookup.

Successive epochs often change the same groups. A cache stores the numbers of such groups beside the
trace from which they were read. It belongs to one version of the trace at a time: a running epoch
takes it from the previous version, and attaches it to the version that the epoch creates. If the
epoch fails, the cache is lost, and the next epoch looks the groups up again. So a cache may be
missing, but is never wrong.

A group is identified by its key, as Python values (see `group_few`).

`ScalarCounts` counts a few groups in Python, from the cache: `group_by.agg(count(*))` in a small
epoch. For ten rows this takes 10 us in place of 50 us, because numpy calls cost more than the work.
The result is that of `Aggregate`, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from operator import add
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.operators.aggregates import accumulators
from nosync_nb.operators.base import Step
from nosync_nb.operators.grouping import Groups
from nosync_nb.rows import Column
from nosync_nb.rows.count_arithmetic import CountError
from nosync_nb.trace.batch import NO_HASHES, UNORDERED, Batch, Diffs, Index, Updates

Slots = dict[int, npt.NDArray[np.int64]]
Held = TypeVar("Held")

GROUPS_MAX = 1 << 16
"""The number of cached groups above which the cache is cleared; these are about ten megabytes."""
_NUMBERS_MAX = 1024


class SlotCache(Generic[Held]):
    """The cached numbers of some groups, by their keys."""

    __slots__ = ("_asked", "_known")

    def __init__(self) -> None:
        self._known: dict[object, Held] = {}
        self._asked: Sequence[object] = ()

    def stored(self, groups: Groups, look: Callable[[Index | None], Slots]) -> Slots:
        """Returns the numbers of groups before an epoch.

        Args:
            look: reads the numbers of the groups at given positions; of all groups for None.
        """
        if (
            groups.values is None
        ):  # the new numbers of many groups are not cached, so the cache would become wrong
            self._known.clear()
            self._asked = ()
            return look(None)
        self._asked = groups.values
        numbers = list(map(self._known.get, groups.values))
        if None in numbers:
            missing = [i for i, each in enumerate(numbers) if each is None]
            held = self._cached_values(look(np.array(missing)), 0, len(missing))
            for i, each in zip(missing, held, strict=True):
                numbers[i] = each
        return self._slots_of(numbers)  # type: ignore[arg-type]

    def keep(self, after: Slots, start: int) -> None:
        """Caches the numbers after the epoch, for the groups of the last call of `stored`.

        Args:
            after: the numbers by slot.
            start: the position of the first of these groups in each array.
        """
        asked = self._asked
        if len(asked) * len(after) > _NUMBERS_MAX or len(self._known) > GROUPS_MAX:
            self._known.clear()
        else:
            self._known.update(
                zip(asked, self._cached_values(after, start, len(asked)), strict=True)
            )

    def _cached_values(self, slots: Slots, start: int, n: int) -> Sequence[Held]:
        """Converts the numbers by slot to one cached value for each of `n` groups."""
        raise NotImplementedError  # subclasses define it

    def _slots_of(self, held: Sequence[Held]) -> Slots:
        """Converts the cached values of groups to numbers by slot."""
        raise NotImplementedError  # subclasses define it


class CountSlotCache(SlotCache[int]):
    """A cache for aggregates that only count rows; it stores the number of slot 0."""

    __slots__ = ()

    def held(self, groups: Iterable[object], look: Callable[[list[int]], list[int]]) -> list[int]:
        """Returns the counts of a few groups before an epoch.

        Args:
            look: reads the counts of the groups at given positions from the trace.
        """
        numbers = list(map(self._known.get, groups))
        if None in numbers:
            missing = [i for i, each in enumerate(numbers) if each is None]
            for i, each in zip(missing, look(missing), strict=True):
                numbers[i] = each
        return numbers  # type: ignore[return-value]  # no element is None here

    def hold(self, groups: Iterable[object], after: Iterable[int]) -> None:
        """Caches the counts of a few groups after the epoch."""
        if len(self._known) > GROUPS_MAX:
            self._known.clear()
        else:
            self._known.update(zip(groups, after, strict=True))

    def _cached_values(self, slots: Slots, start: int, n: int) -> Sequence[int]:
        numbers = slots.get(0)
        if numbers is None:
            return [0] * n
        held: list[int] = numbers[start : start + n].tolist()
        return held

    def _slots_of(self, held: Sequence[int]) -> Slots:
        return {0: np.array(held, np.int64)}


class ValueSlotCache(SlotCache[dict[int, int]]):
    """A cache of the numbers of each group by slot, without zeros."""

    __slots__ = ()

    def _cached_values(self, slots: Slots, start: int, n: int) -> Sequence[dict[int, int]]:
        columns = [(slot, numbers[start : start + n].tolist()) for slot, numbers in slots.items()]
        return [{slot: column[i] for slot, column in columns if column[i]} for i in range(n)]

    def _slots_of(self, held: Sequence[dict[int, int]]) -> Slots:
        slots: set[int] = set().union(*held)
        return {slot: np.array([each.get(slot, 0) for each in held], np.int64) for slot in slots}


_LIMIT = 2**63


class ScalarCounts:
    """Counts the rows of a few groups in Python.

    Args:
        types: the types of the key columns.
        picked: the output columns after the keys: the position of a key, or the number of keys for
            the count.
        slot_type: the type of the slot column in the accumulator trace.
    """

    def __init__(
        self, types: Sequence[str], picked: Sequence[int], slot_type: np.dtype[Any]
    ) -> None:
        self.types = tuple(types)
        self.picked = tuple(picked)
        self.slot_type = slot_type
        self.counted = any(place >= len(types) for place in picked)

    def step(
        self,
        values: Sequence[object],
        keys: list[Column],
        diff: Diffs,
        step: Step,
    ) -> Updates | None:
        """Returns the change of the output, and emits the change of the accumulator trace.

        Args:
            values: the key of each row, as `key_values` returns it.
            keys: the key columns.
            diff: the diff of each row.
        """
        counts = diff.tolist()
        change: dict[object, int] = dict(zip(values, counts, strict=True))
        first = list(range(len(counts)))
        if len(change) < len(counts):  # several rows belong to the same group
            change, first = {}, []
            for at, (value, count) in enumerate(zip(values, counts, strict=True)):
                if value in change:
                    change[value] += count
                else:
                    change[value] = count
                    first.append(at)
        added = list(change.values())
        before = step.memo.held(change, partial(self._stored_counts, keys, first, step))
        after = list(map(add, before, added))
        if max(after) >= _LIMIT or min(after) < -_LIMIT:
            raise CountError
        step.memo.hold(change, after)
        if 0 in added:  # these groups are unchanged
            kept = [group for group, count in enumerate(added) if count]
            if not kept:
                return None
            first, added = [first[group] for group in kept], [added[group] for group in kept]
            before, after = [before[group] for group in kept], [after[group] for group in kept]
        groups = _keys_at(keys, first)
        step.emitted[0] = self._accumulated(groups, added)
        return self._output(groups, before, after)

    def _stored_counts(
        self, keys: list[Column], first: list[int], step: Step, groups: Sequence[int]
    ) -> list[int]:
        """Reads the counts of some groups from the accumulator trace.

        Args:
            first: the position of a row of each group.
            groups: the numbers of the groups to read.
        """
        at = np.array([first[group] for group in groups])
        some = [rows.take(key, at) for key in keys]
        khash = rows.hash_columns(some, self.types, len(at))
        slots = accumulators.stored(step.state[0], khash, some, step, alone=True)
        counts: list[int] = slots[0].tolist() if slots else [0] * len(at)
        return counts

    def _accumulated(self, groups: list[Column], added: list[int]) -> Batch:
        """Returns the change of the accumulator trace; its rows are distinct, so unordered."""
        columns = [*groups, np.zeros(len(added), self.slot_type)]
        return Batch(UNORDERED, columns, NO_HASHES, NO_HASHES, _numbers(added))

    def _output(self, groups: list[Column], before: list[int], after: list[int]) -> Updates | None:
        """Returns the retracted previous rows and the inserted new rows, without equal rows."""
        if self.counted and min(before) > 0 and min(after) > 0:  # the common case, without a loop
            own = [np.concatenate((each, each)) for each in groups]
            return self._rows(own, before + after, _signs(len(before), len(after)))
        at_old, old_counts, at_new, new_counts = [], [], [], []
        for at, (old, new) in enumerate(zip(before, after, strict=True)):
            if old > 0 and new > 0 and not self.counted:
                continue
            if old > 0:
                at_old.append(at)
                old_counts.append(old)
            if new > 0:
                at_new.append(at)
                new_counts.append(new)
        if not at_old and not at_new:
            return None
        own = _keys_at(groups, at_old + at_new)
        return self._rows(own, old_counts + new_counts, _signs(len(at_old), len(at_new)))

    def _rows(self, own: list[Column], numbers: list[int], signs: Diffs) -> Updates:
        """Builds rows of the output from their keys and counts."""
        counts = _numbers(numbers)
        values = [own[i] if i < len(own) else counts for i in self.picked]
        return Updates([*own, *values], signs)


def _keys_at(keys: list[Column], at: list[int]) -> list[Column]:
    """Returns the keys of the rows at some positions."""
    index = np.array(at)
    return [key[index] for key in keys]


def _numbers(values: list[int]) -> Diffs:
    """Converts counts to an array.

    Raises:
        CountError: if a count does not fit into 64 bits.
    """
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise CountError from None


@lru_cache(maxsize=1024)
def _signs(gone: int, come: int) -> Diffs:
    """Returns -1 for each retracted row, followed by 1 for each inserted row."""
    signs = np.repeat(np.array([-1, 1]), (gone, come))
    signs.setflags(write=False)
    return signs
