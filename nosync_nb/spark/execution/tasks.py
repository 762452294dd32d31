"""The steps of a bulk run on executors, from slices of input to written part files.

    map      reads a slice of a changed part, applies the fused linear operator, cuts by hash range
    kernel   opens its range of the state, runs the operator's kernel, cuts the output by range
    write    arranges its range of an output and writes it as part files

Plans may form a chain: the output of a kernel goes `onward`, to the ranges of the next plan.

This module does not import Spark. Each step is a generator over blocks, so the driver can run it,
too. The `TaskPlan` has everything that a step needs. A `REPORT` names the files that a step wrote;
the driver receives no report for the files of a failed or repeated attempt. An error of NoSync is
sent as an `ERROR` block.

Only the columns that an operator uses cross the shuffle. Any other column is sent as nulls, which
take almost no space. If many rows are equal in the used columns, as for an aggregate of few groups,
their diffs are added up first. The result of the kernel is the same, because it depends only on the
sum of the diffs.

A `PlanPayload` prepares the data of a plan: references to part files, small batches, and spilled
files. Spilled files serve one run. They are deleted after it, or by their user.

`collect_reports` collects the reports of a query, or raises the error that ended it. Only reports
that the driver received count. If there are several errors, the choice of the one that is raised is
deterministic.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from nosync_nb import rows
from nosync_nb.errors import NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import PART, checked_path_within
from nosync_nb.operators import Evaluate, Linear, Operator, Step
from nosync_nb.rows.count_arithmetic import CountError, named_count_error
from nosync_nb.spark import error_translation
from nosync_nb.spark.execution import shuffle_records
from nosync_nb.spark.execution.shuffle_records import ERROR, MARK, REPORT, HashRanges, ShuffleRecord
from nosync_nb.spark.launch import Spark
from nosync_nb.spark.spark_session import Jobs, job_tag
from nosync_nb.spark.staging.location import StagingArea
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates, merge
from nosync_nb.trace.parts.part_file import PartRef, write_part, write_updates

Source: TypeAlias = PartRef | Batch | Updates

INLINE_BYTES = 1 << 20
INLINE_BYTES_MAX = 8 << 20


class PlanPayload:
    """Converts the driver's traces and changes to data of a plan.

    At the end of a `with` block it deletes the files that it has spilled.

    Args:
        carrier: uploads the files that executors read; see `send`.
        depot: the staging area of the run.
        stem: the beginning of the names of spilled files.
        thorough: True if another user signed the log; see `open_checked_part`.
    """

    def __init__(
        self, carrier: StagingService, depot: StagingArea, stem: str, *, thorough: bool = False
    ) -> None:
        self.depot = depot
        self._carrier = carrier
        self._references: list[PartRef] = []
        self.thorough = thorough
        self.stem = f"{stem}-spill"
        self._room = INLINE_BYTES_MAX
        self._spilled: list[PartRef] = []

    def __enter__(self) -> PlanPayload:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._carrier.drop(self.depot, self._spilled)

    @classmethod
    def local(cls, folder: str, stem: str, *, thorough: bool = False) -> PlanPayload:
        """Returns a payload for readers that see the folder, so that nothing is uploaded."""
        return cls(StagingService(folder), StagingArea(folder), stem, thorough=thorough)

    def send(self) -> None:
        """Uploads all referenced files; must be called before the plan runs.

        Raises:
            DurabilityError: if the staging area reports an error.
        """
        self._carrier.send(self.depot, self._references)

    def source(self, part: Source, types: tuple[str, ...]) -> Source:
        """Converts a part of a change; spills it to a file if it is in memory and not small."""
        if isinstance(part, Batch):
            return self.batch(part)
        if isinstance(part, PartRef):
            self._references.append(part)
            return part
        if self._fits(part):
            return part
        return self._add_spilled(write_updates(self.depot.folder, part, types, self.stem))

    def batch(self, part: Batch) -> PartRef | Batch:
        """Converts a batch; spills it to a file unless it is small."""
        if self._fits(part):
            return part
        return self._add_spilled(write_part(self.depot.folder, part, self.stem))

    def _add_spilled(self, ref: PartRef) -> PartRef:
        self._spilled.append(ref)
        self._references.append(ref)
        return ref

    @property
    def spilled(self) -> list[str]:
        """The names of the files that were spilled so far."""
        return [ref.path for ref in self._spilled]

    def trace(self, trace: Trace) -> StoredTrace:
        """Converts a trace; spills the layers in memory unless they are small."""
        layers = tuple(self.layer(layer) for layer in trace.layers)
        return StoredTrace(trace.layout, layers, self.thorough)

    def layer(self, layer: Layer) -> tuple[PartRef | Batch, ...]:
        """Converts a layer of a trace; see `trace`."""
        self._references += layer.files
        return layer.files or tuple(self.batch(part) for part in layer.parts if len(part))

    def _fits(self, part: Batch | Updates) -> bool:
        """Returns True if a part is small enough to be sent with the plan, and reserves space."""
        size = sum(int(c.nbytes) for c in part.columns) + 24 * len(part.diff)
        if size > INLINE_BYTES or size > self._room:
            return False
        self._room -= size
        return True


def delete_parts(refs: Iterable[PartRef], folder: str) -> None:
    """Deletes part files that are no longer referenced."""
    files = Files()
    for ref in refs:
        files.unlink(checked_path_within(folder, ref.path, PART))


GATHER_BYTES = 64 << 20
SAMPLE_ROWS = 4096

_SUM_MAX = 1 << 62
"""A bound of sums of counts; above it `arrange` is used, because it reports an overflow."""


class RowSlice(NamedTuple):
    """The rows `[start, stop)` of a part file, or of rows that are sent with the plan.

    Attributes:
        layout: the layout of the part; None for loose updates.
    """

    source: PartRef | Batch | Updates
    types: tuple[str, ...]
    layout: Layout | None
    start: int
    stop: int

    def read(self, depot: StagingArea, *, thorough: bool = False) -> Updates:
        """Returns the rows; those of a file are mapped."""
        source = self.source
        if isinstance(source, PartRef):
            if self.layout is None:
                source = depot.updates(source, self.types)
            else:
                source = open_checked_part(depot, source, self.layout, thorough=thorough)
        if isinstance(source, Batch):
            return source.slice(self.start, self.stop).updates
        columns = [rows.slice_(c, self.start, self.stop) for c in source.columns]
        return Updates(columns, source.diff[self.start : self.stop])


class StoredTrace(NamedTuple):
    """A trace in a plan: references to part files, and small batches by value.

    Attributes:
        thorough: True if another user signed the log of the files; see `open_checked_part`.
    """

    layout: Layout
    layers: tuple[tuple[PartRef | Batch, ...], ...]
    thorough: bool = False

    def cut(self, depot: StagingArea, low: int, high: int) -> Trace:
        """Returns the part of the trace with key hashes in `[low, high)`.

        Opens only the files that contain such hashes.
        """
        layers = []
        for at, sources in enumerate(self.layers):
            cuts = (self._cut_source(source, depot, low, high) for source in sources)
            parts = tuple(part for part in cuts if part is not None)
            if parts:
                layers.append(Layer(at, at + 1, parts))
        return Trace(self.layout, tuple(layers))

    def _cut_source(
        self, source: PartRef | Batch, depot: StagingArea, low: int, high: int
    ) -> Batch | None:
        if isinstance(source, PartRef):
            if source.high <= low or high <= source.low:
                return None
            source = open_checked_part(depot, source, self.layout, thorough=self.thorough)
        batch = source.cut(low, high)
        return batch if len(batch) else None


LOOKED_MAX = 4096
_looked: set[tuple[StagingArea, PartRef, bool]] = set()
"""The files that this process has validated; they need no second check, as they never change."""


def open_checked_part(depot: StagingArea, ref: PartRef, layout: Layout, *, thorough: bool) -> Batch:
    """Maps a part as the session does; each process validates a file once.

    Files of this run are validated like those of the log, because a check costs less than a write.

    Raises:
        CorruptLogError: if the file is missing, damaged, or outside of the folder.
        DurabilityError: if this applies to a copy in a staging area.
    """
    key = (depot, ref, thorough)
    batch = depot.part(ref, layout, checked=key not in _looked, thorough=thorough)
    if len(_looked) >= LOOKED_MAX:
        _looked.clear()
    _looked.add(key)
    return batch


@dataclass(frozen=True)
class TaskInput:
    """An input of a bulk run.

    Attributes:
        exchange: the layout whose key hash divides the change into ranges; None if the operator
            needs no ranges.
        layout: the layout in which the kernel needs the change; None if any order suffices.
        pre: a linear operator that is applied first; None if there is none.
        direct: the change, if it is already arranged by `exchange`, so that it is not exchanged.
        before: the trace without the change, if the kernel looks up rows in it.
    """

    exchange: Layout | None
    layout: Layout | None
    pre: Linear | None
    direct: StoredTrace | None
    before: StoredTrace | None


@dataclass(frozen=True)
class TaskPlan:
    """The plan of a bulk run of one operator, for its tasks.

    Attributes:
        stage: the stage that errors name.
        first: True in a first run.
        stem: the beginning of the names of the files.
        ranges: the ranges of the key hash.
        state: the traces of the operator's state before the run.
        outputs: the layouts of the output. If empty, the output is loose updates, in one file for
            each task.
        thorough: as in `StoredTrace`.
        token: identifies errors of this run in Spark's messages.
        onward: the plan that receives the output instead of files, and its port; None if there is
            no such plan.
        number: the number of the plan in its chain. The last plan has 0, and of two other plans the
            one with the greater number runs first.
    """

    stage: str
    operator: Operator
    first: bool
    depot: StagingArea
    stem: str
    ranges: HashRanges
    inputs: tuple[TaskInput, ...]
    state: tuple[StoredTrace, ...]
    outputs: tuple[Layout, ...]
    thorough: bool = False
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    onward: tuple[TaskPlan, int] | None = None
    number: int = 0

    @property
    def exchanges(self) -> bool:
        """True if the operator needs its rows by ranges of a key."""
        return any(each.exchange is not None for each in self.inputs)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layout of each port of the write step: outputs, then traces of the state."""
        return (*self.outputs, *self.operator.state)


def map_task(plan: TaskPlan, items: Sequence[tuple[int, RowSlice]]) -> Iterator[ShuffleRecord]:
    """Reads slices of inputs, and yields their rows as blocks for the ranges of their keys."""
    return guarded_blocks(0, _map_slices(plan, items), plan.number)


def _map_slices(plan: TaskPlan, items: Sequence[tuple[int, RowSlice]]) -> Iterator[ShuffleRecord]:
    for port, piece in items:
        yield from cut_task(
            plan, port, prepared_rows(plan, port, piece.read(plan.depot, thorough=plan.thorough))
        )


def prepared_rows(plan: TaskPlan, port: int, updates: Updates) -> Updates | None:
    """Applies the linear operator `pre` of an input to its rows."""
    pre = plan.inputs[port].pre
    if pre is None:
        return updates
    step = Step([updates], [None], [None], (), stage=plan.stage)
    return pre.step(step)


def cut_task(plan: TaskPlan, port: int, updates: Updates | None) -> Iterator[ShuffleRecord]:
    """Yields prepared rows as blocks for their ranges.

    If the operator needs no exchange, it runs the operator, and yields blocks of the output.
    """
    if updates is None or not updates:
        return
    exchange = plan.inputs[port].exchange
    if exchange is not None:
        updates = pruned_change(updates, exchange.types, plan.operator, port)
        hashed = plan.inputs[port].layout is not None
        yield from shuffle_records.cut_by_range(updates, exchange, plan.ranges, port, hashed=hashed)
        return
    deltas: list[Updates | Batch | None] = [None] * len(plan.inputs)
    deltas[port] = updates
    none = [None] * len(plan.inputs)
    step = Step(deltas, none, none, (), stage=plan.stage, first=plan.first)
    yield from _send_results(plan, 0, plan.operator.step(step), step)


def pruned_change(
    updates: Updates, types: tuple[str, ...], operator: Operator, port: int
) -> Updates:
    """Reduces a change to the columns and distinct rows that matter to an operator.

    Cost: the hashes of a sample of the rows. If at most half of the sampled rows are distinct, also
    15 ns per row.
    """
    wanted = operator.used(port)
    if wanted is None:
        return updates
    places = sorted(wanted)
    used = tuple(types[i] for i in places)
    kept = Updates([updates.columns[i] for i in places], updates.diff)
    if operator.combines and _has_many_equal_rows(kept, used):
        kept = consolidated_change(kept, used)
    n = len(kept.diff)
    columns = dict(zip(places, kept.columns, strict=True))
    return Updates([columns.get(i, rows.full_null(t, n)) for i, t in enumerate(types)], kept.diff)


def consolidated_change(updates: Updates, types: tuple[str, ...]) -> Updates:
    """Returns the updates with equal rows added up.

    Cost: 15 ns per row; for nested values, which Arrow does not compare, that of arranging them.
    """
    columns, diff = updates
    if not types or not len(diff) or max(int(diff.max()), -int(diff.min())) * len(diff) >= _SUM_MAX:
        return arrange(Layout(types), updates).updates
    names = [str(i) for i in range(len(types))]
    arrays = [rows.to_arrow(column, type_) for column, type_ in zip(columns, types, strict=True)]
    table = pa.table([*arrays, diff], names=[*names, "diff"])
    try:
        groups = table.group_by(names, use_threads=False).aggregate([("diff", "sum")])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # Arrow cannot group nested values
        return arrange(Layout(types), updates).updates
    groups = groups.combine_chunks()
    sums = groups.column("diff_sum").to_numpy()
    if not sums.all():
        kept = sums.nonzero()[0]
        groups, sums = groups.take(kept), sums[kept]
    each = (_contiguous(groups.column(name)) for name in names)
    return Updates([rows.from_arrow(a, type_) for a, type_ in zip(each, types, strict=True)], sums)


def _contiguous(column: pa.ChunkedArray) -> pa.Array:
    """Returns the only chunk of a column, or an empty array."""
    (array,) = column.chunks or [pa.array([], column.type)]
    return array


def _has_many_equal_rows(updates: Updates, types: tuple[str, ...]) -> bool:
    """Returns True if at most half of the rows of a sample are distinct."""
    n = min(len(updates.diff), SAMPLE_ROWS)
    hashes = rows.hash_columns([rows.slice_(c, 0, n) for c in updates.columns], types, n)
    return 2 * len(np.unique(hashes)) <= n


def gathered_updates(given: Iterable[Updates], types: Sequence[str]) -> Iterator[Updates]:
    """Concatenates small runs of updates to runs of about `GATHER_BYTES`, to cut fewer of them."""
    held: list[Updates] = []
    size = 0
    for updates in given:
        held.append(updates)
        size += sum(c.nbytes for c in updates.columns) + updates.diff.nbytes
        if size >= GATHER_BYTES:
            yield concat_updates(held, types)
            held, size = [], 0
    if held:
        yield concat_updates(held, types)


def kernel_task(
    plan: TaskPlan, given: Iterable[ShuffleRecord], evaluate: Evaluate | None = None
) -> Iterator[ShuffleRecord]:
    """Runs the kernel on each range that has a change, and yields blocks of its output."""
    for place, ports in shuffle_records.by_range_and_port(given).items():
        passing = [port for port in ports if port == REPORT or shuffle_records.is_error(port)]
        for port in passing:
            yield from (ShuffleRecord(place, port, payload) for payload in ports.pop(port))
        if not any(map(shuffle_records.is_error, passing)):
            yield from guarded_blocks(place, _kernel(plan, place, ports, evaluate), plan.number)


def _kernel(
    plan: TaskPlan, place: int, ports: dict[int, list[Any]], evaluate: Evaluate | None
) -> Iterator[ShuffleRecord]:
    low, high = plan.ranges.bounds(place)
    deltas: list[Updates | Batch | None] = []
    before: list[Trace | None] = []
    after: list[Trace | None] = []
    for port, each in enumerate(plan.inputs):
        delta = _input_change(plan, each, ports.get(port, []), low, high)
        old = None if each.before is None else each.before.cut(plan.depot, low, high)
        deltas.append(delta)
        before.append(old)
        after.append(old if old is None or delta is None else old.with_batch(delta))  # type: ignore[arg-type]
    operator = plan.operator
    if all(d is None for d in deltas) and not _owns_global_row(plan, place):
        return
    state = [stored.cut(plan.depot, low, high) for stored in plan.state]
    step = Step(deltas, before, after, state, stage=plan.stage, first=plan.first, evaluate=evaluate)
    output = operator.step(step)
    yield from _send_results(plan, place, output, step)


def _owns_global_row(plan: TaskPlan, place: int) -> bool:
    """Returns True if the initial row of a global aggregate belongs to this range."""
    if not (plan.first and plan.operator.global_row):
        return False
    return int(plan.ranges.places(rows.hash_columns([], (), 1))[0]) == place


def _input_change(
    plan: TaskPlan, given: TaskInput, payloads: list[Any], low: int, high: int
) -> Updates | Batch | None:
    """Returns the change of an input in a range, in the layout that the kernel needs, or None."""
    assert given.exchange is not None
    arranged = []
    if given.direct is not None:
        arranged = list(given.direct.cut(plan.depot, low, high).parts())
    if given.layout is None:
        loose = [b.updates for b in arranged]
        if payloads:
            loose.append(shuffle_records.join_records(payloads, given.exchange.types).updates)
        return concat_updates(loose, given.exchange.types) if loose else None
    if payloads:
        arranged.append(_arrange_blocks(given.layout, payloads))
    batch = merge(given.layout, arranged) if arranged else None
    return batch if batch is not None and len(batch) else None


def _arrange_blocks(layout: Layout, payloads: Sequence[Any]) -> Batch:
    """Returns the rows of blocks, arranged by the hashes that the blocks contain."""
    updates, khash = shuffle_records.join_records(payloads, layout.types)
    return arrange(layout, updates, khash=khash)


def _send_results(
    plan: TaskPlan, place: int, output: Updates | None, step: Step
) -> Iterator[ShuffleRecord]:
    """Yields blocks of the output and the state of a step, and last its report.

    Batches that need no exchange are written to files, which the report names.
    """
    report: dict[str, Any] = {"touched": step.touched, "state": {}}
    if output is not None and output:
        if plan.onward is not None:
            yield from _send_onward(*plan.onward, place, output)
        elif plan.outputs:
            for port, layout in enumerate(plan.outputs):
                yield from shuffle_records.cut_by_range(output, layout, plan.ranges, port)
        else:
            types = plan.operator.types
            report["loose"] = plan.depot.write_updates(output, types, plan.stem)
    low, high = plan.ranges.bounds(place)
    for number, batch in enumerate(step.emitted):
        if batch is None or not len(batch):
            continue
        if keyed_alike(plan, number):
            assert low <= int(batch.khash[0])
            assert int(batch.khash[-1]) < high
            report["state"][number] = plan.depot.write_parts([batch], plan.stem)
        else:
            port = len(plan.outputs) + number
            yield from shuffle_records.cut_by_range(batch.updates, batch.layout, plan.ranges, port)
    yield ShuffleRecord(place, REPORT, json.dumps(report).encode())


def _send_onward(plan: TaskPlan, port: int, place: int, output: Updates) -> Iterator[ShuffleRecord]:
    """Yields the output of a kernel as blocks for the next plan.

    Args:
        plan, port: the next plan and its input; errors count as errors of that plan.
    """

    def send_records() -> Iterator[ShuffleRecord]:
        yield from cut_task(plan, port, prepared_rows(plan, port, output))

    yield from guarded_blocks(place, send_records(), plan.number)


def keyed_alike(plan: TaskPlan, number: int) -> bool:
    """Returns True if a trace of the state has the same key, and so ranges, as the operator."""
    exchange, own = plan.operator.exchange(), plan.operator.state[number]
    return exchange is not None and _key_types(exchange) == _key_types(own)


def _key_types(layout: Layout) -> tuple[str, ...]:
    return tuple(layout.types[place] for place in layout.places)


def write_task(plan: TaskPlan, given: Iterable[ShuffleRecord]) -> Iterator[ShuffleRecord]:
    """Arranges each range of each output and writes it; passes reports and errors on."""
    for place, ports in shuffle_records.by_range_and_port(given).items():
        for port in [port for port in ports if port == REPORT or shuffle_records.is_error(port)]:
            yield from (ShuffleRecord(place, port, payload) for payload in ports.pop(port))
        yield from guarded_blocks(place, _write_ports(plan, place, ports))


def _write_ports(
    plan: TaskPlan, place: int, ports: dict[int, list[Any]]
) -> Iterator[ShuffleRecord]:
    for port, payloads in ports.items():
        if port == MARK:
            continue
        layout = plan.layouts[port]
        batch = _arrange_blocks(layout, payloads)
        refs = plan.depot.write_parts([batch], plan.stem)
        yield ShuffleRecord(place, REPORT, json.dumps({"port": port, "refs": refs}).encode())


def guarded_blocks(
    place: int, given: Iterator[ShuffleRecord], number: int = 0
) -> Iterator[ShuffleRecord]:
    """Yields the blocks of a step; if it raises an error of NoSync, the error is the last block."""
    try:
        yield from given
    except NosyncError as error:
        yield ShuffleRecord(
            place, shuffle_records.error_port(number), error_translation.pack_error(error)
        )


class BulkResult(NamedTuple):
    """The result of a bulk run.

    Attributes:
        outputs: the parts of the output for each requested layout, disjoint and ascending in key
            hash.
        loose: the output as loose updates, if no layout was requested.
        emitted: the change of each trace of the operator's state; None without a change.
        rows: the number of updates in the output.
        touched: the number of touched rows, as counted by the kernels.
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
        frame: the query; `None` means that there is no work.
        token: the token of the run, see `TaskPlan`.
        blamed: the stage and the name of each fused operator, by the number of its plan.

    Raises:
        NosyncError: the error of the operator that runs first among those that failed, because
            later ones lack its rows; of its errors, that of the first range. Or a failure of Spark.
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
    """Returns the files that a report names."""
    report = json.loads(payload)
    every = [report.get("refs", ()), *report.get("state", {}).values()]
    if report.get("loose"):
        every.append([report["loose"]])
    return [PartRef(*ref) for refs in every for ref in refs]


def combined_result(plan: TaskPlan, reports: Iterable[tuple[int, bytes]], jobs: Jobs) -> BulkResult:
    """Combines the reports of all steps of a run to its result."""
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
