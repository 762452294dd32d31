"""The data source `nosync`: stages as tables of Spark, read in Spark's own processes.

    spark.read.format("nosync").option("path", folder).option("stage", "slow").option("at", 7)

Without `at`, each run of a query reads the stage at its current epoch, even if Spark has planned
the query earlier. A Spark session of another application, which opens no log, registers the data
source itself:

    from nosync_nb.spark.views.data_source import NosyncSource
    spark.dataSource.register(NosyncSource)

Each task reads one range of the key hash: it consolidates the rows, and repeats duplicates.

Failure: Spark puts the traceback of its worker before the error. So our frames are omitted from it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from nosync_nb import rows
from nosync_nb.errors import (
    CorruptLogError,
    DurabilityError,
    NegativeMultiplicityError,
    NosyncError,
    SchemaError,
    StageError,
)
from nosync_nb.files.filesystem import Files
from nosync_nb.rows import Schema
from nosync_nb.spark import interval_transport
from nosync_nb.spark.execution.shuffle_records import HashRanges
from nosync_nb.spark.execution.tasks import StoredTrace
from nosync_nb.spark.staging.location import StagingArea
from nosync_nb.spark.views import snapshot_server
from nosync_nb.spark.views.snapshot_server import Pin
from nosync_nb.trace.batch import Batch, row_text
from nosync_nb.trace.parts.part_file import PartRef

SINGLE_ROWS = 100_000
PARTITIONS_MAX = 16


class NosyncSource(DataSource):
    """A stage of a folder. Options: `path`, `stage`, and `at`: an epoch, a label, or a time.

    The epoch of `at` is resolved once, when Spark asks for the schema, and does not change. After a
    rewind to before that epoch, reads raise an error. A negative `at` is resolved at each read. The
    value of a year-month interval is an int, the number of months.
    """

    pin: Pin | None = None

    @classmethod
    def name(cls) -> str:
        return "nosync"

    def schema(self) -> str:
        with _short_errors():
            folder, stage, at = _parsed_options(self.options)
            served = snapshot_server.ask_session(folder, stage, at)
            if at is not None and not (isinstance(at, int) and at < 0):
                self.pin = served.pin
            return interval_transport.to_transport(served.schema).ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        with _short_errors():
            return StageReader(*_parsed_options(self.options), self.pin)


class StageReader(DataSourceReader):
    """Reads ranges of a stage's key hash."""

    def __init__(self, folder: str, stage: str, at: Any, pin: Pin | None) -> None:
        self.folder, self.stage, self.at, self.pin = folder, stage, at, pin

    def partitions(self) -> list[InputPartition]:
        with _short_errors():
            asked = snapshot_server.ask_session(self.folder, self.stage, self.at, pin=self.pin)
        count = 1 if asked.rows <= SINGLE_ROWS else min(os.cpu_count() or 1, PARTITIONS_MAX)
        return [InputPartition((place, count)) for place in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        place, count = partition.value
        if not Files().exists(self.folder):
            raise NosyncError(
                f"stage '{self.stage}': Spark's executors cannot read the log's folder"
                f" '{self.folder}', which its temp view needs",
                hint=f"use session[{self.stage!r}].to_spark(), a DataFrame that they can read",
            )
        asked = snapshot_server.stage_snapshot(
            self.folder, self.stage, self.at, _query_number(), pin=self.pin
        )
        with _short_errors(), asked as served:
            yield from range_rows(
                served.trace, StagingArea(served.folder), served.schema, HashRanges(count), place
            )


@contextmanager
def _short_errors() -> Iterator[None]:
    """In a `with` block, raises errors of NoSync without their causes and their traceback."""
    try:
        yield
    except NosyncError as error:
        short = copy.copy(error)
    else:
        return
    raise short from None


def _parsed_options(options: Any) -> tuple[str, str, Any]:
    """Returns the folder, the stage and the epoch of a read."""
    missing = [name for name in ("path", "stage") if not options.get(name)]
    if missing:
        raise SchemaError(
            f"the data source nosync needs the option {missing[0]!r}",
            hint="spark.read.format('nosync').option('path', folder).option('stage', name)",
        )
    at: Any = options.get("at")
    if at is not None and at.lstrip("-").isdigit():
        at = int(at)
    return options["path"], options["stage"], at


def _query_number() -> str | None:
    """Returns an identifier of the Spark query of this task; None outside of a query."""
    context = TaskContext.get()
    if context is None:
        return None
    number = context.getLocalProperty("spark.sql.execution.id")
    return None if number is None else f"{context.getLocalProperty('spark.app.id')}/{number}"


RECORD_ROWS = 1 << 16
_COPIES_MAX = 2.0**62


def range_rows(
    stored: StoredTrace, depot: StagingArea, schema: Schema, ranges: HashRanges, place: int
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of one range of a trace.

    Args:
        place: the number of the range.

    Raises:
        NegativeMultiplicityError: if the count of a row is below zero.

    Cost: O(n log n) for the n rows of the range, which are in memory at the same time.
    """
    yield from expanded_batches(stored.cut(depot, *ranges.bounds(place)).consolidated(), schema)


def expanded_batches(batch: Batch, schema: Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a batch as record batches of bounded size, with duplicates repeated."""
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
        else:  # repeated for one record batch at a time, because all may not fit into memory
            index = pa.array(ends.searchsorted(np.arange(start, start + size), side="right"))
            part = [array.take(index) for array in arrays]
        yield pa.RecordBatch.from_arrays(part, schema=schema.arrow)


def range_reader(
    stored: StoredTrace, depot: StagingArea, schema: Schema, ranges: HashRanges, *, kept: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that receives numbers of ranges, and yields the rows of these ranges.

    The function raises StageError if the files were deleted because no session retained them.

    Args:
        kept: True if the session that creates the DataFrame retains the files of its last ones. A
            session in mode "r" cannot retain files.
    """
    hint = "create it again with to_spark(), or read the stage's temp view, which is updated"
    if not kept:
        hint = (
            "create it again with to_spark() and execute it soon, or cache() it; or create it"
            ' in the session that owns the log, because mode="r" cannot retain files'
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
