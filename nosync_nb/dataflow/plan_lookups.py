"""Lookups: which arrangements the parts of a plan have, and what a change of an input asks them.

An arrangement is a trace of the graph: the rows of a part in the order of a key, or what an
operator remembers. What is told of it is counted from its layers; no row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions.fingerprint import definition_fingerprint
from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage, inputs_and_stages
from nosync_nb.rows.types import row_bytes
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout

HASHES_BYTES = 16
"""What the hashes of a row take in memory."""


class PlannedArrangement(NamedTuple):
    """A trace of a part.

    Attributes:
        part: the `id` of the part in the plan whose rows it has, or that remembers it.
        key: the places of the columns by which it is in order; None: by whole rows.
        own: it is all that the operator remembers, not rows that others read.
        rows: how many it holds, before what cancels is added up.
        size_bytes: in files, or about so many in memory.
        readers: the stages that look into it, in the graph's order.
    """

    part: int
    key: tuple[int, ...] | None
    own: bool
    rows: int
    size_bytes: int
    readers: tuple[str, ...]


class PlanLookups:
    """The arrangements of one plan.

    Args:
        seen: what is visible.
        stage: whose plan it is; None: of an unnamed collection, which shares what is there.

    Cost: O(nodes).
    """

    def __init__(self, seen: Snapshot, plan: Definition, stage: Stage | None) -> None:
        self._seen = seen
        self._readers = _readers(seen.graph)
        self._nodes = _nodes(seen.graph, plan, stage)

    def of(self, part: Definition) -> list[PlannedArrangement]:
        """Those of a part: the orders of its rows that somebody reads, and what it remembers."""
        node = self._nodes.get(id(part))
        if node is None:
            return []
        given = [self._arrangement(part, node, each) for each in node.traces]
        state = node.operator.state if node.operator is not None else ()
        if state:
            traces = [self._seen.version.traces.get(number) for number in node.state]
            held = [_held(trace, layout) for trace, layout in zip(traces, state, strict=True)]
            rows, size = (sum(each) for each in zip(*held, strict=True))
            readers = (node.name or node.stage,)
            given.append(PlannedArrangement(id(part), None, True, rows, size, readers))
        return given

    def asked(self, part: Definition, port: int) -> list[PlannedArrangement]:
        """What a part looks up when an input of it changes: of the others, or of groups."""
        node = self._nodes.get(id(part))
        if node is None or node.operator is None:
            return []
        nodes, given = self._seen.graph.nodes, []
        if len(part.inputs) == len(node.inputs):  # else it is a loop, or a name of another stage
            ports = [*zip(part.inputs, node.inputs, node.operator.layouts, strict=True)]
            sizes = [self._rows(nodes[number], layout) for _, number, layout in ports]
            visited = node.operator.visited(port, sizes)
            for at in range(len(ports)) if visited is None else visited:
                below, number, layout = ports[at]
                if layout is None or (at == port and part.op == "join"):
                    continue
                if layout in nodes[number].traces:
                    given.append(self._arrangement(below, nodes[number], layout))
        return [*given, *(each for each in self.of(part) if each.own)]

    def _rows(self, node: Node, layout: Layout | None) -> int:
        """The rows of a trace of a node; 0 if it has none in that order."""
        number = None if layout is None else node.traces.get(layout)
        trace = None if number is None else self._seen.version.traces.get(number)
        return 0 if trace is None else trace.rows_count

    def _arrangement(self, part: Definition, node: Node, layout: Layout) -> PlannedArrangement:
        rows, size = _held(self._seen.version.traces.get(node.traces[layout]), layout)
        readers = tuple(self._readers.get((node.id, layout), ()))
        return PlannedArrangement(id(part), layout.key, False, rows, size, readers)


def _readers(graph: Graph) -> Mapping[tuple[int, Layout], Sequence[str]]:
    """By node and layout, the stages that look into a trace."""
    given: dict[tuple[int, Layout], dict[str, None]] = {}
    for node in graph:
        if node.operator is None:
            continue
        for number, layout in zip(node.inputs, node.operator.layouts, strict=True):
            if layout is not None:
                given.setdefault((number, layout), {})[node.stage] = None
    return {key: [*names] for key, names in given.items()}


def _nodes(graph: Graph, plan: Definition, stage: Stage | None) -> dict[int, Node]:
    """The nodes of the parts of a plan, by `id`; those of row-wise parts are one with others."""
    given = {id(part): graph.named[part.name] for part in plan.refs if part.name in graph.named}
    if len(given) < len(plan.refs):
        return given
    prints = plan.fingerprints({name: graph.named[name].fingerprint for name in plan.references})
    unnamed = {node.fingerprint: node for node in graph if node.name is None}
    for part, fingerprint in _own(plan, prints, stage):
        if fingerprint in unnamed:
            given.setdefault(id(part), unnamed[fingerprint])
    if stage is not None and stage.name in graph.named:
        given[id(plan)] = graph.named[stage.name]
    return given


def _own(
    plan: Definition, prints: Mapping[int, str], stage: Stage | None
) -> Iterator[tuple[Definition, str]]:
    """The parts with the fingerprints that their nodes have."""
    keeping = stage is not None and stage.options.nondeterministic
    for part in plan.walk():
        fingerprint = prints[id(part)]
        if keeping:
            fingerprint = definition_fingerprint({"kept": fingerprint})
        yield part, inputs_and_stages(fingerprint, 0 if stage is None else stage.apart)


def _held(trace: Trace | None, layout: Layout) -> tuple[int, int]:
    """The rows and bytes of a trace."""
    if trace is None:
        return 0, 0
    width = row_bytes(layout.types) + HASHES_BYTES
    sizes = (
        sum(ref.size_bytes for ref in layer.files) or layer.rows_count * width
        for layer in trace.layers
    )
    return trace.rows_count, int(sum(sizes))
