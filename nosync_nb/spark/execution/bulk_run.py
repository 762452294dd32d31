"""Bulk runs: one operator on executors, with the same kernel as in process.

    slices of changes --map--> ranges of the key's hash --kernel--> ranges of each output --write-->

Spark moves the blocks between the steps, which tasks.py defines. The driver collects the reports of
the query once. Only reports that the driver received count, so retries and speculation are
harmless. A change that is already arranged by the operator's key is not exchanged: the kernels read
their ranges of its files.

A stateless operator with a single consumer does not run separately. It becomes a `DeferredBulkRun`
that runs in the query of its consumer, so its output is neither written to files nor counted. If
its rows are needed for another purpose, it runs separately after all.

Some kernels have expressions that only Spark can evaluate, for example the argument of an
aggregate, but a task cannot call Spark. So executors only arrange the changes of such a kernel. The
driver then runs the kernel on one range after the other, and calls Spark for the values. At most
one range is in memory.

Row-wise operators with expressions of Spark run as DataFrame operations before the exchange. The
pieces that Spark must evaluate become `where` and `selectExpr` on a frame of the rows and their
diffs. The pieces between them run in Python as usual.

Rejected: cogrouped pandas functions, because they sort rows in the JVM and need memory for a whole
group. Also rejected: a shuffle through our own files, because these would have to be deleted after
the loss of an executor.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from nosync_nb import rows
from nosync_nb.dataflow.runtime.delta import Delta, UnarrangedChange
from nosync_nb.errors import NosyncError, titled
from nosync_nb.operators import Linear, Operator, RowPiece, Step
from nosync_nb.rows.count_arithmetic import CountError, named_count_error
from nosync_nb.rows.ddl import quoted
from nosync_nb.spark import error_translation, interval_transport
from nosync_nb.spark.execution import shuffle_records, tasks
from nosync_nb.spark.execution.shuffle_records import (
    BLOCKS_DDL,
    ERROR,
    MARK,
    REPORT,
    HashRanges,
    ShuffleRecord,
)
from nosync_nb.spark.execution.tasks import (
    BulkResult,
    PlanPayload,
    RowSlice,
    Source,
    TaskInput,
    TaskPlan,
    collect_reports,
    combined_result,
)
from nosync_nb.spark.fallback import evaluate_in_spark
from nosync_nb.spark.launch import Spark
from nosync_nb.spark.registered_functions import pinned
from nosync_nb.spark.spark_session import check_settings, job_description
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.spark.workers import check_workers, with_worker_gc_off
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout, Updates
from nosync_nb.trace.parts.part_file import PartRef

Records = Iterable[pa.RecordBatch]


def row_wise_frame(
    spark: Spark, plan: TaskPlan, port: int, work: Sequence[Sequence[tuple[int, RowSlice]]]
) -> Any:
    """Returns a frame of the blocks of one input whose linear operator needs Spark.

    Args:
        port: the position of the input.
        work: the slices of the input for each task.
    """
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
    """Applies a piece that Spark evaluates to a frame of rows and diffs."""
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

    def shuffle_slices(records: Records) -> Iterator[shuffle_records.ShuffleRecord]:
        for updates in tasks.gathered_updates((_updates(r, before) for r in records), before):
            yield from tasks.cut_task(plan, port, _apply_chain(plan, chain, updates))

    def cut_batches(records: Records) -> Iterator[pa.RecordBatch]:
        yield from shuffle_records.to_records(tasks.guarded_blocks(0, shuffle_slices(records)))

    return cut_batches


def _apply_chain(plan: TaskPlan, chain: Linear, updates: Updates) -> Updates | None:
    return chain.step(Step([updates], [None], [None], (), stage=plan.stage))


RANGE_BYTES = 32 << 20
PIECE_ROWS_MAX = 1 << 20
PIECE_ROWS_MIN = 1 << 16


class FusedUpstream(NamedTuple):
    """An operator that has not run yet; it runs inside the query of its consumer.

    Args:
        stage: the stage that its errors name.
        first: True in a first run.
        size_bytes: the size of the changes of its inputs.
    """

    operator: Operator
    inputs: Sequence[BulkInput]
    stage: str
    first: bool
    size_bytes: int


class BulkInput(NamedTuple):
    """One input of a bulk run.

    Args:
        parts: the change, in part files or in memory; None if the input did not change.
        types: the column types of the parts.
        layout: the layout of every part; None for loose updates.
        pre: a linear operator that is applied first; None if there is none.
        before: the trace without the change, if the operator looks up rows in it. The kernel adds
            the change to it.
        upstream: the operator that computes the change, if it has not run yet. Then there are no
            parts.
    """

    parts: Sequence[Source] | None
    types: tuple[str, ...]
    layout: Layout | None = None
    pre: Linear | None = None
    before: Trace | None = None
    upstream: FusedUpstream | None = None


def run_bulk(
    spark: Spark,
    operator: Operator,
    inputs: Sequence[BulkInput],
    state: Sequence[Trace],
    outputs: Sequence[Layout],
    carrier: StagingService,
    *,
    stage: str,
    first: bool = False,
    ranges: int | None = None,
    stem: str = "bulk",
    thorough: bool = False,
) -> BulkResult:
    """Runs an operator's step on executors.

    Args:
        state: the traces of the operator's state before the run.
        outputs: the layouts of the output. If empty, the output is loose updates, in one file for
            each task.
        carrier: the staging service of the session whose parts are read and written.
        stage: the stage that errors and jobs name.
        first: True in a first run.
        ranges: the number of ranges of the key hash; by default it depends on slots and bytes.
        stem: the beginning of the names of the files.
        thorough: True if another user signed the log; then every value is validated.

    Raises:
        StageError: if a function of the user raised; equal to the error of a run in this process.
        NosyncError: for any other error of a kernel, and for failures of Spark.

    Cost: one Spark query; every changed row crosses the shuffle at most twice.
    """
    slots = check_workers(spark).slots
    count = ranges or ranges_count(inputs, slots)
    if isinstance(operator, Linear):
        inputs = [_fuse_linear(inputs[0], operator)]
        operator = Linear((), operator.types)
    if not operator.local:
        return _run_by_ranges(
            spark, operator, inputs, state, outputs, carrier,
            stage=stage, first=first, stem=stem, ranges=count, thorough=thorough,
        )  # fmt: skip
    depot = carrier.required(spark, f"{titled(stage)} is to run on Spark")
    with PlanPayload(carrier, depot, stem, thorough=thorough) as shipping:
        plan, pieces = plan_bulk_run(
            operator, inputs, state, outputs, shipping,
            stage=stage, first=first, stem=stem, ranges=HashRanges(count),
        )  # fmt: skip
        chain = ChainedQuery(spark, shipping, slots)
        names = " and ".join([*upstream_names(inputs), operator.name or "linear"])
        with job_description(spark, stage, names) as jobs:
            frame = chain.frame(plan, pieces, inputs)
            blamed = {number: (up.stage, up.operator.name) for number, up in chain.ups.items()}
            shipping.send()
            reports = collect_reports(spark, frame, stage, carrier, depot, plan.token, blamed)
    return combined_result(plan, reports, jobs)


def _run_by_ranges(
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
    """Runs an operator's step as `run_bulk` does, but with the kernel in this process.

    Executors only arrange the changes and the output.
    """
    depot = carrier.required(spark, f"{titled(stage)} is to run on Spark")
    temporary: list[PartRef] = []
    arrange = functools.partial(
        run_bulk, spark, carrier=carrier, stage=stage, stem=stem, thorough=thorough
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
            plan, _ = plan_bulk_run(
                operator, given, state, (), shipping,
                stage=stage, first=first, stem=stem, ranges=HashRanges(ranges),
            )  # fmt: skip
            result = combined_result(plan, _run_ranges(plan, spark), jobs)
        if not outputs:
            return result
        temporary += result.loose
        loose = [BulkInput(result.loose, operator.types)]
        moved = arrange(Linear((), operator.types), loose, (), outputs)
        return moved._replace(
            emitted=result.emitted, touched=result.touched, jobs=jobs.joined(moved.jobs)
        )
    finally:
        carrier.drop(depot, temporary)


def _run_ranges(plan: tasks.TaskPlan, spark: Spark) -> list[tuple[int, bytes]]:
    """Runs the kernel on every range, one after the other; returns the reports with ranges."""
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


def upstream_names(inputs: Sequence[BulkInput]) -> list[str]:
    """Returns the names of the fused operators of a run, in the order in which they run."""
    names = []
    for each in inputs:
        if each.upstream is not None:
            names += [*upstream_names(each.upstream.inputs), each.upstream.operator.name]
    return names


class ChainedQuery:
    """Builds the query of one run, including its fused operators.

    Attributes:
        ups: the fused operators, by the numbers of their plans.
    """

    def __init__(self, spark: Spark, shipping: PlanPayload, slots: int) -> None:
        self.spark = spark
        self.shipping = shipping
        self.slots = slots
        self.ups: dict[int, FusedUpstream] = {}

    def frame(
        self, plan: TaskPlan, pieces: list[tuple[int, RowSlice]], inputs: Sequence[BulkInput]
    ) -> Any:
        """Returns the DataFrame of the query; None if there is nothing to do.

        Its rows are the reports and errors of the tasks.
        """
        frame = self._kernel_frame(plan, pieces, inputs)
        own = range(len(plan.operator.state))
        if frame is not None and (plan.outputs or not all(tasks.keyed_alike(plan, i) for i in own)):
            frame = map_records(exchange_records(frame, plan.ranges.count), write_function(plan))
        return frame

    def _kernel_frame(
        self, plan: TaskPlan, pieces: list[tuple[int, RowSlice]], inputs: Sequence[BulkInput]
    ) -> Any:
        """Returns a frame of the blocks from the kernels of a plan and its fused operators."""
        ahead = [
            frame
            for port, each in reversed([*enumerate(inputs)])
            if each.upstream is not None
            and (frame := self._upstream_frame(plan, port, each.upstream)) is not None
        ]
        return _plan_frame(self.spark, plan, pieces, self.slots, ahead)

    def _upstream_frame(self, plan: TaskPlan, port: int, up: FusedUpstream) -> Any:
        """Returns a frame of the output of a fused operator, as blocks for its consumer."""
        number = len(self.ups) + 1
        self.ups[number] = up
        made, pieces = plan_bulk_run(
            up.operator, up.inputs, (), (), self.shipping,
            stage=up.stage, first=up.first, stem=plan.stem,
            ranges=plan.ranges,
        )  # fmt: skip
        made = dataclasses.replace(made, onward=(plan, port), number=number, token=plan.token)
        return self._kernel_frame(made, pieces, up.inputs)


def _fuse_linear(given: BulkInput, operator: Linear) -> BulkInput:
    """Returns an input with a linear operator appended to its linear operator `pre`."""
    before = () if given.pre is None else given.pre.pieces
    return given._replace(pre=Linear((*before, *operator.pieces), operator.types))


def ranges_count(inputs: Sequence[BulkInput], slots: int) -> int:
    """Returns the number of ranges: that of the slots, or a multiple if ranges would be too large.

    Hashes are uniform, so ranges have about the same size. There are no more ranges than necessary,
    because Spark takes about 30 ms for a task that does nothing.
    """
    size = sum(source_bytes(part) for each in inputs for part in each.parts or ())
    size += sum(each.upstream.size_bytes for each in inputs if each.upstream is not None)
    return even_ranges(size, RANGE_BYTES, slots)


def even_ranges(size_bytes: int, most: int, slots: int) -> int:
    """Returns the number of ranges of at most `most` bytes.

    It is a multiple of the number of slots, so that no slot is idle.
    """
    return slots * max(1, -(-size_bytes // (most * slots)))


def source_bytes(source: Source) -> int:
    """Returns the size of a part in bytes, in a file or in memory."""
    if isinstance(source, PartRef):
        return source.size_bytes
    return int(sum(c.nbytes for c in source.columns) + source.diff.nbytes)


def plan_bulk_run(
    operator: Operator,
    inputs: Sequence[BulkInput],
    state: Sequence[Trace],
    outputs: Sequence[Layout],
    shipping: PlanPayload,
    *,
    stage: str,
    first: bool,
    stem: str,
    ranges: HashRanges,
) -> tuple[TaskPlan, list[tuple[int, RowSlice]]]:
    """Returns the plan of a run, and the input slices that are exchanged, with their ports."""
    given = []
    pieces = []
    for port, each in enumerate(inputs):
        layout = operator.layouts[port]
        exchange = layout or operator.exchange()
        direct = None
        sources = [shipping.source(part, each.types) for part in each.parts or ()]
        if sources and exchange is not None and each.pre is None and each.layout == exchange:
            direct = tasks.StoredTrace(exchange, (tuple(sources),), shipping.thorough)  # type: ignore[arg-type]
        else:
            pieces += [
                (port, RowSlice(s, each.types, each.layout, 0, part_rows(s))) for s in sources
            ]
        before = None
        if layout is not None:
            before = shipping.trace(each.before or Trace(layout))
        given.append(TaskInput(exchange, layout, each.pre, direct, before))
    own = tuple(shipping.trace(trace) for trace in state)
    plan = TaskPlan(
        stage, operator, first, shipping.depot, stem, ranges, tuple(given), own, tuple(outputs),
        shipping.thorough,
    )  # fmt: skip
    return plan, pieces


def part_rows(source: Source) -> int:
    """Returns the number of rows of a part."""
    return source.rows if isinstance(source, PartRef) else len(source.diff)


def _plan_frame(
    spark: Spark,
    plan: TaskPlan,
    pieces: list[tuple[int, RowSlice]],
    slots: int,
    ahead: Sequence[Any],
) -> Any:
    """Returns a frame of the blocks from the kernels of a plan; None if there is no work.

    Args:
        ahead: frames of blocks from fused operators, which are cut for this plan already.
    """
    count = plan.ranges.count
    asking = {port for port, each in enumerate(plan.inputs) if each.pre and not each.pre.local}
    frames = []
    for port in sorted(asking):
        work = balanced_groups([p for p in pieces if p[0] == port], slots)
        frames += [row_wise_frame(spark, plan, port, work)] if work else []
    work = balanced_groups([p for p in pieces if p[0] not in asking], slots)
    if work:
        frames.append(
            map_records(spark.range(0, len(work), 1, len(work)), _map_function(plan, work))
        )
    marks = None
    if any(i.direct for i in plan.inputs) or (plan.first and plan.operator.global_row):
        marks = _mark_frame(spark, count)
    frames += ahead
    if not frames and marks is None:
        return None
    frame = _union([*frames, marks] if marks is not None else frames)
    if plan.exchanges:
        if frames:
            frame = exchange_records(frame, count)
        frame = map_records(frame, _kernel_function(plan))
    return frame


def _union(frames: Sequence[Any]) -> Any:
    return functools.reduce(lambda a, b: a.union(b), frames)


def balanced_groups(
    pieces: Sequence[tuple[int, RowSlice]], slots: int
) -> list[list[tuple[int, RowSlice]]]:
    """Splits and groups slices so that all tasks have about the same number of rows."""
    total = sum(p.stop - p.start for _, p in pieces)
    target = min(max(-(-total // slots), PIECE_ROWS_MIN), PIECE_ROWS_MAX)
    work: list[list[tuple[int, RowSlice]]] = []
    room = 0
    for port, piece in pieces:
        start = piece.start
        while start < piece.stop:
            if not room:
                work.append([])
                room = target
            stop = min(start + room, piece.stop)
            work[-1].append((port, piece._replace(start=start, stop=stop)))
            room -= stop - start
            start = stop
    return work


def _mark_frame(spark: Spark, count: int) -> Any:
    """Returns a frame with an empty block for every range, so that each kernel runs."""
    texts = ("cast(id as int) place", f"cast({MARK} as int) port", "cast(null as binary) payload")
    return spark.range(0, count, 1, count).selectExpr(*texts)


def map_records(frame: Any, function: Any) -> Any:
    """Applies a function of record batches to a frame; the result is a frame of blocks."""
    return frame.mapInArrow(with_worker_gc_off(function), BLOCKS_DDL)


def exchange_records(frame: Any, count: int) -> Any:
    """Repartitions a frame of blocks, so that all blocks of a range are in one partition."""
    if hasattr(frame, "repartitionById"):  # since Spark 4.1
        return frame.repartitionById(count, "place")
    return frame.repartition(count, "place")


def _map_function(plan: TaskPlan, work: list[list[tuple[int, RowSlice]]]) -> Any:
    def map_(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for record in records:
            for number in record.column(0).to_pylist():
                yield from shuffle_records.to_records(tasks.map_task(plan, work[number]))

    return map_


def _kernel_function(plan: TaskPlan) -> Any:
    def kernel(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from shuffle_records.to_records(
            tasks.kernel_task(plan, shuffle_records.from_records(records))
        )

    return kernel


def write_function(plan: TaskPlan) -> Any:
    """Returns the write step of a plan as a function of record batches."""

    def write(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from shuffle_records.to_records(
            tasks.write_task(plan, shuffle_records.from_records(records))
        )

    return write


class BulkOutput(NamedTuple):
    """The result of a deferred run: the output, the number of touched rows, and the Spark jobs."""

    loose: UnarrangedChange | None
    touched: int
    jobs: str


class DeferredBulkRun:
    """A change that executors compute when its consumer runs.

    Args:
        up: the operator that computes the change.
        rows: the number of rows in the changes of its inputs.
        from_frame: the number of these rows that came from a DataFrame.
        run: runs the operator separately.
    """

    def __init__(
        self,
        up: FusedUpstream,
        rows: int,
        from_frame: int,
        run: Callable[[FusedUpstream], BulkOutput],
    ) -> None:
        self.up = up
        self.rows = rows
        self.from_frame = from_frame
        self._run = run
        self._output: BulkOutput | None = None

    @property
    def size_bytes(self) -> int:
        """The size of the changes of its inputs."""
        return self.up.size_bytes

    @property
    def was_run_separately(self) -> bool:
        """True if the operator was run separately."""
        return self._output is not None

    @property
    def work(self) -> tuple[int, str] | None:
        """The work of a separate run; see `delta.DeferredChange`."""
        return None if self._output is None else (self._output.touched, self._output.jobs)

    def run_separately(self) -> UnarrangedChange | None:
        """Runs the operator separately, once; returns its output, or None if that is empty."""
        if self._output is None:
            try:
                self._output = self._run(self.up)
            except CountError as error:
                raise named_count_error(error, self.up.stage, self.up.operator.name) from None
        return self._output.loose


def can_fuse(operator: Operator) -> bool:
    """Returns True if an operator may run in its consumer's query, as it has no other effect."""
    return operator.local and operator.spreads and not operator.state and not operator.global_row


def defer_bulk_run(
    operator: Operator,
    inputs: Sequence[BulkInput],
    deltas: Sequence[Delta | None],
    step: Step,
    run: Callable[[FusedUpstream], BulkOutput],
) -> DeferredBulkRun:
    """Defers an operator's step over some changes to the run of its consumer."""
    given = [delta for delta in dict.fromkeys(deltas) if delta is not None]
    size = sum(delta.size_bytes for delta in given)
    up = FusedUpstream(operator, inputs, step.stage, step.first, size)
    return DeferredBulkRun(up, sum(map(len, given)), sum(delta.from_frame for delta in given), run)


def bulk_input_of(
    delta: Delta | None,
    types: tuple[str, ...],
    wanted: Layout | None,
    before: Trace | None,
    *,
    alone: bool,
) -> BulkInput:
    """Returns an input of a bulk run: the files of a change, or its deferred operators.

    Args:
        wanted: the layout in which the operator reads the change; `None` means any.
        before: the trace of the input before the change.
        alone: True if the run cannot include fused operators.
    """
    if delta is None:
        return BulkInput(None, types, None, None, before)
    pre = None
    while delta.later is not None:
        source, linear, _ = delta.later
        pieces = linear.pieces if pre is None else (*linear.pieces, *pre.pieces)
        pre = Linear(pieces, types)
        delta = source
    late = delta.pending
    if isinstance(late, DeferredBulkRun):
        if not (alone or late.was_run_separately or (pre is not None and not pre.local)):
            return BulkInput(None, delta.types, None, pre, before, late.up)
        loose = late.run_separately()
        return BulkInput(list(loose.refs) if loose else None, delta.types, None, pre, before)
    if delta.loose is not None:
        return BulkInput(list(delta.loose.refs), delta.types, None, pre, before)
    layouts = sorted(delta.held, key=lambda layout: layout != wanted)
    for layout in layouts:
        held = delta.held[layout]
        if held.refs:
            return BulkInput(list(held.refs), delta.types, layout, pre, before)
    if layouts and wanted in delta.held:
        return BulkInput(list(delta.held[wanted].parts), delta.types, wanted, pre, before)
    return BulkInput([delta.updates], delta.types, None, pre, before)
