"""The least and the greatest rows of a group, from a trace ordered by value inside each key.

The next winner after a retraction is at the head of its group, so a lookup costs O(layers x k)
rows, also in a group of a million. k grows only while rows cancel, or while order codes do not
distinguish values: text whose first 8 bytes are equal, equal orders of min_by.

To find the least among a million rows of one code means to read them all: text whose first 8 bytes
are equal, wide decimals and the equal orders of min_by share a 64-bit code. There the winner itself
is stored in a trace of its own, one row for each group. An insertion is compared with it, and the
group is read only when the winner itself is removed.

An aggregate of distinct values depends on the presence of a value, not on its count. The value
index has the values with their counts. The count before an epoch tells, for each value that the
epoch changes, if the value appears (+1), disappears (-1) or neither. These transitions feed slots
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
    """Returns for each row of a batch 1 if the row appears, -1 if it disappears, else 0.

    Args:
        before: the count of each row before.
    """
    change: Index = (before + batch.diff > 0).astype(np.int64) - (before > 0)
    return change


def groups_of_values(groups: Groups, batch: Batch, key_types: Sequence[str]) -> Index:
    """Returns the number of the group of each row of a batch whose first columns are the keys."""
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
    """Returns the least (or greatest) values with positive count of each key.

    Args:
        trace: rows (key..., value...), layout with `order` on the first value, which is not null;
            further values decide where the first ones are equal.
        khash, keys: the groups to look up.

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


class GroupWinners(NamedTuple):
    """The groups that have a winner, and the values of those, in order."""

    has: npt.NDArray[np.bool_]
    values: list[Column]

    def values_of(self, group: Index) -> list[Column]:
        """Returns the values of some groups that have a winner."""
        place = self.has.cumsum()[group] - 1
        return [rows.take(value, place) for value in self.values]


def retained_winners(trace: Trace, groups: Groups, step: Step) -> GroupWinners:
    """Returns the winners that a trace of rows (key..., value...) stores."""
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
        batch: the change of the ordered trace; `there`: which of its rows exist after it.
        after: the ordered trace with the change.
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
    """Returns the change of the trace that stores winners."""
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
    """A mask of the groups whose winner no longer exists."""
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
    """The row of the least (or greatest) values of each group."""
    if not len(group):
        return group
    order = rows.sort_indices([group, *values], ("bigint", *types))
    ordered = group[order]
    starts = starts_of(ordered[1:] == ordered[:-1])
    if not greatest:
        return np.asarray(order[starts])
    return np.asarray(order[np.append(starts[1:], len(order)) - 1])
