"""Progress of long operations, such as a start, a run or a wait, for status displays.

The operation records its name and progress, and notifies no one. A display polls from another
thread, as often as it likes, and gets the latest operation that has not ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """An operation that takes time.

    Attributes:
        what: its name for people: "waiting for replicas"; it may change at any time.
        total: its number of steps, or bytes; 0 if unknown.
        done: how many of them are completed; it may change at any time. For bytes, 0 may also mean
            that the progress is unknown.
        in_bytes: True if the numbers are bytes.
        since: when it began, by `time.monotonic`.
    """

    def __init__(self, what: str, total: int = 0, *, in_bytes: bool = False) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self.in_bytes = in_bytes
        self.since = time.monotonic()

    def rename(self, what: str) -> None:
        """Changes its name."""
        self.what = what

    def step(self) -> None:
        """Adds one completed step."""
        self.done += 1

    def add_steps(self, count: int) -> None:
        """Adds completed steps, or bytes, up to the total."""
        self.done = min(self.done + count, self.total)

    def left(self, count: int) -> None:
        """Sets the remaining steps, or bytes; increases the total if they have become more."""
        self.total = max(self.total, self.done + count)
        self.done = self.total - count


class ActivityMonitor:
    """The current operations of one session.

    Threads: any may begin and end an operation; the tuple is replaced under the lock, never
    changed.
    """

    def __init__(self) -> None:
        # Reentrant, because a signal handler may interrupt its holder.
        self._mutex = threading.RLock()
        self._going_on: tuple[Activity, ...] = ()

    @property
    def current(self) -> Activity | None:
        """The operation that began last and has not ended, or None."""
        going_on = self._going_on
        return going_on[-1] if going_on else None

    @contextmanager
    def record(self, what: str, total: int = 0, *, in_bytes: bool = False) -> Iterator[Activity]:
        """Records an operation for the duration of the block, which may report steps."""
        activity = Activity(what, total, in_bytes=in_bytes)
        try:
            with self._mutex:
                self._going_on = (*self._going_on, activity)
            yield activity
        finally:
            with self._mutex:
                self._going_on = tuple(a for a in self._going_on if a is not activity)
