"""Installs a decided catalog in the session, completely or not at all.

Everything that can fail comes before the frame is written: compiling, running new nodes, signing,
writing large batches to files, and reading packs to drop a stage's history. After the frame there
are only assignments of values that were computed before; see `publisher`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.cardinality import TableSizes
from nosync_nb.dataflow.graph import Graph, GraphDiff
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, StageWork, VersionState
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import Snapshot, hidden_columns, named_logs, visible_columns
from nosync_nb.dataflow.stage import Stage
from nosync_nb.session.backfill.off_lock import OffLockCompute, OffLockResult, first_names
from nosync_nb.session.limits import UserLimits
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.planning import backfill_plan, replay
from nosync_nb.session.planning.definition_diff import DefinitionDecision
from nosync_nb.session.planning.replay import RecomputedState
from nosync_nb.session.state.publisher import Publisher, files_of, record_history
from nosync_nb.session.state.redo_records import DefinitionRedo
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.session.state.writer_lock import DefinitionOutcome, WriterLock
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.execution.placement import Placement
from nosync_nb.spark.sql_settings import SparkTypes
from nosync_nb.store.retention_policy import Retention
from nosync_nb.trace import Trace
from nosync_nb.trace.history.history import History

NOTHING = RecomputedState()
"""The default: no stage has to be recomputed."""


class CatalogInstaller:
    """Installs catalogs; has no state of its own. The caller holds the writer's lock."""

    def __init__(
        self,
        gate: WriterLock,
        publisher: Publisher,
        link: SparkConnection,
        types: SparkTypes,
        signer: CatalogSigner,
        upkeep: Maintenance,
        limits: UserLimits,
    ) -> None:
        self._gate = gate
        self._publisher = publisher
        self._link = link
        self._types = types
        self._signer = signer
        self._maintenance = upkeep
        self._limits = limits

    def install(
        self,
        decision: DefinitionDecision,
        *,
        replay_from: int | None = None,
        renamed: Graph | None = None,
        work: Mapping[str, StageWork] | None = None,
        names: Mapping[Definition, str | None] | None = None,
        outcome: DefinitionOutcome | None = None,
        afresh: RecomputedState = NOTHING,
        retention: Retention | None = None,
        ahead: OffLockCompute | None = None,
    ) -> list[EpochResult]:
        """Compiles a catalog, computes new nodes, writes the definition and publishes it.

        Args:
            work: the last work of each stage after a rename or a drop.
            names: the names of definitions after it.
            outcome: is notified when the frame is committed.
            afresh: the parts of damaged stages to recompute, if not `ahead`.

        Returns:
            the past epochs that were run for stages that had missed them or lost them.
        """
        publisher = self._publisher
        snapshot, catalog = publisher.snapshot, dict(decision.catalog)
        old, runner, (missed, drafts, draft, inputs, written) = self._compile_and_run(
            decision, catalog, renamed or snapshot.graph, replay_from, afresh, ahead
        )
        graph, change = runner.graph, runner.graph.since(old)
        backfill_plan.with_recorded_gaps(catalog, graph, inputs)
        _drop_unused_traces(draft, graph, change)
        sealed = self._signer.sealed(catalog, graph, draft.epoch, retention or publisher.retention)
        base = _version_without(snapshot.version, afresh.renewed)
        payload = publisher.store.definition(draft, base, graph, sealed.meta, missed, written)
        past = [*missed, *drafts, draft]
        logs = _logs_after(publisher.logs, graph, change)
        history = self._history_after(change, logs, catalog, past)
        version = VersionState(snapshot.epoch, draft.traces)
        only_dropped = not (missed or afresh.renewed or publisher.logs.keys() - logs.keys())
        retired = _spilled_files(past) | self._unused_files(
            version, history, change if only_dropped else None
        )
        works = [item for each in past for item in each.work.items()]
        record = DefinitionRedo(
            publisher,
            publisher.next(),
            Snapshot(version, graph, catalog, visible_columns(history)),
            logs,
            history,
            runner,
            sealed.catalog,
            sealed.digest,
            publisher.redefined(sealed.catalog),
            retired,
            {**(publisher.works.stages if work is None else work), **dict(works)},
            publisher.works.after_runs(each for _, each in works),
            names or {},
            outcome or DefinitionOutcome(),
        )
        publisher.definition(record, payload)
        self._plan_background_work(draft)
        return missed if afresh is NOTHING else [*drafts, draft]

    def ahead(self, decision: DefinitionDecision) -> OffLockCompute:
        """Prepares the run of a decision that changes no stage, to be computed without the lock."""
        snapshot, bulk = self._publisher.snapshot, self._link.bulk().apart()
        old, runner = self._compile(decision, decision.catalog, snapshot.graph, NOTHING)
        runner, rows_max = self._runner_of(runner, bulk), self._limits.replay_rows
        return OffLockCompute(self._gate, snapshot, decision, old, runner, bulk.files, rows_max)

    def _compile_and_run(
        self,
        decision: DefinitionDecision,
        catalog: dict[str, Stage],
        old: Graph,
        replay_from: int | None,
        afresh: RecomputedState,
        ahead: OffLockCompute | None,
    ) -> tuple[Graph, Runner, OffLockResult]:
        """Returns the previous graph, the runner of the new catalog, and the computed rows."""
        if ahead is not None:
            return ahead.old, self._runner_of(ahead.runner), ahead.over(self._publisher.snapshot)
        old, runner = self._compile(decision, catalog, old, afresh)
        computed = self._run_described(runner, old, catalog, replay_from, decision.status, afresh)
        return old, runner, computed

    def _runner_of(self, runner: Runner, bulk: Placement | None = None) -> Runner:
        """Returns a runner of the same graph that writes to the session's files, or to others."""
        bulk = bulk or self._link.bulk()
        return Runner(runner.graph, self._link.evaluate, bulk, spill=bulk.files, before=runner)

    def _plan_background_work(self, draft: EpochResult) -> None:
        self._maintenance.plan_due(draft)
        if any(change.refs for _, _, change in draft.logged):
            self._maintenance.plan_giving_back()

    def _unused_files(
        self, version: VersionState, history: History, change: GraphDiff | None
    ) -> frozenset[str]:
        """Returns the files that no trace and no pack needs after a definition.

        Args:
            version, history: as they are after it.
            change: of the graph, if only dropped traces may have lost files; None: any trace may
                have.
        """
        previous = self._publisher.snapshot.version
        if change is None or change.is_all_new:
            needed = files_of(previous) | self._publisher.store.history.files()
        else:
            dropped = {
                n: trace for n in change.dropped if (trace := previous.traces.get(n)) is not None
            }
            needed = files_of(VersionState(previous.epoch, dropped))
        return frozenset(needed - files_of(version) - history.files() if needed else ())

    def _run_described(
        self,
        runner: Runner,
        old: Graph,
        catalog: dict[str, Stage],
        replay_from: int | None,
        status: Mapping[str, str],
        afresh: RecomputedState,
    ) -> OffLockResult:
        """Runs missed epochs and new nodes; operator placement sees the new stages meanwhile."""
        previous = self._publisher.snapshot.catalog
        self._publisher.describe(catalog)
        try:
            computed = self._run_missing(runner, old, catalog, replay_from, status, afresh)
            computed.draft.traces.update(afresh.renewed)
            return computed
        finally:
            self._publisher.describe(previous)

    def _run_missing(
        self,
        runner: Runner,
        old: Graph,
        catalog: dict[str, Stage],
        replay_from: int | None,
        status: Mapping[str, str],
        afresh: RecomputedState,
    ) -> OffLockResult:
        """Runs missed epochs, and the new nodes at the current epoch or for past epochs as well."""
        publisher, rows_max = self._publisher, self._limits.replay_rows
        cleanup = self._link.bulk().files.end
        version, history = publisher.snapshot.version, publisher.store.history
        with publisher.works.doing.record("runs what stages have missed"):
            missed, base = self._gate.run(
                lambda: backfill_plan.catch_up(runner, old, version, history, rows_max),
                cleanup,
            )
        graph = runner.graph
        new = replay.missing_nodes(graph, base.graph)
        edited = afresh.replayed or any(s in ("changed", "followed") for s in status.values())
        first = afresh.first
        if new and (edited or replay_from is not None or first is not None):
            part = replay.replay_span(graph, replay.replayable(graph, new, base.graph))
            if first is None and part.new:
                first = replay.first_epoch(base, part, catalog, replay_from, rows_max)
        if first is None or first == version.epoch:
            with publisher.works.doing.record(_first_run_text(graph, new)):
                draft = self._gate.run(lambda: runner.first_run(base.version, base.graph), cleanup)
            return OffLockResult(missed, [], draft, base.past, 0)
        drafts, traces = self._gate.run(
            lambda: replay.run_replay(runner, base.past, part, first, publisher.works.doing),
            cleanup,
        )
        if afresh.name:
            old_node, new_node = (each.named[afresh.name] for each in (old, graph))
            drafts = replay.with_previous_log(
                base.past, old_node, new_node, catalog[afresh.name].begin, drafts
            )
        written = sum(publisher.store.write_replay(past, graph) for past in drafts)
        for node in graph:
            if node.id in part.new and node.name and not afresh.name:
                catalog[node.name] = replace(catalog[node.name], begin=first)
        replayed_graph = Graph([*base.graph, *(graph.nodes[i] for i in part.new)], graph.numbers)
        replayed_version = VersionState(version.epoch, {**base.version.traces, **traces})
        draft = self._gate.run(lambda: runner.first_run(replayed_version, replayed_graph), cleanup)
        return OffLockResult(missed, drafts, draft, base.past, written)

    def _history_after(
        self,
        change: GraphDiff,
        logs: Mapping[int, str],
        catalog: Mapping[str, Stage],
        past: Sequence[EpochResult],
    ) -> History:
        """Returns the history after a definition. It may read packs, to drop a stage's history."""
        history = self._publisher.store.history.copied(n for each in past for n, *_ in each.logged)
        hidden_columns(history, named_logs(change.fresh), catalog)
        for each in past:
            record_history(history, logs.keys(), each)
        for number in self._publisher.logs.keys() - logs.keys():
            history.drop(number)
        return history

    def _compile(
        self,
        decision: DefinitionDecision,
        catalog: Mapping[str, Stage],
        old: Graph,
        afresh: RecomputedState,
    ) -> tuple[Graph, Runner]:
        """Returns the previous graph and the runner of a catalog."""
        old, snapshot = self._publisher.numbered(old), self._publisher.snapshot
        graph = replay.compile_catalog(
            catalog,
            old,
            self._types,
            now=self._publisher.last_epoch,
            extended=decision.extended,
            refused=afresh.refused,
            bare=afresh.bare,
            tables=TableSizes(snapshot.graph, snapshot.version.traces),
            later=afresh is not NOTHING,
        )
        self._publisher.take_numbers(graph.numbers)
        bulk, previous = self._link.bulk(), self._publisher.runner
        runner = Runner(graph, self._link.evaluate, bulk, spill=bulk.files, before=previous)
        return old, runner


def _drop_unused_traces(draft: EpochResult, graph: Graph, change: GraphDiff) -> None:
    """Drops the traces that no node has any more."""
    if change.is_all_new:
        draft.keep(number for number, _ in graph.layouts())
    else:
        draft.forget(change.dropped)


def _logs_after(previous: Mapping[int, str], graph: Graph, change: GraphDiff) -> dict[int, str]:
    """Returns the logs of named collections after a definition."""
    if change.is_all_new:
        return named_logs(graph)
    logs = {**previous, **named_logs(change.fresh)}
    for number in named_logs(change.gone).keys() - named_logs(change.fresh).keys():
        del logs[number]
    return logs


def _spilled_files(past: Iterable[EpochResult]) -> frozenset[str]:
    """Returns the files of spilled epochs; a checkpoint deletes those that no trace keeps."""
    return frozenset(
        ref.path for each in past for _, _, change in each.logged for ref in change.refs
    )


def _version_without(version: VersionState, traces: Mapping[int, Trace]) -> VersionState:
    """Returns a version without some traces, so that these are written completely."""
    if not traces:
        return version
    remaining = {number: trace for number, trace in version.traces.items() if number not in traces}
    return VersionState(version.epoch, remaining)


def _first_run_text(graph: Graph, new: Container[int]) -> str:
    """Returns the text for the first run of some nodes, with the names of their stages."""
    return f"first run of {first_names([n.name for n in graph if n.id in new and n.name])}"
