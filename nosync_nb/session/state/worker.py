"""The background worker: runs maintenance tasks in a thread beside the committing one.

One daemon thread merges layers, packs history and writes checkpoints. It reads immutable versions
and hands results back through `adopt` callbacks, which take the session's lock for microseconds. An
error of a task ends that task alone, and is reported once (`Failures`).

A background task makes the log smaller or faster to read; no epoch depends on it. So its error
makes no call fail. The next commit warns of it, and `%dd status` lists it until the same task has
succeeded. Two errors stop commits by other means: the log's writer refuses to append after a failed
write, and the check of the generation refuses an owner that was replaced.
"""

from __future__ import annotations

import errno
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import NamedTuple

from nosync_nb.errors import DurabilityError, FencedError, NosyncError, OutOfMemoryError, warn
from nosync_nb.rows import parallel
from nosync_nb.store import threads
from nosync_nb.store.threads import SingleThread

_logger = logging.getLogger(__name__)


class FailedTask(NamedTuple):
    """A task that has failed and not succeeded since.

    Attributes:
        task: the task and its stage, in words.
        error: the last error.
        times: consecutive failures.
        since: time of the first failure, in seconds since 1970.
    """

    task: str
    error: BaseException
    times: int
    since: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).strftime("%H:%M:%S")
        times = "" if self.times == 1 else f", {self.times} times in a row"
        return f"{self.task} failed at {since}{times}: {error_text(self.error)}"

    @property
    def warning(self) -> str:
        """The text of the warning at the next commit."""
        own = f"{hint}; " if (hint := getattr(self.error, "hint", None)) else ""
        return (
            f"background work failed: {self.task}: {error_text(self.error)}\nHint: {own}no"
            " action is needed: no epoch is affected, commits continue, and NoSync tries again"
            " later; `%dd status` lists it until it succeeds"
        )

    @property
    def raised(self) -> NosyncError:
        """The failure as an error that a caller can raise."""
        if isinstance(self.error, NosyncError):
            return self.error
        if isinstance(self.error, MemoryError):
            return OutOfMemoryError(
                f"out of memory: {self.task} was not done in the background; no epoch has changed",
                hint="free some memory; NoSync tries again later",
            )
        return DurabilityError(f"background work failed: {self.task}: {error_text(self.error)}")


class Failures:
    """The background tasks of a session that failed.

    Threads: any thread may attempt, report and list. A lock guards the state; it is a leaf.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: dict[str, FailedTask] = {}
        self._unreported: dict[str, FailedTask] = {}

    @property
    def unreported(self) -> bool:
        """True if an error waits to be reported.

        Cost: below 0.1 us.
        """
        return bool(self._unreported)

    def failed_tasks(self) -> tuple[FailedTask, ...]:
        """Returns the tasks that have not succeeded since they failed, oldest error first."""
        with self._lock:
            return tuple(self._failed.values())

    def attempt(self, task: str, errors: type[BaseException] = Exception) -> Attempt:
        """Returns a block for one task: its error is recorded here and not raised.

        An error is not recorded if it means that the session is closed or that another owner has
        replaced it, because the next call raises it.

        Args:
            errors: the kind of errors that are recorded; others are raised.
        """
        return Attempt(self, task, errors)

    def succeed(self, task: str) -> None:
        """Records that a task has succeeded."""
        if task in self._failed:
            with self._lock:
                self._failed.pop(task, None)

    def fail(self, task: str, error: BaseException) -> None:
        """Records that a task has failed."""
        if is_session_end(error):
            return
        _logger.info("background work failed: %s", task, exc_info=error)
        _forget_frames(error)
        with self._lock:
            previous = self._failed.get(task)
            if previous is None:
                failure = self._failed[task] = FailedTask(task, error, 1, time.time())
                self._unreported[task] = failure
            else:
                self._failed[task] = previous._replace(error=error, times=previous.times + 1)

    def take_unreported(self) -> list[FailedTask]:
        """Returns the errors that were not reported yet, and marks them as reported."""
        with self._lock:
            failures, self._unreported = list(self._unreported.values()), {}
        return failures

    def report(self) -> None:
        """Warns of each error that was not reported yet."""
        for failure in self.take_unreported():
            warn(failure.warning, stacklevel=None)


class Attempt:
    """A `with` block for one task; see `Failures.attempt`."""

    def __init__(self, failures: Failures, task: str, errors: type[BaseException]) -> None:
        self._failures, self._task, self._errors = failures, task, errors

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        if error is None:
            self._failures.succeed(self._task)
            return False
        if not isinstance(error, self._errors):
            return False
        self._failures.fail(self._task, error)
        return True


def _forget_frames(error: BaseException | None) -> None:
    """Drops the tracebacks of an error and its causes, because their frames hold whole batches."""
    while error is not None:
        error.with_traceback(None)
        error = error.__cause__ or error.__context__


def is_session_end(error: BaseException) -> bool:
    """Returns True if an error means that the session is closed or has lost the log."""
    cut_off = isinstance(error, DurabilityError) and error.errno == errno.ECANCELED
    return cut_off or isinstance(error, FencedError)


def error_text(error: BaseException) -> str:
    """Formats an error as one text, with the stage that raised it.

    The text begins with the kind of an error that is not one of NoSync's.
    """
    if isinstance(error, MemoryError) and not isinstance(error, NosyncError):
        text = "out of memory"
    else:
        text = str(error) if isinstance(error, NosyncError) else repr(error)
    notes = [n for n in getattr(error, "__notes__", ()) if n.startswith(WHILE)]
    return f"{text} ({'; '.join(notes)})" if notes else text


WHILE = "while "
"""Prefix of the note that names the stage that an error came from."""


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
                    # plus half a us, because Python truncates: else each task loses one
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
        self._tasks: dict[object, _QueuedTask] = {}  # the queued tasks, and the running one
        self._deferred: dict[object, float] = {}  # the deferred tasks, each with its deadline
        self._last_epoch_at = 0.0  # time at which the last epoch began or ended
        self._drains = 0  # threads that wait for all tasks
        self._thread = SingleThread(name)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = False

    @property
    def tasks_count(self) -> int:
        """The number of tasks that wait or run."""
        return len(self._tasks)

    def submit(
        self, key: object, task: Callable[[], None], *, name: str = "", later: bool = False
    ) -> bool:
        """Queues a task unless one with that key waits or runs; returns True if it was queued.

        Args:
            name: the title of the task in error reports; its key if empty.
            later: True to start the task in a pause between epochs, or after `DELAY_S`.
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
        """Returns the key of the next task to run, if any. Requires the lock."""
        now = time.monotonic()
        at_once = self._drains or self._closed
        due = (key for key in self._tasks if at_once or self._deferred.get(key, now) <= now)
        paused = self._last_epoch_at + PAUSE_S <= now
        return next(due, next(iter(self._deferred), None) if paused else None)

    def _seconds_until_due(self) -> float | None:
        """Returns the seconds until a deferred task may start. Requires the lock."""
        if not self._deferred:
            return None
        until = min(self._last_epoch_at + PAUSE_S, *self._deferred.values())
        return until - time.monotonic()
