"""What a proved function is made of: kernels over values, without any thought of nulls.

A kernel is called with the values of its arguments, never told which rows are null; nulls of a
strict function are where an argument is null, and whatever it computed there is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.vectors import Array
from nosync_nb.rows import bridge, objects
from nosync_nb.rows.types import FIXED

Bounds = tuple[int, int]


@dataclass(frozen=True)
class Check:
    """A reason to raise: `bad` tells for which rows."""

    bad: Callable[..., Any]
    reason: str


@dataclass(frozen=True)
class Kernel:
    """A strict function of fixed types: numpy in, numpy out.

    Attributes:
        run: the values; called even on rows that are null, never on rows that `checks` refuse.
        checks: in the order in which Spark looks.
        bounds: result bounds from argument bounds, for integers that may overflow; then the first
            check is about overflow alone and is left out where bounds prove it needless.
        right_first: whether Spark evaluates the second argument before the first.
        floats: whether `run` may produce -0.0, NaN or a floating-point warning.
    """

    run: Callable[..., Any]
    checks: tuple[Check, ...] = ()
    bounds: Callable[..., Bounds] | None = None
    right_first: bool = False
    floats: bool = False


class InvalidError(Exception):
    """A text kernel refuses a value; the message is the reason."""


@dataclass(frozen=True)
class TextKernel:
    """A strict function with text among its arguments or as its result.

    Attributes:
        row: one row, Python values in and out; raises `InvalidError`.
        large: Arrow arrays (text), numpy arrays (fixed types) and scalars (literals) in; an Arrow
            or numpy array out. None: `row` on each distinct text, which needs one column of text
            and literals beside it.
        raises: whether `row` may raise `InvalidError`.
    """

    row: Callable[..., Any]
    large: Callable[..., Any] | None = None
    raises: bool = False


def run_small(
    kernel: TextKernel, values: Sequence[Any], nulls: Array | None, n: int, type_: str
) -> Any:
    """Runs a text kernel row by row.

    Raises:
        RefusedRowError: at the first row that the kernel refuses.
    """
    f = kernel.row
    lists = [_listed(v, n) for v in values]
    dead = nulls.tolist() if nulls is not None else None
    filler = None if type_ not in FIXED else 0
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
        raise RefusedRowError(str(error), len(results)) from None
    dtype = FIXED.get(type_)
    return objects(results) if dtype is None else np.array(results, dtype)


class RefusedRowError(Exception):
    """A kernel refused row `row` of the frame it ran on."""

    def __init__(self, reason: str, row: int) -> None:
        super().__init__(reason)
        self.row = row


def _listed(values: Any, n: int) -> list[Any]:
    if isinstance(values, np.ndarray) and values.ndim:
        listed: list[Any] = values.tolist()
        return listed
    return [values.item() if isinstance(values, np.generic) else values] * n


def run_large(
    kernel: TextKernel, values: Sequence[Any], nulls: Array | None, n: int, type_: str
) -> Any:
    """Runs a text kernel on large columns.

    Raises:
        RefusedRowError: at the first row that the kernel refuses.
    """
    if kernel.large is not None:
        array = kernel.large(*(bridge.text(v) if isinstance(v, str) else v for v in values))
        if array is not None:
            return _from_large(array, type_)
    if not any(isinstance(v, pa.Array) for v in values):
        return run_by_value(kernel, values, nulls, n, type_)
    place = next(i for i, v in enumerate(values) if isinstance(v, pa.Array))
    coded = values[place].dictionary_encode()
    codes = _codes(coded)
    others = [v.item() if isinstance(v, np.generic) else v for v in values]
    results: list[Any] = []
    refused: dict[int, str] = {}
    for code, text in enumerate(coded.dictionary.to_pylist()):
        others[place] = text
        try:
            results.append(kernel.row(*others))
        except InvalidError as error:
            refused[code] = str(error)
            results.append(None if type_ not in FIXED else 0)
    if refused:
        _refuse(refused, codes, nulls)
    return _spread(results, codes, coded, type_, n)


def run_by_value(
    kernel: TextKernel, values: Sequence[Any], nulls: Array | None, n: int, type_: str
) -> Any:
    """Runs a text kernel on each distinct number, for results that are text."""
    place = next(i for i, v in enumerate(values) if isinstance(v, np.ndarray) and v.ndim)
    distinct, codes = np.unique(values[place], return_inverse=True)
    others = [v.item() if isinstance(v, np.generic) else v for v in values]
    results = []
    for value in distinct.tolist():
        others[place] = value
        results.append(kernel.row(*others))
    if type_ in FIXED:
        return np.array(results, FIXED[type_])[codes]
    texts = bridge.of_list(results, pa.string())
    return texts.take(bridge.of_numpy(codes, nulls=nulls))


def _refuse(refused: dict[int, str], codes: Array, nulls: Array | None) -> None:
    bad = np.isin(codes, list(refused))
    if nulls is not None:
        bad &= ~nulls
    if bad.any():
        row = int(bad.argmax())
        raise RefusedRowError(refused[int(codes[row])], row)


def _spread(results: list[Any], codes: Array, coded: pa.DictionaryArray, type_: str, n: int) -> Any:
    """Returns the result of each row from the results of the distinct texts."""
    dtype = FIXED.get(type_)
    if dtype is None:
        return bridge.of_list(results, pa.string()).take(coded.indices)
    return np.array(results, dtype)[codes] if results else np.zeros(n, dtype)


def _from_large(array: Any, type_: str) -> Any:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    dtype = FIXED.get(type_)
    if dtype is None or not isinstance(array, pa.Array):
        return array
    if array.null_count:
        array = pc.fill_null(array, bridge.of_list([0], pa.int32()).cast(array.type)[0])
    return bridge.values_of(array).astype(dtype, copy=False)


def _codes(coded: pa.DictionaryArray) -> Array:
    """The place of each value in the dictionary, 0 for null."""
    indices = coded.indices
    codes = bridge.numbers(indices, np.int32)
    return np.where(bridge.null_mask_of(indices), 0, codes) if indices.null_count else codes
