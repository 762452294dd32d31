"""Errors of background tasks: reported once, listed until the task succeeds.

A background task makes the log smaller or faster to read; no epoch depends on it. So its error does
not refuse a call. The next commit warns of it, and `%dd status` lists it until the same task has
succeeded. Two errors stop commits by other means: the log's writer refuses to append after a failed
write, and the check of the generation refuses an owner that was replaced.

Threads: any thread may attempt, report and list. A lock guards the state; it is a leaf.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from datetime import datetime
from types import TracebackType
from typing import NamedTuple

from nosync_nb.errors import DurabilityError, FencedError, NosyncError, OutOfMemoryError, warn

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
            " action is needed: no epoch is affected, commits continue, and it is tried again"
            " later; `%dd status` lists it until it succeeds"
        )

    @property
    def raised(self) -> NosyncError:
        """The failure as an error of a call that asks for it."""
        if isinstance(self.error, NosyncError):
            return self.error
        if isinstance(self.error, MemoryError):
            return OutOfMemoryError(
                f"out of memory: {self.task} was not done in the background; no epoch has changed",
                hint="free some memory; it is tried again later",
            )
        return DurabilityError(f"background work failed: {self.task}: {error_text(self.error)}")


class Failures:
    """The background tasks of a session that failed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: dict[str, FailedTask] = {}
        self._unreported: dict[str, FailedTask] = {}

    @property
    def unreported(self) -> bool:
        """True if an error waits to be reported. Cost: below 0.1 us."""
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
    """See `Failures.attempt`."""

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
