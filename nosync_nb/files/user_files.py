"""Reads user files whose paths match a pattern, and never changes them.

These files are not part of a log: they may be anywhere, may be links, and may be written while they
are read. Therefore the state of each file has a mark, which changes when the file is written.
Anything that is not a plain file is skipped, because a read of a pipe would block for ever.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

PART_BYTES = 1 << 23
"""The number of bytes per read. After each read the caller is notified, and may be interrupted."""


class FileMark(NamedTuple):
    """Identifies a state of a file without reading it.

    Attributes:
        changed_ns: the modification time in nanoseconds since 1970.
    """

    size_bytes: int
    changed_ns: int
    inode: int


def matching_files(pattern: str) -> dict[str, FileMark]:
    """Returns the plain files that match a pattern, by path, in order of their paths.

    Args:
        pattern: a pattern as in a shell, with `**` for nested folders; a leading dot of a name must
            be written out.

    Cost: a listing of the folders, and one stat of each file.
    """
    marks = {}
    for path in sorted(glob.glob(pattern, recursive=True)):
        try:
            status = os.stat(path)
        except OSError:  # deleted meanwhile, or a broken link
            continue
        if stat.S_ISREG(status.st_mode):
            marks[path] = _mark(status)
    return marks


def file_content(path: str, mark: FileMark, read: Callable[[int], None]) -> bytes | None:
    """Returns the content of a file; None if the file has changed since its mark.

    The mark is checked before and after the read.

    Args:
        read: called after each read with its number of bytes.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _mark(os.fstat(file)) != mark:
            return None
        parts = []
        while part := os.read(file, PART_BYTES):
            parts.append(part)
            read(len(part))
        return b"".join(parts) if _mark(os.fstat(file)) == mark else None
    finally:
        os.close(file)


def glob_root(pattern: str) -> str:
    """Returns the folder before the first wildcard of a pattern."""
    folders = pattern.split(os.sep)
    fixed = next((i for i, each in enumerate(folders) if glob.has_magic(each)), len(folders) - 1)
    return os.sep.join(folders[:fixed]) or (os.sep if os.path.isabs(pattern) else os.curdir)


def _mark(status: os.stat_result) -> FileMark:
    return FileMark(status.st_size, status.st_mtime_ns, status.st_ino)
