"""Decides which operators run on Spark executors, and runs them there.

The kernels are the same in both places. `choose_placement` in cost_model.py decides where an
operator runs. This module creates the estimate of the run from the changes, the operator and the
state of Spark, and carries out the decision. Most epochs have few rows, and need no estimate.

A loop itself runs in this process, because each of its rounds needs the previous one. Its kernels
are placed round by round. A round of few rows stays in this process without an estimate.
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
from nosync_nb.store.store import RunFiles, Store
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, concat_updates
from nosync_nb.trace.parts.part_file import FRAME, open_updates

if TYPE_CHECKING:
    from nosync_nb.spark.execution.bulk_run import BulkInput, BulkOutput, FusedUpstream
    from nosync_nb.spark.execution.tasks import BulkResult

ROUND_BYTES = 64
"""The assumed size in bytes of a row in a round of a loop."""


class Placement:
    """Places the operators of one session, and runs them on its Spark session.

    Args:
        way: the connection of the session to Spark.
        store: the store whose part files executors read and write.
        carrier: transfers files to executors and back.

    Attributes:
        files: the files that runs write, in this process or on executors.
    """

    def __init__(self, way: SparkSessionProtocol, store: Store, carrier: StagingService) -> None:
        self._way = way
        self._carrier = carrier
        self._store = store
        self._installed = importlib.util.find_spec("pyspark") is not None
        self._rates = MeasuredRates()
        self._requests: tuple[Mapping[str, Any], dict[str, str]] = {}, {}  # for a catalog, by stage
        self.files = RunFiles(store)

    def apart(self) -> Placement:
        """Returns a copy with separate `files`, for a run that does not hold the writer lock."""
        other = copy.copy(self)
        other.files = RunFiles(self._store)
        return other

    def choose(self, node: Node, deltas: Sequence[Delta | None]) -> PlacementChoice:
        """Chooses the place of an operator's run over some changes, with the reason.

        Raises:
            NosyncError: if the stage must run on Spark, but Spark is not available or does not see
                the session's folder.
            OutOfMemoryError: if no place has enough memory for the run; nothing was run.
        """
        operator, forced, rows = node.operator, self._requested_place(node), 0
        for delta in deltas:
            if delta is not None:
                rows += len(delta)
        if not rows or operator is None or is_small_run(rows, forced):
            return FEW
        if len(deltas) > 1:
            deltas = [*dict.fromkeys(deltas)]  # because several inputs may have the same change
            rows = sum(len(delta) for delta in deltas if delta is not None)
            if is_small_run(rows, forced):
                return FEW
        if forced == "local":
            return LOCAL
        if operator.spreads and any(delta is not None and delta.is_pending for delta in deltas):
            return PlacementChoice(SPARK, "its rows are on executors")
        if isinstance(forced, int) and rows <= forced:  # because this needs no full estimate
            return choose_placement(CostEstimate("row", rows, forced=forced))
        estimate = self._estimate(_kind(operator), deltas, rows, forced)
        if not operator.spreads:  # because the rounds of a loop are placed by `inside`
            _admissible(node, choose_placement(estimate._replace(spark="off")))
            return PlacementChoice(HERE, f"{rows:,} rows, each round where it is cheaper", rows)
        return _admissible(node, self._available_choice(node, estimate))

    def _available_choice(self, node: Node, estimate: CostEstimate) -> PlacementChoice:
        """Returns the placement for an estimate, after checking that Spark can be used.

        If Spark does not start, or does not see our files, the run stays in this process, unless
        the user has requested Spark.
        """
        chosen = choose_placement(estimate)
        if chosen.on_executors and estimate.forced == "spark":
            self._executors_see_files(node, must=True)
        elif chosen.on_executors and not (
            self._spark_available(node) and self._executors_see_files(node)
        ):
            chosen = choose_placement(estimate._replace(spark="absent"))
        return chosen

    def admit(self, name: str, rows: int, size_bytes: int) -> None:
        """Checks that the rows of an insert fit into the memory of this process.

        Raises:
            OutOfMemoryError: if they do not fit; no row was inserted.
        """
        if rows <= FEW_ROWS or self._way.spark_rows is not None:
            return
        estimate = CostEstimate("load", rows, size_bytes, free_bytes=free_bytes())
        chosen = choose_placement(estimate)
        if chosen.place == NOWHERE:
            raise OutOfMemoryError(
                f"input '{name}': {chosen.why}: they were not inserted, and none of them is"
                " pending",
                hint="insert them in several parts, or as a Spark DataFrame",
            )

    def _estimate(
        self, kind: str, deltas: Sequence[Delta | None], rows: int, forced: Forced
    ) -> CostEstimate:
        """Returns the cost estimate of a run."""
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
        """Records the duration of a run in this process, and its number of changed rows."""
        if node.operator is not None:
            self._rates.note(_kind(node.operator), rows, seconds)

    def _state(self, forced: Forced) -> State:
        """Returns the state of Spark.

        If the user has requested Spark, it is startable even after a failed start, so that the user
        sees the error.
        """
        if self._way.off:
            return "off"
        if not self._installed:
            return "absent"
        return self._way.state(asked=forced == "spark")

    def _slots(self, spark: State) -> int:
        """Returns the number of tasks that Spark runs at the same time.

        It is the number of cores if Spark is not running.
        """
        if spark == "running":
            from nosync_nb.spark.workers import task_slots

            known = task_slots(self._way.present())
            if known is not None:
                return known
        return os.cpu_count() or 1

    def _spark_available(self, node: Node) -> bool:
        """Returns True if Spark runs or can be started, for a run that does not need it."""
        return self._way.able(titled(node.stage))

    def _executors_see_files(self, node: Node, *, must: bool = False) -> bool:
        """Returns True if executors see the files that they would read and write.

        Args:
            must: True to raise NosyncError if they do not.
        """
        what = titled(node.stage)
        if not must:
            return self._way.shares(what)
        from nosync_nb.spark.launch import guarded_use

        spark = self._way.require(what)
        with guarded_use(spark, what):
            self._carrier.required(spark, f"{what} is to run on Spark")
        return True

    def _requested_place(self, node: Node) -> Forced:
        """Returns the placement that the user has requested for a stage, or for all stages."""
        catalog = self._way.catalog()
        of, on = self._requests
        if of is not catalog:
            on = {name: stage.options.on for name, stage in catalog.items()}
            self._requests = catalog, on
        asked = on.get(node.stage)
        if asked == "local":
            return "local"
        return "spark" if asked == "spark" else self._way.spark_rows

    def inside(
        self, node: Node, deltas: Sequence[Delta | None], step: Step
    ) -> LoopPlacementRun | None:
        """Returns the object that runs large rounds of a loop's kernels on executors.

        Returns None if all rounds run in this process.
        """
        forced = self._requested_place(node)
        if forced == "local" or self._way.off or not self._installed:
            return None
        if forced == "spark":
            self._executors_see_files(node, must=True)
        frames = sum(delta.from_frame for delta in deltas if delta is not None)
        return LoopPlacementRun(self, node, step, forced, frames)

    def wants_round(self, node: Node, rows: int, frames: int, forced: Forced) -> bool:
        """Returns True if a round of a loop's kernel should run on executors.

        Args:
            rows: the number of rows of the round.
            frames: how many of them came from a DataFrame.
        """
        spark = self._state(forced)
        size = rows * ROUND_BYTES
        slots = self._slots(spark)
        given = CostEstimate("key", rows, size, frames, 0, spark, free_bytes(), slots, forced)
        return self._available_choice(node, given).on_executors

    def run_inside(
        self,
        node: Node,
        operator: Operator,
        step: Step,
        given: Sequence[tuple[str, ...]],
        number: int,
    ) -> tuple[Updates | None, str]:
        """Runs one kernel of a loop on executors.

        Args:
            given: the column types of each input.
            number: the number of the run in its loop and epoch, for the names of files.

        Returns:
            the output, and the text of the Spark jobs.
        """
        from nosync_nb.spark.execution.bulk_run import BulkInput

        inputs = []
        each = zip(step.deltas, operator.layouts, step.before, given, strict=True)
        for delta, layout, before, types in each:
            arranged = isinstance(delta, Batch) and layout is not None
            if delta is None:
                inputs.append(BulkInput(None, types, None, None, before))
            elif arranged:
                inputs.append(BulkInput([delta], types, layout, None, before))
            else:
                updates = Updates(delta.columns, delta.diff)
                inputs.append(BulkInput([updates], types, None, None, before))
        stem = f"bulk{node.id}-{self._way.epoch}-{number}"
        result = self._run_bulk(
            operator, inputs, step.state, [], stage=node.stage, first=step.first, stem=stem
        )
        self.files.lend(r for refs in result.emitted for r in refs or ())
        step.add_touched(result.touched)
        parts = self._open_loose(result, operator.types)
        return concat_updates(parts, operator.types) if parts else None, result.jobs.text

    def run(
        self,
        node: Node,
        deltas: list[Delta | None],
        step: Step,
        graph: Graph,
        *,
        fuse: bool = False,
    ) -> OperatorResult:
        """Runs an operator on executors, as a Spark query whose jobs name stage and operator.

        Args:
            fuse: True to defer the operator to the run of its reader if possible.
        """
        from nosync_nb.spark.execution import bulk_run

        operator = node.operator
        assert operator is not None
        if fuse and isinstance(operator, Linear):
            (source,) = deltas
            assert source is not None
            delta = Delta(operator.types, later=(source, operator, step))
            return OperatorResult(delta, [], 0, "")
        inputs = [
            bulk_run.bulk_input_of(
                delta, graph.nodes[i].types, layout, before, alone=not operator.local
            )
            for delta, i, layout, before in zip(
                deltas, node.inputs, operator.layouts, step.before, strict=True
            )
        ]
        if fuse and bulk_run.can_fuse(operator):
            late = bulk_run.defer_bulk_run(operator, inputs, deltas, step, self._run_deferred)
            return OperatorResult(Delta(operator.types, pending=late), [], 0, "")
        outputs: list[Layout] = []
        if node.log is not None:
            outputs = list(node.traces)
        stem = f"bulk{node.id}-{self._way.epoch}"
        if any(delta is not None and delta.from_frame for delta in deltas):
            stem = FRAME + stem  # so that later runs over the results stay on executors, too
        result = self._run_bulk(
            operator, inputs, step.state, outputs, stage=node.stage, first=step.first, stem=stem
        )
        self.files.keep(r for refs in (*result.outputs, *result.emitted) for r in refs or ())
        emitted = [
            None if refs is None else self._open_change(refs, trace.layout)
            for refs, trace in zip(result.emitted, step.state, strict=True)
        ]
        output: Delta | None = None
        if outputs and result.rows:
            held = {
                layout: self._open_change(refs, layout)
                for layout, refs in zip(outputs, result.outputs, strict=True)
            }
            output = Delta(operator.types, None, held)
        elif result.loose:
            updates = self._open_loose(result, operator.types)
            output = Delta(operator.types, loose=UnarrangedChange(updates, tuple(result.loose)))
        return OperatorResult(output, emitted, result.touched, result.jobs.text)

    def _run_deferred(self, up: FusedUpstream) -> BulkOutput:
        """Runs a deferred operator separately."""
        from nosync_nb.spark.execution.bulk_run import BulkOutput

        stem = f"bulk-{self._way.epoch}-settled"
        result = self._run_bulk(
            up.operator, up.inputs, (), (), stage=up.stage, first=up.first, stem=stem
        )
        updates = self._open_loose(result, up.operator.types)
        loose = UnarrangedChange(updates, tuple(result.loose)) if updates else None
        return BulkOutput(loose, result.touched, result.jobs.text)

    def _run_bulk(
        self,
        operator: Operator,
        inputs: Sequence[BulkInput],
        state: Sequence[Trace],
        outputs: Sequence[Layout],
        *,
        stage: str,
        first: bool,
        stem: str,
    ) -> BulkResult:
        """Runs an operator's step on executors; see `bulk_run.run_bulk`."""
        from nosync_nb.spark.execution import bulk_run
        from nosync_nb.spark.launch import guarded_use

        spark = self._way.require(titled(stage))
        with guarded_use(spark, titled(stage)):
            return bulk_run.run_bulk(
                spark, operator, inputs, state, outputs, self._carrier,
                stage=stage, first=first, stem=stem, thorough=self._store.foreign,
            )  # fmt: skip

    def _open_loose(self, result: BulkResult, types: tuple[str, ...]) -> tuple[Updates, ...]:
        """Maps the loose updates of a run, whose files are retained during the epoch."""
        self.files.lend(result.loose)
        return tuple(open_updates(self._store.parts, ref, types) for ref in result.loose)

    def _open_change(self, refs: Any, layout: Layout) -> ArrangedChange:
        return ArrangedChange(tuple(self._store.open_part(r, layout) for r in refs), tuple(refs))


class LoopPlacementRun:
    """Runs the kernels of one loop in one epoch on executors.

    Args:
        step: the step of the loop, which records the jobs.
        forced: the placement that the user has requested.
        frames: the number of rows of the loop's inputs that came from a DataFrame.
    """

    def __init__(
        self, placement: Placement, node: Node, step: Step, forced: Forced, frames: int
    ) -> None:
        self._placement = placement
        self._node = node
        self._step = step
        self._requested_place = forced
        self._frames = frames
        self._number = 0

    def wants(self, rows: int) -> bool:
        """Returns True if a round with this number of rows should run on executors."""
        if self._requested_place == "spark":
            return rows > 0
        if is_small_run(rows, self._requested_place):
            return False
        return self._placement.wants_round(
            self._node, rows, min(rows, self._frames), self._requested_place
        )

    def run(
        self, operator: Operator, step: Step, types: Sequence[tuple[str, ...]]
    ) -> Updates | None:
        """Runs one kernel on executors."""
        self._number += 1
        updates, jobs = self._placement.run_inside(self._node, operator, step, types, self._number)
        self._step.ran_at(jobs)
        return updates


def _admissible(node: Node, chosen: PlacementChoice) -> PlacementChoice:
    """Returns the placement of a run.

    Raises:
        OutOfMemoryError: if no place has enough memory for it.
    """
    if chosen.place == NOWHERE:
        raise OutOfMemoryError(
            f"{titled(node.stage)}: {chosen.why}: it did not run, and nothing has changed",
            hint="commit or define over fewer rows at a time, or let Spark run it with %%dd --on"
            " spark; %%dd --on local tries it in this process",
        )
    return chosen


def _kind(operator: Operator) -> str:
    """Returns the kind of a kernel in the cost model; see `ROWS_PER_SECOND`."""
    if not operator.local:
        return "foreign"
    if operator.asks:
        return "function"
    if not operator.spreads:
        return "loop"
    if any(layout is not None and layout.order is not None for layout in operator.layouts):
        return "order"
    return "row" if operator.exchange() is None else "key"
