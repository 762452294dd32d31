"""Ports: which traces the operators of a graph look into, and in which order changes are wanted.

It is told once for each node. What is known of the nodes of the graph before is taken over, as far
as they are there as they were; who reads one that has other traces now is told again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.operators import Operator
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout


class InputArrangements:
    """The traces of a graph, and who looks into them. Not changed once it is made.

    Cost: O(nodes); over a graph that has all nodes of the one before, in proportion to those that
    came, and some 20 ns for each other.

    Args:
        before: of the graph before; None: nothing is taken over.

    Attributes:
        empty: each trace, as it is without layers.
        looks: for each node the numbers of the traces of its inputs that its operator looks into.
        nothing: for each node as many times None, if it looks into no trace; else nothing.
        sorted: the order in which somebody wants the change of a node each epoch.
    """

    def __init__(self, graph: Graph, before: InputArrangements | None) -> None:
        self.graph = graph
        self.empty: dict[int, Trace] = {}
        self.looks: dict[int, list[int | None]] = {}
        self.nothing: dict[int, Sequence[None]] = {}
        self.sorted: dict[int, Layout] = {}
        nodes: Iterable[Node] = graph
        if before is not None and before.graph.nodes.keys() <= graph.nodes.keys():
            nodes = self._take_over(before)
        for node in nodes:
            self.empty.update((number, Trace(layout)) for number, layout in node.layouts())
            if node.operator is not None and not node.frozen:
                self._connect(node, node.operator)

    @cached_property
    def last(self) -> Mapping[int, Sequence[int]]:
        """For each node the inputs that none after it reads. Cost: O(nodes), at the first call."""
        reader = {i: node.id for node in self.graph for i in node.inputs}
        last: dict[int, list[int]] = {}
        for number, by in reader.items():
            last.setdefault(by, []).append(number)
        return last

    def _take_over(self, before: InputArrangements) -> list[Node]:
        """Takes over what is known of nodes that stay as they are; returns the others."""
        change = self.graph.since(before.graph)
        if change.whole:
            return change.fresh
        self.empty = dict(before.empty)
        self.looks, self.sorted = dict(before.looks), dict(before.sorted)
        self.nothing = dict(before.nothing)
        for number in change.dropped:
            del self.empty[number]
        changed = {node.id for node in change.gone}
        readers = [n for n in self.graph if not changed.isdisjoint(n.inputs)] if changed else []
        return [*change.fresh, *readers]

    def _connect(self, node: Node, operator: Operator) -> None:
        """Notes which traces an operator looks into."""
        looks = self.looks[node.id] = []
        for layout, i in zip(operator.layouts, node.inputs, strict=True):
            traces = self.graph.nodes[i].traces
            if layout is None and operator.whole:
                looks.append(next(iter(traces.values())))
            else:
                looks.append(None if layout is None else traces[layout])
            if layout is not None and operator.sorts:
                self.sorted[i] = layout
        self.nothing[node.id] = (None,) * len(looks) if looks.count(None) == len(looks) else ()
