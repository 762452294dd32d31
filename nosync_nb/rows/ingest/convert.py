"""Converts user data: rows and tables of all kinds become columns of a schema.

Rows are tuples, named tuples, dicts or lists. Tables are pandas, Arrow, any object that exports an
Arrow stream, or a dict of columns. Columns are matched by name, or by position if they have no
names. A column name that is not text, such as 0 and 1 in pandas, is converted with `str`. Values
are accepted exactly or refused (coerce.py). NaN from pandas becomes null; any other NaN stays NaN.

The caller's memory is never retained, because Arrow arrays may wrap numpy arrays that their owner
modifies. A column that already has the requested Arrow type is copied. A column that can be cast
without loss is cast. Any other column is converted value by value through coerce.py, which accepts
a value or names the row that does not fit.

PySpark data frames are not converted here: the session passes them to Spark.

Arrow's other layouts are converted to those of columns. Libraries export views, dictionaries,
run-ends, large and fixed-size lists, and extension types. Arrow's casts between these are
incomplete, and some (list views) return arrays with bounds outside of their memory. Therefore
layouts are converted here, by `take` on plain values alone, and the result is validated in full. So
a wrong bound is an error on ingest, and not a crash of the kernel later. The conversion changes
only layouts, never values: an int32 stays an int32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.errors import SchemaError, text_of
from nosync_nb.rows import buffers
from nosync_nb.rows import buffers as arrow_buffers
from nosync_nb.rows.arrow import Column, canonical_floats, column_of, single
from nosync_nb.rows.columns import empty
from nosync_nb.rows.ddl import DAY_TIMES, INTERVALS
from nosync_nb.rows.ingest.coerce import EXACT_WHOLE, MisfitError, build_column
from nosync_nb.rows.pandas_frames import is_series, refuse_ambiguous
from nosync_nb.rows.schema import Schema
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS, UNIT, arrow_type, is_nested, spark_type

_VIEWS = {pa.string_view().id: pa.string(), pa.binary_view().id: pa.binary()}
_LISTS = {pa.list_(pa.int8()).id, pa.large_list(pa.int8()).id}
_LIST_VIEWS = {pa.list_view(pa.int8()).id, pa.large_list_view(pa.int8()).id}
_types = pa.types


def checked_layout(array: Any) -> Any:
    """Returns a foreign array or chunked array after validating its buffers.

    Raises:
        SchemaError: if its buffers, bounds or texts do not match its type.

    Cost: 0.4 us for numbers. Texts and offsets are read once.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"its Arrow array is not valid: {str(error).strip().partition(chr(10))[0]}",
            hint="build the array again, for example with pa.array(x.to_pylist())",
        ) from None
    return array


def plain_layout(array: pa.Array) -> pa.Array:
    """Returns the same values without views, dictionaries, run-ends, fixed sizes and extensions.

    The array must be valid (`checked_layout`), and the result is valid too.

    Raises:
        SchemaError: if the result is not valid, or its lists have more than 2^31 values.

    Cost: O(1) if the type has none of these layouts, otherwise O(n).
    """
    if _is_plain(array.type):
        return array
    return checked_layout(_plain(array))


@lru_cache(maxsize=4096)
def _is_plain(type_: pa.DataType) -> bool:
    """Returns True if columns use this layout; the width of numbers is not considered."""
    if _types.is_list(type_) or _types.is_map(type_) or _types.is_struct(type_):
        return all(_is_plain(type_.field(i).type) for i in range(type_.num_fields))
    foreign = _types.is_dictionary(type_) or _types.is_run_end_encoded(type_)
    return not (
        foreign or type_.num_fields or type_.id in _VIEWS or isinstance(type_, pa.BaseExtensionType)
    )


def _plain(array: pa.Array) -> pa.Array:
    """Converts the layout of an array and of the arrays inside it."""
    type_ = array.type
    if _is_plain(type_):
        return array
    if isinstance(type_, pa.BaseExtensionType):
        spark_type(type_)  # raises for extensions whose storage has another meaning
        return _plain(array.storage)
    if type_.id in _VIEWS:
        return array.cast(_VIEWS[type_.id])
    if _types.is_dictionary(type_):
        return _plain(array.dictionary).take(array.indices)
    if _types.is_run_end_encoded(type_):
        return _run_ends(array)
    if _types.is_struct(type_):
        return _struct(array)
    if _types.is_map(type_):
        return _map(array)
    return _list(array)


def _run_ends(array: pa.Array) -> pa.Array:
    """Repeats the value of each run."""
    ends = buffers.values_of(array.run_ends)
    place = np.arange(array.offset, array.offset + len(array))
    return _plain(array.values).take(
        buffers.arrow_from_numpy(np.searchsorted(ends, place, side="right"))
    )


def _struct(array: pa.Array) -> pa.Array:
    """Converts the layouts of the fields; field values of a null struct are arbitrary."""
    parts = [_plain(array.field(i)) for i in range(array.type.num_fields)]
    fields = [
        pa.field(array.type.field(i).name, part.type, array.type.field(i).nullable)
        for i, part in enumerate(parts)
    ]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=_missing(array))


def _map(array: pa.Array) -> pa.Array:
    """Converts the layouts of the keys and values."""
    starts = buffers.values_of(array.offsets)
    first, count = int(starts[0]), int(starts[-1] - starts[0])
    keys, items = (_plain(x.slice(first, count)) for x in (array.keys, array.items))
    offsets = buffers.arrow_from_numpy(starts - starts.dtype.type(first))
    return pa.MapArray.from_arrays(offsets, keys, items, mask=_missing(array))


def _list(array: pa.Array) -> pa.Array:
    """Converts a list of any layout to 32-bit offsets and contiguous values."""
    type_, n = array.type, len(array)
    if type_.id in _LIST_VIEWS:
        starts = buffers.values_of(array.offsets).astype(np.int64)
        sizes = buffers.values_of(array.sizes).astype(np.int64)
    elif type_.id in _LISTS:
        bounds = buffers.values_of(array.offsets).astype(np.int64)
        starts, sizes = bounds[:-1], np.diff(bounds)
    else:
        sizes = np.full(n, type_.list_size, np.int64)
        starts = np.arange(array.offset, array.offset + n, dtype=np.int64) * type_.list_size
    missing = None
    if array.null_count:
        missing = buffers.null_mask_of(array)
        sizes = np.where(missing, 0, sizes)  # because the bounds of a null are arbitrary
    ends = np.zeros(n + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    if int(ends[-1]) >= 2**31:
        raise SchemaError(
            f"its lists hold {int(ends[-1])} values, more than one insert can take",
            hint="insert it in several pieces",
        )
    place = np.arange(int(ends[-1])) + (starts - ends[:-1]).repeat(sizes)
    return pa.ListArray.from_arrays(
        buffers.arrow_from_numpy(ends.astype(np.int32)),
        _plain(array.values).take(buffers.arrow_from_numpy(place)),
        mask=None if missing is None else buffers.arrow_from_numpy(missing),
    )


def _missing(array: pa.Array) -> pa.Array | None:
    """Returns the null mask of an array, as an Arrow array; None if it has no null."""
    return array.is_null() if array.null_count else None


_SHOWN = 60
_UNREADY = {
    ("polars", "LazyFrame"): "collect()",
    ("polars", "GroupBy"): "agg(...)",
    ("pandas", "DataFrameGroupBy"): "agg(...)",
    ("pyarrow", "FileSystemDataset"): "to_table()",
    ("pyarrow", "InMemoryDataset"): "to_table()",
    ("pyarrow", "UnionDataset"): "to_table()",
    ("pyarrow", "Scanner"): "to_table()",
}


def to_columns(rows: Any, schema: Schema, what: str) -> tuple[list[Column], int]:
    """Returns the columns of user data, and the number of rows.

    Args:
        rows: a list of tuples, named tuples or dicts; pandas; Arrow; a dict of columns.
        what: the receiver of the rows, for messages: "input 'flights'". If it is empty, messages
            begin with the row.

    Raises:
        SchemaError: if names or lengths do not match, or a value does not fit its column exactly;
            the message names column, row (counted from 0) and value.

    Cost: 7 us for an Arrow table of 10 rows and 2 bigints, 8 us for 10 tuples; large tables are
    copied once.
    """
    try:
        if isinstance(rows, (pa.Table, pa.RecordBatch)):
            return _from_arrow(rows, schema)
        if isinstance(rows, list):
            return _from_rows(rows, schema)
        return _from_other(rows, schema)
    except SchemaError as error:
        raise SchemaError(f"{what}: {error}" if what else str(error), hint=error.hint) from None


def is_pandas(rows: Any) -> bool:
    """Returns True if `rows` is a pandas data frame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(rows, pandas.DataFrame)


def _from_other(rows: Any, schema: Schema) -> tuple[list[Column], int]:
    """Converts data that is neither a list nor an Arrow table."""
    source = source_of(rows)
    if source is None:
        raise SchemaError(
            f"{_message_text(rows)} is not a list of rows or a table",
            hint="pass a list of tuples or dicts, a pandas or an Arrow table",
        )
    if isinstance(source, list):
        return _from_rows(source, schema)
    if isinstance(source, Mapping):
        return _from_mapping(source, schema)
    if not is_pandas(source):
        return _from_arrow(source, schema)
    order = _named(list(source.columns), schema)
    series = [source.iloc[:, i] for i in order]
    return _columns(series, schema, adopt_pandas), len(source)


def source_of(rows: Any) -> Any:
    """Returns user data as a list, a dict of columns, a pandas table or an Arrow table.

    Returns None for all other data.

    Raises:
        SchemaError: if the data describes a table without holding its rows, or cannot be read.
    """
    if isinstance(rows, (list, Mapping, pa.Table, pa.RecordBatch)) or is_pandas(rows):
        return rows
    if isinstance(rows, np.ndarray):
        if rows.dtype.names:
            return named_columns(rows)
        return [tuple(row) for row in rows.tolist()] if rows.ndim == 2 else list(rows)
    _refuse_unready(rows)
    if _is_spark(rows) or isinstance(rows, (str, bytes)):
        return None
    if hasattr(rows, "__arrow_c_stream__"):
        return _as_table(rows)
    return list(rows) if isinstance(rows, Iterable) else None


def _is_spark(rows: Any) -> bool:
    """Returns True if `rows` is an object of PySpark, without importing it."""
    return type(rows).__module__.partition(".")[0] == "pyspark"


def _refuse_unready(rows: Any) -> None:
    """Refuses data that describes a table without holding its rows.

    Raises:
        SchemaError: its hint names the method to call.
    """
    kind = type(rows)
    remedy = _UNREADY.get((kind.__module__.partition(".")[0], kind.__name__))
    if remedy is not None:
        raise SchemaError(f"a {kind.__name__} has no rows yet", hint=f"pass its .{remedy}")


def _as_table(rows: Any) -> Any:
    """Converts an object that exports an Arrow stream to an Arrow table.

    Raises:
        SchemaError: if it is a single column, or cannot be read.
    """
    try:
        return pa.table(rows)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError) as error:
        message = str(error).strip().partition("\n")[0]
        raise SchemaError(
            f"a {type(rows).__name__} is not a table: {message}",
            hint="pass a table; for a single column, use .to_frame() or pass {'name': column}",
        ) from None


def named_columns(rows: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Returns the fields of a structured numpy array as a dict of columns."""
    rows = rows.reshape(-1)
    assert rows.dtype.names is not None
    return {name: own_columns(rows[name]) for name in rows.dtype.names}


def own_columns(column: np.ndarray[Any, Any]) -> Any:
    """Returns a numpy column in a form that Arrow accepts.

    The byte order becomes that of this machine, and records become dicts.
    """
    if column.dtype.names:
        parts = {name: list(part) for name, part in named_columns(column).items()}
        return [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
    if column.dtype.kind == "V":  # void: bytes without a type
        return [bytes(value) for value in column]
    return column if column.dtype.isnative else column.astype(column.dtype.newbyteorder("="))


def _message_text(value: Any) -> str:
    """Returns a value as text for messages, shortened to a readable length."""
    text = text_of(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _columns(
    parts: Sequence[Any], schema: Schema, make: Callable[[Any, str], Column]
) -> list[Column]:
    """Converts each part to a column with `make`; an error names the column."""
    columns = []
    for part, name, type_ in zip(parts, schema.names, schema.types, strict=True):
        try:
            columns.append(make(part, type_))
        except MisfitError as misfit:
            where = f"column {name!r}, row {misfit.row}"
            raise SchemaError(
                f"{where}: {_message_text(misfit.value)} {misfit}", hint=misfit.hint
            ) from None
        except SchemaError as error:
            raise SchemaError(f"column {name!r}: {error}", hint=error.hint) from None
        except MemoryError:
            raise
        except (pa.ArrowException, ValueError, OverflowError) as error:
            message = str(error).strip().partition("\n")[0]
            raise SchemaError(
                f"column {name!r}: cannot be converted to {type_}:"
                f" {message or type(error).__name__}",
                hint="convert it to a list or to a plain Arrow array first",
            ) from None
    return columns


def _named(names: Sequence[Any], schema: Schema) -> list[int]:
    """Returns the position among `names` for each column of the schema.

    Raises:
        SchemaError: if a column is missing, unknown or duplicated.
    """
    if tuple(names) == schema.names:
        return list(range(len(names)))
    positions: dict[int, int] = {}
    unknown = []
    for at, name in enumerate(names):
        try:
            own = schema.index(str(name))
        except SchemaError:
            own = -1
        if own < 0:
            unknown.append(name)
        elif own in positions:
            raise SchemaError(
                f"column {schema.names[own]!r} occurs twice", hint="leave one of them out"
            )
        else:
            positions[own] = at
    if unknown:
        raise SchemaError(
            f"unknown column {unknown[0]!r}", hint=f"the columns are {', '.join(schema.names)}"
        )
    missing = [name for i, name in enumerate(schema.names) if i not in positions]
    if missing:
        raise SchemaError(
            f"column {missing[0]!r} is missing", hint="add it; fill it with None if it is unknown"
        )
    return [positions[i] for i in range(len(schema.names))]


def _from_arrow(table: Any, schema: Schema) -> tuple[list[Column], int]:
    """Converts an Arrow table or record batch."""
    if table.schema.equals(schema.arrow):
        try:
            same = [
                adopt_same_schema(table.column(i), type_) for i, type_ in enumerate(schema.types)
            ]
        except (SchemaError, pa.ArrowException, ValueError, OverflowError):
            parts = [table.column(i) for i in range(len(schema.types))]
            same = _columns(parts, schema, adopt_same_schema)  # its error names the column
        return same, table.num_rows
    parts = [table.column(i) for i in _named(table.schema.names, schema)]
    return _columns(parts, schema, adopt_arrow), table.num_rows


def _from_mapping(rows: Mapping[Any, Any], schema: Schema) -> tuple[list[Column], int]:
    """Converts a dict of columns, which are lists, numpy, Arrow or pandas."""
    parts = list(rows.values())
    order = _named(list(rows), schema)
    for name, part in zip(rows, parts, strict=True):
        if isinstance(part, (str, bytes, Mapping)) or not hasattr(part, "__len__"):
            raise SchemaError(
                f"column {name!r}: {_message_text(part)} is not a column",
                hint="pass a single row as a list of one dict: [{...}]",
            )
    lengths = {len(part) for part in parts}
    if len(lengths) > 1:
        sizes = ", ".join(f"{name} {len(part)}" for name, part in rows.items())
        raise SchemaError(
            f"columns differ in length: {sizes}",
            hint="give each column the same number of values; use None for unknown ones",
        )
    return _columns([parts[i] for i in order], schema, _from_part), max(lengths, default=0)


def _from_part(part: Any, type_: str) -> Column:
    """Converts one column of a dict of columns."""
    if isinstance(part, (pa.Array, pa.ChunkedArray)):
        return adopt_arrow(part, type_)
    if is_series(part):
        return adopt_pandas(part, type_)
    if isinstance(part, np.ndarray) and part.dtype.kind in "biufMm" and part.ndim == 1:
        return adopt_arrow(pa.array(own_columns(part)), type_)
    return build_column(list(part), type_)


def _from_rows(rows: list[Any], schema: Schema) -> tuple[list[Column], int]:
    """Converts a list of tuples, dicts or other rows."""
    if not rows:
        return [empty(type_) for type_ in schema.types], 0
    kinds = set(map(type, rows))
    width = len(schema.names)
    if kinds == {dict}:
        rows = _from_dicts(rows, schema)
    elif kinds != {tuple}:
        rows = [_as_tuple(row, at, schema) for at, row in enumerate(rows)]
    if set(map(len, rows)) != {width}:
        at = next(i for i, row in enumerate(rows) if len(row) != width)
        raise SchemaError(
            f"row {at} has {len(rows[at])} values for {width} columns: {_message_text(rows[at])}",
            hint=f"the columns are {', '.join(schema.names)}",
        )
    return _columns(list(zip(*rows, strict=True)), schema, build_column), len(rows)


def _from_dicts(rows: list[dict[Any, Any]], schema: Schema) -> list[tuple[Any, ...]]:
    """Converts dicts to tuples in the order of the columns."""
    names = schema.names
    if len(names) > 1 and set(map(len, rows)) == {len(names)}:
        try:
            return list(map(itemgetter(*names), rows))
        except KeyError:
            pass
    return [_as_tuple(row, at, schema) for at, row in enumerate(rows)]


def _as_tuple(row: Any, at: int, schema: Schema) -> tuple[Any, ...]:
    """Converts one row to a tuple in the order of the columns."""
    if isinstance(row, (tuple, list, np.ndarray)):
        own = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
        if own is None or _positional(own, schema):
            return tuple(row)
        row = dict(zip(own, row, strict=True))
    if isinstance(row, Mapping):
        try:
            order = _named(list(row), schema)
        except SchemaError as error:
            raise SchemaError(f"row {at}: {error}", hint=error.hint) from None
        values = list(row.values())
        return tuple(values[i] for i in order)
    raise _no_row(row, at, schema)


def _positional(own: Sequence[str], schema: Schema) -> bool:
    """Returns True if the fields have the names and the order of the columns.

    Python names a field `_1` if the column's name is not an identifier.
    """
    return len(own) == len(schema.names) and all(
        field == name or field == f"_{i}"
        for i, (field, name) in enumerate(zip(own, schema.names, strict=True))
    )


def _no_row(row: Any, at: int, schema: Schema) -> SchemaError:
    """Returns the error for an object that is not a row, with a hint."""
    if len(schema.names) == 1:
        remedy = f"write a tuple of one: ({_message_text(row)},)"
    elif is_pandas(row):
        remedy = "pass the table itself, not a list of it"
    else:
        remedy = "pass a single row as a list of one tuple: [(...)]"
    return SchemaError(f"row {at} is {_message_text(row)}, not a tuple or dict", hint=remedy)


_ndarray = np.ndarray
_chunked = pa.ChunkedArray
_INTEGERS_DTYPES = {type_: dtype for type_, dtype in FIXED.items() if dtype.kind == "i"}
_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def adopt_arrow(array: Any, type_: str) -> Column:
    """Returns the column of a foreign Arrow array; NaN stays NaN.

    Raises:
        MisfitError: at the first value that the type does not hold exactly.
        SchemaError: if rows cannot hold its Arrow type, or the array is not valid.

    Cost: one copy. Arrow casts and checks the values; only after an error are the values converted
    one by one, to find the one that does not fit.
    """
    if array.type == arrow_type(type_):
        return adopt_same_schema(array, type_)
    if isinstance(array.type, pa.BaseExtensionType):
        spark_type(array.type)  # raises for extensions whose storage has another meaning
    chunks = (
        checked_layout(array).chunks if array.__class__ is _chunked else [checked_layout(array)]
    )
    chunks = [plain_layout(chunk) for chunk in chunks or [pa.nulls(0, array.type)]]
    return _cast(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks), type_)


def adopt_same_schema(array: Any, type_: str) -> Column:
    """Returns the column of an Arrow array that has the requested type, as a copy."""
    if type_ in UNIT:
        array = single(checked_layout(array))
        if (arrow_buffers.numbers(array, FIXED[type_]) % UNIT[type_]).any():
            return build_column(array.to_pylist(), type_)  # raises, unless the value is null
    dtype = _INTEGERS_DTYPES.get(type_)
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
        return _copy(column)
    # Floats, booleans and objects are new arrays already; other numbers are in the caller's memory.
    return column if column.flags.owndata else column.copy()


def _copy(array: pa.Array) -> pa.Array:
    """Returns a copy of an Arrow array in new memory, in which nested floats are canonical."""
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
    """Returns the column of an array of another Arrow type, if its values fit exactly."""
    if _is_safe_cast(array.type, type_):
        try:
            column = checked_layout(array.cast(arrow_type(type_)))
            if type_ in INTEGERS and pa.types.is_floating(array.type) and _inexact(array):
                return build_column(array.to_pylist(), type_)  # its error names the value
            if not pa.types.is_floating(column.type) or not _overflows(column, array):
                return adopt_same_schema(column, type_)
        except _ARROW_ERRORS:
            pass
    try:
        values = array.to_pylist()
    except (ValueError, OverflowError) as error:
        raise SchemaError(
            f"cannot convert Arrow type {array.type} to {type_}: {error}",
            hint=f"cast it to {type_} first",
        ) from None
    return build_column(values, type_)


def _inexact(array: pa.Array) -> bool:
    """Returns True if floats reach the range in which not every integer is a float."""
    bounds = pc.min_max(array).as_py()
    return any(x is not None and abs(x) >= EXACT_WHOLE for x in bounds.values())


def _overflows(column: pa.Array, array: pa.Array) -> bool:
    """Returns True if a finite float became infinite when it was rounded."""
    if not pa.types.is_floating(array.type):
        return False
    return bool(pc.sum(pc.is_inf(column)) != pc.sum(pc.is_inf(array)))


def _is_safe_cast(source: pa.DataType, type_: str) -> bool:
    """Returns True if Arrow's safe cast accepts exactly the values that fit, and keeps them."""
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


def adopt_pandas(series: Any, type_: str) -> Column:
    """Returns the column of a pandas series; NaN, NaT, NA and None become null.

    Raises:
        MisfitError: at the first value that the type does not hold exactly.
        SchemaError: if NoSync exported the series, and it does not determine the exported values.
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
    except _ARROW_ERRORS:
        missing = series.isna().tolist()
        values = [None if gone else v for v, gone in zip(series.tolist(), missing, strict=True)]
        return build_column(values, type_)
    return adopt_arrow(array, type_)
