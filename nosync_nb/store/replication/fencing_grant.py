"""The fencing grant of a replica: the record of the only owner term that may write to its copy.

The grant also holds the name of the log. It belongs to the copy and is never shipped. It is one
line of JSON, and one line with its checksum.
"""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from typing import Any, NamedTuple

from nosync_nb.errors import CorruptLogError, FencedError
from nosync_nb.store.replication.protocol import LogName, OwnerTerm

BYTES_MAX = 1 << 16
_GENERATIONS_MAX = 10**7
_REPLICAS_MAX = 64


class FencingGrant(NamedTuple):
    """The term that a copy accepts; `incarnation` is the id of the copy."""

    term: OwnerTerm
    incarnation: str
    name: LogName


@lru_cache(_REPLICAS_MAX)  # every message reads it, and only a new owner changes it
def decode_grant(data: bytes, where: str) -> FencingGrant:
    """Decodes a grant.

    Args:
        where: what users call the copy, for the error.

    Raises:
        CorruptLogError: it is damaged.
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
    """Encodes a grant as it is stored."""
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
    """Returns True if a recorded term forbids another: it is later, or equal with another owner."""
    if accepted.generation != requested.generation:
        return accepted.generation > requested.generation
    return accepted.owner != requested.owner


def grant_conflict_error(where: str, accepted: OwnerTerm) -> FencedError:
    """Returns the error of a call to a copy that accepts another owner's term."""
    return FencedError(
        f"replica '{where}' accepts writes only from another owner, generation"
        f" {accepted.generation}",
        hint="if that owner is running, close this session; else close it and open the log again",
    )
