"""Timestamps written by a pattern, `yyyy-MM-dd HH:mm`: each row by itself, or whole columns.

A pattern is cut into pieces that depend on the day alone, on the clock to an hour, minute or second
alone, or on the fraction. A column is written piece by piece, each once for each distinct value:
a day's text is made once, however many timestamps the day has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.implicit_casts import NotProvedError
from nosync_nb.expressions.kernels.datetime_patterns import (
    DAY,
    HOUR,
    MINUTE,
    MONTHS,
    SECOND,
    WEEKDAYS,
    CalendarFields,
    pattern_tokens,
    timestamp_of_fields,
)
from nosync_nb.expressions.kernels.kernel import TextKernel
from nosync_nb.rows import buffers

_ORDINALS = ("1st quarter", "2nd quarter", "3rd quarter", "4th quarter")
_REMEMBERED = 4096
"""Texts of days, and of hours, minutes or seconds, that are kept for single rows."""

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
    """What writes a run of a letter, None if only Spark knows it."""
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
    """A part of a pattern: `unit` 0 is that of the day, else so many microseconds of the clock."""

    unit: int
    wrap: int
    writers: list[Writer]

    def written(self, key: int) -> str:
        """The text of a day, or of so many units since midnight or the last second."""
        fields = (
            CalendarFields(0, 0, 0, 0, key * self.unit)
            if self.unit
            else timestamp_of_fields(key * DAY)
        )
        return "".join([write(fields) for write in self.writers])

    def of_row(self) -> Callable[[int, int], str]:
        """What writes the piece of one row, by its day and the microseconds since midnight."""
        unit, wrap, written = self.unit, self.wrap, self.written
        if unit == 1:
            return lambda day, rest: written(rest % wrap)
        known = lru_cache(maxsize=_REMEMBERED)(written)
        return (lambda day, rest: known(rest // unit)) if unit else (lambda day, rest: known(day))

    def of_column(self, days: Any, rest: Any) -> pa.Array:
        """The texts of the piece."""
        coded = buffers.arrow_from_numpy(rest % self.wrap // self.unit if self.unit else days)
        coded = coded.dictionary_encode()
        texts = pa.array([self.written(key) for key in coded.dictionary.to_pylist()], pa.string())
        return texts.take(coded.indices)


def _pieces(pattern: str) -> list[_Piece]:
    """The pieces of a pattern; text between letters goes with those before it.

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
        if last is None or (width and not _together(last.unit, unit)):
            pieces.append(_Piece(unit, SECOND if unit == 1 else DAY, [write]))
            continue
        last.writers.append(write)
        if width and unit:
            last.unit = min(last.unit, unit)
    return pieces


def _together(left: int, right: int) -> bool:
    """Whether two units are of the day, or of the clock without its fraction, both."""
    return left == right or (left > 1 and right > 1)


def _row(pieces: Sequence[_Piece]) -> Callable[[int], str]:
    each = [piece.of_row() for piece in pieces]

    def row(micros: int) -> str:
        day, rest = divmod(micros, DAY)
        return "".join([written(day, rest) for written in each])

    return row


@lru_cache(maxsize=256)
def timestamp_formatter(pattern: str) -> TextKernel:
    """Returns what writes timestamps, in microseconds, by a pattern.

    Raises:
        NotProvedError: for a pattern whose meaning only Spark knows.
    """
    pieces = _pieces(pattern)

    def large(micros: Any) -> pa.Array | None:
        if not pieces:
            return None
        days = micros // DAY
        rest = micros - days * DAY
        columns = [piece.of_column(days, rest) for piece in pieces]
        return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, "")

    return TextKernel(_row(pieces), large)
