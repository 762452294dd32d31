"""Rows of intervals in their order, a line for each copy of a row, and their frames.

A line is known by its position among the lines that were read. The number of rows of its group
before them is added to positions in the group; it is 0 if the lines begin with the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.operators.base import Step
from nosync_nb.operators.ordering import OrderColumn, order_ranks
from nosync_nb.operators.windows.calls import WindowCall, WindowFrame
from nosync_nb.operators.windows.heads import HeadKey, Heads, head_key
from nosync_nb.operators.windows.intervals import Mask
from nosync_nb.operators.windows.prefixes import Slots
from nosync_nb.operators.windows.ranges import RangeBounds
from nosync_nb.operators.windows.reading import ReadRows, RowShape
from nosync_nb.operators.windows.running import Extremes
from nosync_nb.rows import Column
from nosync_nb.trace.batch import Hashes, Index, Updates
from nosync_nb.trace.stats import place_in


class Outside(NamedTuple):
    """The rows of groups outside of intervals, by interval.

    Attributes:
        before, after: the sums of slots over all rows before and after each interval.
        peers: the number of peer groups before each interval.
        heads: the heads of the group of each interval; empty if all rows were read.
        extremes: the extreme values of the rows before those that were read; empty if all were.
    """

    before: Slots
    after: Slots
    peers: Index | None
    heads: Mapping[HeadKey, Heads]
    extremes: Mapping[tuple[str, str], Extremes]


class Lines:
    """The lines of intervals.

    Attributes:
        columns: the columns of the lines.
        interval: the number of the interval of each line.
        start, stop: the first line that was read of each line's group, and the one after the last.
        first, last: the first line inside of each line's interval, and the one after the last.
        new_peer: a mask of the lines that begin a group of equal rows.
        bounds: start, first, last and stop by interval.
        whole: a mask of the intervals before which all rows of the group were read.
        outside: the rows of the groups outside of intervals.
    """

    def __init__(self, read: ReadRows, shape: RowShape, ranges: RangeBounds, step: Step) -> None:
        copies = read.rows.diff
        self.shape, self._ranges, self._step = shape, ranges, step
        self.interval, self.columns = read.interval, read.rows.columns
        bounds = (read.start, read.first, read.last, read.stop)
        if len(copies) and not (copies == 1).all():
            index = np.arange(len(copies)).repeat(copies)
            ends = np.concatenate(([0], copies.cumsum()))
            self.interval = read.interval[index]
            self.columns = [rows.take(column, index) for column in self.columns]
            bounds = tuple(ends[each] for each in bounds)  # type: ignore[assignment]
        self.count = n = len(self.interval)
        self.at = np.arange(n)
        self.bounds = bounds
        self.start, self.first, self.last, self.stop = (b[self.interval] for b in bounds)
        places = [b.place for b in shape.by]
        new = shape.changes_of(self.columns, shape.types, places) if n else np.zeros(0, bool)
        new[1:] |= self.interval[1:] != self.interval[:-1]
        self.new_peer = new
        starts = new.nonzero()[0]
        self._peer_starts = np.append(starts, n)
        self._peer = new.cumsum() - 1
        self.peer_start = self._peer_starts[self._peer] if n else self.at
        self.peer_stop = self._peer_starts[self._peer + 1] if n else self.at
        self.outside = Outside({}, {}, None, {}, {})
        self.whole = ~read.cut[0]

    def complete(self, outside: Outside) -> None:
        """Sets what is known of the rows outside of the intervals."""
        self.outside = outside

    def inside(self) -> Index:
        """Returns the positions of the lines inside of the intervals."""
        mask: Mask = (self.at >= self.first) & (self.at < self.last)
        return mask.nonzero()[0]

    def updates(self) -> Updates:
        """Returns the lines as updates."""
        return Updates(self.columns, np.ones(self.count, np.int64))

    # -- positions -----------------------------------------------------------------------------

    def rank(self, call: WindowCall) -> Column:
        """Returns a function of positions."""
        before = self.outside.before[0][self.interval]
        if call.function == "row_number":
            return (self.at - self.first + before + 1).astype(np.int32)
        rank = self.peer_start - self.first + before
        if call.function == "rank":
            return (rank + 1).astype(np.int32)
        if call.function == "dense_rank":
            assert self.outside.peers is not None
            count = np.concatenate(([0], self.new_peer.cumsum()))
            inside = count[self.at + 1] - count[self.first]
            return (self.outside.peers[self.interval] + inside).astype(np.int32)
        size = before + self.last - self.first + self.outside.after[0][self.interval]
        if call.function == "percent_rank":
            return rank / np.maximum(size - 1, 1)
        if call.function == "cume_dist":
            return (self.peer_stop - self.first + before) / size
        line = self.at - self.first + before
        small, larger = size // call.n, size % call.n
        inside = line // (small + 1)
        rest = larger + (line - larger * (small + 1)) // np.maximum(small, 1)
        return (np.where(line < larger * (small + 1), inside, rest) + 1).astype(np.int32)

    def offset(self, call: WindowCall) -> Column:
        """Returns lag or lead."""
        n = call.n if call.function == "lead" else -call.n
        if call.skips_nulls and n:
            at, there = self._filled_at(self.columns[call.argument], n)
        else:
            at = self.at + n
            there = (at >= self.start) & (at < self.stop)
        return self.chosen(call.argument, at, there, call.default)

    def _filled_at(self, column: Column, n: int) -> tuple[Index, Mask]:
        """Returns for each line that of the n-th value before or after it that is not null."""
        places = self.filled(column)
        if n > 0:
            index = places.searchsorted(self.at, "right") + n - 1
        else:
            index = places.searchsorted(self.at) + n
        there = (index >= 0) & (index < len(places))
        if not len(places):
            return self.at, there
        at = places[np.clip(index, 0, len(places) - 1)]
        return at, there & (at >= self.start) & (at < self.stop)

    def filled(self, column: Column) -> Index:
        """Returns the lines in which a column is not null."""
        missing = rows.null_mask(column)
        return self.at if missing is None else (~missing).nonzero()[0]

    def chosen(self, place: int, at: Index, there: Mask, default: int = -1) -> Column:
        """Returns the values of a column at other lines, and the default where there is none."""
        column, type_ = self.columns[place], self.shape.types[place]
        if there.all():
            return rows.take(column, at)
        other = rows.full_null(type_, self.count) if default < 0 else self.columns[default]
        return rows.take(
            rows.concat([column, other], type_), np.where(there, at, self.at + self.count)
        )

    def unread_head(self, call: WindowCall) -> tuple[Mask, Heads]:
        """Returns a mask of the lines whose value is that of their group's head, and the heads.

        The head of other lines is among the lines themselves.
        """
        heads = self.outside.heads[head_key(call)]
        start, _, _, stop = self.bounds
        every = ~self.whole
        if call.skips_nulls:
            some = (stop > start).nonzero()[0]
            begin = np.zeros(len(every), np.uint64)
            begin[some] = self._first_code(start[some])
            every = every & heads.there & (heads.code < begin)
        if call.frame.high is None:
            every = np.ones(len(every), bool)
        return every[self.interval], heads

    def _first_code(self, line: Index) -> Hashes:
        return self.shape.codes(self.columns)[line]

    # -- frames --------------------------------------------------------------------------------

    def frame(self, frame: WindowFrame) -> tuple[Index, Index]:
        """Returns the first line of each line's frame, and the one after its last."""
        low = self._bound(frame.unit, frame.low, last=False)
        high = self._bound(frame.unit, frame.high, last=True)
        return low, np.maximum(low, high)

    def _bound(self, unit: str, bound: int | str | None, *, last: bool) -> Index:
        if bound is None:
            return self.stop if last else self.start
        if isinstance(bound, str):
            return self._value_bound(bound, last=last)
        if unit == "rows":
            return np.clip(self.at + bound + last, self.start, self.stop)
        if not bound:
            return self.peer_stop if last else self.peer_start
        peer = np.clip(self._peer + bound + last, 0, len(self._peer_starts) - 1)
        at: Index = np.clip(self._peer_starts[peer], self.start, self.stop)
        return at

    def _value_bound(self, bound: str, *, last: bool) -> Index:
        """Returns the bound of a frame at a distance in values."""
        by = self.shape.by[0]
        type_ = self.shape.types[by.place]
        own = self.columns[by.place]
        try:
            wanted = self._ranges.bound(bound, self.updates(), self._step)
        except ExpressionError:
            # a row outside of the intervals, whose frame is not read, may be the one that fails
            inside = self.inside()
            some = self.updates().take(inside)
            found = self._ranges.bound(bound, some, self._step)
            both = rows.concat([found, rows.full_null(type_, 1)], type_)
            index = np.full(self.count, len(inside))
            index[inside] = np.arange(len(inside))
            wanted = rows.take(both, index)
        both = rows.concat([own, wanted], type_)
        rank = order_ranks([both], [type_], [OrderColumn(0, by.descending, by.nulls_first)])[0]
        values, limits = rank[: self.count], rank[self.count :]
        at = place_in(values, self.start, self.stop, limits, after=int(last))
        missing, beyond = rows.null_mask(own), rows.null_mask(wanted)
        if beyond is not None:  # the bound is outside of the type: before or after all values
            at = np.where(beyond, self._end_of_values(missing, self._ranges.follows(bound)), at)
        if missing is not None:
            at = np.where(missing, self.peer_stop if last else self.peer_start, at)
        return at

    def _end_of_values(self, missing: Mask | None, follows: bool) -> Index:
        """Returns the first line of each line's group that is not null, or the one after it."""
        present = np.ones(self.count, bool) if missing is None else ~missing
        count = np.concatenate(([0], present.cumsum()))
        size = count[self.stop] - count[self.start]
        nulls_first = self.shape.by[0].nulls_first
        begin = self.stop - size if nulls_first else self.start
        return begin + size if follows else begin
