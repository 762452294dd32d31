"""Mapping: the bytes of an open file in memory; for reading, without a descriptor that stays open.

Python's `mmap` keeps a copy of the descriptor as long as the map lives, so that a log of a thousand
packs would take a thousand of them; the system needs none. (`trackfd=False` does the same from
Python 3.13 on.) This module sees descriptors and addresses, never a path.
"""

from __future__ import annotations

import ctypes
import errno
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
_madvise = ctypes.CFUNCTYPE(_int, _address, _size, _int, use_errno=True)(
    ("madvise", ctypes.CDLL(None))
)
_PAGE = mmap.PAGESIZE
_POPULATE_READ = 22
"""Of `madvise`, from Linux 5.14 on: an error where a read would end the process by a signal."""

_held: dict[int, weakref.ref[ctypes.Array[ctypes.c_char]]] = {}
"""What is mapped for reading, by its address; each step of a dict is whole, whoever does it."""


def remaining_bytes() -> None:
    """Counts no page of files that are mapped for reading as this process's memory any more.

    They stay in that of the system as long as it has room, and are there again where they are
    touched. Cost: a call of the system for each file.
    """
    for reference in list(_held.values()):
        held = reference()  # while somebody has it, nothing else is at its address
        if held is not None:
            _madvise(ctypes.addressof(held), ctypes.sizeof(held), mmap.MADV_DONTNEED)


class Ending:
    """The end of a mapped file, which tells whether the file was cut off since it was mapped.

    Failure: another program truncates a file that is mapped. Reading behind its new end ends the
    process by a signal. Hence the last page is asked for before a read: behind the end it is an
    error, and in the page of the end there are zeros.

    Args:
        content: keeps the file mapped. The last byte of the file is not 0.
        address: where it is mapped.
    """

    __slots__ = ("_byte", "_content", "_page")

    def __init__(self, content: object, address: int, size_bytes: int) -> None:
        self._content = content
        last = address + size_bytes - 1
        self._byte = ctypes.c_ubyte.from_address(last)
        self._page = last // _PAGE * _PAGE

    def is_there(self) -> bool:
        """Returns True if the file has its length still, or the system cannot say. Cost: 1 us."""
        if _madvise(self._page, 1, _POPULATE_READ) == 0:
            return self._byte.value != 0
        return ctypes.get_errno() != errno.EFAULT


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
    weakref.finalize(held, _unmap, address, size_bytes).atexit = False
    _held[address] = weakref.ref(held)
    return memoryview(held).toreadonly().cast("B")


def _unmap(address: int, size_bytes: int) -> None:
    _held.pop(address, None)  # before the next map may have the address
    _munmap(address, size_bytes)
