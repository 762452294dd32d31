"""The types of values: Spark's simple strings, their Arrow types and numpy dtypes.

A type is a lower-case string in the form of Spark's `simpleString` ("bigint", "decimal(10,2)",
"array<struct<a:int,b:string>>"). Names of struct fields keep their case; names that are not plain
words are in backticks. This module does not depend on columns or values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.errors import SchemaError
from nosync_nb.rows.ddl import DAY_TIMES, INTERVALS, YEAR_MONTHS, TypeReader, quote

INTEGERS = ("tinyint", "smallint", "int", "bigint")
FLOATS = ("float", "double")

OBJECT_BYTES = 50
"""The estimated memory of a value that is a Python object, such as a short text, in bytes."""

FIXED: dict[str, np.dtype[Any]] = {
    "boolean": np.dtype(np.bool_),
    "tinyint": np.dtype(np.int8),
    "smallint": np.dtype(np.int16),
    "int": np.dtype(np.int32),
    "bigint": np.dtype(np.int64),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "date": np.dtype(np.int32),
    "timestamp": np.dtype(np.int64),
    "timestamp_ntz": np.dtype(np.int64),
    **dict.fromkeys(DAY_TIMES, np.dtype(np.int64)),
    **dict.fromkeys(YEAR_MONTHS, np.dtype(np.int32)),
}
"""Types whose columns without nulls are numpy arrays.

A date is a number of days, a timestamp or an interval of time a number of microseconds, and any
other interval a number of months.
"""

_SECOND = 1_000_000
_LAST = {"day": 86_400 * _SECOND, "hour": 3600 * _SECOND, "minute": 60 * _SECOND, "year": 12}
UNIT: dict[str, int] = {t: _LAST[t.split()[-1]] for t in INTERVALS if t.split()[-1] in _LAST}
"""Interval types whose values are multiples of a unit, and the stored value of that unit."""

_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    **dict.fromkeys(DAY_TIMES, pa.duration("us")),
    **dict.fromkeys(YEAR_MONTHS, pa.int32()),
}

_MEANT = b"nosync"
"""The metadata key of an Arrow field for its interval type, because pyarrow has no months."""


def is_nested(type: str) -> bool:
    """Returns True if a type is an array, struct or map."""
    return type.endswith(">")


@lru_cache(maxsize=4096)
def arrow_type(type: str) -> pa.DataType:
    """Returns the Arrow type in which columns of `type` are stored."""
    scalar = _ARROW.get(type)
    if scalar is not None:
        return scalar
    if type.startswith("decimal"):
        return pa.decimal128(*decimal_parts(type))
    parts = nested_parts(type)
    fields = [arrow_field(name, inner) for name, inner in parts]
    if type.startswith("array<"):
        return pa.list_(fields[0].with_name("item"))
    if type.startswith("map<"):
        return pa.map_(fields[0].with_nullable(False), fields[1])
    return pa.struct(fields)


def arrow_field(name: str, type: str) -> pa.Field:
    """Returns the Arrow field of a column, or of a part of a nested column."""
    meant = {_MEANT: type} if type in INTERVALS else None
    return pa.field(name, arrow_type(type), metadata=meant)


def field_type(field: pa.Field) -> str:
    """Returns the simple string of the type of an Arrow field, whose metadata may name an interval.

    Raises:
        SchemaError: as `spark_type` does.
    """
    meant: str = (field.metadata or {}).get(_MEANT, b"").decode("utf-8", "replace")
    if meant in INTERVALS and field.type == arrow_type(meant):
        return meant
    return spark_type(field.type)


@lru_cache(maxsize=4096)
def decimal_parts(type: str) -> tuple[int, int]:
    """Returns the precision and the scale of a decimal type."""
    precision, scale = type[8:-1].split(",")
    return int(precision), int(scale)


@lru_cache(maxsize=4096)
def nested_parts(type: str) -> tuple[tuple[str, str], ...]:
    """Returns the parts of a nested type as (name, type).

    An array has an element, a map a key and a value, and a struct its fields.
    """
    reader = TypeReader(type)
    kind = reader.word().lower()
    reader.expect("<")
    if kind == "array":
        return (("element", reader.type()),)
    if kind == "map":
        key = reader.type()
        reader.expect(",")
        return ("key", key), ("value", reader.type())
    if kind != "struct":
        raise SchemaError(f"type {type!r} has no parts")
    return tuple(reader.fields(">"))


@lru_cache(maxsize=4096)
def holds_interval(type: str) -> bool:
    """Returns True if a type is an interval, or contains one."""
    if is_nested(type):
        return any(holds_interval(inner) for _, inner in nested_parts(type))
    return type in INTERVALS


@lru_cache(maxsize=4096)
def canonical_type(text: str) -> str:
    """Returns the simple string of a type that a user wrote.

    Raises:
        SchemaError: if the text is not a type that rows can hold.
    """
    reader = TypeReader(text)
    type = reader.type()
    reader.end()
    return type


def spark_type(type: pa.DataType) -> str:
    """Returns the simple string of the type that holds every value of an Arrow type.

    Raises:
        SchemaError: if no type does (times, periods, unions, and a type of nulls only).
    """
    name = _FROM_ARROW.get(type.id)
    if name is not None:
        return name
    if pa.types.is_timestamp(type):
        return "timestamp_ntz" if type.tz is None else "timestamp"
    if pa.types.is_decimal(type) and 0 <= type.scale <= type.precision <= 38:
        return f"decimal({type.precision},{type.scale})"
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return spark_type(type.value_type)
    if pa.types.is_map(type):
        return f"map<{field_type(type.key_field)},{field_type(type.item_field)}>"
    if hasattr(type, "value_type"):
        return f"array<{field_type(type.value_field)}>"
    if pa.types.is_struct(type):
        inner = (f"{quote(field.name)}:{field_type(field)}" for field in type)
        return f"struct<{','.join(inner)}>"
    if getattr(type, "extension_name", None) == "pandas.period":
        raise SchemaError(
            f"pandas periods have no Spark SQL type (period[{type.freq}])",
            hint="convert them to text with .astype(str), or to times with .dt.to_timestamp()",
        )
    if isinstance(type, pa.BaseExtensionType):
        return spark_type(type.storage_type)
    hint = "give the columns as text, 'name type, ...'" if pa.types.is_null(type) else None
    raise SchemaError(f"columns of Arrow type {type} have no Spark SQL type", hint=hint)


_FROM_ARROW: dict[int, str] = {
    pa.bool_().id: "boolean",
    pa.int8().id: "tinyint",
    pa.int16().id: "smallint",
    pa.int32().id: "int",
    pa.int64().id: "bigint",
    pa.uint8().id: "smallint",
    pa.uint16().id: "int",
    pa.uint32().id: "bigint",
    pa.uint64().id: "decimal(20,0)",
    pa.float16().id: "float",
    pa.float32().id: "float",
    pa.float64().id: "double",
    pa.string().id: "string",
    pa.large_string().id: "string",
    pa.string_view().id: "string",
    pa.binary().id: "binary",
    pa.large_binary().id: "binary",
    pa.binary_view().id: "binary",
    pa.binary(1).id: "binary",
    pa.date32().id: "date",
    pa.date64().id: "date",
    pa.duration("us").id: "interval day to second",
}


def row_bytes(types: Sequence[str]) -> int:
    """Returns the approximate size of a row in bytes; a guess for Python objects."""
    return sum(FIXED[t].itemsize if t in FIXED else OBJECT_BYTES for t in types)
