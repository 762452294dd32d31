"""Traces inside a loop: rows with the rounds at which they changed.

Earlier epochs are complete, so they are collapsed as in any trace. Rounds never are, because a
change of a later epoch at round 3 must meet the rows at round 3. Rounds are the last columns. Times
are compared as vectors: a row counts at time T if each of its rounds is at most that of T.
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
    """Returns the layout of a trace inside `depth` loops."""
    return Layout((*layout.types, *(ROUND,) * depth), layout.places, layout.order)


class StateSplit(NamedTuple):
    """The rows of a trace for some keys at a time, and the later times at which they change.

    `later` holds (time, probes): the least upper bounds with the requested time.
    """

    probe: Index
    updates: Updates
    later: list[tuple[Time, Index]]


class NestedTrace:
    """One trace of a loop while an epoch runs: the previous rows, and the additions of this epoch.

    Args:
        trace: the result of earlier epochs.
        depth: the number of rounds of a row.
    """

    __slots__ = ("added", "depth", "trace", "width")

    def __init__(self, trace: Trace, depth: int) -> None:
        self.trace = trace
        self.depth = depth
        self.width = len(trace.layout.types) - depth
        self.added: list[Batch] = []

    def append(self, batch: Batch, time: Time) -> None:
        """Adds a change of one time. The batch has the same key, without rounds."""
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
        """Returns all additions of this epoch."""
        if not self.added:
            return None
        batch = merge(self.trace.layout, self.added)
        return batch if len(batch) else None

    def at(self, time: Time, khash: Hashes, keys: Sequence[Column]) -> StateSplit | None:
        """Returns the rows of the trace at `time` for keys; None if it has no row of them."""
        matches = self.trace.lookup(khash, keys)
        return None if matches is None else split_by_time(matches, self.width, time)


def split_by_time(matches: LookupResult, width: int, time: Time) -> StateSplit:
    """Separates the rows at a time from later changes.

    Args:
        width: the number of columns before the rounds.
        time: as many rounds as the rows have, or more.
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
    """Returns the rows grouped by equal values: (a row of the group, all rows of it)."""
    order = np.lexsort(tuple(reversed(columns)))
    changes = np.zeros(len(order) - 1, bool)
    for column in columns:
        sorted_ = column[order]
        changes |= sorted_[1:] != sorted_[:-1]
    return [(int(part[0]), part) for part in np.split(order, changes.nonzero()[0] + 1)]


def at_least_upper_bounds(
    updates: Updates, marks: Sequence[Column], time: Time
) -> list[tuple[Time, Updates]]:
    """Returns updates made at `time` from rows that carry rounds: each at the bound of both."""
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
