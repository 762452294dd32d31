"""Frontiers: how far each stage is at each level, and what each class of failure would leave now.

Epochs are decided in one place, and a replica acknowledges whole ones: so a stage is as far on disk
and on replicas as the epochs are, if it is so far at all.
"""

from __future__ import annotations

from nosync_nb.errors import StageError
from nosync_nb.session.publisher import Publisher
from nosync_nb.session.replication import Replication
from nosync_nb.store.frontier import Frontier


class Frontiers:
    """Those of one session; asks, and keeps nothing."""

    def __init__(self, publisher: Publisher, replication: Replication) -> None:
        self._publisher = publisher
        self._replication = replication

    def of_stages(self) -> dict[str, Frontier]:
        """For each stage and input the last epoch at each level, inclusive."""
        seen = self._publisher.snapshot
        disk = self._publisher.durable
        safe = self._replication.safe() if self._replication.settings.replicas else None
        return {
            n: Frontier(last, min(disk, last), None if safe is None else min(safe, last))
            for n, last in ((n, seen.last(s)) for n, s in seen.catalog.items())
        }

    def after(self, failure: str, lost: int | None = None) -> int:
        """The epoch that a failure now would bring the session back to.

        Args:
            lost: how many replicas are lost with the disk; None: as many as the quorum allows.

        Raises:
            StageError: no such class of failure is known, or there are not so many replicas.
        """
        if failure == "kernel":
            return self._publisher.now
        if failure == "power":
            return self._publisher.durable
        if failure == "disk":
            return self._replication.safe(lost)
        raise StageError(f"unknown class of failure {failure!r}", hint="kernel, power or disk")
