"""Scaling: which stages are owed to replicas last while these lack more than they are to.

    a quorum lacks more than `UserLimits.backlog_bytes`   stages are scaled back, the ones first
    that
                                                      are had again by the fewest rows: 1, 2, 4, ...
    it lacks half of that, with what comes last       all of them are owed again

A stage that is scaled back is one that is kept on disk, for as long as that lasts (`levels`): its
frames and packs go as ever, its files of rows when nothing else is lacking, and an epoch is safe
without them. What replicas were said to have of it they are said to have (`frontiers`). After a
lost disk it is run again as far as they lack its files; so it is scaled back only if it gives the
same rows at every epoch that it can be read at. Inputs, what functions give that may give something
else, what has stopped and what somebody wants on replicas (`persist="replicas"`) are always owed.

What is scaled back stands in the catalog, and each change of it is a definition of nothing else: a
copy that ends at any frame says what it was owed. A replica beyond the quorum has its backlog by
itself: what it lacks keeps no epoch waiting, so nothing is taken from the others for it.

Before anything is scaled back a checkpoint is written, if it takes enough out of the queue. It
promotes what it stands for: all of that is on the disk, so the changes go that the past keeps in
memory, and so do the files that merges have taken the place of: a replica that lacks them is not
sent them any more. It is on the disk before a byte of that is dropped. This is done for a replica
beyond the quorum, too, as it takes nothing from anybody.

Failure: files that are sent last are counted as lacking once they are owed again, which scales back
anew, and so on. Hence they count before that.
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
from nosync_nb.session.backfill.apply_catalog import CatalogInstaller
from nosync_nb.session.durability.frontiers import FrontierService
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.durability.replication_lag import ReplicationBacklog, demoted_stages
from nosync_nb.session.limits import UserLimits
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.planning import replay
from nosync_nb.session.planning.definition_diff import Catalog, unchanged_decision
from nosync_nb.session.state.publisher import Publisher, files_of
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.store.replication import file_layout
from nosync_nb.trace.epoch_ranges import EpochRanges


class BacklogPolicy:
    """Says which stages are scaled back, as replicas fall behind and catch up.

    What it keeps is asked for and changed with the gate's lock.
    """

    def __init__(
        self,
        gate: WriterLock,
        publisher: Publisher,
        installation: CatalogInstaller,
        replication: ReplicationService,
        frontiers: FrontierService,
        upkeep: Maintenance,
        worker: BackgroundWorker,
        limits: UserLimits,
    ) -> None:
        self._gate = gate
        self._upkeep = upkeep
        self._publisher = publisher
        self._installation = installation
        self._replication = replication
        self._frontiers = frontiers
        self._worker = worker
        self._limits = limits
        self._steps = 0  # in which stages were scaled back, since all were owed
        self._said = -1  # where the last change stands in the stream of frames
        self._none: Mapping[str, Stage] | None = None  # of which none is scaled back
        self._tried: Mapping[str, Stage] | None = None  # of which there is nothing left to choose

    def look(self) -> None:
        """Has the worker change what is owed, if it is to be; any thread, without a lock."""
        backlog = self._replication.backlog()
        if backlog is not None and (self._superseded(backlog) or self._wanted(backlog)):
            self._worker.submit("scaling", self._change, name="adapting to the replicas' backlog")

    def _superseded(self, backlog: ReplicationBacklog) -> bool:
        """Whether a replica lacks too much, and files are among it that a checkpoint lets go."""
        most = self._limits.backlog_bytes
        return most is not None and backlog.most > most and bool(self._publisher.garbage.retired)

    def _wanted(self, backlog: ReplicationBacklog) -> int:
        """Whether more stages are to be scaled back (1), or all to be owed again (-1)."""
        most, catalog = self._limits.backlog_bytes, self._publisher.snapshot.catalog
        if most is None or backlog.owed + backlog.last <= most // 2:
            return -1 if self._some(catalog) else 0
        due = backlog.owed > most and backlog.seen > self._said
        return 1 if due and self._tried is not catalog else 0

    def _some(self, catalog: Mapping[str, Stage]) -> bool:
        """Whether stages are scaled back; asked at each word of a keeper, hence remembered."""
        if catalog is not self._none and demoted_stages(catalog):
            return True
        self._none = catalog
        return False

    def _change(self) -> None:
        """Writes what is owed now, all of it or nothing; the worker's."""
        with self._gate.lock:
            self._gate.finish()
            backlog = self._replication.backlog()
            if self._gate.closing or backlog is None or self._promoted(backlog):
                return
            self._gate.ready(rebuilt=False)
            if self._gate.lacking:  # a definition would make it here, with the lock
                return
            wanted = self._wanted(backlog)
            if wanted > 0:
                self._scale_back()
            elif wanted < 0:
                self.owe()

    def _promoted(self, backlog: ReplicationBacklog) -> bool:
        """Whether a checkpoint is written first, as it takes enough out of the queue."""
        publisher, store = self._publisher, self._publisher.store
        if not self._superseded(backlog) or store.log.head.seq < self._upkeep.patience:
            return False
        needed = store.history.files() | files_of(publisher.snapshot.version)
        gone = publisher.garbage.retired - needed
        paths = [file_layout.file_path(store.path, name) for name in gone]
        size = sum(store.files.status(path).st_size for path in filter(store.files.exists, paths))
        if not size or size < (self._limits.backlog_bytes or 0) // 4:
            return False
        self._upkeep.plan_checkpoint()
        return True

    def _scale_back(self) -> None:
        """Scales back some more stages, those that are had again by the fewest rows."""
        seen = self._publisher.snapshot
        costs = demotion_candidates(seen)
        names = sorted(costs, key=lambda name: (costs[name], name))[: 1 << self._steps]
        if not names:
            self._tried = seen.catalog
            return
        self.scale_back(names)
        self._steps += 1

    def scale_back(self, names: Iterable[str]) -> None:
        """Owes some stages to replicas last from now on; with the gate's lock."""
        with self._frontiers.held(names) as there:
            catalog = dict(self._publisher.snapshot.catalog)
            catalog.update((n, replace(catalog[n], scaled=epoch)) for n, epoch in there.items())
            self._install(catalog)

    def owe(self) -> None:
        """Owes all stages as their levels say again; with the gate's lock."""
        catalog = self._publisher.snapshot.catalog
        owed = {n: replace(s, scaled=None) for n, s in catalog.items() if s.scaled is not None}
        self._steps = 0
        if owed:
            self._install({**catalog, **owed})

    def _install(self, catalog: Catalog) -> None:
        """Writes a catalog; what a disk refuses is told by who writes next."""
        try:
            self._installation.install(unchanged_decision(catalog))
        except DurabilityError:
            self._gate.finish()
        self._said = self._publisher.store.log.head.offset - 1


class _Again(NamedTuple):
    """A stage had again by running: how many rows are read for it, and at which epochs it is."""

    rows: int
    epochs: EpochRanges


def demotion_candidates(seen: Snapshot) -> dict[str, int]:
    """The stages that can be scaled back and have files: how many rows are read to run each again.

    What it reads that replicas may lack as well is run before it, and counts with what that reads.

    Cost: O(nodes), and for each stage the packs of the past.
    """
    past, had = HistoricalInputs(seen.history, seen.epoch), dict[str, _Again]()
    costs = {}
    for node in seen.graph:
        stage = seen.catalog.get(node.name) if node.name is not None else None
        if stage is None or node.log is None or not _same_again(stage):
            continue
        again = _again(seen, past, node, had)
        own = past.readable([node]) & EpochRanges.of(range(stage.begin, seen.epoch + 1))
        if again is None or own & again.epochs != own:
            continue
        had[stage.name] = again
        if not stage.options.persist and stage.scaled is None and _has_files(seen, node):
            costs[stage.name] = again.rows
    return costs


def _same_again(stage: Stage) -> bool:
    """Whether a stage gives what it gave if it is run again."""
    if stage.is_input or not stage.live or stage.held is not None or stage.refuted is not None:
        return False
    return not (stage.in_memory or stage.options.nondeterministic or stage.signer)


def _again(
    seen: Snapshot, past: HistoricalInputs, node: Node, had: Mapping[str, _Again]
) -> _Again | None:
    """What running one takes, and where it leads; None if replicas may lack what it reads."""
    rows, epochs = 0, EpochRanges.of(range(seen.epoch + 1))
    for source in replay.replay_span(seen.graph, {node.id}).sources:
        assert source.name is not None
        stage, before = seen.catalog[source.name], had.get(source.name)
        if stage.in_memory or (stage.on_disk and before is None):
            return None
        if stage.on_disk and before is not None:
            rows, epochs = rows + before.rows, epochs & before.epochs
        epochs &= past.readable([source])
        rows += _rows(seen, source)
    return _Again(rows, epochs)


def _rows(seen: Snapshot, node: Node) -> int:
    """How many rows a named collection has now, at most."""
    number = next(iter(node.traces.values()))
    trace = seen.version.traces.get(number)
    return 0 if trace is None else trace.rows_count


def _has_files(seen: Snapshot, node: Node) -> bool:
    """Whether rows of a stage lie in files: only these can come last."""
    traces = (seen.version.traces.get(number) for number in node.traces.values())
    return any(layer.files for trace in traces if trace is not None for layer in trace.layers)
