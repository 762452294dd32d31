"""`from_json` by a literal schema of numbers, texts, booleans, times, and arrays and structs.

What does not fit the schema is null: a field alone, an array as a whole, all fields of a text that
is no JSON. Of fields of one name the last counts. Dates and timestamps are texts that can be cast
to them, days and seconds since 1970. Maps, floats, bytes and options are Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from nosync_nb.errors import SchemaError
from nosync_nb.expressions.evaluation.nested_nodes import RowwiseNode
from nosync_nb.expressions.evaluation.nodes import ValueNode
from nosync_nb.expressions.functions.json_functions import (
    BLANKS,
    JsonObject,
    as_text,
    decoder,
    first_value,
)
from nosync_nb.expressions.functions.rules import Rule, count
from nosync_nb.expressions.implicit_casts import NotProvedError, cast, literal_value, only
from nosync_nb.expressions.kernels import datetimes, timestamp_parsing
from nosync_nb.expressions.kernels.kernel import InvalidError
from nosync_nb.expressions.kernels.numeric import limits
from nosync_nb.expressions.typing_rules import DIGITS_MAX, is_decimal
from nosync_nb.rows import Schema, canonical_type
from nosync_nb.rows.ddl import quote
from nosync_nb.rows.types import INTEGERS, decimal_parts, nested_parts

Convert = Callable[[Any], Any]


class WrittenDouble(float):
    """A double, and the text that it was read of."""

    text = ""

    @classmethod
    def of(cls, text: str) -> WrittenDouble:
        """The double of a text."""
        value = cls(text)
        value.text = text
        return value


_DECODER = decoder(float, strict=True)
_EXACT_DECODER = decoder(float, fraction=WrittenDouble.of, strict=True)
_LONE = re.compile(r"[\ud800-\udfff]")
_NAMED = {"NaN": "nan", "Infinity": "inf", "+INF": "inf", "INF": "inf", "-INF": "-inf"}
_NAMED |= {"+Infinity": "inf", "-Infinity": "-inf"}


class UnfitValueError(Exception):
    """A value does not fit its type."""


def _whole(least: int, greatest: int) -> Convert:
    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= greatest:
            raise UnfitValueError
        return value

    return convert


def _byte(value: Any) -> int:
    """Spark's reader takes a byte with or without a sign."""
    whole: int = _whole(-128, 255)(value)
    return whole if whole < 128 else whole - 256


def _double(value: Any) -> float:
    if isinstance(value, str) and value in _NAMED:
        return float(_NAMED[value])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnfitValueError
    return float(str(value))


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UnfitValueError
    return value


def _decimal(type_: str) -> Convert:
    precision, scale = decimal_parts(type_)
    unit, limit = Decimal(1).scaleb(-scale), 10 ** (precision - scale)
    context = Context(prec=_PLACES, rounding=ROUND_HALF_UP)

    def convert(value: Any) -> Decimal:
        if isinstance(value, str):
            text = value.replace(",", "")
        elif isinstance(value, WrittenDouble):
            text = value.text
        else:
            text = str(_whole(-_MANY, _MANY)(value))
        if not _NUMBER.fullmatch(text):
            raise UnfitValueError
        exact = Decimal(text)
        if exact.adjusted() > 2 * DIGITS_MAX:
            raise UnfitValueError
        near = exact.quantize(unit, context=context) if exact.adjusted() > -_FINE else 0 * unit
        if abs(near) >= limit:
            raise UnfitValueError
        return near

    return convert


_PLACES, _FINE = 2000, 1000
_MANY = 10**1000
_DIGIT = r"(?:(?![\U00010000-\U0010ffff])\d)"
"""As Java has digits: of every script, but of 16 bits."""

_NUMBER = re.compile(rf"[+-]?(?:{_DIGIT}+\.?{_DIGIT}*|\.{_DIGIT}+)(?:[eE][+-]?{_DIGIT}{{1,9}})?")
_DAYS = re.compile(rf"[+-]?{_DIGIT}{{1,10}}")
_GREGORIAN = -141_427
"""The day since 1970 from which on Spark's old calendar is that of today."""


def _date(value: Any) -> int:
    """A text that can be cast, or that is a number of days of Spark's old calendar."""
    if not isinstance(value, str) or not value:
        raise UnfitValueError
    day = datetimes.parse_date(_without_gmt(value).strip(timestamp_parsing.BLANKS))
    if day is not None:
        return day
    if not _DAYS.fullmatch(value) or not -(2**31) <= int(value) < 2**31:
        raise UnfitValueError
    return int(value) if int(value) >= _GREGORIAN else _of_julian(int(value))


def _of_julian(day: int) -> int:
    """The day with the year, month and day that the Julian calendar has for a day."""
    shifted = day + 2_472_670
    years = (4 * shifted + 3) // 1461
    rest = shifted - 1461 * years // 4
    march = (5 * rest + 2) // 153
    month = (years - 4800 + march // 10 - 1970) * 12 + march + 2 - 12 * (march // 10)
    return int(datetimes.month_start(month)) + rest - (153 * march + 2) // 5


def _without_gmt(text: str) -> str:
    before, gmt, after = text.partition("GMT")
    return before + after if gmt else text


_READ_TIME = timestamp_parsing.timestamp_parser("timestamp").row
_WRAP = 1 << 64


def _timestamp(value: Any) -> int:
    """A text that can be cast, or whole seconds, which wrap."""
    if isinstance(value, str) and value:
        for text in (value, _without_gmt(value)):
            with suppress(InvalidError):
                micros: int = _READ_TIME(text)
                return micros
        raise UnfitValueError
    seconds: int = _whole(-(2**63), 2**63 - 1)(value)
    return (seconds * datetimes.SECOND + _WRAP // 2) % _WRAP - _WRAP // 2


def _string(value: Any) -> str:
    return _LONE.sub("?", value) if isinstance(value, str) else as_text(value)


def _list(inner: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if isinstance(value, JsonObject) or not isinstance(value, list):
            raise UnfitValueError
        return [None if item is None else inner(item) for item in value]

    return convert


def _struct(fields: list[tuple[str, Convert]]) -> Convert:
    places = {name: (i, convert) for i, (name, convert) in enumerate(fields)}

    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, JsonObject):
            raise UnfitValueError
        made: list[Any] = [None] * len(fields)
        for name, own in value:
            i, inner = places.get(name, (-1, None))
            if inner is None:
                continue
            try:
                made[i] = None if own is None else inner(own)
            except UnfitValueError:
                continue
        return tuple(made)

    return convert


_CONVERTS: dict[str, Convert] = {
    **{type_: _whole(*limits(type_)) for type_ in INTEGERS},
    "tinyint": _byte,
    "double": _double,
    "boolean": _boolean,
    "string": _string,
    "date": _date,
    "timestamp": _timestamp,
}


def _convert(type_: str) -> Convert:
    if type_.startswith("array<"):
        return _list(_convert(nested_parts(type_)[0][1]))
    if type_.startswith("struct<"):
        return _struct([(name, _convert(own)) for name, own in nested_parts(type_)])
    if is_decimal(type_):
        return _decimal(type_)
    if type_ not in _CONVERTS:
        raise NotProvedError(f"from_json of a {type_}")
    return _CONVERTS[type_]


def _type(given: Any) -> str:
    """The type that a schema names, which may be the fields of a struct."""
    text = str(given).strip()
    try:
        if text.lower().startswith(("array<", "struct<")):
            return canonical_type(text)
        fields = Schema.parse(text).fields
        return canonical_type(f"struct<{','.join(f'{quote(n)}:{t}' for n, t in fields)}>")
    except SchemaError:
        raise NotProvedError(f"the schema {text!r}") from None


def _from_json(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`from_json(text, 'a int, b string')`."""
    count(name, arguments, 2)
    type_ = _type(literal_value(arguments[1], "a schema"))
    if type_.startswith("array<struct<"):  # also of one object alone, and of parts of one
        raise NotProvedError(f"from_json of a {type_}")
    if not utc and "timestamp" in type_:
        raise NotProvedError("timestamps in a time zone other than UTC")
    convert = _convert(type_)
    reader = _EXACT_DECODER if "decimal" in type_ else _DECODER
    whole = type_.startswith("struct<")
    nothing = (None,) * len(nested_parts(type_)) if whole else None

    def row(text: str) -> Any:
        if not text.strip(BLANKS):
            return None
        try:
            return convert(first_value(text, reader))
        except (ValueError, UnfitValueError):
            return nothing

    text = cast(only(arguments[0], "string", name=name), "string", utc=utc)
    return RowwiseNode(name, type_, row, (text,))


FUNCTIONS: dict[str, Rule] = {"from_json": _from_json}
