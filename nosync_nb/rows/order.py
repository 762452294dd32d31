"""The canonical order of rows: null first, NaN greatest, text by bytes, then the next column.

It is the order of `encode`, computed on whole columns: every column is turned into unsigned codes
of 64 bits that are ordered as its values are. Codes decide alone where they are exact; text longer
than 8 bytes, wide decimals and nested values are decided by Arrow's byte order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.rows import bridge
from nosync_nb.rows.arrow import Column, from_arrow, objects, to_arrow
from nosync_nb.rows.columns import null_mask
from nosync_nb.rows.encoding import encode, encode_column, unscaled
from nosync_nb.rows.types import FIXED, FLOATS, decimal_parts, is_nested

__all__ = ["encode", "order_codes", "sort_indices"]

Codes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

_SIGN = np.uint64(1 << 63)
_LONG_DIGITS = 18
_FEW = 96
_ndarray = np.ndarray


def order_codes(column: Column, type_: str) -> Codes:
    """Returns a number per value that never contradicts the order of values; null is 0.

    Equal codes mean equal values for fixed types and decimals up to 18 digits, but that null and
    the least bigint or timestamp share 0; for text, bytes and nested values they are the first 8
    bytes, for wider decimals a rounding. Codes of one type may be compared across columns.

    Cost: fixed types O(n) in numpy; objects and nested values O(n) Python steps.
    """
    if type_ in FIXED:
        return _fixed_codes(column, type_)
    if type_.startswith("decimal"):
        return _decimal_codes(column, type_)
    if is_nested(type_):
        heads = [code[:8] for code in encode_column(column, type_)]
    elif type(column) is _ndarray:
        values = column.tolist()
        if type_ == "string":
            values = ["" if value is None else value[:8] for value in values]
            heads = [value.encode()[:8] for value in values]
        else:
            heads = [b"" if value is None else value[:8] for value in values]
    else:
        return _text_codes(column)
    joined = b"".join([head.ljust(8, b"\0") for head in heads])
    return np.frombuffer(joined, ">u8").astype(np.uint64)


def _fixed_codes(column: Column, type_: str) -> Codes:
    """Returns the codes of a fixed type."""
    missing = null_mask(column)
    if missing is not None:
        column = _filled(column, type_, missing)
    elif type(column) is not _ndarray or column.dtype.hasobject:
        column = _filled(column, type_, np.zeros(len(column), np.bool_))
    if column.dtype.kind == "f":
        bits = column.astype(np.float64).view(np.int64)
        codes = (bits ^ ((bits >> 63) | np.int64(-(1 << 63)))).view(np.uint64)
    else:
        codes = column.astype(np.int64).view(np.uint64) ^ _SIGN
    if missing is not None:
        codes[missing] = 0
    found: Codes = codes
    return found


def _filled(column: Column, type_: str, missing: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a fixed column as numpy with some value where it is null."""
    dtype = FIXED[type_]
    if type(column) is _ndarray:
        return np.array([0 if value is None else value for value in column.tolist()], dtype)
    if type_ == "boolean":
        return bridge.bools(column)
    start = column.offset * dtype.itemsize
    return np.frombuffer(column.buffers()[1], dtype, len(column), start)


def _decimal_codes(column: Column, type_: str) -> Codes:
    """Returns the unscaled integers, or beyond 18 digits their nearest doubles, as codes."""
    precision, scale = decimal_parts(type_)
    values = column.tolist() if type(column) is _ndarray else column.to_pylist()
    numbers = [None if value is None else unscaled(value, scale) for value in values]
    if precision <= _LONG_DIGITS:
        return _fixed_codes(objects(numbers), "bigint")
    return _fixed_codes(objects([None if v is None else float(v) for v in numbers]), "double")


def _text_codes(array: pa.Array) -> Codes:
    """Returns the first 8 bytes of each value of an array as a big-endian number."""
    _, offsets, data = array.buffers()
    n = len(array)
    ends = np.frombuffer(offsets, np.int32, n + 1, array.offset * 4).astype(np.int64)
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, "u1")
    lengths = np.diff(ends)
    codes = np.zeros(n, np.uint64)
    for i in range(8):
        rows = np.flatnonzero(lengths > i)
        if not len(rows):
            break
        codes[rows] |= held[ends[rows] + i].astype(np.uint64) << np.uint64(56 - 8 * i)
    missing = null_mask(array)
    if missing is not None:
        codes[missing] = 0
    return codes


def sort_indices(columns: Sequence[Column], types: Sequence[str]) -> np.ndarray[Any, Any]:
    """Returns the positions of the rows in canonical order; equal rows keep theirs.

    Cost: O(n log n); few rows in Python, numbers in numpy, text in Arrow.
    """
    if not columns:
        return np.empty(0, np.int64)
    if len(columns[0]) <= _FEW:
        return _sort_few(columns, types)
    keys = [_keys(column, type_) for column, type_ in zip(columns, types, strict=True)]
    flat = [part for parts in keys for part in parts]
    if all(type(part) is _ndarray for part in flat):
        return np.argsort(flat[0], kind="stable") if len(flat) == 1 else np.lexsort(flat[::-1])
    arrays = [bridge.of_numpy(key) if type(key) is _ndarray else key for key in flat]
    table = pa.Table.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])
    order = [(name, "ascending") for name in table.column_names]
    found = pc.sort_indices(table, sort_keys=order)
    return bridge.numbers(found, np.uint64).astype(np.int64)


def _keys(column: Column, type_: str) -> list[Any]:
    """Returns what orders a column: codes, or text in Arrow; null has a key of its own."""
    missing = null_mask(column)
    if type_ in FIXED and FIXED[type_].itemsize < 8:
        return [order_codes(column, type_)]
    if type_ in FIXED or (type_.startswith("decimal") and decimal_parts(type_)[0] <= _LONG_DIGITS):
        codes = order_codes(column, type_)
        if missing is None or type_ == "double":
            return [codes]
        return [(~missing).astype(np.uint64), codes]
    if is_nested(type_) or type_.startswith("decimal"):
        return [bridge.of_list(encode_column(column, type_), pa.binary())]
    text = to_arrow(column, type_)
    if missing is None:
        return [text]
    return [
        (~missing).astype(np.uint64),
        text.fill_null(bridge.of_list(["" if type_ == "string" else b""], text.type)[0]),
    ]


def _sort_few(columns: Sequence[Column], types: Sequence[str]) -> np.ndarray[Any, Any]:
    """Sorts few rows by Python's comparison, which orders text by code points as UTF-8 does."""
    keys = [_comparable(column, type_) for column, type_ in zip(columns, types, strict=True)]
    rows = keys[0] if len(keys) == 1 else list(zip(*keys, strict=True))
    return np.array(sorted(range(len(rows)), key=rows.__getitem__), np.int64)


def _comparable(column: Column, type_: str) -> list[Any]:
    """Returns Python values that compare as the values of the column do."""
    if is_nested(type_):
        return encode_column(column, type_)
    if type(column) is not _ndarray:
        column = from_arrow(column, type_)
    values: list[Any] = column.tolist()
    if column.dtype.kind == "f" or (type_ in FLOATS and column.dtype.hasobject):
        values = order_codes(column, type_).tolist()
    elif None in values:
        values = [(False,) if value is None else (True, value) for value in values]
    return values
