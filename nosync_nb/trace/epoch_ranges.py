"""Represents sets of epochs as intervals and ranges, and checks if an epoch is readable."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nosync_nb.errors import TimeError


class Interval(NamedTuple):
    """The epochs `[lower, upper)`."""

    lower: int
    upper: int

    def __contains__(self, epoch: object) -> bool:
        return isinstance(epoch, int) and self.lower <= epoch < self.upper

    def __str__(self) -> str:
        return f"[{self.lower}, {self.upper})"

    @property
    def is_empty(self) -> bool:
        """True if the interval has no epoch."""
        return self.lower >= self.upper

    def intersection(self, other: Interval) -> Interval:
        """Returns the epochs that are in both intervals; the result may be empty."""
        lower = max(self.lower, other.lower)
        return Interval(lower, max(lower, min(self.upper, other.upper)))

    def merged(self, later: Interval) -> Interval:
        """Returns the union of this interval and the adjacent later one."""
        assert self.upper == later.lower, f"{self} and {later} are not adjacent"
        return Interval(self.lower, later.upper)


def inclusive(upper: int) -> int:
    """Returns the last complete epoch before the bound `upper`; epoch 0 is always complete."""
    return max(upper - 1, 0)


class EpochRanges:
    """A set of epochs, stored as ascending disjoint `ranges`.

    Args:
        epochs: single epochs, in any order.
    """

    def __init__(self, epochs: Iterable[int] = ()) -> None:
        ranges: list[range] = []
        for epoch in sorted(set(epochs)):
            if ranges and ranges[-1].stop == epoch:
                ranges[-1] = range(ranges[-1].start, epoch + 1)
            else:
                ranges.append(range(epoch, epoch + 1))
        self.ranges: tuple[range, ...] = tuple(ranges)

    @classmethod
    def from_ranges(cls, *ranges: range) -> EpochRanges:
        """Builds the union of ranges with step 1, in any order.

        Cost: O(r log r) for r ranges, whatever their lengths.
        """
        joined: list[range] = []
        for each in sorted((r for r in ranges if r), key=lambda r: r.start):
            if joined and each.start <= joined[-1].stop:
                joined[-1] = range(joined[-1].start, max(joined[-1].stop, each.stop))
            else:
                joined.append(each)
        result = cls()
        result.ranges = tuple(joined)
        return result

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, epoch: object) -> bool:
        if not isinstance(epoch, int):
            return False
        at = bisect_right(self.ranges, epoch, key=lambda r: r.start)
        return at > 0 and epoch in self.ranges[at - 1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EpochRanges) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __and__(self, other: EpochRanges) -> EpochRanges:
        """Returns the epochs that are in both sets."""
        both = (
            range(max(a.start, b.start), min(a.stop, b.stop))
            for a in self.ranges
            for b in other.ranges
        )
        return EpochRanges.from_ranges(*both)

    def __str__(self) -> str:
        """Returns a text such as `0-7, 16, 32-40`."""
        texts = (f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in self.ranges)
        return ", ".join(texts) or "none"

    def __repr__(self) -> str:
        return f"<ranges {self}>"

    def __iter__(self) -> Iterator[int]:
        """Iterates over all epochs, ascending."""
        return (epoch for each in self.ranges for epoch in each)

    def nearest(self, epoch: int) -> tuple[int | None, int | None]:
        """Returns the nearest epochs of the set: at or before `epoch`, and at or after it."""
        at = bisect_right(self.ranges, epoch, key=lambda r: r.start)
        before = min(epoch, self.ranges[at - 1][-1]) if at else None
        if before == epoch:
            return epoch, epoch
        return before, self.ranges[at][0] if at < len(self.ranges) else None


def check_readable(stage: str, epoch: int, readable: EpochRanges) -> None:
    """Raises TimeError if an epoch of a stage is not readable; the hint names the nearest ones."""
    if epoch in readable:
        return
    neighbours = " or ".join(str(e) for e in readable.nearest(epoch) if e is not None)
    raise TimeError(
        f"stage '{stage}': epoch {epoch} is not readable, only {readable}",
        hint=f"read at {neighbours}" if neighbours else "commit an epoch first",
    )
