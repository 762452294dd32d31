"""Frontiers: how far each stage is at each level, and what each class of failure would leave now.

Epochs are decided in one place, and a replica acknowledges whole frames: so a level has of a stage
what it has of the epochs, if it has the stage's definition, and else what there was without it.
Hence an epoch moves nothing here: bounds are kept as if a level had every epoch, and are cut to
what it has when somebody asks. They move with definitions, and when a definition reaches a level.
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
"""That of a log that is in memory alone, and which no frame tells of."""


class LevelProgress(NamedTuple):
    """How far a level has the log: frames, and the last epoch in them."""

    frames: int
    epoch: int


class _Known(NamedTuple):
    """What the bounds are of: stages with their definitions, and the frames of each level."""

    catalog: Mapping[str, Stage]
    defined: Mapping[str, DefinitionOffset]
    frames: Prefixes
    waiting: frozenset[str]


class _Bounded(NamedTuple):
    """Bounds by class of failure, and what they are of."""

    known: _Known
    bounds: Mapping[FailureClass, ExactPrefixes]

    @classmethod
    def of_nothing(cls) -> _Bounded:
        """Those that all others are made from."""
        unknown = _Known({}, {}, Prefixes(0, 0, 0), frozenset())
        return cls(unknown, {failure: ExactPrefixes(failure) for failure in FailureClass})


class FrontierService:
    """Those of one session.

    Any thread may ask. Bounds are brought up to date by who asks, under a lock of their own that
    is a leaf: nothing of it is on the way of a commit.
    """

    def __init__(
        self, publisher: Publisher, replication: ReplicationService, fetching: LazyFiles
    ) -> None:
        self._publisher, self._fetching = publisher, fetching
        self._replication = replication
        self._lock = threading.Lock()
        self._bounded: _Bounded | None = None  # while they move, for who comes after an interrupt
        self._holding = threading.RLock()  # a signal's handler may ask in the middle
        self._most: Mapping[str, int] = {}  # of stages that are being scaled back; with that lock

    @property
    def visits(self) -> int:
        """How many stages were looked at to bring bounds up to date."""
        bounded = self._bounded
        return sum(each.visits for each in bounded.bounds.values()) if bounded else 0

    def of_stages(self) -> dict[str, Frontier]:
        """For each stage and input the last epoch at each level, inclusive.

        One that is kept on disk is promised nothing on replicas, whatever these have of it.
        One that is scaled back stays where it was: as far as replicas do not keep its files it is
        run again. While files of rows are still with the replicas, the disk alone has nothing.
        """
        with self._holding:
            disk, safe = self._reached(FailureClass.POWER), self._reached(FailureClass.DISK)
            most = self._most
        if self._fetching.left.files:
            disk = LevelProgress(0, 0)
        copied = bool(self._replication.settings.replicas)
        seen, defined = self._seen()
        frontiers = {}
        for name, stage in seen.catalog.items():
            last, of = seen.last(stage), NEVER if stage.in_memory else defined[name]
            there = _safe(stage, of, last, safe)
            there = min(there, most.get(name, there))
            frontiers[name] = Frontier(last, _at(disk, last, of), there if copied else None)
        return frontiers

    def of_replicas(self) -> list[dict[str, int]]:
        """For each replica, in the order of the settings, the last epoch of each stage it holds.

        Of one that is kept in memory or on disk that is 0: replicas owe nothing of it; one that is
        scaled back stays where it was.
        """
        copies = self._replication.status()
        seen, defined = self._seen()
        return [
            {
                name: 0
                if stage.in_memory
                else _safe(
                    stage, defined[name], seen.last(stage), LevelProgress(copy.frame, copy.epoch)
                )
                for name, stage in seen.catalog.items()
            }
            for copy in copies
        ]

    def of_failure(self, failure: FailureClass) -> dict[str, int]:
        """For each stage the last epoch that it has after a failure now; see `after`.

        Cost: O(stages) for all of them together.
        """
        reached = self._reached(failure)
        seen, defined = self._seen()
        exact = self._exact(seen, defined, failure, None)
        return {
            name: min(reached.epoch, seen.last(stage), inclusive(exact[name]))
            for name, stage in seen.catalog.items()
        }

    @contextmanager
    def held(self, names: Iterable[str]) -> Iterator[Mapping[str, int]]:
        """A block in which the frontiers of some stages on replicas stay as they are, and these.

        Failure: 1. What replicas have of a stage is noted, and that it is scaled back is written.
        2. In between they acknowledge another epoch, and somebody is told. 3. They are told less.
        """
        try:
            try:
                with self._holding:
                    safe = self._reached(FailureClass.DISK)
                    seen, defined = self._seen()
                    told = ((n, seen.catalog[n]) for n in names)
                    self._most = {n: _safe(s, defined[n], seen.last(s), safe) for n, s in told}
                yield self._most
            finally:
                self._most = {}
        except BaseException:  # also one that came on the way out
            self._most = {}
            raise

    def after(self, failure: str, lost: int | None = None, stage: str | None = None) -> int:
        """The epoch that a failure now would bring the session, or a stage, back to.

        That is the last one that all stages have again exactly, from the log or by running;
        those whose definition would be gone are not counted. What is still with the replicas
        after a lost disk is there after a loss of power, too. Of one stage it is the last that
        this stage has; 0 if its definition would be gone.

        Args:
            lost: how many replicas are lost with the disk; None: as many as the quorum allows.

        Raises:
            StageError: no such class of failure or no such stage is known, or there are not so
                many replicas.

        Cost: O(stages) for the session; a stage alone costs what moved since somebody asked.
        """
        try:
            kind = FailureClass(failure)
        except ValueError:
            raise StageError(
                f"unknown class of failure {failure!r}", hint="kernel, power or disk"
            ) from None
        reached = self._reached(kind, lost)
        seen, defined = self._seen()
        exact = self._exact(seen, defined, kind, None if lost is None else reached)
        if stage is not None:
            last = seen.last(seen.stage(stage))
            return min(reached.epoch, last, inclusive(exact[stage]))
        uppers = (
            exact[name]
            for name, each in seen.catalog.items()
            if defined[name].frame <= reached.frames and exact[name] <= seen.last(each)
            if each.live or not each.in_memory  # what has stopped in memory alone is gone already
        )
        return min(reached.epoch, inclusive(min(uppers, default=UNBOUNDED)))

    # -- levels --------------------------------------------------------------------------------

    def _reached(self, failure: FailureClass, lost: int | None = None) -> LevelProgress:
        """What is left of the log; to be asked before the snapshot, which must be no older."""
        if failure is FailureClass.KERNEL:
            return LevelProgress(NOWHERE.frame - 1, self._publisher.now)
        if failure is FailureClass.DISK:
            return LevelProgress(*self._replication.reached(lost))
        frames = self._publisher.store.log.durable
        return LevelProgress(frames, self._publisher.ledger.durable(frames))

    def _seen(self) -> tuple[Snapshot, dict[str, DefinitionOffset]]:
        """What there is now, and by which frames; one that comes about meanwhile is nowhere."""
        publisher = self._publisher
        seen, defined = publisher.snapshot, publisher.defined
        named = seen.graph.named
        return seen, {
            name: defined.get(named[name].log or 0, NOWHERE) if name in named else NOWHERE
            for name in seen.catalog
        }

    # -- bounds --------------------------------------------------------------------------------

    def _exact(
        self,
        seen: Snapshot,
        defined: dict[str, DefinitionOffset],
        failure: FailureClass,
        reached: LevelProgress | None,
    ) -> Mapping[str, int]:
        """The bound of each stage, as if the level had every epoch.

        Args:
            reached: what is left, if that is not what the class of failure leaves by itself.
        """
        if reached is not None:
            frames = Prefixes(reached.frames, reached.frames, reached.frames)
            nodes = {name: _vertex(name, seen.catalog, defined, frames) for name in seen.catalog}
            return {name: each.exact for name, each in surviving_epochs(nodes, failure).items()}
        with self._lock:
            return dict(self._followed(seen, defined)[failure].exact())

    def _followed(
        self, seen: Snapshot, defined: dict[str, DefinitionOffset]
    ) -> Mapping[FailureClass, ExactPrefixes]:
        """The bounds of what there is, moved by what has changed since somebody asked; locked.

        Interrupted while they move, or before it is said of what they are, all are made anew.
        """
        known, every = self._bounded or _Bounded.of_nothing()
        frames = Prefixes(*(self._reached(failure).frames for failure in FailureClass))
        names = {*other_inputs(seen.catalog, known.catalog), *known.waiting}
        names.update(name for name, each in defined.items() if known.defined.get(name) != each)
        if any(now < before for now, before in zip(frames, known.frames, strict=True)):
            names.update(seen.catalog)  # other replicas, which hold nothing yet
        changes: dict[str, FrontierNode | None] = {
            name: _vertex(name, seen.catalog, defined, frames)
            for name in names
            if name in seen.catalog
        }
        changes.update((name, None) for name in known.catalog if name not in seen.catalog)
        if changes:
            self._bounded = None
            for bounds in every.values():
                bounds.move(changes)
        least = min(frames)
        waiting = frozenset(
            name
            for name in changes
            if name in defined and least < max(defined[name].frame, _rise(defined[name]))
        )
        self._bounded = _Bounded(_Known(seen.catalog, defined, frames, waiting), every)
        return every


def _rise(defined: DefinitionOffset) -> int:
    """The frame since which replicas owe a stage, if they ever will."""
    return defined.owed if defined.owed != NOWHERE.frame else 0


def _safe(stage: Stage, defined: DefinitionOffset, last: int, reached: LevelProgress) -> int:
    """The last epoch of a stage that replicas are said to have, of what they have acknowledged."""
    if stage.options.persist == DISK and not (stage.options.nondeterministic or stage.frozen):
        return 0  # also while it has stopped
    return min(reached.epoch, inclusive(defined.owes(reached.frames, last + 1)))


def _at(reached: LevelProgress, last: int, defined: DefinitionOffset) -> int:
    """The last epoch of a stage that a level has."""
    return min(reached.epoch, inclusive(defined.upper(reached.frames, last + 1)))


def _vertex(
    name: str,
    catalog: Mapping[str, Stage],
    defined: Mapping[str, DefinitionOffset],
    frames: Prefixes,
) -> FrontierNode:
    """A stage as the calculus sees it. One that does not run has what its log has."""
    stage = catalog[name]
    own = NEVER if stage.in_memory else defined[name]
    upper = UNBOUNDED if stage.live else stage.last(0) + 1
    kernel, power, disk = frames
    logged = Prefixes(own.upper(kernel, upper), own.upper(power, upper), own.owes(disk, upper))
    if stage.definition is None or not stage.live or stage.held is not None:
        return FrontierNode((), logged)
    return FrontierNode(
        tuple(q for q in stage.definition.references if q in catalog),
        logged,
        not stage.options.nondeterministic,
        defined=Prefixes(*(defined[name].upper(reached, UNBOUNDED) for reached in frames)),
    )
