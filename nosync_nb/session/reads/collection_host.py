"""SessionHost: what the collections of a session ask of it (collections/session_protocol.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from nosync_nb.collections import loops
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.explain_output import ExplainOutput
from nosync_nb.collections.readable import refuse_negative, result_title
from nosync_nb.collections.session_protocol import ResolvedEpoch, Stopped
from nosync_nb.dataflow.state_reader import trace_at
from nosync_nb.errors import CorruptLogError, NegativeMultiplicityError, TimeError
from nosync_nb.session.limits import UserLimits
from nosync_nb.session.reads.log_follower import LogFollower
from nosync_nb.session.reads.reader import SnapshotReader, same_columns_definition
from nosync_nb.session.state.definition_names import DefinitionNames
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.session.writes import missing_rows
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.sql_settings import SparkTypes
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.parts.arrow_file import DISK

Seen = TypeVar("Seen")


class CollectionPosition(NamedTuple):
    """Up to where a collection has come, and what tells it from another one of its name.

    Attributes:
        point: its last epoch.
        logs: the numbers of the logs that it is read from; another version has others.
    """

    point: ResolvedEpoch
    logs: tuple[int | None, ...]


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


class SessionHost:
    """The host of a session's collections.

    Attributes:
        types: what expressions mean.
    """

    def __init__(
        self,
        gate: WriterLock,
        publisher: Publisher,
        reader: SnapshotReader,
        follower: LogFollower,
        frames: DataFrameExports,
        names: DefinitionNames,
        listeners: Subscriptions,
        types: SparkTypes,
        limits: UserLimits,
    ) -> None:
        self.types = types
        self._gate = gate
        self._publisher = publisher
        self._reader = reader
        self._following = follower.following
        self._frames = frames
        self._names = names
        self._listeners = listeners
        self._limits = limits

    @property
    def collect_rows(self) -> int:
        """The most rows that a read gives at once."""
        return self._limits.collect_rows

    @property
    def closed(self) -> bool:
        """Whether the session was closed."""
        return self._gate.closing

    @property
    def path(self) -> str:
        """The folder of the session."""
        return self._publisher.store.path

    def name_of(self, definition: Definition) -> str | None:
        """The name of a stage or input; None if the definition has none."""
        return self._names.of(definition)

    def epoch(self, at: Any) -> int:
        """The number of an epoch."""
        return self._reader.epoch(at, self._publisher.snapshot)

    def pinpoint(self, at: Any) -> ResolvedEpoch:
        """An epoch that is told from any that has its number after a rewind."""
        since = self._publisher.ledger.incarnation  # before the snapshot: it may only be too early
        return ResolvedEpoch(self.epoch(at), since)

    def stopped(self, definition: Definition) -> Stopped | None:
        """Why a collection is stale, or reads one that is."""
        return self._reader.stopped(self._publisher.snapshot, definition)

    def still(self, point: ResolvedEpoch, title: str) -> int:
        """The number of an epoch of before; see `Host.still`."""
        if self._publisher.ledger.numbering.has_left(*point):
            raise TimeError(
                f"{title}: epoch {point.epoch} was left when the session went back behind it",
                hint="ask .at() again; what was left is in a branch, see session.branches",
            )
        return point.epoch

    def standing(self, definition: Definition) -> CollectionPosition:
        """Up to where a collection has come; what a reader has not looked at yet is not in it.

        Raises:
            StageError: what it reads was dropped, or has other columns.
        """
        since = self._publisher.ledger.incarnation  # before the snapshot: it may only be too early
        seen = self._publisher.snapshot
        name = self._names.of(definition)
        if name is not None:
            last = seen.last(same_columns_definition(seen, name, definition.schema))
            return CollectionPosition(ResolvedEpoch(last, since), (seen.graph.named[name].log,))
        read = {ref.name: ref.schema for ref in definition.refs}
        stages = [same_columns_definition(seen, each, schema) for each, schema in read.items()]
        logs = tuple(seen.graph.named[stage.name].log for stage in stages)
        return CollectionPosition(ResolvedEpoch(seen.epoch, since), logs)

    def holds(self, standing: CollectionPosition, definition: Definition) -> bool:
        """Whether what a collection had then is what its epoch of that number has now."""
        left = self._publisher.ledger.numbering.has_left(*standing.point)
        return not left and self.standing(definition).logs == standing.logs

    def subscribe(self, callback: Callable[[int], None]) -> Callable[[], None]:
        """Has a function hear of each epoch; returns the way to end it."""
        return self._listeners.subscribe(callback)

    def read(self, definition: Definition, at: Any) -> Batch:
        """The consolidated rows at an epoch; counts below 0 are among them."""
        loops.refuse_reading(definition)
        return self._following(lambda: self._reader.read(definition, at))

    def repair(self, definition: Definition) -> str:
        """The command that brings the rows that inputs of a collection lack."""
        return missing_rows.repair(self._publisher.snapshot, self._names.read_by(definition))

    def glance(
        self, definition: Definition, look: Callable[[Trace], Seen | None], at: Any = None
    ) -> Seen | None:
        """What a look at the layers whose sum is there gives; None if there are none."""
        loops.refuse_reading(definition)
        reader = self._reader

        def glanced() -> Seen | None:
            trace = reader.now(definition) if at is None else reader.then(definition, at)
            return None if trace is None else look(trace)

        return self._following(glanced)

    def changes(self, definition: Definition, after: Any, upto: Any) -> Batch:
        """Net changes of the epochs in `(after, upto]`, consolidated."""
        return self._following(lambda: self._reader.changes(definition, after, upto))

    def history(self, definition: Definition) -> list[range]:
        """The readable epochs, as ranges."""
        return self._reader.history_of(definition)

    def explain(self, definition: Definition) -> ExplainOutput:
        """How a collection is computed, as of now."""
        return self._reader.explain(definition)

    def frame(self, definition: Definition, at: Any) -> Any:
        """The rows as a DataFrame of Spark, copies expanded."""
        loops.refuse_reading(definition)
        return self._frames.frame(definition, at, self._following)

    def inspect(self, definition: Definition, function: Callable[[int, Any], Any] | None) -> None:
        """Has a function called with the changes of each epoch, or (None) no longer."""
        self._listeners.inspect(definition, self.name_of(definition), function)
