"""Computes a new version of a stage for past epochs (a replay).

The new nodes run over the history of the named collections that they read, together with the
unnamed nodes between them. They run first over the contents at the first epoch, then epoch by
epoch, with the same kernels and the same runner as a commit. The results are the history and the
state of the new version, as if it had been defined then.

Failure: 1. The epochs are written before the definition that uses them. 2. The definition never
follows. Hence such epochs are changes of logs that no catalog names, and the numbers of these logs
are not allocated again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from nosync_nb.dataflow.cardinality import TableSizes
from nosync_nb.dataflow.compiler import Compiler
from nosync_nb.dataflow.graph import UNMADE, Graph, Node
from nosync_nb.dataflow.runtime.activity import ActivityMonitor
from nosync_nb.dataflow.runtime.delta import ArrangedChange
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, VersionState
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import TimeError
from nosync_nb.expressions import Types
from nosync_nb.trace import Layer, Trace, adopt_merged, plan_merges
from nosync_nb.trace.batch import Batch, Layout, arrange
from nosync_nb.trace.epoch_ranges import EpochRanges
from nosync_nb.trace.merge import merge_ranges

EPOCHS_MAX = 10_000


class ReplaySpan(NamedTuple):
    """The part of a graph that is computed for past epochs.

    Attributes:
        graph: its nodes; the named collections that it reads have no operator here.
        sources: those named collections.
        new: the nodes whose output and state are computed.
    """

    graph: Graph
    sources: list[Node]
    new: set[int]

    @property
    def logs(self) -> set[int]:
        """The logs of the computed nodes."""
        return {number for number, _ in self._computed_graph.logs()}

    @property
    def traces(self) -> set[int]:
        """The traces of the computed nodes."""
        return {number for number, _ in self._computed_graph.layouts()}

    @property
    def _computed_graph(self) -> Graph:
        return Graph(self.graph.nodes[i] for i in self.new)


class ReplayBase(NamedTuple):
    """The input of a definition: the previous graph and version, and the history.

    Stages that it catches up are in all three as they are afterwards.
    """

    graph: Graph
    version: VersionState
    past: HistoricalInputs


class RecomputedState(NamedTuple):
    """The parts of damaged stages that a definition recomputes; none by default.

    Attributes:
        name: of the stage.
        refused: nodes to recompute with all their traces.
        bare: nodes that keep their rows and get only their operator state recomputed.
        renewed: the rebuilt current traces, by number.
        first: the first epoch to run, None: only the current one. Earlier epochs stay in its log.
        replayed: run it over all readable epochs, if that is cheap.
    """

    name: str = ""
    refused: AbstractSet[int] = frozenset()
    bare: AbstractSet[int] = frozenset()
    renewed: Mapping[int, Trace] = {}
    first: int | None = None
    replayed: bool = False


def compile_catalog(
    catalog: Mapping[str, Stage],
    old: Graph,
    types: Types | None,
    *,
    now: int,
    extended: AbstractSet[str],
    refused: AbstractSet[int] = frozenset(),
    bare: AbstractSet[int] = frozenset(),
    tables: TableSizes | None = None,
    later: bool = False,
) -> Graph:
    """Compiles the graph of a new catalog; see `Compiler`.

    An unnamed node that no operator looks up only passes changes on, and has no trace. If a new
    node reads it, it is recomputed, because its earlier output is unknown. So is a node that was in
    memory only and is to be written from now on.
    """
    while True:
        compiler = Compiler(
            old,
            types,
            now=now,
            extended=extended,
            refused=refused,
            bare=bare,
            tables=tables,
            later=later,
        )
        graph = compiler.compile(catalog)
        incomplete = _nodes_without_rows(graph, old) | _newly_written(graph, old)
        if not incomplete:
            return graph
        refused |= incomplete


def _nodes_without_rows(graph: Graph, old: Graph) -> set[int]:
    """Returns the existing nodes that store no rows and whose rows are now needed."""
    hollow: set[int] = set()
    for node in graph.since(old).fresh:
        if node.id not in old.nodes:
            hollow.update(i for i in node.inputs if _has_no_rows(old.nodes.get(i)))
        elif node.log is not None and old.nodes[node.id].log is None:
            hollow.add(node.id)
    return hollow


def _newly_written(graph: Graph, old: Graph) -> set[int]:
    """Returns the nodes that were in memory only and are to be written from now on.

    A node that has only stopped is not among them: it is not written before or after.
    """
    unwritten = graph.unwritten
    written = (graph.nodes[i] for i in old.hidden() & graph.nodes.keys())
    return {node.id for node in written if unwritten.isdisjoint((node.log, *node.state))}


def _has_no_rows(node: Node | None) -> bool:
    return node is not None and (node.log is None or (node.name is None and node.plan == UNMADE))


def missing_nodes(graph: Graph, old: Graph) -> set[int]:
    """Returns the nodes of `graph` that are not in `old` and can be computed."""
    return {n for n in graph.nodes.keys() - old.nodes.keys() if graph.nodes[n].operator is not None}


def replayable(graph: Graph, new: set[int], old: Graph) -> set[int]:
    """Returns the new nodes whose log is new as well, and the new unnamed nodes below them.

    The other new nodes have a complete log and lack only operator state. That state is computed at
    the current epoch, because a replay would run the nodes below them again, and with them
    functions whose results are memoised.
    """
    old_logs = {number for number, _ in old.logs()} - old.unwritten
    heads = {
        i for i in new if graph.nodes[i].name is not None and graph.nodes[i].log not in old_logs
    }
    return below(graph, heads) & new


def below(graph: Graph, numbers: set[int]) -> set[int]:
    """Returns some nodes with the unnamed nodes that they are computed with."""
    part = replay_span(graph, numbers)
    return part.graph.nodes.keys() - {source.id for source in part.sources}


def replay_span(graph: Graph, new: set[int]) -> ReplaySpan:
    """Returns the nodes that must run to compute some nodes, with the unnamed nodes below them."""
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
    for i in [i for i in graph.nodes if i in needed or i in sources]:
        node = graph.nodes[i]
        if i in sources:
            node = replace(node, operator=None, inputs=(), state=(), frozen=False)
        nodes.append(node)
    part = Graph(nodes, graph.numbers)
    return ReplaySpan(part, [part.nodes[i] for i in sorted(sources)], new)


def first_epoch(
    base: ReplayBase,
    span: ReplaySpan,
    catalog: Mapping[str, Stage],
    asked: int | None,
    rows_max: int,
) -> int | None:
    """Returns the epoch to replay from, or None if a replay is too expensive.

    Args:
        asked: the epoch that the user requested; None: all readable epochs, if that is cheap.
        rows_max: a replay over more rows is expensive.

    Raises:
        TimeError: if a source cannot be read at the requested epoch.
    """
    now = base.version.epoch
    begin = max((catalog[n.name].begin for n in span.sources if n.name), default=now)
    readable = base.past.readable(span.sources)
    first = readable.nearest(begin)[1] or begin
    if asked is not None:
        if not begin <= asked <= now or asked not in readable:
            raise TimeError(
                f"cannot replay from epoch {asked}: what is read is readable from {first} to {now}",
                hint=f"use --replay {first}",
            )
        return asked
    rows = sum(
        base.version.traces[number].rows_count
        for node in span.sources
        for number in list(base.graph.named[node.name or ""].traces.values())[:1]
        if number in base.version.traces
    )
    cheap = rows <= rows_max and now - first <= EPOCHS_MAX
    return first if cheap and now > first else None


def earliest_replay_epoch(snapshot: Snapshot, names: Iterable[str]) -> int:
    """Returns the first epoch at which a replay of some stages and all their readers can start."""
    catalog, graph = snapshot.catalog, snapshot.graph
    trees = {}
    for name in {each for n in names for each in (n, *graph.dependants(n))}:
        stage = catalog[name]
        if stage.definition is not None and stage.live:
            trees[name] = stage.definition
    read = {r for tree in trees.values() for r in tree.references} - trees.keys()
    begin = max((catalog[r].begin for r in read), default=snapshot.epoch)
    readable = HistoricalInputs(snapshot.history, snapshot.epoch).readable(
        graph.named[r] for r in read
    )
    return readable.nearest(begin)[1] or begin


def stages_lacking_history(snapshot: Snapshot, names: Iterable[str], first: int) -> set[str]:
    """Returns the stages that are unreadable at epochs from `first` on which a replay can fill.

    A stage is left out if its inputs begin no earlier than the stage, or have the same gaps.
    """
    existing = [name for name in names if name in snapshot.catalog]
    begin = earliest_replay_epoch(snapshot, existing)
    return {
        name
        for name in existing
        if first < snapshot.catalog[name].begin > begin or _has_gaps(snapshot, name, first)
    }


def first_unread_epoch(snapshot: Snapshot, name: str) -> int | None:
    """Returns the first epoch that a replay would add to a stage; None if it has all.

    An input has no rows yet at its first epoch: a stage that begins at the next epoch missed
    nothing.
    """
    begin = snapshot.catalog[name].begin
    read, filled = [name], []
    for each in read:
        stage = snapshot.catalog[each]
        if stage.definition is None:
            filled.append(stage.begin)
        else:
            read += [r for r in stage.definition.references if r not in read]
    if min(filled, default=begin) + 1 >= begin:
        return None
    first = earliest_replay_epoch(snapshot, [name])
    return first if first < begin else None


def _has_gaps(snapshot: Snapshot, name: str, first: int) -> bool:
    """Returns True if a stage has gaps from `first` on at which all its inputs are readable."""
    stage = snapshot.catalog[name]
    if stage.definition is None:
        return False
    read = [snapshot.graph.named[r] for r in set(stage.definition.references)]
    readable = HistoricalInputs(snapshot.history, snapshot.epoch).readable(read)
    gaps = EpochRanges.of(*(range(max(lower, first), upper) for lower, upper in stage.gaps))
    return bool(readable & gaps)


def replay_message(
    snapshot: Snapshot, stage: Stage, status: str, named: Iterable[str], asked: int | None
) -> str | None:
    """Returns from where an edited stage can be read, and how to read more of its history.

    Args:
        named: all stages of the cell that has to be run for a replay.
        asked: the requested first epoch of the replay.
    """
    if status == "unchanged" and asked is not None and asked < stage.begin:
        return f"'{stage.name}' begins at epoch {stage.begin}, as what it reads does"
    if status != "changed":
        return None
    before = f"the version before is '{stage.name}@{stage.version - 1}'"
    if stage.begin < snapshot.epoch:
        return f"replayed from epoch {stage.begin}; {before}"
    first = earliest_replay_epoch(snapshot, named)
    how = f": `%%dd --replay {first}` for the past" if first < stage.begin else ""
    return f"computed as of epoch {stage.begin}{how}; {before}"


def run_replay(
    definition: Runner, past: HistoricalInputs, span: ReplaySpan, first: int, doing: ActivityMonitor
) -> tuple[list[EpochResult], dict[int, Trace]]:
    """Replays the epochs from `first` to the current one.

    Args:
        definition: the runner of the whole graph.
        doing: receives the progress.

    Returns:
        a draft for each epoch in which something changed, and the new nodes' traces at the end.
    """
    wanted, logs = span.traces, span.logs
    sources = Graph(span.sources, span.graph.numbers)
    traces: dict[int, Trace] = {}
    for node in span.sources:
        batch = past.state(node, first)
        for layout, number in node.traces.items():
            traces[number] = state_at(layout, batch, first)
    runner = Runner(span.graph, definition.evaluate, definition.bulk)
    draft = runner.first_run(VersionState(first, traces), sources)
    drafts = [draft.of_logs(logs)]
    runner = Runner(span.graph, definition.evaluate)
    steps = [e for e in past.readable(span.sources) if e > first]
    with doing.record(f"replays epochs {first} to {past.now}", len(steps)) as replaying:
        for before, epoch in pairwise([first, *steps]):
            deltas = {node.id: past.delta(node, before, epoch) for node in span.sources}
            inputs = {i: delta for i, delta in deltas.items() if delta is not None}
            if inputs:
                draft = runner.epoch(draft.version(), inputs, epoch)
                drafts.append(draft.of_logs(logs))
                compact_replayed(draft)
            replaying.step()
    past.skip(logs, first, steps)
    return drafts, {n: t for n, t in draft.traces.items() if n in wanted}


def with_previous_log(
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


def state_at(layout: Layout, batch: Batch, epoch: int) -> Trace:
    """Returns the contents of a collection at an epoch as a trace of one layer."""
    arranged = batch if batch.layout == layout else arrange(layout, batch.updates)
    return Trace.of(arranged, epoch)


def compact_replayed(draft: EpochResult) -> None:
    """Merges the layers that an epoch left to merge, in this thread."""
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
