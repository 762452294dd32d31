"""Counts the rows of a trace, and looks for rows below zero, without merging its layers.

The results are exact, and as strict as a merge. If a row might be there fewer than 0 times, or if a
merge would cost no more, a function returns None, and the caller merges the trace.

Design
    The row count is the sum of all diffs. No row is below 0 if no row that some layer removes is
    below 0, so only the removed rows are looked up. A layer records that its sum with the layers
    before it has no row below 0 (`sound`). So an epoch costs only its own removals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.trace.batch import Batch, Diffs, Index, Updates, arrange, merge
from nosync_nb.trace.layer import Layer
from nosync_nb.trace.trace import Trace

_SLACK_ROWS = 1 << 13
"""Rows that may be looked up in a trace of any size."""
_LOOKUP_COST = 4
"""Looking a row up costs as much as merging this many rows."""
_LARGE = 1 << 40
_TOGETHER_ROWS = 1 << 13
"""Up to so many rows, the counts of many epochs are copied together instead of one by one."""


def row_count(trace: Trace) -> int | None:
    """How many rows a collection has, copies counted.

    Cost: O(layers), and a look-up of what the layers since the last call take away.
    """
    return sum(_counted(layer)[0] for layer in trace.layers) if is_nonnegative(trace) else None


def row_sums(trace: Trace) -> int:
    """How many rows the layers add up to, if none is there fewer than 0 times.

    Cost: O(layers), and a pass over what is new since the last call. Nothing is put in order, so
    who watches a trace while it grows costs those who append to it nothing.
    """
    return sum(_counted(layer)[0] for layer in trace.layers)


def _counted(layer: Layer) -> tuple[int, int]:
    """The sum of the counts of a layer, and the least of them."""
    seen = layer.known()
    if seen.rows.counted is None:
        sums, least = 0, 0
        diffs = [diff for _, diff in layer.updates]
        if len(diffs) > 1 and layer.rows_count <= _TOGETHER_ROWS:
            diffs = [np.concatenate(diffs)]
        for diff in diffs:
            n = len(diff)
            if not n:
                continue
            low, high = (int(diff[0]),) * 2 if not diff.strides[0] else (diff.min(), diff.max())
            if low == high:
                sums += int(low) * n
            elif max(-int(low), int(high)) > _LARGE:
                sums += sum(diff.tolist())
            else:
                sums += int(diff.sum())
            least = min(least, int(low))
        seen.count(sums, least)
        return sums, least
    return seen.rows.counted


def is_nonnegative(trace: Trace) -> bool:
    """Whether it is known that no row is there fewer than 0 times.

    It is found out layer by layer, as then it is known of the epochs between them as well. Where a
    row was below 0 there and is not now, all that was taken away since is looked up once more.
    """
    layers = trace.layers
    known = _known(layers)
    taken = [(i, p, index) for i in range(known, len(layers)) for p, index in _taken(layers[i])]
    if not is_cheaper_than_merge(trace, sum(len(index) for _, _, index in taken)):
        return False
    for i in range(known, len(layers)):
        upto = Trace(trace.layout, layers[: i + 1])
        if not all(_enough(upto, part, index) for at, part, index in taken if at == i):
            if not all(_enough(trace, part, index) for at, part, index in taken if at >= i):
                return False
            layers[-1].known().sum_up()
            return True
        layers[i].known().sum_up()
    return True


def _taken(layer: Layer) -> list[tuple[Batch, Index]]:
    """What a layer takes away: parts, and which of their rows."""
    if _counted(layer)[1] >= 0:
        return []
    taken = [(part, (part.diff < 0).nonzero()[0]) for part in layer.parts]
    return [(part, index) for part, index in taken if len(index)]


def keep_nonnegative(trace: Trace, stop: int, most: int) -> None:
    """Finds out whether no row is there fewer than 0 times at the end of the layer before `stop`.

    For who merges the layers before: what is known at their ends would go, and the next reader had
    to look up all that they take away. Nothing is done unless it is known of a layer before.

    Args:
        most: so many rows are looked up at most.
    """
    layers = trace.layers[:stop]
    new = layers[_known(layers) :]
    if not new or len(new) == len(layers) or sum(layer.rows_count for layer in new) > most:
        return
    taken = [part.take(index) for layer in new for part, index in _taken(layer)]
    if taken:
        wanted = merge(trace.layout, taken)
        if not _enough(Trace(trace.layout, layers), wanted, np.arange(len(wanted))):
            return
    layers[-1].known().sum_up()


def nonnegative_until(trace: Trace) -> int:
    """The first epoch of which it is not known that no row is there fewer than 0 times at its end.

    Of all epochs before it is known of the last one. Cost: O(layers).
    """
    known = _known(trace.layers)
    return trace.layers[known - 1].upper if known else 0


def is_cheaper_than_merge(trace: Trace, looked_up: int) -> bool:
    """Returns True if looking so many rows up is estimated to cost less than merging the trace."""
    return looked_up * _LOOKUP_COST <= trace.rows_count + _SLACK_ROWS


def add_only(layer: Layer) -> bool:
    """Whether no row of a layer has a count below 0. Cost: a pass over its counts, once."""
    return _counted(layer)[1] >= 0


def _known(layers: Sequence[Layer]) -> int:
    """Behind how many layers it is known that no row is there fewer than 0 times."""
    return next((i + 1 for i in reversed(range(len(layers))) if layers[i].known().sound), 0)


def lacking(trace: Trace, taken: Updates) -> Updates | None:
    """Those of some rows that are there fewer than 0 times, with how often; None if none are.

    Cost: a look-up of these rows in each layer; rows of equal hashes are taken for there.
    """
    wanted = arrange(trace.layout, Updates(taken.columns, np.abs(taken.diff)))
    total = _totals(trace, wanted, np.arange(len(wanted)))
    if total is None or not (total < 0).any():
        return None
    below = (total < 0).nonzero()[0]
    return Updates([rows.take(c, below) for c in wanted.columns], total[below])


def _enough(trace: Trace, wanted: Batch, index: Index) -> bool:
    """Whether the rows at `index` add up to 0 or more; false if their hashes do not tell."""
    total = _totals(trace, wanted, index)
    return total is not None and bool((total >= 0).all())


def _totals(trace: Trace, wanted: Batch, index: Index) -> Diffs | None:
    """How often the rows at `index` are there; None if their hashes do not tell."""
    total = np.zeros(len(index), np.int64)
    khash, rhash = wanted.khash[index], wanted.rhash[index]
    code = None if wanted.code is None else wanted.code[index]
    for part in trace.parts():
        hit, low = _met(part, khash)
        if not len(hit):
            continue
        row = _places(part, low, khash[hit], rhash[hit], None if code is None else code[hit])
        there = (row < len(part)).nonzero()[0]
        there = there[_hits(part, row[there], khash[hit[there]], rhash[hit[there]])]
        if not len(there):
            continue
        hit, row = hit[there], row[there]
        after = np.minimum(row + 1, len(part) - 1)
        twice = (after > row) & _hits(part, after, khash[hit], rhash[hit])
        diff = part.diff[row]
        if twice.any() or int(np.abs(diff).max()) > _LARGE:
            return None
        for column, own, type_ in zip(
            part.columns, wanted.columns, trace.layout.types, strict=True
        ):
            same = rows.equal(rows.take(column, row), rows.take(own, index[hit]), type_)
            if not same.all():
                return None
        total[hit] += diff
    return total


def _hits(part: Batch, row: Index, khash: Any, rhash: Any) -> npt.NDArray[np.bool_]:
    """Where rows have the hashes looked for."""
    same: npt.NDArray[np.bool_] = (part.rhash[row] == rhash) & (part.khash[row] == khash)
    return same


def _met(part: Batch, khash: Any) -> tuple[Index, Index]:
    """Those of some hashes that a part has, and where their rows begin in it.

    Most of what is looked for is in one part of one layer, and in no other.
    """
    none = np.zeros(0, np.int64)
    if not len(part) or not len(khash):
        return none, none
    first, last = khash.searchsorted(part.khash[0]), khash.searchsorted(part.khash[-1], "right")
    low: Index = part.khash.searchsorted(khash[first:last])
    same = (part.khash[low] == khash[first:last]).nonzero()[0]
    return first + same, low[same]


def _places(part: Batch, low: Index, khash: Any, rhash: Any, code: Any) -> Index:
    """Where in a part rows of given hashes and codes stand, or would; `low`: the first of each."""
    if part.rhash is part.khash:
        return low
    high = part.khash.searchsorted(khash, "right")
    if code is not None and part.code is not None:
        low, high = place_in(part.code, low, high, code), place_in(part.code, low, high, code, 1)
    return place_in(part.rhash, low, high, rhash)


def place_in(values: Any, low: Index, high: Index, wanted: Any, after: int = 0) -> Index:
    """The first place of `[low, high)` whose value is not below the one wanted; `after`: above."""
    low, high = low.copy(), high.copy()
    if not len(values):
        return low
    while (open_ := low < high).any():
        middle = (low + high) >> 1
        held = values[np.minimum(middle, len(values) - 1)]
        below = open_ & ((held <= wanted) if after else (held < wanted))
        low = np.where(below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low
