"""What goes on now that may take long, for whoever wants to see it: a start, a run, a wait.

Whoever does it says so, and how far it is; nobody is told. Who looks, from another thread and as
often as it likes, sees what was begun last and has not ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """Something that takes time.

    Attributes:
        what: it, as a person reads it: "waits for replicas"; it may change while one looks.
        total: how many steps, or bytes, it has; 0 if that is not known.
        done: how many of them are behind it; it changes while one looks. Of bytes 0 may also mean
            that what takes them does not tell how far it is.
        in_bytes: whether they are bytes.
        since: when it began, by `time.monotonic`.
    """

    def __init__(self, what: str, total: int = 0, *, in_bytes: bool = False) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self.in_bytes = in_bytes
        self.since = time.monotonic()

    def say(self, what: str) -> None:
        """Says anew what it is."""
        self.what = what

    def step(self) -> None:
        """One more step is done."""
        self.done += 1

    def took(self, count: int) -> None:
        """So many steps, or bytes, more are done; never more than there are."""
        self.done = min(self.done + count, self.total)

    def left(self, count: int) -> None:
        """So many steps, or bytes, are left; if they became more, there are more in all."""
        self.total = max(self.total, self.done + count)
        self.done = self.total - count


class ActivityMonitor:
    """What one session does now.

    Threads: any may begin and end something; the tuple is replaced under the lock, never changed.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()  # a signal's handler in the middle must not wait for itself
        self._going_on: tuple[Activity, ...] = ()

    @property
    def now(self) -> Activity | None:
        """What was begun last of what goes on; None if nothing does that was told."""
        going_on = self._going_on
        return going_on[-1] if going_on else None

    @contextmanager
    def of(self, what: str, total: int = 0, *, in_bytes: bool = False) -> Iterator[Activity]:
        """Something goes on as long as the block; it may take steps."""
        activity = Activity(what, total, in_bytes=in_bytes)
        try:
            with self._mutex:
                self._going_on = (*self._going_on, activity)
            yield activity
        finally:
            with self._mutex:
                self._going_on = tuple(a for a in self._going_on if a is not activity)
