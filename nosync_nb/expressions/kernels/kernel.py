"""Kernels: proved functions over values that do not handle nulls.

A kernel receives the values of its arguments, but not their null masks. A strict function is null
where an argument is null, and the result of the kernel there is discarded.

Text kernels run over vectors: row by row in small frames, and once for each distinct row in large
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.expressions.kernels.reasons import Reason
from nosync_nb.expressions.kernels.vectors import (
    Array,
    Vector,
    VectorFrame,
    merge_nulls,
    no_nulls,
    spread_by_mask,
)
from nosync_nb.expressions.typing_rules import is_decimal
from nosync_nb.rows import buffers
from nosync_nb.rows.types import FIXED, arrow_type

Bounds = tuple[int, int]


@dataclass(frozen=True)
class Check:
    """A reason to raise an error; `bad` returns the mask of the rows that raise it."""

    bad: Callable[..., Any]
    reason: Reason


@dataclass(frozen=True)
class Kernel:
    """A strict function of fixed types, from numpy arrays to a numpy array.

    Attributes:
        run: computes the values; also for rows with nulls, but never for rows that fail `checks`.
        checks: the checks, in Spark's order.
        bounds: returns the bounds of the result for the bounds of integer arguments. If it is set,
            the first check is for overflow only, and is skipped if the bounds exclude one.
        right_first: True if Spark evaluates the second argument before the first.
        floats: True if `run` may produce -0.0, NaN or a floating-point warning.
        missing: returns a mask of the rows whose result is null although no argument is null; the
            values of `run` there are discarded.
        beyond: returns a mask of the results that exceed the type. They raise an error, or become
            null if `lenient` is true.
        lenient: True if results that exceed the type become null.
    """

    run: Callable[..., Any]
    checks: tuple[Check, ...] = ()
    bounds: Callable[..., Bounds] | None = None
    right_first: bool = False
    floats: bool = False
    missing: Callable[..., Any] | None = None
    beyond: Callable[[Any], Any] | None = None
    lenient: bool = False

    @property
    def raises(self) -> bool:
        """True if the kernel may refuse a row."""
        return bool(self.checks) or (self.beyond is not None and not self.lenient)


class NotProvedError(Exception):
    """Only Spark can evaluate the expression, because no kernel is proved to compute its result.

    The message names the part of the expression.
    """


class InvalidError(Exception):
    """A text kernel refuses a value; it has no constructor, because `try_cast` raises many."""

    @property
    def reason(self) -> Reason:
        """Why the value is refused."""
        reason: Reason = self.args[0]
        return reason


@dataclass(frozen=True)
class TextKernel:
    """A strict function with text among its arguments or as its result.

    Attributes:
        row: computes the result of one row from Python values (decimals as unscaled integers);
            raises `InvalidError` to refuse the row.
        large: computes an Arrow or numpy array from Arrow arrays (text), numpy arrays (fixed types)
            and scalars (literals). If it is None or returns None, `row` runs once for each distinct
            row.
        raises: True if `row` may raise `InvalidError`.
        nullable: True if `row` may return None.
        lenient: the kernel for `try_` calls; `None` means `row`, with null for refused rows.
        eager: True if Spark evaluates every argument, even after one that is null.
    """

    row: Callable[..., Any]
    large: Callable[..., Any] | None = None
    raises: bool = False
    nullable: bool = False
    lenient: TextKernel | None = None
    eager: bool = False


def null_on_error(kernel: Kernel | TextKernel) -> Kernel | TextKernel:
    """Returns a kernel that returns null for each row that the given kernel refuses."""
    if isinstance(kernel, Kernel):
        return _tried_numbers(kernel) if kernel.raises else kernel
    if not kernel.raises:
        return kernel
    if kernel.lenient is not None:
        return kernel.lenient
    given = kernel.row

    def row(*values: Any) -> Any:
        try:
            return given(*values)
        except InvalidError:
            return None

    return TextKernel(row, kernel.large, nullable=True)


def _tried_numbers(kernel: Kernel) -> Kernel:
    if not kernel.checks:
        return replace(kernel, lenient=True)
    reasons = [check.bad for check in kernel.checks]
    if kernel.missing is not None:
        reasons.append(kernel.missing)

    def missing(*values: Any) -> Any:
        return reduce(lambda a, b: a | b, [bad(*values) for bad in reasons])

    return replace(kernel, checks=(), bounds=None, missing=missing, lenient=True, floats=True)


class RefusedRowError(Exception):
    """A kernel refused a row; `row` is its index in the frame."""

    def __init__(self, reason: Reason, row: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row


def run_text(
    kernel: TextKernel, values: Sequence[Any], nulls: Array | None, frame: VectorFrame, type_: str
) -> Vector:
    """Runs a text kernel on the values of a frame.

    Raises:
        RefusedRowError: at the first row that the kernel refuses.
    """
    places = [i for i, value in enumerate(values) if _is_column(value)]
    if not places:
        return _run_literals(kernel, values, nulls, frame, type_)
    if frame.small:
        return _small(kernel, values, nulls, frame.n, type_)
    if kernel.large is not None:
        array = kernel.large(*(buffers.text(v) if isinstance(v, str) else v for v in values))
        if array is not None:
            return _from_large(array, nulls, type_)
    return _by_distinct(kernel, values, places, nulls, frame, type_)


def _is_column(values: Any) -> bool:
    return isinstance(values, pa.Array) or (isinstance(values, np.ndarray) and values.ndim > 0)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic | np.ndarray) and not value.ndim else value


def _run_literals(
    kernel: TextKernel, values: Sequence[Any], nulls: Array | None, frame: VectorFrame, type_: str
) -> Vector:
    """Returns the result if all arguments are literals; evaluates nothing if there are no rows."""
    alive = frame.n and (nulls is None or not nulls.all())
    if not alive:
        return no_nulls(type_, n=frame.n, small=frame.small)
    try:
        result = kernel.row(*map(_plain, values))
    except InvalidError as error:
        raise RefusedRowError(error.reason, 0 if nulls is None else int(nulls.argmin())) from None
    if result is None:
        return no_nulls(type_, n=frame.n, small=frame.small)
    scalar = spread_by_mask([result], type_)[0] if type_ in FIXED or is_decimal(type_) else result
    return Vector(scalar, nulls)


def _small(
    kernel: TextKernel, values: Sequence[Any], nulls: Array | None, n: int, type_: str
) -> Vector:
    f = kernel.row
    lists = [_as_list(v, n) for v in values]
    dead = nulls.tolist() if nulls is not None else None
    filler = _filler(type_)
    results: list[Any] = []
    try:
        if dead is None and len(lists) == 1:
            for value in lists[0]:
                results.append(f(value))
        elif dead is None:
            for arguments in zip(*lists, strict=True):
                results.append(f(*arguments))
        else:
            for null, *row in zip(dead, *lists, strict=True):
                results.append(filler if null else f(*row))
    except InvalidError as error:
        raise RefusedRowError(error.reason, len(results)) from None
    if kernel.nullable:
        results, nulls = _without_nulls(results, nulls, filler)
    return Vector(spread_by_mask(results, type_), nulls)


def _filler(type_: str) -> Any:
    """Returns the value that is stored where the result is null."""
    return 0 if type_ in FIXED or is_decimal(type_) else None


def _without_nulls(
    results: list[Any], nulls: Array | None, filler: Any
) -> tuple[list[Any], Array | None]:
    """Replaces each None by the filler, and adds it to the null mask."""
    if None not in results:
        return results, nulls
    gone = np.fromiter([result is None for result in results], np.bool_, len(results))
    return [filler if r is None else r for r in results], merge_nulls(nulls, gone)


def _as_list(values: Any, n: int) -> list[Any]:
    if isinstance(values, np.ndarray) and values.ndim:
        listed: list[Any] = values.tolist()
        return listed
    return [_plain(values)] * n


def _from_large(array: Any, nulls: Array | None, type_: str) -> Vector:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not isinstance(array, pa.Array):
        return Vector(array, nulls)
    if array.null_count:
        nulls = merge_nulls(nulls, buffers.null_mask_of(array))
    dtype = FIXED.get(type_)
    if dtype is not None:
        return Vector(buffers.fixed_width_array(array, dtype), nulls)
    return Vector(_nulled(array, nulls), nulls)


def _nulled(array: pa.Array, nulls: Array | None) -> pa.Array:
    """Returns an array that is null where the mask is true."""
    if nulls is None or array.null_count:
        return array
    places = buffers.arrow_from_numpy(np.arange(len(array)), nulls=nulls)
    return array.take(places)


def _by_distinct(
    kernel: TextKernel,
    values: Sequence[Any],
    places: list[int],
    nulls: Array | None,
    frame: VectorFrame,
    type_: str,
) -> Vector:
    """Runs `row` once for each distinct row whose arguments are not null."""
    alive = None if nulls is None else np.flatnonzero(~nulls)
    codes, listed = _distinct([values[i] for i in places], alive)
    arguments = [_plain(value) for value in values]
    results, refused = _each(kernel, arguments, places, listed, _filler(type_))
    if refused:
        at = int(np.isin(codes, list(refused)).argmax())
        raise RefusedRowError(refused[int(codes[at])], at if alive is None else int(alive[at]))
    gone: Array | None = None
    results, gone = _without_nulls(results, None, _filler(type_))
    if alive is not None:
        every = np.zeros(frame.n, np.int64)
        every[alive] = codes
        codes = every
    if gone is not None and len(codes):
        nulls = merge_nulls(nulls, gone[codes])
    if not results:
        return no_nulls(type_, n=frame.n, small=False)
    if type_ in FIXED or is_decimal(type_):
        return Vector(spread_by_mask(results, type_)[codes], nulls)
    array = buffers.arrow_from_list(results, arrow_type(type_))
    return Vector(array.take(buffers.arrow_from_numpy(codes, nulls=nulls)), nulls)


def _each(
    kernel: TextKernel,
    arguments: list[Any],
    places: list[int],
    listed: list[tuple[Any, ...]],
    filler: Any,
) -> tuple[list[Any], dict[int, Reason]]:
    """Runs `row` on a list of rows.

    Args:
        arguments: all arguments; the values of a row are inserted at the positions `places`.

    Returns:
        the results, and the reason for each refused row, by its index.
    """
    results: list[Any] = []
    refused: dict[int, Reason] = {}
    if places == [0]:  # builds no list for each row, which would double the cost
        row, rest = kernel.row, arguments[1:]
        try:
            return [row(value, *rest) for (value,) in listed], refused
        except InvalidError:
            pass
    for code, given in enumerate(listed):
        for place, value in zip(places, given, strict=True):
            arguments[place] = value
        try:
            results.append(kernel.row(*arguments))
        except InvalidError as error:
            refused[code] = error.reason
            results.append(filler)
    return results, refused


def _distinct(columns: list[Any], alive: Array | None) -> tuple[Array, list[tuple[Any, ...]]]:
    """Returns the index of each row among the distinct rows, and the distinct rows."""
    coded = [_coded(column, alive) for column in columns]
    if len(coded) == 1 and alive is None:
        codes, listed = coded[0]
        return codes, [(value,) for value in listed]
    together = coded[0][0]
    for codes, listed in coded[1:]:
        together = np.unique(together, return_inverse=True)[1] * len(listed) + codes
    _, first, inverse = np.unique(together, return_index=True, return_inverse=True)
    rows = [[listed[code] for code in codes[first].tolist()] for codes, listed in coded]
    return inverse, list(zip(*rows, strict=True))


def _coded(column: Any, alive: Array | None) -> tuple[Array, list[Any]]:
    """Returns the index of each live row's value among the distinct values, and these values."""
    if isinstance(column, np.ndarray) and column.dtype.hasobject:
        some = column if alive is None else column[alive]
        distinct, codes = np.unique(some, return_inverse=True)
        return codes, distinct.tolist()
    array = column if isinstance(column, pa.Array) else buffers.arrow_from_numpy(column)
    if alive is not None:
        array = array.take(buffers.arrow_from_numpy(alive))
    coded = array.dictionary_encode()
    codes = buffers.numbers(coded.indices, np.int32).astype(np.int64)
    return codes, coded.dictionary.to_pylist()
