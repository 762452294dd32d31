"""Functions of dates and times: months, weeks, Unix seconds, texts by a pattern, and `make_date`.

`FUNCTIONS` lists the calls, and `EXTRACTED` the rules of `extract(unit from x)`. Timestamps with a
time zone are computed here in UTC only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from nosync_nb.expressions.evaluation.nodes import CaseNode, LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.functions import (
    intervals,
    nondeterministic,
    rules,
)
from nosync_nb.expressions.functions.rules import Rule, check_arity
from nosync_nb.expressions.implicit_casts import cast, implicit, literal_value, tried_call, try_cast
from nosync_nb.expressions.kernels import (
    datetime_patterns as patterns,
)
from nosync_nb.expressions.kernels import (
    datetimes,
    reasons,
)
from nosync_nb.expressions.kernels.kernel import Check, Kernel, NotProvedError, TextKernel
from nosync_nb.expressions.typing_rules import NUMBERS, TIMES, VOID, is_decimal
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import FLOATS, INTEGERS

_DEFAULT = "yyyy-MM-dd HH:mm:ss"
_MONTH = np.timedelta64(1, "M")


def _time(node: ValueNode, *, utc: bool) -> ValueNode:
    """Returns an argument cast to a timestamp, if Spark casts its type implicitly."""
    if not utc:
        raise NotProvedError("timestamps in a time zone other than UTC")
    return implicit(node, "timestamp", utc=utc)


def _int(node: ValueNode, *, utc: bool) -> ValueNode:
    return implicit(node, "int", utc=utc)


def _add_months(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 2)
    day = implicit(arguments[0], "date", utc=utc)
    number = _int(arguments[1], utc=utc)
    return StrictNode(f"{intervals.MARK}{name}", "date", intervals.ADD_MONTHS, (day, number))


def _split(days: Any) -> tuple[Any, Any, Any]:
    """Returns the months since 1970, the day of the month, and the days to the month's end."""
    start = datetimes.days(days).astype("datetime64[M]")
    first = start.astype("datetime64[D]").astype(np.int64)
    end = (start + _MONTH).astype("datetime64[D]").astype(np.int64)
    return start.astype(np.int64), days - first + 1, end - days - 1


def _months_between(round_off: bool) -> Kernel:
    def run(a: Any, b: Any) -> Any:
        (m, d, e), (n, f, g) = _split(a // datetimes.DAY), _split(b // datetimes.DAY)
        whole = (m - n).astype(np.float64)
        clock = a % datetimes.DAY // datetimes.SECOND - b % datetimes.DAY // datetimes.SECOND
        seconds = (d - f) * 86_400 + clock
        part = whole + seconds / np.float64(31 * 86_400)
        if round_off:
            part = np.floor(part * 1e8 + 0.5) / 1e8
        return np.where((d == f) | ((e == 0) & (g == 0)), whole, part)

    return Kernel(run)


def _between_months(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `months_between(a, b [, round])`."""
    check_arity(name, arguments, 2, 3)
    rounds = literal_value(arguments[2], "a rounding flag") if len(arguments) == 3 else True
    if not isinstance(rounds, bool):
        raise NotProvedError(f"{name} with {rounds!r} for a boolean")
    times = [_time(argument, utc=utc) for argument in arguments[:2]]
    return StrictNode(name, "double", _months_between(rounds), times)


_DAYS = {
    name: number
    for number, names in enumerate(
        ("th thu thursday", "fr fri friday", "sa sat saturday", "su sun sunday",
         "mo mon monday", "tu tue tuesday", "we wed wednesday")
    )
    for name in names.split()
}  # fmt: skip


def _next_day(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `next_day(date, 'MON')`, for a valid day name."""
    check_arity(name, arguments, 2)
    day = implicit(arguments[0], "date", utc=utc)
    wanted = _DAYS.get(str(literal_value(arguments[1], "a day of the week")).lower())
    if wanted is None:
        raise NotProvedError("an invalid day of the week")
    shift = np.int32(wanted - 1)

    def run(a: Any) -> Any:
        return a + np.int32(1) + (shift - a) % np.int32(7)

    return StrictNode(name, "date", Kernel(run), (day,))


def _thursday(days: Any) -> Any:
    wide = np.asarray(days).astype(np.int64)
    return wide - (wide + 3) % 7 + 3


def _week(days: Any) -> Any:
    """Returns the ISO week."""
    return ((datetimes.day_of_year(_thursday(days)) - 1) // 7 + 1).astype(np.int32)


def _year_of_week(days: Any) -> Any:
    return datetimes.year(_thursday(days))


def _of_date(function: Callable[[Any], Any]) -> Rule:
    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        day = implicit(arguments[0], "date", utc=utc)
        return StrictNode(name, "int", Kernel(function), (day,))

    return rule


def _name_of_date(names: tuple[str, ...], number: Callable[[int], int]) -> Rule:
    """Returns the rule of `dayname` or `monthname`, which return three letters."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        day = implicit(arguments[0], "date", utc=utc)
        return StrictNode(name, "string", TextKernel(lambda v: names[number(v)][:3]), (day,))

    return rule


def _unix_day(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `date_from_unix_date(days)`."""
    check_arity(name, arguments, 1)
    return StrictNode(name, "date", Kernel(lambda a: a), (_int(arguments[0], utc=utc),))


def _converted(source: str, result: str, kernel: Kernel, wider: tuple[str, ...] = ()) -> Rule:
    """Returns the rule of a conversion between two types that does not depend on the time zone.

    Args:
        wider: further argument types, which are cast to `source`.
    """

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        if arguments[0].type != source and arguments[0].type not in wider:
            raise NotProvedError(f"{name} of {arguments[0].type}")
        return StrictNode(name, result, kernel, (cast(arguments[0], source, utc=utc),))

    return rule


def _scaled(width: int) -> Kernel:
    """Returns the kernel that converts whole units of `width` microseconds to microseconds."""
    top = (2**63 - 1) // width
    check = Check(lambda a: (a > top) | (a < -top), reasons.TIME_OVERFLOW)
    return Kernel(lambda a: a * np.int64(width), (check,))


def _seconds(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `timestamp_seconds`, which returns null for NaN and infinite doubles."""
    check_arity(name, arguments, 1)
    if arguments[0].type in INTEGERS:
        return _converted("bigint", "timestamp", _scaled(datetimes.SECOND), INTEGERS)(
            name, arguments, utc
        )
    if arguments[0].type not in FLOATS:
        raise NotProvedError(f"{name} of {arguments[0].type}")
    number = cast(arguments[0], "double", utc=utc)
    finite = StrictNode("finite", "boolean", Kernel(np.isfinite), (number,))
    node = StrictNode(name, "timestamp", Kernel(_saturated, floats=True), (number,))
    return CaseNode([(finite, node)], LiteralNode(None, "timestamp"))


def _saturated(seconds: Any) -> Any:
    """Converts seconds to microseconds; clips values out of range, as Java's cast of doubles."""
    micros = np.nan_to_num(np.asarray(seconds, np.float64) * 1e6)
    inside = np.where(np.abs(micros) < 2.0**63, micros, 0.0).astype(np.int64)
    ends = np.where(micros > 0, np.int64(2**63 - 1), np.int64(-(2**63)))
    return np.where(np.abs(micros) < 2.0**63, inside, ends)


def _pattern(arguments: list[ValueNode], place: int) -> str:
    if len(arguments) <= place:
        return _DEFAULT
    pattern = literal_value(arguments[place], "a pattern")
    if not isinstance(pattern, str):
        raise NotProvedError("a pattern that is not a string")
    return pattern


def _refuse_non_text(patterns: list[ValueNode]) -> None:
    """Refuses patterns that are not text, even if they are not used because the time is null."""
    if any(pattern.type != "string" for pattern in patterns):
        raise NotProvedError("a pattern that is not a string")


def _date_format(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 2)
    kernel = patterns.timestamp_formatter(_pattern(arguments, 1))
    return StrictNode(name, "string", kernel, (_time(arguments[0], utc=utc),))


def _time_to_text(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `to_char(time, pattern)`; only Spark knows that of a number."""
    if not arguments or arguments[0].type not in TIMES:
        raise NotProvedError(f"{name} of these types")
    return _date_format(name, arguments, utc)


def _zone(node: ValueNode, what: str) -> Any:
    """Returns the time zone that a literal names.

    Raises:
        NotProvedError: if it is not a literal, or the name is unknown here.
    """
    name = literal_value(node, what)
    zone = datetimes.zone_of(name) if isinstance(name, str) else None
    if zone is None:
        raise NotProvedError(f"the time zone {name!r}")
    return zone


def _shifted(kernel: Callable[[Any], Kernel]) -> Rule:
    """Returns the rule of `from_utc_timestamp` or `to_utc_timestamp`."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        time = implicit(arguments[0], "timestamp", utc=utc)
        return StrictNode(name, "timestamp", kernel(_zone(arguments[1], name)), (time,))

    return rule


def _convert_timezone(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `convert_timezone([from,] to, time)`; the first zone is by default the session's."""
    check_arity(name, arguments, 2, 3)
    if not utc:
        raise NotProvedError("timestamps in a time zone other than UTC")
    time = arguments[-1]
    if time.type not in TIMES and time.type != "string":
        raise NotProvedError(f"{name} of a {time.type}")
    node = cast(time, "timestamp_ntz", utc=utc)
    if len(arguments) == 3:
        kernel = datetimes.to_utc(_zone(arguments[0], name))
        node = StrictNode(name, "timestamp_ntz", kernel, (node,))
    kernel = datetimes.from_utc(_zone(arguments[-2], name))
    return StrictNode(name, "timestamp_ntz", kernel, (node,))


def _from_unix(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `from_unixtime(seconds [, pattern])`; seconds out of range wrap around, as in Spark."""
    check_arity(name, arguments, 1, 2)
    if not utc:
        raise NotProvedError("timestamps in a time zone other than UTC")
    number = implicit(arguments[0], "bigint", utc=utc)
    wrapped = Kernel(lambda a: a * np.int64(datetimes.SECOND))
    micros = StrictNode("*", "timestamp", wrapped, (number,))
    kernel = patterns.timestamp_formatter(_pattern(arguments, 1))
    return StrictNode(name, "string", kernel, (micros,))


def _read(text: ValueNode, pattern: str, type_: str, *, utc: bool) -> ValueNode:
    """Returns the node that parses a text by a pattern, as either timestamp type."""
    if not utc and type_ == "timestamp":
        raise NotProvedError("timestamps in a time zone other than UTC")
    if text.type != "string":
        raise NotProvedError(f"a {text.type} that is read by a pattern")
    return StrictNode("read", type_, patterns.pattern_parser(pattern), (text,))


def _as_text(node: ValueNode, *, utc: bool) -> ValueNode:
    """Returns a time unchanged, and any other argument cast to text."""
    if node.type in (*TIMES, "string", VOID):
        return node
    return implicit(node, "string", utc=utc)


def _to_date(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `to_date(x [, pattern])`."""
    check_arity(name, arguments, 1, 2)
    first = _as_text(arguments[0], utc=utc)
    if len(arguments) == 1 or first.type != "string":
        return rules.to_date(name, [first], utc)
    arguments = [first, arguments[1]]
    node = _read(arguments[0], _pattern(arguments, 1), "timestamp", utc=utc)
    return cast(node, "date", utc=utc)


def _to_time(type_: str) -> Rule:
    """Returns the rule of `to_timestamp(x [, pattern])` with a result of either timestamp type."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1, 2)
        first = arguments[0]
        if type_ == "timestamp" and (first.type in NUMBERS or is_decimal(first.type)):
            if len(arguments) == 2:
                raise NotProvedError(f"{name} of a {first.type} by a pattern")
            return cast(first, type_, utc=utc)
        _refuse_non_text(arguments[1:])
        first = _as_text(first, utc=utc)
        if len(arguments) == 2 and first.type == "string":
            return _read(first, _pattern(arguments, 1), type_, utc=utc)
        return cast(first, type_, utc=utc)

    return rule


def _null_if_unparsed(rule: Rule) -> Rule:
    """Returns the rule of a `try_` call, which is null for a text that does not fit."""

    def parsed_or_null(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if arguments and arguments[0].type in FLOATS:  # Spark clips a double that is out of range
            raise NotProvedError(f"{name} of a {arguments[0].type}")
        node = rule(name, arguments, utc)
        return node if node in arguments else tried_call(node)

    return parsed_or_null


def _try_to_timestamp(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `try_to_timestamp(x [, pattern])`."""
    if len(arguments) == 1 and arguments[0].type == "string":
        return try_cast(arguments[0], "timestamp", utc=utc)
    return _null_if_unparsed(_to_time("timestamp"))(name, arguments, utc)


def _try_to_date(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `try_to_date(x [, pattern])`."""
    check_arity(name, arguments, 1, 2)
    first = _as_text(arguments[0], utc=utc)
    if len(arguments) == 1 or first.type != "string":
        return _null_if_unparsed(rules.to_date)(name, [first], utc)
    node = _read(first, _pattern(arguments, 1), "timestamp", utc=utc)
    return cast(tried_call(node), "date", utc=utc)


def _unix(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `unix_timestamp([x [, pattern]])`: whole seconds, truncated towards zero."""
    whole = Kernel(lambda a: np.sign(a) * (np.abs(a) // datetimes.SECOND))
    if not arguments and name == "unix_timestamp":
        return StrictNode(name, "bigint", whole, (nondeterministic.ClockNode("timestamp"),))
    check_arity(name, arguments, 1, 2)
    _refuse_non_text(arguments[1:])
    time = arguments[0]
    if time.type == "string":
        time = _read(time, _pattern(arguments, 1), "timestamp", utc=utc)
    elif time.type in ("date", "timestamp"):
        time = _time(time, utc=utc)
    else:
        raise NotProvedError(f"{name} of {time.type}")
    return StrictNode(name, "bigint", whole, (time,))


_UNITS = {
    "trunc": "year yyyy yy quarter month mon mm week",
    "date_trunc": "year yyyy yy quarter month mon mm week day dd hour minute second millisecond"
    " microsecond",
}


def _truncated(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `trunc` and `date_trunc`, which return null for an invalid unit."""
    check_arity(name, arguments, 2)
    place, type_ = (0, "date") if name == "trunc" else (1, "timestamp")
    unit = str(literal_value(arguments[1 - place], "a unit")).lower()
    time = implicit(arguments[place], type_, utc=utc)
    if not time.raises and unit not in _UNITS[name].split():
        return LiteralNode(None, type_)
    if unit == "microsecond" and utc:
        return time
    kernels = datetimes.truncate if name == "trunc" else datetimes.truncate_time
    return rules.truncated(kernels, type_, place)(name, arguments, utc)


def _date_part(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `date_part('year', x)`, which equals `extract(year from x)`."""
    check_arity(name, arguments, 2)
    return extracted(str(literal_value(arguments[0], "a part")), arguments[1], utc)


_SECONDS = "decimal(16,6)"
_MINUTE = 60 * datetimes.SECOND
_BITS = 2**31 - 1
"""A mask of the bits of the whole seconds that Spark retains."""
_YEAR_MAX = 999_999_999
"""The last year of Java's dates; our dates have 32 bits of days, timestamps 64 of microseconds."""


def _days(year: Any, month: Any, day: Any) -> Any:
    months = (year.astype(np.int64) - 1970) * 12 + np.clip(month, 1, 12) - 1
    return _start(months) + day - 1


def _start(months: Any) -> Any:
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def _no_day(year: Any, month: Any, day: Any) -> Any:
    """Returns a mask of the rows whose day does not exist."""
    months = (year.astype(np.int64) - 1970) * 12 + np.clip(month, 1, 12) - 1
    far = (year < -_YEAR_MAX) | (year > _YEAR_MAX)
    none = (month < 1) | (month > 12) | (day < 1) | (day > _start(months + 1) - _start(months))
    return far | none


def _too_far(year: Any, month: Any, day: Any) -> Any:
    days = _days(year, month, day)
    return ((days < -(2**31)) | (days >= 2**31)) & ~_no_day(year, month, day)


def _day_of_parts(year: Any, month: Any, day: Any) -> Any:
    return _days(year, month, day).astype(np.int32)


def _make_date(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    check_arity(name, arguments, 3)
    parts = [implicit(argument, "int", utc=utc) for argument in arguments]
    return StrictNode(name, "date", _kernel_for_year(_DATE, arguments[0], 5_000_000), parts)


def _kernel_for_year(kernel: Kernel, year: ValueNode, limit: int) -> Kernel:
    """Returns the kernel, without the overflow check if the year cannot cause an overflow."""
    near = isinstance(year, LiteralNode) and isinstance(year.value, int) and abs(year.value) < limit
    if near or year.type in ("tinyint", "smallint"):
        return replace(kernel, checks=kernel.checks[:1])
    return kernel


def _kept_micros(micros: Any) -> Any:
    """Returns the seconds of a decimal that Spark retains, in microseconds."""
    return (micros // datetimes.SECOND & _BITS) * datetimes.SECOND + micros % datetimes.SECOND


def _no_time(year: Any, month: Any, day: Any, hour: Any, minute: Any, micros: Any) -> Any:
    """Returns a mask of the rows whose time does not exist; second 60 is the next minute."""
    clock = (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59)
    return clock | (_kept_micros(micros) > _MINUTE) | _no_day(year, month, day)


def _no_moment(*parts: Any) -> Any:
    days, rest = _day_and_micros(*parts)
    late = (days > _LAST) | ((days == _LAST) & (rest > _LAST_REST))
    early = (days < _FIRST) | ((days == _FIRST) & (rest < _FIRST_REST))
    return (late | early) & ~_no_time(*parts)


_LAST, _LAST_REST = divmod(2**63 - 1, datetimes.DAY)
_FIRST, _FIRST_REST = divmod(-(2**63), datetimes.DAY)


def _day_and_micros(year: Any, month: Any, day: Any, hour: Any, minute: Any, micros: Any) -> Any:
    """Returns the day, and the microseconds of the day; second 60 may belong to the next day."""
    minutes = hour * np.int64(60) + minute
    rest = minutes * np.int64(_MINUTE) + _kept_micros(micros)
    return _days(year, month, day) + rest // datetimes.DAY, rest % datetimes.DAY


def _time_of_parts(*parts: Any) -> Any:
    days, rest = _day_and_micros(*parts)
    return days * np.int64(datetimes.DAY) + rest


_DATE = Kernel(
    _day_of_parts, (Check(_no_day, reasons.NO_DATE), Check(_too_far, reasons.DATE_OVERFLOW))
)
_TIME = Kernel(
    _time_of_parts,
    (Check(_no_time, reasons.NO_TIME), Check(_no_moment, reasons.TIME_OVERFLOW)),
)


def _make_time(type_: str) -> Rule:
    """Returns the rule of `make_timestamp(year, month, day, hour, minute, second)`.

    The second is a decimal with a fraction.
    """

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 6)
        if type_ == "timestamp" and not utc:
            raise NotProvedError("timestamps in a time zone other than UTC")
        parts = [implicit(argument, "int", utc=utc) for argument in arguments[:5]]
        seconds = implicit(arguments[5], _SECONDS, utc=utc)
        kernel = _kernel_for_year(_TIME, arguments[0], 290_000)
        return StrictNode(name, type_, kernel, (*parts, seconds))

    return rule


def null_if_missing(kernel: Kernel) -> Kernel:
    """Returns a kernel with null instead of an error for a missing day or time.

    An overflow still raises an error.
    """
    none, *others = kernel.checks
    return replace(kernel, checks=tuple(others), missing=none.bad, floats=True)


def _try_make(rule: Rule) -> Rule:
    def attempt(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        node = rule(name, arguments, utc)
        assert isinstance(node, StrictNode)
        assert isinstance(node.kernel, Kernel)
        return StrictNode(name, node.type, null_if_missing(node.kernel), node.arguments)

    return attempt


_MAKE_TIMESTAMP = {
    "make_timestamp": "timestamp",
    "make_timestamp_ltz": "timestamp",
    "make_timestamp_ntz": "timestamp_ntz",
}
_MAKE_FUNCTIONS: dict[str, Rule] = {
    "make_date": _make_date,
    **{name: _make_time(type_) for name, type_ in _MAKE_TIMESTAMP.items()},
    **{f"try_{name}": _try_make(_make_time(type_)) for name, type_ in _MAKE_TIMESTAMP.items()},
}


FUNCTIONS: dict[str, Rule] = {
    "add_months": _add_months,
    "months_between": _between_months,
    "next_day": _next_day,
    "weekofyear": _of_date(_week),
    "dayname": _name_of_date(patterns.WEEKDAYS, lambda day: (day + 3) % 7),
    "monthname": _name_of_date(
        patterns.MONTHS, lambda day: patterns.timestamp_of_fields(day * datetimes.DAY).month - 1
    ),
    "unix_date": _converted("date", "int", Kernel(lambda a: a)),
    "date_from_unix_date": _unix_day,
    "unix_seconds": _converted("timestamp", "bigint", Kernel(lambda a: a // datetimes.SECOND)),
    "unix_millis": _converted("timestamp", "bigint", Kernel(lambda a: a // 1000)),
    "timestamp_millis": _converted("bigint", "timestamp", _scaled(1000), INTEGERS),
    "timestamp_seconds": _seconds,
    "unix_timestamp": _unix,
    "to_unix_timestamp": _unix,
    "from_unixtime": _from_unix,
    "date_format": _date_format,
    "to_char": _time_to_text,
    "to_varchar": _time_to_text,
    "from_utc_timestamp": _shifted(datetimes.from_utc),
    "to_utc_timestamp": _shifted(datetimes.to_utc),
    "convert_timezone": _convert_timezone,
    "to_date": _to_date,
    "to_timestamp": _to_time("timestamp"),
    "try_to_timestamp": _try_to_timestamp,
    "try_to_date": _try_to_date,
    "to_timestamp_ltz": _to_time("timestamp"),
    "to_timestamp_ntz": _to_time("timestamp_ntz"),
    **_MAKE_FUNCTIONS,
    "trunc": _truncated,
    "date_trunc": _truncated,
    "date_part": _date_part,
    "datepart": _date_part,
}

_PARTS: dict[str, Rule] = {
    "year y years yr yrs": _of_date(datetimes.year),
    "yearofweek": _of_date(_year_of_week),
    "quarter qtr": _of_date(datetimes.quarter),
    "month mon mons months": _of_date(datetimes.month),
    "week w weeks": _of_date(_week),
    "day d days": _of_date(datetimes.day),
    "dayofweek dow": _of_date(datetimes.day_of_week),
    "dayofweek_iso dow_iso": _of_date(lambda days: (datetimes.weekday(days) + 1).astype(np.int32)),
    "doy": _of_date(datetimes.day_of_year),
    "hour h hours hr hrs": rules.clock(datetimes.hour),
    "minute m min mins minutes": rules.clock(datetimes.minute),
    "second s sec seconds secs": rules.clock(
        lambda micros: micros % (60 * datetimes.SECOND), "decimal(8,6)"
    ),
}
EXTRACTED = {name: rule for names, rule in _PARTS.items() for name in names.split()}


def extracted(unit: str, value: ValueNode, utc: bool) -> ValueNode:
    """Binds `extract(unit from value)`.

    Raises:
        NotProvedError: for an unknown unit.
    """
    if value.type in INTERVALS:
        return intervals.extracted(unit, value)
    rule = EXTRACTED.get(unit.lower())
    if rule is None:
        raise NotProvedError(f"extract {unit.lower()}")
    return rule(unit.lower(), [value], utc)
