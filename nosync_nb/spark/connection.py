"""Connects a session to Spark; imports PySpark only when it is needed.

The connection receives the parts of the session that it needs, not the session itself. One lock
guards its state: definitions and commits change the views, DataFrames determine the Spark session
in use, and any thread may read.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from nosync_nb.dataflow.runtime.activity import ActivityMonitor
from nosync_nb.dataflow.runtime.delta import ArrangedChange
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import ExpressionError, FencedError, NosyncError
from nosync_nb.rows import Column, Schema
from nosync_nb.rows.ddl import quoted
from nosync_nb.spark.execution.cost_model import FRAME_ROWS
from nosync_nb.spark.execution.placement import Placement
from nosync_nb.spark.session_protocol import PublishedState, SparkLimits
from nosync_nb.spark.spark_session import RunningJobs
from nosync_nb.spark.sql_settings import SparkTypes
from nosync_nb.spark.staging.staging import StagingService, unshared_folder_error
from nosync_nb.store.replication.restore.lazy_fetch import fetch_all_files
from nosync_nb.trace.batch import Layout

if TYPE_CHECKING:
    from nosync_nb.spark.catalog_tables import SparkTable


class SparkConnection:
    """The connection of a session to Spark; imports PySpark only when it is needed.

    Threads: the Spark session in use and its views are changed with `_lock` alone. A thread that
    holds it waits for no other lock, prints no notice and starts no session.

    Args:
        ended: returns True if the session was closed or replaced.
        say: prints a notice to the user of the session.
        doing: records long operations for status displays.
        given: a Spark session, or a function that returns one; `None` means that the connection
            looks for a session.

    Attributes:
        types: resolves types and settings of expressions.
        carrier: transfers the session's files to executors.
    """

    def __init__(
        self,
        published: PublishedState,
        limits: SparkLimits,
        ended: Callable[[], bool],
        say: Callable[[str], None],
        doing: ActivityMonitor,
        given: Any,
        carrier: StagingService,
    ) -> None:
        self._published = published
        self._limits = limits
        self._ended = ended
        self._say = say
        self._doing = doing
        self._given = given
        self.carrier = carrier
        self.types = SparkTypes(self)
        self.conf: dict[str, str] = {}
        self._lock = threading.RLock()
        self._started: Any = None
        self._lost: Any = None  # the user's session whose JVM has died
        self._unable = False
        self._views: Any = None
        self._view_schemas: dict[str, Schema] = {}
        self._followed = False
        self._placement = Placement(self, published.store, carrier)

    @property
    def epoch(self) -> int:
        """The last epoch."""
        return self._published.snapshot.epoch

    @property
    def spark_rows(self) -> int | None:
        """The maximum number of rows that run in this process; None if the cost decides."""
        return self._limits.spark_rows

    @property
    def off(self) -> bool:
        """True if this process must do all work that it can do without Spark."""
        return self._limits.spark_off

    @property
    def current(self) -> Any:
        """The Spark session in use; None if there is none. Never starts one.

        If the session was stopped, the views are moved to the session that has replaced it.
        """
        started = self._started
        if started is not None:
            from nosync_nb.spark import launch

            if launch.is_stopped(started):
                with self._lock:
                    if self._started is started:
                        self._started = None
                self.follow()
        return self._started

    def require(self, why: str, instead: str = "", *, announce: bool = False) -> Any:
        """Returns the user's Spark session, or starts one.

        Args:
            why: the operation that needs Spark, for notices and errors.
            instead: a similar expression that needs no Spark.
            announce: True to print a notice before Spark starts.

        Raises:
            ExpressionError: if pyspark is not installed, or Spark is switched off.
            NosyncError: if Spark does not start, or the JVM of the user's session has died.
        """
        try:
            from nosync_nb.spark import launch, spark_session
        except ImportError as error:
            raise ExpressionError(
                f"{why} needs Spark, and pyspark is not installed",
                hint="install nosync[spark]",
            ) from error
        user = self._user_session()
        spark = spark_session.find_session(user)
        if spark is None and self.off:
            raise launch.spark_off_error(why, instead)
        if spark is None:
            with self._lock:
                for each in (user, self._started):
                    if each is not None and launch.has_died(each) and not launch.is_ours(each):
                        self._lost = each
                        launch.forget_dead()
                lost = self._lost
            if lost is not None:
                raise launch.dead_session_error(why, ours=False)
            recorded = spark_session.conf_of(self.types.recorded())
            if announce:
                around = f"; {instead!r} would run in this process" if instead else ""
                self._say(f"starts Spark for {why}{around}")
            try:
                with self._doing.record(f"starts Spark for {why}"):
                    spark = launch.start_session({**recorded, **self.conf})
            except NosyncError as error:
                raise NosyncError(f"{why} needs Spark, but {error}", hint=error.hint) from error
        with self._lock:
            self._lost, self._started = None, spark
        fetch_all_files(self._published.store.files)  # because executors read from the folder only
        return spark

    def able(self, what: str) -> bool:
        """Returns True if Spark runs or can be started; prints one notice if it cannot.

        Args:
            what: the operation, which can also run without Spark.
        """
        if self._unable and self.present() is None:
            return False
        try:
            self.require(what)
        except NosyncError as error:
            if not self._unable:
                self._say(f"{error}: operators that do not need Spark run in this process")
            self._unable = True
            return False
        self._unable = False
        return True

    def state(self, *, asked: bool) -> Literal["absent", "startable", "running"]:
        """Returns the state of Spark: running, not yet started, or not available.

        Args:
            asked: True if the user asked for Spark, and must see the error if it does not start.
        """
        if self.present() is not None or self.current is not None:
            return "running"
        return "absent" if self._unable and not asked else "startable"

    def present(self) -> Any:
        """Returns the running Spark session; None if there is none."""
        if not self._may_exist():
            return None
        from nosync_nb.spark import spark_session

        return spark_session.find_session(self._user_session())

    def table(self, path: str) -> SparkTable | None:
        """Returns a table or a view of the running Spark session; None without one.

        The views that this connection has created are not among them.

        Args:
            path: the name as SQL, perhaps with database and catalog.
        """
        spark = self.present()
        if spark is None:
            return None
        from nosync_nb.spark import catalog_tables, launch
        from nosync_nb.spark.views import name_lookups

        with name_lookups.unwatched(), launch.guarded_use(spark, f"the table {path}"):
            with self._lock:
                views = () if self._views is None else self._views.names
                for name in [each for each in views if path in (each, quoted(each))]:
                    self._views.drop(name)
                    self._view_schemas.pop(name, None)
            return catalog_tables.find_table(spark, path)

    def _user_session(self) -> Any:
        """Returns the Spark session that the user passed, or None."""
        return self._given() if callable(self._given) else self._given

    def catalog(self) -> Mapping[str, Stage]:
        """Returns the stages of the log, including those that are being defined."""
        return self._published.described

    def is_frame(self, data: Any) -> bool:
        """Returns True if an object is a Spark DataFrame."""
        return type(data).__module__.startswith("pyspark.sql") and hasattr(data, "mapInArrow")

    def evaluate(
        self, expressions: Sequence[Any], schema: Schema, columns: list[Column], n: int
    ) -> list[Column]:
        """Evaluates expressions over `n` rows in Spark."""
        needs_spark = next((e.sql for e in expressions if not e.local), expressions[0].sql)
        spark = self.types.session(needs_spark, schema)
        from nosync_nb.spark import fallback, launch

        with launch.guarded_use(spark, f"the expression {needs_spark!r}"):
            return fallback.evaluate_in_spark(spark, expressions, schema, columns, n)

    def shares(self, why: str) -> bool:
        """Returns True if executors see the session's folder; starts Spark if necessary."""
        spark = self.require(why)
        from nosync_nb.spark import launch

        with launch.guarded_use(spark, why):
            return self.carrier.serves(spark)

    def fetch(self, frame: Any, stage: Stage) -> Any:
        """Fetches the rows of a DataFrame as Arrow if executors have no staging area.

        Returns None if there is a staging area, through which executors write the rows.

        Raises:
            NosyncError: if there are more rows than `spark_rows`, by default `FRAME_ROWS`.
        """
        spark = self._session_of_frame(frame, stage)
        from nosync_nb.spark import ingest, launch

        with launch.guarded_use(spark, f"input '{stage.name}'"):
            if self.carrier.depot(spark) is not None:
                return None
            asked = self._limits.spark_rows
            most = FRAME_ROWS if asked is None else asked
            table = ingest.collect_small(spark, frame, stage.schema, most, name=stage.name)
        if table is None:
            what = f"input '{stage.name}': the DataFrame has more than {most} rows"
            raise unshared_folder_error(what, self.carrier.folder)
        self.follow()
        return table

    def keys(self, frame: Any, stage: Stage, schema: Schema) -> Any:
        """Fetches the keys in a DataFrame of rows to delete, as Arrow.

        Raises:
            NosyncError: if there are more keys than `collect_rows`.
        """
        spark = self._session_of_frame(frame, stage)
        from nosync_nb.spark import ingest, launch

        most = self._limits.collect_rows
        own = [c for c in frame.columns if c.lower() in {n.lower() for n in schema.names}]
        with launch.guarded_use(spark, f"input '{stage.name}': delete"):
            table = ingest.collect_small(spark, frame.select(*own), schema, most, name=stage.name)
        if table is None:
            raise NosyncError(
                f"input '{stage.name}': delete: the DataFrame has more than {most} keys",
                hint="delete them in parts, or raise session.collect_rows",
            )
        return table

    def ingest(
        self, frame: Any, stage: Stage, layouts: Sequence[Layout]
    ) -> dict[Layout, ArrangedChange]:
        """Executes a DataFrame once; executors write its rows as part files in each layout.

        Args:
            stage: the input that receives the rows.

        Returns:
            the rows as a change, by layout.
        """
        spark = self._session_of_frame(frame, stage)
        from nosync_nb.spark import ingest, launch

        store = self._published.store
        with launch.guarded_use(spark, f"input '{stage.name}'"):
            outputs = ingest.ingest(
                spark, frame, stage.schema, layouts, self.carrier, name=stage.name
            ).outputs
        self.follow()
        return {
            layout: ArrangedChange(tuple(store.open_part(r, layout) for r in refs), tuple(refs))
            for layout, refs in zip(layouts, outputs, strict=True)
        }

    def _session_of_frame(self, frame: Any, stage: Stage) -> Any:
        """Returns the Spark session of a DataFrame, which becomes the session in use.

        The session of a micro-batch does not, because it ends with its streaming query.

        Raises:
            NosyncError: if the Spark session has ended.
        """
        from nosync_nb.spark import launch, streaming

        spark = frame.sparkSession
        if not launch.is_alive(spark):
            how = "was stopped" if launch.is_stopped(spark) else "ended when its JVM died"
            raise NosyncError(
                f"input '{stage.name}': the Spark session of the DataFrame {how}",
                hint="create the DataFrame again, in a running Spark session",
            )
        if not streaming.handing.on:
            with self._lock:
                self._started = spark
        return spark

    def bulk(self) -> Placement:
        """Returns the placement, which decides where operators run and runs them on executors."""
        return self._placement

    def follow(self) -> None:
        """Watches the running Spark session, and drops the views of stages that have changed.

        Does nothing without a Spark session, or if the log is open for reading only.
        """
        if not self._may_exist() or self._published.store.log.mode == "r":
            return
        from nosync_nb.spark import spark_session
        from nosync_nb.spark.views import name_lookups

        try:
            spark = spark_session.find_session(self._user_session())
            if spark is not None:
                with self._lock, name_lookups.unwatched():
                    self._follow(spark)
        except Exception as error:
            self._say(f"no temp views for Spark: {error}")

    def _follow(self, spark: Any) -> None:
        """Watches a Spark session, and drops views whose stage is gone or has other columns.

        The caller holds the lock.
        """
        from nosync_nb.spark.views import name_lookups
        from nosync_nb.spark.views.views import Views

        if self._ended():
            return
        store = self._published.store
        self._started = spark
        if self._views is None or self._views.spark is not spark:
            self.close()
            self._views = Views(spark, store.path, self.snapshot, store.log.generation)
            name_lookups.watch(spark, self.show_views)
        shown = self._visible_schemas()
        for name in [n for n, schema in self._view_schemas.items() if shown.get(n) != schema]:
            self._views.drop(name)
            del self._view_schemas[name]

    def _visible_schemas(self) -> dict[str, Schema]:
        """Returns the schemas of the named collections that may have views."""
        stages = self._published.snapshot.catalog.items()
        return {name: stage.schema for name, stage in stages if not stage.frozen}

    def show_views(self, names: frozenset[str] | None) -> None:
        """Creates temp views of stages before Spark looks up tables of these names.

        Args:
            names: the names in lower case; `None` means all stages.
        """
        from nosync_nb.spark.views.name_lookups import lowercase_words

        notices: list[str] = []
        try:
            with self._lock:
                if self._views is None or self._ended():
                    return
                for name, schema in self._visible_schemas().items():
                    if names is not None and not lowercase_words(name) <= names:
                        continue
                    if name not in self._view_schemas:
                        notices += self._create_view(name, schema)
        except Exception as error:
            notices.append(f"no temp views for Spark: {error}")
        for notice in notices:
            self._say(notice)

    def _create_view(self, name: str, schema: Schema) -> list[str]:
        """Creates the view of a stage; returns the reason in a list if that is not possible."""
        self._view_schemas[name] = schema
        taken = self._views.name_conflict(name)
        if taken is None and not self._views.create(name, schema):
            if self._published.snapshot.catalog[name].origin:  # it was loaded from that table
                return []
            taken = f"Spark has a table or view '{name}' already; it was not replaced"
        return [] if taken is None else [taken]

    def follow_new(self) -> None:
        """Watches a Spark session as soon as one exists; after that a call costs almost nothing.

        If a watched session was stopped, its views are dropped, and the next session is watched.
        """
        views = self._views
        if views is not None:
            if not views.ended:
                return
            with self._lock:
                if self._views is views:
                    self.close()
                    self._started, self._followed = None, False
        if not self._followed and self._may_exist():
            self.follow()
            self._followed = self._started is not None

    def _may_exist(self) -> bool:
        """Returns True if a Spark session may exist; imports nothing, and makes no call."""
        return self._given is not None or "pyspark.sql" in sys.modules

    def snapshot(self, name: str, at: Any) -> Any:
        """Returns the snapshot for a read of a view; called in other threads.

        Raises:
            FencedError: if the session was closed or replaced.
        """
        from nosync_nb.spark.views.snapshot_server import snapshot_of

        if self._ended():
            raise FencedError(
                "the session that serves the views was closed or replaced",
                hint="run the query again",
            )
        seen = self._published
        since = seen.ledger.incarnation
        return snapshot_of(seen.store, seen.ledger, seen.snapshot, name, at, since)

    def close(self) -> None:
        """Drops the views and stops serving them; never stops a Spark session."""
        with self._lock:
            if self._views is not None:
                from nosync_nb.spark.views import name_lookups

                name_lookups.unwatch(self.show_views)
                with contextlib.suppress(Exception), name_lookups.unwatched():
                    self._views.close()
                self._views = None
                self._view_schemas = {}

    def running(self) -> RunningJobs | None:
        """Returns the progress of the running jobs; None if no job runs, or if it is unknown.

        Never starts Spark.

        Cost: two calls to the JVM, and one call for each job and each of its stages.
        """
        started = self._started
        if started is None:
            return None
        from nosync_nb.spark import spark_session

        return spark_session.running_jobs(started)

    def cancel(self) -> None:
        """Cancels all jobs of NoSync."""
        if self._started is not None:
            from nosync_nb.spark import spark_session

            spark_session.cancel_jobs(self._started)
