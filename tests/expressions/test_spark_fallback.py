"""Expressions that need Spark: the reason is reported before Spark is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from nosync_nb import Session
from nosync_nb.expressions import compile_expression, spark_suggestions, waits
from nosync_nb.operators import registry
from nosync_nb.rows import Schema

SCHEMA = Schema.parse("s string, i int, a array<int>")
ORDINARY = Path(__file__).resolve().parents[1] / "data" / "ordinary_expressions.txt"
COLUMNS = Schema.parse(
    "i int, j int, l bigint, h smallint, y tinyint, f float, d double, e double, s string,"
    " u string, dt date, dv date, ts timestamp, tv timestamp, tn timestamp_ntz, p decimal(10,2),"
    " q decimal(20,6), bo boolean, bi binary, a array<int>, m map<string,int>,"
    " st struct<x:int,y:string>"
)


@pytest.mark.parametrize(
    ("sql", "why", "near"),
    [
        ("uper(s)", "function uper", "upper(s)"),
        ("reverse(xpath_int(s, 'a'))", "function xpath_int", ""),
        ("length(upper(s)) + xpath_int(s, 'a')", "function xpath_int", "LENGTH(UPPER(s))"),
        ("date_format(current_date(), 'w')", "'w' in a pattern of dates", "CURRENT_DATE()"),
    ],
)
def test_suggestion_has_reason_and_nearest_expression(sql: str, why: str, near: str) -> None:
    said = spark_suggestions(sql, SCHEMA)
    assert said.why == why
    assert said.nearest.lower() == near.lower()
    if near:
        assert waits(said.nearest, SCHEMA) is None


@pytest.mark.parametrize("sql", ["upper(s)", "i +", "nosuch", "sum(i)"])
def test_supported_or_invalid_expression_has_no_suggestion(sql: str) -> None:
    assert spark_suggestions(sql, SCHEMA) == ("", "")


def test_explain_omits_expressions_computed_in_process(session: Session) -> None:
    rows = session.input("rows", "s string, i int")
    shown = rows.filter("i > 1").select("upper(s) AS t").explain()
    assert "waits for Spark" not in shown


def test_operator_lists_expressions_that_need_spark() -> None:
    part = SimpleNamespace(
        op="filter",
        params={"predicate": "xpath_int(s, 'a') > i"},
        functions=(),
        inputs=[SimpleNamespace(schema=SCHEMA)],
        schema=SCHEMA,
    )
    assert registry.spark_expressions(part) == ["\"xpath_int(s, 'a') > i\" (function xpath_int)"]


def test_ordinary_expressions_need_no_spark() -> None:
    """Each expression computed in process spares a user the start of a JVM."""
    reasons = {}
    ordinary = ORDINARY.read_text().splitlines()
    for text in ordinary:
        compiled = compile_expression(text, COLUMNS, types=lambda sqls, _: ["string"] * len(sqls))
        if not compiled.local:
            reasons[text] = compiled.why
    assert len(ordinary) == 238
    assert all(reasons.values())
    assert set(reasons) == {
        "i.x",
        "i>j>1",
        "greatest(i)",
        "coalesce()",
        "upper()",
        "nosuch(i)",
    }
