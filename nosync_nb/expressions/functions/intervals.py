"""Intervals: literals, arithmetic, parts, sums with times, and calls like `dateadd(month, 1, d)`.

An interval is a number of months or of microseconds, as in Spark's ANSI types. Timestamps with a
time zone are computed here in UTC only. Arithmetic is exact and rounds once, ties away from zero. A
result beyond 32 bits of months or 64 bits of microseconds is an error with ANSI mode and without,
as in Spark. The type of a product has all units of its kind; the type of a sum has the units of
both operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from sqlglot import exp

from nosync_nb.expressions.evaluation.nodes import LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.functions.rules import Rule, check_arity
from nosync_nb.expressions.implicit_casts import cast, implicit
from nosync_nb.expressions.kernels import datetimes, numeric, reasons
from nosync_nb.expressions.kernels.datetimes import OF_MONTHS, OF_TIME
from nosync_nb.expressions.kernels.kernel import Check, Kernel, NotProvedError
from nosync_nb.expressions.kernels.numeric import extent, limits, within
from nosync_nb.expressions.typing_rules import TIMES, is_decimal, joined, units
from nosync_nb.rows.ddl import INTERVALS, YEAR_MONTHS, interval_type
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS, decimal_parts

MARK = "interval "
"""The name prefix of calls whose results are the same with ANSI mode and without."""

_WIDTHS = {
    "week": 7 * datetimes.DAY,
    "day": datetimes.DAY,
    "hour": 3600 * datetimes.SECOND,
    "minute": 60 * datetimes.SECOND,
    "second": datetimes.SECOND,
    "millisecond": 1000,
    "microsecond": 1,
}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_CLOCK_UNITS = ("day", "hour", "minute", "second")


def literal(tree: exp.Interval) -> LiteralNode:
    """Returns the interval of a literal.

    Raises:
        NotProvedError: for a computed interval, another notation, or a value that exceeds its type.
    """
    value, type_ = _read(tree)
    least, greatest = numeric.limits(datetimes.integer(type_))
    if not least <= value <= greatest:
        raise NotProvedError("an interval that exceeds its type")
    return LiteralNode(value, type_)


def _read(tree: exp.Interval) -> tuple[int, str]:
    """Returns the value and the type of an interval literal."""
    value, unit = tree.this, tree.args.get("unit")
    if not isinstance(value, exp.Literal):
        raise NotProvedError("an interval that is not a literal")
    if isinstance(unit, exp.IntervalSpan):
        return _span(value.this, unit.this.name.lower(), unit.expression.name.lower())
    name = "" if unit is None else unit.name.lower().removesuffix("s")
    text = value.this.strip()
    if name in _MONTHS and name != "quarter" and re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII):
        return int(text) * _MONTHS[name], f"interval {name}"
    if name == "second" and re.fullmatch(r"[+-]?\d{1,9}\.\d{1,6}", text, re.ASCII):
        whole, fraction = text.lstrip("+-").split(".")
        micros = int(whole) * datetimes.SECOND + int(fraction.ljust(6, "0"))
        return -micros if text[0] == "-" else micros, "interval second"
    plain = name in _WIDTHS and name not in ("millisecond", "microsecond")
    if plain and re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII):
        return int(text) * _WIDTHS[name], f"interval {'day' if name == 'week' else name}"
    raise NotProvedError(f"the interval {value.this!r} {name}")


def _span(text: str, first: str, last: str) -> tuple[int, str]:
    """Returns the value and the type of `'1-2' year to month` or `'1 02:03:04.5' day to second`."""
    text = text.strip()
    months = re.fullmatch(r"([+-]?)(\d{1,9})-(\d{1,2})", text, re.ASCII)
    if (first, last) == ("year", "month") and months and int(months[3]) < 12:
        number = int(months[2]) * 12 + int(months[3])
        return -number if months[1] == "-" else number, datetimes.OF_MONTHS
    if first in _CLOCK_UNITS and last in _CLOCK_UNITS:
        names = _CLOCK_UNITS[_CLOCK_UNITS.index(first) : _CLOCK_UNITS.index(last) + 1]
        sign, numbers_ = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
        parts = re.split(r"[ :]", numbers_, maxsplit=len(names) - 1)
        signs = re.findall(r"[ :]", numbers_)
        wanted = [" " if name == "day" else ":" for name in names[:-1]]
        digits = all(re.fullmatch(r"\d{1,9}", part, re.ASCII) for part in parts[:-1])
        end = re.fullmatch(r"\d{1,2}(?:\.\d{1,6})?" if last == "second" else r"\d{1,2}", parts[-1])
        if len(parts) == len(names) > 1 and signs == wanted and digits and end:
            micros = _clock(names, parts)
            if micros is not None:
                return sign * micros, interval_type(first, last)
    raise NotProvedError(f"the interval {text!r} {first} to {last}")


def _clock(names: tuple[str, ...], parts: list[str]) -> int | None:
    """Returns the microseconds of the parts; None if a part after the first exceeds its range."""
    micros = 0
    for place, (name, part) in enumerate(zip(names, parts, strict=True)):
        whole, _, fraction = part.partition(".")
        if place and int(whole) > {"hour": 23, "minute": 59, "second": 59}[name]:
            return None
        micros += int(whole) * _WIDTHS[name]
        micros += int(fraction.ljust(6, "0")) if fraction else 0
    return micros


def shifted(name: str, nodes: list[ValueNode], utc: bool) -> ValueNode:
    """Returns the node of a date or timestamp plus or minus an interval."""
    time, interval = nodes
    if time.type in INTERVALS and name == "+":
        time, interval = interval, time
    if time.type in INTERVALS:
        raise NotProvedError("an interval minus a time")
    if name == "-":
        interval = _opposite(interval)
    if interval.type in YEAR_MONTHS:
        return months_added(time, _plain(interval), utc=utc)
    if interval.type == "interval day" and time.type == "date":
        return StrictNode("+", "date", datetimes.shift(np.add), (time, _whole_days(interval)))
    return micros_added(time, _plain(interval), utc=utc)


def _opposite(interval: ValueNode) -> ValueNode:
    if isinstance(interval, LiteralNode) and interval.value is not None:
        return LiteralNode(-interval.value, interval.type)
    kernel = numeric.negate(datetimes.integer(interval.type))
    return StrictNode(f"{MARK}neg", interval.type, _unbound(kernel), (interval,))


def _plain(interval: ValueNode) -> ValueNode:
    """Returns the months or microseconds of an interval as a bigint."""
    if isinstance(interval, LiteralNode):
        return LiteralNode(interval.value, "bigint")
    return StrictNode("wide", "bigint", Kernel(lambda a: a.astype(np.int64)), (interval,))


def _whole_days(interval: ValueNode) -> ValueNode:
    if isinstance(interval, LiteralNode) and interval.value is not None:
        return LiteralNode(interval.value // datetimes.DAY, "int")
    kernel = Kernel(lambda a: _towards_zero(a, datetimes.DAY).astype(np.int32))
    return StrictNode("days", "int", kernel, (interval,))


def _timestamp(time: ValueNode, *, utc: bool) -> ValueNode:
    """Returns the argument as a timestamp with or without a time zone."""
    if time.type == "timestamp_ntz":
        return time
    if not utc:
        raise NotProvedError("timestamps in a time zone other than UTC")
    return implicit(time, "timestamp", utc=utc)


def micros_added(time: ValueNode, micros: ValueNode, *, utc: bool) -> ValueNode:
    """Returns the node of a timestamp plus microseconds."""
    time = _timestamp(time, utc=utc)
    return StrictNode(f"{MARK}+", time.type, _ADD, (time, micros))


def months_added(time: ValueNode, months: ValueNode, *, utc: bool) -> ValueNode:
    """Returns the node of a date or timestamp plus months; at most the last day of the month."""
    if time.type == "date":
        return StrictNode(f"{MARK}add_months", "date", ADD_MONTHS, (time, months))
    time = _timestamp(time, utc=utc)
    return StrictNode(f"{MARK}add_months", time.type, _ADD_MONTHS_TO_TIME, (time, months))


def _later(days: Any, months: Any) -> Any:
    """Adds months to days since 1970; the day is limited to the last one of the new month."""
    days = np.asarray(days, np.int64)
    month = datetimes.months(days)
    there = month + np.minimum(np.maximum(months, -_FAR), _FAR)
    wanted = datetimes.month_start(there) + (days - datetimes.month_start(month))
    return np.minimum(wanted, datetimes.month_start(there + 1) - 1)


def _no_date(days: Any, months: Any) -> Any:
    if within(days, _NEAR_DAYS) and within(months, _NEAR_MONTHS):
        return np.False_
    later = _later(days, months)
    return (later < -(2**31)) | (later >= 2**31)


_NEAR_MONTHS = 10**6
_NEAR_DAYS = 2**31 - 1 - 32 * _NEAR_MONTHS
_LAST, _LAST_REST = divmod(2**63 - 1, datetimes.DAY)
_FIRST, _FIRST_REST = divmod(-(2**63), datetimes.DAY)
_FAR = 10**9  # a number of months that leads beyond any date


def _no_timestamp(micros: Any, months: Any) -> Any:
    later, rest = _later(micros // datetimes.DAY, months), micros % datetimes.DAY
    return (
        (later > _LAST)
        | ((later == _LAST) & (rest > _LAST_REST))
        | (later < _FIRST)
        | ((later == _FIRST) & (rest < _FIRST_REST))
    )


def _unbound(kernel: Kernel) -> Kernel:
    """Returns a bigint kernel without bounds, because bounds of timestamps prove nothing."""
    return Kernel(kernel.run, tuple(Check(c.bad, reasons.TIME_OVERFLOW) for c in kernel.checks))


_ADD, _SUBTRACT = (_unbound(make("bigint")) for make in (numeric.add, numeric.subtract))
ADD_MONTHS = Kernel(
    lambda days, months: _later(days, months).astype(np.int32),
    (Check(_no_date, reasons.DATE_OVERFLOW),),
)
_ADD_MONTHS_TO_TIME = Kernel(
    lambda micros, months: (
        _later(micros // datetimes.DAY, months) * datetimes.DAY + micros % datetimes.DAY
    ),
    (Check(_no_timestamp, reasons.TIME_OVERFLOW),),
)


def added(name: str, unit: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `timestampadd(unit, n, ts)` and `dateadd`; the number is evaluated first."""
    number, time = arguments
    time = _timestamp(time, utc=utc)
    number = implicit(number, "bigint", utc=utc)
    if unit in _MONTHS:
        kernel = _by_units(_ADD_MONTHS_TO_TIME, _MONTHS[unit])
    else:
        kernel = _by_units(_ADD, _WIDTHS["day" if unit == "dayofyear" else unit])
    return StrictNode(name, time.type, kernel, (time, number))


def _by_units(kernel: Kernel, width: int) -> Kernel:
    """Returns the kernel of a time and a number of units; for a null time, no number overflows."""
    most, least = (2**63 - 1) // width, -(2**63 // width)
    far = Check(lambda time, number: (number > most) | (number < least), reasons.TIME_OVERFLOW)
    checks = (Check(_times(check.bad, width), check.reason) for check in kernel.checks)
    return Kernel(_times(kernel.run, width), (far, *checks), right_first=True)


def _times(function: Callable[[Any, Any], Any], width: int) -> Callable[[Any, Any], Any]:
    return lambda time, number: function(time, number * np.int64(width))


def timestamp_diff(name: str, unit: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `timestampdiff(unit, a, b)`: the number of whole units from `a` to `b`."""
    times = []
    for time in arguments:
        if not utc:
            raise NotProvedError("timestamps in a time zone other than UTC")
        times.append(implicit(time, "timestamp", utc=utc))
    if unit in _MONTHS:
        width = _MONTHS[unit]
        return StrictNode(name, "bigint", Kernel(lambda a, b: _whole_months(a, b, width)), times)
    if unit == "microsecond":
        return StrictNode(name, "bigint", _SUBTRACT, times[::-1])
    if unit not in _WIDTHS:
        raise NotProvedError(f"{name} in {unit}")
    return StrictNode(name, "bigint", Kernel(_whole_units(_WIDTHS[unit])), times)


def _whole_units(width: int) -> Callable[[Any, Any], Any]:
    """Returns the function that counts whole units between two timestamps, towards zero.

    It is exact even if the difference in microseconds overflows.
    """

    def run(a: Any, b: Any) -> Any:
        days, rest = b // datetimes.DAY - a // datetimes.DAY, b % datetimes.DAY - a % datetimes.DAY
        borrowed = np.sign(days) * np.sign(rest) < 0
        sign = np.sign(days)
        days = np.where(borrowed, days - sign, days)
        rest = np.where(borrowed, rest + sign * datetimes.DAY, rest)
        if width > datetimes.DAY:
            return _towards_zero(days, width // datetimes.DAY)
        return days * (datetimes.DAY // width) + _towards_zero(rest, width)

    return run


def _towards_zero(values: Any, width: int) -> Any:
    return np.sign(values) * (np.abs(values) // width)


def _whole_months(a: Any, b: Any, width: int) -> Any:
    """Returns the number of whole periods of `width` months from `a` to `b`, towards zero."""
    days, end, start = b // datetimes.DAY, b % datetimes.DAY, a % datetimes.DAY
    first = a // datetimes.DAY
    days = days - ((days > first) & (end < start)) + ((days < first) & (end > start))
    return _towards_zero(_month_and_day(days) - _month_and_day(first), 32 * width)


def _month_and_day(days: Any) -> Any:
    """Returns the month and the day of the month, combined in one number."""
    month = datetimes.months(days)
    return month * 32 + (np.asarray(days, np.int64) - datetimes.month_start(month) + 1)


UNIT_CALLS: dict[str, Callable[[str, str, list[ValueNode], bool], ValueNode]] = {
    "timestampadd": added,
    "dateadd": added,
    "date_add": added,
    "timestampdiff": timestamp_diff,
    "datediff": timestamp_diff,
    "date_diff": timestamp_diff,
}
"""Calls whose first argument is the name of a unit if there are three arguments."""
UNITS = frozenset((*_MONTHS, *_WIDTHS, "dayofyear"))


def _exact_kernel(type_: str, compute: Callable[..., Any], *checks: Check, **more: Any) -> Kernel:
    """Returns a kernel of exact integer arithmetic that checks the range of the interval type."""
    least, greatest = limits(datetimes.integer(type_))
    dtype = FIXED[type_]

    def computed(*values: Any) -> Any:
        return compute(*(numeric.as_int64(value) for value in values))

    def bad(*values: Any) -> Any:
        result = computed(*values)
        low, high = extent(result)
        if least <= low and high <= greatest:
            return np.False_
        return np.asarray((result < least) | (result > greatest), np.bool_)

    def run(*values: Any) -> Any:
        result = computed(*values)
        if not np.ndim(result):
            return dtype.type(min(max(int(result), least), greatest))
        return np.minimum(np.maximum(result, least), greatest).astype(dtype)

    return Kernel(run, (*checks, Check(bad, reasons.INTERVAL_OVERFLOW)), floats=True, **more)


def _rounded_kernel(type_: str, compute: Callable[[Any, Any], Any], *checks: Check) -> Kernel:
    """Returns a kernel of double arithmetic that rounds to whole numbers, ties away from zero.

    It checks the range of the interval type, as `_exact_kernel` does.
    """
    least, greatest = limits(datetimes.integer(type_))

    def rounded(a: Any, b: Any) -> Any:
        value = compute(a.astype(np.float64), b.astype(np.float64))
        whole = np.rint(value)
        return np.where(np.abs(value - whole) == 0.5, value + np.copysign(0.5, value), whole)

    def bad(a: Any, b: Any) -> Any:
        result = rounded(a, b)
        return ~((result >= float(least)) & (result < float(greatest + 1)))

    def run(a: Any, b: Any) -> Any:
        wrong = bad(a, b)
        return np.where(wrong, 0.0, rounded(a, b)).astype(np.int64).astype(FIXED[type_])

    return Kernel(run, (*checks, Check(bad, reasons.INTERVAL_OVERFLOW)), floats=True)


def _have_types(types: tuple[str, ...], nodes: list[ValueNode]) -> bool:
    return all(node.type in types for node in nodes)


def _has_interval(nodes: list[ValueNode]) -> bool:
    return any(node.type in INTERVALS for node in nodes)


def plus(other: Rule) -> Rule:
    """Returns the rule of `+` for intervals, and for a time and an interval."""
    return _sum_rule("+", numeric.plus, other)


def minus(other: Rule) -> Rule:
    """Returns the rule of `-` for intervals, a time and an interval, and two times."""
    summed = _sum_rule("-", numeric.minus, other)

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if sorted(node.type for node in arguments) == ["date", "string"]:
            arguments = [implicit(node, "date", utc=utc) for node in arguments]
        if len(arguments) == 2 and _have_types(TIMES, arguments):
            return _difference(arguments, utc)
        return summed(name, arguments, utc)

    return rule


def _sum_rule(sign: str, compute: Callable[[Any, Any], Any], other: Rule) -> Rule:
    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        check_arity(name, arguments, 2)
        if not all(node.type in INTERVALS for node in arguments):
            return shifted(sign, arguments, utc)
        type_ = joined(arguments[0].type, arguments[1].type)
        if type_ is None:
            raise NotProvedError("intervals of months beside those of time")
        return StrictNode(MARK + sign, type_, _exact_kernel(type_, compute), arguments)

    return rule


def _difference(times: list[ValueNode], utc: bool) -> ValueNode:
    """Returns the node of the days between two dates, or of the time between two timestamps."""
    if _have_types(("date",), times):
        kernel = _exact_kernel(
            "interval day", lambda a, b: numeric.times(numeric.minus(a, b), _DAY)
        )
        return StrictNode(f"{MARK}between", "interval day", kernel, times)
    kinds = {node.type for node in times} - {"date"}
    if len(kinds) > 1:
        raise NotProvedError("timestamps of both kinds")
    if not utc:
        raise NotProvedError("timestamps in a time zone other than UTC")
    (kind,) = kinds
    both = [cast(node, kind, utc=utc) for node in times]
    return StrictNode(f"{MARK}between", OF_TIME, _exact_kernel(OF_TIME, numeric.minus), both)


_DAY = np.int64(datetimes.DAY)


def multiplied(other: Rule) -> Rule:
    """Returns the rule of `*` for an interval and a number."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        check_arity(name, arguments, 2)
        interval, number = arguments
        if number.type in INTERVALS:
            interval, number = number, interval
        kernel, type_ = _scaled(interval, number, numeric.times, np.multiply)
        # The interval is the first operand, because Spark always evaluates it first.
        return StrictNode(f"{MARK}*", type_, kernel, (interval, number))

    return rule


def _scaled(
    interval: ValueNode,
    number: ValueNode,
    exact: Callable[[Any, Any], Any],
    near: Callable[[Any, Any], Any],
    *checks: Check,
) -> tuple[Kernel, str]:
    type_ = OF_MONTHS if interval.type in YEAR_MONTHS else OF_TIME
    if number.type in FLOATS:
        return _rounded_kernel(type_, near, *checks), type_
    if number.type in INTEGERS:
        return _exact_kernel(type_, exact, *checks), type_
    if not is_decimal(number.type):
        raise NotProvedError(f"an interval with a {number.type}")
    places = decimal_parts(number.type)[1]
    if exact is numeric.times:
        return _exact_kernel(
            type_, lambda a, b: numeric.lowered(exact(a, b), places), *checks
        ), type_
    return _exact_kernel(type_, lambda a, b: exact(numeric.raised(a, places), b), *checks), type_


def divided(other: Rule) -> Rule:
    """Returns the rule of `/` for an interval and a number."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        check_arity(name, arguments, 2)
        if arguments[0].type not in INTERVALS:
            raise NotProvedError("a number divided by an interval")
        zero = Check(numeric.is_zero, reasons.INTERVAL_BY_ZERO)
        interval, number = arguments
        kernel, type_ = _scaled(interval, number, numeric.over, np.divide, zero)
        return StrictNode(f"{MARK}/", type_, kernel, arguments)

    return rule


def _of_one(other: Rule, compute: Callable[[Any], Any], sign: str) -> Rule:
    """Returns the rule of a function of one interval whose result has the same type."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        check_arity(name, arguments, 1)
        type_ = arguments[0].type
        return StrictNode(MARK + sign, type_, _exact_kernel(type_, compute), arguments)

    return rule


def negative(other: Rule) -> Rule:
    """Returns the rule of `-interval`."""
    return _of_one(other, lambda a: numeric.minus(np.int64(0), a), "neg")


def absolute(other: Rule) -> Rule:
    """Returns the rule of `abs(interval)`."""
    return _of_one(other, lambda a: numeric.where(a < 0, numeric.minus(np.int64(0), a), a), "abs")


def unchanged(other: Rule) -> Rule:
    """Returns the rule of `positive(interval)`, which is the interval."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        check_arity(name, arguments, 1)
        return arguments[0]

    return rule


def signum(other: Rule) -> Rule:
    """Returns the rule of `sign(interval)`, a double."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        check_arity(name, arguments, 1)
        kernel = Kernel(lambda a: np.sign(a).astype(np.float64))
        return StrictNode(name, "double", kernel, arguments)

    return rule


_EXTRACTED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("year", "y", "years", "yr", "yrs"), ("year", "int")),
    **dict.fromkeys(("month", "mon", "mons", "months"), ("month", "tinyint")),
    **dict.fromkeys(("day", "d", "days"), ("day", "int")),
    **dict.fromkeys(("hour", "h", "hours", "hr", "hrs"), ("hour", "tinyint")),
    **dict.fromkeys(("minute", "m", "min", "mins", "minutes"), ("minute", "tinyint")),
    **dict.fromkeys(("second", "s", "sec", "seconds", "secs"), ("second", "decimal(8,6)")),
}


def extracted(name: str, interval: ValueNode) -> ValueNode:
    """Returns the node of `extract(hour from interval)`.

    The result is the part that remains after all greater units, with the sign of the interval.

    Raises:
        NotProvedError: for a unit that the type does not have.
    """
    unit, type_ = _EXTRACTED.get(name.lower(), ("", ""))
    order = list(datetimes.widths(interval.type))
    first, last = units(interval.type)
    if unit not in order[order.index(first) : order.index(last) + 1]:
        raise NotProvedError(f"extract {name} of an {interval.type}")
    width = np.int64(datetimes.widths(interval.type)[unit])
    place = order.index(unit)
    whole = np.int64(datetimes.widths(interval.type)[order[place - 1]]) if place else None

    def run(a: Any) -> Any:
        rest = a.astype(np.int64)
        if whole is not None:
            rest = np.fmod(rest, whole)
        if unit == "second":
            return rest  # microseconds are the unscaled values of decimal(8,6)
        return ((rest - np.fmod(rest, width)) // width).astype(FIXED[type_])

    return StrictNode(f"extract {unit}", type_, Kernel(run), (interval,))


def _make_months(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `make_ym_interval(years, months)`."""
    years, months = _cast_arguments(name, arguments, ["int", "int"], utc)
    kernel = _exact_kernel(OF_MONTHS, lambda a, b: numeric.plus(numeric.times(a, np.int64(12)), b))
    return StrictNode(MARK + name, OF_MONTHS, kernel, (years, months))


_SECONDS = "decimal(18,6)"


def _make_time(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `make_dt_interval(days, hours, minutes, seconds)`."""
    given = _cast_arguments(name, arguments, ["int", "int", "int", _SECONDS], utc)
    lengths = [np.int64(width) for width in list(datetimes.CLOCK.values())[:3]]

    def total(days: Any, hours: Any, minutes: Any, seconds: Any) -> Any:
        sums = seconds
        for values, width in zip((days, hours, minutes), lengths, strict=True):
            sums = numeric.plus(sums, numeric.times(values, width))
        return sums

    return StrictNode(MARK + name, OF_TIME, _exact_kernel(OF_TIME, total), given)


def _cast_arguments(
    name: str, arguments: list[ValueNode], wanted: list[str], utc: bool
) -> list[ValueNode]:
    """Returns the arguments cast to the wanted types, and 0 for each missing one."""
    if len(arguments) > len(wanted):
        raise NotProvedError(f"{name} of {len(arguments)} arguments")
    given = []
    for node, type_ in zip(arguments, wanted, strict=False):
        given.append(implicit(node, type_, utc=utc))
    return given + [cast(LiteralNode(0, "int"), type_, utc=utc) for type_ in wanted[len(given) :]]


FUNCTIONS: dict[str, Rule] = {
    "make_ym_interval": _make_months,
    "make_dt_interval": _make_time,
}
