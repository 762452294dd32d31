"""Asking: a call that may hang for ever, made where nobody waits for ever.

A mounted volume that is gone answers nothing, and no call of the system says so. Whoever asks a
replica while somebody waits does it in a thread of its own, and goes on without an answer when
nothing has come for some seconds. The thread is left; it ends with the call, or with the process.
As long as it hangs the same one is not asked again, but once a minute, as it may have come back
elsewhere: so who asks for ever does not leave a thread each time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from nosync_nb.errors import DurabilityError, NosyncError, warn
from nosync_nb.store import interruptible_wait

SILENT_S = 10.0
"""After how long without any progress somebody is taken for gone."""

TOLD_S = 3.0
"""After how long the user is told for whom an opening waits."""

_AGAIN_S = 60.0

Answer = TypeVar("Answer")
Beat = Callable[..., None]
Call = Callable[[Beat], Answer]


class RemoteTimeoutError(DurabilityError):
    """Somebody was asked and has said nothing for long."""

    kind = "silent"


class _Hanging:
    """Calls that were left: who was asked, in which thread, and when that was given up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[str, tuple[threading.Thread, float]] = {}

    def add(self, what: str, thread: threading.Thread) -> None:
        """Notes a call that was left."""
        with self._lock:
            self._left[what] = thread, time.monotonic()

    def holds(self, what: str) -> bool:
        """Whether somebody hangs, and is not to be asked again yet."""
        with self._lock:
            self._left = {each: left for each, left in self._left.items() if left[0].is_alive()}
            left = self._left.get(what)
            return left is not None and time.monotonic() - left[1] < _AGAIN_S


_hanging = _Hanging()


class _Waited(Generic[Answer]):
    """One call in its thread."""

    def __init__(self, what: str, call: Call[Answer]) -> None:
        self._what, self._call = what, call
        self._news = threading.Condition()
        self._moved = time.monotonic()  # when it has come further last
        self._ended = False
        self._answer: Answer | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins the call, unless the last one still hangs."""
        if _hanging.holds(self._what):
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
        """The thread."""
        try:
            self._answer = self._call(self._beat)
        except BaseException as error:
            self._error = error
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _beat(self, *_: object) -> None:
        with self._news:
            self._moved = time.monotonic()

    def ended(self, wait_s: float) -> bool:
        """Waits for the end; returns whether it has come."""
        until = time.monotonic() + wait_s
        with self._news:
            while not self._ended and (left := until - time.monotonic()) > 0:
                interruptible_wait.wait_event(self._news, left)
            return self._ended

    def wait(self, silent_s: float) -> Answer:
        """Waits as long as there is progress."""
        with self._news:
            while not self._ended:
                left = self._moved + silent_s - time.monotonic()
                if left <= 0:
                    if self._thread is not None:
                        _hanging.add(self._what, self._thread)
                    raise RemoteTimeoutError(
                        f"{self._what} has not answered for {silent_s:g} s",
                        hint="look whether its disk or its network is there",
                    )
                interruptible_wait.wait_event(self._news, left)
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]


def call_remote(what: str, call: Call[Answer], *, silent_s: float | None = None) -> Answer:
    """Returns what a call gives, which is made in another thread.

    Args:
        what: is asked, in words.
        call: is given a function to call when it has come further.
        silent_s: after how long without that nobody waits any more; default `SILENT_S`.

    Raises:
        SilentError: it does not answer. What the call does then comes to nothing.
    """
    asked = _Waited(what, call)
    asked.start()
    return asked.wait(SILENT_S if silent_s is None else silent_s)


def call_all(
    calls: Iterable[tuple[str, Call[Answer]]], *, silent_s: float | None = None
) -> list[Answer | NosyncError]:
    """Returns what calls give, or their errors, in order; as `ask`, of all of them at once.

    The user is told for whom he waits, if it takes longer than `TOLD_S`; he can interrupt it.
    """
    asked = [(what, _Waited(what, call)) for what, call in calls]
    for _, each in asked:
        each.start()
    silent_s = SILENT_S if silent_s is None else silent_s
    until = time.monotonic() + min(TOLD_S, silent_s)
    slow = [what for what, each in asked if not each.ended(max(0.0, until - time.monotonic()))]
    if slow and silent_s > TOLD_S:
        warn(
            f"waiting for {', '.join(slow)}; without an answer it goes on after {silent_s:g} s,"
            " interrupt to stop",
            stacklevel=3,
        )
    answers: list[Answer | NosyncError] = []
    for _, each in asked:
        try:
            answers.append(each.wait(silent_s))
        except NosyncError as error:
            answers.append(error)
    return answers
