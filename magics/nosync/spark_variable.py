"""Provides the Spark session that cells see as `spark`: the user's, or one that NoSync starts.

A session that the user created is never configured. The settings of a local session are recorded:
after a restart, the first cell that uses `spark` gets a session with the same settings. A session
of a cluster or of a server is restarted only by the user's own cell.

With `spark = "eager"` a session starts in the background, so that no cell waits for it. This
happens only on request, because a session that starts unasked would ignore the user's settings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nosync.cells.source import CellSource
    from nosync.settings import Settings
    from nosync.variables import Variables
    from nosync_nb import Session


class NotebookSpark:
    """The notebook's access to Spark.

    Args:
        namespace: the user's variables.
    """

    def __init__(self, variables: Variables, namespace: dict[str, Any]) -> None:
        self._variables = variables
        self._namespace = namespace
        self._eager: Any = None  # the session that the thread has started
        self._thread: threading.Thread | None = None
        self._recorded_session: Any = None

    def configure(self, settings: Settings, session: Session | None) -> None:
        """Passes the settings for starting Spark to the session, and starts an eager session."""
        conf = self._variables.memo.conf
        if settings.spark == "eager" and self._thread is None:
            eager = {**conf, **settings.spark_conf}
            self._thread = threading.Thread(
                target=self._start, args=(eager,), name="nosync-spark", daemon=True
            )
            self._thread.start()
        self._recorded_session = None
        if session is not None:
            session.spark_off = settings.spark == "off"
            if settings.bulk and session.mode == "w":
                session.spark_control.use_staging_area(settings.bulk)
            if conf:  # the settings of the log's definitions override those of the memo
                conf = {**conf, **session.spark_control.recorded_conf}
            session.spark_conf.update({**conf, **settings.spark_conf})

    def before_cell(
        self, session: Session | None, cell: CellSource, say: Callable[[str], None]
    ) -> None:
        """Binds `spark` for a cell that uses it: an eager session or one with recorded settings."""
        if not self._variables.lacks_spark(cell):
            return
        if self._thread is not None:
            self._thread.join()
        self._variables.bind_spark(self._eager)
        memo = self._variables.memo
        restorable = "spark" not in memo.names or bool(memo.conf)
        if session is None or not (restorable and self._variables.lacks_spark(cell)):
            return
        from nosync_nb.errors import NosyncError

        # A memo is lost with its disk, but the settings that definitions depend on are in the log.
        if not (memo.spark or session.spark_control.recorded_conf):
            return
        try:
            self._variables.bind_spark(session.spark_control.start("`spark`"))
        except NosyncError as error:
            say(f"NoSync: {error}")

    def after_cell(self, session: Session | None, source: str) -> None:
        """Binds the current Spark session, updates the views of stages, and records the settings.

        Cost: a call to the JVM, a few milliseconds, after a cell that mentions Spark.
        """
        if session is None:
            self._variables.bind_spark(self._eager)
            return
        session.spark_control.follow()
        spark = session.spark
        self._variables.bind_spark(spark or self._eager)
        if spark is not None and (spark is not self._recorded_session or "spark" in source):
            from nosync_nb.frontend import is_spark_session, restart_conf

            with suppress(Exception):  # its JVM may be gone
                is_bound = is_spark_session(self._namespace.get("spark"))
                self._variables.memo.used_spark(restart_conf(spark) if is_bound else {})
                self._recorded_session = spark

    def users(self) -> Any:
        """Returns the user's variable `spark` if it is a Spark session; else None."""
        from nosync_nb.frontend import is_spark_session

        spark = self._namespace.get("spark")
        return spark if is_spark_session(spark) else None

    def _start(self, conf: Mapping[str, str]) -> None:
        """Starts the eager session, or uses the user's own session if there is one."""
        from nosync_nb.errors import warn
        from nosync_nb.frontend import start_spark

        try:
            self._eager = start_spark(None, self._namespace, conf=conf)
        except Exception as error:
            warn(f"Spark did not start: {error}", stacklevel=2)
