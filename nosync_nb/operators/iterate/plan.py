"""What runs inside a loop, as data: nodes, the scopes they belong to, and who reads whom.

A loop is one operator of the dataflow; what it is made of is a small dataflow of its own. A
**node** at depth k sits inside k loops and its updates carry k rounds. What depends on no variable
of a loop is not in here: it is an input of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from nosync_nb.operators.base import Operator

VARIABLE, RESULT, LEAVE = "variable", "result", "leave"
"""Kinds of nodes beside those that operators are: a loop variable; its next value; the value after
the loop. They consolidate, so that pairs that cancel do not run around for ever."""


class LoopPort(NamedTuple):
    """Where an input of a node comes from: node `number`, or, if `outside`, the loop's input."""

    outside: bool
    number: int


@dataclass
class LoopNode:
    """A node inside a loop.

    Attributes:
        kind: how it is run.
        types: of its output.
        ports: its inputs.
        depth: the number of rounds that its updates carry.
        operator: the kernel, unless it is a variable or a leave.
        states: for each input the number of its own trace, or None; last that of its output, if
            it is evaluated by key.
    """

    kind: str
    types: tuple[str, ...]
    ports: tuple[LoopPort, ...]
    depth: int
    operator: Operator | None = None
    states: tuple[int | None, ...] = ()

    def read(self, port: LoopPort) -> None:
        """Has one more input."""
        self.ports = (*self.ports, port)


@dataclass
class LoopScope:
    """One loop: what it runs in a round, in order.

    Attributes:
        depth: 1 for the outermost.
        rounds: how often the body is applied at most, None: until nothing changes.
        items: nodes and inner loops, inputs before what reads them.
    """

    depth: int
    rounds: int | None
    items: list[int | LoopScope] = field(default_factory=list)

    def nodes(self) -> list[int]:
        """The nodes of this loop and of those inside it."""
        nodes: list[int] = []
        for item in self.items:
            nodes += item.nodes() if isinstance(item, LoopScope) else [item]
        return nodes


class LoopReader(NamedTuple):
    """Somebody who reads a node: input `port` of node `node`."""

    node: int
    port: int


def readers_of_nodes(
    nodes: list[LoopNode],
) -> tuple[list[list[LoopReader]], dict[int, list[LoopReader]]]:
    """Who reads each node, and who reads each input of the whole loop."""
    inside: list[list[LoopReader]] = [[] for _ in nodes]
    outside: dict[int, list[LoopReader]] = {}
    for number, node in enumerate(nodes):
        for place, port in enumerate(node.ports):
            if port.outside:
                outside.setdefault(port.number, []).append(LoopReader(number, place))
            else:
                inside[port.number].append(LoopReader(number, place))
    return inside, outside
