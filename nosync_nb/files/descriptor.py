"""Descriptor: what the system gives for an open file, and who gives it back.

IMPORTANT: it is opened and closed between two opcodes. A signal's handler that raises comes after
any call; what only the stack or a local variable has by then would stay open for ever.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial

FOLDER = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
REACHED = FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
"""A folder that is opened only to reach what is in it."""


class Descriptor:
    """Owns an open descriptor, from the system call that gives it to the one that ends it."""

    _fd = -1

    def _open(self, path: str, flags: int, folder: int | None = None) -> None:
        opened = map(partial(os.open, mode=0o600, dir_fd=folder), (path,), (flags,))
        any(map(partial(setattr, self, "_fd"), opened))

    def fileno(self) -> int:
        """The descriptor, for a process that is started with it; it stays this object's."""
        return self._fd

    def _close(self) -> None:
        if self._fd >= 0:
            any(map(os.close, map(self.__dict__.pop, ("_fd",))))

    def __del__(self) -> None:
        if self._fd >= 0:  # nobody has it, as an exception came before it was given
            with contextlib.suppress(OSError):
                self._close()


class Folder(Descriptor):
    """The descriptor of a real folder for a `with` block; OSError if it is a link, or none."""

    def __init__(self, path: str, flags: int = FOLDER) -> None:
        self._open(path or ".", flags)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        self._close()
