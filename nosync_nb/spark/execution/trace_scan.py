"""Reads the rows of a trace for Spark: a range of the key hash, consolidated, copies expanded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import CorruptLogError, DurabilityError, NegativeMultiplicityError, StageError
from nosync_nb.rows import Schema
from nosync_nb.spark.execution.shuffle_records import HashRanges
from nosync_nb.spark.execution.tasks import StoredTrace
from nosync_nb.spark.staging.location import StagingArea
from nosync_nb.trace.batch import Batch, row_text
from nosync_nb.trace.parts.part_file import PartRef

RECORD_ROWS = 1 << 16
_COPIES_MAX = 2.0**62


def range_rows(
    stored: StoredTrace, depot: StagingArea, schema: Schema, ranges: HashRanges, place: int
) -> Iterator[pa.RecordBatch]:
    """The rows of one range of a trace.

    Raises:
        NegativeMultiplicityError: the count of a row is below zero.

    Cost: O(n log n) in the rows of the range, which is held in memory.
    """
    yield from expanded_batches(stored.cut(depot, *ranges.bounds(place)).consolidated(), schema)


def expanded_batches(batch: Batch, schema: Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a batch as record batches of bounded size, with copies expanded."""
    if not len(batch):
        return
    if int(batch.diff.min()) < 0:
        at = int(batch.diff.argmin())
        row = row_text([rows.slice_(c, at, at + 1) for c in batch.columns], schema.types)
        raise NegativeMultiplicityError(
            f"the row {row} has a count of {int(batch.diff[at])}: it was removed more often"
            " than inserted",
            hint="call .count() on the collection: its error has the command that repairs it",
        )
    arrays = [rows.to_arrow(c, t) for c, t in zip(batch.columns, schema.types, strict=True)]
    plain = bool((batch.diff == 1).all())
    ends = batch.diff.astype(np.float64).cumsum() if not plain else None
    if ends is not None and ends[-1] > _COPIES_MAX:
        raise CorruptLogError(f"the rows of a collection have a total count of {ends[-1]:.3g}")
    ends = None if ends is None else batch.diff.cumsum()
    count = len(batch) if ends is None else int(ends[-1])
    for start in range(0, count, RECORD_ROWS):
        size = min(RECORD_ROWS, count - start)
        if ends is None:
            part = [array.slice(start, size) for array in arrays]
        else:  # copies are made for one record batch at a time
            index = pa.array(ends.searchsorted(np.arange(start, start + size), side="right"))
            part = [array.take(index) for array in arrays]
        yield pa.RecordBatch.from_arrays(part, schema=schema.arrow)


def range_reader(
    stored: StoredTrace, depot: StagingArea, schema: Schema, ranges: HashRanges, *, kept: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that turns numbers of ranges into their rows.

    The function raises StageError if the files were deleted because no session retained them.

    Args:
        kept: True if the session that made it retains the files of its last DataFrames; a session
            that is open for reading cannot.
    """
    hint = "create it again with to_spark(), or read the stage's temp view, which is updated"
    if not kept:
        hint = (
            "create it again with to_spark() and execute it soon, or cache() it; or create it"
            ' in the session that writes, because mode="r" cannot retain files'
        )
    names = {p.path for parts in stored.layers for p in parts if isinstance(p, PartRef)}

    def read(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for record in records:
            for place in record.column(0).to_pylist():
                try:
                    yield from range_rows(stored, depot, schema, ranges, place)
                except (CorruptLogError, DurabilityError):
                    if all(map(depot.has, names)):
                        raise
                    raise StageError(
                        "the files that this DataFrame reads have been merged and deleted",
                        hint=hint,
                    ) from None

    return read
