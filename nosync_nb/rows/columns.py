"""Columns: the values of one name in many rows, in one of four physical forms.

1. A numpy array: fixed types without nulls (dates as days, timestamps as microseconds).
2. A numpy object array: small columns (at most `SMALL` rows) of text, of bytes, or with nulls;
   decimals up to 64 rows.
3. A `pa.Array` of `arrow_type(type)`: any column; the usual form of large columns, and the only one
   of nested columns.
4. A `pa.DictionaryArray`: large columns with few distinct texts, from part files (dictionary.py).

A column may have any form that its type allows, and every function here accepts all forms. The
forms exist for small batches: `pa.Array.take` costs 22 us, numpy's indexing 0.3 us. Columns are
never modified in place; results may share memory with arguments.

The module also estimates the size of values in bytes (`copied_bytes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from nosync_nb.errors import SchemaError
from nosync_nb.rows import buffers, decimals, dictionary
from nosync_nb.rows.arrow import (
    SMALL,
    Column,
    from_arrow,
    most_objects,
    objects,
    to_arrow,
    to_pylist,
)
from nosync_nb.rows.encoding import encode_column
from nosync_nb.rows.schema import widens
from nosync_nb.rows.types import FIXED, arrow_type, is_nested

__all__ = [
    "SMALL",
    "Column",
    "concat",
    "empty",
    "equal",
    "from_arrow",
    "full_null",
    "mask",
    "null_mask",
    "objects",
    "slice_",
    "take",
    "take_many",
    "to_arrow",
    "to_pylist",
    "widen",
]

_FEW = 64
_DECIMAL = pa.types.lib.Type_DECIMAL128
_BY_OFFSETS = (pa.string().id, pa.binary().id)
_ndarray = np.ndarray


def take(column: Column, index: np.ndarray[Any, Any]) -> Column:
    """Returns the values at the given positions (>= 0), in their order.

    Cost: numpy's indexing. For an Arrow column: a few us for up to 64 positions, regardless of the
    size of the column; Arrow's `take` for more.
    """
    if type(column) is _ndarray:
        return column[index]
    if len(index) <= _FEW and column.type.id in _BY_OFFSETS:
        return _take_text(column, index)
    if column.type.id == _DECIMAL:
        return decimals.take_decimals(column, index)
    if dictionary.is_dictionary(column):
        return (
            dictionary.take_codes(column, index)
            if len(index) > _FEW
            else _take_coded(column, index)
        )
    return column.take(buffers.arrow_from_numpy(index))


def take_many(column: Column, index: np.ndarray[Any, Any], type_: str) -> Column:
    """Returns values like `take`, as an Arrow array if they are too many for objects.

    Cost: that of `take`. A few objects are converted once and not once for each position.
    """
    if type(column) is _ndarray and column.dtype.hasobject and len(index) > most_objects(type_):
        column = to_arrow(column, type_)
    return take(column, index)


def _take_text(array: pa.Array, index: np.ndarray[Any, Any]) -> Column:
    """Returns a few values of a string or binary array as objects, copied from its buffers."""
    if not len(index):
        return np.empty(0, dtype=object)
    at = index.tolist() if not array.offset else (index + array.offset).tolist()
    values = _texts(array, at)
    if array.null_count:
        _blank(values, array.buffers()[0], at)
    return objects(values)


def _texts(array: pa.Array, at: list[int]) -> list[Any]:
    """Returns the strings or bytes at buffer positions; the value of a null is arbitrary."""
    _, offsets, data = array.buffers()
    ends = memoryview(offsets).cast("i")
    view = memoryview(data) if data is not None else b""
    if array.type.id == _BY_OFFSETS[0]:
        return [str(view[ends[i] : ends[i + 1]], "utf-8") for i in at]
    return [bytes(view[ends[i] : ends[i + 1]]) for i in at]


def _blank(values: list[Any], validity: pa.Buffer, at: list[int]) -> None:
    """Replaces values by None where the validity bitmap marks their position as null."""
    bits = memoryview(validity)
    for row, i in enumerate(at):
        if not bits[i >> 3] >> (i & 7) & 1:
            values[row] = None


def _take_coded(column: pa.DictionaryArray, index: np.ndarray[Any, Any]) -> Column:
    """Returns a few texts of a dictionary-encoded column as objects, copied from its buffers."""
    if not len(index):
        return np.empty(0, dtype=object)
    validity, codes = column.buffers()[:2]
    at = index.tolist() if not column.offset else (index + column.offset).tolist()
    held = memoryview(codes).cast("B")  # Arrow's bytes have a sign
    values = _texts(column.dictionary, [held[i] for i in at])
    if column.null_count:
        _blank(values, validity, at)
    return objects(values)


def mask(column: Column, keep: np.ndarray[Any, Any]) -> Column:
    """Returns the values where `keep` is true, in their order."""
    if type(column) is _ndarray:
        return column[keep]
    at = keep.nonzero()[0]
    if len(at) <= _FEW or column.type.id == _DECIMAL or dictionary.is_dictionary(column):
        return take(column, at)
    return column.filter(buffers.arrow_from_numpy(keep))


def slice_(column: Column, start: int, stop: int) -> Column:
    """Returns the values at `[start, stop)`, without copying."""
    if type(column) is _ndarray:
        return column[start:stop]
    return column.slice(start, stop - start)


def concat(columns: Sequence[Column], type_: str) -> Column:
    """Returns the concatenation of columns; without columns, an empty column.

    Cost: O(n). The result is an Arrow array if it has too many rows for objects.
    """
    if len(columns) == 1:
        return columns[0]
    if not columns:
        return empty(type_)
    for column in columns:
        if type(column) is not _ndarray:
            return _concat_arrow(columns, type_)
    column = np.concatenate(columns)
    if column.dtype.hasobject and len(column) > most_objects(type_):
        return from_arrow(to_arrow(column, type_), type_)
    return column


def _concat_arrow(columns: Sequence[Column], type_: str) -> Column:
    """Concatenates columns if at least one of them is an Arrow array."""
    columns = [column for column in columns if len(column)] or columns[:1]
    if len(columns) == 1:
        return columns[0]
    rows = sum(len(column) for column in columns)
    if rows <= most_objects(type_) and not is_nested(type_):
        forms = [c if type(c) is _ndarray else from_arrow(c, type_) for c in columns]
        return np.concatenate(forms)
    if all(type(column) is not _ndarray and dictionary.is_dictionary(column) for column in columns):
        together = dictionary.concat_dictionaries(columns)
        if together is not None:
            return together
    return from_arrow(pa.concat_arrays([to_arrow(column, type_) for column in columns]), type_)


def null_mask(column: Column) -> np.ndarray[Any, Any] | None:
    """Returns a mask of the nulls of a column; None if it has no null."""
    if type(column) is _ndarray:
        if not column.dtype.hasobject:
            return None
        values = column.tolist()
        if None not in values:
            return None
        return np.fromiter([value is None for value in values], np.bool_, len(values))
    if not column.null_count:
        return None
    return buffers.null_mask_of(column)


def equal(left: Column, right: Column, type_: str) -> np.ndarray[Any, Any]:
    """Returns a mask of the rows in which two columns of the same length are equal.

    Null equals null, NaN equals NaN, and -0.0 equals 0.0.

    Cost: one numpy comparison for numpy columns; a Python step for each value of nested columns,
    which are encoded.
    """
    if type(left) is _ndarray and type(right) is _ndarray:
        if not (left.dtype.hasobject or right.dtype.hasobject):
            return _equal_plain(left, right)
        return _equal_objects(left, right, type_)
    if is_nested(type_):
        pairs = zip(encode_column(left, type_), encode_column(right, type_), strict=True)
        return np.fromiter((a == b for a, b in pairs), np.bool_, len(left))
    if type_.startswith("decimal"):
        return decimals.equal(to_arrow(left, type_), to_arrow(right, type_))
    if len(left) <= SMALL:
        left = left if type(left) is _ndarray else from_arrow(left, type_)
        right = right if type(right) is _ndarray else from_arrow(right, type_)
        return equal(left, right, type_)
    return _equal_arrow(to_arrow(left, type_), to_arrow(right, type_), type_)


def _equal_plain(left: Any, right: Any) -> np.ndarray[Any, Any]:
    """Compares columns of fixed types without nulls; floats are compared by their bits."""
    if left.dtype.kind == "f":
        bits = np.int64 if left.dtype.itemsize == 8 else np.int32
        left, right = left.view(bits), right.view(bits)
    same: np.ndarray[Any, Any] = left == right
    return same


def _equal_objects(left: Any, right: Any, type_: str) -> np.ndarray[Any, Any]:
    """Compares object columns of one type by Python's equality, which is wrong only for NaN."""
    same: np.ndarray[Any, Any] = np.equal(left, right).astype(np.bool_, copy=False)
    if type_ in ("double", "float") and not same.all():
        same = same | (np.not_equal(left, left) & np.not_equal(right, right)).astype(np.bool_)
    return same


def _equal_arrow(left: pa.Array, right: pa.Array, type_: str) -> np.ndarray[Any, Any]:
    """Compares large Arrow columns of scalars."""
    equals = pc.equal(left, right)
    if type_ in ("double", "float"):
        equals = pc.or_(equals, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    same = buffers.bools(equals)
    if left.null_count and right.null_count:
        same = same | buffers.bools(pc.and_(left.is_null(), right.is_null()))
    return same


def empty(type_: str) -> Column:
    """Returns a column without rows."""
    dtype = FIXED.get(type_)
    if dtype is not None:
        return np.empty(0, dtype)
    return pa.nulls(0, arrow_type(type_)) if is_nested(type_) else np.empty(0, dtype=object)


def full_null(type_: str, n: int) -> Column:
    """Returns a column of `n` nulls."""
    if is_nested(type_) or n > SMALL:
        return pa.nulls(n, arrow_type(type_))
    return np.full(n, None, dtype=object)


def widen(column: Column, old: str, new: str) -> Column:
    """Returns the values as a column of a wider type (see `widens`).

    Raises:
        SchemaError: if `new` does not hold every value of `old`.
    """
    if old == new:
        return column
    if not widens(old, new):
        raise SchemaError(f"{old} does not widen to {new}", hint="cast it in an expression")
    dtype = FIXED.get(new)
    if type(column) is not _ndarray or dtype is None:
        return from_arrow(to_arrow(column, old).cast(arrow_type(new)), new)
    if not column.dtype.hasobject:
        return column.astype(dtype)
    if dtype.kind == "f":
        return objects([None if value is None else float(value) for value in column.tolist()])
    return column


Sizes = npt.NDArray[np.int64]

_OFFSET = 8


def copied_bytes(columns: Sequence[Column], types: Sequence[str], counts: Sizes) -> int:
    """Returns the size in bytes of rows that are repeated, each as often as its count says.

    Cost: O(n), a few ns for each row.
    """
    total = 0
    copies = sum(counts.tolist()) if int(counts.max()) > 2**62 // len(counts) else int(counts.sum())
    for column, type_ in zip(columns, types, strict=True):
        if type_ in FIXED:
            total += copies * FIXED[type_].itemsize
        else:
            total += int(np.dot(_sizes(to_arrow(column, type_)).astype(np.float64), counts))
    return total


def _sizes(array: pa.Array) -> Sizes:
    """Returns the size in bytes of each value of an array; the size of a null is arbitrary."""
    type_ = array.type
    if kinds.is_struct(type_):
        whole: Sizes = sum(
            (_sizes(each) for each in array.flatten()), np.zeros(len(array), np.int64)
        )
        return whole
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_map(type_):
        offsets = array.offsets.to_numpy(zero_copy_only=False)
        if kinds.is_map(type_):
            inner = _sizes(array.keys) + _sizes(array.items)
        else:
            inner = _sizes(array.values)
        ends = np.concatenate([[0], inner.cumsum()])
        return np.asarray(ends[offsets[1:]] - ends[offsets[:-1]] + _OFFSET, np.int64)
    with suppress(ValueError):  # raised for a type without a fixed width
        return np.full(len(array), max(type_.bit_width // 8, 1), np.int64)
    lengths: Any = pc.fill_null(pc.binary_length(array), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64) + _OFFSET
