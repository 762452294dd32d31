"""Repairs a damaged or missing file of a log with a verified copy from a replica.

    fetched under another name -> verified by the log's records -> synced
    the bad file copied to `quarantine/` -> renamed over it -> the folder synced

Only immutable files are repaired. At any moment the name leads to the bad file or to an intact one.
A crash leaves at most a file with a unique name, which the next opening deletes. A process that has
mapped the bad file keeps it; a process that opens the name gets the good one.

If two processes repair a file at once, as the keeper and a session may, each writes a verified
copy.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import NamedTuple

from nosync_nb.errors import DurabilityError, NosyncError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.store.log import folder as log_folder
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.endpoints import open_copy
from nosync_nb.store.replication.remote_call import Beat, call_remote, copy_file
from nosync_nb.store.verification.verify import ImmutableFile

QUARANTINE = "quarantine"
QUARANTINE_BYTES = 256 << 20
"""The newest bad files are retained up to this total size; a larger one is not retained."""

_PIECE = 1 << 20


class RepairedFile(NamedTuple):
    """A repaired file: the replica's URL, the damage (`why`), and the retained bad file, if any."""

    name: str
    url: str
    why: str
    kept: str | None = None

    def __str__(self) -> str:
        retained = f"; the damaged file is '{self.kept}'" if self.kept else ""
        return f"'{self.name}' was damaged ({self.why}): repaired from {self.url}{retained}"


def damage_reason(
    files: Files, folder: str, item: ImmutableFile, counted: Callable[[int], None]
) -> str:
    """Returns the damage of a file of a log; empty if the file is intact."""
    return damage_at(files, file_layout.file_path(folder, item.name), item, counted)


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
    """Replaces a file with a verified copy; returns None if no answering replica has one.

    Args:
        why: the damage of the file.
        check: raises if this log has another owner; called right before anything is changed.

    Raises:
        DurabilityError: the local disk cannot be written.
    """
    path = file_layout.file_path(folder, item.name)
    for address in replicas:
        temporary = f"{path}.{secrets.token_hex(4)}.tmp"
        try:
            try:
                copy = partial(_copy_replica_file, files, address, log_id, item, temporary)
                call_remote(address.url, copy)
            except NosyncError:
                continue
            if damage_at(files, temporary, item):
                continue
            check()
            retained = _quarantined(files, folder, item.name)
            files.rename(temporary, path)
            files.sync_folder(os.path.dirname(path))
            return RepairedFile(item.name, address.url, why, retained)
        finally:
            with suppress(DurabilityError):
                files.unlink(temporary)
    return None


def damage_at(
    files: Files,
    path: str,
    item: ImmutableFile,
    counted: Callable[[int], None] = lambda count: None,
) -> str:
    """Returns the damage of a log's file that is at any path; empty if the file is intact."""
    try:
        return item.prove(files, path, counted)
    except NosyncError as error:
        return str(error)


def _copy_replica_file(
    files: Files, address: ReplicaAddress, log_id: bytes, item: ImmutableFile, path: str, beat: Beat
) -> None:
    """Copies the bytes of a replica's file that belong to the log to a new file, and syncs it."""
    with open_copy(address, files, log_id) as replica:
        beat()
        copy_file(files, replica, item.name, item.size, path, beat)


# -- quarantine ----------------------------------------------------------------------------------


def _quarantined(files: Files, folder: str, name: str) -> str | None:
    """Copies the readable bytes of a bad file to the quarantine; returns their path.

    Returns None if the file is missing, is too large, or cannot be copied.
    """
    source = file_layout.file_path(folder, name)
    where = os.path.join(folder, QUARANTINE)
    try:
        if not files.exists(source) or files.status(source).st_size > QUARANTINE_BYTES:
            return None
        log_folder.path_inside(files, where, write=True)
        _make_room(files, where, files.status(source).st_size)
        name_in_quarantine = f"{name}.{secrets.token_hex(4)}"
        with (
            closing(files.open(source)) as bad,
            closing(files.create(os.path.join(where, name_in_quarantine))) as copy,
        ):
            for data in _readable_bytes(bad):
                copy.append(data)
        return os.path.join(QUARANTINE, name_in_quarantine)
    except NosyncError:
        return None  # a repair must succeed even if the bad file cannot be retained


def _readable_bytes(file: File) -> Iterable[bytes]:
    """Yields the bytes of a file, with zeros in place of unreadable pieces."""
    size = file.size()
    for at in range(0, size, _PIECE):
        try:
            yield file.read_at(at, min(_PIECE, size - at))
        except DurabilityError:
            yield bytes(min(_PIECE, size - at))


def _make_room(files: Files, where: str, size: int) -> None:
    """Deletes the oldest files of a quarantine until `size` more bytes fit."""
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
