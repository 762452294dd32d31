"""Defines the base of live views, which show the overview of a session as it changes.

Design
    The kernel owns `state`, a small dict of texts and numbers; the front end draws it and sends
    messages. The poller notifies a view. The view builds its state in the thread of the poller, or
    in the thread of a message, under a lock of its own. It shows the epoch of its content.

Failure
    A notebook that is opened again has no such model: front ends show an error in place of the
    view. So a table of the same content is displayed before each view (see the magics), and is part
    of its own output for front ends without widgets.
"""

from __future__ import annotations

import threading
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import traitlets

from nosync_widgets import formats
from nosync_widgets.live.comm_replies import AGAIN, AnsweringWidget

if TYPE_CHECKING:
    from nosync_widgets.live.overview_poller import OverviewPoller

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


class LiveView(AnsweringWidget):
    """A view of a session that follows it.

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

    def static(self) -> tuple[str, str]:
        """Returns the content as text and as HTML, without widgets."""
        raise NotImplementedError

    def _state_now(self) -> dict[str, Any]:
        raise NotImplementedError

    def _handle_request(self, content: dict[str, Any]) -> None:
        """Handles a message of the front end; `show` follows."""

    def _notify_choice(self) -> None:
        """Notifies listeners of the front end's choice, without the lock: they may hold theirs."""

    def _error_line(self) -> str:
        """Returns the reason why nothing newer is shown, and what to type; empty without one."""
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

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Adds the static form, for front ends without widgets."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data = dict(data or {})
        data["text/plain"], data["text/html"] = self.static()
        return data, metadata


def error_text(error: BaseException) -> str:
    """Formats an error as a line of a view."""
    hints = " ".join(getattr(error, "__notes__", ()))
    return formats.visible(f"{type(error).__name__}: {error}. {hints}".strip())
