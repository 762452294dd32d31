"""Healing: has stages again of which files are not there, as `losses` decides.

Each stage is a definition of its own that changes no meaning: its frame names what was made anew,
and a new log if it was run. What is interrupted goes on with what is still lacking then.

IMPORTANT: all of it happens before merges and checkpoints are planned, which would read what is not
there. A checkpoint follows, so that no frame that counts names a lost file any more.
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
"""Files that a line names; the rest is counted."""


class BackfillExecutor:
    """Has again what is lost; owns nothing. With the gate's lock."""

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
        self._upkeep = upkeep
        self._report = report

    def heal(self, missing: AbstractSet[str], anew: AbstractSet[str] = frozenset()) -> bool:
        """Has again what was in memory alone, lies in files that are not there, or is not believed.

        Args:
            anew: stages that have no rows, as they were defined after the epoch that the log
                begins at; they are computed with those in memory, as either may read the other.

        Returns:
            whether all of it is there now.
        """
        publisher = self._publisher
        doubtful = backfill_plan.awaits_recheck(publisher.snapshot.catalog)
        doubted = doubtful or bool(missing or publisher.store.clocks.wrong)
        absent = self._absent(anew)
        if self._computed(absent, last=not doubted):
            return self._lost(missing) if doubted else True
        if not doubted:
            return False
        remembered = self._by_turns(missing, absent)
        whole = self._lost(missing)
        if whole:  # what was had first needs a checkpoint even if nothing was left
            self._upkeep.plan_checkpoint()
        return whole and remembered

    def meet(self, name: str, *, stop: bool) -> bool:
        """Has again what lay in a file that somebody has met, damaged; whether nothing needs it.

        Args:
            stop: stages of which it cannot be had stop; else nothing is done if there are some.

        To be called without a lock, by who makes the call again that has met it.
        """
        with self._gate.lock:
            self._gate.turn("to have lost rows again")
            return self._lost({name}, stop=stop)

    def _all_had(self, missing: AbstractSet[str]) -> bool:
        """Whether all that lies in some files can be had without them, as far as is known."""
        planned = self._planned(missing)
        return not any(loss.action == STALE or not _hads(loss) for loss in planned)

    def _by_turns(self, missing: AbstractSet[str], absent: AbstractSet[str]) -> bool:
        """Computes stages without rows and those that lack files, what is read before its readers.

        Failure: a stage in memory reads one that lacks a file, which reads one in memory. Neither
        all in memory nor all that lacks something can be computed first.

        Returns:
            True if all that had no rows is there now.
        """
        left, whole = set(absent), True
        while left:
            self._lost(missing, self._over(left))
            ready = left - self._over(loss.name for loss in self._planned(missing))
            whole &= self._computed(ready or left, last=True)
            left -= ready or left
        return whole

    def _over(self, names: Iterable[str]) -> set[str]:
        """The stages over some: while these are not there nothing is made of them."""
        graph = self._publisher.snapshot.graph
        return {reader for name in names for reader in graph.dependants(name)}

    def _planned(self, missing: AbstractSet[str]) -> list[StageDamage]:
        """What is to be done of what lacks something; nothing is changed."""
        publisher = self._publisher
        lost = publisher.store.history.copied(()).without(missing)
        doubts = backfill_plan.refuted_stages(publisher.snapshot, publisher.store.clocks.wrong)
        return backfill_plan.plan_repairs(publisher.snapshot, lost, missing, doubts)

    def _lost(
        self, missing: AbstractSet[str], apart: AbstractSet[str] = frozenset(), *, stop: bool = True
    ) -> bool:
        """Has again what lies in files that are not there; whether nothing lacks one now.

        What is read for it may be damaged as well: then it is planned anew, without that file. What
        is damaged in a log of somebody else is told, and nothing is made of it.

        Args:
            apart: the stages that are left out; then no checkpoint follows.
            stop: see `meet`.
        """
        if self._publisher.store.foreign:
            return False
        known = {*missing}
        while True:
            if not (stop or self._all_had(known)):
                return False
            try:
                return self._had_all(known, apart, stop=stop)
            except CorruptLogError as error:
                if error.file is None or error.file in known:
                    raise
                known.add(error.file)

    def _had_all(self, missing: AbstractSet[str], apart: AbstractSet[str], *, stop: bool) -> bool:
        publisher = self._publisher
        wrong = publisher.store.clocks.wrong
        lost = publisher.store.history.without(missing)
        publisher.repacked()
        doubts = backfill_plan.refuted_stages(publisher.snapshot, wrong)
        self._journal(doubts)
        planned = backfill_plan.plan_repairs(publisher.snapshot, lost, missing, doubts, apart)
        whole = True
        for loss in planned:
            whole &= self._had(loss, missing, stop=stop)
        if planned and whole and not apart:
            self._upkeep.plan_checkpoint()
        return whole

    def _journal(self, doubts: Mapping[int, RefutedState]) -> None:
        """Writes which stages are not believed, before the first of them is made anew.

        Failure: 1. A stage is made anew, in another log. 2. A crash; nothing contradicts any more.
        3. What reads it goes on, though it was made from the rows before.
        """
        seen = self._publisher.snapshot
        catalog = dict(seen.catalog)
        for name, node in seen.graph.named.items():
            refuted = doubts.get(node.log or 0)
            if refuted is not None and catalog[name].refuted is None:
                catalog[name] = replace(catalog[name], refuted=refuted)
        if catalog != seen.catalog:
            self._installation.install(definition_diff.unchanged_decision(catalog))

    def _absent(self, anew: AbstractSet[str]) -> set[str]:
        """The stages that go on and have no rows: those in memory, and some others."""
        catalog = self._publisher.snapshot.catalog
        return {n for n, s in catalog.items() if s.live and (s.in_memory or n in anew)}

    def _computed(self, names: AbstractSet[str], *, last: bool) -> bool:
        """Computes stages that have no rows; returns True if it did.

        If one of them is kept in memory they are computed over all epochs, if that is cheap.

        Args:
            last: it is not tried again: the stages are stale if it fails.
        """
        seen = self._publisher.snapshot
        stages = {n: stage for n, stage in seen.catalog.items() if n in names and stage.live}
        named = {seen.graph.named[name].id for name in stages}
        nodes = named | (seen.graph.hidden() & replay.below(seen.graph, named))
        if not nodes:
            return True
        anew = {n: replace(s, begin=seen.epoch, gaps=()) for n, s in stages.items()}
        decision = definition_diff.unchanged_decision({**seen.catalog, **anew})
        memory = any(stage.in_memory for stage in stages.values())
        afresh = RecomputedState(refused=nodes, replayed=memory)
        try:
            past = self._installation.install(decision, afresh=afresh)
        except NosyncError as error:
            if last:
                self._forget(stages, str(error))
            return False
        for name, stage in stages.items():
            begin = self._publisher.snapshot.catalog[name].begin
            what = "in memory alone" if stage.in_memory else f"not there at epoch {seen.epoch}"
            self._report.came_back(
                name, RECOMPUTE, f"it was {what}, and is computed from epoch {begin} on"
            )
            self._report.regained(sum(name in draft.work for draft in past))
        return True

    def _forget(self, stages: Mapping[str, Stage], why: str) -> None:
        """Stops stages of which nothing is left, and those that read them."""
        seen = self._publisher.snapshot
        catalog = dict(seen.catalog)
        for name, stage in stages.items():
            catalog[name] = stage.forgotten(why, seen.epoch)
            self._report.came_back(name, STALE, why)
            for reader in seen.graph.dependants(name):
                if catalog[reader].live and reader not in stages:
                    reason = f"it reads '{name}', which is stale"
                    catalog[reader] = catalog[reader].stopped(reason, seen.epoch)
                    self._report.came_back(reader, STALE, reason)
        self._installation.install(definition_diff.unchanged_decision(catalog))

    def _had(self, loss: StageDamage, missing: AbstractSet[str], *, stop: bool) -> bool:
        """Has what one stage lacks; whether it has it now.

        Raises:
            CorruptLogError: something that it was to be made of is damaged.
        """
        if loss.action != STALE and not _hads(loss):
            self._tell(loss)
            return False
        stage = self._publisher.snapshot.catalog[loss.name]
        if (loss.refused or loss.bare) and stage.reason is not None:
            # It was planned for before what it reads turned out not to be had.
            loss = loss._replace(action=STALE, why=stage.reason)
        if loss.action != STALE:
            try:
                self._regain(loss)
            except NosyncError as error:
                if isinstance(error, CorruptLogError) and error.file not in (None, *missing):
                    raise
                if not stop:
                    return False
                why = str(error) if stage.refuted is None else f"{stage.refuted.why}; {error}"
                loss = loss._replace(action=STALE, why=why)
            else:
                self._tell(loss)
                return True
        self._stop(loss)
        self._tell(loss)
        return False

    def _regain(self, loss: StageDamage) -> None:
        catalog = dict(self._publisher.snapshot.catalog)
        stage = catalog[loss.name]
        catalog[loss.name] = replace(stage, begin=loss.begin, refuted=None)
        afresh = RecomputedState(
            loss.name, loss.refused, loss.bare, self._arranged(loss), loss.first
        )
        past = self._installation.install(
            definition_diff.unchanged_decision(catalog), afresh=afresh
        )
        self._report.regained(sum(loss.name in draft.work for draft in past))

    def _arranged(self, loss: StageDamage) -> Mapping[int, Trace]:
        """The traces of a collection that are lost, out of another one or out of its log."""
        if not loss.arranged:
            return {}
        seen, store = self._publisher.snapshot, self._publisher.store
        node = seen.graph.named[loss.name]
        batch = _contents(seen, loss)
        made = {}
        for layout, number in node.traces.items():
            if number in loss.arranged:
                own = batch if batch.layout == layout else arrange(layout, batch.updates)
                made[number] = Trace(layout, (store.filed(number, layout, own, seen.epoch),))
        return made

    def _stop(self, loss: StageDamage) -> None:
        """Stops a stage that cannot be had, and those that read it.

        Failure: 1. The rows of an input are lost; it has nothing to stop. 2. What reads it goes on
        and looks into them, so no commit succeeds. Hence such readers stop, and wait while it is
        held; what only takes its changes goes on.
        """
        seen = self._publisher.snapshot
        catalog, stage = dict(seen.catalog), seen.catalog[loss.name]
        given = stage.is_input or stage.frozen
        if given:
            catalog[loss.name] = replace(stage, held=_told(loss))
        elif stage.refuted is not None:
            catalog[loss.name] = stage.stopped(_told(loss), seen.epoch)
        elif stage.live:
            catalog[loss.name] = replace(stage.stopped(_told(loss), seen.epoch), held=_told(loss))
        else:
            return
        why = f"it reads '{loss.name}', which is {'lost' if given else 'stale'}"
        readers = _looking(seen.graph, loss.name) if given else seen.graph.dependants(loss.name)
        for name in readers:
            if catalog[name].live:
                catalog[name] = catalog[name].stopped(why, seen.epoch)
                self._report.came_back(name, STALE, why)
        if catalog != seen.catalog:
            self._installation.install(definition_diff.unchanged_decision(catalog))

    def _tell(self, loss: StageDamage) -> None:
        stage = self._publisher.snapshot.catalog[loss.name]
        if stage.is_input or stage.frozen or loss.action == READ:
            what = "input" if stage.is_input else "stage"
            again = f"{_gone(loss.files)}: its rows were arranged again out of its log"
            text = again if loss.arranged else _told(loss)
            self._report.note(f"{what} '{loss.name}': {text}")
        else:
            self._report.came_back(loss.name, loss.action, _told(loss))


def _hads(loss: StageDamage) -> bool:
    """Whether something of it is had again."""
    return bool(loss.arranged or loss.refused or loss.bare)


def _contents(seen: Snapshot, loss: StageDamage) -> Batch:
    """All that a collection holds now, without the traces that are lost."""
    node, last = seen.graph.named[loss.name], seen.last(seen.catalog[loss.name])
    assert node.log is not None
    for number in node.traces.values():
        trace = seen.version.traces.get(number)
        if number not in loss.arranged and trace is not None:
            return trace.consolidated()
    return total_of(seen.history.state(node.log, last), node.log_layout)


def _looking(graph: Graph, name: str) -> list[str]:
    """The stages that look into what a named collection holds, and those that read them."""
    lost, reached, names = graph.named[name].id, set[int](), []
    for node in graph:
        layouts = node.operator.layouts if node.operator else (None,) * len(node.inputs)
        ports = zip(node.inputs, layouts, strict=True)
        if any(i in reached or (i == lost and layout is not None) for i, layout in ports):
            reached.add(node.id)
            if node.name is not None:
                names.append(node.name)
    return names


def _told(loss: StageDamage) -> str:
    return ": ".join(filter(None, (_gone(loss.files) if loss.files else "", loss.why)))


def _gone(files: Iterable[str]) -> str:
    """That files are missing."""
    names = sorted(files)
    shown = ", ".join(f"'{name}'" for name in names[:FILES_MAX])
    rest = len(names) - FILES_MAX
    more = f" and {rest} more" if rest > 0 else ""
    return f"{shown}{more} {'is' if len(names) == 1 else 'are'} missing"
