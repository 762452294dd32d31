"""Sums: rows with their counts as dicts, and what a run over few changes adds up.

Counts are integers of Python, and stay below what can be multiplied in 64 bits: whoever adds them
up gives the rest to numpy, which sees when 64 bits are too few.
"""

from __future__ import annotations

from collections.abc import Iterable

from nosync_nb.operators.iterate.key_cache import Pairs, Row, TooManyChangesError
from nosync_nb.operators.iterate.nested_trace import Time

COUNT_MAX = 1 << 53
"""Counts and sums beyond it are left to numpy, which sees when 64 bits are too few."""

Held = dict[Row, int]
"""How often each row is there."""


def add_pairs(held: Held, pairs: Iterable[tuple[Row, int]]) -> None:
    """Adds rows to what is held; some may cancel, and stay with a count of 0."""
    for row, diff in pairs:
        held[row] = held.get(row, 0) + diff


def consolidated_pairs(parts: Iterable[Pairs]) -> Held:
    """The sum of lists of rows, without those that cancel.

    Raises:
        ManyError: if a count grows beyond what can be multiplied.
    """
    sums: Held = {}
    for pairs in parts:
        add_pairs(sums, pairs)
    kept = without_zeros(sums)
    if kept and max(map(abs, kept.values())) > COUNT_MAX:
        raise TooManyChangesError
    return kept


def without_zeros(held: Held) -> Held:
    """What does not cancel; the same, if that is all."""
    if 0 in held.values():
        return {row: count for row, count in held.items() if count}
    return held


def least_upper_bound(time: Time, other: Time) -> Time:
    """The least upper bound of two times."""
    if time == other:
        return time
    if len(time) == 1:
        return time if time > other else other
    return tuple(map(max, time, other))
