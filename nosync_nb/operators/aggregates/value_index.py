"""Results of aggregates that read a value index: extremes, lists and holistic aggregates.

Spark leaves the order of the arrays of collect_list and collect_set open. Here they are ordered by
value and contain no null, so that equal groups have equal arrays.

Cost: an array is rebuilt from all values of its group whenever one of them changes. That is the
size of the result, which is written as well; a hot group is better served by other aggregates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.operators.aggregates import extremes
from nosync_nb.operators.aggregates.extremes import extreme
from nosync_nb.operators.aggregates.holistic import WHOLES, holistic_results
from nosync_nb.operators.aggregates.plan import CallPlan
from nosync_nb.operators.base import Step
from nosync_nb.operators.grouping import Groups, with_key_numbers
from nosync_nb.rows import Column, buffers
from nosync_nb.rows.array_ops import all_true
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Hashes, Index, Updates


def value_index_results(plan: CallPlan, counts: Index | None, groups: Groups, step: Step) -> Column:
    """Returns the result of a call for each group before the change, then for each one after it.

    Args:
        counts: the counts of the changed rows of the value index before the change, for a call with
            a trace of winners; the change of the winners is emitted.
    """
    trace, batch = step.state[plan.held], step.emitted[plan.held]
    if plan.winners >= 0:
        before = after = extremes.retained_winners(step.state[plan.winners], groups, step)
        if batch is not None:
            assert counts is not None
            there, greatest = counts + batch.diff > 0, plan.call.function.startswith("max")
            whole = trace.with_batch(batch)
            after = extremes.next_winners(before, batch, there, whole, groups, greatest, step)
            layout = step.state[plan.winners].layout
            step.emitted[plan.winners] = extremes.winners_change(layout, groups, before, after)
        columns = [_spread_values(w.has, w.values[-1], plan.call.type) for w in (before, after)]
    else:
        columns = [_index_result(plan, trace, groups, step)]
        columns.append(
            columns[0]
            if batch is None
            else _index_result(plan, trace.with_batch(batch), groups, step)
        )
    return rows.concat(columns, plan.call.type)


def _index_result(plan: CallPlan, trace: Trace, groups: Groups, step: Step) -> Column:
    """The result for each group, from a value index alone."""
    function = plan.call.function
    khash, keys = groups.khash, groups.keys
    if function in ("collect_list", "collect_set"):
        return collected_lists(trace, khash, keys, function == "collect_list", step)
    if function in WHOLES:
        return holistic_results(trace, khash, keys, plan.call, step)
    has, values = extreme(trace, khash, keys, function.startswith("max"), step)
    return _spread_values(has, values[-1], plan.call.type)


def _spread_values(has: npt.NDArray[np.bool_], column: Column, type_: str) -> Column:
    """Values at the positions where `has` is true, null elsewhere."""
    if all_true(has):
        return column
    filled = rows.concat([column, rows.full_null(type_, 1)], type_)
    place = np.where(has, has.cumsum() - 1, len(column))
    return rows.take(filled, place)


def collected_lists(
    trace: Trace, khash: Hashes, keys: Sequence[Column], copies: bool, step: Step
) -> Column:
    """Returns one array for each key, empty where there is no value.

    Args:
        trace: rows (key..., value) without null values.
        copies: True if a value appears in the array as often as its count, False: once.
    """
    n = len(khash)
    type_ = trace.layout.types[-1]
    matches = trace.lookup(khash, keys, (len(keys),))
    if matches is None:
        values, times = rows.empty(type_), np.zeros(n, np.int64)
    else:
        step.add_touched(len(matches.diff))
        held = with_key_numbers(Updates(matches.columns, matches.diff), matches.probe, (type_,))
        value, probe = held.columns[0], np.asarray(held.columns[1])
        order = rows.sort_indices([probe, value], ("bigint", type_))
        order = order[held.diff[order] > 0]
        count = held.diff[order] if copies else np.ones(len(order), np.int64)
        values = rows.take(value, order.repeat(count))
        times = np.zeros(n, np.int64)
        np.add.at(times, probe[order], count)
    offsets = np.zeros(n + 1, np.int32)
    times.cumsum(out=offsets[1:], dtype=np.int32)
    return pa.ListArray.from_arrays(buffers.arrow_from_numpy(offsets), rows.to_arrow(values, type_))
