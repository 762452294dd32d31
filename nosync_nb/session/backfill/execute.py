"""Brings the stages of a catalog up to date by a backfill plan, completely or not at all.

Every definition, drop, rename, repair and recovery installs a catalog here: `BackfillExecutor`
compiles it, runs what is missing, writes the frame and publishes it. `run_backfill` runs the nodes,
either here with the writer's lock, or in the background without it; see `background`.

Everything that can fail comes before the frame is written: compiling, running nodes, signing,
writing large batches to files, and reading packs to drop a stage's history. After the frame there
are only assignments of values that were computed before; see `publisher`.

Failure: 1. The epochs of a replay are written before the definition that uses them. 2. The
definition never follows. Hence such epochs are changes of logs that no catalog names, and the
numbers of these logs are not allocated again.

Failure: 1. The epochs of a catch-up are in frames before that of the definition that ends the lag.
2. A crash between the two leaves changes of a log that is already in the catalog. 3. The next
catch-up adds them a second time. Hence these epochs are in the frame of the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.cardinality import TableSizes
from nosync_nb.dataflow.compiler import compile_catalog
from nosync_nb.dataflow.graph import Graph, GraphDiff, Node
from nosync_nb.dataflow.runtime.activity import ActivityMonitor
from nosync_nb.dataflow.runtime.delta import ArrangedChange
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, StageWork, VersionState
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import Snapshot, hidden_columns, named_logs, visible_columns
from nosync_nb.dataflow.stage import Stage
from nosync_nb.session.backfill.damage import Compiled
from nosync_nb.session.backfill.definition_diff import DefinitionDecision, unchanged_decision
from nosync_nb.session.backfill.plan import (
    CURRENT,
    BackfillPlan,
    Base,
    Run,
    missing_nodes,
    next_run,
)
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.state.limits import UserLimits
from nosync_nb.session.state.publisher import Publisher, files_of, record_history
from nosync_nb.session.state.report import EXTEND
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.session.state.writer_lock import DefinitionOutcome, WriterLock
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.execution.placement import Placement
from nosync_nb.store.retention_policy import Retention
from nosync_nb.store.store import RunFiles
from nosync_nb.trace import Layer, Trace, adopt_merged, plan_merges
from nosync_nb.trace.batch import Batch, Layout, arrange
from nosync_nb.trace.compaction import merge_ranges
from nosync_nb.trace.history.archive import total_of
from nosync_nb.trace.history.history import History


class BackfillResult(NamedTuple):
    """The epochs that were computed, not yet written.

    Attributes:
        missed: the past epochs of stages that had stopped.
        replayed: the past epochs of new logs.
        draft: the result at the current epoch.
        past: the history that was read, with the gaps of the logs that were computed.
        begins: the first epochs of the stages with new logs.
    """

    missed: list[EpochResult]
    replayed: list[EpochResult]
    draft: EpochResult
    past: HistoricalInputs
    begins: Mapping[str, int]

    def count(self, name: str) -> int:
        """Returns the number of epochs at which a stage ran, without those that it caught up."""
        return sum(name in draft.work for draft in (*self.replayed, self.draft))


def run_backfill(
    runner: Runner,
    base: Base,
    plan: BackfillPlan,
    catalog: Mapping[str, Stage],
    rows_max: int,
    activities: ActivityMonitor,
    step: Callable[[], None] | None = None,
) -> BackfillResult:
    """Runs a graph for past epochs as planned, and all that is still missing at the current epoch.

    Nothing is written or published.

    Args:
        runner: the runner of the new graph.
        base: the previous graph, with its version and its history.
        rows_max: the most rows that are run epoch by epoch.
        activities: receives the progress.
        step: called before each node that runs at the current epoch. It may raise an error to end
            the run.
    """
    previous, graph = base.graph, runner.graph
    missed: list[EpochResult] = []
    replayed: list[EpochResult] = []
    begins: dict[str, int] = {}
    # No run repeats, because the base of the next one has the nodes of this one.
    while (run := next_run(graph, base, plan, catalog, rows_max)) is not None:
        drafts, base = _run_past(run, runner, base, activities)
        if run.outcome == EXTEND:
            missed += drafts
            continue
        replayed += drafts
        if plan.outcome == EXTEND:
            old, new = previous.named[plan.name], graph.named[plan.name]
            replayed = _with_previous_log(base.past, old, new, plan.begin, replayed)
        else:
            names = (graph.nodes[i].name for i in run.span.new)
            begins.update((name, run.first) for name in names if name is not None)
    missing = missing_nodes(graph, base.graph)
    if step is not None:
        draft = runner.first_run(base.version, base.graph, step=step)
    else:
        with activities.record(_first_run_text(graph, missing)):
            draft = runner.first_run(base.version, base.graph)
    return BackfillResult(missed, replayed, draft, base.past, begins)


def _run_past(
    run: Run, runner: Runner, base: Base, activities: ActivityMonitor
) -> tuple[list[EpochResult], Base]:
    """Runs nodes for past epochs.

    Args:
        runner: the runner of the whole graph.

    Returns:
        a draft for each epoch in which something changed, and the base that includes them.
    """
    past, span, first = base.past, run.span, run.first
    logs, wanted = span.logs, span.traces
    continued = [span.graph.nodes[i] for i in span.new] if run.outcome == EXTEND else []
    traces: dict[int, Trace] = {}
    for node in span.sources:
        traces.update(_source_traces(run, node, base))
    for node in continued:
        traces.update(_continued_traces(node, first, base))
    part = Runner(span.graph, runner.evaluate, runner.bulk)
    drafts: list[EpochResult] = []
    with activities.record(_run_text(run, base.version.epoch), len(run.epochs)) as progress:
        existing = Graph([*span.sources, *continued], span.graph.numbers)
        draft = part.first_run(VersionState(first, traces), existing)
        if run.outcome != EXTEND:
            drafts.append(draft.of_logs(logs))
        if len(run.epochs) > 1:
            part = Runner(span.graph, runner.evaluate)
        for before, epoch in pairwise([first, *run.epochs]):
            deltas = {node.id: past.delta(node, before, epoch) for node in span.sources}
            inputs = {i: delta for i, delta in deltas.items() if delta is not None}
            if inputs:
                draft = part.epoch(draft.version(), inputs, epoch)
                drafts.append(draft.of_logs(logs))
                _compact_merged(draft)
            progress.step()
    past.skip(logs, first, run.epochs)
    for each in drafts if run.outcome == EXTEND else ():  # stages that stopped earlier read them
        past.add(each)
    computed = {n: trace for n, trace in draft.traces.items() if n in wanted}
    return drafts, _base_after(run, runner.graph, base, computed)


def _base_after(run: Run, graph: Graph, base: Base, traces: Mapping[int, Trace]) -> Base:
    """Returns a base with the nodes that a run has brought up to date."""
    old = base.graph
    nodes = {**old.nodes, **{i: graph.nodes[i] for i in run.span.new}}
    numbers = max(old.numbers, graph.numbers)
    after = Graph(nodes.values(), numbers, memory=old.memory, unwritten=old.unwritten)
    version = VersionState(base.version.epoch, {**base.version.traces, **traces})
    return Base(after, version, base.past)


def _source_traces(run: Run, node: Node, base: Base) -> dict[int, Trace]:
    """Returns the traces of a named collection at the first epoch of a run.

    If the nodes of the run continue, existing traces are rewound by subtracting the later changes.

    Cost: proportional to the missed changes; for new arrangements and new nodes, to the rows of the
    collection.
    """
    result = {}
    existing = set(base.graph.nodes[node.id].traces.values()) if run.outcome == EXTEND else set()
    for layout, number in node.traces.items():
        if number not in existing:
            result[number] = _trace_of(layout, base.past.state(node, run.first), run.first)
            continue
        layers = [*base.version.traces[number].layers] if number in base.version.traces else []
        missed = run.missed[node.id]
        if len(missed):
            undo = arrange(layout, missed.updates.negated())
            layers.append(Layer(run.first, run.first + 1, (undo,)))
        # All layers get the interval of `first`, because appended changes must come after it.
        at_first = (Layer(run.first, run.first + 1, each.parts, each.files) for each in layers)
        result[number] = Trace(layout, tuple(at_first))
    return result


def _continued_traces(node: Node, first: int, base: Base) -> dict[int, Trace]:
    """Returns the traces that a stopped node had, and newly requested arrangements."""
    traces, old = base.version.traces, base.graph.nodes[node.id]
    result = {n: traces[n] for n in (*node.state, *old.traces.values()) if n in traces}
    existing = next((traces[n] for n in old.traces.values() if n in traces), None)
    for layout, number in node.traces.items():
        if number not in old.traces.values() and existing is not None:
            result[number] = _trace_of(layout, existing.consolidated(), first)
    return result


def _trace_of(layout: Layout, batch: Batch, epoch: int) -> Trace:
    """Returns the contents of a collection at an epoch as a trace of one layer."""
    arranged = batch if batch.layout == layout else arrange(layout, batch.updates)
    return Trace.from_batch(arranged, epoch)


def _with_previous_log(
    past: HistoricalInputs, before: Node, after: Node, begin: int, replayed: list[EpochResult]
) -> list[EpochResult]:
    """Prepends the epochs from `begin` on in the previous log to the epochs that were run.

    Args:
        before: the previous node; its log is complete up to the first epoch that was run.
        after: the node that replaces it.
    """
    assert after.log is not None
    first = replayed[0]
    steps = [e for e in past.readable([before]) if begin <= e <= first.epoch]
    if not steps or steps[-1] <= begin:
        return replayed
    drafts = []
    for last, epoch in pairwise([-1, *steps]):
        batch = past.state(before, epoch) if last < 0 else past.changes(before, last, epoch)
        draft = EpochResult(VersionState(epoch, {}), epoch)
        if len(batch):
            draft.logged.append((after.log, after.log_layout, ArrangedChange((batch,))))
        drafts.append(draft)
    first.unlog(after.log)
    past.skip([after.log], begin, steps)
    return [*drafts, *replayed]


def _compact_merged(draft: EpochResult) -> None:
    """Merges the layers of the traces that are due after an epoch, in this thread."""
    for number in draft.due:
        draft.traces[number] = _compact(draft.traces[number])


def _compact(trace: Trace) -> Trace:
    while (planned := plan_merges(trace)) is not None:
        inputs = trace.layers[planned.start : planned.stop]
        parts = merge_ranges(trace.layout, [layer.parts for layer in inputs])
        output = Layer(inputs[0].lower, inputs[-1].upper, tuple(parts))
        adopted = adopt_merged(trace, inputs, output)
        assert adopted is not None
        trace = adopted
    return trace


def _run_text(run: Run, now: int) -> str:
    if run.outcome == EXTEND:
        return "catching up stages that have missed epochs"
    return f"replaying epochs {run.first} to {now}"


def _first_run_text(graph: Graph, new: Container[int]) -> str:
    """Returns the text for the first run of some nodes, with the names of their stages."""
    return f"first run of {first_names([n.name for n in graph if n.id in new and n.name])}"


def first_names(names: Sequence[str]) -> str:
    """Returns the first four names as a text, with a hint if there are more."""
    return f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''}"


class Prepared(NamedTuple):
    """A compiled catalog that is to be run without the writer's lock.

    Attributes:
        old, runner: the previous graph, and the runner of the new one.
        files: the files that the run writes.
    """

    snapshot: Snapshot
    decision: DefinitionDecision
    old: Graph
    runner: Runner
    files: RunFiles


class BackfillExecutor:
    """Installs catalogs; has no state of its own. The caller holds the writer's lock.

    Attributes:
        types: types and settings of expressions.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        spark_connection: SparkConnection,
        signer: CatalogSigner,
        maintenance: Maintenance,
        limits: UserLimits,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._spark_connection = spark_connection
        self.types = spark_connection.types
        self._signer = signer
        self._maintenance = maintenance
        self._limits = limits

    def install(
        self,
        decision: DefinitionDecision,
        plan: BackfillPlan = CURRENT,
        *,
        renamed: Graph | None = None,
        work: Mapping[str, StageWork] | None = None,
        names: Mapping[Definition, str | None] | None = None,
        outcome: DefinitionOutcome | None = None,
        retention: Retention | None = None,
        computed: tuple[Prepared, BackfillResult] | None = None,
    ) -> BackfillResult:
        """Compiles a catalog, runs its plan, writes the definition and publishes it.

        Args:
            renamed: for a rename, the current graph with the new names.
            work: the last work of each stage after a rename or a drop.
            names: definitions whose names change, with the new name; `None` removes a name.
            outcome: is notified when the frame is committed.
            computed: a run that was made without the lock, and its result over the current version.
                If it is given, nothing is run here.
        """
        publisher = self._publisher
        snapshot, catalog = publisher.snapshot, dict(decision.catalog)
        rebuilt = self._rebuilt_traces(plan)
        if computed is None:
            old, runner = self._compile(decision, renamed or snapshot.graph, plan)
            past_rows = HistoricalInputs(publisher.store.history, snapshot.epoch)
            result = self.run_plan(runner, Base(old, snapshot.version, past_rows), catalog, plan)
            result.draft.traces.update(rebuilt)
        else:
            prepared, result = computed
            old = prepared.old
            runner = self.runner_of(prepared.runner.graph, before=prepared.runner)
        graph, change, draft = runner.graph, runner.graph.since(old), result.draft
        written = sum(publisher.store.write_replay(past, graph) for past in result.replayed)
        for name, first in result.begins.items():
            catalog[name] = replace(catalog[name], begin=first)
        _record_gaps(catalog, graph, result.past)
        _drop_unused_traces(draft, graph, change)
        sealed = self._signer.sealed(catalog, graph, draft.epoch, retention or publisher.retention)
        base = _version_without(snapshot.version, rebuilt)
        payload = publisher.store.definition(
            draft, base, graph, sealed.meta, result.missed, written
        )
        past = [*result.missed, *result.replayed, draft]
        logs = _logs_after(publisher.logs, graph, change)
        history = self._history_after(change, logs, catalog, past)
        version = VersionState(snapshot.epoch, draft.traces)
        only_dropped = not (result.missed or rebuilt or publisher.logs.keys() - logs.keys())
        retired = _spilled_files(past) | self._unused_files(
            version, history, change if only_dropped else None
        )
        after = Snapshot(
            version, graph, catalog, visible_columns(history), publisher.snapshot.rewinds
        )
        record = publisher.definition_redo(
            after, logs, history, runner, sealed, retired, past,
            work=work, names=names, outcome=outcome,
        )  # fmt: skip
        publisher.definition(record, payload)
        self._plan_background_work(draft)
        return result

    def install_stages(
        self, stages: Mapping[str, Stage], plan: BackfillPlan = CURRENT
    ) -> BackfillResult:
        """Installs the current catalog with some stages replaced; their definitions stay equal."""
        catalog = {**self._publisher.snapshot.catalog, **stages}
        return self.install(unchanged_decision(catalog), plan)

    def prepare(self, decision: DefinitionDecision) -> Prepared:
        """Compiles a decision that changes no stage, to be run without the writer's lock."""
        snapshot, bulk = self._publisher.snapshot, self._spark_connection.bulk().apart()
        old, runner = self._compile(decision, snapshot.graph, CURRENT)
        runner = self.runner_of(runner.graph, before=runner, bulk=bulk)
        return Prepared(snapshot, decision, old, runner, bulk.files)

    def run(
        self, prepared: Prepared, step: Callable[[], None], cleanup: Callable[..., None]
    ) -> BackfillResult:
        """Runs a prepared catalog, without the writer's lock."""
        snapshot, rows_max = prepared.snapshot, self._limits.replay_rows
        past = HistoricalInputs(snapshot.history, snapshot.epoch)
        base, activities = (
            Base(prepared.old, snapshot.version, past),
            self._publisher.metrics.activities,
        )
        catalog = prepared.decision.catalog
        return self._writer_lock.run(
            lambda: run_backfill(
                prepared.runner, base, CURRENT, catalog, rows_max, activities, step
            ),
            cleanup,
        )

    def run_plan(
        self,
        runner: Runner,
        base: Base,
        catalog: Mapping[str, Stage],
        plan: BackfillPlan = CURRENT,
    ) -> BackfillResult:
        """Runs a plan with the writer's lock; operator placement sees the new stages meanwhile."""
        publisher, rows_max = self._publisher, self._limits.replay_rows
        activities = publisher.metrics.activities
        publisher.describe(catalog)
        try:
            return self._writer_lock.run(
                lambda: run_backfill(runner, base, plan, catalog, rows_max, activities),
                self._spark_connection.bulk().files.end,
            )
        finally:
            publisher.describe(publisher.snapshot.catalog)

    def _rebuilt_traces(self, plan: BackfillPlan) -> Mapping[int, Trace]:
        """Returns the lost traces of a collection, rebuilt from another trace or from its log."""
        if not plan.arranged:
            return {}
        snapshot, store = self._publisher.snapshot, self._publisher.store
        node = snapshot.graph.named[plan.name]
        batch = _contents_without(snapshot, plan)
        rebuilt = {}
        for layout, number in node.traces.items():
            if number in plan.arranged:
                arranged = batch if batch.layout == layout else arrange(layout, batch.updates)
                layer = store.write_layer(number, layout, arranged, snapshot.epoch)
                rebuilt[number] = Trace(layout, (layer,))
        return rebuilt

    def runner_of(
        self, graph: Graph, *, before: Runner | None = None, bulk: Placement | None = None
    ) -> Runner:
        """Returns a runner of a graph that writes to the session's files, or to those of `bulk`."""
        bulk = bulk or self._spark_connection.bulk()
        return Runner(graph, self._spark_connection.evaluate, bulk, spill=bulk.files, before=before)

    def compile_continuing(self, catalog: Mapping[str, Stage], old: Graph, epoch: int) -> Compiled:
        """Compiles a catalog over a graph at an epoch; no stage runs epochs that it has missed."""
        none = frozenset[str]()
        graph = compile_catalog(catalog, old, self.types, now=epoch, extended=none)
        return Compiled(old, graph)

    def _plan_background_work(self, draft: EpochResult) -> None:
        self._maintenance.plan_due(draft)
        if any(change.refs for _, _, change in draft.logged):
            self._maintenance.plan_giving_back()

    def _unused_files(
        self, version: VersionState, history: History, change: GraphDiff | None
    ) -> frozenset[str]:
        """Returns the files that no trace and no pack needs after a definition.

        Args:
            version, history: the state after the definition.
            change: the change of the graph, if only dropped traces can release files; `None` means
                that any trace can.
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
        self, decision: DefinitionDecision, old: Graph, plan: BackfillPlan
    ) -> tuple[Graph, Runner]:
        """Returns the previous graph and the runner of a catalog."""
        old, snapshot = self._publisher.numbered(old), self._publisher.snapshot
        graph = compile_catalog(
            decision.catalog,
            old,
            self.types,
            now=self._publisher.last_epoch,
            extended=decision.extended,
            refused=plan.refused,
            bare=plan.bare,
            tables=TableSizes(snapshot.graph, snapshot.version.traces),
            later=bool(plan.names),
        )
        self._publisher.take_numbers(graph.numbers)
        return old, self.runner_of(graph, before=self._publisher.runner)


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
    """Returns the files of spilled epochs; a checkpoint deletes those that no trace references."""
    return frozenset(
        ref.path for each in past for _, _, change in each.logged for ref in change.refs
    )


def _version_without(version: VersionState, traces: Mapping[int, Trace]) -> VersionState:
    """Returns a version without some traces, so that these are written completely."""
    if not traces:
        return version
    remaining = {number: trace for number, trace in version.traces.items() if number not in traces}
    return VersionState(version.epoch, remaining)


def _record_gaps(catalog: dict[str, Stage], graph: Graph, past: HistoricalInputs) -> None:
    """Records in the catalog which epochs of its stages can no longer be read separately."""
    for node in graph if past.gaps else ():
        spans = past.gaps.get(node.log) if node.name and node.log is not None else None
        if node.name and spans:
            stage = catalog[node.name]
            gaps = {*stage.gaps, *((lower, upper) for lower, upper in spans)}
            catalog[node.name] = replace(stage, gaps=tuple(sorted(gaps)))


def _contents_without(snapshot: Snapshot, plan: BackfillPlan) -> Batch:
    """Returns the current contents of a collection, read without its lost traces."""
    node, last = snapshot.graph.named[plan.name], snapshot.last(snapshot.catalog[plan.name])
    assert node.log is not None
    for number in node.traces.values():
        trace = snapshot.version.traces.get(number)
        if number not in plan.arranged and trace is not None:
            return trace.consolidated()
    return total_of(snapshot.history.state(node.log, last), node.log_layout)
