"""Maps operating system errors to `DurabilityError`, with the cause and a remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from nosync_nb.errors import DurabilityError

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

    It needs one system call instead of two, so the path cannot appear or vanish between them.
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
