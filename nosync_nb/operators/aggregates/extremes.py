"""The least and the greatest rows of a group, from a trace ordered by value inside each key.

The next winner after a retraction stands at the head of its group, so a look costs
O(layers x k) rows, also in a group of a million; k grows only while what is found cancels, or
while order codes do not tell: text whose first 8 bytes are equal, equal orders of min_by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.operators.group_prefix import group_heads
from nosync_nb.rows import Column
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Hashes, Index
from nosync_nb.trace.small_consolidation import FEW_ROWS, PLAIN_TYPES

_FIRST_LOOK = 4


def extreme(
    trace: Trace, khash: Hashes, keys: Sequence[Column], greatest: bool, step: Step
) -> tuple[npt.NDArray[np.bool_], list[Column]]:
    """The least (or greatest) values with positive count of each key.

    Args:
        trace: rows (key..., value...), layout with `order` on the first value, which is not null;
            further values decide where the first ones are equal.
        khash, keys: the groups to look at.

    Returns:
        which groups have a value, and the values (of the groups that have one, in order).
    """
    n = len(khash)
    own = len(keys)
    types = trace.layout.types[own:]
    if not trace.layers:
        return np.zeros(n, bool), [rows.empty(t) for t in types]
    pending = np.arange(n)
    groups: list[Index] = []
    values: list[list[Column]] = []
    look = _FIRST_LOOK
    while len(pending):
        taken = [rows.take(k, pending) for k in keys]
        head, probe, open_ = group_heads(trace, khash[pending], taken, look, step, last=greatest)
        value = head.columns[own:]
        winners = _winners(probe, value, types, head.diff, greatest)
        groups.append(pending[probe[winners]])
        values.append([rows.take(column, winners) for column in value])
        open_[probe[winners]] = False
        pending = pending[open_]
        look *= 8
    group = np.concatenate(groups) if groups else np.zeros(0, np.int64)
    has = np.zeros(n, bool)
    has[group] = True
    order = group.argsort(kind="stable")
    columns = [rows.concat([v[i] for v in values], t) for i, t in enumerate(types)]
    return has, [rows.take(column, order) for column in columns]


def _winners(
    probe: Index,
    values: Sequence[Column],
    types: Sequence[str],
    diff: npt.NDArray[np.int64],
    greatest: bool,
) -> Index:
    """The first row of each probe whose equal rows add up to a positive count."""
    if not len(probe):
        return probe
    if len(probe) <= FEW_ROWS and len(types) == 1 and types[0] in PLAIN_TYPES:
        (value,) = values
        if type(value) is np.ndarray:
            return _few_winners(probe.tolist(), value.tolist(), diff.tolist(), greatest)
    by_value = rows.sort_indices(values, types)
    last = len(by_value) - 1
    step = np.ones(len(by_value), np.int64)
    if last:
        one, next_ = by_value[:-1], by_value[1:]
        same = np.ones(last, bool)
        for value, type_ in zip(values, types, strict=True):
            same &= rows.equal(rows.take(value, one), rows.take(value, next_), type_)
        step[1:] = ~same
    rank = np.zeros(len(by_value), np.int64)
    rank[by_value] = step.cumsum()
    if greatest:
        rank = -rank
    order = np.lexsort((rank, probe))
    p, r = probe[order], rank[order]
    starts = np.concatenate(([0], ((p[1:] != p[:-1]) | (r[1:] != r[:-1])).nonzero()[0] + 1))
    positive = starts[np.add.reduceat(diff[order], starts) > 0]
    _, first = np.unique(p[positive], return_index=True)
    return order[positive[first]]


def _few_winners(probe: list[int], values: list[Any], diff: list[int], greatest: bool) -> Index:
    """The same for few rows of one value that Python orders as Spark does."""
    counts: dict[tuple[int, Any], int] = {}
    places: dict[tuple[int, Any], int] = {}
    for place, (number, value, count) in enumerate(zip(probe, values, diff, strict=True)):
        row = number, value
        counts[row] = counts.get(row, 0) + count
        places.setdefault(row, place)
    best: dict[int, Any] = {}
    for (number, value), count in counts.items():
        if count > 0 and (
            number not in best or (value > best[number] if greatest else value < best[number])
        ):
            best[number] = value
    return np.array([places[row] for row in sorted(best.items())], np.int64)
