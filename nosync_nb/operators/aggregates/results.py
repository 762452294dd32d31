"""The column of an aggregate call, read from the slots of its groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import PAIRS
from nosync_nb.operators.aggregates import moments, totals
from nosync_nb.operators.aggregates.accumulators import Ints, Slots
from nosync_nb.operators.aggregates.plan import SPREADS, CallPlan, sum_kind
from nosync_nb.rows import Column

_TOTALS = {"sum": "sum", "try_sum": "sum", "avg": "avg", "try_avg": "avg"}
"""Functions that `group_totals` computes for many groups at once, as `sum` or `avg`."""


def aggregate_column(plan: CallPlan, slots: Slots, type_: str, n: int, stage: str) -> Column:
    """Returns the values of a call for `n` groups.

    Args:
        type_: of its first argument.

    Raises:
        ExpressionError: if a total does not fit the type of the result; names the stage.
    """
    function = plan.call.function
    if function == "count_star":
        return slots[0]
    count = slots.get(plan.slots["count"])
    count = np.zeros(n, np.int64) if count is None else count
    if function == "count":
        return count
    if function in _TOTALS:
        at_once = totals.group_totals(
            _TOTALS[function], slots, plan.slots.get("sum", 0), type_, plan.call.type, count
        )
        if at_once is not None:
            return at_once
    try:
        values = _values(plan, slots, type_, count)
    except ExpressionError as error:
        if not stage:
            raise
        raise ExpressionError(f"stage '{stage}': {error}", hint=error.hint) from None
    return totals.totals_column(values, plan.call.type)


def _values(plan: CallPlan, slots: Slots, type_: str, count: Ints) -> list[Any]:
    """The values of each group, None for a group without a value."""
    function, base = plan.call.function, plan.slots.get("sum", 0)
    if function == "sum":
        return totals.sum_column(slots, base, type_, plan.call.type, count)
    if function == "avg":
        return totals.mean_column(slots, base, type_, plan.call.type, count)
    if function in ("try_sum", "try_avg"):
        compute = totals.sum_column if function == "try_sum" else totals.mean_column
        return _each(compute, slots, base, type_, plan.call.type, count)
    if function in PAIRS:
        return moments.moments_of_pairs(slots, plan.slots, function, count)
    if function in ("bit_and", "bit_or", "bit_xor"):
        return totals.bits(slots, plan.slots["bits"], function, type_, count)
    base = plan.slots[sum_kind("doubles", type_)]
    if function in SPREADS:
        return totals.spread_column(slots, base, plan.slots["squares"], function, count)
    return moments.moments_of_numbers(slots, {**plan.slots, "doubles": base}, function, count)


def _each(
    compute: Any, slots: Slots, base: int, type_: str, result_type: str, count: Ints
) -> list[Any]:
    """Totals, null where they do not fit."""
    try:
        values: list[Any] = compute(slots, base, type_, result_type, count)
    except ExpressionError:
        if len(count) == 1:
            return [None]
    else:
        return values
    parts = []
    for i in range(len(count)):
        own = {slot: numbers[i : i + 1] for slot, numbers in slots.items()}
        parts += _each(compute, own, base, type_, result_type, count[i : i + 1])
    return parts
