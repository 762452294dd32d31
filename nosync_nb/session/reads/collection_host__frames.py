"""Frames: collections as DataFrames of Spark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.readable import refuse_negative, result_title
from nosync_nb.dataflow.state_reader import trace_at
from nosync_nb.errors import CorruptLogError, NegativeMultiplicityError
from nosync_nb.session.reads.reader import SnapshotReader
from nosync_nb.session.state.definition_names import DefinitionNames
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.writes import missing_rows
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.parts.arrow_file import DISK


class DataFrameExports:
    """Makes DataFrames; the files that they read are kept."""

    def __init__(
        self,
        publisher: Publisher,
        reader: SnapshotReader,
        names: DefinitionNames,
        link: SparkConnection,
    ) -> None:
        self._publisher = publisher
        self._reader = reader
        self._names = names
        self._link = link

    def frame(
        self, definition: Definition, at: Any, following: Callable[[Callable[[], Any]], Any]
    ) -> Any:
        """A collection as a DataFrame.

        Args:
            following: calls what reads.
        """
        spark = self._link.require("to_spark")
        from nosync_nb.spark import launch
        from nosync_nb.spark.execution.task_payload import PlanPayload
        from nosync_nb.spark.staging.area import StagingArea
        from nosync_nb.spark.views import views

        store = self._publisher.store
        given = following(lambda: self._rows(definition, at, views.SMALL_ROWS))
        count = len(given) if isinstance(given, Batch) else given.rows_count
        carrier = self._link.carrier
        depot = StagingArea(carrier.folder)
        if count > views.SMALL_ROWS:
            depot = carrier.required(spark, f"to_spark of {count} rows")
        shipping = PlanPayload(carrier, depot, "view", thorough=store.foreign)
        kept = store.log.mode == "w"
        try:
            with launch.guarded_use(spark, "to_spark"):
                frame = views.to_spark(spark, given, definition.schema, shipping, kept=kept)
        except NegativeMultiplicityError as error:
            name = self._names.of(definition)
            what = f"collection '{name}'" if name else "this collection"
            hint = self._repair(definition)
            raise NegativeMultiplicityError(f"{what}: {error.args[0]}", hint=hint) from None
        if shipping.spilled:
            self._publisher.garbage.export(frozenset(shipping.spilled), spilled=True)
        return frame

    def _repair(self, definition: Definition) -> str:
        return missing_rows.repair(self._publisher.snapshot, self._names.read_by(definition))

    def _rows(self, definition: Definition, at: Any, small: int) -> Any:
        """The source of a DataFrame: a trace, whose files are kept where possible, or a batch.

        Raises:
            CorruptLogError: with `mode="r"`, if files were deleted that this session still knows.
        """
        reader, store, seen = self._reader, self._publisher.store, self._publisher.snapshot
        name = self._names.of(definition)
        if name is None:
            batch = reader.read(definition, at)
            when = partial(reader.epoch, at, seen)
            refuse_negative(batch, result_title(None), when, partial(self._repair, definition))
            return batch
        if at is None:
            reader.refuse_pending(seen, definition, name)
        trace = trace_at(seen, name, None if at is None else reader.epoch(at, seen))[1]
        files = frozenset(ref.path for layer in trace.layers for ref in layer.files)
        if files and trace.rows_count > small:
            self._publisher.garbage.export(files)
            if store.log.mode == "r" and not files.issubset(DISK.names(store.parts)):
                raise CorruptLogError("files were merged and deleted by the session that writes")
        return trace
