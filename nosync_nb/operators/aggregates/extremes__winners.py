"""The winner of each group, kept where an ordered trace does not show it at once.

An ordered trace is sorted by 64-bit codes. Text whose first 8 bytes are equal, wide decimals and
the equal orders of min_by share a code, and to find the least among a million rows of one code is
to look at them all. So the winner is kept in a trace of its own, one row for each group: an
insertion is compared with it, and the group is looked at only when the winner itself goes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.operators.aggregates.extremes import extreme
from nosync_nb.operators.aggregates.extremes__presence import groups_of_values
from nosync_nb.operators.base import Step
from nosync_nb.operators.grouping import Groups, with_key_numbers
from nosync_nb.rows import Column
from nosync_nb.rows.array_ops import any_true, starts_of
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Index, Layout, Updates, arrange, concat_updates


class GroupWinners(NamedTuple):
    """Which groups have a winner, and the values of those that have one, in order."""

    has: npt.NDArray[np.bool_]
    values: list[Column]

    def of(self, group: Index) -> list[Column]:
        """The values of some groups that have a winner."""
        place = self.has.cumsum()[group] - 1
        return [rows.take(value, place) for value in self.values]


def retained_winners(trace: Trace, groups: Groups, step: Step) -> GroupWinners:
    """The winners that a trace of rows (key..., value...) keeps."""
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
    """The winners after a change.

    Args:
        batch: the change of the ordered trace; `there`: which of its rows are there after it.
        after: the ordered trace with the change.
    """
    first = len(groups.keys)
    types = after.layout.types[first:]
    owner = groups_of_values(groups, batch, after.layout.types[:first])
    lost = _lost(before, batch, there, owner, types)
    come = (there & ~lost[owner]).nonzero()[0]
    stay = (before.has & ~lost).nonzero()[0]
    group = np.concatenate((owner[come], stay))
    values = [
        rows.concat([rows.take(new, come), old], t)
        for new, old, t in zip(batch.columns[first:], before.of(stay), types, strict=True)
    ]
    best = _best(group, values, types, greatest)
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
    """The change of the trace that keeps winners."""
    parts = []
    for winners, diff in ((before, -1), (after, 1)):
        index = winners.has.nonzero()[0]
        keys = [rows.take(key, index) for key in groups.keys]
        parts.append(Updates([*keys, *winners.values], np.full(len(index), diff, np.int64)))
    batch = arrange(layout, concat_updates(parts, layout.types))
    return batch if len(batch) else None


def _lost(
    before: GroupWinners,
    batch: Batch,
    there: npt.NDArray[np.bool_],
    owner: Index,
    types: tuple[str, ...],
) -> npt.NDArray[np.bool_]:
    """The groups whose winner is there no more."""
    lost = np.zeros(len(before.has), bool)
    gone = (~there & before.has[owner]).nonzero()[0]
    if len(gone):
        same = np.ones(len(gone), bool)
        columns = batch.columns[len(batch.columns) - len(types) :]
        for old, column, type_ in zip(before.of(owner[gone]), columns, types, strict=True):
            same &= rows.equal(old, rows.take(column, gone), type_)
        lost[owner[gone[same]]] = True
    return lost


def _best(group: Index, values: list[Column], types: tuple[str, ...], greatest: bool) -> Index:
    """The row of the least (or greatest) values of each group."""
    if not len(group):
        return group
    order = rows.sort_indices([group, *values], ("bigint", *types))
    ordered = group[order]
    starts = starts_of(ordered[1:] == ordered[:-1])
    if not greatest:
        return np.asarray(order[starts])
    return np.asarray(order[np.append(starts[1:], len(order)) - 1])
