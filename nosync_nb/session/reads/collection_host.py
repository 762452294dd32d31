"""The host of a session's collections: reads, epochs, DataFrames, inspectors.

It implements `collections/session_protocol.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from nosync_nb.collections import loops
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.explain_output import ExplainOutput
from nosync_nb.collections.position import Position
from nosync_nb.collections.readable import refuse_negative, result_title
from nosync_nb.collections.session_protocol import ResolvedEpoch, Stopped
from nosync_nb.dataflow.snapshot import trace_at
from nosync_nb.errors import CorruptLogError, NegativeMultiplicityError, TimeError
from nosync_nb.session.reads.compare import inferred_key
from nosync_nb.session.reads.log_follower import LogFollower
from nosync_nb.session.reads.reader import SnapshotReader
from nosync_nb.session.state.limits import UserLimits
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.sql_settings import SparkTypes
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.parts.arrow_file import DISK

Seen = TypeVar("Seen")


class DataFrameExports:
    """Creates Spark DataFrames from collections, and retains the files that they read."""

    def __init__(
        self,
        publisher: Publisher,
        reader: SnapshotReader,
        spark_connection: SparkConnection,
    ) -> None:
        self._publisher = publisher
        self._reader = reader
        self._definition_names = publisher.definition_names
        self._spark_connection = spark_connection

    def frame(
        self, definition: Definition, at: Any, following: Callable[[Callable[[], Any]], Any]
    ) -> Any:
        """Returns a collection as a DataFrame.

        Args:
            following: calls a function that reads rows, after a refresh.
        """
        spark = self._spark_connection.require("to_spark")
        from nosync_nb.spark import launch
        from nosync_nb.spark.execution.tasks import PlanPayload
        from nosync_nb.spark.staging.location import StagingArea
        from nosync_nb.spark.views import views

        store = self._publisher.store
        source = following(lambda: self._rows(definition, at, views.SMALL_ROWS))
        count = len(source) if isinstance(source, Batch) else source.rows_count
        carrier = self._spark_connection.carrier
        depot = StagingArea(carrier.folder)
        if count > views.SMALL_ROWS:
            depot = carrier.required(spark, f"to_spark of {count} rows")
        shipping = PlanPayload(carrier, depot, "view", thorough=store.foreign)
        retained = store.log.mode == "w"
        try:
            with launch.guarded_use(spark, "to_spark"):
                frame = views.to_spark(spark, source, definition.schema, shipping, kept=retained)
        except NegativeMultiplicityError as error:
            name = self._definition_names.name_of(definition)
            what = f"collection '{name}'" if name else "this collection"
            hint = self._reader.repair_command(definition)
            raise NegativeMultiplicityError(f"{what}: {error.args[0]}", hint=hint) from None
        if shipping.spilled:
            self._publisher.garbage.export(frozenset(shipping.spilled), spilled=True)
        return frame

    def _rows(self, definition: Definition, at: Any, small: int) -> Any:
        """Returns the source of a DataFrame: a batch, or a trace whose files are retained.

        Raises:
            CorruptLogError: with `mode="r"`, if the owner has deleted files of this snapshot.
        """
        reader, store, snapshot = self._reader, self._publisher.store, self._publisher.snapshot
        name = self._definition_names.name_of(definition)
        if name is None:
            batch = reader.read(definition, at)
            when = partial(reader.epoch, at, snapshot)
            refuse_negative(
                batch, result_title(None), when, partial(reader.repair_command, definition)
            )
            return batch
        if at is None:
            reader.refuse_pending(snapshot, definition, name)
        trace = trace_at(snapshot, name, None if at is None else reader.epoch(at, snapshot))[1]
        files = frozenset(ref.path for layer in trace.layers for ref in layer.files)
        if files and trace.rows_count > small:
            self._publisher.garbage.export(files)
            if store.log.mode == "r" and not files.issubset(DISK.names(store.parts)):
                raise CorruptLogError("the log's owner has merged and deleted files")
        return trace


class SessionHost:
    """The host of a session's collections.

    Attributes:
        types: the types of expressions.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        reader: SnapshotReader,
        follower: LogFollower,
        dataframe_exports: DataFrameExports,
        subscriptions: Subscriptions,
        types: SparkTypes,
        limits: UserLimits,
    ) -> None:
        self.types = types
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._reader = reader
        self._following = follower.following
        self._dataframe_exports = dataframe_exports
        self._definition_names = publisher.definition_names
        self._subscriptions = subscriptions
        self._limits = limits

    @property
    def collect_rows(self) -> int:
        """The most rows that a read returns at once."""
        return self._limits.collect_rows

    def name_of(self, definition: Definition) -> str | None:
        """Returns the name of a stage or input; None if the definition has none."""
        return self._definition_names.name_of(definition)

    def epoch(self, at: Any) -> int:
        """Returns the number of an epoch."""
        return self._reader.epoch(at, self._publisher.snapshot)

    def pinpoint(self, at: Any) -> ResolvedEpoch:
        """Resolves an epoch; the result differs from a later epoch of that number (see rewinds)."""
        since = self._publisher.ledger.incarnation  # before the snapshot, because too early is safe
        return ResolvedEpoch(self.epoch(at), since)

    def why_stopped(self, definition: Definition) -> Stopped | None:
        """Returns the reason why a collection is stale or reads a stale one; None if neither."""
        return self._reader.why_stopped(self._publisher.snapshot, definition)

    def epoch_unless_undone(self, point: ResolvedEpoch, title: str) -> int:
        """Returns the number of an earlier resolved epoch; see `SessionProtocol`."""
        if self._publisher.ledger.numbering.has_left(*point):
            raise TimeError(
                f"{title}: epoch {point.epoch} was undone by a rewind",
                hint="call .at() again; the undone epochs are in a branch, see session.branches",
            )
        return point.epoch

    def read(self, definition: Definition, at: Any) -> Batch:
        """Returns the consolidated rows at an epoch, including negative counts."""
        loops.refuse_reading(definition)
        return self._following(lambda: self._reader.read(definition, at))

    def repair(self, definition: Definition) -> str:
        """Returns the command that adds the missing rows of a collection's inputs."""
        return self._reader.repair_command(definition)

    def apply_to_trace(
        self, definition: Definition, look: Callable[[Trace], Seen | None], at: Any = None
    ) -> Seen | None:
        """Applies a function to the trace of a collection, without merging its layers.

        Returns None if the collection has no trace at that epoch.
        """
        loops.refuse_reading(definition)
        reader = self._reader

        def probe() -> Seen | None:
            trace = (
                reader.current_trace(definition)
                if at is None
                else reader.trace_at_epoch(definition, at)
            )
            return None if trace is None else look(trace)

        return self._following(probe)

    def changes(self, definition: Definition, after: Any, upto: Any) -> Batch:
        """Returns the net changes of the epochs in `(after, upto]`, consolidated."""
        return self._following(lambda: self._reader.changes(definition, after, upto))

    def key(self, definition: Definition) -> Sequence[int] | None:
        """Returns the positions of the columns that identify a row; None if no key is known."""
        return inferred_key(self._publisher.snapshot, definition)

    def position(self, definition: Definition) -> Position:
        """Returns the position of a named collection at its last epoch."""
        return self._following(lambda: self._reader.position_of(definition))

    def history(self, definition: Definition) -> list[range]:
        """Returns the readable epochs, as ranges."""
        return self._reader.history_of(definition)

    def explain(self, definition: Definition, title: str = "collection") -> ExplainOutput:
        """Returns the current plan of a collection."""
        return self._reader.explain(definition, title)

    def frame(self, definition: Definition, at: Any) -> Any:
        """Returns the rows as a Spark DataFrame, each repeated by its count."""
        loops.refuse_reading(definition)
        return self._dataframe_exports.frame(definition, at, self._following)

    def inspect(self, definition: Definition, function: Callable[[int, Any], Any] | None) -> None:
        """Sets the function that is called with the changes of each epoch; `None` removes it."""
        self._subscriptions.inspect(definition, self.name_of(definition), function)
