"""The executor protocol, and the runs of an operator in this process and in lookup stages.

A runner asks a `BulkExecutor` where an operator runs. `nosync_nb.spark.execution.placement`
implements it; without it every operator runs in this process.

`run_in_process` runs a kernel over a whole change, or file by file. A change of several files need
not fit into memory: an operator whose outputs for parts of a change add up reads one file after the
other.

`run_lookup_stages` runs a multiway join on executors. Such an operator looks into several traces by
different keys, so no single key can partition it. Each of its lookup stages takes a change through
one trace after another, with one join per hop that is partitioned by its own key. The output of a
hop is in files for the next hop and passes through no other process. The reader of the node may
perform the last join as part of its own run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.delta import ArrangedChange, Delta
from nosync_nb.operators import Concat, Linear, LookupStage, LoopPlacement, Operator, Step
from nosync_nb.operators.base import RowPiece, joined_placement
from nosync_nb.operators.linear import Select
from nosync_nb.rows import Schema
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Updates, concat_updates


class OperatorResult(NamedTuple):
    """The result of running one operator."""

    delta: Delta | None
    emitted: list[ArrangedChange | None]
    touched: int
    placement: str

    def with_late(self, deltas: Sequence[Delta | None]) -> OperatorResult:
        """Returns the result with the work of deferred operators that ran before this one."""
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
    def there(self) -> bool:
        """True if it runs on executors."""

    @property
    def why(self) -> str:
        """The reason, for people."""

    @property
    def rows(self) -> int:
        """The changed rows in the cost estimate, 0 if they were too few for one."""


class BulkExecutor(Protocol):
    """Runs an operator on Spark executors; see `nosync_nb.spark`."""

    def choose(self, node: Node, deltas: list[Delta | None]) -> PlacementDecision:
        """Returns the placement of this run."""

    def run(
        self, node: Node, deltas: list[Delta | None], step: Step, graph: Graph, *, fuse: bool
    ) -> OperatorResult:
        """Runs it on executors; with `fuse`, defers it to its reader if possible."""

    def inside(self, node: Node, deltas: list[Delta | None], step: Step) -> LoopPlacement | None:
        """Returns the placement of the kernels in a loop; None: all in this process."""

    def measured(self, node: Node, rows: int, seconds: float) -> None:
        """Receives the duration of a run that was estimated and stayed in this process."""


class SpillTarget(Protocol):
    """Writes large results to files as they are produced; see `nosync_nb.store.spill_files`."""

    def spilled(self, number: int, held: ArrangedChange, epoch: int) -> ArrangedChange:
        """Returns a batch of a log or a trace: in files if it is large, else unchanged."""

    def rest(self, size_bytes: int) -> None:
        """Receives the number of bytes read from files, so that it may release their pages."""


def run_in_process(node: Node, deltas: list[Delta | None], step: Step) -> OperatorResult:
    """Runs an operator's kernel in this process."""
    operator = node.operator
    assert operator is not None
    apart = False
    for delta in deltas:  # no any(): it costs more at each step of a small epoch
        if delta is not None and delta.held and delta.is_apart:
            apart = True
    if apart and (operator.additive or operator.legs(deltas, step) is not None):
        output = _piecewise(operator, deltas, step)
    else:
        output = _at_once(operator, deltas, step)
    emitted: list[ArrangedChange | None] = []
    if step.emitted:
        emitted = [
            None if b is None or not len(b.diff) else ArrangedChange((b,)) for b in step.emitted
        ]
    made = None
    if output is not None and len(output.diff):
        made = Delta(operator.types, output)
    return OperatorResult(made, emitted, step.touched, step.placement or "in process")


def _at_once(operator: Operator, deltas: list[Delta | None], step: Step) -> Updates | None:
    """Runs a kernel over the whole change."""
    given: list[Updates | Batch | None] = []
    for port, (layout, delta) in enumerate(zip(operator.layouts, deltas, strict=True)):
        if delta is None:
            given.append(None)
        elif layout is None or operator.loose:
            given.append(delta.narrowed(operator.used(port)) if delta.held else delta.updates)
        else:
            given.append(delta.batch(layout) if operator.sorts else delta.hashed(layout))
    step.give(given)
    return operator.step(step)


def _piecewise(operator: Operator, deltas: list[Delta | None], step: Step) -> Updates | None:
    """Runs a kernel over changes with several files, one file after the other.

    With lookup stages, only the order of an input that the stage needs is read.
    """
    outputs = []
    legs = operator.legs(deltas, step)
    ways: list[tuple[int, Callable[[Step], Updates | None]]]
    if legs is None:
        ways = [(port, operator.step) for port in range(len(deltas))]
    else:
        ways = [(leg.port, partial(operator.walk, leg)) for leg in legs]
    for port, way in ways:
        delta = deltas[port]
        for piece in delta.pieces(operator.layouts[port]) if delta is not None else ():
            step.give([piece if at == port else None for at in range(len(deltas))])
            output = way(step)
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
        fuse: to defer the last run to the only reader.

    Cost: a Spark query for each hop but the last of each stage, which the reader performs.
    """
    runs = _Runs(bulk, node, step)
    parts = [part for leg in legs if (part := runs.leg(leg, deltas[leg.port])) is not None]
    if not parts:
        return OperatorResult(None, [], runs.touched, runs.placement or "in process")
    return runs.together(parts, fuse=fuse)


class _Runs:
    """The runs of one step, each with a substitute for the real node."""

    def __init__(self, bulk: BulkExecutor, node: Node, step: Step) -> None:
        self.bulk = bulk
        self.node = node
        self.step = step
        self.touched = 0
        self.placement = ""

    def leg(self, leg: LookupStage, delta: Delta | None) -> Delta | None:
        """Returns the output of one lookup stage, in files; None if it is empty."""
        for at, hop in enumerate(leg.hops):
            row = leg.start if not at else leg.hops[at - 1].sieve
            if delta is None:
                return None
            given = delta if row is None else self._later(delta, row)
            join, number, stage = hop.operator, self.node.id, self.node.stage
            node = Node(number, "", join.types, stage, operator=join, inputs=(0, 1))
            # Only the last hop may be deferred, because a lookup needs the size of its input.
            ends = at == len(leg.hops) - 1
            delta = self._run(node, [given, None], [None, hop.trace], fuse=ends).delta
        if delta is None:
            return None
        last = leg.hops[-1].sieve
        given = delta if last is None else self._later(delta, last)
        return self._later(given, Select(leg.outputs, Schema([])))

    def together(self, parts: Sequence[Delta], *, fuse: bool) -> OperatorResult:
        """Returns the sum of the lookup stages as the output of the node."""
        node = self.node.copied()
        node.run_by(Concat(node.types, len(parts)), range(len(parts)), int)
        done = self._run(node, [*parts], [None for _ in parts], fuse=fuse)
        return OperatorResult(done.delta, [], self.touched, self.placement)

    def _later(self, delta: Delta, row: RowPiece) -> Delta:
        """Returns a change with a deferred row-wise operator, which the next run performs."""
        linear = Linear((row,), row.types_after(delta.types))
        return Delta(linear.types, later=(delta, linear, self.step))

    def _run(
        self,
        node: Node,
        deltas: list[Delta | None],
        traces: Sequence[Trace | None],
        *,
        fuse: bool = False,
    ) -> OperatorResult:
        """Runs a substitute for the real node."""
        operator = node.operator
        assert operator is not None
        inputs = [
            Node(i, "", layout.types if layout is not None else node.types, node.stage)
            for i, layout in enumerate(operator.layouts)
        ]
        step = Step((), traces, traces, (), stage=node.stage, first=self.step.first)
        done = self.bulk.run(node, deltas, step, Graph(inputs), fuse=fuse)
        self.touched += done.touched
        self.placement = joined_placement(self.placement, done.placement)
        return done
