"""Starts our own local Spark session, cleans up after it, and checks whether a session is alive.

A session can end in two ways. Either `spark.stop()` stops it: PySpark records that, and the next
session starts in the same JVM. Or its JVM dies (out of memory, kill -9). PySpark then retains its
references to the JVM, so every later call fails, and no other session can start. Calls to a dead
Connect server are retried for ten minutes. So PySpark must be made to forget a dead JVM before
another session starts.

Our own session is for this user alone. It listens on this machine only, and requires a random
secret. It stores blocks and tables in a private folder that is deleted at exit, so no files remain
next to a notebook.
"""

from __future__ import annotations

import atexit
import copy
import os
import re
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from nosync_nb.errors import ExpressionError, NosyncError, one_line
from nosync_nb.files.filesystem import Files
from nosync_nb.spark.error_translation import spark_error_summary, without_query_logs

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
"""The settings of a session that NoSync starts; the time zone is that of the machine."""

CONNECT_S = 2.0
"""The timeout of a connection attempt to a Connect server."""

_FOLDER = "nosync-spark-"
_WAREHOUSE = "spark.sql.warehouse.dir"
_LOG_NAME, _LOG_TAIL_BYTES = "driver.log", 4096

_LOCAL = re.compile(r"local(\[[^\]]*\])?$")
_started_here: WeakSet[Any] = WeakSet()
_forgotten: WeakSet[Any] = WeakSet()  # the sessions of Connect servers that have died


def is_connect(spark: Spark) -> bool:
    """Returns True if a session talks to a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_same(a: Spark, b: Spark) -> bool:
    """Returns True if two objects of PySpark represent the same session."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if is_connect(a):
        return bool(a.session_id == b.session_id)
    try:
        return bool(a._jsparkSession == b._jsparkSession)  # the JVM compares them
    except Exception:  # the JVM may be gone
        return False


def is_stopped(spark: Spark) -> bool:
    """Returns True if a session was stopped in this process or forgotten; makes no remote call."""
    if is_connect(spark):
        return spark in _forgotten or bool(spark.is_stopped)
    return spark.sparkContext._jsc is None


def is_alive(spark: Spark) -> bool:
    """Returns True if a session can be used: it was not stopped, and its JVM answers.

    Cost: one call to the JVM, about 0.3 ms; for a Connect server, a connection.
    """
    return not is_stopped(spark) and _answers(spark)


def has_died(spark: Spark) -> bool:
    """Returns True if a session was not stopped, but its JVM is gone."""
    return not is_stopped(spark) and not _answers(spark)


def spark_location(spark: Spark, place: str) -> tuple[str, str]:
    """Returns the scheme of the file system that Spark uses for a location, and the absolute path.

    Args:
        spark: a classic session.
        place: a path or a URL from the user.

    Raises:
        Exception: Spark's error, if it cannot reach the location.
    """
    context = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    address = files.makeQualified(path).toUri()
    return address.getScheme(), address.getPath()


def bytes_of(spark: Spark, sequence: Any) -> bytes:
    """Returns the bytes of a Scala sequence in the JVM of a classic session."""
    tag = spark.sparkContext._jvm.scala.reflect.ClassTag.Byte()
    return bytes(sequence.toArray(tag))


def _answers(spark: Spark) -> bool:
    if is_connect(spark):
        return not _refuses(_endpoint(spark.client))
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j and sockets raise many classes of errors
        return False


def _refuses(endpoint: str) -> bool:
    """Returns True if an endpoint refuses connections, because no server listens there.

    For all other failures it returns False, and gRPC reports them.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False


def is_ours(spark: Spark) -> bool:
    """Returns True if `start_session` started this session."""
    return spark in _started_here


def start_session(conf: Mapping[str, str] | None = None) -> Spark:
    """Starts a local session, whose workers use the Python interpreter of this process.

    Raises:
        NosyncError: if pyspark is not installed, or Spark does not start.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise NosyncError(
            "this needs Spark, and pyspark is not installed", hint="pip install 'nosync[spark]'"
        ) from error
    forget_dead()
    settings = configuration(conf or {})
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    python = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = python or sys.executable
    try:
        with _without_warnings():
            _launch(settings)
            spark = builder.getOrCreate()
    except NosyncError:
        raise
    except Exception as error:
        raise NosyncError(
            f"Spark cannot be started: {spark_error_summary(error)[1]}{_log_tail(settings)}",
            hint="Spark 4 needs Java 17 or later: check `java -version` and JAVA_HOME",
        ) from error
    finally:
        if python is None:
            del os.environ["PYSPARK_PYTHON"]
    _started_here.add(spark)
    return spark


def configuration(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of a session of ours; creates its folder, which is deleted at exit."""
    conf = {**LOCAL_CONF, **given}
    if _LOCAL.match(conf["spark.master"]):  # because a cluster would need the secret, too
        conf.setdefault("spark.authenticate", "true")
    if "spark.local.dir" not in conf:
        files = Files()
        conf["spark.local.dir"] = files.temporary_folder(_FOLDER)
        # Registered before Spark's own handlers, so that it runs after the JVM has ended.
        atexit.register(files.remove_folder, conf["spark.local.dir"])
        if _LOCAL.match(conf["spark.master"]):
            conf.setdefault(_WAREHOUSE, os.path.join(conf["spark.local.dir"], "warehouse"))
    return conf


def _launch(settings: Mapping[str, str]) -> None:
    """Starts the JVM and redirects its log to a file, because a cell shows only its own output.

    Does nothing for a Connect server, or for a JVM that another program has started.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    elsewhere = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_GATEWAY_PORT"}
    connects = {"spark.remote", "spark.api.mode"}
    if SparkContext._gateway is not None or elsewhere & {*os.environ} or connects & {*settings}:
        return
    folder = settings["spark.local.dir"]
    if _FOLDER not in folder:
        return
    conf = SparkConf().setAll(list(settings.items()))
    said = Files().create(os.path.join(folder, _LOG_NAME))
    try:
        gateway = launch_gateway(_jvm_settings(settings), {"stderr": said})  # type: ignore[no-untyped-call]
    finally:
        said.close()
    SparkContext(conf=conf, gateway=gateway)


def _jvm_settings(settings: Mapping[str, str]) -> Any:
    """Returns the settings with which the JVM is started.

    A session that the user later creates in the same JVM inherits these settings. So they omit the
    warehouse folder: tables of the user must not be in our folder, which is deleted.
    """
    from pyspark import SparkConf

    return SparkConf().setAll([each for each in settings.items() if each[0] != _WAREHOUSE])


def _log_tail(settings: Mapping[str, str]) -> str:
    """Returns the last lines in the log of a JVM that did not start; empty if there are none."""
    with suppress(NosyncError):
        said = Files().open(os.path.join(settings["spark.local.dir"], _LOG_NAME))
        try:
            size = said.size()
            last = said.read_at(max(size - _LOG_TAIL_BYTES, 0), min(size, _LOG_TAIL_BYTES))
        finally:
            said.close()
        lines = last.decode(errors="replace").strip().splitlines()
        own = [line.strip() for line in lines if "/bin/spark-class: line" not in line]
        return f" ({one_line('; '.join(own[-2:]))})" if own else ""
    return ""


@contextmanager
def _without_warnings() -> Iterator[None]:
    """In a block, hides PySpark's warning about new versions of pandas.

    The warning does not apply, because we use only the Arrow code of PySpark.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
        yield


def stop_session(spark: Spark) -> None:
    """Stops a session that `start_session` started; does not stop any other."""
    if is_ours(spark):
        _started_here.discard(spark)
        if is_alive(spark):
            spark.stop()


def forget_dead() -> bool:
    """Makes PySpark forget a JVM that is gone, so that a session can start again.

    Returns: True if there was such a JVM.
    """
    return _forget_server() | _forget_gateway()


def _forget_server() -> bool:
    """Makes PySpark forget the session of a Connect server that is gone."""
    module = sys.modules.get("pyspark.sql.connect.session")
    if module is None:
        return False
    sessions = module.SparkSession
    default, active = sessions._default_session, getattr(sessions._active_session, "session", None)
    dead = {each for each in (default, active) if each is not None and has_died(each)}
    for each in dead:
        each.release_session_on_close = False  # otherwise `stop` retries for ten minutes
        _forgotten.add(each)
    if default in dead:
        sessions._default_session = None
    if active in dead:
        sessions._active_session.session = None
    return bool(dead)


def _forget_gateway() -> bool:
    """Makes PySpark forget the JVM of a classic session that is gone."""
    context = sys.modules.get("pyspark.core.context")
    gateway = None if context is None else context.SparkContext._gateway
    if context is None or gateway is None or _gateway_answers(gateway):
        return False
    from pyspark.sql import SparkSession

    with suppress(Exception):
        gateway.shutdown()
    spark_context = context.SparkContext
    held = spark_context._active_spark_context
    if held is not None:
        held._jsc = None
    spark_context._gateway = spark_context._jvm = spark_context._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    return True


def _gateway_answers(gateway: Any) -> bool:
    try:
        gateway.jvm.System.currentTimeMillis()
    except Exception:
        return False
    return True


class _Retries:
    """The retry policies of a Connect client while blocks of ours use it.

    By default a client retries calls to a server that does not answer for ten minutes. In our
    blocks it retries only while a server listens at the address. So a server that has died is
    reported within seconds.

    Threads: several may use one client; `lock` guards all. The first block replaces the policies,
    and the last one restores them, unless the user has set others meanwhile.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks = 0
        self.given: list[Any] = []
        self.ours: list[Any] = []

    def enter(self, client: Any) -> None:
        with self.lock:
            self.blocks += 1
            if self.blocks == 1:
                self.given = client.get_retry_policies()
                self.ours = [_retry_while_served(each, _endpoint(client)) for each in self.given]
                client.set_retry_policies(self.ours)

    def leave(self, client: Any) -> None:
        with self.lock:
            self.blocks -= 1
            if self.blocks == 0 and client.get_retry_policies() == self.ours:
                client.set_retry_policies(self.given)


_retries: WeakKeyDictionary[Any, _Retries] = WeakKeyDictionary()


def _retry_while_served(policy: Any, endpoint: str) -> Any:
    """Returns a copy of a retry policy that retries only while a server listens at an endpoint."""
    own = copy.copy(policy)
    own.can_retry = lambda error: policy.can_retry(error) and not _refuses(endpoint)
    return own


def _endpoint(client: Any) -> str:
    return str(client._builder.endpoint)


@contextmanager
def _without_retries(spark: Spark) -> Iterator[None]:
    """In a `with` block, calls to a dead Connect server fail immediately."""
    if not is_connect(spark):
        yield
        return
    retries = _retries.setdefault(spark.client, _Retries())
    retries.enter(spark.client)
    try:
        yield
    finally:
        retries.leave(spark.client)


@contextmanager
def guarded_use(spark: Spark, what: str) -> Iterator[None]:
    """Encloses code that uses a session, and reports the death of its JVM as one error.

    Args:
        what: the operation, for the error.

    Raises:
        NosyncError: if the JVM has died; names the operation, and says that nothing was applied.
    """
    try:
        with without_query_logs(), _without_retries(spark):
            yield
    except Exception as error:
        if not has_died(spark):
            raise
        raise dead_session_error(what, ours=is_ours(spark)) from error


def spark_off_error(what: str, instead: str = "") -> ExpressionError:
    """Returns the error for an operation that needs Spark while Spark is switched off.

    Args:
        instead: a similar expression that needs no Spark; empty if there is none.
    """
    return ExpressionError(
        f"{what} needs Spark, which is switched off",
        hint=(f"use {instead!r}, which needs no Spark; or " if instead else "")
        + 'set %config NoSync.spark = "auto" (session.spark_off = False) to let it start',
    )


def dead_session_error(what: str, *, ours: bool) -> NosyncError:
    """Returns the error for a session whose JVM has died.

    Args:
        what: the operation that failed.
        ours: True if NoSync started the session.
    """
    again = "run it again, in a new session" if ours else "create your Spark session again"
    return NosyncError(
        f"{what}: the JVM of the Spark session has died (out of memory, or killed); nothing was"
        " applied",
        hint=again + ("" if ours else ": run the cell with SparkSession.builder...getOrCreate()"),
    )
