"""Copies of logs in a folder, preferably on another disk or another machine's volume.

    folder/LOG-ID/
      promise                           the fencing grant: owner term, and name of the log
      acknowledged                      the number of the last acknowledged frame
      doubtful                          segments that could not be synced, until stored again
      lock                              locked while the grant is changed
      segment-..., checkpoint-...       as in the log's own folder
      layers/, history/                 likewise

Every new file appears as a whole: it is written under another name, synced, and renamed. A segment
grows afterwards; its bytes count up to the last `sync`.

Failure: an owner is suspended, another one obtains the promise, and the first one continues. It
writes files of its own generation, or the same bytes that a segment already has, so it overwrites
nothing. Its `sync`, after which it would acknowledge, sees the new grant and refuses. A lock would
not help, because not every volume supports one.

Failure: a segment cannot be synced, and the next attempt reports success. The failed pages were
dropped from memory and are not on the disk. So the segment is recorded as doubtful, and the next
owner stores it again. Frames that were acknowledged before can still be read.

Failure: an old copy of the folder is put back while the log is open. 1. The shipper appends to an
open segment that has been moved elsewhere. 2. It acknowledges a frame that the copy does not have.
Hence `sync` compares the files at the paths with the written sizes before it acknowledges.

Failure: a volume is not mounted, and its mount point is an ordinary folder of the disk that the log
is on. So the folder of copies is created when the user names it, and never by a shipper.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import File, Files, suppress_missing
from nosync_nb.store.log import folder as log_folder
from nosync_nb.store.replication import file_layout, protocol
from nosync_nb.store.replication.protocol import FencingGrant, LogName, OwnerTerm, ReplicaHoldings
from nosync_nb.store.replication.remote_call import Beat

_LOCK_WAIT_S = 10.0
_PIECE_BYTES = 1 << 20
_ID_HEX = 32
_DOUBTFUL = "doubtful"
_NOTE_BYTES_MAX = 1 << 20
_TICK_NS = 2_000_000_000
"""The nanoseconds within which two changes of a folder may get the same change time."""


_Stamps = tuple[tuple[int, int, int], ...]
"""The device, inode, and change time in nanoseconds of each folder of a copy."""


class FolderSite:
    """A folder for the copies of logs; see `ReplicaSite`."""

    def __init__(self, folder: str, files: Files) -> None:
        self._folder, self._files = folder, files

    def prepare(self) -> bool:
        """Creates the folder of copies if its parent exists; for a branch also `branches`.

        Returns:
            True if the folder exists.
        """
        files, above = self._files, os.path.dirname(self._folder)
        below = os.path.basename(above) == file_layout.BRANCHES
        if below and not files.exists(above) and files.exists(os.path.dirname(above)):
            files.make_folder(above)
        if not files.exists(self._folder) and files.exists(above):
            files.make_folder(self._folder)
        return files.exists(self._folder)

    def logs(self, beat: Beat = lambda: None) -> dict[bytes, FencingGrant]:
        """Returns the grants of the logs that the site holds copies of, by log id."""
        present_files(self._files, self._folder)
        grants = {}
        for name in self._files.names(self._folder):
            if len(name) == _ID_HEX and set(name) <= set("0123456789abcdef"):
                beat()
                copy = os.path.join(self._folder, name)
                log_folder.is_owned_by_user(self._files, copy, write=True)
                grant = read_promise(self._files, copy)
                has_frames = any(map(file_layout.is_frames, self._files.names(copy)))
                if grant is not None and has_frames:
                    grants[bytes.fromhex(name)] = grant
        return grants

    def replica(self, log_id: bytes) -> FolderReplica:
        """Returns the copy of one log, which need not exist yet."""
        return FolderReplica(self._folder, log_id, files=self._files)


class FolderReplica:
    """The copy of one log in a folder; see `Replica`.

    Args:
        folder: the folder for the copies of several logs.
        log_id: the id of this log.
    """

    def __init__(self, folder: str, log_id: bytes, *, files: Files | None = None) -> None:
        self._files = files or Files()
        self._root = folder
        self._folder = os.path.join(folder, log_id.hex())
        self._open_segments: dict[
            str, File
        ] = {}  # segments with appended bytes that are not synced
        self._new_file: File | None = None  # the file that `store` is writing
        self._doubtful: set[str] = set()  # doubtful segments that could not be recorded
        self._incarnation = ""
        self._recorded_seq = -1  # the last acknowledged frame that was recorded; -1: unknown
        self._least_sizes: dict[str, int] = {}  # least size of each file that the shipper wrote
        self._checked_stamps: _Stamps | None = None  # stamps of the folders at the last comparison

    @property
    def folder(self) -> str:
        """The folder of this log's copy."""
        return self._folder

    def promised(self) -> OwnerTerm | None:
        """Returns the term whose writes the copy accepts; None if it has no grant."""
        grant = read_promise(self._files, self._folder)
        return grant.term if grant else None

    def promise(self, term: OwnerTerm, name: LogName) -> ReplicaHoldings:
        """Makes the copy reject all writes of earlier terms, durably; returns its files."""
        self.close()
        self._create_folders()
        lock = self._files.lock(os.path.join(self._folder, "lock"), wait_s=_LOCK_WAIT_S)
        if lock is None:
            raise DurabilityError(
                f"'{self._folder}': another owner is taking over this copy", hint="try again"
            )
        try:
            grant = read_promise(self._files, self._folder)
            grant = grant or FencingGrant(OwnerTerm(0, ""), secrets.token_hex(8), name)
            if protocol.conflicts(grant.term, term):
                raise protocol.grant_conflict_error(self._folder, grant.term)
            if (grant.term, grant.name) != (term, name):
                new_grant = FencingGrant(term, grant.incarnation, name)
                self._files.replace(
                    os.path.join(self._folder, "promise"), protocol.encode_grant(new_grant)
                )
        finally:
            lock.release()
        self._incarnation, self._recorded_seq = grant.incarnation, -1
        names = self._names()
        for path in self._unfinished(names):
            self._files.unlink(path)
        sizes = self._sizes(names)
        self._least_sizes, self._checked_stamps = dict(sizes), None
        self._sync_leftovers()  # last, because an earlier owner may write until the grant
        doubtful = self._read_doubtful()
        return ReplicaHoldings(
            grant.incarnation, {n: s for n, s in sizes.items() if n not in doubtful}
        )

    def held(self) -> ReplicaHoldings:
        """Returns the files that the copy holds."""
        grant = read_promise(self._files, self._folder)
        return (
            ReplicaHoldings(grant.incarnation, self._sizes(self._names()))
            if grant
            else ReplicaHoldings("", {})
        )

    def _names(self) -> dict[str, list[str]]:
        """Returns the names in the copy's folder, under an empty key, and in each inner folder."""
        paths = {each: os.path.join(self._folder, each) for each in file_layout.FOLDERS.values()}
        inner = {
            each: suppress_missing(self._files.names, path) or [] for each, path in paths.items()
        }
        return {"": self._files.names(self._folder), **inner}

    def _sizes(self, names: Mapping[str, Iterable[str]]) -> dict[str, int]:
        """Returns the sizes of those names that are files of the log."""
        return {
            name: self._files.status(file_layout.file_path(self._folder, name)).st_size
            for inner, each in names.items()
            for name in each
            if file_layout.branch_part(name) == inner
        }

    def store(self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool) -> None:
        """Writes the next piece of a new file, which appears, durably, with its last piece."""
        path = file_layout.file_path(self._folder, name)
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            if offset == 0:
                self._check(term)
                self._drop_new()
                self._files.unlink(temporary)
                self._new_file = self._files.create(temporary)
            new = self._new_file
            if new is None or new.path != temporary or new.size() != offset:
                raise DurabilityError(f"'{path}': a part at byte {offset} does not follow the file")
            new.append(data)
            if last:
                new.sync()
                self._check(term)
                self._drop_new()
                self._files.rename(temporary, path)
                self._files.sync_folder(os.path.dirname(path))
                self._least_sizes[name] = offset + len(data)
                self._clear_doubt(name)
        except BaseException:
            self._drop_new()
            raise

    def append(self, term: OwnerTerm, name: str, offset: int, data: bytes) -> None:
        """Appends to a segment at its end; the next `sync` makes the bytes durable."""
        file = self._open_segments.get(name)
        if file is None:
            self._check(term)
            file = self._open_segments[name] = self._files.open(
                file_layout.file_path(self._folder, name), write=True
            )
        if file.size() != offset:
            raise DurabilityError(
                f"'{file.path}' holds {file.size()} bytes, but the next part begins at byte"
                f" {offset}"
            )
        file.write_at(offset, data)
        self._least_sizes[name] = offset + len(data)

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        """Makes appended bytes durable, then checks that the term is still accepted.

        A segment that cannot be synced becomes doubtful: its durable part is unknown, and a second
        sync may falsely succeed. It will be stored again.
        """
        try:
            for name, file in self._open_segments.items():
                self._sync_segment(name, file)
                if file.deleted():
                    raise DurabilityError(f"'{file.path}' was deleted")
            self._check(term)
            self._check_paths()
            if seq is not None and seq != self._recorded_seq:
                self._acknowledge(seq)
        except BaseException:
            self.close()
            raise

    def _acknowledge(self, seq: int) -> None:
        """Records the acknowledged frame in place; a power loss may restore an earlier record.

        The earlier record must not name a later frame of an abandoned history, because the copy
        would then seem damaged. The record must not disappear either, because the copy would not
        testify in a takeover (takeover.py). So only a smaller number and the first one are synced.
        """
        before = self._recorded_seq if self._recorded_seq >= 0 else self.acknowledged()
        path = os.path.join(self._folder, "acknowledged")
        word = seq.to_bytes(8, "little")
        data = word + bytes(byte ^ 0xFF for byte in word)
        if not self._files.exists(path):
            self._files.replace(path, data)
        else:
            with closing(self._files.open(path, write=True)) as file:
                file.write_at(0, data)
                if seq < before or not before:
                    file.sync()
        self._recorded_seq = seq

    def acknowledged(self) -> int:
        """Returns the number of the last acknowledged frame.

        Returns 0 if no frame was acknowledged, and 1 if the record is torn.
        """
        path = os.path.join(self._folder, "acknowledged")
        data = suppress_missing(self._files.read, path, most=protocol.GRANT_BYTES_MAX)
        if data is None:
            return 0
        word = data[:8]
        whole = len(data) == 16 and data[8:] == bytes(byte ^ 0xFF for byte in word)
        return int.from_bytes(word, "little") if whole else 1

    def digest(self, name: str, size: int) -> bytes:
        """Returns the digest of the first `size` bytes of a file."""
        return digest(self._files, file_layout.file_path(self._folder, name), size)

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Returns `size` bytes of a file from an offset; fewer only at the end of the file."""
        with closing(self._files.open(file_layout.file_path(self._folder, name))) as file:
            return file.read_at(offset, size)

    def discard(self, term: OwnerTerm, names: Iterable[str]) -> None:
        """Deletes files of the log."""
        for name in names:
            self._check(term)
            open_ = self._open_segments.pop(name, None)
            if open_ is not None:
                open_.close()
            self._least_sizes.pop(name, None)
            self._files.unlink(file_layout.file_path(self._folder, name))

    def close(self) -> None:
        """Closes the open files of the replica."""
        self._drop_new()
        while self._open_segments:
            self._open_segments.popitem()[1].close()

    def _create_folders(self) -> None:
        """Creates the folder of this copy; the folder for all copies must exist already."""
        present_files(self._files, self._root)
        self._files.make_folder(self._folder)
        log_folder.is_owned_by_user(self._files, self._folder, write=True)
        for inner in file_layout.FOLDERS.values():
            self._files.make_folder(os.path.join(self._folder, inner))

    def _check(self, term: OwnerTerm) -> None:
        grant = read_promise(self._files, self._folder)
        if grant is None or grant.incarnation != self._incarnation:
            raise self._replaced_error()
        if grant.term != term:
            raise protocol.grant_conflict_error(self._folder, grant.term)

    def _check_paths(self) -> None:
        """Checks that the paths lead to the files that were written.

        The names are listed again only if a folder has changed, because a sync follows each epoch.

        Cost: three system calls, plus one for each open segment.
        """
        for name, file in self._open_segments.items():
            status = self._files.status(file.path)
            if status.st_ino != file.stamp()[0] or status.st_size < self._least_sizes[name]:
                raise self._replaced_error()
        stamps = self._stamps()
        if stamps == self._checked_stamps:
            return
        self._checked_stamps = None
        sizes = self._sizes(self._names())
        if any(sizes.get(name, -1) < size for name, size in self._least_sizes.items()):
            raise self._replaced_error()
        if max(changed for *_, changed in stamps) < time.time_ns() - _TICK_NS:
            self._checked_stamps = stamps

    def _stamps(self) -> _Stamps:
        """Returns the stamps of the copy's folders; a stamp changes if a name in it is replaced."""
        inner = (os.path.join(self._folder, each) for each in file_layout.FOLDERS.values())
        statuses = map(self._files.status, (self._folder, *inner))
        return tuple((each.st_dev, each.st_ino, each.st_ctime_ns) for each in statuses)

    def _replaced_error(self) -> DurabilityError:
        return DurabilityError(
            f"'{self._folder}' was replaced by another copy",
            hint="wait: the next attempt fills it again",
        )

    def _unfinished(self, names: Mapping[str, Iterable[str]]) -> list[str]:
        """Returns the paths of files that a dead shipper left incomplete."""
        return [
            os.path.join(self._folder, inner, name)
            for inner, each in names.items()
            for name in each
            if name.endswith(".tmp") and file_layout.is_file(name.rsplit(".", 2)[0])
        ]

    def _sync_leftovers(self) -> None:
        """Syncs segments and folders that another process may have changed before it died.

        Failure: 1. A file is renamed, and its shipper dies before the folder is synced. 2. The next
        shipper sees the file, and acknowledges. 3. The power fails, and the name is lost.
        """
        inner = (os.path.join(self._folder, each) for each in file_layout.FOLDERS.values())
        for folder in (os.path.dirname(self._root), self._root, self._folder, *inner):
            for name in self._files.names(folder) if folder == self._folder else ():
                if file_layout.is_segment(name):
                    path = file_layout.file_path(self._folder, name)
                    with closing(self._files.open(path)) as file:
                        self._sync_segment(name, file)
            self._files.sync_folder(folder)

    # -- doubt -------------------------------------------------------------------------------

    def _sync_segment(self, name: str, file: File) -> None:
        """Syncs a segment; if that fails, the segment is recorded as doubtful first."""
        try:
            file.sync()
        except DurabilityError:
            self._mark_doubtful(name)
            raise

    def _mark_doubtful(self, name: str) -> None:
        """Records a segment as doubtful; if that fails, deletes it."""
        try:
            self._write_doubtful({*self._read_doubtful(), name})
        except DurabilityError:
            self._doubtful.add(name)
            with suppress(DurabilityError):
                self._files.unlink(file_layout.file_path(self._folder, name))

    def _clear_doubt(self, name: str) -> None:
        """Removes a file from the doubtful ones, because it was stored again."""
        self._doubtful.discard(name)
        doubtful = self._read_doubtful() if file_layout.is_segment(name) else ()
        if name in doubtful:
            self._write_doubtful({*doubtful} - {name})

    def _read_doubtful(self) -> set[str]:
        """Returns the doubtful segments; all segments if the record of doubtful ones is damaged."""
        path = os.path.join(self._folder, _DOUBTFUL)
        data = suppress_missing(self._files.read, path, most=_NOTE_BYTES_MAX)
        names = (data or b"").decode("ascii", "replace").split()
        if not all(map(file_layout.is_segment, names)):
            names = list(filter(file_layout.is_segment, self._files.names(self._folder)))
        return self._doubtful.union(names)

    def _write_doubtful(self, names: Iterable[str]) -> None:
        path, text = os.path.join(self._folder, _DOUBTFUL), "\n".join(sorted(names))
        self._files.replace(path, text.encode())

    def _drop_new(self) -> None:
        new, self._new_file = self._new_file, None
        if new is not None:
            new.close()


def present_files(files: Files, folder: str) -> None:
    """Raises DurabilityError unless the folder of copies exists."""
    if not files.exists(folder):
        raise DurabilityError(f"'{folder}' does not exist", hint="mount its disk, or create it")


def digest(files: Files, path: str, size: int) -> bytes:
    """Returns the digest of the first `size` bytes of a file, or of the whole file if shorter."""
    hasher = hashlib.blake2b(digest_size=16)
    with closing(files.open(path)) as file:
        done = 0
        while done < size:
            data = file.read_at(done, min(_PIECE_BYTES, size - done))
            if not data:
                break
            hasher.update(data)
            done += len(data)
    return hasher.digest()


def read_promise(files: Files, folder: str) -> FencingGrant | None:
    """Returns the grant of a copy; None if it has none.

    Raises:
        CorruptLogError: the grant is damaged.
    """
    data = suppress_missing(
        files.read, os.path.join(folder, "promise"), most=protocol.GRANT_BYTES_MAX
    )
    return None if data is None else protocol.decode_grant(data, folder)
