"""Fast operations on arrays of about ten rows, and fast sorting of arrays with millions of rows.

Small epochs consist of short arrays. For these, the overhead of a numpy reduction exceeds its work:
`any` and `all` take 2 us in numpy and 0.2 us here.

numpy sorts 64-bit numbers with vector instructions, in a fifth of the time of computing a sort
order. Therefore the leading bits of hashes are combined with their positions and sorted as one
number. Then the few positions that these bits leave in the wrong order are corrected.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_FEW = 4096

_MANY = 512
_ROOM_MIN = 12
"""The fewest leading bits that are useful; with fewer, too many numbers of a run would be equal."""

WRONG_MAX = 1000
"""The greatest number of corrections; if more are needed, the array is sorted by another method."""

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]


_ONES = np.ones(_FEW, np.int64)
_ONES.setflags(write=False)


def ones(n: int) -> npt.NDArray[np.int64]:
    """Returns a read-only array of `n` ones."""
    return _ONES[:n] if n <= _FEW else np.ones(n, np.int64)


def any_true(mask: Mask) -> bool:
    """Returns True if any element is true."""
    if mask.size <= _FEW:
        return 1 in mask.tobytes()
    return bool(mask.any())


def all_true(mask: Mask) -> bool:
    """Returns True if every element is true."""
    if mask.size <= _FEW:
        return 0 not in mask.tobytes()
    return bool(mask.all())


def ascends(values: Numbers) -> bool:
    """Returns True if the numbers are in ascending order; equal neighbours are allowed."""
    return all_true(values[1:] >= values[:-1])


def any_zero(values: npt.NDArray[np.int64]) -> bool:
    """Returns True if any number is 0."""
    if values.size <= 256:
        return 0 in values.tolist()
    return not values.all()


def total(values: npt.NDArray[np.int64]) -> int:
    """Returns the sum of all numbers."""
    return sum(values.tolist()) if values.size <= 64 else int(values.sum())


def starts_of(same: Mask) -> npt.NDArray[np.int64]:
    """Returns the positions at which runs of equal elements start.

    Args:
        same: a mask of the elements, without the first one, that equal the previous element.
    """
    first = np.ones(len(same) + 1, bool)
    np.logical_not(same, first[1:])
    return first.nonzero()[0]


def sorted_by(first: Numbers, second: Numbers) -> Positions:
    """Returns positions that sort by `first` and then by `second`; equal pairs are in any order.

    Cost: O(n log n). Many hashes take a fifth of the time of `lexsort`, which sorts other arrays.
    """
    n = len(first)
    index = _sorted_hashes(first) if n > _MANY else None
    if index is None:
        return np.lexsort((second, first))
    taken = first[index]
    same = taken[1:] == taken[:-1]
    run = np.zeros(n, np.uint64)  # for each number, the number of lesser distinct ones
    np.cumsum(~same, out=run[1:])
    bits, last = (n - 1).bit_length(), int(run[-1])
    if last == n - 1:
        return index
    room = 64 - bits - last.bit_length()
    if room < _ROOM_MIN:
        return np.lexsort((second, first))
    # Each sort key consists of the index of the run, as many leading bits of `second` as fit, and
    # the position.
    run <<= np.uint64(room)
    run |= second[index] >> np.uint64(64 - room)
    index = index[_order_of(run, bits)]
    taken = second[index]
    if _repair_order(index, taken, same & (taken[1:] < taken[:-1]), same):
        return index
    return np.lexsort((second, first))


def stably_sorted_by(numbers: Numbers) -> Positions:
    """Returns positions that sort by `numbers`; the positions of equal numbers ascend.

    Cost: O(n log n). Many hashes take a third of the time of `argsort`.
    """
    index = _sorted_hashes(numbers) if len(numbers) > _MANY else None
    return numbers.argsort(kind="stable") if index is None else index


def _sorted_hashes(numbers: Numbers) -> Positions | None:
    """Returns positions that stably sort numbers; None if their leading bits are often equal."""
    bits = (len(numbers) - 1).bit_length()
    index = _order_of(numbers >> np.uint64(bits), bits)
    taken = numbers[index]
    return index if _repair_order(index, taken, taken[1:] < taken[:-1]) else None


def _order_of(numbers: Numbers, bits: int) -> Positions:
    """Returns the positions that sort numbers; overwrites the numbers.

    Args:
        bits: the number of bits of a position. Each number must have that many leading zero bits.
    """
    numbers <<= np.uint64(bits)
    numbers |= np.arange(len(numbers), dtype=np.uint64)
    numbers.sort()
    numbers &= np.uint64((1 << bits) - 1)
    return numbers.view(np.int64)


def _repair_order(index: Positions, taken: Numbers, wrong: Mask, same: Mask | None = None) -> bool:
    """Moves the few numbers that are less than the previous one; False if there are too many.

    Args:
        index, taken: positions, and the numbers at these positions; both are modified.
        wrong: a mask of the numbers whose next number is less.
        same: a mask of the numbers that may be exchanged with the next one; `None` allows every
            exchange.
    """
    if not any_true(wrong):
        return True
    places, steps = wrong.nonzero()[0].tolist(), 0
    if len(places) > WRONG_MAX:
        return False
    for place in places:
        end = place  # the numbers up to `end` are in order
        while end < len(wrong) and taken[end] > taken[end + 1] and (same is None or same[end]):
            at = end
            while at >= 0 and taken[at] > taken[at + 1] and (same is None or same[at]):
                for each in (index, taken):
                    each[at], each[at + 1] = each[at + 1], each[at]
                at, steps = at - 1, steps + 1
                if steps > WRONG_MAX:
                    return False
            end += 1
    return True
