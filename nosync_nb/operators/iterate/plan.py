"""The contents of a loop, as data: its nodes, their scopes, and the readers of each node.

A loop is one operator of the dataflow, and its body is a small dataflow inside it. A **node** at
depth k is inside k loops, and its updates carry k rounds. A collection that does not depend on a
variable of the loop is not a node, but an input of the whole loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from nosync_nb.operators.base import Operator
from nosync_nb.trace.batch import Layout

VARIABLE, RESULT, LEAVE = "variable", "result", "leave"
"""The kinds of nodes without an operator: a loop variable, its next value, and its value after the
loop. These nodes consolidate, so that updates that cancel do not circulate for ever."""


class LoopPort(NamedTuple):
    """The source of an input of a node: node `number`, or (`outside`) that input of the loop."""

    outside: bool
    number: int


@dataclass
class LoopNode:
    """A node inside a loop.

    Attributes:
        kind: `PLAIN`, `JOIN` or `GROUP` for an operator; else `VARIABLE`, `RESULT` or `LEAVE`.
        types: the column types of the output.
        ports: the sources of the inputs.
        depth: the number of rounds that the updates carry.
        operator: the kernel; None for a node without an operator.
        states: for each input the number of the trace that stores it, or None. For an operator by
            key the number of the trace of the output follows.
    """

    kind: str
    types: tuple[str, ...]
    ports: tuple[LoopPort, ...]
    depth: int
    operator: Operator | None = None
    states: tuple[int | None, ...] = ()

    def read(self, port: LoopPort) -> None:
        """Adds an input at the end."""
        self.ports = (*self.ports, port)


@dataclass
class LoopScope:
    """One loop: the nodes and inner loops of a round, in order.

    Attributes:
        depth: the depth of the loop; 1 for the outermost one.
        rounds: the maximum number of rounds; `None` means to run until nothing changes.
        items: numbers of nodes, and inner loops; inputs come before their readers.
    """

    depth: int
    rounds: int | None
    items: list[int | LoopScope] = field(default_factory=list)

    def nodes(self) -> list[int]:
        """Returns the numbers of the nodes of this loop and of its inner loops."""
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
    """The attributes of a loop that its runs use; see `loop.Loop`."""

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
    """The run is abandoned because it is too expensive; its results are discarded."""
