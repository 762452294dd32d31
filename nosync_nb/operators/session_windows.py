"""Session windows: rows of a key whose times are at most a gap apart form a session.

The trace is ordered by time inside each key. A changed time affects the sessions within the gap of
it. Lookups read in both directions from this time until they find a gap. The sessions before and
after the change are then compared. A row with a negative count is absent.

Cost: O(layers) rows for each changed time, and the rows of the affected sessions. The size of the
key does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.errors import StageError, titled
from nosync_nb.expressions import Types
from nosync_nb.operators.asof_join import interval_union
from nosync_nb.operators.base import Operator, Step, UpdateCost
from nosync_nb.operators.grouping import group_rows
from nosync_nb.operators.spec import DefinitionPart, Spec, every_column
from nosync_nb.rows import Column
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import (
    Batch,
    Hashes,
    Index,
    Layout,
    Updates,
    arrange,
    concat_updates,
    no_updates,
)
from nosync_nb.trace.stats import place_in

_LOOK = 8  # the number of rows that the first lookup reads on either side of a time in each part
_FURTHER = 8  # the factor by which this number grows with each further lookup
_SIGN = np.uint64(1 << 63)
_LAST = np.uint64(2**64 - 1)
_ZERO = np.uint64(0)
_END = np.uint64((1 << 63) + 253_402_300_799_999_999)  # the last microsecond of the year 9999


class Sessions(Operator):
    """Appends the first time of each row's session, and its last time plus the gap.

    Args:
        types: the column types of the input.
        keys: the positions of the key columns.
        at: the position of the time column, which has no nulls.
        gap: the maximum gap inside a session, in units of the time.
    """

    name = "sessions"
    update_cost = UpdateCost.GROUPS

    def __init__(self, types: Sequence[str], keys: Sequence[int], at: int, gap: int) -> None:
        self.inputs = tuple(types)
        self.keys = self.output_key = tuple(keys)
        self.gap = np.uint64(min(gap, 1 << 62))
        self.types = (*types, types[at], types[at])
        self.layouts = (Layout(self.inputs, self.keys, at),)

    def step(self, step: Step) -> Updates | None:
        delta = step.deltas[0]
        if delta is None or not len(delta.diff):
            return None
        assert isinstance(delta, Batch)
        step.add_touched(len(delta))
        parts = []
        for trace, sign in ((step.before[0], -1), (step.after[0], 1)):
            if trace is not None and trace.layers:
                around = self._around(trace, delta, step)
                parts.append(Updates(around.columns, sign * around.diff))
        if not parts:
            return None
        return arrange(Layout(self.types), concat_updates(parts, self.types)).updates

    def _around(self, trace: Trace, delta: Batch, step: Step) -> Updates:
        """Returns the rows of all sessions within the gap of a changed time."""
        assert delta.code is not None
        pending = np.arange(len(delta))
        look = _LOOK
        types = (*self.types, "bigint")
        shown = []
        while len(pending):
            keys = [rows.take(delta.columns[i], pending) for i in self.keys]
            some, open_ = self._read_sessions(trace, delta, pending, keys, look, step)
            # Two lookups may find the same session. The count is a column here, so that such rows
            # are equal, and `arrange` adds them up to one row.
            counted = [*some.columns, some.diff]
            shown.append(Updates(counted, np.ones(len(some.diff), np.int64)))
            pending = pending[open_]
            look *= _FURTHER
        *columns, diff = arrange(Layout(types), concat_updates(shown, types)).columns
        return Updates(columns, np.asarray(diff))

    def _read_sessions(
        self,
        trace: Trace,
        delta: Batch,
        pending: Index,
        keys: Sequence[Column],
        look: int,
        step: Step,
    ) -> tuple[Updates, Index]:
        """Returns the sessions that one lookup reads completely.

        Returns:
            the rows of the sessions, and the positions in `pending` of the times that need a larger
            lookup.
        """
        assert delta.code is not None
        khash, code, n = delta.khash[pending], delta.code[pending], len(pending)
        held, low, less, high, more = _read(trace, khash, code, look)
        step.add_touched(len(held))
        there = (held.diff > 0).nonzero()[0]
        owner, probe = self._numbers(held, there, keys, n)
        assert held.code is not None
        order = np.lexsort((held.code[there], owner))
        there, owner = there[order], owner[order]
        codes = held.code[there]
        new = np.ones(len(there), bool)
        new[1:] = (owner[1:] != owner[:-1]) | (codes[1:] - codes[:-1] > self.gap)
        starts = new.nonzero()[0]
        ends = np.append(starts[1:], len(there))[: len(starts)]
        of_row = new.cumsum() - 1
        # The rows within the gap of each time, and the bounds of their sessions.
        floor = np.where(code > self.gap, code - self.gap, _ZERO)
        ceiling = np.where(code < _LAST - self.gap, code + self.gap, _LAST)
        first, last = owner.searchsorted(probe), owner.searchsorted(probe, "right")
        begin = place_in(codes, first, last, floor)
        end = place_in(codes, first, last, ceiling, after=1)
        some = (end > begin).nonzero()[0]
        left, right = of_row[begin[some]], of_row[end[some] - 1]
        earliest = codes[starts[left]]
        floor[some] = np.where(earliest > self.gap, earliest - self.gap, _ZERO)
        latest = codes[ends[right] - 1]
        ceiling[some] = np.where(latest < _LAST - self.gap, latest + self.gap, _LAST)
        floor, ceiling = np.minimum(floor, code), np.maximum(ceiling, code)
        open_ = (less & (floor <= low)) | (more & (ceiling >= high))
        done = ~open_[some]
        shown = interval_union(starts[left[done]], ends[right[done]])
        session = of_row[shown]
        until = codes[ends[session] - 1] + self.gap
        if len(until) and until.max() > _END:
            raise StageError(
                f"{titled(step.stage)}: a session ends after the year 9999",
                hint="use a shorter gap, or filter out such times",
                stage=step.stage,
            )
        columns = [rows.take(c, there[shown]) for c in held.columns]
        times = [(each ^ _SIGN).view(np.int64) for each in (codes[starts[session]], until)]
        return Updates([*columns, *times], held.diff[there[shown]]), open_.nonzero()[0]

    def _numbers(
        self, held: Batch, there: Index, keys: Sequence[Column], n: int
    ) -> tuple[Index, Index]:
        """Returns equal numbers for equal keys, for the rows and for the `n` requested times."""
        types = [self.inputs[i] for i in self.keys]
        own = [rows.take(held.columns[i], there) for i in self.keys]
        both = [rows.concat([a, b], t) for a, b, t in zip(own, keys, types, strict=True)]
        count = len(there) + n
        groups = group_rows(both, types, count)
        number = np.empty(count, np.int64)
        sizes = np.diff(np.append(groups.starts, count))
        number[groups.order] = np.arange(len(sizes)).repeat(sizes)
        return number[: len(there)], number[len(there) :]


class _Read(NamedTuple):
    """The result of one lookup around times.

    Attributes:
        held: the rows that were read, consolidated.
        low, high: for each time the codes at which unread rows may begin, on either side.
        less, more: masks of the times that have unread rows before or after those that were read.
    """

    held: Batch
    low: Hashes
    less: npt.NDArray[np.bool_]
    high: Hashes
    more: npt.NDArray[np.bool_]


def _read(trace: Trace, khash: Hashes, code: Hashes, look: int) -> _Read:
    """Reads up to `look` rows on both sides of each time in each part."""
    n = len(code)
    low, high = np.full(n, _ZERO), np.full(n, _LAST)
    less, more = np.zeros(n, bool), np.zeros(n, bool)
    taken = [no_updates(trace.layout.types)]
    for part in trace.parts():
        assert part.code is not None
        first = part.khash.searchsorted(khash)
        last = part.khash.searchsorted(khash, "right")
        at = place_in(part.code, first, last, code)
        start, stop = np.maximum(first, at - look), np.minimum(last, at + look)
        cut = start > first
        low[cut] = np.maximum(low[cut], part.code[start[cut]])
        less |= cut
        cut = stop < last
        high[cut] = np.minimum(high[cut], part.code[stop[cut] - 1])
        more |= cut
        taken.append(part.updates.take(interval_union(start, stop)))
    held = arrange(trace.layout, concat_updates(taken, trace.layout.types))
    return _Read(held, low, less, high, more)


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    p = part.params
    return Sessions(part.inputs[0].schema.types, p["keys"], p["at"], p["gap"])


SPEC = Spec("sessions", every_column, build=_build)
