"""Accumulators: aggregates as integers that add up, so that a retraction is exact.

Every aggregate of a group is computed from **slots**, int64 numbers that are sums over the rows of
the group of (contribution x diff). A slot is stored as a row (key, slot) whose *diff* is the
number. Merging batches adds them, as it adds any diffs, and a number that returns to 0 vanishes.

- slot 0 counts rows; `count(x)` counts rows where x is not null.
- integers and decimals are cut into 32-bit limbs, so sums are exact and an overflow of the final
  value is detected, whatever the intermediate sums were.
- doubles are cut into bins of 30 bits by exponent; the sum is exact and rounded once, when it is
  read. Infinities and NaN are counted separately. Squares of doubles are cut in the same way.
- integers are also cut into bits: the number of values with each bit gives the bitwise and, or, xor
  of all.

This module cuts the values; results.py reads the slots.

Cost: a slot or two per group and sum of integers, up to 100 per sum of doubles (as many as there
are exponents in the group), 150 more for squares, a slot for each bit.
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
"""How many slots a kind of contribution may use; `2` are those of a second argument."""
_HALF_BITS = 27
TOGETHER = 4096
"""The maximum number of values that are added up for all slots at once: with more, their bound
would leave 64 bits."""
_SHORT = frozenset(("tinyint", "smallint", "int", *YEAR_MONTHS))

Parts = dict[int, tuple[Ints, Ints]]
"""Slot offset -> (row numbers, contributions)."""


def limbs(type_: str) -> int:
    """Returns how many 32-bit limbs a sum over columns of this type uses."""
    if type_ in _SHORT:
        return 1
    return 2 if type_ == "bigint" or type_ in DAY_TIMES else 4


def contributions(kind: str, column: Column, type_: str, n: int) -> Parts:
    """Cuts the non-null values of a column into contributions.

    Args:
        kind: of `SLOTS`; variances are of doubles, whatever the type is, as in Spark.
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
    """Cuts two columns without nulls, as doubles, into contributions of their rows."""
    if kind != "products":
        column = second if kind.endswith(" 2") else first
        return contributions(kind.removesuffix(" 2"), column, "double", len(column))
    x, y = numbers_of(first, np.float64), numbers_of(second, np.float64)
    numbers = (np.isfinite(x) & np.isfinite(y)).nonzero()[0]
    (a, p), (b, q) = _whole_and_exponent(x[numbers]), _whole_and_exponent(y[numbers])
    wholes = [v * w for v, w in zip(a.tolist(), b.tolist(), strict=True)]
    return _cut_into_bins(numbers, wholes, p + q + LOWEST_PRODUCT)


def numbers_of(column: Column, dtype: Any) -> Any:
    """Returns a null-free column as a numpy array of numbers."""
    if isinstance(column, pa.Array):
        column = buffers.values_of(column)
    return column.astype(dtype)


def _limbs(numbers: Wholes, n: int) -> Parts:
    """Cuts whole numbers of up to 128 bits; the limbs of a value do not depend on other values."""
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
    """One contribution for each bit that a value has."""
    result = {}
    for bit in range(8 * FIXED[type_].itemsize):
        index = ((values >> bit) & 1).nonzero()[0]
        if len(index):
            result[bit] = (index, np.ones(len(index), np.int64))
    return result


def _bins(values: npt.NDArray[np.float64]) -> Parts:
    """Cuts doubles into 30-bit chunks by exponent."""
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
    """Returns the slots and the contributions of one double, as `contributions` cuts many."""
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
    """Cuts squares of finite doubles into 30-bit chunks; the slots of the sum count the others."""
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
    """Cuts powers of finite doubles into 30-bit chunks; the slots of the sum count the others."""
    numbers = np.isfinite(values).nonzero()[0]
    whole, exponent = _whole_and_exponent(values[numbers])
    return _cut_into_bins(numbers, [w**power for w in whole.tolist()], power * exponent + lowest)


def _cut_into_bins(numbers: Ints, wholes: list[int], lowest: Ints) -> Parts:
    """Cuts whole * 2**lowest, of integers of any width, into chunks of bins."""
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
    """Finite doubles as whole * 2**exponent, whole of 53 bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(mantissa, 53).astype(np.int64), exponent.astype(np.int64) - 53


def thirds(values: npt.NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Returns the bin of each finite double, and its parts in that bin and the next two, by row."""
    whole, exponent = _whole_and_exponent(values)
    place, chunks = _thirds(np.abs(whole), exponent + LOWEST)
    chunks *= np.sign(whole)
    return place, chunks


def _thirds(whole: Ints, lowest: Ints) -> tuple[Ints, Ints]:
    """Numbers of up to 60 bits, times 2**lowest, in the form of `thirds`."""
    place, shift = np.divmod(lowest, BIN_BITS)
    chunks = np.empty((3, len(whole)), np.int64)
    high = whole >> (BIN_BITS - shift)
    np.bitwise_and(whole << shift, _BIN, out=chunks[0])
    np.bitwise_and(high, _BIN, out=chunks[1])
    np.right_shift(high, BIN_BITS, out=chunks[2])
    return place, chunks


def _chunk(result: Parts, numbers: Ints, sign: Ints, whole: Ints, lowest: Ints) -> None:
    """Adds sign * whole * 2**lowest, in chunks of bins, to `result`; whole has up to 60 bits."""
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
    """Returns the numbers of groups in the accumulator trace; `alone`: it has slot 0 only."""
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
    """`n` sums of the numbers with the same position."""
    added = np.zeros(n, np.int64)
    add_at(added, place, numbers)
    return added
