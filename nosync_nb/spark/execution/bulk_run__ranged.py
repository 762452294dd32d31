"""Bulk runs of kernels that must ask Spark: exchanged by executors, run here range by range.

A kernel whose expressions only Spark knows (an aggregate of such an argument) cannot ask from
inside a task. Its changes are arranged by executors; then the driver runs the kernel on one range
after the other, with at most a range in memory, and asks Spark for the values.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from nosync_nb.errors import titled
from nosync_nb.operators import Linear, Operator
from nosync_nb.spark import error_translation
from nosync_nb.spark.execution import bulk_run, tasks
from nosync_nb.spark.execution.bulk_run import BulkInput
from nosync_nb.spark.execution.shuffle_records import ERROR, MARK, REPORT, HashRanges, ShuffleRecord
from nosync_nb.spark.execution.task_payload import PlanPayload
from nosync_nb.spark.execution.task_results import BulkResult, combined_result
from nosync_nb.spark.fallback import evaluate_in_spark
from nosync_nb.spark.launch import Spark
from nosync_nb.spark.spark_session import Jobs, job_description
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.parts.part_file import PartRef


def run_by_ranges(
    spark: Spark,
    operator: Operator,
    inputs: Sequence[BulkInput],
    state: Sequence[Trace],
    outputs: Sequence[Layout],
    carrier: StagingService,
    *,
    stage: str,
    first: bool,
    stem: str,
    ranges: int,
    thorough: bool = False,
) -> BulkResult:
    """Does what `bulk.run` does, with the kernel in this process; see there."""
    depot = carrier.required(spark, f"{titled(stage)} is to run on Spark")
    temporary: list[PartRef] = []
    arrange = functools.partial(
        bulk_run.run_bulk, spark, carrier=carrier, stage=stage, stem=stem, thorough=thorough
    )
    try:
        given = []
        for port, each in enumerate(inputs):
            exchange = operator.layouts[port] or operator.exchange()
            assert exchange is not None
            parts = None
            if each.parts:
                moved = arrange(Linear((), exchange.types), [each], (), [exchange])
                parts = moved.outputs[0]
                temporary += parts
            given.append(BulkInput(parts, exchange.types, exchange, None, each.before))
        shipped = PlanPayload.local(carrier.folder, stem, thorough=thorough)
        with shipped as shipping, job_description(spark, stage, operator.name) as jobs:
            plan, _ = bulk_run.plan_bulk_run(
                operator, given, state, (), shipping,
                stage=stage, first=first, stem=stem, ranges=HashRanges(ranges),
            )  # fmt: skip
            result = combined_result(plan, _reports(plan, spark), jobs)
        if not outputs:
            return result
        temporary += result.loose
        loose = [BulkInput(result.loose, operator.types)]
        moved = arrange(Linear((), operator.types), loose, (), outputs)
        return moved._replace(
            emitted=result.emitted, touched=result.touched, jobs=_both(jobs, moved)
        )
    finally:
        carrier.drop(depot, temporary)


def _reports(plan: tasks.TaskPlan, spark: Spark) -> list[tuple[int, bytes]]:
    """Runs the kernel on every range, one after the other."""
    ask = functools.partial(evaluate_in_spark, spark)
    made = []
    for place in range(plan.ranges.count):
        for block in tasks.kernel_task(plan, [ShuffleRecord(place, MARK, None)], ask):
            if block.port == ERROR:
                raise error_translation.unpack_error(block.payload)
            made.append(block)
    written = list(tasks.write_task(plan, made))
    for block in written:
        if block.port == ERROR:
            raise error_translation.unpack_error(block.payload)
    return [(b.place, bytes(b.payload)) for b in written if b.port == REPORT]


def _both(first: Jobs, second: BulkResult) -> Jobs:
    return first.joined(second.jobs)
