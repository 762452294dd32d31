"""Row-wise operators with expressions of Spark, as DataFrame operations before the exchange.

The pieces that Spark must evaluate become `where` and `selectExpr` on a frame of the rows and their
diffs. The pieces between them run in Python as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import NosyncError
from nosync_nb.operators import Linear, RowPiece, Step
from nosync_nb.rows.ddl import quoted
from nosync_nb.spark import error_translation, interval_transport
from nosync_nb.spark.execution import shuffle_records, tasks
from nosync_nb.spark.execution.tasks import RowSlice, TaskPlan
from nosync_nb.spark.launch import Spark
from nosync_nb.spark.registered_functions import pinned
from nosync_nb.spark.spark_session import check_settings
from nosync_nb.spark.workers import with_worker_gc_off
from nosync_nb.trace.batch import Updates

Records = Iterable[pa.RecordBatch]


def row_wise_frame(
    spark: Spark, plan: TaskPlan, port: int, work: Sequence[Sequence[tuple[int, RowSlice]]]
) -> Any:
    """A frame of the blocks of one input whose linear operator needs Spark."""
    pre = plan.inputs[port].pre
    assert pre is not None
    types: tuple[str, ...] = work[0][0][1].types
    query = spark.range(0, len(work), 1, len(work))
    query = query.mapInArrow(with_worker_gc_off(_reader(plan, work)), _ddl(types))
    local: list[RowPiece] = []
    start = types
    for piece in pre.pieces:
        if piece.local:
            local.append(piece)
            types = piece.types_after(types)
            continue
        if local:
            applier = _applier(plan, local, start, types)
            query = query.mapInArrow(with_worker_gc_off(applier), _ddl(types))
        query = _evaluate_piece(spark, query, piece, types)
        local, types = [], piece.types_after(types)
        start = types
    last = _cutter(plan, port, local, start, types)
    return query.mapInArrow(with_worker_gc_off(last), shuffle_records.BLOCKS_DDL)


def _evaluate_piece(spark: Spark, frame: Any, piece: RowPiece, types: tuple[str, ...]) -> Any:
    """Applies a piece that Spark evaluates to a frame."""
    check_settings(spark, piece.expressions)
    names = piece.schema.names
    diff = piece.schema.unused("diff")
    frame = interval_transport.from_transport(
        frame.toDF(*names, diff), [*names, diff], [*types, "bigint"]
    )
    if piece.outputs is None:
        (predicate,) = piece.expressions
        frame = frame.where(pinned(spark, [predicate])[0])
        texts = [quoted(name) for name in names]
    else:
        texts = [
            quoted(names[o]) if isinstance(o, int) else pinned(spark, [o])[0] for o in piece.outputs
        ]
    after = piece.types_after(types)
    texts = [
        interval_transport.sql_to_transport(text, type_)
        for text, type_ in zip(texts, after, strict=True)
    ]
    frame = frame.selectExpr(*texts, quoted(diff))
    count = len(texts)
    return frame.toDF(*(f"c{i}" for i in range(count)), "diff")


def _ddl(types: Sequence[str]) -> str:
    passed = map(interval_transport.transport_type, types)
    return ", ".join([*(f"c{i} {t}" for i, t in enumerate(passed)), "diff bigint"])


def _updates(record: pa.RecordBatch, types: Sequence[str]) -> Updates:
    columns = [rows.from_arrow(record.column(i), t) for i, t in enumerate(types)]
    return Updates(columns, record.column(len(types)).to_numpy())


def _record(updates: Updates, types: Sequence[str]) -> pa.RecordBatch:
    arrays = [rows.to_arrow(c, t) for c, t in zip(updates.columns, types, strict=True)]
    names = [*(f"c{i}" for i in range(len(types))), "diff"]
    return pa.record_batch([*arrays, pa.array(updates.diff)], names=names)


def _reader(
    plan: TaskPlan, work: Sequence[Sequence[tuple[int, RowSlice]]]
) -> Callable[[Records], Iterator[pa.RecordBatch]]:
    def read(records: Records) -> Iterator[pa.RecordBatch]:
        for record in records:
            for number in record.column(0).to_pylist():
                for _, piece in work[number]:
                    try:
                        updates = piece.read(plan.depot, thorough=plan.thorough)
                    except NosyncError as error:
                        raise error_translation.TaskError(
                            error_translation.error_to_text(error, plan.token)
                        ) from error
                    yield _record(updates, piece.types)

    return read


def _applier(
    plan: TaskPlan, pieces: Sequence[RowPiece], before: tuple[str, ...], after: tuple[str, ...]
) -> Callable[[Records], Iterator[pa.RecordBatch]]:
    chain = Linear(tuple(pieces), after)

    def apply(records: Records) -> Iterator[pa.RecordBatch]:
        for record in records:
            try:
                updates = _apply_chain(plan, chain, _updates(record, before))
            except NosyncError as error:
                raise error_translation.TaskError(
                    error_translation.error_to_text(error, plan.token)
                ) from error
            if updates is not None:
                yield _record(updates, after)

    return apply


def _cutter(
    plan: TaskPlan,
    port: int,
    pieces: Sequence[RowPiece],
    before: tuple[str, ...],
    after: tuple[str, ...],
) -> Callable[[Records], Iterator[pa.RecordBatch]]:
    chain = Linear(tuple(pieces), after)

    def made(records: Records) -> Iterator[shuffle_records.ShuffleRecord]:
        for updates in tasks.gathered_updates((_updates(r, before) for r in records), before):
            yield from tasks.cut_task(plan, port, _apply_chain(plan, chain, updates))

    def cut(records: Records) -> Iterator[pa.RecordBatch]:
        yield from shuffle_records.to_records(tasks.guarded_blocks(0, made(records)))

    return cut


def _apply_chain(plan: TaskPlan, chain: Linear, updates: Updates) -> Updates | None:
    return chain.step(Step([updates], [None], [None], (), stage=plan.stage))
