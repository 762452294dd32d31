"""Runs the changes of one epoch through a graph, and returns the draft of the next version.

A draft is built over a version. The operators run in the order of the graph. Each one receives the
changes of its inputs, and is skipped if no input has changed. It looks up rows in traces, and its
output is passed to its readers. A runner never changes a version: the caller publishes a draft with
one assignment, or drops it on failure.

`InputArrangements` records the traces that each operator looks up, and the order in which it needs
changes. A record is computed once for each node, and taken over from the previous graph if the node
is unchanged. It is computed again if an input of the node has other traces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.delta import (
    SMALL_ROWS,
    ArrangedChange,
    ArrangedDifference,
    Delta,
    file_bytes,
    layer_of,
)
from nosync_nb.dataflow.runtime.epoch_result import ENDLESS, EpochResult, StageWork, VersionState
from nosync_nb.dataflow.runtime.executor import (
    BulkExecutor,
    OperatorResult,
    PlacementDecision,
    RunFromScratch,
    SpillTarget,
    run_in_process,
    run_lookup_stages,
)
from nosync_nb.dataflow.runtime.large_epoch import LargeEpoch
from nosync_nb.dataflow.runtime.replacement import Replacement
from nosync_nb.operators import Evaluate, Linear, Operator, Step
from nosync_nb.operators.base import joined_placement
from nosync_nb.rows.count_arithmetic import CountError, named_count_error
from nosync_nb.trace import Layer, Trace, empty_batch
from nosync_nb.trace.batch import NO_HASHES, UNORDERED, Batch, Layout
from nosync_nb.trace.parts.part_file import frame_rows


class InputArrangements:
    """The traces of a graph and the operators that look them up. Immutable after construction.

    Cost: O(nodes). If the graph extends the previous one, in proportion to the new nodes, and 20 ns
    for each other node.

    Args:
        before: the arrangements of the previous graph, whose records are reused for unchanged
            nodes; `None` means that all are built from scratch.

    Attributes:
        empty: for the number of each trace, an empty trace.
        looks: for each node, the number of the trace of each input that its operator looks up; None
            for an input without a lookup.
        nothing: for a node whose operator looks up no trace, one None for each input; for other
            nodes, an empty sequence.
        sorted: for each node, the order in which a reader needs its change in every epoch.
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
        """For each node, the inputs that no later node reads.

        Cost: O(nodes), once.
        """
        reader = {i: node.id for node in self.graph for i in node.inputs}
        last: dict[int, list[int]] = {}
        for number, by in reader.items():
            last.setdefault(by, []).append(number)
        return last

    def _take_over(self, before: InputArrangements) -> list[Node]:
        """Takes over the records of unchanged nodes; returns the nodes that need new records."""
        change = self.graph.since(before.graph)
        if change.is_all_new:
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
        """Records the traces that an operator looks up, and the orders of the changes it needs."""
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


class Runner:
    """Runs epochs and first runs over one graph.

    Cost: O(nodes). If the graph extends the previous one, in proportion to the new nodes, and 10 ns
    for each other node.

    Args:
        evaluate: evaluates in Spark the expressions that NoSync cannot evaluate.
        bulk: chooses the place of each run, and runs operators on executors; `None` means that all
            run in this process.
        spill: moves large results to files during a run; `None` means that they stay in memory.
        before: the runner of the previous graph, from which records of unchanged nodes are taken.
    """

    def __init__(
        self,
        graph: Graph,
        evaluate: Evaluate | None = None,
        bulk: BulkExecutor | None = None,
        *,
        spill: SpillTarget | None = None,
        before: Runner | None = None,
    ) -> None:
        self.graph = graph
        self.evaluate = evaluate
        self.bulk = bulk
        self.spill = spill
        self.ports: InputArrangements = InputArrangements(
            graph, None if before is None else before.ports
        )
        self.empty: Mapping[int, Trace] = self.ports.empty

    def epoch(self, version: VersionState, inputs: Mapping[int, Delta], epoch: int) -> EpochResult:
        """Runs the changes of inputs through all stages, and returns the draft of an epoch.

        Args:
            inputs: the changes of inputs, by number of the node.

        Cost: in proportion to the changes and the rows that they touch, independent of the size of
        the state.
        """
        draft = EpochResult(version, epoch, largest=0)
        before = version.traces
        changed = draft.deltas
        nodes = iter(self.graph.nodes.values())
        for node in nodes:
            if node.frozen:
                continue
            if node.operator is None:
                if node.id in inputs:
                    change = inputs[node.id]
                    if len(change) > SMALL_ROWS:
                        change = Replacement(self, before, epoch).of_input(node, change)
                    self.publish(node, change, draft)
                    if draft.largest > SMALL_ROWS:
                        return LargeEpoch(self, version, draft, [*nodes]).run(inputs)
            elif not changed.keys().isdisjoint(node.inputs):
                deltas = [*map(changed.get, node.inputs)]
                try:
                    self._run(node, deltas, before, draft, first=False)
                except CountError as error:
                    raise named_count_error(error, node.stage, node.operator.name) from None
                if draft.largest > SMALL_ROWS:
                    return LargeEpoch(self, version, draft, [*nodes]).run(inputs)
        return draft

    def follow(
        self, node: Node, deltas: list[Delta | None], version: VersionState, draft: EpochResult
    ) -> None:
        """Runs a node over the changes of its inputs, and publishes its change."""
        assert node.operator is not None
        try:
            self._run(node, deltas, version.traces, draft, first=False)
        except CountError as error:
            raise named_count_error(error, node.stage, node.operator.name) from None

    def run_from_scratch(
        self,
        node: Node,
        contents: list[Delta | None],
        traces: Sequence[Trace | None],
        draft: EpochResult,
        *,
        emit: bool,
        why: str,
    ) -> Delta | None:
        """Runs a node over the contents of its inputs, and returns those of its output.

        Args:
            traces: the contents as traces, for inputs that the operator looks up.
            emit: True to replace the state of the node.
            why: the reason, for people.
        """
        start, operator = time.perf_counter(), node.operator
        assert operator is not None
        result = OperatorResult(None, [], 0, "in process")
        if operator.global_row or any(each is not None for each in contents):
            before = [None if each is None else Trace(each.layout) for each in traces]
            state = [self.empty[number] for number in node.state]
            step = Step(
                (), before, traces, state, stage=node.stage, first=True, evaluate=self.evaluate
            )
            try:
                result = run_in_process(node, contents, step)
            except CountError as error:
                raise named_count_error(error, node.stage, operator.name) from None
        if emit and node.state:
            draft.clear(node.state)
            for number, arranged in zip(node.state, result.emitted, strict=False):
                if arranged is not None:
                    self._emit(number, arranged, draft)
        seconds = time.perf_counter() - start
        decision = RunFromScratch(why, ENDLESS)
        self._add_work(node, result, decision, 0, seconds, draft, from_scratch=1)
        return result.delta

    def difference(
        self, number: int, added: Batch, removed: ArrangedChange, epoch: int
    ) -> ArrangedDifference | None:
        """Returns a change as parts in files; None if the log or the trace is not written.

        Args:
            number: the log or the trace.
            added, removed: see `SpillTarget.difference`.
        """
        if self.spill is None or number in self.graph.unwritten:
            return None
        return self.spill.difference(number, added, removed, epoch)

    def release(
        self, draft: EpochResult, numbers: Iterable[int], read: Sequence[Delta | None]
    ) -> None:
        """Drops the changes of those of some nodes that have no name, and pages of files.

        Args:
            read: the changes that were read; the pages of their files are released.
        """
        if self.spill is not None:
            self.spill.release_pages(file_bytes(read))
        for number in numbers:
            if self.graph.nodes[number].name is None:
                draft.deltas.pop(number, None)

    def first_run(
        self,
        version: VersionState,
        old: Graph,
        *,
        step: Callable[[], None] | None = None,
    ) -> EpochResult:
        """Runs the nodes that are not in `old` over the full contents of their inputs.

        The epoch does not advance. New traces of a node in `old` are built from its contents. A new
        node with a log of `old` retains its rows, and only its state is built.

        Args:
            step: called before each node; it may end the run with an exception.
        """
        new = self.graph.nodes.keys() - old.nodes.keys()
        nodes, draft = old.nodes, EpochResult(version, version.epoch)
        contents: dict[int, Delta] = {}
        for node in self.graph.since(old).fresh:
            before = nodes.get(node.id) if node.id not in new else _node_of_log(node, old)
            if before is not None:
                self._rearrange(node, before, draft)
            if node.id not in new or node.operator is None or node.frozen:
                continue
            if step is not None:
                step()
            deltas = [self._full_contents(i, draft, contents, new, nodes) for i in node.inputs]
            first = node.operator.global_row
            if first or any(d is not None for d in deltas):
                try:
                    self._run(node, deltas, {}, draft, first=True, published=before is not None)
                except CountError as error:
                    raise named_count_error(error, node.stage, node.operator.name) from None
            self._log_memo_begin(node, draft)
            self._release_changes(node, draft, deltas)
            for number in self.ports.last.get(node.id, ()):
                contents.pop(number, None)
        return draft

    def _log_memo_begin(self, node: Node, draft: EpochResult) -> None:
        """Logs that traces of memoised results begin at this epoch, if they have no rows yet.

        Failure: 1. A stage memoises nothing before some epoch, because it filters all rows out. 2.
        The session is rewound to an earlier one. 3. Its state has no layer of that epoch, as if the
        results were lost. Therefore such a trace has a layer of the epoch at which it was created.
        """

        def without_layers(numbers: Iterable[int]) -> list[int]:
            return [n for n in numbers if not draft.traces.get(n, self.empty[n]).layers]

        state = without_layers(node.state)
        output = without_layers(() if node.name is not None else node.traces.values())
        if not (state or output) or not self.graph.memoised(node):
            return
        for number in (*state, *output):
            trace = self.empty[number]
            layer = Layer(draft.epoch, draft.epoch + 1, (empty_batch(trace.layout),))
            draft.append(number, trace, layer)
        logs = [(number, self.empty[number].layout) for number in state]
        if output and node.log is not None:
            logs.append((node.log, node.log_layout))
        for number, layout in logs:
            draft.logged.append((number, layout, ArrangedChange((empty_batch(layout),))))

    def _release_changes(
        self, node: Node, draft: EpochResult, read: Sequence[Delta | None]
    ) -> None:
        """Drops the changes of unnamed nodes that no later node reads.

        Those of named nodes are retained, because the caller publishes them.

        Args:
            read: the changes that the node has read; the pages of their files are released.
        """
        self.release(draft, self.ports.last.get(node.id, ()), read)

    def _node_contents(self, old: Node, draft: EpochResult) -> Delta:
        """Returns the contents of a node in the layout of one old trace, and of its new traces."""
        delta = contents_update(old, draft.traces)
        for layout, number in self.graph.nodes[old.id].traces.items():
            trace = draft.traces.get(number)
            if layout not in delta.held and trace is not None and len(trace.layers) == 1:
                delta.held[layout] = ArrangedChange(trace.layers[0].parts, trace.layers[0].files)
        return delta

    def _full_contents(
        self,
        node_id: int,
        draft: EpochResult,
        contents: dict[int, Delta],
        new: AbstractSet[int],
        before: Mapping[int, Node],
    ) -> Delta | None:
        """Returns the contents of a node as a change from an empty collection; None if empty.

        Args:
            contents: a cache of the contents of old nodes, by number.
            new: the numbers of the nodes that are not in the old graph.
            before: the nodes of the old graph.
        """
        if node_id in new:
            return draft.deltas.get(node_id)
        if node_id not in contents:
            contents[node_id] = self._node_contents(before[node_id], draft)
        delta = contents[node_id]
        return delta if len(delta) else None

    def _rearrange(self, node: Node, old: Node, draft: EpochResult) -> None:
        """Builds those traces of a node that the node of the old graph does not have."""
        missing = [each for each in node.traces.items() if each[1] not in old.traces.values()]
        delta = contents_update(old, draft.traces) if missing else None
        if delta:
            for layout, number in missing:
                layer = self._layer(delta, layout, number, draft.epoch)
                draft.traces[number] = self.empty[number].appended(layer)

    def _run(
        self,
        node: Node,
        deltas: list[Delta | None],
        before: Mapping[int, Trace],
        draft: EpochResult,
        *,
        first: bool,
        published: bool = False,
    ) -> None:
        """Runs one operator, extends its own traces and publishes its output.

        Args:
            before: the traces before the epoch; empty in a first run.
            first: True in a first run.
            published: True if the log and the traces of the node have its output already.
        """
        start, operator = time.perf_counter(), node.operator
        assert operator is not None
        step = self._step(node, operator, before, draft, first=first)
        bulk = self.bulk
        decision = None if bulk is None else bulk.choose(node, deltas)
        on_executors = decision is not None and decision.on_executors
        if bulk is not None and on_executors:
            stages = operator.lookup_stages(deltas, step)
            fuse = node.log is None and (_is_row_wise(node) or self._has_one_reader(node))
            if stages is not None:
                result = run_lookup_stages(bulk, node, deltas, stages, step, fuse=fuse)
            else:
                result = bulk.run(node, deltas, step, self.graph, fuse=fuse)
        else:
            if bulk is not None and not operator.spreads:
                step.run_at(bulk.inside(node, deltas, step))
            if operator.memo is not None and not first:
                step.remember(step.state[0].take_memo() or operator.memo())
            result = run_in_process(node, deltas, step)
        if on_executors or (decision is not None and decision.rows):
            result = result.with_late(deltas)
        if step.replaces:
            change, _ = Replacement(self, before, draft.epoch).of_contents(node, result.delta)
            result = result._replace(delta=change)
        if step.cleared:
            draft.clear(node.state)
        if node.state:
            for number, arranged in zip(node.state, result.emitted, strict=True):
                if arranged is not None:
                    self._emit(number, arranged, draft)
        if step.memo is not None and node.state[0] in draft.traces:
            draft.traces[node.state[0]].leave_memo(step.memo)
        rows_out = 0
        if published and result.delta:
            draft.deltas[node.id] = result.delta
        elif result.delta:
            rows_out = self.publish(node, result.delta, draft)
        seconds = time.perf_counter() - start
        if bulk is not None and not on_executors and decision is not None and decision.rows:
            bulk.measured(node, decision.rows, seconds)
        self._add_work(node, result, decision, rows_out, seconds, draft)

    def _step(
        self,
        node: Node,
        operator: Operator,
        before: Mapping[int, Trace],
        draft: EpochResult,
        *,
        first: bool,
    ) -> Step:
        """Returns the input of a kernel for an epoch, without the changes; see `_run`."""
        empty = self.empty
        old: Sequence[Trace | None]
        now: Sequence[Trace | None]
        old = now = self.ports.nothing[node.id]
        if not old:
            ports = self.ports.looks[node.id]
            old = [None if p is None else before.get(p) or empty[p] for p in ports]
            now = [None if p is None else draft.traces.get(p) or empty[p] for p in ports]
        state: Sequence[Trace] = ()
        if node.state:
            state = [before.get(s) or empty[s] for s in node.state]
        whole = before.get(next(iter(node.traces.values()))) if operator.whole else None
        return Step(
            (), old, now, state,
            stage=node.stage, first=first, evaluate=self.evaluate, held=whole,
        )  # fmt: skip

    def _emit(self, number: int, arranged: ArrangedChange, draft: EpochResult) -> None:
        """Logs a change of a trace of an operator's state, and extends the trace."""
        layout = self.empty[number].layout
        batch = arranged.parts[0]
        if batch.layout is UNORDERED:
            draft.logged.append((number, layout, arranged))
            draft.extend(number, self.empty[number], batch.updates)
            return
        arranged = self._spilled(number, arranged, draft.epoch)
        draft.logged.append((number, layout, arranged))
        draft.append(number, self.empty[number], layer_of(arranged, layout, draft.epoch))

    def _has_one_reader(self, node: Node) -> bool:
        """Returns True if a node's output, after row-wise operators, has one reader in its stage.

        Cost: O(nodes) for each row-wise operator in between; called only for runs on executors.
        """
        current = node
        while True:
            readers = [each for each in self.graph.nodes.values() if current.id in each.inputs]
            if len(readers) != 1:
                return False
            (reader,) = readers
            if reader.inputs.count(current.id) != 1 or reader.stage != node.stage:
                return False
            if reader.log is not None or not _is_row_wise(reader):
                return True
            current = reader

    def _add_work(
        self,
        node: Node,
        result: OperatorResult,
        decision: PlacementDecision | None,
        rows_out: int,
        seconds: float,
        draft: EpochResult,
        from_scratch: int = 0,
    ) -> None:
        """Adds an operator's work to the work of its stage."""
        _, _, touched, placement = result
        why, weighed = ("", 0) if decision is None else (decision.why, decision.rows)
        rows_out, stage = rows_out if node.name else 0, node.stage
        if stage in draft.work:
            rows_before, more_touched, more_seconds, stage_placement, reason, most_weighed, more = (
                draft.work[stage]
            )
            from_scratch += more
            touched, seconds = touched + more_touched, seconds + more_seconds
            if stage_placement != placement:
                placement = joined_placement(stage_placement, placement)
            if not node.name:
                rows_out = rows_before
            if most_weighed > weighed:
                why, weighed = reason, most_weighed
        draft.work[stage] = StageWork(
            rows_out, touched, seconds, placement, why, weighed, from_scratch
        )

    def publish(self, node: Node, delta: Delta, draft: EpochResult) -> int:
        """Publishes a change as the output of a node: logs it, and extends the node's traces.

        Returns:
            the number of updates; 0 if they cancel.
        """
        if node.log is None:
            draft.deltas[node.id] = delta
            return len(delta)
        arranged = _arranged_in_files(node, delta) if delta.held else None
        if arranged is None:
            batch = self._consolidated(node, delta)
            if not len(batch.diff):
                return 0
            arranged = ArrangedChange((batch,))
            if batch.layout is not UNORDERED:
                arranged = self._spilled(node.log, arranged, draft.epoch)
            if arranged.refs:
                delta.held[batch.layout] = (
                    arranged  # replaces the rows in memory, so that they can be freed
                )
                delta = Delta(delta.types, None, {batch.layout: arranged})
            elif batch.layout is not UNORDERED:
                delta = Delta(delta.types, batch.updates, delta.held)
        draft.deltas[node.id] = delta
        draft.logged.append((node.log, node.log_layout, arranged))
        for layout, number in node.traces.items():
            if delta.held:
                layer = self._layer(delta, layout, number, draft.epoch)
                draft.append(number, self.empty[number], layer)
            else:
                draft.extend(number, self.empty[number], delta.updates)
        return sum(map(len, arranged.parts))

    def _layer(self, delta: Delta, layout: Layout, number: int, epoch: int) -> Layer:
        """Returns a change as a layer of a trace, which is in files if it is large."""
        layer = delta.layer(layout, epoch)
        arranged = delta.held.get(layout)
        if arranged is None or arranged.refs:
            return layer
        spilled = self._spilled(number, arranged, epoch)
        if not spilled.refs:
            return layer
        delta.held[layout] = spilled
        return layer_of(spilled, layout, epoch)

    def _spilled(self, number: int, arranged: ArrangedChange, epoch: int) -> ArrangedChange:
        """Returns a change of a log or a trace, moved to files if it is large and is written."""
        if self.spill is None or arranged.refs or number in self.graph.unwritten:
            return arranged
        return self.spill.spilled(number, arranged, epoch)

    def _consolidated(self, node: Node, delta: Delta) -> Batch:
        """Returns a change, consolidated for the log; a small one in the cheapest order."""
        # The order of a trace is used if possible, because the trace needs that order anyway. The
        # order of the log is built when history is packed or read.
        layout = node.log_layout
        if layout not in node.traces:
            layout = next(iter(node.traces))
        operator, sorted_layout = node.operator, self.ports.sorted.get(node.id)
        if sorted_layout is not None and len(delta) <= SMALL_ROWS:
            return delta.batch(sorted_layout)
        distinct = operator is not None and operator.distinct
        if distinct and not delta.held and len(delta) <= SMALL_ROWS:
            columns, diff = delta.updates
            return Batch(UNORDERED, columns, NO_HASHES, NO_HASHES, diff)
        few = delta.consolidated_if_few()
        return delta.with_hashes(layout) if few is None else few


def _is_row_wise(node: Node) -> bool:
    """Returns True if a node processes each row independently, and has no state."""
    return isinstance(node.operator, Linear)


def _arranged_in_files(node: Node, delta: Delta) -> ArrangedChange | None:
    """Returns the change sorted by a layout of its node, if its rows are in files; else None."""
    for layout in (node.log_layout, *node.traces):
        arranged = delta.held.get(layout)
        if arranged is not None and arranged.refs:
            return arranged
    return None


def _node_of_log(node: Node, old: Graph) -> Node | None:
    """Returns the node of a graph that has the name and the log of a node, or None."""
    candidate = old.named.get(node.name) if node.name is not None else None
    return candidate if candidate is not None and candidate.log == node.log else None


def contents_update(node: Node, traces: Mapping[int, Trace]) -> Delta:
    """Returns the contents of a node as one change, in files if its trace is a layer in files."""
    for layout, number in node.traces.items():
        trace = traces.get(number)
        if trace is not None:
            return whole_trace(node.types, layout, trace)
    return Delta(node.types, Trace(node.log_layout).updates())


def whole_trace(types: tuple[str, ...], layout: Layout, trace: Trace) -> Delta:
    """Returns all rows of a trace as one change, in files if the trace has one layer in files."""
    layers = [layer for layer in trace.layers if layer.rows_count]
    if len(layers) == 1 and layers[0].files:
        return Delta(types, None, {layout: ArrangedChange(layers[0].parts, layers[0].files)})
    batch = trace.consolidated()
    frames = sum(frame_rows(layer.files) for layer in layers)
    return Delta(types, batch.updates, {layout: ArrangedChange((batch,))}, from_frame=frames)
