"""Nested values in SQL: arrays, maps, structs and texts as in Spark, at every depth."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from soak import tried
from sql_cases import text_cases
from sql_cases.expression_cases import column_of
from sql_cases.expression_frames import same_numbers
from sql_cases.nested_cases import SCHEMA, table
from sql_cases.nested_frames import MODULES, RECORD, compiled, digests_of_nested, evaluated, frame

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import compile_expression
from nosync_nb.rows import Schema
from nosync_nb.rows.arrow import from_python_values, to_python_values


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("cases", MODULES, ids=lambda cases: cases.__name__)
def test_nested_values_equal_spark(cases: ModuleType, spark: Any) -> None:
    arrays = frame(cases)
    columns = [rows.from_arrow(a, t) for a, t in zip(arrays, cases.SCHEMA.types, strict=True)]
    n = len(arrays[0])
    given = pa.Table.from_arrays(arrays, schema=cases.SCHEMA.arrow)
    made, asked = [], []
    for k, (sql, twin) in enumerate(cases.every()):
        e = compiled(sql, cases.SCHEMA)
        values, fine = evaluated(e, columns, n)
        made.append((k, sql, twin, e, values, fine))
        if not all(fine):
            assert twin is not None, f"{sql} raises"
            given = given.append_column(f"m{k}", pa.array(fine))
            asked.append(f"case when m{k} then ({sql}) end as r{k}")
        else:
            asked.append(f"({sql}) as r{k}")
        if twin is not None:
            asked.append(f"({twin}) as t{k}")
    df = spark.createDataFrame(given)
    for name, type_ in zip(cases.SCHEMA.names, cases.SCHEMA.types, strict=True):
        if type_ == "timestamp_ntz":  # taken for a timestamp
            df = df.withColumn(name, df[name].cast("timestamp_ntz"))
    theirs = df.selectExpr("row", *asked).orderBy("row").toArrow()
    wrong: list[Any] = []
    for k, sql, twin, e, values, fine in made:
        answer = theirs[f"r{k}"].combine_chunks()
        if rows.spark_type(answer.type) != e.type:
            wrong.append((sql, answer.type, e.type))
            continue
        expected = rows.from_arrow(answer, e.type)
        same = rows.equal(expected, column_of(values, e.type), e.type)
        if sql in text_cases.PRINTED:
            read = text_cases.PRINTED[sql]
            same |= np.array(same_numbers(to_python_values(answer, e.type), values, read))
        if not same.all():
            i = int(np.flatnonzero(~same)[0])
            wrong.append((sql, i, to_python_values(answer, e.type)[i], values[i]))
        if twin is not None:
            there = [
                value is not None
                for value in to_python_values(theirs[f"t{k}"].combine_chunks(), e.type)
            ]
            if there != [ok and v is not None for ok, v in zip(fine, values, strict=True)]:
                wrong.append((sql, twin, "only one raises"))
    assert not wrong, "\n".join(map(repr, wrong))


def test_every_nested_case_gives_recorded_value() -> None:
    """Comparison needs Spark; this test checks that no result has changed since the last one."""
    recorded, found = json.loads(RECORD.read_text()), digests_of_nested()
    changed = {sql: (recorded.get(sql), now) for sql, now in found.items()}
    assert {sql: pair for sql, pair in changed.items() if pair[0] != pair[1]} == {}, (
        "pass the proof, then run tests/support/sql_cases/nested_frames.py"
    )
    assert recorded.keys() == found.keys()


@pytest.mark.parametrize("copies", [60])
@pytest.mark.parametrize("cases", MODULES, ids=lambda cases: cases.__name__)
def test_large_nested_columns_give_values_of_small_ones(cases: ModuleType, copies: int) -> None:
    arrays = frame(cases)
    small = [rows.from_arrow(a, t) for a, t in zip(arrays, cases.SCHEMA.types, strict=True)]
    n = len(arrays[0])
    large = [pa.concat_arrays([array] * copies) for array in arrays]
    wide = [rows.from_arrow(a, t) for a, t in zip(large, cases.SCHEMA.types, strict=True)]
    assert n * copies > rows.SMALL
    for sql, twin in cases.every()[:: tried(7, 1)]:
        if twin is not None:
            continue
        e = compiled(sql, cases.SCHEMA)
        few, many = e.evaluate(small, n), e.evaluate(wide, n * copies)
        assert rows.equal(few, rows.slice_(many, n, 2 * n), e.type).all(), sql
        assert len(e.evaluate([rows.slice_(c, 0, 0) for c in small], 0)) == 0


def test_lambda_stops_at_deciding_element() -> None:
    schema = Schema.parse("a array<int>")
    e = compile_expression("exists(a, x -> 4 / x > 3)", schema)
    columns = [column_of([[1, 0], [2, 4], None], "array<int>")]
    assert rows.to_pylist(e.evaluate(columns, 3), "boolean") == [True, False, None]
    with pytest.raises(ExpressionError, match=r"division by zero in the row a=\[2, 0\]"):
        e.evaluate([column_of([[1, 0], [2, 0]], "array<int>")], 2)
    every_ = compile_expression("forall(a, x -> 4 / x > 3)", schema)
    assert rows.to_pylist(every_.evaluate([column_of([[2, 0]], "array<int>")], 1), "boolean") == [
        False
    ]


def test_error_inside_lambda_names_row() -> None:
    schema = Schema.parse("i int, a array<array<int>>")
    e = compile_expression("transform(a, x -> transform(x, y -> i % y))", schema)
    columns = [column_of([1, 2], "int"), column_of([[[1]], [[3], [4, 0]]], "array<array<int>>")]
    with pytest.raises(ExpressionError, match=r"remainder by zero in the row i=2"):
        e.evaluate(columns, 2)


@pytest.mark.parametrize(
    "sql",
    [
        "array(1, true)", "array()", "array(null)", "m = m", "array_contains(a, null)",
        "aggregate(w, 0, (z, x) -> z + x)", "transform(a, (x, y, z) -> x)", "struct(st.x)",
        "a[1:2]",
    ],
)  # fmt: skip
def test_unsupported_nested_expressions_are_left_to_spark(sql: str) -> None:
    e = compile_expression(sql, SCHEMA, types=lambda *_: ["int"])
    assert not e.local
    assert e.why


def test_python_values_round_trip() -> None:
    for column, type_ in zip(table(), SCHEMA.types, strict=True):
        array = from_python_values(column, type_)
        assert repr(to_python_values(array, type_)) == repr(column)
        half = array.slice(30, 20)
        assert repr(to_python_values(half, type_)) == repr(column[30:50])
