"""Loads rows into inputs from a background thread, until it is stopped.

The user would not see an error that is raised in that thread. A notebook gets it as a notice, and
shows it in the running cell or the next one. Elsewhere the error is reported as a warning by
`stop`, or by the next commit in a thread that is not a feed.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from nosync_nb.store import threads

if TYPE_CHECKING:
    from typing import Self

    from nosync_nb.session.state.publisher import Publisher
    from nosync_nb.session.state.subscriptions import Subscriptions
    from nosync_nb.session.state.writer_lock import WriterLock
    from nosync_nb.session.writes.commit import CommitService
    from nosync_nb.session.writes.idempotency import LoadRegistry
    from nosync_nb.session.writes.ingest import IngestService


class _Feeding(threading.local):
    """Marks a thread that loads rows of a feed, because the user does not see its warnings."""

    on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False


feeding = _Feeding()


class Feeder:
    """A feed of an input; a `with` block stops it.

    Threads: any may call it. The unreported failures are one tuple, which is replaced under a lock.
    """

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._mutex = threading.Lock()
        self._unreported: tuple[str, ...] = ()
        self._unsubscribe = subscriptions.subscribe(self._committed)

    @property
    def running(self) -> bool:
        """True until the feed is stopped."""
        return not self._ended.is_set()

    def stop(self) -> None:
        """Stops the feed after the epoch that it is loading; reports failures not reported yet."""
        self._ended.set()
        self._unsubscribe()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            threads.join_thread(thread)
        self.report_failures()

    def report_failures(self) -> None:
        """Reports each unreported failure once."""
        with self._mutex:
            unreported, self._unreported = self._unreported, ()
        for text in unreported:
            self._subscriptions.alert(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.stop()

    def _queue_report(self, text: str) -> None:
        """Queues the report of a failure: for a notebook now, otherwise for the next commit."""
        with self._mutex:
            if text not in self._unreported:
                self._unreported = (*self._unreported, text)
        if self._subscriptions.has_notice_handler:
            self.report_failures()

    def _committed(self, _epoch: int) -> None:
        """Reports to the committing thread, unless that thread is a feed."""
        if self._unreported and not feeding.on:
            self.report_failures()


One = TypeVar("One", bound=Feeder)


class FeedRegistry(Generic[One]):
    """The feeds of one kind in a session: one for each pair of a source and an input.

    Attributes:
        publisher, subscriptions, commits, ingest, load_registry: the services that feeds use.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        subscriptions: Subscriptions,
        commits: CommitService,
        ingest: IngestService,
        load_registry: LoadRegistry,
    ) -> None:
        self.publisher, self.subscriptions = publisher, subscriptions
        self.commits, self.ingest, self.load_registry = commits, ingest, load_registry
        self._writer_lock = writer_lock
        self._lock = threading.Lock()
        self._feeders: dict[tuple[str, str], One] = {}

    @property
    def inherited(self) -> bool:
        """True in a forked child: the feeds belong to its parent."""
        return self._writer_lock.inherited

    @property
    def over(self) -> bool:
        """True if the session can no longer commit."""
        return self.publisher.is_ended()

    def close(self) -> None:
        """Stops all feeds."""
        with self._lock:
            feeders, self._feeders = list(self._feeders.values()), {}
        for feeder in feeders:
            feeder.stop()

    def _stop(self, key: tuple[str, str]) -> None:
        """Stops the feed of a source and an input, if there is one."""
        with self._lock:
            previous = self._feeders.get(key)
        if previous is not None:
            previous.stop()

    def _register(self, key: tuple[str, str], feeder: One) -> None:
        with self._lock:
            self._feeders[key] = feeder
