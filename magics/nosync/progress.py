"""Shows the progress of long work in the running cell, with its steps, its time and its Spark jobs.

A thread per cell polls the activity of the session (`session.info.activity`) and the running Spark
jobs, beginning after half a second. It shows a bar in a notebook, and a line in a terminal. Working
threads never wait for it. The display is removed when the cell ends.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nosync_widgets import formats

if TYPE_CHECKING:
    from nosync.notebook import Notebook
    from nosync_nb import Session

AFTER_S = 0.5
"""The time in seconds after which the progress of a cell is shown."""

EVERY_S = 0.25


class ProgressState(NamedTuple):
    """The current work: a text, the amounts done and in total, and the URL of the Spark UI.

    Both amounts are 0 if they are unknown.
    """

    text: str
    done: int = 0
    total: int = 0
    url: str | None = None


class ProgressDisplay(Protocol):
    """A display of the progress of a cell."""

    def update(self, seen: ProgressState) -> None:
        """Shows the current state."""

    def close(self) -> None:
        """Removes the display."""


class Progress:
    """Shows the activity of the running cell.

    Threads: the thread that runs cells starts and ends it; one thread a cell polls.

    Args:
        look: returns the current activity; None if there is nothing to show.
        make: creates the display, in the polling thread.
    """

    def __init__(
        self, look: Callable[[], ProgressState | None], make: Callable[[], ProgressDisplay]
    ) -> None:
        self._current_state = look
        self._make_display = make
        self._ended: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def start_polling(self) -> None:
        """Starts polling for a cell that begins."""
        self.end()
        ended = self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(ended,), name="nosync progress", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Stops polling and removes the display before it returns."""
        ended, thread = self._ended, self._thread
        self._ended = self._thread = None
        if ended is not None and thread is not None:
            ended.set()
            thread.join()

    def _watch(self, ended: threading.Event) -> None:
        shown: ProgressDisplay | None = None
        wait = AFTER_S
        try:
            while not ended.wait(wait):
                wait = EVERY_S
                seen = self._current_state()
                if seen is not None:
                    shown = shown or self._make_display()
                    shown.update(seen)
                elif shown is not None:
                    shown.close()
                    shown = None
        finally:
            if shown is not None:
                shown.close()


def seen_in(session: Session | None, began: int) -> ProgressState | None:
    """Returns the current activity of a session, or else the epochs that the cell has committed.

    Returns None if there is neither.

    Args:
        began: the last epoch when the cell began.
    """
    if session is None or session.closed:
        return None
    activity, jobs, now = session.info.activity, session.spark_control.jobs, session.now
    parts = []
    done = total = 0
    if activity is not None:
        done, total = activity.done, activity.total
        seconds = int(time.monotonic() - activity.since)
        steps = f", {done:,} of {total:,}" if total else ""
        if total and activity.in_bytes:
            whole = formats.size(total)
            steps = f", {formats.size(done)} of {whole}" if done else f", {whole}"
            total = total if done else 0
        parts.append(f"{activity.what}{steps}{f', {seconds} s' if seconds else ''}")
    if jobs is not None:
        running = formats.count(jobs.jobs, "Spark job")
        parts.append(f"{running}, {jobs.done:,} of {jobs.tasks:,} tasks")
        if not total:
            done, total = jobs.done, jobs.tasks
    if not parts and now > began + 1:
        parts.append(f"epochs {began + 1} to {now} are committed")
    if not parts:
        return None
    return ProgressState(" · ".join(parts), done, total, jobs.url if jobs is not None else None)


class CellProgress:
    """Shows the progress of the cells of one notebook while it is registered."""

    def __init__(self, notebook: Notebook) -> None:
        self._notebook = notebook
        self._began = 0
        self._progress = Progress(self._current_state, self._make_display)

    def before(self, _info: object = None) -> None:
        """Starts at `pre_run_cell`, if there is a front end or a terminal."""
        session = self._notebook.opened
        self._began = 0 if session is None or session.closed else session.now
        seen = hasattr(self._notebook.shell, "kernel") or sys.stderr.isatty()
        if seen and self._notebook.settings.progress == "on":
            self._progress.start_polling()

    def after(self, _result: object = None) -> None:
        """Stops at `post_run_cell`."""
        self._progress.end()

    def _current_state(self) -> ProgressState | None:
        session = self._notebook.opened
        if session is not None and not self._began:  # the session was opened in this cell
            self._began = session.now
        return seen_in(session, self._began)

    def _make_display(self) -> ProgressDisplay:
        if not hasattr(self._notebook.shell, "kernel"):
            return TerminalLine()
        return ProgressBar()


class TerminalLine:
    """Shows progress as one line of a terminal, which overwrites itself."""

    def __init__(self) -> None:
        self._width = 0

    def update(self, seen: ProgressState) -> None:
        """Rewrites the line."""
        text = formats.visible(f"NoSync: {seen.text}").replace("\n", " ")
        self._write(text)
        self._width = len(text)

    def close(self) -> None:
        """Clears the line."""
        self._write("")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal may be closed
            sys.stderr.write(f"\r{text.ljust(self._width)}\r{text}")
            sys.stderr.flush()


class ProgressBar:
    """Shows progress as a bar, in the cell that runs at the first update.

    The bar is HTML that is updated under one display id, and not a widget. So a saved notebook
    contains an empty output, and no widget without a model.
    """

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        self._shown = False

    def update(self, seen: ProgressState) -> None:
        """Shows the current state."""
        self._display({"text/plain": formats.visible(seen.text), "text/html": bar_html(seen)})

    def close(self) -> None:
        """Clears the output."""
        if self._shown:
            self._display({"text/plain": "", "text/html": ""})

    def _display(self, bundle: MutableMapping[str, str]) -> None:
        if self._shown:
            self._handle.update(bundle, raw=True)
        else:
            self._handle.display(bundle, raw=True)
            self._shown = True


def bar_html(seen: ProgressState) -> str:
    """Formats progress as HTML: a bar, the text and a link to the Spark UI.

    Screen readers read the text.
    """
    if seen.total:
        bar = f'<progress max="{seen.total}" value="{min(seen.done, seen.total)}"></progress>'
    else:
        bar = "<progress></progress>"
    link = ""
    if seen.url and seen.url.startswith(("http://", "https://")):
        link = f' <a href="{formats.html(seen.url)}" target="_blank" rel="noopener">Spark UI</a>'
    label = f'<span role="status">{formats.html(seen.text)}</span>'
    return f'<div style="{formats.LINE}">{bar} {label}{link}</div>'
