"""Accumulates the contributions of changed values to the slots of their groups.

Many values are cut in blocks: the intermediate arrays of a block fit into the cache, and reuse the
same memory. In one piece they would have twenty times the size of the values, and most of the time
would go into allocating and clearing memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.operators.aggregates.accumulators import (
    Ints,
    Slots,
    bins_of,
    contributions,
    numbers_of,
    pair_contributions,
    thirds,
)
from nosync_nb.operators.aggregates.plan import SlotFeed
from nosync_nb.rows import Column, buffers
from nosync_nb.rows.count_arithmetic import CountError, add_at, products, sums
from nosync_nb.rows.types import FLOATS

AT_ONCE = 1 << 16
"""The number of values in a block."""

FEW = 16
"""Up to this many doubles are cut faster one by one."""

BINS_MAX = 1 << 18
"""The maximum number of bins of groups that are summed at once."""

_SUM = {"count", "sum"}


class FeedValues(NamedTuple):
    """The values of a feed, without nulls, and the type of the first of its columns."""

    feed: SlotFeed
    columns: Sequence[Column]
    type: str


def all_contributions(
    given: Sequence[FeedValues], diff: Ints, number: Ints, groups_count: int
) -> Slots:
    """Returns the result of `feed_contributions` for each of several feeds of the same rows.

    Sums of doubles are cut together, because calls cost more than values for some hundred rows.
    """
    plain: list[FeedValues] = []
    others: list[FeedValues] = []
    for each in given:
        is_sum = each.type in FLOATS and each.feed.slots.keys() == _SUM
        (plain if is_sum else others).append(each)
    slots: Slots | None = None
    if len(plain) > 1 and FEW < len(diff) <= AT_ONCE // len(plain):
        slots = _sums_of_doubles(plain, diff, number, groups_count)
    if slots is None:
        slots, others = {}, [*given]
    for feed, columns, type_ in others:
        slots |= feed_contributions(feed, columns, type_, diff, number, groups_count)
    return slots


def feed_contributions(
    feed: SlotFeed,
    columns: Sequence[Column],
    type_: str,
    diff: Ints,
    number: Ints,
    groups_count: int,
) -> Slots:
    """Returns the contributions of values without nulls, by slot and group, except the row counts.

    Args:
        type_: of the first column.
        number: the group of each value.

    Raises:
        CountError: if a sum of a group does not fit into 64 bits.
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
    except CountError:  # a partial sum overflows: the whole sum may fit
        return _added(feed, columns, type_, diff, number, groups_count)
    return total


def _added(
    feed: SlotFeed,
    columns: Sequence[Column],
    type_: str,
    diff: Ints,
    number: Ints,
    groups_count: int,
) -> Slots:
    slots: Slots = {}
    for kind, base in feed.slots.items():
        if kind == "count":
            continue
        if kind == "sum" and type_ in FLOATS:
            if len(diff) <= FEW:
                few = _few_doubles(columns[0], diff, number, groups_count)
                slots |= {base + slot: sums_ for slot, sums_ in few.items()}
                continue
            sums_ = _sums_of_doubles([FeedValues(feed, columns, type_)], diff, number, groups_count)
            if sums_ is not None:
                slots |= sums_
                continue
        if len(columns) == 2:
            parts = pair_contributions(kind, *columns)
        else:
            parts = contributions(kind, columns[0], type_, len(diff))
        for offset, (index, values) in parts.items():
            total = np.zeros(groups_count, np.int64)
            add_at(total, number[index], products(values, diff[index]))
            slots[base + offset] = total
    return slots


def _sums_of_doubles(
    given: Sequence[FeedValues], diff: Ints, number: Ints, groups_count: int
) -> Slots | None:
    """Sums of columns of doubles; None if they are not finite, or their exponents far apart."""
    width = len(given)
    values = np.concatenate([numbers_of(each.columns[0], np.float64) for each in given])
    if not np.isfinite(values).all():
        return None
    place, chunks = thirds(values)
    least, size = int(place.min()), width * groups_count
    bins_count = int(place.max()) - least + len(chunks)
    if bins_count * size > BINS_MAX:
        return None
    total = np.zeros(bins_count * size, np.int64)
    owner = (place - least) * size + ((np.arange(width) * groups_count)[:, None] + number).ravel()
    owners = owner + (np.arange(len(chunks)) * size)[:, None]
    counts = np.tile(diff, len(chunks) * width)
    add_at(total, owners.ravel(), products(chunks.ravel(), counts))
    bins = total.reshape(bins_count, width, groups_count)
    used = np.asarray(bins.any(axis=2))
    return {
        given[column].feed.slots["sum"] + least + bin_: bins[bin_, column]
        for bin_, column in np.argwhere(used).tolist()
    }


def _few_doubles(column: Column, diff: Ints, number: Ints, groups_count: int) -> Slots:
    """The same of few doubles, each cut by itself."""
    sums_of: dict[int, list[int]] = {}
    values = buffers.values_of(column) if isinstance(column, pa.Array) else column
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
