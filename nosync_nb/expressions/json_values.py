"""`from_json` by a literal schema of numbers, texts, booleans, and arrays and structs of these.

What does not fit the schema is null: a field alone, an array as a whole, all fields of a text that
is no JSON. Of fields of one name the last counts. Maps, dates, decimals and options are Spark's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from nosync_nb.errors import SchemaError
from nosync_nb.expressions.coerce import NotProvedError, implicit, literal_value
from nosync_nb.expressions.jsons import BLANKS, JsonObject, as_text, decoder, first_value
from nosync_nb.expressions.nested import RowwiseNode
from nosync_nb.expressions.nodes import ValueNode
from nosync_nb.expressions.numbers import limits
from nosync_nb.expressions.rules import Rule, count
from nosync_nb.rows import Schema, canonical_type
from nosync_nb.rows.ddl import quote
from nosync_nb.rows.types import INTEGERS, nested_parts

Convert = Callable[[Any], Any]
_DECODER = decoder(float, strict=True)
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
}


def _convert(type_: str) -> Convert:
    if type_.startswith("array<"):
        return _list(_convert(nested_parts(type_)[0][1]))
    if type_.startswith("struct<"):
        return _struct([(name, _convert(own)) for name, own in nested_parts(type_)])
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
    convert = _convert(type_)
    whole = type_.startswith("struct<")
    nothing = (None,) * len(nested_parts(type_)) if whole else None

    def row(text: str) -> Any:
        if not text.strip(BLANKS):
            return None
        try:
            return convert(first_value(text, _DECODER))
        except (ValueError, UnfitValueError):
            return nothing

    text = implicit(arguments[0], "string", utc=utc)
    return RowwiseNode(name, type_, row, (text,))


FUNCTIONS: dict[str, Rule] = {"from_json": _from_json}
