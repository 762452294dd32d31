"""Vectors, the inputs and results of kernels, and frames, the rows that vectors span.

A vector has values and a null mask. For a fixed type, the values are a numpy array of its dtype.
For a decimal, they are unscaled integers (rows/decimals.py). In both forms, the value of a null is
arbitrary. Text, bytes and nested types are an object array (None for null) in small frames, and a
`pa.Array` in large ones. A literal has a single scalar, which numpy broadcasts to the rows.

Floats in vectors need not be canonical: intermediate results may have -0.0 and any NaN. `to_column`
makes them canonical. A frame never mixes the two forms of text.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.expressions.kernels.reasons import Reason
from nosync_nb.expressions.typing_rules import is_decimal
from nosync_nb.rows import SMALL, Column, buffers, decimals
from nosync_nb.rows.types import FIXED, arrow_type, is_nested

Array = np.ndarray[Any, Any]
_ndarray = np.ndarray
_TEXTS = ("string", "binary")
_NOTHING = np.int64(0)


def no_nulls(type_: str, *, n: int, small: bool) -> Vector:
    """Returns a vector in which every value is null."""
    nulls = np.ones(n, np.bool_)
    dtype = FIXED.get(type_)
    if dtype is not None:
        return Vector(dtype.type(0), nulls)
    if is_decimal(type_):
        return Vector(_NOTHING, nulls)
    if small and not is_nested(type_):
        return Vector(np.full(n, None, object), nulls)
    return Vector(pa.nulls(n, pa.string() if type_ == "void" else arrow_type(type_)), nulls)


def spread_by_mask(values: Sequence[Any], type_: str) -> Array:
    """Converts Python values of a small frame to vector values; a null is None or any value."""
    dtype = FIXED.get(type_)
    if dtype is not None:
        return np.array(values, dtype)
    return decimals.unscaled_values(values) if is_decimal(type_) else rows.objects(values)


class Vector(NamedTuple):
    """Values and their null mask; `nulls` is None if no value is null."""

    values: Any
    nulls: Array | None


class RowError(Exception):
    """A value for which Spark raises an error, with its row in the root frame."""

    def __init__(self, reason: Reason, row: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row


class VectorFrame:
    """Rows on which an expression is evaluated; the vector of a column is built at first use."""

    def __init__(self, columns: Sequence[Column], types: Sequence[str], n: int) -> None:
        self.n = n
        self.small = n <= SMALL
        self._columns = columns
        self._types = types
        self._vectors: dict[int, Vector] = {}
        self._parent: VectorFrame | None = None
        self._at: Array | None = None

    def vector(self, i: int) -> Vector:
        """Returns the vector of column `i`."""
        vector = self._vectors.get(i)
        if vector is None:
            if self._parent is None or self._at is None:
                vector = load_column(self._columns[i], self._types[i], small=self.small)
            else:
                vector = select_rows(self._parent.vector(i), self._at)
            self._vectors[i] = vector
        return vector

    def null_mask(self, i: int) -> Array | None:
        """Returns the null mask of column `i`, even if its type has no vectors."""
        if self._types[i] in FIXED or self._types[i] in _TEXTS:
            return self.vector(i).nulls
        if self._parent is None or self._at is None:
            return rows.null_mask(self._columns[i])
        mask = self._parent.null_mask(i)
        return None if mask is None else mask[self._at]

    def subset(self, keep: Array) -> VectorFrame:
        """Returns the frame of the rows where `keep` is true."""
        at = keep.nonzero()[0]
        frame = VectorFrame(self._columns, self._types, len(at))
        frame.small = self.small
        frame._parent = self
        frame._at = at
        return frame

    def fail(self, reason: Reason, row: int) -> RowError:
        """Returns the error for a row of this frame."""
        frame = self
        while frame._parent is not None and frame._at is not None:
            row = int(frame._at[row])
            frame = frame._parent
        return frame.raised(reason, row)

    def raised(self, reason: Reason, row: int) -> RowError:
        """Returns the error for a row of a root frame."""
        return RowError(reason, row)


def select_rows(vector: Vector, at: Array) -> Vector:
    """Returns the vector of the rows at the given positions."""
    nulls = None if vector.nulls is None else vector.nulls[at]
    values = vector.values
    if isinstance(values, pa.Array):
        return Vector(values.take(buffers.arrow_from_numpy(at)), nulls)
    return Vector(values[at] if isinstance(values, _ndarray) and values.ndim else values, nulls)


def load_column(column: Column, type_: str, *, small: bool) -> Vector:
    """Returns the vector of a column, which may have any physical form."""
    dtype = FIXED.get(type_)
    if dtype is None:
        if is_decimal(type_):
            return Vector(*decimals.load_decimals(column, type_))
        return _load_text(column, type_, small)
    if type(column) is not _ndarray:
        return Vector(buffers.fixed_width_array(column, dtype), rows.null_mask(column))
    if not column.dtype.hasobject:
        return Vector(column, None)
    values = column.tolist()
    if None not in values:
        return Vector(np.array(values, dtype), None)
    nulls = np.fromiter([value is None for value in values], np.bool_, len(values))
    return Vector(np.array([0 if value is None else value for value in values], dtype), nulls)


def _load_text(column: Column, type_: str, small: bool) -> Vector:
    if small and type(column) is not _ndarray:
        column = rows.from_arrow(column, type_)
    elif not small:
        column = rows.to_arrow(column, type_)
    return Vector(column, rows.null_mask(column))


def full_vector(vector: Vector, n: int, type_: str) -> Any:
    """Returns the values as one array of `n` elements; a literal is repeated."""
    values = vector.values
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, _ndarray) and values.ndim:
        return values
    if is_decimal(type_):
        return decimals.unscaled_values([int(values)] * n)
    every = np.empty(n, FIXED.get(type_, np.dtype(object)))
    every[:] = [values] * n if isinstance(values, list) else values
    return every


def to_column(vector: Vector, type_: str, n: int) -> Column:
    """Returns the column of a vector in its physical form, with canonical floats."""
    dtype = FIXED.get(type_)
    nulls = vector.nulls
    if nulls is not None and not nulls.any():
        nulls = None
    if dtype is None:
        if is_decimal(type_):
            return decimals.store_decimals(full_vector(vector, n, type_), nulls, type_)
        return _text_column(vector, type_, n)
    values = full_vector(vector, n, type_)
    if dtype.kind == "f":
        values = canonical(values)
    elif values.dtype != dtype:
        values = values.astype(dtype)
    if nulls is None:
        return values
    if n <= SMALL:
        column = values.astype(object)
        column[nulls] = None
        return column
    array = buffers.arrow_from_numpy(values, nulls=nulls)
    return array if array.type == arrow_type(type_) else array.view(arrow_type(type_))


def _text_column(vector: Vector, type_: str, n: int) -> Column:
    values = full_vector(vector, n, type_)
    if isinstance(values, pa.Array):
        return values if n > SMALL else rows.from_arrow(values, type_)
    if vector.nulls is not None:
        values = values.copy()
        values[np.broadcast_to(vector.nulls, (n,))] = None
    return values if n <= SMALL else rows.to_arrow(values, type_)


def canonical(values: Array) -> Array:
    """Replaces -0.0 by 0.0 and every NaN by one NaN; returns the same array if nothing changes."""
    if len(values) <= 64:
        listed = values.tolist()
        total = sum(listed)
        if total == total and 0.0 not in listed:
            return values
    strange = values != values
    values = values + values.dtype.type(0)
    if strange.any():
        values[strange] = np.nan
    return values


def merge_nulls(left: Array | None, right: Array | None) -> Array | None:
    """Returns the null mask that is true where either mask is true."""
    if left is None:
        return right
    return left if right is None else left | right


class _Quiet(threading.local):
    """Runs functions without numpy's floating-point warnings.

    `np.errstate` costs 2 us at each entry. Running in a `contextvars` context in which the state is
    already set costs 0.1 us.
    """

    def __init__(self) -> None:
        self.run: Callable[..., Any] = contextvars.Context().run
        self.run(np.seterr, all="ignore")


quiet = _Quiet()
