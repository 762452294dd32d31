"""Accumulators: aggregates as additive integers, so that a retraction is exact.

Every aggregate of a group is computed from **slots**. A slot is an int64 number: the sum of
contribution x diff over the rows of the group. It is stored as a row (key, slot) whose *diff* is
the number. Merging batches adds these numbers, as it adds any diffs, and removes zeros.

- Slot 0 counts the rows; `count(x)` counts the rows in which x is not null.
- Integers and decimals are split into 32-bit limbs. So sums are exact, and only an overflow of the
  final value is an error, whatever the intermediate sums were.
- Doubles are split into bins of 30 bits by exponent. The sum is exact, and is rounded once, when it
  is read. Infinities and NaN are counted separately. Squares of doubles are split in the same way.
- For bitwise aggregates, integers are split into bits. The number of values with each bit set
  determines the bitwise and, or, xor of all values.

This module splits the values; results.py reads the slots.

Cost: one to four slots for each sum of integers or decimals of a group; up to 100 for a sum of
doubles, depending on the range of exponents in the group; up to 150 more for squares; one slot for
each bit.
Source: exact summation by exponent bins, as in Demmel and Nguyen, ARITH 2013.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nosync_nb.operators.base import Step
from nosync_nb.rows import Column, buffers, decimals
from nosync_nb.rows.count_arithmetic import add_at
from nosync_nb.rows.ddl import DAY_TIMES, YEAR_MONTHS
from nosync_nb.rows.decimals import Wholes
from nosync_nb.rows.types import FIXED, FLOATS
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Hashes, Index

Ints = npt.NDArray[np.int64]
Slots = dict[int, Ints]

LIMB_BITS = 32
_LIMB = (1 << LIMB_BITS) - 1
BIN_BITS = 30
_BIN = (1 << BIN_BITS) - 1
LOWEST = 1110  # the exponent of the lowest bit of bin 0 is -LOWEST, below any double
LOWEST_SQUARE = 2160  # the same for squares
INF, MINUS_INF, NAN = 90, 91, 92
LOWEST_CUBE, LOWEST_FOURTH, LOWEST_PRODUCT = 3390, 4510, 2260
SLOTS = {"count": 1, "sum": 100, "doubles": 100, "squares": 150, "bits": 64}
SLOTS |= {"cubes": 230, "fourths": 300, "products": 160, "doubles 2": 100, "squares 2": 150}
"""The maximum number of slots of each kind of contribution; `2` marks the second argument."""
_HALF_BITS = 27
TOGETHER = 4096
"""The maximum number of stored rows that are summed for all slots at once. With more rows the bound
on the sums would exceed 64 bits, and `add_at` would become slow."""
_SHORT = frozenset(("tinyint", "smallint", "int", *YEAR_MONTHS))

Parts = dict[int, tuple[Ints, Ints]]
"""The row numbers and the contributions of these rows, by offset of the slot."""


def limbs(type_: str) -> int:
    """Returns the number of 32-bit limbs of a sum over columns of a type."""
    if type_ in _SHORT:
        return 1
    return 2 if type_ == "bigint" or type_ in DAY_TIMES else 4


def contributions(kind: str, column: Column, type_: str, n: int) -> Parts:
    """Splits the values of a column without nulls into contributions.

    Args:
        kind: a key of `SLOTS`. Variances convert values of any type to doubles, as in Spark.
        n: the number of values.
    """
    if kind == "bits":
        return _bits(numbers_of(column, np.int64), type_)
    if kind == "squares":
        return _squares(numbers_of(column, np.float64))
    if kind == "cubes":
        return _powers(numbers_of(column, np.float64), 3, LOWEST_CUBE)
    if kind == "fourths":
        return _powers(numbers_of(column, np.float64), 4, LOWEST_FOURTH)
    if kind == "doubles" or type_ in FLOATS:
        return _bins(numbers_of(column, np.float64))
    if type_.startswith("decimal"):
        return _limbs(decimals.load_decimals(column, type_)[0], n)
    values = numbers_of(column, np.int64)
    every = np.arange(n)
    if limbs(type_) == 1:
        return {0: (every, values)}
    return {0: (every, values & _LIMB), 1: (every, values >> LIMB_BITS)}


def pair_contributions(kind: str, first: Column, second: Column) -> Parts:
    """Converts two columns without nulls to doubles, and splits them into contributions."""
    if kind != "products":
        column = second if kind.endswith(" 2") else first
        return contributions(kind.removesuffix(" 2"), column, "double", len(column))
    x, y = numbers_of(first, np.float64), numbers_of(second, np.float64)
    numbers = (np.isfinite(x) & np.isfinite(y)).nonzero()[0]
    (a, p), (b, q) = _whole_and_exponent(x[numbers]), _whole_and_exponent(y[numbers])
    wholes = [v * w for v, w in zip(a.tolist(), b.tolist(), strict=True)]
    return _cut_into_bins(numbers, wholes, p + q + LOWEST_PRODUCT)


def numbers_of(column: Column, dtype: Any) -> Any:
    """Converts a column without nulls to a numpy array of numbers."""
    if isinstance(column, pa.Array):
        column = buffers.values_of(column)
    return column.astype(dtype)


def _limbs(numbers: Wholes, n: int) -> Parts:
    """Splits integers of up to 128 bits into limbs, each value independently of the others."""
    every = np.arange(n)
    if numbers.dtype.hasobject:
        cut = [(numbers >> (LIMB_BITS * limb)) & _LIMB for limb in range(3)]
        cut.append(numbers >> (LIMB_BITS * 3))
        return {limb: (every, values.astype(np.int64)) for limb, values in enumerate(cut)}
    result = {0: (every, numbers & _LIMB), 1: (every, (numbers >> LIMB_BITS) & _LIMB)}
    below = (numbers < 0).nonzero()[0]
    if len(below):
        result[2] = (below, np.full(len(below), _LIMB))
        result[3] = (below, np.full(len(below), -1))
    return result


def _bits(values: Ints, type_: str) -> Parts:
    """Returns a contribution of 1 for each bit that is set in a value."""
    result = {}
    for bit in range(8 * FIXED[type_].itemsize):
        index = ((values >> bit) & 1).nonzero()[0]
        if len(index):
            result[bit] = (index, np.ones(len(index), np.int64))
    return result


def _bins(values: npt.NDArray[np.float64]) -> Parts:
    """Splits doubles into 30-bit chunks by exponent, and counts infinities and NaN."""
    result: Parts = {}
    finite = np.isfinite(values)
    if not finite.all():
        kinds = ((INF, np.isposinf), (MINUS_INF, np.isneginf), (NAN, np.isnan))
        for slot, test in kinds:
            index = test(values).nonzero()[0]
            if len(index):
                result[slot] = (index, np.ones(len(index), np.int64))
    numbers = finite.nonzero()[0]
    whole, exponent = _whole_and_exponent(values[numbers])
    _chunk(result, numbers, np.sign(whole), np.abs(whole), exponent + LOWEST)
    return result


def bins_of(value: float) -> list[tuple[int, int]]:
    """Returns the slots and contributions of one double, equal to those of `contributions`."""
    if not math.isfinite(value):
        return [(NAN if math.isnan(value) else INF if value > 0 else MINUS_INF, 1)]
    mantissa, exponent = math.frexp(value)
    place, shift = divmod(exponent - 53 + LOWEST, BIN_BITS)
    whole = int(math.ldexp(mantissa, 53)) << shift
    sign, rest, chunks = (-1 if whole < 0 else 1), abs(whole), []
    while rest:
        if chunk := rest & _BIN:
            chunks.append((place, sign * chunk))
        rest >>= BIN_BITS
        place += 1
    return chunks


def _squares(values: npt.NDArray[np.float64]) -> Parts:
    """Splits the squares of finite doubles into 30-bit chunks.

    Infinities and NaN are counted in the slots of the sum.
    """
    result: Parts = {}
    numbers = np.isfinite(values).nonzero()[0]
    whole, exponent = _whole_and_exponent(values[numbers])
    whole = np.abs(whole)
    high, low = whole >> _HALF_BITS, whole & ((1 << _HALF_BITS) - 1)
    lowest = 2 * exponent + LOWEST_SQUARE
    one = np.ones(len(numbers), np.int64)
    _chunk(result, numbers, one, low * low, lowest)
    _chunk(result, numbers, one, 2 * high * low, lowest + _HALF_BITS)
    _chunk(result, numbers, one, high * high, lowest + 2 * _HALF_BITS)
    return result


def _powers(values: npt.NDArray[np.float64], power: int, lowest: int) -> Parts:
    """Splits powers of finite doubles into 30-bit chunks.

    Infinities and NaN are counted in the slots of the sum.
    """
    numbers = np.isfinite(values).nonzero()[0]
    whole, exponent = _whole_and_exponent(values[numbers])
    return _cut_into_bins(numbers, [w**power for w in whole.tolist()], power * exponent + lowest)


def _cut_into_bins(numbers: Ints, wholes: list[int], lowest: Ints) -> Parts:
    """Splits whole * 2**lowest, for integers of any width, into the chunks of bins."""
    by_bin: dict[int, tuple[list[int], list[int]]] = {}
    for number, whole, low in zip(numbers.tolist(), wholes, lowest.tolist(), strict=True):
        place, shift = divmod(low, BIN_BITS)
        sign, rest = (-1 if whole < 0 else 1), abs(whole) << shift
        while rest:
            index, chunks = by_bin.setdefault(place, ([], []))
            index.append(number)
            chunks.append(sign * (rest & _BIN))
            rest >>= BIN_BITS
            place += 1
    return {place: (np.array(index), np.array(chunks)) for place, (index, chunks) in by_bin.items()}


def _whole_and_exponent(values: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Returns integers of 53 bits and exponents: each finite double is whole * 2**exponent."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(mantissa, 53).astype(np.int64), exponent.astype(np.int64) - 53


def thirds(values: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Returns the bin of each finite double, and its three parts from this bin on, one per row."""
    whole, exponent = _whole_and_exponent(values)
    place, chunks = _thirds(np.abs(whole), exponent + LOWEST)
    chunks *= np.sign(whole)
    return place, chunks


def _thirds(whole: Ints, lowest: Ints) -> tuple[Ints, Ints]:
    """Returns the same as `thirds` for numbers of up to 60 bits, multiplied by 2**lowest."""
    place, shift = np.divmod(lowest, BIN_BITS)
    chunks = np.empty((3, len(whole)), np.int64)
    high = whole >> (BIN_BITS - shift)
    np.bitwise_and(whole << shift, _BIN, out=chunks[0])
    np.bitwise_and(high, _BIN, out=chunks[1])
    np.right_shift(high, BIN_BITS, out=chunks[2])
    return place, chunks


def _chunk(result: Parts, numbers: Ints, sign: Ints, whole: Ints, lowest: Ints) -> None:
    """Adds the chunks of sign * whole * 2**lowest to `result`; whole has up to 60 bits."""
    place, chunks = _thirds(whole, lowest)
    for offset, chunk in enumerate(chunks):
        used = chunk.nonzero()[0]
        if not len(used):
            continue
        places = place[used]
        least = int(places.min())
        bins = (np.bincount(places - least).nonzero()[0] + least).tolist()
        for bin_ in bins:
            index = used if len(bins) == 1 else used[places == bin_]
            part = (numbers[index], sign[index] * chunk[index])
            slot = bin_ + offset
            if slot in result:
                old = result[slot]
                part = (np.concatenate((old[0], part[0])), np.concatenate((old[1], part[1])))
            result[slot] = part


def stored(
    trace: Trace, khash: Hashes, keys: Sequence[Column], step: Step, *, alone: bool
) -> Slots:
    """Returns the numbers of groups in the accumulator trace, by slot.

    Args:
        khash, keys: the keys of the groups, and their hashes.
        alone: True if the trace has only slot 0.
    """
    n = len(khash)
    if alone:
        matches = trace.lookup(khash, keys, ())
        if matches is None:
            return {}
        step.add_touched(len(matches.diff))
        return {0: _sums_by_position(matches.probe, matches.diff, n)}
    slot_at = len(trace.layout.types) - 1
    matches = trace.lookup(khash, keys, (slot_at,))
    if matches is None:
        return {}
    step.add_touched(len(matches.diff))
    slots, place, numbers = np.asarray(matches.columns[0]), matches.probe, matches.diff
    if len(slots) <= TOGETHER:
        there, number = np.unique(slots, return_inverse=True)
        added = _sums_by_position(number * n + place, numbers, len(there) * n)
        return dict(zip(there.tolist(), added.reshape(-1, n), strict=True))
    result: Slots = {}
    for slot in np.unique(slots).tolist():
        index = (slots == slot).nonzero()[0]
        result[slot] = _sums_by_position(place[index], numbers[index], n)
    return result


def _sums_by_position(
    place: Index, numbers: npt.NDArray[np.int64], n: int
) -> npt.NDArray[np.int64]:
    """Returns, for each position below `n`, the sum of the numbers at that position."""
    added = np.zeros(n, np.int64)
    add_at(added, place, numbers)
    return added
