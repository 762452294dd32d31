"""Intervals of order codes inside groups: the rows that a change affects, and those to read.

An interval contains all rows of a group whose order codes are between two numbers, both included.
Intervals of one group that overlap are joined, so that no row is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.rows import Column
from nosync_nb.trace.batch import Hashes, Index
from nosync_nb.trace.stats import place_in

FIRST = np.uint64(0)
LAST = np.uint64(2**64 - 1)
_FEW = 24
"""The maximum number of searches that a loop does faster than a vectorised binary search."""


class Intervals(NamedTuple):
    """Intervals, ascending by group and code.

    Attributes:
        group: the number of the group of each interval.
        khash, keys: the hashes and the keys of the intervals.
        low, high: the first and the last code.
    """

    group: Index
    khash: Hashes
    keys: Sequence[Column]
    low: Hashes
    high: Hashes

    @property
    def size(self) -> int:
        """The number of intervals."""
        return len(self.low)

    def take(self, index: Index) -> Intervals:
        """Returns some of the intervals."""
        keys = [rows.take(key, index) for key in self.keys]
        return Intervals(
            self.group[index], self.khash[index], keys, self.low[index], self.high[index]
        )

    def widened(self, low: Hashes, high: Hashes) -> Intervals:
        """Returns intervals that also contain others."""
        return self._replace(low=np.minimum(self.low, low), high=np.maximum(self.high, high))

    def joined(self) -> Intervals:
        """Returns the intervals with overlapping ones of a group joined."""
        n = len(self.low)
        if n < 2:
            return self
        order = np.lexsort((self.high, self.low, self.group))
        group, low, high = self.group[order], self.low[order], self.high[order]
        values, rank = np.unique(high, return_inverse=True)
        shifted = group * np.int64(len(values)) + rank
        furthest = np.maximum.accumulate(shifted)
        reached = values[furthest - group * np.int64(len(values))]
        new = np.ones(n, bool)
        new[1:] = (group[1:] != group[:-1]) | (low[1:] > reached[:-1])
        starts = new.nonzero()[0]
        ends = np.append(starts[1:], n) - 1
        made = self.take(order[starts])
        return made._replace(high=reached[ends])


def positions(
    codes: Hashes, first: Index, last: Index, wanted: Hashes, *, after: bool = False
) -> Index:
    """Returns for each range of ascending codes the first position that is not below a code.

    With `after`, returns the first position above the code.
    """
    if len(wanted) > _FEW:
        return place_in(codes, first, last, wanted, after=int(after))
    side: str = "right" if after else "left"
    found = [
        a + int(codes[a:b].searchsorted(code, side))  # type: ignore[call-overload]
        for a, b, code in zip(first.tolist(), last.tolist(), wanted, strict=True)
    ]
    return np.array(found, np.int64)


Mask = npt.NDArray[np.bool_]
