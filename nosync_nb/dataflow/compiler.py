"""The compiler: from a catalog to the graph, reusing nodes and operators of the graph before.

Compilation is declarative: the catalog of inputs and stages, in order, gives the nodes; a node
whose fingerprint was there before keeps its identity and with it its traces, so an unchanged
definition costs nothing. An operator is compiled once for each definition, which does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions.identity import definition_fingerprint
from nosync_nb.dataflow.flat import Call, flat
from nosync_nb.dataflow.graph import Graph, Made, MadeBy, Node
from nosync_nb.dataflow.loops import check_stable, compile_loop
from nosync_nb.dataflow.stage import Frozen, Stage
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import Types
from nosync_nb.operators import Concat, Kept, Linear, Operator
from nosync_nb.operators.specs import chain, is_linear, operator
from nosync_nb.rows import Schema
from nosync_nb.trace.batch import Layout


class Purpose(NamedTuple):
    """What the parts of one stage are compiled for.

    Attributes:
        stage: its name.
        live: it goes on with each epoch.
        keeping: results of functions are kept, as they may differ next time.
        extending: it goes on although it has missed epochs.
        prints: what its parts compute, by `id`.
        uses: how often each part is used in it, since only sole uses are fused.
    """

    stage: str
    live: bool
    keeping: bool = False
    extending: bool = False
    prints: Mapping[int, str] = {}
    uses: Mapping[int, int] = {}


class Compiler:
    """Compiles a catalog to a graph, reusing the nodes of an earlier one.

    Args:
        old: the graph before; its nodes are copied, never changed.
        types: asks Spark for types of expressions that only it knows.
        now: the last epoch.
        anew: stages whose nodes are not reused, even if they are equal.
        extended: stages whose nodes are reused although they have missed epochs.
        refused: nodes that are not reused.
    """

    def __init__(
        self,
        old: Graph,
        types: Types | None = None,
        *,
        now: int = 0,
        anew: AbstractSet[str] = frozenset(),
        extended: AbstractSet[str] = frozenset(),
        refused: AbstractSet[int] = frozenset(),
    ) -> None:
        self.types = types
        self.now = now
        self.anew = anew
        self.extended = extended
        self.numbers = old.numbers
        self.reusable = {(n.fingerprint, n.name): n for n in old if n.id not in refused}
        self.known = old.made
        self.made: dict[MadeBy, Made] = {}
        self.nodes: dict[int, Node] = {}
        self.by_fingerprint: dict[str, Node] = {}
        self.named: dict[str, Node] = {}
        self.fingerprints: dict[str, str] = {}
        self.wanted: dict[int, list[Layout]] = {}
        self.schemas: dict[str, Schema] = {}

    def compile(self, catalog: Mapping[str, Stage]) -> Graph:
        """The graph of a catalog.

        Raises:
            NosyncError: if a definition does not fit its inputs any more.
        """
        # A stage that has stopped may have lost its functions: whom it shares with must not get it.
        for stage in sorted(catalog.values(), key=lambda each: each.reason is not None):
            self.add(stage)
        self._stop()
        for node in self.nodes.values():
            node.arranged(self.wanted.get(node.id, ()), self._number)
        return Graph(self.nodes.values(), self.numbers, self.made)

    def add(self, stage: Stage) -> Node:
        """Adds one named collection; what it refers to must be there already."""
        name, types = stage.name, stage.schema.types
        purpose = Purpose(name, stage.live, stage.options.nondeterministic, name in self.extended)
        self.schemas[name] = stage.schema
        if isinstance(stage.life, Frozen):
            node = self._frozen(stage, stage.life)
        elif stage.definition is None:
            node = self._node(purpose, stage.meaning({}), name, types)
        elif stage.held is not None or not (stage.live or self._same(stage, stage.definition)):
            node = self._halted(stage)
        else:
            fingerprint = stage.meaning(self.fingerprints)
            prints = stage.definition.fingerprints(self.fingerprints)
            purpose = purpose._replace(prints=prints, uses=stage.definition.uses)
            node = flat(self._operator(stage.definition, fingerprint, name, purpose))
        self.fingerprints[name] = node.fingerprint
        self.named[name] = node
        node.stand(self.now, still=not stage.live)
        node.logged(Layout(types, stage.key), self._number)
        if stage.key is not None:
            self._arranged(node, node.log_layout)
        return node

    def _sub(self, tree: Definition, purpose: Purpose) -> Call[Node]:
        """The node of an unnamed part, shared with equal ones."""
        if tree.is_ref:
            return self.named[tree.name]
        fingerprint = purpose.prints[id(tree)]
        if purpose.keeping:
            fingerprint = definition_fingerprint({"kept": fingerprint})
        known = self.by_fingerprint.get(fingerprint)
        if known is not None and not self._behind(known, purpose):
            return known
        node: Node = yield self._operator(tree, fingerprint, None, purpose)
        self.by_fingerprint[fingerprint] = node
        return node

    def _operator(
        self, tree: Definition, fingerprint: str, name: str | None, purpose: Purpose
    ) -> Call[Node]:
        """The node of an operator: fuses row-wise chains, asks inputs for arrangements."""
        links = _links(tree, purpose.uses)
        key = (id(tree), len(links), purpose.keeping)
        made = self.known.get(key)
        if made is None or made.fingerprint != purpose.prints[id(tree)]:
            made = self._compiled(tree, links, purpose)
        self.made[key] = made
        operator = made.operator
        inputs: list[Node] = []
        for each in made.inputs:
            inputs.append((yield self._sub(each, purpose)))
        for source, layout in zip(inputs, operator.layouts, strict=True):
            if layout is not None:
                source.logged(Layout(source.types), self._number)
                self._arranged(source, layout)
        node = self._node(purpose, fingerprint, name, operator.types, made.plan)
        node.run_by(operator, [n.id for n in inputs], self._number)
        for source in (*inputs, node) if operator.whole else ():
            source.logged(Layout(source.types), self._number)
        return node

    def _compiled(self, tree: Definition, links: list[Definition], purpose: Purpose) -> Made:
        """The operator of a definition, compiled."""
        made: Operator
        inputs = links[0].inputs
        if tree.is_ref:
            made, inputs = Concat(tree.schema.types, 1), (tree,)
        elif tree.op == "iterate":
            made, inputs = compile_loop(tree, purpose.prints, self.types)
            check_stable(made, purpose.stage, keeping=purpose.keeping)
        elif is_linear(tree):
            made = _kept(chain(links, self.types), inputs[0].schema.types, purpose)
        else:
            made = operator(tree, self.types)
            if purpose.keeping:
                made = made.keeping()
        plan = ""
        if made.state:
            reads = [purpose.prints[id(each)] for each in inputs]
            plan = definition_fingerprint({"form": made.form(), "reads": reads})
        return Made(tree, purpose.prints[id(tree)], plan, made, inputs)

    def _node(
        self,
        purpose: Purpose,
        fingerprint: str,
        name: str | None,
        types: tuple[str, ...],
        plan: str = "",
    ) -> Node:
        """A new node, or a copy of the equal one of the old graph; placed last.

        A named one that keeps what it remembers otherwise than before has its log and its rows,
        and is run for what it remembers; see `Runner.first_run`.
        """
        stage = purpose.stage
        old = self.reusable.get((fingerprint, name))
        if old is None or stage in self.anew or self._behind(old, purpose):
            node = Node(self._number(), fingerprint, types, stage, name, plan=plan)
        elif old.plan == plan:
            node = old.again(types, stage)
        elif name is None:
            node = Node(self._number(), fingerprint, types, stage, plan=plan)
        else:
            node = old.elsewise(self._number(), types, stage, plan)
        self.nodes[node.id] = node
        return node

    def _behind(self, node: Node, purpose: Purpose) -> bool:
        """Whether a node has missed epochs, and what is compiled needs it as of now."""
        if not purpose.live or purpose.extending:
            return False
        return node.stopped is not None and node.stopped < self.now

    def _same(self, stage: Stage, tree: Definition) -> bool:
        """Whether what a stage that has stopped would compute is what it has.

        What it reads has the columns that it was made for and means what it did. Otherwise it would
        be another node, that has no rows, and the node that has them would go. One that was halted
        stays so: what its operators remembered is gone. Only out of a log it is not known yet which
        those are, and nodes have no stage.
        """
        old = self.reusable.get((stage.meaning(self.fingerprints), stage.name))
        if old is None or (old.operator is None and old.stage):
            return False
        return all(self.schemas[ref.name] == ref.schema for ref in tree.refs)

    def _frozen(self, stage: Stage, life: Frozen) -> Node:
        """A version that is only read: its log and one trace, no operator."""
        name, types, fingerprint = stage.name, stage.schema.types, stage.meaning({})
        layout = Layout(types, life.key)
        old = self.reusable.get((fingerprint, name))
        node = Node(
            self._number() if old is None else old.id,
            fingerprint,
            types,
            name,
            name,
            log=life.log,
            log_layout=Layout(types),
            traces={layout: life.trace},
            stopped=None if old is None else old.stopped,
        )
        self.nodes[node.id] = node
        self._arranged(node, layout)
        return node

    def _halted(self, stage: Stage) -> Node:
        """A stage that cannot or may not be compiled: its log and traces, no operator."""
        assert not stage.live
        old = next(n for (_, name), n in self.reusable.items() if name == stage.name)
        node = old.elsewise(old.id, stage.schema.types, stage.name, "")
        self.nodes[node.id] = node
        self.wanted[node.id] = list(old.traces)
        return node

    def _stop(self) -> None:
        """Stops what only nodes read that stand still, and notes since when."""
        read: dict[int, list[Node]] = {}
        for node in self.nodes.values():
            for i in node.inputs:
                read.setdefault(i, []).append(node)
        for node in reversed(self.nodes.values()):
            if node.name is None:
                still = all(reader.frozen for reader in read.get(node.id, ()))
                node.stand(self.now, still=still)

    def _arranged(self, node: Node, layout: Layout) -> None:
        """Asks for a trace of a node in that layout."""
        self.wanted.setdefault(node.id, []).append(layout)

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers


def _links(tree: Definition, uses: Mapping[int, int]) -> list[Definition]:
    """The row-wise operators that are one with this, first one first; else this alone."""
    links = [tree]
    while is_linear(links[-1]):
        below = links[-1].inputs[0]
        if not is_linear(below) or uses[id(below)] > 1:
            break
        links.append(below)
    return links[::-1]


def _kept(linear: Linear, types: tuple[str, ...], purpose: Purpose) -> Operator:
    """A row-wise operator, with its results kept if they may differ next time.

    Raises:
        ExpressionError: if they do differ and the stage was not defined so.
    """
    if purpose.keeping and (linear.asks or not linear.stable):
        return Kept(types, linear)
    if not linear.stable and purpose.stage:
        name = purpose.stage
        raise ExpressionError(
            f"stage '{name}': an expression of {linear.name} gives something else each time",
            hint="define the stage --nondeterministic: it keeps what came out",
        )
    return linear
