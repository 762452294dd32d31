"""The graph: named collections compiled to nodes that share what is equal.

A `Node` is an input, or an operator with its state. The compiler makes it from the
catalog of inputs and stages.

Every node whose output is needed later has a **log** (its changes, consolidated, one batch an
epoch) and **traces** (arrangements of it that operators or readers look into). Operators' own
state are traces that are logged themselves.

Nodes of a graph that is published are not changed. A graph that was compiled from it has those that
stay as they are, and copies of the others: what is no other object is nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import is_
from typing import NamedTuple, TypeVar

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.optimizer.multiway_joins import Lookup
from nosync_nb.dataflow.stage import Stage
from nosync_nb.operators import Operator
from nosync_nb.trace.batch import Layout

NO_LAYOUT = Layout(())

UNMADE = "not read"
"""The plan of a node that has no state until it is run for it; no operator has this plan."""

Key = TypeVar("Key")
Value = TypeVar("Value")


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

    def copied(self) -> Node:
        """The node for another graph, where it is to be changed."""
        node = Node.__new__(Node)  # copy.copy takes three times as long
        node.become(self)
        return node

    def earlier(self, epoch: int, *, bare: bool) -> Node:
        """The node as a graph has it that begins at an epoch of the past.

        Args:
            bare: what it remembers is not there, and it is to be run for that.
        """
        node = self.copied()
        if bare:
            node.state, node.plan = (), ""
        if node.stopped is not None:
            node.stopped = min(node.stopped, epoch)
        return node

    def become(self, other: Node) -> None:
        """Is as another one is."""
        vars(self).update(vars(other))

    def again(self, types: tuple[str, ...], stage: str) -> Node:
        """The node for another graph, before it is known what runs it there."""
        node = self.copied()
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

    def blamed(self, stage: str) -> None:
        """Blames another stage for it."""
        self.stage = stage

    def logged(self, layout: Layout, number: Callable[[], int]) -> None:
        """Gives it a log, if it has none."""
        if self.log is None:
            self.log, self.log_layout = number(), layout

    def is_arranged(self, layouts: Collection[Layout]) -> bool:
        """Whether it has the traces that are asked for and no other; see `arranged`."""
        return self.traces.keys() == set(self._kept(layouts))

    def arranged(self, layouts: Collection[Layout], number: Callable[[], int]) -> None:
        """Gives it the traces that are asked for, at least one if it has a log.

        Any one arrangement can be read as a collection, so the plain one goes when there is
        another, and the last one stays when nobody asks for it any more: to make another takes all
        rows, which may be lost.
        """
        kept = self._kept(layouts)
        had, self.traces = self.traces, {}
        for layout in kept:
            self.traces[layout] = had[layout] if layout in had else number()

    def _kept(self, layouts: Collection[Layout]) -> Collection[Layout]:
        if layouts or self.log is None:
            return layouts
        return (next(iter(self.traces), self.log_layout),)

    def layouts(self) -> Iterator[tuple[int, Layout]]:
        """Its traces with their layouts, its operator's own too."""
        for layout, trace in self.traces.items():
            yield trace, layout
        if self.operator is not None:
            yield from zip(self.state, self.operator.state, strict=True)

    def stand(self, now: int, *, still: bool) -> None:
        """Stands still from `now` on, if it has not before; or goes on."""
        self.frozen = still
        if not still:
            self.stopped = None
        elif self.stopped is None:
            self.stopped = now


class CompiledOperator(NamedTuple):
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


class GraphDiff(NamedTuple):
    """How a graph differs from the one before it.

    Attributes:
        fresh: the nodes that are new, or not as they were; in the graph's order.
        gone: the nodes of before that are not there any more, or not as they were.
        nodes: how many there are.
    """

    fresh: list[Node]
    gone: list[Node]
    nodes: int

    @property
    def whole(self) -> bool:
        """Whether nothing was taken over as it was."""
        return len(self.fresh) == self.nodes

    @property
    def dropped(self) -> set[int]:
        """The traces that no node has any more."""
        gone = {number for node in self.gone for number, _ in node.layouts()}
        return gone.difference(number for node in self.fresh for number, _ in node.layouts())


def lagging_nodes(now: Mapping[Key, Value], before: Mapping[Key, Value]) -> dict[Key, Value] | None:
    """What of a mapping stands behind all that it had before; None if that is not as it was.

    The same objects are there in the same order; each belongs to one key. Cost: 20 ns for each.
    """
    if len(now) >= len(before) and all(map(is_, now.values(), before.values())):
        return dict(islice(now.items(), len(before), None))
    return None


def other_inputs(now: Mapping[Key, Value], before: Mapping[Key, Value]) -> dict[Key, Value]:
    """What of a mapping is not the same object as before, in order; each belongs to one key.

    Cost: some 20 ns each while what is other stands behind the rest, else some 100 ns each.
    """
    fresh = lagging_nodes(now, before)
    if fresh is None:
        fresh = {key: value for key, value in now.items() if before.get(key) is not value}
    return fresh


class GraphWiring(NamedTuple):
    """Of which stages a graph was compiled and what asks for what, to go on from.

    Attributes:
        stages: as they were compiled, by name; all of them go on, or are earlier versions.
        prints: what they compute.
        operators: the keys in `Graph.made` that each has taken.
        parts: the nodes without a name, by fingerprint.
        readers: how many nodes read a node, as often as they do.
        asked: by node, the traces that it asks for, and of which nodes.
        wanted: by node, the traces that it is asked for, and how often.
        wishes: by stage, what it looks up if others keep it; see `PlanSet`.
    """

    stages: dict[str, Stage]
    prints: dict[str, str]
    operators: dict[str, tuple[MadeBy, ...]]
    parts: dict[str, int]
    readers: dict[int, int]
    asked: dict[int, list[tuple[int, Layout]]]
    wanted: dict[int, dict[Layout, int]]
    wishes: dict[str, frozenset[Lookup]]

    def copied(self) -> GraphWiring:
        """A copy to go on from. Cost: O(nodes), each some 10 ns; what they hold is shared."""
        return GraphWiring(*map(dict, self))  # type: ignore[arg-type]


def disconnected() -> GraphWiring:
    """That of a graph of nothing."""
    return GraphWiring({}, {}, {}, {}, {}, {}, {}, {})


class Graph:
    """Nodes in an order in which inputs come first.

    Args:
        nodes: by number if they are counted already.
        named: those with a name, if they are known.
        memory: the stages of which nothing is written.
        unwritten: what the property of that name is, of a graph that lacks nodes: who reads a
            part is not known there.

    Attributes:
        made: the operators as they were compiled, for the next compilation.
        wiring: what it goes on from; None if it has to compile all stages again.
    """

    def __init__(
        self,
        nodes: Iterable[Node] | dict[int, Node] = (),
        numbers: int = 0,
        made: Mapping[MadeBy, CompiledOperator] | None = None,
        wiring: GraphWiring | None = None,
        named: dict[str, Node] | None = None,
        memory: AbstractSet[str] = frozenset(),
        unwritten: frozenset[int] | None = None,
    ) -> None:
        self.memory = memory
        self._unwritten = unwritten
        self.made: Mapping[MadeBy, CompiledOperator] = {} if made is None else made
        self.nodes = nodes if isinstance(nodes, dict) else {n.id: n for n in nodes}
        if named is None:
            named = {n.name: n for n in self.nodes.values() if n.name}
        self.named = named
        self.numbers = numbers
        self.wiring = wiring
        self._since: tuple[dict[int, Node], GraphDiff] | None = None

    @property
    def goes_on(self) -> bool:
        """Whether none of the stages that it was compiled of has stopped, as far as is known."""
        return self.wiring is not None

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def numbered(self, taken: int) -> Graph:
        """The graph, of which the next gives other numbers than those up to `taken`."""
        if self.numbers >= taken:
            return self
        wiring, named = self.wiring, self.named
        return Graph(self.nodes, taken, self.made, wiring, named, self.memory, self._unwritten)

    @cached_property
    def unwritten(self) -> frozenset[int]:
        """The numbers of logs and traces of which nothing is written.

        They are those of the stages in memory, and of parts without a name that only such use.

        Failure: 1. A branch leaves out a part that has no state at its epoch. 2. What only this
        part reads is taken for one that only stages in memory use, so its rows are not written.
        3. The part is run over nothing. Hence a graph that lacks nodes is told which these are.
        """
        return self.only_of(self.memory) if self._unwritten is None else self._unwritten

    def only_of(self, names: AbstractSet[str]) -> frozenset[int]:
        """The numbers of logs and traces of some stages, and of parts that no other stage uses.

        Cost: O(nodes), unless there are no such stages.
        """
        if not names:
            return frozenset()
        read: set[int] = set()  # by the others
        numbers: set[int] = set()
        for node in reversed(self.nodes.values()):
            if node.id in read if node.name is None else node.name not in names:
                read.update(node.inputs)
                continue
            numbers.update((*node.traces.values(), *node.state))
            numbers.update(() if node.log is None else (node.log,))
        return frozenset(numbers)

    def hidden(self) -> set[int]:
        """The nodes that run, and have something of which nothing is written."""
        unwritten = self.unwritten
        return {
            node.id
            for node in (self if unwritten else ())
            if node.operator is not None and not node.frozen
            if not unwritten.isdisjoint((node.log, *node.state))
        }

    def since(self, old: Graph) -> GraphDiff:
        """What is other than in the graph that it was compiled from; see `others`."""
        known = self._since
        if known is None or known[0] is not old.nodes:
            fresh = other_inputs(self.nodes, old.nodes)
            grown = len(self.nodes) - len(fresh) == len(old.nodes)
            gone = {} if grown else other_inputs(old.nodes, self.nodes)
            change = GraphDiff([*fresh.values()], [*gone.values()], len(self.nodes))
            known = self._since = old.nodes, change
        return known[1]

    def layouts(self) -> Iterator[tuple[int, Layout]]:
        """Every trace with its layout."""
        for node in self:
            yield from node.layouts()

    def logs(self) -> Iterator[tuple[int, Layout]]:
        """Every log with its layout; operators' own traces are logs too."""
        for node in self:
            if node.log is not None:
                yield node.log, node.log_layout
            if node.operator is not None:
                yield from zip(node.state, node.operator.state, strict=True)

    def memoised(self, node: Node) -> bool:
        """True if the rows of a node come from memoised results, of it or of a part below it."""
        waiting, seen = [node], {node.id}
        while waiting:
            at = waiting.pop()
            if at.operator is not None and at.operator.memoises:
                return True
            parts = [self.nodes[i] for i in at.inputs if i not in seen]
            waiting += [each for each in parts if each.name is None]
            seen.update(at.inputs)
        return False

    def dependants(self, name: str) -> list[str]:
        """The stages that read a named collection, directly or not, in order."""
        return [*self._reading([name])]

    def readers(self, names: Iterable[str]) -> set[str]:
        """Some stages, with those that their nodes feed.

        Failure: `a` and `b` are equal, and an unnamed part over `a` serves a stage that names `b`.
        By the names in definitions that stage has nothing to do with `a`.
        """
        known = {name for name in names if name in self.named}
        return {*names, *self._reading(known)}

    def _reading(self, names: Iterable[str]) -> Iterator[str]:
        reached = {self.named[name].id for name in names}
        for node in self:
            if reached.intersection(node.inputs):
                reached.add(node.id)
                if node.name:
                    yield node.name
