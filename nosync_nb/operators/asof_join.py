"""The as-of join: each left row beside the latest right row of its key at or before its time.

Both traces are ordered by time inside each key. A changed left row looks up its neighbour. A
changed right row affects the left rows from its time up to the time of the next right row. These
left rows are read before and after the change. A row with a negative count is not a neighbour.

In each part, the rows nearest to a time are adjacent to its position. A lookup reads further only
if rows cancel. Many times of one key are looked up together: a row is read once, even if several
lookups include it.

Cost: O(layers) rows for each changed row, and for each left row whose neighbour may change. The
size of the key does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.expressions import Types
from nosync_nb.operators.base import Operator, Step
from nosync_nb.operators.grouping import group_rows
from nosync_nb.operators.spec import DefinitionPart, Spec, every_column
from nosync_nb.rows import Column
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import Batch, Hashes, Index, Layout, Updates, arrange, concat_updates
from nosync_nb.trace.stats import place_in

_LOOK = 4  # the number of rows that the first lookup reads beside a time in each part
_FURTHER = 8  # the factor by which this number grows with each further lookup


class TimeNeighbours(NamedTuple):
    """The neighbours of some times.

    Attributes:
        which: the positions of the times that have a neighbour, ascending.
        columns: the columns of these neighbours.
        code: the order codes of these neighbours.
    """

    which: Index
    columns: list[Column]
    code: Hashes


def time_neighbours(
    trace: Trace, khash: Hashes, keys: Sequence[Column], code: Hashes, step: Step, *, after: bool
) -> TimeNeighbours:
    """Returns for each time the nearest row of its key with a positive count.

    Args:
        trace: its layout orders the rows of a key by a column without nulls.
        khash, keys: the key of each time.
        code: the order code of each time.
        after: True for the first row after the time. False for the last row at or before it; of
            several rows at one time, the last one in canonical order.
    """
    pending = np.arange(len(khash))
    looks: list[tuple[Index, list[Column], Hashes]] = []
    look = _LOOK
    while len(pending):
        seen = _read_beside(trace, khash[pending], code[pending], look, after=after)
        step.add_touched(len(seen.held))
        chosen, where = _certain_neighbours(
            seen, [rows.take(k, pending) for k in keys], code[pending], after
        )
        columns = [rows.take(c, where) for c in seen.held.columns]
        assert seen.held.code is not None
        looks.append((pending[chosen], columns, seen.held.code[where]))
        open_ = seen.open
        open_[chosen] = False
        pending = pending[open_]
        look *= _FURTHER
    if not looks:
        return TimeNeighbours(pending, [rows.empty(t) for t in trace.layout.types], code[:0])
    which = np.concatenate([each for each, _, _ in looks])
    order = which.argsort()
    columns = [
        rows.take(rows.concat([each[i] for _, each, _ in looks], t), order)
        for i, t in enumerate(trace.layout.types)
    ]
    return TimeNeighbours(which[order], columns, np.concatenate([c for _, _, c in looks])[order])


def interval_union(low: Index, high: Index) -> Index:
    """Returns the union of the intervals `[low, high)` as ascending positions."""
    order = low.argsort(kind="stable")
    low, high = low[order], high[order]
    reached = np.maximum.accumulate(high)
    start = low.copy()
    start[1:] = np.maximum(low[1:], reached[:-1])
    return hash_ranges(start, np.maximum(high - start, 0))


class _NeighbourLookup(NamedTuple):
    """The result of one lookup beside times.

    Attributes:
        held: the rows that were read, consolidated.
        open: a mask of the times that still have unread rows beside them in some part.
        horizon: for each such time the order code from which rows may be unread.
    """

    held: Batch
    open: npt.NDArray[np.bool_]
    horizon: Hashes


def _read_beside(
    trace: Trace, khash: Hashes, code: Hashes, look: int, *, after: bool
) -> _NeighbourLookup:
    """Reads up to `look` rows before or after each time in each part."""
    open_ = np.zeros(len(khash), bool)
    horizon = np.full(len(khash), 2**64 - 1 if after else 0, np.uint64)
    taken: list[Updates] = []
    for part in trace.parts():
        first = part.khash.searchsorted(khash)
        last = part.khash.searchsorted(khash, "right")
        assert part.code is not None
        at = place_in(part.code, first, last, code, after=1)
        if after:
            start, stop = at, np.minimum(last, at + look)
            more, edge = stop < last, stop - 1
        else:
            start, stop = np.maximum(first, at - look), at
            more, edge = start > first, start
        if more.any():
            open_ |= more
            seen, shown = horizon[more], part.code[edge[more]]
            horizon[more] = np.minimum(seen, shown) if after else np.maximum(seen, shown)
        index = interval_union(start, stop)
        if len(index):
            taken.append(part.updates.take(index))
    none = Updates([rows.empty(t) for t in trace.layout.types], np.zeros(0, np.int64))
    every = concat_updates(taken, trace.layout.types) if taken else none
    return _NeighbourLookup(arrange(trace.layout, every), open_, horizon)


def _certain_neighbours(
    seen: _NeighbourLookup, keys: Sequence[Column], code: Hashes, after: bool
) -> tuple[Index, Index]:
    """Returns the times whose neighbour is certain, and the neighbour's position in `seen.held`."""
    held, n = seen.held, len(code)
    there = (held.diff > 0).nonzero()[0]
    none: Index = np.zeros(0, np.int64)
    if not len(there):
        return none, none
    layout = held.layout
    types = [layout.types[i] for i in layout.key or ()]
    own = [rows.take(held.columns[i], there) for i in layout.key or ()]
    both = [rows.concat([a, b], t) for a, b, t in zip(keys, own, types, strict=True)]
    groups = group_rows(both, types, n + len(there))
    number = np.empty(n + len(there), np.int64)
    sizes = np.diff(np.append(groups.starts, len(number)))
    number[groups.order] = np.arange(len(groups.starts)).repeat(sizes)
    assert held.code is not None
    canonical = np.empty(len(there), np.int64)
    columns = [rows.take(c, there) for c in held.columns]
    canonical[rows.sort_indices(columns, layout.types)] = np.arange(len(there))
    order = np.lexsort((canonical, held.code[there], number[n:]))
    there = there[order]
    owner, codes = number[n:][order], held.code[there]
    first, last = owner.searchsorted(number[:n]), owner.searchsorted(number[:n], "right")
    at = place_in(codes, first, last, code, after=1)
    if after:
        good = at < last
    else:
        at, good = at - 1, at > first
    which = good.nonzero()[0]
    place = codes[at[which]]
    certain = place < seen.horizon[which] if after else place > seen.horizon[which]
    which = which[certain | ~seen.open[which]]
    return which, there[at[which]]


_LAST = 2**64 - 1


class AsOfJoin(Operator):
    """Joins each left row with the latest right row of its key at or before its time.

    Args:
        left: the column types of the left input.
        right: the column types of the right input: the keys, the time, and all other columns. Keys
            and times are never null.
        left_key: the positions of the left key columns, in the order of the right ones.
        at: the position of the left time.
        further: the positions of the right columns that follow the left columns in the output.
        tolerance: the maximum distance between the times, in units of their type; `None` means any
            distance.
    """

    name = "asof"

    def __init__(
        self,
        left: Sequence[str],
        right: Sequence[str],
        left_key: Sequence[int],
        at: int,
        further: Sequence[int],
        tolerance: int | None,
    ) -> None:
        self.keys = self.output_key = tuple(left_key)
        self.at = at
        self.further = tuple(further)
        self.reach = _LAST if tolerance is None else min(tolerance, _LAST)
        self.types = (*left, *(right[i] for i in further))
        count = len(self.keys)
        self.right = Layout(tuple(right), tuple(range(count)), count)
        self.layouts = (Layout(tuple(left), self.keys, at), self.right)

    def step(self, step: Step) -> Updates | None:
        left, right = (d if d is not None and len(d.diff) else None for d in step.deltas)
        assert left is None or isinstance(left, Batch)
        assert right is None or isinstance(right, Batch)
        if left is None and right is None:
            return None
        until = None if right is None else self._last_codes(right, step)
        parts = []
        for mine, theirs, sign in (
            (step.before[0], step.before[1], -1),
            (step.after[0], step.after[1], 1),
        ):
            if mine is not None and mine.layers:
                held = self._affected_rows(mine, left, right, until)
                step.add_touched(len(held))
                if len(held):
                    pairs = self._with_neighbours(held, theirs, step)
                    parts.append(Updates(pairs.columns, sign * pairs.diff))
        if not parts:
            return None
        return arrange(Layout(self.types), concat_updates(parts, self.types)).updates

    def _last_codes(self, right: Batch, step: Step) -> Hashes:
        """Returns the code of the last left time that each changed right row can affect."""
        assert right.code is not None
        step.add_touched(len(right))
        reach = np.uint64(self.reach)
        until = np.where(
            right.code > np.uint64(_LAST) - reach, np.uint64(_LAST), right.code + reach
        )
        after = step.after[1]
        if after is not None:
            keys = right.columns[: len(self.keys)]
            nearest = time_neighbours(after, right.khash, keys, right.code, step, after=True)
            until[nearest.which] = np.minimum(until[nearest.which], nearest.code - np.uint64(1))
        return until

    def _affected_rows(
        self, trace: Trace, left: Batch | None, right: Batch | None, until: Hashes | None
    ) -> Batch:
        """Returns the left rows that changed, or whose neighbour may have changed."""
        taken = []
        for part in trace.parts():
            spans = []
            if left is not None:
                spans.append(_rows_equal_to(part, left))
            if right is not None and until is not None:
                spans.append(_rows_between(part, right, until))
            index = interval_union(*(np.concatenate(ends) for ends in zip(*spans, strict=True)))
            if len(index):
                taken.append(part.updates.take(index))
        none = Updates([rows.empty(t) for t in trace.layout.types], np.zeros(0, np.int64))
        return arrange(trace.layout, concat_updates(taken, trace.layout.types) if taken else none)

    def _with_neighbours(self, held: Batch, theirs: Trace | None, step: Step) -> Updates:
        """Returns left rows with the columns of their neighbours; null without a neighbour."""
        present = (held.diff > 0).nonzero()[0]
        own, diff = [rows.take(c, present) for c in held.columns], held.diff[present]
        n = len(present)
        place = np.full(n, -1, np.int64)
        others = [rows.empty(self.right.types[i]) for i in self.further]
        if theirs is not None and theirs.layers and n:
            assert held.code is not None
            code = held.code[present]
            keys = [own[i] for i in self.keys]
            nearest = time_neighbours(theirs, held.khash[present], keys, code, step, after=False)
            good = code[nearest.which] - nearest.code <= np.uint64(self.reach)
            missing = rows.null_mask(own[self.at])
            if missing is not None:
                good &= ~missing[nearest.which]
            kept = good.nonzero()[0]
            place[nearest.which[kept]] = np.arange(len(kept))
            others = [rows.take(nearest.columns[i], kept) for i in self.further]
        alone = place < 0
        if alone.any():
            place[alone] = len(others[0]) if others else 0
            types = (self.right.types[i] for i in self.further)
            others = [
                rows.concat([c, rows.full_null(t, 1)], t)
                for c, t in zip(others, types, strict=True)
            ]
        return Updates([*own, *(rows.take(c, place) for c in others)], diff)


def _rows_equal_to(part: Batch, wanted: Batch) -> tuple[Index, Index]:
    """Returns the ranges of a part with the key, time and row hash of each wanted row."""
    assert wanted.code is not None
    low, high = _rows_between(part, wanted, wanted.code)
    if part.rhash is part.khash:
        return low, high
    start = place_in(part.rhash, low, high, wanted.rhash)
    return start, place_in(part.rhash, low, high, wanted.rhash, after=1)


def _rows_between(part: Batch, right: Batch, until: Hashes) -> tuple[Index, Index]:
    """Returns the ranges of a part with the key of each right row, from its time to `until`."""
    assert part.code is not None
    assert right.code is not None
    first = part.khash.searchsorted(right.khash)
    last = part.khash.searchsorted(right.khash, "right")
    low = place_in(part.code, first, last, right.code)
    return low, place_in(part.code, first, last, until, after=1)


def _build(part: DefinitionPart, types: Types | None) -> Operator:
    left, right = (each.schema.types for each in part.inputs)
    p = part.params
    return AsOfJoin(left, right, p["left"], p["at"], p["further"], p["tolerance"])


SPEC = Spec("asof", every_column, build=_build, key=lambda _, below: below[0])
