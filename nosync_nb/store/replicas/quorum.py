"""Quorum: what is safe when so many of some replicas have acknowledged; pure."""

from __future__ import annotations

from collections.abc import Iterable


def safe(acknowledged: Iterable[int], quorum: int) -> int:
    """The greatest number that at least `quorum` replicas have acknowledged; 0 if there is none."""
    ranked = sorted(acknowledged, reverse=True)
    return ranked[quorum - 1] if len(ranked) >= quorum else 0


def readers(replicas: int, quorum: int) -> int:
    """How many of the replicas must answer so that one of them has all that was ever safe."""
    return replicas - quorum + 1
