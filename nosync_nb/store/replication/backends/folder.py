"""Folder replica: copies of logs in a folder, best on another disk or another machine's volume.

    folder/LOG-ID/
      promise                           to which term, and what people call the log
      acknowledged                      up to which frame, as far as its disk was told
      doubtful                          segments that could not be synced, until stored anew
      lock                              held while a promise is made
      segment-..., checkpoint-...       as in the log's own folder
      layers/, history/                 likewise

Every new file appears as a whole: written under another name, synced, renamed. A segment grows
afterwards, and counts as far as `sync` was called.

Failure: an owner is stopped, another one is promised, the first one goes on. What it writes are
files of its own generation, or the bytes that stand there anyway, so nothing is overwritten; and
`sync`, after which it would acknowledge, sees the promise and refuses. A lock would not do: not
every volume has one.

Failure: a segment cannot be synced, and the next try says that it can: what had failed was dropped
from memory and is not on the disk. So it is written down that the segment is in doubt, and who is
promised next stores it anew. What was acknowledged before can still be read.

Failure: an old copy of the folder is put back while the log is open. 1. The shipper appends to a
segment that it has open, and that lies elsewhere by now. 2. It acknowledges a frame that the copy
does not have. Hence `sync` compares what the paths lead to with what was written, before it
acknowledges anything.

Failure: a volume is not mounted, and its mount point is an ordinary folder of the disk that the
log is on. So the folder of copies is made when the user names it, and never by who ships.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.files.os_errors import suppress_missing
from nosync_nb.store.log import folder as log_folder
from nosync_nb.store.replication import fencing_grant as promises
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.fencing_grant import FencingGrant
from nosync_nb.store.replication.protocol import LogName, OwnerTerm, ReplicaHoldings
from nosync_nb.store.replication.remote_call import Beat

_LOCK_WAIT_S = 10.0
_PIECE_BYTES = 1 << 20
_ID_HEX = 32
_DOUBTFUL = "doubtful"
_NOTE_BYTES_MAX = 1 << 20
_TICK_NS = 2_000_000_000
"""Two changes of a folder within so many nanoseconds may have one time of change."""


_Stamps = tuple[tuple[int, int, int], ...]
"""Of folders: the device, the number, and the time of the last change in nanoseconds."""


class FolderSite:
    """A folder that is there already; see `ReplicaSite`."""

    def __init__(self, folder: str, files: Files) -> None:
        self._folder, self._files = folder, files

    def prepare(self) -> bool:
        """Makes the folder of copies if the one above is there; that of a branch's with it."""
        files, above = self._files, os.path.dirname(self._folder)
        below = os.path.basename(above) == file_layout.BRANCHES
        if below and not files.exists(above) and files.exists(os.path.dirname(above)):
            files.make_folder(above)
        if not files.exists(self._folder) and files.exists(above):
            files.make_folder(self._folder)
        return files.exists(self._folder)

    def logs(self, beat: Beat = lambda: None) -> dict[bytes, FencingGrant]:
        """The logs of which it holds something, by their ids."""
        present_files(self._files, self._folder)
        promises = {}
        for name in self._files.names(self._folder):
            if len(name) == _ID_HEX and set(name) <= set("0123456789abcdef"):
                beat()
                copy = os.path.join(self._folder, name)
                log_folder.is_owned_by_user(self._files, copy, write=True)
                said = read_promise(self._files, copy)
                begun = any(map(file_layout.is_frames, self._files.names(copy)))
                if said is not None and begun:
                    promises[bytes.fromhex(name)] = said
        return promises

    def replica(self, log_id: bytes) -> FolderReplica:
        """The copy of one log, whether there is one yet or not."""
        return FolderReplica(self._folder, log_id, files=self._files)


class FolderReplica:
    """The copy of one log in a folder; see `Replica`.

    Args:
        folder: where copies of several logs may be.
        log_id: of this one.
    """

    def __init__(self, folder: str, log_id: bytes, *, files: Files | None = None) -> None:
        self._files = files or Files()
        self._root = folder
        self._folder = os.path.join(folder, log_id.hex())
        self._open: dict[str, File] = {}  # segments that were appended to and are not synced
        self._new: File | None = None  # the file that `store` is in the middle of
        self._doubtful: set[str] = set()  # segments in doubt that could not even be noted
        self._incarnation = ""
        self._seq = -1  # what it noted last
        self._written: dict[str, int] = {}  # what the files hold at least, by the shipper's calls
        self._compared: _Stamps | None = None  # of the folders when they had all of that

    @property
    def folder(self) -> str:
        """Where the files of this log's copy lie."""
        return self._folder

    def promised(self) -> OwnerTerm | None:
        """The term it has promised itself to; None if it holds nothing of the log."""
        said = read_promise(self._files, self._folder)
        return said.term if said else None

    def promise(self, term: OwnerTerm, name: LogName) -> ReplicaHoldings:
        """Takes nothing of an earlier term from now on, which is on its disk."""
        self.close()
        self._make()
        lock = self._files.lock(os.path.join(self._folder, "lock"), wait_s=_LOCK_WAIT_S)
        if lock is None:
            raise DurabilityError(
                f"'{self._folder}' is being promised to somebody else", hint="try again"
            )
        try:
            said = read_promise(self._files, self._folder)
            said = said or FencingGrant(OwnerTerm(0, ""), secrets.token_hex(8), name)
            if promises.conflicts(said.term, term):
                raise promises.grant_conflict_error(self._folder, said.term)
            if (said.term, said.name) != (term, name):
                made = FencingGrant(term, said.incarnation, name)
                self._files.replace(
                    os.path.join(self._folder, "promise"), promises.encode_grant(made)
                )
        finally:
            lock.release()
        self._incarnation, self._seq = said.incarnation, -1
        names = self._names()
        for path in self._unfinished(names):
            self._files.unlink(path)
        held = self._sizes(names)
        self._written, self._compared = dict(held), None
        self._settle()  # afterwards: what an earlier owner adds meanwhile is not known to be synced
        doubtful = self._doubts()
        return ReplicaHoldings(
            said.incarnation, {n: s for n, s in held.items() if n not in doubtful}
        )

    def held(self) -> ReplicaHoldings:
        """What it holds."""
        said = read_promise(self._files, self._folder)
        return (
            ReplicaHoldings(said.incarnation, self._sizes(self._names()))
            if said
            else ReplicaHoldings("", {})
        )

    def _names(self) -> dict[str, list[str]]:
        """What is in its folder and in the inner ones, by their names."""
        paths = {
            each: file_layout.temporary_name(self._folder, each)
            for each in file_layout.FOLDERS.values()
        }
        inner = {
            each: suppress_missing(self._files.names, path) or [] for each, path in paths.items()
        }
        return {"": self._files.names(self._folder), **inner}

    def _sizes(self, names: Mapping[str, Iterable[str]]) -> dict[str, int]:
        """The sizes of the files of the log, where `_names` found them."""
        return {
            name: self._files.status(file_layout.file_path(self._folder, name)).st_size
            for inner, each in names.items()
            for name in each
            if file_layout.branch_part(name) == inner
        }

    def store(self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool) -> None:
        """A piece of a new file, in order; with the last one it is there, on disk, as a whole."""
        path = file_layout.file_path(self._folder, name)
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            if offset == 0:
                self._check(term)
                self._drop_new()
                self._files.unlink(temporary)
                self._new = self._files.create(temporary)
            new = self._new
            if new is None or new.path != temporary or new.size() != offset:
                raise DurabilityError(f"'{path}': a piece at byte {offset} follows nothing")
            new.append(data)
            if last:
                new.sync()
                self._check(term)
                self._drop_new()
                self._files.rename(temporary, path)
                self._files.sync_folder(os.path.dirname(path))
                self._written[name] = offset + len(data)
                self._believe(name)
        except BaseException:
            self._drop_new()
            raise

    def append(self, term: OwnerTerm, name: str, offset: int, data: bytes) -> None:
        """Goes on with a segment from its end; on disk with the next `sync`."""
        file = self._open.get(name)
        if file is None:
            self._check(term)
            file = self._open[name] = self._files.open(
                file_layout.file_path(self._folder, name), write=True
            )
        if file.size() != offset:
            raise DurabilityError(
                f"'{file.path}' holds {file.size()} bytes, and byte {offset} was to follow"
            )
        file.write_at(offset, data)
        self._written[name] = offset + len(data)

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        """Brings to disk what was appended; then it is known that the term still holds.

        A segment that cannot be synced is in doubt, as nobody knows how much of it is on the disk,
        and a second try lies: it is stored anew.
        """
        try:
            for name, file in self._open.items():
                self._bring(name, file)
                if file.deleted():
                    raise DurabilityError(f"'{file.path}' was deleted")
            self._check(term)
            self._compare()
            if seq is not None and seq != self._seq:
                self._acknowledge(seq)
        except BaseException:
            self.close()
            raise

    def _acknowledge(self, seq: int) -> None:
        """Notes a frame in place; after a loss of power it may be an earlier one.

        It must not be a later one, of a history that was left: that would make the copy damaged.
        Nor none if there was one: it would be no witness of what it has (voting.py).
        """
        before = self._seq if self._seq >= 0 else self.acknowledged()
        path = file_layout.temporary_name(self._folder, "acknowledged")
        word = seq.to_bytes(8, "little")
        data = word + bytes(byte ^ 0xFF for byte in word)
        if not self._files.exists(path):
            self._files.replace(path, data)
        else:
            file = self._files.open(path, write=True)
            try:
                file.write_at(0, data)
                if seq < before or not before:
                    file.sync()
            finally:
                file.close()
        self._seq = seq

    def acknowledged(self) -> int:
        """The frame up to which it can be read for sure, 1 if that is torn; 0 if it had none."""
        path = file_layout.temporary_name(self._folder, "acknowledged")
        data = suppress_missing(self._files.read, path, most=promises.BYTES_MAX)
        if data is None:
            return 0
        word = data[:8]
        whole = len(data) == 16 and data[8:] == bytes(byte ^ 0xFF for byte in word)
        return int.from_bytes(word, "little") if whole else 1

    def digest(self, name: str, size: int) -> bytes:
        """The digest of the first bytes of a file."""
        return digest(self._files, file_layout.file_path(self._folder, name), size)

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Some bytes of a file; fewer only at its end."""
        file = self._files.open(file_layout.file_path(self._folder, name))
        try:
            return file.read_at(offset, size)
        finally:
            file.close()

    def discard(self, term: OwnerTerm, names: Iterable[str]) -> None:
        """Deletes files of the log."""
        for name in names:
            self._check(term)
            open_ = self._open.pop(name, None)
            if open_ is not None:
                open_.close()
            self._written.pop(name, None)
            self._files.unlink(file_layout.file_path(self._folder, name))

    def close(self) -> None:
        """Gives back what it holds open."""
        self._drop_new()
        while self._open:
            self._open.popitem()[1].close()

    def _make(self) -> None:
        """Makes the folder of the copy; that of all copies is the user's to make."""
        present_files(self._files, self._root)
        self._files.make_folder(self._folder)
        log_folder.is_owned_by_user(self._files, self._folder, write=True)
        for inner in file_layout.FOLDERS.values():
            self._files.make_folder(file_layout.temporary_name(self._folder, inner))

    def _check(self, term: OwnerTerm) -> None:
        said = read_promise(self._files, self._folder)
        if said is None or said.incarnation != self._incarnation:
            raise self._replaced()
        if said.term != term:
            raise promises.grant_conflict_error(self._folder, said.term)

    def _compare(self) -> None:
        """Checks that the paths lead to what was written.

        The names are listed again only if a folder has changed, because a sync follows each epoch.

        Cost: a call of the system for each segment that is open, and three.
        """
        for name, file in self._open.items():
            status = self._files.status(file.path)
            if status.st_ino != file.stamp()[0] or status.st_size < self._written[name]:
                raise self._replaced()
        stamps = self._stamps()
        if stamps == self._compared:
            return
        self._compared = None
        held = self._sizes(self._names())
        if any(held.get(name, -1) < size for name, size in self._written.items()):
            raise self._replaced()
        if max(changed for *_, changed in stamps) < time.time_ns() - _TICK_NS:
            self._compared = stamps

    def _stamps(self) -> _Stamps:
        """What changes when a folder of the copy is replaced, or a name in it."""
        inner = (
            file_layout.temporary_name(self._folder, each) for each in file_layout.FOLDERS.values()
        )
        statuses = map(self._files.status, (self._folder, *inner))
        return tuple((each.st_dev, each.st_ino, each.st_ctime_ns) for each in statuses)

    def _replaced(self) -> DurabilityError:
        return DurabilityError(
            f"'{self._folder}' is not the copy any more that it was",
            hint="it is filled anew at the next try",
        )

    def _unfinished(self, names: Mapping[str, Iterable[str]]) -> list[str]:
        """What a shipper that died was in the middle of, of what `_names` found."""
        return [
            os.path.join(self._folder, inner, name)
            for inner, each in names.items()
            for name in each
            if name.endswith(".tmp") and file_layout.is_file(name.rsplit(".", 2)[0])
        ]

    def _settle(self) -> None:
        """Brings to disk what another process may have written and not synced before it died.

        Failure: 1. A file is renamed, and who shipped it dies before the folder is synced. 2. The
        next one sees that it is there, and acknowledges. 3. The power goes, and the name with it.
        """
        inner = (
            file_layout.temporary_name(self._folder, each) for each in file_layout.FOLDERS.values()
        )
        for folder in (os.path.dirname(self._root), self._root, self._folder, *inner):
            for name in self._files.names(folder) if folder == self._folder else ():
                if file_layout.is_segment(name):
                    file = self._files.open(file_layout.file_path(self._folder, name))
                    try:
                        self._bring(name, file)
                    finally:
                        file.close()
            self._files.sync_folder(folder)

    # -- doubt -------------------------------------------------------------------------------

    def _bring(self, name: str, file: File) -> None:
        """Brings a segment to disk; if it cannot be, that is noted first of all."""
        try:
            file.sync()
        except DurabilityError:
            self._doubt(name)
            raise

    def _doubt(self, name: str) -> None:
        """Notes that a segment is in doubt, for whoever comes; else it is not to be there."""
        try:
            self._note({*self._doubts(), name})
        except DurabilityError:
            self._doubtful.add(name)
            with suppress(DurabilityError):
                self._files.unlink(file_layout.file_path(self._folder, name))

    def _believe(self, name: str) -> None:
        """Takes a file out of doubt, which was stored anew."""
        self._doubtful.discard(name)
        doubtful = self._doubts() if file_layout.is_segment(name) else ()
        if name in doubtful:
            self._note({*doubtful} - {name})

    def _doubts(self) -> set[str]:
        """The segments in doubt; all, if the note of them is damaged."""
        path = file_layout.temporary_name(self._folder, _DOUBTFUL)
        data = suppress_missing(self._files.read, path, most=_NOTE_BYTES_MAX)
        names = (data or b"").decode("ascii", "replace").split()
        if not all(map(file_layout.is_segment, names)):
            names = list(filter(file_layout.is_segment, self._files.names(self._folder)))
        return self._doubtful.union(names)

    def _note(self, names: Iterable[str]) -> None:
        """Writes down which segments are in doubt."""
        path, text = file_layout.temporary_name(self._folder, _DOUBTFUL), "\n".join(sorted(names))
        self._files.replace(path, text.encode())

    def _drop_new(self) -> None:
        new, self._new = self._new, None
        if new is not None:
            new.close()


def present_files(files: Files, folder: str) -> None:
    """Raises DurabilityError unless the folder of copies is there."""
    if not files.exists(folder):
        raise DurabilityError(f"'{folder}' is not there", hint="mount its disk, or make it")


def digest(files: Files, path: str, size: int) -> bytes:
    """The digest of the first `size` bytes of a file, or of all if it is shorter."""
    made = hashlib.blake2b(digest_size=16)
    file = files.open(path)
    try:
        done = 0
        while done < size:
            data = file.read_at(done, min(_PIECE_BYTES, size - done))
            if not data:
                break
            made.update(data)
            done += len(data)
    finally:
        file.close()
    return made.digest()


def read_promise(files: Files, folder: str) -> FencingGrant | None:
    """Returns what a copy has promised; None if there is none.

    Raises:
        CorruptLogError: the file is damaged.
    """
    data = suppress_missing(
        files.read, file_layout.temporary_name(folder, "promise"), most=promises.BYTES_MAX
    )
    return None if data is None else promises.decode_grant(data, folder)
