"""Sends the messages of a view as replies to its front end, so that it responds during a cell.

ipykernel handles a message of a front end in the loop in which the last message of that view was
written, and JupyterLab requests replies in a loop of its own, a subshell. A thread or a cell that
sends a message to a view does not write there.

Failure: 1. A cell commits in a loop; a thread sends the change to a view. 2. The user clicks into
the view. 3. The click waits in the queue of the cell, and is answered when the cell has ended.

So the context of the last message is stored (it includes a context variable of ipykernel), all
messages are sent in it, and each message gets a reply, if need be an empty one. Without subshells
this changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

import anywidget
import traitlets

AGAIN = "run this cell again"
"""The advice for a view that a cell displayed and whose kernel is gone."""


class CommReplies:
    """The context in which a view sends messages.

    Threads: any may send, also at the same time, each in a copy.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: Context | None = None

    def heard(self) -> None:
        """Stores the context of the message that this thread handles, for later replies."""
        with self._lock:
            self._context = copy_context()

    def speak(self, say: Callable[[], None]) -> None:
        """Calls a function that sends a message, in the stored context."""
        with self._lock:
            context = self._context
        if context is None:
            say()
        else:
            context.copy().run(say)


class AnsweringWidget(anywidget.AnyWidget):
    """A widget that handles messages of its front end while a cell runs."""

    again = traitlets.Unicode(
        AGAIN, help=f"How to show the view again after its kernel has ended; {AGAIN!r}."
    ).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self._replies = CommReplies()
        super().__init__(**traits)

    def send_state(self, key: Any = None) -> None:
        """Sends the changed state to the front end."""
        self._replies.speak(lambda: super(AnsweringWidget, self).send_state(key))

    def answer(self) -> None:
        """Replies to the message that this thread handles, before any other message is sent.

        The reply is empty; the context it is sent from decides where the next message is handled.
        """
        self._replies.heard()
        self.send({})
