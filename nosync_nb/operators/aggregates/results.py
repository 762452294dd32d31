"""The column of an aggregate call, read from the slots of its groups.

Skewness, kurtosis, covariances and regression lines, read from exact sums.

The sums of powers and of products are integers in units of powers of two. So a moment is a quotient
of two integers and is rounded once; a root is taken of such a double. The history of a group never
shows in the result. Infinities and NaN give NaN, as in Spark.

Cost: some integer operations of up to 9000 bits for each group that is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import PAIRS
from nosync_nb.operators.aggregates import totals
from nosync_nb.operators.aggregates.accumulators import (
    LOWEST,
    LOWEST_CUBE,
    LOWEST_FOURTH,
    LOWEST_PRODUCT,
    LOWEST_SQUARE,
    SLOTS,
    Ints,
    Slots,
)
from nosync_nb.operators.aggregates.plan import SPREADS, CallPlan, sum_kind
from nosync_nb.operators.aggregates.totals import doubles, exact_sums, quotient, root
from nosync_nb.rows import Column

_UNIT = LOWEST_PRODUCT // 2
"""Sums of k-th powers are counted in units of 2**(-k * _UNIT)."""
assert 2 * _UNIT >= LOWEST_SQUARE
assert 3 * _UNIT >= LOWEST_CUBE
assert 4 * _UNIT >= LOWEST_FOURTH


def moments_of_numbers(
    slots: Slots, places: Mapping[str, int], function: str, count: Ints
) -> list[float | None]:
    """Returns skewness or kurtosis of each group; null if all its values are equal."""
    n = len(count)
    first = doubles(slots, places["doubles"], count)
    second = exact_sums(slots, places["squares"], SLOTS["squares"], n)
    third = exact_sums(slots, places["cubes"], SLOTS["cubes"], n)
    fourth = [0] * n
    if function == "kurtosis":
        fourth = exact_sums(slots, places["fourths"], SLOTS["fourths"], n)
    return [
        _shape(function, *each)
        for each in zip(count.tolist(), first, second, third, fourth, strict=True)
    ]


def _shape(
    function: str, n: int, s1: int | float | None, s2: int, s3: int, s4: int
) -> float | None:
    """The moment of one group, from its sums of powers."""
    if s1 is None or n <= 0:
        return None
    if isinstance(s1, float):
        return math.nan
    s1 <<= _UNIT - LOWEST
    s2 <<= 2 * _UNIT - LOWEST_SQUARE
    s3 <<= 3 * _UNIT - LOWEST_CUBE
    s4 <<= 4 * _UNIT - LOWEST_FOURTH
    m2 = n * s2 - s1 * s1
    if m2 <= 0:
        return None if m2 == 0 else math.nan
    if function == "skewness":
        m3 = n * n * s3 - 3 * n * s1 * s2 + 2 * s1**3
        return _signed(root(quotient(m3 * m3, m2**3)), m3)
    m4 = n**3 * s4 - 4 * n * n * s1 * s3 + 6 * n * s1 * s1 * s2 - 3 * s1**4
    return quotient(m4 - 3 * m2 * m2, m2 * m2)


class _Sums(NamedTuple):
    """Sums over the rows of one group in which neither number is null, in units of 2**-_UNIT."""

    n: int
    x: int | float
    y: int | float
    xx: int
    yy: int
    xy: int

    @property
    def spread(self) -> int:
        """The count times the sum of squares of the first number around its mean."""
        assert isinstance(self.x, int)
        return self.n * self.xx - self.x * self.x

    @property
    def turned(self) -> _Sums:
        """The same with the numbers exchanged."""
        return _Sums(self.n, self.y, self.x, self.yy, self.xx, self.xy)

    @property
    def common(self) -> int:
        """The count times the sum of products around the means."""
        assert isinstance(self.x, int)
        assert isinstance(self.y, int)
        return self.n * self.xy - self.x * self.y


def moments_of_pairs(
    slots: Slots, places: Mapping[str, int], function: str, count: Ints
) -> list[float | None]:
    """Returns an aggregate of pairs of numbers for each group."""
    return [_of_pair(function, sums) for sums in _sums(slots, places, count)]


def _sums(slots: Slots, places: Mapping[str, int], count: Ints) -> Iterator[_Sums | None]:
    n = len(count)
    for c, x, y, xx, yy, xy in zip(
        count.tolist(),
        doubles(slots, places["doubles"], count),
        doubles(slots, places["doubles 2"], count),
        exact_sums(slots, places["squares"], SLOTS["squares"], n),
        exact_sums(slots, places["squares 2"], SLOTS["squares 2"], n),
        exact_sums(slots, places["products"], SLOTS["products"], n),
        strict=True,
    ):
        if x is None or y is None or c <= 0:
            yield None
            continue
        x = x if isinstance(x, float) else x << (_UNIT - LOWEST)
        y = y if isinstance(y, float) else y << (_UNIT - LOWEST)
        up = 2 * _UNIT - LOWEST_SQUARE
        yield _Sums(c, x, y, xx << up, yy << up, xy << (2 * _UNIT - LOWEST_PRODUCT))


_SQUARED = 1 << (2 * _UNIT)
_OF_ONE = {"regr_avgx": 1, "regr_sxx": 1, "regr_avgy": 0, "regr_syy": 0}
"""Aggregates of one number of the pair, over rows in which the other is not null: the number's
index."""


def _of_pair(function: str, sums: _Sums | None) -> float | None:
    """The value of one group; `regr_` functions have y first."""
    if sums is None:
        return None
    if function in _OF_ONE:
        own = sums.turned if _OF_ONE[function] else sums
        if isinstance(own.x, float):
            return math.nan if "_s" in function else own.x
        if function.startswith("regr_avg"):
            return quotient(own.x, own.n << _UNIT)
        return quotient(own.spread, own.n * _SQUARED)
    n = sums.n
    if n == 1 and function in ("covar_samp", "corr"):
        return None
    if isinstance(sums.x, float) or isinstance(sums.y, float):
        return math.nan
    if function == "covar_pop":
        return quotient(sums.common, n * n * _SQUARED)
    if function == "covar_samp":
        return quotient(sums.common, n * (n - 1) * _SQUARED)
    if function == "regr_sxy":
        return quotient(sums.common, n * _SQUARED)
    return _of_line(function, sums)


def _of_line(function: str, sums: _Sums) -> float | None:
    """Aggregates of a line, null if all x are equal."""
    y, x, common = sums.spread, sums.turned.spread, sums.common
    if x == 0 or (y == 0 and function == "corr"):
        return None
    if x < 0 or y < 0:  # rows with negative counts
        return math.nan
    if function == "regr_slope":
        return quotient(common, x)
    if function == "regr_intercept":
        assert isinstance(sums.x, int)
        assert isinstance(sums.y, int)
        return quotient(sums.x * x - common * sums.y, sums.n * x << _UNIT)
    if function == "regr_r2":
        return 1.0 if y == 0 else quotient(common * common, x * y)
    return _signed(root(quotient(common * common, x * y)), common)


def _signed(value: float, like: int) -> float:
    return -value if like < 0 else value


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
        return moments_of_pairs(slots, plan.slots, function, count)
    if function in ("bit_and", "bit_or", "bit_xor"):
        return totals.bits(slots, plan.slots["bits"], function, type_, count)
    base = plan.slots[sum_kind("doubles", type_)]
    if function in SPREADS:
        return totals.spread_column(slots, base, plan.slots["squares"], function, count)
    return moments_of_numbers(slots, {**plan.slots, "doubles": base}, function, count)


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
