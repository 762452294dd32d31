"""Computes the frontier of each stage at each durability level and for each class of failure.

A log orders all epochs, and a replica acknowledges whole frames. So a level has the same epochs of
every stage whose definition it has; of the others it has what the log had before the definition. An
epoch therefore changes nothing here. Bounds are stored as if a level had every epoch, and are cut
to its last epoch when they are read. They change with definitions, and when a definition reaches a
level.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from nosync_nb.dataflow.graph import other_inputs
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import DISK, Stage
from nosync_nb.errors import StageError
from nosync_nb.session.durability.lazy_files import LazyFiles
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.store.durability.frame_offsets import NOWHERE, DefinitionOffset
from nosync_nb.store.durability.recovery_frontier import (
    UNBOUNDED,
    FailureClass,
    Frontier,
    FrontierNode,
    Prefixes,
    surviving_epochs,
)
from nosync_nb.store.exact import ExactPrefixes
from nosync_nb.trace.epoch_ranges import inclusive

NEVER = NOWHERE._replace(frame=NOWHERE.frame + 1, owed=NOWHERE.frame + 1)
"""The offset of a log that is in memory only, and in no frame."""


class LevelProgress(NamedTuple):
    """The progress of a level: the frames that it has, and the last epoch in them."""

    frames: int
    epoch: int


class _BoundInputs(NamedTuple):
    """The inputs of the bounds: stages, their definition offsets, and the frames of each level."""

    catalog: Mapping[str, Stage]
    defined: Mapping[str, DefinitionOffset]
    frames: Prefixes
    waiting: frozenset[str]


class _FrontierBounds(NamedTuple):
    """The bounds by class of failure, and their inputs."""

    known: _BoundInputs
    bounds: Mapping[FailureClass, ExactPrefixes]

    @classmethod
    def of_nothing(cls) -> _FrontierBounds:
        """The bounds of an empty catalog."""
        unknown = _BoundInputs({}, {}, Prefixes(0, 0, 0), frozenset())
        return cls(unknown, {failure: ExactPrefixes(failure) for failure in FailureClass})


class FrontierService:
    """The frontiers of one session.

    Any thread may call it. The caller updates the bounds, under a lock of their own that is a leaf:
    a commit never takes it.
    """

    def __init__(
        self, publisher: Publisher, replication: ReplicationService, fetching: LazyFiles
    ) -> None:
        self._publisher, self._lazy_files = publisher, fetching
        self._replication = replication
        self._lock = threading.Lock()
        self._bounds: _FrontierBounds | None = (
            None  # None while they change: an interrupt drops them
        )
        self._freeze_lock = threading.RLock()  # reentrant, because a signal handler may call it
        self._frozen: Mapping[str, int] = {}  # of stages that are being demoted; with that lock

    @property
    def visits(self) -> int:
        """The number of stages visited to update the bounds."""
        current = self._bounds
        return sum(bounds.visits for bounds in current.bounds.values()) if current else 0

    def of_stages(self) -> dict[str, Frontier]:
        """Returns for each stage and input the last epoch at each level, inclusive.

        A stage of level `disk` has no frontier on replicas, whatever these hold. A demoted stage
        keeps its frontier: where replicas lack its files it is recomputed. While files of rows are
        only at the replicas, the disk alone has nothing.
        """
        with self._freeze_lock:
            disk, safe = self._progress(FailureClass.POWER), self._progress(FailureClass.DISK)
            frozen = self._frozen
        if self._lazy_files.left.files:
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
        """Returns for each stage the last epoch that it has after a failure now; see `after`.

        Cost: O(stages) for all of them together.
        """
        progress = self._progress(failure)
        snapshot, defined = self._snapshot_with_offsets()
        exact = self._exact_bounds(snapshot, defined, failure, None)
        return {
            name: min(progress.epoch, snapshot.last(stage), inclusive(exact[name]))
            for name, stage in snapshot.catalog.items()
        }

    @contextmanager
    def held(self, names: Iterable[str]) -> Iterator[Mapping[str, int]]:
        """A block that freezes the frontiers of some stages on replicas; returns these frontiers.

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
        """Returns the epoch that a failure now would bring the session, or a stage, back to.

        That is the last epoch at which all stages are recovered exactly, from the log or by
        recomputation. Stages whose definition would be lost are not counted. Epochs that are still
        at the replicas after a lost disk also survive a loss of power. For one stage it is the last
        epoch of this stage; 0 if its definition would be lost.

        Args:
            lost: how many replicas are lost with the disk; None: as many as the quorum allows.

        Raises:
            StageError: if the class of failure or the stage is unknown, or the log has fewer
                replicas.

        Cost: O(stages) for the session; for a stage alone, the changes since the last call.
        """
        try:
            kind = FailureClass(failure)
        except ValueError:
            raise StageError(
                f"unknown class of failure {failure!r}", hint="kernel, power or disk"
            ) from None
        progress = self._progress(kind, lost)
        snapshot, defined = self._snapshot_with_offsets()
        exact = self._exact_bounds(snapshot, defined, kind, None if lost is None else progress)
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
        """Returns the surviving frames; to be read before the snapshot, which must not be older."""
        if failure is FailureClass.KERNEL:
            return LevelProgress(NOWHERE.frame - 1, self._publisher.now)
        if failure is FailureClass.DISK:
            return LevelProgress(*self._replication.reached(lost))
        frames = self._publisher.store.log.durable
        return LevelProgress(frames, self._publisher.ledger.durable(frames))

    def _snapshot_with_offsets(self) -> tuple[Snapshot, dict[str, DefinitionOffset]]:
        """Returns the snapshot and the offsets of its definitions; new ones have none yet."""
        publisher = self._publisher
        snapshot, defined = publisher.snapshot, publisher.defined
        named = snapshot.graph.named
        return snapshot, {
            name: defined.get(named[name].log or 0, NOWHERE) if name in named else NOWHERE
            for name in snapshot.catalog
        }

    # -- bounds --------------------------------------------------------------------------------

    def _exact_bounds(
        self,
        snapshot: Snapshot,
        defined: dict[str, DefinitionOffset],
        failure: FailureClass,
        progress: LevelProgress | None,
    ) -> Mapping[str, int]:
        """Returns the bound of each stage, as if the level had every epoch.

        Args:
            progress: the surviving frames, if they differ from those after this class of failure.
        """
        if progress is not None:
            frames = Prefixes(progress.frames, progress.frames, progress.frames)
            nodes = {
                name: _frontier_node(name, snapshot.catalog, defined, frames)
                for name in snapshot.catalog
            }
            return {name: each.exact for name, each in surviving_epochs(nodes, failure).items()}
        with self._lock:
            return dict(self._updated_bounds(snapshot, defined)[failure].exact())

    def _updated_bounds(
        self, snapshot: Snapshot, defined: dict[str, DefinitionOffset]
    ) -> Mapping[FailureClass, ExactPrefixes]:
        """Returns the bounds of the current catalog, updated since the last call; with the lock.

        After an interrupt during the update, all bounds are computed from scratch.
        """
        inputs, all_bounds = self._bounds or _FrontierBounds.of_nothing()
        frames = Prefixes(*(self._progress(failure).frames for failure in FailureClass))
        names = {*other_inputs(snapshot.catalog, inputs.catalog), *inputs.waiting}
        names.update(name for name, each in defined.items() if inputs.defined.get(name) != each)
        if any(now < previous for now, previous in zip(frames, inputs.frames, strict=True)):
            names.update(snapshot.catalog)  # other replicas, which are empty so far
        changes: dict[str, FrontierNode | None] = {
            name: _frontier_node(name, snapshot.catalog, defined, frames)
            for name in names
            if name in snapshot.catalog
        }
        changes.update((name, None) for name in inputs.catalog if name not in snapshot.catalog)
        if changes:
            self._bounds = None
            for bounds in all_bounds.values():
                bounds.move(changes)
        least = min(frames)
        waiting = frozenset(
            name
            for name in changes
            if name in defined and least < max(defined[name].frame, _required_from(defined[name]))
        )
        self._bounds = _FrontierBounds(
            _BoundInputs(snapshot.catalog, defined, frames, waiting), all_bounds
        )
        return all_bounds


def _required_from(defined: DefinitionOffset) -> int:
    """Returns the frame from which on replicas must hold a stage; 0 if they never must."""
    return defined.owed if defined.owed != NOWHERE.frame else 0


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
    name: str,
    catalog: Mapping[str, Stage],
    defined: Mapping[str, DefinitionOffset],
    frames: Prefixes,
) -> FrontierNode:
    """Returns a stage as a node of the frontier computation. A stopped one has only its log."""
    stage = catalog[name]
    offset = NEVER if stage.in_memory else defined[name]
    upper = UNBOUNDED if stage.live else stage.last(0) + 1
    kernel, power, disk = frames
    logged = Prefixes(
        offset.upper(kernel, upper), offset.upper(power, upper), offset.owes(disk, upper)
    )
    if stage.definition is None or not stage.live or stage.held is not None:
        return FrontierNode((), logged)
    return FrontierNode(
        tuple(q for q in stage.definition.references if q in catalog),
        logged,
        not stage.options.nondeterministic,
        defined=Prefixes(*(defined[name].upper(reached, UNBOUNDED) for reached in frames)),
    )
