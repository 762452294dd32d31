"""Infers the schema of user data that is not declared by DDL.

Arrow and pandas have types. A column of Python rows has the common type of its values: int is
bigint, float is double (also with ints among them), Decimal is decimal(38,18) as in Spark, a dict
is a map, and a named tuple a struct. A datetime without a zone is a timestamp_ntz, and a timedelta
an interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.errors import SchemaError
from nosync_nb.rows.ddl import quote
from nosync_nb.rows.ingest.convert import is_pandas, own_columns, source_of
from nosync_nb.rows.pandas_frames import is_series
from nosync_nb.rows.schema import Schema, spark_type

_PLAIN = "convert it to text or numbers first, for example with .astype(str)"
_DDL = "give the columns as text, 'name type, ...'"


def infer_schema(rows: Any) -> Schema:
    """Returns the schema of pandas, Arrow, dicts, named tuples or a dict of columns.

    Raises:
        SchemaError: if the data names no columns, or if a column is empty, only null or of mixed
            types.

    Cost: O(1) for Arrow, otherwise O(n).
    """
    source = rows if isinstance(rows, pa.RecordBatchReader) else source_of(rows)
    if source is None:
        raise SchemaError(f"{rows!r:.60} has no columns", hint=_DDL)
    if isinstance(source, list):
        return _of_rows(source)
    if isinstance(source, Mapping):
        return Schema((str(name), _of_part(name, part)) for name, part in source.items())
    if not is_pandas(source):
        return Schema.from_arrow(source.schema)
    columns = enumerate(source.columns)
    return Schema((str(name), _of_series(name, source.iloc[:, i])) for i, name in columns)


def _of_rows(rows: Sequence[Any]) -> Schema:
    """Infers the schema of a list of dicts or named tuples."""
    if not rows:
        raise SchemaError("no rows to infer the columns from", hint=_DDL)
    dicts = []
    for at, row in enumerate(rows):
        named = _as_dict(row)
        if named is None:
            raise SchemaError(f"row {at} has no column names: {row!r:.60}", hint=_DDL)
        dicts.append(named)
    names = list(dicts[0])
    for at, row in enumerate(dicts):
        if set(row) != set(names):
            other = sorted(map(str, set(row) ^ set(names)))[0]
            raise SchemaError(f"row {at} and row 0 differ in column {other!r}", hint=_DDL)
    return Schema((str(name), _of_values(name, [row[name] for row in dicts])) for name in names)


def _as_dict(row: Any) -> Mapping[Any, Any] | None:
    """Returns a dict or named tuple as a mapping; None for any other row."""
    if isinstance(row, Mapping):
        return row
    own = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
    return dict(zip(own, row, strict=True)) if isinstance(row, tuple) and own else None


def _of_series(name: Any, series: Any) -> str:
    """Infers the type of a pandas series."""
    if series.dtype != object:
        try:
            return _of_arrow(name, pa.array(series, from_pandas=True).type)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
            pass  # Arrow cannot represent the series, so its values determine the type
    missing = series.isna().tolist()
    values = [v for v, gone in zip(series.tolist(), missing, strict=True) if not gone]
    return _of_values(name, values)


def _of_part(name: Any, part: Any) -> str:
    """Infers the type of one column of a dict of columns."""
    if isinstance(part, (pa.Array, pa.ChunkedArray)):
        return _of_arrow(name, part.type)
    if is_series(part):
        return _of_series(name, part.to_series() if hasattr(part, "to_series") else part)
    if isinstance(part, np.ndarray) and part.dtype.kind in "biufMm" and part.ndim == 1:
        return _of_arrow(name, pa.array(own_columns(part)).type)
    if isinstance(part, (str, bytes, Mapping)) or not isinstance(part, Iterable):
        raise SchemaError(
            f"column {name!r}: {part!r:.60} is not a column",
            hint="pass a single row as a list of one dict: [{...}]",
        )
    return _of_values(name, list(part))


def _of_arrow(name: Any, type_: pa.DataType) -> str:
    """Returns the simple string of an Arrow type; an error names the column."""
    try:
        return spark_type(type_)
    except SchemaError as error:
        raise SchemaError(f"column {name!r}: {error}", hint=error.hint or _DDL) from None


def _of_values(name: Any, values: Sequence[Any]) -> str:
    """Infers the common type of Python values; an error names the column."""
    try:
        type_ = _common(values)
    except SchemaError as error:
        raise SchemaError(f"column {name!r}: {error}", hint=error.hint) from None
    if type_ is None:
        raise SchemaError(
            f"column {name!r} has only nulls, so its type cannot be inferred", hint=_DDL
        )
    return type_


def _common(values: Iterable[Any]) -> str | None:
    """Returns the common type of values; None if all are null.

    Raises:
        SchemaError: if the values have several types, or a type that rows cannot hold.
    """
    common: str | None = None
    for value in values:
        if value is None or type(value).__name__ in ("NaTType", "NAType"):
            continue
        own = _type_of(value)
        if common is None or {common, own} == {"bigint", "double"}:
            common = own if common is None else "double"
        elif own is not None and own != common:
            raise SchemaError(f"its values have different types, {common} and {own}", hint=_DDL)
    return common


def _type_of(value: Any) -> str | None:
    """Returns the type of a Python value; None for empty lists and dicts, whose type is unknown."""
    for kinds, type_ in _PYTHON:
        if isinstance(value, kinds) and not isinstance(value, np.timedelta64):
            return type_
    if isinstance(value, datetime):
        return "timestamp_ntz" if value.tzinfo is None else "timestamp"
    if isinstance(value, date):
        return "date"
    if isinstance(value, timedelta | np.timedelta64):
        return "interval day to second"
    if isinstance(value, np.datetime64):
        return spark_type(pa.array([value]).type)
    if isinstance(value, Mapping):
        key, item = _common(value.keys()), _common(value.values())
        return None if key is None or item is None else f"map<{key},{item}>"
    fields = _as_dict(value)
    if fields is not None:
        parts = [(str(name), _of_values(name, [item])) for name, item in fields.items()]
        return f"struct<{','.join(f'{quote(name)}:{type_}' for name, type_ in parts)}>"
    if isinstance(value, (list, tuple, np.ndarray)):
        inner = _common(value)
        return None if inner is None else f"array<{inner}>"
    raise SchemaError(
        f"{value!r:.60} of type {type(value).__name__} has no Spark SQL type", hint=_PLAIN
    )


_PYTHON: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "boolean"),
    ((int, np.integer), "bigint"),
    ((float, np.floating), "double"),
    ((str,), "string"),
    ((bytes, bytearray, memoryview), "binary"),
    ((Decimal,), "decimal(38,18)"),
)
