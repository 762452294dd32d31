"""Legs: an operator's step on executors as the steps of others, one after the other.

What looks into many traces by many keys cannot be cut by one key. Each of its legs is a change that
is looked up in one trace after another: a join for each hop, which is cut by its own key; what it
gives lies in files for the next one, and goes through no other process than theirs. What the last
one gives is for whoever reads the node, who may do that join on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.delta import Delta
from nosync_nb.dataflow.runtime.executor__elsewhere import BulkExecutor, OperatorResult
from nosync_nb.operators import Concat, Linear, LookupStage, Step
from nosync_nb.operators.base import RowPiece, joined_placement
from nosync_nb.operators.linear import Select
from nosync_nb.rows import Schema
from nosync_nb.trace import Trace


def run_lookup_stages(
    bulk: BulkExecutor,
    node: Node,
    deltas: Sequence[Delta | None],
    legs: Sequence[LookupStage],
    step: Step,
    *,
    fuse: bool,
) -> OperatorResult:
    """Runs the legs of a node's operator on executors, and what they give together as its output.

    Args:
        fuse: to leave the last of it to the only one that reads it.

    Cost: a Spark query for each hop but the last of each leg, which is done by whoever reads it.
    """
    runs = _Runs(bulk, node, step)
    parts = [part for leg in legs if (part := runs.leg(leg, deltas[leg.port])) is not None]
    if not parts:
        return OperatorResult(None, [], runs.touched, runs.placement or "in process")
    return runs.together(parts, fuse=fuse)


class _Runs:
    """The runs of one step: each of an operator that stands for the node's."""

    def __init__(self, bulk: BulkExecutor, node: Node, step: Step) -> None:
        self.bulk = bulk
        self.node = node
        self.step = step
        self.touched = 0
        self.placement = ""

    def leg(self, leg: LookupStage, delta: Delta | None) -> Delta | None:
        """What one leg gives, in files; None if that is nothing."""
        for at, hop in enumerate(leg.hops):
            row = leg.start if not at else leg.hops[at - 1].sieve
            if delta is None:
                return None
            given = delta if row is None else self._later(delta, row)
            join, number, stage = hop.operator, self.node.id, self.node.stage
            node = Node(number, "", join.types, stage, operator=join, inputs=(0, 1))
            # What looks into the next trace has to know how much that is; what adds up has not.
            ends = at == len(leg.hops) - 1
            delta = self._run(node, [given, None], [None, hop.trace], fuse=ends).delta
        if delta is None:
            return None
        last = leg.hops[-1].sieve
        given = delta if last is None else self._later(delta, last)
        return self._later(given, Select(leg.outputs, Schema([])))

    def together(self, parts: Sequence[Delta], *, fuse: bool) -> OperatorResult:
        """The output of the node."""
        node = self.node.copied()
        node.run_by(Concat(node.types, len(parts)), range(len(parts)), int)
        done = self._run(node, [*parts], [None for _ in parts], fuse=fuse)
        return OperatorResult(done.delta, [], self.touched, self.placement)

    def _later(self, delta: Delta, row: RowPiece) -> Delta:
        """A change with a row-wise operator over it, which the next run does on its way."""
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
        """Runs a node that stands for the real one."""
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
