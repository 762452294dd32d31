"""The graph: named collections compiled to nodes that share what is equal.

A `Node` is an input, or an operator with its state. The compiler makes it from the
catalog of inputs and stages.

Every node whose output is needed later has a **log** (its changes, consolidated, one batch an
epoch) and **traces** (arrangements of it that operators or readers look into). Operators' own
state are traces that are logged themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.operators import Operator
from nosync_nb.trace.batch import Layout

NO_LAYOUT = Layout(())


@dataclass
class Node:
    """A place in the dataflow.

    Attributes:
        id: its number, stable while its fingerprint is.
        name: the stage or input it is, None for a part of one.
        stage: the stage to blame in messages.
        inputs: the nodes it reads.
        log: the number of its log, None if nobody needs its output later.
        traces: layout -> number of the trace.
        state: numbers of the operator's own traces.
        frozen: it does not advance; since the epoch `stopped`.
    """

    id: int
    fingerprint: str
    types: tuple[str, ...]
    stage: str
    name: str | None = None
    operator: Operator | None = None
    inputs: tuple[int, ...] = ()
    log: int | None = None
    log_layout: Layout = NO_LAYOUT
    traces: dict[Layout, int] = field(default_factory=dict)
    state: tuple[int, ...] = ()
    frozen: bool = False
    stopped: int | None = None


class Made(NamedTuple):
    """An operator as it was compiled, which is for ever: definitions do not change.

    Attributes:
        tree: what it was compiled from, held so that its `id` is not another's.
        fingerprint: what it computes; another one if what it reads is another.
        outside: what a loop reads, in its order.
    """

    tree: Definition
    fingerprint: str
    operator: Operator
    outside: tuple[Definition, ...] = ()


MadeBy = tuple[int, int, bool]
"""The `id` of a definition, how many operators are fused to one, and whether results are kept."""


class Graph:
    """Nodes in an order in which inputs come first.

    Attributes:
        made: the operators as they were compiled, for the next compilation.
    """

    def __init__(
        self,
        nodes: Iterable[Node] = (),
        numbers: int = 0,
        made: Mapping[MadeBy, Made] | None = None,
    ) -> None:
        self.made: Mapping[MadeBy, Made] = {} if made is None else made
        self.nodes = {n.id: n for n in nodes}
        self.named = {n.name: n for n in self.nodes.values() if n.name}
        self.numbers = numbers

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def layouts(self) -> Iterator[tuple[int, Layout]]:
        """Every trace with its layout."""
        for node in self:
            for layout, trace in node.traces.items():
                yield trace, layout
            if node.operator is not None:
                yield from zip(node.state, node.operator.state, strict=True)

    def logs(self) -> Iterator[tuple[int, Layout]]:
        """Every log with its layout; operators' own traces are logs too."""
        for node in self:
            if node.log is not None:
                yield node.log, node.log_layout
            if node.operator is not None:
                yield from zip(node.state, node.operator.state, strict=True)

    def dependants(self, name: str) -> list[str]:
        """The stages that read a named collection, directly or not, in order."""
        reached = {self.named[name].id}
        found = []
        for node in self:
            if reached.intersection(node.inputs):
                reached.add(node.id)
                if node.name:
                    found.append(node.name)
        return found
