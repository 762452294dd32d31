"""Closes connections to a replica server whose clients do not prove that they have its token.

Flight accepts every connection and has no option for idle ones. It does not tell which descriptor
belongs to which client, so the descriptors of the process are compared with the peers of calls.

Failure: 1. A client without the token opens a thousand connections and sends nothing. 2. The server
has no descriptors left, and accepts no client. 3. Replication stops. Hence, if there are many
connections, those without a signed call are shut down after a second. A client needs less for its
first call.
"""

from __future__ import annotations

import os
import resource
import socket
import stat
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from urllib.parse import unquote

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files

UNPROVED_MAX = 64
"""So many connections without a signed call may stay open."""

PROOF_S = 1.0
"""Seconds within which a connection must make its first signed call if there are more."""

_FEW_DESCRIPTORS = 128
"""With so few descriptors in use, connections are not checked."""
_PEERS_MAX = 4096
_MAPPED_PREFIX = "::ffff:"


class Connections:
    """The connections to one port of this process. Any thread may call.

    Owns, under `_lock`, the peers that have made a signed call, and the first sighting of the
    others.
    """

    def __init__(self, port: int, files: Files | None = None) -> None:
        self._port, self._files = port, files or Files()
        self._lock = threading.Lock()
        self._proved: set[str] = set()
        self._first_seen: dict[str, float] = {}

    def prove(self, peer: str) -> None:
        """Records that a client has made a signed call.

        Args:
            peer: in Flight's form: `ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`.
        """
        _, _, address = unquote(peer).partition(":")
        with self._lock:
            self._proved.add(address.replace("[", "").replace("]", ""))

    def limit(self, now: float | None = None) -> int:
        """Shuts unproved connections down if there are many; returns their number.

        Args:
            now: the time in seconds, by default the clock's.

        Cost: some 20 us while there are few.
        """
        descriptors = self._descriptors()
        if len(descriptors) <= _FEW_DESCRIPTORS and len(self._proved) <= _PEERS_MAX:
            return 0
        peers = _peers(descriptors, self._port)
        now = time.monotonic() if now is None else now
        with self._lock:
            self._proved.intersection_update(peers)
            unproved = [peer for peer in peers if peer not in self._proved]
            self._first_seen = {peer: self._first_seen.get(peer, now) for peer in unproved}
            if len(unproved) <= UNPROVED_MAX:
                return 0
            old = [peer for peer in unproved if now - self._first_seen[peer] >= PROOF_S]
        for peer in old:
            _shut_down(peers[peer], peer)
        return len(old)

    def _descriptors(self) -> range | list[int]:
        """Returns the descriptors in use; all possible ones if none is left to list them."""
        try:
            return [int(name) for name in self._files.names(f"/proc/{os.getpid()}/fd")]
        except DurabilityError:
            return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _peers(descriptors: Iterable[int], port: int) -> Mapping[str, int]:
    """Returns the descriptors of the connections to a port, by the address of the client."""
    peers = {}
    for fd in descriptors:
        with suppress(OSError):  # closed meanwhile, or a listening socket
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                peer = _peer(fd, port)
                if peer is not None:
                    peers[peer] = fd
    return peers


def _peer(fd: int, port: int) -> str | None:
    """Returns the address of the client of a connection; None if it is not to the port."""
    connection = socket.socket(fileno=fd)
    try:
        if (
            connection.family not in (socket.AF_INET, socket.AF_INET6)
            or connection.getsockname()[1] != port
        ):
            return None
        host, number = connection.getpeername()[:2]
        return f"{host.removeprefix(_MAPPED_PREFIX)}:{number}"
    finally:
        connection.detach()


def _shut_down(fd: int, peer: str) -> None:
    """Ends a connection as its client would; the owner of the descriptor closes it."""
    with suppress(OSError):
        connection = socket.socket(fileno=fd)
        try:
            host, number = connection.getpeername()[:2]
            if (
                f"{host.removeprefix(_MAPPED_PREFIX)}:{number}" == peer
            ):  # else it was closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)
        finally:
            connection.detach()
