"""The first rows of each key, or the last, in a trace ordered inside each key.

They are at the edge of the key in each part, so a lookup costs O(layers x look) rows for a group of
any size. Its rows are certain up to the code from which some part has unread rows. A caller that
needs more rows looks up again with a larger `look`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.operators.linear import rows_where
from nosync_nb.rows import Column
from nosync_nb.rows.array_ops import any_true
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import Hashes, Index, Updates, concat_updates, no_updates


class GroupHeads(NamedTuple):
    """The result of a lookup.

    Attributes:
        rows: rows before the first code from which a group may have unread rows, in no order.
        probe: the number of the group of each row.
        open: the groups that have unread rows.
    """

    rows: Updates
    probe: Index
    open: npt.NDArray[np.bool_]


def group_heads(
    trace: Trace, khash: Hashes, keys: Sequence[Column], look: int, step: Step, *, last: bool
) -> GroupHeads:
    """Reads up to `look` rows of each group in each part.

    Args:
        khash, keys: the groups.
        last: reads from the end of each group.
    """
    n = len(khash)
    types = trace.layout.types
    open_ = np.zeros(n, bool)
    horizon = np.full(n, 0 if last else 2**64 - 1, np.uint64)
    probes: list[Index] = []
    codes: list[Hashes] = []
    taken: list[Updates] = []
    for part in trace.parts():
        low = part.khash.searchsorted(khash)
        high = part.khash.searchsorted(khash, "right")
        if low.tobytes() == high.tobytes():
            continue
        assert part.code is not None
        size = high - low
        count = np.minimum(size, look)
        start = high - count if last else low
        more = size > look
        if any_true(more):
            open_ |= more
            edge = part.code[(start if last else start + count - 1)[more]]
            horizon[more] = (np.maximum if last else np.minimum)(horizon[more], edge)
        index = hash_ranges(start, count)
        probes.append(np.arange(n).repeat(count))
        codes.append(part.code[index])
        taken.append(part.updates.take(index))
    if not taken:
        return GroupHeads(no_updates(types), np.zeros(0, np.int64), open_)
    probe, code = np.concatenate(probes), np.concatenate(codes)
    step.add_touched(len(probe))
    seen = concat_updates(taken, types)
    certain = code > horizon[probe] if last else code < horizon[probe]
    own = certain | ~open_[probe]
    for key, place in zip(keys, trace.layout.key or (), strict=True):
        own &= rows.equal(rows.take(key, probe), seen.columns[place], types[place])
    return GroupHeads(rows_where(seen, own), probe[own], open_)
