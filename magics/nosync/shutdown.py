"""Ending: a kernel that is asked to end closes its session, whatever its children do meanwhile.

Failure: 1. A notebook has used Spark, and its kernel is restarted from the menu. 2. ipykernel waits
for the Java process to end before it stops itself. 3. The server waits no longer, and sends
SIGTERM: nothing that was to run at the end runs, and the log looks as after a crash. Hence SIGTERM
closes the session, too; but not in the middle of a cell, which may be committing.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from typing import Any


class ShutdownHook:
    """Calls a function once when the process is asked to end.

    Args:
        close: what is to be done.
        busy: whether a cell runs.
    """

    def __init__(self, close: Callable[[], None], busy: Callable[[], bool]) -> None:
        self._close = close
        self._busy = busy
        self._handles = False
        self._process = os.getpid()

    def await_end(self) -> None:
        """From now on; a handler that somebody else has for SIGTERM stays."""
        atexit.register(self._close)
        free = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if free and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._asked)
            self._handles = True

    def forget(self) -> None:
        """No more."""
        atexit.unregister(self._close)
        if self._handles and signal.getsignal(signal.SIGTERM) == self._asked:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handles = False

    def _asked(self, _signal: int, _frame: Any) -> None:
        """Ends the process as SIGTERM does, after the session was closed."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            if os.getpid() == self._process and not self._busy():  # not one that was forked
                self._close()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
