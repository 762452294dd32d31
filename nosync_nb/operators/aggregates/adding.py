"""Adding: what the values of a change contribute to the slots of their groups.

Many values are cut some at a time: what cutting makes on the way fits into the cache then, and
into the same memory each time. At once it was twenty times the values, and most of the time went
into memory that had to be fetched and cleared for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.aggregates.accumulators import (
    Ints,
    Slots,
    contributions,
    pair_contributions,
)
from nosync_nb.operators.aggregates.plans import Feed
from nosync_nb.rows import Column
from nosync_nb.rows.counts import CountError, add_at, products, sums

AT_ONCE = 1 << 16
"""So many values are cut together."""


def added(
    feed: Feed, columns: Sequence[Column], type_: str, diff: Ints, number: Ints, groups_count: int
) -> Slots:
    """The contributions of values without nulls, by slot and group, but for how many there are.

    Args:
        type_: of the first column.
        number: the group of each value.

    Raises:
        CountError: if what a group gets does not fit into 64 bits.
    """
    n = len(diff)
    if n <= AT_ONCE:
        return _added(feed, columns, type_, diff, number, groups_count)
    total: Slots = {}
    try:
        for start in range(0, n, AT_ONCE):
            stop = min(start + AT_ONCE, n)
            here = number[start:stop]
            low, high = int(here.min()), int(here.max()) + 1
            own = [rows.slice_(column, start, stop) for column in columns]
            some = _added(feed, own, type_, diff[start:stop], here - low, high - low)
            for slot, numbers in some.items():
                if slot not in total:
                    total[slot] = np.zeros(groups_count, np.int64)
                total[slot][low:high] = sums(total[slot][low:high], numbers)
    except CountError:  # of some of the values: of all of them it may fit
        return _added(feed, columns, type_, diff, number, groups_count)
    return total


def _added(
    feed: Feed, columns: Sequence[Column], type_: str, diff: Ints, number: Ints, groups_count: int
) -> Slots:
    made: Slots = {}
    for kind, base in feed.slots.items():
        if kind == "count":
            continue
        if len(columns) == 2:
            parts = pair_contributions(kind, *columns)
        else:
            parts = contributions(kind, columns[0], type_, len(diff))
        for offset, (index, values) in parts.items():
            total = np.zeros(groups_count, np.int64)
            add_at(total, number[index], products(values, diff[index]))
            made[base + offset] = total
    return made
