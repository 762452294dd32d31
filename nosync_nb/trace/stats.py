"""Counts the rows of a trace, and searches for rows with negative counts, without merging layers.

The results are exact, and as strict as a merge. If a row may have a negative count, or if a merge
is not more expensive, a function returns None or False, and the caller merges the trace.

Design
    The row count is the sum of all diffs. Only a row that some layer removes can have a negative
    count, so only the removed rows are looked up. A layer records that the trace up to its end has
    no negative count (`sound`). So an epoch costs only a lookup of its own removals.
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
"""The number of rows that may be looked up even in a small trace."""
_LOOKUP_COST = 4
"""The estimated cost of looking up a row, in rows of a merge."""
_LARGE = 1 << 40
_TOGETHER_ROWS = 1 << 13
"""The maximum number of rows of a layer whose diffs are concatenated before they are summed."""


def row_count(trace: Trace) -> int | None:
    """Counts the rows of a collection, duplicates included; None if that requires a merge.

    Cost: O(layers), plus a lookup of the rows that were removed since the last call.
    """
    return sum(_diff_summary(layer)[0] for layer in trace.layers) if is_nonnegative(trace) else None


def row_sums(trace: Trace) -> int:
    """Adds up the counts of all layers; this is the row count if no row has a negative count.

    Cost: O(layers), plus a pass over the layers since the last call. Nothing is sorted, so a reader
    that polls a growing trace does not slow down the writer.
    """
    return sum(_diff_summary(layer)[0] for layer in trace.layers)


def _diff_summary(layer: Layer) -> tuple[int, int]:
    """Returns the sum of the counts of a layer, and the least count, or 0 if that is positive."""
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
    """Returns True if it is certain that no row of a trace has a negative count.

    The check runs layer by layer, so the result is also recorded for the end of each layer. If a
    row had a negative count at the end of an earlier layer, all rows removed since then are looked
    up again in the whole trace.
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
    """Returns the rows that a layer removes, as parts and positions in them."""
    if _diff_summary(layer)[1] >= 0:
        return []
    removed = [(part, (part.diff < 0).nonzero()[0]) for part in layer.parts]
    return [(part, index) for part, index in removed if len(index)]


def keep_nonnegative(trace: Trace, stop: int, most: int) -> None:
    """Records that no row has a negative count in the first `stop` layers, if this is true.

    This is called before these layers are merged, because a merge loses the cached results of its
    layers. Without the record, the next reader would look up all rows that the layers remove. Does
    nothing if no layer has a cached result.

    Args:
        most: the maximum number of rows of the layers without a cached result.
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
    """Returns True if looking up `looked_up` rows is estimated to be cheaper than a merge."""
    return looked_up * _LOOKUP_COST <= trace.rows_count + _SLACK_ROWS


def add_only(layer: Layer) -> bool:
    """Returns True if no row of a layer has a negative diff.

    Cost: at the first call a pass over the diffs.
    """
    return _diff_summary(layer)[1] >= 0


def _verified_layers(layers: Sequence[Layer]) -> int:
    """Returns the number of first layers after which no count is known to be negative."""
    return next((i + 1 for i in reversed(range(len(layers))) if layers[i].facts().sound), 0)


def has_negative(trace: Trace, updates: Updates) -> bool:
    """Returns True if a row of `updates` has a negative count in the trace.

    Returns False if the hashes of the rows are ambiguous.

    Cost: a lookup of these rows in each layer.
    """
    batch = arrange(trace.layout, Updates(updates.columns, np.abs(updates.diff)))
    total = _total_counts(trace, batch, np.arange(len(batch)))
    return total is not None and bool((total < 0).any())


def _are_nonnegative(trace: Trace, batch: Batch, index: Index) -> bool:
    """Returns True if no row at `index` has a negative count; False if hashes are ambiguous."""
    total = _total_counts(trace, batch, index)
    return total is not None and bool((total >= 0).all())


def _total_counts(trace: Trace, batch: Batch, index: Index) -> Diffs | None:
    """Returns the counts of the rows at `index` in a trace; None if hashes are ambiguous."""
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
    """Returns a mask of the rows that have the given hashes."""
    same: npt.NDArray[np.bool_] = (part.rhash[row] == rhash) & (part.khash[row] == khash)
    return same


def _matching_hashes(part: Batch, khash: Any) -> tuple[Index, Index]:
    """Returns the positions of the hashes that a part contains, and the first row of each.

    The search is limited to the hash range of the part, because most hashes occur in a single part.
    """
    none = np.zeros(0, np.int64)
    if not len(part) or not len(khash):
        return none, none
    first, last = khash.searchsorted(part.khash[0]), khash.searchsorted(part.khash[-1], "right")
    low: Index = part.khash.searchsorted(khash[first:last])
    same = (part.khash[low] == khash[first:last]).nonzero()[0]
    return first + same, low[same]


def _row_positions(part: Batch, low: Index, khash: Any, rhash: Any, code: Any) -> Index:
    """Returns the positions at which rows with given hashes and codes would be in a part.

    Args:
        low: the first position of each key hash.
    """
    if part.rhash is part.khash:
        return low
    high = part.khash.searchsorted(khash, "right")
    if code is not None and part.code is not None:
        low, high = place_in(part.code, low, high, code), place_in(part.code, low, high, code, 1)
    return place_in(part.rhash, low, high, rhash)


def place_in(values: Any, low: Index, high: Index, wanted: Any, after: int = 0) -> Index:
    """Returns the first position in each `[low, high)` whose value is not below the wanted one.

    With `after`, returns the first position whose value is above the wanted one.
    """
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
