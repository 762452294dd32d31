"""File descriptors with an owner that closes each of them.

IMPORTANT: a descriptor is opened and closed between two bytecodes, because the handler of a signal
may raise after any call. A descriptor that is only on the stack or in a local variable at that
moment would never be closed.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial

FOLDER = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY
REACHED = FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
"""Flags to open a folder only as the base of its entries."""


class Descriptor:
    """Owns an open descriptor, from the system call that opens it to the one that closes it."""

    _fd = -1

    def _open(self, path: str, flags: int, folder: int | None = None) -> None:
        opened = map(partial(os.open, mode=0o600, dir_fd=folder), (path,), (flags,))
        any(map(partial(setattr, self, "_fd"), opened))

    def fileno(self) -> int:
        """Returns the descriptor, for a child process that inherits it.

        This object still owns it.
        """
        return self._fd

    def _close(self) -> None:
        if self._fd >= 0:
            any(map(os.close, map(self.__dict__.pop, ("_fd",))))

    def __del__(self) -> None:
        if self._fd >= 0:  # an exception was raised before an owner received it
            with contextlib.suppress(OSError):
                self._close()


class Folder(Descriptor):
    """The descriptor of a real folder for a `with` block.

    Raises OSError if the path is a link or no folder.
    """

    def __init__(self, path: str, flags: int = FOLDER) -> None:
        self._open(path or ".", flags)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        self._close()
