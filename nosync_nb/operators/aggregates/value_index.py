"""What aggregates that look into a held trace give for each group: extremes and lists."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.operators.aggregates import extremes__winners
from nosync_nb.operators.aggregates.extremes import extreme
from nosync_nb.operators.aggregates.holistic import WHOLES, holistic_results
from nosync_nb.operators.aggregates.plan import CallPlan
from nosync_nb.operators.aggregates.value_index__lists import collected_lists
from nosync_nb.operators.base import Step
from nosync_nb.operators.grouping import Groups
from nosync_nb.rows import Column
from nosync_nb.rows.array_ops import all_true
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Index


def value_index_results(plan: CallPlan, counts: Index | None, groups: Groups, step: Step) -> Column:
    """The result of a call for each group before the change, then for each one after it.

    Args:
        counts: how often the rows of the held trace's change were there before it, for a call
            whose winners are kept; their change is emitted.
    """
    trace, batch = step.state[plan.held], step.emitted[plan.held]
    if plan.winners >= 0:
        before = after = extremes__winners.retained_winners(step.state[plan.winners], groups, step)
        if batch is not None:
            assert counts is not None
            there, greatest = counts + batch.diff > 0, plan.call.function.startswith("max")
            whole = trace.with_batch(batch)
            after = extremes__winners.next_winners(
                before, batch, there, whole, groups, greatest, step
            )
            layout = step.state[plan.winners].layout
            step.emitted[plan.winners] = extremes__winners.winners_change(
                layout, groups, before, after
            )
        columns = [_spread(w.has, w.values[-1], plan.call.type) for w in (before, after)]
    else:
        columns = [_look(plan, trace, groups, step)]
        columns.append(
            columns[0] if batch is None else _look(plan, trace.with_batch(batch), groups, step)
        )
    return rows.concat(columns, plan.call.type)


def _look(plan: CallPlan, trace: Trace, groups: Groups, step: Step) -> Column:
    """The result for each group, from a held trace alone."""
    function = plan.call.function
    khash, keys = groups.khash, groups.keys
    if function in ("collect_list", "collect_set"):
        return collected_lists(trace, khash, keys, function == "collect_list", step)
    if function in WHOLES:
        return holistic_results(trace, khash, keys, plan.call, step)
    has, values = extreme(trace, khash, keys, function.startswith("max"), step)
    return _spread(has, values[-1], plan.call.type)


def _spread(has: npt.NDArray[np.bool_], column: Column, type_: str) -> Column:
    """Values at the places where `has`, null elsewhere."""
    if all_true(has):
        return column
    filled = rows.concat([column, rows.full_null(type_, 1)], type_)
    place = np.where(has, has.cumsum() - 1, len(column))
    return rows.take(filled, place)
