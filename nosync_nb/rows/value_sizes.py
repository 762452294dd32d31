"""The size of each value of a column in bytes, as far as a copy of the value would take them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from nosync_nb.rows.arrow import Column, to_arrow
from nosync_nb.rows.types import FIXED

Sizes = npt.NDArray[np.int64]

_OFFSET = 8


def copied_bytes(columns: Sequence[Column], types: Sequence[str], counts: Sizes) -> int:
    """Returns the bytes of rows that are repeated, each as often as its count says.

    Cost: O(n) in the rows, some ns each.
    """
    total = 0
    copies = sum(counts.tolist()) if int(counts.max()) > 2**62 // len(counts) else int(counts.sum())
    for column, type_ in zip(columns, types, strict=True):
        if type_ in FIXED:
            total += copies * FIXED[type_].itemsize
        else:
            total += int(np.dot(_sizes(to_arrow(column, type_)).astype(np.float64), counts))
    return total


def _sizes(array: pa.Array) -> Sizes:
    """The bytes of each value of an array; nulls may count."""
    type_ = array.type
    if kinds.is_struct(type_):
        whole: Sizes = sum(
            (_sizes(each) for each in array.flatten()), np.zeros(len(array), np.int64)
        )
        return whole
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_map(type_):
        offsets = array.offsets.to_numpy(zero_copy_only=False)
        if kinds.is_map(type_):
            inner = _sizes(array.keys) + _sizes(array.items)
        else:
            inner = _sizes(array.values)
        ends = np.concatenate([[0], inner.cumsum()])
        return np.asarray(ends[offsets[1:]] - ends[offsets[:-1]] + _OFFSET, np.int64)
    with suppress(ValueError):  # it has no fixed width
        return np.full(len(array), max(type_.bit_width // 8, 1), np.int64)
    lengths: Any = pc.fill_null(pc.binary_length(array), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64) + _OFFSET
