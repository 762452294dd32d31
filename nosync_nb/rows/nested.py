"""Nested columns as Python values and back, as exact as columns store them.

A date is days, a timestamp microseconds, at every depth: Python's own types have no year 0 and no
year after 9999. Arrays are lists, structs are tuples in the order of their fields, maps are lists
of pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.rows import buffers
from nosync_nb.rows.arrow import Column, canonical_float, from_arrow
from nosync_nb.rows.encoding import raw_list
from nosync_nb.rows.types import FLOATS, arrow_type, is_nested, nested_parts


def to_python_values(column: Column, type_: str) -> list[Any]:
    """Returns the values of a column, None where null.

    Cost: O(values) Python steps.
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
    """Returns the Arrow array of values as `to_python_values` gives them, floats canonical."""
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


def column_of(values: Sequence[Any], type_: str) -> Column:
    """Returns the column of values in the form of `to_python_values`."""
    return from_arrow(from_python_values(values, type_), type_)
