"""Waits for another thread in a way that Ctrl-C can interrupt.

The interpreter handles an interrupt between two steps of Python, and the system ends a wait during
which an interrupt arrives. An interrupt that arrives after the last step and before the wait does
neither. A long wait is therefore cut into short ones: such an interrupt is late but not lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_S = 0.25
"""Seconds between two checks for an interrupt."""


def wait_event(news: threading.Condition, seconds: float | None = None) -> None:
    """Waits to be notified, at most so long, and may return without a notification.

    The caller holds the lock of `news`.
    """
    news.wait(LOOK_S if seconds is None else min(seconds, LOOK_S))


def wait_until(
    news: threading.Condition, is_so: Callable[[], bool], seconds: float | None = None
) -> bool:
    """Waits until a condition is true, at most so long; returns its value.

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
    """Waits until a thread has ended, at most so long."""
    until = None if seconds is None else time.monotonic() + seconds
    while thread.is_alive() and (until is None or time.monotonic() < until):
        thread.join(LOOK_S)
