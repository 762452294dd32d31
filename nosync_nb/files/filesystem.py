"""The disk: the only module that opens, writes, syncs, renames, lists, maps or deletes files.

It is not a cache and keeps no state of its own: `Files` is a bundle of primitives, so that a
test can put a faulty disk in its place. Everything is created with mode 0600 (folders 0700),
whatever the umask, and close-on-exec. A file is reached by its name in its folder, which is opened
first: neither may be a link, and what is opened must be a plain file. So nothing is followed to
another place, and nothing hangs (a pipe would, until somebody writes).

Failure: every `OSError` leaves as `DurabilityError` with its `errno`, the path and a remedy.
IMPORTANT: after a failed `sync` the file must never be synced again and believed: the kernel
marks the failed pages clean and the next call reports success. Whoever gets the error writes
the data to a new file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Sequence

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files import best_effort
from nosync_nb.files.descriptor import REACHED, Descriptor, Folder
from nosync_nb.files.memory_map import MappedFile
from nosync_nb.files.os_errors import raise_durability_error, refuse_symlink

Buffer = bytes | bytearray | memoryview

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_LOCK_POLL_S = 0.02
_COPY_BYTES = 1 << 20
_READ_BYTES_MAX = 4 << 30


class File(Descriptor):
    """An open plain file; `append` and `sync` are the two steps a log lives on.

    Args:
        flags: for the system; whatever else stands there (a link, a pipe, a device, a folder) is
            an error at once. What they create is this user's alone.
    """

    def __init__(self, path: str, flags: int, action: str = "open") -> None:
        self.path = path
        try:
            with Folder(os.path.dirname(path), REACHED) as folder:
                self._open(os.path.basename(path), flags | _FLAGS, folder)
            mode = os.fstat(self._fd).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO, "")
            if flags & os.O_CREAT and stat.S_IMODE(mode) != 0o600:
                os.fchmod(self._fd, 0o600)  # the umask took from the user as well
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise_durability_error(error, action, path)
            raise

    def moved(self, path: str) -> None:
        """Notes that it was renamed."""
        self.path = path

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
            raise_durability_error(error, "write", self.path)

    def write_at(self, offset: int, data: Buffer) -> None:
        """Overwrites bytes in place."""
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._fd, memoryview(data)[done:], offset + done)
        except OSError as error:
            raise_durability_error(error, "write", self.path)

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns up to `size` bytes from `offset`; fewer only at the end of the file."""
        if size > _READ_BYTES_MAX:
            raise_durability_error(OSError(errno.EFBIG, ""), "read", self.path)
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
            raise_durability_error(error, "read", self.path)
        except MemoryError:
            raise_durability_error(OSError(errno.ENOMEM, ""), "read", self.path)

    def read_all(self) -> bytes:
        """Returns what a file of unknown size (in /proc) holds."""
        try:
            parts: list[bytes] = []
            while part := os.read(self._fd, 1 << 16):
                parts.append(part)
            return b"".join(parts)
        except OSError as error:
            raise_durability_error(error, "read", self.path)

    def sync(self) -> None:
        """Brings content and size to the device; see the module's warning for failures."""
        try:
            if _FULL_SYNC is not None:
                fcntl.fcntl(self._fd, _FULL_SYNC)
            else:
                os.fdatasync(self._fd)
        except OSError as error:
            raise_durability_error(error, "sync", self.path)

    def size(self) -> int:
        """Returns the size in bytes."""
        return os.fstat(self._fd).st_size

    def stamp(self) -> tuple[int, int, int]:
        """Returns what changes when another file takes its name: number, size, time of change."""
        status = os.fstat(self._fd)
        return status.st_ino, status.st_size, status.st_mtime_ns

    def mapped(self, *, write: bool) -> MappedFile:
        """Maps all of it; what can go wrong is left to the caller."""
        return MappedFile(self._fd, self.size(), self.path, write=write)

    def deleted(self) -> bool:
        """Tells whether the file has lost its last name: what is written to it is lost."""
        try:
            return os.fstat(self._fd).st_nlink == 0
        except OSError as error:
            raise_durability_error(error, "look at", self.path)

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        try:
            self._close()
        except OSError as error:
            raise_durability_error(error, "close", self.path)


class Lock(File):
    """An advisory lock on a file, held until `release`."""

    def take(self) -> None:
        """Locks it; BlockingIOError if somebody else has."""
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Unlocks explicitly, so that a forked child cannot keep the lock by its copy."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._close()

    def __del__(self) -> None:
        self.release()  # nobody has it, as an exception came before it was given


class Files:
    """The primitives on a real POSIX disk. A test replaces them one by one."""

    def make_folder(self, path: str, *, sync: bool = True) -> bool:
        """Creates a folder (and its parents) durably; returns whether it was new.

        What stands there may not be a link; a folder above may, as it is the user's to name.

        Args:
            sync: without it the folder itself may go with the power, unless somebody syncs the one
                that it is in.
        """
        parent, name = os.path.split(os.path.abspath(path))
        try:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                return False
            raise_durability_error(NotADirectoryError(errno.ENOTDIR, ""), "create the folder", path)
        except FileNotFoundError:
            pass
        except NotADirectoryError as error:
            raise_durability_error(error, "create the folder", path)
        parent = os.path.realpath(parent)
        self.make_folder(parent)
        try:
            with Folder(parent, REACHED) as fd:
                os.mkdir(name, 0o700, dir_fd=fd)
                if stat.S_IMODE(os.lstat(name, dir_fd=fd).st_mode) != stat.S_IRWXU:
                    os.chmod(name, stat.S_IRWXU, dir_fd=fd)  # the umask took from the user as well
        except FileExistsError:
            return self.make_folder(path, sync=sync)  # another process was faster
        except OSError as error:
            raise_durability_error(error, "create the folder", path)
        if sync:
            self.sync_folder(parent)
        return True

    def temporary_folder(self, prefix: str) -> str:
        """Makes a folder for this user alone where the system keeps what is temporary."""
        try:
            return tempfile.mkdtemp(prefix=prefix)
        except OSError as error:
            raise_durability_error(error, "create a folder in", tempfile.gettempdir())

    def remove_folder(self, path: str) -> None:
        """Deletes a folder with all in it, as far as possible; follows no link."""
        shutil.rmtree(path, ignore_errors=True)

    def create(self, path: str) -> File:
        """Creates a new file for appending (and reading); an existing one is an error."""
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND
        return File(path, flags, "create")

    def open(self, path: str, *, write: bool = False) -> File:
        """Opens an existing plain file for reading, or for `write_at`."""
        return File(path, os.O_RDWR if write else os.O_RDONLY)

    def mapped(self, path: str, *, write: bool = False) -> MappedFile:
        """Maps a whole existing file; for reading, that keeps no descriptor open."""
        file = self.open(path, write=write)
        try:
            return file.mapped(write=write)
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOMEM:
                raise MemoryError(f"there is no memory to map '{path}'") from error
            raise_durability_error(
                error if isinstance(error, OSError) else OSError(str(error)), "map", path
            )
        except TypeError:
            raise CorruptLogError(
                f"'{path}' is damaged: its size is no multiple of 8",
                hint="restore the file from a copy",
            ) from None
        finally:
            file.close()

    def read(self, path: str, *, most: int | None = None) -> bytes:
        """Returns the content of a file.

        Args:
            most: a file of more bytes is an error, so that nobody's file takes all memory.
        """
        file = self.open(path)
        try:
            size = file.size()
            if most is not None and size > most:
                raise_durability_error(OSError(errno.EFBIG, ""), "read", path)
            return file.read_at(0, size) if size else file.read_all()
        finally:
            file.close()

    def rename(self, source: str, target: str) -> None:
        """Renames in a folder, atomically, over an existing file; durable after `sync_folder`."""
        assert os.path.dirname(source) == os.path.dirname(target)
        try:
            names = os.path.basename(source), os.path.basename(target)
            with Folder(os.path.dirname(source), REACHED) as fd:
                os.replace(*names, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as error:
            raise_durability_error(error, "rename", source)

    def link(self, source: str, target: str) -> None:
        """Gives a file one more name, in any folder of its disk; durable after `sync_folder`.

        It is there until the last of its names is deleted. No bytes are copied.
        """
        try:
            names = os.path.basename(source), os.path.basename(target)
            there, here = os.path.dirname(source), os.path.dirname(target)
            with Folder(there, REACHED) as old, Folder(here, REACHED) as new:
                os.link(*names, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)
        except OSError as error:
            refuse_symlink(error, source, target)

    def copy(self, source: str, target: str) -> None:
        """Copies the bytes of a file into a new one, and syncs them."""
        with contextlib.ExitStack() as opened:
            old = opened.enter_context(contextlib.closing(self.open(source)))
            new = opened.enter_context(contextlib.closing(self.create(target)))
            for offset in range(0, old.size(), _COPY_BYTES):
                new.append(old.read_at(offset, _COPY_BYTES))
            new.sync()

    def unlink(self, path: str) -> None:
        """Deletes a file; one that is not there is no error."""
        try:
            with Folder(os.path.dirname(path), REACHED) as fd:
                os.unlink(os.path.basename(path), dir_fd=fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise_durability_error(error, "delete", path)

    def sync_folder(self, path: str) -> None:
        """Makes the names in a folder durable."""
        try:
            with Folder(path) as fd:
                os.fsync(fd)
        except OSError as error:
            raise_durability_error(error, "sync the folder", path)

    def at_once(self, steps: Sequence[Callable[[], None]]) -> None:
        """Does what waits for the disk, all of it at the same time; see `several.at_once`."""
        best_effort.run_all(steps)

    def replace(self, path: str, data: Buffer, *, sync: bool = True, folder: bool = True) -> None:
        """Writes a whole file so that after a crash the old or the new content is there.

        Args:
            sync: without it that holds for a killed process only, not for a loss of power.
            folder: without it a loss of power may bring the old one back until the caller has
                synced the folder.
        """
        temporary = f"{path}.{os.getpid()}.tmp"
        self.unlink(temporary)
        file = self.create(temporary)
        try:
            file.append(data)
            if sync:
                file.sync()
            file.close()
            self.rename(temporary, path)
        except DurabilityError:
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        if sync and folder:
            self.sync_folder(os.path.dirname(path))

    def names(self, path: str) -> list[str]:
        """Returns the names in a folder, sorted; one that is a link is not listed."""
        try:
            with Folder(path) as fd:
                return sorted(os.listdir(fd))
        except OSError as error:
            raise_durability_error(error, "list", path)

    def exists(self, path: str) -> bool:
        """Tells whether there is something of that name (a broken link counts).

        A disk that does not answer is an error: what it holds must not be taken for missing.
        """
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise_durability_error(error, "look at", path)
        return True

    def status(self, path: str) -> os.stat_result:
        """Returns owner, mode and size without following links."""
        try:
            return os.lstat(path)
        except OSError as error:
            raise_durability_error(error, "look at", path)

    def identity(self, path: str) -> tuple[int, ...] | None:
        """Tells a file, as it was last written, from all others by any name; None: cannot."""
        return None

    def restrict(self, path: str) -> None:
        """Leaves a folder to its owner alone."""
        try:
            with Folder(path) as fd:
                os.fchmod(fd, stat.S_IRWXU)
        except OSError as error:
            raise_durability_error(error, "change the permissions of", path)

    def lock(self, path: str, *, wait_s: float = 0.0) -> Lock | None:
        """Locks a file against other processes and other openings of it; None: it is taken."""
        lock = Lock(path, os.O_CREAT | os.O_RDWR, "create")
        deadline = time.monotonic() + wait_s
        try:
            while True:
                try:
                    lock.take()
                    return lock
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        lock.release()
                        return None
                    time.sleep(_LOCK_POLL_S)
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise_durability_error(error, "lock", path)
            raise
