"""The worker: what is done behind the committing thread's back.

One daemon thread merges layers, packs history and writes checkpoints. It reads immutable versions
and hands results back through `adopt` callbacks, which take the session's lock for microseconds.
An error of a task ends that task alone, and is reported once (`failures.py`).
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
from nosync_nb.store import interruptible_wait
from nosync_nb.store.background_thread import SingleThread

SWITCH_S = 0.00002
"""After how long a thread that waits for the interpreter is given it, while a task runs. A loop
that commits lets go of it more often than Python's 5 ms, and takes it back before the waiting
thread is awake, which starves: checkpoints would never keep up with such a loop. The sooner it is
done, the fewer epochs work beside it."""


PAUSE_S = 0.05
"""After so long without an epoch somebody is taken to pause."""

DELAY_S = 1.0
"""What waits for a pause waits for so long, not longer."""


class InterpreterSwitch:
    """How soon a waiting thread gets the interpreter: one setting of the process.

    Workers of several sessions overlap, so the first to begin keeps what stood and the last to end
    puts it back; each for itself, one would keep the other's setting and leave it there for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._before = 0.0

    @contextmanager
    def shorter(self) -> Iterator[None]:
        """Turns of `SWITCH_S` at most, until the last of those who asked for them has ended."""
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


_TURNS = InterpreterSwitch()


class _Submitted(NamedTuple):
    name: str
    run: Callable[[], None]


class BackgroundWorker:
    """Runs tasks one after the other in a thread that starts with the first.

    Those that may as well be done later are begun in a pause, if one comes soon. Failure: a load is
    followed by many small epochs, and each takes twice as long beside the checkpoint of the load.

    Attributes:
        failures: the tasks that failed.
    """

    def __init__(self, name: str = "nosync worker") -> None:
        self.failures = Failures()
        self._tasks: dict[object, _Submitted] = {}  # those that wait, and the one that runs
        self._later: dict[object, float] = {}  # those of them that wait for a pause, and until when
        self._stirred = 0.0  # when the last epoch began or ended
        self._hurrying = 0  # how many wait for all of them
        self._thread = SingleThread(name)
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._closed = False

    @property
    def tasks_count(self) -> int:
        """How many tasks wait or run."""
        return len(self._tasks)

    def submit(
        self, key: object, task: Callable[[], None], *, name: str = "", later: bool = False
    ) -> bool:
        """Queues a task unless one with that key waits or runs; returns whether it was queued.

        Args:
            name: what it is called if it fails; empty: its key.
            later: it is begun in a pause, or after `DELAY_S`.
        """
        with self._lock:
            if self._closed or key in self._tasks:
                return False
            self._thread.start(self._run)
            self._news.notify_all()  # who wakes up waits for the lock
            self._tasks[key] = _Submitted(name or str(key), task)
            if later:
                self._later[key] = time.monotonic() + DELAY_S
        return True

    def stir(self) -> None:
        """Is told that an epoch begins or ends: it is no pause."""
        self._stirred = time.monotonic()

    def settle(self) -> None:
        """Waits until nothing waits or runs, and raises the first error that was not reported."""
        self.drain()
        for failure in self.failures.take():
            raise failure.raised from failure.error

    def drain(self, seconds: float | None = None) -> None:
        """Waits until nothing waits or runs, or so long; nothing waits for a pause meanwhile."""
        with self._lock:
            self._hurrying += 1
            try:
                self._news.notify_all()
                interruptible_wait.wait_until(self._news, lambda: not self._tasks, seconds)
            finally:
                self._hurrying -= 1

    def catch_up(self, seconds: float) -> None:
        """Waits until nothing runs, or waits for anything but a pause, or so long."""
        with self._lock:
            interruptible_wait.wait_until(
                self._news, lambda: len(self._tasks) == len(self._later), seconds
            )

    def close(self) -> None:
        """Finishes what waits and ends the thread."""
        with self._lock:
            self._closed = True
            self._news.notify_all()
        self._thread.join()

    def _run(self) -> None:
        parallel.single_threaded()  # the other ones are for who commits
        while True:
            with self._lock:
                while (key := self._due()) is None:
                    if self._closed and not self._tasks:
                        return
                    self._news.wait(self._until_due())
                self._later.pop(key, None)
                name, run = self._tasks[key]
            with _TURNS.shorter(), self.failures.attempt(name, BaseException):
                run()
            del run  # it may hold a whole graph
            with self._lock:
                del self._tasks[key]
                self._news.notify_all()

    def _due(self) -> object | None:
        """The task that is to be run, if one is; with the lock."""
        now = time.monotonic()
        at_once = self._hurrying or self._closed
        due = (key for key in self._tasks if at_once or self._later.get(key, now) <= now)
        paused = self._stirred + PAUSE_S <= now
        return next(due, next(iter(self._later), None) if paused else None)

    def _until_due(self) -> float | None:
        """In how many seconds a pause has come, or one is waited for no longer; with the lock."""
        if not self._later:
            return None
        until = min(self._stirred + PAUSE_S, *self._later.values())
        return until - time.monotonic()
