"""Exact arithmetic over whole numbers: int64 where no result can leave it, else Python's integers.

Operands are arrays of int64 or of objects, or scalars. The bounds of the operands decide which of
the two is computed, never the result, so nothing wraps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nosync_nb.expressions.kernels.numeric import extent

_LEAST, _GREATEST = -(2**63), 2**63 - 1


def _fits(low: int, high: int) -> bool:
    return low > _LEAST and high <= _GREATEST  # excludes the least, which has no negative


def _objects(values: Any) -> Any:
    return values.astype(object) if np.ndim(values) else int(values)


def _is_plain(values: Any) -> bool:
    """Returns True if values are in int64."""
    return isinstance(values, np.ndarray | np.generic) and values.dtype == np.int64


def narrow(values: Any) -> Any:
    """Returns objects as int64 if all fit."""
    if not np.ndim(values) or not values.dtype.hasobject:
        return values
    return values.astype(np.int64) if not len(values) or _fits(*extent(values)) else values


def where(condition: Any, a: Any, b: Any) -> Any:
    """`np.where`, also for single integers beyond 64 bits, which numpy does not accept."""
    chosen = np.where(condition, _single(a), _single(b))
    return chosen.item() if not chosen.ndim and chosen.dtype.hasobject else chosen


def _single(value: Any) -> Any:
    return np.array(value, object) if type(value) is int else value


def plus(a: Any, b: Any) -> Any:
    """`a + b`."""
    (a0, a1), (b0, b1) = extent(a), extent(b)
    if _is_plain(a) and _is_plain(b) and _fits(a0 + b0, a1 + b1):
        return a + b
    return _objects(a) + _objects(b)


def minus(a: Any, b: Any) -> Any:
    """`a - b`."""
    (a0, a1), (b0, b1) = extent(a), extent(b)
    if _is_plain(a) and _is_plain(b) and _fits(a0 - b1, a1 - b0):
        return a - b
    return _objects(a) - _objects(b)


def times(a: Any, b: Any) -> Any:
    """`a * b`."""
    corners = [x * y for x in extent(a) for y in extent(b)]
    if _is_plain(a) and _is_plain(b) and _fits(min(corners), max(corners)):
        return a * b
    return _objects(a) * _objects(b)


def raised(a: Any, places: int) -> Any:
    """`a` times a power of ten."""
    if not places:
        return a
    power = 10**places
    return times(a, np.int64(power) if places < 19 else power)


def lowered(a: Any, places: int) -> Any:
    """`a` divided by a power of ten, ties away from zero."""
    return over(a, 10**places) if places else a


def scaled(a: Any, places: int) -> Any:
    """`a` with more places, or fewer."""
    return raised(a, places) if places >= 0 else lowered(a, -places)


def over(a: Any, b: Any) -> Any:
    """`a / b`, ties away from zero; undefined where b is 0."""
    return _signed(a, b, half_up=True)


def truncated_quotient(a: Any, b: Any) -> Any:
    """`a / b` truncated towards zero; undefined where b is 0."""
    return _signed(a, b, half_up=False)


def _signed(a: Any, b: Any, *, half_up: bool) -> Any:
    extremes = (*extent(a), *extent(b))
    if _fits(min(extremes), max(extremes)) and (_is_plain(a) or _is_plain(b)):
        a, b = _plain(a), _plain(b)
    else:
        a, b = _objects(a), _objects(b)
    size, unit = abs(a), abs(b)  # np.abs makes 64 bits of a Python int
    if not isinstance(unit, np.ndarray):
        unit = unit or 1
    elif not unit.all():
        unit = np.where(unit == 0, 1, unit)
    quotient = size // unit
    if half_up:
        rest = size - quotient * unit
        quotient = quotient + (rest >= unit - rest)
    return np.where((a < 0) != (b < 0), -quotient, quotient) if np.ndim(a) or np.ndim(b) else (
        -quotient if (a < 0) != (b < 0) else quotient
    )  # fmt: skip


def _plain(values: Any) -> Any:
    return values.astype(np.int64) if np.ndim(values) else np.int64(int(values))


def rest(a: Any, b: Any) -> Any:
    """`a % b` with the sign of a; undefined where b is 0."""
    return minus(a, times(truncated_quotient(a, b), b))


def digits_kept(a: Any, digits: int, *, even: bool = False) -> Any:
    """`a` rounded to a number of significant digits, ties away from zero or to even."""
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


def beyond(a: Any, digits: int) -> Any:
    """Returns a mask of the numbers with more than `digits` digits."""
    bound = 10**digits
    low, high = extent(a)
    if -bound < low and high < bound:
        return np.zeros(np.shape(a), np.bool_)
    return np.asarray((a >= bound) | (a <= -bound), np.bool_)


def doubles(a: Any, places: int) -> Any:
    """Returns the doubles nearest to whole numbers with `places` decimal places."""
    power = 10**places
    low, high = extent(a)
    if places <= 22 and low >= -(2**53) and high <= 2**53:
        return (_plain(a) if np.ndim(a) else np.int64(int(a))).astype(np.float64) / float(power)
    if not np.ndim(a):
        return np.float64(int(a) / power)
    return np.array([value / power for value in a.tolist()], np.float64)


def singles(a: Any, places: int) -> Any:
    """Returns the floats nearest to whole numbers with `places` decimal places, rounded once."""
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
