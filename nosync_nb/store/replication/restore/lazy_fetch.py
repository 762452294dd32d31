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

Supply: one replica as who brings files from it sees it: a thread, and what it was asked for.

A replica's calls come from one thread, and may hang as long as its mount does. So whoever waits for
a file waits for news of this thread, and goes elsewhere if there is none; what the thread does
afterwards is nobody's, and leaves at most a file that is whole.

Bringing: a file that a log names, and that is not here or is not whole, from who has it whole.

It is written under another name, held against the size and the digest that the log has of it and
against its own checksums, synced, and renamed: under its name there is never anything else than
what was written. Whoever brings a file names replicas that the log's settings have; which log it
is, and which file, says the log, so a name is checked before a path is made of it.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.store import interruptible_wait
from nosync_nb.store.background_thread import SingleThread
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.protocol import ReadableCopy, Replica
from nosync_nb.trace import checksums

PIECE_BYTES, FIRST_BYTES = 1 << 20, 1 << 16
"""How much is asked for at once, and at first: more while it comes soon, so that who waits for a
slow link sees it come."""

_SOON_S = 1.0

Between = Callable[[int], None]

STALL_S = 10.0
"""How long a replica may give nothing before the next one is asked."""

_LOOK_S = 1.0
_GRACE_S = 0.5
_AGAIN_S, _AGAIN_MOST_S = 1.0, 60.0


class FileUnavailableError(CorruptLogError):
    """A file that a log names is not here, and nobody who answers has it whole."""

    kind = "nowhere"


Prove = Callable[[Files, str, FileReference], None]
"""Raises CorruptLogError unless a file at a path is the one that is wanted, and whole."""


def check_fetched_file(files: Files, path: str, wanted: FileReference) -> None:
    """Compares a file with what the log has of it, and every byte with its checksums.

    Of a part that only a pack names the log has nothing: it is held against itself, and against
    the pack when it is read.
    """
    with closing(files.open(path)) as file:
        size = file.size()
        if wanted.size is not None and size != wanted.size:
            raise CorruptLogError(f"'{wanted.name}' has {size} bytes, not {wanted.size}")
        for flaw in checksums.file_damage(wanted.name, file.read_at, size, wanted.digest):
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
    """Brings a file from a replica into a log's folder, over one of its name; returns its size.

    Args:
        between: called with the size of each piece, when it is here; what it raises ends it.

    Raises:
        CorruptLogError: the replica does not have it, or not whole.
        DurabilityError: the replica cannot be reached, or the file cannot be written here.
    """
    path = file_layout.file_path(folder, wanted.name)
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    try:
        size = copy(files, replica, wanted.name, wanted.size, temporary, between)
        prove(files, temporary, wanted)
        files.rename(temporary, path)
    except BaseException:
        files.unlink(temporary)
        raise
    files.sync_folder(os.path.dirname(path))
    return size


def unavailable_error(name: str, why: Iterable[str]) -> FileUnavailableError:
    """The error of a file that no replica has whole."""
    return FileUnavailableError(
        f"'{name}' is not here, and no replica has it whole: {'; '.join(why) or 'there is none'}",
        hint="it is asked for again when it is read again; bring more of the replicas back",
    )


def copy(
    files: Files,
    replica: ReadableCopy,
    name: str,
    size: int | None,
    path: str,
    between: Callable[[int], None] = lambda size: None,
) -> int:
    """Copies the first bytes of a replica's file, None: all, to a new one and syncs it.

    Raises:
        CorruptLogError: it is not there, cannot be read or is shorter.
        DurabilityError: it cannot be written.
    """
    file = files.create(path)
    try:
        done, most = 0, FIRST_BYTES
        while size is None or done < size:
            piece = most if size is None else min(most, size - done)
            began = time.monotonic()
            try:
                data = replica.read(name, done, piece)
            except NosyncError as error:
                raise CorruptLogError(f"'{name}' cannot be read there: {error}") from error
            if not data and size is None:
                break
            if not data:
                raise CorruptLogError(f"the copy of '{name}' ends at byte {done}, before {size}")
            file.append(data)
            done += len(data)
            soon = time.monotonic() - began < _SOON_S
            most = min(2 * most, PIECE_BYTES) if soon else max(most // 2, FIRST_BYTES)
            between(len(data))
        file.sync()
        return done
    finally:
        file.close()


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
            fetch_file(self._files, self._folder, wanted, replica, between=between)
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
