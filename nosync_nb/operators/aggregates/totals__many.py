"""Totals of many groups at once: sums and averages of numbers as whole columns.

The same values as totals.py gives group by group, with the same rounding. What does not fit a
number of the machine is left to that one: it knows any width, and how an error is said.

Design
    A sum of doubles lies in bins of 30 bits. Carried from bin to bin its digits are those of the
    exact sum; the first 61 bits of these, and whether there is anything below, are one integer,
    which the processor rounds as IEEE 754 says. A sum below the least normal double is a multiple
    of the least double and has no digits that could be lost, so that no value is rounded twice.

Cost: some 20 ns for a group and bin.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.operators.aggregates.accumulators import (
    BIN_BITS,
    INF,
    LIMB_BITS,
    LOWEST,
    MINUS_INF,
    NAN,
    Ints,
    Slots,
    limbs,
)
from nosync_nb.rows import Column, buffers
from nosync_nb.rows.types import FLOATS, INTEGERS

Doubles = npt.NDArray[np.float64]

FEW = 192
"""Up to so many groups Python is as quick."""

_AT_ONCE = 8192
"""So many groups stay in the cache with their digits."""

_SAFE = 1 << 62
_BIN = (1 << BIN_BITS) - 1
_LIMB = (1 << LIMB_BITS) - 1
_EXACT = 1 << 53
_BITS = 61
_CARRIED = 3
"""How many bins a number of 64 bits reaches beyond its own, with the sign."""


def group_totals(
    function: str, slots: Slots, base: int, type_: str, result: str, count: Ints
) -> Column | None:
    """The sums or averages of groups, null where no value is there; None: not to be had so.

    Args:
        function: `sum` or `avg`.
        base: the first slot of the sum; `type_`: of the summed column; `result`: of the total.
        count: how many values each group has.
    """
    if len(count) <= FEW:
        return None
    values: npt.NDArray[Any] | None = None
    if type_ in FLOATS:
        values = _doubles(slots, base, len(count))
        if values is not None and function == "avg":
            with np.errstate(all="ignore"):  # 0 / 0 is null below
                values = values / count
    elif type_ in INTEGERS:
        values = _integers(slots, base, type_, len(count), mean=function == "avg")
        if values is not None and function == "avg":
            if int(count.max()) >= _EXACT or int(count.min()) <= -_EXACT:
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


def _integers(slots: Slots, base: int, type_: str, n: int, *, mean: bool) -> Ints | None:
    """Sums of integers; None if one needs more than 64 bits, or 53 as the part of a mean."""
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
    return None if mean and _greatest(low) >= _EXACT else low


def _doubles(slots: Slots, base: int, n: int) -> Doubles | None:
    """The doubles next to sums of doubles; None if one of their parts is near the limit."""
    bins = sorted(s - base for s in slots if base <= s < base + INF)
    made = np.zeros(n)
    if any(_greatest(slots[base + b]) >= _SAFE for b in bins):
        return None
    for start in range(0, n if bins else 0, _AT_ONCE):
        digits = np.zeros((bins[-1] - bins[0] + 1 + _CARRIED, min(_AT_ONCE, n - start)), np.int64)
        for b in bins:
            digits[b - bins[0]] = slots[base + b][start : start + _AT_ONCE]
        made[start : start + _AT_ONCE] = nearest_double(digits, BIN_BITS * bins[0] - LOWEST)
    special = {s: slots[base + s] != 0 for s in (INF, MINUS_INF, NAN) if base + s in slots}
    if special:
        none = np.zeros(n, bool)
        above, below = special.get(INF, none), special.get(MINUS_INF, none)
        made[above] = np.inf
        made[below] = -np.inf
        made[special.get(NAN, none) | (above & below)] = np.nan
    return made


def nearest_double(digits: npt.NDArray[np.int64], exponent: int) -> Doubles:
    """The double next to each `sum(digits[i] * 2**(30 * i + exponent))`; `digits` is used up.

    Args:
        digits: by bin and number, each below 2**62, and the last bins 0.
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
    # Of the third digit as many bits as make `_BITS` with those of the first and second.
    size = np.frexp(first.astype(np.float64))[1].astype(np.int64)
    left = np.maximum(size - (_BITS - 2 * BIN_BITS), 0)
    whole = (((first << BIN_BITS) | second) << (BIN_BITS - left)) | (third >> left)
    more = (third & ((np.int64(1) << left) - 1)) != 0
    more |= (first != 0) & (there.argmax(0) < last - 2)
    whole |= more
    places = left + (BIN_BITS * (last - 2) + exponent)
    with np.errstate(over="ignore"):  # to infinity, as IEEE 754 has it
        made: Doubles = np.ldexp(whole.astype(np.float64), places)
    return np.where(negative, -made, made)


def _carry(digits: npt.NDArray[np.int64]) -> None:
    """Leaves 30 bits in each bin but the last, which has the sign."""
    for i in range(len(digits) - 1):
        digits[i + 1] += digits[i] >> BIN_BITS
        digits[i] &= _BIN


def _greatest(numbers: Ints) -> int:
    """The greatest size of a number."""
    return max(int(numbers.max()), -int(numbers.min()))
