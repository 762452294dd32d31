"""The counts of rows in a trace, which show if a row appears, disappears or stays.

Cost: a search for each row in each part, O(log rows), also in a group of a million.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.rows import Column
from nosync_nb.rows.count_arithmetic import add_at
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import PLAIN_TYPES, Batch, Index

_FEW = 16
"""Up to this many rows Python compares values, which saves a numpy search in each layer."""

_LIMIT = 1 << 62
_ndarray = np.ndarray


def row_counts(trace: Trace | None, batch: Batch, step: Step | None = None) -> Index:
    """Returns the count in a trace of each row of a batch with its layout and distinct rows.

    Args:
        step: counts the rows that are read.
    """
    count = np.zeros(len(batch), np.int64)
    if trace is None:
        return count
    touched = 0
    if trace.layout.key is None:
        if len(batch) <= _FEW and PLAIN_TYPES.issuperset(batch.layout.types):
            few = _few_counts(trace, batch)
            if few is not None:
                if step is not None:
                    step.add_touched(few[1])
                return few[0]
        matches = trace.lookup(batch.khash, batch.columns, ())
        if matches is not None:
            add_at(count, matches.probe, matches.diff)
            touched = len(matches.diff)
    else:
        for part in trace.parts():
            touched += _add_counts(part, batch, count)
    if step is not None:
        step.add_touched(touched)
    return count


def _few_counts(trace: Trace, batch: Batch) -> tuple[Index, int] | None:
    """The counts of few rows, which Python compares; and the number of rows read.

    None if a count is near the limit of 64 bits.
    """
    hashes, counts = batch.khash.tolist(), [0] * len(batch)
    read = 0
    for part in trace.parts():
        held = part.khash
        size = len(held)
        for row, at in enumerate(held.searchsorted(batch.khash).tolist()):
            while at < size and held.item(at) == hashes[row]:
                if _is_same(part, at, batch, row):
                    counts[row] += part.diff.item(at)
                    read += 1
                at += 1
    if any(abs(count) > _LIMIT for count in counts):
        return None
    return np.array(counts, np.int64), read


def _is_same(part: Batch, at: int, batch: Batch, row: int) -> bool:
    """Returns True if a row of a part is a row of a batch."""
    for held, asked, type_ in zip(part.columns, batch.columns, batch.layout.types, strict=True):
        if type(held) is _ndarray and type(asked) is _ndarray:
            if held.item(at) != asked.item(row):
                return False
        elif not rows.equal(_one(held, at), _one(asked, row), type_).item():
            return False
    return True


def _one(column: Column, at: int) -> Column:
    return rows.take(column, np.array([at]))


def _add_counts(part: Batch, batch: Batch, count: Index) -> int:
    """Adds the counts of each row in a part, among the rows of its key; returns the rows read."""
    low = part.khash.searchsorted(batch.khash)
    high = part.khash.searchsorted(batch.khash, "right")
    if part.code is not None and batch.code is not None:
        low, high = _narrow_ranges(part.code, batch.code, low, high)
    low, high = _narrow_ranges(part.rhash, batch.rhash, low, high)
    index = hash_ranges(low, high - low)
    if len(index):
        probe = np.arange(len(batch)).repeat(high - low)
        same = np.ones(len(index), bool)
        for held, asked, type_ in zip(part.columns, batch.columns, batch.layout.types, strict=True):
            same &= rows.equal(rows.take(held, index), rows.take(asked, probe), type_)
        add_at(count, probe[same], part.diff[index][same])
    return len(index)


def _narrow_ranges(
    held: npt.NDArray[Any], wanted: npt.NDArray[Any], low: Index, high: Index
) -> tuple[Index, Index]:
    """Cuts ranges of rows, sorted inside each range, to those that equal the requested values."""
    first = _bisect_ranges(held, wanted, low, high, right=False)
    return first, _bisect_ranges(held, wanted, first, high, right=True)


def _bisect_ranges(
    held: npt.NDArray[Any], wanted: npt.NDArray[Any], low: Index, high: Index, *, right: bool
) -> Index:
    """The first row of each range that is not below (`right`: is above) the requested value."""
    low, high = low.copy(), high.copy()
    while True:
        open_ = (low < high).nonzero()[0]
        if not len(open_):
            return low
        middle = (low[open_] + high[open_]) >> 1
        value = held[middle]
        below = value <= wanted[open_] if right else value < wanted[open_]
        low[open_[below]] = middle[below] + 1
        high[open_[~below]] = middle[~below]
