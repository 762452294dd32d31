"""Converts between numpy, Python lists and Arrow by means of buffers.

The first call of `pa.array` or `Array.to_numpy` imports pandas, which would delay the session's
first epoch by half a second. The functions here avoid this import for the types that epochs
contain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Values: TypeAlias = np.ndarray[Any, Any]

_TEXTS = (pa.string(), pa.binary())
_NUMBERS: dict[pa.DataType, np.dtype[Any]] = {
    pa.from_numpy_dtype(d): np.dtype(d) for d in ("i1", "i2", "i4", "i8", "f4", "f8")
}
_NUMBERS[pa.duration("us")] = np.dtype("i8")
_WORDS: np.dtype[Any] = np.dtype((np.int64, 2))
_BOOLS: np.dtype[Any] = np.dtype(np.bool_)
_TIMES: dict[int, np.dtype[Any]] = {
    pa.types.lib.Type_DATE32: np.dtype(np.int32),
    pa.types.lib.Type_TIMESTAMP: np.dtype("i8"),
}


def arrow_from_numpy(
    values: Values, type_: pa.DataType | None = None, *, nulls: Values | None = None
) -> pa.Array:
    """Returns numbers or booleans as an Arrow array, sharing memory if possible.

    Args:
        type_: an Arrow type of the same width; by default the one that corresponds to the dtype.
        nulls: a mask of the values that become null.
    """
    values = np.ascontiguousarray(values)
    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    valid = None if nulls is None else _bits(~nulls)
    type_ = type_ or pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, len(values), [valid, pa.py_buffer(data)])


def arrow_from_list(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Returns checked Python values as an Arrow array, in which None becomes null."""
    nulls = None
    if None in values:
        nulls = np.fromiter([value is None for value in values], np.bool_, len(values))
    if type_ in _TEXTS:
        return _of_texts(values, type_, nulls)
    dtype = _BOOLS if type_ == pa.bool_() else _NUMBERS.get(type_, _TIMES.get(type_.id))
    if dtype is None:
        return pa.array(values, type_)
    given = values if nulls is None else [0 if value is None else value for value in values]
    return arrow_from_numpy(np.array(given, dtype), type_, nulls=nulls)


def _of_texts(values: Sequence[Any], type_: pa.DataType, nulls: Values | None) -> pa.Array:
    """Returns strings or bytes as an Arrow array, built from their buffers."""
    empty: Any = b"" if type_ == pa.binary() else ""
    given = values if nulls is None else [empty if value is None else value for value in values]
    blobs = given if type_ == pa.binary() else [value.encode() for value in given]
    ends = np.zeros(len(blobs) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, blobs), np.int64, len(blobs)), out=ends[1:])
    if int(ends[-1]) >= 2**31:
        return pa.array(values, type_)
    valid = None if nulls is None else _bits(~nulls)
    buffers = [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(blobs))]
    return pa.Array.from_buffers(type_, len(blobs), buffers)


def bools(array: pa.Array) -> Values:
    """Returns the values of a boolean array; nulls become false."""
    n = len(array)
    if not n:
        return np.zeros(0, np.bool_)
    valid, data = array.buffers()
    flags = _unpacked(data, array.offset, n)
    if array.null_count:
        flags = flags & _unpacked(valid, array.offset, n)
    return flags


def null_mask_of(array: pa.Array) -> Values:
    """Returns a mask of the nulls of an array that contains nulls."""
    return bools(array.is_null())


def numbers(array: pa.Array, dtype: Any) -> Values:
    """Returns an array's numbers without copying; the value of a null is arbitrary."""
    dtype = np.dtype(dtype)
    if not len(array):
        return np.zeros(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def decimal_words(array: pa.Array) -> Values:
    """Returns decimals as rows of two 64-bit numbers, the lower one first, without copying."""
    return numbers(array, _WORDS)


def fixed_width_array(array: pa.Array, dtype: np.dtype[Any]) -> Values:
    """Returns the values of an array of numbers or booleans; the value of a null is arbitrary."""
    return bools(array) if dtype.kind == "b" else numbers(array, dtype)


def bounds(array: pa.Array, dtype: Any = np.int32) -> Values:
    """Returns the start offset of each text or list, and the end of the last one."""
    dtype, n = np.dtype(dtype), len(array)
    if not n:
        return np.zeros(1, dtype)
    return np.frombuffer(array.buffers()[1], dtype, n + 1, array.offset * dtype.itemsize)


def values_of(array: pa.Array) -> Values:
    """Returns the values of an array without nulls as a numpy array."""
    if array.type == pa.bool_():
        return bools(array)
    dtype = _NUMBERS.get(array.type)
    return array.to_numpy(zero_copy_only=False) if dtype is None else numbers(array, dtype)


def text(value: str) -> pa.Scalar:
    """Returns a text as an Arrow scalar."""
    return arrow_from_list([value], pa.string())[0]


def _bits(values: Values) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _unpacked(data: pa.Buffer, offset: int, n: int) -> Values:
    """Returns the bits `[offset, offset + n)` of a buffer as booleans."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), count=offset + n, bitorder="little")
    return bits[offset:].view(np.bool_)
