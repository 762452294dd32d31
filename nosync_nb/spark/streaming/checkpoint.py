"""Makes the checkpoint folder of a streaming query as durable as the log.

Spark renames its files into place, and syncs none of them. A batch is identified by its number. So
the mapping from number to rows must be durable before the batch's epoch is: the offsets, and the
metadata of the sources. The state that a query keeps between batches must be durable before Spark
records that a batch is done.

Failure: the power fails. Files that were not synced are missing afterwards, or present and empty,
and Spark refuses to start with an empty entry. No epoch was made of such a batch, so the entry is
deleted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import PurePath

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.spark import error_translation
from nosync_nb.spark.launch import Spark, spark_location

Held = dict[str, tuple[int, int, int]]
"""The files of a folder by name: inode number, size and modification time."""

_ENTRY_BYTES_MAX = 64
"""Longer entries were written completely: each entry begins with its version and a line of JSON."""


def stream_folder_of(spark: Spark, files: Files, place: str, *, name: str) -> StreamFolder | None:
    """Returns the folder of a checkpoint location; None if it is on no disk of this machine.

    Args:
        place: a path or a URL, as the user gave it.
        name: the input's name, for errors.

    Raises:
        NosyncError: Spark cannot reach the location.
        DurabilityError: the disk refuses.
    """
    try:
        scheme, path = spark_location(spark, place)
    except Exception as error:
        raise error_translation.query_error(error, f"stream into {name}") from error
    if scheme != "file":
        return None
    made = StreamFolder(files, os.path.realpath(path))
    made.mend()
    return made


class StreamFolder:
    """The checkpoint folder of one query; it exists as soon as the query has started.

    Threads: one after the other. Meanwhile Spark writes no file there that the query needs.

    Args:
        path: absolute, with links resolved.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._synced: dict[str, Held] = {}

    def mend(self) -> None:
        """Deletes the entries that a power failure has left empty."""
        files = self._files
        if not files.exists(self._path):
            return
        for folder, held in self._folders():
            parts = os.path.relpath(folder, self._path).split(os.sep)
            if parts[0] not in (".", "offsets", "commits", "sources"):
                continue
            for name, (_, size, _) in held.items():
                path = os.path.join(folder, name)
                entry = name == "metadata" if parts == ["."] else name.split(".")[0].isdecimal()
                if entry and 0 <= size <= _ENTRY_BYTES_MAX and not files.read(path).strip(b"\0"):
                    files.unlink(path)
                    files.unlink(os.path.join(folder, f".{name}.crc"))
                    files.sync_folder(folder)

    def sync(self) -> None:
        """Syncs all files that Spark has written since the last call.

        Raises:
            DurabilityError: the disk refuses, and no epoch may depend on these files.

        Cost: a `stat` of each file, some hundred, and a sync of each new one, all at the same time.
        """
        known, now = self._synced, dict(self._folders())
        changed = [folder for folder, held in now.items() if known.get(folder) != held]
        self._files.at_once(
            [
                partial(self._sync_file, os.path.join(folder, name))
                for folder in changed
                for name, file in now[folder].items()
                if file[1] >= 0 and known.get(folder, {}).get(name) != file
            ]
        )
        self._files.at_once([partial(self._files.sync_folder, folder) for folder in changed])
        if not known:
            self._sync_parents()
        self._synced = now

    def _sync_file(self, path: str) -> None:
        """Syncs a file.

        Rewrites it if that fails, because a second sync could report a false success.
        """
        try:
            file = self._files.open(path)
        except DurabilityError as error:
            if error.errno == errno.ENOENT:  # Spark has deleted it because it is not needed
                return
            raise
        try:
            file.sync()
        except DurabilityError:
            self._files.replace(path, file.read_at(0, file.size()))
        finally:
            file.close()

    def _sync_parents(self) -> None:
        """Syncs the parent folders, which Spark may have made; ignores those of other users."""
        for above in PurePath(self._path).parents:
            with suppress(DurabilityError):
                self._files.sync_folder(str(above))

    def _folders(self) -> Iterator[tuple[str, Held]]:
        """The folders and the files in each; a subfolder has the size -1."""
        folders = [self._path]
        while folders:
            folder = folders.pop()
            held: Held = {}
            for name in self._files.names(folder):
                try:
                    status = self._files.status(os.path.join(folder, name))
                except DurabilityError as error:
                    if error.errno != errno.ENOENT:
                        raise
                    continue
                if stat.S_ISDIR(status.st_mode):
                    folders.append(os.path.join(folder, name))
                    held[name] = status.st_ino, -1, 0
                elif stat.S_ISREG(status.st_mode):
                    held[name] = status.st_ino, status.st_size, status.st_mtime_ns
            yield folder, held
