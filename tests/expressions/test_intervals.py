"""Interval values: literals, storage, sums and removals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nosync_nb import ExpressionError, SchemaError, Session
from nosync_nb.expressions import compile_expression, waits
from nosync_nb.expressions.settings import SqlSettings
from nosync_nb.rows import Schema, infer_schema, to_pylist
from nosync_nb.rows.ingest.convert import to_columns

SCHEMA = Schema.parse(
    "i int, ts timestamp, tv timestamp, x interval day to second, m interval year to month"
)
ROW = (3, datetime(2024, 3, 1, 12), datetime(2024, 2, 28), timedelta(hours=-30), -13)


def value(sql: str, *, ansi: bool = True) -> Any:
    columns, n = to_columns([ROW], SCHEMA, "row")
    e = compile_expression(sql, SCHEMA, settings=SqlSettings("UTC", ansi))
    return to_pylist(e.evaluate(columns, n), e.type)[0]


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("ts - tv", "INTERVAL '2 12:00:00' DAY TO SECOND"),
        ("cast(ts as date) - cast(tv as date)", "INTERVAL '2' DAY"),
        ("interval 1 day", "INTERVAL '1' DAY"),
        ("interval 2 weeks", "INTERVAL '14' DAY"),
        ("interval -90 minutes", "INTERVAL '-90' MINUTE"),
        ("interval 1 day 2 hours", "INTERVAL '1 02' DAY TO HOUR"),
        ("interval '1.5' second", "INTERVAL '01.5' SECOND"),
        ("interval 5 months", "INTERVAL '5' MONTH"),
        ("i * interval 1 day", "INTERVAL '3 00:00:00' DAY TO SECOND"),
        ("m", "INTERVAL '-1-1' YEAR TO MONTH"),
        ("m / 2", "INTERVAL '-0-7' YEAR TO MONTH"),
        ("x", "INTERVAL '-1 06:00:00' DAY TO SECOND"),
        ("x * 0.5", "INTERVAL '-0 15:00:00' DAY TO SECOND"),
        ("-x + interval 1 hour", "INTERVAL '1 07:00:00' DAY TO SECOND"),
        ("cast(x as interval day)", "INTERVAL '-1' DAY"),
        ("cast(i as interval hour)", "INTERVAL '03' HOUR"),
        ("greatest(x, interval 1 second)", "INTERVAL '0 00:00:01' DAY TO SECOND"),
    ],
)
@pytest.mark.parametrize("ansi", [True, False])
def test_interval_is_written_as_in_spark(sql: str, text: str, ansi: bool) -> None:
    assert value(f"cast({sql} as string)", ansi=ansi) == text


@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ts - tv > interval 2 days", True),
        ("ts - interval 1 day * i", datetime(2024, 2, 27, 12, tzinfo=UTC)),
        ("tv + (ts - tv) = ts", True),
        ("m", -13),
        ("extract(hour from x)", -6),
        ("extract(year from m)", -1),
        ("sign(m)", -1.0),
        ("try_divide(x, 0)", None),
        ("hash(x) = hash(unix_micros(timestamp_micros(-108000000000)))", True),
    ],
)
def test_intervals_are_compared_added_and_extracted(sql: str, expected: object, ansi: bool) -> None:
    assert value(sql, ansi=ansi) == expected


@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("x / 0", "division by zero"),
        ("m * 2000000000", "overflow"),
        ("x * 1e300", "overflow"),
        ("make_dt_interval(i * 700000000)", "overflow"),
    ],
)
def test_interval_overflow_is_error_in_either_mode(sql: str, why: str, ansi: bool) -> None:
    with pytest.raises(ExpressionError, match=f"{why} in the row"):
        value(sql, ansi=ansi)


@pytest.mark.parametrize(
    "text", ["999999999 years", "999999999 weeks", "'-199999999-11' year to month"]
)
def test_literal_out_of_range_is_left_to_spark(text: str) -> None:
    assert waits(f"interval {text}", SCHEMA) == "an interval that exceeds its type"


@pytest.mark.parametrize("other", ["string", "boolean", "double", "date", "decimal(5,2)", "binary"])
def test_non_intervals_are_left_to_spark(other: str) -> None:
    schema = Schema.parse(f"o {other}, x interval day, m interval month")
    for sql in ("cast(o as interval day)", "x + m", "x = o", "coalesce(x, m)", "m / x", "-x / o"):
        if (sql, other) not in (("-x / o", "double"), ("-x / o", "decimal(5,2)")):
            assert waits(sql, schema), sql
    if other != "string":
        assert waits(f"cast(x as {other})", schema)


def test_intervals_are_loaded_from_every_source() -> None:
    given = [timedelta(days=-1, microseconds=1), None]
    for rows in (
        [{"x": each} for each in given],
        {"x": pa.array(given)},
        {"x": np.array([-86_399_999_999, "NaT"], "m8[us]")},
        pd.DataFrame({"x": pd.Series(given, dtype="timedelta64[ns]")}),
        pa.table({"x": pa.array(given, pa.duration("ns"))}),
    ):
        schema = infer_schema(rows)
        assert schema.types == ("interval day to second",)
        columns, _ = to_columns(rows, schema, "x")
        assert to_pylist(columns[0], schema.types[0]) == given


@pytest.mark.parametrize(
    ("type_", "given"),
    [
        ("interval day", timedelta(hours=1)),
        ("interval hour to minute", pa.array([timedelta(seconds=1)])),
        ("interval year", 13),
        ("interval day to second", 1),
        ("interval day to second", np.timedelta64(1, "ns")),
        ("interval year to month", 2**31),
    ],
)
def test_inexact_interval_is_refused(type_: str, given: Any) -> None:
    rows = {"x": given if isinstance(given, pa.Array) else [given]}
    with pytest.raises(SchemaError, match="column 'x', row 0"):
        to_columns(rows, Schema([("x", type_)]), "x")


def test_arrow_schema_round_trips_interval_types() -> None:
    ddl = "a interval month, b interval day, c struct<d:array<interval year>>, e int"
    schema = Schema.parse(ddl)
    assert Schema.from_arrow(schema.arrow) == schema
    for text in ("interval", "interval month to day", "interval day to day"):
        with pytest.raises(SchemaError):
            Schema.parse(f"x {text}")


def test_stage_sums_and_retracts_intervals_across_restart(opened: Callable[..., Session]) -> None:
    session = opened()
    rides = session.input("rides", "who string, a timestamp, b timestamp, m int")
    spent = session.stage("spent", rides.select("who", "b - a AS t", "m * interval 1 month AS o"))
    sums = session.stage(
        "sums",
        spent.group_by("who").agg(
            t="sum(t)", mean="avg(t)", last="max(t)", o="sum(o)", mo="avg(o)", n="count(distinct t)"
        ),
    )
    rows = [
        ("u", datetime(2024, 1, 1), datetime(2024, 1, 2), 7),
        ("u", datetime(2024, 1, 1), datetime(2024, 1, 1, 1), 8),
        ("v", datetime(2024, 1, 1), datetime(2023, 12, 31), -1),
        ("v", None, datetime(2024, 1, 1), None),
    ]
    rides.insert(rows)
    session.commit()
    day = timedelta(days=1)
    before = sorted(sums.rows())
    assert before == [
        ("u", timedelta(hours=25), timedelta(hours=12.5), day, 15, 8, 2),
        ("v", -day, -day, -day, -1, -1, 1),
    ]
    rides.insert([("u", *rows[0][1:3], 2**30), ("v", *rows[0][1:3], 0)])
    session.commit()
    rides.remove([("u", *rows[0][1:3], 2**30), ("v", *rows[0][1:3], 0)])
    session.commit()
    assert sorted(sums.rows()) == before
    joined = spent.join(spent.select("t", "who AS other"), on="t").count()
    shown = sums.to_arrow()
    assert shown.schema.field("t").type == pa.duration("us")
    assert Schema.from_arrow(shown.schema) == sums.schema
    session.close()
    again = opened()
    assert sorted(again["sums"].rows()) == before
    assert again["spent"].join(again["spent"].select("t", "who AS other"), on="t").count() == joined
    again.inputs["rides"].insert([("w", *rows[0][1:3], 1)])
    again.commit()
    assert ("w", day, day, day, 1, 1, 1) in again["sums"].rows()
    again.inputs["rides"].insert([("u", *rows[0][1:3], 2**31 - 1)] * 2)
    with pytest.raises(
        ExpressionError, match="a sum of interval year to month is outside the range"
    ):
        again.commit()


def test_large_interval_columns_equal_small_ones(tmp_path: Path) -> None:
    n = 10_000
    micros = (np.arange(n) * 977_777_777 % (10**13) - 5 * 10**12).tolist()
    given = [None if k % 7 == 3 else timedelta(microseconds=each) for k, each in enumerate(micros)]
    schema = Schema.parse("x interval day to second, m interval year to month")
    months = [None if k % 5 == 1 else k - 5000 for k in range(n)]
    columns, _ = to_columns({"x": given, "m": months}, schema, "x")
    for sql in ("x * 2 - x / 3", "cast(x as string)", "m * 3", "cast(-m as string)", "hash(x, m)"):
        e = compile_expression(sql, schema)
        large = to_pylist(e.evaluate(columns, n), e.type)
        for start in range(0, n, 2503):
            part, k = to_columns(
                {"x": given[start : start + 9], "m": months[start : start + 9]}, schema, "x"
            )
            assert to_pylist(e.evaluate(part, k), e.type) == large[start : start + 9]
