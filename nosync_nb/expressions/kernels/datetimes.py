"""Kernels of dates, timestamps and intervals, and the text forms that a cast accepts.

Dates and timestamps are days and microseconds since 1970 in the proleptic Gregorian calendar.
Timestamps with a time zone are evaluated in UTC; other session time zones are left to Spark. All
functions of the calendar take days, so timestamps are cast to dates before.

The type of an interval names the units in which it is printed, from the first to the last. Its
value is a number of months or of microseconds. The common type of two types of one kind has the
units of both, and those between them.

The text of a timestamp is `2024`, `2024-1` or `2024-01-05`, perhaps followed by a space or T,
hours, minutes, seconds and a fraction. Only six digits of the fraction count. The seconds may be
followed by a zone: `Z`, `+1:00`, `UTC+01:00`, `Europe/Berlin`. A time without a day is not a
timestamp: `cast` refuses it, and `try_cast` returns null. Spark adds the current day, so a row that
is retracted on another day would be a different row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import numpy as np

from nosync_nb.expressions.kernels import reasons
from nosync_nb.expressions.kernels.kernel import Check, InvalidError, Kernel, TextKernel
from nosync_nb.expressions.kernels.numeric import limits
from nosync_nb.expressions.typing_rules import units
from nosync_nb.rows.ddl import INTERVALS, YEAR_MONTHS
from nosync_nb.rows.types import FIXED, INTEGERS

DAY = 86_400_000_000
SECOND = 1_000_000

_TRUNCATED = {
    "year": "Y",
    "yyyy": "Y",
    "yy": "Y",
    "quarter": "Q",
    "month": "M",
    "mon": "M",
    "mm": "M",
    "week": "W",
}
_PIECES = {
    "day": DAY,
    "dd": DAY,
    "hour": 3600 * SECOND,
    "minute": 60 * SECOND,
    "second": SECOND,
    "millisecond": 1000,
}


_INT, _NUMPY_DAY, _NUMPY_MONTH = (np.dtype(name) for name in ("int64", "M8[D]", "M8[M]"))


def days(values: Any) -> Any:
    """Converts days since 1970 to numpy dates."""
    return np.asarray(values, _INT).view(_NUMPY_DAY)


def months(values: Any) -> Any:
    """Converts days since 1970 to months since January 1970."""
    return days(values).astype(_NUMPY_MONTH).view(_INT)


def _int(values: Any) -> Any:
    return values.astype(np.int32)


def month_start(number: Any) -> Any:
    """Returns the first days of months, which are counted from January 1970."""
    return np.asarray(number, _INT).view(_NUMPY_MONTH).astype(_NUMPY_DAY).view(_INT)


def year(values: Any) -> Any:
    """The year of a day; 0 is the year before 1."""
    return _int(months(values) // 12 + 1970)


def month(values: Any) -> Any:
    """The month of a day, 1 to 12."""
    return _int(months(values) % 12 + 1)


def quarter(values: Any) -> Any:
    """The quarter of a day, 1 to 4."""
    return _int(months(values) % 12 // 3 + 1)


def day(values: Any) -> Any:
    """The day of the month, counted from 1."""
    return _int(values - month_start(months(values)) + 1)


def day_of_year(values: Any) -> Any:
    """The day of the year, counted from 1."""
    return _int(values - month_start(months(values) // 12 * 12) + 1)


def day_of_week(values: Any) -> Any:
    """The day of the week, 1 for Sunday to 7 for Saturday."""
    return _int((np.asarray(values).astype(np.int64) + 4) % 7 + 1)


def weekday(values: Any) -> Any:
    """The day of the week, 0 for Monday to 6 for Sunday."""
    return _int((np.asarray(values).astype(np.int64) + 3) % 7)


def last_day(values: Any) -> Any:
    """The last day of the month of each day."""
    return _int(month_start(months(values) + 1) - 1)


def shift(operation: Any) -> Kernel:
    """`date_add` and `date_sub`; overflows wrap around, as in Spark."""
    return Kernel(lambda a, b: operation(a, b.astype(np.int32)))


def difference(a: Any, b: Any) -> Any:
    """`datediff` in days; overflows wrap around."""
    return np.subtract(a, b)


def truncate(unit: str) -> Kernel | None:
    """Returns the kernel of `trunc(date, unit)`; None for a unit whose result is null."""
    letter = _TRUNCATED.get(unit.lower())
    return None if letter is None else Kernel(lambda a: _int(_truncated_days(a, letter)))


def _truncated_days(values: Any, letter: str) -> Any:
    wide = np.asarray(values).astype(np.int64)
    if letter == "W":
        return wide - (wide + 3) % 7
    number = months(wide)
    width = {"Y": 12, "Q": 3, "M": 1}[letter]
    return month_start(number // width * width)


def truncate_time(unit: str) -> Kernel | None:
    """Returns the kernel of `date_trunc(unit, timestamp)` in UTC; None for an unsupported unit."""
    width = _PIECES.get(unit.lower())
    if width is not None:
        return Kernel(lambda a: a // width * width)
    letter = _TRUNCATED.get(unit.lower())
    return None if letter is None else Kernel(lambda a: _truncated_days(a // DAY, letter) * DAY)


def hour(values: Any) -> Any:
    """The hour of a timestamp, 0 to 23."""
    return _int(values // (3600 * SECOND) % 24)


def minute(values: Any) -> Any:
    """The minute of a timestamp."""
    return _int(values // (60 * SECOND) % 60)


def second(values: Any) -> Any:
    """The second of a timestamp, without its fraction."""
    return _int(values // SECOND % 60)


def to_days(values: Any) -> Any:
    """Casts timestamps to dates."""
    return _int(np.asarray(values) // DAY)


_LAST_DAY = np.iinfo(np.int64).max // DAY
_FIRST_DAY = -(-np.iinfo(np.int64).min // DAY)


def _out_of_time(values: Any) -> Any:
    return (values > _LAST_DAY) | (values < _FIRST_DAY)


TO_MICROS = Kernel(
    lambda a: a.astype(np.int64) * DAY, (Check(_out_of_time, reasons.TIME_OVERFLOW),)
)
"""Casts dates to timestamps."""

_DATE = re.compile(
    r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL
)
_TIME = re.compile(
    r"(\d{4}-\d{1,2}-\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?(Z?))?", re.ASCII
)


def parse_date(text: str) -> int | None:
    """Returns the day that Spark reads from trimmed text; None if Spark refuses the text."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    sign, year_text, month_text, day_text = match.groups()
    year_number = int(sign + year_text)
    month_number, day_number = int(month_text or 1), int(day_text or 1)
    if not (1 <= month_number <= 12 and day_number >= 1):
        return None
    start = int(
        np.datetime64((year_number - 1970) * 12 + month_number - 1, "M")
        .astype("M8[D]")
        .astype(np.int64)
    )
    after = int(
        np.datetime64((year_number - 1970) * 12 + month_number, "M")
        .astype("M8[D]")
        .astype(np.int64)
    )
    days = start + day_number - 1
    return days if days < after and -(2**31) <= days < 2**31 else None


def parse_timestamp(text: str) -> tuple[int, bool] | None:
    """Returns the microseconds of a plain literal, and True if it is in UTC; None for others."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    date_text, hours, minutes, seconds, fraction, zone = match.groups()
    start = parse_date(date_text)
    if start is None:
        return None
    if hours is None:
        return start * DAY, False
    clock = (int(hours), int(minutes), int(seconds))
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        return None
    micros = ((clock[0] * 60 + clock[1]) * 60 + clock[2]) * SECOND
    return start * DAY + micros + int((fraction or "").ljust(6, "0")), bool(zone)


def date_text(day_number: int) -> str:
    """Returns a date as Spark prints it: years with four digits, and longer ones with a sign."""
    whole, month_text, day_text = str(np.datetime64(day_number, "D")).rsplit("-", 2)
    number = int(whole)
    sign = "-" if number < 0 else "+" if number > 9999 else ""
    return f"{sign}{abs(number):04d}-{month_text}-{day_text}"


OF_TIME, OF_MONTHS = "interval day to second", "interval year to month"
"""The interval types with all units of their kind, which products and quotients have."""

CLOCK: dict[str, int] = {
    "day": DAY,
    "hour": 3600 * SECOND,
    "minute": 60 * SECOND,
    "second": SECOND,
}
"""The microseconds of each unit of time, from the greatest unit."""

CALENDAR: dict[str, int] = {"year": 12, "month": 1}


def widths(type_: str) -> dict[str, int]:
    """Returns the units of the kind of an interval type, and the size of each."""
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
    """Returns the kernel of a cast between intervals, or between one unit and integers.

    Returns None if only Spark can cast it.
    """
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
    """Returns the kernel that truncates an interval to the target's last unit, towards zero."""
    last = units(target)[1]
    if last in ("second", "month"):
        return Kernel(lambda a: a)
    width = FIXED[source].type(widths(target)[last])
    return Kernel(lambda a: a - np.fmod(a, width))


def _from_integer(interval: str, width: int) -> Kernel:
    """Returns the kernel that casts an integer to an interval of that number of units."""
    least, greatest = limits(integer(interval))
    check = Check(
        lambda a: (a > greatest // width) | (a < -(-least // width)), reasons.out_of_range(interval)
    )
    return Kernel(lambda a: (a.astype(np.int64) * width).astype(FIXED[interval]), (check,))


def _to_integer(whole: str, width: int) -> Kernel:
    """Returns the kernel that casts an interval to a number of units, truncated towards zero."""
    least, greatest = limits(whole)

    def count(a: Any) -> Any:
        wide = a.astype(np.int64)
        return (wide - np.fmod(wide, np.int64(width))) // width

    check = Check(
        lambda a: (count(a) < least) | (count(a) > greatest),
        reasons.out_of_range(whole),
    )
    return Kernel(lambda a: count(a).astype(FIXED[whole]), (check,))


BLANKS = "".join(map(chr, range(0x21))) + "\x7f"
"""The characters that Spark trims from a text before parsing a value."""

_JAVA_BLANKS = BLANKS[:-1]
_FORM = re.compile(
    r"([+-]?)(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(\D.*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_TIME_ALONE = re.compile(r"(T\d{1,2}|\d{1,2}:).*", re.ASCII | re.DOTALL)
_OFFSET = re.compile(r"([+-])(\d\d?)(?::(\d\d)(?::(\d\d))?|(\d\d)(\d\d)?)?", re.ASCII)
_PREFIX = re.compile(r"(?:UTC|GMT|UT)(?=$|[+-])")
_MOST = 18 * 3600
_LEAST, _GREATEST = -(2**63), 2**63 - 1
_THREE = """
ACT=Australia/Darwin AET=Australia/Sydney AGT=America/Argentina/Buenos_Aires ART=Africa/Cairo
AST=America/Anchorage BET=America/Sao_Paulo BST=Asia/Dhaka CAT=Africa/Harare CNT=America/St_Johns
CST=America/Chicago CTT=Asia/Shanghai EAT=Africa/Addis_Ababa ECT=Europe/Paris
IET=America/Indiana/Indianapolis IST=Asia/Kolkata JST=Asia/Tokyo MIT=Pacific/Apia NET=Asia/Yerevan
NST=Pacific/Auckland PLT=Asia/Karachi PNT=America/Phoenix PRT=America/Puerto_Rico
PST=America/Los_Angeles SST=Pacific/Guadalcanal VST=Asia/Ho_Chi_Minh EST=-05:00 HST=-10:00
MST=-07:00
"""
_SHORT = dict(pair.split("=") for pair in _THREE.split())
"""The meaning of time zones of three letters in Java."""

_NO_ZONES = frozenset(("Factory", "localtime", "posixrules"))


def _offset(text: str) -> int | None:
    """Returns the seconds of `+01:30` or a similar offset; None for other text."""
    match = _OFFSET.fullmatch(text)
    if match is None:
        return None
    sign, hours, minutes, seconds, joined, more = match.groups()
    if len(hours) == 1 and joined:
        return None
    parts = (int(hours), int(minutes or joined or 0), int(seconds or more or 0))
    size = (parts[0] * 60 + parts[1]) * 60 + parts[2]
    if parts[1] > 59 or parts[2] > 59 or size > _MOST:
        return None
    return -size if sign == "-" else size


@lru_cache(maxsize=1024)
def zone_of(text: str) -> ZoneInfo | int | None:
    """Returns the time zone of a name, or the seconds of a fixed offset; None if it is unknown."""
    name = _SHORT.get(text, text)
    name = re.sub(r"([+-])(\d):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-])(\d\d):(\d)$", r"\1\2:0\3", name, count=1)
    if name == "Z":
        return 0
    prefix = _PREFIX.match(name)
    if prefix is not None:
        name = name[prefix.end() :]
        return _offset(name) if name else 0
    if name[:1] in ("+", "-"):
        return _offset(name)
    return ZoneInfo(name) if name in _names() else None


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(available_timezones()) - _NO_ZONES


def utc_offset(zone: ZoneInfo, day: int, seconds: int) -> int:
    """Returns the number of seconds by which a zone's clock is ahead of UTC at a local time.

    In a gap, this is the offset before the gap; of two possible times, the earlier one is taken.
    For a year from 9000 on, the offset is that of a year with the same calendar; for a year before
    1, it is that of the year 1.
    """
    first = np.datetime64(day, "D")
    year = int(str(first).rsplit("-", 2)[0])
    if year < 1:
        moment = datetime(1, 1, 2)
    else:
        alike = year if year < 9000 else 8000 + year % 400
        month, number = (int(part) for part in str(first).rsplit("-", 2)[1:])
        moment = datetime(alike, month, number, seconds // 3600, seconds // 60 % 60, seconds % 60)
    offset = moment.replace(tzinfo=zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _offset_at(zone: ZoneInfo, seconds: int) -> int:
    """Returns the number of seconds by which a zone's clock is ahead of UTC at a time in UTC.

    The years before 2 and from 9000 on are treated as by `utc_offset`.
    """
    day, rest = divmod(seconds, 86_400)
    year, month, number = (int(part) for part in str(np.datetime64(day, "D")).rsplit("-", 2))
    if year < 2:
        moment = datetime(2, 1, 2, tzinfo=UTC)
    else:
        alike = year if year < 9000 else 8000 + year % 400
        clock = (rest // 3600, rest // 60 % 60, rest % 60)
        moment = datetime(alike, month, number, *clock, tzinfo=UTC)
    offset = moment.astimezone(zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _moved(zone: ZoneInfo | int, offset: Callable[[ZoneInfo, int], int], sign: int) -> Kernel:
    """Returns the kernel that adds the offset of a zone to timestamps, or subtracts it.

    Args:
        offset: returns the offset of the zone at a time in seconds since 1970.
    """

    def difference(micros: Any) -> Any:
        if isinstance(zone, int):
            return np.full(np.shape(micros), sign * zone * SECOND)
        seconds, places = np.unique(np.floor_divide(micros, SECOND), return_inverse=True)
        offsets = np.array([offset(zone, each) for each in seconds.tolist()], np.int64)
        return sign * SECOND * offsets[places].reshape(np.shape(micros))

    def bad(micros: Any) -> Any:
        far = (micros > _GREATEST - DAY) | (micros < _LEAST + DAY)
        if not np.any(far):
            return far
        more = difference(micros)
        return far & np.where(more > 0, micros > _GREATEST - more, micros < _LEAST - more)

    check = Check(bad, reasons.TIME_OVERFLOW)
    return Kernel(lambda micros: micros + difference(micros), (check,))


def from_utc(zone: ZoneInfo | int) -> Kernel:
    """Returns the kernel of `from_utc_timestamp`: a time in UTC as a clock in the zone shows it."""
    return _moved(zone, _offset_at, 1)


def to_utc(zone: ZoneInfo | int) -> Kernel:
    """Returns the kernel of `to_utc_timestamp`: a time on a clock in the zone as UTC."""
    return _moved(zone, lambda each, at: utc_offset(each, *divmod(at, 86_400)), -1)


def _read_timestamp(text: str, *, zoned: bool) -> int | None:
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    sign, year, month, number, hours, minutes, seconds, fraction, zone = match.groups()
    day = parse_date(f"{sign}{year}-{month or 1}-{number or 1}")
    clock = (int(hours or 0), int(minutes or 0), int(seconds or 0))
    if day is None or clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        return None
    whole = (clock[0] * 60 + clock[1]) * 60 + clock[2]
    behind = 0
    if zone is not None:
        offset = zone_of(zone.strip(_JAVA_BLANKS))
        if offset is None:
            return None
        if zoned:
            behind = offset if isinstance(offset, int) else utc_offset(offset, day, whole)
    micros = day * DAY + (whole - behind) * SECOND
    micros += int((fraction or "")[:6].ljust(6, "0"))
    return micros if _LEAST <= micros <= _GREATEST else None


def timestamp_parser(type_: str) -> TextKernel:
    """Returns the kernel that parses timestamps of the given type."""
    zoned = type_ == "timestamp"

    def parse_or_none(text: str) -> int | None:
        return _read_timestamp(text.strip(BLANKS), zoned=zoned)

    def row(text: str) -> int:
        micros = parse_or_none(text)
        if micros is not None:
            return micros
        if zoned and is_dayless(text):
            raise InvalidError(reasons.Reason("CAST_INVALID_INPUT", f"{text!r} has no day"))
        raise InvalidError(reasons.invalid_text(text, type_))

    return TextKernel(row, raises=True, lenient=TextKernel(parse_or_none, nullable=True))


def timestamp_parser_without_ansi() -> TextKernel:
    """Returns the kernel of a cast without ANSI mode, which raises for a time without a day."""
    lenient = timestamp_parser("timestamp").row

    def row(text: str) -> int | None:
        try:
            micros: int = lenient(text)
        except InvalidError:
            if is_dayless(text):
                raise
            return None
        return micros

    return TextKernel(row, raises=True, nullable=True)


def is_dayless(text: str) -> bool:
    """Returns True if a text is a time without a day, for which Spark uses the current day."""
    trimmed = text.strip(BLANKS)
    if _TIME_ALONE.fullmatch(trimmed) is None or (trimmed[0] == "T" and text[0] != "T"):
        return False
    return _read_timestamp(f"2000-01-01 {trimmed.removeprefix('T')}", zoned=True) is not None
