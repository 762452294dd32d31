"""The graph: named collections compiled to nodes that share what is equal.

A `Node` is an input, or an operator with its state. The compiler makes it from the
catalog of inputs and stages.

Every node whose output is needed later has a **log** (its changes, consolidated, one batch an
epoch) and **traces** (arrangements of it that operators or readers look into). Operators' own
state are traces that are logged themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
        id: its number, stable while its fingerprint and its plan are.
        fingerprint: what it computes.
        name: the stage or input it is, None for a part of one.
        stage: the stage to blame in messages.
        inputs: the nodes it reads.
        log: the number of its log, None if nobody needs its output later.
        traces: layout -> number of the trace.
        state: numbers of the operator's own traces.
        plan: how those came about and are laid out; empty if it has none.
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
    plan: str = ""
    frozen: bool = False
    stopped: int | None = None

    def again(self, types: tuple[str, ...], stage: str) -> Node:
        """The node for another graph, before it is known what runs it there."""
        node = Node.__new__(Node)  # copy.copy takes three times as long
        vars(node).update(vars(self))
        node.types, node.stage, node.operator, node.inputs = types, stage, None, ()
        node.frozen = False
        return node

    def elsewise(self, number: int, types: tuple[str, ...], stage: str, plan: str) -> Node:
        """A node that has the log and the traces of this one, and comes by them otherwise."""
        node = self.again(types, stage)
        node.id, node.plan, node.state = number, plan, ()
        return node

    def run_by(self, operator: Operator, inputs: Iterable[int], number: Callable[[], int]) -> None:
        """Gives it what computes it, with traces of its own."""
        self.operator, self.inputs = operator, tuple(inputs)
        if len(self.state) != len(operator.state):
            self.state = tuple([number() for _ in operator.state])

    def logged(self, layout: Layout, number: Callable[[], int]) -> None:
        """Gives it a log, if it has none."""
        if self.log is None:
            self.log, self.log_layout = number(), layout

    def arranged(self, layouts: Sequence[Layout], number: Callable[[], int]) -> None:
        """Gives it the traces that are asked for, at least one if it has a log.

        Any one arrangement can be read as a collection, so the plain one goes when there is
        another.
        """
        if not layouts and self.log is not None:
            layouts = (self.log_layout,)
        had, self.traces = self.traces, {}
        for layout in layouts:
            if layout not in self.traces:
                self.traces[layout] = had[layout] if layout in had else number()

    def stand(self, now: int, *, still: bool) -> None:
        """Stands still from `now` on, if it has not before; or goes on."""
        self.frozen = still
        if not still:
            self.stopped = None
        elif self.stopped is None:
            self.stopped = now


class Made(NamedTuple):
    """An operator as it was compiled, which is for ever: definitions do not change.

    Attributes:
        tree: what it was compiled from, held so that its `id` is not another's.
        fingerprint: what it computes; another one if what it reads is another.
        plan: of its own traces; see `Node`.
        inputs: what it reads, in its order.
    """

    tree: Definition
    fingerprint: str
    plan: str
    operator: Operator
    inputs: tuple[Definition, ...]


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
        names = []
        for node in self:
            if reached.intersection(node.inputs):
                reached.add(node.id)
                if node.name:
                    names.append(node.name)
        return names
