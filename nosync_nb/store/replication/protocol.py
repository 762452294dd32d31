"""Replica: what every kind of it can do, and the values that pass between it and who ships.

A replica is told a term before anything else, and keeps it: from then on it takes nothing from an
earlier one. That is the only coordination there is, once for each opening of a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol


class OwnerTerm(NamedTuple):
    """Under which owner something is written: a generation, and what tells two of it apart."""

    generation: int
    owner: str


class LogName(NamedTuple):
    """What people call a log: where it lies, the id of the key that signs it, its quorum."""

    path: str
    signer: str
    replicas: int = 1
    quorum: int = 1


class ReplicaHoldings(NamedTuple):
    """What a replica holds, by its own account.

    Attributes:
        incarnation: made with the copy; another one means that the copy was begun anew.
        files: the size in bytes of each file of the log, by its name.
    """

    incarnation: str
    files: Mapping[str, int]


class ReadableCopy(Protocol):
    """A copy as who reads it has it; errors as those of `Replica`."""

    @property
    def folder(self) -> str | None:
        """Where its files lie on this machine, to be read in place; None if they do not."""

    def promised(self) -> OwnerTerm | None:
        """The term it has promised itself to; None if it holds nothing of the log."""

    def held(self) -> ReplicaHoldings:
        """What it holds."""

    def acknowledged(self) -> int:
        """The frame up to which it can be read for sure; 0 if it has acknowledged none."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Some bytes of a file; fewer only at its end."""


class Replica(ReadableCopy, Protocol):
    """One copy of one log. All calls come from one thread.

    Each raises DurabilityError if the place cannot be reached or refuses, and FencedError if it has
    promised itself to a later term. None waits for longer than some seconds, but on a mount that
    hangs for ever (see `asking`).
    """

    def promise(self, term: OwnerTerm, name: LogName) -> ReplicaHoldings:
        """Takes nothing of an earlier term from now on."""

    def store(self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool) -> None:
        """A piece of a new file, in order; with the last one it is there, on disk, as a whole."""

    def append(self, term: OwnerTerm, name: str, offset: int, data: bytes) -> None:
        """Goes on with a segment from its end; on disk with the next `sync`."""

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        """Brings to disk what was appended; then it is known that the term still holds.

        Args:
            seq: the frame up to which the log can be read from here now, which is kept: what
                ends before it is damaged. None: as it was.
        """

    def digest(self, name: str, size: int) -> bytes:
        """The digest of the first bytes of a file."""

    def discard(self, term: OwnerTerm, names: Iterable[str]) -> None:
        """Deletes files of the log."""

    def close(self) -> None:
        """Gives back what it holds open."""
