"""Validates the contents of a file, so that reading it never leaves the file.

Checksums prove that a file is what its writer wrote, not that the writer is honest: Arrow trusts
the offsets of texts and lists, and an offset that leads outside ends the process. So every file
that another process wrote is validated before it is used.

`thorough` is for a log that this user has not signed: every value is checked (text is UTF-8, hashes
ascend). Else only offsets are checked: a tenth of what the checksums cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from nosync_nb.rows import arrow_type, buffers
from nosync_nb.rows.dictionary import MOST

UNSOUND = (
    pa.ArrowException,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
"""The exceptions that reading invalid contents may raise."""


def check_record(
    record: pa.RecordBatch,
    types: tuple[str, ...],
    *,
    thorough: bool,
    texts: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Raises one of `UNSOUND` unless a batch has valid columns of these types, and then numbers.

    Args:
        texts: the texts of columns that are stored as codes of a byte. No code leads outside, as a
            column has as many texts as a byte has values; thorough: each code has a text, too.

    Cost: 1 ms for a million texts; thorough 40 ms.
    """
    if record.num_columns < len(types):
        raise ValueError(f"it has {record.num_columns} columns, not {len(types)}")
    for i, array in enumerate(record.columns):
        if i >= len(types):
            fits = array.type in (pa.uint64(), pa.int64()) and not array.null_count
        else:
            stored = types[i] == "boolean" and array.type == pa.uint8() and not array.null_count
            fits = stored or array.type == arrow_type(types[i])
            if i in texts:
                fits = types[i] == "string" and array.type == pa.uint8()
        if not fits:
            raise ValueError(f"column {i} is of the type {array.type}")
    record.validate(full=thorough)
    for i, column_texts in texts.items():
        few = len(column_texts) <= MOST and all(isinstance(text, str) for text in column_texts)
        if not few or not 0 <= i < len(types):
            raise ValueError(f"column {i} has an invalid table of texts")
        codes = record.column(i).drop_null()
        if thorough and (buffers.numbers(codes, np.uint8) >= max(len(column_texts), 1)).any():
            raise ValueError(f"column {i} has codes without a text")
    if not thorough:
        for array in record.columns:
            _check_offsets(array)


def check_level(starts: Any, group: Any, row: Any, diff: Any, rows_count: int) -> None:
    """Raises one of `UNSOUND` unless the entries of a level lie in it, and their rows exist."""
    for each in (starts, group, row, diff):
        if each is not None and each.dtype.kind not in "iu":
            raise ValueError("its levels are not integers")
    if len(starts) != len(group) + 1 or (row is not None and len(row) != len(diff)):
        raise ValueError("its levels are of unequal lengths")
    if starts[0] < 0 or (starts[1:] < starts[:-1]).any() or starts[-1] > len(diff):
        raise ValueError("its groups point outside the rows")
    outside = (
        len(diff) > rows_count if row is None else (row < 0).any() or (row >= rows_count).any()
    )
    if outside:
        raise ValueError("its entries name rows that do not exist")


def _check_offsets(array: pa.Array) -> None:
    """Raises unless offsets ascend, in an array whose first and last offset lie inside."""
    type_ = array.type
    if kinds.is_struct(type_):
        for i in range(type_.num_fields):
            _check_offsets(array.field(i))
        return
    wide = (
        kinds.is_large_string(type_) or kinds.is_large_binary(type_) or kinds.is_large_list(type_)
    )
    nested = kinds.is_list(type_) or kinds.is_map(type_) or kinds.is_large_list(type_)
    if not (wide or nested or kinds.is_string(type_) or kinds.is_binary(type_)):
        return
    if len(array):
        dtype = np.dtype(np.int64 if wide else np.int32)
        offsets = buffers.bounds(array, dtype)
        if (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets point outside the values")
    if nested and kinds.is_map(type_):
        _check_offsets(array.keys)
        _check_offsets(array.items)
    elif nested:
        _check_offsets(array.values)
