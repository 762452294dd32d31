"""Promise: the word that a replica gives, as it is kept with its copy of a log.

It says whom the copy obeys, and what people call the log. It is a replica's own and is never
shipped: a line of JSON and a line with its checksum.
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
    """To which term a copy has promised itself; `incarnation` is made with the copy."""

    term: OwnerTerm
    incarnation: str
    name: LogName


@lru_cache(_REPLICAS_MAX)  # it is read with every message, and changes with an owner
def decode_grant(data: bytes, where: str) -> FencingGrant:
    """Returns what a promise says.

    Args:
        where: what people call the copy, for the error.

    Raises:
        CorruptLogError: it is damaged.
    """
    try:
        text, crc = data.rsplit(b"\n", 2)[:2]
        if int(crc, 16) != zlib.crc32(text):
            raise ValueError("checksum")
        said: dict[str, Any] = json.loads(text)
        generation, owner, incarnation, log, signer = (
            said[key] for key in ("generation", "owner", "incarnation", "path", "signer")
        )
        if type(generation) is not int or not 0 <= generation < _GENERATIONS_MAX:
            raise ValueError("generation")
        replicas, quorum = said["replicas"], said["quorum"]
        if not all(type(each) is int and 0 < each <= _REPLICAS_MAX for each in (replicas, quorum)):
            raise ValueError("quorum")
        if not all(isinstance(each, str) for each in (owner, incarnation, log, signer)):
            raise ValueError("types")
        return FencingGrant(
            OwnerTerm(generation, owner), incarnation, LogName(log, signer, replicas, quorum)
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptLogError(
            f"the promise of '{where}' is damaged: it cannot be told whom this copy obeys",
            hint=f"delete '{where}': the copy is made anew",
        ) from error


def encode_grant(promise: FencingGrant) -> bytes:
    """Returns a promise as it is kept."""
    generation, owner = promise.term
    said = {
        "generation": generation,
        "owner": owner,
        "incarnation": promise.incarnation,
        **promise.name._asdict(),
    }
    text = json.dumps(said).encode()
    return text + f"\n{zlib.crc32(text):08x}\n".encode()


def conflicts(said: OwnerTerm, asked: OwnerTerm) -> bool:
    """Whether a promise forbids another one: it is of a later owner, or of an equal one."""
    if said.generation != asked.generation:
        return said.generation > asked.generation
    return said.owner != asked.owner


def grant_conflict_error(where: str, said: OwnerTerm) -> FencedError:
    """The error of who asks something of a copy that has promised itself to somebody else."""
    return FencedError(
        f"'{where}' has promised itself to generation {said.generation} of the log, of another"
        " owner",
        hint="if that owner goes on, close this session; else close it and open the log again,"
        " which goes on if it lacks nothing that replicas hold",
    )
