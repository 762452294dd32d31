"""Slot caches: the accumulator rows of the groups that changed last, which saves their lookup.

The groups of one epoch are often those of the next. A cache has their numbers beside the trace from
which they were read, and moves on to the next version of the trace. It belongs to one version at a
time: the running epoch takes it, and leaves it to the version that it makes. If the epoch fails,
the cache is lost, and the next epoch looks the groups up again. So the cache may be missing, but
never wrong.

A group is identified by its key, as Python values of the key's types (see `group_few`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from nosync_nb.operators.grouping import Groups
from nosync_nb.trace.batch import Index

Slots = dict[int, npt.NDArray[np.int64]]
Held = TypeVar("Held")

GROUPS_MAX = 1 << 16
"""The number of cached groups: some ten megabytes."""
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
            look: reads the numbers of the groups at given positions, of all for None.
        """
        if (
            groups.values is None
        ):  # many groups: their new numbers are not cached, so the cache becomes empty
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
        """Caches the numbers after the epoch, of the groups that `stored` returned.

        Args:
            start: where they begin in each array.
        """
        asked = self._asked
        if len(asked) * len(after) > _NUMBERS_MAX or len(self._known) > GROUPS_MAX:
            self._known.clear()
        else:
            self._known.update(
                zip(asked, self._cached_values(after, start, len(asked)), strict=True)
            )

    def _cached_values(self, slots: Slots, start: int, n: int) -> Sequence[Held]:
        """The numbers by slot as the cached value of each of `n` groups."""
        raise NotImplementedError  # subclasses define it

    def _slots_of(self, held: Sequence[Held]) -> Slots:
        """The numbers by slot of cached values."""
        raise NotImplementedError  # subclasses define it


class CountSlotCache(SlotCache[int]):
    """A cache for aggregates that only count rows: it stores the number of slot 0."""

    __slots__ = ()

    def held(self, groups: Iterable[object], look: Callable[[list[int]], list[int]]) -> list[int]:
        """Returns the numbers of few groups before an epoch.

        Args:
            look: reads those of the groups at given positions.
        """
        numbers = list(map(self._known.get, groups))
        if None in numbers:
            missing = [i for i, each in enumerate(numbers) if each is None]
            for i, each in zip(missing, look(missing), strict=True):
                numbers[i] = each
        return numbers  # type: ignore[return-value]  # none is missing any more

    def hold(self, groups: Iterable[object], after: Iterable[int]) -> None:
        """Caches the numbers of few groups after the epoch."""
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
    """The numbers of each group by slot, without those that are 0."""

    __slots__ = ()

    def _cached_values(self, slots: Slots, start: int, n: int) -> Sequence[dict[int, int]]:
        columns = [(slot, numbers[start : start + n].tolist()) for slot, numbers in slots.items()]
        return [{slot: column[i] for slot, column in columns if column[i]} for i in range(n)]

    def _slots_of(self, held: Sequence[dict[int, int]]) -> Slots:
        slots: set[int] = set().union(*held)
        return {slot: np.array([each.get(slot, 0) for each in held], np.int64) for slot in slots}
