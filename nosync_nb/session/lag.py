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
from typing import TYPE_CHECKING, NamedTuple

from nosync_nb.dataflow.graph import Graph, Node, Stage
from nosync_nb.dataflow.past import Past
from nosync_nb.dataflow.runner import Draft, Runner, Version
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.session import replay
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, arrange

if TYPE_CHECKING:
    from nosync_nb.session.session import Session


class Extended(NamedTuple):
    """What extending gave: past epochs of stages, not yet written, and the base that has them."""

    drafts: list[Draft]
    base: replay.Base


def unreadable(seen: Snapshot, stage: Stage, same: Mapping[str, Stage]) -> str | None:
    """Why a stage cannot be extended from its last epoch, None if it can.

    Args:
        same: what it reads, as far as it is what it was.
    """
    assert stage.definition is not None
    graph, last = seen.graph, seen.last(stage)
    if graph.named[stage.name].operator is None:
        return "its state was not kept"
    for name in stage.definition.references:
        if name not in same:
            return f"'{name}' is not what it was"
        log = graph.named[name].log
        assert log is not None
        if not any(last in readable for readable in seen.history.epochs(log, seen.epoch)):
            return f"'{name}' cannot be read at epoch {last} any more"
    return None


def extended(session: Session, graph: Graph, old: Graph) -> Extended:
    """Brings every node of `graph` to now that is in `old` and stopped, and does not stand still.

    Nothing is written or made visible.
    """
    groups: dict[int, set[int]] = {}
    for node in graph:
        before = old.nodes.get(node.id)
        if before is None or before.stopped is None or node.frozen:
            continue
        if before.stopped < session.now:
            groups.setdefault(before.stopped, set()).add(node.id)
    past = Past(session._store.history, session.now)
    traces = dict(session._version.traces)
    drafts: list[Draft] = []
    for stop in sorted(groups, reverse=True):
        group = _Group(session, past, replay.span(graph, groups[stop]), old, stop)
        made, after = group.run(traces)
        traces.update(after)
        for draft in made:
            past.add(draft)
        drafts += made
    moved = set().union(*groups.values())
    held = Graph([graph.nodes[n.id] if n.id in moved else n for n in old], old.numbers)
    return Extended(drafts, replay.Base(held, Version(session.now, traces), past))


class _Group:
    """The nodes that stopped at one epoch.

    Args:
        found: they, and what must run with them.
    """

    def __init__(
        self, session: Session, past: Past, found: replay.Span, old: Graph, stop: int
    ) -> None:
        self.session, self.past, self.found, self.old, self.stop = session, past, found, old, stop

    def run(self, traces: Mapping[int, Trace]) -> tuple[list[Draft], dict[int, Trace]]:
        """Runs what was missed.

        Args:
            traces: as of now, those of the group as of `stop`.

        Returns:
            a draft for each step in which something changed, and the group's traces as of now.
        """
        session, past, found, stop = self.session, self.past, self.found, self.stop
        missed = {n.id: past.changes(n, stop, session.now) for n in found.sources}
        steps = self._steps(missed)
        start: dict[int, Trace] = {}
        for node in found.sources:
            start.update(self._undone(node, traces, missed[node.id]))
        for i in found.new:
            start.update(self._kept(found.graph.nodes[i], traces))
        there = Graph([*found.sources, *(found.graph.nodes[i] for i in found.new)])
        runner = Runner(found.graph, session._spark.evaluate, session._spark.bulk())
        draft = runner.first_run(Version(stop, start), there)
        if len(steps) > 1:
            runner.bulk = None
        drafts = []
        before = stop
        for epoch in steps:
            deltas = {node.id: past.delta(node, before, epoch) for node in found.sources}
            inputs = {i: delta for i, delta in deltas.items() if delta is not None}
            if inputs:
                draft = runner.epoch(draft.version(), inputs, epoch)
                drafts.append(replay.kept(draft, found.logs))
                replay.compact(draft)
            before = epoch
        past.skip(found.logs, stop, steps)
        own = found.traces
        return drafts, {n: t for n, t in draft.traces.items() if n in own}

    def _steps(self, missed: Mapping[int, Batch]) -> list[int]:
        """The epochs to run: all that can be told apart if that is cheap, else now."""
        now = self.session.now
        rows = sum(map(len, missed.values()))
        if rows > self.session.replay_rows or now - self.stop > replay.EPOCHS_MAX:
            return [now]
        return [e for e in self.past.readable(self.found.sources) if e > self.stop]

    def _undone(self, node: Node, traces: Mapping[int, Trace], missed: Batch) -> dict[int, Trace]:
        """The traces of a collection at `stop`: those of now without what came since.

        Cost: in what was missed; in all that the collection holds for an order that is new.
        """
        made = {}
        known = set(self.old.nodes[node.id].traces.values())
        for layout, number in node.traces.items():
            if number not in known:
                made[number] = replay.whole(layout, self.past.state(node, self.stop), self.stop)
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
                made[number] = replay.whole(layout, held.consolidated(), self.stop)
        return made


def with_gaps(catalog: dict[str, Stage], graph: Graph, past: Past) -> None:
    """Notes in the catalog which epochs of its stages cannot be told apart."""
    for node in graph:
        found = past.gaps.get(node.log) if node.name and node.log is not None else None
        if node.name and found:
            stage = catalog[node.name]
            gaps = sorted({*map(tuple, stage.gaps), *map(tuple, found)})
            options = {**stage.options, "gaps": [list(gap) for gap in gaps]}
            catalog[node.name] = replace(stage, options=options)
