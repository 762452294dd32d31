"""Converts year-month intervals to integers for the transfer to Spark, and back.

PySpark has no Arrow type for year-month intervals, in contrast to day-time intervals. Therefore
such an interval, also inside a nested type, is transferred between Arrow and a DataFrame as an int,
the number of months. Spark casts it. All other types are transferred unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nosync_nb.rows import Schema
from nosync_nb.rows.ddl import YEAR_MONTHS, quote, quoted
from nosync_nb.rows.types import is_nested, nested_parts

_INT_MONTHS = "interval month"
"""The interval type that Spark can cast to and from an int."""


def transport_type(type_: str) -> str:
    """Returns the type in which values of a type are transferred."""
    return _with_months_as(type_, "int")


def to_transport(schema: Schema) -> Schema:
    """Returns a schema with the transport types of its columns."""
    return Schema((name, transport_type(type_)) for name, type_ in schema.fields)


def _with_months_as(type_: str, months: str) -> str:
    if type_ in YEAR_MONTHS:
        return months
    if "interval" not in type_ or not is_nested(type_):
        return type_
    parts = [(name, _with_months_as(inner, months)) for name, inner in nested_parts(type_)]
    if type_.startswith("struct<"):
        return f"struct<{','.join(f'{quote(name)}:{inner}' for name, inner in parts)}>"
    return f"{type_[: type_.index('<')]}<{','.join(inner for _, inner in parts)}>"


def sql_from_transport(sql: str, type_: str) -> str:
    """Returns an expression that converts the transferred value of `sql` to its real type."""
    if transport_type(type_) == type_:
        return sql
    return f"cast(cast({sql} as {_with_months_as(type_, _INT_MONTHS)}) as {type_})"


def sql_to_transport(sql: str, type_: str) -> str:
    """Returns an expression that converts the value of `sql` to its transport type."""
    if transport_type(type_) == type_:
        return sql
    return (
        f"cast(cast(({sql}) as {_with_months_as(type_, _INT_MONTHS)}) as {transport_type(type_)})"
    )


def from_transport(frame: Any, names: Sequence[str], types: Sequence[str]) -> Any:
    """Converts the transferred columns of a DataFrame to their real types."""
    if all(transport_type(type_) == type_ for type_ in types):
        return frame
    pairs = [(quoted(name), type_) for name, type_ in zip(names, types, strict=True)]
    return frame.selectExpr(
        *(f"{sql_from_transport(name, type_)} as {name}" for name, type_ in pairs)
    )
