"""Decimals as unscaled integers: in numpy's int64 if all fit, otherwise as Python integers.

`12.50` of decimal(10,2) is 1250. Exact arithmetic of decimals is integer arithmetic of these
numbers. They are not a physical form of a column: `load_decimals` and `store_decimals` convert from
and to the forms of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context
from decimal import Decimal as Exact
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.rows import buffers
from nosync_nb.rows.arrow import FEW_DECIMALS, Column, objects
from nosync_nb.rows.types import arrow_type, decimal_parts

Wholes = np.ndarray[Any, Any]
"""An array of int64, or of Python integers as objects."""

_EXACTLY = Context(prec=80)
_LOW = 2**64 - 1
_BYTES = np.dtype("V16")
_NOUGHT = Exact(0)


def unscaled_values(values: Sequence[int]) -> Wholes:
    """Returns Python integers as int64 if all fit, otherwise as objects."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        result: Wholes = objects(values)
        return result


def load_decimals(column: Column, type_: str) -> tuple[Wholes, Wholes | None]:
    """Returns the unscaled integers of a column, 0 for nulls, and its null mask.

    The mask is None if there are no nulls.

    Cost: about 0.2 us for each Python decimal. An Arrow column is converted in numpy, unless a
    value needs more than 64 bits.
    """
    if not isinstance(column, np.ndarray):
        return _of_arrow(column)
    places = decimal_parts(type_)[1]
    values, nulls = column.tolist(), None
    if None in values:
        nulls = np.fromiter([value is None for value in values], np.bool_, len(values))
        values = [_NOUGHT if value is None else value for value in values]
    return unscaled_values([*map(int, map(_EXACTLY.scaleb, values, repeat(places)))]), nulls


def _of_arrow(array: pa.Array) -> tuple[Wholes, Wholes | None]:
    n = len(array)
    nulls = buffers.null_mask_of(array) if array.null_count else None
    if not n:
        return np.zeros(0, np.int64), nulls
    pairs = np.frombuffer(array.buffers()[1], np.int64, 2 * n, 16 * array.offset).reshape(n, 2)
    low, high = pairs[:, 0], pairs[:, 1]
    if nulls is not None:
        low, high = np.where(nulls, 0, low), np.where(nulls, 0, high)
    if (high == low >> 63).all():
        return np.ascontiguousarray(low), nulls
    return (high.astype(object) << 64) + low.astype(np.uint64).astype(object), nulls


def take_decimals(array: pa.Array, index: np.ndarray[Any, Any]) -> pa.Array:
    """Returns the values of an Arrow column at the given positions.

    Cost: numpy's indexing and a few us, less than Arrow's `take`.
    """
    n = len(index)
    if not n:
        return array.slice(0, 0)
    data = np.frombuffer(array.buffers()[1], _BYTES, len(array), 16 * array.offset)[index]
    valid = None
    if array.null_count:
        nulls = buffers.null_mask_of(array)[index]
        valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(array.type, n, [valid, pa.py_buffer(data)])


def equal(left: pa.Array, right: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns a mask of the equal values of two Arrow columns of one type; null equals null."""
    if not len(left):
        return np.zeros(0, np.bool_)
    a, b = buffers.decimal_words(left), buffers.decimal_words(right)
    same: np.ndarray[Any, np.dtype[np.bool_]] = (a[:, 0] == b[:, 0]) & (a[:, 1] == b[:, 1])
    if not left.null_count and not right.null_count:
        return same
    a_null, b_null = buffers.null_mask_of(left), buffers.null_mask_of(right)
    return np.where(a_null | b_null, a_null & b_null, same)


def store_decimals(values: Wholes, nulls: Wholes | None, type_: str) -> Column:
    """Returns the column of unscaled integers, in the form for its number of rows."""
    if len(values) > FEW_DECIMALS:
        return _to_arrow(values, nulls, type_)
    places = -decimal_parts(type_)[1]
    scaled = _EXACTLY.scaleb
    result = objects([scaled(Exact(value), places) for value in values.tolist()])
    if nulls is not None:
        result[nulls] = None
    return result


def _to_arrow(values: Wholes, nulls: Wholes | None, type_: str) -> pa.Array:
    pairs = np.empty((len(values), 2), np.int64)
    if values.dtype.hasobject:
        if nulls is not None:
            values = np.where(nulls, 0, values)
        pairs[:, 0] = (values & _LOW).astype(np.uint64).view(np.int64)
        pairs[:, 1] = (values >> 64).astype(np.int64)
    else:
        pairs[:, 0] = values
        pairs[:, 1] = values >> 63
    valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(arrow_type(type_), len(values), [valid, pa.py_buffer(pairs)])
