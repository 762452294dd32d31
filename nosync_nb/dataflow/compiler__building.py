"""Building: the nodes of a graph in the making, over those of the graph before.

Those of stages that stay are taken over as they lie; one that has to be changed, as somebody new
asks for its log or for another trace of it, is copied before, in its place. A stage that goes, or
is to be compiled again, is taken out with all it asked for and with the parts that only it used;
the compiler puts it back, over the same numbers where it means the same.

IMPORTANT: nothing of the graph before is changed: readers have it, and so has the session if what
is being defined fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from nosync_nb.dataflow.graph import (
    CompiledOperator,
    Graph,
    GraphWiring,
    MadeBy,
    Node,
    disconnected,
)
from nosync_nb.trace.batch import Layout


class GraphBuilder:
    """Nodes, and who asks for what of them.

    Args:
        old: the graph before.
        refused: nodes of it that are not taken over.

    Attributes:
        nodes: by number, in an order in which inputs come first.
        named: those with a name.
        wiring: what was compiled; see `GraphWiring`.
        reusable: the nodes of before that are not there and may be, by fingerprint and name.
    """

    def __init__(self, old: Graph, refused: AbstractSet[int]) -> None:
        self.nodes: dict[int, Node] = {}
        self.named: dict[str, Node] = {}
        self.wiring = disconnected()
        self.reusable: dict[tuple[str, str | None], Node] = {}
        self._old = old
        self._refused = refused
        self._numbers = old.numbers
        self._own: set[int] = set()  # the nodes that no other graph has
        self._changed: dict[int, None] = {}  # those that may be asked for other traces than before
        self._orphans: dict[int, None] = {}  # parts whose stage was taken out, in order

    def begin(self) -> None:
        """Begins with nothing; any node of before may be reused."""
        nodes = (node for node in self._old if node.id not in self._refused)
        self.reusable = {(node.fingerprint, node.name): node for node in nodes}

    def take_over(self, wiring: GraphWiring, without: AbstractSet[str]) -> list[MadeBy]:
        """Takes over the nodes of before, without those of some stages; who reads one goes too.

        Returns:
            the operators that those stages have taken.
        """
        self.wiring = wiring.copied()
        self.nodes, self.named = dict(self._old.nodes), dict(self._old.named)
        operators = [key for name in without for key in self._take_out(name)]
        if without:
            parts = (node for node in self.nodes.values() if node.name is None)
            self._orphans = {node.id: None for node in parts if node.stage in without}
        return operators

    def users(self) -> set[str]:
        """The stages that use what is refused."""
        reached, names = set(self._refused), set()
        for node in self._old if reached else ():
            if not reached.isdisjoint(node.inputs):
                if node.name is None:
                    reached.add(node.id)
                else:
                    names.add(node.name)
        return names

    def _take_out(self, name: str) -> tuple[MadeBy, ...]:
        """Takes out a stage, with the parts that nobody else uses; returns its operators."""
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
                self._count(i, layout, -1)
            for i in node.inputs:
                wiring.readers[i] -= 1
                if not wiring.readers[i]:
                    del wiring.readers[i]
                    if i in self.nodes and self.nodes[i].name is None:
                        waiting.append(self.nodes[i])
        return wiring.operators.pop(name)

    # -- putting -----------------------------------------------------------------------------

    def number(self) -> int:
        """A number that was not given before."""
        self._numbers += 1
        return self._numbers

    def put(self, node: Node) -> None:
        """Places a node last that no other graph has."""
        self.nodes[node.id] = node
        self._own.add(node.id)
        self._changed[node.id] = None

    def part(self, fingerprint: str, stage: str) -> Node | None:
        """The node without a name that computes something, for a stage; None if there is none."""
        number = self.wiring.parts.get(fingerprint)
        if number is None:
            return None
        node = self.nodes[number]
        if node.stage == stage:
            self._orphans.pop(number, None)
        return node

    def __contains__(self, fingerprint: object) -> bool:
        """Whether there is a node without a name that computes something, or was before."""
        return fingerprint in self.wiring.parts or (fingerprint, None) in self.reusable

    def log(self, number: int) -> None:
        """Gives a node a log, if it has none."""
        node = self.nodes[number]
        if node.log is None:
            self._owned(node).logged(Layout(node.types), self.number)

    def read(self, node: Node, asked: Iterable[tuple[int, Layout]]) -> None:
        """Notes what a node reads, and the traces that it asks for, of which nodes."""
        readers = self.wiring.readers
        for i in node.inputs:
            readers[i] = readers.get(i, 0) + 1
        self.ask(node, asked)

    def ask(self, node: Node, asked: Iterable[tuple[int, Layout]]) -> None:
        """Notes that a node asks for more traces."""
        for i, layout in asked:
            self.wiring.asked.setdefault(node.id, []).append((i, layout))
            self._count(i, layout, 1)

    def _count(self, number: int, layout: Layout, by: int) -> None:
        """Counts who asks for a trace of a node."""
        wanted = self.wiring.wanted
        counts = dict(wanted.get(number, ()))  # that of the graph before stays as it is
        counts[layout] = counts.get(layout, 0) + by
        if not counts[layout]:
            del counts[layout]
        wanted[number] = counts
        self._changed[number] = None

    def _owned(self, node: Node) -> Node:
        """A node of this graph alone, in its place."""
        if node.id not in self._own:
            node = node.copied()
            self.put(node)
            if node.name is not None:
                self.named[node.name] = node
        return node

    # -- the end -----------------------------------------------------------------------------

    def graph(
        self, made: Mapping[MadeBy, CompiledOperator], memory: AbstractSet[str], *, goes_on: bool
    ) -> Graph:
        """The graph, with the traces that are asked for.

        Args:
            memory: the stages of which nothing is written.
            goes_on: the next one may begin with what this one has.
        """
        for i in reversed(self._orphans):  # who reads one comes behind it
            reader = next(node for node in self.nodes.values() if i in node.inputs)
            self._owned(self.nodes[i]).blamed(reader.stage)
        for i in self._changed:
            self._arrange(i)
        wiring = self.wiring if goes_on else None
        return Graph(self.nodes, self._numbers, made, wiring, self.named, memory)

    def _arrange(self, number: int) -> None:
        """Gives a node the traces that it is asked for now; one that is gone is forgotten."""
        node, wanted = self.nodes.get(number), self.wiring.wanted
        if node is None:
            wanted.pop(number, None)
            return
        layouts = wanted.get(number, {})
        if number in self._own or not node.is_arranged(layouts):
            self._owned(node).arranged(layouts, self.number)
