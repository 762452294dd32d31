"""Kernels of numbers: arithmetic in Spark's ANSI mode, rounding, comparison.

Arithmetic of integers is exact: in int64 where no result can exceed it, otherwise in Python's
integers. Operands are arrays of int64 or of objects, or scalars. The choice depends on the bounds
of the operands, not on the result, so nothing wraps around.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from decimal import Context as DecimalContext
from typing import Any

import numpy as np

from nosync_nb.expressions.kernels.kernel import Bounds, Check, Kernel
from nosync_nb.expressions.kernels.reasons import (
    BY_ZERO,
    OVERFLOW,
    REMAINDER_BY_ZERO,
    SHORT_OVERFLOW,
)
from nosync_nb.expressions.kernels.vectors import Array
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS

_LEAST, _GREATEST = -(2**63), 2**63 - 1


def _fits(low: int, high: int) -> bool:
    return low > _LEAST and high <= _GREATEST  # not _LEAST, because its negative exceeds int64


def _objects(values: Any) -> Any:
    return values.astype(object) if np.ndim(values) else int(values)


def _is_plain(values: Any) -> bool:
    """Returns True if the values are stored as int64."""
    return isinstance(values, np.ndarray | np.generic) and values.dtype == np.int64


def narrow(values: Any) -> Any:
    """Converts an array of Python integers to int64 if all of them fit."""
    if not np.ndim(values) or not values.dtype.hasobject:
        return values
    return values.astype(np.int64) if not len(values) or _fits(*extent(values)) else values


def where(condition: Any, a: Any, b: Any) -> Any:
    """`np.where`, also for scalars beyond 64 bits, which numpy does not accept."""
    chosen = np.where(condition, _single(a), _single(b))
    return chosen.item() if not chosen.ndim and chosen.dtype.hasobject else chosen


def _single(value: Any) -> Any:
    return np.array(value, object) if type(value) is int else value


def plus(a: Any, b: Any) -> Any:
    """`a + b`, exact."""
    (a0, a1), (b0, b1) = extent(a), extent(b)
    if _is_plain(a) and _is_plain(b) and _fits(a0 + b0, a1 + b1):
        return a + b
    return _objects(a) + _objects(b)


def minus(a: Any, b: Any) -> Any:
    """`a - b`, exact."""
    (a0, a1), (b0, b1) = extent(a), extent(b)
    if _is_plain(a) and _is_plain(b) and _fits(a0 - b1, a1 - b0):
        return a - b
    return _objects(a) - _objects(b)


def times(a: Any, b: Any) -> Any:
    """`a * b`, exact."""
    corners = [x * y for x in extent(a) for y in extent(b)]
    if _is_plain(a) and _is_plain(b) and _fits(min(corners), max(corners)):
        return a * b
    return _objects(a) * _objects(b)


def as_int64(values: Any) -> Any:
    """Converts integers to 64 bits, the width in which products are checked."""
    narrow = isinstance(values, np.ndarray | np.generic) and values.dtype.kind == "i"
    return values.astype(np.int64) if narrow else values


def raised(a: Any, places: int) -> Any:
    """Multiplies by a power of ten."""
    if not places:
        return a
    power = 10**places
    return times(a, np.int64(power) if places < 19 else power)


def lowered(a: Any, places: int) -> Any:
    """Divides by a power of ten, rounding ties away from zero."""
    return over(a, 10**places) if places else a


def scaled(a: Any, places: int) -> Any:
    """Changes the number of decimal places by `places`; ties are rounded away from zero."""
    return raised(a, places) if places >= 0 else lowered(a, -places)


def over(a: Any, b: Any) -> Any:
    """`a / b`, rounded to an integer with ties away from zero; undefined where `b` is 0."""
    return _signed(a, b, half_up=True)


def truncated_quotient(a: Any, b: Any) -> Any:
    """`a / b`, truncated towards zero; undefined where `b` is 0."""
    return _signed(a, b, half_up=False)


def _signed(a: Any, b: Any, *, half_up: bool) -> Any:
    extremes = (*extent(a), *extent(b))
    if _fits(min(extremes), max(extremes)) and (_is_plain(a) or _is_plain(b)):
        a, b = _plain(a), _plain(b)
    else:
        a, b = _objects(a), _objects(b)
    size, unit = abs(a), abs(b)  # not np.abs, which would convert a Python int to 64 bits
    if not isinstance(unit, np.ndarray):
        unit = unit or 1
    elif not unit.all():
        unit = np.where(unit == 0, 1, unit)
    quotient = size // unit
    if half_up:
        truncated_remainder = size - quotient * unit
        quotient = quotient + (truncated_remainder >= unit - truncated_remainder)
    return np.where((a < 0) != (b < 0), -quotient, quotient) if np.ndim(a) or np.ndim(b) else (
        -quotient if (a < 0) != (b < 0) else quotient
    )  # fmt: skip


def _plain(values: Any) -> Any:
    return values.astype(np.int64) if np.ndim(values) else np.int64(int(values))


def truncated_remainder(a: Any, b: Any) -> Any:
    """`a % b` with the sign of `a`; undefined where `b` is 0."""
    return minus(a, times(truncated_quotient(a, b), b))


def digits_kept(a: Any, digits: int, *, even: bool = False) -> Any:
    """Rounds to a number of significant digits, ties away from zero or to even."""
    low, high = extent(a)
    if max(-low, high) < 10**digits:
        return a
    return np.frompyfunc(lambda v: _few_digits(int(v), digits, even), 1, 1)(a)


def _few_digits(value: int, digits: int, even: bool) -> int:
    unit = 10 ** max(0, len(str(abs(value))) - digits)
    number, left = divmod(abs(value), unit)
    if 2 * left > unit or (2 * left == unit and (number % 2 or not even)):
        number += 1
    size: int = number * unit
    return -size if value < 0 else size


def exceeds_digits(a: Any, digits: int) -> Any:
    """Returns a mask of the numbers with more than `digits` digits."""
    bound = 10**digits
    low, high = extent(a)
    if -bound < low and high < bound:
        return np.zeros(np.shape(a), np.bool_)
    return np.asarray((a >= bound) | (a <= -bound), np.bool_)


def doubles(a: Any, places: int) -> Any:
    """Returns the doubles nearest to decimals, given as unscaled values with `places` places."""
    power = 10**places
    low, high = extent(a)
    if places <= 22 and low >= -(2**53) and high <= 2**53:
        return (_plain(a) if np.ndim(a) else np.int64(int(a))).astype(np.float64) / float(power)
    if not np.ndim(a):
        return np.float64(int(a) / power)
    return np.array([value / power for value in a.tolist()], np.float64)


def singles(a: Any, places: int) -> Any:
    """Returns the floats nearest to decimals, rounded only once; arguments as in `doubles`."""
    near = np.asarray(doubles(a, places))
    result = near.astype(np.float32)
    tie = (near.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    if not tie.any():
        return result if np.ndim(a) else result[()]
    power = 10**places
    exact = np.broadcast_to(np.asarray(a, object), near.shape)
    for at in np.argwhere(tie):
        i = tuple(at)
        numerator, denominator = float(near[i]).as_integer_ratio()
        off = exact[i] * denominator - numerator * power
        if off:
            result[i] = np.nextafter(near[i], np.inf if off > 0 else -np.inf).astype(np.float32)
    return result if np.ndim(a) else result[()]


Kernels = Callable[[str], Kernel]

_SIZES = [(type_, FIXED[type_].itemsize) for type_ in INTEGERS]


_LIMITS = {type_: (-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1) for type_, size in _SIZES}


def limits(type_: str) -> Bounds:
    """Returns the least and the greatest value of an integer type."""
    return _LIMITS[type_]


def extent(values: Any) -> Bounds:
    """Returns the least and the greatest of the integers; (0, 0) for an empty array."""
    if not np.ndim(values):
        return int(values), int(values)
    if len(values) <= 64:
        listed = values.tolist()
        return (min(listed), max(listed)) if listed else (0, 0)
    return int(values.min()), int(values.max())


def within(values: Any, limit: int) -> bool:
    """Returns True if no absolute value exceeds a limit."""
    least, greatest = extent(values)
    return -limit <= least and greatest <= limit


def _wide_overflow(operation: Callable[..., Any], type_: str) -> Callable[..., Any]:
    """Returns the overflow check of integers below 64 bits, which computes in 64 bits."""
    least, greatest = limits(type_)

    def bad(*values: Any) -> Any:
        wide = operation(*(v.astype(np.int64) for v in values))
        return (wide < least) | (wide > greatest)

    return bad


def _add_overflow(a: Any, b: Any) -> Any:
    r = a + b
    return ((a ^ r) & (b ^ r)) < 0


def _sub_overflow(a: Any, b: Any) -> Any:
    r = a - b
    return ((a ^ b) & (a ^ r)) < 0


def _mul_overflow(a: Any, b: Any) -> Any:
    near = np.abs(np.multiply(a, b, dtype=np.float64))
    if not (near >= 2.0**62).any():
        return np.zeros(np.shape(near), np.bool_)
    least = np.int64(limits("bigint")[0])
    r = a * b
    divisor = np.where(b == 0, 1, b)
    wrong = (np.floor_divide(r, divisor) != a) | (np.fmod(r, divisor) != 0)
    return (near >= 2.0**62) & (wrong | ((a == least) & (b == -1)) | ((b == least) & (a == -1)))


_LONG_OVERFLOW = {np.add: _add_overflow, np.subtract: _sub_overflow, np.multiply: _mul_overflow}


def _add_bounds(a: Bounds, b: Bounds) -> Bounds:
    return a[0] + b[0], a[1] + b[1]


def _sub_bounds(a: Bounds, b: Bounds) -> Bounds:
    return a[0] - b[1], a[1] - b[0]


def _mul_bounds(a: Bounds, b: Bounds) -> Bounds:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _arithmetic(operation: Any, bounds: Callable[..., Bounds]) -> Kernels:
    def make(type_: str) -> Kernel:
        if type_ in FLOATS:
            return Kernel(operation, floats=True)
        if type_ == "bigint":
            bad = _LONG_OVERFLOW[operation]
        else:
            bad = _wide_overflow(operation, type_)
        reason = OVERFLOW if type_ in ("int", "bigint") else SHORT_OVERFLOW
        return Kernel(operation, (Check(bad, reason),), bounds)

    return make


add = _arithmetic(np.add, _add_bounds)
subtract = _arithmetic(np.subtract, _sub_bounds)
multiply = _arithmetic(np.multiply, _mul_bounds)


def is_zero(a: Any, b: Any) -> Any:
    """Returns a mask of the rows whose divisor is zero."""
    return b == 0


def divide(type_: str) -> Kernel:
    """`/` of doubles; the divisor is evaluated first."""
    return Kernel(np.divide, (Check(is_zero, BY_ZERO),), right_first=True, floats=True)


def remainder(type_: str) -> Kernel:
    """`%`; the result has the sign of the dividend."""
    check = Check(is_zero, REMAINDER_BY_ZERO)
    return Kernel(np.fmod, (check,), right_first=True, floats=type_ in FLOATS)


def positive_remainder(type_: str) -> Kernel:
    """`pmod` of integers as in Java: in at least 32 bits, where `r + b` may wrap around."""
    dtype = FIXED[type_]
    inner = np.dtype(np.int64 if type_ == "bigint" else np.int32)

    def run(a: Any, b: Any) -> Any:
        b = b.astype(inner)
        r = np.fmod(a.astype(inner), b)
        return np.where(r < 0, np.fmod(r + b, b), r).astype(dtype)

    return Kernel(run, (Check(is_zero, REMAINDER_BY_ZERO),), right_first=True)


def _div_overflow(a: Any, b: Any) -> Any:
    return (a == limits("bigint")[0]) & (b == -1)


def _truncated(a: Any, b: Any) -> Any:
    q = np.floor_divide(a, b)
    return q + ((np.fmod(a, b) != 0) & ((a < 0) != (b < 0)))


def integral_divide(type_: str) -> Kernel:
    """`div` of bigints, truncated towards zero."""
    checks = (Check(is_zero, BY_ZERO), Check(_div_overflow, OVERFLOW))
    return Kernel(_truncated, checks, right_first=True)


def negate(type_: str) -> Kernel:
    """Unary minus, which overflows for the least integer."""
    if type_ in FLOATS:
        return Kernel(np.negative, floats=True)
    least = limits(type_)[0]
    return Kernel(np.negative, (Check(lambda a: a == least, OVERFLOW),), lambda a: (-a[1], -a[0]))


def absolute(type_: str) -> Kernel:
    """`abs`, which overflows for the least integer."""
    if type_ in FLOATS:
        return Kernel(np.abs)
    least = limits(type_)[0]

    def bounds(a: Bounds) -> Bounds:
        return (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))), max(abs(a[0]), abs(a[1]))

    return Kernel(np.abs, (Check(lambda a: a == least, OVERFLOW),), bounds)


def sign(type_: str) -> Kernel:
    """`sign` of a double."""
    return Kernel(np.sign, floats=True)


def square_root(type_: str) -> Kernel:
    """`sqrt` of a double, which IEEE 754 rounds correctly on every machine."""
    return Kernel(np.sqrt, floats=True)


def is_nan(type_: str) -> Kernel:
    """`isnan` of a float or double."""
    return Kernel(np.isnan)


def to_whole(function: Any) -> Kernels:
    """`floor` and `ceil` of a double; the result is a bigint."""

    def bad(a: Any) -> Any:
        return (a >= 2.0**63) | (a < -(2.0**63))

    def run(a: Any) -> Any:
        return function(np.where(a != a, 0.0, a)).astype(np.int64)

    def make(type_: str) -> Kernel:
        return Kernel(run, (Check(bad, OVERFLOW),), floats=True)

    return make


_EXACT = 1e14
"""The limit of `abs(value) * 10**scale` up to which a tie has at most 15 digits; see `rounder`."""


def rounder(scale: int) -> Kernel:
    """`round(double, scale)`: rounds the shortest decimal text half up, as Java's BigDecimal does.

    Let f be the value in units of the last place, rounded down, and T the double nearest to the tie
    (2f + 1) / (2 * 10^scale). Decimals of at most 15 digits and doubles determine each other. So a
    value prints as the tie exactly if it equals T. Its text is above or below the tie exactly if
    the value is above or below T. Values with more digits are printed and rounded as text.
    """
    power = 10.0**scale
    unit = Decimal(1).scaleb(-scale)
    context = DecimalContext(prec=400)

    def slow(value: float) -> float:
        return float(Decimal(repr(value)).quantize(unit, ROUND_HALF_UP, context))

    def run(x: Any) -> Any:
        a = np.abs(x)
        units = a * power
        floor = np.floor(units)
        n = floor + (a >= (2 * floor + 1) / (2 * power))
        rounded = np.copysign(n / power, x)
        long = ~(units < _EXACT)
        if long.any():
            rounded = np.where(long, x, rounded)
            doubtful = long & (a < 2.0**53)
            if doubtful.any():
                wide = np.broadcast_to(x, np.shape(rounded))
                rounded[doubtful] = [slow(v) for v in wide[doubtful].tolist()]
        return rounded

    return Kernel(run, floats=True)


def equal(type_: str) -> Kernel:
    """`=`; NaN equals NaN, unlike in numpy."""
    if type_ in FLOATS:
        return Kernel(lambda a, b: (a == b) | ((a != a) & (b != b)))
    return Kernel(np.equal)


def not_equal(type_: str) -> Kernel:
    """`<>`; NaN equals NaN, unlike in numpy."""
    if type_ in FLOATS:
        return Kernel(lambda a, b: (a != b) & ((a == a) | (b == b)))
    return Kernel(np.not_equal)


def less(type_: str) -> Kernel:
    """`<`; NaN is the greatest value."""
    if type_ in FLOATS:
        return Kernel(lambda a, b: ~(a >= b) & (a == a))
    return Kernel(np.less)


def less_equal(type_: str) -> Kernel:
    """`<=`; NaN is the greatest value, and equals NaN."""
    if type_ in FLOATS:
        return Kernel(lambda a, b: (a <= b) | (b != b))
    return Kernel(np.less_equal)


def greater(type_: str) -> Kernel:
    """`>`; NaN is the greatest value."""
    if type_ in FLOATS:
        return Kernel(lambda a, b: ~(a <= b) & (b == b))
    return Kernel(np.greater)


def greater_equal(type_: str) -> Kernel:
    """`>=`; NaN is the greatest value, and equals NaN."""
    if type_ in FLOATS:
        return Kernel(lambda a, b: (a >= b) | (a != a))
    return Kernel(np.greater_equal)


def _not_less_equal(a: Any, b: Any) -> Any:
    return ~np.less_equal(a, b)


def _not_less(a: Any, b: Any) -> Any:
    return ~np.less(a, b)


BESIDE_NUMBER: dict[str, Callable[..., Any]] = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": _not_less_equal,
    ">=": _not_less,
}
"""Comparisons of floats with a numeric literal on the right that is not NaN."""


def choose_greater(type_: str) -> Callable[[Array, Array], Array]:
    """`greatest` of two columns without nulls; NaN is the greatest value."""
    return np.maximum  # NaN if either is NaN, because NaN is the greatest float


def choose_less(type_: str) -> Callable[[Array, Array], Array]:
    """`least` of two columns without nulls; NaN only if both are NaN."""
    return np.fmin if type_ in FLOATS else np.minimum
