"""Lists the arrangements of the parts of a plan, and the lookups that an input's change causes.

An arrangement is a trace of the graph: the rows of a part in the order of a key, or the state of an
operator. Its rows and bytes are computed from the metadata of its layers; no row is read.

The module also reports the changes that planning has made, by comparing the definition with its
plan. Planning records nothing, so the report costs nothing until it is requested. A filter was
moved if it has fewer operators of some kind below it than in the definition. Pruned columns are
reported only if the plan has its operators in the same order as the definition.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.functions.fingerprint import definition_fingerprint
from nosync_nb.dataflow.cardinality import HASHES_BYTES
from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage, separated_fingerprint
from nosync_nb.dataflow.state_estimate import PartEstimate
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import Types, conjuncts
from nosync_nb.operators.base import UpdateCost
from nosync_nb.operators.registry import SPECS, build_operator, is_linear
from nosync_nb.operators.spec import LostColumnError, Places, all_columns
from nosync_nb.rows.types import row_bytes
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout


class PlannedArrangement(NamedTuple):
    """An arrangement of a part: a trace, or all traces of an operator's state.

    Attributes:
        part: the `id` of the part.
        key: the positions of the key columns; None if the trace is ordered by whole rows.
        own: True for the state of an operator; False for rows that other operators look up.
        rows: the number of rows, including rows that cancel but are not merged yet.
        size_bytes: the size in files, or the approximate size in memory.
        readers: the stages that look up the arrangement, in the order of the graph.
        estimated: True if the arrangement does not exist yet, so that its sizes are estimates.
    """

    part: int
    key: tuple[int, ...] | None
    own: bool
    rows: int
    size_bytes: int
    readers: tuple[str, ...]
    estimated: bool = False


class PlanLookups:
    """The arrangements of one plan.

    Args:
        seen: the current snapshot.
        stage: the stage of the plan; `None` means an unnamed collection, for which only existing
            nodes of other stages are listed.
        expected: the estimated rows of each part, by `id`, for a stage that does not exist yet;
            None if all arrangements exist.
        existing: the traces that exist, by number; required with `expected`.
        types: asks Spark for types of expressions that NoSync cannot infer.

    Cost: O(nodes).
    """

    def __init__(
        self,
        seen: Snapshot,
        plan: Definition,
        stage: Stage | None,
        expected: Mapping[int, PartEstimate] | None = None,
        existing: Container[int] = (),
        types: Types | None = None,
    ) -> None:
        self._seen, self._types = seen, types
        self._expected, self._existing = expected, existing
        self._readers = _readers(seen.graph)
        self._nodes = _nodes(seen.graph, plan, stage)

    def arrangements_of(self, part: Definition) -> list[PlannedArrangement]:
        """Returns the arrangements of a part: those that others look up, and its own state."""
        node = self._nodes.get(id(part))
        if node is None:
            return []
        arrangements = [self._arrangement(part, node, each) for each in node.traces]
        state = node.operator.state if node.operator is not None else ()
        if state and not self._exists(node.state[0]):
            arrangements.append(self._expected_state(part, node))
        elif state:
            traces = [self._seen.version.traces.get(number) for number in node.state]
            sizes = [
                _trace_size(trace, layout) for trace, layout in zip(traces, state, strict=True)
            ]
            rows, size = (sum(each) for each in zip(*sizes, strict=True))
            readers = (node.name or node.stage,)
            arrangements.append(PlannedArrangement(id(part), None, True, rows, size, readers))
        return arrangements

    def update_cost(self, part: Definition) -> UpdateCost:
        """Returns the rows to which the work of an operator's update is proportional.

        The graph of a reader has no operators, so that of the part is built, without running it.
        """
        if part.is_ref or is_linear(part):
            return UpdateCost.ROWS
        node = self._nodes.get(id(part))
        if node is not None and node.operator is not None:
            return node.operator.update_cost
        try:
            return build_operator(part, self._types).update_cost
        except NosyncError:  # a loop, which has no operator of its own
            return UpdateCost.EVERYTHING

    def _exists(self, number: int) -> bool:
        return self._expected is None or number in self._existing

    def _expected_state(self, part: Definition, node: Node) -> PlannedArrangement:
        """Returns the estimated state of an operator that has not run yet."""
        assert node.operator is not None
        assert self._expected is not None
        below = [self._expected[id(each)].different for each in part.inputs]
        counts = node.operator.state_rows(below, self._expected[id(part)].different)
        size = sum(
            count * (row_bytes(layout.types) + HASHES_BYTES)
            for count, layout in zip(counts, node.operator.state, strict=True)
        )
        readers = (node.name or node.stage,)
        rows = round(sum(counts))
        return PlannedArrangement(id(part), None, True, rows, round(size), readers, True)

    def lookups_of_change(self, part: Definition, port: int) -> list[PlannedArrangement]:
        """Returns the arrangements that an operator looks up when one of its inputs changes.

        Args:
            port: the position of the changed input.
        """
        node = self._nodes.get(id(part))
        if node is None or node.operator is None:
            return []
        nodes, arrangements = self._seen.graph.nodes, []
        if len(part.inputs) == len(node.inputs):  # not for a loop, or another name of a stage
            ports = [*zip(part.inputs, node.inputs, node.operator.layouts, strict=True)]
            sizes = [self._rows(nodes[number], layout) for _, number, layout in ports]
            visited = node.operator.visited(port, sizes)
            for at in range(len(ports)) if visited is None else visited:
                below, number, layout = ports[at]
                if layout is None or (at == port and part.op in ("join", "range_join")):
                    continue
                if layout in nodes[number].traces:
                    arrangements.append(self._arrangement(below, nodes[number], layout))
        return [*arrangements, *(each for each in self.arrangements_of(part) if each.own)]

    def _rows(self, node: Node, layout: Layout | None) -> int:
        """Returns the number of rows of a trace of a node; 0 if the node has no such trace."""
        number = None if layout is None else node.traces.get(layout)
        trace = None if number is None else self._seen.version.traces.get(number)
        return 0 if trace is None else trace.rows_count

    def _arrangement(self, part: Definition, node: Node, layout: Layout) -> PlannedArrangement:
        number = node.traces[layout]
        readers = tuple(self._readers.get((node.id, layout), ()))
        if not self._exists(number) and self._expected is not None:
            count = self._expected[id(part)].different
            size = round(count * (row_bytes(layout.types) + HASHES_BYTES))
            return PlannedArrangement(
                id(part), layout.key, False, round(count), size, readers, True
            )
        rows, size = _trace_size(self._seen.version.traces.get(number), layout)
        return PlannedArrangement(id(part), layout.key, False, rows, size, readers)


def _readers(graph: Graph) -> Mapping[tuple[int, Layout], Sequence[str]]:
    """Returns the stages that look up each trace, by node and layout."""
    readers: dict[tuple[int, Layout], dict[str, None]] = {}
    for node in graph:
        if node.operator is None:
            continue
        for number, layout in zip(node.inputs, node.operator.layouts, strict=True):
            if layout is not None:
                readers.setdefault((number, layout), {})[node.stage] = None
    return {key: [*names] for key, names in readers.items()}


def _nodes(graph: Graph, plan: Definition, stage: Stage | None) -> dict[int, Node]:
    """Returns the nodes of the parts of a plan, by `id` of the part; fused parts have no node."""
    nodes = {id(part): graph.named[part.name] for part in plan.refs if part.name in graph.named}
    if len(nodes) < len(plan.refs):
        return nodes
    prints = plan.fingerprints({name: graph.named[name].fingerprint for name in plan.references})
    unnamed = {node.fingerprint: node for node in graph if node.name is None}
    for part, fingerprint in _part_fingerprints(plan, prints, stage):
        if fingerprint in unnamed:
            nodes.setdefault(id(part), unnamed[fingerprint])
    if stage is not None and stage.name in graph.named:
        nodes[id(plan)] = graph.named[stage.name]
    return nodes


def _part_fingerprints(
    plan: Definition, prints: Mapping[int, str], stage: Stage | None
) -> Iterator[tuple[Definition, str]]:
    """Yields the parts with the fingerprints of their nodes."""
    keeping = stage is not None and stage.options.nondeterministic
    for part in plan.walk():
        fingerprint = prints[id(part)]
        if keeping:
            fingerprint = definition_fingerprint({"kept": fingerprint})
        yield part, separated_fingerprint(fingerprint, 0 if stage is None else stage.apart)


def _trace_size(trace: Trace | None, layout: Layout) -> tuple[int, int]:
    """Returns the rows and bytes of a trace."""
    if trace is None:
        return 0, 0
    width = row_bytes(layout.types) + HASHES_BYTES
    sizes = (
        sum(ref.size_bytes for ref in layer.files) or layer.rows_count * width
        for layer in trace.layers
    )
    return trace.rows_count, int(sum(sizes))


Heights = Mapping[str, int]
"""The maximum number of operators of each kind on a path below a part, by kind."""


def plan_moves(written: Definition, plan: Definition) -> dict[int, list[str]]:
    """Returns the kinds of operators below which filters were moved, by `id` of the filter.

    The `id` is that of the filter in the plan.

    Cost: O(size).
    """
    if written is plan:
        return {}
    heights_by_text: dict[str, Heights] = {}
    for text, heights in _conjuncts_with_heights(written):
        heights_by_text.setdefault(text, heights)
    moves: dict[int, list[str]] = {}
    for part, heights in _filters_with_heights(plan):
        for text in conjuncts(part.params["predicate"]):
            heights_before = heights_by_text.get(text, {})
            below = [op for op, count in heights_before.items() if heights.get(op, 0) < count]
            if below:
                moves[id(part)] = sorted({*below, *moves.get(id(part), [])})
    return moves


def pruned_columns(written: Definition, plan: Definition) -> dict[int, list[str]]:
    """Returns the columns that the plan omits, by `id` of the part in the plan.

    Cost: O(size).
    """
    if written is plan:
        return {}
    old_parts, new_parts = _non_linear_parts(written), _non_linear_parts(plan)
    if [part.op for part in old_parts] != [part.op for part in new_parts]:
        return {}
    pruned = {}
    for old, new in zip(old_parts, new_parts, strict=True):
        omitted = [name for name in old.schema.names if name not in new.schema.names]
        if omitted:
            pruned[id(new)] = omitted
    return pruned


def columns_read(plan: Definition, types: Types | None) -> dict[int, Places]:
    """Returns the columns of each part that the parts above it read, by `id`.

    Cost: O(size).
    """
    read: dict[int, set[int]] = {}
    for part in plan.walk():
        spec, every = SPECS.get(part.op), frozenset(range(len(part.schema)))
        try:
            reads = (spec.reads if spec else all_columns)(part, every, types)
        except (NosyncError, LostColumnError):
            reads = all_columns(part, every, types)
        for each, positions in zip(part.inputs, reads, strict=True):
            read.setdefault(id(each), set()).update(positions)
    return {key: frozenset(positions) for key, positions in read.items()}


def _non_linear_parts(tree: Definition) -> Sequence[Definition]:
    """Returns the parts that are not row-wise."""
    return [part for part in tree.walk() if not is_linear(part)]


def _conjuncts_with_heights(tree: Definition) -> Iterable[tuple[str, Heights]]:
    """Yields each conjunct of the filters of a definition, with the heights of its filter."""
    for part, heights in _filters_with_heights(tree):
        for text in conjuncts(part.params["predicate"]):
            yield text, heights


def _filters_with_heights(tree: Definition) -> Iterable[tuple[Definition, Heights]]:
    heights_by_id: dict[int, Heights] = {}
    for part in tree.walk():
        below = [heights_by_id[id(each)] for each in part.inputs]
        heights = below[0] if len(below) == 1 else _max_heights(below)
        if part.op == "joins":
            joins = len({*part.params["inputs"]}) - 1
            heights = {**heights, "join": heights.get("join", 0) + joins}
        elif not is_linear(part) and not part.is_ref:
            heights = {**heights, part.op: heights.get(part.op, 0) + 1}
        heights_by_id[id(part)] = heights
        if part.op == "filter" and not part.functions:
            yield part, heights


def _max_heights(each: Sequence[Heights]) -> Heights:
    words = {word for heights in each for word in heights}
    return {word: max(heights.get(word, 0) for heights in each) for word in words}
