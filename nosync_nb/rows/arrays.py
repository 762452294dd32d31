"""Idioms for arrays of ten rows, and orders of arrays of millions.

Small epochs are made of such arrays, where a numpy reduction costs more than its work: `any` and
`all` take 2 us in numpy and 0.2 us here. Of many numbers of 64 bits numpy sorts one array with
vector instructions, but not two by two, and not stably: both are made of it here, four to five
times as fast as `lexsort` and a stable `argsort`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_FEW = 4096

_MANY = 512
_POSITION_BITS = 32

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]


_ONES = np.ones(_FEW, np.int64)
_ONES.setflags(write=False)


def ones(n: int) -> npt.NDArray[np.int64]:
    """`n` times 1, not to be written to."""
    return _ONES[:n] if n <= _FEW else np.ones(n, np.int64)


def any_true(mask: Mask) -> bool:
    """Whether any element is true."""
    if mask.size <= _FEW:
        return 1 in mask.tobytes()
    return bool(mask.any())


def all_true(mask: Mask) -> bool:
    """Whether every element is true."""
    if mask.size <= _FEW:
        return 0 not in mask.tobytes()
    return bool(mask.all())


def any_zero(values: npt.NDArray[np.int64]) -> bool:
    """Whether any number is 0."""
    if values.size <= 256:
        return 0 in values.tolist()
    return not values.all()


def total(values: npt.NDArray[np.int64]) -> int:
    """The sum of all numbers."""
    return sum(values.tolist()) if values.size <= 64 else int(values.sum())


def starts_of(same: Mask) -> npt.NDArray[np.int64]:
    """Where runs start, given whether each element but the first equals the one before."""
    first = np.ones(len(same) + 1, bool)
    np.logical_not(same, first[1:])
    return first.nonzero()[0]


def sorted_by(first: Numbers, second: Numbers) -> Positions:
    """Positions that sort by `first` and then by `second`; equal pairs stand in any order.

    Cost: O(n log n).
    """
    if len(first) <= _MANY:
        return np.lexsort((second, first))
    index = first.argsort()
    run = _runs(first[index])
    last = int(run[-1])
    if last == len(run) - 1:
        return index
    # The number of the run and as many leading bits of `second` as there is room for.
    bits = last.bit_length()
    if bits:
        run <<= np.uint64(64 - bits)
    run |= second[index] >> np.uint64(bits)
    again = run.argsort()
    index, run = index[again], run[again]
    same = (run[1:] == run[:-1]).nonzero()[0]
    if len(same) and (second[index[same]] > second[index[same + 1]]).any():
        return np.lexsort((second, first))
    return index


def stably_sorted_by(numbers: Numbers) -> Positions:
    """Positions that sort by `numbers`; those of equal ones ascend.

    Cost: O(n log n).
    """
    n = len(numbers)
    if n <= _MANY or n >> _POSITION_BITS:
        return numbers.argsort(kind="stable")
    index = numbers.argsort()
    run = _runs(numbers[index])
    if int(run[-1]) == n - 1:
        return index
    run <<= np.uint64(_POSITION_BITS)
    run |= index.view(np.uint64)
    run.sort()
    run &= np.uint64((1 << _POSITION_BITS) - 1)
    return run.view(np.int64)


def _runs(ascending: Numbers) -> Numbers:
    """For each number how many different ones stand before it."""
    run = np.zeros(len(ascending), np.uint64)
    np.cumsum(ascending[1:] != ascending[:-1], out=run[1:])
    return run
