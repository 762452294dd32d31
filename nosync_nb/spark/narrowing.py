"""What of a change needs to cross the shuffle: the columns an operator uses, equal rows as one.

A column that is not used is sent as nulls, which cost next to nothing. Rows that are equal in what
is used are added up first where that pays, as for an aggregate of few groups; its kernel cannot
tell, since it depends on the sum of the diffs alone.
"""

from __future__ import annotations

import numpy as np

from nosync_nb import rows
from nosync_nb.operators import Operator
from nosync_nb.trace.batch import Layout, Updates, arrange

SAMPLE_ROWS = 4096


def narrowed(updates: Updates, types: tuple[str, ...], operator: Operator, port: int) -> Updates:
    """The same change as far as an operator can tell, with less in it.

    Cost: a hash of some rows; O(n log n) only where at least half of the rows go.
    """
    wanted = operator.used(port)
    if wanted is None:
        return updates
    places = sorted(wanted)
    layout = Layout(tuple(types[i] for i in places))
    kept = Updates([updates.columns[i] for i in places], updates.diff)
    if operator.combines and _repeats(kept, layout.types):
        kept = arrange(layout, kept).updates
    n = len(kept.diff)
    columns = dict(zip(places, kept.columns, strict=True))
    return Updates([columns.get(i, rows.full_null(t, n)) for i, t in enumerate(types)], kept.diff)


def _repeats(updates: Updates, types: tuple[str, ...]) -> bool:
    """Whether about half of the rows, or more, are equal to others."""
    n = min(len(updates.diff), SAMPLE_ROWS)
    hashes = rows.hash_columns([rows.slice_(c, 0, n) for c in updates.columns], types, n)
    return 2 * len(np.unique(hashes)) <= n
