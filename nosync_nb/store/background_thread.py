"""A background thread that an object has once, whatever interrupts its start.

`Thread.start` is written in Python, so a Ctrl-C can end it before or after the thread of the system
was made. The caller cannot know which.

Failure: 1. A thread is started. 2. Ctrl-C ends `start` after the thread was made. 3. The caller
takes it for not started and starts another one. 4. Both take the same task, and one of them dies.

Hence `Thread.start` is called in a thread of its own, which no signal reaches: Python runs the
handlers of signals in the main thread alone. That thread is made by one call that is written in C.
Starting it twice does no harm, because the second one finds what the first one has done.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

from nosync_nb.store import interruptible_wait

AGAIN_S = 1.0
"""Seconds after which `start` tries again. An exception that another thread sets in this thread may
end the new thread before it has run at all.
"""


class SingleThread:
    """One daemon thread; `start` may be called, interrupted and called again.

    It references its target only from `start` on: an owner that is dropped before is freed at once.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None  # guarded by `_lock`, like `_joined`
        self._joined = False

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """True if the thread ran and has ended."""
        return self._thread is not None and not self._thread.is_alive()

    def start(self, run: Callable[[], None]) -> None:
        """Starts the thread unless it was started, or `join` was called; then it runs.

        Raises:
            RuntimeError: the system gives no thread; a later call tries again.
        """
        while self._thread is None and not self._joined:
            ended, errors = threading.Event(), list[BaseException]()
            _thread.start_new_thread(self._launch, (run, ended, errors))
            ended.wait(AGAIN_S)
            for error in errors:
                raise error

    def _launch(
        self, run: Callable[[], None], ended: threading.Event, errors: list[BaseException]
    ) -> None:
        try:
            with self._lock:
                if self._thread is None and not self._joined:
                    thread = threading.Thread(target=run, name=self._name, daemon=True)
                    thread.start()
                    self._thread = thread
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    def join(self, seconds: float | None = None) -> None:
        """Waits until the thread has ended, at most so long; afterwards no thread can be started.

        The thread itself may call this; it does not wait then.
        """
        with self._lock:
            self._joined = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            interruptible_wait.join_thread(thread, seconds)
