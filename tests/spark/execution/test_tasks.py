"""Tasks of a bulk run, without Spark: records, ranges, plans and errors."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import row_strategies
from hypothesis import given
from hypothesis import strategies as st
from models.batch_model import check, count, counted, encoded, pools, updates_of

from nosync_nb import Session, rows
from nosync_nb.errors import DurabilityError, NosyncError, StageError
from nosync_nb.expressions import compile_aggregates
from nosync_nb.operators import Aggregate, Filter, Join, Linear, Negate, Operator, Step
from nosync_nb.rows import Schema
from nosync_nb.rows.count_arithmetic import CountError
from nosync_nb.spark import error_translation
from nosync_nb.spark.execution import bulk_run, shuffle_records, tasks
from nosync_nb.spark.execution.bulk_run import BulkInput, BulkResult
from nosync_nb.spark.execution.shuffle_records import ERROR, MARK, HashRanges, ShuffleRecord
from nosync_nb.spark.execution.tasks import PlanPayload, consolidated_change, pruned_change
from nosync_nb.spark.spark_session import Jobs
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates
from nosync_nb.trace.parts.part_file import PartRef, open_part, write_parts

SCHEMA = Schema.parse("k bigint, s string")
TYPES = SCHEMA.types


def updates(seed: int, n: int) -> Updates:
    random = np.random.default_rng(seed)
    names = rows.objects([None if v == 0 else f"s{v}" for v in random.integers(0, 9, n)])
    return Updates([random.integers(0, 7, n), names], random.choice([-1, 1, 2], n))


def shuffled(given: Sequence[ShuffleRecord]) -> list[ShuffleRecord]:
    """Blocks as a shuffle returns them: in another order, from record batches."""
    return list(shuffle_records.from_records(shuffle_records.to_records(given[::-1])))


def run_in_process(
    operator: Operator,
    inputs: Sequence[BulkInput],
    state: Sequence[Trace],
    outputs: Sequence[Layout],
    folder: Path,
    *,
    ranges: int,
    first: bool = False,
) -> BulkResult:
    """Does what `bulk.run` does, with a list in place of Spark."""
    with PlanPayload.local(str(folder), "t") as payload:
        plan, pieces = bulk_run.plan_bulk_run(
            operator, inputs, state, outputs, payload,
            stage="s", first=first, stem="t", ranges=HashRanges(ranges),
        )  # fmt: skip
        plan, pieces = pickle.loads(pickle.dumps((plan, pieces)))
        made = [b for p in bulk_run.balanced_groups(pieces, 2) for b in tasks.map_task(plan, p)]
        if plan.exchanges:
            marks = [ShuffleRecord(place, MARK, None) for place in range(ranges)]
            made = list(tasks.kernel_task(plan, [*shuffled(made), *marks]))
        made = shuffled(list(tasks.write_task(plan, shuffled(made))))
    for block in made:
        if block.port == ERROR:
            raise error_translation.unpack_error(block.payload)
    return bulk_run.combined_result(plan, [(b.place, bytes(b.payload)) for b in made], Jobs())


@given(st.integers(1, 1000), st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_ranges_partition_all_hashes(number: int, hashes: list[int]) -> None:
    ranges = HashRanges(number)
    khash = np.array([*hashes, 0, 2**64 - 1], np.uint64)
    places = ranges.places(khash).tolist()
    for value, place in zip(khash.tolist(), places, strict=True):
        low, high = ranges.bounds(place)
        assert low <= value < high
    assert (ranges.low(0), ranges.low(number)) == (0, 2**64)
    assert (places[-2], places[-1]) == (0, number - 1)


@pytest.mark.parametrize("size", [10, shuffle_records.BLOCK_BYTES])
def test_blocks_carry_rows_to_their_ranges(size: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(shuffle_records, "BLOCK_BYTES", size)
    delta = updates(1, 100)
    made = list(shuffle_records.cut_by_range(delta, Layout(TYPES, (0,)), HashRanges(5), 3))
    assert (len(made) > 50) == (size == 10)
    places = shuffle_records.by_range_and_port(shuffled(made))
    assert list(places) == sorted(places)
    total = []
    for place, ports in places.items():
        part, khash = shuffle_records.join_records(ports[3], TYPES)
        found = shuffle_records.key_hash(Layout(TYPES, (0,)), part)
        assert khash is not None
        assert khash.tolist() == found.tolist()
        assert set(HashRanges(5).places(found).tolist()) == {place}
        total.append(part)
    assert count(concat_updates(total, TYPES), TYPES) == count(delta, TYPES)


@pytest.mark.parametrize("hashed", [True, False])
@pytest.mark.parametrize("ones", [True, False])
def test_blocks_omit_diffs_of_one_and_unused_hashes(ones: bool, hashed: bool) -> None:
    delta = updates(1, 3000)
    if ones:
        delta = Updates(delta.columns, np.ones(3000, np.int64))
    made = shuffle_records.cut_by_range(delta, Layout(TYPES), HashRanges(1), 0, hashed=hashed)
    (block,) = shuffled([*made])
    names = pa.ipc.open_stream(block.payload).schema.names
    assert names == ["c0", "c1", *([] if ones else ["diff"]), *(["hash"] if hashed else [])]
    part, khash = shuffle_records.join_records([block.payload], TYPES)
    assert count(part, TYPES) == count(delta, TYPES)
    assert (khash is not None) == hashed
    assert khash is None or (khash == rows.hash_columns(delta.columns, TYPES, 3000)).all()


def test_rows_without_columns_travel_as_diffs() -> None:
    made = [
        *shuffle_records.cut_by_range(
            Updates([], np.ones(3, np.int64)), Layout(()), HashRanges(2), 0
        )
    ]
    part, _ = shuffle_records.join_records([block.payload for block in shuffled(made)], ())
    assert part.diff.tolist() == [1, 1, 1]


def aggregate() -> Aggregate:
    found = compile_aggregates({"n": "count(*)", "least": "min(s)"}, SCHEMA, ["k"])
    return Aggregate(SCHEMA, (0,), found.calls, found.outputs, found.inner)


def test_join_by_ranges_equals_join(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tasks, "INLINE_BYTES", 700)
    operator = Join(TYPES, TYPES, (0,), (0,), [(0, 0), (0, 1), (1, 1)])
    left, right = operator.layouts
    assert left is not None
    assert right is not None
    old = [arrange(left, updates(1, 50)), arrange(right, updates(2, 50))]
    new = [arrange(left, updates(3, 40)), arrange(right, updates(4, 40))]
    before = [Trace(b.layout, (Layer(0, 1, (b,)),)) for b in old]
    after = [t.with_batch(b) for t, b in zip(before, new, strict=True)]
    here = operator.step(Step(new, before, after, ()))
    assert here is not None
    keyed = write_parts(str(tmp_path), [new[1]], "keyed")
    inputs = [
        BulkInput([new[0].updates], TYPES, None, None, before[0]),
        BulkInput(keyed, TYPES, right, None, before[1]),
    ]
    outputs = [Layout(operator.types), Layout(operator.types, (2,))]
    result = run_in_process(operator, inputs, (), outputs, tmp_path, ranges=3)
    for layout, refs in zip(outputs, result.outputs, strict=True):
        batches = [open_part(str(tmp_path), ref, layout) for ref in refs]
        for batch in batches:
            check(batch)
        assert counted(batches) == count(here, operator.types)
    kept = {ref.path for refs in (*result.outputs, keyed) for ref in refs}
    assert kept == {path.name for path in tmp_path.iterdir()}, "what was spilled is gone"


@pytest.mark.parametrize("ranges", [1, 2, 5])
def test_aggregate_by_ranges_equals_aggregate(ranges: int, tmp_path: Path) -> None:
    operator = aggregate()
    layout = Layout(operator.types)
    state = [Trace(s) for s in operator.state]
    for epoch in range(3):
        delta = updates(epoch, 60)
        delta = Updates(delta.columns, np.abs(delta.diff)) if epoch == 0 else delta
        step = Step([delta], [None], [None], state, first=epoch == 0)
        here = operator.step(step)
        assert here is not None
        negated = [BulkInput([delta.negated()], TYPES, None, Linear((Negate(),), TYPES))]
        result = run_in_process(
            operator, negated, state, [layout], tmp_path, ranges=ranges, first=epoch == 0
        )
        batches = [open_part(str(tmp_path), ref, layout) for ref in result.outputs[0]]
        assert counted(batches) == count(here, operator.types)
        for i, (refs, mine) in enumerate(zip(result.emitted, step.emitted, strict=True)):
            held = tuple(open_part(str(tmp_path), r, operator.state[i]) for r in refs or ())
            assert counted(held) == counted([mine] if mine is not None else [])
            layer = Layer(epoch, epoch + 1, held, tuple(refs or ()))
            state[i] = state[i].appended(layer)


def test_unused_columns_and_duplicate_rows_do_not_travel() -> None:
    delta = concat_updates([updates(seed, 100) for seed in range(10)], TYPES)
    found = compile_aggregates({"n": "count(*)"}, SCHEMA, ["k"])
    counts = Aggregate(SCHEMA, (0,), found.calls, found.outputs, found.inner)
    few = pruned_change(delta, TYPES, counts, 0)
    assert len(few.diff) <= 7
    assert int(few.diff.sum()) == int(delta.diff.sum())
    assert rows.to_pylist(few.columns[1], "string") == [None] * len(few.diff)
    assert pruned_change(delta, TYPES, Linear((), TYPES), 0) is delta
    join = Join(TYPES, TYPES, (0,), (0,), [(0, 1), (1, 0)])
    assert len(pruned_change(delta, TYPES, join, 0).diff) == 1000
    assert pruned_change(delta, TYPES, join, 0).columns[1] is delta.columns[1]
    assert rows.null_mask(pruned_change(delta, TYPES, join, 1).columns[1]).all()
    nothing = compile_aggregates({"n": "count(*)"}, SCHEMA, [])
    total = Aggregate(SCHEMA, (), nothing.calls, nothing.outputs, nothing.inner)
    assert pruned_change(delta, TYPES, total, 0).diff.tolist() == [int(delta.diff.sum())]


@given(st.data())
def test_consolidated_change_equals_arranged_change(data: st.DataObject) -> None:
    types = data.draw(st.lists(row_strategies.types, max_size=3).map(tuple))
    delta = data.draw(updates_of(types, data.draw(pools(types)), 20))
    added = consolidated_change(delta, types)
    assert count(added, types) == count(arrange(Layout(types), delta).updates, types)
    assert 0 not in added.diff.tolist()
    assert len(added.diff) == len(set(encoded(added.columns, types, len(added.diff))))


def test_count_overflow_names_row() -> None:
    most = np.array([2**62, 2**62], np.int64)
    with pytest.raises(CountError) as error:
        consolidated_change(Updates([np.array([7, 7])], most), ("bigint",))
    assert error.value.row == (7,)


@pytest.mark.parametrize(("size", "ranges"), [(0, 2), (1, 2), (64 << 20, 2), (65 << 20, 4)])
def test_ranges_are_multiple_of_slots(size: int, ranges: int) -> None:
    part = PartRef("part", 1, 0, 1, size, "")
    assert bulk_run.ranges_count([BulkInput([part], TYPES)], 2) == ranges
    assert bulk_run.even_ranges(size // 2, bulk_run.RANGE_BYTES // 2, 2) == ranges


def test_slices_are_balanced() -> None:
    batch = arrange(Layout(TYPES), updates(1, 100))
    big = tasks.RowSlice(batch, TYPES, batch.layout, 0, 10 * bulk_run.PIECE_ROWS_MAX)
    small = tasks.RowSlice(batch, TYPES, batch.layout, 0, 10)
    work = bulk_run.balanced_groups([(0, big), (1, small), (1, small)], 2)
    assert len(work) == 11
    assert [port for port, _ in work[-1]] == [1, 1]
    assert sum(p.stop - p.start for item in work for _, p in item) == big.stop + 20
    assert bulk_run.balanced_groups([], 2) == []


class _Failing(Filter):
    def __init__(self, error: Callable[[], Exception]) -> None:
        self.error = error

    def apply(self, given: Updates, step: Step) -> Updates:
        raise self.error()


def test_stage_errors_travel_as_data_and_bugs_raise(tmp_path: Path) -> None:
    delta = updates(1, 5)

    def map_with(error: Exception) -> list[ShuffleRecord]:
        pre = Linear((_Failing(lambda: error),), TYPES)
        with PlanPayload.local(str(tmp_path), "t") as payload:
            plan, pieces = bulk_run.plan_bulk_run(
                Linear((), TYPES), [BulkInput([delta], TYPES, None, pre)], (), (), payload,
                stage="s", first=False, stem="t", ranges=HashRanges(2),
            )  # fmt: skip
        return list(tasks.map_task(plan, pieces))

    (block,) = map_with(StageError("stage 's': no", stage="s", row=(1,)))
    (again,) = tasks.kernel_task(None, [block])  # type: ignore[arg-type]
    (last,) = tasks.write_task(None, [again])  # type: ignore[arg-type]
    assert isinstance(error_translation.unpack_error(last.payload), StageError)
    with pytest.raises(ZeroDivisionError):
        map_with(ZeroDivisionError())


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("no")

    def __repr__(self) -> str:
        return "<odd>"


@pytest.mark.parametrize("row", [(1, "a"), Unpicklable()])
@pytest.mark.parametrize("cause", [ValueError("why"), None])
def test_error_survives_transport(row: Any, cause: Exception | None) -> None:
    error = StageError("stage 's': f() raised", hint="mend it", stage="s", row=row)
    error.__cause__ = cause
    in_text = f"Error: {error_translation.error_to_text(error, 'f00')} at x.scala"
    for found in (
        error_translation.unpack_error(error_translation.pack_error(error)),
        error_translation.error_from_text(in_text, "f00"),
    ):
        assert isinstance(found, StageError)
        assert (str(found), found.hint, found.stage) == (str(error), "mend it", "s")
        assert found.row == (row if isinstance(row, tuple) else "<odd>")
        assert found.__notes__ == ["Hint: mend it"]
        if isinstance(found.__cause__, error_translation.RemoteTaskError):
            assert str(found.__cause__) == "ValueError: why"
        else:
            assert repr(found.__cause__) == repr(cause)
        if cause is not None:
            assert "On a Spark executor" in found.__cause__.__notes__[0]  # type: ignore[union-attr]
    other = error_translation.unpack_error(
        error_translation.pack_error(DurabilityError("disk full"))
    )
    assert type(other) is DurabilityError
    other = error_translation.error_from_text(
        error_translation.error_to_text(DurabilityError("disk full"), "f00"), "f00"
    )
    assert type(other) is DurabilityError
    assert error_translation.error_from_text("an ordinary message", "f00") is None


class Bomb:
    """A value that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("form", ["<nosync:{}>", "<nosync::{}>", "<nosync:f00:{}>"])
@pytest.mark.parametrize("token", [None, "", "bead"])
def test_pickle_in_message_is_never_loaded(tmp_path: Path, form: str, token: str | None) -> None:
    canary = tmp_path / "canary"
    bomb = base64.b64encode(pickle.dumps(Bomb(canary))).decode()
    error = SparkLikeError(
        f"[CAST_INVALID_INPUT] The value '{form.format(bomb)}' cannot be cast to INT.",
        "CAST_INVALID_INPUT",
    )
    found = error_translation.query_error(error, "s", token)
    assert "CAST_INVALID_INPUT" in str(found)
    assert not canary.exists()


def test_message_with_run_token_is_read_as_data(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    bomb = base64.b64encode(pickle.dumps(Bomb(canary))).decode()
    assert error_translation.error_from_text(f"<nosync:f00:{bomb}>", "f00") is None
    assert not canary.exists()


def test_each_run_has_own_token() -> None:
    plans = [tasks.TaskPlan("s", None, False, "", "", HashRanges(1), (), (), ()) for _ in range(2)]  # type: ignore[arg-type]
    assert len({plan.token for plan in plans}) == 2


@pytest.mark.spark
def test_text_cell_executes_nothing_in_driver(spark: Any, session: Session, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    bomb = base64.b64encode(pickle.dumps(Bomb(canary))).decode()
    frame = spark.createDataFrame([(f"<nosync:{bomb}>",)], "s string").selectExpr(
        "cast(s as int) as x"
    )
    numbers = session.input("numbers", "x int")
    with pytest.raises(NosyncError, match="CAST_INVALID_INPUT"):
        numbers.insert(frame)
    assert not canary.exists()


class SparkLikeError(Exception):
    def __init__(self, text: str, condition: str | None = None) -> None:
        super().__init__(text)
        self.condition = condition

    def getCondition(self) -> str | None:  # noqa: N802 - PySpark's name
        return self.condition


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            SparkLikeError("[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012",
                   "DIVIDE_BY_ZERO"),
            "stage 's': [DIVIDE_BY_ZERO] Division by zero",
        ),
        (
            SparkLikeError("An exception was thrown from the Python worker:\nTraceback\n  x\n"
                   "ModuleNotFoundError: No module named 'help'\n\tat org", "PYTHON_EXCEPTION"),
            "stage 's': a task on an executor failed: ModuleNotFoundError: No module named 'help'",
        ),
        (
            RuntimeError("calling o1.collect.\n: org.x.SparkException: Job aborted due to stage"
                         " failure: Task 0 failed 4 times, most recent failure: Lost task 0.3 in"
                         " stage 1.0 (TID 5) (h executor 1): org.x.SparkException: Worker died"
                         "\n\tat org.x\nCaused by: java.io.EOFException"),
            "stage 's': Spark failed: Worker died",
        ),
        (
            RuntimeError("An error occurred while calling o1.x.\n: org.x.E: Only one.\n\tat org"),
            "stage 's': Spark failed: Only one",
        ),
    ],
)  # fmt: skip
def test_spark_errors_are_translated(error: Exception, message: str) -> None:
    found = error_translation.query_error(error, "s")
    assert isinstance(found, NosyncError)
    assert str(found) == message


def test_shared_layer_is_cut_by_ranges_without_loss(tmp_path: Path) -> None:
    layout = Layout(TYPES, (0,))
    batch = arrange(layout, updates(1, 50))
    stored = tasks.StoredTrace(layout, ((batch,),))
    found: list[Batch] = []
    for place in range(4):
        found += stored.cut(str(tmp_path), *HashRanges(4).bounds(place)).parts()
    assert sum(map(len, found)) == len(batch)
    assert counted(found) == counted([batch])
