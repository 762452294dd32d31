"""Machine: who this process is, and whether another one is still alive.

A process is known by host, boot, pid namespace, pid and start time: a pid alone comes back
after a restart, and means another process in another container. A process that has exited
but was not reaped by its parent counts as dead. Nothing here is needed for safety (that is
the generation's work), only to decide without asking.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files

_LOOK_S = 0.02
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs")


class ProcessIdentity(NamedTuple):
    """One process, in the whole world; `started` in clock ticks since boot, 0 if unknown."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: int


class HostIdentity:
    """This machine. A test replaces it to play another host, a restart, another time."""

    def identity(self) -> ProcessIdentity:
        """Returns who this process is. Cost: some 20 us the first time in a process."""
        return _own(os.getpid())

    def now_ms(self) -> int:
        """Returns the wall clock in milliseconds; used for display only."""
        return time.time_ns() // 1_000_000

    def changes(self, word: Callable[[], int], seconds: float) -> bool:
        """Tells whether a word changes within some seconds, as soon as it does."""
        before, until = word(), time.monotonic() + seconds
        while word() == before:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)
        return True

    def alive(self, other: ProcessIdentity) -> bool | None:
        """Tells whether a process lives; None if that cannot be known from here."""
        me = self.identity()
        if other.host != me.host:
            return None
        if other.boot != me.boot:
            return False
        if other.namespace != me.namespace:
            return None
        if not sys.platform.startswith("linux"):
            return _exists(other.pid)
        return _started(other.pid) == other.started

    def file_system(self, path: str) -> str:
        """Returns the type of the file system a path is on; "" if unknown."""
        best = ("", "")
        path = os.path.realpath(path)
        for line in _text(os.path.realpath("/proc/self") + "/mountinfo").splitlines():
            left, _, right = line.partition(" - ")
            fields = left.split()
            if not right or len(fields) < 5:
                continue
            point = fields[4].replace("\\040", " ")
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best[0]):
                best = (point, right.split()[0])
        return best[1]

    def is_network(self, kind: str) -> bool:
        """Tells whether locks and maps on such a file system stop at the border of the host."""
        return kind in _NETWORK or kind.startswith("fuse.sshfs")


@lru_cache(1)  # a child that was forked has another pid
def _own(pid: int) -> ProcessIdentity:
    """This process."""
    return ProcessIdentity(socket.gethostname(), _boot(), _namespace(), pid, _started(pid) or 0)


def _text(path: str) -> str:
    try:
        return Files().read(path).decode(errors="replace")
    except DurabilityError:
        return ""


def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id").strip()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Returns when a process started, in ticks since boot; None if it is gone or a corpse."""
    text = _text(f"/proc/{pid}/stat")
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
