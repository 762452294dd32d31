"""The protocol of a replica, its fencing grant, and the values that shipper and replica exchange.

A replica first receives an owner term and records it in its fencing grant. Afterwards it rejects
the writes of every earlier term. This is the only coordination between owners. It happens once for
each opening of a log.

The grant also contains the name of the log. The grant belongs to the copy and is never shipped. It
is stored as one line of JSON and one line with the checksum of the JSON.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from nosync_nb.errors import CorruptLogError, FencedError

GRANT_BYTES_MAX = 1 << 16
_GENERATIONS_MAX = 10**7
_REPLICAS_MAX = 64


class OwnerTerm(NamedTuple):
    """The owner to which a write belongs: its generation, and a token that is unique to it."""

    generation: int
    owner: str


class LogName(NamedTuple):
    """A log as users know it: its path, the id of its signing key, its replicas and its quorum."""

    path: str
    signer: str
    replicas: int = 1
    quorum: int = 1


class ReplicaHoldings(NamedTuple):
    """The files of a log that a replica holds, as it reports them.

    Attributes:
        incarnation: the random id of the copy; a copy that is created again has another id.
        files: the size in bytes of each file of the log, by the name of the file.
    """

    incarnation: str
    files: Mapping[str, int]


class ReadableCopy(Protocol):
    """The read operations of a replica; they raise the errors that `Replica` lists."""

    @property
    def folder(self) -> str | None:
        """The local folder whose files can be read in place; None for a remote copy."""

    def promised(self) -> OwnerTerm | None:
        """Returns the term whose writes the copy accepts; None if it has no grant."""

    def held(self) -> ReplicaHoldings:
        """Returns the files that the copy holds."""

    def acknowledged(self) -> int:
        """Returns the number of the last acknowledged frame; 0 if no frame was acknowledged."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Returns `size` bytes of a file from an offset; fewer only at the end of the file."""


class Replica(ReadableCopy, Protocol):
    """One copy of one log. All calls come from one thread.

    Each call raises DurabilityError if the site cannot be reached or refuses the call. It raises
    FencedError if the copy has accepted a later term. No call waits longer than a few seconds,
    except on a mount that hangs (see `remote_call`).
    """

    def promise(self, term: OwnerTerm, name: LogName) -> ReplicaHoldings:
        """Makes the copy reject all writes of earlier terms; returns the files that it holds."""

    def store(self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool) -> None:
        """Writes the next piece of a new file, which appears, durably, with its last piece."""

    def append(self, term: OwnerTerm, name: str, offset: int, data: bytes) -> None:
        """Appends to a segment at its end; the next `sync` makes the bytes durable."""

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        """Makes appended bytes durable, then checks that the term is still accepted.

        Args:
            seq: the frame up to which the log can be read from this copy. It is recorded, so that a
                copy that ends earlier is recognised as damaged. `None` leaves the record unchanged.
        """

    def digest(self, name: str, size: int) -> bytes:
        """Returns the digest of the first `size` bytes of a file."""

    def discard(self, term: OwnerTerm, names: Iterable[str]) -> None:
        """Deletes files of the log."""

    def close(self) -> None:
        """Closes the open files and connections of the replica."""


class FencingGrant(NamedTuple):
    """The term that a copy accepts, the id of the copy (`incarnation`), and the name of its log."""

    term: OwnerTerm
    incarnation: str
    name: LogName


@lru_cache(_REPLICAS_MAX)  # because every message reads the grant, and only a new owner changes it
def decode_grant(data: bytes, where: str) -> FencingGrant:
    """Decodes a grant.

    Args:
        where: the name of the copy in error messages.

    Raises:
        CorruptLogError: the grant is damaged.
    """
    try:
        text, crc = data.rsplit(b"\n", 2)[:2]
        if int(crc, 16) != zlib.crc32(text):
            raise ValueError("checksum")
        fields: dict[str, Any] = json.loads(text)
        generation, owner, incarnation, log, signer = (
            fields[key] for key in ("generation", "owner", "incarnation", "path", "signer")
        )
        if type(generation) is not int or not 0 <= generation < _GENERATIONS_MAX:
            raise ValueError("generation")
        replicas, quorum = fields["replicas"], fields["quorum"]
        if not all(type(each) is int and 0 < each <= _REPLICAS_MAX for each in (replicas, quorum)):
            raise ValueError("quorum")
        if not all(isinstance(each, str) for each in (owner, incarnation, log, signer)):
            raise ValueError("types")
        return FencingGrant(
            OwnerTerm(generation, owner), incarnation, LogName(log, signer, replicas, quorum)
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptLogError(
            f"replica '{where}': the fencing record is damaged, so its owner is unknown",
            hint=f"delete '{where}', and the copy is created again",
        ) from error


def encode_grant(promise: FencingGrant) -> bytes:
    """Encodes a grant in its stored form."""
    generation, owner = promise.term
    fields = {
        "generation": generation,
        "owner": owner,
        "incarnation": promise.incarnation,
        **promise.name._asdict(),
    }
    text = json.dumps(fields).encode()
    return text + f"\n{zlib.crc32(text):08x}\n".encode()


def conflicts(accepted: OwnerTerm, requested: OwnerTerm) -> bool:
    """Returns True if the accepted term excludes the requested one.

    It does if its generation is later, or if the generations are equal and the owners differ.
    """
    if accepted.generation != requested.generation:
        return accepted.generation > requested.generation
    return accepted.owner != requested.owner


def grant_conflict_error(where: str, accepted: OwnerTerm) -> FencedError:
    """Returns the error for a call to a copy that has accepted another owner's term."""
    return FencedError(
        f"replica '{where}' accepts writes only from another owner, generation"
        f" {accepted.generation}",
        hint="if that owner is running, close this session; else close it and open the log again",
    )
