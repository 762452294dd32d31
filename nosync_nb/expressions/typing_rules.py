"""The types of Spark's results: the rules of ANSI mode for expressions that are evaluated here.

A result of None means that only Spark knows the type. A property test compares every type with
Spark.
"""

from __future__ import annotations

from collections.abc import Iterable

from nosync_nb.rows.ddl import CALENDAR, CLOCK, INTERVALS, YEAR_MONTHS, interval_type
from nosync_nb.rows.types import FLOATS, INTEGERS, decimal_parts

NUMBERS = INTEGERS + FLOATS
TIMES = ("date", "timestamp", "timestamp_ntz")
VOID = "void"
"""The type of a NULL without a cast."""

KNOWN = frozenset((*NUMBERS, *TIMES, "boolean", "string", VOID))
"""Types whose values are computed here; columns of other types are only passed on."""


DIGITS_MAX = 38
WHOLE_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
"""The precision of the decimal to which an integer is cast when it is combined with a decimal."""


def is_known(type_: str) -> bool:
    """Returns True if values of a type are computed here."""
    return type_ in KNOWN or type_ == "binary" or is_decimal(type_) or type_ in INTERVALS


def is_decimal(type_: str) -> bool:
    """Returns True for types of the form `decimal(p,s)`."""
    return type_.startswith("decimal")


def common_type(left: str, right: str) -> str | None:
    """Returns the type to which both sides of a comparison, or all branches, are cast."""
    if left == right:
        return left
    if left == VOID or right == VOID:
        return right if left == VOID else left
    if left in NUMBERS and right in NUMBERS:
        return common_number(left, right)
    if is_decimal(left) or is_decimal(right):
        other = right if is_decimal(left) else left
        if other in FLOATS or other == "string":
            return "double"
        return _common_decimal(left, right)
    if "string" in (left, right):
        return _from_text(right if left == "string" else left)
    if left in INTERVALS and right in INTERVALS:
        return joined(left, right)
    if left in TIMES and right in TIMES:
        return "timestamp" if "timestamp" in (left, right) else "timestamp_ntz"
    return None


def units(type_: str) -> tuple[str, str]:
    """Returns the first and the last unit of an interval type."""
    words = type_.split()
    return words[1], words[-1]


def joined(left: str, right: str) -> str | None:
    """Returns the interval type with the units of both types.

    Returns None if one of them is of months and the other is not.
    """
    if (left in YEAR_MONTHS) != (right in YEAR_MONTHS):
        return None
    place = (CALENDAR if left in YEAR_MONTHS else CLOCK).index
    firsts, lasts = zip(units(left), units(right), strict=True)
    return interval_type(min(firsts, key=place), max(lasts, key=place))


def _common_decimal(left: str, right: str) -> str | None:
    """Returns the decimal type to which both types are cast; None for other types.

    If 38 digits are too few for both types, Spark retains the digits before the point, and rounds
    the others.
    """
    parts = []
    for type_ in (left, right):
        if is_decimal(type_):
            parts.append(decimal_parts(type_))
        elif type_ in WHOLE_DIGITS:
            parts.append((WHOLE_DIGITS[type_], 0))
        else:
            return None
    scale = max(scale for _, scale in parts)
    digits = max(precision - scale for precision, scale in parts) + scale
    lost = max(digits - DIGITS_MAX, 0)
    return f"decimal({digits - lost},{max(scale - lost, 0)})"


def common_number(left: str, right: str) -> str:
    """Returns the number type that holds both types; an integer and a float become a double."""
    if left in INTEGERS and right in INTEGERS:
        return INTEGERS[max(INTEGERS.index(left), INTEGERS.index(right))]
    return "float" if left == right == "float" else "double"


def _from_text(other: str) -> str | None:
    """Returns the type to which text is cast when it is combined with a value of another type."""
    if other in INTEGERS:
        return "bigint"
    if other in FLOATS:
        return "double"
    return other if other in TIMES or other in ("boolean", "binary") else None


def common_of(types: Iterable[str]) -> str | None:
    """Returns the common type of several branches, combined from left to right as in Spark."""
    common: str | None = VOID
    for type_ in types:
        if common is None:
            return None
        common = common_type(common, type_)
    return common
