"""Interval arithmetic: equal to Spark in either mode, sums and conversions included.

A run asks for some of the expressions, a soak for all. Of rows that are refused here one is asked
of Spark alone, which must refuse it, too.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from soak import tried
from sql_cases import interval_cases
from sql_cases.expression_frames import Mask, evaluated

import nosync_nb
from nosync_nb import rows
from nosync_nb.expressions import Expression, compile_expression
from nosync_nb.expressions.settings import SqlSettings
from nosync_nb.rows import Schema
from nosync_nb.spark import interval_transport
from nosync_nb.spark.spark_session import frame_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_SCHEMA, _ROWS, _TOGETHER = interval_cases.SCHEMA, 60, 80
Made = tuple[str, Expression, Any, Mask | None]


@pytest.fixture(params=[True, False], ids=["ansi", "not ansi"])
def mode(request: pytest.FixtureRequest, second_spark_session: Any) -> tuple[Any, SqlSettings]:
    """A Spark session in a mode, beside the session of other tests."""
    session = second_spark_session
    session.conf.set("spark.sql.ansi.enabled", request.param)
    return session, SqlSettings("UTC", request.param)


@pytest.mark.parametrize("far", [False, True], ids=["near", "far"])
def test_interval_expressions_equal_spark(far: bool, mode: tuple[Any, SqlSettings]) -> None:
    spark, settings = mode
    columns = interval_cases.columns(_ROWS, far=far)
    some = list(interval_cases.every())[far :: tried(9, 1)]
    made: list[Made] = []
    for sql in some:
        e = compile_expression(sql, _SCHEMA, types=lambda *_: ["int"], settings=settings)
        if e.local:
            made.append((sql, e, *evaluated(e, columns, _ROWS)))
    assert len(made) > 0.9 * len(some)
    for start in range(0, len(made), _TOGETHER):
        _as_in_spark(made[start : start + _TOGETHER], columns, spark)
    for sql, e, _, fine in [each for each in made if each[3] is not None][:: tried(8, 1)]:
        _is_refused(sql, e, [rows.mask(c, ~fine) for c in columns], spark)


def _as_in_spark(made: list[Made], columns: list[Any], spark: Any) -> None:
    masks = {f"m{i}": fine for i, (*_, fine) in enumerate(made) if fine is not None}
    schema = Schema([*_SCHEMA.fields, ("row", "bigint"), *((name, "boolean") for name in masks)])
    every = [*columns, np.arange(_ROWS), *masks.values()]
    arrays = [rows.to_arrow(c, t) for c, t in zip(every, schema.types, strict=True)]
    frame = frame_of(spark, pa.Table.from_arrays(arrays, schema=schema.arrow), schema)
    asked = [
        sql if f"m{i}" not in masks else f"case when m{i} then ({sql}) end"
        for i, (sql, *_) in enumerate(made)
    ]
    types = [field.dataType.simpleString() for field in frame.selectExpr(*asked).schema]
    assert dict(zip(asked, types, strict=True)) == {
        text: e.type for text, (_, e, *_) in zip(asked, made, strict=True)
    }
    passed = [
        f"{interval_transport.sql_to_transport(text, e.type)} as r{i}"
        for i, (text, (_, e, *_)) in enumerate(zip(asked, made, strict=True))
    ]
    theirs = frame.selectExpr(*passed, "row").orderBy("row").toArrow()
    for i, (sql, e, found, _) in enumerate(made):
        expected = rows.from_arrow(theirs.column(i), e.type)
        wrong = np.flatnonzero(~rows.equal(expected, found, e.type))
        assert not len(wrong), (sql, [columns[c][wrong[0]] for c in e.columns])


def _is_refused(sql: str, e: Expression, columns: list[Any], spark: Any) -> None:
    one = [rows.to_arrow(c[:1], t) for c, t in zip(columns, _SCHEMA.types, strict=True)]
    frame = frame_of(spark, pa.Table.from_arrays(one, schema=_SCHEMA.arrow), _SCHEMA)
    try:
        given = frame.selectExpr(
            f"{interval_transport.sql_to_transport(sql, e.type)} as r"
        ).toArrow()
    except Exception:  # the class depends on where Spark evaluates it
        return
    pytest.fail(f"{sql} on {[columns[c][0] for c in e.columns]} is refused here, there {given}")


def test_intervals_pass_to_spark_and_back(spark: Any, tmp_path: Path) -> None:
    ddl = "id bigint, m interval year to month, t interval day, a array<interval month>"
    frame = spark.range(50).selectExpr(
        "id",
        "make_ym_interval(0, cast(id as int) - 9) AS m",
        "cast(make_dt_interval(cast(id as int)) as interval day) AS t",
        "array(interval 1 month, null) AS a",
    )
    only_spark = "xpath_int('<a>2</a>', 'a')"
    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=1) as session:
        given = session.input("given", ddl)
        twice = session.stage(
            "twice",
            given.filter(f"t > interval 3 days * {only_spark}").select(
                "id", f"m * {only_spark} AS m", f"t + make_dt_interval({only_spark}) AS t", "a"
            ),
        )
        sums = session.stage("sums", twice.agg(m="sum(m)", t="avg(t)", n="max(m)"))
        given.insert(frame)
        session.commit()
        day = timedelta(days=1)
        expected = [(i, 2 * (i - 9), (i + 2) * day, [1, None]) for i in range(7, 50)]
        assert sorted(twice.rows()) == expected
        assert sums.rows() == [(sum(2 * (i - 9) for i in range(7, 50)), 30 * day, 80)]
        types = ["bigint", "interval year to month", "interval day to second"]
        for there in (twice.to_spark(), spark.table("twice")):
            assert [f.dataType.simpleString() for f in there.schema][:3] == types
            texts = there.selectExpr("id", "cast(m as string) m", "cast(t as string) t")
            assert texts.orderBy("id").first().asDict() == {
                "id": 7,
                "m": "INTERVAL '-0-4' YEAR TO MONTH",
                "t": "INTERVAL '9 00:00:00' DAY TO SECOND",
            }
        given.insert(frame.limit(0))
        given.insert([(60, 1, 60 * day, None)])  # few rows are asked of Spark from here
        session.commit()
        assert (60, 2, 62 * day, None) in twice.rows()
