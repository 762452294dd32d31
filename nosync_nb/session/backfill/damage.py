"""Plans the repair of stages with missing or refuted data. Pure: reads history, writes nothing.

Each stage with missing files gets a plan with one of these outcomes:

    read        an arrangement of its rows is rebuilt from its log, which is complete
    extend      its log is complete up to an epoch: it runs from there on
    replay      it runs from its first epoch over the logs of its inputs
    recompute   its log is complete: only its operator state is rebuilt, at the current epoch
    stale       it cannot be recomputed, because it memoises results

All other stages keep their logs, files and rows. Inputs are not computed, so the rows of an input
come from its own log or are lost.

Failure: 1. A stage and one of its inputs both lack files; the input is recomputed first. 2. The
plan was made from the state of both before that. Hence stages are planned in the order of the
graph, and the plan for a stage counts for its readers.

An operator that memoises results of functions cannot be run again: it would give other results than
the stage has logged, and retract rows that the stage never had. All other operators are recomputed
from their inputs. No result is lost if such an operator has no input rows at that epoch, or if its
stage is computed from scratch. `stop_without_memos` stops the stages that have lost such results.

Failure: 1. Two stages of one cell share an unnamed node that memoises. 2. Its results are lost, and
the stage that it is compiled for stops. 3. The node is compiled for the other stage, and run again.
Hence every stage that a lost node feeds stops.

Failure: 1. A stage is computed from scratch on a branch, because it was defined later. 2. An input
has lost its results, so the stage stops before it has any row. 3. It is read at its last epoch, as
empty. Hence a stage that stops without rows is marked as unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.dataflow.graph import UNMADE, Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.schema_adaptation import adapted_to_schemas
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import RefutedState, Stage
from nosync_nb.errors import CorruptLogError
from nosync_nb.expressions import Types
from nosync_nb.session.backfill.definition_diff import halt_reason
from nosync_nb.session.backfill.plan import (
    NOBODY,
    REPLAY,
    BackfillPlan,
    below,
    span_of,
)
from nosync_nb.session.state.report import EXTEND, READ, RECOMPUTE, STALE, counted_noun
from nosync_nb.store import lazy_layer
from nosync_nb.store.provenance import ClockContradiction
from nosync_nb.trace.epoch_ranges import EpochRanges
from nosync_nb.trace.history.history import MissingHistory


def awaits_recheck(catalog: Mapping[str, Stage]) -> bool:
    """Returns True if a live stage has refuted rows that are still to be recomputed."""
    return any(stage.refuted is not None and stage.live for stage in catalog.values())


def refuted_stages(
    snapshot: Snapshot, wrong: Iterable[ClockContradiction]
) -> dict[int, RefutedState]:
    """Returns, by log, the stages whose clocks contradict their inputs, and their readers.

    Stopped stages are included, because they would continue from refuted rows. So are stages that
    the catalog already marks as refuted, because the contradiction disappears when its source is
    recomputed.

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
        what = "itself" if source == log else f"'{names.get(source, 'a deleted stage')}'"
        doubt(
            name, epoch, f"at epoch {epoch} its clock names other rows of {what} than the log has"
        )
        if not snapshot.catalog[name].is_input:
            for reader in graph.dependants(name):
                doubt(reader, epoch, f"it reads '{name}', which is recomputed")
    return doubts


def plan_repairs(
    snapshot: Snapshot,
    lost: MissingHistory,
    missing: AbstractSet[str],
    doubts: Mapping[int, RefutedState] | None = None,
    apart: AbstractSet[str] = frozenset(),
) -> list[BackfillPlan]:
    """Plans the repair of every stage with missing or refuted data, inputs before their readers.

    Args:
        snapshot: a compiled snapshot, with all operator state.
        lost: the history that is unreadable.
        missing: the names of the missing files.
        doubts: the refuted logs; their contents count as lost.
        apart: stages to leave out. They are repaired later, because some of their inputs have no
            rows yet.
    """
    return [*_RepairPlanner(snapshot, lost, missing, doubts or {}).plans(apart)]


class _RepairPlanner:
    """Plans the repairs, visiting the stages in the order of the graph.

    Attributes:
        readable: the epochs at which a collection can be read after its planned repair, by name.
        lost_names: the collections that cannot be read at all.
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

    def plans(self, apart: AbstractSet[str]) -> Iterator[BackfillPlan]:
        for node in self.snapshot.graph:
            if node.name is None or node.name in apart:
                continue
            loss = self._plan_stage(node, self.snapshot.catalog[node.name])
            if loss is not None:
                yield loss

    def _plan_stage(self, node: Node, stage: Stage) -> BackfillPlan | None:
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
        loss = BackfillPlan(
            READ, frozenset([stage.name]), files, arranged=frozenset(damaged), begin=stage.begin
        )
        if broken is not None:
            return self._plan_broken(node, stage, loss, broken[0], parts)
        if not parts and not state:
            return loss
        bare = frozenset([node.id]) if state else NOBODY
        why = self._refusal(node, stage, parts | bare)
        if why is not None:
            return self._as_stale(loss, why)
        self.planned_parts |= parts
        return loss._replace(outcome=RECOMPUTE, refused=frozenset(parts), bare=bare)

    def _plan_refuted(
        self, node: Node, stage: Stage, doubt: RefutedState, broken: tuple[int, set[str]] | None
    ) -> BackfillPlan:
        """Plans the repair of a stage whose log is refuted from an epoch on."""
        epoch, files = (doubt.epoch, set[str]()) if broken is None else broken
        loss = BackfillPlan(STALE, frozenset([stage.name]), frozenset(files), begin=stage.begin)
        why = self._refusal(node, stage) if stage.live else "run its cell"
        if why is not None:
            return self._as_stale(loss, f"{doubt.why}; {why}")
        span = span_of(self.snapshot.graph, {node.id})
        parts = {part.id for part in span.graph if part.name is None} - self.planned_parts
        damage = self._plan_broken(node, stage, loss, min(epoch, doubt.epoch), parts)
        return damage._replace(why=f"{doubt.why}: {damage.why}")

    def _plan_broken(
        self, node: Node, stage: Stage, loss: BackfillPlan, epoch: int, parts: AbstractSet[int]
    ) -> BackfillPlan:
        """Plans the repair of a stage whose log cannot be read from an epoch on."""
        now = self.snapshot.epoch
        rebuildable = len(loss.arranged) < len(node.traces)
        incomplete = bool(parts) or any(number in self.missing_by_trace for number in node.state)
        why = f"some of its epochs from {epoch} on can no longer be read"
        if stage.is_input or stage.frozen or not stage.live or self._refusal(node, stage):
            self._limit_readable(stage, now)  # the current rows are read without the log
            if not rebuildable:
                return self._as_stale(
                    loss, self._refusal(node, stage) or _unrecoverable_text(stage)
                )
            return self._as_stale(loss, why) if incomplete else loss._replace(why=why)
        sources = EpochRanges.from_ranges(range(now + 1))
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
                outcome=EXTEND, first=last, begin=stage.begin, why=_epochs_text(last + 1, now)
            )
        if begin > stage.begin:
            self._limit_readable(stage, begin)
            why = f"{_epochs_text(begin, now)}; before that its inputs are no longer readable"
            return loss._replace(outcome=REPLAY, first=begin, why=why)
        return loss._replace(outcome=REPLAY, first=begin, why=_epochs_text(begin, now))

    def _is_readable(self, node: Node, epoch: int) -> bool:
        return epoch in self.past.readable([node])

    def _refusal(self, node: Node, stage: Stage, run: AbstractSet[int] | None = None) -> str | None:
        """Returns why a stage cannot be computed from its inputs; None if it can.

        Args:
            run: the nodes to run; `None` means all nodes of the stage.
        """
        if node.operator is None:
            return _unrecoverable_text(stage)
        if self._memoises({node.id} if run is None else run, all_of=run is None):
            return "its memoised results cannot be recomputed: run its cell"
        lost = next((name for name in self._source_names(node) if name in self.lost_names), None)
        return None if lost is None else f"it reads '{lost}', which is lost"

    def _memoises(self, run: AbstractSet[int], *, all_of: bool) -> bool:
        """Returns True if a node to run memoises results, including unnamed nodes that run with it.

        Args:
            all_of: True if all unnamed nodes below run; False if only those without a log do.
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

    def _as_stale(self, loss: BackfillPlan, why: str) -> BackfillPlan:
        self.lost_names |= loss.names
        return loss._replace(outcome=STALE, arranged=NOBODY, why=why)

    def _limit_readable(self, stage: Stage, first: int) -> None:
        """Records that a collection cannot be read before an epoch, whatever its log contains."""
        self.readable[stage.name] = EpochRanges.from_ranges(range(first, self.snapshot.epoch + 1))

    def _readable_epochs(self, name: str) -> EpochRanges:
        """Returns the epochs at which a collection can be read after the planned repairs."""
        node = self.snapshot.graph.named[name]
        epochs = self.past.readable([node])
        if name in self.readable:
            epochs &= self.readable[name]
        return epochs

    def _source_names(self, node: Node) -> list[str]:
        """Returns the named collections that a node is computed from."""
        sources = span_of(self.snapshot.graph, {node.id}).sources
        return [each.name for each in sources if each.name is not None]

    def _damaged_parts(self, node: Node) -> set[int]:
        """Returns the unnamed nodes below a stage that lack files and have no planned repair."""
        span = span_of(self.snapshot.graph, {node.id})
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
        return "the rows of an input cannot be recomputed: restore the file from a copy"
    return "it has stopped, and its rows cannot be recomputed: restore the file from a copy"


def _epochs_text(first: int, last: int) -> str:
    return f"{counted_noun(last - first + 1, 'epoch')} from {first} on"


class StagesWithoutRows(NamedTuple):
    """Live stages without rows, as they are installed, and the plan that computes their rows."""

    stages: Mapping[str, Stage]
    plan: BackfillPlan


def plan_without_rows(snapshot: Snapshot, names: AbstractSet[str]) -> StagesWithoutRows | None:
    """Plans the computation of stages without rows in the log; None if there are none.

    If one of them is in memory, they are replayed over all epochs, provided that this is cheap.
    """
    stages = {n: stage for n, stage in snapshot.catalog.items() if n in names and stage.live}
    named = {snapshot.graph.named[name].id for name in stages}
    nodes = named | (snapshot.graph.hidden() & below(snapshot.graph, named))
    if not nodes:
        return None
    restarted = {n: replace(s, begin=snapshot.epoch, gaps=()) for n, s in stages.items()}
    outcome = REPLAY if any(stage.in_memory for stage in stages.values()) else RECOMPUTE
    plan = BackfillPlan(outcome, frozenset(stages), refused=frozenset(nodes), begin=snapshot.epoch)
    return StagesWithoutRows(restarted, plan)


def plan_resumed_memory(snapshot: Snapshot, types: Types | None) -> StagesWithoutRows | None:
    """Plans the recomputation of stopped stages in memory whose inputs are current again.

    Returns None if there is no such stage.

    Failure: 1. An input of a stage in memory has stopped, so the stage cannot be computed when the
    log is opened. 2. The input catches up and resumes. 3. The stage is stale until the next
    opening. Hence it is recomputed after its inputs have caught up.
    """
    catalog, names = dict(snapshot.catalog), set[str]()
    for name, stage in snapshot.catalog.items():
        if stage.in_memory and stage.reason is not None and stage.definition is not None:
            fresh, why = adapted_to_schemas(stage.resumed(), catalog, types)
            halted = why or halt_reason(fresh, catalog)
            if halted is None and not stage.options.nondeterministic:
                catalog[name] = replace(fresh, begin=snapshot.epoch, gaps=())
                names.add(name)
    if not names:
        return None
    nodes = frozenset(n.id for n in snapshot.graph if n.stage in names or n.name in names)
    plan = BackfillPlan(REPLAY, frozenset(names), refused=nodes, begin=snapshot.epoch)
    return StagesWithoutRows({name: catalog[name] for name in names}, plan)


def stopped_readers(
    catalog: Mapping[str, Stage], graph: Graph, name: str, epoch: int, *, lost: bool = False
) -> Iterator[Stage]:
    """Yields the live readers of a stopped collection, as the stale stages that they become.

    Args:
        lost: True if the collection is not computed and its rows are lost. Then only the readers
            that look up these rows stop.
    """
    why = f"it reads '{name}', which is {'lost' if lost else 'stale'}"
    for reader in _lookup_readers(graph, name) if lost else graph.dependants(name):
        if catalog[reader].live:
            yield catalog[reader].as_stale(why, epoch)


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


class Compiled(NamedTuple):
    """The previous graph, and the graph of a catalog that was compiled over it."""

    old: Graph
    graph: Graph


Compile = Callable[[Mapping[str, Stage]], Compiled]
"""Compiles a catalog. It is called again after a stage was stopped."""


def stop_without_memos(
    catalog: dict[str, Stage], compiled: Compile, version: VersionState, absent: AbstractSet[str]
) -> Compiled:
    """Stops the stages that have lost memoised results, and their readers.

    Args:
        catalog: is changed in place.
        version: the traces of the old graph that the log contains.
        absent: the stages without rows in the log, which are computed from scratch.

    Returns:
        the graphs of the changed catalog; no node of the new one has lost a result.
    """
    while True:
        graphs = compiled(catalog)
        lost = _LostResults(catalog, graphs, version, absent).stages()
        for name, why in lost.items():
            stage = catalog[name].as_stale(why, version.epoch)
            catalog[name] = replace(stage, held=why)
        for name in lost:
            for reader in stopped_readers(catalog, graphs.graph, name, version.epoch):
                if reader.name in absent:
                    reader = replace(reader, begin=0).forgotten(reader.reason or "", version.epoch)
                catalog[reader.name] = reader
        if not lost:
            return graphs


class _LostResults:
    """Finds the stages that have lost memoised results, for one compiled catalog."""

    def __init__(
        self,
        catalog: Mapping[str, Stage],
        graphs: Compiled,
        version: VersionState,
        absent: AbstractSet[str],
    ) -> None:
        self.catalog, self.version, self.absent = catalog, version, absent
        self.old, self.graph = graphs
        self._empty_nodes: dict[int, bool] = {}

    def stages(self) -> dict[str, str]:
        """Returns the stages that have lost results, each with the reason why it stops."""
        stages: dict[str, str] = {}
        for node in self.graph:
            if node.id in self.old.nodes or not node.state or node.operator is None:
                continue
            if node.operator.memoises and self.catalog[node.stage].live:
                fed = [name for name in self._fed_stages(node) if name not in self.absent]
                if fed and not all(self._is_empty(self.graph.nodes[i]) for i in node.inputs):
                    stages.update((name, self._loss_reason(node)) for name in fed)
        return stages

    def _loss_reason(self, node: Node) -> str:
        """Returns why a node has lost its results: another release's plan, or a past epoch."""
        same = (each for each in self.old if each.fingerprint == node.fingerprint)
        old_node = next((each for each in same if each.name == node.name), None)
        if old_node is not None and old_node.plan not in ("", UNMADE, node.plan):
            return "its memoised results have the form of another release: run the stage's cell"
        epoch = self.version.epoch
        return f"its memoised results at epoch {epoch} are unknown: run the stage's cell"

    def _fed_stages(self, node: Node) -> list[str]:
        """Returns the stages that a node is a part of."""
        if node.name is not None:
            return [node.name]
        reached, names = {node.id}, []
        for reader in self.graph:
            if not reached.isdisjoint(reader.inputs):
                if reader.name is None:
                    reached.add(reader.id)
                else:
                    names.append(reader.name)
        return names

    def _is_empty(self, node: Node) -> bool:
        """Returns True if a node has no rows at the epoch."""
        if node.id not in self._empty_nodes:
            self._empty_nodes[node.id] = self._check_empty(node)
        return self._empty_nodes[node.id]

    def _check_empty(self, node: Node) -> bool:
        if node.name is None:
            old_node = self.old.nodes.get(node.id)
        else:
            old_node = None if node.name in self.absent else self.old.named.get(node.name)
        if old_node is not None and old_node.traces:
            traces = (self.version.traces.get(number) for number in old_node.traces.values())
            trace = next((each for each in traces if each is not None), None)
            try:
                return trace is None or not (trace.rows_count and len(trace.consolidated()))
            except CorruptLogError:  # a file is missing, so there were rows
                return False
        if node.operator is None or node.operator.global_row:
            return False
        return all(self._is_empty(self.graph.nodes[i]) for i in node.inputs)
