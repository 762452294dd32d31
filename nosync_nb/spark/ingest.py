"""Ingests a DataFrame of any size: executors write its rows as part files.

The DataFrame is executed once. Its rows cross Spark's shuffle once, to the ranges of their key.
Values are those of Spark: NaN stays NaN, and null stays null. Only -0.0 becomes 0.0, as in every
input.

Since version 4.1, Spark checks the size of a batch in bytes after each row. This takes as long as
all of its other work for the row. Rows of fixed-width columns have almost the same size, so it is
enough to count them. The Spark session is never configured: the limits apply to the jobs of this
thread only, and settings of the user take precedence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import SchemaError
from nosync_nb.operators import Linear
from nosync_nb.rows import Schema, widens
from nosync_nb.rows.ddl import quoted
from nosync_nb.rows.ingest.convert import adopt_same_schema
from nosync_nb.rows.types import FIXED, is_nested
from nosync_nb.spark import error_translation, interval_transport
from nosync_nb.spark.execution import bulk_run, shuffle_records, tasks
from nosync_nb.spark.execution.shuffle_records import HashRanges
from nosync_nb.spark.execution.tasks import (
    BulkResult,
    TaskInput,
    TaskPlan,
    collect_reports,
    combined_result,
)
from nosync_nb.spark.launch import Spark, is_connect
from nosync_nb.spark.spark_session import (
    estimated_bytes,
    job_description,
    job_tag,
    optimized_plan,
    spark_type_text,
)
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.spark.workers import check_workers
from nosync_nb.trace.batch import Layout, Updates
from nosync_nb.trace.parts.part_file import FRAME

RANGES_PER_SLOT = 4
"""The maximum number of ranges per slot, for a DataFrame that Spark estimates to be large."""

RANGES_UNTOLD = 2
"""The number of ranges per slot if Spark cannot estimate the size; most such frames are small."""

UNTOLD_BYTES = 1 << 62
"""The least estimate by which Spark means an unknown size, as for rows from this process."""

SMALL_BYTES = 16 << 20
"""The target size of a range by Spark's estimate, which may be the size of compressed files."""

ROWS = 1000
"""The number of rows in a batch if rows are counted; also the maximum number of blocks in one."""

BLOCK_BYTES = 128 << 10
"""The approximate size of a block if rows are counted, so that a batch has at most 128 MiB."""

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_COUNT_ROWS = {_BYTES: str(2**31 - 1), _ROWS: str(ROWS)}  # the largest value switches the check off
_PYTHON = re.compile("python|pandas|arrow", re.IGNORECASE)

Records = Iterable[pa.RecordBatch]


def schema_of(given: Any) -> Schema:
    """Returns the schema of a DataFrame, or of a `StructType`.

    Raises:
        SchemaError: if a column has an unsupported type; names the column.
    """
    struct = getattr(given, "schema", given)
    fields = []
    for field in struct.fields:
        type_ = spark_type_text(field.dataType)
        try:
            fields.append((field.name, rows.canonical_type(type_)))
        except SchemaError as error:
            raise SchemaError(
                f"column {field.name!r} has the type {type_}, which a column cannot have",
                hint="cast it, or leave it out with drop()",
            ) from error
    return Schema(fields)


def ingest(
    spark: Spark,
    frame: Any,
    schema: Schema,
    layouts: Sequence[Layout],
    carrier: StagingService,
    *,
    name: str = "input",
    sign: int = 1,
    ranges: int | None = None,
    stem: str = f"{FRAME}ingest",
) -> BulkResult:
    """Writes the rows of a DataFrame as parts, disjoint and ascending in key hash.

    Args:
        schema: the columns of the result. Those of the frame match by name, and their types must
            widen to these types.
        layouts: the layouts in which the rows are written, in the order of `outputs`.
        carrier: the staging service of the session that receives the parts.
        name: the name of the input, for messages.
        sign: the diff of each row; -1 for rows to remove.
        ranges: the number of ranges of the key hash, each of which must fit into the memory of a
            worker; by default it depends on the size of the frame.
        stem: the beginning of the names of the files.

    Raises:
        SchemaError: if the frame has other columns; quotes both schemas.
        NosyncError: if the frame fails while it is executed.

    Cost: one execution of the frame, and one shuffle of its rows for each layout.
    """
    frame = frame.selectExpr(*_casts(frame, schema, name))
    depot = carrier.required(spark, f"input '{name}'")
    count = ranges or _ranges_count(frame, check_workers(spark).slots)
    identity = Linear((), schema.types)
    source = TaskInput(None, None, None, None, None)
    plan = TaskPlan(
        name, identity, False, depot, stem, HashRanges(count), (source,), (), tuple(layouts)
    )
    counts = can_count_rows(spark, frame, schema.types)
    most = BLOCK_BYTES if counts else None
    with (
        job_description(spark, name, "ingest") as jobs,
        rows_per_batch(spark, wanted=counts),
    ):
        query = bulk_run.map_records(frame, _cutter(plan, schema.types, sign, most))
        query = bulk_run.map_records(
            bulk_run.exchange_records(query, count), bulk_run.write_function(plan)
        )
        reports = collect_reports(spark, query, name, carrier, depot)
    return combined_result(plan, reports, jobs)


def _ranges_count(frame: Any, slots: int) -> int:
    """Returns the number of ranges for a frame.

    It is small, because each range needs a task, which costs about 30 ms and a sync.
    """
    size = estimated_bytes(frame)
    if size is None or size >= UNTOLD_BYTES:
        return RANGES_UNTOLD * slots
    return min(bulk_run.even_ranges(size, SMALL_BYTES, slots), RANGES_PER_SLOT * slots)


def collect_small(
    spark: Spark, frame: Any, schema: Schema, rows_max: int, *, name: str
) -> pa.Table | None:
    """Returns the rows of a DataFrame as Arrow; None if there are more than `rows_max`.

    Raises:
        SchemaError, NosyncError: under the conditions of `ingest`.
    """
    frame = frame.selectExpr(*_casts(frame, schema, name)).limit(rows_max + 1)
    with job_description(spark, name, "fetch"), job_tag(spark):
        try:
            table = frame.toArrow()
        except Exception as error:
            raise error_translation.query_error(error, name) from error
    return table.rename_columns(schema.names) if table.num_rows <= rows_max else None


def check_columns(frame: Any, schema: Schema, name: str) -> None:
    """Raises SchemaError if a DataFrame does not have the columns of an input; runs no query."""
    _casts(frame, schema, name)


def _casts(frame: Any, schema: Schema, name: str) -> list[str]:
    """Returns expressions for the columns of a schema over a frame, in order, with safe names.

    Raises:
        SchemaError: if a column is missing, unknown, duplicated, or of another type.
    """
    casts: dict[int, str] = {}
    have = [(f.name, spark_type_text(f.dataType)) for f in frame.schema.fields]
    wrong = ""
    for own, type_ in have:
        try:
            at = schema.index(own)
        except SchemaError:
            wrong = wrong or f"unknown column {own!r}"
            continue
        wanted = schema.types[at]
        if at in casts:
            wrong = wrong or f"column {schema.names[at]!r} occurs twice"
        elif not _fits(type_, wanted):
            wrong = wrong or f"column {own!r} is {type_}, which is not exactly {wanted}"
        cast = f"cast({quoted(own)} as {wanted})"
        casts[at] = f"{interval_transport.sql_to_transport(cast, wanted)} as c{at}"
    missing = [each for at, each in enumerate(schema.names) if at not in casts]
    if missing and not wrong:
        wrong = f"column {missing[0]!r} is missing"
    if wrong:
        ddl = ", ".join(f"{own} {type_}" for own, type_ in have)
        raise SchemaError(
            f"stage '{name}': {wrong}: the DataFrame has ({ddl}), expected ({schema.ddl})",
            hint="select, rename or cast columns of the DataFrame",
        )
    return [casts[at] for at in range(len(schema.names))]


def _fits(type_: str, wanted: str) -> bool:
    if type_ == "void" or type_.startswith(("varchar(", "char(")):
        return type_ == "void" or wanted == "string"
    try:
        return widens(rows.canonical_type(type_), wanted)
    except SchemaError:
        return False


def _cutter(
    plan: TaskPlan, types: tuple[str, ...], sign: int, most: int | None
) -> Callable[[Records], Iterator[pa.RecordBatch]]:
    def cut_batches(records: Records) -> Iterator[pa.RecordBatch]:
        given = (_updates(record, types, sign) for record in records)
        made = (
            block
            for updates in tasks.gathered_updates(given, types)
            for port, layout in enumerate(plan.outputs)
            for block in shuffle_records.cut_by_range(updates, layout, plan.ranges, port, most)
        )
        yield from shuffle_records.to_records(tasks.guarded_blocks(0, made))

    return cut_batches


def _updates(record: pa.RecordBatch, types: tuple[str, ...], sign: int) -> Updates:
    """Returns the rows of a record batch from Spark in canonical form, with the diff `sign`."""
    columns = [_column(record.column(i), t) for i, t in enumerate(types)]
    return Updates(columns, np.full(record.num_rows, sign, np.int64))


def _column(array: pa.Array, type_: str) -> rows.Column:
    """Returns a column; a nested one is copied, because -0.0 inside must become 0.0."""
    if array.type != rows.arrow_type(type_):
        array = array.cast(rows.arrow_type(type_))
    return adopt_same_schema(array, type_) if is_nested(type_) else rows.from_arrow(array, type_)


def can_count_rows(spark: Spark, frame: Any, types: Sequence[str]) -> bool:
    """Returns True if Spark may count the rows of a frame's batches instead of their bytes.

    Returns False if the frame has columns of variable length, or if the user has set the size of
    batches. Also if the frame calls Python functions of the user, because these would receive other
    batches than usual; and on Connect.

    Args:
        types: the types of the columns that Spark passes to Python.

    Cost: a few ms.
    """
    if is_connect(spark) or not all(type_ in FIXED for type_ in types):
        return False
    try:
        said = spark.conf.getAll
        if _ROWS in said or _BYTES in said:
            return False
        spark.conf.get(_BYTES)  # raises in older versions of Spark, which have no such check
        plan = optimized_plan(frame).toString()
    except Exception:  # errors of the DataFrame appear when it is executed
        return False
    return _PYTHON.search(str(plan)) is None


@contextmanager
def rows_per_batch(spark: Spark, *, wanted: bool) -> Iterator[None]:
    """In a `with` block, jobs of this thread count the rows of batches, not bytes, if `wanted`."""
    if not wanted:
        yield
        return
    context = spark.sparkContext
    before = {key: context.getLocalProperty(key) for key in _COUNT_ROWS}
    try:
        for key, value in _COUNT_ROWS.items():
            context.setLocalProperty(key, value)
        yield
    finally:
        for key, old in before.items():
            context.setLocalProperty(key, old)
