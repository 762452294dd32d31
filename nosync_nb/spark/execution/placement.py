"""Placement: which operators run on Spark executors, and the way there and back.

The kernels are the same in both places. Where each runs is decided by `costs.choose`; here its
estimate is made of what is known of the changes, the operator and Spark, and what it decides is
done. A few rows, which is what most epochs are made of, are not even weighed.

A loop itself runs in this process, as each of its rounds needs the one before. What it asks of its
kernels is placed round by round; few rows, which most rounds have, are not even weighed.
"""

from __future__ import annotations

import copy
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.delta import ArrangedChange, Delta, UnarrangedChange
from nosync_nb.dataflow.runtime.executor import OperatorResult
from nosync_nb.errors import OutOfMemoryError, titled
from nosync_nb.files.memory import free_bytes
from nosync_nb.operators import Linear, Operator, Step
from nosync_nb.spark.execution.cost_model import (
    FEW,
    FEW_ROWS,
    HERE,
    LOCAL,
    NOWHERE,
    SPARK,
    CostEstimate,
    Forced,
    MeasuredRates,
    PlacementChoice,
    State,
    choose_placement,
    is_small_run,
)
from nosync_nb.spark.session_protocol import SparkSessionProtocol
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.store.spill_files import RunFiles
from nosync_nb.store.store import Store
from nosync_nb.trace.batch import Batch, Layout, Updates, concat_updates
from nosync_nb.trace.parts.part_file import FRAME, open_updates

if TYPE_CHECKING:
    from nosync_nb.spark.execution.bulk_inputs import BulkOutput
    from nosync_nb.spark.execution.bulk_run import FusedUpstream

ROUND_BYTES = 64
"""What a row of a loop's round is taken to be."""


class Placement:
    """Decides for one session, and runs operators on its Spark session.

    Args:
        way: of the session to Spark.
        store: whose part files executors read and write.
        carrier: brings them there, and back.

    Attributes:
        files: those that a run writes, here or on executors.
    """

    def __init__(self, way: SparkSessionProtocol, store: Store, carrier: StagingService) -> None:
        self._way = way
        self._carrier = carrier
        self._store = store
        self._installed = importlib.util.find_spec("pyspark") is not None
        self._rates = MeasuredRates()
        self._asked: tuple[Mapping[str, Any], dict[str, str]] = {}, {}  # of a catalog, by stage
        self.files = RunFiles(store)

    def apart(self) -> Placement:
        """The same with files of its own, for a run beside those with the gate's lock."""
        other = copy.copy(self)
        other.files = RunFiles(self._store)
        return other

    def choose(self, node: Node, deltas: Sequence[Delta | None]) -> PlacementChoice:
        """Where an operator's run over these changes goes, and why.

        Raises:
            NosyncError: if the stage was to run on Spark, and that cannot be had, or does not see
                the session's folder.
            OutOfMemoryError: if it fits into no place; nothing was run of it.
        """
        operator, forced, rows = node.operator, self._forced(node), 0
        for delta in deltas:
            if delta is not None:
                rows += len(delta)
        if not rows or operator is None or is_small_run(rows, forced):
            return FEW
        if len(deltas) > 1:
            deltas = [*dict.fromkeys(deltas)]  # one may come in by several ports
            rows = sum(len(delta) for delta in deltas if delta is not None)
            if is_small_run(rows, forced):
                return FEW
        if forced == "local":
            return LOCAL
        if operator.spreads and any(delta is not None and delta.is_pending for delta in deltas):
            return PlacementChoice(SPARK, "executors have its rows")
        if isinstance(forced, int) and rows <= forced:  # whatever the machine is
            return choose_placement(CostEstimate("row", rows, forced=forced))
        estimate = self._estimate(_kind(operator), deltas, rows, forced)
        if not operator.spreads:  # its rounds are placed one by one, see `inside`
            _admitted(node, choose_placement(estimate._replace(spark="off")))
            return PlacementChoice(HERE, f"{rows:,} rows, each round where it is cheaper", rows)
        return _admitted(node, self._had(node, estimate))

    def _had(self, node: Node, estimate: CostEstimate) -> PlacementChoice:
        """The place of an estimate, if it is there: Spark may not start, or not see our files."""
        chosen = choose_placement(estimate)
        if chosen.there and estimate.forced == "spark":
            self._reach(node, must=True)
        elif chosen.there and not (self._able(node) and self._reach(node)):
            chosen = choose_placement(estimate._replace(spark="absent"))
        return chosen

    def admit(self, name: str, rows: int, size_bytes: int) -> None:
        """Raises if rows of an input do not fit into this process.

        Raises:
            OutOfMemoryError: and none of them was taken.
        """
        if rows <= FEW_ROWS or self._way.spark_rows is not None:
            return
        estimate = CostEstimate("load", rows, size_bytes, free_bytes=free_bytes())
        chosen = choose_placement(estimate)
        if chosen.place == NOWHERE:
            raise OutOfMemoryError(
                f"input '{name}': {chosen.why}: they were not taken, and none of them waits",
                hint="insert them in several pieces, or as a Spark DataFrame",
            )

    def _estimate(
        self, kind: str, deltas: Sequence[Delta | None], rows: int, forced: Forced
    ) -> CostEstimate:
        """What is known of a run."""
        given = [delta for delta in deltas if delta is not None]
        sizes = [delta.size_bytes for delta in given]
        spark = self._state(forced)
        return CostEstimate(
            kind,
            rows,
            sum(sizes),
            sum(delta.from_frame for delta in given),
            sum(size for size, delta in zip(sizes, given, strict=True) if delta.in_files),
            spark,
            free_bytes(),
            self._slots(spark),
            forced,
            self._rates.per_second(kind),
        )

    def measured(self, node: Node, rows: int, seconds: float) -> None:
        """Notes how long a run over so many changed rows took in this process."""
        if node.operator is not None:
            self._rates.note(_kind(node.operator), rows, seconds)

    def _state(self, forced: Forced) -> State:
        """Whether there is Spark; who asked for it is to see why it does not start."""
        if self._way.off:
            return "off"
        if not self._installed:
            return "absent"
        return self._way.state(asked=forced == "spark")

    def _slots(self, spark: State) -> int:
        """How many tasks Spark runs at a time; one that does not run would have all cores."""
        if spark == "running":
            from nosync_nb.spark.workers import task_slots

            known = task_slots(self._way.present())
            if known is not None:
                return known
        return os.cpu_count() or 1

    def _able(self, node: Node) -> bool:
        """Whether Spark can be had for what can do without it."""
        return self._way.able(titled(node.stage))

    def _reach(self, node: Node, *, must: bool = False) -> bool:
        """Whether executors see the files that they would read and write."""
        what = titled(node.stage)
        if not must:
            return self._way.shares(what)
        from nosync_nb.spark.launch import guarded_use

        spark = self._way.require(what)
        with guarded_use(spark, what):
            self._carrier.required(spark, f"{what} is to run on Spark")
        return True

    def _forced(self, node: Node) -> Forced:
        """What the user said of a stage, or of all."""
        catalog = self._way.catalog()
        of, on = self._asked
        if of is not catalog:
            on = {name: stage.options.on for name, stage in catalog.items()}
            self._asked = catalog, on
        asked = on.get(node.stage)
        if asked == "local":
            return "local"
        return "spark" if asked == "spark" else self._way.spark_rows

    def inside(
        self, node: Node, deltas: Sequence[Delta | None], step: Step
    ) -> LoopPlacementRun | None:
        """Where the kernels inside a loop may run: those of large rounds on executors."""
        forced = self._forced(node)
        if forced == "local" or self._way.off or not self._installed:
            return None
        if forced == "spark":
            self._reach(node, must=True)
        frames = sum(delta.from_frame for delta in deltas if delta is not None)
        return LoopPlacementRun(self, node, step, forced, frames)

    def wants_round(self, node: Node, rows: int, frames: int, forced: Forced) -> bool:
        """Whether a kernel of a loop over so many rows is for executors."""
        spark = self._state(forced)
        size = rows * ROUND_BYTES
        slots = self._slots(spark)
        given = CostEstimate("key", rows, size, frames, 0, spark, free_bytes(), slots, forced)
        return self._had(node, given).there

    def run_inside(
        self,
        node: Node,
        operator: Operator,
        step: Step,
        given: Sequence[tuple[str, ...]],
        number: int,
    ) -> tuple[Updates | None, str]:
        """Runs one kernel of a loop on executors; its output, and the jobs."""
        from nosync_nb.spark.execution import bulk_run
        from nosync_nb.spark.launch import guarded_use

        spark = self._way.require(titled(node.stage))
        inputs = []
        each = zip(step.deltas, operator.layouts, step.before, given, strict=True)
        for delta, layout, before, types in each:
            arranged = isinstance(delta, Batch) and layout is not None
            if delta is None:
                inputs.append(bulk_run.BulkInput(None, types, None, None, before))
            elif arranged:
                inputs.append(bulk_run.BulkInput([delta], types, layout, None, before))
            else:
                updates = Updates(delta.columns, delta.diff)
                inputs.append(bulk_run.BulkInput([updates], types, None, None, before))
        folder = self._store.parts
        with guarded_use(spark, titled(node.stage)):
            result = bulk_run.run_bulk(
                spark, operator, inputs, step.state, [], self._carrier,
                stage=node.stage, first=step.first,
                stem=f"bulk{node.id}-{self._way.epoch}-{number}",
                thorough=self._store.foreign,
            )  # fmt: skip
        self.files.lend([*result.loose, *(r for refs in result.emitted for r in refs or ())])
        step.add_touched(result.touched)
        if not result.loose:
            return None, result.jobs.text
        parts = [open_updates(folder, ref, operator.types) for ref in result.loose]
        return concat_updates(parts, operator.types), result.jobs.text

    def run(
        self,
        node: Node,
        deltas: list[Delta | None],
        step: Step,
        graph: Graph,
        *,
        fuse: bool = False,
    ) -> OperatorResult:
        """Runs an operator on executors: a Spark query whose jobs name stage and operator."""
        from nosync_nb.spark.execution import bulk_inputs, bulk_run
        from nosync_nb.spark.launch import guarded_use

        operator = node.operator
        assert operator is not None
        if fuse and isinstance(operator, Linear):
            (source,) = deltas
            assert source is not None
            delta = Delta(operator.types, later=(source, operator, step))
            return OperatorResult(delta, [], 0, "")
        spark = self._way.require(titled(node.stage))
        inputs = [
            bulk_inputs.bulk_input_of(
                delta, graph.nodes[i].types, layout, before, alone=not operator.local
            )
            for delta, i, layout, before in zip(
                deltas, node.inputs, operator.layouts, step.before, strict=True
            )
        ]
        if fuse and bulk_inputs.can_fuse(operator):
            late = bulk_inputs.defer_bulk_run(operator, inputs, deltas, step, self._settled)
            return OperatorResult(Delta(operator.types, pending=late), [], 0, "")
        outputs: list[Layout] = []
        if node.log is not None:
            outputs = list(node.traces)
        folder = self._store.parts
        stem = f"bulk{node.id}-{self._way.epoch}"
        if any(delta is not None and delta.from_frame for delta in deltas):
            stem = FRAME + stem  # what is made of such rows stays there, too
        with guarded_use(spark, titled(node.stage)):
            result = bulk_run.run_bulk(
                spark, operator, inputs, step.state, outputs, self._carrier,
                stage=node.stage, first=step.first, stem=stem,
                thorough=self._store.foreign,
            )  # fmt: skip
        self.files.keep(r for refs in (*result.outputs, *result.emitted) for r in refs or ())
        emitted = [
            None if refs is None else self._held(refs, trace.layout)
            for refs, trace in zip(result.emitted, step.state, strict=True)
        ]
        output: Delta | None = None
        if outputs and result.rows:
            held = {
                layout: self._held(refs, layout)
                for layout, refs in zip(outputs, result.outputs, strict=True)
            }
            output = Delta(operator.types, None, held)
        elif result.loose:
            self.files.lend(result.loose)
            updates = tuple(open_updates(folder, ref, operator.types) for ref in result.loose)
            output = Delta(operator.types, loose=UnarrangedChange(updates, tuple(result.loose)))
        return OperatorResult(output, emitted, result.touched, result.jobs.text)

    def _settled(self, up: FusedUpstream) -> BulkOutput:
        """Runs an operator that was postponed by itself."""
        from nosync_nb.spark.execution import bulk_run
        from nosync_nb.spark.execution.bulk_inputs import BulkOutput
        from nosync_nb.spark.launch import guarded_use

        spark = self._way.require(titled(up.stage))
        folder = self._store.parts
        with guarded_use(spark, titled(up.stage)):
            result = bulk_run.run_bulk(
                spark, up.operator, up.inputs, (), (), self._carrier,
                stage=up.stage, first=up.first, stem=f"bulk-{self._way.epoch}-settled",
                thorough=self._store.foreign,
            )  # fmt: skip
        self.files.lend(result.loose)
        updates = tuple(open_updates(folder, ref, up.operator.types) for ref in result.loose)
        loose = UnarrangedChange(updates, tuple(result.loose)) if updates else None
        return BulkOutput(loose, result.touched, result.jobs.text)

    def _held(self, refs: Any, layout: Layout) -> ArrangedChange:
        return ArrangedChange(tuple(self._store.open_part(r, layout) for r in refs), tuple(refs))


class LoopPlacementRun:
    """Runs kernels of one loop in one epoch on executors.

    Args:
        frames: how many rows of the loop's inputs came as a DataFrame.
    """

    def __init__(
        self, placement: Placement, node: Node, step: Step, forced: Forced, frames: int
    ) -> None:
        self._placement = placement
        self._node = node
        self._step = step
        self._forced = forced
        self._frames = frames
        self._number = 0

    def wants(self, rows: int) -> bool:
        """Whether so many rows are for executors."""
        if self._forced == "spark":
            return rows > 0
        if is_small_run(rows, self._forced):
            return False
        return self._placement.wants_round(self._node, rows, min(rows, self._frames), self._forced)

    def run(
        self, operator: Operator, step: Step, types: Sequence[tuple[str, ...]]
    ) -> Updates | None:
        """Runs one kernel there."""
        self._number += 1
        updates, jobs = self._placement.run_inside(self._node, operator, step, types, self._number)
        self._step.ran_at(jobs)
        return updates


def _admitted(node: Node, chosen: PlacementChoice) -> PlacementChoice:
    """A place that is one.

    Raises:
        OutOfMemoryError: if there is none.
    """
    if chosen.place == NOWHERE:
        raise OutOfMemoryError(
            f"{titled(node.stage)}: {chosen.why}: it was not run, and nothing has changed",
            hint="commit or define over fewer rows at a time, or have Spark run it; %%dd --on local"
            " tries it here all the same",
        )
    return chosen


def _kind(operator: Operator) -> str:
    """The kind of a kernel, as `costs` knows it."""
    if not operator.local:
        return "foreign"
    if operator.asks:
        return "function"
    if not operator.spreads:
        return "loop"
    if any(layout is not None and layout.order is not None for layout in operator.layouts):
        return "order"
    return "row" if operator.exchange() is None else "key"
