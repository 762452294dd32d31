"""Profiles: what a column holds, at a glance: nulls, different values, how they are spread.

All counts are of rows with their copies. They are exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb import rows
from nosync_nb.rows import Column
from nosync_nb.rows.types import is_nested
from nosync_nb.trace.batch import Batch, Diffs

BARS = 12
COMMON = 5


class Profile(NamedTuple):
    """A summary of a column.

    Attributes:
        nulls: rows without a value.
        distinct: how many values there are beside null; None for nested types.
        low, high: the least and the greatest value (of numbers the finite ones), or None.
        bars: of numbers, dates and times the rows in equal steps from `low` to `high`.
        common: of other values the most frequent, each with its rows.
    """

    nulls: int
    distinct: int | None
    low: Any = None
    high: Any = None
    bars: tuple[int, ...] = ()
    common: tuple[tuple[Any, int], ...] = ()


def profiles(batch: Batch) -> list[Profile]:
    """A profile of each column of a state. Cost: O(n log n) for each, in vectors."""
    types = batch.layout.types
    return [_profile(c, t, batch.diff) for c, t in zip(batch.columns, types, strict=True)]


def _profile(column: Column, type_: str, diff: Diffs) -> Profile:
    values = rows.to_arrow(column, type_)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    missing = values.is_null().to_numpy(zero_copy_only=False)
    nulls = int(diff[missing].sum())
    if is_nested(type_):
        return Profile(nulls, None)
    if nulls:
        kept = np.flatnonzero(~missing)
        values, diff = values.take(pa.array(kept)), diff[kept]
    if not len(values):
        return Profile(nulls, 0)
    counted = pa.table({"value": values, "rows": diff}).group_by("value", use_threads=False)
    counted = counted.aggregate([("rows", "sum")])
    distinct = counted.num_rows
    numbers = _numbers(values)
    if numbers is None:
        return Profile(nulls, distinct, common=_common(counted))
    finite = np.isfinite(numbers)
    if not finite.all():
        kept = np.flatnonzero(finite)
        values, numbers, diff = values.take(pa.array(kept)), numbers[kept], diff[kept]
    if not len(numbers):
        return Profile(nulls, distinct)
    least, most = values[int(numbers.argmin())].as_py(), values[int(numbers.argmax())].as_py()
    return Profile(nulls, distinct, least, most, _bars(numbers, diff))


def _numbers(values: pa.Array) -> Any:
    """Values as doubles, as far as they can be spread over a line; None if they cannot."""
    type_ = values.type
    if pa.types.is_boolean(type_):
        return None
    if pa.types.is_date(type_):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        values = values.cast(pa.int64())
    elif not (pa.types.is_integer(type_) or pa.types.is_floating(type_)) and not (
        pa.types.is_decimal(type_)
    ):
        return None
    return pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _bars(numbers: Any, diff: Diffs) -> tuple[int, ...]:
    """How many rows each of equal steps has."""
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return (int(diff.sum()),)
    scaled = (numbers / 2 - low / 2) / (high / 2 - low / 2)  # also over the whole range of doubles
    step = np.minimum((scaled * BARS).astype(np.int64), BARS - 1)
    return tuple(np.bincount(step, diff, BARS).astype(np.int64).tolist())


def _common(counted: pa.Table) -> tuple[tuple[Any, int], ...]:
    """The most frequent values; of equally frequent ones the least."""
    keys = [("rows_sum", "descending"), ("value", "ascending")]
    first = counted.take(pc.select_k_unstable(counted, COMMON, keys))
    values, counts = (first.column(name).to_pylist() for name in ("value", "rows_sum"))
    return tuple(zip(values, counts, strict=True))
