"""Calls to replicas, buckets and staging areas, which may hang: one policy and one way to wait.

    CallPolicy     the time limits of a call, and the delays before a failed one is repeated
    RemoteCall     one call: a thread runs it, and the caller waits for its progress
    call_remote    runs a call in a thread of its own; `call_all`: several at once
    copy_file      reads a file of a replica, piece by piece

A mounted volume that is gone answers nothing, and no system call reports that. So the caller
continues without an answer if there was no progress for several seconds. It also continues at
Ctrl-C, and when the policy is cancelled. The next report of progress raises AbandonedCallError in
the abandoned thread. Until then the thread hangs, at most until the process ends.

While an abandoned call hangs, a new thread calls the same replica at most once a minute. The
replica may have returned under another mount, but each call may leave another hanging thread.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Generic, NamedTuple, TypeVar

from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError, warn
from nosync_nb.files.filesystem import Files
from nosync_nb.store import threads
from nosync_nb.store.replication.protocol import ReadableCopy

_HANGING_S = 60.0

PIECE_BYTES, FIRST_BYTES = 1 << 20, 1 << 16
"""The largest and the first size of a request, in bytes.

The size grows while answers are fast, so that a reader on a slow link sees progress.
"""

_SOON_S = 1.0

Answer = TypeVar("Answer")
Beat = Callable[..., None]
Call = Callable[[Beat], Answer]


def _warn_user(text: str) -> None:
    warn(text, stacklevel=None)


class CallPolicy(NamedTuple):
    """The limits of a remote call.

    Attributes:
        silent_s: seconds without progress after which the caller continues without an answer.
        bytes_per_s: the least transfer rate; a slower link counts as disconnected.
        notice_s: seconds after which `report` receives the names of the sites that have not
            answered.
        report: receives a message for the user.
        retry_s: the first and the longest delay before a failed call is repeated, in seconds.
        give_up_s: seconds of failures in a row after which a call is not repeated any more.
        cancelled: the event that cancels all calls; `None` means that they are never cancelled.
    """

    silent_s: float = 10.0
    bytes_per_s: float = 32e3
    notice_s: float = 3.0
    report: Callable[[str], None] = _warn_user
    retry_s: tuple[float, float] = (0.1, 5.0)
    give_up_s: float = math.inf
    cancelled: threading.Event | None = None

    def limit_s(self, size_bytes: float) -> float:
        """Returns the seconds that a call may take if it transfers `size_bytes` in one piece."""
        return self.silent_s + size_bytes / self.bytes_per_s

    @property
    def is_cancelled(self) -> bool:
        """True if the calls are cancelled, so that none is waited for any more."""
        return self.cancelled is not None and self.cancelled.is_set()


DEFAULT = CallPolicy()
PROMISE = CallPolicy(silent_s=30.0)
"""For a promise, which takes several requests in a row at a bucket."""
CATCH_UP = CallPolicy(silent_s=2.0)
"""For the opening of a log, which asks replicas for frames that its disk may have lost."""
FETCH = CallPolicy(retry_s=(1.0, 60.0))
"""For a file of rows, which is fetched when it is read, or in the background."""
LISTING = CallPolicy(silent_s=1.0)
"""For the list of a replica's files at an opening; a replica that is silent may hold any file."""
SHIPPING = CallPolicy(give_up_s=600.0)
"""For the keeper's calls; `give_up_s` counts from the end of the owner."""
SERVER = CallPolicy(silent_s=5.0)
"""For one request to a replica server."""
BUCKET = CallPolicy(silent_s=6.0)
"""For one request to an object store."""


class Backoff:
    """The delays before a failed call is repeated: each failure in a row doubles the delay."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._next_s = first_s

    def reset(self) -> None:
        """Starts over after a success."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """Returns the delay after a failure in seconds, and doubles the next one."""
        delay, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return delay


class RemoteTimeoutError(DurabilityError):
    """A call to a replica made no progress for too long."""

    kind = "silent"


class AbandonedCallError(Exception):
    """Raised in the thread of a call, because no thread waits for its result any more."""


class Progress:
    """The time of a site's last progress; several calls may share it. Any thread may call.

    Attributes:
        news: a condition that is notified when a call ends.
    """

    def __init__(self) -> None:
        self.news = threading.Condition()
        self._count = 0
        self._last_s = time.monotonic()

    @property
    def last_s(self) -> float:
        """The time of the last progress, in seconds of the monotonic clock."""
        return self._last_s

    def beat(self) -> None:
        """Records that there was progress now."""
        with self.news:
            self._last_s = time.monotonic()

    def silent_s(self, count: int) -> float:
        """Returns the seconds since the last progress.

        Args:
            count: the number of transferred bytes; a new number counts as progress.
        """
        if count != self._count:
            self._count = count
            self.beat()
        return time.monotonic() - self._last_s


class _AbandonedCalls:
    """The abandoned calls: the thread and the time of abandonment, by the name of the replica."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[str, tuple[threading.Thread, float]] = {}

    def add(self, what: str, thread: threading.Thread) -> None:
        """Records a call that is abandoned now."""
        with self._lock:
            self._threads[what] = thread, time.monotonic()

    def holds(self, what: str) -> bool:
        """Returns True if a call to the replica hangs and it is too early for another one."""
        with self._lock:
            self._threads = {
                each: left for each, left in self._threads.items() if left[0].is_alive()
            }
            left = self._threads.get(what)
            return left is not None and time.monotonic() - left[1] < _HANGING_S


_abandoned = _AbandonedCalls()


class RemoteCall(Generic[Answer]):
    """One call under a policy: a thread runs it, and another one waits for it.

    Args:
        what: name of the called site, for messages.
        call: receives the function `beat`, which it calls whenever it has made progress.
        progress: the progress of the thread, if its calls are queued; `None` counts only the
            progress of this call.
    """

    def __init__(
        self, what: str, call: Call[Answer], policy: CallPolicy, progress: Progress | None = None
    ) -> None:
        self.what, self._call, self._policy = what, call, policy
        self._progress = progress or Progress()
        self._begun_s = time.monotonic()
        self._ended = self._left = False
        self._answer: Answer | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Runs the call in a thread of its own, unless an earlier call to the site hangs."""
        if _abandoned.holds(self.what):
            self._ended = True
            self._error = self._silent_error("has not answered an earlier request")
        else:
            self._thread = threading.Thread(target=self.run, name=f"ask {self.what}", daemon=True)
            self._thread.start()

    def run(self) -> None:
        """Runs the call in this thread; `wait` raises its error."""
        try:
            self._check_wanted()
            self._answer = self._call(self.beat)
        except BaseException as error:
            self._error = error
        with self._progress.news:
            self._ended = True
            self._progress.news.notify_all()

    def beat(self, *_: object) -> None:
        """Records progress of the call; called in its thread.

        Raises:
            AbandonedCallError: no thread waits for the call any more.
        """
        self._progress.beat()
        self._check_wanted()

    def _check_wanted(self) -> None:
        if self._left or self._policy.is_cancelled:
            raise AbandonedCallError

    def has_ended(self, wait_s: float) -> bool:
        """Waits at most `wait_s` for the end of the call; returns True if it has ended."""
        with self._progress.news:
            return threads.wait_until(self._progress.news, lambda: self._ended, max(0.0, wait_s))

    def wait(self) -> Answer:
        """Waits for the result as long as there is progress.

        Raises:
            RemoteTimeoutError: the call made no progress; its later result is ignored.
            DurabilityError: the policy was cancelled.
            Exception: the error that the call has raised.
        """
        news, silent_s = self._progress.news, self._policy.silent_s
        try:
            with news:
                while not self._ended and not self._policy.is_cancelled:
                    last_s = max(self._begun_s, self._progress.last_s)
                    left = last_s + silent_s - time.monotonic()
                    if left <= 0:
                        if self._thread is not None:
                            _abandoned.add(self.what, self._thread)
                        raise self._silent_error(f"has not answered for {silent_s:g} s")
                    threads.wait_event(news, left)
        finally:
            self._left = not self._ended
        if self._left or isinstance(self._error, AbandonedCallError):
            raise DurabilityError(f"the call to {self.what} was cancelled", errno=errno.ECANCELED)
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]

    def _silent_error(self, why: str) -> RemoteTimeoutError:
        return RemoteTimeoutError(f"{self.what} {why}", hint="check its disk and its network")


def call_remote(what: str, call: Call[Answer], policy: CallPolicy | None = None) -> Answer:
    """Runs a call in another thread and returns its result.

    Args:
        what: name of the called site, for messages.
        call: receives a function that it calls whenever it has made progress.
        policy: the limits of the call; `None` means `DEFAULT`.

    Raises:
        RemoteTimeoutError: the call was abandoned; its later result is ignored.
    """
    running = RemoteCall(what, call, policy or DEFAULT)
    running.start()
    return running.wait()


def call_all(
    calls: Iterable[tuple[str, Call[Answer]]], policy: CallPolicy | None = None
) -> list[Answer | NosyncError]:
    """Runs several calls at once; returns their results or errors, in order. See `call_remote`.

    After `notice_s` the policy's `report` receives the sites that have not answered; the user can
    interrupt the call.
    """
    policy = policy or DEFAULT
    running = [RemoteCall(what, call, policy) for what, call in calls]
    for each in running:
        each.start()
    until = time.monotonic() + min(policy.notice_s, policy.silent_s)
    slow = [each.what for each in running if not each.has_ended(until - time.monotonic())]
    if slow and policy.silent_s > policy.notice_s:
        policy.report(
            f"waiting up to {policy.silent_s:g} s for {', '.join(slow)} (Ctrl-C to cancel)"
        )
    answers: list[Answer | NosyncError] = []
    for each in running:
        try:
            answers.append(each.wait())
        except NosyncError as error:
            answers.append(error)
    return answers


def copy_file(
    files: Files,
    replica: ReadableCopy,
    name: str,
    size: int | None,
    path: str,
    beat: Beat = lambda *_: None,
) -> int:
    """Copies the first `size` bytes of a replica's file to a new local file, and syncs it.

    Args:
        size: the number of bytes; `None` copies the whole file.
        path: the path of the new file.
        beat: called with the size of each piece on arrival; an exception from it stops the copy.

    Returns:
        the number of bytes that were copied.

    Raises:
        CorruptLogError: the replica's file is missing, unreadable or shorter.
        DurabilityError: the new file cannot be written.
    """
    with closing(files.create(path)) as file:
        done, most = 0, FIRST_BYTES
        while size is None or done < size:
            piece = most if size is None else min(most, size - done)
            began = time.monotonic()
            try:
                data = replica.read(name, done, piece)
            except NosyncError as error:
                raise CorruptLogError(f"'{name}' cannot be read on the replica: {error}") from error
            if not data and size is None:
                break
            if not data:
                raise CorruptLogError(f"the copy of '{name}' ends at byte {done}, before {size}")
            file.append(data)
            done += len(data)
            soon = time.monotonic() - began < _SOON_S
            most = min(2 * most, PIECE_BYTES) if soon else max(most // 2, FIRST_BYTES)
            beat(len(data))
        file.sync()
        return done
