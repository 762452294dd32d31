"""Columns from Arrow and pandas, copied and checked at the door.

Memory of the caller is never kept: Arrow arrays may wrap numpy arrays that their owner changes.
A column whose Arrow type is the wanted one is copied; one that casts without loss is cast; any
other goes value by value through values.py, which accepts it or says which row does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.errors import SchemaError
from nosync_nb.rows import buffers as bridge
from nosync_nb.rows.arrow import Column, canonical_floats, column_of, single
from nosync_nb.rows.ddl import DAY_TIMES, INTERVALS
from nosync_nb.rows.ingest.arrow_layouts import checked_layout, plain_layout
from nosync_nb.rows.ingest.coerce import EXACT_WHOLE
from nosync_nb.rows.ingest.coerce__values import build_column
from nosync_nb.rows.pandas_frames import refuse_ambiguous
from nosync_nb.rows.schema import spark_type
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS, UNIT, arrow_type, is_nested

_ndarray = np.ndarray
_chunked = pa.ChunkedArray
_WHOLE = {type_: dtype for type_, dtype in FIXED.items() if dtype.kind == "i"}
_INSIDE_OUT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def adopt_arrow(array: Any, type_: str) -> Column:
    """Returns the column of an Arrow array somebody else owns; NaN stays NaN.

    Raises:
        MisfitError: at the first value which the type does not hold exactly.
        SchemaError: if rows cannot hold its Arrow type, or the array is not valid.

    Cost: one copy; casts and checks are Arrow's, row by row only to find what does not fit.
    """
    if array.type == arrow_type(type_):
        return adopt_same_schema(array, type_)
    if isinstance(array.type, pa.BaseExtensionType):
        spark_type(array.type)  # refuses those whose storage means something else
    chunks = (
        checked_layout(array).chunks if array.__class__ is _chunked else [checked_layout(array)]
    )
    chunks = [plain_layout(chunk) for chunk in chunks or [pa.nulls(0, array.type)]]
    return _cast(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks), type_)


def adopt_same_schema(array: Any, type_: str) -> Column:
    """Returns a copied column of an Arrow array whose type is known to be the wanted one."""
    if type_ in UNIT:
        array = single(checked_layout(array))
        if (bridge.numbers(array, FIXED[type_]) % UNIT[type_]).any():
            return build_column(array.to_pylist(), type_)  # says which, unless it is below a null
    dtype = _WHOLE.get(type_)
    if dtype is not None:
        chunked = array.__class__ is _chunked
        if chunked and array.num_chunks == 1:
            array, chunked = array.chunk(0), False
        if not chunked and (n := len(array)):
            valid, data = array.buffers()
            if valid is None or not checked_layout(array).null_count:
                return np.frombuffer(data, dtype, n, array.offset * dtype.itemsize).copy()
    column = column_of(single(checked_layout(array)), type_)
    if type(column) is not _ndarray:
        return _own(column)
    # Floats, booleans and objects were made anew; other numbers still are the caller's memory.
    return column if column.flags.owndata else column.copy()


def _own(array: pa.Array) -> pa.Array:
    """Returns a copy of an Arrow array in memory of its own, nested floats made canonical."""
    copied = pa.concat_arrays([array, array.slice(0, 0)])
    if is_nested(spark_type(array.type)):
        for dtype, buffer in _float_buffers(copied.type, iter(copied.buffers())):
            values = np.frombuffer(buffer, dtype)
            values.setflags(write=True)
            values[:] = canonical_floats(values)
    return copied


def _float_buffers(
    type_: pa.DataType, buffers: Iterator[pa.Buffer | None]
) -> Iterator[tuple[Any, pa.Buffer]]:
    """Yields the data buffers of the floats inside a nested type, with their dtypes."""
    next(buffers)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        next(buffers)
    if type_.num_fields:
        if pa.types.is_map(type_):
            next(buffers)
            inner = [type_.key_type, type_.item_type]
        else:
            inner = [type_.field(i).type for i in range(type_.num_fields)]
        for child in inner:
            yield from _float_buffers(child, buffers)
        return
    for _ in range(type_.num_buffers - 1):
        buffer = next(buffers)
        if pa.types.is_floating(type_) and buffer is not None and buffer.size:
            yield type_.to_pandas_dtype(), buffer


def _cast(array: pa.Array, type_: str) -> Column:
    """Returns the column of an array of another Arrow type, if its values are exactly of ours."""
    if _casts(array.type, type_):
        try:
            column = checked_layout(array.cast(arrow_type(type_)))
            if type_ in INTEGERS and pa.types.is_floating(array.type) and _inexact(array):
                return build_column(array.to_pylist(), type_)  # says which
            if not pa.types.is_floating(column.type) or not _overflows(column, array):
                return adopt_same_schema(column, type_)
        except _INSIDE_OUT:
            pass
    try:
        values = array.to_pylist()
    except (ValueError, OverflowError) as error:
        raise SchemaError(
            f"cannot read its {array.type} as {type_}: {error}", hint=f"cast it to {type_} first"
        ) from None
    return build_column(values, type_)


def _inexact(array: pa.Array) -> bool:
    """Tells whether floats reach the numbers between which floats leave integers out."""
    bounds = pc.min_max(array).as_py()
    return any(x is not None and abs(x) >= EXACT_WHOLE for x in bounds.values())


def _overflows(column: pa.Array, array: pa.Array) -> bool:
    """Tells whether rounding floats made one infinite that was not."""
    if not pa.types.is_floating(array.type):
        return False
    return bool(pc.sum(pc.is_inf(column)) != pc.sum(pc.is_inf(array)))


def _casts(source: pa.DataType, type_: str) -> bool:
    """Tells whether Arrow's safe cast takes exactly what fits, and means the same."""
    if pa.types.is_null(source):
        return True
    try:
        own = spark_type(source)
    except SchemaError:
        return False
    if own == type_ or (own in INTERVALS and type_ in DAY_TIMES):
        return True
    numbers = own in INTEGERS or own.startswith("decimal")
    if type_ in INTEGERS or type_.startswith("decimal"):
        return numbers or (own in FLOATS and type_ in INTEGERS)
    if type_ in FLOATS:
        return own in INTEGERS or own in FLOATS
    return own == "timestamp_ntz" and type_ == "timestamp"


def is_series(values: Any) -> bool:
    """Tells whether `values` is a pandas series, index or array, without importing pandas."""
    return type(values).__module__.partition(".")[0] == "pandas"


def adopt_pandas(series: Any, type_: str) -> Column:
    """Returns the column of a pandas series; NaN, NaT, NA and None are null.

    Raises:
        MisfitError: at the first value which the type does not hold exactly.
        SchemaError: if NoSync exported the series and it cannot be restored.
    """
    if hasattr(series, "to_series"):
        series = series.to_series()
    if series.attrs:
        refuse_ambiguous(series)
    if series.dtype == object:
        values = series.tolist()
        missing = series.isna().tolist()
        return build_column(
            [None if gone else v for v, gone in zip(values, missing, strict=True)], type_
        )
    try:
        array = pa.array(series, from_pandas=True)
    except _INSIDE_OUT:
        missing = series.isna().tolist()
        values = [None if gone else v for v, gone in zip(series.tolist(), missing, strict=True)]
        return build_column(values, type_)
    return adopt_arrow(array, type_)
