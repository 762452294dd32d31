"""Calls to replicas that may hang: each runs in its own thread and is abandoned after a timeout.

A mounted volume that is gone answers nothing, and no system call reports that. So the caller
continues without an answer if there was no progress for some seconds. The abandoned thread ends
with its call or with the process. While it hangs, the same replica is called at most once a minute:
it may have returned under another mount, and repeated calls must not leave a thread each time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError, warn
from nosync_nb.files.filesystem import Files
from nosync_nb.store import interruptible_wait
from nosync_nb.store.replication.protocol import ReadableCopy

SILENT_S = 10.0
"""Seconds without progress after which a call is abandoned."""

TOLD_S = 3.0
"""Seconds after which the user is told which replicas an opening waits for."""

_RETRY_S = 60.0

PIECE_BYTES, FIRST_BYTES = 1 << 20, 1 << 16
"""The largest and the first size of a request, in bytes.

The size grows while answers are fast, so that a reader on a slow link sees progress.
"""

_SOON_S = 1.0

Answer = TypeVar("Answer")
Beat = Callable[..., None]
Call = Callable[[Beat], Answer]


class RemoteTimeoutError(DurabilityError):
    """A call to a replica made no progress for too long."""

    kind = "silent"


class _AbandonedCalls:
    """The abandoned calls: the thread and the time of abandonment, by the name of the replica."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[str, tuple[threading.Thread, float]] = {}

    def add(self, what: str, thread: threading.Thread) -> None:
        """Notes an abandoned call."""
        with self._lock:
            self._threads[what] = thread, time.monotonic()

    def holds(self, what: str) -> bool:
        """Returns True if a call to the replica hangs and it is too early for another one."""
        with self._lock:
            self._threads = {
                each: left for each, left in self._threads.items() if left[0].is_alive()
            }
            left = self._threads.get(what)
            return left is not None and time.monotonic() - left[1] < _RETRY_S


_abandoned = _AbandonedCalls()


class _ThreadCall(Generic[Answer]):
    """One call in its thread."""

    def __init__(self, what: str, call: Call[Answer]) -> None:
        self._what, self._call = what, call
        self._news = threading.Condition()
        self._progress_s = time.monotonic()  # time of the last progress
        self._ended = False
        self._answer: Answer | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the call, unless the previous call to the same replica still hangs."""
        if _abandoned.holds(self._what):
            self._ended = True
            self._error = RemoteTimeoutError(
                f"{self._what} has not answered what it was asked before",
                hint="look whether its disk or its network is there",
            )
        else:
            name = f"ask {self._what}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._call(self._beat)
        except BaseException as error:
            self._error = error
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _beat(self, *_: object) -> None:
        with self._news:
            self._progress_s = time.monotonic()

    def ended(self, wait_s: float) -> bool:
        """Waits for the end of the call; returns True if it has ended."""
        until = time.monotonic() + wait_s
        with self._news:
            while not self._ended and (left := until - time.monotonic()) > 0:
                interruptible_wait.wait_event(self._news, left)
            return self._ended

    def wait(self, silent_s: float) -> Answer:
        """Waits for the result as long as there is progress."""
        with self._news:
            while not self._ended:
                left = self._progress_s + silent_s - time.monotonic()
                if left <= 0:
                    if self._thread is not None:
                        _abandoned.add(self._what, self._thread)
                    raise RemoteTimeoutError(
                        f"{self._what} has not answered for {silent_s:g} s",
                        hint="look whether its disk or its network is there",
                    )
                interruptible_wait.wait_event(self._news, left)
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]


def call_remote(what: str, call: Call[Answer], *, silent_s: float | None = None) -> Answer:
    """Runs a call in another thread and returns its result.

    Args:
        what: name of the called replica, for messages.
        call: receives a function that it calls whenever it has made progress.
        silent_s: seconds without progress after which it is abandoned; default `SILENT_S`.

    Raises:
        RemoteTimeoutError: the call was abandoned. Whatever it does later has no effect.
    """
    running = _ThreadCall(what, call)
    running.start()
    return running.wait(SILENT_S if silent_s is None else silent_s)


def call_all(
    calls: Iterable[tuple[str, Call[Answer]]], *, silent_s: float | None = None
) -> list[Answer | NosyncError]:
    """Runs several calls at once; returns their results or errors, in order. See `call_remote`.

    After `TOLD_S` a warning lists the replicas that have not answered; the user can interrupt the
    call.
    """
    running = [(what, _ThreadCall(what, call)) for what, call in calls]
    for _, each in running:
        each.start()
    silent_s = SILENT_S if silent_s is None else silent_s
    until = time.monotonic() + min(TOLD_S, silent_s)
    slow = [what for what, each in running if not each.ended(max(0.0, until - time.monotonic()))]
    if slow and silent_s > TOLD_S:
        warn(
            f"waiting for {', '.join(slow)}; without an answer it goes on after {silent_s:g} s,"
            " interrupt to stop",
            stacklevel=3,
        )
    answers: list[Answer | NosyncError] = []
    for _, each in running:
        try:
            answers.append(each.wait(silent_s))
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
    """Copies the first bytes of a replica's file (None: all) to a new file, and syncs it.

    Args:
        beat: called with the size of each piece on arrival; an exception from it stops the copy.

    Raises:
        CorruptLogError: it is missing, unreadable or shorter.
        DurabilityError: it cannot be written.
    """
    file = files.create(path)
    try:
        done, most = 0, FIRST_BYTES
        while size is None or done < size:
            piece = most if size is None else min(most, size - done)
            began = time.monotonic()
            try:
                data = replica.read(name, done, piece)
            except NosyncError as error:
                raise CorruptLogError(f"'{name}' cannot be read there: {error}") from error
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
    finally:
        file.close()
