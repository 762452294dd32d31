"""A disk that defers syncs until everything is written, and then runs all of them in parallel.

It is for a folder that is renamed when it is complete. Until then no reader opens the folder. So
its files may reach the disk in any order before the rename. The creation of a log needs only a
third of the syncs in this way, and they run in parallel.

Failure: 1. A sync fails, and the kernel marks the pages clean. 2. Another descriptor of the file is
opened later, and its sync reports success. Therefore each file with a deferred sync stays open from
the moment at which the sync is deferred.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from nosync_nb.files.filesystem import Buffer, File, Files, Lock, close_all
from nosync_nb.files.memory_map import MappedFile


class GroupSyncFiles(Files):
    """A disk that defers `sync` and `sync_folder` until `sync_deferred`; for use by one thread.

    Owns the files and the paths of folders whose sync is deferred. These files are kept open.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._unsynced: dict[str, File] = {}
        self._folders: set[str] = set()

    def sync_deferred(self, *, apart: str | None = None) -> None:
        """Runs every deferred sync, of files and folders, in parallel.

        Args:
            apart: a folder that is not synced, because the caller renames a folder in it and syncs
                it afterwards.

        Raises:
            DurabilityError: one of the syncs failed; the written files must not be used.
        """
        folders = sorted(self._folders - {apart}, key=lambda path: (-path.count(os.sep), path))
        steps: list[Callable[[], None]] = [file.sync for file in self._unsynced.values()]
        self._files.at_once([*steps, *(partial(self._files.sync_folder, each) for each in folders)])
        self.close()

    def close(self) -> None:
        """Closes the files with a deferred sync, whether it was run or not."""
        unsynced, self._unsynced, self._folders = self._unsynced, {}, set()
        close_all(unsynced.values())

    def owe(self, path: str) -> None:
        """Records that a file must be synced, and keeps it open until then."""
        if path not in self._unsynced:
            self._unsynced[path] = self._files.open(path)

    def sync_folder(self, path: str) -> None:
        self._folders.add(path)

    def make_folder(self, path: str, *, sync: bool = True) -> bool:
        created = self._files.make_folder(path, sync=False)
        if created and sync:
            self._folders.add(os.path.dirname(path))
        return created

    def create(self, path: str) -> File:
        return _DeferredSyncFile(self._files.create(path), self.owe)

    def open(self, path: str, *, write: bool = False) -> File:
        return _DeferredSyncFile(self._files.open(path, write=write), self.owe)

    def mapped(self, path: str, *, write: bool = False) -> MappedFile:
        return self._files.mapped(path, write=write)

    def rename(self, source: str, target: str) -> None:
        self._files.rename(source, target)
        unsynced = self._unsynced.pop(source, None)
        self._forget(target)
        if unsynced is not None:
            unsynced.moved(target)
            self._unsynced[target] = unsynced

    def link(self, source: str, target: str) -> None:
        self._files.link(source, target)

    def unlink(self, path: str) -> None:
        self._files.unlink(path)
        self._forget(path)

    def _forget(self, path: str) -> None:
        unsynced = self._unsynced.pop(path, None)
        if unsynced is not None:
            unsynced.close()

    def names(self, path: str) -> list[str]:
        return self._files.names(path)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def status(self, path: str) -> os.stat_result:
        return self._files.status(path)

    def restrict(self, path: str) -> None:
        self._files.restrict(path)

    def lock(self, path: str, *, wait_s: float = 0.0) -> Lock | None:
        return self._files.lock(path, wait_s=wait_s)


class _DeferredSyncFile(File):
    """An open file whose `sync` is deferred."""

    def __init__(self, file: File, owe: Callable[[str], None]) -> None:
        self.path = file.path
        self._file, self._owe = file, owe

    def fileno(self) -> int:
        return self._file.fileno()

    def moved(self, path: str) -> None:
        self.path = path
        self._file.moved(path)

    def append(self, data: Buffer) -> None:
        self._file.append(data)

    def write_at(self, offset: int, data: Buffer) -> None:
        self._file.write_at(offset, data)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._file.read_at(offset, size)

    def read_all(self) -> bytes:
        return self._file.read_all()

    def sync(self) -> None:
        self._owe(self.path)

    def size(self) -> int:
        return self._file.size()

    def stamp(self) -> tuple[int, int, int]:
        return self._file.stamp()

    def mapped(self, *, write: bool) -> MappedFile:
        return self._file.mapped(write=write)

    def deleted(self) -> bool:
        return self._file.deleted()

    def close(self) -> None:
        self._file.close()
