"""Converts columns from and to Arrow arrays and Python lists.

This module checks nothing: an Arrow array must hold values of the column's type. User data is
checked by `ingest/convert.py`. Floats are made canonical: -0.0 becomes 0.0, and every NaN becomes
one NaN.

`to_python_values` returns nested values as exactly as columns store them. At every depth, a date is
a number of days, and a timestamp a number of microseconds, because Python's types support only the
years 1 to 9999. Arrays are lists, structs are tuples in the order of their fields, and maps are
lists of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from nosync_nb.errors import SchemaError
from nosync_nb.rows import buffers, dictionary
from nosync_nb.rows.ddl import DAY_TIMES
from nosync_nb.rows.encoding import raw_list
from nosync_nb.rows.types import FIXED, FLOATS, arrow_type, is_nested, nested_parts

Column: TypeAlias = Any
"""A numpy array (fixed type without nulls), a numpy object array (few rows) or a `pa.Array`.

Text in a `pa.Array` may be dictionary-encoded; see columns.py.
"""

SMALL = 4096
"""The most rows for which text, and columns with nulls, are stored as Python objects."""

FEW_DECIMALS = 64
"""The most rows for which decimals are stored as Python objects.

With more rows, numpy on Arrow's bytes is cheaper than a Python step for each row.
"""

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)


def most_objects(type: str) -> int:
    """Returns the greatest number of rows that a column of Python objects may have, by type.

    Numbers without nulls are always stored in numpy arrays.
    """
    return FEW_DECIMALS if type.startswith("decimal") else SMALL


def objects(values: Sequence[Any]) -> Column:
    """Returns a column in object form from canonical values."""
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def canonical_float(value: float) -> float:
    """Returns 0.0 for -0.0, and the canonical NaN, which has no sign, for every NaN."""
    return value + 0.0 if value == value else math.nan


def canonical_floats(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a copy with 0.0 for -0.0, and the canonical NaN for every NaN."""
    if len(values):
        greatest = values[values.argmax()]  # NaN if any value is NaN; no other test is cheaper
        if greatest != greatest:
            values = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    floats: np.ndarray[Any, Any] = values + values.dtype.type(0)
    return floats


def from_arrow(array: Any, type: str) -> Column:
    """Returns the column of an Arrow array: numpy if possible, sharing memory where allowed.

    Args:
        array: a `pa.Array` or `pa.ChunkedArray` of `arrow_type(type)`, or of a type that can be
            cast to it.

    Cost: O(1) for fixed types without nulls, except booleans and floats; otherwise O(n).
    """
    array = single(array)
    if array.type != arrow_type(type):
        array = array.cast(arrow_type(type))
    return column_of(array, type)


def column_of(array: pa.Array, type: str) -> Column:
    """Returns the column of a `pa.Array` whose type is already `arrow_type(type)`."""
    dtype = FIXED.get(type)
    if dtype is not None and not array.null_count:
        return plain(array, type, dtype)
    if is_nested(type):
        return array
    if len(array) <= most_objects(type):
        values = raw_list(array, type)
        if dtype is not None and dtype.kind == "f":
            values = [None if v is None else canonical_float(v) for v in values]
        return objects(values)
    if dtype is not None and dtype.kind == "f":
        return _canonical_arrow(array, dtype)
    return array


def single(array: Any) -> pa.Array:
    """Returns a `pa.Array`, or all chunks of a `pa.ChunkedArray`, as one array."""
    if not isinstance(array, pa.ChunkedArray):
        return array
    if array.num_chunks == 1:
        return array.chunk(0)
    return pa.concat_arrays(array.chunks) if array.num_chunks else pa.nulls(0, array.type)


def plain(array: pa.Array, type: str, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns the values of an Arrow array of a fixed type without nulls."""
    values = buffers.fixed_width_array(array, dtype)
    return canonical_floats(values) if dtype.kind == "f" else values


def _canonical_arrow(array: pa.Array, dtype: np.dtype[Any]) -> pa.Array:
    """Returns a float array with nulls, in which all values are canonical."""
    validity, data = array.buffers()
    values = canonical_floats(np.frombuffer(data, dtype, array.offset + len(array)))
    data_buffers = [validity, pa.py_buffer(values)]
    return pa.Array.from_buffers(
        array.type, len(array), data_buffers, array.null_count, array.offset
    )


def to_arrow(column: Column, type: str) -> pa.Array:
    """Returns the column as one Arrow array of `arrow_type(type)`.

    Cost: O(1) for numpy columns of fixed types, except booleans (memory is shared); O(n) for
    objects and for dictionary-encoded text.
    """
    if not isinstance(column, np.ndarray):
        return dictionary.decoded_column(column)
    target = arrow_type(type)
    if column.dtype.hasobject:
        return buffers.arrow_from_list(column.tolist(), target)
    return buffers.arrow_from_numpy(column, target)


def to_pylist(column: Column, type: str) -> list[Any]:
    """Returns Python values: date, datetime (UTC for timestamp), Decimal, str, list, dict.

    An interval of time is a timedelta, and an interval of months a number.

    Raises:
        SchemaError: if a date or timestamp is outside of Python's years 1 to 9999.
    """
    try:
        if not isinstance(column, np.ndarray):
            if is_nested(type):
                return _nested_pylist(column, type)
            column = raw_list(column, type)
        else:
            column = column.tolist()
        convert = _PYTHON.get(type)
        values: list[Any] = column
        if convert is None:
            return values
        return [None if value is None else convert(value) for value in values]
    except (OverflowError, ValueError):
        raise SchemaError(
            f"a {type} is outside the years 1 to 9999, which Python supports",
            hint="read it with to_arrow(), or cast it to string in an expression",
        ) from None


def _as_date(days: int) -> date:
    return date.fromordinal(_EPOCH_DAY + days)


def _as_timestamp(micros: int) -> datetime:
    return _EPOCH_UTC + timedelta(microseconds=micros)


def _as_timestamp_ntz(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _as_timedelta(micros: int) -> timedelta:
    return timedelta(microseconds=micros)


_PYTHON: dict[str, Callable[[int], Any]] = {
    **dict.fromkeys(DAY_TIMES, _as_timedelta),
    "date": _as_date,
    "timestamp": _as_timestamp,
    "timestamp_ntz": _as_timestamp_ntz,
}


def _nested_pylist(array: pa.Array, type: str) -> list[Any]:
    """Returns nested values; a map is a dict, or a list of pairs if its keys are nested."""
    maps = "strict" if _plain_keys(type) else None
    values: list[Any] = array.to_pylist(maps_as_pydicts=maps)
    return values


@lru_cache(maxsize=1024)
def _plain_keys(type: str) -> bool:
    """Returns True if no map inside a type has nested keys."""
    if not is_nested(type):
        return True
    parts = nested_parts(type)
    if type.startswith("map<") and is_nested(parts[0][1]):
        return False
    return all(_plain_keys(inner) for _, inner in parts)


def to_python_values(column: Column, type_: str) -> list[Any]:
    """Returns the values of a column, with None for nulls.

    Cost: a Python step for each value.
    """
    if isinstance(column, np.ndarray):
        values: list[Any] = column.tolist()
        return values
    return _unpack_array(column, type_)


def _unpack_array(array: pa.Array, type_: str) -> list[Any]:
    if not is_nested(type_):
        return raw_list(array, type_)
    parts = nested_parts(type_)
    values: list[Any]
    if type_.startswith("struct<"):
        columns = [_unpack_array(array.field(i), inner) for i, (_, inner) in enumerate(parts)]
        values = list(zip(*columns, strict=True)) if columns else [()] * len(array)
    else:
        values = _unpack_lists(array, type_, [inner for _, inner in parts])
    if not array.null_count:
        return values
    missing = buffers.null_mask_of(array).tolist()
    return [None if null else value for null, value in zip(missing, values, strict=True)]


def _unpack_lists(array: pa.Array, type_: str, inner: Sequence[str]) -> list[Any]:
    if not len(array):
        return []
    offsets = array.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    if type_.startswith("array<"):
        items: list[Any] = _unpack_array(array.values.slice(first, last - first), inner[0])
    else:
        keys = _unpack_array(array.keys.slice(first, last - first), inner[0])
        values = _unpack_array(array.items.slice(first, last - first), inner[1])
        items = list(zip(keys, values, strict=True))
    return [items[a - first : b - first] for a, b in pairwise(offsets)]


def from_python_values(values: Sequence[Any], type_: str) -> pa.Array:
    """Returns the Arrow array of values in the form of `to_python_values`; floats are canonical."""
    if not is_nested(type_):
        if type_ in FLOATS:
            values = [None if value is None else canonical_float(value) for value in values]
        return buffers.arrow_from_list(values, arrow_type(type_))
    parts = nested_parts(type_)
    missing = [value is None for value in values]
    mask = buffers.arrow_from_numpy(np.array(missing, np.bool_)) if any(missing) else None
    if type_.startswith("struct<"):
        columns = [
            from_python_values([None if value is None else value[i] for value in values], inner)
            for i, (_, inner) in enumerate(parts)
        ]
        fields = list(arrow_type(type_))
        if not fields:
            return pa.array([None if null else {} for null in missing], arrow_type(type_))
        return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)
    ends = list(accumulate([0 if value is None else len(value) for value in values], initial=0))
    offsets = buffers.arrow_from_numpy(np.array(ends, np.int32))
    items = [item for value in values if value is not None for item in value]
    if type_.startswith("array<"):
        array = from_python_values(items, parts[0][1])
        return pa.ListArray.from_arrays(offsets, array, type=arrow_type(type_), mask=mask)
    keys = from_python_values([key for key, _ in items], parts[0][1])
    held = from_python_values([value for _, value in items], parts[1][1])
    return pa.MapArray.from_arrays(offsets, keys, held, type=arrow_type(type_), mask=mask)
