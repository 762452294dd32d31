"""Computes the results of aggregate calls from the slots of their groups.

All values are exact until the last step, which rounds once:

- a sum of doubles is the double nearest to the exact sum;
- a variance is the double nearest to its exact rational value, and a standard deviation is the
  root of this double;
- skewness, kurtosis, covariances and regression lines are quotients of two integers, because the
  sums of powers and of products are integers in units of powers of two; or roots of such quotients.

A result depends only on the current rows of its group, not on their history. Variances and moments
of infinities or NaN are NaN, as in Spark.

`group_totals` computes the sums and averages of many groups as whole columns, with the same values
and rounding. It does not compute values that do not fit a machine number. The functions for single
groups handle these; they support any width, and raise the errors.

Design
    A sum of doubles is stored in bins of 30 bits. After carrying from bin to bin, its digits are
    those of the exact sum. The first 61 bits, and one bit that is set if any lower bit is set, form
    one integer, which the processor rounds by IEEE 754. A sum below the least normal double is a
    multiple of the least double and loses no digits, so no value is rounded twice.

Cost: a few Python operations for each group, on integers of up to 9000 bits for moments; numpy for
counts. For many groups about 20 ns for each group and bin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import Context, Decimal
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import PAIRS
from nosync_nb.operators.aggregates.accumulators import (
    BIN_BITS,
    INF,
    LIMB_BITS,
    LOWEST,
    LOWEST_CUBE,
    LOWEST_FOURTH,
    LOWEST_PRODUCT,
    LOWEST_SQUARE,
    MINUS_INF,
    NAN,
    SLOTS,
    Ints,
    Slots,
    limbs,
)
from nosync_nb.operators.aggregates.plan import SPREADS, CallPlan, sum_kind
from nosync_nb.rows import Column, buffers
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS, decimal_parts

_WIDE = Context(prec=80)

_EXACT = 1 << 53
LEAST, GREATEST = -1022, 900
"""The exponents from `LEAST` to `GREATEST`: an integer of up to 2**53 times such a power of two is
exactly a double, and sums of these do not overflow."""


def totals_column(values: list[Any], type_: str) -> Column:
    """Converts Python numbers to a column, in which None is null."""
    if type_ == "bigint" and None not in values:
        return np.array(values, np.int64)
    if type_ == "double" and None not in values:
        return np.array(values, np.float64) + 0.0
    return rows.from_arrow(buffers.arrow_from_list(values, rows.arrow_type(type_)), type_)


def sum_column(slots: Slots, base: int, type_: str, result: str, count: Ints) -> list[Any]:
    """Returns the exact sums of groups as Python numbers; None for a group without values.

    Args:
        slots: the numbers of each slot, one for each group.
        base: the first slot of this sum.
        type_: the type of the summed column.
        result: the type of the sum.
        count: the number of values of each group.

    Raises:
        ExpressionError: if a final sum does not fit `result`.
    """
    if type_ in ("float", "double"):
        rounded = _fsum_doubles(slots, base, count)
        if rounded is not None:
            return rounded
        return [None if exact is None else _float(exact) for exact in doubles(slots, base, count)]
    numbers = _exact_integers(slots, base, type_, count)
    unscaled = [u if c else None for u, c in zip(numbers, count.tolist(), strict=True)]
    return _fit_result(unscaled, f"a sum of {type_}", result)


def mean_column(slots: Slots, base: int, type_: str, result: str, count: Ints) -> list[Any]:
    """Returns the averages of groups; None for a group without values.

    The average of integers or doubles is a double. An average of decimals is rounded half up to the
    scale of `result`, as in Spark. An average of intervals is rounded half up to the last unit.

    Raises:
        ExpressionError: if an average does not fit `result`.
    """
    counts = count.tolist()
    if type_ in ("float", "double"):
        totals = sum_column(slots, base, type_, "double", count)
        return [None if s is None else s / c for s, c in zip(totals, counts, strict=True)]
    numbers = _exact_integers(slots, base, type_, count)
    if result in INTERVALS:
        near = [_half_up(w, c) if c else None for w, c in zip(numbers, counts, strict=True)]
        return _fit_result(near, f"an average of {type_}", result)
    if not result.startswith("decimal"):
        return [w / c if c else None for w, c in zip(numbers, counts, strict=True)]
    shift = 10 ** (decimal_parts(result)[1] - decimal_parts(type_)[1])
    unscaled = [_half_up(w * shift, c) if c else None for w, c in zip(numbers, counts, strict=True)]
    return _fit_result(unscaled, f"an average of {type_}", result)


def spread_column(slots: Slots, base: int, squares: int, function: str, count: Ints) -> list[Any]:
    """Returns the variances or standard deviations of groups; None for a group with too few values.

    The result for a group with an infinity or NaN is NaN, as in Spark.
    """
    sample = function.endswith("_samp")
    counts = count.tolist()
    numbers = doubles(slots, base, count)
    powers = exact_sums(slots, squares, SLOTS["squares"], len(counts))
    values: list[Any] = []
    for c, exact, square in zip(counts, numbers, powers, strict=True):
        if c <= sample:
            values.append(None)
        elif exact is None or isinstance(exact, float):
            values.append(math.nan)
        else:
            above = (c * square << (2 * LOWEST - LOWEST_SQUARE)) - exact * exact
            variance = quotient(above, c * (c - sample) << (2 * LOWEST))
            values.append(root(variance) if function.startswith("stddev") else variance)
    return values


def bits(slots: Slots, base: int, function: str, type_: str, count: Ints) -> list[Any]:
    """Returns bit_and, bit_or or bit_xor of groups; None for a group without values."""
    width = 8 * FIXED[type_].itemsize
    zero = np.zeros(len(count), np.int64)
    total = np.zeros(len(count), np.uint64)
    for bit in range(width):
        ones = slots.get(base + bit, zero)
        if function == "bit_and":
            there = ones == count
        else:
            there = (ones & 1 if function == "bit_xor" else ones) > 0
        total |= there.astype(np.uint64) << np.uint64(bit)
    values = total.view(np.int64) if width == 64 else total.astype(np.int64)
    sign = 1 << (width - 1)
    signed = [(v ^ sign) - sign if width < 64 else v for v in values.tolist()]
    return [v if c else None for v, c in zip(signed, count.tolist(), strict=True)]


def _exact_integers(slots: Slots, base: int, type_: str, count: Ints) -> list[int]:
    """Returns the sums of integers, or of unscaled decimals, as Python integers."""
    zero = np.zeros(len(count), np.int64)
    parts: list[list[int]] = [slots.get(base + i, zero).tolist() for i in range(limbs(type_))]
    if len(parts) == 1:
        return parts[0]
    return [sum(v << (LIMB_BITS * i) for i, v in enumerate(p)) for p in zip(*parts, strict=True)]


def _fit_result(unscaled: list[int | None], what: str, result: str) -> list[Any]:
    """Converts integers, unscaled for decimals, to values of the type `result`.

    Raises:
        ExpressionError: if a number does not fit the type; the message names `what`.
    """
    numbers = [u for u in unscaled if u is not None]
    low, high = min(numbers, default=0), max(numbers, default=0)
    if not result.startswith("decimal"):
        least = -(2 ** (8 * FIXED[result].itemsize - 1))
        if not least <= low <= high < -least:
            name = "INTERVAL_ARITHMETIC_OVERFLOW" if result in INTERVALS else "ARITHMETIC_OVERFLOW"
            raise ExpressionError(
                f"[{name}] {what} is outside the range of {result}",
                hint="use a wider type: sum(cast(x as decimal(38, 0)))",
            )
        return unscaled
    precision, scale = decimal_parts(result)
    if max(-low, high) >= 10**precision:
        raise ExpressionError(
            f"[NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION] {what} is outside the range of {result}",
            hint="use doubles: cast(x as double)",
        )
    return [None if u is None else Decimal(u).scaleb(-scale, _WIDE) for u in unscaled]


def _half_up(above: int, below: int) -> int:
    """Returns a quotient, rounded to the nearest integer; ties are rounded away from zero."""
    negative = (above < 0) != (below < 0)
    above, below = abs(above), abs(below)
    number = (2 * above + below) // (2 * below)
    return -number if negative else number


def doubles(slots: Slots, base: int, count: Ints) -> Iterator[int | float | None]:
    """Yields for each group `sum * 2**LOWEST`, or an infinity or NaN; None without values."""
    n = len(count)
    zero = [0] * n
    special = [
        slots[base + s].tolist() if base + s in slots else zero for s in (INF, MINUS_INF, NAN)
    ]
    for some, exact, inf, minus, nan in zip(
        count.tolist(), exact_sums(slots, base, INF, n), *special, strict=True
    ):
        if not some:
            yield None
        elif nan or (inf and minus):
            yield math.nan
        elif inf or minus:
            yield math.inf if inf else -math.inf
        else:
            yield exact


def _fsum_doubles(slots: Slots, base: int, count: Ints) -> list[float | None] | None:
    """Sums doubles with `math.fsum`, which also rounds once; None if a bin is not a double."""
    parts: list[list[float]] = []
    for slot, numbers in slots.items():
        if not base <= slot <= base + NAN:
            continue
        exponent, values = BIN_BITS * (slot - base) - LOWEST, numbers.tolist()
        if slot - base >= INF or not LEAST <= exponent <= GREATEST:
            return None
        if max(values) >= _EXACT or min(values) <= -_EXACT:
            return None
        scale = 2.0**exponent
        parts.append([value * scale for value in values])
    sums_ = map(math.fsum, zip(*parts, strict=True)) if parts else repeat(0.0)
    return [each if some else None for some, each in zip(count.tolist(), sums_, strict=False)]


def exact_sums(slots: Slots, base: int, bins_count: int, n: int) -> list[int]:
    """Returns the sum of the bins of each group as one integer."""
    bins = sorted(s - base for s in slots if base <= s < base + bins_count)
    if not bins:
        return [0] * n
    numbers = [slots[base + b].tolist() for b in bins]
    shifts = [BIN_BITS * b for b in bins]
    return [
        sum(v << shift for v, shift in zip(values, shifts, strict=True) if v)
        for values in zip(*numbers, strict=True)
    ]


def _float(exact: int | float) -> float:
    """Returns `exact * 2**-LOWEST`, correctly rounded; infinities and NaN are unchanged."""
    return exact if isinstance(exact, float) else quotient(exact, 1 << LOWEST)


def quotient(above: int, below: int) -> float:
    """Returns the double nearest to a quotient; an overflow is infinite, as in IEEE 754."""
    try:
        return above / below
    except OverflowError:
        return math.inf if above > 0 else -math.inf


def root(variance: float) -> float:
    """Returns the square root; NaN for a negative number, which negative counts may cause."""
    return math.nan if variance < 0 else math.sqrt(variance)


Doubles = npt.NDArray[np.float64]

SCALAR_GROUPS_MAX = 192
"""The maximum number of groups for which Python is as fast as numpy."""

_GROUPS_PER_BLOCK = 8192
"""The number of groups whose digits fit into the processor's cache."""

_SAFE = 1 << 62
_BIN = (1 << BIN_BITS) - 1
_LIMB = (1 << LIMB_BITS) - 1
_EXACT_INTEGER = 1 << 53
_BITS = 61
_CARRIED = 3
"""The number of bins into which a 64-bit number of the last bin may carry, with the sign."""


def group_totals(
    function: str, slots: Slots, base: int, type_: str, result: str, count: Ints
) -> Column | None:
    """Returns the sums or averages of many groups; null for a group without values.

    Args:
        function: `sum` or `avg`.
        slots: the numbers of each slot, one for each group.
        base: the first slot of the sum.
        type_: the type of the summed column.
        result: the type of the total.
        count: the number of values of each group.

    Returns:
        the column; None if the groups are few, if a total does not fit a machine number, or if the
        type is neither integer nor floating-point.
    """
    if len(count) <= SCALAR_GROUPS_MAX:
        return None
    values: npt.NDArray[Any] | None = None
    if type_ in FLOATS:
        values = _double_sums(slots, base, len(count))
        if values is not None and function == "avg":
            with np.errstate(all="ignore"):  # 0 / 0 is null below
                values = values / count
    elif type_ in INTEGERS:
        values = _integer_sums(slots, base, type_, len(count), mean=function == "avg")
        if values is not None and function == "avg":
            if int(count.max()) >= _EXACT_INTEGER or int(count.min()) <= -_EXACT_INTEGER:
                return None
            with np.errstate(all="ignore"):
                values = values / count
    if values is None:
        return None
    if values.dtype.kind == "f":
        values = values + 0.0  # no column has -0.0
    null = count == 0
    if not null.any():
        return values
    array = buffers.arrow_from_numpy(np.where(null, values.dtype.type(0), values), nulls=null)
    return rows.from_arrow(array, result)


def _integer_sums(slots: Slots, base: int, type_: str, n: int, *, mean: bool) -> Ints | None:
    """Returns the sums of integers; None if one needs more than 64 bits, or 53 bits for a mean."""
    zero = np.zeros(n, np.int64)
    low = slots.get(base, zero)
    if limbs(type_) > 1:
        high = slots.get(base + 1, zero)
        if _greatest(high) >= _SAFE:
            return None
        high = high + (low >> LIMB_BITS)
        if int(high.max()) >= 1 << 31 or int(high.min()) < -(1 << 31):
            return None
        low = (high << LIMB_BITS) | (low & _LIMB)
    return None if mean and _greatest(low) >= _EXACT_INTEGER else low


def _double_sums(slots: Slots, base: int, n: int) -> Doubles | None:
    """Returns the doubles nearest to sums of doubles; None if a bin is near its limit."""
    bins = sorted(s - base for s in slots if base <= s < base + INF)
    result = np.zeros(n)
    if any(_greatest(slots[base + b]) >= _SAFE for b in bins):
        return None
    for start in range(0, n if bins else 0, _GROUPS_PER_BLOCK):
        digits = np.zeros(
            (bins[-1] - bins[0] + 1 + _CARRIED, min(_GROUPS_PER_BLOCK, n - start)), np.int64
        )
        for b in bins:
            digits[b - bins[0]] = slots[base + b][start : start + _GROUPS_PER_BLOCK]
        result[start : start + _GROUPS_PER_BLOCK] = nearest_double(
            digits, BIN_BITS * bins[0] - LOWEST
        )
    special = {s: slots[base + s] != 0 for s in (INF, MINUS_INF, NAN) if base + s in slots}
    if special:
        none = np.zeros(n, bool)
        above, below = special.get(INF, none), special.get(MINUS_INF, none)
        result[above] = np.inf
        result[below] = -np.inf
        result[special.get(NAN, none) | (above & below)] = np.nan
    return result


def nearest_double(digits: npt.NDArray[np.int64], exponent: int) -> Doubles:
    """Returns the double nearest to each `sum(digits[i] * 2**(30 * i + exponent))`.

    Args:
        digits: the digits by bin and number, each below 2**62; the last `_CARRIED` bins are 0. The
            array is overwritten.
    """
    _carry(digits)
    negative = digits[-1] < 0
    if negative.any():
        np.negative(digits, out=digits, where=negative)
        _carry(digits)
    there = digits != 0
    last = len(digits) - 1 - there[::-1].argmax(0)
    every = np.arange(digits.shape[1])
    first, second, third = (
        np.where(last >= i, digits[np.maximum(last - i, 0), every], 0) for i in range(3)
    )
    # The third digit supplies the bits that the first and second lack to `_BITS`.
    size = np.frexp(first.astype(np.float64))[1].astype(np.int64)
    left = np.maximum(size - (_BITS - 2 * BIN_BITS), 0)
    whole = (((first << BIN_BITS) | second) << (BIN_BITS - left)) | (third >> left)
    more = (third & ((np.int64(1) << left) - 1)) != 0
    more |= (first != 0) & (there.argmax(0) < last - 2)
    whole |= more
    places = left + (BIN_BITS * (last - 2) + exponent)
    with np.errstate(over="ignore"):  # an overflow is infinite, as in IEEE 754
        result: Doubles = np.ldexp(whole.astype(np.float64), places)
    return np.where(negative, -result, result)


def _carry(digits: npt.NDArray[np.int64]) -> None:
    """Carries to the next bins, so that each bin has 30 bits, and only the last has a sign."""
    for i in range(len(digits) - 1):
        digits[i + 1] += digits[i] >> BIN_BITS
        digits[i] &= _BIN


def _greatest(numbers: Ints) -> int:
    """Returns the greatest absolute value."""
    return max(int(numbers.max()), -int(numbers.min()))


_UNIT = LOWEST_PRODUCT // 2
"""Sums of k-th powers are integers in units of 2**(-k * _UNIT)."""
assert 2 * _UNIT >= LOWEST_SQUARE
assert 3 * _UNIT >= LOWEST_CUBE
assert 4 * _UNIT >= LOWEST_FOURTH


def moments_of_numbers(
    slots: Slots, places: Mapping[str, int], function: str, count: Ints
) -> list[float | None]:
    """Returns the skewness or kurtosis of each group; None if all its values are equal.

    Args:
        places: the first slot of each kind.
    """
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
    """Returns the skewness or kurtosis of one group.

    Args:
        n: the number of values.
        s1, s2, s3, s4: the sums of their powers, in the units of their slots.
    """
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
    """The sums of one group, over rows without nulls, in units of 2**-_UNIT for each factor."""

    n: int
    x: int | float
    y: int | float
    xx: int
    yy: int
    xy: int

    @property
    def spread(self) -> int:
        """The sum of squared deviations of x from its mean, times n."""
        assert isinstance(self.x, int)
        return self.n * self.xx - self.x * self.x

    @property
    def turned(self) -> _Sums:
        """The sums with x and y exchanged."""
        return _Sums(self.n, self.y, self.x, self.yy, self.xx, self.xy)

    @property
    def common(self) -> int:
        """The sum of the products of the deviations of x and y from their means, times n."""
        assert isinstance(self.x, int)
        assert isinstance(self.y, int)
        return self.n * self.xy - self.x * self.y


def moments_of_pairs(
    slots: Slots, places: Mapping[str, int], function: str, count: Ints
) -> list[float | None]:
    """Returns an aggregate of pairs of numbers, such as a covariance, for each group.

    Args:
        places: the first slot of each kind.
    """
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
"""Aggregates of one number of the pair, over rows in which both are not null: the position of the
number."""


def _of_pair(function: str, sums: _Sums | None) -> float | None:
    """Returns the value for one group; the first argument of `regr_` functions is y."""
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
    """Returns a correlation or a property of the regression line; None if all x are equal."""
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


_TOTALS = {"sum": "sum", "try_sum": "sum", "wrapping_sum": "sum", "avg": "avg", "try_avg": "avg"}
"""The functions that `group_totals` can compute, and its own name for each of them."""


def aggregate_column(plan: CallPlan, slots: Slots, type_: str, n: int, stage: str) -> Column:
    """Returns the results of a call for `n` groups.

    Args:
        slots: the numbers of each slot, one for each group.
        type_: the type of the first argument.

    Raises:
        ExpressionError: if a total does not fit the type of the result; the message names the
            stage.
    """
    function = plan.call.function
    if function == "count_star":
        return slots[0]
    count = slots.get(plan.slots["count"])
    count = np.zeros(n, np.int64) if count is None else count
    if function == "count":
        return count
    if function in _TOTALS:
        at_once = group_totals(
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
    return totals_column(values, plan.call.type)


def _values(plan: CallPlan, slots: Slots, type_: str, count: Ints) -> list[Any]:
    """Returns the result for each group; None for a group without a result."""
    function, base = plan.call.function, plan.slots.get("sum", 0)
    if function == "sum":
        return sum_column(slots, base, type_, plan.call.type, count)
    if function == "avg":
        return mean_column(slots, base, type_, plan.call.type, count)
    if function == "wrapping_sum":
        numbers = _exact_integers(slots, base, type_, count)
        wrapped = ((n + 2**63) % 2**64 - 2**63 for n in numbers)
        return [n if c else None for n, c in zip(wrapped, count.tolist(), strict=True)]
    if function in ("try_sum", "try_avg"):
        compute = sum_column if function == "try_sum" else mean_column
        return _each(compute, slots, base, type_, plan.call.type, count)
    if function in PAIRS:
        return moments_of_pairs(slots, plan.slots, function, count)
    if function in ("bit_and", "bit_or", "bit_xor"):
        return bits(slots, plan.slots["bits"], function, type_, count)
    base = plan.slots[sum_kind("doubles", type_)]
    if function in SPREADS:
        return spread_column(slots, base, plan.slots["squares"], function, count)
    return moments_of_numbers(slots, {**plan.slots, "doubles": base}, function, count)


def _each(
    compute: Any, slots: Slots, base: int, type_: str, result_type: str, count: Ints
) -> list[Any]:
    """Computes totals group by group if one does not fit its type; that total is None."""
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
