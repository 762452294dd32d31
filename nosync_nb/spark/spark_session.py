"""Finds Spark sessions, reads their settings, and names, tags and cancels jobs.

A session of the user is used, but never configured or stopped. If Spark is needed and no session
exists, one is started in the calling thread (launch.py). No function imports pyspark before it is
needed: while pyspark is not imported, no session exists.

Classic and Connect sessions differ in three ways: how to detect that a session was stopped, how a
job gets a description, and whether the numbers of jobs are available.
"""

from __future__ import annotations

import math
import re
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from nosync_nb.errors import ExpressionError, titled
from nosync_nb.expressions import Expression, SqlSettings
from nosync_nb.expressions.settings import zone
from nosync_nb.rows import Schema
from nosync_nb.rows.ddl import quote
from nosync_nb.spark import interval_transport
from nosync_nb.spark.launch import Spark, is_alive, is_connect, start_session

TIME_ZONE, ANSI = "spark.sql.session.timeZone", "spark.sql.ansi.enabled"
_ON_OFF = {True: "on", False: "off"}

TAG = "nosync"
"""The tag of all jobs of NoSync."""

_SESSION_SETTINGS = re.compile(
    r"spark\.(master|app\.name|driver\.memory|default\.parallelism|sql\.(session\.timeZone"
    r"|ansi\.enabled|caseSensitive|shuffle\.partitions|autoBroadcastJoinThreshold"
    r"|legacy\.timeParserPolicy|adaptive\.[\w.]+))"
)
"""The settings that may be recorded, because they contain no locations, secrets or users."""
_PLAIN_VALUE = re.compile(r"[\w./:*,\[\]+ -]{1,100}")

_GROUP = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
_JOBS_WAIT_S = 0.2
_SIZE = re.compile(r"Statistics\(sizeInBytes=([0-9.]+(?:E[+-]?[0-9]+)?) ([KMGTPE]?i?B)\b")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Jobs:
    """The Spark jobs of a `with` block.

    Attributes:
        ids: the numbers of the jobs; None during the block, and always on Connect.
    """

    def __init__(self) -> None:
        self.ids: tuple[int, ...] | None = None

    def record(self, ids: Iterable[int] | None) -> None:
        """Records the numbers of the jobs; None if they are unknown."""
        self.ids = None if ids is None else tuple(sorted(ids))

    def joined(self, other: Jobs) -> Jobs:
        """Returns the jobs of two blocks."""
        jobs = Jobs()
        if self.ids is not None and other.ids is not None:
            jobs.record((*self.ids, *other.ids))
        return jobs

    @property
    def text(self) -> str:
        """A text for messages, such as `Spark jobs 3-5`."""
        if not self.ids:
            return "Spark"
        first, last = self.ids[0], self.ids[-1]
        return f"Spark job {first}" if first == last else f"Spark jobs {first}-{last}"


def _is_instance(value: Any, name: str) -> bool:
    return any(
        c.__name__ == name and c.__module__.startswith("pyspark.sql") for c in type(value).__mro__
    )


def is_session(value: Any) -> bool:
    """Returns True if a value is a Spark session, classic or Connect."""
    return _is_instance(value, "SparkSession")


def is_local(spark: Spark) -> bool:
    """Returns True if the executors are known to run on this machine."""
    return not is_connect(spark) and spark.sparkContext.master.startswith("local")


def find_session(
    given: Spark | None = None, namespace: Mapping[str, Any] | None = None
) -> Spark | None:
    """Returns the session to use, without starting one; stopped sessions are ignored.

    Args:
        given: the session that was passed to `open(spark=)`.
        namespace: the user's variables, of which only `spark` is used.

    Raises:
        TypeError: if `given` is not a session.
    """
    if given is not None:
        if not is_session(given):
            raise TypeError(f"spark must be a SparkSession, not {type(given).__name__}")
        if is_alive(given):
            return given
    named = None if namespace is None else namespace.get("spark")
    if is_session(named) and is_alive(named):
        return named
    if "pyspark.sql" not in sys.modules:
        return None
    spark = _active_session() or _default()
    return spark if spark is not None and is_alive(spark) else None


def _active_session() -> Spark | None:
    """Returns the active session of this thread, or None."""
    from pyspark.sql import SparkSession

    try:
        return SparkSession.getActiveSession()
    except Exception:  # PySpark calls the JVM, which may be gone
        return None


def _default() -> Spark | None:
    """Returns the default session of this process, which another thread may have created."""
    from pyspark.sql import SparkSession

    session = getattr(SparkSession, "_instantiatedSession", None)
    if session is None and "pyspark.sql.connect.session" in sys.modules:
        connect = sys.modules["pyspark.sql.connect.session"].SparkSession
        session = getattr(connect, "_default_session", None)
    return session


def require_session(
    given: Spark | None = None,
    namespace: Mapping[str, Any] | None = None,
    *,
    conf: Mapping[str, str] | None = None,
) -> Spark:
    """Returns the session to use, and starts one if necessary.

    Args:
        conf: the settings for a session that is started; they override `LOCAL_CONF`.

    Raises:
        NosyncError: if pyspark is not installed, or Spark does not start.
    """
    spark = find_session(given, namespace)
    return start_session(conf) if spark is None else spark


def sql_settings_of(spark: Spark) -> SqlSettings:
    """Returns the settings that expressions depend on."""
    return SqlSettings(zone(spark.conf.get(TIME_ZONE)), spark.conf.get(ANSI).lower() == "true")


def conf_of(wanted: SqlSettings) -> dict[str, str]:
    """Returns the configuration of a session with some settings; omits unknown ones."""
    conf = {}
    if wanted.time_zone is not None:
        conf[TIME_ZONE] = wanted.time_zone
    if wanted.ansi is not None:
        conf[ANSI] = str(wanted.ansi).lower()
    return conf


def restart_conf(spark: Spark) -> dict[str, str]:
    """Returns the settings with which a similar session can be started; empty if it is not local.

    Jars, folders, JVM options and possible secrets are omitted, because the user's code sets them.

    Raises:
        Exception: PySpark's error, if the JVM is gone.

    Cost: one call to the JVM, a few ms.
    """
    if not is_local(spark):
        return {}
    every = spark.conf.getAll.items()
    return {
        key: v for key, v in every if _SESSION_SETTINGS.fullmatch(key) and _PLAIN_VALUE.fullmatch(v)
    }


def check_settings(spark: Spark, expressions: Iterable[Expression]) -> None:
    """Checks that the settings of a session are those under which expressions were defined.

    Raises:
        ExpressionError: if a setting differs; names the expression, both values and the remedy.
    """
    asked = [e for e in expressions if e.settings != SqlSettings()]
    if asked:
        have = sql_settings_of(spark)
        for each in asked:
            check_setting(each.sql, each.settings, have)


def check_setting(text: str, wanted: SqlSettings, have: SqlSettings) -> None:
    """Raises ExpressionError if a setting is not the one of an expression; None matches any."""
    for key, what, own, other in (
        (TIME_ZONE, "the time zone is", wanted.time_zone, have.time_zone),
        (ANSI, "ANSI mode is", wanted.ansi, have.ansi),
    ):
        if None in (own, other) or own == other:
            continue
        shown = [_ON_OFF[each] if isinstance(each, bool) else repr(each) for each in (own, other)]
        value = str(own).lower() if isinstance(own, bool) else own
        raise ExpressionError(
            f"expression {text!r}: {what} {shown[0]} in this log, and {shown[1]} in the Spark"
            " session",
            hint=f"spark.conf.set({key!r}, {value!r}); or use a new log, or drop the stages of this"
            " log that depend on it",
        )


@contextmanager
def job_tag(spark: Spark, tag: str = TAG) -> Iterator[None]:
    """In a `with` block, tags the jobs that this thread starts; an interrupt cancels them.

    Raises:
        KeyboardInterrupt: for an interrupt, even if Spark's client fails while it handles the
            interrupt, for example because it closes the connection. Otherwise the jobs would
            continue unnoticed.
    """
    new = tag not in _tags(spark)
    if new:
        _add_tag(spark, tag)
    try:
        yield
    except BaseException as error:
        interrupt = _interrupt(error)
        if interrupt is not None:
            cancel_jobs(spark, tag)
        if interrupt not in (None, error):
            raise KeyboardInterrupt from error
        raise
    finally:
        if new:
            _remove_tag(spark, tag)


def _interrupt(error: BaseException) -> BaseException | None:
    """Returns the interrupt that is the cause of an error; None if there is none."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen


class RunningJobs(NamedTuple):
    """The running jobs.

    Attributes:
        jobs: the number of running jobs.
        tasks: the number of their tasks.
        done: the number of finished tasks.
        url: the address of Spark's UI; None if it is off.
    """

    jobs: int
    tasks: int
    done: int
    url: str | None


def running_jobs(spark: Spark) -> RunningJobs | None:
    """Returns the running jobs; None if no job runs, or on Connect."""
    if is_connect(spark):
        return None
    try:
        context = spark.sparkContext
        tracker = context.statusTracker()
        jobs = [job for i in tracker.getActiveJobsIds() if (job := tracker.getJobInfo(i))]
        stages = [tracker.getStageInfo(i) for job in jobs for i in job.stageIds]
    except Exception:  # py4j raises many kinds of errors if the context stops meanwhile
        return None
    seen = [stage for stage in stages if stage is not None]
    done = sum(stage.numCompletedTasks for stage in seen)
    url = context.uiWebUrl
    return RunningJobs(len(jobs), sum(s.numTasks for s in seen), done, url) if jobs else None


def cancel_jobs(spark: Spark, tag: str = TAG) -> None:
    """Cancels all running jobs with a tag, from any thread; all jobs of NoSync have `TAG`."""
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


# Tags of a classic *session* are visible only to the thread that set them; tags of its context
# are visible to all threads.


def _tags(spark: Spark) -> set[str]:
    tags: set[str] = spark.getTags() if is_connect(spark) else spark.sparkContext.getJobTags()
    return tags


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


def spark_type_text(type_: Any) -> str:
    """Returns a type as in Spark's `simpleString`, but with quoted field names for parsing."""
    kind = type_.typeName()
    if kind == "struct":
        fields = (f"{quote(f.name)}:{spark_type_text(f.dataType)}" for f in type_.fields)
        return f"struct<{','.join(fields)}>"
    if kind == "array":
        return f"array<{spark_type_text(type_.elementType)}>"
    if kind == "map":
        return f"map<{spark_type_text(type_.keyType)},{spark_type_text(type_.valueType)}>"
    return str(type_.simpleString())


def frame_of(spark: Spark, table: pa.Table, schema: Schema) -> Any:
    """Returns a DataFrame of Arrow rows; the schema determines which timestamps have no zone."""
    given = table if table.num_rows else []  # pyspark fails on an empty table with nested types
    frame = spark.createDataFrame(given, schema=interval_transport.to_transport(schema).ddl)
    return interval_transport.from_transport(frame, schema.names, schema.types)


def optimized_plan(frame: Any) -> Any:
    """Returns Spark's optimised plan of a DataFrame, without executing it; None on Connect."""
    classic = getattr(frame, "_jdf", None)
    return None if classic is None else classic.queryExecution().optimizedPlan()


def analysed(frame: Any) -> Any:
    """Returns Spark's plan of a classic DataFrame with resolved names and types."""
    return getattr(frame, "_jdf").queryExecution().analyzed()  # noqa: B009  (PySpark has no other)


def estimated_bytes(frame: Any) -> int | None:
    """Returns Spark's estimate of the size of a DataFrame, without executing it; None if unknown.

    Cost: a few ms; ten times as long on Connect, where the estimate is parsed from a text.
    """
    try:
        classic = optimized_plan(frame)
        if classic is not None:
            return int(str(classic.stats().sizeInBytes()))
        plan = frame.sparkSession.sql("EXPLAIN COST SELECT * FROM {frame}", frame=frame).collect()
    except Exception:  # a failure must not stop the caller, because the estimate is optional
        return None
    match = _SIZE.search(plan[0][0])
    if match is None:
        return None
    return math.ceil(math.ldexp(float(match[1]), 10 * _UNITS.index(match[2])))


@contextmanager
def job_description(spark: Spark, stage: str, operator: str) -> Iterator[Jobs]:
    """In a `with` block, adds stage and operator to the descriptions of this thread's jobs.

    Connect has no descriptions, so there the jobs have a tag with that text.
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
    jobs.record(_job_ids(context, group))


def _job_ids(context: Any, group: str) -> tuple[int, ...]:
    """Returns the numbers of the jobs of a group.

    Waits briefly for all jobs to be recorded as finished, because Spark's bookkeeping lags.
    """
    tracker = context.statusTracker()
    deadline = time.monotonic() + _JOBS_WAIT_S
    while True:
        ids = tuple(sorted(tracker.getJobIdsForGroup(group)))
        infos = [tracker.getJobInfo(i) for i in ids]
        done = ids and all(i is not None and i.status != "RUNNING" for i in infos)
        if done or time.monotonic() > deadline:
            return ids
        time.sleep(0.002)
