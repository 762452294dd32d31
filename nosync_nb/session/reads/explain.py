"""Explains how a collection is computed; see `Collection.explain`.

The text shows the plan that runs, from the result down to its inputs, and the current size of its
state. Operators with one input are listed below each other; the tree branches only at operators
with several inputs. An operator that is used twice is described once.

A collection that is not a stage is compiled as if it became one: into a graph that is dropped
afterwards. So the text lists the arrangements that the stage would add, with estimates of their
rows and bytes. Nothing is defined and nothing is computed; only samples are read for the estimates.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.explain_output import (
    ExplainOutput,
    PlanLine,
    PlanSection,
    listed_names,
    operator_label,
)
from nosync_nb.dataflow.cardinality import TableSizes, intermediate_rows
from nosync_nb.dataflow.compiler import compile_catalog
from nosync_nb.dataflow.explain_plan import (
    PlanLookups,
    PlannedArrangement,
    columns_read,
    plan_moves,
    pruned_columns,
)
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.optimizer.multiway_joins import NOBODYS, Lookup, without_multiway_joins
from nosync_nb.dataflow.planner import (
    PLANNED_MAX,
    PlanSet,
    arrangements_of_others,
    plans_for_catalog,
    shared_plan,
)
from nosync_nb.dataflow.runtime.epoch_result import StageWork
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.dataflow.state_estimate import estimated_rows
from nosync_nb.errors import NosyncError, one_line
from nosync_nb.operators.base import UpdateCost
from nosync_nb.operators.registry import spark_expressions
from nosync_nb.session.state.metrics import WorkMetrics
from nosync_nb.session.state.publisher import DefinitionNames
from nosync_nb.spark.sql_settings import SparkTypes

DEPTH_MAX = 16
"""Nesting depth of branches; deeper subtrees are listed below the tree."""

SHOWN_MAX = 40
"""The most arrangements that are listed, and the most inputs whose lookups are listed."""

LOOKUPS_MAX = 8
"""The most lookups that are listed for a change of one input."""

LABEL_MAX = 60
"""The most characters of an operator in a list of operators."""

UNNAMED = ""
"""The name of a collection in the graph that is compiled for its explanation."""

WORDS = {
    "asof": "an as-of join", "concat": "a union", "consolidate": "adding up", "join": "a join",
    "except_all": "a difference", "subtract": "a difference", "range_join": "a join in order",
}  # fmt: skip


class ExplainSubject(NamedTuple):
    """The collection to explain, and its plan.

    Attributes:
        written: the definition as the user wrote it.
        plan: the plan that runs.
        stage: its stage; None if it has no name.
        others: lookups in arrangements that other stages maintain.
        instead: lookups that replace intermediate rows, because they need less state.
        spared: estimated number of these intermediate rows.
        possible: lookups that the planner considered and rejected.
    """

    written: Definition
    plan: Definition
    stage: Stage | None
    others: frozenset[Lookup]
    instead: frozenset[Lookup] = NOBODYS
    spared: int = 0
    possible: frozenset[Lookup] = NOBODYS


def explain_collection(
    definition: Definition,
    snapshot: Snapshot,
    definition_names: DefinitionNames,
    metrics: WorkMetrics,
    types: SparkTypes,
    title: str = "collection",
) -> ExplainOutput:
    """Returns the plan of a collection.

    Args:
        title: the title of a collection that has no name.

    Cost: O(operators of the collection + nodes of the graph); about 20 us for each operator. For a
    collection without a name also the compilation of its operators.
    """
    name = definition_names.name_of(definition)
    stage = (
        snapshot.stage(definition.name) if definition.is_ref else snapshot.catalog.get(name or "")
    )
    written = definition if stage is None or stage.definition is None else stage.definition
    as_written = stage is not None and (stage.frozen or stage.options.nondeterministic)
    subject = ExplainSubject(written, written, stage, NOBODYS)
    tables = TableSizes(snapshot.graph, snapshot.version.traces)
    if not as_written:
        plans = plans_for_catalog(written, types)
        subject = subject._replace(plan=plans.plan_for(NOBODYS))
        if plans.wishes:
            subject = _with_running_plan(subject, snapshot, plans, tables, types)
    graph = None if stage is not None else _compiled(written, snapshot, tables, types)
    if graph is None:
        return _PlanText(subject, snapshot, metrics, types, tables).explained(name or title)
    existing = {number for number, _ in snapshot.graph.layouts()}
    subject, snapshot = _proposed(subject, snapshot, graph, tables, types)
    return _PlanText(subject, snapshot, metrics, types, tables, existing).explained(title)


def _compiled(
    definition: Definition, snapshot: Snapshot, tables: TableSizes, types: SparkTypes
) -> Graph | None:
    """Returns the graph that a definition would be part of; None if it cannot become a stage."""
    traces, stage = snapshot.version.traces, Stage(UNNAMED, definition.schema, definition)
    current = {name: each.schema for name, each in snapshot.catalog.items()}
    if any(current.get(ref.name) != ref.schema for ref in definition.refs):
        return None
    try:
        return compile_catalog(
            {**snapshot.catalog, UNNAMED: stage},
            snapshot.graph.numbered(max(traces, default=0)),
            types,
            now=snapshot.epoch,
            extended=frozenset(),
            tables=tables,
        )
    except NosyncError:  # a stopped stage, for example; the plan can be shown nevertheless
        return None


def _proposed(
    subject: ExplainSubject,
    snapshot: Snapshot,
    graph: Graph,
    tables: TableSizes,
    types: SparkTypes,
) -> tuple[ExplainSubject, Snapshot]:
    """Returns a collection as a stage of a graph, and the snapshot with that stage."""
    stage = Stage(UNNAMED, subject.written.schema, subject.written)
    defined = snapshot._replace(graph=graph, catalog={**snapshot.catalog, UNNAMED: stage})
    plans, subject = plans_for_catalog(subject.written, types), subject._replace(stage=stage)
    if plans.wishes:
        subject = _with_running_plan(subject, defined, plans, tables, types)
    return subject, defined


def _with_running_plan(
    subject: ExplainSubject,
    snapshot: Snapshot,
    plans: PlanSet,
    tables: TableSizes,
    types: SparkTypes,
) -> ExplainSubject:
    """Adds the plan that runs, and the reasons for it."""
    runs, stage = _lookups_used(snapshot, subject.stage, plans), subject.stage
    others = (
        NOBODYS if stage is None else arrangements_of_others(snapshot.catalog, stage.name, types)
    )
    subject = subject._replace(
        plan=plans.plan_for(runs), others=runs & others, instead=runs - others
    )
    if subject.instead:
        usual = plans.plan_for(subject.others)
        return subject._replace(spared=intermediate_rows(usual, tables))
    return subject._replace(possible=plans.wishes - runs)


def _lookups_used(snapshot: Snapshot, stage: Stage | None, plans: PlanSet) -> frozenset[Lookup]:
    """Returns the wished lookups that the plan of a stage uses."""
    graph = snapshot.graph
    if stage is None or stage.name not in graph.named:
        return NOBODYS
    names = plans.plan_for(NOBODYS).references
    prints = {name: graph.named[name].fingerprint for name in names if name in graph.named}
    parts = {node.fingerprint for node in graph if node.name is None}
    if len(prints) < len(names):
        return NOBODYS
    return shared_plan(plans, stage, prints, parts, graph) or NOBODYS


class _PlanText:
    """Formats one plan.

    Args:
        existing: for a stage that is not defined yet, the numbers of the traces that exist.
    """

    def __init__(
        self,
        subject: ExplainSubject,
        snapshot: Snapshot,
        metrics: WorkMetrics,
        types: SparkTypes,
        tables: TableSizes,
        existing: Container[int] | None = None,
    ) -> None:
        self.subject = subject
        self.snapshot = snapshot
        self.metrics = metrics
        plan = subject.plan
        self.tables = tables
        expected = None if existing is None else estimated_rows(plan, self.tables)
        self.lookups = PlanLookups(snapshot, plan, subject.stage, expected, existing or (), types)
        self.proposed = existing is not None
        self.moved = plan_moves(subject.written, plan)
        self.pruned = pruned_columns(subject.written, plan)
        self.unchained = without_multiway_joins(plan)
        self.read = columns_read(plan, types)
        self.parts = {id(part): part for part in plan.walk()}
        self.kept = {key: self._arrangements_used(part) for key, part in self.parts.items()}
        self.numbers: dict[int, int] = {}
        self.shown: set[int] = set()

    def _arrangements_used(self, part: Definition) -> list[PlannedArrangement]:
        """Returns the arrangements of an operator.

        For a named collection only those that this plan looks up.
        """
        own, stage = self.lookups.arrangements_of(part), self.subject.stage
        if not part.is_ref or stage is None:
            return own
        return [each for each in own if stage.name in each.readers]

    def explained(self, title: str) -> ExplainOutput:
        """Returns the whole text."""
        stage, plan = self.subject.stage, self.subject.plan
        ran = stage is not None and not self.proposed
        head = f"{title}{self._last_run_text(title) if ran else ''}"
        lines = [*self._remarks(), *self._tree(plan)]
        sections = [PlanSection("", lines)]
        if costs := [*self._cost_lines()]:
            sections.append(PlanSection("work of an update, in proportion to", costs))
        if waiting := [*self._spark_lines()]:
            sections.append(PlanSection("waits for Spark", waiting))
        if reached := [*self._reach_lines()]:
            sections.append(PlanSection("reach of a change", reached))
        if arrangements := [*self._arrangement_lines()]:
            sections.append(PlanSection("arranged for lookups", arrangements))
        if lookups := [*self._lookup_lines()]:
            sections.append(PlanSection("lookups of a change", lookups))
        return ExplainOutput(head, sections)

    def _remarks(self) -> Iterator[PlanLine]:
        """Yields remarks on the whole plan."""
        stage, written = self.subject.stage, self.subject.written
        if stage is None:
            return
        if stage.held or stage.reason:
            yield PlanLine(f"has stopped: {stage.held or stage.reason}")
        if written.size > PLANNED_MAX:
            yield PlanLine(f"not optimised: more than {PLANNED_MAX:,} operators")
        elif stage.options.nondeterministic:
            yield PlanLine("not optimised: it is nondeterministic")

    # -- the tree ----------------------------------------------------------------------------------

    def _tree(self, plan: Definition) -> Iterator[PlanLine]:
        """Yields the operators from the result down; deep subtrees follow under a number."""
        stage = self.subject.stage
        if stage is not None and stage.is_input:
            yield PlanLine(f"input ({listed_names(stage.schema.names)})")
            return
        later = [plan]
        while later:
            yield from self._branch(later.pop(0), later)

    def _branch(self, part: Definition, later: list[Definition]) -> Iterator[PlanLine]:
        """Yields an operator and all operators below it; only branches are indented."""
        ahead: list[tuple[Definition, str, str, int, str]] = [(part, "", "", 0, "")]
        while ahead:
            each, first, rest, depth, role = ahead.pop()
            if depth > DEPTH_MAX and each.inputs and id(each) not in self.shown:
                later.append(each)
                yield PlanLine(
                    f"{role}{self._number_text(each)} {operator_label(each)}", "see below", first
                )
                continue
            again = id(each) in self.shown
            yield self._line(each, first, role, again=again)
            self.shown.add(id(each))
            if again:
                continue
            if len(each.inputs) == 1:
                ahead.append((each.inputs[0], rest, rest, depth, ""))
                continue
            drawn = _drawn_inputs(each)
            for at in reversed(drawn):
                last = at == drawn[-1]
                forks = rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
                ahead.append((each.inputs[at], *forks, depth + 1, _role(each, at)))

    def _line(self, part: Definition, rail: str, role: str, *, again: bool) -> PlanLine:
        label = operator_label(part)
        if part.is_ref:
            label += self._last_run_text(part.name)
        elif self._is_numbered(part):
            label = f"{self._number_text(part)} {label}"
        if again and part.inputs:
            return PlanLine(role + label, "as above", rail)
        notes = [*self._notes(part)]
        if waits := spark_expressions(part):
            label += f"  [waits for Spark: {', '.join(waits)}]"
        return PlanLine(role + label, "; ".join(notes), rail)

    def _notes(self, part: Definition) -> Iterator[str]:
        """Yields the changes that the planner has made at an operator."""
        if (places := self.read.get(id(part))) is not None and part.is_ref:
            names = part.schema.names
            if len(places) < len(names):
                read = listed_names([names[place] for place in sorted(places)])
                yield f"{len(places)} of {len(names)} columns: {read}" if read else "no column"
        if below := self.moved.get(id(part)):
            yield f"moved below {' and '.join(WORDS.get(op, op) for op in below)}"
        if gone := self.pruned.get(id(part)):
            yield f"not carried, because no other operator reads it: {listed_names(gone)}"
        if shared := [*self._lookup_titles(part, self.subject.others)]:
            yield f"looked up in the arrangements of others: {listed_names(shared)}"
        if replaced := [*self._lookup_titles(part, self.subject.instead)]:
            spared = f"about {_rows_text(self.subject.spared)} between"
            yield f"looked up instead of {spared}, which would be larger: {listed_names(replaced)}"
        if why := self.unchained.get(id(part)):
            yield f"stores the rows of the join below ({_rows_text(self._rows_below(part))}): {why}"
            if more := [*self._rejected_lookups()]:
                yield f"to store none it would look up {listed_names(more)}"

    def _lookup_titles(self, part: Definition, lookups: frozenset[Lookup]) -> Iterator[str]:
        """Yields the titles of the given lookups that a multiway join performs."""
        for each, key in zip(part.inputs, part.params.get("keys", ()), strict=False):
            if part.op == "joins" and each.is_ref and (each.name, tuple(key)) in lookups:
                yield f"{each.name} by {listed_names([each.schema.names[place] for place in key])}"

    def _rejected_lookups(self) -> Iterator[str]:
        """Yields the lookups that would replace the intermediate rows, with their row counts."""
        for name, key in sorted(self.subject.possible):
            names = self.snapshot.catalog[name].schema.names
            trace = self.tables.trace(name)
            rows = _rows_text(0 if trace is None else trace.rows_count)
            yield f"{name} by {listed_names([names[place] for place in key])} ({rows})"

    def _rows_below(self, join: Definition) -> int:
        """Returns the number of rows of its first input that a join stores for lookups."""
        kept, key = self.kept[id(join.inputs[0])], {*join.params["left"]}
        return max((e.rows for e in kept if e.key is not None and {*e.key} == key), default=0)

    def _is_numbered(self, part: Definition) -> bool:
        """Returns True if other lines refer to a part, as it is used twice or has arrangements."""
        if part.is_ref or part is self.subject.plan:
            return False
        return self.subject.plan.uses[id(part)] > 1 or bool(self.kept[id(part)])

    def _number_text(self, part: Definition) -> str:
        return f"#{self.numbers.setdefault(id(part), len(self.numbers) + 1)}"

    def _last_run_text(self, name: str) -> str:
        work: StageWork | None = self.metrics.last(name)
        if work is None:
            return ""
        why = f": {work.why}" if work.why else ""
        return f"  [{work.placement}, {_duration_text(work.seconds)}{why}]"

    # -- work and reach ----------------------------------------------------------------------------

    def _cost_lines(self) -> Iterator[PlanLine]:
        """Yields the operators by the rows to which their work is proportional."""
        by_cost: dict[UpdateCost, list[str]] = {}
        for part in self.subject.plan.walk():
            if part.inputs:
                by_cost.setdefault(self.lookups.update_cost(part), []).append(_short_label(part))
        for cost, labels in sorted(by_cost.items()):
            yield PlanLine(f"{cost.phrase}: {listed_names([*dict.fromkeys(labels)])}")

    def _spark_lines(self) -> Iterator[PlanLine]:
        """Yields the operators with expressions that only Spark computes, with the reasons."""
        for part in self.subject.plan.walk():
            for text in spark_expressions(part):
                yield PlanLine(f"{_short_label(part)}: {text}")

    def _reach_lines(self) -> Iterator[PlanLine]:
        """Yields, for each input of the plan, the operators that its change reaches."""
        names = self.subject.plan.references
        for name in names[:SHOWN_MAX]:
            reached = _parts_above(name, self.subject.plan)
            costs = [self.lookups.update_cost(part) for part in reached]
            labels = [*dict.fromkeys(map(_short_label, reached))]
            most = max(costs, default=UpdateCost.ROWS).phrase
            yield PlanLine(f"{name}: {listed_names(labels) or 'the result'}", f"at most {most}")
        if len(names) > SHOWN_MAX:
            yield PlanLine(f"and {len(names) - SHOWN_MAX:,} more inputs")

    # -- arrangements and lookups ------------------------------------------------------------------

    def _arrangement_lines(self) -> Iterator[PlanLine]:
        """Yields the arrangements of the operators, largest first."""
        every = {_identity(self.parts[key], e): e for key, own in self.kept.items() for e in own}
        largest = sorted(every.values(), key=lambda each: -each.size_bytes)
        for each in largest[:SHOWN_MAX]:
            named = [name for name in each.readers if name != UNNAMED]
            readers = f"for {listed_names(named)}" if named else "for readers"
            readers = "for this collection" if each.readers and not named else readers
            size = f"{_bytes_text(each.size_bytes)}{' (estimate)' if each.estimated else ''}"
            yield PlanLine(f"{self._arrangement_title(each)}: {size}", readers)
        if len(largest) > SHOWN_MAX:
            rest = sum(each.size_bytes for each in largest[SHOWN_MAX:])
            yield PlanLine(f"and {len(largest) - SHOWN_MAX:,} smaller ones: {_bytes_text(rest)}")
        added = sum(each.size_bytes for each in largest if each.estimated)
        if self.proposed:
            yield PlanLine(f"in total the stage would add {_bytes_text(added)} (estimate)")

    def _arrangement_title(self, each: PlannedArrangement) -> str:
        """Returns the title of an arrangement, with its row count."""
        about = "about " if each.estimated else ""
        part, rows = self.parts[each.part], f" ({about}{_rows_text(each.rows)})"
        title = part.name if part.is_ref else self._title(part)
        if each.own:
            return f"the state of {title}{rows}"
        names = part.schema.names
        if each.key is None:
            return f"{title}{rows}"
        key = listed_names([names[place] for place in each.key if place < len(names)])
        return f"{title} by {key}{rows}" if key else f"{title}, all of it{rows}"

    def _title(self, part: Definition) -> str:
        stage = self.subject.stage
        if part is self.subject.plan:
            return "the result" if stage is None or self.proposed else stage.name
        return f"{self._number_text(part)} {part.op}"

    def _lookup_lines(self) -> Iterator[PlanLine]:
        """Yields, for each input of the plan, the lookups that a change of it makes."""
        names = self.subject.plan.references
        above = _readers_of_parts(self.subject.plan)
        for name in names[:SHOWN_MAX]:
            sought = [*dict.fromkeys(self._lookups_above(name, above))]
            if not sought:
                yield PlanLine(f"{name}: nothing")
                continue
            more = f" and {len(sought) - LOOKUPS_MAX:,} more" if len(sought) > LOOKUPS_MAX else ""
            yield PlanLine(f"{name}: {', '.join(sought[:LOOKUPS_MAX])}{more}")
        if len(names) > SHOWN_MAX:
            yield PlanLine(f"and {len(names) - SHOWN_MAX:,} more inputs")

    def _lookups_above(
        self, name: str, above: dict[int, list[tuple[Definition, int]]]
    ) -> list[str]:
        ahead = [part for part in self.subject.plan.refs if part.name == name]
        visited, sought = {id(part) for part in ahead}, list[str]()
        while ahead and len(sought) <= 4 * LOOKUPS_MAX:
            part = ahead.pop(0)
            for reader, port in above.get(id(part), ()):
                sought += [
                    self._arrangement_title(each)
                    for each in self.lookups.lookups_of_change(reader, port)
                ]
                if id(reader) not in visited:
                    visited.add(id(reader))
                    ahead.append(reader)
        return sought


def _short_label(part: Definition) -> str:
    """Returns the description of an operator without the columns that it returns."""
    label = one_line(operator_label(part).split(": ")[0])
    return label if len(label) <= LABEL_MAX else f"{label[: LABEL_MAX - 1]}…"


def _parts_above(name: str, plan: Definition) -> list[Definition]:
    """Returns the operators that a change of a named collection reaches, in the plan's order."""
    reached = {id(part) for part in plan.refs if part.name == name}
    found = []
    for part in plan.walk():
        if any(id(each) in reached for each in part.inputs):
            reached.add(id(part))
            found.append(part)
    return found


def _identity(part: Definition, each: PlannedArrangement) -> tuple[object, ...]:
    """Returns the identity of an arrangement.

    A named collection is identified by its name, because a plan may use it twice.
    """
    return part.name if part.is_ref else each.part, each.key, each.own


def _readers_of_parts(plan: Definition) -> dict[int, list[tuple[Definition, int]]]:
    sought: dict[int, list[tuple[Definition, int]]] = {}
    for part in plan.walk():
        for port, each in enumerate(part.inputs):
            sought.setdefault(id(each), []).append((part, port))
    return sought


def _drawn_inputs(part: Definition) -> list[int]:
    """Returns the positions of the inputs to draw.

    An input that a multiway join looks up by several keys is drawn once.
    """
    if part.op != "joins" or not part.inputs:
        return [*range(len(part.inputs))]
    numbers = part.params["inputs"]
    return [at for at, number in enumerate(numbers) if number not in numbers[:at]]


def _role(part: Definition, at: int) -> str:
    """Returns the role of an operator's input, if its position does not show it."""
    if part.op == "iterate":
        return "begins with: " if at < len(part.inputs) // 2 else "each round: "
    return ""


def _rows_text(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _duration_text(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _bytes_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
