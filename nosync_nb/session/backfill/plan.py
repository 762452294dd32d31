"""Plans how stages get the rows that they lack. Pure: reads history, and writes nothing.

A definition brings stages up to date in one of five ways. A plan covers the stages that it names,
or else those that the definition changes:

    outcome     source                           what is computed
    read        the log of the stage             nothing; lost arrangements are rebuilt
    extend      the history of its inputs        the epochs after its last one that can be read
    replay      the history of its inputs        the contents at an epoch, then the later epochs
    recompute   the current rows of its inputs   the current epoch
    stale       none                             nothing

`next_run` decides which nodes of a compiled graph run for past epochs. It is called again after
each run, because later nodes may read those that this run has completed. Nodes that are still
missing then run over the current contents of their inputs.

Nodes that stopped at an earlier epoch keep their log, their traces and their state. They run over
the changes of their inputs since that epoch: epoch by epoch if that is cheap. Otherwise all changes
run as one, and the epochs between become a gap. Nodes that stopped at different epochs run in
groups, the latest stop first, because nodes that stopped earlier read them. An unnamed node that
another stage kept current has no history. It is computed at the group's epoch from the named
collections below it, and discarded afterwards.

New nodes are replayed with the unnamed nodes below them, with the same kernels and the same runner
as a commit. The results are the history and the state of the stage, as if it had been defined then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import TimeError
from nosync_nb.session.state.report import EXTEND, READ, RECOMPUTE, STALE
from nosync_nb.trace.batch import Batch
from nosync_nb.trace.epoch_ranges import EpochRanges

REPLAY = "replay"
"""The outcome of a stage that runs over the history of its inputs; reported as `RECOMPUTE`."""

OUTCOMES = (READ, EXTEND, REPLAY, RECOMPUTE, STALE)

EPOCHS_MAX = 10_000
"""The most past epochs that are run one by one."""

NOBODY: frozenset[int] = frozenset()


class BackfillPlan(NamedTuple):
    """A plan that provides rows; by default, missing rows are computed at the current epoch.

    Attributes:
        outcome: one of `OUTCOMES`.
        names: the stages or inputs that the plan repairs or recomputes; empty for the stages that a
            definition changes. All other stages keep their data, even if it is incomplete.
        files: the missing files.
        arranged: traces to rebuild from the log.
        refused: nodes to recompute with all their traces.
        bare: nodes that keep their rows and get only their operator state recomputed.
        first: for `EXTEND`, the last epoch that the log has; for `REPLAY`, the first epoch to run.
            `None` means the first epoch at which the inputs can be read, if a replay from there is
            cheap.
        begin: the first epoch at which the stage can be read afterwards.
        why: the text for the report: why the stage is stale, or which epochs it runs.
    """

    outcome: str = RECOMPUTE
    names: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    arranged: frozenset[int] = NOBODY
    refused: frozenset[int] = NOBODY
    bare: frozenset[int] = NOBODY
    first: int | None = None
    begin: int = 0
    why: str = ""

    @property
    def name(self) -> str:
        """The name of the stage or input, for a plan that has exactly one."""
        (name,) = self.names
        return name

    @property
    def rebuilds(self) -> bool:
        """True if the plan rebuilds or recomputes something."""
        return bool(self.arranged or self.refused or self.bare)


CURRENT = BackfillPlan()
"""The plan that computes added stages at the current epoch only."""


def definition_plan(status: Iterable[str], first: int | None) -> BackfillPlan:
    """Plans the stages that a definition changes.

    Args:
        status: their statuses; see `DefinitionDecision`.
        first: the first epoch to replay that the user requested, or None.
    """
    if first is None and {"changed", "followed"}.isdisjoint(status):
        return CURRENT
    return BackfillPlan(REPLAY, first=first)


def level_plan(snapshot: Snapshot, name: str) -> BackfillPlan:
    """Plans a stage that leaves memory: it is computed once more, and written.

    Failure: 1. The history is downsampled. 2. The stage is to run from its first epoch, which its
    inputs do not have any more, so it can never leave memory. Hence it runs from the first epoch
    that it and its inputs have; its earlier ones are taken from its log.
    """
    stage, node = snapshot.catalog[name], snapshot.graph.named[name]
    sources = span_of(snapshot.graph, {node.id}).sources
    readable = HistoricalInputs(snapshot.history, snapshot.epoch).readable([node, *sources])
    begin = max(snapshot.catalog[each].begin for each in (name, *_names(sources)))
    first = readable.nearest(begin)[1]
    return BackfillPlan(EXTEND, frozenset([name]), first=first, begin=stage.begin)


def _names(nodes: Iterable[Node]) -> list[str]:
    return [node.name for node in nodes if node.name is not None]


class Span(NamedTuple):
    """The part of a graph that is computed for past epochs.

    Attributes:
        graph: the nodes of the part; the named collections that it reads have no operator here.
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


def span_of(graph: Graph, new: set[int]) -> Span:
    """Returns the part of a graph that computes some nodes, including unnamed nodes below them."""
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
    return Span(part, [part.nodes[i] for i in sorted(sources)], new)


def below(graph: Graph, numbers: set[int]) -> set[int]:
    """Returns some nodes, and the unnamed nodes below them that must run with them."""
    span = span_of(graph, numbers)
    return span.graph.nodes.keys() - {source.id for source in span.sources}


class Base(NamedTuple):
    """The graph, the version and the history that a run starts from.

    All three include the results of earlier runs of the same plan.
    """

    graph: Graph
    version: VersionState
    past: HistoricalInputs


class Run(NamedTuple):
    """Nodes that run for past epochs.

    Attributes:
        outcome: `EXTEND` if the nodes continue from `first` with their log, traces and state;
            `REPLAY` if they are new, and begin with the contents at `first`.
        first: the epoch that they start from.
        epochs: the later epochs to run.
        missed: for `EXTEND`, the net changes of each source since `first`.
    """

    outcome: str
    span: Span
    first: int
    epochs: Sequence[int]
    missed: Mapping[int, Batch] = {}


def next_run(
    graph: Graph, base: Base, plan: BackfillPlan, catalog: Mapping[str, Stage], rows_max: int
) -> Run | None:
    """Returns the next nodes to run for past epochs; None if the rest runs at the current epoch.

    Args:
        graph: the graph to bring up to date.
        rows_max: the most rows that are run epoch by epoch.

    Raises:
        TimeError: if a source cannot be read at the epoch of the plan.
    """
    run = _extension(graph, base, rows_max)
    if run is None and plan.outcome in (EXTEND, REPLAY):
        run = _replay(graph, base, plan.first, catalog, rows_max)
    return run


def _extension(graph: Graph, base: Base, rows_max: int) -> Run | None:
    """Returns the run of the nodes with the latest stop; None if no node has missed epochs."""
    now, past = base.version.epoch, base.past
    groups: dict[int, set[int]] = {}
    for node in graph.since(base.graph).fresh:
        before = base.graph.nodes.get(node.id)
        if before is None or before.stopped is None or node.frozen or before.stopped >= now:
            continue
        groups.setdefault(before.stopped, set()).add(node.id)
    if not groups:
        return None
    stop = max(groups)
    span = span_of(graph, groups[stop])
    missed = {node.id: past.changes(node, stop, now) for node in span.sources}
    epochs = [now]
    if sum(map(len, missed.values())) <= rows_max and now - stop <= EPOCHS_MAX:
        epochs = [epoch for epoch in past.readable(span.sources) if epoch > stop]
    return Run(EXTEND, span, stop, epochs, missed)


def _replay(
    graph: Graph, base: Base, first: int | None, catalog: Mapping[str, Stage], rows_max: int
) -> Run | None:
    """Returns the run of the new nodes that have no rows yet; None if it is too expensive."""
    span = span_of(graph, _nodes_without_log(graph, base.graph))
    if not span.new:
        return None
    first = _first_epoch(base, span, catalog, first, rows_max)
    if first is None or first == base.version.epoch:
        return None
    return Run(
        REPLAY, span, first, [epoch for epoch in base.past.readable(span.sources) if epoch > first]
    )


def missing_nodes(graph: Graph, old: Graph) -> set[int]:
    """Returns the nodes of `graph` that are not in `old` and can be computed."""
    return {n for n in graph.nodes.keys() - old.nodes.keys() if graph.nodes[n].operator is not None}


def _nodes_without_log(graph: Graph, old: Graph) -> set[int]:
    """Returns the missing nodes whose log is new as well, and the unnamed ones below them.

    The other missing nodes have a complete log and lack only operator state. That state is computed
    at the current epoch, because a replay would run the nodes below them again, and with them
    functions whose results are memoised.
    """
    missing = missing_nodes(graph, old)
    if not missing:
        return missing
    old_logs = {number for number, _ in old.logs()} - old.unwritten
    named = (graph.nodes[i] for i in missing)
    heads = {node.id for node in named if node.name is not None and node.log not in old_logs}
    return below(graph, heads) & missing


def _first_epoch(
    base: Base, span: Span, catalog: Mapping[str, Stage], requested: int | None, rows_max: int
) -> int | None:
    """Returns the epoch to replay from, or None if a replay is too expensive.

    Args:
        requested: the epoch that the user requested; `None` means the first readable one, if a
            replay from there is cheap.

    Raises:
        TimeError: if a source cannot be read at the requested epoch.
    """
    now = base.version.epoch
    begin = max((catalog[name].begin for name in _names(span.sources)), default=now)
    readable = base.past.readable(span.sources)
    first = readable.nearest(begin)[1] or begin
    if requested is not None:
        if not begin <= requested <= now or requested not in readable:
            raise TimeError(
                f"cannot replay from epoch {requested}: its inputs are readable from {first} to"
                f" {now}",
                hint=f"use --replay {first}",
            )
        return requested
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
    """Returns the stages to which a replay from `first` on would add readable epochs.

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
    """Returns the first epoch that a replay would add to a stage; None if it would add none.

    A stage that begins one epoch after its inputs missed nothing, because an input has no rows at
    its first epoch.
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
    gaps = EpochRanges.from_ranges(
        *(range(max(lower, first), upper) for lower, upper in stage.gaps)
    )
    return bool(readable & gaps)


def replay_message(
    snapshot: Snapshot, stage: Stage, status: str, named: Iterable[str], asked: int | None
) -> str | None:
    """Returns a message with the first readable epoch of an edited stage, and how to replay it.

    None if the stage has not changed, unless the requested epoch is before its first one.

    Args:
        named: all stages of the cell that has to be run for a replay.
        asked: the requested first epoch of the replay.
    """
    if status == "unchanged" and asked is not None and asked < stage.begin:
        return f"'{stage.name}' begins at epoch {stage.begin}, like its inputs"
    if status != "changed":
        return None
    before = f"the previous version is '{stage.name}@{stage.version - 1}'"
    if stage.begin < snapshot.epoch:
        return f"replayed from epoch {stage.begin}; {before}"
    first = earliest_replay_epoch(snapshot, named)
    how = f": run `%%dd --replay {first}` to compute its history" if first < stage.begin else ""
    return f"computed as of epoch {stage.begin}{how}; {before}"
