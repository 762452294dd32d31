"""The disk: the only module that opens, writes, syncs, renames, lists, maps or deletes files.

It is not a cache and keeps no state of its own: `Files` is a bundle of primitives, so that a
test can put a faulty disk in its place. Everything is created with mode 0600 (folders 0700),
close-on-exec and without following links.

Failure: every `OSError` leaves as `DurabilityError` with its `errno`, the path and a remedy.
IMPORTANT: after a failed `sync` the file must never be synced again and believed: the kernel
marks the failed pages clean and the next call reports success. Whoever gets the error writes
the data to a new file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import time
from typing import NoReturn

from nosync_nb.errors import CorruptLogError, DurabilityError

Buffer = bytes | bytearray | memoryview

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_LOCK_POLL_S = 0.02

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space, then try again",
    errno.EDQUOT: "the disk quota is used up: free some space, then try again",
    errno.EROFS: 'the file system is mounted read-only: remount it, or open with mode="r"',
    errno.EACCES: 'this user may not write here: change the permissions, or open with mode="r"',
    errno.EPERM: 'this user may not write here: change the permissions, or open with mode="r"',
    errno.EIO: "the device reports an error: look at the system log, move the folder elsewhere",
    errno.EMFILE: "too many open files: close some, or raise `ulimit -n`",
    errno.ENFILE: "too many open files in the system",
    errno.ELOOP: "a link stands where a file of the log belongs: remove it",
}


def fail(error: OSError, action: str, path: str) -> NoReturn:
    """Raises the `DurabilityError` that says what could not be done to which file, and why."""
    code = errno.errorcode.get(error.errno or 0, "unknown error")
    reason = (os.strerror(error.errno) if error.errno else str(error)).lower()
    failure = DurabilityError(
        f"cannot {action} '{path}': {reason} ({code})", hint=_REMEDIES.get(error.errno or 0)
    )
    failure.errno = error.errno  # not `filename`: it would change how the error reads
    raise failure from error


class File:
    """An open file; `append` and `sync` are the two steps a log lives on."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd, self.path = fd, path

    def append(self, data: Buffer) -> None:
        """Writes all of `data` at the end; after an error an unknown part of it is there."""
        try:
            done = os.write(self._fd, data)
            while done < len(data):
                count = os.write(self._fd, memoryview(data)[done:])
                if not count:
                    raise OSError(errno.EIO, "nothing was written")
                done += count
        except OSError as error:
            fail(error, "write", self.path)

    def write_at(self, offset: int, data: Buffer) -> None:
        """Overwrites bytes in place."""
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._fd, memoryview(data)[done:], offset + done)
        except OSError as error:
            fail(error, "write", self.path)

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns up to `size` bytes from `offset`; fewer only at the end of the file."""
        try:
            data = os.pread(self._fd, size, offset)
            if not data or len(data) == size:
                return data
            parts, done = [data], len(data)
            while done < size and (data := os.pread(self._fd, size - done, offset + done)):
                parts.append(data)
                done += len(data)
            return b"".join(parts)
        except OSError as error:
            fail(error, "read", self.path)

    def read_all(self) -> bytes:
        """Returns what a file of unknown size (in /proc) holds."""
        try:
            parts: list[bytes] = []
            while part := os.read(self._fd, 1 << 16):
                parts.append(part)
            return b"".join(parts)
        except OSError as error:
            fail(error, "read", self.path)

    def sync(self) -> None:
        """Brings content and size to the device; see the module's warning for failures."""
        try:
            if _FULL_SYNC is not None:
                fcntl.fcntl(self._fd, _FULL_SYNC)
            else:
                os.fdatasync(self._fd)
        except OSError as error:
            fail(error, "sync", self.path)

    def size(self) -> int:
        """Returns the size in bytes."""
        return os.fstat(self._fd).st_size

    def deleted(self) -> bool:
        """Tells whether the file has lost its last name: what is written to it is lost."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:
                fail(error, "close", self.path)


class Map:
    """A file in memory: `words` are its 8-byte words, shared with every process that maps it."""

    def __init__(self, mapped: mmap.mmap, path: str) -> None:
        self._mapped, self.path = mapped, path
        self.words: memoryview = memoryview(mapped).cast("Q")

    def close(self) -> None:
        """Unmaps; a second call does nothing."""
        self.words.release()
        self._mapped.close()


class Lock:
    """An advisory lock on a file, held until `release`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Unlocks explicitly, so that a forked child cannot keep the lock by its copy."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


class Files:
    """The primitives on a real POSIX disk. A test replaces them one by one."""

    def make_folder(self, path: str) -> bool:
        """Creates a folder (and its parents) durably; returns whether it was new."""
        if os.path.isdir(path):
            return False
        parent = os.path.dirname(os.path.abspath(path))
        self.make_folder(parent)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if os.path.isdir(path):
                return False
            fail(NotADirectoryError(errno.ENOTDIR, ""), "create the folder", path)
        except OSError as error:
            fail(error, "create the folder", path)
        self.sync_folder(parent)
        return True

    def create(self, path: str) -> File:
        """Creates a new file for appending (and reading); an existing one is an error."""
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | _FLAGS
            return File(os.open(path, flags, 0o600), path)
        except OSError as error:
            fail(error, "create", path)

    def open(self, path: str, *, write: bool = False) -> File:
        """Opens an existing file for reading, or for `write_at`."""
        try:
            return File(os.open(path, (os.O_RDWR if write else os.O_RDONLY) | _FLAGS), path)
        except OSError as error:
            fail(error, "open", path)

    def mapped(self, path: str, *, write: bool = False) -> Map:
        """Maps a whole existing file."""
        file = self.open(path, write=write)
        try:
            access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
            return Map(mmap.mmap(file._fd, 0, access=access), path)
        except (OSError, ValueError) as error:
            fail(error if isinstance(error, OSError) else OSError(str(error)), "map", path)
        except TypeError:
            raise CorruptLogError(
                f"'{path}' is damaged: its size is no multiple of 8",
                hint="restore the file from a copy",
            ) from None
        finally:
            file.close()

    def read(self, path: str) -> bytes:
        """Returns the content of a file."""
        file = self.open(path)
        try:
            return file.read_at(0, file.size()) if file.size() else file.read_all()
        finally:
            file.close()

    def rename(self, source: str, target: str) -> None:
        """Renames atomically, over an existing file as well; durable after `sync_folder`."""
        try:
            os.replace(source, target)
        except OSError as error:
            fail(error, "rename", source)

    def unlink(self, path: str) -> None:
        """Deletes a file; one that is not there is no error."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            fail(error, "delete", path)

    def sync_folder(self, path: str) -> None:
        """Makes the names in a folder durable."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            fail(error, "sync the folder", path)

    def replace(self, path: str, data: Buffer) -> None:
        """Writes a whole file so that after a crash the old or the new content is there."""
        temporary = f"{path}.{os.getpid()}.tmp"
        self.unlink(temporary)
        file = self.create(temporary)
        try:
            file.append(data)
            file.sync()
            file.close()
            self.rename(temporary, path)
        except DurabilityError:
            with contextlib.suppress(OSError):
                file.close()
                self.unlink(temporary)
            raise
        self.sync_folder(os.path.dirname(path))

    def names(self, path: str) -> list[str]:
        """Returns the names in a folder, sorted."""
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            fail(error, "list", path)

    def exists(self, path: str) -> bool:
        """Tells whether there is something of that name (a broken link counts)."""
        return os.path.lexists(path)

    def status(self, path: str) -> os.stat_result:
        """Returns owner, mode and size without following links."""
        try:
            return os.lstat(path)
        except OSError as error:
            fail(error, "look at", path)

    def restrict(self, path: str) -> None:
        """Leaves a folder to its owner alone."""
        try:
            os.chmod(path, stat.S_IRWXU)
        except OSError as error:
            fail(error, "change the permissions of", path)

    def lock(self, path: str, *, wait_s: float = 0.0) -> Lock | None:
        """Locks a file against other processes and other openings of it; None: it is taken."""
        try:
            fd = os.open(path, os.O_CREAT | os.O_RDWR | _FLAGS, 0o600)
        except OSError as error:
            fail(error, "create", path)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return Lock(fd)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    return None
                time.sleep(_LOCK_POLL_S)
            except OSError as error:
                os.close(fd)
                fail(error, "lock", path)

    def free_bytes(self, path: str) -> int:
        """Returns the space that is left to this user."""
        try:
            usage = os.statvfs(path)
        except OSError as error:
            fail(error, "look at", path)
        return usage.f_bavail * usage.f_frsize
