"""The canonical order of rows: null first, NaN greatest, text by bytes, then the next column.

It is the order of `encode`, computed on whole columns: every column is converted to unsigned 64-bit
codes in the order of its values. Where codes are exact, they decide alone. Text of more than 8
bytes, wide decimals and nested values are compared by Arrow in the order of their bytes.
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
"""A function that returns the codes of some rows, given by a slice or by their positions."""

Ordering: TypeAlias = Sequence[tuple[int, bool]]
"""The positions of columns, each with True if its order is descending."""

_SIGN = np.uint64(1 << 63)
_HEADS = np.array([(1 << 64) - (1 << 64 - 8 * n) for n in range(9)], np.uint64)
"""Masks that keep the first 0 to 8 bytes of a big-endian 64-bit number."""
_LONG_DIGITS = 18
_FEW = 96
_ndarray = np.ndarray


def order_codes(column: Column, type_: str) -> Codes:
    """Returns a number per value that never contradicts the order of values; null is 0.

    For fixed types and decimals up to 18 digits, equal codes mean equal values, with one exception:
    null and the least bigint or timestamp have the code 0. The codes of text, bytes and nested
    values are their first 8 bytes, and the codes of wider decimals are rounded. Codes of one type
    may be compared across columns.

    Cost: O(n) in numpy for fixed types; a Python step for each object or nested value.
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
    """Returns the codes of a column of a fixed type."""
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
    """Returns a fixed column as a numpy array; the value of a null is arbitrary."""
    dtype = FIXED[type_]
    if type(column) is _ndarray:
        return np.array([0 if value is None else value for value in column.tolist()], dtype)
    return buffers.fixed_width_array(column, dtype)


def _decimal_codes(column: Column, type_: str) -> Codes:
    """Returns the codes of unscaled integers, or of the nearest doubles beyond 18 digits."""
    numbers, nulls = decimals.load_decimals(column, type_)
    if decimal_parts(type_)[0] <= _LONG_DIGITS:
        codes = _fixed_codes(numbers, "bigint")
    else:
        codes = _fixed_codes(numbers.astype(np.float64), "double")
    if nulls is not None:
        codes[nulls] = 0
    return codes


def _text_codes(array: pa.Array, skip: int = 0) -> Codes:
    """Returns the 8 bytes of each value that follow `skip` bytes, as a big-endian number.

    Missing bytes are 0.

    Cost: one unaligned read for each value, about 10 ns.
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
    """Returns functions whose codes together decide the order of values, or None.

    Each function decides among rows that are equal by the previous ones. Wide decimals and nested
    values have no such codes.
    """
    if is_nested(type_) or (type_.startswith("decimal") and decimal_parts(type_)[0] > _LONG_DIGITS):
        return None
    return _deciding(column, type_)


def _deciding(column: Column, type_: str) -> Iterator[CodesOf]:
    """Yields the code functions of a type with exact codes: presence, value, length of text."""
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
    """Returns 1 for each value, and 0 for each null."""
    missing = null_mask(column)
    n = len(column)
    return np.ones(n, np.uint64) if missing is None else (~missing).astype(np.uint64)


def _lengths(text: pa.Array) -> np.ndarray[Any, Any]:
    """Returns the number of bytes of each value."""
    return np.diff(buffers.bounds(text))


def ordered(
    columns: Sequence[Column], types: Sequence[str], ordering: Ordering = ()
) -> np.ndarray[Any, Any]:
    """Returns the positions of the rows in an order; ties are in canonical order.

    Cost: O(n log n) for each column.
    """
    order = sort_indices(columns, types)
    for place, descending in reversed(ordering):
        part, type_ = take(columns[place], order), types[place]
        ascending = sort_indices([part], (type_,))
        order = order[_reversed(part, ascending, type_) if descending else ascending]
    return order


def _reversed(column: Column, ascending: Any, type_: str) -> Any:
    """Returns the positions in descending order; equal values keep their order."""
    n = len(ascending)
    if not n:
        return ascending
    sorted_ = take(column, ascending)
    every = np.arange(n - 1)
    new = np.ones(n, np.int64)
    new[1:] = ~equal(take(sorted_, every), take(sorted_, every + 1), type_)
    return ascending[np.argsort(-new.cumsum(), kind="stable")]


def sort_indices(columns: Sequence[Column], types: Sequence[str]) -> np.ndarray[Any, Any]:
    """Returns the positions of the rows in canonical order; equal rows keep their order.

    Cost: O(n log n); few rows are sorted in Python, numbers in numpy, and text in Arrow.
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
    """Returns the sort keys of a column: codes, or text in Arrow, perhaps after a key for nulls."""
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
    """Returns the sort keys of wide decimals: the upper 64 bits, then the lower ones."""
    words = buffers.decimal_words(array).view(np.uint64)
    keys = [words[:, 1] ^ _SIGN, words[:, 0]]
    if missing is None:
        return keys
    return [(~missing).astype(np.uint64), *(np.where(missing, np.uint64(0), key) for key in keys)]


def _sort_few(columns: Sequence[Column], types: Sequence[str]) -> np.ndarray[Any, Any]:
    """Sorts few rows by Python's comparison, which has the same order for text as UTF-8 bytes."""
    keys = [_comparable(column, type_) for column, type_ in zip(columns, types, strict=True)]
    rows = keys[0] if len(keys) == 1 else list(zip(*keys, strict=True))
    return np.array(sorted(range(len(rows)), key=rows.__getitem__), np.int64)


def _comparable(column: Column, type_: str) -> list[Any]:
    """Returns Python values that compare like the values of the column."""
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
    """Returns Python values that compare like the decimals of an Arrow column."""
    numbers, nulls = decimals.load_decimals(column, type_)
    values: list[Any] = numbers.tolist()
    if nulls is None:
        return values
    pairs = zip(values, nulls.tolist(), strict=True)
    return [(False,) if gone else (True, value) for value, gone in pairs]
