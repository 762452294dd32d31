"""Traces inside a loop: rows with the rounds in which they changed.

Earlier epochs are complete, so their changes are added up as in any trace. The changes of different
rounds are never added up, because a change of a later epoch in round 3 must meet the rows at round
3. The rounds are the last columns of a row. Times are compared as vectors: a row counts at time T
if each of its rounds is at most the corresponding round of T.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.rows import Column
from nosync_nb.trace import Layer, LookupResult, Trace, append_layer
from nosync_nb.trace.batch import Batch, Hashes, Index, Layout, Updates, arrange, merge

Time = tuple[int, ...]
ROUND = "int"


def timed_layout(layout: Layout, depth: int) -> Layout:
    """Returns the layout of a trace inside `depth` loops, with the rounds as last columns."""
    return Layout((*layout.types, *(ROUND,) * depth), layout.places, layout.order)


class StateSplit(NamedTuple):
    """The rows of some keys at a time, and the later times at which these keys change.

    Attributes:
        probe: the number of the key of each row.
        updates: the rows, without rounds.
        later: (time, numbers of keys). Each time is the least upper bound of the requested time and
            the time of a change.
    """

    probe: Index
    updates: Updates
    later: list[tuple[Time, Index]]


class NestedTrace:
    """One trace of a loop while an epoch runs: the stored rows and the additions of this epoch.

    Args:
        trace: the rows of earlier epochs.
        depth: the number of rounds of each row.
    """

    __slots__ = ("added", "depth", "trace", "width")

    def __init__(self, trace: Trace, depth: int) -> None:
        self.trace = trace
        self.depth = depth
        self.width = len(trace.layout.types) - depth
        self.added: list[Batch] = []

    def append(self, batch: Batch, time: Time) -> None:
        """Adds the change at one time; the batch has the layout of the trace without rounds."""
        n = len(batch)
        layout = self.trace.layout
        marks: list[Column] = []
        for each in time:
            mark = np.empty(n, np.int32)
            mark.fill(each)
            marks.append(mark)
        rhash = None
        if len(layout.types) <= 64:
            rhash = rows.extend_hashes(batch.rhash, marks, (ROUND,) * self.depth, n)
        updates = Updates([*batch.columns, *marks], batch.diff)
        arranged = arrange(layout, updates, khash=batch.khash, rhash=rhash)
        self.added.append(arranged)
        layers = self.trace.layers
        at = layers[-1].upper if layers else 0
        self.trace, _ = append_layer(self.trace, Layer(at, at + 1, (arranged,)))

    def emitted(self) -> Batch | None:
        """Returns the sum of the additions of this epoch; None if it is empty."""
        if not self.added:
            return None
        batch = merge(self.trace.layout, self.added)
        return batch if len(batch) else None

    def at(self, time: Time, khash: Hashes, keys: Sequence[Column]) -> StateSplit | None:
        """Returns the rows of some keys at `time`; None if the trace has no rows of them."""
        matches = self.trace.lookup(khash, keys)
        return None if matches is None else split_by_time(matches, self.width, time)


def split_by_time(matches: LookupResult, width: int, time: Time) -> StateSplit:
    """Separates the rows at a time from later changes.

    Args:
        width: the number of columns before the rounds.
        time: the requested time; it has at least the number of rounds of the rows.
    """
    columns, diff, probe = matches.columns, matches.diff, matches.probe
    marks = columns[width:]
    values = columns[:width]
    early: npt.NDArray[np.bool_] | None = None
    for mark, limit in zip(marks, time, strict=False):
        least = np.asarray(mark) <= limit
        early = least if early is None else early & least
    if early is None or bool(early.all()):
        return StateSplit(probe, Updates(values, diff), [])
    now, late = early.nonzero()[0], (~early).nonzero()[0]
    bounds = [np.maximum(np.asarray(m)[late], t) for m, t in zip(marks, time, strict=False)]
    later = [
        (
            (*(int(b[first]) for b in bounds), *time[len(marks) :]),
            probe[late[index]],
        )
        for first, index in equal_runs(bounds)
    ]
    taken = Updates([rows.take(c, now) for c in values], diff[now])
    return StateSplit(probe[now], taken, later)


def equal_runs(columns: Sequence[npt.NDArray[np.int32]]) -> list[tuple[int, Index]]:
    """Groups row positions by equal values: (a row of the group, all rows of the group)."""
    order = np.lexsort(tuple(reversed(columns)))
    changes = np.zeros(len(order) - 1, bool)
    for column in columns:
        sorted_ = column[order]
        changes |= sorted_[1:] != sorted_[:-1]
    return [(int(part[0]), part) for part in np.split(order, changes.nonzero()[0] + 1)]


def at_least_upper_bounds(
    updates: Updates, marks: Sequence[Column], time: Time
) -> list[tuple[Time, Updates]]:
    """Groups updates by the least upper bound of `time` and the rounds of each row.

    Args:
        marks: the rounds of the rows that were joined at `time`.
    """
    if not marks:
        return [(time, updates)]
    bounds = [np.maximum(np.asarray(m), t) for m, t in zip(marks, time, strict=False)]
    rest = time[len(marks) :]
    if all(bool((b == t).all()) for b, t in zip(bounds, time, strict=False)):
        return [(time, updates)]
    return [
        ((*(int(b[first]) for b in bounds), *rest), updates.take(index))
        for first, index in equal_runs(bounds)
    ]
