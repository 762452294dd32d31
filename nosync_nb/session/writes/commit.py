"""Commits a transaction: all of it becomes a visible epoch, or none of it.

    compute the epoch -> write its frame -> the log checks its owner -> publish by one assignment

Until the frame is written, an error changes nothing. After that the epoch is committed, even if an
error is raised, and a note of the error says so. A written frame survives the death of this
process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from nosync_nb.collections.position import Epoch
from nosync_nb.dataflow.runtime.delta import Delta
from nosync_nb.dataflow.runtime.epoch_result import ENDLESS, EpochResult
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import (
    CorruptLogError,
    DurabilityError,
    FencedError,
    OutcomeUnknownError,
    OutOfMemoryError,
    StageError,
)
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.recovery.repair import RepairService
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.transactions import PendingInputChanges, Transaction, Transactions
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.session.writes.determinism_check import DeterminismChecks
from nosync_nb.session.writes.idempotency import (
    BLOCK,
    LoadRegistry,
    check_idempotency_key,
    load_summary,
)
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.execution.cost_model import FEW_ROWS


class EpochBlock:
    """The value of `with session.epoch() as e`: `number` once committed, `skipped`."""

    def __init__(self, transaction: Transaction, *, skipped: bool) -> None:
        self._transaction = transaction
        self.skipped = skipped

    def skip(self) -> None:
        """Records that all of its loads are committed already."""
        self.skipped = True

    def note(self, mark: str, said: str, before: str) -> None:
        """Records a text in the log with this epoch, if the current text is the expected one."""
        self._transaction.note(mark, said, before)

    @property
    def number(self) -> int | None:
        """The number of its epoch, even if an error was raised after the commit; else None."""
        return self._transaction.epoch


class CommitService:
    """Commits transactions as epochs, one at a time.

    Args:
        maintenance, determinism_checks: notified after an epoch.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        transactions: Transactions,
        spark_connection: SparkConnection,
        subscriptions: Subscriptions,
        maintenance: Maintenance,
        determinism_checks: DeterminismChecks,
        replication: ReplicationService,
        repairs: RepairService,
        load_registry: LoadRegistry,
        worker: BackgroundWorker,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._transactions = transactions
        self._spark_connection = spark_connection
        self._cleanup = spark_connection.bulk().files.end
        self._subscriptions = subscriptions
        self._maintenance = maintenance
        self._determinism_checks = determinism_checks
        self._replication = replication
        self._repairs = repairs
        self._load_registry = load_registry
        self._worker = worker

    @property
    def last_epoch(self) -> int:
        """The last epoch."""
        return self._publisher.last_epoch

    def commit(
        self,
        transaction: Transaction,
        wait: str | None,
        label: str | None,
        timeout: float | None = None,
    ) -> int:
        """Runs a transaction as the next epoch; see `Session.commit`."""
        # Not by `enough_memory`, because passing arguments through it slows down small epochs.
        try:
            return self._commit(transaction, wait, label, timeout)
        except OutOfMemoryError:
            raise
        except MemoryError as error:
            raise OutOfMemoryError(
                f"out of memory: {self._outcome_text(transaction)}",
                hint="commit fewer rows at a time, or call session.discard() and free some memory",
            ) from error

    def _outcome_text(self, transaction: Transaction) -> str:
        """Returns a message with the outcome of a commit that ran out of memory."""
        now = self.last_epoch
        if not transaction:
            return f"epoch {now} is the last committed one, and nothing is pending"
        rows_count = sum(changes.rows for changes in transaction.pending.values())
        return (
            f"epoch {now + 1} was not committed, its {rows_count} rows are still pending, and"
            f" epoch {now} has not changed"
        )

    def _commit(
        self, transaction: Transaction, wait: str | None, label: str | None, timeout: float | None
    ) -> int:
        if wait is not None:
            self._check_level(wait)
        before, started = self._publisher.last_epoch, time.perf_counter()
        self._worker.stir()
        try:
            draft, seq, unused, epoch = self._commit_locked(transaction, label)
        except CorruptLogError as error:
            if self._publisher.last_epoch != before:  # an epoch is committed, perhaps this one
                raise
            draft, seq, unused, epoch = self._repairs.again(
                error, lambda: self._commit_locked(transaction, label)
            )
        try:
            if unused:
                self._publisher.store.remove(unused)
            self._notify_and_plan(draft)
            if draft.due:
                self._maintenance.keep_up(draft, time.perf_counter() - started)
        except BaseException as error:
            _note_committed(error, draft.epoch)
            raise
        if wait is not None:
            self._wait_after_commit(wait, seq, draft.epoch, timeout)
        if self._worker.failures.unreported:
            self._worker.failures.report()
        self._worker.stir()
        large = draft.largest == ENDLESS
        del draft  # because it keeps alive the memory to give back
        if large:
            self._maintenance.plan_giving_back()
        return epoch

    def _commit_locked(
        self, transaction: Transaction, label: str | None
    ) -> tuple[EpochResult, int, set[str], Epoch]:
        """Commits a transaction; returns the epoch result, its frame, unused files, and epoch."""
        writer_lock, publisher = self._writer_lock, self._publisher
        with writer_lock.lock:
            writer_lock.finish()
            before: int | None = None
            try:
                writer_lock.writable(
                    "commit"
                )  # before the last epoch is read: others may commit meanwhile
                before = publisher.last_epoch
                draft, meta = self._compute(transaction, label)
                transaction.log()
                unused = transaction.files
                seq = publisher.epoch(draft, meta, transaction)
                if unused:
                    unused -= publisher.named_files
                return draft, seq, unused, publisher.numbered_epoch
            except BaseException as error:
                writer_lock.finish()
                if before is not None and publisher.last_epoch > before:
                    _note_committed(error, publisher.last_epoch)
                raise

    def _compute(
        self, transaction: Transaction, label: str | None
    ) -> tuple[EpochResult, dict[str, Any]]:
        """Computes the next epoch; returns it and the metadata of its frame."""
        publisher = self._publisher
        snapshot = publisher.snapshot
        version = snapshot.version
        if transaction.unchanged:
            refuse_changed(snapshot, transaction.unchanged)
        inputs: dict[int, Delta] = {}
        for name, changes in transaction.inputs.items():
            node = snapshot.graph.named[_unchanged_input(snapshot, changes).name]
            delta = changes.delta(snapshot.contents(name))
            if delta is not None:
                inputs[node.id] = delta
        meta: dict[str, Any] = {}
        if label is not None:
            named = publisher.ledger.labelled(label)
            if named is not None:
                raise StageError(
                    f"label '{label}' is used for epoch {named}",
                    hint="use another label",
                )
            meta["label"] = label
        once = self._loads_to_record(transaction)
        if once:
            meta["once"] = once

        def run() -> EpochResult:
            return publisher.runner.epoch(version, inputs, version.epoch + 1)

        if sum(map(len, inputs.values())) <= FEW_ROWS:  # too short for a progress display
            return self._writer_lock.run(run, self._cleanup), meta
        with self._load_activity(transaction, inputs):
            return self._writer_lock.run(run, self._cleanup), meta

    def _load_activity(
        self, transaction: Transaction, inputs: Mapping[int, Delta]
    ) -> AbstractContextManager[object]:
        """Records the computation of a large epoch as an activity, for progress displays."""
        rows_count = sum(changes.rows for changes in transaction.inputs.values())
        what = f"computing the epoch of {rows_count:,} rows"
        size_bytes = sum(delta.size_bytes for delta in inputs.values())
        return self._publisher.metrics.activities.record(what, size_bytes, in_bytes=True)

    def _loads_to_record(self, transaction: Transaction) -> Mapping[str, str]:
        """Returns the idempotency keys and the notes that an epoch records.

        Failure: 1. Two threads look for a key and find none. 2. Both commit its rows. The check
        runs with the writer lock, so the second one raises.

        Raises:
            StageError: another thread has committed a load of the same key since it was taken.
        """
        once, notes, ledger = transaction.once, transaction.notes, self._publisher.ledger
        others = any(ledger.load(mark) != before for mark, (_, before) in notes.items())
        if others or any(map(ledger.loaded, once)):
            raise StageError(
                "another thread has committed a load with the same key",
                hint="call session.discard(), then load again: rows that are already committed are"
                " skipped",
            )
        return {**once, **{mark: said for mark, (said, _) in notes.items()}} if notes else once

    def _notify_and_plan(self, draft: EpochResult) -> None:
        """Plans background work and notifies listeners; without the lock."""
        publisher = self._publisher
        # First, because an audit may replace nodes.
        if self._subscriptions.has_listeners:
            self._writer_lock.call_user_functions(
                self._subscriptions.notify, draft, publisher.snapshot
            )
        self._spark_connection.follow_new()
        if draft.due:
            self._maintenance.plan_merges(draft.due)
        self._determinism_checks.after(draft.epoch)
        self._maintenance.plan_due(draft)

    def begin_transaction(self, label: str | None = None) -> Transaction:
        """Starts a transaction that becomes the current one until it commits or is discarded.

        It is the transaction of all threads that are not in an `epoch` block.
        """
        transactions = self._transactions
        outer = transactions.shared

        def end(transaction: Transaction, commit: bool, wait: Any, name: Any) -> int:
            ended = not commit
            try:
                if not commit:
                    return self.discard(transaction)
                return self.commit(transaction, wait, name or transaction.label)
            finally:
                ended = ended or transaction.epoch is not None  # committed, whatever was raised
                if ended and transactions.shared is transaction:
                    transactions.share(outer)

        transaction = Transaction(label, ender=end)
        transactions.share(transaction)
        return transaction

    @contextmanager
    def epoch_block(self, once: Any, label: str | None) -> Iterator[EpochBlock]:
        """Runs a block as one transaction; see `Session.epoch`."""
        check_idempotency_key(once, "epoch")
        mark = None if once is None else f"{BLOCK}{once}"
        transaction = Transaction(label, keyed=mark is not None)
        block = EpochBlock(
            transaction, skipped=mark is not None and self._load_registry.is_loaded(mark)
        )
        try:
            with self._transactions.block(transaction):
                yield block
                if mark is not None and block.skipped:
                    self._load_registry.skip(
                        "epoch", once, mark, load_summary(transaction), stacklevel=5
                    )
                elif transaction.skipped and not transaction:  # all loads are recorded
                    block.skip()
                else:
                    if mark is not None:
                        transaction.record({mark: load_summary(transaction)})
                    self.commit(transaction, None, label)
        finally:
            self.discard(transaction)

    def discard(self, transaction: Transaction) -> int:
        """Drops the pending changes and their files; returns the number of updates dropped."""
        unused = set() if transaction.logged else transaction.files
        count = transaction.clear()
        self._publisher.store.remove(unused)
        return count

    def sync(self, level: str, timeout: float | None = None) -> None:
        """Waits until all epochs have reached a durability level; see `Session.sync`."""
        self._check_level(level)
        self._wait_for_level(level, None, self.last_epoch, timeout)

    def _wait_for_level(
        self, level: str, seq: int | None, epoch: int, timeout: float | None
    ) -> None:
        """Waits until a frame has reached a durability level.

        Args:
            seq: the number of the frame; None means the last one.
            epoch: the last epoch up to the frame, for messages.
        """
        log = self._publisher.store.log
        seq = log.head.seq if seq is None else seq
        activities = self._publisher.metrics.activities
        with activities.record(f"waiting for the disk: epoch {epoch}"):
            log.sync(seq)
        if level == "replicas":
            with activities.record(
                f"waiting for replicas: epoch {epoch}", in_bytes=True
            ) as waiting:
                self._replication.wait(seq, epoch, timeout, waiting)

    def _check_level(self, level: str) -> None:
        """Raises DurabilityError if the level is unknown, or the log lacks the replicas for it."""
        if level not in ("disk", "replicas"):
            raise DurabilityError(f"unknown level {level!r}", hint='use "disk" or "replicas"')
        if level == "replicas" and not self._replication.settings.replicas:
            raise DurabilityError(
                "this log has no replicas",
                hint="open it with replicas=['file:///...'], or use wait='disk'",
            )

    def _wait_after_commit(self, level: str, seq: int, epoch: int, timeout: float | None) -> None:
        """Waits for the level of a committed epoch; a failure does not undo the commit."""
        try:
            self._wait_for_level(level, seq, epoch, timeout)
        except KeyboardInterrupt as error:
            if level == "disk":
                raise
            unknown = OutcomeUnknownError(
                f"epoch {epoch} is committed on this machine; the wait for its replicas was"
                " interrupted",
                hint="do not insert its rows again; call session.sync('replicas') to wait again",
                epoch=epoch,
            )
            raise unknown from error
        except FencedError as error:
            error.add_note(
                f"epoch {epoch} is in this process's memory; the log of the new owner may lack it"
            )
            raise
        except DurabilityError as error:
            place = "in memory, but may not be on disk" if level == "disk" else "here"
            unknown = OutcomeUnknownError(
                f"epoch {epoch} is committed {place}: {error}",
                hint=f"do not insert its rows again; call session.sync({level!r}) to wait again",
                errno=error.errno,
                epoch=epoch,
            )
            raise unknown from error


def _note_committed(error: BaseException, epoch: int) -> None:
    """Adds a note to an error that was raised after the epoch was committed."""
    error.add_note(f"epoch {epoch} is committed: do not insert its rows again")


class ChangedMeanwhileError(StageError):
    """Another transaction has changed an input whose rows a statement of this one has read."""


def refuse_changed(snapshot: Snapshot, unchanged: Mapping[str, int]) -> None:
    """Raises ChangedMeanwhileError if one of some inputs has changed since it was read.

    Failure: 1. DELETE finds a row. 2. Another thread removes this row, and commits. 3. The DELETE
    commits: the row now has a count below 0.

    Args:
        unchanged: the inputs, each with its `last_change`.
    """
    for name, epoch in unchanged.items():
        if name in snapshot.catalog and last_change(snapshot, name) != epoch:
            raise ChangedMeanwhileError(
                f"input '{name}': another thread has changed it since the statement read it",
                hint="run the statement again",
                stage=name,
            )


def last_change(snapshot: Snapshot, name: str) -> int:
    """Returns the epoch behind the last change of an input; 0 if it never had a row."""
    layers = snapshot.contents(name).layers
    return layers[-1].upper if layers else 0


def _unchanged_input(snapshot: Snapshot, changes: PendingInputChanges) -> Stage:
    """Returns the current stage of pending changes, if it is still the same input."""
    stage = changes.stage
    current = snapshot.catalog.get(stage.name)
    if current is stage:
        return stage
    if (
        current is None
        or not current.is_input
        or (current.uid, current.schema) != (stage.uid, stage.schema)
    ):
        raise StageError(
            f"input '{stage.name}' was dropped or renamed while {changes.rows} changes were"
            " pending",
            hint="call session.discard(), and insert into the current input",
            stage=stage.name,
        )
    return current
