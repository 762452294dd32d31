"""The compiler: from a catalog to the graph, reusing nodes and operators of the graph before.

Compilation is declarative: the catalog of inputs and stages, in order, gives the nodes; a node
whose fingerprint was there before keeps its identity and with it its traces, so an unchanged
definition costs nothing. An operator is compiled once for each definition, which does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

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
        self.live = True
        self.keeping = False
        self.extending = False
        self.numbers = old.numbers
        self.reusable = {(n.fingerprint, n.name): n for n in old if n.id not in refused}
        self.known = old.made
        self.made: dict[MadeBy, Made] = {}
        self.prints: Mapping[int, str] = {}
        self.nodes: dict[int, Node] = {}
        self.by_fingerprint: dict[str, Node] = {}
        self.named: dict[str, Node] = {}
        self.fingerprints: dict[str, str] = {}
        self.uses: dict[int, int] = {}
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
            self._settle(node)
        return Graph(self.nodes.values(), self.numbers, self.made)

    def add(self, stage: Stage) -> Node:
        """Adds one named collection; what it refers to must be there already."""
        name = stage.name
        self.live = stage.live
        self.keeping = stage.options.nondeterministic
        self.extending = name in self.extended
        self.schemas[name] = stage.schema
        if isinstance(stage.life, Frozen):
            node = self._frozen(stage, stage.life)
            fingerprint = node.fingerprint
        elif stage.definition is None:
            fingerprint = stage.meaning(self.fingerprints)
            node = self._node(fingerprint, name, name, stage.schema.types)
        elif stage.held is not None or (not self.live and not self._fits(stage.definition)):
            node = self._halted(stage)
            fingerprint = node.fingerprint
        else:
            fingerprint = stage.meaning(self.fingerprints)
            self._count(stage.definition)
            self.prints = stage.definition.fingerprints(self.fingerprints)
            node = flat(self._operator(stage.definition, fingerprint, name, name))
        self.fingerprints[name] = fingerprint
        self.named[name] = node
        node.frozen = not self.live
        self._keep(node, Layout(stage.schema.types, stage.key))
        if stage.key is not None:
            self._arranged(node, node.log_layout)
        return node

    def _count(self, tree: Definition) -> None:
        """Counts how often each part is used, since only sole uses are fused."""
        waiting = [tree]
        while waiting:
            for each in waiting.pop().inputs:
                uses = self.uses[id(each)] = self.uses.get(id(each), 0) + 1
                if uses == 1:
                    waiting.append(each)

    def _sub(self, tree: Definition, stage: str) -> Call[Node]:
        """The node of an unnamed part, shared with equal ones."""
        if tree.is_ref:
            return self.named[tree.name]
        fingerprint = self.prints[id(tree)]
        if self.keeping:
            fingerprint = definition_fingerprint({"kept": fingerprint})
        known = self.by_fingerprint.get(fingerprint)
        if known is not None and not self._behind(known):
            return known
        node: Node = yield self._operator(tree, fingerprint, None, stage)
        self.by_fingerprint[fingerprint] = node
        return node

    def _operator(
        self, tree: Definition, fingerprint: str, name: str | None, stage: str
    ) -> Call[Node]:
        """The node of an operator: fuses row-wise chains, asks inputs for arrangements."""
        links = self._links(tree)
        key = (id(tree), len(links), self.keeping)
        found = self.known.get(key)
        if found is None or found.fingerprint != self.prints[id(tree)]:
            found = self._compiled(tree, links, stage)
        self.made[key] = found
        made = found.operator
        read = (tree,) if tree.is_ref else found.outside or links[0].inputs
        inputs: list[Node] = []
        for each in read:
            inputs.append((yield self._sub(each, stage)))
        for source, layout in zip(inputs, made.layouts, strict=True):
            if layout is not None:
                self._keep(source, Layout(source.types))
                self._arranged(source, layout)
        node = self._node(fingerprint, name, stage, made.types)
        node.operator, node.inputs = made, tuple([n.id for n in inputs])
        for source in (*inputs, node) if made.whole else ():
            self._keep(source, Layout(source.types))
        if len(node.state) != len(made.state):
            node.state = tuple([self._number() for _ in made.state])
        return node

    def _links(self, tree: Definition) -> list[Definition]:
        """The row-wise operators that are one with this, first one first; else this alone."""
        links = [tree]
        while is_linear(links[-1]):
            below = links[-1].inputs[0]
            if not is_linear(below) or self.uses.get(id(below), 0) > 1:
                break
            links.append(below)
        return links[::-1]

    def _compiled(self, tree: Definition, links: list[Definition], stage: str) -> Made:
        """The operator of a definition, compiled."""
        made: Operator
        outside: tuple[Definition, ...] = ()
        if tree.is_ref:
            made = Concat(tree.schema.types, 1)
        elif tree.op == "iterate":
            made, found = compile_loop(tree, self.prints, self.types)
            check_stable(made, stage, keeping=self.keeping)
            outside = tuple(found)
        elif is_linear(tree):
            types = links[0].inputs[0].schema.types
            made = self._kept(chain(links, self.types), types, stage)
        else:
            made = operator(tree, self.types)
            if self.keeping:
                made = made.keeping()
        return Made(tree, self.prints[id(tree)], made, outside)

    def _kept(self, made: Linear, types: tuple[str, ...], stage: str) -> Operator:
        """A row-wise operator, with its results kept if they may differ next time.

        Raises:
            ExpressionError: if they do differ and the stage was not defined so.
        """
        if self.keeping and (made.asks or not made.stable):
            return Kept(types, made)
        if not made.stable and stage:
            raise ExpressionError(
                f"stage '{stage}': an expression of {made.name} gives something else each time",
                hint="define the stage --nondeterministic: it keeps what came out",
            )
        return made

    def _node(self, fingerprint: str, name: str | None, stage: str, types: tuple[str, ...]) -> Node:
        """A new node, or a copy of the equal one of the old graph; placed last."""
        old = self.reusable.get((fingerprint, name))
        if old is None or stage in self.anew or self._behind(old):
            node = Node(self._number(), fingerprint, types, stage, name)
        else:
            node = Node.__new__(Node)  # copy.copy takes three times as long
            vars(node).update(vars(old))
            node.types, node.stage, node.operator, node.inputs = types, stage, None, ()
            node.frozen = False
        self.nodes[node.id] = node
        return node

    def _behind(self, node: Node) -> bool:
        """Whether a node has missed epochs, and what is compiled needs it as of now."""
        if not self.live or self.extending:
            return False
        return node.stopped is not None and node.stopped < self.now

    def _fits(self, tree: Definition) -> bool:
        """Whether what a definition reads has the columns that it was made for."""
        return all(self.schemas[ref.name] == ref.schema for ref in tree.refs)

    def _halted(self, stage: Stage) -> Node:
        """A stage that cannot or may not be compiled: its log and traces, no operator."""
        assert not self.live
        old = next(n for (_, name), n in self.reusable.items() if name == stage.name)
        node = self._node(old.fingerprint, stage.name, stage.name, stage.schema.types)
        node.state = ()
        self.wanted[node.id] = list(old.traces)
        return node

    def _stop(self) -> None:
        """Freezes what only frozen nodes read, and notes since when."""
        read: dict[int, list[Node]] = {}
        for node in self.nodes.values():
            for i in node.inputs:
                read.setdefault(i, []).append(node)
        for node in reversed(self.nodes.values()):
            if node.name is None:
                node.frozen = all(reader.frozen for reader in read.get(node.id, ()))
            if not node.frozen:
                node.stopped = None
            elif node.stopped is None:
                node.stopped = self.now

    def _keep(self, node: Node, layout: Layout) -> None:
        """Gives a node a log, if it has none."""
        if node.log is None:
            node.log = self._number()
            node.log_layout = layout

    def _arranged(self, node: Node, layout: Layout) -> None:
        """Asks for a trace of a node in that layout."""
        self.wanted.setdefault(node.id, []).append(layout)

    def _settle(self, node: Node) -> None:
        """Gives a node the traces that were asked for, at least one if it has a log.

        Any one arrangement can be read as a collection, so the plain one goes when there is
        another.
        """
        wanted = self.wanted.get(node.id) or ([node.log_layout] if node.log is not None else [])
        old = node.traces
        node.traces = {}
        for layout in wanted:
            if layout not in node.traces:
                node.traces[layout] = old[layout] if layout in old else self._number()

    def _frozen(self, stage: Stage, life: Frozen) -> Node:
        """A version that is only read: its log and one trace, no operator."""
        types = stage.schema.types
        node = self._node(stage.meaning(self.fingerprints), stage.name, stage.name, types)
        layout = Layout(types, life.key)
        node.log, node.log_layout, node.traces = life.log, Layout(types), {layout: life.trace}
        self._arranged(node, layout)
        return node

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers
