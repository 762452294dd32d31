"""Presence: which values of a group came to be there, and which are there no more.

An aggregate of distinct values depends on whether a value is there, not on how often. A held trace
has the values with their counts; for the values that an epoch changes, and for no others, the count
before tells whether one appears (+1), goes (-1) or neither. What appears and goes feeds slots as
rows do.

"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.grouping import Groups
from nosync_nb.trace.batch import Batch, Index


def appeared_values(before: Index, batch: Batch) -> Index:
    """For each row of a batch 1 if it makes the row be there, -1 if it ends that, else 0.

    Args:
        before: how often each row was there.
    """
    change: Index = (before + batch.diff > 0).astype(np.int64) - (before > 0)
    return change


def groups_of_values(groups: Groups, batch: Batch, key_types: Sequence[str]) -> Index:
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
