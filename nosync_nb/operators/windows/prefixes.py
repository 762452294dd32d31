"""Sums over all rows of a group before or after a code, from sums that are cached for each part.

A part of a trace does not change, so the sums of its blocks of `BLOCK` rows are computed once, and
freed together with the part. A sum over any rows of a group then takes two blocks at most in each
part. The sums of parts add up to the sum over the rows that exist, if no row has a negative count.

A part that contains different keys of equal hash, or a trace that may contain negative counts, has
no such sums; the caller then reads the rows.

Cost: O(layers x BLOCK) for each sum. At the first use of a part, a pass over its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.aggregates.aggregate import FeedValues, all_contributions
from nosync_nb.operators.aggregates.plan import AggregatePlan
from nosync_nb.operators.base import Step
from nosync_nb.operators.linear import evaluate
from nosync_nb.operators.windows.intervals import Intervals, positions
from nosync_nb.rows import Schema
from nosync_nb.rows.count_arithmetic import CountError, add_at
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import Batch, Index, Updates, rows_equal

BLOCK = 64
"""The number of rows of a block."""

Slots = dict[int, Index]
"""Numbers by slot; see aggregates/plan.py. Slot 0 counts rows."""

_MOST = 2.0**62


class Contributions:
    """What rows add to the slots of aggregates.

    Args:
        plan: the slots; None to count the rows only.
        schema: the columns of the rows.
    """

    def __init__(self, plan: AggregatePlan | None, schema: Schema) -> None:
        self._feeds = plan.feeds if plan is not None else ()
        self._arguments = plan.arguments if plan is not None else ()
        self._schema = schema
        texts = [each.fingerprint for each in self._arguments]
        self.key = tuple(
            (tuple(texts[i] for i in f.arguments), *f.slots.items()) for f in self._feeds
        )

    def sums(self, updates: Updates, number: Index, n: int, step: Step) -> Slots:
        """Returns the sum of each slot over the rows of each of `n` groups.

        Args:
            number: the number of the group of each row.

        Raises:
            CountError: if a sum does not fit into 64 bits.
        """
        total = np.zeros(n, np.int64)
        add_at(total, number, updates.diff)
        slots: Slots = {0: total}
        if not self._feeds:
            return slots
        values = evaluate(self._arguments, self._schema, updates, step)
        for feed in self._feeds:
            columns = [values[i] for i in feed.arguments]
            type_ = self._arguments[feed.argument].type
            present = _present(columns, len(number))
            some, diff = number, updates.diff
            if present is not None:
                columns = [rows.take(column, present) for column in columns]
                some, diff = number[present], diff[present]
            count = np.zeros(n, np.int64)
            add_at(count, some, diff)
            slots[feed.slots["count"]] = count
            if len(diff):
                slots |= all_contributions([FeedValues(feed, columns, type_)], diff, some, n)
        return slots


def _present(columns: Sequence[Any], n: int) -> Index | None:
    """Returns the positions without a null; None if no column has a null."""
    masks = [mask for mask in map(rows.null_mask, columns) if mask is not None]
    if not masks:
        return None
    present: Index = (~np.logical_or.reduce(masks)).nonzero()[0]
    return present


class PartSums:
    """What is known of the blocks of a part; see `_CACHE`.

    Attributes:
        mixed: True if different keys have equal hashes; None until it is known.
        sums: the sums of the rows up to each block, by kind of contribution.
        extremes: the greatest codes of each block, by function; see running.py.
    """

    def __init__(self) -> None:
        self.mixed: bool | None = None
        self.sums: dict[tuple[Any, ...], Slots] = {}
        self.extremes: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._removes: bool | None = None

    def removes(self, part: Batch) -> bool:
        """Returns True if the part removes rows."""
        if self._removes is None:
            self._removes = bool((part.diff < 0).any())
        return self._removes


class _Cache:
    """The sums of parts, for all operators of the process; freed with the parts."""

    def __init__(self) -> None:
        self._parts: WeakKeyDictionary[Batch, PartSums] = WeakKeyDictionary()
        self._lock = Lock()

    def of(self, part: Batch) -> PartSums:
        """Returns the sums of a part. Two threads may compute the same sums, which are equal."""
        with self._lock:
            found = self._parts.get(part)
            if found is None:
                found = self._parts[part] = PartSums()
            return found


_CACHE = _Cache()


def cached_sums(part: Batch) -> PartSums:
    """Returns what is known of a part."""
    return _CACHE.of(part)


def has_equal_hashes(part: Batch) -> bool:
    """Returns True if different keys in a part have equal hashes."""
    sums = _CACHE.of(part)
    if sums.mixed is None:
        key = part.layout.key or ()
        same = (part.khash[1:] == part.khash[:-1]).nonzero()[0]
        columns, types = [part.columns[i] for i in key], [part.layout.types[i] for i in key]
        sums.mixed = bool(key) and len(same) > 0 and not rows_equal(columns, types, same)
    return sums.mixed


def sums_outside(
    trace: Trace,
    intervals: Intervals,
    index: Index,
    what: Contributions,
    step: Step,
    *,
    after: bool,
) -> Slots | None:
    """Returns the sums over the rows of groups before some intervals, or after them.

    Args:
        index: the intervals.
        after: True for the rows after the intervals.

    Returns:
        the numbers of each slot, for all intervals, 0 for those that are not at `index`; None if
        the parts do not have such sums.
    """
    n = intervals.size
    some = intervals.take(index)
    total: Slots = {0: np.zeros(n, np.int64)}
    for part in trace.parts():
        assert part.code is not None
        first = part.khash.searchsorted(some.khash)
        last = part.khash.searchsorted(some.khash, "right")
        if first.tobytes() == last.tobytes():
            continue
        if has_equal_hashes(part):
            return None
        own = np.ones(some.size, bool)
        there = (last > first).nonzero()[0]
        for key, place in zip(some.keys, part.layout.key or (), strict=True):
            type_ = part.layout.types[place]
            held = rows.take(part.columns[place], first[there])
            own[there] &= rows.equal(held, rows.take(key, there), type_)
        if after:
            first = positions(part.code, first, last, some.high, after=True)
        else:
            last = positions(part.code, first, last, some.low)
        last = np.where(own, last, first)
        for slot, numbers in _range_sums(part, first, last, what, step).items():
            if slot not in total:
                total[slot] = np.zeros(n, np.int64)
            total[slot][index] += numbers
    return total


def _range_sums(part: Batch, first: Index, last: Index, what: Contributions, step: Step) -> Slots:
    """Returns the sums over the rows of ranges of a part."""
    n = len(first)
    low = -(-first // BLOCK)
    high = np.maximum(last // BLOCK, low)
    whole = (high > low).any()
    # the rows outside of whole blocks
    left = np.minimum(low * BLOCK, last)
    right = np.maximum(high * BLOCK, left)
    starts, counts = np.concatenate((first, right)), np.concatenate((left - first, last - right))
    counts = np.maximum(counts, 0)
    rest = hash_ranges(starts, counts)
    step.add_touched(len(rest))
    owner = np.tile(np.arange(n), 2).repeat(counts)
    total = what.sums(part.updates.take(rest), owner, n, step)
    if whole:
        for slot, sums in _block_sums(part, what, step).items():
            numbers = sums[high] - sums[low]
            total[slot] = total[slot] + numbers if slot in total else numbers
    return total


def _block_sums(part: Batch, what: Contributions, step: Step) -> Slots:
    """Returns for each slot the sums over the rows before each block."""
    cached = _CACHE.of(part)
    found = cached.sums.get(what.key)
    if found is None:
        n = len(part)
        blocks = -(-n // BLOCK)
        number = np.arange(n) // BLOCK
        found = {}
        for slot, numbers in what.sums(part.updates, number, blocks, step).items():
            if float(np.abs(numbers.astype(np.float64)).sum()) >= _MOST:
                raise CountError
            found[slot] = np.concatenate(([0], numbers.cumsum()))
        cached.sums[what.key] = found
    return found
