"""Primitives of the disk: the only module that opens, writes, syncs, lists or deletes files.

It caches nothing and has no state: `Files` is a bundle of primitives, so that a test can substitute
a faulty disk. Every file is created with mode 0600 and every folder with 0700, independent of the
umask, and all descriptors are close-on-exec. A file is opened by its name relative to its folder,
which is opened first. Neither may be a link, and the target must be a plain file. So no link leads
to another file, and no call blocks (an open of a pipe would block until a writer opens it).

Failure: every `OSError` is raised as `DurabilityError` with its `errno`, the path and a remedy.

IMPORTANT: after a failed `sync` the file must never be synced again and trusted. The kernel marks
the failed pages clean, and the next call reports success. The caller that gets the error writes the
data to a new file.

IMPORTANT: each descriptor has an owner, and is opened and closed between two bytecodes, because the
handler of a signal may raise after any call. A descriptor that is only on the stack or in a local
variable at that moment would never be closed.

Failure: 1. Several files are synced in parallel, and an exception closes one of them. 2. The system
reuses its descriptor number for another file, which is then synced instead. Therefore the caller
continues only after all steps are done. Each step refers to its file by the object, which has no
number once it is closed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.memory_map import MappedFile

THREADS_MAX = 8
"""The maximum number of steps that run in parallel. A disk combines several waiting writes, so more
threads than this do not help.
"""


def close_all(files: Iterable[File]) -> None:
    """Closes all files, and then raises the error of the first one that could not be closed."""
    with contextlib.ExitStack() as stack:
        for file in files:
            stack.callback(file.close)


def run_all(steps: Sequence[Callable[[], None]]) -> None:
    """Runs steps that wait for the disk in threads, and returns when all have finished or failed.

    Each sync waits for a write of the file system's journal. Syncs that run at the same time share
    one such write.

    Raises:
        Exception: the error of one of the steps.
    """
    failed: list[BaseException] = []

    def run_share(share_steps: Sequence[Callable[[], None]]) -> None:
        for step in share_steps:
            try:
                step()
            except BaseException as error:  # raised again in the calling thread
                failed.append(error)

    shares = [steps[i::THREADS_MAX] for i in range(min(THREADS_MAX, len(steps)))]
    threads = [threading.Thread(target=run_share, args=(share,)) for share in shares[1:]]
    try:
        for thread, share in zip(threads, shares[1:], strict=True):
            try:
                thread.start()
            except RuntimeError:  # the limit of threads is reached
                run_share(share)
        for step in shares[0] if shares else ():
            step()
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if failed:
        raise failed[0]


Answer = TypeVar("Answer")

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space, then try again",
    errno.EDQUOT: "the disk quota is used up: free some space, then try again",
    errno.EROFS: 'the file system is mounted read-only: remount it, or open with mode="r"',
    errno.EACCES: 'this user may not write here: change the permissions, or open with mode="r"',
    errno.EPERM: 'this user may not write here: change the permissions, or open with mode="r"',
    errno.EIO: "the device reports an error: check the system log, move the folder elsewhere",
    errno.ENOMEM: "out of memory: free some, then try again",
    errno.EMFILE: "too many open files: close some, or raise `ulimit -n`",
    errno.ENFILE: "too many open files in the system",
    errno.ELOOP: "there is a symbolic link in the place of a file of the log: remove it",
    errno.ENOTDIR: "there is a link or a file in the place of a folder: remove it",
    errno.EISDIR: "there is a folder in the place of a file of the log: remove it",
    errno.ENXIO: "there is a pipe or a socket in the place of a file of the log: remove it",
    errno.EFBIG: "the file is far larger than its contents: restore it from a copy",
}

_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def suppress_missing(ask: Callable[..., Answer], path: str, **how: Any) -> Answer | None:
    """Returns the result of a call on a path, or None if the path does not exist.

    A check before the call would be a second system call, and the path could appear or vanish
    between the two.
    """
    try:
        return ask(path, **how)
    except DurabilityError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def raise_durability_error(error: OSError, action: str, path: str) -> NoReturn:
    """Raises a `DurabilityError` that names the action, the file and the cause."""
    code = errno.errorcode.get(error.errno or 0, "unknown error")
    reason = (os.strerror(error.errno) if error.errno else str(error)).lower()
    raise DurabilityError(
        f"cannot {action} '{path}': {reason} ({code})",
        hint=_REMEDIES.get(error.errno or 0),
        errno=error.errno,
    ) from error


def raise_link_error(error: OSError, source: str, target: str) -> NoReturn:
    """Raises the error of a failed hard link, with a hint if the file system has no hard links."""
    if error.errno not in _NO_LINKS:
        raise_durability_error(error, "link", source)
    raise DurabilityError(
        f"cannot link '{source}' to '{target}': the file system has no hard links"
        f" ({errno.errorcode[error.errno]})",
        hint="keep the log on one local disk with ext4, xfs, btrfs or APFS",
        errno=error.errno,
    ) from error


FOLDER = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
REACHED = FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
"""Flags for opening a folder that is only the base of relative paths."""


class Descriptor:
    """Owns an open descriptor, from the system call that opens it to the one that closes it."""

    _fd = -1

    def _open(self, path: str, flags: int, folder: int | None = None) -> None:
        opened = map(partial(os.open, mode=0o600, dir_fd=folder), (path,), (flags,))
        any(map(partial(setattr, self, "_fd"), opened))

    def fileno(self) -> int:
        """Returns the descriptor, to be inherited by a child process; this object still owns it."""
        return self._fd

    def _close(self) -> None:
        if self._fd >= 0:
            any(map(os.close, map(self.__dict__.pop, ("_fd",))))

    def __del__(self) -> None:
        if self._fd >= 0:  # an exception was raised before an owner received it
            with contextlib.suppress(OSError):
                self._close()


class Folder(Descriptor):
    """Opens a folder for a `with` block, which receives its descriptor.

    Raises OSError if the path is a link or is not a folder.
    """

    def __init__(self, path: str, flags: int = FOLDER) -> None:
        self._open(path or ".", flags)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        self._close()


Buffer = bytes | bytearray | memoryview

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_LOCK_POLL_S = 0.02
_COPY_BYTES = 1 << 20
_READ_BYTES_MAX = 4 << 30


class File(Descriptor):
    """An open plain file; links, pipes, devices and folders are refused.

    Args:
        flags: the flags of `os.open`. A file that they create is accessible only to its user.
        action: the verb in the message of an error.
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
                os.fchmod(self._fd, 0o600)  # because the umask may restrict the user, too
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise_durability_error(error, action, path)
            raise

    def moved(self, path: str) -> None:
        """Records the new path after a rename."""
        self.path = path

    def append(self, data: Buffer) -> None:
        """Appends all of `data`; after an error, an unknown part of it has been written."""
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
        """Overwrites the bytes from `offset` on."""
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
        """Returns the content of a file whose size is not known in advance, as in /proc."""
        try:
            parts: list[bytes] = []
            while part := os.read(self._fd, 1 << 16):
                parts.append(part)
            return b"".join(parts)
        except OSError as error:
            raise_durability_error(error, "read", self.path)

    def sync(self) -> None:
        """Flushes content and size to the device; see the module's docstring for a failed sync."""
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
        """Returns inode, size and modification time; they differ if another file took the name."""
        status = os.fstat(self._fd)
        return status.st_ino, status.st_size, status.st_mtime_ns

    def mapped(self, *, write: bool) -> MappedFile:
        """Maps the whole file; the caller handles the errors of the mapping."""
        return MappedFile(self._fd, self.size(), self.path, write=write)

    def deleted(self) -> bool:
        """Returns True if the file has lost its last name, so that its data will be lost."""
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

    def acquire(self) -> None:
        """Locks the file; raises BlockingIOError if another process has locked it."""
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Unlocks the file before closing it, because a forked child may share the lock."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._close()

    def __del__(self) -> None:
        self.release()  # an exception was raised before an owner received it


class Files:
    """The primitives of a real POSIX disk; tests replace some of them."""

    def make_folder(self, path: str, *, sync: bool = True) -> bool:
        """Creates a folder and its parents durably; returns True if the folder is new.

        An existing path may not be a link. A parent folder may be one, because the user names it.

        Args:
            sync: if False, a power failure may lose the folder unless the caller syncs its parent.
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
                    # The umask may restrict the user, too.
                    os.chmod(name, stat.S_IRWXU, dir_fd=fd)
        except FileExistsError:
            return self.make_folder(path, sync=sync)  # another process has created it
        except OSError as error:
            raise_durability_error(error, "create the folder", path)
        if sync:
            self.sync_folder(parent)
        return True

    def temporary_folder(self, prefix: str) -> str:
        """Creates a folder in the system's temporary folder, accessible only to this user."""
        try:
            return tempfile.mkdtemp(prefix=prefix)
        except OSError as error:
            raise_durability_error(error, "create a folder in", tempfile.gettempdir())

    def remove_folder(self, path: str) -> None:
        """Deletes a folder and its contents, and ignores errors; does not follow links."""
        shutil.rmtree(path, ignore_errors=True)

    def create(self, path: str) -> File:
        """Creates a file for appending and reading; raises DurabilityError if the path exists."""
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND
        return File(path, flags, "create")

    def open(self, path: str, *, write: bool = False) -> File:
        """Opens an existing plain file for reading; with `write`, also for `write_at`."""
        return File(path, os.O_RDWR if write else os.O_RDONLY)

    def mapped(self, path: str, *, write: bool = False) -> MappedFile:
        """Maps a whole existing file; a map for reading keeps no descriptor open."""
        file = self.open(path, write=write)
        try:
            return file.mapped(write=write)
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOMEM:
                raise MemoryError(f"cannot map '{path}': out of memory") from error
            raise_durability_error(
                error if isinstance(error, OSError) else OSError(str(error)), "map", path
            )
        except TypeError:
            raise CorruptLogError(
                f"'{path}' is damaged: its size is not a multiple of 8",
                hint="restore the file from a copy",
            ) from None
        finally:
            file.close()

    def read(self, path: str, *, most: int | None = None) -> bytes:
        """Returns the content of a file.

        Args:
            most: the maximum size in bytes. A larger file is an error, so that an untrusted file
                cannot exhaust memory.
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
        """Renames a file within its folder, atomically; durable after `sync_folder`.

        An existing file of that name is replaced.
        """
        assert os.path.dirname(source) == os.path.dirname(target)
        try:
            names = os.path.basename(source), os.path.basename(target)
            with Folder(os.path.dirname(source), REACHED) as fd:
                os.replace(*names, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as error:
            raise_durability_error(error, "rename", source)

    def link(self, source: str, target: str) -> None:
        """Creates a hard link, in any folder of the same disk; durable after `sync_folder`.

        The file exists until its last name is deleted. No bytes are copied.
        """
        try:
            names = os.path.basename(source), os.path.basename(target)
            source_folder, target_folder = os.path.dirname(source), os.path.dirname(target)
            with Folder(source_folder, REACHED) as old, Folder(target_folder, REACHED) as new:
                os.link(*names, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)
        except OSError as error:
            raise_link_error(error, source, target)

    def copy(self, source: str, target: str) -> None:
        """Copies the bytes of a file into a new one, and syncs the new one."""
        with contextlib.ExitStack() as opened:
            old = opened.enter_context(contextlib.closing(self.open(source)))
            new = opened.enter_context(contextlib.closing(self.create(target)))
            for offset in range(0, old.size(), _COPY_BYTES):
                new.append(old.read_at(offset, _COPY_BYTES))
            new.sync()

    def unlink(self, path: str) -> None:
        """Deletes a file; a missing file is not an error."""
        try:
            with Folder(os.path.dirname(path), REACHED) as fd:
                os.unlink(os.path.basename(path), dir_fd=fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise_durability_error(error, "delete", path)

    def sync_folder(self, path: str) -> None:
        """Makes the names in a folder durable, after files were created, renamed or deleted."""
        try:
            with Folder(path) as fd:
                os.fsync(fd)
        except OSError as error:
            raise_durability_error(error, "sync the folder", path)

    def at_once(self, steps: Sequence[Callable[[], None]]) -> None:
        """Runs steps that wait for the disk in parallel; see `run_all`."""
        run_all(steps)

    def replace(self, path: str, data: Buffer, *, sync: bool = True, folder: bool = True) -> None:
        """Writes a whole file so that a crash leaves either the old or the new content.

        Args:
            sync: if False, only a crash of the process is covered, not a power failure.
            folder: if False, a power failure may restore the old file until the caller syncs the
                folder.
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
        """Returns the names in a folder, sorted.

        Raises an error if the folder is a link.
        """
        try:
            with Folder(path) as fd:
                return sorted(os.listdir(fd))
        except OSError as error:
            raise_durability_error(error, "list", path)

    def exists(self, path: str) -> bool:
        """Returns True if the path exists (a broken link counts).

        A disk that does not answer is an error, because its files must not be treated as missing.
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
        """Returns a key that identifies the last written content of a file under all of its names.

        None means that there is no such key; a plain disk has none.
        """
        return None

    def restrict(self, path: str) -> None:
        """Makes a folder accessible only to its owner."""
        try:
            with Folder(path) as fd:
                os.fchmod(fd, stat.S_IRWXU)
        except OSError as error:
            raise_durability_error(error, "change the permissions of", path)

    def lock(self, path: str, *, wait_s: float = 0.0) -> Lock | None:
        """Locks a file against other processes, and against other openings in this process.

        Args:
            wait_s: the seconds to wait while another holder has the lock.

        Returns:
            None if the file is still locked after `wait_s`.
        """
        lock = Lock(path, os.O_CREAT | os.O_RDWR, "create")
        deadline = time.monotonic() + wait_s
        try:
            while True:
                try:
                    lock.acquire()
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
