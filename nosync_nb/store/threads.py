"""Background threads, and waits for another thread that Ctrl-C can interrupt.

A `SingleThread` starts at most one thread, even if its start is interrupted. `Thread.start` is
written in Python, so Ctrl-C can end it before or after the system has created the thread. The
caller cannot know which.

Failure: 1. A thread is started. 2. Ctrl-C ends `start` after the thread was created. 3. The caller
assumes that it was not started, and starts another one. 4. Both take the same task, and one of them
dies.

Hence `Thread.start` is called in a helper thread, which no signal reaches: Python runs the handlers
of signals only in the main thread. The helper thread is started by one call that is written in C.
Starting it twice does no harm, because the second one finds what the first one has done.

A long wait is divided into short ones, because an interrupt may arrive just before it. The
interpreter handles an interrupt between two steps of Python, and the system ends a wait during
which an interrupt arrives. An interrupt that arrives after the last step and before the wait does
neither. With short waits such an interrupt is handled late but not lost.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable

LOOK_S = 0.25
"""Seconds between two checks for an interrupt."""


def wait_event(news: threading.Condition, seconds: float | None = None) -> None:
    """Waits for a notification, for at most `LOOK_S` or `seconds`; may return without one.

    The caller holds the lock of `news`.
    """
    news.wait(LOOK_S if seconds is None else min(seconds, LOOK_S))


def wait_until(
    news: threading.Condition, is_so: Callable[[], bool], seconds: float | None = None
) -> bool:
    """Waits until a condition is true, for at most `seconds`; returns False if the time is over.

    The caller holds the lock of `news`.
    """
    until = None if seconds is None else time.monotonic() + seconds
    while not is_so():
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            return False
        wait_event(news, left)
    return True


def join_thread(thread: threading.Thread, seconds: float | None = None) -> None:
    """Waits until a thread has ended, for at most about `seconds`."""
    until = None if seconds is None else time.monotonic() + seconds
    while thread.is_alive() and (until is None or time.monotonic() < until):
        thread.join(LOOK_S)


AGAIN_S = 1.0
"""The seconds after which `start` tries again. The helper thread may have ended before it ran at
all, because another thread can set an exception in it.
"""


class SingleThread:
    """One daemon thread; `start` may be called, interrupted and called again.

    It references its target only from `start` on. So an owner that is dropped earlier is freed at
    once.
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
        """Starts the thread, unless it was already started or `join` was called.

        Raises:
            RuntimeError: the system cannot create a thread; a later call tries again.
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
        """Waits until the thread has ended, for at most `seconds`; afterwards none can be started.

        If the thread itself calls this, it does not wait.
        """
        with self._lock:
            self._joined = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            join_thread(thread, seconds)
