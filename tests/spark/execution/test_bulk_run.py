"""Operators on executors: the same kernels and results, whatever Spark does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.batch_model import check, count, counted

from nosync_nb import rows
from nosync_nb.errors import StageError
from nosync_nb.expressions import compile_aggregates, compile_expression
from nosync_nb.operators import (
    Aggregate,
    AsOfJoin,
    Concat,
    Filter,
    Join,
    Linear,
    Map,
    Multiplicity,
    Operator,
    RangeJoin,
    Reduce,
    Select,
    Step,
    Threshold,
    except_all,
)
from nosync_nb.operators.range_join import Bounds, IntervalCodes
from nosync_nb.rows import Schema
from nosync_nb.spark.execution.bulk_run import BulkInput, BulkResult, run_bulk
from nosync_nb.spark.staging import staging
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates
from nosync_nb.trace.parts.part_file import open_part, open_updates, write_parts, write_updates

pytestmark = pytest.mark.spark

SCHEMA = Schema.parse("k int, s string, x double")
TYPES = SCHEMA.types


@pytest.fixture(scope="module", autouse=True)
def pickled_by_value(spark: Any) -> Iterator[None]:
    """Functions of this module go to workers by value, as those of a notebook do."""
    from pyspark import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def changes(seed: int, n: int, *, retract: Updates | None = None) -> Updates:
    """Random rows with some nulls and some retractions of existing rows."""
    random = np.random.default_rng(seed)
    k = rows.objects([None if v == 0 else int(v) for v in random.integers(0, 20, n)])
    s = rows.objects([None if v == 0 else f"s{v}" for v in random.integers(0, 6, n)])
    x = np.round(random.normal(size=n), 1) + 0.0
    made = Updates([k, s, x], np.ones(n, np.int64))
    if retract is None:
        return made
    gone = retract.take(random.choice(len(retract.diff), len(retract.diff) // 3, replace=False))
    return concat_updates([made, gone.negated()], TYPES)


def trace(layout: Layout, batches: Sequence[Batch]) -> Trace:
    layers = (Layer(i, i + 1, (b,)) for i, b in enumerate(batches))
    return Trace(layout, tuple(layers))


def stored(given: Trace, folder: str) -> Trace:
    """The same trace with its oldest layer in files."""
    if not given.layers:
        return given
    first, *rest = given.layers
    refs = tuple(write_parts(folder, first.parts, "spill"))
    parts = tuple(open_part(folder, ref, given.layout) for ref in refs)
    return Trace(given.layout, (Layer(first.lower, first.upper, parts, refs), *rest))


class ComparedRuns:
    """Runs an operator epoch by epoch, in process and on executors, and compares."""

    def __init__(
        self, spark: Any, operator: Operator, types: Sequence[Any], carrier: StagingService
    ) -> None:
        self.spark, self.operator, self.carrier = spark, operator, carrier
        self.folder = carrier.folder
        self.types = [tuple(t) for t in types]
        self.before: list[list[Batch]] = [[] for _ in types]
        self.state: list[list[Batch]] = [[] for _ in operator.state]
        self.first = True

    def epoch(self, deltas: Sequence[Updates | None], *, loose: bool = False) -> BulkResult:
        operator = self.operator
        layouts = operator.layouts
        given: list[Any] = []
        for layout, delta in zip(layouts, deltas, strict=True):
            arranged = delta is not None and layout is not None
            given.append(arrange(layout, delta) if arranged else delta)  # type: ignore[arg-type]
        old = self._traces(self.before)
        for i, batch in enumerate(given):
            if isinstance(batch, Batch):
                self.before[i].append(batch)
        state = [trace(t, b) for t, b in zip(operator.state, self.state, strict=True)]
        step = Step(given, old, self._traces(self.before), state, stage="s", first=self.first)
        here = operator.step(step)
        result = self._there(deltas, old, state, loose)
        expected = {} if here is None else count(here, operator.types)
        outputs = [Layout(operator.types)] if not loose else []
        if loose:
            parts = [open_updates(self.folder, ref, operator.types) for ref in result.loose]
            assert expected == count(concat_updates(parts, operator.types), operator.types)
        for layout, refs in zip(outputs, result.outputs, strict=True):
            batches = [open_part(self.folder, ref, layout) for ref in refs]
            for batch in batches:
                check(batch)
            assert expected == counted(batches)
        for own, refs, mine in zip(operator.state, result.emitted, step.emitted, strict=True):
            batches = [open_part(self.folder, ref, own) for ref in refs or ()]
            for batch in batches:
                check(batch)
            assert counted(batches) == (counted([mine]) if mine is not None else {})
        for held, emitted in zip(self.state, step.emitted, strict=True):
            held += [emitted] if emitted is not None else []
        self.first = False
        return result

    def _traces(self, held: list[list[Batch]]) -> list[Trace | None]:
        pairs = zip(self.operator.layouts, held, strict=True)
        return [None if layout is None else trace(layout, batches) for layout, batches in pairs]

    def _there(
        self, deltas: Sequence[Updates | None], old: Any, state: Any, loose: bool
    ) -> BulkResult:
        inputs = []
        for types, delta, before in zip(self.types, deltas, old, strict=True):
            parts: Any = None
            if delta is not None:
                half = np.arange(len(delta.diff)) % 2 == 0
                some, rest = (delta.take(m.nonzero()[0]) for m in (half, ~half))
                parts = [write_updates(self.folder, some, types, "d"), rest]
            before = None if before is None else stored(before, self.folder)
            inputs.append(BulkInput(parts, types, None, None, before))
        return run_bulk(
            self.spark, self.operator, inputs, [stored(s, self.folder) for s in state],
            [] if loose else [Layout(self.operator.types)], self.carrier,
            stage="s", first=self.first,
        )  # fmt: skip


def aggregate(keys: tuple[int, ...]) -> Aggregate:
    names = [SCHEMA.names[i] for i in keys]
    named = {"n": "count(*)", "total": "sum(x)", "worst": "max(x)", "low": "min(s)"}
    found = compile_aggregates(named, SCHEMA, names)
    return Aggregate(SCHEMA, keys, found.calls, found.outputs, found.inner)


def presence(keys: tuple[int, ...]) -> Aggregate:
    names = [SCHEMA.names[i] for i in keys]
    named = {
        "kinds": "count(distinct s, k)",
        "spread": "stddev(x)",
        "once": "sum(distinct x)",
        "bits": "bit_and(k) - bit_xor(k)",
        "by": "max_by(s, x)",
        "all": "collect_list(s)",
        "some": "any(x > 0)",
        "least": "min(x) filter (where k > 3)",
    }
    found = compile_aggregates(named, SCHEMA, names)
    return Aggregate(SCHEMA, keys, found.calls, found.outputs, found.inner)


def longest(key: Any, group: list[Any]) -> list[tuple[int, float]]:
    return [(len(group), max(row.x for row in group))]


OPERATORS: dict[str, Callable[[], Operator]] = {
    "join": lambda: Join(TYPES, TYPES, (0,), (0,), [(0, 0), (0, 1), (1, 2)]),
    "asof": lambda: AsOfJoin(TYPES, TYPES, (0,), 1, (1, 2), None),
    "one bound": lambda: RangeJoin(
        TYPES, TYPES, (0,), (0,), 2, Bounds(None, 2, below=True), 2, [(0, 0), (0, 2), (1, 2)]
    ),
    "aggregate": lambda: aggregate((0,)),
    "global aggregate": lambda: aggregate(()),
    "presence": lambda: presence((1,)),
    "global presence": lambda: presence(()),
    "except_all": lambda: Threshold("except_all", TYPES, except_all, 2),
    "multiplicity": lambda: Multiplicity(TYPES),
    "reduce": lambda: Reduce(SCHEMA, (1,), longest, Schema.parse("n int, most double")),
    "concat": lambda: Concat(TYPES, 2),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_executors_compute_what_kernel_computes_in_process(
    name: str, spark: Any, tmp_path: Path
) -> None:
    operator = OPERATORS[name]()
    sides = len(operator.layouts)
    both = ComparedRuns(spark, operator, [TYPES] * sides, StagingService(str(tmp_path)))
    start = [changes(i, 60) for i in range(sides)]
    both.epoch(start)
    both.epoch([changes(9, 30, retract=start[0]), *[None] * (sides - 1)], loose=True)


@pytest.mark.parametrize("keys", [(), (0,)], ids=["no_keys", "keys"])
def test_executors_find_the_same_intervals(
    keys: tuple[int, ...], spark: Any, tmp_path: Path
) -> None:
    bounds = Bounds(2, 3, above=True)
    types = (*TYPES, "double")
    outputs = [(0, 1), (0, 2), (1, 2), (1, 3)]
    operator = RangeJoin(TYPES, (*types, "bigint"), keys, keys, 2, bounds, 4, outputs)
    both = ComparedRuns(
        spark, operator, [TYPES, operator.layouts[1].types], StagingService(str(tmp_path))
    )

    def intervals(seed: int, n: int) -> Updates:
        starts = changes(seed, n)
        ends = np.asarray(starts.columns[2]) + np.arange(n) % 7 / 2
        step = Step([None], [None], [None], ())
        return IntervalCodes(types, bounds).apply(
            Updates([*starts.columns, ends], starts.diff), step
        )

    points = changes(1, 60)
    first = both.epoch([points, intervals(2, 60)])
    assert first.rows
    both.epoch([changes(9, 5, retract=points), None], loose=True)
    both.epoch([changes(3, 90), intervals(4, 4)])


@pytest.mark.parametrize("name", ["join", "presence", "reduce"])
def test_executors_without_folder_compute_the_same(name: str, spark: Any, tmp_path: Path) -> None:
    operator, folder = OPERATORS[name](), tmp_path / "folder"
    folder.mkdir()
    staging.assume_shared(spark, str(folder), shared=False)
    carrier = StagingService(str(folder), ("log", "1"), f"file://{tmp_path}/place")
    sides = len(operator.layouts)
    both = ComparedRuns(spark, operator, [TYPES] * sides, carrier)
    start = [changes(i, 60) for i in range(sides)]
    both.epoch(start)
    both.epoch([changes(9, 30, retract=start[0]), *[None] * (sides - 1)], loose=True)
    place = tmp_path / "place" / "log" / "1-0"
    assert {path.name for path in place.iterdir()} <= {path.name for path in folder.iterdir()}
    carrier.close()
    assert not place.exists()


def test_global_aggregate_of_no_rows_is_one_row(spark: Any, tmp_path: Path) -> None:
    both = ComparedRuns(spark, aggregate(()), [TYPES], StagingService(str(tmp_path)))
    assert both.epoch([None]).rows == 1


def test_arranged_changes_are_read_from_their_files(spark: Any, tmp_path: Path) -> None:
    folder = str(tmp_path)
    operator = aggregate((0,))
    layout = Layout(TYPES, (0,))
    delta = changes(3, 100)
    parts = write_parts(folder, [arrange(layout, delta)], "a")
    plain = run_bulk(
        spark, operator, [BulkInput(parts, TYPES, layout)],
        [Trace(s) for s in operator.state], [layout_of(operator)], StagingService(folder),
        stage="s", first=True,
    )  # fmt: skip
    step = Step([delta], [None], [None], [Trace(s) for s in operator.state], first=True)
    assert count(operator.step(step), operator.types) == counted(  # type: ignore[arg-type]
        [open_part(folder, ref, layout_of(operator)) for ref in plain.outputs[0]]
    )


def layout_of(operator: Operator) -> Layout:
    return Layout(operator.types)


def divide(row: Any) -> tuple[Any, ...]:
    return (row.k, 1 / row.x)


def test_raising_function_is_same_error_on_executors(spark: Any, tmp_path: Path) -> None:
    output = Schema.parse("k int, y double")
    operator = Linear([Map(divide, SCHEMA, output)], output.types)
    delta = Updates([rows.objects([1]), rows.objects(["a"]), np.array([0.0])], np.ones(1, np.int64))
    with pytest.raises(StageError) as here:
        operator.step(Step([delta], [None], [None], (), stage="s"))
    with pytest.raises(StageError) as there:
        run_bulk(
            spark,
            operator,
            [BulkInput([delta], TYPES)],
            [],
            [],
            StagingService(str(tmp_path)),
            stage="s",
        )
    assert str(there.value) == str(here.value)
    assert (there.value.stage, there.value.row) == (here.value.stage, here.value.row)
    assert isinstance(there.value.__cause__, ZeroDivisionError)
    assert there.value.hint == here.value.hint
    assert list(tmp_path.iterdir()) == []


def test_raising_function_is_same_error_before_spark_expression(spark: Any, tmp_path: Path) -> None:
    """No row can carry the error there: it travels as text under the token of the run."""
    output = Schema.parse("k int, y double")
    sql = compile_expression("mask(string(y))", output, types=lambda *_: ["string"])
    chain = Linear([Map(divide, SCHEMA, output), Select([sql], output)], ("string",))
    delta = Updates([rows.objects([1]), rows.objects(["a"]), np.array([0.0])], np.ones(1, np.int64))
    with pytest.raises(StageError, match="ZeroDivisionError") as there:
        run_bulk(
            spark,
            chain,
            [BulkInput([delta], TYPES)],
            [],
            [],
            StagingService(str(tmp_path)),
            stage="s",
        )
    assert (there.value.stage, there.value.row) == ("s", (1, "a", 0.0))
    assert "On a Spark executor" in there.value.__cause__.__notes__[0]  # type: ignore[union-attr]
    assert list(tmp_path.iterdir()) == []


def fragile(row: Any) -> tuple[Any, ...]:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        os._exit(7)
    return (row.k, row.s)


@pytest.mark.fault(4)
def test_killed_worker_changes_nothing(spark: Any, tmp_path: Path) -> None:
    output = Schema.parse("k int, s string")
    operator = Linear([Map(fragile, SCHEMA, output)], output.types)
    delta = changes(5, 50)
    found = run_bulk(
        spark, operator, [BulkInput([delta], TYPES)], [], [Layout(output.types)],
        StagingService(str(tmp_path)), stage="s",
    )  # fmt: skip
    batches = [open_part(str(tmp_path), ref, Layout(output.types)) for ref in found.outputs[0]]
    assert count(Updates(delta.columns[:2], delta.diff), output.types) == counted(batches)


def test_spark_expressions_run_before_exchange(spark: Any, tmp_path: Path) -> None:
    def types(sqls: Sequence[str], schema: Schema) -> list[str]:
        from nosync_nb.spark import fallback

        return [fallback.analysed(spark, sql, schema)[0] for sql in sqls]

    twice = compile_expression("mask(s)", SCHEMA, types=types)
    assert not twice.local
    output = (twice.type, "int")
    chain = Linear([Select([twice, 0], SCHEMA)], output)
    delta = changes(7, 50)
    found = run_bulk(
        spark,
        chain,
        [BulkInput([delta], TYPES)],
        [],
        [Layout(output)],
        StagingService(str(tmp_path)),
        stage="s",
    )
    from nosync_nb.spark.fallback import evaluate_in_spark

    values = evaluate_in_spark(spark, [twice], SCHEMA, delta.columns, len(delta.diff))
    batches = [open_part(str(tmp_path), ref, Layout(output)) for ref in found.outputs[0]]
    expected = count(Updates([values[0], delta.columns[0]], delta.diff), output)
    assert expected == counted(batches)
    keep = Linear([Filter(compile_expression("mask(s) = 'xn'", SCHEMA, types=types), SCHEMA)],
                  TYPES)  # fmt: skip
    loose = run_bulk(
        spark, keep, [BulkInput([delta], TYPES)], [], [], StagingService(str(tmp_path)), stage="s"
    ).loose
    assert sum(ref.rows for ref in loose) == values[0].tolist().count("xn")
    assert loose


def test_spark_aggregates_run_by_range(spark: Any, tmp_path: Path) -> None:
    def types(sqls: Sequence[str], schema: Schema) -> list[str]:
        from nosync_nb.spark import fallback

        return [fallback.analysed(spark, sql, schema)[0] for sql in sqls]

    found = compile_aggregates({"most": "max(mask(s))"}, SCHEMA, ["k"], types=types)
    operator = Aggregate(SCHEMA, (0,), found.calls, found.outputs, found.inner)
    assert not operator.local
    delta = changes(8, 40)
    state = [Trace(s) for s in operator.state]
    result = run_bulk(
        spark, operator, [BulkInput([delta], TYPES)], state, [layout_of(operator)],
        StagingService(str(tmp_path)), stage="s", first=True, ranges=2,
    )  # fmt: skip
    from nosync_nb.spark.fallback import evaluate_in_spark

    def ask(*given: Any) -> list[Any]:
        return evaluate_in_spark(spark, *given)

    step = Step([delta], [None], [None], state, stage="s", first=True, evaluate=ask)
    here = operator.step(step)
    assert here is not None
    batches = [open_part(str(tmp_path), ref, layout_of(operator)) for ref in result.outputs[0]]
    assert count(here, operator.types) == counted(batches)
    named = {ref.path for refs in (result.outputs[0], *result.emitted) for ref in refs or ()}
    assert named == {path.name for path in tmp_path.iterdir()}
