"""Closes the session when the kernel is asked to end, whatever its child processes do meanwhile.

Failure: 1. A notebook has used Spark, and its kernel is restarted from the menu. 2. ipykernel waits
for the Java process to end before it stops itself. 3. The server stops waiting and sends SIGTERM:
no exit handler runs, and the log looks as after a crash. Hence SIGTERM closes the session, too; but
not in the middle of a cell, which may be committing.
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
        close: the function.
        busy: returns True while a cell runs.
    """

    def __init__(self, close: Callable[[], None], busy: Callable[[], bool]) -> None:
        self._close = close
        self._busy = busy
        self._handles = False
        self._process = os.getpid()

    def await_end(self) -> None:
        """Installs the hook; an existing handler for SIGTERM stays in place."""
        atexit.register(self._close)
        free = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if free and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self._handles = True

    def forget(self) -> None:
        """Removes the hook."""
        atexit.unregister(self._close)
        if self._handles and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._handles = False

    def _on_sigterm(self, _signal: int, _frame: Any) -> None:
        """Ends the process as SIGTERM does, after closing the session."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            if os.getpid() == self._process and not self._busy():  # not in a forked process
                self._close()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
