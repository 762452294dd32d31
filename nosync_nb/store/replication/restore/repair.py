"""Mending: a verified copy of a replica in the place of a file that is damaged or gone.

    fetched under another name -> proven by what the log knows of it -> synced
    the bad one copied to `quarantine/` -> renamed over it -> the folder synced

Only files that do not change any more are mended. At any moment the name leads to the bad file or
to a whole one; a crash leaves at most a file with a name of its own, which the next opening
removes. Whoever has the bad one mapped goes on with that; who opens it gets the good one.

Two who mend one file at a time, as the keeper and a session, each put a proven copy there.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from nosync_nb.errors import DurabilityError, NosyncError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.store.log import folder as log_folder
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.remote_call import Beat, call_remote
from nosync_nb.store.replication.restore.lazy_fetch import copy
from nosync_nb.store.verification.inventory import ImmutableFile

QUARANTINE = "quarantine"
QUARANTINE_BYTES = 256 << 20
"""Bad files are kept up to so many bytes together, the newest; a larger one is not kept."""

_PIECE = 1 << 20


class RepairedFile(NamedTuple):
    """A file that was put in place: from which replica, why, and where the bad one is, if kept."""

    name: str
    url: str
    why: str
    kept: str | None = None

    def __str__(self) -> str:
        kept = f"; what was there is '{self.kept}'" if self.kept else ""
        return f"'{self.name}' was damaged ({self.why}): repaired from {self.url}{kept}"


def damage_reason(
    files: Files, folder: str, item: ImmutableFile, counted: Callable[[int], None]
) -> str:
    """What is wrong with a file of a log; empty: nothing."""
    try:
        return item.prove(files, file_layout.file_path(folder, item.name), counted)
    except NosyncError as error:
        return str(error)


def repair_file(
    files: Files,
    folder: str,
    item: ImmutableFile,
    why: str,
    replicas: Sequence[ReplicaAddress],
    log_id: bytes,
    *,
    check: Callable[[], None] = lambda: None,
) -> RepairedFile | None:
    """Puts a proven copy in the place of a file; None if no replica that answers has one.

    Args:
        why: what is wrong with it.
        check: raises if this log is somebody else's by now; right before anything is changed.

    Raises:
        DurabilityError: this disk refuses.
    """
    path = file_layout.file_path(folder, item.name)
    for address in replicas:
        temporary = f"{path}.{secrets.token_hex(4)}.tmp"
        try:
            try:
                call_remote(address.url, _Fetch(files, address, log_id, item, temporary))
            except NosyncError:
                continue
            if damage_at(files, temporary, item):
                continue
            check()
            kept = _kept(files, folder, item.name)
            files.rename(temporary, path)
            files.sync_folder(os.path.dirname(path))
            return RepairedFile(item.name, address.url, why, kept)
        finally:
            with suppress(DurabilityError):
                files.unlink(temporary)
    return None


def damage_at(files: Files, path: str, item: ImmutableFile) -> str:
    """What is wrong with a copy of a file, which lies at a path."""
    try:
        return item.prove(files, path, lambda count: None)
    except NosyncError as error:
        return str(error)


class _Fetch:
    """Copies the bytes of a replica's file that count to a new one, and syncs it."""

    def __init__(
        self, files: Files, address: ReplicaAddress, log_id: bytes, item: ImmutableFile, path: str
    ) -> None:
        self._files, self._address, self._log_id = files, address, log_id
        self._item, self._path = item, path

    def __call__(self, beat: Beat) -> None:
        replica = connect_site(self._address, self._files).replica(self._log_id)
        try:
            beat()
            copy(self._files, replica, self._item.name, self._item.size, self._path, beat)
        finally:
            replica.close()


# -- quarantine ----------------------------------------------------------------------------------


def _kept(files: Files, folder: str, name: str) -> str | None:
    """Keeps a copy of a bad file, as far as it can be read; returns its name, if it is kept."""
    source = file_layout.file_path(folder, name)
    where = os.path.join(folder, QUARANTINE)
    try:
        if not files.exists(source) or files.status(source).st_size > QUARANTINE_BYTES:
            return None
        log_folder.path_inside(files, where, write=True)
        _make_room(files, where, files.status(source).st_size)
        kept = f"{name}.{secrets.token_hex(4)}"
        with (
            closing(files.open(source)) as bad,
            closing(files.create(os.path.join(where, kept))) as copy,
        ):
            for data in _readable(bad):
                copy.append(data)
        return os.path.join(QUARANTINE, kept)
    except NosyncError:
        return None  # it is for people to look at, and keeps nothing from being mended


def _readable(file: File) -> Iterable[bytes]:
    """The bytes of a file; zeros for what cannot be read."""
    size = file.size()
    for at in range(0, size, _PIECE):
        try:
            yield file.read_at(at, min(_PIECE, size - at))
        except DurabilityError:
            yield bytes(min(_PIECE, size - at))


def _make_room(files: Files, where: str, size: int) -> None:
    """Deletes the oldest files of a quarantine until there is room for one more."""
    ages = []
    for name in files.names(where):
        status = files.status(os.path.join(where, name))
        ages.append((status.st_mtime_ns, name, status.st_size))
    total = sum(each for *_, each in ages)
    for _, name, each in sorted(ages):
        if total + size <= QUARANTINE_BYTES:
            return
        files.unlink(os.path.join(where, name))
        total -= each
