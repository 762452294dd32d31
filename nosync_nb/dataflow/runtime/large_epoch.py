"""Runs the rest of a large epoch: each part follows the changes, or runs from scratch.

If an epoch changes nearly all rows of the inputs of a stage, the changes are larger than the
contents: each row is removed and another one is inserted, and a join looks up the changes of each
input in the others. It is then cheaper to run the operators over the new contents of the inputs.
The output is the difference from the previous rows of the stage, which its trace contains. The
state of the operators is emptied and filled again.

The unit of the choice is a *segment*: a node with a log, and the nodes without a log below it, of
which no rows are stored. The nodes without a log run when the first segment with them runs. Their
state is changed once, even if one segment follows changes and another one runs from scratch.

A run from scratch returns the same rows, because the output of an operator is a function of the
contents of its inputs. It writes the same kinds of records: a change of the rows, and of the state
after a record that empties it. So past epochs and recovery do not depend on the choice.

Loops are not part of it, because they choose by themselves. Neither are cross joins, whose output
is limited in each epoch, memoised results, which cannot be computed again, and runs on executors.

Failure: 1. Two segments share a node with state, and one of them cannot run from scratch. 2. The
other one runs from scratch, and empties the state of the node. 3. The first one follows the change
with the emptied state. Therefore such segments are only run together from scratch, or not at all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.delta import Delta
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, VersionState
from nosync_nb.dataflow.runtime.executor import BulkExecutor
from nosync_nb.dataflow.runtime.replacement import DifferenceWriter, Replacement, as_delta
from nosync_nb.dataflow.runtime.rerun_cost import SegmentCost, row_estimate
from nosync_nb.errors import NosyncError
from nosync_nb.operators.base import UpdateCost
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout

LEAST_SHARE = 0.02
"""A segment is not considered for a run from scratch if each input changes less than this share."""

FEW_ROWS = 256
"""With at most this number of changed rows a segment follows them, because both ways are cheap."""


class NodeRunner(DifferenceWriter, Protocol):
    """Runs single nodes; see `nosync_nb.dataflow.runtime.runner`."""

    graph: Graph
    bulk: BulkExecutor | None

    def follow(
        self, node: Node, deltas: list[Delta | None], version: VersionState, draft: EpochResult
    ) -> None:
        """Runs a node over the changes of its inputs, and publishes its change."""

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
        """Runs a node over the contents of its inputs, and returns the contents of its output.

        Args:
            traces: the contents as traces, for inputs that the operator looks up.
            emit: True if the state of the node is replaced.
            why: the reason, for people.
        """

    def publish(self, node: Node, delta: Delta, draft: EpochResult) -> int:
        """Publishes the change of a node; returns the number of updates."""

    def release(
        self, draft: EpochResult, numbers: Iterable[int], read: Sequence[Delta | None]
    ) -> None:
        """Drops the changes of those of some nodes that have no name, and pages of files.

        Args:
            read: the changes that were read; the pages of their files are released.
        """


class GraphSegment(NamedTuple):
    """A node with a log, and the nodes without a log below it.

    Attributes:
        nodes: the nodes, inputs first; the last one has the log.
        leaves: the nodes with a log that they read.
    """

    nodes: Sequence[Node]
    leaves: Sequence[int]

    @property
    def last(self) -> Node:
        """The node with the log."""
        return self.nodes[-1]


class LargeEpoch:
    """The rest of an epoch, from the first node that has not run.

    Args:
        version: the version before the epoch.
        draft: the draft of the epoch, with the changes of the nodes that have run.
        ahead: the nodes that have not run, in the order of the graph.
    """

    def __init__(
        self,
        runner: NodeRunner,
        version: VersionState,
        draft: EpochResult,
        ahead: Sequence[Node],
    ) -> None:
        self._runner = runner
        self._version = version
        self._draft = draft
        self._replacement = Replacement(runner, version.traces, draft.epoch)
        self._ahead = ahead
        self._waiting = {n.id for n in ahead if n.log is None}  # nodes that have not followed
        self._contents: dict[int, Delta | None] = {}
        self._kept: dict[int, list[Trace]] = {}  # traces that know the contents
        self._replaced: set[int] = set()  # nodes whose state was emptied and filled again
        self._segments = {
            node.id: self._segment(node)
            for node in ahead
            if node.log is not None and node.operator is not None and not node.frozen
        }
        self._followed_only = self._segments_to_follow()
        self._unfinished = Counter(n.id for s in self._segments.values() for n in s.nodes)
        self._readers = Counter(
            i for number in self._unfinished for i in runner.graph.nodes[number].inputs
        )

    def run(self, inputs: Mapping[int, Delta]) -> EpochResult:
        """Runs the nodes, and returns the draft.

        Args:
            inputs: the changes of inputs, by number of the node.
        """
        for node in self._ahead:
            if node.operator is None and node.id in inputs and not node.frozen:
                change = self._replacement.of_input(node, inputs[node.id])
                self._runner.publish(node, change, self._draft)
            elif (segment := self._segments.get(node.id)) is not None:
                why = self.why_from_scratch(segment)
                if why is None:
                    self._follow(segment)
                else:
                    self._run_from_scratch(segment, why)
                self._finish(segment)
        return self._draft

    def _segment(self, last: Node) -> GraphSegment:
        nodes: dict[int, Node] = {}
        leaves: dict[int, None] = {}
        graph = self._runner.graph
        ahead = [(last, iter(last.inputs))]  # a stack, because chains of nodes may be long
        while ahead:
            node, below = ahead[-1]
            for number in below:
                each = graph.nodes[number]
                if each.log is not None or each.operator is None:
                    leaves[number] = None
                elif number not in nodes:
                    ahead.append((each, iter(each.inputs)))
                    break
            else:
                nodes[node.id] = node
                ahead.pop()
        return GraphSegment([*nodes.values()], [*leaves])

    def _segments_to_follow(self) -> set[int]:
        """Returns the segments, by number of the last node, that cannot run from scratch."""
        followed = {
            number
            for number, segment in self._segments.items()
            if any(not _can_run_again(node) for node in segment.nodes)
        }
        while True:
            shared = {
                node.id for i in followed for node in self._segments[i].nodes[:-1] if node.state
            }
            more = {
                number
                for number, segment in self._segments.items()
                if number not in followed and any(n.id in shared for n in segment.nodes)
            }
            if not more:
                return followed
            followed |= more

    # -- the choice --------------------------------------------------------------------------------

    def why_from_scratch(self, segment: GraphSegment) -> str | None:
        """Returns the reason to run a segment from scratch; None to follow the changes."""
        if segment.last.id in self._followed_only:
            return None
        deltas = {i: self._draft.deltas[i] for i in segment.leaves if i in self._draft.deltas}
        changed = sum(map(len, deltas.values()))
        if any(node.id in self._replaced for node in segment.nodes):
            return f"run from scratch: shares state with another stage, {changed:,} rows changed"
        if changed <= FEW_ROWS:
            return None
        cost = SegmentCost()
        for number in segment.leaves:
            trace = self._stored(self._version.traces, number)
            stored = self._stored(self._draft.traces, number)
            merged = len(stored.layers) > 1 and number not in self._contents
            cost.add_leaf(
                number,
                row_estimate(trace, deltas.get(number)),
                merged and not self._are_rows_known(number),
            )
        if cost.largest_share < LEAST_SHARE or cost.is_load:
            return None
        for node in segment.nodes:
            cost.add_node(node, self._groups_trace(node))
        cost.add_output(self._stored(self._version.traces, segment.last.id).rows_count)
        if not cost.is_cheaper_from_scratch or not self._runs_in_process(segment):
            return None
        return f"run from scratch: {changed:,} changes of {round(cost.rows):,} rows"

    def _stored(self, traces: Mapping[int, Trace], number: int) -> Trace:
        """Returns a trace of the rows of a node."""
        node = self._runner.graph.nodes[number]
        layout, first = next(iter(node.traces.items()))
        return traces.get(first) or Trace(layout)

    def _are_rows_known(self, number: int) -> bool:
        """Returns True if the change of a node has its new rows as parts of their own."""
        node = self._runner.graph.nodes[number]
        layout = next(iter(node.traces))
        change = self._draft.deltas.get(number)
        return self._replacement.new_parts(node, layout, change) is not None

    def _groups_trace(self, node: Node) -> Trace | None:
        """Returns a trace before the epoch in the order of a node's groups; None without one."""
        operator, traces = node.operator, self._version.traces
        if node.state:
            return traces.get(node.state[0])
        layout = None if operator is None or not operator.layouts else operator.layouts[0]
        if layout is None:
            return None
        number = self._runner.graph.nodes[node.inputs[0]].traces.get(layout)
        return None if number is None else traces.get(number)

    def _runs_in_process(self, segment: GraphSegment) -> bool:
        """Returns False if executors would run an operator, or if it would not fit into memory."""
        bulk = self._runner.bulk
        if bulk is None:
            return True
        deltas = self._draft.deltas
        try:
            return not any(
                bulk.choose(node, [deltas.get(i) for i in node.inputs]).on_executors
                for node in segment.nodes
            )
        except NosyncError:  # there is not enough memory for it
            return False

    # -- the two ways ------------------------------------------------------------------------------

    def _follow(self, segment: GraphSegment) -> None:
        """Runs the nodes that have not followed the changes yet."""
        draft = self._draft
        for node in segment.nodes:
            if node is not segment.last:
                if node.id not in self._waiting or node.frozen:
                    continue
                self._waiting.discard(node.id)
            deltas = [*map(draft.deltas.get, node.inputs)]
            if any(delta is not None for delta in deltas):
                self._runner.follow(node, deltas, self._version, draft)
                self._runner.release(draft, (), deltas)

    def _run_from_scratch(self, segment: GraphSegment, why: str) -> None:
        """Runs all nodes of a segment over the contents; publishes the difference of the last."""
        start, last, work = time.perf_counter(), segment.last, self._draft.work
        counted = sum(each.seconds for each in work.values())
        for node in segment.nodes:
            if node.id in self._contents:
                continue
            operator = node.operator
            assert operator is not None
            layouts = operator.layouts
            contents = [
                self._contents_of(i, layout) for i, layout in zip(node.inputs, layouts, strict=True)
            ]
            traces = [
                None if layout is None else _as_trace(each, layout)
                for each, layout in zip(contents, layouts, strict=True)
            ]
            emit = node is last or node.id in self._waiting
            self._contents[node.id] = self._runner.run_from_scratch(
                node, contents, traces, self._draft, emit=emit, why=why
            )
            if node.state and emit:
                self._replaced.add(node.id)
                self._waiting.discard(node.id)
        rows_out = 0
        change, self._contents[last.id] = self._replacement.of_contents(
            last, self._contents[last.id]
        )
        if change is not None:
            rows_out = self._runner.publish(last, change, self._draft)
            self._keep_contents(last)
        seconds = time.perf_counter() - start
        seconds -= sum(each.seconds for each in work.values()) - counted
        done = work[last.stage]
        work[last.stage] = done._replace(
            rows_out=rows_out if last.name else done.rows_out, seconds=done.seconds + seconds
        )

    def _keep_contents(self, node: Node) -> None:
        """Lets the readers of a node that follow its change read its rows without a merge.

        A loop reads the whole traces of its inputs if it runs from scratch.
        """
        contents = self._contents[node.id]
        for layout, number in node.traces.items():
            trace = self._draft.traces.get(number)
            known = contents is not None and layout in contents.held and self._readers[node.id]
            if trace is not None and contents is not None and known:
                trace.keep_consolidated(contents.batch(layout))
                self._kept.setdefault(node.id, []).append(trace)

    def _contents_of(self, number: int, layout: Layout | None) -> Delta | None:
        """Returns the rows of a node after the epoch, arranged in a layout if one is given."""
        node = self._runner.graph.nodes[number]
        if number not in self._contents:
            assert node.traces, "a node without a trace was run before its reader"
            known = layout if layout in node.traces else next(iter(node.traces))
            assert known is not None
            self._contents[number] = self._arranged_rows(node, known)
        contents = self._contents[number]
        if contents is None or layout is None or layout in contents.held:
            return contents
        if layout in node.traces and (more := self._arranged_rows(node, layout)) is not None:
            contents.held[layout] = more.held[layout]
        return contents

    def _arranged_rows(self, node: Node, layout: Layout) -> Delta | None:
        """Returns the rows of one of a node's traces; None if it has no rows."""
        trace = self._draft.traces.get(node.traces[layout])
        if trace is None:
            return None
        new = self._replacement.new_parts(node, layout, self._draft.deltas.get(node.id))
        if new is None:
            return as_delta(node, trace.consolidated())
        return Delta(node.types, None, {layout: new}) if new.parts else None

    def _finish(self, segment: GraphSegment) -> None:
        """Drops the changes and the contents of nodes that no later segment reads.

        The order of the graph is not the order in which the nodes run, so the readers are counted.
        """
        unread = []
        for node in segment.nodes:
            self._unfinished[node.id] -= 1
            if self._unfinished[node.id]:
                continue
            for number in node.inputs:
                self._readers[number] -= 1
                if not self._readers[number]:
                    unread.append(number)
                    self._contents.pop(number, None)
                    for trace in self._kept.pop(number, ()):
                        trace.keep_consolidated(None)
        self._runner.release(self._draft, unread, ())


def _can_run_again(node: Node) -> bool:
    """Returns True if a node may run from scratch in an epoch."""
    operator = node.operator
    if operator is None or node.frozen:
        return False
    return operator.update_cost is not UpdateCost.EVERYTHING and not operator.memoises


def _as_trace(contents: Delta | None, layout: Layout) -> Trace:
    return Trace(layout) if contents is None else Trace.from_batch(contents.batch(layout))
