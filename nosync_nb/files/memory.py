"""Memory: how much of it this process may still take, and giving back what it does not use.

What was freed stays with the allocators of C and of Arrow, for whoever asks next. After a load that
is several times what the session goes on with, and nobody else on the machine can have it.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

import pyarrow as pa

from nosync_nb.files.filesystem import Files

_SYSTEM = "/proc/meminfo"
_GROUPS = (  # limit, use and details of a container, in either version of cgroups
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)

UNKNOWN = 1 << 62
"""Where the system does not say: as if there were no end."""


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Of glibc; other libraries have none."""


def release_memory() -> None:
    """Gives the system the memory that is free in this process.

    Cost: some 10 ms for each 100 MB; other threads that need memory wait for part of it.
    """
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)


def free_bytes() -> int:
    """Memory that can be taken without anything being swapped or ended. Cost: some 0.1 ms."""
    known = [_field(_SYSTEM, "MemAvailable:", 1024), *(_left(*paths) for paths in _GROUPS)]
    return min((each for each in known if each is not None), default=UNKNOWN)


def _left(limit: str, used: str, details: str) -> int | None:
    """What a container has left, what it caches of files included; None if it has no limit."""
    most, taken = _number(limit), _number(used)
    if most is None or taken is None:
        return None
    return max(most - taken + (_field(details, "inactive_file ", 1) or 0), 0)


def _number(path: str) -> int | None:
    with suppress(OSError, ValueError):  # "max" is no number: there is no limit
        return int(Files().read(path))
    return None


def _field(path: str, name: str, unit: int) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Files().read(path).decode().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * unit
    return None
