"""Fetches files that a log names and that are missing locally from its replicas.

    FetchingFiles   a disk that fetches a missing file when it is opened
    LazyFetcher     the missing files, and a background thread that fetches those not yet read
    FetchWorker     the thread for one replica, because all calls of a replica come from one thread
    fetch_file      fetches, verifies and renames one file

There is no list of missing files: they are the files that the log names and its folder lacks. So a
log that was restored, and killed before all files were fetched, is opened like any other.

A reader waits for a file as long as bytes of the file arrive. If a replica sends nothing for
several seconds, or sends a damaged file, the next replica is tried. If none is left, the read
fails, and the next read starts over. Files that no reader waits for arrive in the background, one
at a time. After each piece, a file that a reader waits for is fetched first.

A call to a replica may hang as long as its mount does (remote_call.py). So a reader waits for
progress of the worker's thread, and without progress continues with another replica. Later results
of the thread are ignored; at most it leaves a complete file.

A file is written under another name and synced. It is compared with the size and the digest in the
log and with its own checksums, and then renamed. So its name never leads to other bytes than those
that were written. The log is untrusted, so the name of a file is checked before it becomes part of
a path.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication import file_layout, remote_call
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.protocol import ReadableCopy, Replica
from nosync_nb.store.replication.remote_call import (
    Answer,
    Backoff,
    Beat,
    CallPolicy,
    Progress,
    RemoteCall,
    copy_file,
)
from nosync_nb.store.threads import SingleThread
from nosync_nb.store.verification.file_checks import rows_damage

_GRACE_S = 0.5


class FileUnavailableError(CorruptLogError):
    """A file that a log names is missing, and no replica that answers has an intact copy."""

    kind = "nowhere"


Prove = Callable[[Files, str, FileReference], None]
"""A check that raises CorruptLogError unless a path leads to the referenced file, intact."""


def check_fetched_file(files: Files, path: str, wanted: FileReference) -> None:
    """Compares a file with its reference in the log, and every byte with its checksums.

    The reference of a part that only a pack names has no size and no digest. Such a part is checked
    by its own checksums here, and against the pack when it is read.
    """
    with closing(files.open(path)) as file:
        for flaw in rows_damage(file.read_at, file.size(), wanted):
            raise CorruptLogError(f"'{wanted.name}' is damaged: {flaw.why}")


def fetch_file(
    files: Files,
    folder: str,
    wanted: FileReference,
    replica: ReadableCopy,
    *,
    between: Callable[[int], None] = lambda size: None,
    prove: Prove = check_fetched_file,
) -> int:
    """Fetches a file from a replica into a log's folder, replacing any other; returns its size.

    Args:
        between: called with the size of each piece on arrival; an exception from it stops the
            fetch.

    Raises:
        CorruptLogError: the replica's file is missing, unreadable or damaged.
        DurabilityError: the file cannot be written to the local disk.
    """
    path = file_layout.file_path(folder, wanted.name)
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    try:
        size = copy_file(files, replica, wanted.name, wanted.size, temporary, between)
        prove(files, temporary, wanted)
        files.rename(temporary, path)
    except BaseException:
        files.unlink(temporary)
        raise
    files.sync_folder(os.path.dirname(path))
    return size


def unavailable_error(name: str, why: Iterable[str]) -> FileUnavailableError:
    """Returns the error for a file of which no replica has an intact copy."""
    return FileUnavailableError(
        f"'{name}' is missing, and no replica has an intact copy:"
        f" {'; '.join(why) or 'the log has no replicas'}",
        hint="reconnect more replicas, and read again",
    )


class FetchWorker:
    """Fetches files from one replica; files that a reader waits for go first.

    Owns, under the condition of its progress, the queued calls.

    Args:
        policy: the policy of each call; its event `cancelled` ends the worker.

    Attributes:
        url: the URL of the replica.
        trouble: the number of failures and stalls; replicas with fewer are asked first.
        bytes_read, files_read: the number of bytes and files that the replica has sent.
    """

    def __init__(
        self, address: ReplicaAddress, log_id: bytes, files: Files, folder: str, policy: CallPolicy
    ) -> None:
        self._address, self._log_id = address, log_id
        self._files, self._folder = files, folder
        self._policy, self._progress = policy, Progress()
        self._urgent: deque[RemoteCall[Any]] = deque()
        self._background: deque[RemoteCall[Any]] = deque()
        self._replica: Replica | None = None
        self._thread = SingleThread(f"nosync fetch from {address.url}")
        self.url = address.url
        self.trouble = 0
        self.bytes_read = self.files_read = 0

    def bring(self, wanted: FileReference, *, urgent: bool) -> None:
        """Fetches a file; waits as long as bytes arrive.

        Args:
            urgent: True if a reader waits for the file, which is then fetched before others.

        Raises:
            DurabilityError: no bytes arrived for too long; or see `fetch_file`.
            CorruptLogError: see `fetch_file`.
        """

        def fetch(replica: Replica, beat: Beat) -> None:
            fetch_file(self._files, self._folder, wanted, replica, between=beat)
            self.files_read += 1

        self._ask(fetch, self._policy, urgent=urgent)

    def holdings(self) -> Mapping[str, int]:
        """Returns the sizes of the files that the replica holds; raises the errors of `bring`."""
        policy = self._policy._replace(silent_s=remote_call.LISTING.silent_s)
        return self._ask(lambda replica, _: replica.held().files, policy, urgent=True)

    def _ask(
        self, work: Callable[[Replica, Beat], Answer], policy: CallPolicy, *, urgent: bool
    ) -> Answer:
        """Queues a call and waits for its result; the first call starts the thread."""

        def call(beat: Beat) -> Answer:
            def after_piece(size: int) -> None:
                self.bytes_read += size
                beat()
                while not urgent and (other := self._next(background=False)) is not None:
                    other.run()

            if self._replica is None:
                self._replica = connect_site(self._address, self._files).replica(self._log_id)
            return work(self._replica, after_piece)

        queued = RemoteCall("it", call, policy, self._progress)
        with self._progress.news:
            if policy.is_cancelled:
                raise closed_error()
            self._thread.start(self._run)
            (self._urgent if urgent else self._background).append(queued)
            self._progress.news.notify_all()
        try:
            return queued.wait()
        except (NosyncError, OSError):
            self.trouble += not policy.is_cancelled
            raise

    def close(self) -> None:
        """Wakes the thread, which ends because the caller has cancelled the policy."""
        with self._progress.news:
            self._progress.news.notify_all()

    def _next(self, *, background: bool = True) -> RemoteCall[Any] | None:
        """Takes the next call from the queues, an urgent one first; returns None without one."""
        with self._progress.news:
            queue = self._urgent or (self._background if background else None)
            return queue.popleft() if queue else None

    def _run(self) -> None:
        while True:
            with self._progress.news:
                self._progress.news.wait_for(
                    lambda: self._policy.is_cancelled or self._urgent or self._background
                )
            if self._policy.is_cancelled:
                break
            if (call := self._next()) is not None:
                call.run()
        if self._replica is not None:
            self._replica.close()


def closed_error() -> DurabilityError:
    """Returns the error for a fetch in a closed session."""
    return DurabilityError("the session is closed", hint="open it again", errno=errno.ECANCELED)


class FetchingFiles(Files):
    """A disk that fetches missing files when they are opened, once a fetcher is set.

    Opening a file that exists locally has no additional cost.
    """

    def __init__(self) -> None:
        self._fetcher: LazyFetcher | None = None

    def ask(self, fetcher: LazyFetcher) -> None:
        """Sets the fetcher."""
        self._fetcher = fetcher

    def open(self, path: str, *, write: bool = False) -> File:
        """Opens an existing plain file; see `Files.open`."""
        try:
            return super().open(path, write=write)
        except DurabilityError as error:
            if error.errno != errno.ENOENT or not self._fetch_missing(path):
                raise
        return super().open(path, write=write)

    def identity(self, path: str) -> tuple[int, ...] | None:
        """Returns the identity of a file without fetching it; None if it is missing locally.

        See `Files.identity`.
        """
        if not self.exists(path):
            return None
        status = self.status(path)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def unlink(self, path: str) -> None:
        """Deletes a file; a file that was not fetched yet will not be fetched any more."""
        if self._fetcher is not None:
            self._fetcher.forget([os.path.basename(path)])
        super().unlink(path)

    def complete(self) -> None:
        """Fetches all missing files, for a reader in another process; see `LazyFetcher.fetch`."""
        if self._fetcher is not None:
            self._fetcher.complete()

    def _fetch_missing(self, path: str) -> bool:
        fetcher = self._fetcher
        return fetcher is not None and fetcher.fetch(os.path.basename(path))


class MissingSummary(NamedTuple):
    """The missing files: their number, their size as far as it is known, and the last failure."""

    files: int
    size_bytes: int
    why: str


class LazyFetcher:
    """Fetches files of one log from its replicas. Any thread may call.

    Owns, under `_lock`, the missing files; each file is fetched by one thread at a time.

    Args:
        files: the local disk, without fetching.
        replicas: returns the current replicas of the log.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        log_id: bytes,
        replicas: Callable[[], Sequence[ReplicaAddress]],
    ) -> None:
        self._files, self._folder, self._log_id = files, folder, log_id
        self._replicas = replicas
        self._lock = threading.Lock()
        self._missing: dict[str, FileReference] = {}
        self._file_locks: dict[str, threading.Lock] = {}
        self._last_error = ""
        self._closing = threading.Event()
        self._policy = remote_call.FETCH._replace(cancelled=self._closing)
        self._workers: dict[ReplicaAddress, FetchWorker] = {}
        self._thread = SingleThread("nosync fetching")

    def expect(self, wanted: Iterable[FileReference]) -> frozenset[str]:
        """Registers missing files; returns the names of those that no replica has.

        A replica that does not list its files in time may have any of them. A replica that lists no
        file of the log may have them, too, because its volume may be unmounted at the moment.
        """
        references = {each.name: each for each in wanted}
        unavailable = frozenset(references)
        for worker in self._ranked_workers():
            if not unavailable:
                break
            try:
                files = worker.holdings()
            except (NosyncError, OSError):
                files = {}
            unavailable = unavailable - files.keys() if files else frozenset()
        with self._lock:
            self._missing.update(references)
        self.forget(unavailable)
        return unavailable

    @property
    def left(self) -> MissingSummary:
        """The files that are still missing."""
        with self._lock:
            sizes = [each.size or 0 for each in self._missing.values()]
            return MissingSummary(len(sizes), sum(sizes), self._last_error if sizes else "")

    @property
    def bytes_read(self) -> int:
        """The number of bytes that replicas have sent."""
        return sum(worker.bytes_read for worker in self._started_workers())

    @property
    def files_read(self) -> int:
        """The number of files that have arrived completely."""
        return sum(worker.files_read for worker in self._started_workers())

    def forget(self, names: Iterable[str]) -> None:
        """Unregisters files that are not needed any more."""
        with self._lock:
            for name in names:
                self._missing.pop(name, None)

    def fetch(self, name: str) -> bool:
        """Fetches a file if it is registered as missing; the wait can be interrupted.

        Returns:
            False if the file is not registered, and was not fetched meanwhile either.

        Raises:
            FileUnavailableError: no replica has an intact copy.
            DurabilityError: no replica answers, or the local disk cannot be written.
        """
        return self._fetch(name, urgent=True)

    def _fetch(self, name: str, *, urgent: bool) -> bool:
        with self._lock:
            wanted = self._missing.get(name)
            if wanted is None:
                return name in self._file_locks  # fetched meanwhile
            turn = self._file_locks.setdefault(name, threading.Lock())
        if not turn.acquire(blocking=urgent):
            return True
        try:
            with self._lock:
                wanted = self._missing.get(name)
            if wanted is not None:
                self._fetch_from_replicas(wanted, urgent=urgent)
                self.forget([name])
        finally:
            turn.release()
        return True

    def _fetch_from_replicas(self, wanted: FileReference, *, urgent: bool) -> None:
        """Fetches a file from the first replica that sends an intact copy."""
        why = []
        reached = False
        for worker in self._ranked_workers():
            if self._closing.is_set():
                raise closed_error()
            try:
                worker.bring(wanted, urgent=urgent)
            except (NosyncError, OSError) as error:
                if self._closing.is_set():  # an interrupted fetch is no fault of the replica
                    raise closed_error() from error
                reached = reached or isinstance(error, CorruptLogError)
                why.append(f"{worker.url}: {error}")
            else:
                return
        if reached:
            raise unavailable_error(wanted.name, why)
        raise DurabilityError(
            f"'{wanted.name}' has not been fetched yet, and no replica answers: {'; '.join(why)}",
            hint="reconnect the replicas and read again; stages with local files stay readable",
            errno=errno.EHOSTUNREACH,
        )

    def _ranked_workers(self) -> list[FetchWorker]:
        """Returns workers for the log's replicas, those with the fewest failures first."""
        with self._lock:
            for address in self._replicas():
                if address not in self._workers:
                    self._workers[address] = FetchWorker(
                        address, self._log_id, self._files, self._folder, self._policy
                    )
            workers = [self._workers[address] for address in self._replicas()]
        return sorted(workers, key=lambda worker: worker.trouble)

    def _started_workers(self) -> list[FetchWorker]:
        with self._lock:
            return list(self._workers.values())

    # -- in the background -------------------------------------------------------------------

    def start(self) -> None:
        """Starts to fetch the missing files in the background, if there are any."""
        with self._lock:
            if self._missing and not self._closing.is_set():
                self._thread.start(self._run_background)

    def complete(self) -> None:
        """Fetches all missing files, for a reader in another process; see `fetch` for errors."""
        with self._lock:
            names = list(self._missing)
        for name in names:
            self.fetch(name)

    def _run_background(self) -> None:
        """Fetches all missing files one by one, and retries failed ones later."""
        self._closing.wait(_GRACE_S)
        backoff = Backoff(*self._policy.retry_s)
        while not self._closing.is_set():
            with self._lock:
                names = list(self._missing)
            if not names:
                return
            failed = 0
            for name in names:
                if self._closing.is_set():
                    return
                try:
                    self._fetch(name, urgent=False)
                except (NosyncError, OSError) as error:
                    failed += 1
                    with self._lock:
                        self._last_error = str(error)
            if failed < len(names):
                backoff.reset()
            if failed:
                self._closing.wait(backoff.next_s())

    def close(self) -> None:
        """Stops all fetches; the next opening of the log starts them over."""
        self._closing.set()
        for worker in self._started_workers():
            worker.close()
        self._thread.join(self._policy.silent_s)


def fetch_all_files(files: Files) -> None:
    """Fetches all missing files of a log, for a reader in another process.

    Raises:
        DurabilityError, CorruptLogError: a file cannot be fetched; see `LazyFetcher.fetch`.
    """
    if isinstance(files, FetchingFiles):
        files.complete()


def incomplete_restore(files: Files, folder: str) -> list[str]:
    """Returns the paths of incomplete files that a killed fetch has left."""
    paths = []
    for inner in file_layout.FOLDERS.values():
        within = os.path.join(folder, inner)
        paths += [
            os.path.join(within, name)
            for name in files.names(within)
            if name.endswith(".tmp") and file_layout.is_rows(name.rsplit(".", 2)[0])
        ]
    return paths
