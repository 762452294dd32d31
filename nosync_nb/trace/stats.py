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
"""So many rows may be looked up even in a small trace."""
_LOOKUP_COST = 4
"""Looking a row up is estimated to cost as much as merging this many rows."""
_LARGE = 1 << 40
_TOGETHER_ROWS = 1 << 13
"""Up to so many rows, the counts of many epochs are copied together, not one epoch at a time."""


def row_count(trace: Trace) -> int | None:
    """Counts the rows of a collection, duplicates included; None if that requires a merge.

    Cost: O(layers), plus a lookup of the rows that were removed since the last call.
    """
    return sum(_diff_summary(layer)[0] for layer in trace.layers) if is_nonnegative(trace) else None


def row_sums(trace: Trace) -> int:
    """Adds up the counts of all layers: the row count, if no row is there fewer than 0 times.

    Cost: O(layers), and a pass over the layers since the last call. Nothing is sorted, so a reader
    that polls a growing trace costs the writer nothing.
    """
    return sum(_diff_summary(layer)[0] for layer in trace.layers)


def _diff_summary(layer: Layer) -> tuple[int, int]:
    """Returns the sum of the counts of a layer, and the least of them."""
    facts = layer.facts()
    if facts.rows.counted is None:
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
        facts.count(sums, least)
        return sums, least
    return facts.rows.counted


def is_nonnegative(trace: Trace) -> bool:
    """Returns True if it is certain that no row is there fewer than 0 times.

    The check runs layer by layer, because the result then also holds for the epochs between them.
    If a row was below 0 at some epoch and is no longer, all rows removed since are looked up again.
    """
    layers = trace.layers
    verified = _verified_layers(layers)
    removed = [
        (i, p, index) for i in range(verified, len(layers)) for p, index in _removed_rows(layers[i])
    ]
    if not is_cheaper_than_merge(trace, sum(len(index) for _, _, index in removed)):
        return False
    for i in range(verified, len(layers)):
        upto = Trace(trace.layout, layers[: i + 1])
        if not all(_are_nonnegative(upto, part, index) for at, part, index in removed if at == i):
            if not all(
                _are_nonnegative(trace, part, index) for at, part, index in removed if at >= i
            ):
                return False
            layers[-1].facts().sum_up()
            return True
        layers[i].facts().sum_up()
    return True


def _removed_rows(layer: Layer) -> list[tuple[Batch, Index]]:
    """Returns the rows that a layer removes: parts, and positions in them."""
    if _diff_summary(layer)[1] >= 0:
        return []
    removed = [(part, (part.diff < 0).nonzero()[0]) for part in layer.parts]
    return [(part, index) for part, index in removed if len(index)]


def keep_nonnegative(trace: Trace, stop: int, most: int) -> None:
    """Checks that no row is there fewer than 0 times at the end of the layer before `stop`.

    A merge of the layers before calls this: their cached results are lost with them, and the next
    reader would look up all rows that they remove. Does nothing if no earlier layer has a result.

    Args:
        most: the most rows that are looked up.
    """
    layers = trace.layers[:stop]
    new = layers[_verified_layers(layers) :]
    if not new or len(new) == len(layers) or sum(layer.rows_count for layer in new) > most:
        return
    removed = [part.take(index) for layer in new for part, index in _removed_rows(layer)]
    if removed:
        batch = merge(trace.layout, removed)
        if not _are_nonnegative(Trace(trace.layout, layers), batch, np.arange(len(batch))):
            return
    layers[-1].facts().sum_up()


def is_cheaper_than_merge(trace: Trace, looked_up: int) -> bool:
    """Returns True if looking so many rows up is estimated to cost less than merging the trace."""
    return looked_up * _LOOKUP_COST <= trace.rows_count + _SLACK_ROWS


def add_only(layer: Layer) -> bool:
    """Returns True if no row of a layer has a count below 0. Cost: a pass over its counts, once."""
    return _diff_summary(layer)[1] >= 0


def _verified_layers(layers: Sequence[Layer]) -> int:
    """Returns the number of layers at whose end no row is there fewer than 0 times, as cached."""
    return next((i + 1 for i in reversed(range(len(layers))) if layers[i].facts().sound), 0)


def has_negative(trace: Trace, updates: Updates) -> bool:
    """Returns True if a row of `updates` is there fewer than 0 times.

    Cost: a lookup of these rows in each layer; rows with ambiguous hashes count as present.
    """
    batch = arrange(trace.layout, Updates(updates.columns, np.abs(updates.diff)))
    total = _total_counts(trace, batch, np.arange(len(batch)))
    return total is not None and bool((total < 0).any())


def _are_nonnegative(trace: Trace, batch: Batch, index: Index) -> bool:
    """Returns True if the rows at `index` add up to 0 or more; False if hashes are ambiguous."""
    total = _total_counts(trace, batch, index)
    return total is not None and bool((total >= 0).all())


def _total_counts(trace: Trace, batch: Batch, index: Index) -> Diffs | None:
    """Returns the counts of the rows at `index`; None if their hashes are ambiguous."""
    total = np.zeros(len(index), np.int64)
    khash, rhash = batch.khash[index], batch.rhash[index]
    code = None if batch.code is None else batch.code[index]
    for part in trace.parts():
        hit, low = _matching_hashes(part, khash)
        if not len(hit):
            continue
        row = _row_positions(part, low, khash[hit], rhash[hit], None if code is None else code[hit])
        present = (row < len(part)).nonzero()[0]
        present = present[_has_hashes(part, row[present], khash[hit[present]], rhash[hit[present]])]
        if not len(present):
            continue
        hit, row = hit[present], row[present]
        after = np.minimum(row + 1, len(part) - 1)
        twice = (after > row) & _has_hashes(part, after, khash[hit], rhash[hit])
        diff = part.diff[row]
        if twice.any() or int(np.abs(diff).max()) > _LARGE:
            return None
        for column, column_of_batch, type_ in zip(
            part.columns, batch.columns, trace.layout.types, strict=True
        ):
            same = rows.equal(rows.take(column, row), rows.take(column_of_batch, index[hit]), type_)
            if not same.all():
                return None
        total[hit] += diff
    return total


def _has_hashes(part: Batch, row: Index, khash: Any, rhash: Any) -> npt.NDArray[np.bool_]:
    """Returns a mask of the rows that have the hashes looked for."""
    same: npt.NDArray[np.bool_] = (part.rhash[row] == rhash) & (part.khash[row] == khash)
    return same


def _matching_hashes(part: Batch, khash: Any) -> tuple[Index, Index]:
    """Returns the hashes that a part has, and the first row of each in the part.

    Most of the hashes looked for are in one part of one layer, and in no other.
    """
    none = np.zeros(0, np.int64)
    if not len(part) or not len(khash):
        return none, none
    first, last = khash.searchsorted(part.khash[0]), khash.searchsorted(part.khash[-1], "right")
    low: Index = part.khash.searchsorted(khash[first:last])
    same = (part.khash[low] == khash[first:last]).nonzero()[0]
    return first + same, low[same]


def _row_positions(part: Batch, low: Index, khash: Any, rhash: Any, code: Any) -> Index:
    """Returns the positions of rows with given hashes and codes; `low`: the first of each hash."""
    if part.rhash is part.khash:
        return low
    high = part.khash.searchsorted(khash, "right")
    if code is not None and part.code is not None:
        low, high = place_in(part.code, low, high, code), place_in(part.code, low, high, code, 1)
    return place_in(part.rhash, low, high, rhash)


def place_in(values: Any, low: Index, high: Index, wanted: Any, after: int = 0) -> Index:
    """Returns the first position in `[low, high)` with a value from `wanted` on; `after`: above."""
    low, high = low.copy(), high.copy()
    if not len(values):
        return low
    while (open_ := low < high).any():
        middle = (low + high) >> 1
        current = values[np.minimum(middle, len(values) - 1)]
        below = open_ & ((current <= wanted) if after else (current < wanted))
        low = np.where(below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low
