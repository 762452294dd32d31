"""Proofs: what of a file of rows is not what was written, by all of its bytes."""

from __future__ import annotations

from pathlib import Path

from nosync_nb.trace.checksums import Flaw, flaws


def flaws_in(path: Path, digest: str | None = None) -> list[Flaw]:
    """The flaws of a part or a pack."""
    data = path.read_bytes()
    return flaws(path.name, lambda at, size: data[at : at + size], len(data), digest)
