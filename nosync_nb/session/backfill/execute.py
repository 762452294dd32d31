"""Repairs stages with missing files, as `backfill_plan` decides.

Each stage is repaired by a definition of its own that changes no meaning. Its frame names the
rebuilt traces, and a new log if the stage was run. An interrupted repair continues with the stages
that are still damaged.

IMPORTANT: repairs come before merges and checkpoints are planned, because these would read the
missing files. A checkpoint follows, after which no frame that is replayed names a lost file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import RefutedState, Stage
from nosync_nb.errors import CorruptLogError, NosyncError
from nosync_nb.session.backfill.apply_catalog import CatalogInstaller
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.planning import backfill_plan, definition_diff, replay
from nosync_nb.session.planning.backfill_plan import StageDamage
from nosync_nb.session.planning.replay import RecomputedState
from nosync_nb.session.report import READ, RECOMPUTE, STALE, RecoveryReport
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, arrange
from nosync_nb.trace.history.archive import total_of

FILES_MAX = 3
"""Files that one message names; the others are counted."""


class BackfillExecutor:
    """Repairs damaged stages; has no state of its own. The caller holds the writer's lock."""

    def __init__(
        self,
        gate: WriterLock,
        publisher: Publisher,
        installation: CatalogInstaller,
        upkeep: Maintenance,
        report: RecoveryReport,
    ) -> None:
        self._gate = gate
        self._publisher = publisher
        self._installation = installation
        self._maintenance = upkeep
        self._report = report

    def heal(self, missing: AbstractSet[str], anew: AbstractSet[str] = frozenset()) -> bool:
        """Recomputes stages that were in memory only, lack files, or are refuted.

        Args:
            anew: stages without rows, because they were defined after the epoch at which the log
                begins. They are computed together with the stages in memory, because either may
                read the other.

        Returns:
            True if all of them are complete now.
        """
        publisher = self._publisher
        doubtful = backfill_plan.awaits_recheck(publisher.snapshot.catalog)
        doubted = doubtful or bool(missing or publisher.store.clocks.wrong)
        absent = self._stages_without_rows(anew)
        if self._compute(absent, last=not doubted):
            return self._repair_missing(missing) if doubted else True
        if not doubted:
            return False
        remembered = self._compute_in_turns(missing, absent)
        complete = self._repair_missing(missing)
        if complete:  # stages computed in turns need a checkpoint even if no stage is left
            self._maintenance.plan_checkpoint()
        return complete and remembered

    def meet(self, name: str, *, stop: bool) -> bool:
        """Rebuilds the data of a damaged file found during a call.

        The caller holds no lock, and retries the call that found the file.

        Args:
            stop: True: stages that cannot be rebuilt stop; False: if there are some, nothing is
                done.

        Returns:
            True if nothing references the file any more.
        """
        with self._gate.lock:
            self._gate.begin_change("to have lost rows again")
            return self._repair_missing({name}, stop=stop)

    def _can_rebuild(self, missing: AbstractSet[str]) -> bool:
        """Returns True if the data of some files can probably be rebuilt without them."""
        planned = self._plan(missing)
        return not any(loss.action == STALE or not _rebuilds(loss) for loss in planned)

    def _compute_in_turns(self, missing: AbstractSet[str], absent: AbstractSet[str]) -> bool:
        """Computes stages without rows and stages with missing files, inputs before their readers.

        Failure: 1. A stage in memory reads a stage that lacks a file, which in turn reads a stage
        in memory. 2. Neither all stages in memory nor all damaged stages can be computed first.
        Hence they are computed in turns, as their inputs become complete.

        Returns:
            True if all stages without rows are computed now.
        """
        remaining, complete = set(absent), True
        while remaining:
            self._repair_missing(missing, self._readers(remaining))
            ready = remaining - self._readers(loss.name for loss in self._plan(missing))
            complete &= self._compute(ready or remaining, last=True)
            remaining -= ready or remaining
        return complete

    def _readers(self, names: Iterable[str]) -> set[str]:
        """Returns the readers of some stages; they cannot be computed before these."""
        graph = self._publisher.snapshot.graph
        return {reader for name in names for reader in graph.dependants(name)}

    def _plan(self, missing: AbstractSet[str]) -> list[StageDamage]:
        """Returns the planned repairs; changes nothing."""
        publisher = self._publisher
        lost = publisher.store.history.copied(()).remove_missing(missing)
        doubts = backfill_plan.refuted_stages(publisher.snapshot, publisher.store.clocks.wrong)
        return backfill_plan.plan_repairs(publisher.snapshot, lost, missing, doubts)

    def _repair_missing(
        self, missing: AbstractSet[str], apart: AbstractSet[str] = frozenset(), *, stop: bool = True
    ) -> bool:
        """Rebuilds the data of missing files. Returns True if no stage lacks a file now.

        A repair may read another damaged file: then it is planned again, without that file. In a
        log that another key has signed, damage is only reported.

        Args:
            apart: stages that are left out; then no checkpoint follows.
            stop: see `meet`.
        """
        if self._publisher.store.foreign:
            return False
        damaged = {*missing}
        while True:
            if not (stop or self._can_rebuild(damaged)):
                return False
            try:
                return self._repair_all(damaged, apart, stop=stop)
            except CorruptLogError as error:
                if error.file is None or error.file in damaged:
                    raise
                damaged.add(error.file)

    def _repair_all(
        self, missing: AbstractSet[str], apart: AbstractSet[str], *, stop: bool
    ) -> bool:
        publisher = self._publisher
        wrong = publisher.store.clocks.wrong
        lost = publisher.store.history.remove_missing(missing)
        publisher.repacked()
        doubts = backfill_plan.refuted_stages(publisher.snapshot, wrong)
        self._record_refuted(doubts)
        planned = backfill_plan.plan_repairs(publisher.snapshot, lost, missing, doubts, apart)
        complete = True
        for loss in planned:
            complete &= self._repair(loss, missing, stop=stop)
        if planned and complete and not apart:
            self._maintenance.plan_checkpoint()
        return complete

    def _record_refuted(self, doubts: Mapping[int, RefutedState]) -> None:
        """Records the refuted stages in the catalog before the first of them is recomputed.

        Failure: 1. A stage is recomputed into another log. 2. After a crash no clock contradicts
        any more. 3. Its reader continues, although it was computed from the refuted rows.
        """
        snapshot = self._publisher.snapshot
        catalog = dict(snapshot.catalog)
        for name, node in snapshot.graph.named.items():
            refuted = doubts.get(node.log or 0)
            if refuted is not None and catalog[name].refuted is None:
                catalog[name] = replace(catalog[name], refuted=refuted)
        if catalog != snapshot.catalog:
            self._installation.install(definition_diff.unchanged_decision(catalog))

    def _stages_without_rows(self, anew: AbstractSet[str]) -> set[str]:
        """Returns the live stages without rows: those in memory, and the given ones."""
        catalog = self._publisher.snapshot.catalog
        return {n for n, s in catalog.items() if s.live and (s.in_memory or n in anew)}

    def _compute(self, names: AbstractSet[str], *, last: bool) -> bool:
        """Computes stages that have no rows; returns True if it succeeded.

        If one of them is kept in memory they are computed over all epochs, if that is cheap.

        Args:
            last: there is no further attempt: if it fails, the stages become stale.
        """
        snapshot = self._publisher.snapshot
        stages = {n: stage for n, stage in snapshot.catalog.items() if n in names and stage.live}
        named = {snapshot.graph.named[name].id for name in stages}
        nodes = named | (snapshot.graph.hidden() & replay.below(snapshot.graph, named))
        if not nodes:
            return True
        restarted = {n: replace(s, begin=snapshot.epoch, gaps=()) for n, s in stages.items()}
        decision = definition_diff.unchanged_decision({**snapshot.catalog, **restarted})
        memory = any(stage.in_memory for stage in stages.values())
        afresh = RecomputedState(refused=nodes, replayed=memory)
        try:
            past = self._installation.install(decision, afresh=afresh)
        except NosyncError as error:
            if last:
                self._stop_without_rows(stages, str(error))
            return False
        for name, stage in stages.items():
            begin = self._publisher.snapshot.catalog[name].begin
            what = "in memory alone" if stage.in_memory else f"not there at epoch {snapshot.epoch}"
            self._report.came_back(
                name, RECOMPUTE, f"it was {what}, and is computed from epoch {begin} on"
            )
            self._report.regained(sum(name in draft.work for draft in past))
        return True

    def _stop_without_rows(self, stages: Mapping[str, Stage], why: str) -> None:
        """Stops stages whose rows are all lost, and their readers."""
        snapshot = self._publisher.snapshot
        catalog = dict(snapshot.catalog)
        for name, stage in stages.items():
            catalog[name] = stage.forgotten(why, snapshot.epoch)
            self._report.came_back(name, STALE, why)
            for reader in snapshot.graph.dependants(name):
                if catalog[reader].live and reader not in stages:
                    reason = f"it reads '{name}', which is stale"
                    catalog[reader] = catalog[reader].as_stale(reason, snapshot.epoch)
                    self._report.came_back(reader, STALE, reason)
        self._installation.install(definition_diff.unchanged_decision(catalog))

    def _repair(self, loss: StageDamage, missing: AbstractSet[str], *, stop: bool) -> bool:
        """Repairs one stage. Returns True if it is complete now.

        Raises:
            CorruptLogError: a file that the repair reads is damaged.
        """
        if loss.action != STALE and not _rebuilds(loss):
            self._report_repair(loss)
            return False
        stage = self._publisher.snapshot.catalog[loss.name]
        if (loss.refused or loss.bare) and stage.reason is not None:
            # Because the repair of an input failed after this one was planned.
            loss = loss._replace(action=STALE, why=stage.reason)
        if loss.action != STALE:
            try:
                self._install_repair(loss)
            except NosyncError as error:
                if isinstance(error, CorruptLogError) and error.file not in (None, *missing):
                    raise
                if not stop:
                    return False
                why = str(error) if stage.refuted is None else f"{stage.refuted.why}; {error}"
                loss = loss._replace(action=STALE, why=why)
            else:
                self._report_repair(loss)
                return True
        self._stop_damaged(loss)
        self._report_repair(loss)
        return False

    def _install_repair(self, loss: StageDamage) -> None:
        catalog = dict(self._publisher.snapshot.catalog)
        stage = catalog[loss.name]
        catalog[loss.name] = replace(stage, begin=loss.begin, refuted=None)
        afresh = RecomputedState(
            loss.name, loss.refused, loss.bare, self._rebuilt_traces(loss), loss.first
        )
        past = self._installation.install(
            definition_diff.unchanged_decision(catalog), afresh=afresh
        )
        self._report.regained(sum(loss.name in draft.work for draft in past))

    def _rebuilt_traces(self, loss: StageDamage) -> Mapping[int, Trace]:
        """Returns the lost traces of a collection, rebuilt from another trace or from its log."""
        if not loss.arranged:
            return {}
        snapshot, store = self._publisher.snapshot, self._publisher.store
        node = snapshot.graph.named[loss.name]
        batch = _contents(snapshot, loss)
        rebuilt = {}
        for layout, number in node.traces.items():
            if number in loss.arranged:
                arranged = batch if batch.layout == layout else arrange(layout, batch.updates)
                rebuilt[number] = Trace(
                    layout, (store.write_layer(number, layout, arranged, snapshot.epoch),)
                )
        return rebuilt

    def _stop_damaged(self, loss: StageDamage) -> None:
        """Stops a stage that cannot be repaired, and its readers.

        Failure: 1. The rows of an input are lost; an input cannot be stopped. 2. A reader continues
        and looks up these rows, so no commit succeeds. Hence such readers stop, and wait while the
        input is held. Readers that only take its changes continue.
        """
        snapshot = self._publisher.snapshot
        catalog, stage = dict(snapshot.catalog), snapshot.catalog[loss.name]
        not_computed = stage.is_input or stage.frozen
        if not_computed:
            catalog[loss.name] = replace(stage, held=_reason_text(loss))
        elif stage.refuted is not None:
            catalog[loss.name] = stage.as_stale(_reason_text(loss), snapshot.epoch)
        elif stage.live:
            catalog[loss.name] = replace(
                stage.as_stale(_reason_text(loss), snapshot.epoch), held=_reason_text(loss)
            )
        else:
            return
        why = f"it reads '{loss.name}', which is {'lost' if not_computed else 'stale'}"
        readers = (
            _lookup_readers(snapshot.graph, loss.name)
            if not_computed
            else snapshot.graph.dependants(loss.name)
        )
        for name in readers:
            if catalog[name].live:
                catalog[name] = catalog[name].as_stale(why, snapshot.epoch)
                self._report.came_back(name, STALE, why)
        if catalog != snapshot.catalog:
            self._installation.install(definition_diff.unchanged_decision(catalog))

    def _report_repair(self, loss: StageDamage) -> None:
        stage = self._publisher.snapshot.catalog[loss.name]
        if stage.is_input or stage.frozen or loss.action == READ:
            kind = "input" if stage.is_input else "stage"
            rebuilt = f"{_missing_text(loss.files)}: its rows were arranged again out of its log"
            text = rebuilt if loss.arranged else _reason_text(loss)
            self._report.note(f"{kind} '{loss.name}': {text}")
        else:
            self._report.came_back(loss.name, loss.action, _reason_text(loss))


def _rebuilds(loss: StageDamage) -> bool:
    """Returns True if the plan rebuilds or recomputes something."""
    return bool(loss.arranged or loss.refused or loss.bare)


def _contents(snapshot: Snapshot, loss: StageDamage) -> Batch:
    """Returns the current contents of a collection without its lost traces."""
    node, last = snapshot.graph.named[loss.name], snapshot.last(snapshot.catalog[loss.name])
    assert node.log is not None
    for number in node.traces.values():
        trace = snapshot.version.traces.get(number)
        if number not in loss.arranged and trace is not None:
            return trace.consolidated()
    return total_of(snapshot.history.state(node.log, last), node.log_layout)


def _lookup_readers(graph: Graph, name: str) -> list[str]:
    """Returns the stages that look up the rows of a named collection, and their readers."""
    lost, reached, names = graph.named[name].id, set[int](), []
    for node in graph:
        layouts = node.operator.layouts if node.operator else (None,) * len(node.inputs)
        ports = zip(node.inputs, layouts, strict=True)
        if any(i in reached or (i == lost and layout is not None) for i, layout in ports):
            reached.add(node.id)
            if node.name is not None:
                names.append(node.name)
    return names


def _reason_text(loss: StageDamage) -> str:
    return ": ".join(filter(None, (_missing_text(loss.files) if loss.files else "", loss.why)))


def _missing_text(files: Iterable[str]) -> str:
    """Returns a message that files are missing."""
    names = sorted(files)
    shown = ", ".join(f"'{name}'" for name in names[:FILES_MAX])
    rest = len(names) - FILES_MAX
    more = f" and {rest} more" if rest > 0 else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'} missing"
