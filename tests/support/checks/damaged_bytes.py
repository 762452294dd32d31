"""Proofs: what of a file of rows is not what was written, by all of its bytes."""

from __future__ import annotations

from pathlib import Path

from nosync_nb.trace.checksums import FileDamage, file_damage


def flaws_in(path: Path, digest: str | None = None) -> list[FileDamage]:
    """The flaws of a part or a pack."""
    data = path.read_bytes()
    return file_damage(path.name, lambda at, size: data[at : at + size], len(data), digest)
