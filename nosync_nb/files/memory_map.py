"""Maps the bytes of an open file into memory; a map for reading keeps no descriptor open.

Python's `mmap` duplicates the descriptor for the life of the map, so a log of a thousand packs
would take a thousand descriptors. The system call needs none. (`trackfd=False` does the same from
Python 3.13 on.) This module handles descriptors and addresses, never a path.
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
"""Advice for `madvise`, available from Linux 5.14 on. It reports an error where a read would end
the process with a signal.
"""

_maps: dict[int, weakref.ref[ctypes.Array[ctypes.c_char]]] = {}
"""The maps for reading, by address. Every operation on this dict is atomic, in any thread."""


def drop_mapped_pages() -> None:
    """Releases the resident pages of all files that are mapped for reading.

    Afterwards the pages do not count as memory of this process. They stay in the page cache of the
    system while it has room, and are mapped again at the next access.

    Cost: one system call for each file.
    """
    for reference in list(_maps.values()):
        mapped = reference()  # this reference keeps the map alive, so the address is not reused
        if mapped is not None:
            _madvise(ctypes.addressof(mapped), ctypes.sizeof(mapped), mmap.MADV_DONTNEED)


class FileEnd:
    """The end of a mapped file: detects whether the file was truncated after it was mapped.

    Failure: 1. Another program truncates a mapped file. 2. A read beyond its new end ends the
    process with a signal. Therefore the last page is requested before a read: beyond the end the
    request is an error, and within the page of the end the bytes are zeros.

    Args:
        content: an object that keeps the file mapped. The last byte of the file must not be 0.
        address: the address of the first byte of the map.
    """

    __slots__ = ("_byte", "_content", "_page")

    def __init__(self, content: object, address: int, size_bytes: int) -> None:
        self._content = content
        last = address + size_bytes - 1
        self._byte = ctypes.c_ubyte.from_address(last)
        self._page = last // _PAGE * _PAGE

    def is_there(self) -> bool:
        """Returns True if the file is not truncated, or if the system cannot tell.

        Cost: 1 us.
        """
        if _madvise(self._page, 1, _POPULATE_READ) == 0:
            return self._byte.value != 0
        return ctypes.get_errno() != errno.EFAULT


class MappedFile:
    """A file in memory: `words` are its 8-byte words, shared with every process that maps it.

    Args:
        fd: the descriptor of an open file; it may be closed after the call.

    Raises:
        OSError: the system cannot map the file, or the file is empty.
        TypeError: the size of the file is not a multiple of 8.
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
        """Unmaps the file, unless views of the words remain; a second call does nothing."""
        self.words.release()
        if self._written is not None:
            self._written.close()


def _read_only(fd: int, size_bytes: int) -> memoryview:
    """Maps a file for reading; it is unmapped when its last view is deleted."""
    address = _mmap(None, size_bytes, _PROT_READ, _MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    mapped = (ctypes.c_char * size_bytes).from_address(address)
    # Views reference `mapped`, so the finalizer runs after the last of them. It does not run at the
    # end of the process, because threads may still read; the system unmaps then.
    weakref.finalize(mapped, _unmap, address, size_bytes).atexit = False
    _maps[address] = weakref.ref(mapped)
    return memoryview(mapped).toreadonly().cast("B")


def _unmap(address: int, size_bytes: int) -> None:
    _maps.pop(address, None)  # removed first, because the next map may get this address
    _munmap(address, size_bytes)
