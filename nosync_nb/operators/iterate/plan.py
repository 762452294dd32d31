"""The contents of a loop, as data: nodes, the scopes they belong to, and the readers of each node.

A loop is one operator of the dataflow; its body is a small dataflow of its own. A **node** at depth
k is inside k loops and its updates carry k rounds. A collection that depends on no variable of the
loop is not a node here: it is an input of the whole loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from nosync_nb.operators.base import Operator
from nosync_nb.trace.batch import Layout

VARIABLE, RESULT, LEAVE = "variable", "result", "leave"
"""Kinds of nodes beside those of operators: a loop variable; its next value; the value after the
loop. They consolidate, so that pairs that cancel do not circulate for ever."""


class LoopPort(NamedTuple):
    """The source of an input of a node: node `number`, or, if `outside`, the loop's input."""

    outside: bool
    number: int


@dataclass
class LoopNode:
    """A node inside a loop.

    Attributes:
        kind: how it runs.
        types: of its output.
        ports: its inputs.
        depth: the number of rounds that its updates carry.
        operator: the kernel, None for a variable or a leave node.
        states: for each input the number of its own trace, or None; last that of its output, if it
            is evaluated by key.
    """

    kind: str
    types: tuple[str, ...]
    ports: tuple[LoopPort, ...]
    depth: int
    operator: Operator | None = None
    states: tuple[int | None, ...] = ()

    def read(self, port: LoopPort) -> None:
        """Adds an input."""
        self.ports = (*self.ports, port)


@dataclass
class LoopScope:
    """One loop: the nodes of a round, in order.

    Attributes:
        depth: 1 for the outermost.
        rounds: the maximum number of rounds, None: until nothing changes.
        items: nodes and inner loops, inputs before their readers.
    """

    depth: int
    rounds: int | None
    items: list[int | LoopScope] = field(default_factory=list)

    def nodes(self) -> list[int]:
        """Returns the nodes of this loop and of its inner loops."""
        nodes: list[int] = []
        for item in self.items:
            nodes += item.nodes() if isinstance(item, LoopScope) else [item]
        return nodes


class LoopReader(NamedTuple):
    """A reader of a node: input `port` of node `node`."""

    node: int
    port: int


def readers_of_nodes(
    nodes: list[LoopNode],
) -> tuple[list[list[LoopReader]], dict[int, list[LoopReader]]]:
    """Returns the readers of each node, and the readers of each input of the whole loop."""
    inside: list[list[LoopReader]] = [[] for _ in nodes]
    outside: dict[int, list[LoopReader]] = {}
    for number, node in enumerate(nodes):
        for place, port in enumerate(node.ports):
            if port.outside:
                outside.setdefault(port.number, []).append(LoopReader(number, place))
            else:
                inside[port.number].append(LoopReader(number, place))
    return inside, outside


class LoopBody(Protocol):
    """What the runs of a loop read of it; see `loop.Loop`."""

    nodes: tuple[LoopNode, ...]
    scope: LoopScope
    scopes: dict[int, tuple[LoopScope, ...]]
    layouts: tuple[Layout | None, ...]
    state: tuple[Layout, ...]
    depths: tuple[int, ...]
    output: int
    types: tuple[str, ...]
    inside: list[list[LoopReader]]
    outside: dict[int, list[LoopReader]]


class AbandonedError(Exception):
    """The run exceeded its budget; its results are discarded."""
