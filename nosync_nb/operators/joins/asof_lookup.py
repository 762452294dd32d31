"""The neighbours of times in a trace ordered by time inside each key.

The nearest row at or before a time, or after it, is beside the time in each part, so a lookup costs
O(layers) rows for a key of any size. The lookup reads further only while rows cancel. Many times of
one key are looked up together: the rows beside them are read once, even if their lookups overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.operators.grouping import group_rows
from nosync_nb.rows import Column
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import Batch, Hashes, Index, Updates, arrange, concat_updates
from nosync_nb.trace.stats import place_in

_LOOK = 4  # rows that are read beside a time in each part
_FURTHER = 8  # times as many in the next lookup


class TimeNeighbours(NamedTuple):
    """The rows beside times.

    Attributes:
        which: the times that have a neighbour, ascending.
        columns, code: these neighbours, and their order codes.
    """

    which: Index
    columns: list[Column]
    code: Hashes


def time_neighbours(
    trace: Trace, khash: Hashes, keys: Sequence[Column], code: Hashes, step: Step, *, after: bool
) -> TimeNeighbours:
    """Returns the rows with a positive count next to times of keys.

    Args:
        trace: its layout orders by a column that is null in no row.
        khash, keys, code: the keys, and the order codes of the times.
        after: the first row after the time; else the last one at or before it, of several at one
            time the last in canonical order.
    """
    pending = np.arange(len(khash))
    looks: list[tuple[Index, list[Column], Hashes]] = []
    look = _LOOK
    while len(pending):
        seen = _read_beside(trace, khash[pending], code[pending], look, after=after)
        step.add_touched(len(seen.held))
        chosen, where = _certain_neighbours(
            seen, [rows.take(k, pending) for k in keys], code[pending], after
        )
        columns = [rows.take(c, where) for c in seen.held.columns]
        assert seen.held.code is not None
        looks.append((pending[chosen], columns, seen.held.code[where]))
        open_ = seen.open
        open_[chosen] = False
        pending = pending[open_]
        look *= _FURTHER
    if not looks:
        return TimeNeighbours(pending, [rows.empty(t) for t in trace.layout.types], code[:0])
    which = np.concatenate([each for each, _, _ in looks])
    order = which.argsort()
    columns = [
        rows.take(rows.concat([each[i] for _, each, _ in looks], t), order)
        for i, t in enumerate(trace.layout.types)
    ]
    return TimeNeighbours(which[order], columns, np.concatenate([c for _, _, c in looks])[order])


def interval_union(low: Index, high: Index) -> Index:
    """Returns each position that is in one of the intervals `[low, high)` once, ascending."""
    order = low.argsort(kind="stable")
    low, high = low[order], high[order]
    reached = np.maximum.accumulate(high)
    start = low.copy()
    start[1:] = np.maximum(low[1:], reached[:-1])
    return hash_ranges(start, np.maximum(high - start, 0))


class _NeighbourLookup(NamedTuple):
    """The result of a lookup beside times.

    Attributes:
        held: the rows that were read, consolidated.
        open: the times beside which some part has more rows.
        horizon: the code up to which such a time may miss rows.
    """

    held: Batch
    open: npt.NDArray[np.bool_]
    horizon: Hashes


def _read_beside(
    trace: Trace, khash: Hashes, code: Hashes, look: int, *, after: bool
) -> _NeighbourLookup:
    """Reads up to `look` rows beside each time in each part."""
    open_ = np.zeros(len(khash), bool)
    horizon = np.full(len(khash), 2**64 - 1 if after else 0, np.uint64)
    taken: list[Updates] = []
    for part in trace.parts():
        first = part.khash.searchsorted(khash)
        last = part.khash.searchsorted(khash, "right")
        assert part.code is not None
        at = place_in(part.code, first, last, code, after=1)
        if after:
            start, stop = at, np.minimum(last, at + look)
            more, edge = stop < last, stop - 1
        else:
            start, stop = np.maximum(first, at - look), at
            more, edge = start > first, start
        if more.any():
            open_ |= more
            seen, shown = horizon[more], part.code[edge[more]]
            horizon[more] = np.minimum(seen, shown) if after else np.maximum(seen, shown)
        index = interval_union(start, stop)
        if len(index):
            taken.append(part.updates.take(index))
    none = Updates([rows.empty(t) for t in trace.layout.types], np.zeros(0, np.int64))
    every = concat_updates(taken, trace.layout.types) if taken else none
    return _NeighbourLookup(arrange(trace.layout, every), open_, horizon)


def _certain_neighbours(
    seen: _NeighbourLookup, keys: Sequence[Column], code: Hashes, after: bool
) -> tuple[Index, Index]:
    """The times whose neighbour is certain after a lookup, and its position in `held`."""
    held, n = seen.held, len(code)
    there = (held.diff > 0).nonzero()[0]
    none: Index = np.zeros(0, np.int64)
    if not len(there):
        return none, none
    layout = held.layout
    types = [layout.types[i] for i in layout.key or ()]
    own = [rows.take(held.columns[i], there) for i in layout.key or ()]
    both = [rows.concat([a, b], t) for a, b, t in zip(keys, own, types, strict=True)]
    groups = group_rows(both, types, n + len(there))
    number = np.empty(n + len(there), np.int64)
    sizes = np.diff(np.append(groups.starts, len(number)))
    number[groups.order] = np.arange(len(groups.starts)).repeat(sizes)
    assert held.code is not None
    canonical = np.empty(len(there), np.int64)
    columns = [rows.take(c, there) for c in held.columns]
    canonical[rows.sort_indices(columns, layout.types)] = np.arange(len(there))
    order = np.lexsort((canonical, held.code[there], number[n:]))
    there = there[order]
    owner, codes = number[n:][order], held.code[there]
    first, last = owner.searchsorted(number[:n]), owner.searchsorted(number[:n], "right")
    at = place_in(codes, first, last, code, after=1)
    if after:
        good = at < last
    else:
        at, good = at - 1, at > first
    which = good.nonzero()[0]
    place = codes[at[which]]
    certain = place < seen.horizon[which] if after else place > seen.horizon[which]
    which = which[certain | ~seen.open[which]]
    return which, there[at[which]]
