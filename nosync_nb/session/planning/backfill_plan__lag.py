"""Extending: stages that have lagged behind, brought to now from where they stopped.

What such a stage held is kept: its log, its traces, its operators' state. It runs the changes of
what it reads since its last epoch, each epoch for itself if that is cheap, else all as one change
at now; then the epochs between cannot be told apart. Rows up to its last epoch are not computed
again. Recovery does it at opening, a definition when a cell is run.

Nodes stop at different epochs, so it is done in groups, the last that stopped first: what stopped
earlier reads them. A part without a name that has gone on, as somebody else uses it, has no past;
it is computed at the group's epoch from the named collections below it, and forgotten.

Failure: the epochs are in the frame of the definition that ends the lag, not in frames before it.
Otherwise a crash between the two would leave changes of a log that is known, and the next extension
would add them a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.dataflow.graph import UNMADE, Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, VersionState
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.dataflow.state_reader import has_lost_state
from nosync_nb.session.planning import replay
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, arrange
from nosync_nb.trace.history.history import History


class CatchUpResult(NamedTuple):
    """What extending gave: past epochs of stages, not yet written, and the base that has them."""

    drafts: list[EpochResult]
    base: replay.ReplayBase


def catch_up_refusal(snapshot: Snapshot, stage: Stage, same: Mapping[str, Stage]) -> str | None:
    """Why a stage cannot be extended from its last epoch, None if it can.

    Args:
        same: what it reads, as far as it is what it was.
    """
    assert stage.definition is not None
    graph, last = snapshot.graph, snapshot.last(stage)
    node = graph.named[stage.name]
    if node.operator is None:
        return "its state was not kept"
    own = [
        part
        for part in replay.replay_span(graph, {node.id}).graph
        if part.name in (None, stage.name)
    ]
    if any(part.plan == UNMADE for part in own):
        return "its state was not kept"
    if any(p.operator and p.operator.memoises and p.stopped != last for p in own):
        return "it shares memoised results with a stage that went on"
    if stage.refused:
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
    """Brings every node of a graph to now that is in `old` and stopped, and does not stand still.

    Nothing is written or made visible.

    Args:
        runner: of the graph.
        rows_max: the most missed rows that are run epoch by epoch.
    """
    groups: dict[int, set[int]] = {}
    for node in runner.graph.since(old).fresh:
        before = old.nodes.get(node.id)
        if before is None or before.stopped is None or node.frozen:
            continue
        if before.stopped < version.epoch:
            groups.setdefault(before.stopped, set()).add(node.id)
    past = HistoricalInputs(history, version.epoch)
    if not groups:
        return CatchUpResult([], replay.ReplayBase(old, version, past))
    traces = dict(version.traces)
    drafts: list[EpochResult] = []
    for stop in sorted(groups, reverse=True):
        lagging = _Lagging(
            past, replay.replay_span(runner.graph, groups[stop]), old, stop, version.epoch
        )
        ran, after = lagging.run(runner, traces, rows_max)
        traces.update(after)
        for draft in ran:
            past.add(draft)
        drafts += ran
    moved = set().union(*groups.values())
    nodes = [runner.graph.nodes[n.id] if n.id in moved else n for n in old]
    there = Graph(nodes, old.numbers, memory=old.memory, unwritten=old.unwritten)
    return CatchUpResult(
        drafts, replay.ReplayBase(there, VersionState(version.epoch, traces), past)
    )


class _Lagging:
    """The nodes that stopped at one epoch.

    Args:
        found: they, and what must run with them.
        stop: their last epoch, before `now`.
    """

    def __init__(
        self, past: HistoricalInputs, span: replay.ReplaySpan, old: Graph, stop: int, now: int
    ) -> None:
        self.past, self.span, self.old, self.stop, self.now = past, span, old, stop, now

    def run(
        self, whole: Runner, traces: Mapping[int, Trace], rows_max: int
    ) -> tuple[list[EpochResult], dict[int, Trace]]:
        """Runs what was missed.

        Args:
            whole: what runs all of the graph.
            traces: as of now, those of the group as of `stop`.

        Returns:
            a draft for each step in which something changed, and the group's traces as of now.
        """
        past, span, stop = self.past, self.span, self.stop
        missed = {n.id: past.changes(n, stop, self.now) for n in span.sources}
        steps = self._steps(missed, rows_max)
        start: dict[int, Trace] = {}
        for node in span.sources:
            start.update(self._undone(node, traces, missed[node.id]))
        for i in span.new:
            start.update(self._kept(span.graph.nodes[i], traces))
        there = Graph([*span.sources, *(span.graph.nodes[i] for i in span.new)])
        runner = Runner(span.graph, whole.evaluate, whole.bulk)
        draft = runner.first_run(VersionState(stop, start), there)
        if len(steps) > 1:
            runner = Runner(span.graph, whole.evaluate)
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
        own = span.traces
        return drafts, {n: t for n, t in draft.traces.items() if n in own}

    def _steps(self, missed: Mapping[int, Batch], rows_max: int) -> list[int]:
        """The epochs to run: all that can be told apart if that is cheap, else now."""
        rows = sum(map(len, missed.values()))
        if rows > rows_max or self.now - self.stop > replay.EPOCHS_MAX:
            return [self.now]
        return [e for e in self.past.readable(self.span.sources) if e > self.stop]

    def _undone(self, node: Node, traces: Mapping[int, Trace], missed: Batch) -> dict[int, Trace]:
        """The traces of a collection at `stop`: those of now without what came since.

        Cost: in what was missed; in all that the collection holds for an order that is new.
        """
        made = {}
        known = set(self.old.nodes[node.id].traces.values())
        for layout, number in node.traces.items():
            if number not in known:
                made[number] = replay.state_at(layout, self.past.state(node, self.stop), self.stop)
                continue
            layers = list(traces[number].layers) if number in traces else []
            if len(missed):
                undo = arrange(layout, missed.updates.negated())
                layers.append(Layer(self.stop, self.stop + 1, (undo,)))
            # Their intervals are not those of the session: what is appended comes after `stop`.
            made[number] = Trace(
                layout,
                tuple(Layer(self.stop, self.stop + 1, each.parts, each.files) for each in layers),
            )
        return made

    def _kept(self, node: Node, traces: Mapping[int, Trace]) -> dict[int, Trace]:
        """The traces of a node of the group as it left them, and those newly asked for."""
        before = self.old.nodes[node.id]
        made = {n: traces[n] for n in (*node.state, *before.traces.values()) if n in traces}
        held = next((traces[n] for n in before.traces.values() if n in traces), None)
        for layout, number in node.traces.items():
            if number not in before.traces.values() and held is not None:
                made[number] = replay.state_at(layout, held.consolidated(), self.stop)
        return made


def with_recorded_gaps(catalog: dict[str, Stage], graph: Graph, past: HistoricalInputs) -> None:
    """Notes in the catalog which epochs of its stages cannot be told apart."""
    for node in graph if past.gaps else ():
        spans = past.gaps.get(node.log) if node.name and node.log is not None else None
        if node.name and spans:
            stage = catalog[node.name]
            gaps = {*stage.gaps, *((lower, upper) for lower, upper in spans)}
            catalog[node.name] = replace(stage, gaps=tuple(sorted(gaps)))
