"""Patterns of dates and times, `yyyy-MM-dd HH:mm:ss`: parsing and formatting as in Spark.

The kernels support the letters that have the same meaning here and in Spark's formatter; this
depends on the pattern only. Other letters (zones, weeks, eras, and days of the week when parsing)
are left to Spark. Years follow ISO: the year before 0001 is 0000, and years beyond 9999 have a sign
if the pattern has four letters.

A formatter splits its pattern into pieces. A piece depends only on the day, on the time of day up
to an hour, minute or second, or on the fraction. A column is formatted piece by piece, and each
piece once for each distinct value: all timestamps of a day share the text of the day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.kernels import reasons
from nosync_nb.expressions.kernels.kernel import InvalidError, NotProvedError, TextKernel
from nosync_nb.rows import buffers

DAY = 86_400_000_000
HOUR, MINUTE, SECOND = 3_600_000_000, 60_000_000, 1_000_000
_MONTHS = "January February March April May June July August September October November December"
MONTHS = tuple(_MONTHS.split())
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


_FIRST = date(1970, 1, 1).toordinal() - 1
_LAST = date.max.toordinal() - _FIRST - 1
"""The last day, counted from 1970, that Python's dates support; the first one is `-_FIRST`."""


class CalendarFields(NamedTuple):
    """The fields of a timestamp in UTC; `days` counts from 1970, and `micros` from midnight."""

    year: int
    month: int
    day: int
    days: int
    micros: int


def timestamp_of_fields(micros: int) -> CalendarFields:
    """Returns the fields of a timestamp in microseconds since 1970."""
    days, rest = divmod(micros, DAY)
    if -_FIRST <= days <= _LAST:
        day = date.fromordinal(days + _FIRST + 1)
        return CalendarFields(day.year, day.month, day.day, days, rest)
    months = int(np.datetime64(days, "D").astype("datetime64[M]").astype(np.int64))
    first = int(np.datetime64(months, "M").astype("datetime64[D]").astype(np.int64))
    return CalendarFields(1970 + months // 12, months % 12 + 1, days - first + 1, days, rest)


@lru_cache(maxsize=256)
def pattern_tokens(pattern: str) -> tuple[tuple[str, int], ...]:
    """Splits a pattern into `(letter, count)` for fields and `(text, 0)` for literal text."""
    parts: list[tuple[str, int]] = []
    text = ""
    for run in re.finditer(r"'((?:[^']|'')*)'|([A-Za-z])\2*|.", pattern, re.DOTALL):
        whole = run.group()
        if run.group(2):
            if text:
                parts.append((text, 0))
                text = ""
            parts.append((whole[0], len(whole)))
        elif whole == "'":
            raise NotProvedError(f"the pattern {pattern!r}")
        elif whole[0] == "'":
            text += run.group(1).replace("''", "'") if len(whole) > 2 else "'"
        else:
            text += whole
    if text:
        parts.append((text, 0))
    return tuple(parts)


_NAMES = "|".join(MONTHS)
_SHORT = "|".join(name[:3] for name in MONTHS)
_FIELDS: dict[tuple[str, int], str] = {
    ("y", 4): r"[+-]?[0-9]{4,9}",
    ("y", 2): r"[0-9]{2}",
    ("y", 1): r"[0-9]{1,9}",
    ("M", 3): _SHORT,
    ("M", 4): _NAMES,
    ("a", 1): "AM|PM",
}
_TWO = frozenset("MdHhms")
_FIXED_WIDTH = frozenset((("y", 2), *((letter, 2) for letter in _TWO)))
_RANGES = {"M": (1, 12), "d": (1, 31), "H": (0, 23), "h": (1, 12), "m": (0, 59), "s": (0, 59)}


def _field(letter: str, width: int) -> str | None:
    """Returns the regular expression of a field; None if only Spark knows it."""
    expression = _FIELDS.get((letter, width))
    if expression is None and letter in _TWO:
        expression = {1: r"[0-9]{1,19}", 2: r"[0-9]{2}"}.get(width)
    if expression is None and letter == "S" and width <= 6:
        expression = rf"[0-9]{{1,{width}}}"
    return expression


def _expression(pattern: str) -> tuple[re.Pattern[str], list[tuple[str, int]]]:
    """Returns the regular expression of a pattern, and the field of each group."""
    pieces: list[str] = []
    fields: list[tuple[str, int]] = []
    before: tuple[str, int] = ("", 0)
    for letter, width in pattern_tokens(pattern):
        if not width:
            if not letter.isascii() or set("[]{}#") & set(letter):
                raise NotProvedError(f"{letter!r} in a pattern that is read")
            pieces.append(re.escape(letter))
        else:
            expression = _field(letter, width)
            if expression is None or letter in (name for name, _ in fields):
                raise NotProvedError(f"{letter * width!r} in a pattern that is read")
            pieces.append(f"({expression})")
            fields.append((letter, width))
            joined = before[1] and not {letter, before[0]} & {"a"}
            if joined and not ((letter, width) in _FIXED_WIDTH and _reserves(fields[:-1])):
                raise NotProvedError(f"{before[0]}{letter} without a sign between them")
        before = (letter, width)
    letters = {letter for letter, _ in fields}
    if ("h" in letters) != ("a" in letters) or {"h", "H"} <= letters or not fields:
        raise NotProvedError(f"the pattern {pattern!r}")
    return re.compile("".join(pieces), re.IGNORECASE | re.ASCII), fields


def _reserves(fields: list[tuple[str, int]]) -> bool:
    """Returns True if a field may directly follow: after a two-digit field, or a leading `yyyy`."""
    return fields[-1] in _FIXED_WIDTH or fields == [("y", 4)]


@lru_cache(maxsize=256)
def pattern_parser(pattern: str) -> TextKernel:
    """Returns the kernel that parses timestamps by a pattern, in microseconds.

    Missing fields are those of 1970-01-01 00:00. A valid day out of the range of timestamps is
    an error also in `try_` functions and without ANSI mode.

    Raises:
        NotProvedError: for a pattern whose meaning only Spark knows.
    """
    expression, fields = _expression(pattern)

    def parse_or_none(text: str) -> int | None:
        match = expression.fullmatch(text)
        values = None if match is None else _values(fields, match.groups())
        micros = None if values is None else _micros(values)
        if micros is not None and not _LEAST <= micros < 2**63:
            raise InvalidError(
                reasons.TIME_OVERFLOW._replace(
                    fault=f"overflow: {text!r} is outside the range of timestamps"
                )
            )
        return micros

    def read(text: str) -> int:
        micros = parse_or_none(text)
        if micros is None:
            raise InvalidError(
                reasons.Reason(
                    "CANNOT_PARSE_TIMESTAMP",
                    f"{text!r} does not fit the pattern {pattern!r}",
                    "return null instead with try_to_timestamp, or clean the values first",
                )
            )
        return micros

    reaches = ("y", 2) not in fields and any(letter == "y" for letter, _ in fields)
    lenient = TextKernel(parse_or_none, raises=reaches, nullable=True)
    return TextKernel(read, raises=True, lenient=lenient)


_LEAST = -(2**63 // SECOND) * SECOND
"""The first timestamp that is a whole second."""


def _values(fields: list[tuple[str, int]], texts: tuple[str, ...]) -> dict[str, int] | None:
    """Returns the numbers of the fields; None if one is out of its range."""
    values: dict[str, int] = {}
    for (letter, width), text in zip(fields, texts, strict=True):
        if letter == "M" and width > 2:
            number = [name[:3].lower() for name in MONTHS].index(text[:3].lower()) + 1
        elif letter == "a":
            number = int(text.upper() == "PM")
        elif letter == "S":
            number = int(text.ljust(6, "0"))
        elif letter == "y" and not _is_year(text, width):
            return None
        else:
            number = int(text) + (2000 if (letter, width) == ("y", 2) else 0)
        least, greatest = _RANGES.get(letter, (number, number))
        if not least <= number <= greatest:
            return None
        values[letter] = number
    return values


def _is_year(text: str, width: int) -> bool:
    """Returns True if a year of four letters has a sign when it needs one, and no needless plus."""
    digits = len(text.lstrip("+-"))
    if width != 4:
        return True
    return {"+": digits > 4, "-": True}.get(text[0], digits == 4)


def _micros(values: dict[str, int]) -> int | None:
    """Returns the fields as microseconds since 1970; None if the month has no such day."""
    month = (values.get("y", 1970) - 1970) * 12 + values.get("M", 1) - 1
    starts = np.array([month, month + 1], "datetime64[M]").astype("datetime64[D]").astype(np.int64)
    day = int(starts[0]) + values.get("d", 1) - 1
    if day >= starts[1]:
        return None
    hour = values.get("H", values.get("h", 0) % 12 + 12 * values.get("a", 0))
    clock = (hour * 60 + values.get("m", 0)) * 60 + values.get("s", 0)
    return day * DAY + clock * SECOND + values.get("S", 0)


_ORDINALS = ("1st quarter", "2nd quarter", "3rd quarter", "4th quarter")
_CACHED_TEXTS = 4096
"""The number of cached texts per piece when single rows are formatted."""

Writer = Callable[[CalendarFields], str]


def _padded(width: int, number: Callable[[CalendarFields], int]) -> Writer:
    return lambda m: str(number(m)).zfill(width)


def _clock(unit: int, wrap: int) -> Callable[[CalendarFields], int]:
    return lambda m: m.micros // unit % wrap


def _year(width: int) -> Writer:
    if width == 2:
        return lambda m: str(abs(m.year) % 100).zfill(2)

    def write(m: CalendarFields) -> str:
        digits = str(abs(m.year))
        if m.year < 0:
            return "-" + digits.zfill(width)
        return ("+" if 4 <= width < len(digits) else "") + digits.zfill(width)

    return write


def _of_year(m: CalendarFields) -> int:
    start = np.datetime64((m.year - 1970) * 12, "M").astype("datetime64[D]").astype(np.int64)
    return m.days - int(start) + 1


def _weekday(m: CalendarFields) -> str:
    return WEEKDAYS[(m.days + 3) % 7]


_NUMBERS: dict[str, Callable[[CalendarFields], int]] = {
    "M": lambda m: m.month,
    "L": lambda m: m.month,
    "d": lambda m: m.day,
    "H": _clock(HOUR, 24),
    "m": _clock(MINUTE, 60),
    "s": _clock(SECOND, 60),
    "K": _clock(HOUR, 12),
    "h": lambda m: (m.micros // HOUR + 11) % 12 + 1,
    "k": lambda m: (m.micros // HOUR + 23) % 24 + 1,
    "Q": lambda m: (m.month + 2) // 3,
    "q": lambda m: (m.month + 2) // 3,
}


def _writer(letter: str, width: int) -> Writer | None:
    """Returns the formatter of a field; None if only Spark knows it."""
    if not width:
        return None if set("[]{}#") & set(letter) else (lambda m: letter)
    if letter == "y" and width <= 6:
        return _year(width)
    if letter in _NUMBERS and width <= 2:
        return _padded(width, _NUMBERS[letter])
    if letter == "D" and width <= 3:
        return _padded(width, _of_year)
    if letter == "S" and width <= 9:
        return lambda m: f"{m.micros % SECOND:06}000"[:width]
    named: dict[tuple[str, int], Writer] = {
        ("E", 4): _weekday,
        ("a", 1): lambda m: "PM" if m.micros >= 12 * HOUR else "AM",
    }
    if letter == "E" and width <= 3:
        return lambda m: _weekday(m)[:3]
    if letter in "ML" and width in (3, 4):
        return lambda m: MONTHS[m.month - 1][: 3 if width == 3 else None]
    if letter in "Qq" and width in (3, 4):
        return lambda m: (
            f"Q{(m.month + 2) // 3}" if width == 3 else _ORDINALS[(m.month + 2) // 3 - 1]
        )
    return named.get((letter, width))


_UNITS = {**dict.fromkeys("HKhka", HOUR), "m": MINUTE, "s": SECOND, "S": 1}


@dataclass
class _Piece:
    """A part of a pattern that depends on one unit of time.

    Attributes:
        unit: the unit in microseconds; 0 if the piece depends on the day.
        wrap: the length of the period after which the texts repeat, in microseconds.
        writers: the formatters of its fields and literal texts.
    """

    unit: int
    wrap: int
    writers: list[Writer]

    def written(self, key: int) -> str:
        """Returns the text for a day, or for a number of units since midnight or the second."""
        fields = (
            CalendarFields(0, 0, 0, 0, key * self.unit)
            if self.unit
            else timestamp_of_fields(key * DAY)
        )
        return "".join([write(fields) for write in self.writers])

    def of_row(self) -> Callable[[int, int], str]:
        """Returns a formatter of the piece for one row, given its day and its time of day."""
        unit, wrap, written = self.unit, self.wrap, self.written
        if unit == 1:
            return lambda day, rest: written(rest % wrap)
        cached = lru_cache(maxsize=_CACHED_TEXTS)(written)
        return (lambda day, rest: cached(rest // unit)) if unit else (lambda day, rest: cached(day))

    def of_column(self, days: Any, rest: Any) -> pa.Array:
        """Returns the texts of the piece for a column, given the days and the times of day."""
        coded = buffers.arrow_from_numpy(rest % self.wrap // self.unit if self.unit else days)
        coded = coded.dictionary_encode()
        texts = pa.array([self.written(key) for key in coded.dictionary.to_pylist()], pa.string())
        return texts.take(coded.indices)


def _formatter_pieces(pattern: str) -> list[_Piece]:
    """Returns the pieces of a pattern; literal text belongs to the piece before it.

    Raises:
        NotProvedError: for a pattern whose meaning only Spark knows.
    """
    pieces: list[_Piece] = []
    for letter, width in pattern_tokens(pattern):
        write = _writer(letter, width)
        if write is None:
            raise NotProvedError(f"{letter * max(width, 1)!r} in a pattern of dates")
        unit = _UNITS.get(letter, 0)
        last = pieces[-1] if pieces else None
        if last is None or (width and not _share_piece(last.unit, unit)):
            pieces.append(_Piece(unit, SECOND if unit == 1 else DAY, [write]))
            continue
        last.writers.append(write)
        if width and unit:
            last.unit = min(last.unit, unit)
    return pieces


def _share_piece(left: int, right: int) -> bool:
    """Returns True if fields of both units fit in one piece: equal units, or both of the clock."""
    return left == right or (left > 1 and right > 1)


def _row_writer(pieces: Sequence[_Piece]) -> Callable[[int], str]:
    each = [piece.of_row() for piece in pieces]

    def row(micros: int) -> str:
        day, rest = divmod(micros, DAY)
        return "".join([written(day, rest) for written in each])

    return row


@lru_cache(maxsize=256)
def timestamp_formatter(pattern: str) -> TextKernel:
    """Returns the kernel that formats timestamps in microseconds by a pattern.

    Raises:
        NotProvedError: for a pattern whose meaning only Spark knows.
    """
    pieces = _formatter_pieces(pattern)

    def large(micros: Any) -> pa.Array | None:
        if not pieces:
            return None
        days = micros // DAY
        rest = micros - days * DAY
        columns = [piece.of_column(days, rest) for piece in pieces]
        return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, "")

    return TextKernel(_row_writer(pieces), large)
