"""Adding: what the values of a change contribute to the slots of their groups.

Many values are cut some at a time: what cutting makes on the way fits into the cache then, and
into the same memory each time. At once it was twenty times the values, and most of the time went
into memory that had to be fetched and cleared for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.operators.aggregates.accumulators import (
    Ints,
    Slots,
    bins_of,
    contributions,
    pair_contributions,
)
from nosync_nb.operators.aggregates.plans import Feed
from nosync_nb.rows import Column, bridge
from nosync_nb.rows.counts import CountError, add_at, products, sums

AT_ONCE = 1 << 16
"""So many values are cut together."""

FEW = 16
"""So many doubles are cut faster one by one."""


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
        if len(diff) <= FEW and kind == "sum" and type_ == "double":
            for slot, sums_ in _few_doubles(columns[0], diff, number, groups_count).items():
                made[base + slot] = sums_
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


def _few_doubles(column: Column, diff: Ints, number: Ints, groups_count: int) -> Slots:
    """The same of few doubles, each cut by itself."""
    sums_of: dict[int, list[int]] = {}
    values = bridge.values_of(column) if isinstance(column, pa.Array) else column
    each = zip(values.tolist(), diff.tolist(), number.tolist(), strict=True)
    for value, count, group in each:
        for slot, part in bins_of(value):
            if slot not in sums_of:
                sums_of[slot] = [0] * groups_count
            sums_of[slot][group] += part * count
    try:
        return {slot: np.array(sums_, np.int64) for slot, sums_ in sums_of.items()}
    except OverflowError:
        raise CountError from None
