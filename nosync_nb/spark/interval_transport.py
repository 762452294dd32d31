"""Intervals of months on their way to Spark and back: as whole numbers.

Spark's Python side has no Arrow type for them (`DayTimeIntervalType` it has). So a column of them,
or with them inside, is an int where rows pass between Arrow and a DataFrame, and is cast on Spark's
side of the way; everything else passes as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nosync_nb.rows import Schema
from nosync_nb.rows.ddl import YEAR_MONTHS, quote, quoted
from nosync_nb.rows.types import is_nested, nested_parts

_COUNTED = "interval month"
"""What Spark casts from and to an int."""


def transport_type(type_: str) -> str:
    """The type in which values of a type pass."""
    return _replaced(type_, "int")


def to_transport(schema: Schema) -> Schema:
    """The columns as they pass."""
    return Schema((name, transport_type(type_)) for name, type_ in schema.fields)


def _replaced(type_: str, months: str) -> str:
    if type_ in YEAR_MONTHS:
        return months
    if "interval" not in type_ or not is_nested(type_):
        return type_
    parts = [(name, _replaced(inner, months)) for name, inner in nested_parts(type_)]
    if type_.startswith("struct<"):
        return f"struct<{','.join(f'{quote(name)}:{inner}' for name, inner in parts)}>"
    return f"{type_[: type_.index('<')]}<{','.join(inner for _, inner in parts)}>"


def sql_from_transport(sql: str, type_: str) -> str:
    """An expression that makes of what has passed, as `sql` has it, what is meant."""
    if transport_type(type_) == type_:
        return sql
    return f"cast(cast({sql} as {_replaced(type_, _COUNTED)}) as {type_})"


def sql_to_transport(sql: str, type_: str) -> str:
    """An expression that makes of a value, as `sql` has it, what passes."""
    if transport_type(type_) == type_:
        return sql
    return f"cast(cast(({sql}) as {_replaced(type_, _COUNTED)}) as {transport_type(type_)})"


def from_transport(frame: Any, names: Sequence[str], types: Sequence[str]) -> Any:
    """A DataFrame of columns that have passed, as what they mean."""
    if all(transport_type(type_) == type_ for type_ in types):
        return frame
    pairs = [(quoted(name), type_) for name, type_ in zip(names, types, strict=True)]
    return frame.selectExpr(
        *(f"{sql_from_transport(name, type_)} as {name}" for name, type_ in pairs)
    )
