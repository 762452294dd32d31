"""Counts of few groups in Python: `group_by.agg(count(*))` in a small epoch.

Ten rows fall into some groups, whose numbers are in the slot cache. For so few rows the calls of
numpy cost more than the work: 50 us instead of 10. The result is that of `Aggregate`, in the same
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from operator import add
from typing import Any

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.aggregates import accumulators
from nosync_nb.operators.base import Step
from nosync_nb.rows import Column
from nosync_nb.rows.count_arithmetic import CountError
from nosync_nb.trace.batch import NO_HASHES, UNORDERED, Batch, Diffs, Updates

_LIMIT = 2**63


class ScalarCounts:
    """Counts the rows of few groups.

    Args:
        types: of the key columns.
        picked: the columns of the output after the keys: positions of keys, or after them, the
            count.
        slot_type: the type of the slot column of the accumulator trace.
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
        """Returns the change of the output.

        Args:
            values: the key of each row, as `key_values` returns it.
        """
        counts = diff.tolist()
        change: dict[object, int] = dict(zip(values, counts, strict=True))
        first = list(range(len(counts)))
        if len(change) < len(counts):  # some rows are of one group
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
        """The counts of some groups in the accumulator trace."""
        at = np.array([first[group] for group in groups])
        some = [rows.take(key, at) for key in keys]
        khash = rows.hash_columns(some, self.types, len(at))
        slots = accumulators.stored(step.state[0], khash, some, step, alone=True)
        counts: list[int] = slots[0].tolist() if slots else [0] * len(at)
        return counts

    def _accumulated(self, groups: list[Column], added: list[int]) -> Batch:
        """The change of the accumulator trace: no two rows are equal, so they need no order."""
        columns = [*groups, np.zeros(len(added), self.slot_type)]
        return Batch(UNORDERED, columns, NO_HASHES, NO_HASHES, _numbers(added))

    def _output(self, groups: list[Column], before: list[int], after: list[int]) -> Updates | None:
        """Retracts the previous rows and inserts the new ones, without those that are equal."""
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
        """Rows of the output, from their keys and counts."""
        counts = _numbers(numbers)
        values = [own[i] if i < len(own) else counts for i in self.picked]
        return Updates([*own, *values], signs)


def _keys_at(keys: list[Column], at: list[int]) -> list[Column]:
    """The keys of some rows."""
    index = np.array(at)
    return [key[index] for key in keys]


def _numbers(values: list[int]) -> Diffs:
    """Counts as an array.

    Raises:
        CountError: if one does not fit into 64 bits.
    """
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise CountError from None


@lru_cache(maxsize=1024)
def _signs(gone: int, come: int) -> Diffs:
    """-1 for each retracted row, then +1 for each inserted one."""
    signs = np.repeat(np.array([-1, 1]), (gone, come))
    signs.setflags(write=False)
    return signs
