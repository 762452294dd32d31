"""Spark sessions: whose they are, how ours starts, how jobs are named and cancelled.

A user's session is the user's: it is found, never configured, never stopped. Only if Spark is
needed and there is none, one is started, in the calling thread, reachable from this machine alone.
Nothing here imports pyspark before it is needed: while nobody imported it there is no session.

Classic and Connect sessions differ in three ways only, all of them here: how to see that one was
stopped, how a job gets a description, and whether job numbers can be known.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from nosync_nb.errors import NosyncError, titled
from nosync_nb.rows import Schema
from nosync_nb.rows.ddl import quote
from nosync_nb.spark.failures import explained

Spark: TypeAlias = Any
"""A `SparkSession`, classic or Connect."""

LOCAL_CONF: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.app.name": "nosync",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""How a session is started when there is none; the time zone stays the machine's."""

TAG = "nosync"
"""The tag of every job of ours."""

_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
_JOBS_WAIT_S = 0.2
_SIZE = re.compile(r"Statistics\(sizeInBytes=([0-9.]+(?:E[+-]?[0-9]+)?) ([KMGTPE]?i?B)\b")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

_ours: set[int] = set()


class Settings(NamedTuple):
    """What of a session's configuration changes the meaning of expressions."""

    time_zone: str
    ansi: bool


class Jobs:
    """The Spark jobs of a block; `ids` is known after it, and never on Connect."""

    ids: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        """The jobs for people, such as `Spark jobs 3-5`."""
        if not self.ids:
            return "Spark"
        first, last = self.ids[0], self.ids[-1]
        return f"Spark job {first}" if first == last else f"Spark jobs {first}-{last}"


def _is(value: Any, name: str) -> bool:
    return any(
        c.__name__ == name and c.__module__.startswith("pyspark.sql") for c in type(value).__mro__
    )


def is_session(value: Any) -> bool:
    """Tells whether something is a Spark session, classic or Connect."""
    return _is(value, "SparkSession")


def is_dataframe(value: Any) -> bool:
    """Tells whether something is a Spark DataFrame, classic or Connect."""
    return _is(value, "DataFrame") and hasattr(value, "sparkSession")


def is_connect(spark: Spark) -> bool:
    """Tells whether a session talks to a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def alive(spark: Spark) -> bool:
    """Tells whether a session was not stopped."""
    if is_connect(spark):
        return not spark.is_stopped
    return spark.sparkContext._jsc is not None


def is_local(spark: Spark) -> bool:
    """Tells whether the executors are surely processes of this machine."""
    return not is_connect(spark) and spark.sparkContext.master.startswith("local")


def find(given: Spark | None = None, namespace: Mapping[str, Any] | None = None) -> Spark | None:
    """Returns the session to use, without starting one; stopped ones do not count.

    Args:
        given: what `open(spark=)` got.
        namespace: the user's variables, of which `spark` is looked at.

    Raises:
        TypeError: if `given` is no session.
    """
    if given is not None:
        if not is_session(given):
            raise TypeError(f"spark must be a SparkSession, not {type(given).__name__}")
        if alive(given):
            return given
    named = None if namespace is None else namespace.get("spark")
    if is_session(named) and alive(named):
        return named
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession() or _default()
    return found if found is not None and alive(found) else None


def _default() -> Spark | None:
    """The default session of this process, which another thread may have made."""
    from pyspark.sql import SparkSession

    found = getattr(SparkSession, "_instantiatedSession", None)
    if found is None and "pyspark.sql.connect.session" in sys.modules:
        connect = sys.modules["pyspark.sql.connect.session"].SparkSession
        found = getattr(connect, "_default_session", None)
    return found


def require(
    given: Spark | None = None,
    namespace: Mapping[str, Any] | None = None,
    *,
    conf: Mapping[str, str] | None = None,
) -> Spark:
    """Returns the session to use and starts one if there is none.

    Args:
        conf: settings for a session that must be started, over `LOCAL_CONF`.

    Raises:
        NosyncError: if pyspark is not installed, or Spark does not start.
    """
    found = find(given, namespace)
    return start(conf) if found is None else found


def start(conf: Mapping[str, str] | None = None) -> Spark:
    """Starts a local session of our own, with the workers in this interpreter."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NosyncError(
            "this needs Spark, and pyspark is not installed", hint="pip install 'nosync[spark]'"
        ) from error
    builder = SparkSession.builder
    for key, value in {**LOCAL_CONF, **(conf or {})}.items():
        builder = builder.config(key, value)
    python = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = python or sys.executable
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise NosyncError(
            f"Spark does not start: {explained(error)[1]}",
            hint="Spark 4 needs Java 17 or later: look at `java -version` and JAVA_HOME",
        ) from error
    finally:
        if python is None:
            del os.environ["PYSPARK_PYTHON"]
    _ours.add(id(spark))
    return spark


def started_here(spark: Spark) -> bool:
    """Tells whether `start` made this session."""
    return id(spark) in _ours


def stop(spark: Spark) -> None:
    """Stops a session that was started here; any other goes on."""
    if id(spark) in _ours:
        _ours.discard(id(spark))
        if alive(spark):
            spark.stop()


def settings(spark: Spark) -> Settings:
    """Returns the settings that expressions depend on; they belong into fingerprints."""
    return Settings(
        spark.conf.get("spark.sql.session.timeZone"),
        spark.conf.get("spark.sql.ansi.enabled").lower() == "true",
    )


@contextmanager
def tagged(spark: Spark, tag: str = TAG) -> Iterator[None]:
    """Tags the jobs that this thread starts inside; an interrupt cancels them."""
    new = tag not in _tags(spark)
    if new:
        _add_tag(spark, tag)
    try:
        yield
    except KeyboardInterrupt:
        cancel(spark, tag)
        raise
    finally:
        if new:
            _remove_tag(spark, tag)


def cancel(spark: Spark, tag: str = TAG) -> None:
    """Cancels every running job with a tag, whatever thread started it; all of ours carry `TAG`."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


# Tags of a classic *session* are known to the thread that set them alone; those of its context
# are known to all.


def _tags(spark: Spark) -> set[str]:
    found: set[str] = spark.getTags() if is_connect(spark) else spark.sparkContext.getJobTags()
    return found


def _add_tag(spark: Spark, tag: str) -> None:
    if is_connect(spark):
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)


def _remove_tag(spark: Spark, tag: str) -> None:
    if is_connect(spark):
        spark.removeTag(tag)
    else:
        spark.sparkContext.removeJobTag(tag)


def quoted(name: str) -> str:
    """A column's name as an expression."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def spelled(type_: Any) -> str:
    """A type as Spark's `simpleString` writes it, with names of fields that can be read back."""
    kind = type_.typeName()
    if kind == "struct":
        return f"struct<{','.join(f'{quote(f.name)}:{spelled(f.dataType)}' for f in type_.fields)}>"
    if kind == "array":
        return f"array<{spelled(type_.elementType)}>"
    if kind == "map":
        return f"map<{spelled(type_.keyType)},{spelled(type_.valueType)}>"
    return str(type_.simpleString())


def frame_of(spark: Spark, table: pa.Table, schema: Schema) -> Any:
    """A DataFrame of Arrow rows; the schema says which timestamps have no zone."""
    given = table if table.num_rows else []  # without rows pyspark fails on nested types
    return spark.createDataFrame(given, schema=schema.ddl)


def estimated_bytes(frame: Any) -> int | None:
    """How large Spark expects the result of a DataFrame to be, without executing it; None: unknown.

    Spark tells it in a text for people alone.
    """
    try:
        told = frame.sparkSession.sql("EXPLAIN COST SELECT * FROM {frame}", frame=frame).collect()
    except Exception:  # it is not needed; what is wrong with a DataFrame shows when it is executed
        return None
    found = _SIZE.search(told[0][0])
    if found is None:
        return None
    return math.ceil(math.ldexp(float(found[1]), 10 * _UNITS.index(found[2])))


@contextmanager
def described(spark: Spark, stage: str, operator: str) -> Iterator[Jobs]:
    """Names stage and operator in the jobs that this thread starts inside.

    On Connect, which knows no descriptions, they carry a tag of that text.
    """
    jobs = Jobs()
    text = f"nosync: {titled(stage)}: {operator}"
    if is_connect(spark):
        tag = text.replace(",", ";")
        spark.addTag(tag)
        try:
            yield jobs
        finally:
            spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = [context.getLocalProperty(key) for key in _GROUP]
    group = f"nosync-{uuid.uuid4().hex}"
    context.setJobGroup(group, text)
    try:
        yield jobs
    finally:
        for key, value in zip(_GROUP, before, strict=True):
            context.setLocalProperty(key, value)
    jobs.ids = _job_ids(context, group)


def _job_ids(context: Any, group: str) -> tuple[int, ...]:
    """The jobs of a group; Spark's own bookkeeping follows its jobs by some milliseconds."""
    tracker = context.statusTracker()
    deadline = time.monotonic() + _JOBS_WAIT_S
    while True:
        ids = tuple(sorted(tracker.getJobIdsForGroup(group)))
        infos = [tracker.getJobInfo(i) for i in ids]
        done = ids and all(i is not None and i.status != "RUNNING" for i in infos)
        if done or time.monotonic() > deadline:
            return ids
        time.sleep(0.002)
