"""The least and the greatest rows of a group, from a trace ordered by value inside each key.

After a retraction, the next winner is at the beginning or end of its group. So a lookup costs
O(layers x k) rows, even in a group of a million rows. k grows only while rows cancel, or while
values share an order code.

Different values may share a 64-bit order code: texts with the same first 8 bytes, wide decimals, or
the rows of min_by with equal order. To find the least of a million such rows, all of them must be
read. Therefore the winners of such aggregates are stored in a separate trace, one row for each
group. An insertion is compared with the winner, and the group is read only if the winner is
removed.

An aggregate of distinct values depends on the presence of a value, not on its count. The value
index stores the values with their counts. From the count of a changed value before the epoch
follows if the value appears (+1), disappears (-1) or neither. These transitions contribute to slots
as rows do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.operators.base import Step
from nosync_nb.operators.grouping import Groups, with_key_numbers
from nosync_nb.operators.ordering import group_heads
from nosync_nb.rows import Column
from nosync_nb.rows.array_ops import any_true, starts_of
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import (
    FEW_ROWS,
    PLAIN_TYPES,
    Batch,
    Hashes,
    Index,
    Layout,
    Updates,
    arrange,
    concat_updates,
)


def appeared_values(before: Index, batch: Batch) -> Index:
    """Returns for each row of a batch 1 if the row appears, -1 if it disappears, and 0 otherwise.

    Args:
        before: the previous count of each row.
    """
    change: Index = (before + batch.diff > 0).astype(np.int64) - (before > 0)
    return change


def groups_of_values(groups: Groups, batch: Batch, key_types: Sequence[str]) -> Index:
    """Returns the group number of each row of a batch, whose first columns are the keys."""
    place: Index = groups.khash.searchsorted(batch.khash)
    pending = np.arange(len(batch))
    while len(pending):  # one iteration, except for different keys with equal hashes
        same = np.ones(len(pending), bool)
        for held, asked, type_ in zip(groups.keys, batch.columns, key_types, strict=False):
            at = rows.take(held, place[pending])
            same &= rows.equal(at, rows.take(asked, pending), type_)
        pending = pending[~same]
        place[pending] += 1
    return place


_FIRST_LOOK = 4


def extreme(
    trace: Trace, khash: Hashes, keys: Sequence[Column], greatest: bool, step: Step
) -> tuple[npt.NDArray[np.bool_], list[Column]]:
    """Returns the least or greatest row of each group, among the rows with a positive count.

    Args:
        trace: the value index, with rows (key..., value...). Its layout orders by the first value,
            which is not null; further values decide between equal first values.
        khash, keys: the keys of the groups, and their hashes.

    Returns:
        a mask of the groups that have a row, and the values of these groups, in order.
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
    """Returns the position of the extreme row of each group, after equal rows are added up.

    Args:
        probe: the number of the group of each row.
    """
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
    """Returns the same as `_winners` for a few rows of one value, compared in Python."""
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


class GroupWinners(NamedTuple):
    """A mask of the groups that have a winner, and the values of these winners, in order."""

    has: npt.NDArray[np.bool_]
    values: list[Column]

    def values_of(self, group: Index) -> list[Column]:
        """Returns the winners of some groups. Each of these groups must have one."""
        place = self.has.cumsum()[group] - 1
        return [rows.take(value, place) for value in self.values]


def retained_winners(trace: Trace, groups: Groups, step: Step) -> GroupWinners:
    """Returns the winners of groups from the trace of winners, with rows (key..., value...)."""
    n, first = len(groups.khash), len(groups.keys)
    types = trace.layout.types[first:]
    has = np.zeros(n, bool)
    matches = trace.lookup(groups.khash, groups.keys, range(first, len(trace.layout.types)))
    if matches is None:
        return GroupWinners(has, [rows.empty(t) for t in types])
    step.add_touched(len(matches.diff))
    held = with_key_numbers(Updates(matches.columns, matches.diff), matches.probe, types)
    *values, probe = held.columns
    assert (held.diff == 1).all()
    assert len(np.unique(probe)) == len(probe)
    has[probe] = True
    order = np.asarray(probe).argsort()
    return GroupWinners(has, [rows.take(value, order) for value in values])


def next_winners(
    before: GroupWinners,
    batch: Batch,
    there: npt.NDArray[np.bool_],
    after: Trace,
    groups: Groups,
    greatest: bool,
    step: Step,
) -> GroupWinners:
    """Returns the winners after a change.

    Args:
        before: the winners before the change.
        batch: the change of the value index.
        there: a mask of the rows of `batch` that exist after the change.
        after: the value index with the change.
    """
    first = len(groups.keys)
    types = after.layout.types[first:]
    owner = groups_of_values(groups, batch, after.layout.types[:first])
    lost = _lost_winners(before, batch, there, owner, types)
    come = (there & ~lost[owner]).nonzero()[0]
    stay = (before.has & ~lost).nonzero()[0]
    group = np.concatenate((owner[come], stay))
    values = [
        rows.concat([rows.take(new, come), old], t)
        for new, old, t in zip(batch.columns[first:], before.values_of(stay), types, strict=True)
    ]
    best = _best_rows(group, values, types, greatest)
    group, values = group[best], [rows.take(value, best) for value in values]
    if any_true(lost):
        index = lost.nonzero()[0]
        keys = [rows.take(key, index) for key in groups.keys]
        which, others = extreme(after, groups.khash[index], keys, greatest, step)
        group = np.concatenate((group, index[which]))
        values = [rows.concat([a, b], t) for a, b, t in zip(values, others, types, strict=True)]
    has = np.zeros(len(groups.khash), bool)
    has[group] = True
    order = group.argsort()
    return GroupWinners(has, [rows.take(value, order) for value in values])


def winners_change(
    layout: Layout, groups: Groups, before: GroupWinners, after: GroupWinners
) -> Batch | None:
    """Returns the change of the trace of winners; None if no winner changes."""
    parts = []
    for winners, diff in ((before, -1), (after, 1)):
        index = winners.has.nonzero()[0]
        keys = [rows.take(key, index) for key in groups.keys]
        parts.append(Updates([*keys, *winners.values], np.full(len(index), diff, np.int64)))
    batch = arrange(layout, concat_updates(parts, layout.types))
    return batch if len(batch) else None


def _lost_winners(
    before: GroupWinners,
    batch: Batch,
    there: npt.NDArray[np.bool_],
    owner: Index,
    types: tuple[str, ...],
) -> npt.NDArray[np.bool_]:
    """Returns a mask of the groups whose winner no longer exists."""
    lost = np.zeros(len(before.has), bool)
    gone = (~there & before.has[owner]).nonzero()[0]
    if len(gone):
        same = np.ones(len(gone), bool)
        columns = batch.columns[len(batch.columns) - len(types) :]
        for old, column, type_ in zip(before.values_of(owner[gone]), columns, types, strict=True):
            same &= rows.equal(old, rows.take(column, gone), type_)
        lost[owner[gone[same]]] = True
    return lost


def _best_rows(group: Index, values: list[Column], types: tuple[str, ...], greatest: bool) -> Index:
    """Returns for each group the position of its least or greatest row."""
    if not len(group):
        return group
    order = rows.sort_indices([group, *values], ("bigint", *types))
    ordered = group[order]
    starts = starts_of(ordered[1:] == ordered[:-1])
    if not greatest:
        return np.asarray(order[starts])
    return np.asarray(order[np.append(starts[1:], len(order)) - 1])
