"""Values of the rows of frames: picks, sums, extremes, and all other aggregates.

The contributions of lines to slots (aggregates/accumulators.py) are summed from the first line on,
and the slots of a frame are the difference of two of these sums. So a sum over a frame is exact, at
a cost that does not depend on the length of the frame. Minima and maxima come from a table of the
extremes of all stretches whose lengths are powers of two.

All other aggregates are evaluated over the rows of each distinct frame, as if it was a group, at a
cost in proportion to these rows. `collect_list` and `listagg` without an order of their own list
the rows in the order of the window, as in Spark; in a group, which has no order, they list them in
canonical order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.expressions import AggregateCall, Expression, compile_expression
from nosync_nb.operators.aggregates.aggregate import Aggregate
from nosync_nb.operators.aggregates.plan import AggregatePlan, CallPlan, plan_aggregates
from nosync_nb.operators.aggregates.results import aggregate_column
from nosync_nb.operators.base import Step
from nosync_nb.operators.linear import evaluate
from nosync_nb.operators.ordering import OrderColumn, order_ranks
from nosync_nb.operators.windows.calls import WindowCall
from nosync_nb.operators.windows.lines import Lines
from nosync_nb.operators.windows.prefixes import Contributions, Slots
from nosync_nb.operators.windows.running import RunningExtreme
from nosync_nb.rows import Column, Field, Schema, buffers
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import Index, Updates

AT_ONCE = 1 << 18
"""The number of rows of frames that are evaluated together."""


class FrameValues:
    """Computes picks and aggregates of the frames of lines.

    Args:
        schema: the columns of the lines.
        calls: all functions of the operator.
    """

    def __init__(self, schema: Schema, calls: Sequence[WindowCall]) -> None:
        self._schema = schema
        added = [c.aggregate for c in calls if c.aggregate is not None and c.additive]
        self._plan: AggregatePlan | None = plan_aggregates(added) if added else None
        plans: Sequence[CallPlan] = self._plan.plans if self._plan is not None else ()
        self._plans = {_identity(plan.call): plan for plan in plans}
        self.contributions = Contributions(self._plan, schema)

    def totals(self, lines: Lines, step: Step) -> Slots:
        """Returns for each slot the sums over all lines before each line, and over all lines."""
        if self._plan is None:
            return {0: np.arange(lines.count + 1)}
        each = self.contributions.sums(lines.updates(), lines.at, lines.count, step)
        return {slot: np.concatenate(([0], numbers.cumsum())) for slot, numbers in each.items()}

    def value(
        self, call: WindowCall, lines: Lines, totals: Slots, inside: Index, step: Step
    ) -> Column:
        """Returns the results of a function for the lines inside of the intervals."""
        if not len(inside):  # the last row of a group was removed
            return rows.empty(call.type)
        low, high = (bound[inside] for bound in lines.frame(call.frame))
        if call.aggregate is None:
            picked = self._picked(call, lines, low, high)
            if call.headed and lines.outside.heads:
                return self._with_heads(call, lines, inside, picked)
            return picked
        if call.additive:
            return self._added(call, lines, totals, inside, low, high, step)
        arguments = evaluate(call.aggregate.arguments, self._schema, lines.updates(), step)
        function = call.aggregate.function
        if function in ("min", "max"):
            found = _extreme(call.aggregate, arguments[0], lines.start[inside], low, high)
            return self._with_extremes(call, lines, inside, found) if call.running else found
        if not call.aggregate.distinct and (
            function == "collect_list"
            or (function == "listagg" and not call.aggregate.parameters[1])
        ):
            return _listed(call.aggregate, arguments[0], low, high)
        return _over_rows(call.aggregate, arguments, low, high, step)

    def _picked(self, call: WindowCall, lines: Lines, low: Index, high: Index) -> Column:
        column, type_ = lines.columns[call.argument], self._schema.types[call.argument]
        places = lines.filled(column) if call.skips_nulls else lines.at
        first, last = places.searchsorted(low), places.searchsorted(high)
        index = last - 1 if call.function == "last_value" else first + call.n - 1
        there = (index >= first) & (index < last)
        if not there.any():
            return rows.full_null(type_, len(low))
        at = places[np.clip(index, 0, len(places) - 1)]
        if there.all():
            return rows.take(column, at)
        both = rows.concat([column, rows.full_null(type_, 1)], type_)
        return rows.take(both, np.where(there, at, lines.count))

    def _with_extremes(
        self, call: WindowCall, lines: Lines, inside: Index, found: Column
    ) -> Column:
        """Takes the extreme values of the rows before the lines into account."""
        assert call.aggregate is not None
        running = RunningExtreme(call.aggregate, self._schema)
        unread = lines.outside.extremes.get(running.key)
        if unread is None:
            return found
        interval = lines.interval[inside]
        codes, present = running.codes(found)
        other = unread.there[interval] & (~present | (unread.codes[interval] > codes))
        both = rows.concat([found, unread.values], running.type)
        return rows.take(both, np.where(other, len(inside) + interval, np.arange(len(inside))))

    def _with_heads(self, call: WindowCall, lines: Lines, inside: Index, picked: Column) -> Column:
        """Replaces values by those of the heads of groups, where these are not among the lines."""
        unread, heads = lines.unread_head(call)
        if not unread.any():
            return picked
        type_ = self._schema.types[call.argument]
        both = rows.concat([picked, heads.columns[call.argument]], type_)
        n = len(inside)
        index = np.where(unread[inside], n + lines.interval[inside], np.arange(n))
        return rows.take(both, index)

    def _added(
        self,
        call: WindowCall,
        lines: Lines,
        totals: Slots,
        inside: Index,
        low: Index,
        high: Index,
        step: Step,
    ) -> Column:
        assert call.aggregate is not None
        assert self._plan is not None
        plan = self._plans[_identity(call.aggregate)]
        interval = lines.interval[inside]
        outside = lines.outside
        before, after = call.frame.low is None, call.frame.high is None
        if before:
            low = lines.first[inside]
        if after:
            high = lines.last[inside]
        slots: Slots = {}
        none = np.zeros(len(inside), np.int64)
        wanted = {0, *(s for s in totals if _belongs(plan, s))}
        for side, used in ((outside.before, before), (outside.after, after)):
            wanted.update(s for s in side if used and _belongs(plan, s))
        for slot in sorted(wanted):
            sums = totals.get(slot)
            numbers = none if sums is None else sums[high] - sums[low]
            if before and slot in outside.before:
                numbers = numbers + outside.before[slot][interval]
            if after and slot in outside.after:
                numbers = numbers + outside.after[slot][interval]
            slots[slot] = numbers
        type_ = "" if plan.argument < 0 else self._plan.arguments[plan.argument].type
        return aggregate_column(plan, slots, type_, len(inside), step.stage)


def _identity(call: AggregateCall) -> tuple[object, ...]:
    return (call.kernel, tuple(each.fingerprint for each in call.arguments))


def _belongs(plan: CallPlan, slot: int) -> bool:
    """Returns True if a slot may be one of a call's."""
    return any(base <= slot for base in plan.slots.values())


def _extreme(call: AggregateCall, column: Column, start: Index, low: Index, high: Index) -> Column:
    """Returns the minimum or maximum of each frame."""
    assert call.argument is not None
    type_, n = call.argument.type, len(column)
    rank = order_ranks([column], [type_], [OrderColumn(0, call.function == "max", False)])[0]
    values, place = np.unique(rank, return_inverse=True)
    least = place.astype(np.int64)
    missing = rows.null_mask(column)
    none = len(values)
    if missing is not None:
        least[missing] = none
    first = np.zeros(none + 1, np.int64)
    first[least] = np.arange(n)
    size = high - low
    found = np.full(len(low), none)
    some = size > 0
    if some.any() and (low[some] == start[some]).all():
        bounds = np.concatenate((np.unique(start), [n]))
        group = np.searchsorted(bounds, np.arange(n), "right")
        falling = least - group * (none + 1)
        running = np.minimum.accumulate(falling) + group * (none + 1)
        found[some] = running[high[some] - 1]
    elif some.any():
        level = np.zeros(len(low), np.int64)
        level[some] = np.frexp(size[some].astype(np.float64))[1] - 1
        table = least
        for k in range(int(level.max()) + 1):
            if k:
                half = 1 << (k - 1)
                table = np.minimum(table[:-half], table[half:])
            own = (some & (level == k)).nonzero()[0]
            found[own] = np.minimum(table[low[own]], table[high[own] - (1 << k)])
    both = rows.concat([column, rows.full_null(type_, 1)], type_)
    return rows.take(both, np.where(found < none, first[np.minimum(found, none - 1)], n))


def _listed(call: AggregateCall, column: Column, low: Index, high: Index) -> Column:
    """Returns the values of each frame in the order of its rows, as an array or as one text."""
    assert call.argument is not None
    type_ = call.argument.type
    missing = rows.null_mask(column)
    if missing is not None:
        present = (~missing).nonzero()[0]
        column = rows.take(column, present)
        low, high = present.searchsorted(low), present.searchsorted(high)
    count = high - low
    if call.function == "listagg":
        separator = call.parameters[0]
        values = rows.to_pylist(column, type_)
        texts = [
            separator.join(values[a:b]) if b > a else None
            for a, b in zip(low.tolist(), high.tolist(), strict=True)
        ]
        return rows.from_arrow(
            buffers.arrow_from_list(texts, rows.arrow_type(call.type)), call.type
        )
    values = rows.to_arrow(rows.take(column, hash_ranges(low, count)), type_)
    offsets = np.zeros(len(low) + 1, np.int32)
    count.cumsum(out=offsets[1:], dtype=np.int32)
    return pa.ListArray.from_arrays(buffers.arrow_from_numpy(offsets), values)


def _over_rows(
    call: AggregateCall, arguments: Sequence[Column], low: Index, high: Index, step: Step
) -> Column:
    """Returns the aggregate of each frame, computed from all of its rows."""
    fields = [Field("frame", "bigint")]
    fields += [Field(f"a{i}", each.type) for i, each in enumerate(call.arguments)]
    schema = Schema(fields)
    columns = [_column(f"a{i}", schema) for i in range(len(arguments))]
    own = call._replace(argument=columns[0], more=tuple(columns[1:]))
    width = int(high.max()) + 1 if len(high) else 1
    frames, number = np.unique(low * width + high, return_inverse=True)
    low, high = frames // width, frames % width
    count = np.maximum(high - low, 0)
    made = [
        _aggregated(own, schema, Updates([rows.empty(t) for t in schema.types], count[:0]), step)
    ]
    place = np.zeros(len(frames), np.int64)  # of the result over no rows
    filled = count.nonzero()[0]
    low, count = low[filled], count[filled]
    ends = count.cumsum()
    at, size = 0, 1
    while at < len(filled):
        base = int(ends[at - 1]) if at else 0
        stop = max(int(ends.searchsorted(base + AT_ONCE, "right")), at + 1)
        index = hash_ranges(low[at:stop], count[at:stop])
        step.add_touched(len(index))
        owner = np.arange(at, stop).repeat(count[at:stop])
        values = [owner, *(rows.take(column, index) for column in arguments)]
        found = _aggregated(own, schema, Updates(values, np.ones(len(index), np.int64)), step)
        place[filled[np.asarray(found[0])]] = size + np.arange(len(found[0]))
        made.append(found)
        size += len(found[0])
        at = stop
    column = rows.concat([each[-1] for each in made], call.type)
    return rows.take(column, place[number])


def _column(name: str, schema: Schema) -> Expression:
    return compile_expression(name, schema)


def _aggregated(call: AggregateCall, schema: Schema, updates: Updates, step: Step) -> list[Column]:
    """Returns the columns of a grouped aggregate; without rows, of one over no rows at all."""
    keys = [0] if updates else []
    inner = Schema([*(schema.fields[i] for i in keys), Field("_0", call.type)])
    operator = Aggregate(schema, keys, [call], [_column("_0", inner)], inner)
    own = Step(
        [updates],
        [None],
        [None],
        [Trace(layout) for layout in operator.state],
        stage=step.stage,
        first=True,
        evaluate=step.evaluate,
    )
    found = operator.step(own)
    return found.columns if found is not None else [rows.empty(t) for t in operator.types]
