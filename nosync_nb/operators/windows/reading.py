"""Reads the rows of intervals, and rows around them, in the exact order of their groups.

Each part of a trace stores the rows of a group in the order of their codes, so the rows before and
after an interval are its neighbours. Rows of several parts may cancel, so a lookup reads some more
of them, and looks further if they are not enough. The rows of an interval are complete between the
first unread rows of the parts on both sides.

Cost: O(layers x (rows around)) for each interval, and the rows inside, for a group of any size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.operators.grouping import with_key_numbers
from nosync_nb.operators.linear import rows_where
from nosync_nb.operators.ordering import OrderColumn, order_ranks
from nosync_nb.operators.windows.calls import Reach
from nosync_nb.operators.windows.intervals import FIRST, LAST, Intervals, Mask, positions
from nosync_nb.rows import Column
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import Hashes, Index, Updates, concat_updates, no_updates

LOOK = 8
"""The number of rows that the first lookup reads in each part beyond the requested ones."""

FURTHER = 8
"""The factor by which this number grows with each further lookup."""

SMALL = 16
"""A group with this number of rows in a part at most is read completely, without a search."""

_SIGN = np.uint64(1 << 63)


class RowShape(NamedTuple):
    """The columns of the rows of a window operator.

    Attributes:
        types: the types of all columns; the last one is the order code.
        width: the number of leading columns that are output.
        keys: the positions of the grouping columns.
        by: the columns of the order.
        peer_bits: a mask of the bits of order codes that do not belong to the order.
    """

    types: tuple[str, ...]
    width: int
    keys: tuple[int, ...]
    by: tuple[OrderColumn, ...]
    peer_bits: np.uint64

    def codes(self, columns: Sequence[Column]) -> Hashes:
        """Returns the order codes of rows."""
        return np.asarray(columns[len(self.types) - 1]).view(np.uint64) ^ _SIGN

    def changes_of(
        self, columns: Sequence[Column], types: Sequence[str], places: Sequence[int]
    ) -> Mask:
        """Returns a mask of the rows that differ from their predecessor in some columns."""
        n = len(columns[0])
        new = np.ones(n, bool)
        if n > 1:
            new[1:] = False
            for place in places:
                column = columns[place]
                a, b = rows.slice_(column, 0, n - 1), rows.slice_(column, 1, n)
                new[1:] |= ~rows.equal(a, b, types[place])
        return new


class ReadRows(NamedTuple):
    """The rows in and around intervals, in their exact order, without absent ones.

    Attributes:
        rows: the rows with their counts, all above 0.
        interval: the number of the interval of each row.
        code: the order code of each row.
        start, first, last, stop: for each interval the first row that was read, the first row
            inside, the one after the last inside, and the one after the last that was read.
        cut: masks of the intervals that have unread rows before, and after.
    """

    rows: Updates
    interval: Index
    code: Hashes
    start: Index
    first: Index
    last: Index
    stop: Index
    cut: tuple[Mask, Mask]


def read_rows(
    trace: Trace,
    intervals: Intervals,
    span: tuple[Hashes, Hashes],
    around: tuple[Reach, Reach],
    shape: RowShape,
    step: Step,
    *,
    near: tuple[int, int] = (0, 0),
) -> ReadRows:
    """Reads all rows of intervals, and at least the requested rows around them.

    Args:
        near: the number of rows to try to read before and after each interval; a group that is not
            larger is then read completely.
        span: the first and the last code to read for each interval, on both sides of it.
        around: the distances to read before and after each interval.
    """
    n = intervals.size
    pending = np.arange(n)
    cut = np.zeros(n, bool), np.zeros(n, bool)
    types = (*shape.types, "bigint")
    parts: list[Updates] = []
    look = LOOK
    while len(pending):
        some = intervals.take(pending)
        low, high = (
            np.minimum(span[0][pending], some.low),
            np.maximum(span[1][pending], some.high),
        )
        found, floor, ceiling, less, more = _lookup(
            trace, some, low, high, around, near, look, shape, step
        )
        interval = np.asarray(found.columns[-1])
        code = shape.codes(found.columns)
        certain = ~less[interval] | (code > floor[interval])
        certain &= ~more[interval] | (code < ceiling[interval])
        if not certain.all():
            found = rows_where(found, certain)
        read = _sorted(found, some, (less, more), shape)
        open_ = less & _is_short(read, around[0], shape, before=True)
        open_ |= more & _is_short(read, around[1], shape, before=False)
        done = ~open_
        for mask, own in zip(cut, (less, more), strict=True):
            mask[pending[done]] = own[done]
        if done.all() and not parts and len(pending) == n:
            return read._replace(cut=cut)
        keep = done[read.interval].nonzero()[0]
        columns = [rows.take(c, keep) for c in read.rows.columns]
        parts.append(Updates([*columns, pending[read.interval[keep]]], read.rows.diff[keep]))
        pending = pending[open_]
        look *= FURTHER
    found = concat_updates(parts, types) if parts else no_updates(types)
    return _sorted(found, intervals, cut, shape)


def _lookup(
    trace: Trace,
    some: Intervals,
    low: Hashes,
    high: Hashes,
    around: tuple[Reach, Reach],
    near: tuple[int, int],
    look: int,
    shape: RowShape,
    step: Step,
) -> tuple[Updates, Hashes, Hashes, Mask, Mask]:
    """Reads rows of intervals in each part.

    Returns:
        the existing rows with the number of their interval, where a row may occur several times;
        the codes of the nearest unread rows on both sides of each interval; masks of the intervals
        that have such rows.
    """
    n = some.size
    floor, ceiling = np.full(n, FIRST), np.full(n, LAST)
    less, more = np.zeros(n, bool), np.zeros(n, bool)
    before, after = around
    wide = [
        max(each.rows + look if each.counted else 0, least)
        for each, least in zip(around, near, strict=True)
    ]
    taken: list[Updates] = []
    owners: list[Index] = []
    for part in trace.parts():
        assert part.code is not None
        first = part.khash.searchsorted(some.khash)
        last = part.khash.searchsorted(some.khash, "right")
        if first.tobytes() == last.tobytes():
            continue
        start, stop = first, last
        few = int((last - first).max()) <= SMALL
        if not before.end and not few:
            start = np.maximum(first, positions(part.code, first, last, low) - wide[0])
            hidden = start > first
            less |= hidden
            floor[hidden] = np.maximum(floor[hidden], part.code[start[hidden] - 1])
        if not after.end and not few:
            end = positions(part.code, first, last, high, after=True)
            stop = np.minimum(last, end + wide[1])
            hidden = stop < last
            more |= hidden
            ceiling[hidden] = np.minimum(ceiling[hidden], part.code[stop[hidden]])
        count = stop - start
        index = hash_ranges(start, count)
        if not len(index):
            continue
        if len(index) == len(part) and bool((start[1:] == stop[:-1]).all()):
            taken.append(part.updates)
        else:
            taken.append(part.updates.take(index))
        owners.append(np.arange(n).repeat(count))
    interval = np.concatenate(owners) if owners else np.zeros(0, np.int64)
    step.add_touched(len(interval))
    found = concat_updates(taken, shape.types) if taken else no_updates(shape.types)
    own = np.ones(len(interval), bool)
    for key, place in zip(some.keys, shape.keys, strict=True):
        own &= rows.equal(rows.take(key, interval), found.columns[place], shape.types[place])
    if not own.all():
        found, interval = rows_where(found, own), interval[own]
    held = Updates([*found.columns, interval], found.diff)
    removed = found.diff < 0
    if removed.any():  # equal rows have equal codes
        code = shape.codes(found.columns)
        changed = np.isin(code, code[removed])
        moved = rows_where(held, changed)
        batch = with_key_numbers(
            Updates(moved.columns[:-1], moved.diff), np.asarray(moved.columns[-1]), shape.types
        )
        left = rows_where(batch.updates, batch.diff > 0)
        held = concat_updates([rows_where(held, ~changed), left], (*shape.types, "bigint"))
    return held, floor, ceiling, less, more


def _sorted(
    found: Updates, intervals: Intervals, cut: tuple[Mask, Mask], shape: RowShape
) -> ReadRows:
    """Sorts rows by interval, by code, and rows of equal codes exactly."""
    interval, code = np.asarray(found.columns[-1]), shape.codes(found.columns)
    columns = found.columns[:-1]
    n = len(interval)
    same = interval[1:] == interval[:-1]
    ascends = (interval[1:] > interval[:-1]) | (same & (code[1:] >= code[:-1]))
    order = None
    if not ascends.all():
        order = np.lexsort((code, interval))
        interval, code = interval[order], code[order]
    tied = np.zeros(n, bool)
    tied[1:] = (interval[1:] == interval[:-1]) & (code[1:] == code[:-1])
    if tied.any():
        order = np.arange(n) if order is None else order
        member = tied.copy()
        member[:-1] |= tied[1:]
        at = member.nonzero()[0]
        run = (~tied).cumsum()[at]
        some = [rows.take(c, order[at]) for c in columns]
        place = np.empty(len(at), np.int64)
        own = shape.types[: shape.width]
        place[rows.sort_indices(some[: shape.width], own)] = np.arange(len(at))
        ranks = order_ranks(some, shape.types, shape.by)
        order[at] = order[at][np.lexsort((place, *reversed(ranks), run))]
    diff = found.diff
    if order is not None:
        columns, diff = [rows.take(c, order) for c in columns], diff[order]
    every = np.arange(intervals.size)
    start, stop = interval.searchsorted(every), interval.searchsorted(every, "right")
    first = positions(code, start, stop, intervals.low)
    last = positions(code, start, stop, intervals.high, after=True)
    return ReadRows(Updates(columns, diff), interval, code, start, first, last, stop, cut)


def _is_short(read: ReadRows, reach: Reach, shape: RowShape, *, before: bool) -> Mask:
    """Returns a mask of the intervals with fewer rows on one side than requested."""
    n = len(read.start)
    short = np.zeros(n, bool)
    if not reach.counted:
        return short
    a, b = (read.start, read.first) if before else (read.last, read.stop)
    if reach.rows > 0:
        ends = np.concatenate(([0], read.rows.diff.cumsum()))
        short |= ends[b] - ends[a] < reach.rows
    if reach.peers > 0:
        starts = np.concatenate(([0], peer_starts(read, shape).cumsum()))
        # one of the peer groups at the end may be incomplete
        short |= starts[b] - starts[a] < reach.peers + 1
    for column, count in reach.filled:
        ends = np.concatenate(
            ([0], np.where(filled(read.rows, column), read.rows.diff, 0).cumsum())
        )
        short |= ends[b] - ends[a] < count
    return short


def peer_starts(read: ReadRows, shape: RowShape) -> Mask:
    """Returns a mask of the rows that begin a group of equal rows in the order of an interval."""
    if not len(read.interval):
        return np.zeros(0, bool)
    new = shape.changes_of(read.rows.columns, shape.types, [b.place for b in shape.by])
    new[1:] |= read.interval[1:] != read.interval[:-1]
    return new


def filled(updates: Updates, column: int) -> Mask:
    """Returns a mask of the rows in which a column is not null."""
    missing = rows.null_mask(updates.columns[column])
    return np.ones(len(updates.diff), bool) if missing is None else ~missing


def reached_codes(
    read: ReadRows, before: Reach, after: Reach, intervals: Intervals, shape: RowShape
) -> tuple[Hashes, Hashes]:
    """Returns the codes of the furthest rows at some distances from intervals."""
    low, high = intervals.low.copy(), intervals.high.copy()
    if not len(read.code):
        return low, high
    for size, n in _measures(read, before, shape):
        ends = np.concatenate(([0], size.cumsum()))
        at = ends.searchsorted(ends[read.first] - n, "right") - 1
        at = np.maximum(at, read.start)
        some = at < read.first
        low[some] = np.minimum(low[some], read.code[at[some]])
    for size, n in _measures(read, after, shape):
        ends = np.concatenate(([0], size.cumsum()))
        at = ends.searchsorted(ends[read.last] + n)
        at = np.minimum(at, read.stop)
        some = at > read.last
        high[some] = np.maximum(high[some], read.code[at[some] - 1])
    if before.peers >= 0 or after.peers >= 0:
        low, high = low & ~shape.peer_bits, high | shape.peer_bits
    return low, high


def _measures(read: ReadRows, reach: Reach, shape: RowShape) -> list[tuple[Index, int]]:
    """Returns for each kind of distance what a row adds to it, and the wanted distance."""
    found: list[tuple[Index, int]] = []
    if reach.rows > 0:
        found.append((read.rows.diff, reach.rows))
    if reach.peers > 0:
        found.append((peer_starts(read, shape).astype(np.int64), reach.peers))
    for column, n in reach.filled:
        found.append((np.where(filled(read.rows, column), read.rows.diff, 0), n))
    return found
