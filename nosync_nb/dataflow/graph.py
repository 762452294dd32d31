"""The graph: named collections compiled to nodes, which share equal parts.

A `Node` is an input, or an operator with its state. The compiler creates it from the catalog of
inputs and stages.

Every node whose output is needed later has a **log**: its changes, consolidated, one batch per
epoch. It also has **traces**: arrangements of its rows for the lookups of operators and readers.
The state of an operator consists of traces that are logged themselves.

The nodes of a published graph are not changed. A graph that is compiled from it contains the
unchanged nodes themselves, and copies of the others. Therefore a node is unchanged if it is the
same object.
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
"""The plan of a node whose state has not been built; no operator has this plan."""

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass
class Node:
    """A node of the dataflow graph.

    Attributes:
        id: the number of the node, stable while its fingerprint and its plan do not change.
        fingerprint: identifies the collection that the node computes.
        types: the types of its columns.
        stage: the stage that messages name.
        name: the name of its stage or input; None for a part of a stage.
        operator: the operator that computes the node; None for an input, and for a node that only
            has rows.
        inputs: the numbers of the nodes that it reads.
        log: the number of its log; None if its output is not needed later.
        log_layout: the layout of the log.
        traces: the number of each trace of its rows, by layout.
        state: the numbers of the traces that are the operator's state.
        plan: identifies the operator and the layout of `state`; empty if there is no state.
        frozen: True if the node does not advance.
        stopped: the last epoch of a frozen node.
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
        """Returns a copy of the node for another graph, which may change it."""
        node = Node.__new__(Node)  # copy.copy takes three times as long
        node.become(self)
        return node

    def become(self, other: Node) -> None:
        """Copies all attributes from another node."""
        vars(self).update(vars(other))

    def copy_for_graph(self, types: tuple[str, ...], stage: str) -> Node:
        """Copies the node into another graph, without an operator."""
        node = self.copied()
        node.types, node.stage, node.operator, node.inputs = types, stage, None, ()
        node.frozen = False
        return node

    def elsewise(self, number: int, types: tuple[str, ...], stage: str, plan: str) -> Node:
        """Copies the node with its log and traces, but with another number and plan, stateless."""
        node = self.copy_for_graph(types, stage)
        node.id, node.plan, node.state = number, plan, ()
        return node

    def run_by(self, operator: Operator, inputs: Iterable[int], number: Callable[[], int]) -> None:
        """Sets the operator of the node, and allocates the traces of its state."""
        self.operator, self.inputs = operator, tuple(inputs)
        if len(self.state) != len(operator.state):
            self.state = tuple([number() for _ in operator.state])

    def blamed(self, stage: str) -> None:
        """Sets the stage that messages name."""
        self.stage = stage

    def logged(self, layout: Layout, number: Callable[[], int]) -> None:
        """Allocates a log for the node, if it has none."""
        if self.log is None:
            self.log, self.log_layout = number(), layout

    def is_arranged(self, layouts: Collection[Layout]) -> bool:
        """Returns True if the node has exactly the requested traces; see `arranged`."""
        return self.traces.keys() == set(self._required_layouts(layouts))

    def arranged(self, layouts: Collection[Layout], number: Callable[[], int]) -> None:
        """Sets the traces of the node: the requested ones, and at least one if the node is logged.

        Any arrangement can be read as a collection, so the plain one is dropped when there is
        another. The last arrangement is retained even if no node requests it any more. Building
        another one needs all rows, and these may be lost.
        """
        required = self._required_layouts(layouts)
        traces, self.traces = self.traces, {}
        for layout in required:
            self.traces[layout] = traces[layout] if layout in traces else number()

    def _required_layouts(self, layouts: Collection[Layout]) -> Collection[Layout]:
        if layouts or self.log is None:
            return layouts
        return (next(iter(self.traces), self.log_layout),)

    def layouts(self) -> Iterator[tuple[int, Layout]]:
        """Yields the traces with their layouts, including those of the operator's state."""
        for layout, trace in self.traces.items():
            yield trace, layout
        if self.operator is not None:
            yield from zip(self.state, self.operator.state, strict=True)

    def use_operator(self, now: int, *, still: bool) -> None:
        """Freezes the node at epoch `now` if `still` is True; unfreezes it otherwise.

        A node that is frozen already stays frozen at its earlier epoch.
        """
        self.frozen = still
        if not still:
            self.stopped = None
        elif self.stopped is None:
            self.stopped = now


class CompiledOperator(NamedTuple):
    """A compiled operator. It is valid for ever, because definitions do not change.

    Attributes:
        tree: the definition; the reference prevents reuse of its `id`.
        fingerprint: identifies the collection; it differs if the inputs differ.
        plan: identifies the operator and the layout of its state; see `Node`.
        inputs: the definitions that it reads, in the order of its inputs.
    """

    tree: Definition
    fingerprint: str
    plan: str
    operator: Operator
    inputs: tuple[Definition, ...]


MadeBy = tuple[int, int, bool]
"""The `id` of a definition, the number of fused operators, and whether results are memoised."""


class GraphDiff(NamedTuple):
    """The difference between a graph and the previous one.

    Attributes:
        fresh: the nodes that are new or changed, in the graph's order.
        gone: the nodes of the previous graph that are dropped or changed.
        nodes: the number of nodes of the new graph.
    """

    fresh: list[Node]
    gone: list[Node]
    nodes: int

    @property
    def is_all_new(self) -> bool:
        """True if no node was taken over unchanged."""
        return len(self.fresh) == self.nodes

    @property
    def dropped(self) -> set[int]:
        """The traces that no node has any more."""
        numbers = {number for node in self.gone for number, _ in node.layouts()}
        return numbers.difference(number for node in self.fresh for number, _ in node.layouts())


def appended_items(
    now: Mapping[Key, Value], before: Mapping[Key, Value]
) -> dict[Key, Value] | None:
    """Returns the items that were appended to a mapping; None if the earlier items have changed.

    The earlier items are unchanged if they are the same objects in the same order.

    Cost: 20 ns for each earlier item.
    """
    if len(now) >= len(before) and all(map(is_, now.values(), before.values())):
        return dict(islice(now.items(), len(before), None))
    return None


def changed_items(now: Mapping[Key, Value], before: Mapping[Key, Value]) -> dict[Key, Value]:
    """Returns the items of a mapping that are not the same objects as before, in order.

    Each object belongs to one key.

    Cost: 20 ns per item if all changed items come after the unchanged ones; otherwise 100 ns.
    """
    fresh = appended_items(now, before)
    if fresh is None:
        fresh = {key: value for key, value in now.items() if before.get(key) is not value}
    return fresh


class GraphWiring(NamedTuple):
    """The stages of a compiled graph and their requests, for an incremental compilation.

    Attributes:
        stages: the compiled stages by name; each is live or an earlier version.
        prints: the fingerprint of each stage.
        operators: for each stage, the keys of its operators in `Graph.made`.
        parts: the numbers of the nodes without a name, by fingerprint.
        readers: for each node, the number of times that other nodes read it.
        asked: for each node, the traces that it requests, as (number of a node, layout).
        wanted: for each node, the layouts that other nodes request, with the number of requests.
        wishes: for each stage, the lookups that it would use if other stages maintained them; see
            `PlanSet`.
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
        """Returns a copy for the next compilation, which shares the values.

        Cost: O(nodes), 10 ns per node.
        """
        return GraphWiring(*map(dict, self))  # type: ignore[arg-type]


def disconnected() -> GraphWiring:
    """Returns the wiring of an empty graph."""
    return GraphWiring({}, {}, {}, {}, {}, {}, {}, {})


class Graph:
    """Nodes in an order in which inputs come first.

    Args:
        nodes: the nodes, or a dict of the nodes by number.
        numbers: the greatest number that is allocated.
        named: the nodes with a name; by default they are found among the nodes.
        memory: the stages whose rows are not written.
        unwritten: the value of the property `unwritten` for a graph with missing nodes, where the
            readers of a part are unknown; by default it is computed.

    Attributes:
        made: the compiled operators, for the next compilation.
        wiring: the base of an incremental compilation; None if all stages must be compiled again.
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
        """True if the graph records that none of its stages has stopped; see `wiring`."""
        return self.wiring is not None

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def numbered(self, taken: int) -> Graph:
        """Returns a graph whose next number is above `taken`; this graph if that is so already."""
        if self.numbers >= taken:
            return self
        wiring, named = self.wiring, self.named
        return Graph(self.nodes, taken, self.made, wiring, named, self.memory, self._unwritten)

    @cached_property
    def change_logs(self) -> Mapping[str, int]:
        """The number of the log of changes of each named collection, by name."""
        return {name: node.log for name, node in self.named.items() if node.log is not None}

    @cached_property
    def unwritten(self) -> frozenset[int]:
        """The numbers of logs and traces that are not written.

        They belong to the stages in memory, and to parts without a name that only such stages use.

        Failure: 1. A branch omits a part that has no state at its epoch. 2. An input of only this
        part then looks like a part that only stages in memory use, so its rows are not written. 3.
        The part is run over nothing. Therefore a graph with missing nodes receives this set from
        its caller.
        """
        return self.only_of(self.memory) if self._unwritten is None else self._unwritten

    def only_of(self, names: AbstractSet[str]) -> frozenset[int]:
        """Returns the logs and traces of some stages, and of parts that no other stage uses.

        Cost: O(nodes), unless there are no such stages.
        """
        if not names:
            return frozenset()
        read: set[int] = set()  # the nodes that other stages read
        numbers: set[int] = set()
        for node in reversed(self.nodes.values()):
            if node.id in read if node.name is None else node.name not in names:
                read.update(node.inputs)
                continue
            numbers.update((*node.traces.values(), *node.state))
            numbers.update(() if node.log is None else (node.log,))
        return frozenset(numbers)

    def hidden(self) -> set[int]:
        """Returns the nodes that run and have a log or a state that is not written."""
        unwritten = self.unwritten
        return {
            node.id
            for node in (self if unwritten else ())
            if node.operator is not None and not node.frozen
            if not unwritten.isdisjoint((node.log, *node.state))
        }

    def since(self, old: Graph) -> GraphDiff:
        """Returns the difference from the graph that it was compiled from; see `changed_items`."""
        cached = self._since
        if cached is None or cached[0] is not old.nodes:
            fresh = changed_items(self.nodes, old.nodes)
            grown = len(self.nodes) - len(fresh) == len(old.nodes)
            gone = {} if grown else changed_items(old.nodes, self.nodes)
            change = GraphDiff([*fresh.values()], [*gone.values()], len(self.nodes))
            cached = self._since = old.nodes, change
        return cached[1]

    def layouts(self) -> Iterator[tuple[int, Layout]]:
        """Yields every trace with its layout."""
        for node in self:
            yield from node.layouts()

    def logs(self) -> Iterator[tuple[int, Layout]]:
        """Yields every log with its layout, including the traces of operator state."""
        for node in self:
            if node.log is not None:
                yield node.log, node.log_layout
            if node.operator is not None:
                yield from zip(node.state, node.operator.state, strict=True)

    def memoised(self, node: Node) -> bool:
        """Returns True if the operator of a node, or of an unnamed part below it, memoises."""
        waiting, visited = [node], {node.id}
        while waiting:
            at = waiting.pop()
            if at.operator is not None and at.operator.memoises:
                return True
            parts = [self.nodes[i] for i in at.inputs if i not in visited]
            waiting += [each for each in parts if each.name is None]
            visited.update(at.inputs)
        return False

    def dependants(self, name: str) -> list[str]:
        """Returns the stages that read a named collection, directly or indirectly, in order."""
        return [*self._stages_reading([name])]

    def readers(self, names: Iterable[str]) -> set[str]:
        """Returns some stages together with all stages that read from their nodes.

        Failure: 1. `a` and `b` are equal, and an unnamed part over `a` serves a stage that names
        `b`. 2. By the names in definitions that stage is independent of `a`, so it is omitted.
        Therefore the readers are found by nodes.
        """
        existing = {name for name in names if name in self.named}
        return {*names, *self._stages_reading(existing)}

    def _stages_reading(self, names: Iterable[str]) -> Iterator[str]:
        reached = {self.named[name].id for name in names}
        for node in self:
            if reached.intersection(node.inputs):
                reached.add(node.id)
                if node.name:
                    yield node.name
