"""Memo: what an accumulator trace holds for the groups that changed last, so as not to look.

The groups of one epoch are often those of the next. A memo keeps their numbers beside the trace
they were read from, and goes on to the trace that follows it: it belongs to one trace at a time,
taken by the epoch that runs and left to the trace that the epoch makes. If the epoch fails, the
memo is gone, and the next one looks again. So it is never wrong, only missing.

A group is known by its key, as Python values of the key's types (see `group_few`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from nosync_nb.batch import Index
from nosync_nb.groups import Groups

Slots = dict[int, npt.NDArray[np.int64]]

GROUPS_MAX = 1 << 16
"""How many groups are kept: some ten megabytes."""
_NUMBERS_MAX = 1024


class Memo:
    """The numbers of some groups: key -> slot -> number, without those that are 0.

    Where rows are counted alone there is one slot, and the number stands for all.
    """

    __slots__ = ("_asked", "_counts", "_known")

    def __init__(self) -> None:
        self._known: dict[object, dict[int, int]] = {}
        self._counts: dict[object, int] = {}
        self._asked: Sequence[object] = ()

    def counts(self, groups: Groups, look: Callable[[Index | None], Slots]) -> Slots:
        """The same as `stored` where slot 0 is the only one."""
        values = groups.values
        if values is None:
            self._counts.clear()
            self._asked = ()
            return look(None)
        self._asked = values
        found = list(map(self._counts.get, values))
        if None in found:
            missing = [i for i, each in enumerate(found) if each is None]
            numbers = look(np.array(missing)).get(0)
            for place, i in enumerate(missing):
                found[i] = 0 if numbers is None else int(numbers[place])
        return {0: np.array(found, np.int64)}

    def keep_counts(self, after: npt.NDArray[np.int64]) -> None:
        """The same as `keep` where slot 0 is the only one; `after` has the groups alone."""
        if len(self._counts) > GROUPS_MAX:
            self._counts.clear()
        self._counts.update(zip(self._asked, after.tolist(), strict=False))

    def stored(self, groups: Groups, look: Callable[[Index | None], Slots]) -> Slots:
        """The numbers of groups before an epoch.

        Args:
            look: reads the numbers of the groups at given positions, of all for None.
        """
        values = groups.values
        if values is None:
            self._known.clear()
            self._asked = ()
            return look(None)
        self._asked = values
        found = list(map(self._known.get, values))
        if None in found:
            missing = [i for i, each in enumerate(found) if each is None]
            for i in missing:
                found[i] = {}
            for slot, numbers in look(np.array(missing)).items():
                for i, number in zip(missing, numbers.tolist(), strict=True):
                    if number:
                        found[i][slot] = number  # type: ignore[index]
        return _slots(found)  # type: ignore[arg-type]

    def keep(self, after: Slots, start: int) -> None:
        """Keeps the numbers after the epoch, of the groups that `stored` was asked for.

        Args:
            start: where they begin in each array.
        """
        asked, known = self._asked, self._known
        if not asked:
            return
        if len(asked) * len(after) > _NUMBERS_MAX or len(known) > GROUPS_MAX:
            known.clear()
            return
        if len(after) == 1:
            ((slot, numbers),) = after.items()
            for key, number in zip(asked, numbers[start:].tolist(), strict=True):
                known[key] = {slot: number} if number else {}
            return
        columns = [(slot, numbers[start:].tolist()) for slot, numbers in after.items()]
        for i, key in enumerate(asked):
            known[key] = {slot: numbers[i] for slot, numbers in columns if numbers[i]}


def _slots(found: Sequence[dict[int, int]]) -> Slots:
    """The numbers by slot."""
    slots: set[int] = set().union(*found)
    return {slot: np.array([each.get(slot, 0) for each in found], np.int64) for slot in slots}
