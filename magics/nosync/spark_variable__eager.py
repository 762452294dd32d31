"""Spark that is started before anybody needs it, because the user asked for that.

Only on request: a session started behind the user's back would swallow their settings. It starts
in the background, so that no cell waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any


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
