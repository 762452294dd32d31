"""Sparks: a session's way to Spark; nothing of pyspark is imported before it is needed."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nosync_nb.batch import Batch, Layout
from nosync_nb.delta import Held
from nosync_nb.errors import CorruptLogError, ExpressionError, NegativeMultiplicityError
from nosync_nb.placement import Placement
from nosync_nb.reads import refuse_pending, trace_at
from nosync_nb.rows import Column, Schema
from nosync_nb.trace.arrow_file import DISK

if TYPE_CHECKING:
    from nosync_nb.graph import Stage
    from nosync_nb.session import Session


class SparkTypes:
    """What Spark knows of expressions before it evaluates them."""

    def __init__(self, sparks: Sparks) -> None:
        self._sparks = sparks

    @property
    def time_zone(self) -> str:
        """The time zone of Spark's session; before there is one, the one it would have."""
        spark = self._sparks.current
        if spark is not None:
            return str(spark.conf.get("spark.sql.session.timeZone"))
        conf = self._sparks.conf.get("spark.sql.session.timeZone")
        return conf or (time.tzname[0] if time.tzname[0] == time.tzname[1] else "local")

    def __call__(self, sqls: Sequence[str], schema: Schema) -> list[str]:
        """Asks Spark for the types of expressions."""
        spark = self._sparks.require(f"the expression {sqls[0]!r}")
        from nosync_nb.spark import evaluate

        return evaluate.types(spark, sqls, schema)


class Sparks:
    """The session's way to Spark; imports pyspark only when it is needed.

    Args:
        given: a Spark session, a function that gives one, or None to look for one.
    """

    def __init__(self, session: Session, given: Any = None) -> None:
        self._session = session
        self._given = given
        self.conf: dict[str, str] = {}
        self._started: Any = None
        self._views: Any = None
        self._viewed: dict[str, Schema] = {}
        self._asked = False
        self._placement = Placement(session)

    @property
    def current(self) -> Any:
        """The Spark session in use, or None; never starts one."""
        return self._started

    def require(self, why: str) -> Any:
        """The user's Spark session, else one that is started here.

        Raises:
            ExpressionError: if pyspark is not installed.
        """
        try:
            from nosync_nb.spark import sessions
        except ImportError as error:
            raise ExpressionError(
                f"{why} needs Spark, and pyspark is not installed",
                hint="install nosync[spark]",
            ) from error
        given = self._given() if callable(self._given) else self._given
        self._started = sessions.require(given, conf=self.conf)
        return self._started

    def is_frame(self, data: Any) -> bool:
        """Whether data is a Spark DataFrame."""
        return type(data).__module__.startswith("pyspark.sql") and hasattr(data, "mapInArrow")

    def evaluate(
        self, expressions: Sequence[Any], schema: Schema, columns: list[Column], n: int
    ) -> list[Column]:
        """Has Spark evaluate expressions on columns."""
        spark = self.require(f"the expression {expressions[0].sql!r}")
        from nosync_nb.spark import evaluate

        return evaluate.evaluate(spark, expressions, schema, columns, n)

    def shares(self, why: str) -> bool:
        """Whether executors see the session's folder; starts Spark if need be."""
        spark = self.require(why)
        from nosync_nb.spark import workers

        return workers.share(spark, self._session._store.parts)

    def fetch(self, frame: Any, stage: Stage) -> Any:
        """A DataFrame's rows over Arrow, if executors do not see the session's folder; else None.

        Raises:
            NosyncError: if these are more than `spark_rows`.
        """
        spark = self._started = frame.sparkSession
        from nosync_nb.spark import ingest, workers

        session = self._session
        folder = session._store.parts
        if workers.share(spark, folder):
            return None
        most = session.spark_rows
        table = ingest.small(spark, frame, stage.schema, most, name=stage.name)
        if table is None:
            what = f"input '{stage.name}': the DataFrame has more than {most} rows"
            raise workers.unshared(what, folder)
        self.follow()
        return table

    def ingest(self, frame: Any, stage: Stage, layouts: Sequence[Layout]) -> dict[Layout, Held]:
        """Has executors write a DataFrame's rows as part files, in each layout, executing it once.

        Args:
            stage: the input that takes them.
        """
        self._started = frame.sparkSession
        from nosync_nb.spark import ingest

        store = self._session._store
        found = ingest.ingest(
            frame.sparkSession, frame, stage.schema, layouts, store.parts, name=stage.name
        ).outputs
        self.follow()
        return {
            layout: Held(tuple(store.open_part(r, layout) for r in refs), tuple(refs))
            for layout, refs in zip(layouts, found, strict=True)
        }

    def bulk(self) -> Any:
        """What places operators and runs them on executors."""
        return self._placement

    def frame(self, collection: Any, at: Any) -> Any:
        """A collection as a DataFrame."""
        spark = self.require("to_spark")
        from nosync_nb.spark import views, workers
        from nosync_nb.spark.shipping import Shipping

        session = self._session
        given = session._following(lambda: self._rows(collection, at, views.SMALL_ROWS))
        count = len(given) if isinstance(given, Batch) else given.rows_count
        if count > views.SMALL_ROWS and not workers.share(spark, session._store.parts):
            raise workers.unshared(f"to_spark of {count} rows", session._store.parts)
        shipping = Shipping(session._store.parts, "view")
        kept = session.mode == "w"
        try:
            frame = views.to_spark(spark, given, collection.schema, shipping, kept=kept)
        except NegativeMultiplicityError as error:
            what = f"collection '{collection.name}'" if collection.name else "this collection"
            raise NegativeMultiplicityError(f"{what}: {error.args[0]}", hint=error.hint) from None
        if shipping.spilled:
            session._upkeep.exports.append(frozenset(shipping.spilled))
            session._upkeep.spilled.extend(shipping.spilled)
        return frame

    def _rows(self, collection: Any, at: Any, small: int) -> Any:
        """What a DataFrame is made of: a trace, whose files are kept if they can be, or a batch.

        Raises:
            CorruptLogError: with `mode="r"`, if files were deleted that this session still knows.
        """
        session = self._session
        if collection.name is None:
            return collection._read(at)
        seen = session._snapshot
        if at is None:
            refuse_pending(session, seen, collection._definition, collection.name)
        trace = trace_at(session, seen, collection.name, at)[1]
        files = frozenset(ref.path for layer in trace.layers for ref in layer.files)
        if files and trace.rows_count > small:
            session._upkeep.exports.append(files)
            if session.mode == "r" and not files.issubset(DISK.names(session._store.parts)):
                raise CorruptLogError("files were merged and deleted by the session that writes")
        return trace

    def follow(self) -> None:
        """Gives every named collection its temp view, if there is a Spark session by now.

        A view that cannot be made is told and changes nothing else.
        """
        session = self._session
        if not self._known() or session.mode == "r":
            return
        from nosync_nb.spark import sessions
        from nosync_nb.spark.views import Views

        try:
            spark = sessions.find(self._given() if callable(self._given) else self._given)
            if spark is None:
                return
            self._started = spark
            if self._views is None or self._views.spark is not spark:
                self._views = Views(spark, session.path, self._snapshot)
                self._viewed = {}
            wanted = {n: s.schema for n, s in session._catalog.items() if not s.frozen}
            for name in [n for n in self._viewed if n not in wanted]:
                self._views.drop(name)
                del self._viewed[name]
            for name, schema in wanted.items():
                if self._viewed.get(name) != schema:
                    self._viewed[name] = schema
                    if not self._views.create(name):
                        session._say(f"Spark has a table or view '{name}'; it was left alone")
        except Exception as error:
            session._say(f"no temp views for Spark: {error}")

    def follow_new(self) -> None:
        """The same as soon as a Spark session is there; costs next to nothing once it is, or not.

        Asked once if it fails.
        """
        if self._views is None and not self._asked and self._known():
            self.follow()
            self._asked = self._started is not None

    def _known(self) -> bool:
        """Whether Spark may be there, without importing or asking anything."""
        return self._given is not None or "pyspark.sql" in sys.modules

    def _snapshot(self, name: str, at: Any) -> Any:
        """What a read of a view sees; called by other threads."""
        from nosync_nb.spark.serving import Snapshot

        session = self._session
        seen = session._snapshot
        epoch, trace = trace_at(session, seen, name, at)
        return Snapshot(epoch, seen.stage(name).schema, trace, session._store.parts)

    def close(self) -> None:
        """Drops the views; never stops a Spark session."""
        if self._views is not None:
            with contextlib.suppress(Exception):
                self._views.close()
            self._views = None

    def cancel(self) -> None:
        """Cancels the jobs that carry our tag."""
        if self._started is not None:
            from nosync_nb.spark import sessions

            sessions.cancel(self._started)
