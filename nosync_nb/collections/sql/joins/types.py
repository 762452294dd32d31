"""The types in which a join compares values of both sides."""

from __future__ import annotations

from collections.abc import Sequence

from nosync_nb.expressions import common_type
from nosync_nb.rows import widens
from nosync_nb.rows.types import decimal_parts

_WIDER = dict.fromkeys(("tinyint", "smallint", "int"), "bigint") | {"bigint": "decimal(22,0)"}
"""The types in which a literal can be added to an integer without an overflow."""
_DIGITS, _WIDEST = 18, 36
"""The most digits of a literal before and after its point, and of a decimal that it is added to."""
NULL_VALUES = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"), "0"),
    "boolean": "false",
    "date": "date'1970-01-01'",
    "string": "''",
}
"""The values that stand for null in keys whose nulls are equal."""


def compared_as(one: str, other: str) -> str | None:
    """Returns the type in which Spark compares values; None if that depends on ANSI mode."""
    if one == other:
        return one
    return None if "string" in (one, other) else common_type(one, other)


def is_within(narrow: str, wide: str | None) -> bool:
    """Returns True if each value of a type is a value of the wide type."""
    return wide is not None and (narrow == wide or widens(narrow, wide))


def shifted_type(type_: str, shifts: Sequence[str]) -> str | None:
    """Returns a type in which literals can be added to values of a type without an overflow."""
    parts = [shift.lstrip("-").split(".") for shift in shifts]
    if not all(part.isdigit() and len(part) <= _DIGITS for each in parts for part in each):
        return None
    whole = max(len(each[0]) for each in parts)
    places = max(len(each[1]) if len(each) > 1 else 0 for each in parts)
    if type_ == "double" or (places and type_ in ("tinyint", "smallint", "int")):
        return "double"
    if type_.startswith("decimal"):
        digits, scale = decimal_parts(type_)
        scale, digits = max(scale, places), max(digits - scale, whole) + 1
        return f"decimal({digits + scale},{scale})" if digits + scale <= _WIDEST else None
    return None if places else _WIDER.get(type_)
