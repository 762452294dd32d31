"""Converts Arrow tables to pandas DataFrames, and marks the columns that cannot be loaded again.

pandas' numpy types have no null. An integer column with a null becomes floats, which are exact only
below 2^53; the loader refuses greater ones (ingest/coerce.py). NaN and null both become NaN, and
the least timestamp becomes NaT. No loader can distinguish these values. So a frame lists such
columns in its `attrs`, which pandas preserves, and the loader refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.errors import SchemaError

AMBIGUOUS = "nosync.ambiguous"
"""The key in `attrs` for the names of columns in which two different values became one."""

_LEAST = -(1 << 63)
_types = pa.types


def to_frame(table: pa.Table, types: str) -> Any:
    """Returns an Arrow table as a pandas DataFrame.

    Args:
        types: "numpy", or "arrow" for Arrow-backed columns, which hold every value exactly.

    Raises:
        SchemaError: if `types` is neither of them, or if numpy and Python cannot hold a value.

    Cost: that of pyarrow, plus a pass over the floats, times and nested columns.
    """
    if types == "arrow":
        import pandas as pd

        return table.to_pandas(types_mapper=pd.ArrowDtype)
    if types != "numpy":
        raise SchemaError(
            f"types={types!r} is unknown", hint='write types="numpy" or types="arrow"'
        )
    ambiguous = []
    try:
        frame = table.to_pandas()
        for i, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
            if column.type.num_fields and any(map(_has_null_integers, _leaves(column))):
                frame.isetitem(i, column.to_pandas(integer_object_nulls=True))
            if _is_ambiguous(column):
                ambiguous.append(name)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        message = str(error).strip().partition("\n")[0]
        raise SchemaError(
            f"numpy types of pandas cannot represent a value: {message}",
            hint='use to_pandas(types="arrow")',
        ) from None
    if ambiguous:
        frame.attrs[AMBIGUOUS] = ambiguous
    return frame


def refuse_ambiguous(series: Any) -> None:
    """Refuses a series in which `to_frame` converted two different values to one.

    Raises:
        SchemaError: its hint names the call to use instead.

    Cost: a pass over a column that is listed as ambiguous, otherwise O(1).
    """
    if series.name not in series.attrs.get(AMBIGUOUS, ()):
        return
    if series.dtype == object or bool(series.isna().any()):
        raise SchemaError(
            "to_pandas() returned null and NaN (or the least time) as the same value, so the"
            " frame does not say which of them a value was",
            hint='use to_pandas(types="arrow"), or call frame.attrs.clear() to load the frame'
            " unchanged",
        )


def _is_ambiguous(column: pa.ChunkedArray) -> bool:
    """Returns True if numpy types cannot distinguish two values of a column."""
    if _types.is_floating(column.type):
        return bool(pc.any(pc.is_nan(column)).as_py())
    for leaf, listed in _leaves(column):
        if listed and leaf.null_count and _types.is_floating(leaf.type):
            return True
        moments = _types.is_timestamp(leaf.type) or _types.is_duration(leaf.type)
        if moments and pc.min(leaf.view(pa.int64())).as_py() == _LEAST:
            return True
    return False


def _has_null_integers(leaf: tuple[pa.Array, bool]) -> bool:
    return bool(leaf[0].null_count) and _types.is_integer(leaf[0].type)


def _leaves(column: pa.ChunkedArray) -> Iterator[tuple[pa.Array, bool]]:
    """Yields the flat arrays inside a column, each with True if it has the elements of lists."""
    parts = [(chunk, False) for chunk in column.chunks]
    while parts:
        array, listed = parts.pop()
        if not array.type.num_fields:
            yield array, listed
            continue
        array = array.drop_null()
        if _types.is_struct(array.type):
            parts += [(part, False) for part in array.flatten()]
        elif _types.is_map(array.type):
            parts += [(array.keys, False), (array.items, False)]
        else:
            parts.append((array.flatten(), True))


def is_series(values: Any) -> bool:
    """Returns True if `values` is a pandas series, index or array, without importing pandas."""
    return type(values).__module__.partition(".")[0] == "pandas"
