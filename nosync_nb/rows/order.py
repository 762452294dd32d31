"""The canonical order of rows: null first, NaN greatest, text by bytes, then the next column.

It is the order of `encode`, computed on whole columns: every column is turned into unsigned codes
of 64 bits that are ordered as its values are. Codes decide alone where they are exact; text longer
than 8 bytes, wide decimals and nested values are decided by Arrow's byte order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.rows import buffers, decimals
from nosync_nb.rows.arrow import Column, from_arrow, to_arrow
from nosync_nb.rows.columns import equal, null_mask, take
from nosync_nb.rows.encoding import encode, encode_column
from nosync_nb.rows.types import FIXED, FLOATS, decimal_parts, is_nested

__all__ = [
    "CodesOf",
    "Ordering",
    "encode",
    "exact_codes",
    "order_codes",
    "ordered",
    "sort_indices",
]

Codes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

CodesOf: TypeAlias = Callable[[Any], Codes]
"""A function from a slice or positions to the codes of these rows."""

Ordering: TypeAlias = Sequence[tuple[int, bool]]
"""Positions of columns, and True if their order is descending."""

_SIGN = np.uint64(1 << 63)
_HEADS = np.array([(1 << 64) - (1 << 64 - 8 * n) for n in range(9)], np.uint64)
"""The masks of the first 0 to 8 of 8 bytes."""
_LONG_DIGITS = 18
_FEW = 96
_ndarray = np.ndarray


def order_codes(column: Column, type_: str) -> Codes:
    """Returns a number per value that never contradicts the order of values; null is 0.

    Equal codes mean equal values for fixed types and decimals up to 18 digits, except that null and
    the least bigint or timestamp share 0. For text, bytes and nested values codes are the first 8
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
        return _text_codes(to_arrow(column, type_))
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
        codes: Codes = (bits ^ ((bits >> 63) | np.int64(-(1 << 63)))).view(np.uint64)
    else:
        codes = column.astype(np.int64, copy=False).view(np.uint64) ^ _SIGN
    if missing is not None:
        codes[missing] = 0
    return codes


def _filled(column: Column, type_: str, missing: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a fixed column as numpy with any value where it is null."""
    dtype = FIXED[type_]
    if type(column) is _ndarray:
        return np.array([0 if value is None else value for value in column.tolist()], dtype)
    return buffers.fixed_width_array(column, dtype)


def _decimal_codes(column: Column, type_: str) -> Codes:
    """Returns the unscaled integers, or beyond 18 digits their nearest doubles, as codes."""
    numbers, nulls = decimals.load_decimals(column, type_)
    if decimal_parts(type_)[0] <= _LONG_DIGITS:
        codes = _fixed_codes(numbers, "bigint")
    else:
        codes = _fixed_codes(numbers.astype(np.float64), "double")
    if nulls is not None:
        codes[nulls] = 0
    return codes


def _text_codes(array: pa.Array, skip: int = 0) -> Codes:
    """Returns 8 bytes of each value of an array, from the given one on, as a big-endian number.

    Missing bytes are 0. Cost: one unaligned read a value, some 10 ns.
    """
    n = len(array)
    if not n:
        return np.zeros(0, np.uint64)
    ends, data = buffers.bounds(array), array.buffers()[2]
    first, size = int(ends[0]), int(ends[-1] - ends[0])
    held = np.zeros(size + 8, np.uint8)
    if size:
        held[:size] = np.frombuffer(data, np.uint8, size, first)
    words: Codes = np.ndarray((size + 1,), ">u8", held.data, strides=(1,))
    left = ends[1:] - ends[:-1]
    if skip:
        left -= np.int32(skip)
    at = ends[:-1].astype(np.int64) + (skip - first)
    codes: Codes = words[np.minimum(at, size, out=at)].astype(np.uint64)
    if int(left.min()) < 8:
        np.minimum(np.maximum(left, 0, out=left), 8, out=left)
        codes &= _HEADS[left]
    missing = null_mask(array)
    if missing is not None:
        codes[missing] = 0
    return codes


def exact_codes(column: Column, type_: str) -> Iterator[CodesOf] | None:
    """Returns functions to codes that decide together, each among rows that are equal so far.

    Wide decimals and nested values have no such codes: None.
    """
    if is_nested(type_) or (type_.startswith("decimal") and decimal_parts(type_)[0] > _LONG_DIGITS):
        return None
    return _deciding(column, type_)


def _deciding(column: Column, type_: str) -> Iterator[CodesOf]:
    """Yields the codes of a type that has exact ones: of presence, of the value, of its length."""
    if null_mask(column) is not None:
        yield lambda index: _present(_part(column, index))
    if type_ not in ("string", "binary"):
        yield lambda index: order_codes(_part(column, index), type_)
        return
    text = to_arrow(column, type_)
    longest = int(_lengths(text).max(initial=0))
    for skip in range(0, longest, 8):
        yield lambda index, skip=skip: _text_codes(_part(text, index), skip)  # type: ignore[misc]
    yield lambda index: _lengths(_part(text, index)).astype(np.uint64)


def _part(column: Column, index: Any) -> Column:
    """Returns a slice of a column, or the values at positions."""
    if type(column) is _ndarray:
        return column[index]
    if isinstance(index, slice):
        return column.slice(index.start, index.stop - index.start)
    return column.take(buffers.arrow_from_numpy(index))


def _present(column: Column) -> Codes:
    """Returns 1 for values and 0 for null."""
    missing = null_mask(column)
    n = len(column)
    return np.ones(n, np.uint64) if missing is None else (~missing).astype(np.uint64)


def _lengths(text: pa.Array) -> np.ndarray[Any, Any]:
    """Returns the number of bytes of each value."""
    return np.diff(buffers.bounds(text))


def ordered(
    columns: Sequence[Column], types: Sequence[str], ordering: Ordering = ()
) -> np.ndarray[Any, Any]:
    """Returns the positions of the rows in an order, ties in canonical order.

    Cost: O(n log n) for each column.
    """
    order = sort_indices(columns, types)
    for place, descending in reversed(ordering):
        part, type_ = take(columns[place], order), types[place]
        ascending = sort_indices([part], (type_,))
        order = order[_reversed(part, ascending, type_) if descending else ascending]
    return order


def _reversed(column: Column, ascending: Any, type_: str) -> Any:
    """Returns the order from greatest to least; equal values keep their order."""
    n = len(ascending)
    if not n:
        return ascending
    sorted_ = take(column, ascending)
    every = np.arange(n - 1)
    new = np.ones(n, np.int64)
    new[1:] = ~equal(take(sorted_, every), take(sorted_, every + 1), type_)
    return ascending[np.argsort(-new.cumsum(), kind="stable")]


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
    arrays = [buffers.arrow_from_numpy(key) if type(key) is _ndarray else key for key in flat]
    table = pa.Table.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])
    order = [(name, "ascending") for name in table.column_names]
    indices = pc.sort_indices(table, sort_keys=order)
    return buffers.numbers(indices, np.uint64).astype(np.int64)


def _keys(column: Column, type_: str) -> list[Any]:
    """Returns the sort keys of a column: codes, or text in Arrow; null has a key of its own."""
    missing = null_mask(column)
    if type_ in FIXED and FIXED[type_].itemsize < 8:
        return [order_codes(column, type_)]
    if type_ in FIXED or (type_.startswith("decimal") and decimal_parts(type_)[0] <= _LONG_DIGITS):
        codes = order_codes(column, type_)
        if missing is None or type_ == "double":
            return [codes]
        return [(~missing).astype(np.uint64), codes]
    if type_.startswith("decimal"):
        return _wide_decimal_keys(to_arrow(column, type_), missing)
    if is_nested(type_):
        return [buffers.arrow_from_list(encode_column(column, type_), pa.binary())]
    text = to_arrow(column, type_)
    if missing is None:
        return [text]
    return [
        (~missing).astype(np.uint64),
        text.fill_null(buffers.arrow_from_list(["" if type_ == "string" else b""], text.type)[0]),
    ]


def _wide_decimal_keys(array: pa.Array, missing: np.ndarray[Any, Any] | None) -> list[Any]:
    """Returns the sort keys of wide decimals: their upper 64 bits, then the lower ones."""
    words = buffers.decimal_words(array).view(np.uint64)
    keys = [words[:, 1] ^ _SIGN, words[:, 0]]
    if missing is None:
        return keys
    return [(~missing).astype(np.uint64), *(np.where(missing, np.uint64(0), key) for key in keys)]


def _sort_few(columns: Sequence[Column], types: Sequence[str]) -> np.ndarray[Any, Any]:
    """Sorts few rows by Python's comparison, which orders text by code points as UTF-8 does."""
    keys = [_comparable(column, type_) for column, type_ in zip(columns, types, strict=True)]
    rows = keys[0] if len(keys) == 1 else list(zip(*keys, strict=True))
    return np.array(sorted(range(len(rows)), key=rows.__getitem__), np.int64)


def _comparable(column: Column, type_: str) -> list[Any]:
    """Returns Python values that compare as the values of the column do."""
    if is_nested(type_):
        return encode_column(column, type_)
    if type(column) is not _ndarray and type_.startswith("decimal"):
        return _comparable_wholes(column, type_)
    if type(column) is not _ndarray:
        column = from_arrow(column, type_)
    values: list[Any] = column.tolist()
    if column.dtype.kind == "f" or (type_ in FLOATS and column.dtype.hasobject):
        values = order_codes(column, type_).tolist()
    elif None in values:
        values = [(False,) if value is None else (True, value) for value in values]
    return values


def _comparable_wholes(column: Column, type_: str) -> list[Any]:
    """Returns such values for decimals in Arrow."""
    numbers, nulls = decimals.load_decimals(column, type_)
    values: list[Any] = numbers.tolist()
    if nulls is None:
        return values
    pairs = zip(values, nulls.tolist(), strict=True)
    return [(False,) if gone else (True, value) for value, gone in pairs]
