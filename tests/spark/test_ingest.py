"""DataFrames of Spark as rows: loading, evaluation and types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from models.batch_model import check, count, counted

import nosync_nb
from nosync_nb import rows
from nosync_nb.errors import ExpressionError, NegativeMultiplicityError, NosyncError, SchemaError
from nosync_nb.expressions import compile_expression
from nosync_nb.rows import Schema
from nosync_nb.spark import fallback, workers
from nosync_nb.spark.ingest import ingest, schema_of
from nosync_nb.spark.spark_session import frame_of
from nosync_nb.spark.staging.staging import StagingService
from nosync_nb.trace.batch import Layout, Updates
from nosync_nb.trace.parts.part_file import PartRef, open_part

pytestmark = pytest.mark.spark

NAN = float("nan")
EVERY = {
    "flag boolean": [True, False, None],
    "tiny tinyint": [-128, 127, None],
    "small smallint": [-(2**15), 7, None],
    "`an int` int": [-(2**31), 7, None],
    "big bigint": [-(2**63), 7, None],
    "single float": [NAN, 1.5, None],
    "x double": [NAN, -0.0, None],
    "d decimal(38,10)": [Decimal("1.5"), Decimal("-2.25"), None],
    "s string": ["", "ä\U0001f600", None],
    "raw binary": [b"", b"\0x", None],
    "day date": [date(1, 1, 1), date(2024, 2, 29), None],
    "at timestamp": [datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 1, tzinfo=UTC), None],
    "local timestamp_ntz": [datetime(1900, 1, 1), datetime(2024, 2, 29, 1), None],
    "many array<double>": [[NAN, -0.0, None], [], None],
    "pair struct<a:int,b:string>": [{"a": 1, "b": "x"}, {"a": None, "b": None}, None],
    "facts map<string,int>": [[("b", 1), ("a", None)], [], None],
}
SCHEMA = Schema.parse(", ".join(EVERY))


ODD_NAMES = "`größe` int, `a.b` int, `back``tick` int, `*` int, `s t` struct<`größe`:int,`a.b`:int>"


def test_columns_may_have_any_name(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        odd = session.input("odd", ODD_NAMES)
        odd.insert([(1, 2, 3, 4, (5, 6))])
        session.commit()
        odd.insert(odd.to_spark())
        session.commit()
        assert odd.schema == Schema.parse(ODD_NAMES) == schema_of(odd.to_spark())
        (row,) = spark.table("odd").distinct().collect()
        assert tuple(row) == (1, 2, 3, 4, (5, 6))
        assert odd.count() == 2


def test_empty_stage_is_empty_frame_with_its_columns(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        empty = session.input("empty", SCHEMA.ddl)
        assert empty.to_spark().collect() == []
        assert schema_of(empty.to_spark()) == SCHEMA


def test_frame_of_negative_count_names_stage(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        numbers = session.input("numbers", "x int")
        numbers.remove([(3,)])
        session.commit()
        with pytest.raises(NegativeMultiplicityError, match=r"'numbers': the row \(3,\) has"):
            numbers.to_spark()


def updates_of_all_types() -> Updates:
    """Rows of all types: bounds, NaN, null, a row of nulls, a duplicate row."""
    pairs = zip(EVERY.values(), SCHEMA.types, strict=True)
    columns = [rows.from_arrow(pa.array(v, rows.arrow_type(t)), t) for v, t in pairs]
    made = Updates(columns, np.ones(3, np.int64))
    return made.take(np.array([0, 1, 2, 1]))


def table(updates: Updates, schema: Schema) -> pa.Table:
    pairs = zip(updates.columns, schema.types, strict=True)
    return pa.table([rows.to_arrow(c, t) for c, t in pairs], schema=schema.arrow)


def opened(refs: Sequence[PartRef], layout: Layout, folder: Path) -> Any:
    batches = [open_part(str(folder), ref, layout) for ref in refs]
    for batch in batches:
        check(batch)
    return counted(batches)


def types_of(spark: Any) -> Any:
    return lambda sqls, schema: [fallback.analysed(spark, sql, schema)[0] for sql in sqls]


def test_ingest_keeps_every_type(spark: Any, tmp_path: Path) -> None:
    given = updates_of_all_types()
    frame = frame_of(spark, table(given, SCHEMA), SCHEMA)
    assert schema_of(frame) == SCHEMA
    layout = Layout(SCHEMA.types, (8,))
    found = ingest(spark, frame, SCHEMA, [layout], StagingService(str(tmp_path)), name="all")
    (refs,), jobs = found.outputs, found.jobs
    assert opened(refs, layout, tmp_path) == count(given, SCHEMA.types)
    assert jobs.text.startswith("Spark job")
    assert {ref.path for ref in refs} == {path.name for path in tmp_path.iterdir()}


def test_ingest_matches_names_widens_and_removes(spark: Any, tmp_path: Path) -> None:
    schema = Schema.parse("k bigint, x double, s string")
    frame = spark.sql("select 'a' S, cast(1 as int) K, cast(1.5 as float) x union all"
                      " select null, null, 2")  # fmt: skip
    layout = Layout(schema.types)
    (refs,) = ingest(
        spark, frame, schema, [layout], StagingService(str(tmp_path)), sign=-1, ranges=1
    ).outputs
    columns = [rows.objects([1, None]), np.array([1.5, 2.0]), rows.objects(["a", None])]
    wanted = Updates(columns, np.full(2, -1, np.int64))
    assert opened(refs, layout, tmp_path) == count(wanted, schema.types)


def test_ingest_executes_frame_once(spark: Any, tmp_path: Path) -> None:
    seen = spark.sparkContext.accumulator(0)

    def counting(records: Any) -> Any:
        for record in records:
            seen.add(record.num_rows)
            yield record

    frame = spark.range(1000).mapInArrow(counting, "id bigint")
    schema = Schema.parse("id bigint")
    layouts = [Layout(schema.types)]
    (refs,) = ingest(spark, frame, schema, layouts, StagingService(str(tmp_path))).outputs
    assert (seen.value, sum(ref.rows for ref in refs)) == (1000, 1000)
    none = ingest(spark, frame.where("id < 0"), schema, layouts, StagingService(str(tmp_path)))
    assert none.outputs == [[]]


def test_small_frame_is_written_by_one_task_per_slot(spark: Any, tmp_path: Path) -> None:
    schema = Schema.parse("id bigint")
    slots = workers.check_workers(spark).slots
    for frame, ranges in ((spark.range(1000), slots), (frame_of_unknown_size(spark), 2 * slots)):
        (refs,) = ingest(
            spark, frame, schema, [Layout(schema.types)], StagingService(str(tmp_path))
        ).outputs
        assert sum(ref.rows for ref in refs) == 1000
        assert len(refs) == ranges


def frame_of_unknown_size(spark: Any) -> Any:
    return spark.createDataFrame(
        spark.sparkContext.parallelize([(i,) for i in range(1000)]), ["id"]
    )


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select 1 k", "column 's' is missing"),
        ("select 1 k, 'a' s, 2 more", "unknown column 'more'"),
        ("select 1L k, 'a' s", "column 'k' is bigint, which is not exactly int"),
        ("select 1 k, 'a' s, 2 K", "column 'k' occurs twice"),
    ],
)
def test_other_schema_is_refused_quoting_both(
    sql: str, message: str, spark: Any, tmp_path: Path
) -> None:
    schema = Schema.parse("k int, s string")
    with pytest.raises(SchemaError) as caught:
        ingest(
            spark,
            spark.sql(sql),
            schema,
            [Layout(schema.types)],
            StagingService(str(tmp_path)),
            name="flights",
        )
    assert f"stage 'flights': {message}" in str(caught.value)
    assert "expected (k int, s string)" in str(caught.value)


def test_failing_frame_reports_reason(spark: Any, tmp_path: Path) -> None:
    schema = Schema.parse("x int")
    frame = spark.range(10).selectExpr("cast(8 div (id - 3) as int) x")
    with pytest.raises(NosyncError, match=r"stage 'input': \[DIVIDE_BY_ZERO\]"):
        ingest(spark, frame, schema, [Layout(schema.types)], StagingService(str(tmp_path)))


def test_types_are_those_of_spark(spark: Any) -> None:
    schema = Schema.parse("a int, s string")
    found = types_of(spark)(["soundex(s) as x", "a + 1L", "map(s, array(a))"], schema)
    assert found == ["string", "bigint", "map<string,array<int>>"]
    with pytest.raises(ExpressionError, match=r"\[UNRESOLVED_ROUTINE\] expression 'nope\(a\)'"):
        fallback.analysed(spark, "nope(a)", schema)
    with pytest.raises(ExpressionError, match="interval"):
        fallback.analysed(spark, "make_interval(a)", schema)


def test_values_are_in_order_of_rows(spark: Any) -> None:
    schema = Schema.parse("a int, `odd name` string, _row double")
    n = 5000
    columns = [
        np.arange(n, dtype=np.int32),
        rows.from_arrow(pa.array([f"n{i}" for i in range(n)]), "string"),
        np.zeros(n),
    ]
    sqls = ["width_bucket(a, 0, 5000, 7)", "a + 1", "mask(`odd name`) as x"]
    asked = [compile_expression(s, schema, types=types_of(spark)) for s in sqls]
    assert [e.local for e in asked] == [False, True, False]
    buckets, more, masks = fallback.evaluate_in_spark(spark, asked, schema, columns, n)
    expected = spark.range(n).selectExpr("width_bucket(id, 0, 5000, 7)", "mask('n' || id)")
    table = expected.toArrow()
    assert np.asarray(buckets).tolist() == table.column(0).to_pylist()
    assert rows.to_pylist(masks, "string") == table.column(1).to_pylist()
    assert np.asarray(more).tolist() == list(range(1, n + 1))
    empty = [c[:0] if isinstance(c, np.ndarray) else c.slice(0, 0) for c in columns]
    assert [len(c) for c in fallback.evaluate_in_spark(spark, asked, schema, empty, 0)] == [0, 0, 0]


def test_every_type_passes_through_spark_expression(spark: Any) -> None:
    given = updates_of_all_types()
    names = [f"`{name}`" for name in SCHEMA.names]
    sqls = [f"nvl2(mask('a'), {name}, {name})" for name in names]
    asked = [compile_expression(s, SCHEMA, types=types_of(spark)) for s in sqls]
    found = fallback.evaluate_in_spark(spark, asked, SCHEMA, given.columns, 4)
    assert [e.type for e in asked] == list(SCHEMA.types)
    assert count(Updates(found, given.diff), SCHEMA.types) == count(given, SCHEMA.types)


def test_failing_expression_names_itself_and_row(spark: Any) -> None:
    schema = Schema.parse("a int, b int")
    sql = "length(mask(string(a))) + a div b"
    asked = [compile_expression(s, schema, types=types_of(spark)) for s in ("mask(string(b))", sql)]
    columns = [np.arange(100, dtype=np.int32), np.arange(-63, 37, dtype=np.int32)]
    with pytest.raises(ExpressionError) as caught:
        fallback.evaluate_in_spark(spark, asked, schema, columns, 100)
    assert str(caught.value) == (
        f"expression {sql!r}: [DIVIDE_BY_ZERO] Division by zero on (a=63, b=0)"
    )
