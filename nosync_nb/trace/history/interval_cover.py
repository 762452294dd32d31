"""Chooses the stored sums that add up to an interval of epochs (the grid). Pure functions.

A section holds the changes of a trace over `[start, stop)` at several *levels*. Level `s` has one
sum for each aligned group of `2**s` epochs; groups at the ends are cut to the section. Level
`WHOLE` has one sum for everything. Level 0 has single epochs; downsampling may have dropped it.
"""

from __future__ import annotations

from typing import NamedTuple

SHIFTS = (4, 8)
WHOLE = 62


class GroupRun(NamedTuple):
    """The groups `[first, end)` of a level."""

    shift: int
    first: int
    end: int


def cover(
    lower: int, upper: int, start: int, stop: int, shifts: tuple[int, ...]
) -> list[GroupRun] | None:
    """Covers `[lower, upper)`, clipped to the section, by few groups of the given levels.

    Args:
        shifts: the levels there are, ascending.

    Returns:
        disjoint runs, at most two of each level, or None if the bounds are inside of groups of the
        lowest level.
    """
    lower, upper = max(lower, start), min(upper, stop)
    if lower >= upper:
        return []
    runs: list[GroupRun] = []
    todo = [(lower, upper, len(shifts) - 1)]
    while todo:
        low, high, k = todo.pop()
        if k < 0:
            return None
        shift = shifts[k]
        first = low >> shift if low == start else -(-low >> shift)
        end = -(-stop >> shift) if high == stop else high >> shift
        if first >= end:
            todo.append((low, high, k - 1))
            continue
        runs.append(GroupRun(shift, first, end))
        if low < first << shift:
            todo.append((low, first << shift, k - 1))
        if end << shift < high:
            todo.append((end << shift, high, k - 1))
    return runs


def readable(spans: list[tuple[int, int]], grains: list[tuple[int, int, int]]) -> list[range]:
    """Returns the epochs at which a state can be read.

    Args:
        spans: half-open intervals in which a trace is complete, ascending.
        grains: `(lower, upper, grain)`, ascending and disjoint: an epoch t of `[lower, upper)` is
            individually readable if t + 1 is a multiple of the grain. Epochs outside of them are
            readable.

    Returns:
        ascending ranges, the step being the grain.
    """
    ranges: list[range] = []
    for begin, end in spans:
        at = begin
        for lower, upper, grain in grains:
            if upper <= at or lower >= end or grain == 1:
                continue
            _add(ranges, range(at, lower))
            first = -(-(max(lower, begin) + 1) // grain) * grain - 1
            _add(ranges, range(first, min(upper, end), grain))
            at = min(upper, end)
        _add(ranges, range(at, end))
    return ranges


def common(one: list[range], other: list[range]) -> list[range]:
    """Returns the epochs in both of two results of `readable`, whose steps are powers of two.

    If the ranges overlap, the epochs of the larger step are among those of the smaller one.
    """
    both: list[range] = []
    i = j = 0
    while i < len(one) and j < len(other):
        a, b = one[i], other[j]
        lower, upper = max(a[0], b[0]), min(a[-1], b[-1]) + 1
        coarse = a if a.step >= b.step else b
        first = coarse[0] + max(0, -(-(lower - coarse[0]) // coarse.step)) * coarse.step
        _add(both, range(first, upper, coarse.step))
        if a[-1] <= b[-1]:
            i += 1
        if b[-1] <= a[-1]:
            j += 1
    return both


def _add(ranges: list[range], more: range) -> None:
    """Appends a range, as part of the last one if it continues it."""
    if not more:
        return
    if ranges and ranges[-1].step == more.step and ranges[-1][-1] + more.step == more[0]:
        more = range(ranges.pop()[0], more.stop, more.step)
    ranges.append(more)


def nearest_epochs(ranges: list[range], at: int) -> tuple[int | None, int | None]:
    """Returns the greatest readable epoch before `at` and the least one after it."""
    before = after = None
    for each in ranges:
        if each[0] < at:
            before = each[min(len(each), -(-(at - each[0]) // each.step)) - 1]
        if each[-1] > at and after is None:
            after = each[max(0, (at - each[0]) // each.step + 1)]
    return before, after
