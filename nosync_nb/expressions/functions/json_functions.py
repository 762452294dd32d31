"""JSON: `get_json_object` by a literal path, `to_json`, and `from_json` by a literal schema.

Text is read like Spark's reader does. Strings may have single quotes and contain control
characters. Text after the first value is ignored, and the result for invalid JSON is null. Numbers
with a fraction are doubles. Paths of names, positions and `[*]` are evaluated here; `.*` is left to
Spark.

The schema of `from_json` has numbers, text, booleans, times, arrays and structs. A value that does
not fit the schema becomes null: a field alone, an array as a whole, or all fields if the text is
not JSON. If several fields have the same name, the last one counts. Dates and timestamps are text
that can be cast to them, or days and seconds since 1970. Maps, floats, bytes and options are left
to Spark.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from nosync_nb.errors import SchemaError
from nosync_nb.expressions.evaluation.nested_nodes import RowwiseNode
from nosync_nb.expressions.evaluation.nodes import StrictNode, ValueNode
from nosync_nb.expressions.functions.collections import is_held
from nosync_nb.expressions.functions.rules import Rule, check_arity
from nosync_nb.expressions.implicit_casts import cast, literal_value, only
from nosync_nb.expressions.kernels import datetimes
from nosync_nb.expressions.kernels.casts import double_text, float_text
from nosync_nb.expressions.kernels.kernel import InvalidError, NotProvedError, TextKernel
from nosync_nb.expressions.kernels.numeric import limits
from nosync_nb.expressions.typing_rules import DIGITS_MAX, is_decimal
from nosync_nb.rows import Schema, canonical_type
from nosync_nb.rows.ddl import INTERVALS, quote
from nosync_nb.rows.types import INTEGERS, decimal_parts, is_nested, nested_parts

_NUMBER_MAX = 1000
"""The maximum length of a number that Spark's reader accepts."""


class JsonObject(list[tuple[str, Any]]):
    """The fields of a JSON object in their order, including fields with the same name."""


def _limited(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        if len(text) > _NUMBER_MAX:
            raise ValueError(text)
        return read(text)

    return number


def _no_number(text: str) -> Any:
    raise ValueError(text)


def decoder(
    constant: Callable[[str], Any],
    *,
    fraction: Callable[[str], float] = float,
    strict: bool = False,
    short: bool = False,
) -> json.JSONDecoder:
    """Returns a JSON decoder.

    Args:
        constant: converts `NaN` and `Infinity` to a number, or raises ValueError.
        fraction: converts the text of a number with a fraction or exponent to a double.
        strict: True if strings must not contain control characters.
        short: True if the texts are so short that no number in them exceeds `_NUMBER_MAX`.
    """
    return json.JSONDecoder(
        object_pairs_hook=JsonObject,
        parse_int=None if short else _limited(int),
        parse_float=None if short else _limited(fraction),
        parse_constant=constant,
        strict=strict,
    )


_SHORT_DECODER = decoder(_no_number, short=True)
_DECODER = decoder(_no_number)
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'", re.DOTALL)
BLANKS = " \t\r\n"


_SIGNS = re.compile(r'\\(.)|"', re.DOTALL)


def _sign(match: re.Match[str]) -> str:
    if match[0] == '"':
        return '\\"'
    return "'" if match[1] == "'" else match[0]


def _double_quoted(match: re.Match[str]) -> str:
    """Rewrites a string in double quotes, in which a single quote needs no escape."""
    inner = _SIGNS.sub(_sign, match[0][1:-1])
    return f'"{inner}"'


def first_value(text: str, reader: json.JSONDecoder | None = None) -> Any:
    """Returns the first JSON value of a text.

    Raises:
        ValueError: if the text does not begin with JSON.
    """
    begun = text.lstrip(BLANKS)
    if reader is None:
        reader = _SHORT_DECODER if len(begun) <= _NUMBER_MAX else _DECODER
    try:
        value, end = reader.raw_decode(begun)
    except RecursionError:
        raise ValueError("too deep") from None
    except ValueError:
        if "'" not in text:
            raise
        begun = _STRINGS.sub(_double_quoted, begun)
        value, end = reader.raw_decode(begun)
    after = begun[end : end + 1]
    if isinstance(value, bool) or value is None:
        ended = not (after.isalnum() or after in ("_", "$"))
    else:
        ended = not isinstance(value, int | float) or after in BLANKS
    if not ended:
        raise ValueError("a value goes on")
    return value


_ESCAPED = re.compile('["\\\\\x00-\x1f]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _quoted(text: str) -> str:
    def escaped(match: re.Match[str]) -> str:
        return _SHORT.get(match[0]) or f"\\u{ord(match[0]):04X}"

    return f'"{_ESCAPED.sub(escaped, text)}"'


def _finite(text: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: text(value) if value - value == 0.0 else f'"{text(value)}"'


_double = _finite(double_text)


_WIDE = re.compile(r"[\ud800-\udfff\U00010000-\U0010ffff]")


def _surrogate_escaped(text: str) -> str:
    """Escapes characters beyond 16 bits as surrogate pairs, as Spark's generator does."""

    def escaped(match: re.Match[str]) -> str:
        halves = match[0].encode("utf-16-be", "surrogatepass").hex().upper()
        return "".join(f"\\u{halves[i : i + 4]}" for i in range(0, len(halves), 4))

    return _WIDE.sub(escaped, text)


def _escaped_quoted(text: str) -> str:
    return _surrogate_escaped(_quoted(text))


Quote = Callable[[str], str]


def as_text(value: Any, quote: Quote = _escaped_quoted) -> str:
    """Returns a decoded value as JSON text; a string in it is written by `quote`."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, JsonObject):
        fields = [f"{as_text(name, quote)}:{as_text(v, quote)}" for name, v in value]
        return f"{{{','.join(fields)}}}"
    if isinstance(value, list):
        return f"[{','.join([as_text(v, quote) for v in value])}]"
    if isinstance(value, float):
        return _double(value)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


_PATH = re.compile(r"\$(?:\.[^.\[\s*][^.\[]*|\['[^'\s?*][^']*'\]|\[(?:[0-9]{1,9}|\*)\])*")
_STEP = re.compile(r"\.([^.\[]+)|\['([^']+)'\]|\[([0-9]+)\]|\[\*\]")
_EVERY = -1
"""The step `[*]` of a path."""


def _steps(path: Any) -> list[str | int]:
    if not isinstance(path, str) or _PATH.fullmatch(path) is None:
        raise NotProvedError(f"the JSON path {path!r}")
    each = _STEP.finditer(path)
    return [int(step[3]) if step[3] else step[1] or step[2] or _EVERY for step in each]


def _value_at_path(value: Any, steps: Sequence[str | int]) -> str | None:
    """Returns the value at a path, as text.

    Of several fields with one name, the first one that has a value at the path is used.
    """
    if not steps:
        return value if isinstance(value, str) else as_text(value)
    step, *rest = steps
    if isinstance(step, int):
        inside = isinstance(value, list) and not isinstance(value, JsonObject)
        return _value_at_path(value[step], rest) if inside and step < len(value) else None
    if isinstance(value, JsonObject):
        for name, own in value:
            inner = _value_at_path(own, rest) if name == step and own is not None else None
            if inner is not None:
                return inner
    return None


_RAW, _QUOTED, _FLAT = range(3)
"""Styles of output: a text without quotes, a text as inside an array, or arrays flattened."""


def _write_matches(
    value: Any,
    steps: Sequence[str | int],
    style: int,
    out: list[str],
    quote: Quote = _escaped_quoted,
) -> bool:
    """Writes the values at a path with `[*]` to `out`, as Spark does; returns True if any exist.

    A single element is written without the array around it. Two adjacent `[*]` write one array of
    their values, even if it is empty. A value that may be unwrapped is written separately first, by
    a generator that does not escape characters beyond 16 bits.
    """
    if not steps:
        if style == _FLAT and type(value) is list:
            return (
                sum(_write_matches(own, steps, style, out, quote) for own in value) > 0
            )  # no `any`, because all values must be written
        out.append(value if style == _RAW and isinstance(value, str) else as_text(value, quote))
        return True
    step, *rest = steps
    if isinstance(step, str):
        own = value if isinstance(value, JsonObject) else ()
        named = (v for name, v in own if name == step and v is not None)
        return any(_write_matches(v, rest, style, out, quote) for v in named)
    if type(value) is not list:
        return False
    twice = rest[:1] == [_EVERY]
    if step != _EVERY:
        style = _QUOTED if twice else style
        return step < len(value) and _write_matches(value[step], rest, style, out, quote)
    inner: list[str] = []
    within = _FLAT if twice or style == _FLAT else _QUOTED
    apart = not twice and style != _QUOTED
    own_quote = _quoted if apart else quote
    count = sum(_write_matches(own, rest[twice:], within, inner, own_quote) for own in value)
    if not apart or count > 1:
        out.append(f"[{','.join(inner)}]")
    elif count:
        out.append(",".join(inner))
    return count > 0


def _by_path(steps: Sequence[str | int]) -> Callable[[Any], str | None]:
    """Returns the function that finds the value at a path in a decoded value."""
    if _EVERY not in steps:
        return lambda value: _value_at_path(value, steps)

    def value_at_path(value: Any) -> str | None:
        out: list[str] = []
        return " ".join(out) if _write_matches(value, steps, _RAW, out) else None

    return value_at_path


def _get_json_object(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `get_json_object(text, '$.a[0]')`, which returns null if the path has no value."""
    check_arity(name, arguments, 2)
    found = _by_path(_steps(literal_value(arguments[1], "a path")))

    def row(text: str) -> str | None:
        try:
            value = found(first_value(text))
            if value is not None and "\\" in text:
                value.encode()  # raises ValueError for a lone surrogate, which is not valid text
        except ValueError:
            return None
        return value

    text = cast(only(arguments[0], "string", name=name), "string", utc=utc)
    return StrictNode(name, "string", TextKernel(row, nullable=True), (text,))


def _as_string(write: Callable[[int], str]) -> Callable[[int], str]:
    return lambda value: f'"{write(value)}"'


def _moment(zone: str) -> Callable[[int], str]:
    def text(micros: int) -> str:
        day, rest = divmod(micros, datetimes.DAY)
        millis = rest // 1000
        seconds = millis // 1000
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f'"{datetimes.date_text(day)}T{clock}.{millis % 1000:03}{zone}"'

    return text


_WRITERS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(INTEGERS, str),
    "string": _quoted,
    "boolean": lambda value: "true" if value else "false",
    "double": _double,
    "float": _finite(float_text),
    "date": lambda value: f'"{datetimes.date_text(value)}"',
    "timestamp": _moment("Z"),
    "timestamp_ntz": _moment(""),
    "binary": lambda value: f'"{base64.b64encode(value).decode()}"',
    **{type_: _as_string(datetimes.writer(type_)) for type_ in INTERVALS},
}
_KEYS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys((*INTEGERS, "date"), lambda key: f'"{key}"'),
    "string": _quoted,
}


def _writer(type_: str) -> Callable[[Any], str]:
    if is_decimal(type_):
        return str
    if not is_nested(type_):
        return _WRITERS[type_]
    parts = nested_parts(type_)
    if type_.startswith("map<") and parts[0][1] not in _KEYS:
        raise NotProvedError(f"to_json of a {type_}")
    inner = [_writer(own) for _, own in parts]
    if type_.startswith("array<"):
        return lambda items: f"[{','.join(['null' if v is None else inner[0](v) for v in items])}]"
    if type_.startswith("map<"):
        key = _KEYS[parts[0][1]]
        return lambda pairs: _object([(key(k), inner[1], v) for k, v in pairs])
    names = [_quoted(name) for name, _ in parts]
    return lambda values: _object(
        [given for given in zip(names, inner, values, strict=True) if given[2] is not None]
    )


def _object(fields: list[tuple[str, Callable[[Any], str], Any]]) -> str:
    texts = [f"{name}:{'null' if v is None else write(v)}" for name, write, v in fields]
    return f"{{{','.join(texts)}}}"


def _to_json(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `to_json(x)` of an array, map or struct; null fields are omitted."""
    check_arity(name, arguments, 1)
    type_ = arguments[0].type
    if not is_nested(type_) or not is_held(type_):
        raise NotProvedError(f"to_json of a {type_}")
    if not utc and "timestamp" in type_.replace("timestamp_ntz", ""):
        raise NotProvedError("timestamps in a time zone other than UTC")
    return RowwiseNode(name, "string", _writer(type_), arguments)


Convert = Callable[[Any], Any]


class WrittenDouble(float):
    """A double, with the text from which it was parsed."""

    text = ""

    @classmethod
    def parse(cls, text: str) -> WrittenDouble:
        """Parses a double, and stores its text."""
        value = cls(text)
        value.text = text
        return value


_STRICT_DECODER = decoder(float, strict=True)
_EXACT_DECODER = decoder(float, fraction=WrittenDouble.parse, strict=True)
_LONE = re.compile(r"[\ud800-\udfff]")
_NAMED = {"NaN": "nan", "Infinity": "inf", "+INF": "inf", "INF": "inf", "-INF": "-inf"}
_NAMED |= {"+Infinity": "inf", "-Infinity": "-inf"}


class UnfitValueError(Exception):
    """A value that does not fit its type."""


def _read_integer(least: int, greatest: int) -> Convert:
    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= greatest:
            raise UnfitValueError
        return value

    return convert


def _read_byte(value: Any) -> int:
    """Reads a byte; Spark's reader accepts it signed or unsigned."""
    whole: int = _read_integer(-128, 255)(value)
    return whole if whole < 128 else whole - 256


def _read_double(value: Any) -> float:
    if isinstance(value, str) and value in _NAMED:
        return float(_NAMED[value])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnfitValueError
    return float(str(value))


def _read_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UnfitValueError
    return value


def _read_decimal(type_: str) -> Convert:
    precision, scale = decimal_parts(type_)
    unit, limit = Decimal(1).scaleb(-scale), 10 ** (precision - scale)
    context = Context(prec=_PLACES, rounding=ROUND_HALF_UP)

    def convert(value: Any) -> Decimal:
        if isinstance(value, str):
            text = value.replace(",", "")
        elif isinstance(value, WrittenDouble):
            text = value.text
        else:
            text = str(_read_integer(-_MANY, _MANY)(value))
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
"""Digits as in Java: those of every script, but only characters of 16 bits."""

_NUMBER = re.compile(rf"[+-]?(?:{_DIGIT}+\.?{_DIGIT}*|\.{_DIGIT}+)(?:[eE][+-]?{_DIGIT}{{1,9}})?")
_DAYS = re.compile(rf"[+-]?{_DIGIT}{{1,10}}")
_GREGORIAN = -141_427
"""The first day, counted from 1970, of Spark's legacy calendar that is Gregorian."""


def _read_date(value: Any) -> int:
    """Reads a text that can be cast to a date, or a number of days in Spark's legacy calendar."""
    if not isinstance(value, str) or not value:
        raise UnfitValueError
    day = datetimes.parse_date(_without_gmt(value).strip(datetimes.BLANKS))
    if day is not None:
        return day
    if not _DAYS.fullmatch(value) or not -(2**31) <= int(value) < 2**31:
        raise UnfitValueError
    return int(value) if int(value) >= _GREGORIAN else _gregorian_day_of_julian(int(value))


def _gregorian_day_of_julian(day: int) -> int:
    """Returns the Gregorian day with the year, month and day of a day in the Julian calendar."""
    shifted = day + 2_472_670
    years = (4 * shifted + 3) // 1461
    rest = shifted - 1461 * years // 4
    march = (5 * rest + 2) // 153
    month = (years - 4800 + march // 10 - 1970) * 12 + march + 2 - 12 * (march // 10)
    return int(datetimes.month_start(month)) + rest - (153 * march + 2) // 5


def _without_gmt(text: str) -> str:
    before, gmt, after = text.partition("GMT")
    return before + after if gmt else text


_READ_TIME = datetimes.timestamp_parser("timestamp").row
_WRAP = 1 << 64


def _read_timestamp(value: Any) -> int:
    """Reads a text that can be cast to a timestamp, or whole seconds, which wrap around."""
    if isinstance(value, str) and value:
        for text in (value, _without_gmt(value)):
            with suppress(InvalidError):
                micros: int = _READ_TIME(text)
                return micros
        raise UnfitValueError
    seconds: int = _read_integer(-(2**63), 2**63 - 1)(value)
    return (seconds * datetimes.SECOND + _WRAP // 2) % _WRAP - _WRAP // 2


def _read_string(value: Any) -> str:
    return _LONE.sub("?", value) if isinstance(value, str) else as_text(value)


def _read_list(inner: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if isinstance(value, JsonObject) or not isinstance(value, list):
            raise UnfitValueError
        return [None if item is None else inner(item) for item in value]

    return convert


def _read_struct(fields: list[tuple[str, Convert]]) -> Convert:
    places = {name: (i, convert) for i, (name, convert) in enumerate(fields)}

    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, JsonObject):
            raise UnfitValueError
        values: list[Any] = [None] * len(fields)
        for name, own in value:
            i, inner = places.get(name, (-1, None))
            if inner is None:
                continue
            try:
                values[i] = None if own is None else inner(own)
            except UnfitValueError:
                continue
        return tuple(values)

    return convert


_CONVERTERS: dict[str, Convert] = {
    **{type_: _read_integer(*limits(type_)) for type_ in INTEGERS},
    "tinyint": _read_byte,
    "double": _read_double,
    "boolean": _read_boolean,
    "string": _read_string,
    "date": _read_date,
    "timestamp": _read_timestamp,
}


def _converter(type_: str) -> Convert:
    if type_.startswith("array<"):
        return _read_list(_converter(nested_parts(type_)[0][1]))
    if type_.startswith("struct<"):
        return _read_struct([(name, _converter(own)) for name, own in nested_parts(type_)])
    if is_decimal(type_):
        return _read_decimal(type_)
    if type_ not in _CONVERTERS:
        raise NotProvedError(f"from_json of a {type_}")
    return _CONVERTERS[type_]


def _schema_type(given: Any) -> str:
    """Returns the type that a schema describes; a list of fields describes a struct."""
    text = str(given).strip()
    try:
        if text.lower().startswith(("array<", "struct<")):
            return canonical_type(text)
        fields = Schema.parse(text).fields
        return canonical_type(f"struct<{','.join(f'{quote(n)}:{t}' for n, t in fields)}>")
    except SchemaError:
        raise NotProvedError(f"the schema {text!r}") from None


def _from_json(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `from_json(text, 'a int, b string')`."""
    check_arity(name, arguments, 2)
    type_ = _schema_type(literal_value(arguments[1], "a schema"))
    if type_.startswith("array<struct<"):  # because Spark also accepts an object, or parts of it
        raise NotProvedError(f"from_json of a {type_}")
    if not utc and "timestamp" in type_:
        raise NotProvedError("timestamps in a time zone other than UTC")
    convert = _converter(type_)
    reader = _EXACT_DECODER if "decimal" in type_ else _STRICT_DECODER
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


FUNCTIONS: dict[str, Rule] = {
    "from_json": _from_json,
    "get_json_object": _get_json_object,
    "to_json": _to_json,
}
