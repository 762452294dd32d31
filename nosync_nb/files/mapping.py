"""Mapping: the bytes of an open file in memory; for reading, without a descriptor that stays open.

Python's `mmap` keeps a copy of the descriptor as long as the map lives, so that a log of a thousand
packs would take a thousand of them; the system needs none. (`trackfd=False` does the same from
Python 3.13 on.) This module sees descriptors and addresses, never a path.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

_PROT_READ, _MAP_SHARED = 1, 1
_FAILED = ctypes.c_void_p(-1).value

_address, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_mmap = ctypes.CFUNCTYPE(
    _address, _address, _size, _int, _int, _int, ctypes.c_ssize_t, use_errno=True
)(("mmap", ctypes.CDLL(None)))
_munmap = ctypes.CFUNCTYPE(_int, _address, _size)(("munmap", ctypes.CDLL(None)))


class MappedFile:
    """A file in memory: `words` are its 8-byte words, shared with every process that maps it.

    Args:
        fd: an open file; it can be closed afterwards.

    Raises:
        OSError: the system refuses, or the file is empty.
        TypeError: its size is no multiple of 8.
    """

    def __init__(self, fd: int, size_bytes: int, path: str, *, write: bool = False) -> None:
        if not size_bytes:
            raise OSError("it is empty")
        self.path = path
        self._written: mmap.mmap | None = None
        if write:
            self._written = mmap.mmap(fd, size_bytes, access=mmap.ACCESS_WRITE)
            self.words = memoryview(self._written).cast("Q")
        else:
            self.words = _read_only(fd, size_bytes).cast("Q")

    def close(self) -> None:
        """Unmaps, unless views of the words are left; a second call does nothing."""
        self.words.release()
        if self._written is not None:
            self._written.close()


def _read_only(fd: int, size_bytes: int) -> memoryview:
    """The bytes of a file, unmapped when no view of them is left."""
    address = _mmap(None, size_bytes, _PROT_READ, _MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    held = (ctypes.c_char * size_bytes).from_address(address)
    # Views hold `held`, and it is let go with the last of them. At the end of the process threads
    # may still read: there the system unmaps.
    weakref.finalize(held, _munmap, address, size_bytes).atexit = False
    return memoryview(held).toreadonly().cast("B")
