"""The data source `nosync`: stages as tables of Spark, read in Spark's own processes.

    spark.read.format("nosync").option("path", folder).option("stage", "slow").option("at", 7)

Without `at` a read sees the stage at the moment when it runs, though Spark plans it once. Spark
sessions of other applications, which open no log, register it themselves:

    from nosync_nb.spark.views.data_source import NosyncSource
    spark.dataSource.register(NosyncSource)

Failure: Spark puts the traceback of its worker before the error. So our frames are left out of it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from nosync_nb.errors import NosyncError, SchemaError
from nosync_nb.files.filesystem import Files
from nosync_nb.spark import interval_transport
from nosync_nb.spark.execution import trace_scan
from nosync_nb.spark.execution.shuffle_records import HashRanges
from nosync_nb.spark.staging.location import StagingArea
from nosync_nb.spark.views import snapshot_server
from nosync_nb.spark.views.snapshot_server import Pin

SINGLE_ROWS = 100_000
PARTITIONS_MAX = 16


class NosyncSource(DataSource):
    """A stage of a folder. Options: `path`, `stage`, and `at`: an epoch, a label, or a time.

    The epoch of `at` is resolved once, when Spark asks for the schema, and does not change. After a
    rewind to before that epoch, reads are refused. A negative `at` is resolved at each read.
    Intervals of months are ints, their number.
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
            rows = snapshot_server.ask_session(self.folder, self.stage, self.at, pin=self.pin).rows
        count = 1 if rows <= SINGLE_ROWS else min(os.cpu_count() or 1, PARTITIONS_MAX)
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
            yield from trace_scan.range_rows(
                served.trace, StagingArea(served.folder), served.schema, HashRanges(count), place
            )


@contextmanager
def _short_errors() -> Iterator[None]:
    """Raises errors of ours without their causes, as if they came from here."""
    try:
        yield
    except NosyncError as error:
        short = copy.copy(error)
    else:
        return
    raise short from None


def _parsed_options(options: Any) -> tuple[str, str, Any]:
    """The folder, the stage and the epoch of a read."""
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
    """The number of the Spark query of this task, unique in its application."""
    context = TaskContext.get()
    if context is None:
        return None
    number = context.getLocalProperty("spark.sql.execution.id")
    return None if number is None else f"{context.getLocalProperty('spark.app.id')}/{number}"
