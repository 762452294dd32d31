"""Intervals: the units of their types, their text form, and kernels of their casts.

A type names the units in which its intervals are written, from `first` to `last`; the value is a
number of months, or of microseconds. The common type of two types of one kind has all their units.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nosync_nb.expressions.kernels import datetimes
from nosync_nb.expressions.kernels.kernel import Check, Kernel, TextKernel
from nosync_nb.expressions.kernels.numeric import limits
from nosync_nb.expressions.typing_rules import units
from nosync_nb.rows.ddl import INTERVALS, YEAR_MONTHS
from nosync_nb.rows.types import FIXED, INTEGERS

OF_TIME, OF_MONTHS = "interval day to second", "interval year to month"
"""The types with all units, for products and quotients."""

CLOCK: dict[str, int] = {
    "day": datetimes.DAY,
    "hour": 3600 * datetimes.SECOND,
    "minute": 60 * datetimes.SECOND,
    "second": datetimes.SECOND,
}
"""Microseconds of the units of time, greatest first."""

CALENDAR: dict[str, int] = {"year": 12, "month": 1}


def widths(type_: str) -> dict[str, int]:
    """Returns the units of a kind, and the size of each."""
    return CALENDAR if type_ in YEAR_MONTHS else CLOCK


def integer(type_: str) -> str:
    """Returns the integer type of an interval's values."""
    return "int" if type_ in YEAR_MONTHS else "bigint"


def writer(type_: str) -> Callable[[int], str]:
    """Returns the formatter of intervals of a type."""
    first, last = units(type_)
    write = _months(first, last) if type_ in YEAR_MONTHS else _time(first, last)
    units_text = type_.removeprefix("interval ").upper()
    return lambda value: f"INTERVAL '{write(value)}' {units_text}"


def _months(first: str, last: str) -> Callable[[int], str]:
    def years(value: int) -> str:
        return f"{'-' if value < 0 else ''}{abs(value) // 12}"

    if first == last:
        return years if first == "year" else str
    return lambda value: f"{years(value)}-{abs(value) % 12}"


def _time(first: str, last: str) -> Callable[[int], str]:
    names = list(CLOCK)
    names = names[names.index(first) : names.index(last) + 1]

    def text(value: int) -> str:
        rest = abs(value)
        pieces = ["-" if value < 0 else ""]
        for place, name in enumerate(names):
            whole, rest = divmod(rest, CLOCK[name])
            if place:
                pieces.append(" " if names[place - 1] == "day" else ":")
            pieces.append(str(whole) if name == "day" else f"{whole:02}")
        if last == "second" and rest:
            pieces.append(f".{rest:06}".rstrip("0"))
        return "".join(pieces)

    return text


TEXTS: dict[str, TextKernel] = {type_: TextKernel(writer(type_)) for type_ in INTERVALS}


def cast(source: str, target: str) -> Kernel | None:
    """Returns the kernel of a cast between intervals, or of one unit from or to integers."""
    if source in INTERVALS and target in INTERVALS:
        return _truncate_unit(source, target) if widths(source) is widths(target) else None
    of_integer = source in INTEGERS
    interval, whole = (target, source) if of_integer else (source, target)
    if whole not in INTEGERS or interval not in INTERVALS:
        return None
    first, last = units(interval)
    if first != last:
        return None
    width = widths(interval)[first]
    return _from_integer(interval, width) if of_integer else _to_integer(whole, width)


def _truncate_unit(source: str, target: str) -> Kernel:
    """Truncates to the last unit of the target, towards zero."""
    last = units(target)[1]
    if last in ("second", "month"):
        return Kernel(lambda a: a)
    width = FIXED[source].type(widths(target)[last])
    return Kernel(lambda a: a - np.fmod(a, width))


def _from_integer(interval: str, width: int) -> Kernel:
    """An integer as a number of units."""
    least, greatest = limits(integer(interval))
    check = Check(lambda a: (a > greatest // width) | (a < -(-least // width)), "overflow")
    return Kernel(lambda a: (a.astype(np.int64) * width).astype(FIXED[interval]), (check,))


def _to_integer(whole: str, width: int) -> Kernel:
    """The number of units, towards zero."""
    least, greatest = limits(whole)

    def count(a: Any) -> Any:
        wide = a.astype(np.int64)
        return (wide - np.fmod(wide, np.int64(width))) // width

    check = Check(
        lambda a: (count(a) < least) | (count(a) > greatest),
        f"the value is out of range for {whole}",
    )
    return Kernel(lambda a: count(a).astype(FIXED[whole]), (check,))
