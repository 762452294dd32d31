"""The first rows of groups, for first_value and nth_value over frames that begin with the group.

All rows of a group have the same value, unless their frames end before it. So a change affects all
of them if the n-th row of the group is another one after it, and none of them otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.operators.windows.calls import Reach, WindowCall
from nosync_nb.operators.windows.intervals import FIRST, Intervals, Mask
from nosync_nb.operators.windows.reading import ReadRows, RowShape, filled, read_rows
from nosync_nb.rows import Column
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Hashes, Index


class HeadKey(NamedTuple):
    """The position of a head: the n-th row of a group, or the n-th whose column is not null."""

    column: int
    n: int
    skips_nulls: bool


class Heads(NamedTuple):
    """The head of each group.

    Attributes:
        columns: the columns of the rows; those of any row where there is no head.
        there: a mask of the groups that have a head.
        code: the order codes of the heads.
    """

    columns: Sequence[Column]
    there: Mask
    code: Hashes

    def differ(self, other: Heads, types: Sequence[str]) -> Mask:
        """Returns a mask of the groups whose heads are different rows."""
        different: Mask = self.there != other.there
        both = (self.there & other.there).nonzero()[0]
        for a, b, type_ in zip(self.columns, other.columns, types, strict=True):
            different[both] |= ~rows.equal(rows.take(a, both), rows.take(b, both), type_)
        return different


def head_key(call: WindowCall) -> HeadKey:
    """Returns the head that a function reads."""
    return HeadKey(call.argument if call.skips_nulls else -1, call.n, call.skips_nulls)


def read_heads(
    trace: Trace | None, groups: Intervals, key: HeadKey, shape: RowShape, step: Step
) -> Heads:
    """Reads the heads of the groups of some intervals.

    Cost: O(layers x n) rows for each group, and the nulls before its head.
    """
    n = groups.size
    start = np.full(n, FIRST)
    if trace is None:
        nothing = [rows.full_null(type_, n) for type_ in shape.types]
        return Heads(nothing, np.zeros(n, bool), start)
    whole = groups._replace(low=start, high=start)
    after = Reach(filled=((key.column, key.n),)) if key.skips_nulls else Reach(key.n)
    read = read_rows(trace, whole, (start, start), (Reach(), after), shape, step)
    at, there = _nth(read, key)
    padded = [
        rows.concat([column, rows.full_null(type_, 1)], type_)
        for column, type_ in zip(read.rows.columns, shape.types, strict=True)
    ]
    index = np.where(there, at, len(read.interval))
    code = np.append(read.code, FIRST)[index]
    return Heads([rows.take(column, index) for column in padded], there, code)


def _nth(read: ReadRows, key: HeadKey) -> tuple[Index, Mask]:
    """Returns the position of the head of each interval, and a mask of those that have one."""
    size = read.rows.diff
    if key.skips_nulls:
        size = np.where(filled(read.rows, key.column), size, 0)
    ends = np.concatenate(([0], size.cumsum()))
    at = ends.searchsorted(ends[read.start] + key.n) - 1
    there: Mask = at < read.stop
    return at, there
