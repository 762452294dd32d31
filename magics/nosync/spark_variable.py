"""The Spark session that cells see as `spark`: found, started when one is asked for, brought back.

A session of the user's is the user's, and is never configured. How a local one was set up is
remembered: after a restart the first cell that uses `spark` gets one that is set up so. One of a
cluster, or of a server, nobody but the user's own cell starts again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nosync.cells.source import CellSource
    from nosync.log.notebook_memo import NotebookMemo
    from nosync.protocols import Settings
    from nosync.variables import Variables
    from nosync_nb import Session


class NotebookSpark:
    """The notebook's way to Spark; `users` gives the session that the user made, if any."""

    def __init__(self, variables: Variables, namespace: dict[str, Any]) -> None:
        self._variables = variables
        self._namespace = namespace
        self._eager = EagerSpark(namespace)
        self._known: Any = None
        self.users = self._eager.users

    def configure(self, settings: Settings, memo: NotebookMemo, session: Session | None) -> None:
        """Hands over how Spark is to be started, and starts it if it is wanted at once."""
        if settings.spark == "eager":
            self._eager.start({**memo.conf, **settings.spark_conf})
        self._known = None
        if session is not None:
            session.spark_off = settings.spark == "off"
            if settings.bulk and session.mode == "w":
                from nosync_nb.session.session import owners_of

                owners_of(session).carrier.name(settings.bulk)
            session.spark_conf.update({**self._again(memo, session), **settings.spark_conf})

    def _again(self, memo: NotebookMemo, session: Session) -> dict[str, str]:
        """How Spark was set up, but for what the log's definitions have been described under."""
        if not memo.conf:
            return {}
        from nosync_nb.session.session import owners_of
        from nosync_nb.spark.spark_session import conf_of

        return {**memo.conf, **conf_of(owners_of(session).link.types.recorded())}

    def before_cell(
        self,
        session: Session | None,
        memo: NotebookMemo,
        cell: CellSource,
        say: Callable[[str], None],
    ) -> None:
        """Binds the `spark` that a cell uses: one that starts already, or that the log has used."""
        if not self._variables.lacks_spark(cell):
            return
        self._variables.bind_spark(self._eager.awaited())
        own = "spark" not in memo.names or bool(memo.conf)
        if session is None or not (own and self._variables.lacks_spark(cell)):
            return
        from nosync_nb.errors import NosyncError
        from nosync_nb.session.session import owners_of
        from nosync_nb.spark.spark_session import conf_of

        link = owners_of(session).link
        # A memo is lost with its disk; what definitions depend on comes back with the log.
        if not (memo.spark or conf_of(link.types.recorded())):
            return
        try:
            self._variables.bind_spark(link.require("`spark`"))
            link.follow()
        except NosyncError as error:
            say(f"NoSync: {error}")

    def after_cell(self, session: Session | None, memo: NotebookMemo, source: str) -> None:
        """Binds the session in use; stages get their views; how it is set up is remembered.

        Cost: a question to the JVM, some ms, after a cell that speaks of Spark.
        """
        if session is None:
            self._variables.bind_spark(self._eager.spark)
            return
        from nosync_nb.session.session import owners_of

        owners_of(session).link.follow_new()
        spark = session.spark
        self._variables.bind_spark(spark or self._eager.spark)
        if spark is not None and (spark is not self._known or "spark" in source):
            from nosync_nb.spark.spark_session import is_session, restart_conf

            with suppress(Exception):  # its JVM may be gone
                seen = is_session(self._namespace.get("spark"))
                memo.used_spark(restart_conf(spark) if seen else {})
                self._known = spark


class EagerSpark:
    """Starts a session once, in the background; `spark` is it, when it is there.

    Args:
        namespace: the user's variables; a session named `spark` among them is used instead.
    """

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self.spark: Any = None
        self._namespace = namespace
        self._thread: threading.Thread | None = None

    def start(self, conf: Mapping[str, str]) -> None:
        """Begins to start Spark; does nothing the second time."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(dict(conf),), name="nosync-spark", daemon=True
            )
            self._thread.start()

    def awaited(self) -> Any:
        """The session, waited for if it is being started; None: nobody asked for it."""
        if self._thread is not None:
            self._thread.join()
        return self.spark

    def users(self) -> Any:
        """The user's session, asked for when Spark is needed; None: `spark` may be anything."""
        from nosync_nb.spark import is_session

        spark = self._namespace.get("spark")
        return spark if is_session(spark) else None

    def _run(self, conf: Mapping[str, str]) -> None:
        from nosync_nb.errors import warn
        from nosync_nb.spark import require_session

        try:
            self.spark = require_session(None, self._namespace, conf=conf)
        except Exception as error:
            warn(f"Spark did not start: {error}", stacklevel=2)
