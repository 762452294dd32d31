"""Reads and writes the owner of a log, and determines if its process is still alive.

A process is identified by host, boot, pid namespace, pid and start time: a pid alone may be reused
after a restart, and denotes another process in another container. A process that has exited but was
not reaped by its parent counts as dead. Safety does not depend on any of this (see `fencing`). It
only allows an opening to decide without asking the user.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log.frames import FORMAT, check_format

_BYTES_MAX = 1 << 16
_CACHED_MAX = 16  # because each worker that ships the log reads the same file
_POLL_S = 0.02
_NETWORK_FILE_SYSTEMS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "glusterfs",
)


class ProcessIdentity(NamedTuple):
    """A process, unique among all hosts; `started` in clock ticks since boot, 0 if unknown."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: int


class HostIdentity:
    """The host of this process; tests simulate another host, a restart or another time."""

    def identity(self) -> ProcessIdentity:
        """Returns the identity of this process.

        Cost: about 20 us the first time in a process.
        """
        return _identity(os.getpid())

    def now_ms(self) -> int:
        """Returns the wall clock in milliseconds; used for display only."""
        return time.time_ns() // 1_000_000

    def changes(self, word: Callable[[], int], seconds: float) -> bool:
        """Returns True as soon as a word changes; False if it does not change within `seconds`."""
        before, until = word(), time.monotonic() + seconds
        while word() == before:
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL_S)
        return True

    def alive(self, other: ProcessIdentity) -> bool | None:
        """Returns True if a process is alive; None if this cannot be determined on this host."""
        me = self.identity()
        if other.host != me.host:
            return None
        if other.boot != me.boot:
            return False
        if other.namespace != me.namespace:
            return None
        if not sys.platform.startswith("linux"):
            return _pid_exists(other.pid)
        return _start_ticks(other.pid) == other.started

    def file_system(self, path: str) -> str:
        """Returns the type of the file system that contains a path; "" if unknown."""
        best = ("", "")
        path = os.path.realpath(path)
        for line in _read_text(os.path.realpath("/proc/self") + "/mountinfo").splitlines():
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
        """Returns True if locks and maps on such a file system are not shared with other hosts."""
        return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse.sshfs")


@lru_cache(1)  # a forked child has another pid
def _identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(
        socket.gethostname(), _boot_id(), _namespace(), pid, _start_ticks(pid) or 0
    )


def _read_text(path: str) -> str:
    try:
        return Files().read(path).decode(errors="replace")
    except DurabilityError:
        return ""


def _boot_id() -> str:
    return _read_text("/proc/sys/kernel/random/boot_id").strip()


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """Returns the start time of a process in ticks since boot; None if it has exited."""
    text = _read_text(f"/proc/{pid}/stat")
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return int(fields[19])


def _pid_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class LastWriter(NamedTuple):
    """The process that wrote the newest frames: its host and boot, and if it closed the log."""

    host: str = ""
    boot: str = ""
    closed: bool = False


class LogLocation(NamedTuple):
    """The folder of a log, and the device and inode of its `generation` file."""

    path: str = ""
    device: int = 0
    number: int = 0

    def folder_if_moved(self, files: Files, here: LogLocation) -> str | None:
        """Returns the recorded folder if `here` is a copy of it, and the log still exists there.

        Returns None otherwise. A folder that was moved keeps its `generation` file; a copied folder
        has a new one.
        """
        if not self.path or self[1:] == here[1:]:
            return None
        with suppress(DurabilityError):
            if log_location(files, self.path) == self:
                return self.path
        return None


def log_location(files: Files, folder: str) -> LogLocation:
    """Returns the location of the log in a folder.

    Raises:
        DurabilityError: there is no log.
    """
    status = files.status(os.path.join(folder, "generation"))
    return LogLocation(folder, status.st_dev, status.st_ino)


class LogOwner(NamedTuple):
    """The current or the last writer of a log.

    Attributes:
        known: the number of a frame that was on disk when this was written.
        closed: True if the owner closed the log properly, with `known` as its last frame.
        released: True if other processes may open the log for writing.
        wrote: the last writer before this owner. Its frames are still the newest if the opening of
            this owner failed, because such an owner wrote no frame.
        place: the location of the log.
    """

    identity: ProcessIdentity
    generation: int
    since_ms: int
    command: str
    known: int
    closed: bool
    released: bool
    wrote: LastWriter = LastWriter()
    place: LogLocation = LogLocation()

    def last(self, generation: int) -> LastWriter:
        """Returns the writer of the newest frames; `generation` is that of the newest segment."""
        if self.generation == generation:
            return LastWriter(self.identity.host, self.identity.boot, self.closed)
        return self.wrote

    @property
    def since(self) -> str:
        """The time at which the process became the owner, as text for the user."""
        return datetime.fromtimestamp(self.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    def __str__(self) -> str:
        text = f"process {self.identity.pid} on {self.identity.host}"
        return f"{text} ({self.command})" if self.command else text


def read_owner(files: Files, folder: str) -> LogOwner | None:
    """Returns the current or the last writer; None if the log was never written.

    Raises:
        CorruptLogError: the file is damaged.
    """
    path = os.path.join(folder, "owner")
    if not files.exists(path):
        return None
    return _decode_owner(files.read(path, most=_BYTES_MAX), path)


@lru_cache(_CACHED_MAX)
def _decode_owner(data: bytes, path: str) -> LogOwner:
    try:
        text, crc = data.rsplit(b"\n", 2)[:2]
        if int(crc, 16) != zlib.crc32(text):
            raise ValueError("checksum")
        fields: dict[str, Any] = json.loads(text)
        check_format(int(fields.pop("format")), FORMAT, f"'{path}'")
        named = {
            "identity": ProcessIdentity(**_known_fields(ProcessIdentity, fields["identity"])),
            "wrote": LastWriter(**_known_fields(LastWriter, fields["wrote"])),
            "place": _decode_location(**_known_fields(LogLocation, fields.get("place", {}))),
        }
        return LogOwner(**{**_known_fields(LogOwner, fields), **named})
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptLogError(
            f"'{path}' is damaged: the owner of this log is unknown",
            hint="make sure that no other process uses it, then open it with takeover=True",
        ) from error


def _known_fields(kind: type[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the known fields, because a later release may have added some to the same format."""
    return {key: value for key, value in fields.items() if key in kind._fields}


def _decode_location(path: str = "", device: int = 0, number: int = 0) -> LogLocation:
    if path != "" and not (isinstance(path, str) and os.path.isabs(path) and "\0" not in path):
        raise ValueError("it is not in any segment")
    return LogLocation(path, int(device), int(number))


def write_owner(files: Files, folder: str, owner: LogOwner, *, named: bool = True) -> None:
    """Writes the owner file durably.

    Args:
        named: True if the name of the file must be durable at once; otherwise the caller syncs the
            folder later.
    """
    nested = {key: getattr(owner, key)._asdict() for key in ("identity", "wrote", "place")}
    fields = {"format": FORMAT, **owner._asdict(), **nested}
    text = json.dumps(fields).encode()
    path = os.path.join(folder, "owner")
    files.replace(path, text + f"\n{zlib.crc32(text):08x}\n".encode(), folder=named)
