"""Streaming DataFrames: Spark passes on their micro-batches one by one.

Spark calls the function that takes a micro-batch in a separate thread. After the function returns,
Spark records the progress in the query's checkpoint. If the process is killed between the two, the
last micro-batch is delivered twice, with the same number.

The DataFrame of a micro-batch belongs to a copy of the user's session, which ends with the query.
So no view is created in that copy.

The checkpoint folder of a query is made as durable as the log, because Spark renames its files into
place, but does not sync them. A batch is identified by its number. So the files that determine its
rows, the offsets and the metadata of the sources, must be durable before the epoch of the batch is.
The state of a query between batches must be durable before Spark records that a batch is done.

Failure: the power fails. Files that were not synced are missing afterwards, or present and empty,
and Spark does not start with an empty entry. No epoch was committed for such a batch, so the entry
is deleted.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import Any

from nosync_nb.errors import DurabilityError, NosyncError, SchemaError
from nosync_nb.files.filesystem import Files
from nosync_nb.rows import Schema
from nosync_nb.spark import error_translation, ingest
from nosync_nb.spark.launch import Spark, is_connect, spark_location

Held = dict[str, tuple[int, int, int]]
"""The files of a folder by name: inode number, size and modification time."""

_ENTRY_BYTES_MAX = 64
"""A longer entry was written completely; each entry begins with its version and a line of JSON."""


def stream_folder_of(spark: Spark, files: Files, place: str, *, name: str) -> StreamFolder | None:
    """Returns the folder of a checkpoint location, after deleting its empty entries.

    Returns None if the location is not on a local file system.

    Args:
        place: a path or a URL from the user.
        name: the name of the input, for errors.

    Raises:
        NosyncError: if Spark cannot reach the location.
        DurabilityError: if the disk reports an error.
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
    """The checkpoint folder of one query; Spark creates it when the query starts.

    Threads: one after the other. Meanwhile Spark writes no file there that the query needs.

    Args:
        path: the absolute path, with links resolved.
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
            DurabilityError: if the disk reports an error. Then no epoch may depend on these files.

        Cost: a `stat` of each file, of which there are a few hundred, and a sync of each new file;
        the syncs run at the same time.
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
        """Syncs a file; if that fails, replaces it by a synced copy.

        The sync is not repeated, because a second sync may report success although data is lost.
        """
        try:
            file = self._files.open(path)
        except DurabilityError as error:
            if error.errno == errno.ENOENT:  # Spark deletes files that are no longer needed
                return
            raise
        try:
            file.sync()
        except DurabilityError:
            self._files.replace(path, file.read_at(0, file.size()))
        finally:
            file.close()

    def _sync_parents(self) -> None:
        """Syncs the parent folders, because Spark may have created them; ignores errors."""
        for above in PurePath(self._path).parents:
            with suppress(DurabilityError):
                self._files.sync_folder(str(above))

    def _folders(self) -> Iterator[tuple[str, Held]]:
        """Yields each folder with its entries; a subfolder is an entry with the size -1."""
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


class _MicroBatch(threading.local):
    """Records whether the current thread is processing a micro-batch."""

    on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False


handing = _MicroBatch()
"""Used as `with handing:` around the processing of a micro-batch."""


TRIGGERS = ("processingTime", "availableNow", "once")
"""The supported triggers; `continuous` is not among them, because it has no batches."""


def check_stream(frame: Any, schema: Schema, name: str, trigger: Mapping[str, Any]) -> None:
    """Checks that the batches of a DataFrame can be inserted into an input.

    Raises:
        SchemaError: if the DataFrame is not streaming or has other columns, or if the trigger is
            unknown.
        NosyncError: if the DataFrame belongs to Spark Connect.
    """
    what = f"stream into '{name}'"
    unknown = [each for each in trigger if each not in TRIGGERS]
    if unknown:
        raise SchemaError(
            f"{what}: there is no trigger {unknown[0]!r}",
            hint=f"use one of {', '.join(TRIGGERS)}",
        )
    if getattr(frame, "isStreaming", None) is not True:
        raise SchemaError(
            f"{what}: {type(frame).__name__} is not a streaming DataFrame",
            hint="create one with spark.readStream, or insert other DataFrames with insert(rows)",
        )
    if is_connect(frame.sparkSession):
        raise NosyncError(
            f"{what}: Spark Connect processes batches at its server, not in this process",
            hint="use a classic Spark session, or write files and watch() their folder",
        )
    ingest.check_columns(frame, schema, name)


def start_query(
    frame: Any,
    take: Callable[[Any, int], None],
    checkpoint: str,
    trigger: Mapping[str, Any],
    *,
    name: str,
) -> Any:
    """Starts a query that passes on its micro-batches. Returns Spark's `StreamingQuery`.

    Args:
        take: called with the rows of a batch and its number; if it raises, the query ends.
        checkpoint: the folder or URL in which Spark records the progress.
        trigger: the time of batches, as arguments of `DataStreamWriter.trigger`.
        name: the name of the input, for errors.

    Raises:
        NosyncError: if Spark rejects the query; with the reason.
    """
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    try:
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.start()
    except Exception as error:
        raise error_translation.query_error(error, f"stream into {name}") from error


def drain_batch(frame: Any) -> None:
    """Executes a micro-batch whose rows are already committed, so that the query advances."""
    frame.write.format("noop").mode("overwrite").save()
