"""Publishes snapshots: the session shows exactly what the log has, whatever is raised.

An epoch, a definition and a rewind take the same path:

    prepare the values to assign, in one redo record -> write the frame -> assign

An exception may come between any two of these steps: from a signal, from another thread, or because
memory is refused. Nothing delays it. Instead the redo record is registered before the frame is
written, until everything is assigned. The next caller (the handler of the error itself, a commit, a
merge, a close) completes it: it assigns everything if the frame reached the log, and nothing
otherwise.

IMPORTANT: each assignment may run twice, because the next caller cannot know which of them have
run. So values are computed first, and an append must skip an entry that exists.

Failure: 1. The frame is written. 2. Ctrl-C; the epoch is not published, its rows are still pending.
3. The same call again writes the same number a second time. 4. At the next opening both count. The
redo record prevents this: step 3 first completes the epoch of step 1.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.position import Epoch
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, StageWork, VersionState
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import Snapshot, named_logs, visible_columns
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import FencedError, titled
from nosync_nb.session.state.metrics import WorkMetrics
from nosync_nb.session.state.signer import SignedCatalog
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.transactions import Transaction
from nosync_nb.session.state.writer_lock import DefinitionOutcome, WriterLock
from nosync_nb.store import durability as defined
from nosync_nb.store import retention_policy
from nosync_nb.store.catalog import signature
from nosync_nb.store.catalog.epoch_index import EpochIndex, EpochRecord, RewindMark, last_epoch_note
from nosync_nb.store.durability import DefinitionOffset
from nosync_nb.store.log import FramePosition
from nosync_nb.store.log_reader import RecoveredState
from nosync_nb.store.retention_policy import Retention
from nosync_nb.store.store import Store
from nosync_nb.trace.batch import Batch, Updates, concat_updates
from nosync_nb.trace.history.history import History
from nosync_nb.trace.history.sections import EncodedChange

Catalog = Mapping[str, Stage]


class Publisher:
    """The published snapshot, and the state of the log that belongs to it.

    All of it is changed here alone, with the writer lock. A reader takes `snapshot` once, and may
    read any other attribute that is a single reference.

    Attributes:
        store: the folder; a reader that reloads the log replaces it.
        ledger: the index of the epochs.
        snapshot: the snapshot that readers see.
        described: its stages, including those that are being defined.
        runner: runs the graph.
        position: position of the last frame.
        catalog: the catalog as the last definition wrote it.
        digest: the `signing.digest` of the catalog.
        defined: by log, the frame that defines a named collection.
        metrics: the counters that an epoch or a definition changes.
        garbage: the files that are no longer referenced.
        definition_names: the names of definitions.
    """

    def __init__(
        self,
        store: Store,
        writer_lock: WriterLock,
        metrics: WorkMetrics,
        subscriptions: Subscriptions,
    ) -> None:
        self.store = store
        self.ledger = EpochIndex()
        self.snapshot = Snapshot(VersionState(0, {}), Graph(), {}, visible_columns(store.history))
        self.described: Catalog = {}
        self.runner = Runner(self.snapshot.graph)
        self.position: FramePosition | None = None
        self.catalog: Mapping[str, Any] = {}
        self.digest = b""
        self.defined: Mapping[int, DefinitionOffset] = {}
        self._logs: Mapping[int, str] = {}  # logs of named collections: they have a history
        self._numbers_used = 0  # the numbers that nodes and traces have used
        self._writer_lock = writer_lock
        self.metrics = metrics
        self.garbage = FileCollector()
        self.definition_names = DefinitionNames(subscriptions)

    @property
    def last_epoch(self) -> int:
        """The last epoch."""
        return self.snapshot.version.epoch

    @property
    def numbered_epoch(self) -> Epoch:
        """The last epoch, as a number that remembers which epoch it denotes."""
        return self.snapshot.numbered_epoch(self.store.log.id.hex())

    @property
    def retention(self) -> Retention:
        """The retention policy of the past."""
        return retention_policy.retention_of(self.catalog)

    @property
    def removed_limits(self) -> str | None:
        """A note on limits of an older release that the catalog records; None if there are none."""
        return retention_policy.removed_limits(self.catalog)

    @property
    def durable(self) -> int:
        """The last epoch that is on disk."""
        return self.ledger.durable(self.store.log.durable)

    @property
    def fenced(self) -> bool:
        """True if another owner has taken over the log that this session wrote."""
        try:
            if self.store.log.mode != "r":
                self.store.log.check()
        except FencedError:
            return True
        return False

    def is_ended(self) -> bool:
        """Returns True if the session is closing, or another owner has the log."""
        return self._writer_lock.closing or self.fenced

    @property
    def named_files(self) -> set[str]:
        """Every file that may not be deleted.

        These are the files of traces, of the history, and of the checkpoint before the newest one.
        """
        files = files_of(self.snapshot.version) | self.store.history.files()
        return files | self.garbage.files

    def title_of(self, number: int) -> str:
        """Returns the input or stage that a trace or a log belongs to, as messages name it."""
        snapshot = self.snapshot
        for node in snapshot.graph:
            if number == node.log or number in (*node.state, *node.traces.values()):
                stage = snapshot.catalog.get(node.name or "")
                is_input = stage is not None and stage.is_input
                return f"input '{node.name}'" if is_input else titled(node.name or node.stage)
        return "a stage that was dropped"

    # -- epochs and definitions --------------------------------------------------------------

    def epoch(self, draft: EpochResult, meta: Mapping[str, Any], transaction: Transaction) -> int:
        """Writes and publishes an epoch; returns the number of its frame."""
        # Rounded to microseconds, because a lookup by datetime must match it.
        utc = self.ledger.not_before(round(time.time(), 6))
        where = self.next()
        snapshot = self.snapshot
        retired = _emptied_files(snapshot.version, draft.cleared) if draft.cleared else frozenset()
        stats = self.metrics.after(draft)
        self._writer_lock.register_redo(
            EpochRedo(self, draft, meta, utc, transaction, where, retired, stats)
        )
        written = self.store.write_epoch(draft, utc, meta, snapshot.graph)
        assert written == where
        self._writer_lock.finish()
        return where.seq

    def definition(self, record: DefinitionRedo, payload: bytes) -> None:
        """Writes and publishes a definition."""
        self._writer_lock.register_redo(record)
        written = self.store.write_definition(payload)
        assert written == record.position
        self._writer_lock.finish()

    def definition_redo(
        self,
        snapshot: Snapshot,
        logs: Mapping[int, str],
        history: History,
        runner: Runner,
        signed: SignedCatalog,
        retired: frozenset[str],
        drafts: Iterable[EpochResult],
        *,
        work: Mapping[str, StageWork] | None = None,
        names: Mapping[Definition, str | None] | None = None,
        outcome: DefinitionOutcome | None = None,
    ) -> DefinitionRedo:
        """Returns the redo record of a definition whose frame is the next one.

        Args:
            drafts: the epochs that were computed for it.
            work: the last work of each stage before these epochs; `None` means the current one.
        """
        works = [item for draft in drafts for item in draft.work.items()]
        return DefinitionRedo(
            self,
            self.next(),
            snapshot,
            logs,
            history,
            runner,
            signed.catalog,
            signed.digest,
            self.redefined(signed.catalog),
            retired,
            {**(self.metrics.stages if work is None else work), **dict(works)},
            self.metrics.after_runs(each for _, each in works),
            names or {},
            outcome or DefinitionOutcome(),
        )

    def rewind(self, record: RewindRedo, payload: bytes) -> None:
        """Writes and publishes a rewind to an earlier epoch."""
        self._writer_lock.register_redo(record)
        written = self.store.write_definition(payload, back=True)
        assert written == record.definition.position
        self._writer_lock.finish()

    def next(self) -> FramePosition:
        """Returns the position of the next frame."""
        head = self.store.log.head
        return FramePosition(head.seq + 1, head.offset)

    def redefined(self, catalog: Mapping[str, Any]) -> Mapping[int, DefinitionOffset]:
        """Returns, by log, the frames that define named collections after a definition.

        The definition is the next frame, and has the given catalog.
        """
        return defined.offsets_after_definition(
            self.defined, self.catalog, catalog, self.next().seq
        )

    def is_in_log(self, position: FramePosition) -> bool:
        """Returns True if a frame is in the log, after publishing it to readers of the log."""
        log = self.store.log
        if log.head.seq < position.seq:
            return False
        log.publish_head()
        return True

    def assign_epoch(self, record: EpochRedo) -> None:
        """Publishes an epoch whose frame is written; may be repeated."""
        draft, epoch, log = record.draft, record.draft.epoch, self.store.log
        log.note(last_epoch_note(self.ledger.incarnation, epoch))
        record_history(self.store.history, self._logs, draft, again=True)
        self.position = record.position
        self.metrics.assign(record.stats, draft.work)
        if record.retired or draft.spare:
            self.garbage.retire(record.retired | draft.spare)
        entry = EpochRecord(epoch, record.utc, record.position.seq, log.durable)
        if record.meta:
            label, once = record.meta.get("label"), record.meta.get("once")
            entry = entry._replace(label=label, once=once or {})
        self.ledger.record(entry)
        if self.snapshot.epoch < epoch:
            self.snapshot = self.snapshot.advanced(draft.version())

    def assign_definition(self, record: DefinitionRedo) -> None:
        """Publishes a definition whose frame is written; may be repeated."""
        self.position = record.position
        self.catalog, self.digest = record.catalog, record.digest
        self.defined = record.defined
        self.runner = record.runner
        self._logs = record.logs
        self.store.history.become(record.history)
        self.garbage.retire(record.retired)
        self.snapshot = record.snapshot
        self.described = record.snapshot.catalog
        self.metrics.become(record.stats, record.work)
        for definition, name in record.names.items():
            self.definition_names.call(definition, name)

    def assign_rewind(self, record: RewindRedo) -> None:
        """Publishes a rewind whose frame is written; may be repeated."""
        self.ledger.rewind(record.rewound)
        self.store.log.note(last_epoch_note(record.rewound.incarnation, record.rewound.epoch))
        self.assign_definition(record.definition)
        self._writer_lock.run_before_first_write(record.before_next)

    # -- being defined -----------------------------------------------------------------------

    def describe(self, catalog: Catalog) -> None:
        """Sets the stages that are being defined, which operator placement needs."""
        self.described = catalog

    def numbered(self, graph: Graph) -> Graph:
        """Returns a graph whose new nodes have numbers that no frame has used.

        A failed definition may have reserved numbers without writing a frame.
        """
        return graph.numbered(self._numbers_used)

    def take_numbers(self, upto: int) -> None:
        """Reserves numbers, whether the definition that uses them succeeds or not."""
        self._numbers_used = upto

    @property
    def logs(self) -> Mapping[int, str]:
        """The logs that have a history: those of named collections, with their names."""
        return self._logs

    # -- merges and packs --------------------------------------------------------------------

    def replace(self, version: VersionState) -> None:
        """Publishes a version with the same contents in other layers."""
        self.snapshot = self.snapshot.advanced(version)

    def repacked(self) -> None:
        """Publishes the history with the same contents in other packs."""
        self.snapshot = self.snapshot._replace(history=visible_columns(self.store.history))

    # -- opening -----------------------------------------------------------------------------

    def publish_recovered(self, recovered: RecoveredState) -> None:
        """Publishes the state of a recovered log."""
        self.store = recovered.store
        self.position = self.store.position
        self.ledger = recovered.ledger
        self.described = recovered.snapshot.catalog
        self.catalog = recovered.data
        if self.store.log.mode == "w" and recovered.data:
            self.digest = signature.digest(recovered.data)
        self.defined = {} if recovered.said is None else recovered.said.defined
        self._logs = named_logs(recovered.snapshot.graph)
        self.snapshot = recovered.snapshot

    def compiled(
        self, runner: Runner | None, version: VersionState, graph: Graph, catalog: Catalog
    ) -> None:
        """Publishes the compiled graph of a catalog that was read, with all of its state.

        Args:
            runner: runs the graph; `None` if a following definition sets it.
        """
        if runner is not None:
            self.runner = runner
        self.described = catalog
        self.snapshot = Snapshot(
            version, graph, catalog, visible_columns(self.store.history), self.ledger.incarnation
        )


def files_of(version: VersionState) -> set[str]:
    """Returns the files of a version's traces."""
    traces = version.traces.values()
    return {ref.path for trace in traces for layer in trace.layers for ref in layer.files}


def record_history(
    history: History, logs: Container[int], draft: EpochResult, *, again: bool = False
) -> None:
    """Appends the changes of an epoch to a history, for some logs.

    Args:
        again: True if the history may have some of the changes already.
    """
    epoch = draft.epoch
    for number, layout, (parts, refs) in draft.logged:
        if number not in logs:
            continue
        batch = parts[0]
        if refs:
            if not (again and history.last(number) >= epoch):
                history.append_files(number, epoch, batch.layout, refs, parts)
        elif batch.layout == layout:
            history.append(number, epoch, batch, again=again)
        else:
            change = tuple.__new__(EncodedChange, (layout, batch, unarranged_updates))
            history.append(number, epoch, change, again=again)


def _emptied_files(version: VersionState, numbers: Iterable[int]) -> frozenset[str]:
    """Returns the files of traces that an epoch empties."""
    layers = [layer for number in numbers for layer in version.traces[number].layers]
    return frozenset([ref.path for layer in layers for ref in layer.files])


def unarranged_updates(batches: Sequence[Batch], types: Sequence[str]) -> tuple[Updates, list[int]]:
    """Returns the updates of all batches, and the number of updates of each batch.

    It decodes batches that are not arranged in the layout of their log.
    """
    return concat_updates([batch.updates for batch in batches], types), [*map(len, batches)]


# -- redo records: every value that follows from a frame ---------------------------------------


class EpochRedo(NamedTuple):
    """The redo record of an epoch.

    Attributes:
        position: the position of its frame, which is written if the log reaches this position.
        retired: the files that are not needed after it.
        stats: the counters after it.
    """

    publisher: Publisher
    draft: EpochResult
    meta: Mapping[str, Any]
    utc: float
    transaction: Transaction
    position: FramePosition
    retired: frozenset[str]
    stats: Mapping[str, int]

    def finish(self) -> None:
        """Publishes the epoch, if its frame is written."""
        if self.publisher.is_in_log(self.position):
            self.publisher.assign_epoch(self)
            self.transaction.stands(self.draft.epoch)


class DefinitionRedo(NamedTuple):
    """The redo record of a definition.

    Attributes:
        position: the position of its frame, which is written if the log reaches this position.
        snapshot: the snapshot after it; its history is `visible_columns(history)`.
        logs: the logs of named collections after it.
        history: the history after it.
        catalog: the catalog in its frame.
        digest: the `signing.digest` of the catalog.
        defined: by log, the frame that defines a named collection, after it.
        retired: the files that are not needed after it.
        work: the last work of each stage after it.
        stats: the counters that it changes, with their new values.
        names: the definitions whose names it changes, with the new name; None removes a name.
        outcome: records that the definition is committed.
    """

    publisher: Publisher
    position: FramePosition
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
        """Publishes the definition, if its frame is written."""
        if self.publisher.is_in_log(self.position):
            self.publisher.assign_definition(self)
            self.outcome.mark_committed()


class RewindRedo(NamedTuple):
    """The redo record of a rewind.

    Attributes:
        definition: the stages after the rewind, and the state that was computed for them.
        before_next: the task that must run before the next write, if any.
    """

    publisher: Publisher
    definition: DefinitionRedo
    rewound: RewindMark
    before_next: Callable[[], None] | None

    def finish(self) -> None:
        """Publishes the rewind, if its frame is written."""
        if self.publisher.is_in_log(self.definition.position):
            self.publisher.assign_rewind(self)
            self.definition.outcome.mark_committed()


# -- files that are no longer referenced --------------------------------------------------------

EXPORTS_MAX = 64
"""DataFrames whose files are retained. An older one fails once its files are merged."""


class FileCollector:
    """The files of a session that are no longer referenced, until they may be deleted.

    A retired file is still named by the newest checkpoint. It expires when the next checkpoint is
    written. It is deleted after the checkpoint that follows, because recovery may start at the one
    before the newest.

    Each step adds a file to its new set before it removes the file from the old one. So an error
    between two steps loses no file: a file in both sets is deleted one checkpoint later.

    Threads: any thread may call `export`, because appending to a deque is atomic. All else needs
    the writer lock.

    Attributes:
        retired: files that are unreferenced since the last checkpoint.
        leaving: files that the checkpoint that is being written, or that failed, does not need.
        expiring: files that were unreferenced before that checkpoint.
        exports: the files that Spark DataFrames read when they are executed. Spark does not report
            when a DataFrame, or one derived from it, is dropped. So the files of the last ones are
            retained until the session ends.
        spilled: files written for such DataFrames alone, since the last checkpoint.
    """

    def __init__(self) -> None:
        self.retired: set[str] = set()
        self.leaving: set[str] = set()
        self.expiring: set[str] = set()
        self.exports: deque[frozenset[str]] = deque(maxlen=EXPORTS_MAX)
        self.spilled: deque[str] = deque()

    @property
    def files(self) -> set[str]:
        """The files that must not be deleted yet, except those of exports."""
        return self.retired | self.leaving | self.expiring

    def retire(self, names: AbstractSet[str]) -> None:
        """Adds files that are no longer needed; may be repeated."""
        self.retired |= names

    def expire(self, names: Iterable[str]) -> None:
        """Sets the files that were retired before the checkpoint that recovery started at."""
        self.expiring = set(names)

    def export(self, names: frozenset[str], *, spilled: bool = False) -> None:
        """Records the files that a DataFrame reads.

        Args:
            spilled: True if they were written for this DataFrame.
        """
        self.exports.append(names)
        if spilled:
            self.spilled.extend(names)

    def leave(self) -> set[str]:
        """Returns the files that the checkpoint that starts now does not need.

        The caller must not change the set.
        """
        spilled = list(self.spilled)
        self.leaving = self.leaving | self.retired | set(spilled)
        self.retired = set()
        for _ in spilled:
            self.spilled.popleft()
        return self.leaving

    def expired(self) -> set[str]:
        """Returns the files that may be deleted, because the last checkpoint is written."""
        read = self.expiring.intersection(chain.from_iterable(list(self.exports)))
        expired, self.expiring = self.expiring, self.leaving | read
        self.leaving = set()
        return expired


# -- names of definitions -----------------------------------------------------------------------


class DefinitionNames:
    """The names of a session's definitions, as long as a collection refers to them.

    A definition gets a name when it becomes a stage. After that, a collection of that definition
    reads the stage, and a new definition that uses it is compiled over the stage.

    Threads: a definition of stages changes the names, with the writer lock. Any thread may look one
    up.

    Args:
        subscriptions: the subscriptions; those that wait for a name are notified.
    """

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._mutex = threading.RLock()  # reentrant: a signal handler may interrupt a holder
        self._names: WeakKeyDictionary[Definition, str] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._names)

    def name_of(self, definition: Definition) -> str | None:
        """Returns the name of a stage or input; None if the definition has none."""
        return definition.name if definition.is_ref else self._names.get(definition)

    def read_by(self, definition: Definition) -> tuple[str, ...]:
        """Returns the name of a collection; if it has none, the names that it reads."""
        name = self.name_of(definition)
        return definition.references if name is None else (name,)

    def assigned_name(self, definition: Definition) -> str | None:
        """Returns the name of the stage that a definition has become; None if it is no stage.

        A reference to one name may have become a stage of another name.
        """
        return self._names.get(definition)

    def called(self, names: Collection[str]) -> list[Definition]:
        """Returns the definitions that have one of some names."""
        with self._mutex:
            return [each for each, name in self._names.items() if name in names]

    def call(self, definition: Definition, name: str | None) -> None:
        """Sets a name, or removes it if None, and notifies the subscriptions; may be repeated."""
        with self._mutex:
            if name is None:
                self._names.pop(definition, None)
            else:
                self._names[definition] = name
        if name is not None:
            self._subscriptions.named(definition, name)
