"""Expressions with ANSI mode off: null or wrapped results as in Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from soak import tried
from sql_cases.expression_cases import all_cases, column_of
from sql_cases.expression_frames import evaluated, values
from sql_cases.function_cases import NEAR, PRINTED
from sql_cases.random_expressions import expressions

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import Expression, SqlSettings, compile_expression
from nosync_nb.rows import Schema

OFF = SqlSettings("UTC", ansi=False)
_TOGETHER = 80


def compiled(sql: str, schema: Schema, settings: SqlSettings = OFF) -> Expression:
    return compile_expression(sql, schema, types=lambda *_: ["int"], settings=settings)


def result(sql: str, type_: str, *given: Any) -> list[Any]:
    e = compiled(sql, Schema.parse(f"x {type_}"))
    assert e.local, e.why
    return rows.to_pylist(e.evaluate([column_of(list(given), type_)], len(given)), e.type)


@pytest.mark.parametrize(
    ("sql", "type_", "given", "expected"),
    [
        ("cast(x as int)", "string", " 1.9 ", 1),
        ("cast(x as int)", "string", "-.5", 0),
        ("cast(x as int)", "string", ".", 0),
        ("cast(x as int)", "string", "1e2", None),
        ("cast(x as int)", "string", "-", None),
        ("cast(x as tinyint)", "string", "128", None),
        ("cast(x as bigint)", "string", "9223372036854775808", None),
        ("x + 1", "string", "2", 3.0),
        ("x % 2", "string", "abc", None),
        ("x = 1", "string", "1.9", True),
        ("x < 2147483648", "string", "abc", None),
        ("x <=> true", "string", "yes", True),
        ("x = date'2024-01-02'", "string", "2024-1-2", True),
        ("x > 1.5", "string", "1.6", True),
        ("x in ('1', '2')", "int", 2, True),
        ("x in (1, 2)", "string", "1.0", False),
        ("coalesce(x, 'none')", "int", 7, "7"),
        ("if(x > 1, x, 'few')", "bigint", 1, "few"),
        ("case when x > 1 then x else 'few' end", "double", 2.0, "2.0"),
        ("concat(x, 'a')", "date", 0, "1970-01-01a"),
        ("array(x, 'a')", "int", 1, ["1", "a"]),
        ("map('k', x)['k']", "int", 1, 1),
        ("map('k', x)['z']", "int", 1, None),
    ],
)
def test_text_beside_other_types_gives_value_of_spark(
    sql: str, type_: str, given: Any, expected: Any
) -> None:
    assert result(sql, type_, given, given) == [expected] * 2
    ansi = compiled(sql, Schema.parse(f"x {type_}"), SqlSettings("UTC", ansi=True))
    assert ansi.settings.ansi is True


@pytest.mark.parametrize(
    ("sql", "type_", "given", "expected"),
    [
        ("x + 1", "int", 2**31 - 1, -(2**31)),
        ("x * x", "bigint", 2**62, 0),
        ("-x", "tinyint", -128, -128),
        ("abs(x)", "smallint", -(2**15), -(2**15)),
        ("1 / x", "int", 0, None),
        ("5 % x", "bigint", 0, None),
        ("x div 0", "bigint", 7, None),
        ("x div -1", "bigint", -(2**63), -(2**63)),
        ("cast(x as tinyint)", "int", 300, 44),
        ("cast(x as int)", "double", float("nan"), 0),
        ("cast(x as int)", "double", 1e30, 2**31 - 1),
        ("cast(x as tinyint)", "double", 1e30, -1),
        ("cast(x as bigint)", "float", -1e30, -(2**63)),
        ("cast(x as double)", "string", "abc", None),
        ("cast(x as date)", "string", "2024-13-01", None),
        ("x + 1 > 0 or x is null", "int", 2**31 - 1, False),
        ("split('a,b', ',')[x]", "int", 2, None),
        ("make_date(2024, x, 1)", "int", 13, None),
    ],
)
def test_overflow_gives_value_of_spark(sql: str, type_: str, given: Any, expected: Any) -> None:
    assert result(sql, type_, given, given) == [expected] * 2
    e = compiled(sql, Schema.parse(f"x {type_}"))
    many = rows.SMALL + 1
    column = rows.from_arrow(rows.to_arrow(column_of([given] * many, type_), type_), type_)
    assert rows.to_pylist(e.evaluate([column], many), e.type) == [expected] * many
    assert e.settings.ansi is False
    assert not e.raises


def test_day_out_of_timestamp_range_is_error_in_either_mode() -> None:
    e = compiled("cast(x as timestamp)", Schema.parse("x date"))
    with pytest.raises(ExpressionError, match="overflow"):
        e.evaluate([column_of([2**31 - 1], "date")], 1)


def test_zero_divisor_skips_evaluation_of_dividend() -> None:
    day = "unix_seconds(cast(date_from_unix_date(x) as timestamp))"
    for sql in (f"{day} / (x - x)", f"{day} div 0", f"pmod({day}, x - x)", f"{day} % (x - x)"):
        assert result(sql, "int", 2**31 - 1) == [None]
        e = compiled(sql.replace("(x - x)", "2").replace("div 0", "div 2"), Schema.parse("x int"))
        if "x - x" not in e.sql:
            with pytest.raises(ExpressionError, match="overflow"):
                e.evaluate([column_of([2**31 - 1], "int")], 1)


@pytest.mark.parametrize(
    "sql", ["nullif(i, s)", "coalesce(p, s)", "cast(p as string)", "f + i", "repeat(s, s)"]
)
def test_types_with_other_coercion_are_left_to_spark(sql: str) -> None:
    schema = Schema.parse("s string, i int, p decimal(5,2), f float")
    assert compiled(sql, schema, SqlSettings("UTC", ansi=True)).local
    e = compiled(sql, schema)
    assert not e.local
    assert "without ANSI mode" in e.why


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_values_without_ansi_mode_equal_spark(second_spark_session: Any) -> None:
    session = second_spark_session
    session.conf.set("spark.sql.ansi.enabled", value=False)
    own = values()
    sqls = list(dict.fromkeys(case.sql for case in all_cases()))
    sqls += [sql for sql in expressions(tried(20, 4000), seed=2) if sql not in sqls]
    made = [e for sql in sqls if (e := compiled(sql, own.schema)).local]
    made = [e for e in made if tried(False, True) or _may_raise(e)]
    made = [e for e in made if evaluated(e, own.columns, own.n)[1] is None]  # an error in both
    assert len(made) > 450
    for start in range(0, len(made), _TOGETHER * tried(4, 1)):
        some = made[start : start + _TOGETHER]
        theirs = own.spark_values(session, {f"r{i}": (e.sql, None) for i, e in enumerate(some)})
        for i, e in enumerate(some):
            answer = theirs[f"r{i}"]
            assert (e.sql, rows.spark_type(answer.type)) == (e.sql, e.type)
            ours = e.evaluate(own.columns, own.n)
            wrong = np.flatnonzero(~rows.equal(rows.from_arrow(answer, e.type), ours, e.type))
            if len(wrong) and e.sql not in NEAR and e.sql not in PRINTED:
                at = int(wrong[0])
                pytest.fail(f"{e.sql} on {own.row(e, at)}: in Spark {answer[at]}")


def _may_raise(e: Expression) -> bool:
    return compiled(e.sql, e.schema, SqlSettings("UTC", ansi=True)).raises
