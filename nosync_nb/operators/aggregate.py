"""group_by.agg: SQL aggregates of groups, maintained by accumulators and ordered traces.

A group whose accumulated row count is 0 disappears; grouping by nothing is one row that is always
there. For each group that an epoch touches the row before is retracted and the row after is
inserted, unless they are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.arrays import all_true, any_zero
from nosync_nb.batch import (
    Batch,
    Groups,
    Index,
    Layout,
    Updates,
    arrange,
    arrange_distinct,
    concat_updates,
    group,
)
from nosync_nb.expressions import AggregateCall, Expression
from nosync_nb.operators import accumulators
from nosync_nb.operators.accumulators import SLOTS_PER_SUM, Slots
from nosync_nb.operators.base import Operator, Step
from nosync_nb.operators.extremes import extreme
from nosync_nb.operators.linear import evaluate
from nosync_nb.rows import Column, Schema
from nosync_nb.trace import Trace

_SLOT = "smallint"
_FEW = 64


class _Plan(NamedTuple):
    """Where an aggregate call finds its numbers."""

    call: AggregateCall
    argument: int  # number of the argument expression, -1: none
    counts: int  # slot that counts the non-null arguments
    sums: int  # first slot of the sum, -1: none
    ordered: int  # number of the ordered trace, -1: none


class Aggregate(Operator):
    """Aggregates by key.

    Args:
        schema: the input.
        keys: positions of the key columns.
        calls: the aggregate calls; `outputs`: expressions over keys and call results, which have
            the schema `inner`.
    """

    name = "agg"

    def __init__(
        self,
        schema: Schema,
        keys: Sequence[int],
        calls: Sequence[AggregateCall],
        outputs: Sequence[Expression],
        inner: Schema,
    ) -> None:
        self.schema = schema
        self.keys = tuple(keys)
        self.outputs = tuple(outputs)
        self.inner = inner
        self.key_types = tuple(schema.types[i] for i in keys)
        self.types = (*self.key_types, *(o.type for o in outputs))
        self.global_row = not keys
        self.plans, self.arguments, self.ordered = _planned(calls)
        key = self.output_key = tuple(range(len(keys)))
        self.state = (
            Layout((*self.key_types, _SLOT), key),
            *(Layout((*self.key_types, t), key, len(keys)) for t in self.ordered.values()),
        )
        self.local = all(e.local for e in (*self.arguments, *outputs))

    def exchange(self) -> Layout:
        return Layout(self.schema.types, self.keys)

    def step(self, step: Step) -> Updates | None:
        delta = step.deltas[0]
        n = 0 if delta is None else len(delta.diff)
        if not n and not (self.global_row and step.first):
            return None
        step.touched += n
        if delta is None:
            updates = Updates([rows.empty(t) for t in self.schema.types], np.zeros(0, np.int64))
        else:
            updates = Updates(delta.columns, delta.diff)
        arguments = evaluate(self.arguments, self.schema, updates, step) if self.arguments else []
        keys = [updates.columns[i] for i in self.keys]
        groups = group(keys, self.key_types, n) if n else self._one_group()
        changes = self._contributions(arguments, updates, groups)
        step.emitted[0] = self._accumulated(groups, changes)
        for number, i in enumerate(self.ordered):
            step.emitted[number + 1] = self._arranged(arguments[i], keys, updates.diff, number)
        return self._output(groups, changes, step)

    def _one_group(self) -> Groups:
        one = np.zeros(1, np.int64)
        return Groups(np.zeros(0, np.int64), one, rows.hash_columns([], (), 1), [])

    def _contributions(self, arguments: list[Column], updates: Updates, groups: Groups) -> Slots:
        """The change of each slot of each group."""
        order, starts = groups.order, groups.starts
        changes: Slots = {}
        if not len(order):
            return {0: np.zeros(len(starts), np.int64)}
        diff = updates.diff[order]
        changes[0] = diff if len(starts) == len(diff) else np.add.reduceat(diff, starts)
        number = None
        done: set[int] = set()
        for plan in self.plans:
            if plan.argument < 0:
                continue
            if number is None:
                number = np.zeros(len(order), np.int64)
                number[starts[1:]] = 1
                number = number.cumsum()
            column = rows.take(arguments[plan.argument], order)
            null = rows.null_mask(column)
            if plan.counts not in done:
                done.add(plan.counts)
                counted = diff if null is None else np.where(null, 0, diff)
                changes[plan.counts] = np.add.reduceat(counted, starts)
            if plan.sums >= 0 and plan.sums not in done:
                done.add(plan.sums)
                self._sums(plan, column, null, diff, number, len(starts), changes)
        return changes

    def _sums(
        self,
        plan: _Plan,
        column: Column,
        null: npt.NDArray[np.bool_] | None,
        diff: npt.NDArray[np.int64],
        number: npt.NDArray[np.int64],
        groups_count: int,
        changes: Slots,
    ) -> None:
        """Adds the contributions of one summed argument to `changes`."""
        if null is not None and null.any():
            some = (~null).nonzero()[0]
            column, diff, number = rows.take(column, some), diff[some], number[some]
        type_ = self.arguments[plan.argument].type
        parts = accumulators.contributions(column, type_, len(diff))
        for offset, (index, values) in parts.items():
            added = np.zeros(groups_count, np.int64)
            np.add.at(added, number[index], values * diff[index])
            changes[plan.sums + offset] = added

    def _accumulated(self, groups: Groups, changes: Slots) -> Batch | None:
        """The change of the accumulator trace: a row (key, slot) with the number as its diff."""
        parts = []
        hashes = []
        for slot, numbers in changes.items():
            keys, khash = groups.keys, groups.khash
            if any_zero(numbers):
                index = numbers.nonzero()[0]
                if not len(index):
                    continue
                keys = [rows.take(k, index) for k in keys]
                khash, numbers = khash[index], numbers[index]
            slots = np.empty(len(numbers), np.int16)
            slots.fill(slot)
            parts.append(Updates([*keys, slots], numbers))
            hashes.append(khash)
        if not parts:
            return None
        layout = self.state[0]
        if len(parts) == 1:
            return arrange_distinct(layout, parts[0], hashes[0])
        khash = hashes[0] if len(hashes) == 1 else np.concatenate(hashes)
        return arrange(layout, concat_updates(parts, layout.types), khash=khash)

    def _arranged(
        self, argument: Column, keys: list[Column], diff: npt.NDArray[np.int64], number: int
    ) -> Batch | None:
        """The change of an ordered trace: the non-null values of its argument."""
        null = rows.null_mask(argument)
        updates = Updates([*keys, argument], diff)
        if null is not None and null.any():
            updates = updates.take((~null).nonzero()[0])
        return arrange(self.state[number + 1], updates) if updates else None

    def _output(self, groups: Groups, changes: Slots, step: Step) -> Updates | None:
        """Retracts the rows before and inserts the rows after."""
        n = len(groups.khash)
        before = _stored(step.state[0], groups, step, alone=not self.arguments)
        slots: Slots = {}
        for slot in before.keys() | changes.keys():
            old = before.get(slot)
            old = np.zeros(n, np.int64) if old is None else old
            change = changes.get(slot)
            slots[slot] = np.concatenate((old, old if change is None else old + change))
        if self.global_row:
            there = np.array([not step.first, True])
        else:
            there = slots[0] > 0
        extremes = self._extremes(groups, step) if self.ordered else {}
        computed = Updates(
            [
                *(rows.concat([k, k], t) for k, t in self._keyed(groups)),
                *(self._result(plan, slots, extremes, 2 * n) for plan in self.plans),
            ],
            there,
        )
        if all_true(there):
            values = evaluate(self.outputs, self.inner, computed, step)
            return self._difference(groups, there, None, values, n)
        index = there.nonzero()[0]
        if not len(index):
            return None  # groups that hold rows fewer than 0 times, before and after
        values = evaluate(self.outputs, self.inner, computed.take(index), step)
        place = np.zeros(2 * n, np.int64)
        place[index] = np.arange(len(index))
        return self._difference(groups, there, place, values, n)

    def _keyed(self, groups: Groups) -> list[tuple[Column, str]]:
        return list(zip(groups.keys, self.key_types, strict=True))

    def _difference(
        self,
        groups: Groups,
        there: npt.NDArray[np.bool_],
        place: npt.NDArray[np.int64] | None,
        values: list[Column],
        n: int,
    ) -> Updates | None:
        """The rows before with -1 and after with +1, without those that are the same."""
        if place is None:
            changed = self._unlike(values, n)
            old_rows = new_rows = changed.nonzero()[0]
        else:
            same = there[:n] & there[n:]
            for column, output in zip(values, self.outputs, strict=True):
                old, new = rows.take(column, place[:n]), rows.take(column, place[n:])
                same &= rows.equal(old, new, output.type)
            changed = ~same
            old_rows = (there[:n] & changed).nonzero()[0]
            new_rows = (there[n:] & changed).nonzero()[0]
        group_of = np.concatenate((old_rows, new_rows))
        if not len(group_of):
            return None
        diff = np.empty(len(group_of), np.int64)
        diff.fill(1)
        diff[: len(old_rows)] = -1
        index = np.concatenate((old_rows, new_rows + n))
        if place is not None:
            index = place[index]
        keys = [rows.take(k, group_of) for k in groups.keys]
        return Updates([*keys, *(rows.take(v, index) for v in values)], diff)

    def _unlike(self, values: list[Column], n: int) -> npt.NDArray[np.bool_]:
        """Where the row before, one of the first `n`, differs from the row after."""
        changed = None
        for column, output in zip(values, self.outputs, strict=True):
            same = rows.equal(rows.slice_(column, 0, n), rows.slice_(column, n, 2 * n), output.type)
            changed = ~same if changed is None else changed | ~same
        return np.zeros(n, bool) if changed is None else changed

    def _extremes(
        self, groups: Groups, step: Step
    ) -> dict[tuple[int, bool], list[tuple[npt.NDArray[np.bool_], Column]]]:
        """For each ordered trace and end that is asked for: the extremes before and after."""
        wanted = {(p.ordered, p.call.function == "max") for p in self.plans if p.ordered >= 0}
        result = {}
        for number, greatest in wanted:
            old = step.state[number + 1]
            emitted = step.emitted[number + 1]
            new = old if emitted is None else old.with_batch(emitted)
            result[number, greatest] = [
                extreme(trace, groups.khash, groups.keys, greatest, step) for trace in (old, new)
            ]
        return result

    def _result(self, plan: _Plan, slots: Slots, extremes: dict[Any, Any], n: int) -> Column:
        """The column of one aggregate call for groups before and after."""
        call = plan.call
        if plan.ordered >= 0:
            (has_old, old), (has_new, new) = extremes[plan.ordered, call.function == "max"]
            return _spread(np.concatenate((has_old, has_new)), (old, new), call.type)
        zero = np.zeros(n, np.int64)
        count = slots.get(plan.counts, zero)
        if plan.sums < 0:
            return count
        type_ = self.arguments[plan.argument].type
        if call.function == "sum":
            totals = accumulators.total(slots, plan.sums, type_, call.type, count)
        elif type_ in ("float", "double"):
            sums = accumulators.total(slots, plan.sums, type_, "double", count)
            totals = [None if s is None else s / c for s, c in zip(sums, count.tolist())]  # noqa: B905
        else:
            numbers = accumulators.whole(slots, plan.sums, type_, n)
            totals = [w / c if c else None for w, c in zip(numbers, count.tolist(), strict=True)]
        return _column(totals, call.type)


def _planned(
    calls: Sequence[AggregateCall],
) -> tuple[list[_Plan], list[Expression], dict[int, str]]:
    """Shares slots and ordered traces between calls over equal arguments."""
    arguments: list[Expression] = []
    numbers: dict[str, int] = {}
    ordered: dict[int, str] = {}
    plans = []
    for call in calls:
        if call.argument is None:
            plans.append(_Plan(call, -1, 0, -1, -1))
            continue
        number = numbers.setdefault(call.argument.fingerprint, len(arguments))
        if number == len(arguments):
            arguments.append(call.argument)
        count = 1 + number * SLOTS_PER_SUM
        if call.function in ("min", "max"):
            ordered.setdefault(number, call.argument.type)
            plans.append(_Plan(call, number, count, -1, list(ordered).index(number)))
        else:
            sums = -1 if call.function == "count" else count + 1
            plans.append(_Plan(call, number, count, sums, -1))
    return plans, arguments, ordered


def _stored(trace: Trace, groups: Groups, step: Step, *, alone: bool) -> Slots:
    """The numbers of groups as the accumulator trace holds them; `alone`: it has slot 0 only."""
    n = len(groups.khash)
    if alone:
        found = trace.lookup(groups.khash, groups.keys, ())
        if found is None:
            return {}
        step.touched += len(found.diff)
        return {0: _added(found.probe, found.diff, n)}
    slot_at = len(trace.layout.types) - 1
    found = trace.lookup(groups.khash, groups.keys, (slot_at,))
    if found is None:
        return {}
    step.touched += len(found.diff)
    slots = np.asarray(found.columns[0])
    result: Slots = {}
    for slot in sorted(set(slots.tolist())) if len(slots) < 1000 else np.unique(slots).tolist():
        index = (slots == slot).nonzero()[0]
        result[slot] = _added(found.probe[index], found.diff[index], n)
    return result


def _added(place: Index, numbers: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.int64]:
    """`n` sums of the numbers that belong to each place."""
    if len(place) <= _FEW:
        sums = [0] * n
        for at, number in zip(place.tolist(), numbers.tolist(), strict=True):
            sums[at] += number
        return np.array(sums, np.int64)
    added = np.zeros(n, np.int64)
    np.add.at(added, place, numbers)
    return added


def _column(values: list[Any], type_: str) -> Column:
    """A column of Python numbers or None."""
    if type_ == "bigint" and None not in values:
        return np.array(values, np.int64)
    if type_ == "double" and None not in values:
        return np.array(values, np.float64) + 0.0
    return rows.from_arrow(pa.array(values, rows.arrow_type(type_)), type_)


def _spread(has: npt.NDArray[np.bool_], values: Sequence[Column], type_: str) -> Column:
    """Values at the places where `has`, null elsewhere."""
    column = rows.concat(list(values), type_)
    if has.all():
        return column
    filled = rows.concat([column, rows.full_null(type_, 1)], type_)
    place = np.where(has, has.cumsum() - 1, len(column))
    return rows.take(filled, place)
