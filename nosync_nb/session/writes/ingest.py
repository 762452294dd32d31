"""Adds rows for inputs to the current transaction, at the time of the call.

The rows of a large load wait in files, in the arrangement of the input, because in memory they
would exist twice during the commit. The frame of the epoch names these files. A discarded
transaction deletes them.
"""

from __future__ import annotations

from typing import Any

from nosync_nb import rows
from nosync_nb.dataflow.runtime.delta import SMALL_ROWS, Delta
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import CorruptLogError, OutOfMemoryError, StageError, warn
from nosync_nb.rows import Schema
from nosync_nb.rows.array_ops import ones
from nosync_nb.rows.types import row_bytes
from nosync_nb.session.recovery.repair import RepairService
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.transactions import (
    PendingCall,
    PendingInputChanges,
    Transactions,
    key_text,
)
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.session.writes.idempotency import load_text
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.execution.cost_model import FEW_ROWS
from nosync_nb.store.store import RunFiles
from nosync_nb.trace.batch import Updates, row_text

LOAD_BYTES = 32 << 20
"""The least size of inserted rows that wait in files, in bytes."""


class ConcurrentLoadError(Exception):
    """A load with the same key is recorded or pending already; nothing was done."""


class IngestService:
    """Adds rows to the inputs of a session; has no state.

    Threads: any thread may add rows. An add and a commit of the same transaction both take the
    writer lock, so that the commit loses no row.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        transactions: Transactions,
        spark_connection: SparkConnection,
        repairs: RepairService,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._transactions = transactions
        self._spark_connection = spark_connection
        self._repairs = repairs
        self._admit = spark_connection.bulk().admit

    def stage(self, name: str) -> Stage:
        """Returns the entry of an input in the published catalog."""
        return self._publisher.snapshot.catalog[name]

    def ingest(self, name: str, kind: str, data: Any, mark: str | None = None) -> int:
        """Takes rows for an input at the call; returns the number of rows that it adds and removes.

        Args:
            mark: the mark of the load in the log, if it has an idempotency key.

        Raises:
            ConcurrentLoadError: an epoch, or the current transaction, has the mark.
        """
        # Not by `enough_memory`, because passing arguments through it slows down small epochs.
        try:
            return self._ingest(name, kind, data, mark)
        except OutOfMemoryError:
            raise
        except MemoryError as error:
            raise OutOfMemoryError(
                f"out of memory: the rows for input '{name}' were not inserted, and none of"
                " them is pending",
                hint="insert them in several parts, or as a Spark DataFrame",
            ) from error

    def _ingest(self, name: str, kind: str, data: Any, mark: str | None) -> int:
        stage = self._writable_input(name)
        frame = self._spark_connection.is_frame(data)
        fetched = self._spark_connection.fetch(data, stage) if frame else data
        if frame and fetched is None:
            layouts = tuple(self._publisher.snapshot.graph.named[name].traces)
            change = PendingCall(kind, None, self._spark_connection.ingest(data, stage, layouts))
            try:
                return self._add_with_repair(stage, change, mark)
            except BaseException:
                if not self._is_pending(stage, change):
                    self._publisher.store.remove(change.files)
                raise
        rows_count, size_bytes = _size_of(fetched, stage.schema)
        if not rows_count:
            return self._add_converted(stage, kind, fetched, mark)
        self._admit(name, rows_count, size_bytes)
        what = f"inserting {rows_count:,} rows into {name}"
        with self._publisher.metrics.activities.record(what, size_bytes, in_bytes=True):
            return self._add_converted(stage, kind, fetched, mark)

    def _add_converted(self, stage: Stage, kind: str, data: Any, mark: str | None) -> int:
        """Adds rows that are in this process."""
        columns, n = rows.to_columns(data, stage.schema, f"input '{stage.name}'")
        updates = Updates(columns, ones(n))
        if kind == "insert" and _is_load(stage, updates):
            return self._add_spilled(stage, updates, mark)
        return self._add_with_repair(stage, PendingCall(kind, updates), mark)

    def _add_spilled(self, stage: Stage, updates: Updates, mark: str | None) -> int:
        """Adds many rows, which wait in files, or in memory if the disk refuses them."""
        epoch, node = (
            self._publisher.last_epoch + 1,
            self._publisher.snapshot.graph.named[stage.name],
        )
        files, change = RunFiles(self._publisher.store), None
        try:
            change = PendingCall("insert", None, files.arranged(node.traces, updates, epoch))
            return self._add_with_repair(stage, change, mark)
        except BaseException:
            if change is None or not self._is_pending(stage, change):
                files.end(failed=True)
            raise

    def _is_pending(self, stage: Stage, change: PendingCall) -> bool:
        """Returns True if a change was added.

        An interrupt right after the add must not delete its files.
        """
        with self._writer_lock.lock:
            pending = self._transactions.current.inputs.get(stage.name)
            return pending is not None and any(each is change for each in pending.changes)

    def keys(self, keys: Any, name: str, schema: Schema) -> Any:
        """Returns the keys of rows to delete: a DataFrame is fetched over Arrow."""
        if self._spark_connection.is_frame(keys):
            return self._spark_connection.keys(keys, self.stage(name), schema)
        return keys

    def add(self, name: str, change: PendingCall) -> int:
        """Adds a change of an input to the current transaction."""
        return self._add_with_repair(self._writable_input(name), change)

    def _add_with_repair(self, stage: Stage, change: PendingCall, mark: str | None = None) -> int:
        once = None if mark is None else (mark, load_text(stage, [change]))
        try:
            count, absent = self._add(stage, change, once)
        except CorruptLogError as error:  # in the contents of the input; nothing was added
            count, absent = self._repairs.again(error, lambda: self._add(stage, change, once))
        if absent is not None:
            warn(_absent_text(stage, absent), stacklevel=None)
        return count

    def _add(
        self, stage: Stage, change: PendingCall, once: tuple[str, str] | None
    ) -> tuple[int, Updates | None]:
        """Adds a change; returns its row count, and the rows that a keyed remove did not find."""
        name = stage.name
        with self._writer_lock.lock:
            self._writer_lock.finish()
            inputs = self._transactions.current.inputs
            changes = inputs.get(name)
            if once is not None and self._is_recorded(once[0], changes):
                raise ConcurrentLoadError
            is_new, contents = changes is None, self._publisher.snapshot.contents(name)
            if changes is None:
                changes = inputs[name] = PendingInputChanges(stage, contents)
            try:
                count = changes.add(change, contents, once)
                by_key = change.kind == "remove" and stage.key is not None
                return count, changes.absent(change) if by_key else None
            except BaseException:
                if is_new:
                    del inputs[name]
                raise

    def _is_recorded(self, mark: str, changes: PendingInputChanges | None) -> bool:
        """Returns True if a load is recorded or pending. The caller must hold the writer lock.

        Failure: 1. Two threads look up the key of a load, and neither finds it. 2. Both add the
        load's rows to the pending changes. The lock prevents this.
        """
        waits = changes is not None and mark in changes.idempotency_keys
        return waits or self._publisher.ledger.loaded(mark)

    def _writable_input(self, name: str) -> Stage:
        self._writer_lock.writable("insert", rebuilt=False)
        stage = self._publisher.snapshot.catalog.get(name)
        if stage is None or not stage.is_input:
            raise StageError(f"input '{name}' no longer exists", hint="define it again")
        return stage


def _absent_text(stage: Stage, absent: Updates) -> str:
    """Returns the warning for rows that a keyed input should remove and does not have."""
    more = int(absent.diff.sum()) - 1
    others = f", nor do {more} more of the rows" if more else ""
    return (
        f"input '{stage.name}': row {row_text(absent.columns, stage.schema.types)} does not"
        f" exist{others}: nothing was removed for it\nHint:"
        f" {stage.name}.delete([{key_text(stage, absent, 0)}]) removes the row of that key"
    )


def _is_load(stage: Stage, updates: Updates) -> bool:
    """Returns True if the rows to insert are so large that they wait in files."""
    if stage.key is not None or len(updates.diff) <= SMALL_ROWS:
        return False
    return Delta(stage.schema.types, updates).size_bytes >= LOAD_BYTES


def _size_of(data: Any, schema: Schema) -> tuple[int, int]:
    """Returns the number of rows of data, and their bytes.

    Both are 0 for few rows, and for data of unknown length, such as an iterator. For a list, the
    bytes are estimated from the types of the columns.
    """
    if not hasattr(data, "__len__") or len(data) <= FEW_ROWS:
        return 0, 0
    if type(data) in (list, tuple):
        row = row_bytes(schema.types)
        return len(data), len(data) * row
    size = getattr(data, "nbytes", None)
    if size is not None:  # an Arrow table
        return getattr(data, "num_rows", 0), size
    usage = getattr(data, "memory_usage", None)
    return (0, 0) if usage is None else (len(data), int(usage(index=False).sum()))
