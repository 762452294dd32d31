"""Replay: a new version of a stage, computed for past epochs as well.

The nodes that are new, and what lies unnamed between them and the named collections they read, run
over the history of those: first over its state at the first epoch, then epoch by epoch, with the
kernels and the runner of any epoch. What comes out is the history and the state of the new
version, as if it had been defined then.

Failure: the epochs are written before the definition that uses them. If that never follows, they
are changes of logs that nobody knows, and their numbers are not given again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from nosync_nb import committing
from nosync_nb.batch import Batch, Layout, arrange, merge
from nosync_nb.dataflow import Delta, Draft, Held, Runner, Version
from nosync_nb.errors import TimeError
from nosync_nb.graph import Graph, Node, Stage
from nosync_nb.maintenance import merged_parts
from nosync_nb.trace import Layer, Trace, adopt, empty_batch, plan

if TYPE_CHECKING:
    from nosync_nb.session import Session

EPOCHS_MAX = 10_000
COMPACT_EVERY = 16


class Span(NamedTuple):
    """The part of a graph that is replayed.

    Attributes:
        graph: its nodes; the named collections it reads have lost their operators.
        sources: those named collections.
        new: the nodes whose output and state are wanted.
    """

    graph: Graph
    sources: list[Node]
    new: set[int]


def computed(
    session: Session,
    graph: Graph,
    runner: Runner,
    catalog: dict[str, Stage],
    asked: int | None,
    status: Mapping[str, str],
) -> tuple[list[Draft], Draft]:
    """Computes new nodes as of now, or over past epochs as well.

    Returns:
        the past epochs, already written, and the draft as of now.
    """
    old = session._graph
    found = span(graph, old)
    edited = any(s in ("changed", "followed") for s in status.values())
    first = None
    if found.new and (edited or asked is not None):
        first = first_epoch(session, found, catalog, asked)
    if first is None or first == session.now:
        draft = committing.run(session, lambda: runner.first_run(session._version, old))
        return [], draft
    drafts, traces = committing.run(session, lambda: run(session, found, first))
    for past in drafts:
        session._store.write_replay(past)
    for node in graph:
        if node.id in found.new and node.name:
            catalog[node.name] = replace(catalog[node.name], begin=first)
    draft = runner.first_run(session._version, Graph(graph, graph.numbers), old)
    draft.traces.update(traces)
    return drafts, draft


def span(graph: Graph, old: Graph) -> Span:
    """What must run to compute the nodes of `graph` that `old` has not."""
    new = {n for n in graph.nodes.keys() - old.nodes.keys() if graph.nodes[n].operator is not None}
    needed: set[int] = set()
    sources: set[int] = set()
    waiting = list(new)
    while waiting:
        node = graph.nodes[waiting.pop()]
        if node.id in needed:
            continue
        needed.add(node.id)
        for i in node.inputs:
            if graph.nodes[i].name is not None and i not in new:
                sources.add(i)
            else:
                waiting.append(i)
    nodes = []
    for node in graph:
        if node.id in sources:
            nodes.append(replace(node, operator=None, inputs=(), state=(), frozen=False))
        elif node.id in needed:
            nodes.append(node)
    part = Graph(nodes, graph.numbers)
    return Span(part, [part.nodes[i] for i in sorted(sources)], new)


def first_epoch(
    session: Session, found: Span, catalog: Mapping[str, Stage], asked: int | None
) -> int | None:
    """The epoch to replay from, or None if it is not worth it.

    Args:
        asked: the user's wish; None: all readable epochs, if that is cheap.

    Raises:
        TimeError: if the user asks for an epoch that a source cannot be read at.
    """
    names = [n.name for n in found.sources if n.name]
    begin = max((catalog[n].begin for n in names), default=session.now)
    if asked is not None:
        if not begin <= asked <= session.now:
            raise TimeError(
                f"cannot replay from epoch {asked}: what is read is readable from {begin} to"
                f" {session.now}",
                hint=f"use --replay {begin}",
            )
        return asked
    rows = sum(
        session._version.traces[number].rows_count
        for node in found.sources
        for number in list(session._graph.nodes[node.id].traces.values())[:1]
        if number in session._version.traces
    )
    epochs = session.now - begin
    cheap = rows <= session.replay_rows and epochs <= EPOCHS_MAX
    return begin if cheap and epochs > 0 else None


def run(session: Session, found: Span, first: int) -> tuple[list[Draft], dict[int, Trace]]:
    """Replays the epochs from `first` to now.

    Returns:
        a draft for each epoch in which something changed, and the new nodes' traces at the end.
    """
    own = {number for number, _ in Graph(found.graph.nodes[i] for i in found.new).layouts()}
    logs = {number for number, _ in Graph(found.graph.nodes[i] for i in found.new).logs()}
    sources = Graph(found.sources, found.graph.numbers)
    runner = Runner(found.graph, session._spark.evaluate, session._spark.bulk())
    traces: dict[int, Trace] = {}
    for node in found.sources:
        batch = _history(session, node, None, first)
        for layout, number in node.traces.items():
            arranged = batch if batch.layout == layout else arrange(layout, batch.updates)
            layer = Layer(first, first + 1, (arranged,))
            traces[number] = Trace(layout, (layer,) if len(arranged) else ())
    draft = runner.first_run(Version(first, traces), sources)
    drafts = [_kept(draft, logs)]
    runner.bulk = None
    for epoch in range(first + 1, session.now + 1):
        inputs = {}
        for node in found.sources:
            batch = _history(session, node, epoch - 1, epoch)
            if len(batch):
                inputs[node.id] = Delta(node.types, batch.updates, {batch.layout: Held((batch,))})
        if inputs:
            draft = runner.epoch(draft.version(), inputs, epoch)
            drafts.append(_kept(draft, logs))
        if epoch % COMPACT_EVERY == 0:
            draft.traces = {n: _compact(t) for n, t in draft.traces.items()}
    return drafts, {n: t for n, t in draft.traces.items() if n in own}


def _history(session: Session, node: Node, after: int | None, upto: int) -> Batch:
    """The state of a named collection at an epoch, or its change after another."""
    assert node.log is not None
    history = session._store.history
    if after is None:
        found = history.state(node.log, upto)
    else:
        found = history.changes(node.log, after, upto)
    layout: Layout = node.log_layout
    return merge(layout, found) if found else empty_batch(layout)


def _kept(draft: Draft, logs: set[int]) -> Draft:
    """What of a draft is to be written: changes of new logs, without traces."""
    kept = Draft(Version(draft.epoch, {}), draft.epoch)
    kept.logged = [each for each in draft.logged if each[0] in logs]
    kept.work = draft.work
    return kept


def _compact(trace: Trace) -> Trace:
    """Merges what is planned, here and now."""
    while (planned := plan(trace)) is not None:
        inputs = trace.layers[planned.start : planned.stop]
        parts = merged_parts(trace.layout, [layer.parts for layer in inputs])
        output = Layer(inputs[0].lower, inputs[-1].upper, tuple(parts))
        adopted = adopt(trace, inputs, output)
        assert adopted is not None
        trace = adopted
    return trace
