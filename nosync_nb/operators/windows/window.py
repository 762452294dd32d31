"""window: values of a row that depend on the rows around it in the order of its group.

The rows of a group are ordered by a code, and exactly where codes are equal (ordering.py). Equal
rows are adjacent, and each copy is a row of its own. A row with a negative count is absent.

A change affects the rows whose functions read it: with `lag(x, 2)` the two rows after it, with
`ROWS 10 PRECEDING` ten, with `row_number` all rows after it. The kernel finds these intervals of
codes, computes their rows from the trace before the change and from the trace after it, and returns
the difference. Functions of all rows before a row, such as `row_number` or a running sum, take the
sum over the rows before the interval from prefixes.py. All functions of an operator share the rows
that are read.

If a change has no effect on the order, nor on the columns that such functions read, the rows after
it are not affected: their sums are the same.

Cost: O(layers) rows for each changed row, and the affected rows with the rows around them that
their functions read, for a group of any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nosync_nb import rows
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import Types, compile_aggregates, of_params
from nosync_nb.operators.base import Operator, Step, UpdateCost
from nosync_nb.operators.grouping import group_rows
from nosync_nb.operators.ordering import OrderColumn, order_bits, placed_order
from nosync_nb.operators.spec import (
    AdaptedPart,
    DefinitionPart,
    Key,
    LostColumnError,
    RemainingColumns,
    Spec,
    refuse_retyped,
)
from nosync_nb.operators.windows.calls import (
    OFFSETS,
    RANKS,
    Reach,
    WindowCall,
    WindowFrame,
    longest,
)
from nosync_nb.operators.windows.frames import FrameValues
from nosync_nb.operators.windows.heads import head_key, read_heads
from nosync_nb.operators.windows.intervals import FIRST, LAST, Intervals, Mask
from nosync_nb.operators.windows.lines import Lines, Outside
from nosync_nb.operators.windows.prefixes import Contributions, Slots, sums_outside
from nosync_nb.operators.windows.ranges import RangeBounds
from nosync_nb.operators.windows.reading import ReadRows, RowShape, reached_codes, read_rows
from nosync_nb.operators.windows.running import Extremes, RunningExtreme
from nosync_nb.rows import Column, Schema
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Hashes, Index, Layout, Updates, arrange, concat_updates
from nosync_nb.trace.stats import is_nonnegative

_MOST = 4
"""If more than one in `_MOST` rows changed, whole groups are computed."""

_NEAR = 16
"""The number of rows to read in place of a sum over them."""

_LARGE = 64
"""A group with more rows is worth a search for its extreme values."""

_SIGN = np.uint64(1 << 63)


class Windows(Operator):
    """Appends the results of window functions to each row.

    Args:
        schema: the columns of the input: those of the output, computed ones, and the order code.
        width: the number of columns that are output.
        keys: the positions of the grouping columns.
        by: the columns of the order.
        calls: the functions.
        ranges: the bounds of RANGE frames.
    """

    name = "window"

    def __init__(
        self,
        schema: Schema,
        width: int,
        keys: Sequence[int],
        by: Sequence[OrderColumn],
        calls: Sequence[WindowCall],
        ranges: RangeBounds,
    ) -> None:
        types = schema.types
        self.keys = self.output_key = tuple(keys)
        self.calls = tuple(calls)
        self.types = (*types[:width], *(call.type for call in calls))
        self.layouts = (Layout(types, self.keys, len(types) - 1),)
        bits = order_bits(types, by)
        peer_bits = np.uint64((1 << (64 - bits)) - 1)
        self.shape = RowShape(types, width, self.keys, tuple(by), peer_bits)
        self.ranges = ranges
        self.frames = FrameValues(schema, calls)
        self.heads = tuple(dict.fromkeys(head_key(call) for call in calls if call.headed))
        self.local = all(
            each.local
            for each in (
                *ranges.expressions,
                *(a for c in calls if c.aggregate is not None for a in c.aggregate.arguments),
            )
        )
        extents = [call.extent() for call in calls]
        self.extent = longest([e[0] for e in extents]), longest([e[1] for e in extents])
        held = [
            tuple(
                side._replace(end=side.end and not call.additive and not call.running)
                for side in extent
            )
            for call, extent in zip(calls, extents, strict=True)
        ]
        far = any(side.end for side in self.extent)
        self.update_cost = UpdateCost.PARTITIONS if far else UpdateCost.ROWS
        self.around = longest([e[0] for e in held]), longest([e[1] for e in held])
        ends = [c for c, e in zip(calls, extents, strict=True) if e[0].end or e[1].end]
        found = [RunningExtreme(c.aggregate, schema) for c in calls if c.running and c.aggregate]
        self.running = tuple({each.key: each for each in found}.values())
        self.near = (
            0 if not self.extent[0].end else _NEAR if not self.running else _LARGE,
            _NEAR if self.extent[1].end else 0,
        )
        self.only_running = all(call.running for call in ends)
        used = {b.place for b in by}.union(*(call.columns() for call in ends))
        self.moving = tuple(sorted(used))
        self.by_peers = bool(ends) or max(e.peers for e in self.extent) >= 0
        self.numbers_peers = any(call.function == "dense_rank" for call in calls)
        if self.numbers_peers:
            places = (*self.keys, *(b.place for b in by))
            peer_types = (*(types[i] for i in places), "bigint")
            self.peer_places = places
            key = tuple(range(len(self.keys)))
            self.state = (Layout(peer_types, key, len(peer_types) - 1),)
            columns = [(f"c{i}", t) for i, t in enumerate(peer_types)]
            self.peer_count = Contributions(None, Schema(columns))

    # -- one epoch -----------------------------------------------------------------------------

    def step(self, step: Step) -> Updates | None:
        delta = step.deltas[0]
        if delta is None or not len(delta.diff):
            return None
        assert isinstance(delta, Batch)
        step.add_touched(len(delta))
        traces = [
            None if trace is None or not trace.layers else trace
            for trace in (step.before[0], step.after[0])
        ]
        intervals = self._affected(delta, traces, step)
        lines = [None if t is None else self._lines(t, intervals, step) for t in traces]
        if self.numbers_peers:
            self._number_peers(lines, intervals, step)
        parts: list[Updates] = []
        for each, sign in zip(lines, (-1, 1), strict=True):
            if each is not None:
                parts.append(self._output(each, sign, step))
        found = concat_updates(parts, self.types)
        if len(parts) < 2:
            return found if found else None
        return arrange(Layout(self.types), found).updates

    def _output(self, lines: tuple[Lines, Slots], sign: int, step: Step) -> Updates:
        """Returns the rows of the output inside of the intervals."""
        own, totals = lines
        inside = own.inside()
        columns: list[Column] = [rows.take(c, inside) for c in own.columns[: self.shape.width]]
        for call in self.calls:
            if call.function in RANKS:
                columns.append(np.asarray(own.rank(call))[inside])
            elif call.function in OFFSETS:
                columns.append(rows.take(own.offset(call), inside))
            else:
                columns.append(self.frames.value(call, own, totals, inside, step))
        return Updates(columns, np.full(len(inside), sign, np.int64))

    # -- affected rows -------------------------------------------------------------------------

    def _affected(self, delta: Batch, traces: Sequence[Trace | None], step: Step) -> Intervals:
        """Returns the intervals of the rows that a change affects."""
        assert delta.code is not None
        n = len(delta)
        keys = [delta.columns[i] for i in self.keys]
        number, one = np.zeros(n, np.int64), np.zeros(1, np.int64)
        if keys:
            groups = group_rows(keys, [self.shape.types[i] for i in self.keys], n)
            sizes = np.diff(np.append(groups.starts, n))
            number[groups.order] = np.arange(len(sizes)).repeat(sizes)
            one = groups.order[groups.starts]
        intervals = Intervals(number, delta.khash, keys, delta.code, delta.code)
        if n * _MOST >= sum(t.rows_count for t in traces if t is not None):
            m = len(one)
            return intervals.take(one)._replace(low=np.full(m, FIRST), high=np.full(m, LAST))
        if self.by_peers:
            bits = self.shape.peer_bits
            intervals = intervals._replace(low=delta.code & ~bits, high=delta.code | bits)
        if self.ranges:
            intervals = intervals.widened(*self.ranges.reach(delta.updates, step))
        earlier, later = self.extent[1], self.extent[0]
        if earlier.end or later.end:
            moved = self._moved(delta, number, traces)
            if self.only_running and not earlier.end:
                moved &= self._with_other_extremes(intervals, traces, step)
            low = np.where(moved, FIRST, intervals.low) if earlier.end else intervals.low
            high = np.where(moved, LAST, intervals.high) if later.end else intervals.high
            intervals = intervals.widened(low, high)
        if self.heads:
            other = self._with_other_heads(intervals.take(one), traces, step)[number]
            low = np.where(other, FIRST, intervals.low)
            intervals = intervals.widened(low, np.where(other, LAST, intervals.high))
        intervals = intervals.joined()
        if earlier.counted or later.counted:
            reach = earlier._replace(end=False), later._replace(end=False)
            span = intervals.low, intervals.high
            wide = intervals
            for trace in traces:
                if trace is not None:
                    read = read_rows(trace, intervals, span, reach, self.shape, step)
                    wide = wide.widened(*reached_codes(read, *reach, intervals, self.shape))
            intervals = wide.joined()
        return intervals

    def _with_other_extremes(
        self, intervals: Intervals, traces: Sequence[Trace | None], step: Step
    ) -> Mask:
        """Returns a mask of the changes up to which extreme values differ after the change."""
        other = np.ones(intervals.size, bool)
        if not all(t is None or is_nonnegative(t) for t in traces):
            return other
        index = (_sizes(traces, intervals) > _LARGE).nonzero()[0]
        some = intervals.take(index)
        differ = np.zeros(len(index), bool)
        for each in self.running if len(index) else ():
            before, after = (
                None if t is None else each.before(t, some, some.high, step, inclusive=True)
                for t in traces
            )
            if before is None or after is None:
                return other
            differ |= before.there != after.there
            differ |= before.there & after.there & (before.codes != after.codes)
        other[index] = differ
        return other

    def _with_other_heads(
        self, groups: Intervals, traces: Sequence[Trace | None], step: Step
    ) -> Mask:
        """Returns a mask of the groups that have other heads after the change."""
        changed = np.zeros(groups.size, bool)
        for key in self.heads:
            before, after = (read_heads(t, groups, key, self.shape, step) for t in traces)
            changed |= before.differ(after, self.shape.types)
        return changed

    def _moved(self, delta: Batch, number: Index, traces: Sequence[Trace | None]) -> Mask:
        """Returns a mask of the changes in groups where sums over all rows may change.

        They do not change if the rows that were removed and inserted are equal by the order and in
        all columns that such functions read.
        """
        n = len(delta)
        moved = np.ones(n, bool)
        if not bool((delta.diff < 0).any()) or not all(
            t is None or is_nonnegative(t) for t in traces
        ):
            return moved
        types = [self.shape.types[i] for i in self.moving]
        columns = [*(delta.columns[i] for i in self.moving), number]
        left = arrange(Layout((*types, "bigint")), Updates(columns, delta.diff))
        changed = np.zeros(int(number.max()) + 1, bool)
        changed[np.asarray(left.columns[-1])] = True
        return changed[number]

    # -- lines ---------------------------------------------------------------------------------

    def _lines(self, trace: Trace, intervals: Intervals, step: Step) -> tuple[Lines, Slots]:
        """Returns the lines of intervals, with the sums over the rows outside of them."""
        span = intervals.low, intervals.high
        if self.ranges:
            span = self._span(trace, intervals, step)
        read = read_rows(trace, intervals, span, self.around, self.shape, step, near=self.near)
        sides = [self._outside(trace, intervals, read, number, step) for number in (0, 1)]
        extremes = self._extremes(trace, intervals, read, step)
        if extremes is None or any(side is None for side in sides):
            around = tuple(
                a._replace(end=a.end or e.end)
                for a, e in zip(self.around, self.extent, strict=True)
            )
            read = read_rows(trace, intervals, span, around, self.shape, step)  # type: ignore[arg-type]
            sides, extremes = [{}, {}], {}
        lines = Lines(read, self.shape, self.ranges, step)
        totals = self.frames.totals(lines, step)
        start, first, last, stop = lines.bounds
        n = intervals.size
        for side, (a, b) in zip(sides, ((start, first), (last, stop)), strict=True):
            assert side is not None
            cut = read.cut[0] if a is start else read.cut[1]
            for slot, sums in totals.items():
                if slot not in side:
                    side[slot] = np.zeros(n, np.int64)
                side[slot] += np.where(cut, 0, sums[b] - sums[a])
        before, after = sides
        assert before is not None
        assert after is not None
        heads = {}
        if self.heads and (read.cut[0].any() or read.cut[1].any()):
            heads = {k: read_heads(trace, intervals, k, self.shape, step) for k in self.heads}
        lines.complete(Outside(before, after, None, heads, extremes))
        return lines, totals

    def _outside(
        self, trace: Trace, intervals: Intervals, read: ReadRows, side: int, step: Step
    ) -> Slots | None:
        """Returns the sums over the unread rows on one side; None if they must be read."""
        index = read.cut[side].nonzero()[0]
        if not len(index) or not self.extent[side].end or self.around[side].end:
            return {}
        if not is_nonnegative(trace):
            return None
        what = self.frames.contributions
        return sums_outside(trace, intervals, index, what, step, after=side == 1)

    def _extremes(
        self, trace: Trace, intervals: Intervals, read: ReadRows, step: Step
    ) -> dict[tuple[str, str], Extremes] | None:
        """Returns the extreme values of the unread rows before intervals; None if unknown."""
        cut = read.cut[0]
        if not self.running or not cut.any() or self.around[0].end:
            return {}
        if not is_nonnegative(trace):
            return None
        bound = np.full(intervals.size, FIRST)  # no rows are before the first code
        some = (cut & (read.stop > read.start)).nonzero()[0]
        bound[some] = read.code[read.start[some]]
        found = {}
        for each in self.running:
            own = each.before(trace, intervals, bound, step, inclusive=False)
            if own is None:
                return None
            found[each.key] = own
        return found

    def _span(self, trace: Trace, intervals: Intervals, step: Step) -> tuple[Hashes, Hashes]:
        """Returns the codes that the RANGE frames of the rows in intervals contain."""
        low, high = intervals.low.copy(), intervals.high.copy()
        near = (low > FIRST) | (high < LAST)
        if near.any():
            span = intervals.low, intervals.high
            read = read_rows(trace, intervals, span, (Reach(), Reach()), self.shape, step)
            inside = np.arange(len(read.interval))
            least, most = self.ranges.span(read.rows.take(inside), step)
            np.minimum.at(low, read.interval, least)
            np.maximum.at(high, read.interval, most)
        return low, high

    # -- numbers of peers ----------------------------------------------------------------------

    def _number_peers(
        self, lines: Sequence[tuple[Lines, Slots] | None], intervals: Intervals, step: Step
    ) -> None:
        """Counts the groups of equal rows before intervals, and emits the change of their trace."""
        changes: list[Updates] = []
        for each, sign in zip(lines, (-1, 1), strict=True):
            if each is None:
                continue
            own = each[0]
            new = (own.new_peer & (own.at >= own.first) & (own.at < own.last)).nonzero()[0]
            code = self.shape.codes(own.columns)[new] & ~self.shape.peer_bits
            columns = [rows.take(own.columns[i], new) for i in self.peer_places]
            columns.append((code ^ _SIGN).view(np.int64))
            changes.append(Updates(columns, np.full(len(new), sign, np.int64)))
        layout = self.state[0]
        batch = arrange(layout, concat_updates(changes, layout.types))
        step.emitted[0] = batch if len(batch) else None
        traces = step.state[0], step.state[0].with_batch(batch) if len(batch) else step.state[0]
        for each, trace in zip(lines, traces, strict=True):
            if each is None:
                continue
            own = each[0]
            count = np.concatenate(([0], own.new_peer.cumsum()))
            start, first, _, _ = own.bounds
            whole = own.whole
            peers = np.where(whole, count[first] - count[start], 0)
            index = (~whole).nonzero()[0]
            if len(index):
                found = sums_outside(trace, intervals, index, self.peer_count, step, after=False)
                if found is None:
                    found = {0: self._peers_of_keys(trace, intervals, index, step)}
                peers = peers + found[0]
            own.complete(own.outside._replace(peers=peers))

    def _peers_of_keys(self, trace: Trace, intervals: Intervals, index: Index, step: Step) -> Index:
        """Counts peers before intervals in a trace in which keys have equal hashes."""
        total = np.zeros(intervals.size, np.int64)
        some = intervals.take(index)
        found = trace.lookup(some.khash, some.keys)
        if found is not None:
            step.add_touched(len(found.diff))
            code = np.asarray(found.columns[-1]).view(np.uint64) ^ _SIGN
            early = code < some.low[found.probe]
            np.add.at(total, index[found.probe[early]], found.diff[early])
        return total


def _sizes(traces: Sequence[Trace | None], intervals: Intervals) -> Index:
    """Returns the number of stored rows of the group of each interval."""
    sizes = np.zeros(intervals.size, np.int64)
    for trace in traces:
        for part in trace.parts() if trace is not None else ():
            sizes += part.khash.searchsorted(intervals.khash, "right")
            sizes -= part.khash.searchsorted(intervals.khash)
    return sizes


def _calls(params: Mapping[str, Any], schema: Schema, types: Types | None) -> list[WindowCall]:
    calls = []
    for each in params["calls"]:
        own = dict(each)
        sql = own.pop("sql", None)
        frame = WindowFrame(*own.pop("frame", WindowFrame("range", None, 0)))
        aggregate = None
        if sql is not None:
            made = compile_aggregates(
                {"value": sql}, schema, [], types=types, settings=of_params(params)
            )
            (aggregate,) = made.calls
        calls.append(WindowCall(**own, frame=frame, aggregate=aggregate))
    return calls


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    p, schema = part.params, part.inputs[0].schema
    by = [OrderColumn(*each) for each in p["by"]]
    calls = _calls(p, schema, types)
    frames = [call.frame for call in calls if call.framed]
    ranges = RangeBounds(schema, by, frames, types, of_params(p))
    return Windows(schema, p["width"], p["keys"], by, calls, ranges)


def _adapt_window(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires the columns of groups, orders and functions, and passes the others on."""
    refuse_retyped(inputs[0].lost)
    p, own = part.params, inputs[0]
    try:
        calls = _calls(p, part.inputs[0].schema, types)
    except NosyncError as error:
        raise LostColumnError(str(error)) from error
    for call in calls:
        if call.aggregate is not None:
            own.moved(place for each in call.aggregate.arguments for place in each.columns)
    moved = []
    for each in p["calls"]:
        now = dict(each)
        for name in ("argument", "default"):
            if name in now:
                (now[name],) = own.moved([now[name]])
        moved.append(now)
    lost = [place for place in own.lost if place < p["width"]]
    width = p["width"] - len(lost)
    keys, by = own.moved(p["keys"]), placed_order(p["by"], own)
    params = {**p, "keys": keys, "by": by, "width": width, "calls": moved}
    return AdaptedPart(params, {place: own.lost[place] for place in lost})


def _texts(part: DefinitionPart) -> list[str]:
    return [each["sql"] for each in part.params["calls"] if "sql" in each]


def _key(part: DefinitionPart, below: Sequence[Key]) -> Key:
    """Returns the key of the input, which still identifies its rows."""
    return below[0]


SPEC = Spec("window", _adapt_window, build=_build, expressions=_texts, key=_key)
