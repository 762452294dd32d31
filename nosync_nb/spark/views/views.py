"""DataFrames of a stage at an epoch, and temp views that follow the current epoch.

A view has the stage's name, and reads the data source `nosync` (data_source.py). It is created
once. Whenever a query of it runs, it asks the session for the rows. If the user has a view or table
with that name, it is not replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from nosync_nb.rows import Schema
from nosync_nb.rows.ddl import quoted
from nosync_nb.spark import interval_transport
from nosync_nb.spark.execution.shuffle_records import HashRanges
from nosync_nb.spark.execution.tasks import PlanPayload
from nosync_nb.spark.launch import Spark, is_alive, is_stopped
from nosync_nb.spark.spark_session import frame_of
from nosync_nb.spark.views.snapshot_server import Provider, SnapshotServer
from nosync_nb.spark.workers import check_workers, with_worker_gc_off
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch

SMALL_ROWS = 100_000

_registered: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_view_owners: WeakKeyDictionary[Any, dict[str, tuple[str, str]]] = WeakKeyDictionary()
"""The folder and the stage of each view in a Spark session, by its name in lower case."""


def to_spark(
    spark: Spark,
    given: Batch | Trace,
    schema: Schema,
    shipping: PlanPayload,
    *,
    kept: bool = True,
) -> Any:
    """Returns the rows of a collection as a DataFrame, with duplicates repeated.

    A small collection is transferred as Arrow rows. A larger one is read from part files when the
    DataFrame is executed. Until then the caller must retain these files, and the files that
    `shipping` spills, if it can.

    Args:
        given: the rows.
        kept: True if the caller retains the files.

    Raises:
        NegativeMultiplicityError: if the count of a row is below zero; for a large collection, when
            the DataFrame is executed.
        StageError: when the DataFrame is executed, if the caller did not retain the files.
    """
    from nosync_nb.spark.views import data_source

    trace = given if isinstance(given, Trace) else Trace.from_batch(given)
    if trace.rows_count <= SMALL_ROWS:
        records = list(data_source.expanded_batches(trace.consolidated(), schema))
        return frame_of(spark, pa.Table.from_batches(records, schema.arrow), schema)
    stored = shipping.trace(trace)
    count = check_workers(spark).slots
    shipping.send()
    read = data_source.range_reader(stored, shipping.depot, schema, HashRanges(count), kept=kept)
    ddl = interval_transport.to_transport(schema).ddl
    frame = spark.range(0, count, 1, count).mapInArrow(with_worker_gc_off(read), ddl)
    return interval_transport.from_transport(frame, schema.names, schema.types)


def register(spark: Spark) -> None:
    """Registers the data source `nosync` in a Spark session, once."""
    if spark in _registered:
        return
    from nosync_nb.spark.views.data_source import NosyncSource

    spark.dataSource.register(NosyncSource)
    _registered[spark] = True


class Views:
    """The temp views of a session's stages in a Spark session.

    Args:
        folder: the session's folder, by which reads find the session.
        provider: returns snapshots of stages; it is called in other threads.
        generation: the generation of the log that the session writes.
    """

    def __init__(
        self, spark: Spark, folder: str, provider: Provider, generation: int | None = None
    ) -> None:
        self.spark = spark
        self.folder = folder
        self._view_names: dict[str, str] = {}
        register(spark)
        try:
            self._server: SnapshotServer | None = SnapshotServer(folder, provider, generation)
        except OSError:
            self._server = None

    @property
    def ended(self) -> bool:
        """True if the Spark session was stopped, which also drops its views; makes no call."""
        return is_stopped(self.spark)

    @property
    def names(self) -> Iterable[str]:
        """The stages that have a view."""
        return self._view_names.keys()

    def name_conflict(self, stage: str) -> str | None:
        """Returns the reason why a stage can have no view; None if it can.

        Another stage has a view of the same name, ignoring case.
        """
        holder = _view_owners.get(self.spark, {}).get(stage.lower())
        if holder is None or holder == (self.folder, stage):
            return None
        folder, other = holder
        if folder == self.folder:
            why = f"'{other}' has that name in Spark, which ignores case"
        else:
            why = f"the log in '{folder}' has a view of that name"
        return (
            f"stage '{stage}' gets no view: {why}; read it as spark.read.format('nosync')"
            f".option('path', {self.folder!r}).option('stage', {stage!r}).load()"
        )

    def create(self, stage: str, schema: Schema) -> bool:
        """Creates the view of a stage; returns False if the user has a table or view of that name.

        Cost: about 0.1 s, for a lookup in Spark's catalog, and for Spark's request of the schema.
        """
        if stage in self._view_names and not self.drop(stage):
            return False
        if self.spark.catalog.tableExists(quoted(stage)):
            return False
        options = {"path": self.folder, "stage": stage}
        frame = self.spark.read.format("nosync").options(**options).load()
        interval_transport.from_transport(frame, schema.names, schema.types).createTempView(
            quoted(stage)
        )
        self._view_names[stage] = stage
        _view_owners.setdefault(self.spark, {})[stage.lower()] = (self.folder, stage)
        return True

    def drop(self, stage: str) -> bool:
        """Drops the view of a stage; returns False if the user has replaced it."""
        if self._view_names.pop(stage, None) is None:
            return True
        _view_owners.get(self.spark, {}).pop(stage.lower(), None)
        if self._server is not None:
            self._server.forget(stage)
        if not self.spark.catalog.tableExists(quoted(stage)):
            return True
        text = self.spark.sql(f"EXPLAIN SELECT * FROM {quoted(stage)}").collect()[0][0]
        if "nosync" not in text:
            return False
        return bool(self.spark.catalog.dropTempView(stage))

    def close(self) -> None:
        """Drops the views of this object, and stops serving snapshots."""
        try:
            for stage in list(self._view_names) if is_alive(self.spark) else ():
                self.drop(stage)
        finally:
            for stage in self._view_names:
                _view_owners.get(self.spark, {}).pop(stage.lower(), None)
            if self._server is not None:
                self._server.close()
