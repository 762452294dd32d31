"""Accumulators: aggregates as integers that add up, so that a retraction returns exactly.

Every aggregate of a group is computed from **slots**, int64 numbers that are sums over the rows of
the group of (contribution x diff). A slot is stored as a row (key, slot) whose *diff* is the
number: merging batches adds them, as it adds any diffs, and a number that returns to 0 vanishes.

- slot 0 counts rows; `count(x)` counts rows where x is not null.
- integers and decimals are cut into 32-bit limbs, so sums are exact and an overflow of the final
  value is seen, whatever came in between.
- doubles are cut into bins of 30 bits by exponent; the sum is exact and rounded once, when it is
  read. Infinities and NaN are counted apart.

Cost: a slot or two per group and aggregate; per-group Python only for reading sums of doubles.
Source: exact summation by exponent bins, as in Demmel and Nguyen, ARITH 2013.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.rows import Column

Ints = npt.NDArray[np.int64]
Slots = dict[int, Ints]

LIMB_BITS = 32
_LIMB = (1 << LIMB_BITS) - 1
_BIN_BITS = 30
_BIN = (1 << _BIN_BITS) - 1
_LOWEST = 1110  # the exponent of the lowest bit of bin 0 is -_LOWEST, below any double
_INF, _MINUS_INF, _NAN = 90, 91, 92
SLOTS_PER_SUM = 100


def limbs(type_: str) -> int:
    """How many 32-bit limbs a sum over columns of this type uses."""
    if type_ in ("tinyint", "smallint", "int"):
        return 1
    return 2 if type_ == "bigint" else 4


def contributions(column: Column, type_: str, n: int) -> dict[int, tuple[Ints, Ints]]:
    """Cuts the non-null values of a column into contributions.

    Returns:
        slot offset -> (row numbers, contributions).
    """
    if type_ in ("float", "double"):
        return _bins(np.asarray(_numbers(column, type_, np.float64), np.float64))
    if type_.startswith("decimal"):
        return _decimal_limbs(column, type_, n)
    values = _numbers(column, type_, np.int64)
    every = np.arange(n)
    if limbs(type_) == 1:
        return {0: (every, values)}
    return {0: (every, values & _LIMB), 1: (every, values >> LIMB_BITS)}


def _numbers(column: Column, type_: str, dtype: Any) -> Any:
    """A null-free column as a numpy array of numbers."""
    if isinstance(column, pa.Array):
        column = column.to_numpy(zero_copy_only=False)
    return column.astype(dtype)


def _decimal_limbs(column: Column, type_: str, n: int) -> dict[int, tuple[Ints, Ints]]:
    scale = int(type_.rstrip(")").split(",")[1])
    unscaled = [int(v.scaleb(scale)) for v in rows.to_pylist(column, type_)]
    every = np.arange(n)
    result = {}
    for limb in range(4):
        shift = LIMB_BITS * limb
        cut = [(u >> shift) if limb == 3 else (u >> shift) & _LIMB for u in unscaled]
        result[limb] = (every, np.array(cut, np.int64))
    return result


def _bins(values: npt.NDArray[np.float64]) -> dict[int, tuple[Ints, Ints]]:
    """Cuts doubles into 30-bit chunks by exponent."""
    result: dict[int, tuple[Ints, Ints]] = {}
    finite = np.isfinite(values)
    if not finite.all():
        kinds = ((_INF, np.isposinf), (_MINUS_INF, np.isneginf), (_NAN, np.isnan))
        for slot, test in kinds:
            index = test(values).nonzero()[0]
            if len(index):
                result[slot] = (index, np.ones(len(index), np.int64))
    numbers = finite.nonzero()[0]
    mantissa, exponent = np.frexp(values[numbers])
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    sign = np.sign(whole)
    whole = np.abs(whole)
    place, shift = np.divmod(exponent.astype(np.int64) - 53 + _LOWEST, _BIN_BITS)
    chunks = (
        (whole << shift) & _BIN,
        (whole >> (_BIN_BITS - shift)) & _BIN,
        whole >> (2 * _BIN_BITS - shift),
    )
    for offset, chunk in enumerate(chunks):
        used = chunk.nonzero()[0]
        for bin_ in np.unique(place[used]).tolist():
            index = used[place[used] == bin_]
            found = (numbers[index], sign[index] * chunk[index])
            slot = bin_ + offset
            if slot in result:
                old = result[slot]
                found = (np.concatenate((old[0], found[0])), np.concatenate((old[1], found[1])))
            result[slot] = found
    return result


def total(slots: Slots, base: int, type_: str, result: str, count: Ints) -> list[Any]:
    """The exact sums of groups as Python numbers, None where no value was summed.

    Args:
        slots: numbers by slot, one for each group.
        base: the first slot of this sum.
        type_: the type of the summed column; `result`: the type of the sum.

    Raises:
        ExpressionError: if a final sum does not fit `result`.
    """
    if type_ in ("float", "double"):
        return _float_totals(slots, base, count)
    unscaled = whole(slots, base, type_, len(count))
    if not result.startswith("decimal"):
        if unscaled and not -(2**63) <= min(unscaled) <= max(unscaled) < 2**63:
            raise ExpressionError(
                f"a sum of {type_} leaves the range of {result}",
                hint="sum a wider type: sum(cast(x as decimal(38, 0)))",
            )
        return [u if c else None for u, c in zip(unscaled, count.tolist(), strict=True)]
    precision, scale = (int(p) for p in result[8:-1].split(","))
    if unscaled and max(map(abs, unscaled)) >= 10**precision:
        raise ExpressionError(f"a sum of {type_} leaves the range of {result}")
    return [
        Decimal(u).scaleb(-scale) if c else None
        for u, c in zip(unscaled, count.tolist(), strict=True)
    ]


def whole(slots: Slots, base: int, type_: str, n: int) -> list[int]:
    """The sums of integer or unscaled decimal columns as Python integers."""
    zero = np.zeros(n, np.int64)
    parts: list[list[int]] = [slots.get(base + i, zero).tolist() for i in range(limbs(type_))]
    if len(parts) == 1:
        return parts[0]
    return [sum(v << (LIMB_BITS * i) for i, v in enumerate(p)) for p in zip(*parts, strict=True)]


def _float_totals(slots: Slots, base: int, count: Ints) -> list[Any]:
    bins = sorted(s - base for s in slots if base <= s < base + _INF)
    numbers = [slots[base + b].tolist() for b in bins]
    special = [slots.get(base + s) for s in (_INF, _MINUS_INF, _NAN)]
    result: list[Any] = []
    for g, some in enumerate(count.tolist()):
        if not some:
            result.append(None)
            continue
        inf, minus, nan = (0 if s is None else int(s[g]) for s in special)
        if nan or (inf and minus):
            result.append(float("nan"))
        elif inf or minus:
            result.append(float("inf") if inf else float("-inf"))
        else:
            exact = sum(
                column[g] << (_BIN_BITS * b) for b, column in zip(bins, numbers, strict=True)
            )
            result.append(_rounded(exact))
    return result


def _rounded(exact: int) -> float:
    """`exact * 2**-_LOWEST`, correctly rounded; an overflow is infinite as in IEEE 754."""
    try:
        return exact / (1 << _LOWEST)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")
