"""Window functions as data: what each one computes, and how far it reads from a row.

The distance is symmetric: a function that reads the two rows before a row is affected by a change
of these rows, so a change affects the two rows after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.expressions import AggregateCall
from nosync_nb.operators.aggregates.plan import plan_aggregates
from nosync_nb.rows.types import FIXED, decimal_parts

RANKS = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile")
"""Functions of the position of a row in its group."""

OFFSETS = ("lag", "lead")
"""Functions that return a value of a row at a distance."""

PICKS = ("first_value", "last_value", "nth_value")
"""Functions that return a value of a row of the frame."""

AGGREGATE = "aggregate"
"""The name of a call that aggregates the rows of the frame."""

_SIZED = ("percent_rank", "cume_dist", "ntile")

Bound = int | str | None
"""The first or last row of a frame: None is the end of the group, and 0 the row itself. A number is
a distance in rows or in peer groups, negative before the row. A text is a distance in values: its
sign, then an expression without columns, as in "-INTERVAL '1' DAY"."""


class WindowFrame(NamedTuple):
    """The rows of a group that a function reads for a row.

    Attributes:
        unit: "rows", "groups" (of rows that are equal by the order) or "range" (of values).
        low, high: the bounds. In a "range", 0 is the first or the last row with an equal order.
    """

    unit: str
    low: Bound
    high: Bound


class WindowCall(NamedTuple):
    """One window function.

    Attributes:
        function: one of `RANKS`, `OFFSETS` or `PICKS`, or `AGGREGATE`.
        type: the type of the result.
        argument: the position of the column that it reads; -1 without one.
        n: the distance of an offset, the number of buckets of ntile, the row of nth_value.
        default: the position of the column with the value outside of the group; -1 for null.
        skips_nulls: True for IGNORE NULLS.
        frame: the frame of a pick or an aggregate.
        aggregate: the compiled call of an aggregate.
    """

    function: str
    type: str
    argument: int = -1
    n: int = 1
    default: int = -1
    skips_nulls: bool = False
    frame: WindowFrame = WindowFrame("range", None, 0)
    aggregate: AggregateCall | None = None

    @property
    def framed(self) -> bool:
        """True if the function reads a frame."""
        return self.function in PICKS or self.function == AGGREGATE

    @property
    def additive(self) -> bool:
        """True if the function is a sum over the rows before a row, or over those after it.

        Positions are such sums, and so are all aggregates that are computed from slots.
        """
        if self.aggregate is not None:
            plan = plan_aggregates([self.aggregate])
            return plan.plans[0].held < 0 and all(feed.held < 0 for feed in plan.feeds)
        return self.function in RANKS

    @property
    def running(self) -> bool:
        """True for a minimum or maximum of all rows before a row; see running.py."""
        call = self.aggregate
        if call is None or call.function not in ("min", "max") or self.frame.low is not None:
            return False
        assert call.argument is not None
        type_ = call.argument.type
        exact = type_ in FIXED
        if type_.startswith("decimal"):
            exact = decimal_parts(type_)[0] <= 18
        return exact and isinstance(self.frame.high, int)

    @property
    def headed(self) -> bool:
        """True if the function returns a value of the first rows of the group; see heads.py."""
        if self.function not in ("first_value", "nth_value") or self.frame.low is not None:
            return False
        if self.skips_nulls and self.n > 1:
            return False
        high = self.frame.high
        return high is None or high == 0 or (self.frame.unit == "rows" and isinstance(high, int))

    def extent(self) -> tuple[Reach, Reach]:
        """Returns how far the function reads before a row and after it."""
        if self.function in RANKS:
            peers = -1 if self.function in ("row_number", "ntile") else 0
            return Reach(peers=peers, end=True), Reach(peers=peers, end=self.function in _SIZED)
        if self.function in OFFSETS:
            n = self.n if self.function == "lag" else -self.n
            far = Reach(filled=((self.argument, abs(n)),)) if self.skips_nulls else Reach(abs(n))
            return (far, Reach()) if n >= 0 else (Reach(), far)
        frame = self._narrow_frame()
        if self.headed:
            rows = max(-frame.high, 0) if isinstance(frame.high, int) else 0
            near = Reach(self.n - 1 + rows, peers=-1 if frame.unit == "rows" else 0)
            return near, Reach() if frame.high is None else _reach(frame, 1)
        before, after = _reach(frame, -1), _reach(frame, 1)
        if self.skips_nulls and self.function in ("first_value", "last_value"):
            # the nearest value that is not null, from an end of the frame at or beyond the row
            nearest = ((self.argument, 1),)
            low, high = frame.low, frame.high
            if self.function == "last_value" and low is None and isinstance(high, int):
                before = before._replace(filled=nearest, end=False) if high >= 0 else before
            if self.function == "first_value" and high is None and isinstance(low, int):
                after = after._replace(filled=nearest, end=False) if low <= 0 else after
        return before, after

    def _narrow_frame(self) -> WindowFrame:
        """Returns a shorter frame with the same result, if there is one.

        The last value of a frame depends on its end alone, if the frame is not empty there.
        """
        frame = self.frame
        if self.skips_nulls or self.function not in ("first_value", "last_value"):
            return frame
        last = self.function == "last_value"
        near, far = (frame.high, frame.low) if last else (frame.low, frame.high)
        if far is not None or near is None or isinstance(near, str):
            return frame
        return frame._replace(low=near, high=near)

    def columns(self) -> set[int]:
        """Returns the columns that the function reads."""
        places = {self.argument, self.default} - {-1}
        if self.aggregate is not None:
            places.update(p for each in self.aggregate.arguments for p in each.columns)
        return places


class Reach(NamedTuple):
    """A distance from a row in one direction.

    Attributes:
        rows: a number of rows.
        peers: a number of peer groups beyond that of the row; 0 for that one, -1 for none.
        filled: columns, each with the number of rows in which it is not null.
        end: True for all rows up to the end of the group.
    """

    rows: int = 0
    peers: int = -1
    filled: tuple[tuple[int, int], ...] = ()
    end: bool = False

    def __or__(self, other: Reach) -> Reach:
        """Returns the larger distance."""
        filled = dict(self.filled)
        for column, n in other.filled:
            filled[column] = max(n, filled.get(column, 0))
        return Reach(
            max(self.rows, other.rows),
            max(self.peers, other.peers),
            tuple(filled.items()),
            self.end or other.end,
        )

    @property
    def counted(self) -> bool:
        """True if rows must be read to find the distance."""
        return bool(self.rows > 0 or self.peers > 0 or self.filled)


def _reach(frame: WindowFrame, sign: int) -> Reach:
    """Returns how far a frame extends before a row (sign -1) or after it (sign 1)."""
    near = [sign * b for b in (frame.low, frame.high) if isinstance(b, int)]
    far = max(near, default=0)
    end = (frame.low if sign < 0 else frame.high) is None
    if frame.unit == "rows":
        return Reach(max(far, 0), end=end)
    if frame.unit == "groups":
        return Reach(peers=max(far, 0), end=end)
    return Reach(peers=0, end=end)


def longest(reaches: Sequence[Reach]) -> Reach:
    """Returns the largest of several distances."""
    total = Reach()
    for each in reaches:
        total |= each
    return total
