"""Plans repairs of damaged stages, and catches up stages that stopped at an earlier epoch.

A repair is planned purely. Each stage with missing files gets one of these actions:

    read        rebuild an arrangement of its rows from its log, which is complete
    extend      its log is complete up to an epoch: run it from there on
    recompute   run it from its first epoch over the logs of its inputs; if its log is complete,
                rebuild only its operator state at the current epoch
    stale       it cannot be recomputed, because it memoises results

All other stages keep their logs, files and rows. Inputs are not computed, so the rows of an input
come from its own log or are lost.

Failure: 1. A stage and one of its inputs both lack files; the input is recomputed first. 2. The
plan was made from the state of both before that. Hence stages are planned in the order of the
graph, and the plan for a stage counts for its readers.

A catch-up keeps the log, the traces and the operator state of a stage. It runs the changes of the
inputs since the last epoch of the stage: epoch by epoch if that is cheap. Otherwise it runs all of
them as one change at the current epoch, and the epochs between become a gap. Rows up to its last
epoch are not recomputed. Recovery catches stages up at opening; a definition does so when a cell
is run.

Nodes stop at different epochs, so they run in groups, the latest stop first, because nodes that
stopped earlier read them. An unnamed node that another stage kept current has no history. It is
computed at the group's epoch from the named collections below it, and discarded afterwards.

Failure: 1. The missed epochs are in frames before that of the definition that ends the lag. 2. A
crash between the two leaves changes of a log that is already in the catalog. 3. The next catch-up
adds them a second time. Hence the epochs are in the frame of the definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.dataflow.graph import UNMADE, Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, VersionState
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import RefutedState, Stage
from nosync_nb.dataflow.state_reader import has_lost_state
from nosync_nb.session.planning import replay
from nosync_nb.session.report import EXTEND, READ, RECOMPUTE, STALE, counted_noun
from nosync_nb.store import lazy_layer
from nosync_nb.store.provenance.check import ClockContradiction
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, arrange
from nosync_nb.trace.epoch_ranges import EpochRanges
from nosync_nb.trace.history.history import History
from nosync_nb.trace.history.missing_files import MissingHistory

NOBODY: frozenset[int] = frozenset()


class StageDamage(NamedTuple):
    """The planned repair of one stage or input.

    Attributes:
        files: the missing files.
        arranged: traces to rebuild from its log.
        refused: nodes to recompute with all their traces.
        bare: nodes that keep their rows and get only their operator state recomputed.
        first: the first epoch to run; None: only the current one.
        begin: its first readable epoch after the repair.
        why: the text for the report: why the repair is impossible, or which epochs it runs.
    """

    name: str
    action: str
    files: frozenset[str]
    arranged: frozenset[int] = NOBODY
    refused: frozenset[int] = NOBODY
    bare: frozenset[int] = NOBODY
    first: int | None = None
    begin: int = 0
    why: str = ""


def awaits_recheck(catalog: Mapping[str, Stage]) -> bool:
    """Returns True if a live stage has refuted rows that are still to be recomputed."""
    return any(stage.refuted is not None and stage.live for stage in catalog.values())


def refuted_stages(
    snapshot: Snapshot, wrong: Iterable[ClockContradiction]
) -> dict[int, RefutedState]:
    """Returns, by log, the stages whose clocks contradict their inputs, and their readers.

    Stopped stages are included, because they would continue from refuted rows. So are stages that
    the catalog already marks as refuted: the contradiction is gone once its source was recomputed.

    Args:
        snapshot: a compiled snapshot.
        wrong: the contradictions; those about dropped stages are ignored.
    """
    graph, doubts = snapshot.graph, dict[int, RefutedState]()
    names = {node.log: name for name, node in graph.named.items()}

    def doubt(name: str, epoch: int, why: str) -> None:
        stage, log = snapshot.catalog[name], graph.named[name].log
        earlier = doubts.get(log or 0)
        if log is None or stage.is_input or stage.frozen or epoch > stage.last(snapshot.epoch):
            return
        if not stage.live and (stage.in_memory or stage.is_distrusted):
            return
        if earlier is None or epoch < earlier.epoch:
            doubts[log] = RefutedState(epoch, why)

    for stage_name, stage in snapshot.catalog.items():
        if stage.refuted is not None:
            doubt(stage_name, *stage.refuted)
    for log, epoch, source in wrong:
        name = names.get(log)
        if name is None:
            continue
        what = "itself" if source == log else f"'{names.get(source, 'what is gone')}'"
        doubt(name, epoch, f"at epoch {epoch} its clock names other rows of {what} than are there")
        if not snapshot.catalog[name].is_input:
            for reader in graph.dependants(name):
                doubt(reader, epoch, f"it reads '{name}', which is computed again")
    return doubts


def plan_repairs(
    snapshot: Snapshot,
    lost: MissingHistory,
    missing: AbstractSet[str],
    doubts: Mapping[int, RefutedState] | None = None,
    apart: AbstractSet[str] = frozenset(),
) -> list[StageDamage]:
    """Plans the repair of every stage with missing or refuted data, inputs before their readers.

    Args:
        snapshot: a compiled snapshot, with all operator state.
        lost: the history that is unreadable.
        missing: the names of the missing files.
        doubts: the refuted logs; their contents count as lost.
        apart: stages that are planned later, because their inputs have no rows yet, together with
            their readers.
    """
    return [*_RepairPlanner(snapshot, lost, missing, doubts or {}).losses(apart)]


class _RepairPlanner:
    """The state of planning while the stages are visited in the order of the graph.

    Attributes:
        readable: the epochs at which a collection can be read after its planned repair.
        lost_names: collections that cannot be read at all now.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        lost: MissingHistory,
        missing: AbstractSet[str],
        doubts: Mapping[int, RefutedState],
    ) -> None:
        self.snapshot, self.lost, self.doubts = snapshot, lost, doubts
        self.missing_by_trace: Mapping[int, AbstractSet[str]] = {
            number: files
            for number, trace in snapshot.version.traces.items()
            if (files := lazy_layer.files_needed(trace) & missing)
        }
        self.past = HistoricalInputs(snapshot.history, snapshot.epoch)
        self.readable: dict[str, EpochRanges] = {}
        self.lost_names: set[str] = set()
        self.planned_parts: set[int] = set()  # unnamed nodes whose repair is planned

    def losses(self, apart: AbstractSet[str]) -> Iterator[StageDamage]:
        for node in self.snapshot.graph:
            if node.name is None or node.name in apart:
                continue
            loss = self._plan_stage(node, self.snapshot.catalog[node.name])
            if loss is not None:
                yield loss

    def _plan_stage(self, node: Node, stage: Stage) -> StageDamage | None:
        """Plans the repair of one stage; None if it has all its data."""
        assert node.log is not None
        broken, doubt = self.lost.first_missing(node.log, stage.begin), self.doubts.get(node.log)
        if broken is not None and broken[0] > stage.last(self.snapshot.epoch):
            broken = None
        if doubt is not None:
            return self._plan_refuted(node, stage, doubt, broken)
        damaged = {n for n in node.traces.values() if n in self.missing_by_trace}
        parts = self._damaged_parts(node) if node.operator is not None else set()
        state = any(number in self.missing_by_trace for number in node.state)
        if broken is None and not damaged and not parts and not state:
            return None
        files = frozenset(self._missing_files(node, parts)).union(
            () if broken is None else broken[1]
        )
        loss = StageDamage(stage.name, READ, files, arranged=frozenset(damaged), begin=stage.begin)
        if broken is not None:
            return self._plan_broken(node, stage, loss, broken[0], parts)
        if not parts and not state:
            return loss
        bare = frozenset([node.id]) if state else NOBODY
        why = self._refusal(node, stage, parts | bare)
        if why is not None:
            return self._as_stale(loss, why)
        self.planned_parts |= parts
        return loss._replace(action=RECOMPUTE, refused=frozenset(parts), bare=bare)

    def _plan_refuted(
        self, node: Node, stage: Stage, doubt: RefutedState, broken: tuple[int, set[str]] | None
    ) -> StageDamage:
        """Plans the repair of a stage whose log is refuted from an epoch on."""
        epoch, files = (doubt.epoch, set[str]()) if broken is None else broken
        loss = StageDamage(stage.name, STALE, frozenset(files), begin=stage.begin)
        why = self._refusal(node, stage) if stage.live else "run its cell"
        if why is not None:
            return self._as_stale(loss, f"{doubt.why}; {why}")
        span = replay.replay_span(self.snapshot.graph, {node.id})
        parts = {part.id for part in span.graph if part.name is None} - self.planned_parts
        damage = self._plan_broken(node, stage, loss, min(epoch, doubt.epoch), parts)
        return damage._replace(why=f"{doubt.why}: {damage.why}")

    def _plan_broken(
        self, node: Node, stage: Stage, loss: StageDamage, epoch: int, parts: AbstractSet[int]
    ) -> StageDamage:
        """Plans the repair of a stage whose log cannot be read from an epoch on."""
        now = self.snapshot.epoch
        rebuildable = len(loss.arranged) < len(node.traces)
        incomplete = bool(parts) or any(number in self.missing_by_trace for number in node.state)
        why = f"its rows at epochs {epoch} to {now - 1} cannot be read"
        if stage.is_input or stage.frozen or not stage.live or self._refusal(node, stage):
            self._limit_readable(stage, now)  # the current rows are read without the log
            if not rebuildable:
                return self._as_stale(
                    loss, self._refusal(node, stage) or _unrecoverable_text(stage)
                )
            return self._as_stale(loss, why) if incomplete else loss._replace(why=why)
        sources = EpochRanges.of(range(now + 1))
        for name in self._source_names(node):
            sources &= self._readable_epochs(name)
        first = sources.nearest(stage.begin)[1]
        assert first is not None  # the sources are readable at the current epoch
        begin = max(stage.begin, first)
        if begin > stage.begin and rebuildable and not incomplete:  # keep the rows that can be read
            self._limit_readable(stage, now)
            return loss._replace(why=why)
        last = sources.nearest(epoch - 1)[0] if epoch else None
        refused = frozenset([node.id, *parts])
        loss = loss._replace(arranged=NOBODY, refused=refused, begin=begin)
        self.planned_parts |= parts
        if last is not None and last > stage.begin and self._is_readable(node, last):
            return loss._replace(
                action=EXTEND, first=last, begin=stage.begin, why=_epochs_text(last + 1, now)
            )
        if begin > stage.begin:
            self._limit_readable(stage, begin)
            why = f"{_epochs_text(begin, now)}; before that what it reads cannot be read any more"
            return loss._replace(action=RECOMPUTE, first=begin, why=why)
        return loss._replace(action=RECOMPUTE, first=begin, why=_epochs_text(begin, now))

    def _is_readable(self, node: Node, epoch: int) -> bool:
        return epoch in self.past.readable([node])

    def _refusal(self, node: Node, stage: Stage, run: AbstractSet[int] | None = None) -> str | None:
        """Returns why a stage cannot be computed from its inputs; None if it can.

        Args:
            run: the nodes to run; None: all nodes of the stage.
        """
        if node.operator is None:
            return _unrecoverable_text(stage)
        if self._memoises({node.id} if run is None else run, all_of=run is None):
            return "its memoised results cannot be recomputed: run its cell"
        lost = next((name for name in self._source_names(node) if name in self.lost_names), None)
        return None if lost is None else f"it reads '{lost}', which is lost"

    def _memoises(self, run: AbstractSet[int], *, all_of: bool) -> bool:
        """Returns True if a node memoises results, or an unnamed node that runs with it does.

        Args:
            all_of: True: all unnamed nodes below run; False: only those that hold no rows.
        """
        nodes, waiting, reached = self.snapshot.graph.nodes, [*run], set(run)
        while waiting:
            node = nodes[waiting.pop()]
            if node.operator is not None and node.operator.memoises:
                return True
            for i in set(node.inputs) - reached:
                if nodes[i].name is None and (all_of or nodes[i].log is None):
                    waiting.append(i)
                    reached.add(i)
        return False

    def _as_stale(self, loss: StageDamage, why: str) -> StageDamage:
        self.lost_names.add(loss.name)
        return loss._replace(action=STALE, arranged=NOBODY, why=why)

    def _limit_readable(self, stage: Stage, first: int) -> None:
        """Records that a collection cannot be read before an epoch, whatever its log contains."""
        self.readable[stage.name] = EpochRanges.of(range(first, self.snapshot.epoch + 1))

    def _readable_epochs(self, name: str) -> EpochRanges:
        """Returns the epochs at which a collection can be read after the planned repairs."""
        node = self.snapshot.graph.named[name]
        epochs = self.past.readable([node])
        if name in self.readable:
            epochs &= self.readable[name]
        return epochs

    def _source_names(self, node: Node) -> list[str]:
        """Returns the named collections that a node is computed from."""
        sources = replay.replay_span(self.snapshot.graph, {node.id}).sources
        return [each.name for each in sources if each.name is not None]

    def _damaged_parts(self, node: Node) -> set[int]:
        """Returns the unnamed nodes that a stage is computed with and that lack files."""
        span = replay.replay_span(self.snapshot.graph, {node.id})
        damaged = set()
        for part in span.graph:
            if part.name is None and part.id not in self.planned_parts:
                numbers = (*part.traces.values(), *part.state)
                if any(number in self.missing_by_trace for number in numbers):
                    damaged.add(part.id)
        return damaged

    def _missing_files(self, node: Node, parts: Iterable[int]) -> set[str]:
        nodes = [node, *(self.snapshot.graph.nodes[i] for i in parts)]
        numbers = (n for other in nodes for n in (*other.traces.values(), *other.state))
        return {name for number in numbers for name in self.missing_by_trace.get(number, ())}


def _unrecoverable_text(stage: Stage) -> str:
    if stage.is_input:
        return "nothing gives the rows of an input again: restore the file from a copy"
    return "it has stopped, and nothing gives its rows again: restore the file from a copy"


def _epochs_text(first: int, last: int) -> str:
    return f"{counted_noun(last - first + 1, 'epoch')} from {first} on"


class CatchUpResult(NamedTuple):
    """The past epochs that a catch-up has run, not yet written, and the base that includes them."""

    drafts: list[EpochResult]
    base: replay.ReplayBase


def catch_up_refusal(snapshot: Snapshot, stage: Stage, same: Mapping[str, Stage]) -> str | None:
    """Returns why a stage cannot be caught up from its last epoch; None if it can.

    Args:
        same: the stages in the catalog that are unchanged.
    """
    assert stage.definition is not None
    graph, last = snapshot.graph, snapshot.last(stage)
    node = graph.named[stage.name]
    if node.operator is None:
        return "its state was not kept"
    parts = [
        part
        for part in replay.replay_span(graph, {node.id}).graph
        if part.name in (None, stage.name)
    ]
    if any(part.plan == UNMADE for part in parts):
        return "its state was not kept"
    if any(p.operator and p.operator.memoises and p.stopped != last for p in parts):
        return "it shares memoised results with a stage that went on"
    if stage.is_distrusted:
        return "its rows are not believed"
    if has_lost_state(stage, last):
        return "it was in memory alone"
    for name in stage.definition.references:
        if name not in same:
            return f"'{name}' is not what it was"
        log = graph.named[name].log
        assert log is not None
        if not any(last in epochs for epochs in snapshot.history.epochs(log, snapshot.epoch)):
            return f"'{name}' cannot be read at epoch {last} any more"
    return None


def catch_up(
    runner: Runner, old: Graph, version: VersionState, history: History, rows_max: int
) -> CatchUpResult:
    """Catches up every node that stopped at an earlier epoch and is not frozen.

    Nothing is written or published.

    Args:
        runner: the runner of the new graph.
        rows_max: up to so many missed rows are run epoch by epoch.
    """
    groups: dict[int, set[int]] = {}
    for node in runner.graph.since(old).fresh:
        old_node = old.nodes.get(node.id)
        if old_node is None or old_node.stopped is None or node.frozen:
            continue
        if old_node.stopped < version.epoch:
            groups.setdefault(old_node.stopped, set()).add(node.id)
    past = HistoricalInputs(history, version.epoch)
    if not groups:
        return CatchUpResult([], replay.ReplayBase(old, version, past))
    traces = dict(version.traces)
    drafts: list[EpochResult] = []
    for stop in sorted(groups, reverse=True):
        lagging = _StoppedGroup(
            past, replay.replay_span(runner.graph, groups[stop]), old, stop, version.epoch
        )
        ran, new_traces = lagging.run(runner, traces, rows_max)
        traces.update(new_traces)
        for draft in ran:
            past.add(draft)
        drafts += ran
    moved = set().union(*groups.values())
    nodes = [runner.graph.nodes[n.id] if n.id in moved else n for n in old]
    caught_up = Graph(nodes, old.numbers, memory=old.memory, unwritten=old.unwritten)
    return CatchUpResult(
        drafts, replay.ReplayBase(caught_up, VersionState(version.epoch, traces), past)
    )


class _StoppedGroup:
    """The nodes that stopped at one epoch.

    Args:
        span: these nodes, and the nodes that must run with them.
        stop: their last epoch, before `now`.
    """

    def __init__(
        self, past: HistoricalInputs, span: replay.ReplaySpan, old: Graph, stop: int, now: int
    ) -> None:
        self.past, self.span, self.old, self.stop, self.now = past, span, old, stop, now

    def run(
        self, full: Runner, traces: Mapping[int, Trace], rows_max: int
    ) -> tuple[list[EpochResult], dict[int, Trace]]:
        """Runs the missed epochs.

        Args:
            full: the runner of the whole graph.
            traces: the current traces; those of the group are at `stop`.

        Returns:
            a draft for each step in which something changed, and the group's traces at the current
            epoch.
        """
        past, span, stop = self.past, self.span, self.stop
        missed = {n.id: past.changes(n, stop, self.now) for n in span.sources}
        steps = self._epochs_to_run(missed, rows_max)
        start: dict[int, Trace] = {}
        for node in span.sources:
            start.update(self._traces_at_stop(node, traces, missed[node.id]))
        for i in span.new:
            start.update(self._group_traces(span.graph.nodes[i], traces))
        sources = Graph([*span.sources, *(span.graph.nodes[i] for i in span.new)])
        runner = Runner(span.graph, full.evaluate, full.bulk)
        draft = runner.first_run(VersionState(stop, start), sources)
        if len(steps) > 1:
            runner = Runner(span.graph, full.evaluate)
        drafts = []
        before = stop
        for epoch in steps:
            deltas = {node.id: past.delta(node, before, epoch) for node in span.sources}
            inputs = {i: delta for i, delta in deltas.items() if delta is not None}
            if inputs:
                draft = runner.epoch(draft.version(), inputs, epoch)
                drafts.append(draft.of_logs(span.logs))
                replay.compact_replayed(draft)
            before = epoch
        past.skip(span.logs, stop, steps)
        wanted = span.traces
        return drafts, {n: t for n, t in draft.traces.items() if n in wanted}

    def _epochs_to_run(self, missed: Mapping[int, Batch], rows_max: int) -> list[int]:
        """Returns the epochs to run: all readable ones if that is cheap, else the current one."""
        rows = sum(map(len, missed.values()))
        if rows > rows_max or self.now - self.stop > replay.EPOCHS_MAX:
            return [self.now]
        return [e for e in self.past.readable(self.span.sources) if e > self.stop]

    def _traces_at_stop(
        self, node: Node, traces: Mapping[int, Trace], missed: Batch
    ) -> dict[int, Trace]:
        """Returns the traces of a collection at `stop`: the current ones minus the later changes.

        Cost: in the missed changes; for an arrangement that is new, in all rows of the collection.
        """
        result = {}
        existing = set(self.old.nodes[node.id].traces.values())
        for layout, number in node.traces.items():
            if number not in existing:
                result[number] = replay.state_at(
                    layout, self.past.state(node, self.stop), self.stop
                )
                continue
            layers = list(traces[number].layers) if number in traces else []
            if len(missed):
                undo = arrange(layout, missed.updates.negated())
                layers.append(Layer(self.stop, self.stop + 1, (undo,)))
            # All layers get the interval of `stop`, because appended changes must come after it.
            result[number] = Trace(
                layout,
                tuple(Layer(self.stop, self.stop + 1, each.parts, each.files) for each in layers),
            )
        return result

    def _group_traces(self, node: Node, traces: Mapping[int, Trace]) -> dict[int, Trace]:
        """Returns the traces that a node of the group had, and newly requested arrangements."""
        old_node = self.old.nodes[node.id]
        result = {n: traces[n] for n in (*node.state, *old_node.traces.values()) if n in traces}
        existing = next((traces[n] for n in old_node.traces.values() if n in traces), None)
        for layout, number in node.traces.items():
            if number not in old_node.traces.values() and existing is not None:
                result[number] = replay.state_at(layout, existing.consolidated(), self.stop)
        return result


def with_recorded_gaps(catalog: dict[str, Stage], graph: Graph, past: HistoricalInputs) -> None:
    """Records in the catalog which epochs of its stages can no longer be read separately."""
    for node in graph if past.gaps else ():
        spans = past.gaps.get(node.log) if node.name and node.log is not None else None
        if node.name and spans:
            stage = catalog[node.name]
            gaps = {*stage.gaps, *((lower, upper) for lower, upper in spans)}
            catalog[node.name] = replace(stage, gaps=tuple(sorted(gaps)))
