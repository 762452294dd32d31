"""Chooses the comparisons of a join that an ordered arrangement evaluates.

One side of the join has a value, the other one has its lower bound, its upper bound, or both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nosync_nb.collections.sql.algebra import Column, Inequality, Scalar, inequality
from nosync_nb.collections.sql.joins.comparisons import negated


class Bound(NamedTuple):
    """A bound of a value.

    Attributes:
        shift: a numeric literal that is added to it; empty without one.
        is_strict: True if the value is never equal to it.
        condition: the condition that states the bound.
    """

    value: Scalar
    shift: str
    is_strict: bool
    condition: Scalar


class Range(NamedTuple):
    """A value of one side between bounds of the other side.

    Attributes:
        side: the side that has the value: 0 left, 1 right.
    """

    side: int
    value: Scalar
    low: Bound | None
    high: Bound | None

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The bounds."""
        return tuple(each for each in (self.low, self.high) if each is not None)


def ranges_in(
    conditions: Sequence[Scalar], left: Iterable[Column], right: Iterable[Column]
) -> Iterator[Range]:
    """Yields the ranges in conditions, those with two bounds first, then each bound alone.

    Args:
        left, right: the columns of both sides.
    """
    sides = frozenset(left), frozenset(right)
    values: dict[tuple[int, object], Scalar] = {}
    found: dict[tuple[int, object, bool], Bound] = {}
    for condition in conditions:
        for comparison in condition.comparisons:
            for side, value, is_low, bound in _bounds_in(comparison, condition, sides):
                key = (side, value.key())
                values.setdefault(key, value)
                found.setdefault((*key, is_low), bound)
    ranges = [
        Range(key[0], value, found.get((*key, True)), found.get((*key, False)))
        for key, value in values.items()
    ]
    both = [each for each in ranges if len(each.bounds) == 2]
    yield from both
    yield from (each for each in ranges if len(each.bounds) == 1)
    for each in both:
        yield each._replace(high=None)
        yield each._replace(low=None)


def overlap_in(
    conditions: Sequence[Scalar], left: Iterable[Column], right: Iterable[Column]
) -> list[Scalar]:
    """Returns two disjoint cases of an overlap of intervals of both sides; none without one.

    The intervals of the left side overlap those of the right side if `a.low <= b.high` and
    `b.low <= a.high`. In the first case, `b.low` is not below `a.low`, so it is between `a.low` and
    `a.high`. In the second case, `a.low` is above `b.low`, so it is between `b.low` and `b.high`.
    """
    sides = frozenset(left), frozenset(right)
    if any(len(each.bounds) == 2 for each in ranges_in(conditions, *sides)):
        return []
    starts: dict[bool, Scalar] = {}
    for condition in conditions:
        for comparison in condition.comparisons if condition.is_compared else ():
            for side, value, is_low, bound in _bounds_in(comparison, condition, sides):
                if side == 0 and not bound.shift:
                    starts.setdefault(is_low, bound.value if is_low else value)
    if len(starts) < 2:
        return []
    a, b = starts[False], starts[True]
    return [inequality(b, ">=", a), inequality(a, ">", b)]


def _bounds_in(
    comparison: Inequality,
    condition: Scalar,
    sides: tuple[frozenset[Column], frozenset[Column]],
) -> Iterator[tuple[int, Scalar, bool, Bound]]:
    """Yields the bounds that a comparison states for a value of the left and of the right side."""
    a, sign, b, shift = comparison
    for side in (0, 1) if sign != "<>" else ():
        if not (a.columns and b.columns and a.columns <= sides[side]):
            continue
        if not b.columns <= sides[1 - side]:
            continue
        strict = len(sign) == 1
        yield side, a, sign[0] == ">", Bound(b, shift, strict, condition)
        back = negated(shift) if shift else ""
        yield 1 - side, b, sign[0] == "<", Bound(a, back, strict, condition)
