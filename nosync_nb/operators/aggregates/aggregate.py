"""group_by.agg: SQL aggregates of groups, maintained by accumulators and value indexes.

A group whose accumulated row count is 0 disappears; grouping by no columns returns one row, which
always exists. For each group that an epoch touches, the previous row is retracted and the new row
is inserted, unless both are equal.

The contributions of changed values are accumulated in the slots of their groups. Many values are
processed in blocks, because the intermediate arrays of a block fit into the processor's cache and
reuse the same memory. Without blocks they would have twenty times the size of the values, and most
of the time would be spent on allocating and clearing memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import (
    AggregateCall,
    Aggregation,
    Expression,
    Types,
    compile_aggregates,
    of_params,
)
from nosync_nb.operators.aggregates import accumulators, results
from nosync_nb.operators.aggregates.accumulators import (
    Ints,
    Slots,
    bins_of,
    contributions,
    numbers_of,
    pair_contributions,
    thirds,
)
from nosync_nb.operators.aggregates.extremes import appeared_values, groups_of_values
from nosync_nb.operators.aggregates.holistic import reads_whole_groups, value_index_results
from nosync_nb.operators.aggregates.plan import CallPlan, SlotFeed, plan_aggregates
from nosync_nb.operators.aggregates.slot_cache import CountSlotCache, ScalarCounts, ValueSlotCache
from nosync_nb.operators.base import Operator, Step, UpdateCost
from nosync_nb.operators.distinct import row_counts
from nosync_nb.operators.grouping import Groups, group_few, group_rows, key_values
from nosync_nb.operators.linear import evaluate
from nosync_nb.operators.spec import (
    AdaptedPart,
    DefinitionPart,
    LostColumnError,
    Places,
    RemainingColumns,
    Spec,
    group_key,
)
from nosync_nb.rows import Column, Schema, buffers
from nosync_nb.rows.array_ops import all_true
from nosync_nb.rows.count_arithmetic import CountError, add_at, add_runs, products, sums
from nosync_nb.rows.types import FIXED, FLOATS
from nosync_nb.trace.batch import (
    NO_HASHES,
    UNORDERED,
    Batch,
    Index,
    Layout,
    Updates,
    arrange,
    arrange_distinct,
)

AT_ONCE = 1 << 16
"""The number of values in a block."""

FEW = 16
"""The maximum number of doubles that are processed faster one by one."""

BINS_MAX = 1 << 18
"""The maximum number of bins, of all groups together, that are summed in one array."""

_SUM = {"count", "sum"}


class FeedValues(NamedTuple):
    """The values of a feed, without nulls, and the type of its first column."""

    feed: SlotFeed
    columns: Sequence[Column]
    type: str


def all_contributions(
    given: Sequence[FeedValues], diff: Ints, number: Ints, groups_count: int
) -> Slots:
    """Returns the contributions of several feeds of the same rows; see `feed_contributions`.

    Sums of doubles are processed together, because for a few hundred rows the numpy calls cost more
    than the work on the values.
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
    for each in others:
        slots |= feed_contributions(each, diff, number, groups_count)
    return slots


def feed_contributions(given: FeedValues, diff: Ints, number: Ints, groups_count: int) -> Slots:
    """Returns the contributions of the values, by slot and group, except the counts of values.

    Args:
        diff: the diff of each value.
        number: the number of the group of each value.

    Raises:
        CountError: if a sum of a group does not fit into 64 bits.
    """
    n = len(diff)
    if n <= AT_ONCE:
        return _added(given, diff, number, groups_count)
    total: Slots = {}
    try:
        for start in range(0, n, AT_ONCE):
            stop = min(start + AT_ONCE, n)
            here = number[start:stop]
            low, high = int(here.min()), int(here.max()) + 1
            columns = [rows.slice_(column, start, stop) for column in given.columns]
            block = given._replace(columns=columns)
            some = _added(block, diff[start:stop], here - low, high - low)
            for slot, numbers in some.items():
                if slot not in total:
                    total[slot] = np.zeros(groups_count, np.int64)
                total[slot][low:high] = sums(total[slot][low:high], numbers)
    except CountError:  # a partial sum overflows, but the whole sum may fit
        return _added(given, diff, number, groups_count)
    return total


def _added(given: FeedValues, diff: Ints, number: Ints, groups_count: int) -> Slots:
    feed, columns, type_ = given
    slots: Slots = {}
    for kind, base in feed.slots.items():
        if kind == "count":
            continue
        if kind == "sum" and type_ in FLOATS:
            if len(diff) <= FEW:
                few = _few_doubles(columns[0], diff, number, groups_count)
                slots |= {base + slot: sums_ for slot, sums_ in few.items()}
                continue
            sums_ = _sums_of_doubles([given], diff, number, groups_count)
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
    """Returns the contributions of sums of doubles.

    Returns None if a value is not finite, or if the exponents are far apart.
    """
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
    """Cuts a few doubles one by one; returns the contributions to each slot."""
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


Looks = dict[tuple[int, object], Column]
"""The results from value indexes, before and after the epoch, by number of the own trace and kernel
of the call."""

_TOGETHER = 1 << 12
"""The maximum number of groups whose slots are summed in one array. With more groups the additional
copy costs more than one numpy call for each slot."""


class Aggregate(Operator):
    """Computes aggregates by key.

    Args:
        schema: the schema of the input.
        keys: the positions of the key columns.
        calls: the aggregate calls.
        outputs: expressions over the keys and the results of the calls.
        inner: the schema of the keys and the results of the calls.
    """

    name = "agg"
    distinct = True
    combines = True

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
        places = plan_aggregates(calls)
        self.plans, self.arguments, self.held = places.plans, places.arguments, places.held
        self.winners = places.winners
        self.by_rows = tuple(f for f in places.feeds if f.held < 0)
        self.by_presence = tuple(f for f in places.feeds if f.held >= 0)
        self.output_key = tuple(range(len(keys)))
        self.state = places.layouts(self.key_types)
        self.slot_type = FIXED[self.state[0].types[-1]]
        self.local = all(e.local for e in (*self.arguments, *outputs))
        self.memo = ValueSlotCache if self.arguments else CountSlotCache
        picks = all(e.is_column for e in outputs)
        self.picked = tuple(e.columns[0] for e in outputs) if picks else None
        self.few = None
        if keys and self.picked is not None and not self.arguments:
            self.few = ScalarCounts(self.key_types, self.picked, self.slot_type)

        whole = any(reads_whole_groups(plan.call.function) for plan in self.plans)
        self.update_cost = UpdateCost.PARTITIONS if whole else UpdateCost.GROUPS

    def state_rows(self, inputs: Sequence[float], output: float) -> Sequence[float]:
        slots = {slot for feed in (*self.by_rows, *self.by_presence) for slot in feed.slots}
        numbers = output * (1 + len(slots))
        return [numbers, *(inputs[0] for _ in self.held), *(output for _ in self.winners)]

    def exchange(self) -> Layout:
        return Layout(self.schema.types, self.keys)

    def used(self, port: int) -> frozenset[int]:
        arguments = {place for argument in self.arguments for place in argument.columns}
        return frozenset({*self.keys, *arguments})

    def step(self, step: Step) -> Updates | None:
        delta = step.deltas[0]
        n = 0 if delta is None else len(delta.diff)
        if not n and not (self.global_row and step.first):
            return None
        step.add_touched(n)
        if delta is None:
            updates = Updates([rows.empty(t) for t in self.schema.types], np.zeros(0, np.int64))
        else:
            updates = delta if isinstance(delta, Updates) else delta.updates
        arguments = evaluate(self.arguments, self.schema, updates, step) if self.arguments else []
        keys = [updates.columns[i] for i in self.keys]
        if self.few is not None and step.memo is not None:
            values = key_values(keys, self.key_types, n)
            if values is not None:
                return self.few.step(values, keys, updates.diff, step)
        groups = None
        if step.memo is not None and not self.held:
            groups = group_few(keys, self.key_types, n)
        if groups is None:
            groups = group_rows(keys, self.key_types, n) if n else self._one_group()
        changes = self._contributions(arguments, updates, groups)
        looks: Looks = {}
        if self.held:
            for number, held in enumerate(self.held, 1):
                values = [arguments[i] for i in held.arguments]
                step.emitted[number] = self._index_change(values, keys, updates.diff, number)
            looks = self._index_results(groups, changes, step)
        step.emitted[0] = self._accumulated(groups, changes)
        return self._output(groups, changes, looks, step)

    def _one_group(self) -> Groups:
        one = np.zeros(1, np.int64)
        return Groups(np.zeros(0, np.int64), one, [])

    def _contributions(self, arguments: list[Column], updates: Updates, groups: Groups) -> Slots:
        """Returns the change of each slot, for each group."""
        order, starts = groups.order, groups.starts
        changes: Slots = {}
        if not len(order):
            return {0: np.zeros(len(starts), np.int64)}
        diff = updates.diff[order]
        changes[0] = diff if len(starts) == len(diff) else add_runs(diff, starts)
        if not self.by_rows:
            return changes
        number = np.zeros(len(order), np.int64)
        number[starts[1:]] = 1
        number = number.cumsum()
        whole: list[FeedValues] = []
        for feed in self.by_rows:
            type_ = self.arguments[feed.argument].type
            columns = [rows.take(arguments[i], order) for i in feed.arguments]
            null = _union(map(rows.null_mask, columns))
            counted = diff if null is None else np.where(null, 0, diff)
            changes[feed.slots["count"]] = add_runs(counted, starts)
            if len(feed.slots) > 1 and null is not None:
                some = (~null).nonzero()[0]
                columns = [rows.take(column, some) for column in columns]
                given = FeedValues(feed, columns, type_)
                changes |= feed_contributions(given, diff[some], number[some], len(starts))
            elif len(feed.slots) > 1:
                whole.append(FeedValues(feed, columns, type_))
        return changes | all_contributions(whole, diff, number, len(starts))

    def _index_results(self, groups: Groups, changes: Slots, step: Step) -> Looks:
        """Returns the results from the value indexes, before and after the epoch.

        Also adds the contributions of value indexes to `changes`.
        """
        counted: dict[int, npt.NDArray[np.int64]] = {}
        for number in {*(f.held for f in self.by_presence), *self.winners}:
            batch = step.emitted[number]
            if batch is not None:
                counted[number] = row_counts(step.state[number], batch, step)
        for feed in self.by_presence:
            if feed.held in counted:
                self._add_transitions(feed, counted[feed.held], groups, changes, step)
        result: Looks = {}
        for plan in self.plans:
            which = (plan.held, plan.call.kernel)
            if plan.held >= 0 and which not in result:
                result[which] = value_index_results(plan, counted.get(plan.held), groups, step)
        return result

    def _add_transitions(
        self,
        feed: SlotFeed,
        before: npt.NDArray[np.int64],
        groups: Groups,
        changes: Slots,
        step: Step,
    ) -> None:
        """Adds to `changes` the contributions of values that appear or disappear.

        Args:
            before: the previous counts of the changed rows of the value index.
        """
        batch = step.emitted[feed.held]
        assert batch is not None
        diff = appeared_values(before, batch)
        index = diff.nonzero()[0]
        number, diff = groups_of_values(groups, batch, self.key_types)[index], diff[index]
        count = np.zeros(len(groups.khash), np.int64)
        add_at(count, number, diff)
        changes[feed.slots["count"]] = count
        if len(feed.slots) > 1:
            places = [self.held[feed.held - 1].arguments.index(i) for i in feed.arguments]
            columns = [rows.take(batch.columns[len(self.keys) + place], index) for place in places]
            type_ = self.arguments[feed.argument].type
            given = FeedValues(feed, columns, type_)
            changes |= feed_contributions(given, diff, number, len(count))

    def _accumulated(self, groups: Groups, changes: Slots) -> Batch | None:
        """Returns the change of the accumulator trace: rows (key, slot) with numbers as diffs."""
        numbers = np.concatenate([*changes.values()])
        at = numbers.nonzero()[0]
        if not len(at):
            return None
        n, slots, layout = len(groups), np.array([*changes], self.slot_type), self.state[0]
        used = np.count_nonzero(numbers.reshape(-1, n), axis=1)
        owner = at - (np.arange(len(slots)) * n).repeat(used)
        columns = [*(rows.take(key, owner) for key in groups.keys), slots.repeat(used)]
        change = Updates(columns, numbers[at])
        if groups.values is not None:  # a few distinct rows, which can be sorted later
            return Batch(UNORDERED, columns, NO_HASHES, NO_HASHES, change.diff)
        khash = groups.khash[owner]
        if len(slots) == 1:
            return arrange_distinct(layout, change, khash)
        return arrange(layout, change, khash=khash)

    def _index_change(
        self,
        values: list[Column],
        keys: list[Column],
        diff: npt.NDArray[np.int64],
        number: int,
    ) -> Batch | None:
        """Returns the change of a value index, without rows that have a null required value."""
        updates = Updates([*keys, *values], diff)
        keep = None
        for value in values[: self.held[number - 1].required]:
            null = rows.null_mask(value)
            if null is not None:
                keep = ~null if keep is None else keep & ~null
        if keep is not None:
            updates = updates.take(keep.nonzero()[0])
        return arrange(self.state[number], updates) if updates else None

    def _stored(self, groups: Groups, step: Step) -> Slots:
        """Returns the numbers of groups before this epoch, by slot."""

        def read_slots(index: Index | None) -> Slots:
            khash, keys = groups.khash, groups.keys
            if index is not None and len(index) < len(khash):
                khash, keys = khash[index], [rows.take(k, index) for k in keys]
            return accumulators.stored(step.state[0], khash, keys, step, alone=alone)

        alone = not self.arguments
        return read_slots(None) if step.memo is None else step.memo.stored(groups, read_slots)

    def _output(self, groups: Groups, changes: Slots, looks: Looks, step: Step) -> Updates | None:
        """Returns the change of the output: retracts previous rows and inserts new ones.

        Args:
            looks: the results from value indexes.
        """
        n = len(groups)
        before = self._stored(groups, step)
        slots = _before_and_after(before, changes, n)
        if step.memo is not None:
            step.memo.keep(slots, n)
        if self.global_row:
            there = np.array([not step.first, True])
        else:
            there = slots[0] > 0
        index = None if all_true(there) else there.nonzero()[0]
        keys = [rows.concat([k, k], t) for k, t in zip(groups.keys, self.key_types, strict=True)]
        if index is not None:
            if not len(index):
                return None  # groups with negative counts, before and after
            keys = [rows.take(k, index) for k in keys]
            slots = {slot: numbers[index] for slot, numbers in slots.items()}
            looks = {which: rows.take(column, index) for which, column in looks.items()}
        m = 2 * n if index is None else len(index)
        columns = [*keys, *(self._result(p, slots, looks, m, step.stage) for p in self.plans)]
        if self.picked is not None:
            values = [columns[i] for i in self.picked]
        else:
            computed = Updates(columns, there if index is None else there[index])
            values = evaluate(self.outputs, self.inner, computed, step)
        place = None
        if index is not None:
            place = np.zeros(2 * n, np.int64)
            place[index] = np.arange(m)
        return self._difference(groups, keys, there, place, values, n)

    def _result(self, plan: CallPlan, slots: Slots, looks: Looks, n: int, stage: str) -> Column:
        """Returns the results of one aggregate call for `n` groups."""
        if plan.held >= 0:
            return looks[plan.held, plan.call.kernel]
        type_ = "" if plan.argument < 0 else self.arguments[plan.argument].type
        return results.aggregate_column(plan, slots, type_, n, stage)

    def _difference(
        self,
        groups: Groups,
        keys: list[Column],
        there: npt.NDArray[np.bool_],
        place: npt.NDArray[np.int64] | None,
        values: list[Column],
        n: int,
    ) -> Updates | None:
        """Returns the previous rows with diff -1 and the new ones with 1, without equal rows.

        Args:
            keys: the keys of the previous rows, followed by those of the new rows.
            there: a mask of the groups that exist before the epoch, followed by one for after it.
            place: the positions of these groups in `values`; None if all groups exist.
            values: the output columns after the keys.
        """
        if place is None:
            changed = self._differing_groups(values, n)
            if all_true(changed):
                return Updates([*keys, *values], _signs(n))
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

    def _differing_groups(self, values: list[Column], n: int) -> npt.NDArray[np.bool_]:
        """Returns a mask of the groups whose previous row (0 to n - 1) differs from the new row."""
        changed = None
        for column, output in zip(values, self.outputs, strict=True):
            same = rows.equal(rows.slice_(column, 0, n), rows.slice_(column, n, 2 * n), output.type)
            changed = ~same if changed is None else changed | ~same
        return np.zeros(n, bool) if changed is None else changed


def _before_and_after(before: Slots, changes: Slots, n: int) -> Slots:
    """Returns, by slot, the numbers of `n` groups before an epoch, followed by those after it."""
    every = {**before, **changes}
    if n > _TOGETHER:
        none = np.zeros(n, np.int64)
        olds = {slot: before.get(slot, none) for slot in every}
        return {s: np.concatenate((o, sums(o, changes.get(s, none)))) for s, o in olds.items()}
    both = np.zeros((2, len(every), n), np.int64)
    for given, there in zip((before, changes), both, strict=True):
        for number, slot in enumerate(every):
            if slot in given:
                there[number] = given[slot]
    old, change = both
    new = sums(old.ravel(), change.ravel()).reshape(old.shape)
    return dict(zip(every, np.concatenate((old, new), axis=1), strict=True))


def _union(masks: Iterable[npt.NDArray[np.bool_] | None]) -> npt.NDArray[np.bool_] | None:
    """Returns the union of masks; None if there is no mask."""
    some = [mask for mask in masks if mask is not None]
    return reduce(or_, some) if some else None


@lru_cache(maxsize=128)
def _signs(n: int) -> npt.NDArray[np.int64]:
    """Returns -1 for each of `n` retracted rows, followed by 1 for each inserted row."""
    signs = np.repeat(np.array([-1, 1]), n)
    signs.setflags(write=False)
    return signs


def _aggregation(part: DefinitionPart, types: Types | None) -> Aggregation:
    schema = part.inputs[0].schema
    keys = [schema.names[i] for i in part.params["keys"]]
    named, settings = part.params["named"], of_params(part.params)
    return compile_aggregates(named, schema, keys, types=types, settings=settings)


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    made = _aggregation(part, types)
    schema, keys = part.inputs[0].schema, part.params["keys"]
    return Aggregate(schema, keys, made.calls, made.outputs, made.inner)


def _adapt_aggregate(
    part: DefinitionPart, inputs: Sequence[RemainingColumns], types: Types | None
) -> AdaptedPart:
    """Requires the key columns and the columns of all aggregates."""
    keys = inputs[0].moved(part.params["keys"])
    try:
        calls = _aggregation(part, types).calls
    except NosyncError as error:
        raise LostColumnError(str(error)) from error
    for argument in (argument for call in calls for argument in call.arguments):
        inputs[0].moved(argument.columns)
    return AdaptedPart({**part.params, "keys": keys}, {})


def _reads(part: DefinitionPart, wanted: Places, types: Types | None) -> Sequence[Places]:
    """Returns the columns of keys and aggregates, because an unrequested sum may overflow too."""
    arguments = (each for call in _aggregation(part, types).calls for each in call.arguments)
    return [frozenset(part.params["keys"]).union(*(each.columns for each in arguments))]


SPEC = Spec(
    "aggregate",
    _adapt_aggregate,
    build=_build,
    expressions=lambda part: part.params["named"].values(),
    key=group_key,
    reads=_reads,
)
