"""Polls a session for all open views, and rebuilds its overview after a change.

Design
    Commits, merges and replicas do not notify views, so open views cost them nothing. A thread
    checks for changes five times a second, which takes a few microseconds. It builds an overview
    only after a change, and then rests for 50 times the duration of the build. So all views
    together use at most 2 % of a processor, for any number of stages.

Failure
    If a session is closed or fenced by another owner, or its folder is gone, the views show an
    error, and nothing else fails: the last overview stays, and `error` has the reason. It is
    cleared when the session works again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nosync_nb import Session
    from nosync_nb.frontend import Overview, OverviewMark, SingleThread

LOOK_S = 0.2
"""The seconds between two polls."""

_REST = 50


class OverviewPoller:
    """The overview of a session, with the views that are notified of changes.

    Threads: any may call. Views are called with the lock held, one after the other, from the
    polling thread or from the caller of `refresh`; they must not call back.

    Attributes:
        session, branch: the session, and the name of its branch; None for the log itself.
        overview: the last overview.
        error: the reason why the overview cannot be updated; empty without an error.
        over: True if the session has ended, so that there will be no newer overview. Then `error`
            ends with the remedy, to which the view adds how to show it again.
    """

    def __init__(self, session: Session, branch: str | None = None) -> None:
        self._lock = threading.RLock()
        # guards only the next three attributes; never held while a view is called
        self._views_lock = threading.Lock()
        self._views: tuple[Callable[[], None], ...] = ()
        self._thread: SingleThread | None = None
        self._stop = threading.Event()
        self._last_mark: OverviewMark | None = None
        self.session, self.branch = session, branch
        self.error, self.over = "", False
        self.overview: Overview = self._build()

    def name(self, stage: str) -> str:
        """Returns the full name of a stage, with its branch."""
        return stage if self.branch is None else f"{self.branch}/{stage}"

    def subscribe(self, show: Callable[[], None]) -> Callable[[], None]:
        """Calls `show` after each new overview; returns a function that ends the subscription."""

        def leave() -> None:
            with self._views_lock:
                self._views = tuple(each for each in self._views if each is not show)
                if not self._views:
                    self._stop.set()

        from nosync_nb.frontend import SingleThread

        with self._views_lock:
            self._views = (*self._views, show)
            if self._stop.is_set() or self._thread is None:
                self._thread = SingleThread("nosync views")
                self._stop = threading.Event()
            self._thread.start(partial(self._run, self._stop))
        return leave

    def refresh(self, *, always: bool = False) -> float:
        """Polls now, and notifies the views of changes; returns the processor seconds used.

        Args:
            always: rebuilds the overview even without a change.
        """
        begin = time.thread_time()
        with self._lock:
            reason, new = "", False
            try:
                reason = self._end_reason()
                self.over = bool(reason)
                new = not reason and (
                    always or not self.session.info.mark().is_like(self._last_mark)
                )
                if new:
                    self.overview = self._build()
            except Exception as error:
                reason, new, self._last_mark = f"{type(error).__name__}: {error}", False, None
            if new or reason != self.error:
                self.error = reason
                self._notify()
        return time.thread_time() - begin

    def move(self, session: Session, branch: str | None) -> None:
        """Switches to another session of the same log."""
        with self._lock:
            self.session, self.branch, self._last_mark = session, branch, None
            self.refresh()

    def close(self) -> None:
        """Ends all notifications."""
        with self._views_lock:
            self._views = ()
            self._stop.set()

    def _end_reason(self) -> str:
        """Returns the reason why the session has ended, and the remedy; empty if it has not."""
        session = self.session
        if session.closed:
            return "the session was closed, and this view is no longer updated; to continue,"
        if session.info.fenced:
            takes = f"`%dd open {quote(session.path)} --takeover`"
            return (
                "another process has taken over this log, and this view is no longer updated; to"
                f" continue here {takes}, then"
            )
        return ""

    def _build(self) -> Overview:
        """Builds an overview. The next poll detects a change that happens meanwhile."""
        self._last_mark = self.session.info.mark()
        return self.session.info.overview()

    def _notify(self) -> None:
        for show in self._views:
            show()

    def _run(self, stop: threading.Event) -> None:
        rest = LOOK_S
        while not stop.wait(rest):
            rest = max(LOOK_S, _REST * self.refresh())
