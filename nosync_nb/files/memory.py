"""Measures the memory available to this process, and returns unused memory to the system.

The allocators of C and of Arrow retain freed memory for later requests. A load may need several
times the memory of the session's state. No other process could use that memory after the load.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

import pyarrow as pa

from nosync_nb.files.filesystem import Files

_SYSTEM = "/proc/meminfo"
_GROUPS = (  # paths of a container's limit, usage and statistics: cgroups v2, then v1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)

UNKNOWN = 1 << 62
"""The result if the system reports no limit: effectively unlimited."""


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""The function of glibc that returns free memory to the system; None with other C libraries."""


def release_memory() -> None:
    """Returns free memory of this process to the system.

    Cost: about 10 ms for each 100 MB. Other threads that allocate memory wait for part of this
    time.
    """
    pa.default_memory_pool().release_unused()
    if _trim is not None:
        _trim(0)


def free_bytes() -> int:
    """Returns the bytes that can be allocated before the system swaps or ends a process.

    Cost: about 0.1 ms.
    """
    limits = [
        _read_field(_SYSTEM, "MemAvailable:", 1024),
        *(_container_bytes(*paths) for paths in _GROUPS),
    ]
    return min((each for each in limits if each is not None), default=UNKNOWN)


def _container_bytes(limit: str, used: str, details: str) -> int | None:
    """Returns the free bytes of a container, including reclaimable cache; None without a limit."""
    most, taken = _read_number(limit), _read_number(used)
    if most is None or taken is None:
        return None
    return max(most - taken + (_read_field(details, "inactive_file ", 1) or 0), 0)


def _read_number(path: str) -> int | None:
    with suppress(OSError, ValueError):  # "max" means that there is no limit
        return int(Files().read(path))
    return None


def _read_field(path: str, name: str, unit: int) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Files().read(path).decode().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * unit
    return None
