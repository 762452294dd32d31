"""Defines the base classes of views, which follow a session and handle front-end messages.

Design
    A `StageView` shows rows of one stage, and is notified of commits. A `LiveView` shows the
    overview of a session, and the poller notifies it. The kernel owns its `state`, a small dict of
    texts and numbers. The front end draws the state and sends messages. The view builds its state
    under its own lock, in the thread of the poller or of a message, and shows the epoch of the
    state.

Failure
    A notebook that is opened without its kernel has no model of the view, so front ends show an
    error in place of the view. So a table of the same content is displayed before each view (see
    the magics), and is part of its own output for front ends without widgets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from nosync_widgets import formats
from nosync_widgets.throttle import ThreadBudget, Throttle

if TYPE_CHECKING:
    from nosync_nb import Session
    from nosync_nb.frontend import Schema
    from nosync_widgets.overview_poller import OverviewPoller
    from nosync_widgets.tables import Table

AGAIN = "run this cell again"
"""The advice for a view of a cell after its kernel has ended."""

_STATIC = files("nosync_widgets") / "static"


def source(name: str) -> str:
    """Returns the text of a static file for the browser.

    IMPORTANT: views get strings, not paths: anywidget keeps a closure on paths, and never frees the
    widget.
    """
    return (_STATIC / name).read_text("utf-8")


def script(*names: str) -> str:
    """Returns the script of a view: static files in order, after the shared parts of all views."""
    return "".join(source(name) for name in ("parts.js", *names))


class AnsweringWidget(anywidget.AnyWidget):
    """A widget that handles messages of its front end while a cell runs.

    Subclasses define `static`, and handle messages in `_on_message`.

    ipykernel handles a message for a view in the loop that sent the last message to that view.
    JupyterLab requests replies in a separate loop, a subshell. A thread or a cell that sends a
    message to the view does not send it in the subshell.

    Failure: 1. A cell commits in a loop; a thread sends the change to a view. 2. The user clicks
    into the view. 3. The click waits in the queue of the cell, and is answered when the cell has
    ended. Hence the context of the last message is stored (it includes a context variable of
    ipykernel), all messages are sent in it, and each message gets a reply, if need be an empty one.
    Without subshells this changes nothing.

    Threads: any may send, also at the same time, each in a copy of the context.
    """

    again = traitlets.Unicode(
        AGAIN, help=f"How to show the view again after its kernel has ended; {AGAIN!r}."
    ).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self._context_lock = threading.Lock()
        self._context: Context | None = None
        super().__init__(**traits)

    def send_state(self, key: Any = None) -> None:
        """Sends the changed state to the front end, in the context of the last message from it."""
        with self._context_lock:
            context = self._context
        if context is None:
            super().send_state(key)
        else:
            context.copy().run(super().send_state, key)

    def answer(self) -> None:
        """Sends an empty reply to the message that this thread handles, before any other message.

        Later messages are sent in the context of this reply, because the context decides which
        event loop handles the next message.
        """
        with self._context_lock:
            self._context = copy_context()
        self.send({})

    def static(self) -> tuple[str, str]:
        """Returns the content as text and as HTML, without widgets."""
        raise NotImplementedError

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        """Handles a message of the front end."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Returns the display with the static form added, for front ends without widgets."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data = dict(data or {})
        data["text/plain"], data["text/html"] = self.static()
        return data, metadata


class LiveView(AnsweringWidget):
    """A view of the overview of a session, redrawn when the overview changes.

    Subclasses define `_state_now`, and handle messages in `_handle_request`.
    """

    _css = source("live.css")

    state = traitlets.Dict(help="The texts and numbers to draw; empty by default.").tag(sync=True)

    def __init__(self, pulse: OverviewPoller, *, again: str = AGAIN) -> None:
        self._lock = threading.RLock()
        self._pulse = pulse
        self._closed = False
        super().__init__(again=again)
        self.show()
        self._leave = pulse.subscribe(self.show)
        self.on_msg(self._on_message)

    def show(self) -> None:
        """Shows the current overview of the poller."""
        with self._lock:
            if self._closed:
                return
            try:
                state = self._state_now()
            except Exception as error:
                state = {**self.state, "error": error_text(error)}
            else:
                state["error"] = self._error_line()
            self.state = {**state, **self._epoch_fields()}

    def close(self) -> None:
        """Frees the view, its layout and its subscription; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._leave()
        self.on_msg(self._on_message, remove=True)
        self.layout.close()
        super().close()

    def _state_now(self) -> dict[str, Any]:
        raise NotImplementedError

    def _handle_request(self, content: dict[str, Any]) -> None:
        """Handles a message of the front end. The caller holds the lock, and then calls `show`."""

    def _notify_choice(self) -> None:
        """Notifies listeners of the front end's choice.

        The lock is not held, because listeners may hold locks of their own.
        """

    def _error_line(self) -> str:
        """Returns the error that stops the updates, and how to resume; empty without an error."""
        pulse = self._pulse
        text = f"{pulse.error} {self.again}" if pulse.over else pulse.error
        return formats.visible(text)

    def _epoch_fields(self) -> dict[str, Any]:
        overview = self._pulse.overview
        return {"epoch": overview.epoch, "time": formats.moment(overview.committed_at)}

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, dict) or self._closed:
            return
        self.answer()
        with self._lock:
            self._handle_request(content)
        self.show()
        self._notify_choice()


class SelectingView(LiveView):
    """A live view in which the front end may select a stage.

    Args:
        chosen: called with a stage that the front end selects.
    """

    def __init__(
        self,
        pulse: OverviewPoller,
        *,
        chosen: Callable[[str], None] | None = None,
        again: str = AGAIN,
    ) -> None:
        self._selected = ""
        self._on_chosen = chosen
        super().__init__(pulse, again=again)

    @property
    def selected(self) -> str:
        """The selected stage; empty if none is selected."""
        return self._selected

    def select(self, stage: str) -> None:
        """Selects a stage; an empty name clears the selection."""
        with self._lock:
            self._selected = stage
        self.show()

    def _handle_request(self, content: dict[str, Any]) -> None:
        self._selected = str(content.get("select", self._selected))

    def _notify_choice(self) -> None:
        if self._on_chosen is not None:
            self._on_chosen(self._selected)


class StageView(AnsweringWidget):
    """A view of one stage that follows the commits of a session in a background thread.

    Subclasses define `refresh`, and call `_subscribe` when they show their first rows. One lock
    guards all state that messages, cells and commits change.

    Args:
        branch: the name of the session's branch; None for the log itself.
        budget: the processor time that the view's background work shares with other views.

    Attributes:
        pace: throttles the refreshes after commits.
    """

    stage = traitlets.Unicode(help="Name of the stage shown.").tag(sync=True)

    def __init__(
        self, session: Session, stage: str, branch: str | None, budget: ThreadBudget, **traits: Any
    ) -> None:
        self._lock = threading.RLock()
        self._session, self._branch = session, branch
        self._pages = 0
        self._closed = False
        # Commits call the throttle. It has its own lock, because a commit must never wait for a
        # page that is being read.
        self.pace = Throttle(self._refresh_in_background, budget)
        super().__init__(stage=stage, **traits)

    def refresh(self, *, reload: bool = False) -> None:
        """Shows new epochs, if there are any.

        Args:
            reload: reads the rows again in any case, after a new version of the stage.
        """
        raise NotImplementedError

    def follow(self) -> None:
        """Requests a `refresh` in a background thread; several requests share one refresh."""
        self.pace.ask()

    def close(self) -> None:
        """Frees the view, its layout and its subscription; a second call does nothing."""
        self.pace.close()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._unsubscribe()
            self.on_msg(self._on_message, remove=True)
            self._forget_rows()
        self.layout.close()
        super().close()

    def _forget_rows(self) -> None:
        """Frees the cursors."""
        raise NotImplementedError

    def _refresh_in_background(self) -> None:
        self.refresh()

    def _subscribe(self) -> None:
        """Starts to follow commits, and messages of the front end."""
        self._unsubscribe = self._session.subscribe(self._committed)
        self.on_msg(self._on_message)

    def _switch(self, session: Session, branch: str | None) -> None:
        """Follows another session of the same log. The caller holds the lock."""
        self._unsubscribe()
        self._session, self._branch = session, branch
        self._forget_rows()
        self._unsubscribe = session.subscribe(self._committed)

    def _committed(self, _epoch: int) -> None:
        self.follow()

    @property
    def _name(self) -> str:
        return self._full_name(self.stage)

    def _full_name(self, stage: str) -> str:
        """Returns the full name of a stage, with its branch."""
        return stage if self._branch is None else f"{self._branch}/{stage}"

    def _stale(self, stage: str) -> str:
        """Returns the mark of a stale stage, `stale: ...`; empty if the stage is not stale."""
        return formats.visible(str(self._session[stage].stale or ""))


def column_fields(schema: Schema, most: int | None = None) -> list[dict[str, Any]]:
    """Returns name, type and alignment of the first `most` columns, for the front end."""
    return [
        {
            "name": formats.one_line(name),
            "type": formats.one_line(kind),
            "right": formats.is_numeric(kind),
        }
        for name, kind in islice(zip(schema.names, schema.types, strict=True), most)
    ]


def static_page(
    name: str, page: dict[str, Any], table: Callable[[str, dict[str, Any]], Table]
) -> tuple[str, str]:
    """Returns a page as text and as HTML: its table, or its error if it could not be read."""
    if "error" in page:
        text = formats.visible(f"{name}: {page['error']}")
        return text, f"<pre>{formats.html(text)}</pre>"
    drawn = table(name, page)
    return drawn.text(), drawn.html()


def error_text(error: BaseException) -> str:
    """Formats an error as a line of a view."""
    hints = " ".join(getattr(error, "__notes__", ()))
    return formats.visible(f"{type(error).__name__}: {error}. {hints}".strip())
