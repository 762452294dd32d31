"""Files of users that a pattern names. They are read, and never changed.

They are not of a log: they may lie anywhere and be links, and somebody may be writing them. So a
file has a mark, by which one that was written since is known, and what is no plain file (a pipe, on
which a read would wait for ever) is not looked at.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

PART_BYTES = 1 << 23
"""So much is read at once; between two parts whoever asked is told, and may be interrupted."""


class FileMark(NamedTuple):
    """What a file is known by without being read; `changed_ns` since 1970."""

    size_bytes: int
    changed_ns: int
    inode: int


def matching_files(pattern: str) -> dict[str, FileMark]:
    """The plain files that a pattern names, by path, in order of their paths.

    Args:
        pattern: as a shell's, `**` for folders in folders; a leading dot has to be written out.

    Cost: a listing of the folders, a look at each file.
    """
    marks = {}
    for path in sorted(glob.glob(pattern, recursive=True)):
        try:
            seen = os.stat(path)
        except OSError:  # gone meanwhile, or a link that leads nowhere
            continue
        if stat.S_ISREG(seen.st_mode):
            marks[path] = _mark(seen)
    return marks


def file_content(path: str, mark: FileMark, read: Callable[[int], None]) -> bytes | None:
    """All of a file; None if it is not the marked one any more, also when it has been read.

    Args:
        read: told how many bytes more were read.

    Raises:
        OSError: it cannot be read.
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
    """The folder before the first part of a pattern that stands for several."""
    folders = pattern.split(os.sep)
    fixed = next((i for i, each in enumerate(folders) if glob.has_magic(each)), len(folders) - 1)
    return os.sep.join(folders[:fixed]) or (os.sep if os.path.isabs(pattern) else os.curdir)


def _mark(seen: os.stat_result) -> FileMark:
    return FileMark(seen.st_size, seen.st_mtime_ns, seen.st_ino)
