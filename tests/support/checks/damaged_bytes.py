"""Damaged bytes: flipped bits, and the damage of a file of rows by its checksums."""

from __future__ import annotations

from pathlib import Path

from nosync_nb.trace.checksums import FileDamage, file_damage


def flipped(data: bytes | memoryview, at: int, bit: int = 0) -> bytes:
    """The data with one bit of a byte flipped; `at` may count from the end."""
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


def flaws_in(path: Path, digest: str | None = None) -> list[FileDamage]:
    data = path.read_bytes()
    return file_damage(path.name, lambda at, size: data[at : at + size], len(data), digest)
