"""Evaluates queries within a transaction: with the changes of its earlier statements.

A query that reads an input with pending changes reads them. A query over stages that depend on
such an input reads the stages of a trial epoch, which is computed and dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from nosync_nb.collections.definition import Definition, reference_to
from nosync_nb.collections.readable import refuse_negative
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.snapshot import Snapshot, collection_state
from nosync_nb.rows import Schema
from nosync_nb.session.reads.log_follower import LogFollower
from nosync_nb.session.reads.reader import SnapshotReader
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.transactions import PendingInputChanges, Transactions
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch


class RowsAtEpoch(NamedTuple):
    """The rows of an input or a stage at an epoch."""

    epoch: int
    schema: Schema
    batch: Batch


class StatementReader:
    """Evaluates the queries of statements; has no state."""

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        transactions: Transactions,
        spark_connection: SparkConnection,
        reader: SnapshotReader,
        follower: LogFollower,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._transactions = transactions
        self._release_files = spark_connection.bulk().files.end
        self._reader = reader
        self._following = follower.following

    def contents(self, name: str) -> Trace:
        """Returns the contents of an input, after the pending changes."""
        snapshot = self._publisher.snapshot
        changes = self._transactions.current.pending.get(name)
        contents = snapshot.contents(name)
        return contents if changes is None else changes.contents_after(contents)

    def rows(
        self, definition: Definition, contents: Mapping[str, Batch] = MappingProxyType({})
    ) -> Batch:
        """Returns the rows of a query, after the pending changes of the current transaction.

        Args:
            contents: the rows of inputs that the query can find; others do not matter to it.

        Raises:
            NegativeMultiplicityError: if the count of a row is below 0.

        Cost: reads the inputs and stages that the query names. If it reads a stage that depends on
        a pending change, also that of an epoch of the pending changes.
        """
        batch = self._following(lambda: self._rows(definition, contents))
        epoch = partial(self._reader.epoch, None, self._publisher.snapshot)
        repair = partial(self._reader.repair_command, definition)
        refuse_negative(batch, "this query", epoch, repair)
        return batch

    def rows_at(self, name: str, at: Any) -> RowsAtEpoch:
        """Returns the committed rows of an input or a stage at an epoch.

        Raises:
            TimeError: there is no such epoch, or the rows at it are no longer retained separately.
            NegativeMultiplicityError: if the count of a row is below 0.

        Cost: that of a read at the epoch.
        """

        def read() -> RowsAtEpoch:
            snapshot = self._publisher.snapshot
            epoch = self._reader.epoch(at, snapshot)
            batch = collection_state(snapshot, name, epoch)
            return RowsAtEpoch(epoch, snapshot.stage(name).schema, batch)

        found = self._following(read)
        tree = reference_to(name, found.schema)
        repair = partial(self._reader.repair_command, tree)
        refuse_negative(found.batch, f"'{name}'", lambda: found.epoch, repair)
        return found

    def _rows(self, definition: Definition, known: Mapping[str, Batch]) -> Batch:
        snapshot, pending = self._publisher.snapshot, self._transactions.current.pending
        read = set(definition.references) - known.keys()
        affected = read & _affected(snapshot, pending)
        if not affected <= pending.keys():
            return self._after_trial_epoch(definition)
        contents = {name: self.contents(name).consolidated() for name in affected} | dict(known)
        return self._reader.scratch(snapshot, definition, snapshot.epoch, contents)

    def _after_trial_epoch(self, definition: Definition) -> Batch:
        """Computes the epoch of the pending changes, and evaluates a query over its stages."""
        writer_lock, publisher = self._writer_lock, self._publisher

        def run() -> Batch:
            snapshot = publisher.snapshot
            inputs = {}
            for name, changes in self._transactions.current.pending.items():
                delta = changes.delta(snapshot.contents(name))
                if delta is not None:
                    inputs[snapshot.graph.named[name].id] = delta
            epoch = snapshot.epoch + 1
            draft = publisher.runner.epoch(snapshot.version, inputs, epoch)
            after = snapshot.advanced(VersionState(epoch, draft.traces))
            return self._reader.scratch(after, definition, epoch)

        with writer_lock.lock:
            writer_lock.finish()
            writer_lock.writable("evaluate")
            return writer_lock.run(run, self._drop_files)

    def _drop_files(self, *, failed: bool) -> None:
        """Deletes the files of the trial epoch, which no frame names."""
        del failed
        self._release_files(failed=True)


def _affected(snapshot: Snapshot, pending: Mapping[str, PendingInputChanges]) -> set[str]:
    """Returns the inputs with pending changes, and the stages that read them, also indirectly."""
    affected = set(pending)
    if not affected:
        return affected
    reads = snapshot.reads
    count = -1
    while count < len(affected):
        count = len(affected)
        affected |= {name for name, names in reads.items() if _meets(names, affected)}
    return affected


def _meets(names: Iterable[str], others: set[str]) -> bool:
    return not others.isdisjoint(names)
