"""Dates and timestamps made of their parts: `make_date`, `make_timestamp` and its kin."""

from __future__ import annotations

from typing import Any

import numpy as np

from nosync_nb.expressions import dates
from nosync_nb.expressions.coerce import NotProvedError, cast, implicit, tried_call
from nosync_nb.expressions.kernel import Check, Kernel
from nosync_nb.expressions.nodes import StrictNode, ValueNode
from nosync_nb.expressions.rules import Rule, count

_SECONDS = "decimal(16,6)"
_MINUTE = 60 * dates.SECOND
_BITS = 2**31 - 1
"""Of whole seconds Spark takes so many bits."""
_YEARS = (-290_307, 294_246)
"""The first and the last year of which each moment is a timestamp."""


def _no_day(year: Any, month: Any, day: Any) -> Any:
    """Where there is no such day, or it is too far."""
    months = (year.astype(np.int64) - 1970) * 12 + np.clip(month, 1, 12) - 1
    start = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    end = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    far = (start + day - 1 < -(2**31)) | (start + day - 1 >= 2**31)
    return far | (month < 1) | (month > 12) | (day < 1) | (day > end - start)


def _made_day(year: Any, month: Any, day: Any) -> Any:
    months = (year.astype(np.int64) - 1970) * 12 + month - 1
    start = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return (start + day - 1).astype(np.int32)


def _make_date(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    count(name, arguments, 3)
    parts = [implicit(argument, "int", utc=utc) for argument in arguments]
    kernel = Kernel(_made_day, (Check(_no_day, "there is no such date"),))
    return StrictNode(name, "date", kernel, parts)


def _kept(micros: Any) -> Any:
    """The seconds that Spark keeps of a decimal, in microseconds."""
    return (micros // dates.SECOND & _BITS) * dates.SECOND + micros % dates.SECOND


def _no_time(year: Any, month: Any, day: Any, hour: Any, minute: Any, micros: Any) -> Any:
    """Where there is no such time; the 60th second is the next minute's first, whole."""
    clock = (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59)
    return clock | (_kept(micros) > _MINUTE) | _no_day(year, month, day)


def _no_moment(year: Any, *_: Any) -> Any:
    return (year < _YEARS[0]) | (year > _YEARS[1])


def _made_time(year: Any, month: Any, day: Any, hour: Any, minute: Any, micros: Any) -> Any:
    days = _made_day(year, month, day).astype(np.int64)
    minutes = days * 1440 + hour * np.int64(60) + minute
    return minutes * np.int64(_MINUTE) + _kept(micros)


_TIME = Kernel(
    _made_time,
    (Check(_no_time, "there is no such time"), Check(_no_moment, "the year is beyond timestamps")),
)


def _make_time(type_: str) -> Rule:
    """`make_timestamp(year, month, day, hour, minute, second)`, the second with a fraction."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 6)
        if type_ == "timestamp" and not utc:
            raise NotProvedError("timestamps in a time zone other than UTC")
        parts = [implicit(argument, "int", utc=utc) for argument in arguments[:5]]
        seconds = cast(arguments[5], _SECONDS, utc=utc)
        return StrictNode(name, type_, _TIME, (*parts, seconds))

    return rule


def _tried(rule: Rule) -> Rule:
    return lambda name, arguments, utc: tried_call(rule(name, arguments, utc))


_MADE = {
    "make_timestamp": "timestamp",
    "make_timestamp_ltz": "timestamp",
    "make_timestamp_ntz": "timestamp_ntz",
}
FUNCTIONS: dict[str, Rule] = {
    "make_date": _make_date,
    **{name: _make_time(type_) for name, type_ in _MADE.items()},
    **{f"try_{name}": _tried(_make_time(type_)) for name, type_ in _MADE.items()},
}
