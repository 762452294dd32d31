"""Rules of intervals: what is between two times, sums, multiples, quotients, parts, and making.

Numbers are exact until they are rounded once, ties away from zero; what leaves 32 bits of months
or 64 of microseconds is an error with ANSI mode and without, as in Spark. A multiple has all units
of its kind, a sum the units of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nosync_nb.expressions.evaluation.nodes import LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.functions.intervals import MARK, shifted
from nosync_nb.expressions.functions.rules import Rule, count
from nosync_nb.expressions.implicit_casts import NotProvedError, cast, implicit
from nosync_nb.expressions.kernels import datetimes, exact_integers, intervals, numeric
from nosync_nb.expressions.kernels.intervals import OF_MONTHS, OF_TIME
from nosync_nb.expressions.kernels.kernel import Check, Kernel
from nosync_nb.expressions.kernels.numeric import extent, limits
from nosync_nb.expressions.typing_rules import TIMES, is_decimal, joined, units
from nosync_nb.rows.ddl import INTERVALS, YEAR_MONTHS
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS, decimal_parts


def _exact(type_: str, compute: Callable[..., Any], *checks: Check, **more: Any) -> Kernel:
    """A kernel of exact arithmetic (wide.py) whose results fit an interval type."""
    least, greatest = limits(intervals.integer(type_))
    dtype = FIXED[type_]

    def computed(*values: Any) -> Any:
        return compute(*(_wide(value) for value in values))

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

    return Kernel(run, (*checks, Check(bad, numeric.OVERFLOW)), floats=True, **more)


def _wide(values: Any) -> Any:
    """Integers in 64 bits, which `wide` computes with."""
    narrow = isinstance(values, np.ndarray | np.generic) and values.dtype.kind == "i"
    return values.astype(np.int64) if narrow else values


def _near(type_: str, compute: Callable[[Any, Any], Any], *checks: Check) -> Kernel:
    """The same of doubles, rounded to the nearest whole number, ties away from zero."""
    least, greatest = limits(intervals.integer(type_))

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

    return Kernel(run, (*checks, Check(bad, numeric.OVERFLOW)), floats=True)


def _are(types: tuple[str, ...], nodes: list[ValueNode]) -> bool:
    return all(node.type in types for node in nodes)


def _has_interval(nodes: list[ValueNode]) -> bool:
    return any(node.type in INTERVALS for node in nodes)


def added(other: Rule) -> Rule:
    """`+` of intervals, and of a time and an interval."""
    return _summed("+", exact_integers.plus, other)


def taken_away(other: Rule) -> Rule:
    """`-` of intervals, of a time and an interval, and of two times."""
    summed = _summed("-", exact_integers.minus, other)

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if sorted(node.type for node in arguments) == ["date", "string"]:
            arguments = [implicit(node, "date", utc=utc) for node in arguments]
        if len(arguments) == 2 and _are(TIMES, arguments):
            return _between(arguments, utc)
        return summed(name, arguments, utc)

    return rule


def _summed(sign: str, compute: Callable[[Any, Any], Any], other: Rule) -> Rule:
    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        count(name, arguments, 2)
        if not all(node.type in INTERVALS for node in arguments):
            return shifted(sign, arguments, utc)
        type_ = joined(arguments[0].type, arguments[1].type)
        if type_ is None:
            raise NotProvedError("intervals of months beside those of time")
        return StrictNode(MARK + sign, type_, _exact(type_, compute), arguments)

    return rule


def _between(times: list[ValueNode], utc: bool) -> ValueNode:
    """The days between two dates, or the time between two timestamps."""
    if _are(("date",), times):
        kernel = _exact(
            "interval day", lambda a, b: exact_integers.times(exact_integers.minus(a, b), _DAY)
        )
        return StrictNode(f"{MARK}between", "interval day", kernel, times)
    kinds = {node.type for node in times} - {"date"}
    if len(kinds) > 1:
        raise NotProvedError("timestamps of both kinds")
    if not utc:
        raise NotProvedError("timestamps in a time zone other than UTC")
    (kind,) = kinds
    both = [cast(node, kind, utc=utc) for node in times]
    return StrictNode(f"{MARK}between", OF_TIME, _exact(OF_TIME, exact_integers.minus), both)


_DAY = np.int64(datetimes.DAY)


def times(other: Rule) -> Rule:
    """`*` of an interval and a number."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        count(name, arguments, 2)
        interval, number = arguments
        if number.type in INTERVALS:
            interval, number = number, interval
        kernel, type_ = _scaled(interval, number, exact_integers.times, np.multiply)
        # Spark takes the interval first, wherever it stands.
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
        return _near(type_, near, *checks), type_
    if number.type in INTEGERS:
        return _exact(type_, exact, *checks), type_
    if not is_decimal(number.type):
        raise NotProvedError(f"an interval with a {number.type}")
    places = decimal_parts(number.type)[1]
    if exact is exact_integers.times:
        return _exact(
            type_, lambda a, b: exact_integers.lowered(exact(a, b), places), *checks
        ), type_
    return _exact(type_, lambda a, b: exact(exact_integers.raised(a, places), b), *checks), type_


def divided(other: Rule) -> Rule:
    """`/` of an interval by a number."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        count(name, arguments, 2)
        if arguments[0].type not in INTERVALS:
            raise NotProvedError("a number divided by an interval")
        zero = Check(numeric.is_zero, numeric.BY_ZERO)
        interval, number = arguments
        kernel, type_ = _scaled(interval, number, exact_integers.over, np.divide, zero)
        return StrictNode(f"{MARK}/", type_, kernel, arguments)

    return rule


def of_one(other: Rule, compute: Callable[[Any], Any], sign: str) -> Rule:
    """The negative or the absolute value of an interval."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        count(name, arguments, 1)
        type_ = arguments[0].type
        return StrictNode(MARK + sign, type_, _exact(type_, compute), arguments)

    return rule


def negative(other: Rule) -> Rule:
    """`-interval`."""
    return of_one(other, lambda a: exact_integers.minus(np.int64(0), a), "neg")


def absolute(other: Rule) -> Rule:
    """`abs(interval)`."""
    return of_one(
        other, lambda a: exact_integers.where(a < 0, exact_integers.minus(np.int64(0), a), a), "abs"
    )


def itself(other: Rule) -> Rule:
    """`positive(interval)` is the interval."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        count(name, arguments, 1)
        return arguments[0]

    return rule


def signum(other: Rule) -> Rule:
    """`sign(interval)`: a double."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not _has_interval(arguments):
            return other(name, arguments, utc)
        count(name, arguments, 1)
        kernel = Kernel(lambda a: np.sign(a).astype(np.float64))
        return StrictNode(name, "double", kernel, arguments)

    return rule


_PARTS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("year", "y", "years", "yr", "yrs"), ("year", "int")),
    **dict.fromkeys(("month", "mon", "mons", "months"), ("month", "tinyint")),
    **dict.fromkeys(("day", "d", "days"), ("day", "int")),
    **dict.fromkeys(("hour", "h", "hours", "hr", "hrs"), ("hour", "tinyint")),
    **dict.fromkeys(("minute", "m", "min", "mins", "minutes"), ("minute", "tinyint")),
    **dict.fromkeys(("second", "s", "sec", "seconds", "secs"), ("second", "decimal(8,6)")),
}


def part(name: str, interval: ValueNode) -> ValueNode:
    """`extract(hour from interval)`: what is left of greater units, with the interval's sign.

    Raises:
        NotProvedError: for a unit that the type has not.
    """
    unit, type_ = _PARTS.get(name.lower(), ("", ""))
    order = list(intervals.widths(interval.type))
    first, last = units(interval.type)
    if unit not in order[order.index(first) : order.index(last) + 1]:
        raise NotProvedError(f"extract {name} of an {interval.type}")
    width = np.int64(intervals.widths(interval.type)[unit])
    place = order.index(unit)
    whole = np.int64(intervals.widths(interval.type)[order[place - 1]]) if place else None

    def run(a: Any) -> Any:
        rest = a.astype(np.int64)
        if whole is not None:
            rest = np.fmod(rest, whole)
        if unit == "second":
            return rest  # a decimal of as many places
        return ((rest - np.fmod(rest, width)) // width).astype(FIXED[type_])

    return StrictNode(f"extract {unit}", type_, Kernel(run), (interval,))


def _make_months(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`make_ym_interval(years, months)`."""
    years, months = _given(name, arguments, ["int", "int"], utc)
    kernel = _exact(
        OF_MONTHS, lambda a, b: exact_integers.plus(exact_integers.times(a, np.int64(12)), b)
    )
    return StrictNode(MARK + name, OF_MONTHS, kernel, (years, months))


_SECONDS = "decimal(18,6)"


def _make_time(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`make_dt_interval(days, hours, minutes, seconds)`."""
    given = _given(name, arguments, ["int", "int", "int", _SECONDS], utc)
    lengths = [np.int64(width) for width in list(intervals.CLOCK.values())[:3]]

    def total(days: Any, hours: Any, minutes: Any, seconds: Any) -> Any:
        sums = seconds
        for values, width in zip((days, hours, minutes), lengths, strict=True):
            sums = exact_integers.plus(sums, exact_integers.times(values, width))
        return sums

    return StrictNode(MARK + name, OF_TIME, _exact(OF_TIME, total), given)


def _given(name: str, arguments: list[ValueNode], wanted: list[str], utc: bool) -> list[ValueNode]:
    """The arguments as their types, 0 for those that are not there."""
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
