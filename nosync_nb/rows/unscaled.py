"""Decimals as whole numbers of their last place: numpy's int64 where all fit, else Python's.

`12.50` of decimal(10,2) is 1250. Arithmetic over decimals is exact arithmetic over these. They are
no physical form of a column: `load` and `store` go between them and the forms of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context
from decimal import Decimal as Exact
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.rows import bridge
from nosync_nb.rows.arrow import SMALL, Column, objects
from nosync_nb.rows.types import arrow_type, decimal_parts

Wholes = np.ndarray[Any, Any]
"""An array of int64, or of Python's integers as objects."""

_EXACTLY = Context(prec=80)
_LOW = 2**64 - 1


def wholes(values: Sequence[int]) -> Wholes:
    """Returns Python integers as int64 if all fit, else as objects."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        made: Wholes = objects(values)
        return made


def load(column: Column, type_: str) -> tuple[Wholes, Wholes | None]:
    """Returns a column's whole numbers, 0 where it is null, and where that is (None: nowhere).

    Cost: objects some 0.2 us a value; Arrow O(n) vectorised, unless a value is beyond 64 bits.
    """
    if not isinstance(column, np.ndarray):
        return _of_arrow(column)
    places = decimal_parts(type_)[1]
    values = column.tolist()
    scaled = _EXACTLY.scaleb
    if None not in values:
        return wholes([int(scaled(value, places)) for value in values]), None
    nulls = np.fromiter([value is None for value in values], np.bool_, len(values))
    return wholes([0 if v is None else int(scaled(v, places)) for v in values]), nulls


def _of_arrow(array: pa.Array) -> tuple[Wholes, Wholes | None]:
    n = len(array)
    nulls = bridge.null_mask_of(array) if array.null_count else None
    if not n:
        return np.zeros(0, np.int64), nulls
    pairs = np.frombuffer(array.buffers()[1], np.int64, 2 * n, 16 * array.offset).reshape(n, 2)
    low, high = pairs[:, 0], pairs[:, 1]
    if nulls is not None:
        low, high = np.where(nulls, 0, low), np.where(nulls, 0, high)
    if (high == low >> 63).all():
        return np.ascontiguousarray(low), nulls
    return (high.astype(object) << 64) + low.astype(np.uint64).astype(object), nulls


def store(values: Wholes, nulls: Wholes | None, type_: str) -> Column:
    """Returns the column of whole numbers that fit the type, in the form of its size."""
    if len(values) > SMALL:
        return _to_arrow(values, nulls, type_)
    places = -decimal_parts(type_)[1]
    scaled = _EXACTLY.scaleb
    made = objects([scaled(Exact(value), places) for value in values.tolist()])
    if nulls is not None:
        made[nulls] = None
    return made


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
