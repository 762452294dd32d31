"""Totals: the values of aggregates, read from the slots of their groups.

Everything is exact until the last step, which rounds once: a sum of doubles is the double next to
the sum of their exact values, a variance the double next to the rational number that it is, and a
standard deviation the root of that double. What a group went through leaves no trace in them.

Cost: Python for each group that is read; numpy for counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Context, Decimal
from itertools import repeat
from typing import Any

import numpy as np

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.operators.aggregates.accumulators import (
    BIN_BITS,
    INF,
    LIMB_BITS,
    LOWEST,
    LOWEST_SQUARE,
    MINUS_INF,
    NAN,
    SLOTS,
    Ints,
    Slots,
    limbs,
)
from nosync_nb.rows import Column, buffers
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import FIXED, decimal_parts

_WIDE = Context(prec=80)

_EXACT = 1 << 53
LEAST, GREATEST = -1022, 900
"""Up to 2**53, and times a power of two between these, an integer is a double, and so are sums."""


def totals_column(values: list[Any], type_: str) -> Column:
    """A column of Python numbers or None."""
    if type_ == "bigint" and None not in values:
        return np.array(values, np.int64)
    if type_ == "double" and None not in values:
        return np.array(values, np.float64) + 0.0
    return rows.from_arrow(buffers.arrow_from_list(values, rows.arrow_type(type_)), type_)


def sum_column(slots: Slots, base: int, type_: str, result: str, count: Ints) -> list[Any]:
    """The exact sums of groups as Python numbers, None where no value was summed.

    Args:
        slots: numbers by slot, one for each group.
        base: the first slot of this sum.
        type_: the type of the summed column; `result`: the type of the sum.

    Raises:
        ExpressionError: if a final sum does not fit `result`.
    """
    if type_ in ("float", "double"):
        rounded = _rounded(slots, base, count)
        if rounded is not None:
            return rounded
        return [None if exact is None else _float(exact) for exact in doubles(slots, base, count)]
    numbers = _whole(slots, base, type_, count)
    unscaled = [u if c else None for u, c in zip(numbers, count.tolist(), strict=True)]
    return _fitting(unscaled, f"a sum of {type_}", result)


def mean_column(slots: Slots, base: int, type_: str, result: str, count: Ints) -> list[Any]:
    """The averages of groups, None where there is no value.

    Integers and doubles: the quotient as a double. Decimals: rounded half up to the scale of
    `result`, as Spark does; intervals to their last unit.

    Raises:
        ExpressionError: if an average does not fit `result`.
    """
    counts = count.tolist()
    if type_ in ("float", "double"):
        totals = sum_column(slots, base, type_, "double", count)
        return [None if s is None else s / c for s, c in zip(totals, counts, strict=True)]
    numbers = _whole(slots, base, type_, count)
    if result in INTERVALS:
        near = [_half_up(w, c) if c else None for w, c in zip(numbers, counts, strict=True)]
        return _fitting(near, f"an average of {type_}", result)
    if not result.startswith("decimal"):
        return [w / c if c else None for w, c in zip(numbers, counts, strict=True)]
    shift = 10 ** (decimal_parts(result)[1] - decimal_parts(type_)[1])
    unscaled = [_half_up(w * shift, c) if c else None for w, c in zip(numbers, counts, strict=True)]
    return _fitting(unscaled, f"an average of {type_}", result)


def spread_column(slots: Slots, base: int, squares: int, function: str, count: Ints) -> list[Any]:
    """The variances or standard deviations of doubles, None where there are too few values.

    Infinities and NaN give NaN, as in Spark.
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
    """bit_and, bit_or or bit_xor of groups, None where there is no value."""
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


def _whole(slots: Slots, base: int, type_: str, count: Ints) -> list[int]:
    """The sums of integer or unscaled decimal columns as Python integers."""
    zero = np.zeros(len(count), np.int64)
    parts: list[list[int]] = [slots.get(base + i, zero).tolist() for i in range(limbs(type_))]
    if len(parts) == 1:
        return parts[0]
    return [sum(v << (LIMB_BITS * i) for i, v in enumerate(p)) for p in zip(*parts, strict=True)]


def _fitting(unscaled: list[int | None], what: str, result: str) -> list[Any]:
    """Whole numbers as values of the type `result`."""
    known = [u for u in unscaled if u is not None]
    low, high = min(known, default=0), max(known, default=0)
    if not result.startswith("decimal"):
        least = -(2 ** (8 * FIXED[result].itemsize - 1))
        if not least <= low <= high < -least:
            raise ExpressionError(
                f"{what} leaves the range of {result}",
                hint="sum a wider type: sum(cast(x as decimal(38, 0)))",
            )
        return unscaled
    precision, scale = decimal_parts(result)
    if max(-low, high) >= 10**precision:
        raise ExpressionError(
            f"{what} leaves the range of {result}", hint="take doubles: cast(x as double)"
        )
    return [None if u is None else Decimal(u).scaleb(-scale, _WIDE) for u in unscaled]


def _half_up(above: int, below: int) -> int:
    """A quotient, rounded to the next integer and from the middle away from zero."""
    negative = (above < 0) != (below < 0)
    above, below = abs(above), abs(below)
    number = (2 * above + below) // (2 * below)
    return -number if negative else number


def doubles(slots: Slots, base: int, count: Ints) -> Iterator[int | float | None]:
    """For each group `sum * 2**LOWEST`, or an infinity or NaN; None where no value was summed."""
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


def _rounded(slots: Slots, base: int, count: Ints) -> list[float | None] | None:
    """Sums of doubles by `math.fsum`, which rounds once too; None if a bin of one is no double."""
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
    """The sum of bins of each group as one integer."""
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
    """`exact * 2**-LOWEST`, correctly rounded; what is not finite stays."""
    return exact if isinstance(exact, float) else quotient(exact, 1 << LOWEST)


def quotient(above: int, below: int) -> float:
    """The double next to a quotient; an overflow is infinite as in IEEE 754."""
    try:
        return above / below
    except OverflowError:
        return math.inf if above > 0 else -math.inf


def root(variance: float) -> float:
    """A square root; of less than 0, which rows counted below 0 may give, NaN."""
    return math.nan if variance < 0 else math.sqrt(variance)
