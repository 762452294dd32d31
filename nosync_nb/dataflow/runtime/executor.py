"""The executor protocol, and the runs of an operator in this process and in lookup stages.

A runner asks a `BulkExecutor` where an operator runs. `nosync_nb.spark.execution.placement`
implements the protocol. Without an executor, every operator runs in this process.

`run_in_process` runs a kernel over a whole change, or file by file. A change in several files need
not fit into memory: an operator reads one file after the other, if its outputs for the parts of a
change add up to the output for the whole change.

`run_lookup_stages` runs a multiway join on executors. Such an operator looks up rows in several
traces by different keys, so no single key can partition it. Each of its lookup stages joins the
change of one input with one trace after another. Each join is a hop, and is partitioned by its own
key. The output of a hop is in files that executors read in the next hop. The reader of the node may
perform the last join as part of its own run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.delta import ArrangedChange, ArrangedDifference, Delta
from nosync_nb.operators import Concat, Linear, LookupStage, LoopPlacement, Operator, Step
from nosync_nb.operators.base import RowPiece, joined_placement
from nosync_nb.operators.linear import Select
from nosync_nb.rows import Schema
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Updates, concat_updates


class OperatorResult(NamedTuple):
    """The result of running one operator.

    Attributes:
        delta: the change of the output; None if it is empty.
        emitted: the change of each trace of the operator's state; None without a change.
        touched: the number of rows that the operator touched.
        placement: the place where it ran.
    """

    delta: Delta | None
    emitted: list[ArrangedChange | None]
    touched: int
    placement: str

    def with_late(self, deltas: Sequence[Delta | None]) -> OperatorResult:
        """Returns the result, with the work of deferred operators that ran separately added.

        Args:
            deltas: the changes of the inputs, which the deferred operators computed.
        """
        touched, placement = self.touched, self.placement
        for delta in dict.fromkeys(deltas):
            work = None if delta is None else delta.late_work
            if work is not None:
                touched += work[0]
                placement = joined_placement(work[1], placement)
        return self._replace(touched=touched, placement=placement)


class PlacementDecision(Protocol):
    """The placement of one run; see `nosync_nb.spark.execution.cost_model`."""

    @property
    def on_executors(self) -> bool:
        """True if the operator runs on executors."""

    @property
    def why(self) -> str:
        """The reason, for people."""

    @property
    def rows(self) -> int:
        """The number of changed rows in the cost estimate; 0 without an estimate."""


class RunFromScratch(NamedTuple):
    """The decision to run an operator over the contents of its inputs, in this process."""

    why: str
    rows: int

    @property
    def on_executors(self) -> bool:
        """False: the run stays in this process."""
        return False


class BulkExecutor(Protocol):
    """Runs an operator on Spark executors; see `nosync_nb.spark`."""

    def choose(self, node: Node, deltas: list[Delta | None]) -> PlacementDecision:
        """Returns the placement of a run of a node over some changes."""

    def run(
        self, node: Node, deltas: list[Delta | None], step: Step, graph: Graph, *, fuse: bool
    ) -> OperatorResult:
        """Runs the operator of a node on executors.

        Args:
            fuse: True to defer the operator to the run of its reader if possible.
        """

    def inside(self, node: Node, deltas: list[Delta | None], step: Step) -> LoopPlacement | None:
        """Returns the placement of the kernels in a loop; None if all run in this process."""

    def measured(self, node: Node, rows: int, seconds: float) -> None:
        """Receives the duration of a run in this process for which there was an estimate."""


class SpillTarget(Protocol):
    """Writes large results to files as they are produced; see `nosync_nb.store.store`."""

    def spilled(self, number: int, held: ArrangedChange, epoch: int) -> ArrangedChange:
        """Returns a change of a log or a trace, moved to files if it is large."""

    def difference(
        self, number: int, added: Batch, removed: ArrangedChange, epoch: int
    ) -> ArrangedDifference:
        """Returns a change as parts in files: the rows that it adds, and those that it removes.

        Args:
            removed: with references a previous layer, all rows of which are removed; without them
                the removed rows with negative counts.
        """

    def release_pages(self, size_bytes: int) -> None:
        """Receives the number of bytes read from files, so that it may release their pages."""


def run_in_process(node: Node, deltas: list[Delta | None], step: Step) -> OperatorResult:
    """Runs an operator's kernel in this process."""
    operator = node.operator
    assert operator is not None
    in_parts = False
    for delta in deltas:  # not any(), because that is slower for the few inputs of an operator
        if delta is not None and delta.held and delta.is_apart:
            in_parts = True
    if in_parts and (operator.additive or operator.lookup_stages(deltas, step) is not None):
        output = _run_by_file(operator, deltas, step)
    else:
        output = _run_whole_change(operator, deltas, step)
    emitted: list[ArrangedChange | None] = []
    if step.emitted:
        emitted = [
            None if b is None or not len(b.diff) else ArrangedChange((b,)) for b in step.emitted
        ]
    result = None
    if output is not None and len(output.diff):
        result = Delta(operator.types, output)
    return OperatorResult(result, emitted, step.touched, step.placement or "in process")


def _run_whole_change(operator: Operator, deltas: list[Delta | None], step: Step) -> Updates | None:
    """Runs a kernel over the whole change."""
    inputs: list[Updates | Batch | None] = []
    for port, (layout, delta) in enumerate(zip(operator.layouts, deltas, strict=True)):
        if delta is None:
            inputs.append(None)
        elif layout is None or operator.loose:
            inputs.append(
                delta.with_columns_read(operator.used(port)) if delta.held else delta.updates
            )
        else:
            inputs.append(delta.batch(layout) if operator.sorts else delta.with_hashes(layout))
    step.give(inputs)
    return operator.step(step)


def _run_by_file(operator: Operator, deltas: list[Delta | None], step: Step) -> Updates | None:
    """Runs a kernel over changes with several files, one file after the other.

    With lookup stages, each input is read only in the order that its stage needs.
    """
    outputs = []
    stages = operator.lookup_stages(deltas, step)
    kernels: list[tuple[int, Callable[[Step], Updates | None]]]
    if stages is None:
        kernels = [(port, operator.step) for port in range(len(deltas))]
    else:
        kernels = [(stage.port, partial(operator.walk, stage)) for stage in stages]
    for port, kernel in kernels:
        delta = deltas[port]
        for piece in delta.parts_by_order(operator.layouts[port]) if delta is not None else ():
            step.give([piece if at == port else None for at in range(len(deltas))])
            output = kernel(step)
            if output:
                outputs.append(output)
    return concat_updates(outputs, operator.types) if outputs else None


def run_lookup_stages(
    bulk: BulkExecutor,
    node: Node,
    deltas: Sequence[Delta | None],
    legs: Sequence[LookupStage],
    step: Step,
    *,
    fuse: bool,
) -> OperatorResult:
    """Runs the lookup stages of a node's operator on executors, and returns the node's output.

    Args:
        legs: the lookup stages.
        fuse: True to defer the last run to the only reader.

    Cost: a Spark query for each hop except for the last hop of each stage, which is part of the
    query for the sum of the stages.
    """
    runs = _LookupStageRuns(bulk, node, step)
    parts = [
        part for stage in legs if (part := runs.run_stage(stage, deltas[stage.port])) is not None
    ]
    if not parts:
        return OperatorResult(None, [], runs.touched, runs.placement or "in process")
    return runs.sum_of_stages(parts, fuse=fuse)


class _LookupStageRuns:
    """The runs of the hops of one step, each with a substitute node for a single join.

    Attributes:
        touched, placement: the work of all runs.
    """

    def __init__(self, bulk: BulkExecutor, node: Node, step: Step) -> None:
        self.bulk = bulk
        self.node = node
        self.step = step
        self.touched = 0
        self.placement = ""

    def run_stage(self, stage: LookupStage, delta: Delta | None) -> Delta | None:
        """Returns the output of one lookup stage, in files; None if it is empty."""
        for index, hop in enumerate(stage.hops):
            row = stage.start if not index else stage.hops[index - 1].sieve
            if delta is None:
                return None
            change = delta if row is None else self._with_deferred_operator(delta, row)
            join, number, stage_name = hop.operator, self.node.id, self.node.stage
            node = Node(number, "", join.types, stage_name, operator=join, inputs=(0, 1))
            # Only the last hop may be deferred, because a lookup needs the size of its input.
            is_last = index == len(stage.hops) - 1
            delta = self._run_substitute(
                node, [change, None], [None, hop.trace], fuse=is_last
            ).delta
        if delta is None:
            return None
        last = stage.hops[-1].sieve
        change = delta if last is None else self._with_deferred_operator(delta, last)
        return self._with_deferred_operator(change, Select(stage.outputs, Schema([])))

    def sum_of_stages(self, parts: Sequence[Delta], *, fuse: bool) -> OperatorResult:
        """Returns the sum of the lookup stages as the output of the node."""
        node = self.node.copied()
        node.run_by(Concat(node.types, len(parts)), range(len(parts)), int)
        result = self._run_substitute(node, [*parts], [None for _ in parts], fuse=fuse)
        return OperatorResult(result.delta, [], self.touched, self.placement)

    def _with_deferred_operator(self, delta: Delta, row: RowPiece) -> Delta:
        """Returns a change with a row-wise operator that is deferred to the next run."""
        linear = Linear((row,), row.types_after(delta.types))
        return Delta(linear.types, later=(delta, linear, self.step))

    def _run_substitute(
        self,
        node: Node,
        deltas: list[Delta | None],
        traces: Sequence[Trace | None],
        *,
        fuse: bool = False,
    ) -> OperatorResult:
        """Runs on executors a node that replaces another one for this epoch; counts its work."""
        operator = node.operator
        assert operator is not None
        inputs = [
            Node(i, "", layout.types if layout is not None else node.types, node.stage)
            for i, layout in enumerate(operator.layouts)
        ]
        step = Step((), traces, traces, (), stage=node.stage, first=self.step.first)
        result = self.bulk.run(node, deltas, step, Graph(inputs), fuse=fuse)
        self.touched += result.touched
        self.placement = joined_placement(self.placement, result.placement)
        return result
