"""Redo records of epochs, definitions and rewinds.

A record has every value that follows from a frame. It is registered with the writer lock before the
frame is written. `finish` assigns these values if the frame reached the log, and nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, StageWork
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.session.state.transactions import Transaction
from nosync_nb.session.state.writer_lock import DefinitionOutcome
from nosync_nb.store.catalog.epoch_index import RewindMark
from nosync_nb.store.durability.frame_offsets import DefinitionOffset
from nosync_nb.store.log import Position
from nosync_nb.trace.history.history import History


class RedoTarget(Protocol):
    """The publisher, as far as a redo record needs it."""

    def reached(self, position: Position) -> bool:
        """Returns True if a frame is in the log."""

    def assign_epoch(self, record: EpochRedo) -> None:
        """Makes an epoch visible; may be repeated."""

    def assign_definition(self, record: DefinitionRedo) -> None:
        """Makes a definition visible; may be repeated."""

    def assign_rewind(self, record: RewindRedo) -> None:
        """Makes a rewind visible; may be repeated."""


class EpochRedo(NamedTuple):
    """An epoch between its record and its last assignment.

    Attributes:
        position: where its frame will be, and is if the log goes that far.
        retired: the files that are not needed any more after it.
        stats: the counters after it.
    """

    publisher: RedoTarget
    draft: EpochResult
    meta: Mapping[str, Any]
    utc: float
    transaction: Transaction
    position: Position
    retired: frozenset[str]
    stats: Mapping[str, int]

    def finish(self) -> None:
        """Makes the epoch visible, if its frame is written."""
        if self.publisher.reached(self.position):
            self.publisher.assign_epoch(self)
            self.transaction.stands(self.draft.epoch)


class DefinitionRedo(NamedTuple):
    """A definition between its record and its last assignment.

    Attributes:
        position: where its frame will be, and is if the log goes that far.
        snapshot: what readers see after it; its history is `seen(history)`.
        logs: those of named collections, after it.
        history: the past after it.
        catalog: as its frame has it, and the `signing.digest` of that.
        defined: by log, the frame that a named collection is defined by, after it.
        retired: the files that are not needed any more after it.
        work: what stages did last, after it.
        stats: the counters that it changes, after it.
        names: what descriptions are called after it, None: they have no name any more.
        outcome: told that it stands.
    """

    publisher: RedoTarget
    position: Position
    snapshot: Snapshot
    logs: Mapping[int, str]
    history: History
    runner: Runner
    catalog: Mapping[str, Any]
    digest: bytes
    defined: Mapping[int, DefinitionOffset]
    retired: frozenset[str]
    work: Mapping[str, StageWork]
    stats: Mapping[str, int]
    names: Mapping[Definition, str | None]
    outcome: DefinitionOutcome

    def finish(self) -> None:
        """Makes the definition visible, if its frame is written."""
        if self.publisher.reached(self.position):
            self.publisher.assign_definition(self)
            self.outcome.stand()


class RewindRedo(NamedTuple):
    """A rewind between its record and its last assignment.

    Attributes:
        definition: what it says besides: the stages as they go on, and what was computed of them.
        before_next: what has to be done before the next write; None: nothing.
    """

    publisher: RedoTarget
    definition: DefinitionRedo
    rewound: RewindMark
    before_next: Callable[[], None] | None

    def finish(self) -> None:
        """Makes the rewind visible, if its frame is written."""
        if self.publisher.reached(self.definition.position):
            self.publisher.assign_rewind(self)
            self.definition.outcome.stand()
