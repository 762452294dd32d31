"""Replies: what a view says is said as an answer to its front end, so that this is heard meanwhile.

ipykernel sends a message of a front end to the loop in which the last message of that view was
written, and JupyterLab asks for answers in a loop of its own, a subshell. What a thread or a cell
tells a view is not written there.

Failure: 1. A cell commits in a loop; a thread tells a view of it. 2. The user clicks into the view.
3. The click waits in the queue of the cell, and is answered when that has ended.

So the context of the last message is kept (a context variable of ipykernel's is in it), all that is
told is told in it, and each message is answered, if by nothing else then by an empty one. Where
there are no subshells, none of it changes anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

import anywidget
import traitlets

AGAIN = "run this cell again"
"""What brings a view back that was displayed by a cell."""


class CommReplies:
    """The context in which a view speaks.

    Threads: any may speak, also at the same time, each in a copy.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: Context | None = None

    def heard(self) -> None:
        """The front end's message is being handled in this thread: what follows answers it."""
        with self._lock:
            self._context = copy_context()

    def speak(self, say: Callable[[], None]) -> None:
        """Calls what tells the front end something."""
        with self._lock:
            context = self._context
        if context is None:
            say()
        else:
            context.copy().run(say)


class AnsweringWidget(anywidget.AnyWidget):
    """A widget whose front end is heard while a cell runs that has the kernel told it."""

    again = traitlets.Unicode(
        AGAIN, help=f"What brings the view back when its kernel is gone; {AGAIN!r}."
    ).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self._replies = CommReplies()
        super().__init__(**traits)

    def send_state(self, key: Any = None) -> None:
        """Tells the front end what has changed."""
        self._replies.speak(lambda: super(AnsweringWidget, self).send_state(key))

    def answer(self) -> None:
        """Answers the message that is being handled in this thread, before anything else is told.

        What is sent says nothing; where it is sent from is where the next message is handled.
        """
        self._replies.heard()
        self.send({})
