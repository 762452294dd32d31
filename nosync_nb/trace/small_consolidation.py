"""Consolidates few updates by comparing their values in Python, without hashes.

Small epochs change a handful of rows at each stage. To hash, sort and compare them takes a dozen
calls of numpy, whatever the rows are; a set of tuples is faster.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import FLOATS, INTEGERS
from nosync_nb.trace.batch import Updates

FEW_ROWS = 32
"""More rows are faster to hash than to convert to tuples."""

PLAIN_TYPES = frozenset(
    (*INTEGERS, *INTERVALS, "boolean", "string", "binary", "date", "timestamp", "timestamp_ntz")
)
"""Types whose values are equal in Python when they are equal rows; NaN is not."""

_LIMIT = 1 << 62
_ndarray = np.ndarray


def consolidate_few(types: tuple[str, ...], updates: Updates) -> Updates | None:
    """Consolidates few updates, in the order of first occurrence.

    Returns:
        the same object if no two rows are equal and no diff is 0; None if this path does not apply,
        as for many rows, nested values, columns of Arrow, or a count near the limit of 64 bits.

    Cost: about 0.1 us a value.
    """
    columns, diff = updates
    n = len(diff)
    if n > FEW_ROWS or not _is_comparable(types):
        return None
    values = []
    for column, type_ in zip(columns, types, strict=True):
        if type(column) is not _ndarray:
            return None
        if type_ in FLOATS:  # canonical floats, NaN included, are equal if their bits are
            if column.dtype.kind != "f":
                return None
            values.append(column.view(np.int64 if column.itemsize == 8 else np.int32).tolist())
        else:
            values.append(column.tolist())
    rows = list(zip(*values, strict=True)) if values else [()] * n
    diffs = diff.tolist()
    if len(set(rows)) == n and 0 not in diffs:
        return updates
    first: dict[tuple[object, ...], int] = {}
    for at, row in enumerate(rows):
        before = first.setdefault(row, at)
        if before != at:
            diffs[before] += diffs[at]
            diffs[at] = 0
    if max(map(abs, diffs), default=0) > _LIMIT:
        return None
    nonzero = [at for at, count in enumerate(diffs) if count]
    index = np.array(nonzero, np.int64)
    return Updates(
        [column[index] for column in columns], np.array([diffs[at] for at in nonzero], np.int64)
    )


@lru_cache(maxsize=1024)
def _is_comparable(types: tuple[str, ...]) -> bool:
    """Returns True if Python distinguishes rows of such types; floats by their bits."""
    return all(each in PLAIN_TYPES or each in FLOATS for each in types)
