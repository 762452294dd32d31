"""The protocol of a replica, and the values that a shipper and a replica exchange.

A replica first receives an owner term and records it. From then on it rejects writes of every
earlier term. This is the only coordination between owners. It happens once for each opening of a
log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol


class OwnerTerm(NamedTuple):
    """The owner that a write belongs to: its generation, and a token that is unique to it."""

    generation: int
    owner: str


class LogName(NamedTuple):
    """A log as users know it: its path, the id of the key that signs it, its quorum."""

    path: str
    signer: str
    replicas: int = 1
    quorum: int = 1


class ReplicaHoldings(NamedTuple):
    """The files that a replica reports to hold.

    Attributes:
        incarnation: id of the copy, drawn when it is created; it differs if the copy was created
            again.
        files: the size in bytes of each file of the log, by its name.
    """

    incarnation: str
    files: Mapping[str, int]


class ReadableCopy(Protocol):
    """The reading half of a replica; it raises the errors of `Replica`."""

    @property
    def folder(self) -> str | None:
        """The local folder whose files can be read in place; None for a remote copy."""

    def promised(self) -> OwnerTerm | None:
        """Returns the term that the copy accepts writes from; None if it has no grant."""

    def held(self) -> ReplicaHoldings:
        """Returns the files that the copy holds."""

    def acknowledged(self) -> int:
        """Returns the last acknowledged frame; 0: nothing was acknowledged."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Returns bytes of a file; fewer than `size` only at its end."""


class Replica(ReadableCopy, Protocol):
    """One copy of one log. All calls come from one thread.

    Each call raises DurabilityError if the site cannot be reached or refuses. It raises FencedError
    if the copy has accepted a later term. No call waits for longer than some seconds, except on a
    mount that hangs (see `remote_call`).
    """

    def promise(self, term: OwnerTerm, name: LogName) -> ReplicaHoldings:
        """Rejects all writes of earlier terms from now on."""

    def store(self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool) -> None:
        """Writes the next piece of a new file; the last piece makes the file appear, durably."""

    def append(self, term: OwnerTerm, name: str, offset: int, data: bytes) -> None:
        """Appends to a segment at its end; the next `sync` makes that durable."""

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        """Makes appended bytes durable, then checks that the term is still accepted.

        Args:
            seq: the frame up to which the log can be read from here; it is recorded, so that a copy
                which ends earlier is known to be damaged. None: it stays as it was.
        """

    def digest(self, name: str, size: int) -> bytes:
        """Returns the digest of the first bytes of a file."""

    def discard(self, term: OwnerTerm, names: Iterable[str]) -> None:
        """Deletes files of the log."""

    def close(self) -> None:
        """Closes the files and connections that it has open."""
