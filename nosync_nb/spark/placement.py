"""Placement: which operators run on Spark executors, and the way there and back.

The kernels are the same in both places. Executors get what came as a DataFrame, what is read from
part files when a stage runs first, and what is above `spark_rows`; changes that the driver holds
below that stay in this process, where they cost milliseconds. A stage defined `--on local` or
`--on spark` is not asked.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from nosync_nb.dataflow.delta import SMALL_ROWS, Delta, Held, Loose
from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runner import Done
from nosync_nb.errors import titled
from nosync_nb.operators import Linear, Operator, Step
from nosync_nb.operators.base import joined_placement
from nosync_nb.spark.way import Way
from nosync_nb.store.store import Store
from nosync_nb.trace.batch import Batch, Layout, Updates, concat_updates
from nosync_nb.trace.parts import open_updates


class Placement:
    """Decides for one session, and runs operators on its Spark session.

    Args:
        way: of the session to Spark.
        store: whose part files executors read and write.
    """

    def __init__(self, way: Way, store: Store) -> None:
        self._way = way
        self._store = store
        self._installed = importlib.util.find_spec("pyspark") is not None
        self._temporary: list[Any] = []
        self._written: list[Any] = []

    def wants(self, node: Node, deltas: list[Delta | None], graph: Graph) -> bool:
        """Whether an operator's run over these changes is for executors.

        Raises:
            NosyncError: if the stage was to run there, and they do not see the session's folder.
        """
        asked = self._asked(node)
        if asked == "local" or node.operator is None or not node.operator.spreads:
            return False
        if asked == "spark":
            return any(d is not None for d in deltas) and self._reach(node, must=True)
        return self._large(deltas) and self._able(node) and self._reach(node)

    def _able(self, node: Node) -> bool:
        """Whether Spark can be had for what can do without it."""
        return self._way.able(titled(node.stage))

    def _reach(self, node: Node, *, must: bool = False) -> bool:
        """Whether executors see the files that they would read and write."""
        what = titled(node.stage)
        shares = self._way.shares(what)
        if must and not shares:
            from nosync_nb.spark import workers

            raise workers.unshared(f"{what} is to run on Spark", self._store.parts)
        return shares

    def _large(self, deltas: list[Delta | None]) -> bool:
        """Whether changes came as a DataFrame, lie in files, or are many."""
        for delta in deltas:
            if delta is None:
                continue
            rows = len(delta)
            if delta.from_frame or rows > self._way.spark_rows:
                return True
            if rows > SMALL_ROWS and delta.in_files:
                return True
        return False

    def _asked(self, node: Node) -> str:
        """What the user said of a stage: auto, local or spark."""
        stage = self._way.catalog().get(node.stage)
        asked = "auto" if stage is None else str(stage.options.get("on", "auto"))
        return asked if self._installed else "local"

    def inside(self, node: Node, step: Step) -> Inside | None:
        """Where the kernels inside a loop may run: those of large rounds on executors."""
        asked = self._asked(node)
        if asked == "local":
            return None
        if asked == "spark":
            self._reach(node, must=True)
        rows_min = 0 if asked == "spark" else self._way.spark_rows
        return Inside(self, node, step, rows_min)

    def run_inside(
        self,
        node: Node,
        operator: Operator,
        step: Step,
        given: Sequence[tuple[str, ...]],
        number: int,
    ) -> tuple[Updates | None, str]:
        """Runs one kernel of a loop on executors; its output, and the jobs."""
        from nosync_nb.spark import bulk
        from nosync_nb.spark.starting import reached

        spark = self._way.require(titled(node.stage))
        inputs = []
        each = zip(step.deltas, operator.layouts, step.before, given, strict=True)
        for delta, layout, before, types in each:
            arranged = isinstance(delta, Batch) and layout is not None
            if delta is None:
                inputs.append(bulk.BulkInput(None, types, None, None, before))
            elif arranged:
                inputs.append(bulk.BulkInput([delta], types, layout, None, before))
            else:
                updates = Updates(delta.columns, delta.diff)
                inputs.append(bulk.BulkInput([updates], types, None, None, before))
        folder = self._store.parts
        with reached(spark, titled(node.stage)):
            found = bulk.run(
                spark, operator, inputs, step.state, [], folder,
                stage=node.stage, first=step.first,
                stem=f"bulk{node.id}-{self._way.epoch}-{number}",
                thorough=self._store.foreign,
            )  # fmt: skip
        self._temporary += [*found.loose, *(r for refs in found.emitted for r in refs or ())]
        step.touched += found.touched
        if not found.loose:
            return None, found.jobs.text
        parts = [open_updates(folder, ref, operator.types) for ref in found.loose]
        return concat_updates(parts, operator.types), found.jobs.text

    def run(
        self,
        node: Node,
        deltas: list[Delta | None],
        step: Step,
        graph: Graph,
        *,
        fuse: bool = False,
    ) -> Done:
        """Runs an operator on executors: a Spark query whose jobs name stage and operator."""
        from nosync_nb.spark import bulk
        from nosync_nb.spark.starting import reached

        operator = node.operator
        assert operator is not None
        if fuse:
            assert isinstance(operator, Linear)
            (source,) = deltas
            assert source is not None
            delta = Delta(operator.types, later=(source, operator, step))
            return Done(delta, [], 0, "")
        spark = self._way.require(titled(node.stage))
        inputs = [
            self._input(bulk, delta, graph.nodes[i].types, layout, before)
            for delta, i, layout, before in zip(
                deltas, node.inputs, operator.layouts, step.before, strict=True
            )
        ]
        outputs: list[Layout] = []
        if node.log is not None:
            outputs = list(node.traces)
        folder = self._store.parts
        with reached(spark, titled(node.stage)):
            found = bulk.run(
                spark, operator, inputs, step.state, outputs, folder,
                stage=node.stage, first=step.first, stem=f"bulk{node.id}-{self._way.epoch}",
                thorough=self._store.foreign,
            )  # fmt: skip
        self._written += [r for refs in (*found.outputs, *found.emitted) for r in refs or ()]
        emitted = [
            None if refs is None else self._held(refs, trace.layout)
            for refs, trace in zip(found.emitted, step.state, strict=True)
        ]
        made: Delta | None = None
        if outputs and found.rows:
            held = {
                layout: self._held(refs, layout)
                for layout, refs in zip(outputs, found.outputs, strict=True)
            }
            made = Delta(operator.types, None, held)
        elif found.loose:
            self._temporary += found.loose
            updates = tuple(open_updates(folder, ref, operator.types) for ref in found.loose)
            made = Delta(operator.types, loose=Loose(updates, tuple(found.loose)))
        return Done(made, emitted, found.touched, found.jobs.text)

    def cleanup(self, *, failed: bool) -> None:
        """Deletes what was written between two operators of one run; if it failed, everything."""
        if self._temporary or self._written:
            useless = (*self._temporary, *(self._written if failed else ()))
            self._store.remove(ref.path for ref in useless)
            self._temporary, self._written = [], []

    def _held(self, refs: Any, layout: Layout) -> Held:
        return Held(tuple(self._store.open_part(r, layout) for r in refs), tuple(refs))

    def _input(
        self,
        bulk: Any,
        delta: Delta | None,
        types: tuple[str, ...],
        wanted: Layout | None,
        before: Any,
    ) -> Any:
        """An input of a bulk run: files as they are, with the row-wise operators before it."""
        if delta is None:
            return bulk.BulkInput(None, types, None, None, before)
        pre = None
        while delta.later is not None:
            source, linear, _ = delta.later
            pieces = linear.pieces if pre is None else (*linear.pieces, *pre.pieces)
            pre = Linear(pieces, types)
            delta = source
        if delta.loose is not None:
            return bulk.BulkInput(list(delta.loose.refs), delta.types, None, pre, before)
        layouts = sorted(delta.held, key=lambda layout: layout != wanted)
        for layout in layouts:
            held = delta.held[layout]
            if held.refs:
                return bulk.BulkInput(list(held.refs), delta.types, layout, pre, before)
        if layouts and wanted in delta.held:
            return bulk.BulkInput(list(delta.held[wanted].parts), delta.types, wanted, pre, before)
        return bulk.BulkInput([delta.updates], delta.types, None, pre, before)


class Inside:
    """Runs kernels of one loop in one epoch on executors."""

    def __init__(self, placement: Placement, node: Node, step: Step, rows_min: int) -> None:
        self._placement = placement
        self._node = node
        self._step = step
        self._rows_min = rows_min
        self._number = 0

    def wants(self, rows: int) -> bool:
        """Whether so many rows are for executors."""
        if rows <= self._rows_min:
            return False
        return self._placement._able(self._node) and self._placement._reach(self._node)

    def run(
        self, operator: Operator, step: Step, types: Sequence[tuple[str, ...]]
    ) -> Updates | None:
        """Runs one kernel there."""
        self._number += 1
        found, jobs = self._placement.run_inside(self._node, operator, step, types, self._number)
        self._step.placement = joined_placement(self._step.placement, jobs)
        return found
