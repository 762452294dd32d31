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
from nosync_nb.store.durability import DefinitionOffset
from nosync_nb.store.log import Position
from nosync_nb.trace.history.history import History


class RedoTarget(Protocol):
    """The methods of the publisher that a redo record calls."""

    def is_in_log(self, position: Position) -> bool:
        """Returns True if a frame is in the log."""

    def assign_epoch(self, record: EpochRedo) -> None:
        """Makes an epoch visible; may be repeated."""

    def assign_definition(self, record: DefinitionRedo) -> None:
        """Makes a definition visible; may be repeated."""

    def assign_rewind(self, record: RewindRedo) -> None:
        """Makes a rewind visible; may be repeated."""


class EpochRedo(NamedTuple):
    """The redo record of an epoch.

    Attributes:
        position: where its frame will be; the frame is written if the log reaches this position.
        retired: the files that are not needed after it.
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
        if self.publisher.is_in_log(self.position):
            self.publisher.assign_epoch(self)
            self.transaction.stands(self.draft.epoch)


class DefinitionRedo(NamedTuple):
    """The redo record of a definition.

    Attributes:
        position: where its frame will be; the frame is written if the log reaches this position.
        snapshot: the snapshot after it; its history is `visible_columns(history)`.
        logs: the logs of named collections after it.
        history: the past after it.
        catalog: the catalog as its frame has it.
        digest: the `signing.digest` of the catalog.
        defined: by log, the frame that defines a named collection, after it.
        retired: the files that are not needed after it.
        work: the last work of each stage after it.
        stats: the counters that it changes, after it.
        names: the names of definitions after it; None: the definition has no name any longer.
        outcome: records that the definition is committed.
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
        if self.publisher.is_in_log(self.position):
            self.publisher.assign_definition(self)
            self.outcome.mark_committed()


class RewindRedo(NamedTuple):
    """The redo record of a rewind.

    Attributes:
        definition: the stages after the rewind, and the state that was computed for them.
        before_next: a task that must run before the next write; None: no task.
    """

    publisher: RedoTarget
    definition: DefinitionRedo
    rewound: RewindMark
    before_next: Callable[[], None] | None

    def finish(self) -> None:
        """Makes the rewind visible, if its frame is written."""
        if self.publisher.is_in_log(self.definition.position):
            self.publisher.assign_rewind(self)
            self.definition.outcome.mark_committed()
