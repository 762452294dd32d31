"""Holistic aggregates: percentiles, the most frequent value, concatenated texts, products.

A kernel receives all current values of a group with their counts, in canonical order or in the
order of the call. The result depends only on these, and not on the history of the group.

Cost: O(n log n) for the n distinct values of a group, whenever one of them changes. For a group of
millions of different numbers that changes often, additive aggregates are the better choice.

The module also computes the other results of value indexes: extremes and lists. Spark does not
define the order of the arrays of collect_list and collect_set. Here they are ordered by value and
contain no null, so that equal groups have equal arrays.

Cost: an array is rebuilt from all values of its group whenever one of them changes. This is
proportional to the size of the result, which is written as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import AggregateCall
from nosync_nb.operators.aggregates import extremes
from nosync_nb.operators.aggregates.extremes import extreme
from nosync_nb.operators.aggregates.plan import CallPlan
from nosync_nb.operators.aggregates.results import quotient
from nosync_nb.operators.base import Step
from nosync_nb.operators.grouping import Groups, with_key_numbers
from nosync_nb.rows import Column, buffers
from nosync_nb.rows.array_ops import all_true
from nosync_nb.rows.order import ordered
from nosync_nb.rows.types import FLOATS, INTEGERS
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Hashes, Index, Updates

Values: TypeAlias = Sequence[tuple[Any, ...]]
Counts: TypeAlias = Sequence[int]


def holistic_results(
    trace: Trace, khash: Hashes, keys: Sequence[Column], call: AggregateCall, step: Step
) -> Column:
    """Returns the result of a call for each key; null for a key without values.

    Args:
        trace: the value index, with rows (key..., argument...).
        khash, keys: the keys and their hashes.
    """
    n, own = len(khash), len(keys)
    types = trace.layout.types[own:]
    matches = trace.lookup(khash, keys, range(own, len(trace.layout.types)))
    if matches is None:
        return rows.full_null(call.type, n)
    step.add_touched(len(matches.diff))
    held = with_key_numbers(Updates(matches.columns, matches.diff), matches.probe, types)
    there = (held.diff > 0).nonzero()[0]
    *values, probe = [rows.take(column, there) for column in held.columns]
    places = call.parameters[1] if call.function == "listagg" else ()
    by = [(0, False), *((1 + place, descending) for place, descending in places)]
    order = ordered([probe, *values], ("bigint", *types), by)
    values = [rows.take(column, order) for column in values]
    counts = np.ones(len(order), np.int64) if call.distinct else held.diff[there][order]
    starts = np.asarray(probe)[order].searchsorted(np.arange(n + 1))
    kernel = _PICKS.get(call.function)
    if kernel is not None:
        return _values_of_group(kernel, values[0], counts, starts, call)
    listed = list(zip(*map(_python, values, types), strict=True))
    results = [
        _KERNELS[call.function](listed[a:b], counts[a:b].tolist(), *call.parameters)
        if a < b
        else None
        for a, b in zip(starts.tolist(), starts[1:].tolist(), strict=False)
    ]
    return rows.from_arrow(buffers.arrow_from_list(results, rows.arrow_type(call.type)), call.type)


def _python(column: Column, type_: str) -> list[Any]:
    """Returns the values as Python objects; None for types that the kernels here do not read."""
    if type_ in ("string", "binary", *INTEGERS, *FLOATS) or type_.startswith("decimal"):
        return rows.to_pylist(column, type_)
    return [None] * len(column)


def _values_of_group(
    kernel: Callable[..., list[int]],
    values: Column,
    counts: Any,
    starts: Any,
    call: AggregateCall,
) -> Column:
    """Returns results that are values of the group, taken at the positions of a kernel."""
    places: list[int] = []
    times: list[int] = []
    for a, b in zip(starts.tolist(), starts[1:].tolist(), strict=False):
        own = [a + i for i in kernel(counts[a:b].tolist(), *call.parameters)] if a < b else []
        places += own
        times.append(len(own))
    if call.type.startswith("array<") and call.function == "approx_percentile":
        return _arrays(rows.take(values, np.array(places, np.int64)), times, call)
    nothing = rows.full_null(call.type, 1)
    filled = rows.concat([values, nothing], call.type)
    by_group = iter(places)
    at = [next(by_group) if some else len(values) for some in times]
    return rows.take(filled, np.array(at, np.int64))


def _arrays(values: Column, times: list[int], call: AggregateCall) -> Column:
    """Returns one array of `times[i]` values for each group i; null for a group without values."""
    offsets = np.zeros(len(times) + 1, np.int32)
    np.cumsum(times, out=offsets[1:])
    mask = pa.array([not some for some in times])
    inner = rows.to_arrow(values, call.type.removeprefix("array<").removesuffix(">"))
    arrays = pa.ListArray.from_arrays(buffers.arrow_from_numpy(offsets), inner, mask=mask)
    return rows.from_arrow(arrays, call.type)


def _most_frequent(counts: Counts, descending: bool) -> list[int]:
    """Returns the position of the most frequent value; of several, the first (descending: last)."""
    most = max(counts)
    if not descending:
        return [counts.index(most)]
    return [len(counts) - 1 - counts[::-1].index(most)]


def _at_shares(counts: Counts, shares: Sequence[float], several: bool) -> list[int]:
    """Returns for each share the position of the first value that covers it in the group."""
    ends = list(accumulate(counts))
    return [_position_of(ends, max(math.ceil(share * ends[-1]), 1)) for share in shares]


def _position_of(ends: Sequence[int], number: int) -> int:
    """Returns the position of the value with a rank from 1, given the cumulated counts."""
    return int(np.searchsorted(ends, number))


def _percentile(
    values: Values,
    counts: Counts,
    way: str,
    descending: bool,
    shares: Sequence[float],
    several: bool,
) -> Any:
    """Returns percentiles: interpolated between two values, or the first that covers the share."""
    if len(values[0]) > 1:
        counts = _weighed(values, counts)
        values = [v for v, c in zip(values, counts, strict=True) if c]
        counts = [c for c in counts if c]
        if not values:
            return None
    numbers = [float(v[0]) for v in values]
    if descending:
        numbers, counts = numbers[::-1], counts[::-1]
    ends = list(accumulate(counts))
    compute = _interpolated if way == "between" else _at
    percentiles = [compute(numbers, ends, share) for share in shares]
    return percentiles if several else percentiles[0]


def _weighed(values: Values, counts: Counts) -> list[int]:
    weighed = [v[1] * c for v, c in zip(values, counts, strict=True)]
    if min(weighed) < 0:
        raise ExpressionError(
            "[NEGATIVE_VALUES_IN_FREQUENCY_EXPRESSION] percentile: a frequency is below 0",
            hint="filter out the rows with negative frequencies",
        )
    return weighed


def _interpolated(numbers: Sequence[float], ends: Sequence[int], share: float) -> float:
    position = (ends[-1] - 1) * share
    below, above = math.floor(position), math.ceil(position)
    low = numbers[_position_of(ends, below + 1)]
    if above == below:
        return low
    high = numbers[_position_of(ends, above + 1)]
    if low == high:
        return low
    return (above - position) * low + (position - below) * high


def _at(numbers: Sequence[float], ends: Sequence[int], share: float) -> float:
    return numbers[_position_of(ends, max(math.ceil(share * ends[-1]), 1))]


def _joined(values: Values, counts: Counts, separator: Any, places: Any) -> Any:
    """Concatenates the texts or byte strings with a separator."""
    return separator.join([v[0] for v, c in zip(values, counts, strict=True) for _ in range(c)])


def _product(values: Values, counts: Counts) -> float:
    """Returns the product of doubles, rounded once; infinities and NaN follow IEEE 754."""
    numbers = [float(v[0]) for v in values]
    if not all(map(math.isfinite, numbers)):
        if 0.0 in numbers or any(map(math.isnan, numbers)):
            return math.nan
        negative = sum(c for v, c in zip(numbers, counts, strict=True) if v < 0)
        return -math.inf if negative % 2 else math.inf
    above, below = [], 0
    for v, c in zip(numbers, counts, strict=True):
        mantissa, exponent = math.frexp(v)
        above.append(int(math.ldexp(mantissa, 53)) ** c)
        below += (exponent - 53) * c
    exact = _multiplied(above)
    shift = max(abs(exact).bit_length() - 64, 0)
    kept = abs(exact) >> shift << 1 | bool(abs(exact) & ((1 << shift) - 1))
    size = _scaled(kept, below + shift - 1)  # 64 bits, and one that is set if any lower bit is
    return -size if exact < 0 < size else size


def _multiplied(numbers: list[int]) -> int:
    """Multiplies pairwise, which is faster because the factors then have similar widths."""
    while len(numbers) > 1:
        numbers = [math.prod(numbers[i : i + 2]) for i in range(0, len(numbers), 2)]
    return numbers[0]


def _scaled(whole: int, exponent: int) -> float:
    """Returns whole * 2**exponent, rounded once, for an integer of up to 65 bits."""
    if exponent < -2000:
        return 0.0
    if exponent > 1100:
        return math.inf if whole else 0.0
    return quotient(whole << max(exponent, 0), 1 << max(-exponent, 0))


_PICKS: dict[str, Callable[..., list[int]]] = {
    "mode": _most_frequent,
    "approx_percentile": _at_shares,
}
_KERNELS: dict[str, Callable[..., Any]] = {
    "percentile": _percentile,
    "listagg": _joined,
    "product": _product,
}
WHOLES = frozenset((*_PICKS, *_KERNELS))
"""The functions whose kernels are in this module."""


def reads_whole_groups(function: str) -> bool:
    """Returns True if an aggregate reads all values of a group whenever one of them changes."""
    return function in ("collect_list", "collect_set") or function in WHOLES


def value_index_results(plan: CallPlan, counts: Index | None, groups: Groups, step: Step) -> Column:
    """Returns the results of a call before the change for all groups, then those after it.

    Emits the change of the winners, if the call has a trace of winners.

    Args:
        counts: the previous counts of the changed rows of the value index; required for a call with
            a trace of winners if the value index changes.
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
    """Returns the result of a call for each group, from a value index without winners."""
    function = plan.call.function
    khash, keys = groups.khash, groups.keys
    if function in ("collect_list", "collect_set"):
        return collected_lists(trace, khash, keys, function == "collect_list", step)
    if function in WHOLES:
        return holistic_results(trace, khash, keys, plan.call, step)
    has, values = extreme(trace, khash, keys, function.startswith("max"), step)
    return _spread_values(has, values[-1], plan.call.type)


def _spread_values(has: npt.NDArray[np.bool_], column: Column, type_: str) -> Column:
    """Returns a column with the values at the positions where `has` is true, and null elsewhere."""
    if all_true(has):
        return column
    filled = rows.concat([column, rows.full_null(type_, 1)], type_)
    place = np.where(has, has.cumsum() - 1, len(column))
    return rows.take(filled, place)


def collected_lists(
    trace: Trace, khash: Hashes, keys: Sequence[Column], copies: bool, step: Step
) -> Column:
    """Returns one array for each key; empty for a key without values.

    Args:
        trace: the value index, with rows (key..., value); no value is null.
        khash, keys: the keys and their hashes.
        copies: True to repeat a value as often as its count; False to list it once.
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
