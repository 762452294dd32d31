"""Bounds of RANGE frames as expressions over the column of the order.

A frame from `x - 10` to `x + 5` contains a changed value v for the rows from `v - 5` to `v + 10`.
In the calendar and in floating point this inverse is not exact, so it is widened a little; a row
that was not affected after all is computed again with the same result.

An overflow raises an error as in Spark, if ANSI rules apply. Otherwise, and for the inverse, the
bound is beyond all values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from nosync_nb import rows
from nosync_nb.expressions import Asked, Expression, SqlSettings, Types, compile_expression
from nosync_nb.expressions.settings import DEFAULT
from nosync_nb.operators.aggregates.accumulators import numbers_of
from nosync_nb.operators.base import Step
from nosync_nb.operators.linear import evaluate
from nosync_nb.operators.ordering import OrderColumn, value_codes
from nosync_nb.operators.windows.calls import WindowFrame
from nosync_nb.operators.windows.intervals import FIRST, LAST
from nosync_nb.rows import Column, Schema
from nosync_nb.rows.ddl import YEAR_MONTHS, quoted
from nosync_nb.rows.types import FLOATS, INTEGERS
from nosync_nb.trace.batch import Hashes, Updates

_DAY = 86_400_000_000  # microseconds
_ULPS = 8
_ROOM = {"timestamp": (_DAY, 0), "timestamp_ntz": (_DAY, 0), "date": (1, 31)}
"""The code of one day, and the number of bits after the value."""


def bound_text(column: str, type_: str, bound: str, *, safe: bool = False) -> str:
    """Returns the expression of a bound.

    Args:
        column: the column of the order, as it is written in an expression.
        bound: its sign and its distance.
        safe: True for null in place of an error where the result is outside of the type.
    """
    sign, distance = bound[0], bound[1:]
    if type_ == "date" and _is_number(distance):
        return f"date_add({column}, {sign.lstrip('+')}({distance}))"  # only Spark has a plus sign
    if type_ in INTEGERS or type_ in FLOATS or type_.startswith("decimal"):
        distance = f"cast(({distance}) as {type_})"
    if safe or type_.startswith("decimal"):
        call = "try_add" if sign == "+" else "try_subtract"
        text = f"{call}({column}, {distance})"
        return (
            text
            if type_ not in INTEGERS and not type_.startswith("decimal")
            else (f"try_cast({text} as {type_})")
        )
    return f"cast({column} {sign} ({distance}) as {type_})"


def _is_number(text: str) -> bool:
    made = compile_expression(text, Schema([]), types=lambda *_: ["string"])
    return made.type in INTEGERS


def inverse(bound: str) -> str:
    """Returns a bound in the other direction."""
    return ("-" if bound[0] == "+" else "+") + bound[1:]


class RangeBounds:
    """The bounds of all RANGE frames of an operator that are distances in values.

    Args:
        schema: the columns of the rows.
        by: the order; it has one column if there are such bounds.
        frames: the frames of the operator.
    """

    def __init__(
        self,
        schema: Schema,
        by: Sequence[OrderColumn],
        frames: Iterable[WindowFrame],
        types: Types | None = None,
        settings: SqlSettings = DEFAULT,
    ) -> None:
        self._schema = schema
        frames = [f for f in frames if isinstance(f.low, str) or isinstance(f.high, str)]
        self._lows = [f.low for f in frames if isinstance(f.low, str)]
        self._highs = [f.high for f in frames if isinstance(f.high, str)]
        self._made: dict[tuple[str, bool], Expression] = {}
        self._slack: dict[str, int] = {}
        for bound in dict.fromkeys((*self._lows, *self._highs)):
            (self._by,) = by
            self._type = schema.types[self._by.place]
            name = quoted(schema.names[self._by.place])
            own = self._directed(bound)
            wraps = settings.ansi is False  # then an overflow is no error
            for back, text in ((False, own), (True, inverse(own))):
                self._made[bound, back] = compile_expression(
                    bound_text(name, self._type, text, safe=back or wraps),
                    schema,
                    types=types,
                    settings=settings,
                )
            self._slack[bound] = _slack(own[1:], self._type, types, settings)

    def __bool__(self) -> bool:
        return bool(self._made)

    @property
    def expressions(self) -> Sequence[Expression]:
        """The expressions of all bounds."""
        return tuple(self._made.values())

    def _directed(self, bound: str) -> str:
        return inverse(bound) if self._by.descending else bound

    def follows(self, bound: str) -> bool:
        """Returns True if a bound is after the row in the order."""
        return bound[0] == "+"

    def bound(self, bound: str, updates: Updates, step: Step) -> Column:
        """Returns the value of a bound for some rows."""
        return evaluate([self._made[bound, False]], self._schema, updates, step)[0]

    def span(self, updates: Updates, step: Step) -> tuple[Hashes, Hashes]:
        """Returns the first and the last code that the frames of some rows contain."""
        n = len(updates.diff)
        low, high = np.full(n, LAST), np.full(n, FIRST)
        for bounds in (self._lows, self._highs):
            for bound in dict.fromkeys(bounds):
                value = self.bound(bound, updates, step)
                low = np.minimum(low, self._codes(value, updates, bound, last=False))
                high = np.maximum(high, self._codes(value, updates, bound, last=True))
        return low, high

    def reach(self, updates: Updates, step: Step) -> tuple[Hashes, Hashes]:
        """Returns the first and the last code of the rows whose frames contain some rows."""
        n = len(updates.diff)
        low, high = np.full(n, LAST), np.full(n, FIRST)
        for bound in dict.fromkeys((*self._lows, *self._highs)):
            (value,) = evaluate([self._made[bound, True]], self._schema, updates, step)
            back = inverse(bound)
            near = self._near(value, updates, bound)
            low = np.minimum(low, near(self._codes(value, updates, back, last=False), False))
            high = np.maximum(high, near(self._codes(value, updates, back, last=True), True))
        return low, high

    def _codes(self, value: Column, updates: Updates, bound: str, *, last: bool) -> Hashes:
        """Returns the codes of bounds; those of rows without a value are the codes of null."""
        by, type_ = self._by, self._type
        codes = value_codes(value, type_, by, last=last)
        beyond = rows.null_mask(value)
        if beyond is not None:
            missing = rows.null_mask(updates.columns[by.place])
            if missing is not None:
                beyond = beyond & ~missing
            codes = np.where(beyond, LAST if self.follows(bound) else FIRST, codes)
        return codes

    def _near(self, value: Column, updates: Updates, bound: str) -> Any:
        """Returns a function that moves codes away from the row by the error of an inverse."""
        type_, slack = self._type, self._slack[bound]

        def moved(codes: Hashes, up: bool) -> Hashes:
            if type_ in FLOATS:
                return self._moved_floats(value, updates, up)
            if not slack:
                return codes
            by = np.uint64(slack)
            if up:
                return np.where(codes > LAST - by, LAST, codes + by)
            return np.where(codes < by, FIRST, codes - by)

        return moved

    def _moved_floats(self, value: Column, updates: Updates, up: bool) -> Hashes:
        by, type_ = self._by, self._type
        missing = rows.null_mask(value)
        dtype = np.float32 if type_ == "float" else np.float64
        own = updates.columns[by.place]
        index = np.arange(len(value)) if missing is None else (~missing).nonzero()[0]
        found = numbers_of(rows.take(value, index), dtype)
        start = numbers_of(rows.take(own, index), dtype)
        with np.errstate(all="ignore"):
            error = _ULPS * np.spacing(np.maximum(np.abs(found), np.abs(start)))
            error = np.where(np.isfinite(error), error, 0).astype(dtype)
            moved = found + (error if up != by.descending else -error)
        codes = value_codes(value, type_, by, last=up)
        codes = codes.copy()
        codes[index] = value_codes(moved + dtype(0), type_, by, last=up)
        return codes


def _slack(distance: str, type_: str, types: Types | None, settings: Asked) -> int:
    """Returns the maximum error of the inverse of a bound, as a difference of codes."""
    if type_ not in _ROOM:
        return 0
    day, shift = _ROOM[type_]
    made = compile_expression(distance, Schema([]), types=types, settings=settings)
    if made.type in YEAR_MONTHS:
        return 4 * day << shift
    if type_ != "timestamp" or not made.local:
        return 0 if type_ != "timestamp" else day << shift
    value = rows.to_pylist(made.evaluate([], 1), made.type)[0]
    short = isinstance(value, timedelta) and abs(value) < timedelta(days=1)
    return 0 if short else day << shift
