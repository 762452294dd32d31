"""Computes the frontier of each stage at each durability level and for each class of failure.

A log orders all epochs, and a replica acknowledges whole frames. So a level has the same epochs of
every stage whose definition it has. Of any other stage it has only the epochs that the log had
before the definition. Therefore a new epoch changes no bound: bounds are computed as if a level had
every epoch, and then cut to the last epoch of the level. Each call computes them from scratch,
which takes a few milliseconds for 1,000 stages. Commits do not compute them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import DISK, Stage
from nosync_nb.errors import StageError
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.store.durability import (
    NOWHERE,
    UNBOUNDED,
    DefinitionOffset,
    FailureClass,
    Frontier,
    FrontierNode,
    exact_uppers,
)
from nosync_nb.store.replication.restore.lazy_fetch import LazyFetcher
from nosync_nb.trace.epoch_ranges import inclusive

NEVER = NOWHERE._replace(frame=NOWHERE.frame + 1, owed=NOWHERE.frame + 1)
"""The offset of a log that is in memory only, and in no frame."""


class LevelProgress(NamedTuple):
    """The progress of a level: the number of its last frame, and the last epoch up to it."""

    frames: int
    epoch: int


class FrontierService:
    """The frontiers of one session.

    Any thread may call it. A commit never does.
    """

    def __init__(
        self, publisher: Publisher, replication: ReplicationService, lazy_fetcher: LazyFetcher
    ) -> None:
        self._publisher, self._lazy_fetcher = publisher, lazy_fetcher
        self._replication = replication
        self._freeze_lock = threading.RLock()  # reentrant, because a signal handler may call it
        self._frozen: Mapping[str, int] = {}  # of stages that are being demoted; with that lock

    def of_stages(self) -> dict[str, Frontier]:
        """Returns for each stage and input the last epoch at each level, inclusive.

        For a stage of level `disk` the replica frontier is 0, even if replicas have its files. A
        demoted stage keeps its frontier, because it is recomputed where replicas lack its files.
        While some row files are only at replicas, the disk frontier of every stage is 0.
        """
        with self._freeze_lock:
            disk, safe = self._progress(FailureClass.POWER), self._progress(FailureClass.DISK)
            frozen = self._frozen
        if self._lazy_fetcher.left.files:
            disk = LevelProgress(0, 0)
        copied = bool(self._replication.settings.replicas)
        snapshot, defined = self._snapshot_with_offsets()
        frontiers = {}
        for name, stage in snapshot.catalog.items():
            last, offset = snapshot.last(stage), NEVER if stage.in_memory else defined[name]
            replicas = _replica_frontier(stage, offset, last, safe)
            replicas = min(replicas, frozen.get(name, replicas))
            frontiers[name] = Frontier(
                last, _level_frontier(disk, last, offset), replicas if copied else None
            )
        return frontiers

    def of_replicas(self) -> list[dict[str, int]]:
        """Returns for each replica, in the order of the settings, the last epoch of each stage.

        That is 0 for stages of level `memory` or `disk`, because replicas are not required to hold
        them. A demoted stage keeps its frontier.
        """
        copies = self._replication.status()
        snapshot, defined = self._snapshot_with_offsets()
        return [
            {
                name: 0
                if stage.in_memory
                else _replica_frontier(
                    stage,
                    defined[name],
                    snapshot.last(stage),
                    LevelProgress(copy.frame, copy.epoch),
                )
                for name, stage in snapshot.catalog.items()
            }
            for copy in copies
        ]

    def of_failure(self, failure: FailureClass) -> dict[str, int]:
        """Returns, for each stage, the last epoch that would survive a failure now; see `after`.

        Cost: O(stages).
        """
        progress = self._progress(failure)
        snapshot, defined = self._snapshot_with_offsets()
        exact = _exact_bounds(snapshot, defined, failure, progress)
        return {
            name: min(progress.epoch, snapshot.last(stage), inclusive(exact[name]))
            for name, stage in snapshot.catalog.items()
        }

    @contextmanager
    def frozen_on_replicas(self, names: Iterable[str]) -> Iterator[Mapping[str, int]]:
        """Freezes the replica frontiers of some stages for a `with` block, which receives them.

        Failure: 1. The frontier of a stage on replicas is read, and the demotion of the stage is
        written. 2. In between the replicas acknowledge another epoch, and a caller reads the later
        frontier. 3. The next caller reads an earlier one. Hence the block freezes them.
        """
        try:
            try:
                with self._freeze_lock:
                    safe = self._progress(FailureClass.DISK)
                    snapshot, defined = self._snapshot_with_offsets()
                    stages = ((n, snapshot.catalog[n]) for n in names)
                    self._frozen = {
                        n: _replica_frontier(s, defined[n], snapshot.last(s), safe)
                        for n, s in stages
                    }
                yield self._frozen
            finally:
                self._frozen = {}
        except BaseException:  # also one raised while the block ends
            self._frozen = {}
            raise

    def after(self, failure: str, lost: int | None = None, stage: str | None = None) -> int:
        """Returns the epoch to which the session, or a stage, would recover after a failure now.

        That is the last epoch at which all stages are recovered exactly, from the log or by
        recomputation. Stages whose definition would be lost are not counted. Epochs that are still
        at the replicas after a lost disk also survive a loss of power. For one stage it is the last
        epoch of this stage; 0 if its definition would be lost.

        Args:
            lost: the number of replicas that are lost with the disk; `None` means as many as the
                quorum allows.

        Raises:
            StageError: if the class of failure or the stage is unknown, or the log has fewer
                replicas.

        Cost: O(stages).
        """
        try:
            kind = FailureClass(failure)
        except ValueError:
            raise StageError(
                f"unknown kind of failure {failure!r}", hint="kernel, power or disk"
            ) from None
        progress = self._progress(kind, lost)
        snapshot, defined = self._snapshot_with_offsets()
        exact = _exact_bounds(snapshot, defined, kind, progress)
        if stage is not None:
            last = snapshot.last(snapshot.stage(stage))
            return min(progress.epoch, last, inclusive(exact[stage]))
        uppers = (
            exact[name]
            for name, other in snapshot.catalog.items()
            if defined[name].frame <= progress.frames and exact[name] <= snapshot.last(other)
            if other.live or not other.in_memory  # a stopped stage in memory is lost already
        )
        return min(progress.epoch, inclusive(min(uppers, default=UNBOUNDED)))

    # -- levels --------------------------------------------------------------------------------

    def _progress(self, failure: FailureClass, lost: int | None = None) -> LevelProgress:
        """Returns the progress that survives a failure.

        The caller takes the snapshot afterwards, so that the snapshot is not older.
        """
        if failure is FailureClass.KERNEL:
            return LevelProgress(NOWHERE.frame - 1, self._publisher.last_epoch)
        if failure is FailureClass.DISK:
            return LevelProgress(*self._replication.last_surviving(lost))
        frames = self._publisher.store.log.durable
        return LevelProgress(frames, self._publisher.ledger.durable(frames))

    def _snapshot_with_offsets(self) -> tuple[Snapshot, dict[str, DefinitionOffset]]:
        """Returns the snapshot and the offsets of its definitions; `NOWHERE` for new ones."""
        publisher = self._publisher
        snapshot, defined = publisher.snapshot, publisher.defined
        named = snapshot.graph.named
        return snapshot, {
            name: defined.get(named[name].log or 0, NOWHERE) if name in named else NOWHERE
            for name in snapshot.catalog
        }


def _exact_bounds(
    snapshot: Snapshot,
    defined: Mapping[str, DefinitionOffset],
    failure: FailureClass,
    progress: LevelProgress,
) -> Mapping[str, int]:
    """Returns the bound of each stage after a failure, as if the level had every epoch."""
    catalog, frames = snapshot.catalog, progress.frames
    return exact_uppers(
        {
            name: _frontier_node(stage, catalog, defined[name], failure, frames)
            for name, stage in catalog.items()
        }
    )


def _replica_frontier(
    stage: Stage, defined: DefinitionOffset, last: int, progress: LevelProgress
) -> int:
    """Returns the reported frontier of a stage on replicas with these acknowledged frames."""
    if stage.options.persist == DISK and not (stage.options.nondeterministic or stage.frozen):
        return 0  # also while the stage is stopped
    return min(progress.epoch, inclusive(defined.owes(progress.frames, last + 1)))


def _level_frontier(progress: LevelProgress, last: int, defined: DefinitionOffset) -> int:
    """Returns the last epoch of a stage that a level has."""
    return min(progress.epoch, inclusive(defined.upper(progress.frames, last + 1)))


def _frontier_node(
    stage: Stage,
    catalog: Mapping[str, Stage],
    defined: DefinitionOffset,
    failure: FailureClass,
    frames: int,
) -> FrontierNode:
    """Returns a stage as a node of the frontier computation; a stopped one has no inputs."""
    offset = NEVER if stage.in_memory else defined
    upper = UNBOUNDED if stage.live else stage.last(0) + 1
    on_replicas = failure is FailureClass.DISK
    logged = offset.owes(frames, upper) if on_replicas else offset.upper(frames, upper)
    if stage.definition is None or not stage.live or stage.held is not None:
        return FrontierNode((), logged)
    return FrontierNode(
        tuple(q for q in stage.definition.references if q in catalog),
        logged,
        not stage.options.nondeterministic,
        defined=defined.upper(frames, UNBOUNDED),
    )
