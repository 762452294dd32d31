"""Fetching: files that a log names and that are not here yet: what is read first, then the rest.

    Elsewhere   a disk of which some files lie elsewhere: who opens one of them finds it here
    Fetcher     which they are, who is waiting for which, and who brings them
    supply.py   a thread for each replica, as a replica is one thread's

A list of what is elsewhere is not kept: it is what the log names and its folder lacks. So a log
that was made anew, and killed before all of it was here, is opened like any other and goes on.

A reader waits for his file as long as bytes of it come. A replica that gives none for some seconds,
or another file than was written, is left for the next; if there is none the call fails, and the
next one begins again. What nobody reads comes in the background, one file at a time, and makes way
for what somebody waits for after each piece.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.store.background_thread import SingleThread
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.restore.lazy_fetch__bringing import unavailable_error
from nosync_nb.store.replication.restore.lazy_fetch__supply import FetchWorker, closed_error

STALL_S = 10.0
"""How long a replica may give nothing before the next one is asked."""

_LOOK_S = 1.0
_GRACE_S = 0.5
_AGAIN_S, _AGAIN_MOST_S = 1.0, 60.0


class FetchingFiles(Files):
    """A disk that asks who brings files, once there is somebody, for what it is to open and lacks.

    What is here costs nothing more.
    """

    def __init__(self) -> None:
        self._fetcher: LazyFetcher | None = None

    def ask(self, fetcher: LazyFetcher) -> None:
        """Has files brought from now on."""
        self._fetcher = fetcher

    def open(self, path: str, *, write: bool = False) -> File:
        """Opens an existing plain file; see `Files.open`."""
        try:
            return super().open(path, write=write)
        except DurabilityError as error:
            if error.errno != errno.ENOENT or not self._came(path):
                raise
        return super().open(path, write=write)

    def identity(self, path: str) -> tuple[int, ...] | None:
        """Tells a file that is here from all others; see `Files.identity`."""
        if not self.exists(path):
            return None
        status = self.status(path)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def unlink(self, path: str) -> None:
        """Deletes a file, here or before it is here."""
        if self._fetcher is not None:
            self._fetcher.forget([os.path.basename(path)])
        super().unlink(path)

    def complete(self) -> None:
        """Has all files here, for who reads them in another process; see `LazyFetcher.fetch`."""
        if self._fetcher is not None:
            self._fetcher.complete()

    def _came(self, path: str) -> bool:
        fetcher = self._fetcher
        return fetcher is not None and fetcher.fetch(os.path.basename(path))


class MissingSummary(NamedTuple):
    """Files that are not here yet, how many bytes they have as far as that is known, and why."""

    files: int
    size_bytes: int
    why: str


class LazyFetcher:
    """Brings files of one log from its replicas. Any thread may ask.

    Owns, under `_lock`, what is not here; each file is brought by one thread at a time.

    Args:
        files: the disk, as it is.
        replicas: those that the log has now.
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
        self._wanted: dict[str, FileReference] = {}
        self._turns: dict[str, threading.Lock] = {}
        self._why = ""
        self._closing = threading.Event()
        self._supplies: dict[ReplicaAddress, FetchWorker] = {}
        self._thread = SingleThread("nosync fetching")

    def expect(self, wanted: Iterable[FileReference]) -> frozenset[str]:
        """Says which files are not here; returns those that no replica has.

        A replica that does not tell in time what it holds may have any of them; so may one that
        holds nothing of the log: its volume is not mounted, or was a moment ago.
        """
        asked = {each.name: each for each in wanted}
        nowhere_ = frozenset(asked)
        for supply in self._asked():
            if not nowhere_:
                break
            try:
                held = supply.held(_LOOK_S)
            except (NosyncError, OSError):
                held = {}
            nowhere_ = nowhere_ - held.keys() if held else frozenset()
        with self._lock:
            self._wanted.update(asked)
        self.forget(nowhere_)
        return nowhere_

    @property
    def left(self) -> MissingSummary:
        """What is not here yet."""
        with self._lock:
            sizes = [each.size or 0 for each in self._wanted.values()]
            return MissingSummary(len(sizes), sum(sizes), self._why if sizes else "")

    @property
    def bytes_read(self) -> int:
        """How many bytes replicas gave."""
        return sum(supply.bytes_read for supply in self._known())

    @property
    def files_read(self) -> int:
        """How many files came whole."""
        return sum(supply.files_read for supply in self._known())

    def forget(self, names: Iterable[str]) -> None:
        """Says that nobody needs some files any more."""
        with self._lock:
            for name in names:
                self._wanted.pop(name, None)

    def fetch(self, name: str) -> bool:
        """Has a file here, if it is one that is not; the wait for it can be interrupted.

        Returns:
            False: it is not known here.

        Raises:
            NowhereError: no replica has it whole.
            DurabilityError: none of them answers, or the disk refuses.
        """
        return self._fetch(name, urgent=True)

    def _fetch(self, name: str, *, urgent: bool) -> bool:
        with self._lock:
            wanted = self._wanted.get(name)
            if wanted is None:
                return name in self._turns  # it came since
            turn = self._turns.setdefault(name, threading.Lock())
        if not turn.acquire(blocking=urgent):
            return True
        try:
            with self._lock:
                wanted = self._wanted.get(name)
            if wanted is not None:
                self._bring(wanted, urgent=urgent)
                self.forget([name])
        finally:
            turn.release()
        return True

    def _bring(self, wanted: FileReference, *, urgent: bool) -> None:
        """Asks one replica after the other."""
        why = []
        reached = False
        for supply in self._asked():
            if self._closing.is_set():
                raise closed_error()
            try:
                supply.bring(wanted, urgent=urgent, stall_s=STALL_S)
            except (NosyncError, OSError) as error:
                if self._closing.is_set():  # what was cut off tells nothing of the replica
                    raise closed_error() from error
                reached = reached or isinstance(error, CorruptLogError)
                why.append(f"{supply.url}: {error}")
            else:
                return
        if reached:
            raise unavailable_error(wanted.name, why)
        raise DurabilityError(
            f"'{wanted.name}' is not here yet, and no replica answers: {'; '.join(why)}",
            hint="bring the replicas back and read again; what is here can be read",
            errno=errno.EHOSTUNREACH,
        )

    def _asked(self) -> list[FetchWorker]:
        """The replicas that the log has, those first that gave what they were asked for."""
        with self._lock:
            for address in self._replicas():
                if address not in self._supplies:
                    self._supplies[address] = FetchWorker(
                        address, self._log_id, self._files, self._folder
                    )
            supplies = [self._supplies[address] for address in self._replicas()]
        return sorted(supplies, key=lambda supply: supply.trouble)

    def _known(self) -> list[FetchWorker]:
        with self._lock:
            return list(self._supplies.values())

    # -- the rest ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to bring what nobody has asked for yet."""
        with self._lock:
            if self._wanted and not self._closing.is_set():
                self._thread.start(self._rest)

    def complete(self) -> None:
        """Has all files here, for who reads them in another process; as `fetch`."""
        with self._lock:
            names = list(self._wanted)
        for name in names:
            self.fetch(name)

    def _rest(self) -> None:
        """The thread: one file after the other, and again what could not be had."""
        self._closing.wait(_GRACE_S)
        again = _AGAIN_S
        while not self._closing.is_set():
            with self._lock:
                names = list(self._wanted)
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
                        self._why = str(error)
            again = _AGAIN_S if failed < len(names) else min(2 * again, _AGAIN_MOST_S)
            if failed:
                self._closing.wait(again)

    def close(self) -> None:
        """Ends what is in the middle of being brought; it is begun anew when the log is opened."""
        self._closing.set()
        for supply in self._known():
            supply.close()
        self._thread.join(STALL_S)


def is_complete(files: Files) -> None:
    """Has all files of a log here that lie elsewhere, for who reads them in another process.

    Raises:
        DurabilityError, CorruptLogError: some cannot be had; see `LazyFetcher.fetch`.
    """
    if isinstance(files, FetchingFiles):
        files.complete()


def incomplete_restore(files: Files, folder: str) -> list[str]:
    """The files that who brought them was killed in the middle of; paths."""
    paths = []
    for inner in file_layout.FOLDERS.values():
        within = os.path.join(folder, inner)
        for name in files.names(within):
            if name.endswith(".tmp") and file_layout.is_rows(name.rsplit(".", 2)[0]):
                paths.append(os.path.join(within, name))
    return paths
