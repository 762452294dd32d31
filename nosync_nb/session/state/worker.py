"""The background worker: runs maintenance tasks in a thread beside the committing one.

One daemon thread merges layers, packs history and writes checkpoints. It reads immutable versions
and hands results back through `adopt` callbacks, which take the session's lock for microseconds. An
error of a task ends that task alone, and is reported once (`background_errors.py`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from nosync_nb.rows import parallel
from nosync_nb.session.state.background_errors import Failures
from nosync_nb.store import threads
from nosync_nb.store.threads import SingleThread

SWITCH_S = 0.00002
"""The switch interval of the interpreter while a task runs. A loop that commits releases the
interpreter more often than Python's 5 ms, and takes it back before the waiting thread is awake. The
worker would starve, and checkpoints would never keep up with such a loop. The sooner a task is
done, the fewer epochs run beside it."""


PAUSE_S = 0.05
"""A time without epochs that counts as a pause, in seconds."""

DELAY_S = 1.0
"""The longest wait of a deferred task for a pause, in seconds."""


class InterpreterSwitch:
    """The switch interval of the interpreter, one setting for the process.

    Workers of several sessions overlap. So the first worker to begin saves the setting, and the
    last one to end restores it. If each worker saved it for itself, one would save the shortened
    interval of another, and leave it in place for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._before = 0.0

    @contextmanager
    def shorter(self) -> Iterator[None]:
        """Shortens the interval to `SWITCH_S` at most during the block.

        The last of several overlapping blocks restores it.
        """
        with self._lock:
            if not self._running:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, SWITCH_S))
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    # Python cuts to whole microseconds: half a one more, or each task loses one
                    sys.setswitchinterval(self._before + 5e-7)


_SWITCH = InterpreterSwitch()


class _QueuedTask(NamedTuple):
    name: str
    run: Callable[[], None]


class BackgroundWorker:
    """Runs tasks one after the other in a thread that starts with the first.

    A deferred task starts in a pause between epochs, if one comes soon. Failure: 1. A load is
    followed by many small epochs. 2. The checkpoint of the load runs beside them. 3. Each takes
    twice as long. A deferred checkpoint waits for a pause.

    Attributes:
        failures: the tasks that failed.
    """

    def __init__(self, name: str = "nosync worker") -> None:
        self.failures = Failures()
        self._tasks: dict[object, _QueuedTask] = {}  # the queued ones, and the running one
        self._deferred: dict[object, float] = {}  # the deferred ones, each with its deadline
        self._last_epoch_at = 0.0  # time at which the last epoch began or ended
        self._drains = 0  # threads that wait for all tasks
        self._thread = SingleThread(name)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = False

    @property
    def tasks_count(self) -> int:
        """How many tasks wait or run."""
        return len(self._tasks)

    def submit(
        self, key: object, task: Callable[[], None], *, name: str = "", later: bool = False
    ) -> bool:
        """Queues a task unless one with that key waits or runs; returns True if it was queued.

        Args:
            name: title of the task in error reports; empty: its key.
            later: the task starts in a pause, or after `DELAY_S`.
        """
        with self._lock:
            if self._closed or key in self._tasks:
                return False
            self._thread.start(self._run)
            self._changed.notify_all()  # safe here: a woken thread waits for the lock
            self._tasks[key] = _QueuedTask(name or str(key), task)
            if later:
                self._deferred[key] = time.monotonic() + DELAY_S
        return True

    def stir(self) -> None:
        """Records that an epoch begins or ends, so there is no pause now."""
        self._last_epoch_at = time.monotonic()

    def settle(self) -> None:
        """Waits until no task waits or runs; raises the first error not yet reported."""
        self.drain()
        for failure in self.failures.take_unreported():
            raise failure.raised from failure.error

    def drain(self, seconds: float | None = None) -> None:
        """Waits until no task waits or runs, or for `seconds`.

        Meanwhile deferred tasks start at once.
        """
        with self._lock:
            self._drains += 1
            try:
                self._changed.notify_all()
                threads.wait_until(self._changed, lambda: not self._tasks, seconds)
            finally:
                self._drains -= 1

    def catch_up(self, seconds: float) -> None:
        """Waits until only deferred tasks are left, or for `seconds`."""
        with self._lock:
            threads.wait_until(
                self._changed, lambda: len(self._tasks) == len(self._deferred), seconds
            )

    def close(self) -> None:
        """Finishes the queued tasks and ends the thread."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        parallel.single_threaded()  # the other cores are for the committing thread
        while True:
            with self._lock:
                while (key := self._next_key()) is None:
                    if self._closed and not self._tasks:
                        return
                    self._changed.wait(self._seconds_until_due())
                self._deferred.pop(key, None)
                name, run = self._tasks[key]
            with _SWITCH.shorter(), self.failures.attempt(name, BaseException):
                run()
            del run  # because it may keep a whole graph alive
            with self._lock:
                del self._tasks[key]
                self._changed.notify_all()

    def _next_key(self) -> object | None:
        """Returns the key of the next task to run, if any; needs the lock."""
        now = time.monotonic()
        at_once = self._drains or self._closed
        due = (key for key in self._tasks if at_once or self._deferred.get(key, now) <= now)
        paused = self._last_epoch_at + PAUSE_S <= now
        return next(due, next(iter(self._deferred), None) if paused else None)

    def _seconds_until_due(self) -> float | None:
        """Returns the seconds until a deferred task may start; needs the lock."""
        if not self._deferred:
            return None
        until = min(self._last_epoch_at + PAUSE_S, *self._deferred.values())
        return until - time.monotonic()
