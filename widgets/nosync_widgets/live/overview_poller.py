"""The pulse of a session: its overview, made anew when there is something new, for all open views.

Design
    Nobody tells it anything: commits, merges and replicas do not know that they are watched, and
    pay nothing. A thread looks five times a second whether there is something new (some us), and
    only then makes an overview. It rests 50 times as long as that took, so all views together
    take 2 % of a core at most, however many stages there are.

Failure
    A session that is closed or that another owner has replaced, or a folder that is gone, is an
    error in the views, and no other: the last overview stays, and `error` says what happened. It
    goes when there is a session again.
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
    from nosync_nb.session.overview import Overview, OverviewMark
    from nosync_nb.session.services import Services
    from nosync_nb.store.background_thread import SingleThread

LOOK_S = 0.2
"""How long it waits between two looks."""

_REST = 50


class OverviewPoller:
    """What the views of a session show, and when they are told.

    Threads: any may call. Views are called with the lock held, one after the other, from the
    thread that looks or from who asks for a `refresh`; they must not call back.

    Attributes:
        session, branch: whose overview it is, and the branch's name; None: the log itself.
        overview: the last one.
        error: why there is no newer one; empty if there is no reason.
        over: whether there will be none before the session is another one; then `error` ends
            with what to do, and the view to be shown anew is left to say.
    """

    def __init__(self, session: Session, branch: str | None = None) -> None:
        self._lock = threading.RLock()
        self._mutex = threading.Lock()  # of what follows alone; nobody is called with it
        self._views: tuple[Callable[[], None], ...] = ()
        self._thread: SingleThread | None = None
        self._stop = threading.Event()
        self._seen: OverviewMark | None = None
        self.session, self.branch = session, branch
        self.error, self.over = "", False
        self.overview: Overview = self._made()

    @property
    def owners(self) -> Services:
        """Who does the work of the session."""
        from nosync_nb.session.session import owners_of

        return owners_of(self.session)

    def name(self, stage: str) -> str:
        """A stage as it is named from outside of its branch."""
        return stage if self.branch is None else f"{self.branch}/{stage}"

    def subscribe(self, show: Callable[[], None]) -> Callable[[], None]:
        """Has a view called after each new overview; returns the way out, which may be repeated."""

        def leave() -> None:
            with self._mutex:
                self._views = tuple(each for each in self._views if each is not show)
                if not self._views:
                    self._stop.set()

        from nosync_nb.store.background_thread import SingleThread

        with self._mutex:
            self._views = (*self._views, show)
            if self._stop.is_set() or self._thread is None:
                self._thread = SingleThread("nosync views")
                self._stop = threading.Event()
            self._thread.start(partial(self._run, self._stop))
        return leave

    def refresh(self, *, always: bool = False) -> float:
        """Looks now, and tells the views if there is something new; returns the seconds it took.

        Args:
            always: also if there is nothing new.
        """
        begin = time.thread_time()
        with self._lock:
            said, new = "", False
            try:
                said = self._ended()
                self.over = bool(said)
                new = not said and (always or not self._moment().is_like(self._seen))
                if new:
                    self.overview = self._made()
            except Exception as error:
                said, new, self._seen = f"{type(error).__name__}: {error}", False, None
            if new or said != self.error:
                self.error = said
                self._tell()
        return time.thread_time() - begin

    def move(self, session: Session, branch: str | None) -> None:
        """Goes on with another session of the same log."""
        with self._lock:
            self.session, self.branch, self._seen = session, branch, None
            self.refresh()

    def close(self) -> None:
        """Tells nobody any more."""
        with self._mutex:
            self._views = ()
            self._stop.set()

    def _ended(self) -> str:
        """Why there will be nothing new in this session, and what to do; empty: there may be."""
        session = self.session
        if session.closed:
            return "the session was closed, what is shown is of then; to go on,"
        if self.owners.publisher.fenced:
            takes = f"`%dd open {quote(session.path)} --takeover`"
            return (
                "another process has taken this log over, what is shown is of then; to go on here"
                f" {takes}, then"
            )
        return ""

    def _moment(self) -> OverviewMark:
        from nosync_nb.session.overview import overview_mark

        return overview_mark(self.owners)

    def _made(self) -> Overview:
        """A new overview. What happens while it is made is something new again."""
        from nosync_nb.session.overview import build_overview

        self._seen = self._moment()
        return build_overview(self.owners)

    def _tell(self) -> None:
        for show in self._views:
            show()

    def _run(self, stop: threading.Event) -> None:
        rest = LOOK_S
        while not stop.wait(rest):
            rest = max(LOOK_S, _REST * self.refresh())
