"""Supply: one replica as who brings files from it sees it: a thread, and what it was asked for.

A replica's calls come from one thread, and may hang as long as its mount does. So whoever waits for
a file waits for news of this thread, and goes elsewhere if there is none; what the thread does
afterwards is nobody's, and leaves at most a file that is whole.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Mapping

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.store import interruptible_wait
from nosync_nb.store.background_thread import SingleThread
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.protocol import Replica
from nosync_nb.store.replication.restore import lazy_fetch__bringing

Between = Callable[[int], None]


class _Task:
    """Something that somebody waits for; `error` is set when it is `done` and did not come about.

    Args:
        work: is given the replica, and what is to be called between two pieces of a file.
    """

    def __init__(self, work: Callable[[Replica, Between], None], *, urgent: bool) -> None:
        self.work, self.urgent = work, urgent
        self.done = self.left = False
        self.error: BaseException | None = None


class _LeftError(Exception):
    """Nobody waits for this file any more."""


class FetchWorker:
    """Brings files from one replica, those first that a reader waits for.

    Owns, under `_news`, the tasks that wait.

    Attributes:
        url: the replica's.
        trouble: how often it had to be left, so that others are asked first.
        bytes_read, files_read: what it gave.
    """

    def __init__(self, address: ReplicaAddress, log_id: bytes, files: Files, folder: str) -> None:
        self._address, self._log_id = address, log_id
        self._files, self._folder = files, folder
        self._news = threading.Condition()
        self._urgent: deque[_Task] = deque()
        self._later: deque[_Task] = deque()
        self._replica: Replica | None = None
        self._thread = SingleThread(f"nosync fetch from {address.url}")
        self._closed = False
        self.url = address.url
        self.trouble = 0
        self.bytes_read = self.files_read = 0

    def bring(self, wanted: FileReference, *, urgent: bool, stall_s: float) -> None:
        """Has a file brought; waits as long as bytes come.

        Raises:
            DurabilityError: nothing came for `stall_s` seconds; or as `bringing.bring`.
            CorruptLogError: see `bringing.bring`.
        """

        def work(replica: Replica, between: Between) -> None:
            lazy_fetch__bringing.fetch_file(
                self._files, self._folder, wanted, replica, between=between
            )
            self.files_read += 1

        self._wait(self._asked(work, urgent=urgent), stall_s)

    def held(self, stall_s: float) -> Mapping[str, int]:
        """What the replica holds; raises as `bring`."""
        files: dict[str, int] = {}

        def work(replica: Replica, _between: Between) -> None:
            files.update(replica.held().files)

        self._wait(self._asked(work, urgent=True), stall_s)
        return files

    def _asked(self, work: Callable[[Replica, Between], None], *, urgent: bool) -> _Task:
        """A task of the thread, which is started with the first one."""
        task = _Task(work, urgent=urgent)
        with self._news:
            if self._closed:
                raise closed_error()
            self._thread.start(self._run)
            (self._urgent if urgent else self._later).append(task)
            self._news.notify_all()
        return task

    def _wait(self, task: _Task, stall_s: float) -> None:
        with self._news:
            try:
                seen = -1
                while not task.done and not self._closed and seen != self.bytes_read:
                    seen = self.bytes_read
                    interruptible_wait.wait_until(
                        self._news, lambda: task.done or self._closed, stall_s
                    )
            finally:
                task.left = not task.done
        if task.left and self._closed:
            raise closed_error()
        if task.left:
            self.trouble += 1
            raise DurabilityError(f"it gave nothing for {stall_s:g} s")
        if isinstance(task.error, _LeftError):
            raise closed_error()
        if task.error is not None:
            self.trouble += 1
            raise task.error

    def close(self) -> None:
        """Ends the thread after the piece that it is reading."""
        with self._news:
            self._closed = True
            for task in (*self._urgent, *self._later):
                task.left = True
            self._news.notify_all()

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._closed or self._urgent or self._later)
                if self._closed:
                    break
                task = (self._urgent or self._later).popleft()
            self._serve(task)
        if self._replica is not None:
            self._replica.close()

    def _serve(self, task: _Task) -> None:
        """Does what is asked for, and says how that ended."""
        error: BaseException | None = None
        try:
            if task.left:
                raise _LeftError
            if self._replica is None:
                self._replica = connect_site(self._address, self._files).replica(self._log_id)
            task.work(self._replica, lambda size: self._between(task, size))
        except Exception as failed:  # told to who waits
            error = failed
        with self._news:
            task.error, task.done = error, True
            self._news.notify_all()

    def _between(self, task: _Task, size: int) -> None:
        """After a piece of a file: what is urgent goes first, what nobody waits for is left."""
        with self._news:
            self.bytes_read += size
            if self._closed or task.left:
                raise _LeftError
        while not task.urgent:
            with self._news:
                if not self._urgent:
                    return
                other = self._urgent.popleft()
            self._serve(other)


def closed_error() -> DurabilityError:
    """The error of who waits for a file in a session that is closed."""
    return DurabilityError("the session is closed", hint="open it again", errno=errno.ECANCELED)
