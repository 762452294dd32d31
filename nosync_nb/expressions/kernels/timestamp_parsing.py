"""Text to timestamps: the forms that a cast accepts, and the time zones that may end them.

`2024`, `2024-1`, `2024-01-05`, then a space or T, hours, minutes, seconds and a fraction, of which
six digits count. After seconds a zone may follow: `Z`, `+1:00`, `UTC+01:00`, `Europe/Berlin`. A
time without a day is no timestamp: `cast` refuses it, and `try_cast` gives null. Spark adds the
current day, so a row that is retracted on another day would be another row.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

import numpy as np

from nosync_nb.expressions.kernels import datetimes
from nosync_nb.expressions.kernels.kernel import InvalidError, TextKernel

BLANKS = "".join(map(chr, range(0x21))) + "\x7f"
"""The characters that Spark trims before it reads a value."""

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
"""Zones of three letters, as Java reads them."""

_NO_ZONES = frozenset(("Factory", "localtime", "posixrules"))


def _offset(text: str) -> int | None:
    """The seconds of `+01:30` and similar offsets, None for other text."""
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
def _zone(text: str) -> ZoneInfo | int | None:
    """A zone by its name, or the seconds of a fixed one; None for an unknown zone."""
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


def _utc_offset(zone: ZoneInfo, day: int, seconds: int) -> int:
    """The number of seconds by which a zone's clock is ahead of UTC at a local time.

    In a gap it is the offset before the gap, and of two times it is the earlier one. Years that
    Python does not have use other years of the same calendar.
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


def _read(text: str, *, zoned: bool) -> int | None:
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    sign, year, month, number, hours, minutes, seconds, fraction, zone = match.groups()
    day = datetimes.parse_date(f"{sign}{year}-{month or 1}-{number or 1}")
    clock = (int(hours or 0), int(minutes or 0), int(seconds or 0))
    if day is None or clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        return None
    whole = (clock[0] * 60 + clock[1]) * 60 + clock[2]
    behind = 0
    if zone is not None:
        offset = _zone(zone.strip(_JAVA_BLANKS))
        if offset is None:
            return None
        if zoned:
            behind = offset if isinstance(offset, int) else _utc_offset(offset, day, whole)
    micros = day * datetimes.DAY + (whole - behind) * datetimes.SECOND
    micros += int((fraction or "")[:6].ljust(6, "0"))
    return micros if _LEAST <= micros <= _GREATEST else None


def timestamp_parser(type_: str) -> TextKernel:
    """Returns the kernel that parses a timestamp of either kind."""
    zoned = type_ == "timestamp"

    def parse_or_none(text: str) -> int | None:
        return _read(text.strip(BLANKS), zoned=zoned)

    def row(text: str) -> int:
        micros = parse_or_none(text)
        if micros is not None:
            return micros
        if zoned and is_dayless(text):
            raise InvalidError(f"{text!r} has no day")
        raise InvalidError(f"{text!r} is not of type {type_}")

    return TextKernel(row, raises=True, lenient=TextKernel(parse_or_none, nullable=True))


def without_ansi() -> TextKernel:
    """Returns the kernel of a cast without ANSI mode: it refuses a time without a day."""
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
    """Returns True if a text is a time without a day, to which Spark adds the current day."""
    trimmed = text.strip(BLANKS)
    if _TIME_ALONE.fullmatch(trimmed) is None or (trimmed[0] == "T" and text[0] != "T"):
        return False
    return _read(f"2000-01-01 {trimmed.removeprefix('T')}", zoned=True) is not None
