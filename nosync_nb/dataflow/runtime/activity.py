"""Records the progress of long operations, such as a start, a run or a wait, for status displays.

An operation records its name and progress, but does not notify displays. A display polls from
another thread at any rate, and receives the operation that began last among those that have not
ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """An operation that takes time.

    Attributes:
        what: its name for messages, such as "waiting for replicas"; it may change at any time.
        total: the total number of steps or bytes; 0 if unknown.
        done: the number of completed steps or bytes; it may change at any time. For bytes, 0 may
            also mean that the progress is unknown.
        in_bytes: True if the numbers are bytes, False if they are steps.
        since: the time at which it began, by `time.monotonic`.
    """

    def __init__(self, what: str, total: int = 0, *, in_bytes: bool = False) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self.in_bytes = in_bytes
        self.since = time.monotonic()

    def rename(self, what: str) -> None:
        """Changes the name of the operation."""
        self.what = what

    def step(self) -> None:
        """Adds one completed step."""
        self.done += 1

    def add_steps(self, count: int) -> None:
        """Adds completed steps, or bytes, up to the total."""
        self.done = min(self.done + count, self.total)

    def left(self, count: int) -> None:
        """Sets the number of remaining steps or bytes; increases the total if necessary."""
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
        """The operation that began last among those that have not ended; None without one."""
        going_on = self._going_on
        return going_on[-1] if going_on else None

    @contextmanager
    def record(self, what: str, total: int = 0, *, in_bytes: bool = False) -> Iterator[Activity]:
        """Records an operation for the duration of a `with` block, which may report its steps."""
        activity = Activity(what, total, in_bytes=in_bytes)
        try:
            with self._mutex:
                self._going_on = (*self._going_on, activity)
            yield activity
        finally:
            with self._mutex:
                self._going_on = tuple(a for a in self._going_on if a is not activity)
