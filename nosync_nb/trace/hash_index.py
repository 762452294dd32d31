"""Finding: where hashes are in the sorted hashes of a large part, by their first bits.

To halve a part until one row is left is a miss of the cache each time, for each hash by itself.
Hashes are spread evenly, so their first bits say within some dozens of rows where they are; the
rest is halved for all of them together. That pays while those that are wanted are far apart. Hashes
that are not spread, as many rows have few keys, take as many steps as halving all rows would.
"""

from __future__ import annotations

import numpy as np

from nosync_nb.rows.array_ops import all_true, any_true, total
from nosync_nb.trace.batch import Hashes, Index

LARGE = 1 << 16
"""Hashes of fewer rows stay in the cache: they are halved."""

SOME = 32
"""Fewer hashes than these are looked for one by one: each step for all costs some us."""

_BUCKET = 64

_APART = 7


def sparse_index(held: int, wanted: int) -> bool:
    """Whether so few of many hashes are wanted that their first bits are worth asking for.

    Where more than one of every 128 is, in their order, whoever halves is where he was just now.
    """
    return held >= LARGE and wanted <= held >> _APART


class HashPrefixIndex:
    """The places where hashes with the same first bits begin.

    Args:
        hashes: ascending, at least two.

    Cost: 2 ns for each of them.
    """

    __slots__ = ("_most", "_shift", "_starts")

    def __init__(self, hashes: Hashes) -> None:
        bits = max(1, (len(hashes) // _BUCKET).bit_length() - 1)
        self._shift = np.uint64(64 - bits)
        self._starts = hashes.searchsorted(np.arange(1 << bits, dtype=np.uint64) << self._shift)
        most = int(np.diff(self._starts, append=len(hashes)).max())
        self._most = max(1, most)  # whatever a file of somebody else has

    def places(self, hashes: Hashes, wanted: Hashes, *, behind: bool = False) -> Index:
        """What `hashes.searchsorted(wanted)` gives; `behind`: as its side "right".

        Args:
            hashes: those that it was made of.
        """
        below = np.less_equal if behind else np.less
        at: Index = self._starts.take((wanted >> self._shift).view(np.int64))
        step = 1 << (self._most.bit_length() - 1)
        while step:
            # Behind the last hash with these bits are larger ones, or the last of all again.
            passed = below(hashes.take(at + (step - 1), mode="clip"), wanted)
            np.add(at, step, out=at, where=passed)
            step >>= 1
        return np.minimum(at, len(hashes))


def find_hashes(
    hashes: Hashes, wanted: Hashes, bits: HashPrefixIndex | None
) -> tuple[Index, Index] | None:
    """Where some hashes are in sorted ones: (number, place) for each place; None if nowhere.

    Args:
        bits: those of the sorted ones, if they are `sparse`.
    """
    n = len(hashes)
    if not n or not len(wanted):
        return None
    low = hashes.searchsorted(wanted) if bits is None else bits.places(hashes, wanted)
    same = hashes.take(low, mode="clip") == wanted
    if all_true(same):
        probe = np.arange(len(wanted))
    else:
        probe = same.nonzero()[0]
        if not len(probe):
            return None
        low, wanted = low[probe], wanted[probe]
    after = low + 1
    if not any_true((hashes.take(after, mode="clip") == wanted) & (after < n)):
        return probe, low
    if bits is None:
        high = hashes.searchsorted(wanted, "right")
    else:
        high = bits.places(hashes, wanted, behind=True)
    count = high - low
    return probe.repeat(count), hash_ranges(low, count)


def find_few_hashes(hashes: Hashes, wanted: Hashes) -> tuple[Index, Index] | None:
    """What `found` says, for few hashes."""
    low = hashes.searchsorted(wanted)
    high = hashes.searchsorted(wanted, "right")
    if low.tobytes() == high.tobytes():
        return None
    count = high - low
    probe = count.nonzero()[0]
    if total(count) == len(probe):
        return probe, low[probe]
    return np.arange(len(wanted)).repeat(count), hash_ranges(low, count)


def hash_ranges(start: Index, count: Index) -> Index:
    """Concatenates `arange(start[i], start[i] + count[i])`."""
    ends = count.cumsum()
    length = int(ends[-1]) if len(ends) else 0
    positions: Index = np.arange(length) + (start - ends + count).repeat(count)
    return positions
