"""Presence: which values of a group came to be there, and which are there no more.

An aggregate of distinct values depends on whether a value is there, not on how often. A held trace
has the values with their counts; for the values that an epoch changes, and for no others, the count
before tells whether one appears (+1), goes (-1) or neither. What appears and goes feeds slots as
rows do.

Cost: a search for each changed value in each part, O(log rows), also in a group of a million.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.operators.keys import Groups
from nosync_nb.rows.counts import add_at
from nosync_nb.trace import Trace, ranges
from nosync_nb.trace.batch import Batch, Index


def appeared(before: Index, batch: Batch) -> Index:
    """For each row of a batch 1 if it makes the row be there, -1 if it ends that, else 0.

    Args:
        before: how often each row was there.
    """
    found: Index = (before + batch.diff > 0).astype(np.int64) - (before > 0)
    return found


def counts(trace: Trace, batch: Batch, step: Step) -> Index:
    """How often a trace holds each row of a batch of its layout."""
    found = np.zeros(len(batch), np.int64)
    for part in trace.parts():
        low = part.khash.searchsorted(batch.khash)
        high = part.khash.searchsorted(batch.khash, "right")
        if part.code is not None and batch.code is not None:
            low, high = _narrowed(part.code, batch.code, low, high)
        low, high = _narrowed(part.rhash, batch.rhash, low, high)
        count = high - low
        index = ranges(low, count)
        if not len(index):
            continue
        step.touched += len(index)
        probe = np.arange(len(batch)).repeat(count)
        same = np.ones(len(index), bool)
        for held, asked, type_ in zip(part.columns, batch.columns, trace.layout.types, strict=True):
            same &= rows.equal(rows.take(held, index), rows.take(asked, probe), type_)
        add_at(found, probe[same], part.diff[index][same])
    return found


def owners(groups: Groups, batch: Batch, key_types: Sequence[str]) -> Index:
    """The number of the group of each row of a batch whose first columns are the keys."""
    place: Index = groups.khash.searchsorted(batch.khash)
    pending = np.arange(len(batch))
    while len(pending):  # once, but for keys that differ and have equal hashes
        same = np.ones(len(pending), bool)
        for held, asked, type_ in zip(groups.keys, batch.columns, key_types, strict=False):
            at = rows.take(held, place[pending])
            same &= rows.equal(at, rows.take(asked, pending), type_)
        pending = pending[~same]
        place[pending] += 1
    return place


def _narrowed(
    held: npt.NDArray[Any], wanted: npt.NDArray[Any], low: Index, high: Index
) -> tuple[Index, Index]:
    """Cuts ranges of rows, sorted inside each range, to those that hold what is wanted."""
    first = _bisected(held, wanted, low, high, right=False)
    return first, _bisected(held, wanted, first, high, right=True)


def _bisected(
    held: npt.NDArray[Any], wanted: npt.NDArray[Any], low: Index, high: Index, *, right: bool
) -> Index:
    """The first row of each range that is not below (`right`: that is above) what is wanted."""
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
