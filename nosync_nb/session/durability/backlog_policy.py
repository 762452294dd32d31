"""Demotes stages to durability level `disk` while the replicas have too large a backlog.

    the backlog of a quorum exceeds                   stages are demoted: 1, 2, 4, ... at a time,
    `UserLimits.backlog_bytes`                        those first that are cheapest to recompute
    it is half of that, with deferred files           all of them are restored

While a stage is demoted, it is treated as one with level `disk` (`levels`). Its frames and packs
are shipped as before. Its row files are shipped when nothing else is missing, and an epoch is safe
without them. The frontier that was reported for replicas stays (`frontiers`).

After the loss of the disk, the stage is recomputed where replicas lack its files. Hence a stage is
demoted only if a recomputation returns the same rows at every readable epoch. Inputs,
nondeterministic stages, stopped stages, and stages with `persist="replicas"` are never demoted.

The catalog records the demoted stages, and each change is a definition that changes nothing else: a
copy that ends at any frame contains its own replication requirement. The backlog of a replica
beyond the quorum is counted separately: it delays no epoch, so no stage is demoted for it.

Before any demotion a checkpoint is written, if it removes enough from the queue. The checkpoint
replaces the frames before it. It releases the changes that the history keeps in memory, and the
files that merges have replaced: a replica that lacks such files no longer receives them. The
checkpoint is on disk before any of these are dropped. It is also written for a replica beyond the
quorum, because it lowers no durability level.

Failure: 1. Files are deferred, so the backlog falls and all stages are restored. 2. The deferred
files count as backlog again, and the stages are demoted again, and so on. Hence deferred files are
counted before stages are restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.dataflow.graph import Node
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import DurabilityError
from nosync_nb.session.backfill.definition_diff import Catalog, unchanged_decision
from nosync_nb.session.backfill.execute import BackfillExecutor
from nosync_nb.session.backfill.plan import span_of
from nosync_nb.session.durability.frontiers import FrontierService
from nosync_nb.session.durability.replication import (
    ReplicationBacklog,
    ReplicationService,
    demoted_stages,
)
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.state.limits import UserLimits
from nosync_nb.session.state.publisher import Publisher, files_of
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.store.replication import file_layout
from nosync_nb.trace.epoch_ranges import EpochRanges


class BacklogPolicy:
    """Decides which stages are demoted, as replicas fall behind and catch up.

    It evaluates the backlog after each message about a replica. The writer's lock guards its state.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        executor: BackfillExecutor,
        replication: ReplicationService,
        frontiers: FrontierService,
        maintenance: Maintenance,
        worker: BackgroundWorker,
        limits: UserLimits,
    ) -> None:
        self._writer_lock = writer_lock
        self._maintenance = maintenance
        self._publisher = publisher
        self._executor = executor
        self._replication = replication
        self._frontiers = frontiers
        self._worker = worker
        self._limits = limits
        self._demotions = 0  # steps since no stage was demoted
        self._changed_at = -1  # log offset of the last change
        self._without_demoted: Mapping[str, Stage] | None = None  # a catalog without demoted stages
        self._exhausted: Mapping[str, Stage] | None = None  # a catalog without further candidates
        replication.on_progress(self.submit_if_due)

    def submit_if_due(self) -> None:
        """Submits a change to the worker if one is due. Any thread may call it without a lock."""
        backlog = self._replication.backlog()
        if backlog is not None and (
            self._has_superseded_files(backlog) or self._direction(backlog)
        ):
            self._worker.submit("scaling", self._change, name="adapting to the replication backlog")

    def _has_superseded_files(self, backlog: ReplicationBacklog) -> bool:
        """Returns True if a replica's backlog is too large and a checkpoint would release files."""
        limit = self._limits.backlog_bytes
        return limit is not None and backlog.most > limit and bool(self._publisher.garbage.retired)

    def _direction(self, backlog: ReplicationBacklog) -> int:
        """Returns 1 if more stages are to be demoted, -1 if all are to be restored, else 0."""
        limit, catalog = self._limits.backlog_bytes, self._publisher.snapshot.catalog
        if limit is None or backlog.owed + backlog.last <= limit // 2:
            return -1 if self._has_demoted(catalog) else 0
        due = backlog.owed > limit and backlog.seen > self._changed_at
        return 1 if due and self._exhausted is not catalog else 0

    def _has_demoted(self, catalog: Mapping[str, Stage]) -> bool:
        """Returns True if stages are demoted; cached, because each keeper message asks for it."""
        if catalog is not self._without_demoted and demoted_stages(catalog):
            return True
        self._without_demoted = catalog
        return False

    def _change(self) -> None:
        """Demotes or restores stages, or plans a checkpoint instead. Runs in the worker."""
        with self._writer_lock.lock:
            self._writer_lock.finish()
            backlog = self._replication.backlog()
            if self._writer_lock.closing or backlog is None or self._plan_checkpoint(backlog):
                return
            self._writer_lock.run_pre_write_tasks(rebuilt=False)
            if (
                self._writer_lock.is_state_missing
            ):  # a definition would rebuild the state here, with the lock
                return
            direction = self._direction(backlog)
            if direction > 0:
                self._scale_back()
            elif direction < 0:
                self.owe()

    def _plan_checkpoint(self, backlog: ReplicationBacklog) -> bool:
        """Plans a checkpoint if it removes enough from the queue; returns True if it did."""
        publisher, store = self._publisher, self._publisher.store
        if (
            not self._has_superseded_files(backlog)
            or store.log.head.seq < self._maintenance.patience
        ):
            return False
        needed = store.history.files() | files_of(publisher.snapshot.version)
        released = publisher.garbage.retired - needed
        paths = [file_layout.file_path(store.path, name) for name in released]
        size = sum(store.files.status(path).st_size for path in filter(store.files.exists, paths))
        if not size or size < (self._limits.backlog_bytes or 0) // 4:
            return False
        self._maintenance.plan_checkpoint()
        return True

    def _scale_back(self) -> None:
        """Demotes some more stages, the cheapest to recompute first."""
        snapshot = self._publisher.snapshot
        costs = demotion_candidates(snapshot)
        names = sorted(costs, key=lambda name: (costs[name], name))[: 1 << self._demotions]
        if not names:
            self._exhausted = snapshot.catalog
            return
        self.scale_back(names)
        self._demotions += 1

    def scale_back(self, names: Iterable[str]) -> None:
        """Demotes some stages. Requires the writer's lock."""
        with self._frontiers.frozen_on_replicas(names) as frontiers:
            catalog = dict(self._publisher.snapshot.catalog)
            catalog.update((n, replace(catalog[n], scaled=epoch)) for n, epoch in frontiers.items())
            self._install(catalog)

    def owe(self) -> None:
        """Restores the levels of all demoted stages. Requires the writer's lock."""
        catalog = self._publisher.snapshot.catalog
        owed = {n: replace(s, scaled=None) for n, s in catalog.items() if s.scaled is not None}
        self._demotions = 0
        if owed:
            self._install({**catalog, **owed})

    def _install(self, catalog: Catalog) -> None:
        """Writes a catalog. A disk error is not raised here; the next writer reports it."""
        try:
            self._executor.install(unchanged_decision(catalog))
        except DurabilityError:
            self._writer_lock.finish()
        self._changed_at = self._publisher.store.log.head.offset - 1


class _Recomputation(NamedTuple):
    """The recomputation of a stage: the number of rows it reads, and the epochs it can restore."""

    rows: int
    epochs: EpochRanges


def demotion_candidates(snapshot: Snapshot) -> dict[str, int]:
    """Returns, for each stage that can be demoted, the number of rows that a recomputation reads.

    Only stages with files can be demoted. If replicas may lack an input as well, that input is
    recomputed first, and the rows that this reads are included.

    Cost: O(nodes), plus the packs of the history for each stage.
    """
    past, recomputations = (
        HistoricalInputs(snapshot.history, snapshot.epoch),
        dict[str, _Recomputation](),
    )
    costs = {}
    for node in snapshot.graph:
        stage = snapshot.catalog.get(node.name) if node.name is not None else None
        if stage is None or node.log is None or not _is_reproducible(stage):
            continue
        recomputation = _recomputation_of(snapshot, past, node, recomputations)
        readable = past.readable([node]) & EpochRanges.from_ranges(
            range(stage.begin, snapshot.epoch + 1)
        )
        if recomputation is None or readable & recomputation.epochs != readable:
            continue
        recomputations[stage.name] = recomputation
        if not stage.options.persist and stage.scaled is None and _has_files(snapshot, node):
            costs[stage.name] = recomputation.rows
    return costs


def _is_reproducible(stage: Stage) -> bool:
    """Returns True if a recomputation of a stage gives the same rows."""
    if stage.is_input or not stage.live or stage.held is not None or stage.refuted is not None:
        return False
    return not (stage.in_memory or stage.options.nondeterministic or stage.signer)


def _recomputation_of(
    snapshot: Snapshot,
    past: HistoricalInputs,
    node: Node,
    recomputations: Mapping[str, _Recomputation],
) -> _Recomputation | None:
    """Returns the recomputation of a stage; None if replicas may lack one of its inputs."""
    rows, epochs = 0, EpochRanges.from_ranges(range(snapshot.epoch + 1))
    for source in span_of(snapshot.graph, {node.id}).sources:
        assert source.name is not None
        stage, of_source = snapshot.catalog[source.name], recomputations.get(source.name)
        if stage.in_memory or (stage.on_disk and of_source is None):
            return None
        if stage.on_disk and of_source is not None:
            rows, epochs = rows + of_source.rows, epochs & of_source.epochs
        epochs &= past.readable([source])
        rows += _rows_count(snapshot, source)
    return _Recomputation(rows, epochs)


def _rows_count(snapshot: Snapshot, node: Node) -> int:
    """Returns an upper bound of the number of current rows of a collection."""
    number = next(iter(node.traces.values()))
    trace = snapshot.version.traces.get(number)
    return 0 if trace is None else trace.rows_count


def _has_files(snapshot: Snapshot, node: Node) -> bool:
    """Returns True if some rows of a stage are in files: only files can be deferred."""
    traces = (snapshot.version.traces.get(number) for number in node.traces.values())
    return any(layer.files for trace in traces if trace is not None for layer in trace.layers)
