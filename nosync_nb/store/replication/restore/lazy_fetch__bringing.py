"""Bringing: a file that a log names, and that is not here or is not whole, from who has it whole.

It is written under another name, held against the size and the digest that the log has of it and
against its own checksums, synced, and renamed: under its name there is never anything else than
what was written. Whoever brings a file names replicas that the log's settings have; which log it
is, and which file, says the log, so a name is checked before a path is made of it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import closing

from nosync_nb.errors import CorruptLogError, NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.protocol import ReadableCopy
from nosync_nb.trace import checksums

PIECE_BYTES, FIRST_BYTES = 1 << 20, 1 << 16
"""How much is asked for at once, and at first: more while it comes soon, so that who waits for a
slow link sees it come."""

_SOON_S = 1.0


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
