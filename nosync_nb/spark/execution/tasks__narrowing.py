"""What of a change needs to cross the shuffle: the columns an operator uses, equal rows as one.

A column that is not used is sent as nulls, which cost next to nothing. Rows that are equal in what
is used are added up first where that pays, as for an aggregate of few groups; its kernel cannot
tell, since it depends on the sum of the diffs alone.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.operators import Operator
from nosync_nb.trace.batch import Layout, Updates, arrange

SAMPLE_ROWS = 4096

_LARGE = 1 << 62
"""Counts that add up to as much are added by who says which row has too many."""


def pruned_change(
    updates: Updates, types: tuple[str, ...], operator: Operator, port: int
) -> Updates:
    """The same change as far as an operator can tell, with less in it.

    Cost: a hash of some rows; some 15 ns a row more where at least half of the rows go.
    """
    wanted = operator.used(port)
    if wanted is None:
        return updates
    places = sorted(wanted)
    used = tuple(types[i] for i in places)
    kept = Updates([updates.columns[i] for i in places], updates.diff)
    if operator.combines and _repeats(kept, used):
        kept = consolidated_change(kept, used)
    n = len(kept.diff)
    columns = dict(zip(places, kept.columns, strict=True))
    return Updates([columns.get(i, rows.full_null(t, n)) for i, t in enumerate(types)], kept.diff)


def consolidated_change(updates: Updates, types: tuple[str, ...]) -> Updates:
    """The same updates, each row once.

    Cost: 15 ns a row; of nested values, which Arrow does not compare, that of arranging them.
    """
    columns, diff = updates
    if not types or not len(diff) or max(int(diff.max()), -int(diff.min())) * len(diff) >= _LARGE:
        return arrange(Layout(types), updates).updates
    names = [str(i) for i in range(len(types))]
    arrays = [rows.to_arrow(column, type_) for column, type_ in zip(columns, types, strict=True)]
    table = pa.table([*arrays, diff], names=[*names, "diff"])
    try:
        groups = table.group_by(names, use_threads=False).aggregate([("diff", "sum")])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # of nested values
        return arrange(Layout(types), updates).updates
    groups = groups.combine_chunks()
    sums = groups.column("diff_sum").to_numpy()
    if not sums.all():
        kept = sums.nonzero()[0]
        groups, sums = groups.take(kept), sums[kept]
    each = (_one(groups.column(name)) for name in names)
    return Updates([rows.from_arrow(a, type_) for a, type_ in zip(each, types, strict=True)], sums)


def _one(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    (array,) = column.chunks or [pa.array([], column.type)]
    return array


def _repeats(updates: Updates, types: tuple[str, ...]) -> bool:
    """Whether about half of the rows, or more, are equal to others."""
    n = min(len(updates.diff), SAMPLE_ROWS)
    hashes = rows.hash_columns([rows.slice_(c, 0, n) for c in updates.columns], types, n)
    return 2 * len(np.unique(hashes)) <= n
