"""Compiles a catalog to a graph, and reuses the nodes and operators of the previous graph.

Compilation is declarative: the catalog of inputs and stages, in order, determines the nodes. A node
whose fingerprint existed in the previous graph keeps its identity and its traces, so an unchanged
definition costs nothing. An operator is compiled once per definition, because definitions do not
change.

If every stage is live, the compiler compiles only the changed stages and their readers. It takes
over the wiring of all other stages (`GraphWiring`). A stage that is dropped or compiled again first
releases its nodes, the arrangements that it requested, and the parts that no other stage uses. Its
readers are released with it, so the remaining nodes stay in order and new nodes come after them.

`GraphBuilder` holds the graph under construction. It takes over the nodes of unchanged stages by
reference. It copies a node, in its position, before a new reader adds a log or a trace to it.

IMPORTANT: the builder never changes the previous graph, because readers use it, and because the
session returns to it if the definition fails.

The definition of a loop is compiled to the operator that runs it. A part without loop variables
stays outside. It becomes an input of the loop, with the arrangement for its lookups, and is
computed once per epoch. Every other part becomes a node in the innermost loop whose variables it
depends on. A part that depends on an outer variable alone is not run again in the rounds of the
inner loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from nosync_nb.collections.definition import Definition, SuspendedCall, run_trampoline
from nosync_nb.collections.functions.fingerprint import definition_fingerprint
from nosync_nb.dataflow.cardinality import TableSizes, cheapest_plan
from nosync_nb.dataflow.graph import (
    UNMADE,
    CompiledOperator,
    Graph,
    GraphWiring,
    MadeBy,
    Node,
    changed_items,
    disconnected,
)
from nosync_nb.dataflow.optimizer.multiway_joins import Lookup
from nosync_nb.dataflow.planner import (
    PlanSet,
    arrangements_of_others,
    plan_definition,
    requested_arrangements,
    shared_plan,
)
from nosync_nb.dataflow.stage import MEMORY, FrozenState, Stage, separated_fingerprint
from nosync_nb.errors import ExpressionError, StageError, titled
from nosync_nb.expressions import Types
from nosync_nb.operators import Concat, Linear, MemoizedMap, Operator
from nosync_nb.operators.iterate import (
    GROUP,
    JOIN,
    LEAVE,
    PLAIN,
    RESULT,
    VARIABLE,
    Loop,
    LoopNode,
    LoopPort,
    LoopScope,
    timed_layout,
)
from nosync_nb.operators.registry import build_operator, is_linear, linear_chain
from nosync_nb.rows import Schema
from nosync_nb.trace.batch import Layout


class CompilePurpose(NamedTuple):
    """The context in which the parts of one stage are compiled.

    Attributes:
        stage: the name of the stage.
        live: True if it advances with each epoch.
        keeping: True if the results of its functions are memoised; see `StageOptions`.
        extending: True if its nodes are reused although they have missed epochs.
        apart: separates its parts from equal ones of other stages; see `Stage`.
        prints: the fingerprints of its parts, by `id`.
        uses: the number of times that each part is an input, by `id`. A part is fused with its
            reader only if it has one use.
    """

    stage: str
    live: bool
    keeping: bool = False
    extending: bool = False
    apart: int = 0
    prints: Mapping[int, str] = {}
    uses: Mapping[int, int] = {}


class GraphBuilder:
    """A graph under construction: its nodes, and the traces that they request of each other.

    Args:
        old: the previous graph.
        refused: the nodes of the previous graph that are not taken over.

    Attributes:
        nodes: the nodes by number, in an order in which inputs come first.
        named: the nodes with a name.
        wiring: the compiled stages; see `GraphWiring`.
        reusable: the nodes of the previous graph that are not taken over yet, by fingerprint and
            name.
    """

    def __init__(self, old: Graph, refused: AbstractSet[int]) -> None:
        self.nodes: dict[int, Node] = {}
        self.named: dict[str, Node] = {}
        self.wiring = disconnected()
        self.reusable: dict[tuple[str, str | None], Node] = {}
        self._old = old
        self._refused = refused
        self._numbers = old.numbers
        self._new_ids: set[int] = set()  # the nodes that belong to this graph alone
        self._changed: dict[int, None] = {}  # the nodes whose requested traces may have changed
        self._orphans: dict[int, None] = {}  # the parts whose stage was removed, in order

    def start_build(self) -> None:
        """Starts without nodes; the nodes of the previous graph are available for reuse."""
        nodes = (node for node in self._old if node.id not in self._refused)
        self.reusable = {(node.fingerprint, node.name): node for node in nodes}

    def take_over(self, wiring: GraphWiring, without: AbstractSet[str]) -> list[MadeBy]:
        """Takes over the nodes of the previous graph, without those of some stages.

        Args:
            without: the stages, with all of their readers.

        Returns:
            the keys of the operators that those stages used; see `Graph.made`.
        """
        self.wiring = wiring.copied()
        self.nodes, self.named = dict(self._old.nodes), dict(self._old.named)
        operators = [key for name in without for key in self._take_out(name)]
        if without:
            parts = (node for node in self.nodes.values() if node.name is None)
            self._orphans = {node.id: None for node in parts if node.stage in without}
        return operators

    def users(self) -> set[str]:
        """Returns the stages that read refused nodes, directly or through unnamed parts."""
        reached, names = set(self._refused), set()
        for node in self._old if reached else ():
            if not reached.isdisjoint(node.inputs):
                if node.name is None:
                    reached.add(node.id)
                else:
                    names.add(node.name)
        return names

    def _take_out(self, name: str) -> tuple[MadeBy, ...]:
        """Removes a stage and the parts that no other stage uses.

        Returns:
            the keys of the operators of the stage.
        """
        wiring = self.wiring
        del wiring.stages[name], wiring.prints[name]
        wiring.wishes.pop(name, None)
        waiting = [self.named.pop(name)]
        while waiting:
            node = waiting.pop()
            del self.nodes[node.id]
            if node.name is None and wiring.parts.get(node.fingerprint) == node.id:
                del wiring.parts[node.fingerprint]
            if node.id not in self._refused:
                self.reusable[node.fingerprint, node.name] = node
            for i, layout in wiring.asked.pop(node.id, ()):
                self._count_request(i, layout, -1)
            for i in node.inputs:
                wiring.readers[i] -= 1
                if not wiring.readers[i]:
                    del wiring.readers[i]
                    if i in self.nodes and self.nodes[i].name is None:
                        waiting.append(self.nodes[i])
        return wiring.operators.pop(name)

    def number(self) -> int:
        """Allocates a number."""
        self._numbers += 1
        return self._numbers

    def append_node(self, node: Node) -> None:
        """Appends a node that belongs to this graph alone, or replaces the node of its number."""
        self.nodes[node.id] = node
        self._new_ids.add(node.id)
        self._changed[node.id] = None

    def part(self, fingerprint: str, stage: str) -> Node | None:
        """Returns the unnamed node with a fingerprint, which a stage will use; None without one."""
        number = self.wiring.parts.get(fingerprint)
        if number is None:
            return None
        node = self.nodes[number]
        if node.stage == stage:
            self._orphans.pop(number, None)
        return node

    def __contains__(self, fingerprint: object) -> bool:
        """Returns True if this graph has an unnamed node with a fingerprint, or can reuse one."""
        return fingerprint in self.wiring.parts or (fingerprint, None) in self.reusable

    def log(self, number: int) -> None:
        """Allocates a log for a node, if it has none."""
        node = self.nodes[number]
        if node.log is None:
            self._owned(node).logged(Layout(node.types), self.number)

    def read(self, node: Node, asked: Iterable[tuple[int, Layout]]) -> None:
        """Records the inputs of a node, and the traces that it requests of other nodes."""
        readers = self.wiring.readers
        for i in node.inputs:
            readers[i] = readers.get(i, 0) + 1
        self.ask(node, asked)

    def ask(self, node: Node, asked: Iterable[tuple[int, Layout]]) -> None:
        """Records that a node requests more traces."""
        for i, layout in asked:
            self.wiring.asked.setdefault(node.id, []).append((i, layout))
            self._count_request(i, layout, 1)

    def _count_request(self, number: int, layout: Layout, by: int) -> None:
        """Adds `by` to the number of requests for a trace of a node."""
        wanted = self.wiring.wanted
        counts = dict(wanted.get(number, ()))  # copied, because the previous graph has this dict
        counts[layout] = counts.get(layout, 0) + by
        if not counts[layout]:
            del counts[layout]
        wanted[number] = counts
        self._changed[number] = None

    def _owned(self, node: Node) -> Node:
        """Returns this graph's own copy of a node, in the same position; copies it only once."""
        if node.id not in self._new_ids:
            node = node.copied()
            self.append_node(node)
            if node.name is not None:
                self.named[node.name] = node
        return node

    def graph(
        self, made: Mapping[MadeBy, CompiledOperator], memory: AbstractSet[str], *, goes_on: bool
    ) -> Graph:
        """Returns the graph, with the requested traces.

        Args:
            memory: the stages whose rows are not written.
            goes_on: True if the next compilation may be incremental.
        """
        for i in reversed(self._orphans):  # because a reader comes after its inputs
            reader = next(node for node in self.nodes.values() if i in node.inputs)
            self._owned(self.nodes[i]).blamed(reader.stage)
        for i in self._changed:
            self._arrange(i)
        wiring = self.wiring if goes_on else None
        return Graph(self.nodes, self._numbers, made, wiring, self.named, memory)

    def _arrange(self, number: int) -> None:
        """Sets the traces of a node to the requested ones; forgets requests for a removed node."""
        node, wanted = self.nodes.get(number), self.wiring.wanted
        if node is None:
            wanted.pop(number, None)
            return
        layouts = wanted.get(number, {})
        if number in self._new_ids or not node.is_arranged(layouts):
            self._owned(node).arranged(layouts, self.number)


class Compiler:
    """Compiles a catalog to a graph, reusing the nodes of an earlier one.

    Cost: in proportion to the changed stages and their readers if no stage has stopped; otherwise
    in proportion to all stages.

    Args:
        old: the previous graph; its nodes are copied, never changed.
        types: asks Spark for types of expressions that NoSync cannot infer.
        now: the last epoch.
        extended: the stages whose nodes are reused although they have missed epochs.
        refused: the nodes that are not reused.
        bare: the named nodes that have lost their operator state, but still have their log and
            rows.
        tables: the sizes of named collections; `None` means that plans are not chosen by size.
        later: True if nodes whose state was not built are reused as they are.
    """

    def __init__(
        self,
        old: Graph,
        types: Types | None = None,
        *,
        now: int = 0,
        extended: AbstractSet[str] = frozenset(),
        refused: AbstractSet[int] = frozenset(),
        bare: AbstractSet[int] = frozenset(),
        tables: TableSizes | None = None,
        later: bool = False,
    ) -> None:
        self.later = later
        self.types = types
        self.tables = tables
        self.now = now
        self.extended = extended
        self.old = old
        self.made: dict[MadeBy, CompiledOperator] = {}
        self.bare = bare
        self.building = GraphBuilder(old, refused)
        self.touched = {n for i in (*refused, *bare) if (n := old.nodes[i].name) is not None}
        self.schemas: dict[str, Schema] = {}
        self.catalog: Mapping[str, Stage] = {}
        self.taken: list[MadeBy] = []
        """The keys in `made` that the stage under compilation uses."""

    def compile(self, catalog: Mapping[str, Stage]) -> Graph:
        """Returns the graph of a catalog.

        Raises:
            NosyncError: if a definition does not fit its inputs any more.
        """
        self.catalog = catalog
        # Inlined, because a call for each stage at each definition takes ten times as long.
        memory = frozenset(n for n, stage in catalog.items() if stage.options.persist == MEMORY)
        stages = None if self.later else self._take_over(catalog)
        if stages is not None:
            for stage in stages:
                self.add(stage)
            return self.building.graph(self.made, memory, goes_on=True)
        self.building.start_build()
        # Stopped stages come last, because they may have lost the functions of shared operators.
        for stage in sorted(catalog.values(), key=lambda each: each.reason is not None):
            self.add(stage)
        self._freeze_parts()
        goes_on = not self.later and all(stage.goes_on for stage in catalog.values())
        return self.building.graph(self.made, memory, goes_on=goes_on)

    def _take_over(self, catalog: Mapping[str, Stage]) -> list[Stage] | None:
        """Takes over the stages that need not be compiled again.

        Returns:
            the other stages, in order; None if all stages must be compiled.
        """
        wiring = self.old.wiring
        if wiring is None or self.extended:
            return None
        old_stages = wiring.stages
        changed_stages = changed_items(catalog, old_stages)
        if not all(stage.goes_on for stage in changed_stages.values()):
            return None
        moved = {
            n
            for n, s in changed_stages.items()
            if n in old_stages and not _compiles_alike(s, old_stages[n])
        }
        moved |= old_stages.keys() - catalog.keys()
        moved |= (self.touched & old_stages.keys()) | self.building.users()
        moved |= self._stages_to_replan(wiring, changed_stages, moved)
        reached: set[str] = set()
        while moved != reached:
            reached = moved
            moved = (_with_readers(catalog, moved) | self.old.readers(moved)) & old_stages.keys()
        self.made.update(self.old.made)
        for key in self.building.take_over(wiring, moved):
            self.made.pop(key, None)
        stages = self.building.wiring.stages
        stages.update((name, stage) for name, stage in changed_stages.items() if name in stages)
        return [
            s for name, s in (catalog if moved else changed_stages).items() if name not in stages
        ]

    def _stages_to_replan(
        self, wiring: GraphWiring, changed_stages: Mapping[str, Stage], moved: AbstractSet[str]
    ) -> set[str]:
        """Returns the stages whose plan may change, because other stages' requests have changed."""
        if self.now or not wiring.wishes:
            return set()
        changed = [*changed_stages.values(), *(wiring.stages[name] for name in moved)]
        requested = {
            each for stage in changed for each in requested_arrangements(stage, self.types)
        }
        return {name for name, each in wiring.wishes.items() if not each.isdisjoint(requested)}

    def add(self, stage: Stage) -> Node:
        """Adds one named collection; its references must have been added before."""
        name, types = stage.name, stage.schema.types
        keeping, extending = stage.options.nondeterministic, name in self.extended
        purpose = CompilePurpose(name, stage.live, keeping, extending, stage.apart)
        wiring, self.taken = self.building.wiring, []
        self.schemas[name] = stage.schema
        if isinstance(stage.life, FrozenState):
            node = self._frozen_node(stage, stage.life)
        elif stage.definition is None:
            node = self._node(purpose, stage.current_fingerprint({}), name, types)
        elif (
            stage.held is not None
            or stage.is_distrusted
            or not (stage.live or self._is_unchanged(stage, stage.definition))
        ):
            node = self._halted_node(stage)
        else:
            fingerprint = stage.current_fingerprint(wiring.prints)
            tree = stage.definition
            if not keeping:
                tree = plan_definition(tree, self.types, partial(self._supported_lookups, stage))
            prints = tree.fingerprints(wiring.prints)
            purpose = purpose._replace(prints=prints, uses=tree.uses)
            node = run_trampoline(self._operator_node(tree, fingerprint, name, purpose))
        self.building.named[name] = node
        node.use_operator(self.now, still=not stage.live)
        node.logged(Layout(types, stage.key), self.building.number)
        if stage.key is not None:
            self.building.ask(node, [(node.id, node.log_layout)])
        wiring.stages[name], wiring.prints[name] = stage, node.fingerprint
        wiring.operators[name] = tuple(self.taken)
        return node

    def _supported_lookups(self, stage: Stage, plans: PlanSet) -> frozenset[Lookup]:
        """Returns the lookups of a stage's current plan; chooses a plan if it has none."""
        building, prints = self.building, self.building.wiring.prints
        building.wiring.wishes[stage.name] = plans.wishes
        if self.now:
            runs = shared_plan(plans, stage, prints, building, self.old)
            if runs is not None:
                return runs
        granted = plans.wishes & arrangements_of_others(self.catalog, stage.name, self.types)
        if self.tables is None or not self.now:
            return granted
        return cheapest_plan(plans, granted, self.tables)

    def _part_node(self, tree: Definition, purpose: CompilePurpose) -> SuspendedCall[Node]:
        """Returns the node of a part; equal unnamed parts share a node."""
        if tree.is_ref:
            return self.building.named[tree.name]
        fingerprint = purpose.prints[id(tree)]
        if purpose.keeping:
            fingerprint = definition_fingerprint({"kept": fingerprint})
        fingerprint = separated_fingerprint(fingerprint, purpose.apart)
        existing = self.building.part(fingerprint, purpose.stage)
        if existing is not None and not self._has_missed_epochs(existing, purpose):
            return existing
        node: Node = yield self._operator_node(tree, fingerprint, None, purpose)
        self.building.wiring.parts[fingerprint] = node.id
        return node

    def _operator_node(
        self, tree: Definition, fingerprint: str, name: str | None, purpose: CompilePurpose
    ) -> SuspendedCall[Node]:
        """Builds the node of an operator and of its inputs; requests the traces that it looks up.

        Row-wise operators below a row-wise operator are fused with it.
        """
        links = _fused_chain(tree, purpose.uses)
        key = (id(tree), len(links), purpose.keeping)
        compiled = self.old.made.get(key)
        if compiled is None or compiled.fingerprint != purpose.prints[id(tree)]:
            compiled = self._compile_operator(tree, links, purpose)
        self.made[key] = compiled
        self.taken.append(key)
        operator = compiled.operator
        inputs: list[int] = []
        for each in compiled.inputs:
            source: Node = yield self._part_node(each, purpose)
            inputs.append(source.id)
        requests = [(i, o) for i, o in zip(inputs, operator.layouts, strict=True) if o is not None]
        for i, _ in requests:
            self.building.log(i)
        node = self._node(purpose, fingerprint, name, operator.types, compiled.plan)
        node.run_by(operator, inputs, self.building.number)
        self.building.read(node, requests)
        for i in (*inputs, node.id) if operator.whole else ():
            self.building.log(i)
        return node

    def _compile_operator(
        self, tree: Definition, links: list[Definition], purpose: CompilePurpose
    ) -> CompiledOperator:
        """Compiles the operator of a definition.

        Args:
            links: the row-wise operators that are fused with it, the first one first.
        """
        operator: Operator
        inputs = links[0].inputs
        if tree.is_ref:
            operator, inputs = Concat(tree.schema.types, 1), (tree,)
        elif tree.op == "iterate":
            operator, inputs = compile_loop(tree, purpose.prints, self.types)
            check_stable(operator, purpose.stage, keeping=purpose.keeping)
        elif is_linear(tree):
            operator = _with_memo(linear_chain(links, self.types), inputs[0].schema.types, purpose)
        else:
            operator = build_operator(tree, self.types)
            if purpose.keeping:
                operator = operator.keeping()
        plan = ""
        if operator.state:
            reads = [purpose.prints[id(each)] for each in inputs]
            plan = definition_fingerprint({"form": operator.form(), "reads": reads})
        return CompiledOperator(tree, purpose.prints[id(tree)], plan, operator, inputs)

    def _node(
        self,
        purpose: CompilePurpose,
        fingerprint: str,
        name: str | None,
        types: tuple[str, ...],
        plan: str = "",
    ) -> Node:
        """Appends a new node, or a copy of the equal node of the old graph.

        A named node with another plan retains its log and its rows, and is run to build its state;
        see `Runner.first_run`. A node of a stopped stage is not run. Its plan records that, because
        the stage cannot continue from such a node.
        """
        stage = purpose.stage
        old = self.building.reusable.get((fingerprint, name))
        reusable_plans = (plan, UNMADE) if self.later or not purpose.live else (plan,)
        if not purpose.live:
            plan = UNMADE  # because the node is not run, so its state is not advanced
        if old is None or self._has_missed_epochs(old, purpose):
            node = Node(self.building.number(), fingerprint, types, stage, name, plan=plan)
        elif old.plan in reusable_plans and old.id not in self.bare:
            node = old.copy_for_graph(types, stage)
        elif name is None:
            node = Node(self.building.number(), fingerprint, types, stage, plan=plan)
        else:
            node = old.elsewise(self.building.number(), types, stage, plan)
        self.building.append_node(node)
        return node

    def _has_missed_epochs(self, node: Node, purpose: CompilePurpose) -> bool:
        """Returns True if a node has missed epochs, but its reader needs the current epoch."""
        if not purpose.live or purpose.extending:
            return False
        return node.stopped is not None and node.stopped < self.now

    def _is_unchanged(self, stage: Stage, tree: Definition) -> bool:
        """Returns True if the rows of a stopped stage still match its definition.

        Its inputs must have the same columns and fingerprints as when it was defined. Otherwise the
        compiler would create a new node without rows and drop the node that has them. A halted
        stage remains halted, because its operator state is lost. Directly after an opening, halted
        stages are not known yet, and no node belongs to a stage.
        """
        old = self.building.reusable.get(
            (stage.current_fingerprint(self.building.wiring.prints), stage.name)
        )
        if old is None or (old.operator is None and old.stage):
            return False
        return all(self.schemas[ref.name] == ref.schema for ref in tree.refs)

    def _frozen_node(self, stage: Stage, life: FrozenState) -> Node:
        """Appends the node of an earlier version: a log and a trace, without an operator."""
        name, types, fingerprint = stage.name, stage.schema.types, stage.current_fingerprint({})
        layout = Layout(types, life.key)
        old = self.building.reusable.get((fingerprint, name))
        node = Node(
            self.building.number() if old is None else old.id,
            fingerprint,
            types,
            name,
            name,
            log=life.log,
            log_layout=Layout(types),
            traces={**({} if old is None else old.traces), layout: life.trace},
            stopped=None if old is None else old.stopped,
        )
        self.building.append_node(node)
        self.building.ask(node, [(node.id, layout)])
        return node

    def _halted_node(self, stage: Stage) -> Node:
        """Appends the node of a stage that cannot or may not be compiled, without an operator."""
        assert not stage.live
        old = next(n for (_, name), n in self.building.reusable.items() if name == stage.name)
        node = old.elsewise(old.id, stage.schema.types, stage.name, "")
        self.building.append_node(node)
        self.building.ask(node, [(node.id, layout) for layout in old.traces])
        return node

    def _freeze_parts(self) -> None:
        """Freezes the unnamed parts whose readers are all frozen; unfreezes the other ones."""
        nodes, read = self.building.nodes, dict[int, list[Node]]()
        for node in nodes.values():
            for i in node.inputs:
                read.setdefault(i, []).append(node)
        for node in reversed(nodes.values()):
            if node.name is None:
                frozen = all(reader.frozen for reader in read.get(node.id, ()))
                node.use_operator(self.now, still=frozen)


def _compiles_alike(one: Stage, other: Stage) -> bool:
    """Returns True if two stages with the same name compile to the same nodes."""
    if one.definition is not other.definition or one.life != other.life:
        return False
    parts = ((s.schema, s.key, s.uid, s.options, s.apart) for s in (one, other))
    return next(parts) == next(parts)


def _with_readers(catalog: Mapping[str, Stage], names: AbstractSet[str]) -> set[str]:
    """Returns some stages together with all stages that read them, directly or indirectly."""
    reached = set(names)
    for name, stage in catalog.items():
        tree = stage.definition
        if tree is not None and not stage.frozen and not reached.isdisjoint(tree.references):
            reached.add(name)
    return reached


def _fused_chain(tree: Definition, uses: Mapping[int, int]) -> list[Definition]:
    """Returns a row-wise operator and those that are fused with it, the first one first."""
    links = [tree]
    while is_linear(links[-1]):
        below = links[-1].inputs[0]
        if not is_linear(below) or uses[id(below)] > 1:
            break
        links.append(below)
    return links[::-1]


def _with_memo(linear: Linear, types: tuple[str, ...], purpose: CompilePurpose) -> Operator:
    """Returns a row-wise operator; its results are memoised if another run may differ.

    Raises:
        ExpressionError: if another run may differ, and the stage is not declared nondeterministic.
    """
    if purpose.keeping and (linear.asks or not linear.stable):
        return MemoizedMap(types, linear)
    if not linear.stable and purpose.stage:
        name = purpose.stage
        raise ExpressionError(
            f"stage '{name}': an expression of {linear.name} is not deterministic",
            hint="define the stage --nondeterministic, which memoises the results",
        )
    return linear


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
    node reads it, it is recomputed, because its earlier output is unknown. A node is also
    recomputed if its rows were in memory only, and the new graph writes them.
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
    """Returns the nodes of the old graph that store no rows, although the new graph needs them."""
    hollow: set[int] = set()
    for node in graph.since(old).fresh:
        if node.id not in old.nodes:
            hollow.update(i for i in node.inputs if _has_no_rows(old.nodes.get(i)))
        elif node.log is not None and old.nodes[node.id].log is None:
            hollow.add(node.id)
    return hollow


def _newly_written(graph: Graph, old: Graph) -> set[int]:
    """Returns the nodes that were in memory only, and that the new graph writes.

    A node that has stopped is not among them, because it is not written in either graph.
    """
    unwritten = graph.unwritten
    written = (graph.nodes[i] for i in old.hidden() & graph.nodes.keys())
    return {node.id for node in written if unwritten.isdisjoint((node.log, *node.state))}


def _has_no_rows(node: Node | None) -> bool:
    return node is not None and (node.log is None or (node.name is None and node.plan == UNMADE))


@dataclass
class LoopPlanBuilder:
    """A loop under construction.

    Attributes:
        prints: the fingerprints of the parts of the definition, by `id`.
        types: asks Spark for types of expressions that NoSync cannot infer.
        nodes: the nodes of the loop and of the loops inside.
        outside: the inputs of the loop: definitions with the layouts in which they are looked up.
        states: the layouts of the loop's own traces, with the depth of their loop.
        built: the numbers of the nodes, by fingerprint and enclosing loops.
    """

    prints: Mapping[int, str]
    types: Types | None
    nodes: list[LoopNode] = field(default_factory=list)
    outside: list[tuple[Definition, Layout | None]] = field(default_factory=list)
    states: list[tuple[Layout, int]] = field(default_factory=list)
    built: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)


Active = tuple[tuple[int, LoopScope, tuple[int, ...]], ...]
"""The enclosing loops: (level, scope, the nodes of its variables), outermost first."""


def compile_loop(
    tree: Definition, prints: Mapping[int, str], types: Types | None
) -> tuple[Loop, tuple[Definition, ...]]:
    """Returns the operator of a loop, and the definitions of its inputs, one for each layout.

    Args:
        prints: the fingerprints of the parts of the loop, by `id`.
    """
    plan = LoopPlanBuilder(prints, types)
    scope = LoopScope(1, tree.params["rounds"])
    leave = run_trampoline(_loop(plan, tree, (), scope))
    layouts = [layout for _, layout in plan.outside]
    loop = Loop(plan.nodes, scope, layouts, plan.states, leave)
    return loop, tuple(definition for definition, _ in plan.outside)


def check_stable(loop: Loop, stage: str, *, keeping: bool) -> None:
    """Raises StageError if a loop is nondeterministic, because it would not converge.

    Args:
        keeping: True if the stage is defined --nondeterministic, so that its functions may return
            different results in another run.
    """
    for node in loop.nodes:
        inner = node.operator
        if inner is None or node.kind != PLAIN:
            continue
        if not inner.stable or (keeping and inner.asks):
            raise StageError(
                f"{titled(stage)}: {inner.name} inside a loop must be deterministic",
                hint="compute it in a --nondeterministic stage before the loop",
            )


def _loop(
    plan: LoopPlanBuilder, tree: Definition, around: Active, scope: LoopScope
) -> SuspendedCall[int]:
    """Builds a loop, and returns the number of the node that has its result.

    Args:
        around: the enclosing loops.
    """
    count = len(tree.inputs) // 2
    sources, results = tree.inputs[:count], tree.inputs[count:]
    ports: list[LoopPort] = []
    for source in sources:
        ports.append((yield _port(plan, source, around, None)))
    variables = []
    for source, port in zip(sources, ports, strict=True):
        variables.append(
            _add(plan, scope, LoopNode(VARIABLE, source.schema.types, (port,), scope.depth))
        )
    inside = (*around, (tree.params["level"], scope, tuple(variables)))
    ends = []
    for number, result in zip(variables, results, strict=True):
        port = yield _port(plan, result, inside, None)
        end = _add(plan, scope, LoopNode(RESULT, result.schema.types, (port,), scope.depth))
        plan.nodes[number].read(LoopPort(False, end))
        ends.append(LoopPort(False, end))
    leave = LoopNode(LEAVE, tree.schema.types, tuple(ends), scope.depth - 1)
    if around:
        around[scope.depth - 2][1].items.append(scope)
        return _add(plan, around[scope.depth - 2][1], leave)
    plan.nodes.append(leave)
    return len(plan.nodes) - 1


def _add(plan: LoopPlanBuilder, scope: LoopScope, node: LoopNode) -> int:
    plan.nodes.append(node)
    scope.items.append(len(plan.nodes) - 1)
    return len(plan.nodes) - 1


def _port(
    plan: LoopPlanBuilder, tree: Definition, active: Active, layout: Layout | None
) -> SuspendedCall[LoopPort]:
    """Returns the port of a definition: a node of the loop, or an input of the loop.

    A definition without loop variables is computed outside, and becomes an input.
    """
    if tree.levels:
        return LoopPort(False, (yield _node(plan, tree, active)))
    fingerprint = plan.prints[id(tree)]
    for number, (other, its_layout) in enumerate(plan.outside):
        if its_layout == layout and plan.prints[id(other)] == fingerprint:
            return LoopPort(True, number)
    plan.outside.append((tree, layout))
    return LoopPort(True, len(plan.outside) - 1)


def _node(plan: LoopPlanBuilder, tree: Definition, active: Active) -> SuspendedCall[int]:
    """Returns the number of a definition's node, in the innermost loop that it depends on.

    The node is built only once.
    """
    free = tree.levels
    depths = [number for number, (level, _, _) in enumerate(active, 1) if level in free]
    if len(depths) < len(free):
        raise StageError(
            "the variable of a loop is used outside the loop",
            hint="use the result of iterate(), which is its last value",
        )
    depth = max(depths)
    active = active[:depth]
    if tree.op == "variable":
        return active[-1][2][int(tree.params["index"])]
    scopes = tuple(id(scope) for _, scope, _ in active)
    key = (plan.prints[id(tree)], scopes)
    if key not in plan.built:
        if tree.op == "iterate":
            inner = LoopScope(depth + 1, tree.params["rounds"])
            plan.built[key] = yield _loop(plan, tree, active, inner)
        else:
            plan.built[key] = yield _operator(plan, tree, active)
    return plan.built[key]


def _operator(plan: LoopPlanBuilder, tree: Definition, active: Active) -> SuspendedCall[int]:
    """Builds the node of one operator, with a trace for each inner input that it looks up."""
    operator = build_operator(tree, plan.types)
    depth = len(active)
    inside = [bool(each.levels) for each in tree.inputs]
    kind = operator.in_loop
    if kind is None:
        raise StageError(
            f"'{operator.name}' cannot be used inside a loop",
            hint="use it before or after iterate()",
        )
    ports, states = [], []
    for position, each in enumerate(tree.inputs):
        layout = None
        if kind == JOIN:
            layout = operator.layouts[position]
        elif kind == GROUP:
            layout = operator.grouping(position)
        ports.append((yield _port(plan, each, active, layout)))
        if layout is not None:
            states.append(_state(plan, layout, depth) if inside[position] else None)
    if kind == GROUP:
        states.append(_state(plan, Layout(operator.types, operator.output_key), depth))
    node = LoopNode(kind, operator.types, tuple(ports), depth, operator, tuple(states))
    return _add(plan, active[-1][1], node)


def _state(plan: LoopPlanBuilder, layout: Layout, depth: int) -> int:
    plan.states.append((timed_layout(layout, depth), depth))
    return len(plan.states) - 1
