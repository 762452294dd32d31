"""Asking: a call that may hang for ever, made where nobody waits for ever.

A mounted volume that is gone answers nothing, and no call of the system says so. Whoever asks a
replica while somebody waits does it in a thread of its own, and goes on without an answer when
nothing has come for some seconds. The thread is left; it ends with the call, or with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from nosync_nb.errors import DurabilityError

SILENT_S = 10.0
"""After how long without any progress somebody is taken for gone."""

Answer = TypeVar("Answer")
Beat = Callable[..., None]


class _Waited(Generic[Answer]):
    """One call in its thread."""

    def __init__(self, call: Callable[[Beat], Answer]) -> None:
        self._call = call
        self._news = threading.Condition()
        self._beats = 0
        self._ended = False
        self._answer: Answer | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
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
            self._beats += 1
            self._news.notify_all()

    def wait(self, what: str, silent_s: float) -> Answer:
        """Waits as long as there is progress."""
        with self._news:
            while not self._ended:
                beats = self._beats
                if not self._news.wait_for(
                    lambda beats=beats: self._ended or self._beats != beats,  # type: ignore[misc]
                    silent_s,
                ):
                    raise DurabilityError(
                        f"{what} has not answered for {silent_s:g} s",
                        hint="look whether its disk or its network is there",
                    )
        if self._error is not None:
            raise self._error
        return self._answer  # type: ignore[return-value]


def ask(what: str, call: Callable[[Beat], Answer], *, silent_s: float | None = None) -> Answer:
    """Returns what a call gives, which is made in another thread.

    Args:
        what: is asked, in words.
        call: is given a function to call when it has come further.
        silent_s: after how long without that nobody waits any more; default `SILENT_S`.

    Raises:
        DurabilityError: it does not answer. What the call does then comes to nothing.
    """
    asked = _Waited(call)
    threading.Thread(target=asked.run, name=f"ask {what}", daemon=True).start()
    return asked.wait(what, SILENT_S if silent_s is None else silent_s)
