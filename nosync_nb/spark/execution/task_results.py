"""Collects the reports of a query's tasks, or raises the error that ended it.

Only reports that the driver received count: no report names the files of a failed or repeated
attempt. If there are several errors, the choice of the one that is raised is deterministic.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nosync_nb.rows.count_arithmetic import CountError, named_count_error
from nosync_nb.spark import error_translation
from nosync_nb.spark.execution import shuffle_records
from nosync_nb.spark.execution.shuffle_records import ERROR, MARK, REPORT
from nosync_nb.spark.execution.tasks import TaskPlan
from nosync_nb.spark.launch import Spark
from nosync_nb.spark.spark_session import Jobs, job_tag
from nosync_nb.spark.staging.area import StagingArea
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.trace.parts.part_file import PartRef


class BulkResult(NamedTuple):
    """The result of a bulk run.

    Attributes:
        outputs: for each requested layout, parts disjoint and ascending in key hash.
        loose: without requested layouts, the output as loose updates.
        emitted: the change of each own trace, None without a change.
        rows: updates in the output; `touched`: as counted by the kernels.
        jobs: the Spark jobs.
    """

    outputs: list[list[PartRef]]
    loose: list[PartRef]
    emitted: list[list[PartRef] | None]
    rows: int
    touched: int
    jobs: Jobs


def collect_reports(
    spark: Spark,
    frame: Any | None,
    stage: str,
    carrier: StagingService,
    depot: StagingArea,
    token: str | None = None,
    blamed: Mapping[int, tuple[str, str]] | None = None,
) -> list[tuple[int, bytes]]:
    """Runs a query, downloads the files that it wrote, and returns its reports with their ranges.

    After an error these files are deleted.

    Args:
        blamed: stage and name of the fused operators, by the numbers of their plans.

    Raises:
        NosyncError: the error of the first range that sent one. If several operators failed, of the
            one that runs first, because later ones lack rows then. Or Spark's own failure.
    """
    if frame is None:
        return []
    with job_tag(spark):
        try:
            rows = frame.collect()
        except Exception as error:
            failure = error_translation.query_error(error, stage, token)
            carrier.doubt(depot, failure)
            raise failure from (failure.__cause__ or error)
    rows.sort(key=lambda row: row["place"])
    reports = [(row["place"], bytes(row["payload"])) for row in rows if row["port"] == REPORT]
    wrong = [row for row in rows if shuffle_records.is_error(row["port"])]
    written = [ref for _, payload in reports for ref in _reported_files(payload)]
    if wrong:
        carrier.drop(depot, written)
        row = min(wrong, key=lambda row: row["port"])
        told = error_translation.unpack_error(bytes(row["payload"]))
        if isinstance(told, CountError) and row["port"] != ERROR:
            told = named_count_error(told, *(blamed or {})[MARK - row["port"]])
        carrier.doubt(depot, told)
        raise told
    carrier.bring(depot, written)
    return reports


def _reported_files(payload: bytes) -> list[PartRef]:
    """The files that a report names."""
    report = json.loads(payload)
    every = [report.get("refs", ()), *report.get("state", {}).values()]
    if report.get("loose"):
        every.append([report["loose"]])
    return [PartRef(*ref) for refs in every for ref in refs]


def combined_result(plan: TaskPlan, reports: Iterable[tuple[int, bytes]], jobs: Jobs) -> BulkResult:
    """Combines the reports of all steps."""
    parts: list[list[PartRef]] = [[] for _ in plan.layouts]
    loose = []
    touched = 0
    for _, payload in reports:
        report = json.loads(payload)
        touched += report.get("touched", 0)
        if report.get("loose"):
            loose.append(PartRef(*report["loose"]))
        if "port" in report:
            parts[report["port"]] += [PartRef(*ref) for ref in report["refs"]]
        for number, refs in report.get("state", {}).items():
            parts[len(plan.outputs) + int(number)] += [PartRef(*ref) for ref in refs]
    for refs in parts:
        refs.sort(key=lambda ref: ref.low)
        assert all(a.high <= b.low for a, b in itertools.pairwise(refs))
    outputs = parts[: len(plan.outputs)]
    rows = sum(ref.rows for ref in (outputs[0] if outputs else loose))
    emitted = [refs or None for refs in parts[len(plan.outputs) :]]
    return BulkResult(outputs, loose, emitted, rows, touched, jobs)
