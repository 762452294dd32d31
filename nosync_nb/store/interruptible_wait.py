"""Waiting: for news of another thread, where a Ctrl-C has to come through.

The interpreter sees an interrupt between two steps of Python, and the system ends a wait that one
comes into. One that comes after the last step and before the wait does neither. Who may wait for
long looks from time to time, so it is late and not lost.

Short, and on its own: rooms that share nothing else wait alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_S = 0.25
"""How often who waits looks whether he was interrupted."""


def wait_event(news: threading.Condition, seconds: float | None = None) -> None:
    """Waits for news, at most so long, and may come back without any; with its lock."""
    news.wait(LOOK_S if seconds is None else min(seconds, LOOK_S))


def wait_until(
    news: threading.Condition, is_so: Callable[[], bool], seconds: float | None = None
) -> bool:
    """Waits until something is so, at most so long, and returns whether it is; with its lock."""
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
