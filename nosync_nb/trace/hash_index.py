"""Finds hashes in the sorted hashes of a large part, by their first bits.

A binary search costs a cache miss for each step of each hash. Hashes are spread evenly, so their
first bits locate them within some dozens of rows; the rest is a binary search for all of them
together. That pays if the wanted hashes are far apart. Hashes that are not spread, because many
rows have few keys, take as many steps as a binary search over all rows.
"""

from __future__ import annotations

import numpy as np

from nosync_nb.rows.array_ops import all_true, any_true, total
from nosync_nb.trace.batch import Hashes, Index

LARGE = 1 << 16
"""Fewer hashes than these stay in the cache, so a binary search is used."""

SOME = 32
"""Fewer hashes than these are looked up one by one: each vectorised step costs some us."""

_BUCKET = 64

_SPARSE_SHIFT = 7


def sparse_index(held: int, wanted: int) -> bool:
    """Returns True if so few of many hashes are wanted that a prefix index pays.

    If more than one of every 128 is wanted, in order, a binary search stays close to its previous
    position.
    """
    return held >= LARGE and wanted <= held >> _SPARSE_SHIFT


class HashPrefixIndex:
    """The first positions of hashes with the same first bits.

    Args:
        hashes: ascending, at least two.

    Cost: 2 ns for each of them.
    """

    __slots__ = ("_bucket_max", "_shift", "_starts")

    def __init__(self, hashes: Hashes) -> None:
        bits = max(1, (len(hashes) // _BUCKET).bit_length() - 1)
        self._shift = np.uint64(64 - bits)
        self._starts = hashes.searchsorted(np.arange(1 << bits, dtype=np.uint64) << self._shift)
        most = int(np.diff(self._starts, append=len(hashes)).max())
        self._bucket_max = max(1, most)  # because a file of an untrusted writer may have any hashes

    def places(self, hashes: Hashes, wanted: Hashes, *, behind: bool = False) -> Index:
        """Computes `hashes.searchsorted(wanted)`; `behind`: with its side "right".

        Args:
            hashes: the hashes that were indexed.
        """
        below = np.less_equal if behind else np.less
        at: Index = self._starts.take((wanted >> self._shift).view(np.int64))
        step = 1 << (self._bucket_max.bit_length() - 1)
        while step:
            # After the last hash with these bits come larger ones, or the last of all again.
            passed = below(hashes.take(at + (step - 1), mode="clip"), wanted)
            np.add(at, step, out=at, where=passed)
            step >>= 1
        return np.minimum(at, len(hashes))


def find_hashes(
    hashes: Hashes, wanted: Hashes, bits: HashPrefixIndex | None
) -> tuple[Index, Index] | None:
    """Finds hashes in sorted ones: (number, position) for each match; None without a match.

    Args:
        bits: the prefix index of the sorted ones, if `sparse_index` says so.
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
    """As `find_hashes`, for few hashes."""
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
