"""The types of values: Spark's simple strings, their Arrow types and numpy dtypes.

A type is a lower-case string as Spark's `simpleString` writes it ("bigint", "decimal(10,2)",
"array<struct<a:int,b:string>>"). Names of struct fields keep their case; names that are not plain
words stand in backticks. This module knows nothing of columns or values.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.errors import SchemaError
from nosync_nb.rows.ddl import TypeReader, quote

INTEGERS = ("tinyint", "smallint", "int", "bigint")
FLOATS = ("float", "double")

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
}
"""Types whose null-free columns are numpy arrays: days for date, microseconds for timestamps."""

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
}


def is_nested(type: str) -> bool:
    """Tells whether `type` is an array, struct or map."""
    return type.endswith(">")


@lru_cache(maxsize=4096)
def arrow_type(type: str) -> pa.DataType:
    """Returns the Arrow type in which columns of `type` are kept."""
    scalar = _ARROW.get(type)
    if scalar is not None:
        return scalar
    if type.startswith("decimal"):
        return pa.decimal128(*decimal_parts(type))
    parts = nested_parts(type)
    fields = [pa.field(name, arrow_type(inner)) for name, inner in parts]
    if type.startswith("array<"):
        return pa.list_(fields[0].type)
    if type.startswith("map<"):
        return pa.map_(fields[0].type, fields[1].type)
    return pa.struct(fields)


@lru_cache(maxsize=4096)
def decimal_parts(type: str) -> tuple[int, int]:
    """Returns precision and scale of a decimal type."""
    precision, scale = type[8:-1].split(",")
    return int(precision), int(scale)


@lru_cache(maxsize=4096)
def nested_parts(type: str) -> tuple[tuple[str, str], ...]:
    """Returns (name, type) of the parts of a nested type: element | key, value | the fields."""
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
def canonical_type(text: str) -> str:
    """Returns the simple string of a type written by a person.

    Raises:
        SchemaError: if the text is no type that rows can hold.
    """
    reader = TypeReader(text)
    type = reader.type()
    reader.end()
    return type


def spark_type(type: pa.DataType) -> str:
    """Returns the simple string of the type which holds every value of an Arrow type.

    Raises:
        SchemaError: if there is none (durations, times, periods, unions, nothing but null).
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
        return f"map<{spark_type(type.key_type)},{spark_type(type.item_type)}>"
    if hasattr(type, "value_type"):
        return f"array<{spark_type(type.value_type)}>"
    if pa.types.is_struct(type):
        inner = (f"{quote(field.name)}:{spark_type(field.type)}" for field in type)
        return f"struct<{','.join(inner)}>"
    if getattr(type, "extension_name", None) == "pandas.period":
        raise SchemaError(
            f"there is no type for periods of pandas (period[{type.freq}])",
            hint="make text of them with .astype(str), or times with .dt.to_timestamp()",
        )
    if isinstance(type, pa.BaseExtensionType):
        return spark_type(type.storage_type)
    hint = "give the columns as text, 'name type, ...'" if pa.types.is_null(type) else None
    raise SchemaError(f"there is no type for columns of Arrow type {type}", hint=hint)


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
}
