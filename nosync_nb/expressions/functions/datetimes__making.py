"""Dates and timestamps made of their parts: `make_date`, `make_timestamp` and its kin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nosync_nb.expressions.evaluation.nodes import LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.functions.rules import Rule, count
from nosync_nb.expressions.implicit_casts import NotProvedError, implicit
from nosync_nb.expressions.kernels import datetimes
from nosync_nb.expressions.kernels.kernel import Check, Kernel

_SECONDS = "decimal(16,6)"
_MINUTE = 60 * datetimes.SECOND
_BITS = 2**31 - 1
"""Of whole seconds Spark takes so many bits."""
_YEAR_MAX = 999_999_999
"""Of Java's dates; a date has 32 bits of days, and a timestamp 64 of microseconds."""


def _days(year: Any, month: Any, day: Any) -> Any:
    months = (year.astype(np.int64) - 1970) * 12 + np.clip(month, 1, 12) - 1
    return _start(months) + day - 1


def _start(months: Any) -> Any:
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _no_day(year: Any, month: Any, day: Any) -> Any:
    """Where there is no such day."""
    months = (year.astype(np.int64) - 1970) * 12 + np.clip(month, 1, 12) - 1
    far = (year < -_YEAR_MAX) | (year > _YEAR_MAX)
    none = (month < 1) | (month > 12) | (day < 1) | (day > _start(months + 1) - _start(months))
    return far | none


def _too_far(year: Any, month: Any, day: Any) -> Any:
    days = _days(year, month, day)
    return ((days < -(2**31)) | (days >= 2**31)) & ~_no_day(year, month, day)


def _made_day(year: Any, month: Any, day: Any) -> Any:
    return _days(year, month, day).astype(np.int32)


def _make_date(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    count(name, arguments, 3)
    parts = [implicit(argument, "int", utc=utc) for argument in arguments]
    return StrictNode(name, "date", _near(_DATE, arguments[0], 5_000_000), parts)


def _near(kernel: Kernel, year: ValueNode, limit: int) -> Kernel:
    """The kernel for a year that may be anything, or for one that is surely not too far."""
    near = isinstance(year, LiteralNode) and isinstance(year.value, int) and abs(year.value) < limit
    if near or year.type in ("tinyint", "smallint"):
        return replace(kernel, checks=kernel.checks[:1])
    return kernel


def _kept(micros: Any) -> Any:
    """The seconds that Spark keeps of a decimal, in microseconds."""
    return (micros // datetimes.SECOND & _BITS) * datetimes.SECOND + micros % datetimes.SECOND


def _no_time(year: Any, month: Any, day: Any, hour: Any, minute: Any, micros: Any) -> Any:
    """Where there is no such time; the 60th second is the next minute's first, whole."""
    clock = (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59)
    return clock | (_kept(micros) > _MINUTE) | _no_day(year, month, day)


def _no_moment(*parts: Any) -> Any:
    days, rest = _moment(*parts)
    late = (days > _LAST) | ((days == _LAST) & (rest > _LAST_REST))
    early = (days < _FIRST) | ((days == _FIRST) & (rest < _FIRST_REST))
    return (late | early) & ~_no_time(*parts)


_LAST, _LAST_REST = divmod(2**63 - 1, datetimes.DAY)
_FIRST, _FIRST_REST = divmod(-(2**63), datetimes.DAY)


def _moment(year: Any, month: Any, day: Any, hour: Any, minute: Any, micros: Any) -> Any:
    """The day, and the microseconds in it: a 60th second may be the next day's first."""
    minutes = hour * np.int64(60) + minute
    rest = minutes * np.int64(_MINUTE) + _kept(micros)
    return _days(year, month, day) + rest // datetimes.DAY, rest % datetimes.DAY


def _made_time(*parts: Any) -> Any:
    days, rest = _moment(*parts)
    return days * np.int64(datetimes.DAY) + rest


_DATE = Kernel(_made_day, (Check(_no_day, "there is no such date"), Check(_too_far, "overflow")))
_TIME = Kernel(
    _made_time,
    (Check(_no_time, "there is no such time"), Check(_no_moment, "overflow")),
)


def _make_time(type_: str) -> Rule:
    """`make_timestamp(year, month, day, hour, minute, second)`, the second with a fraction."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 6)
        if type_ == "timestamp" and not utc:
            raise NotProvedError("timestamps in a time zone other than UTC")
        parts = [implicit(argument, "int", utc=utc) for argument in arguments[:5]]
        seconds = implicit(arguments[5], _SECONDS, utc=utc)
        kernel = _near(_TIME, arguments[0], 290_000)
        return StrictNode(name, type_, kernel, (*parts, seconds))

    return rule


def lenient(kernel: Kernel) -> Kernel:
    """Null where there is no such day or time; what is too far is an error whoever asks."""
    none, *others = kernel.checks
    return replace(kernel, checks=tuple(others), missing=none.bad, floats=True)


def _tried(rule: Rule) -> Rule:
    def attempt(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        node = rule(name, arguments, utc)
        assert isinstance(node, StrictNode)
        assert isinstance(node.kernel, Kernel)
        return StrictNode(name, node.type, lenient(node.kernel), node.arguments)

    return attempt


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
