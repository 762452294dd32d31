"""Implicit casts: done in process, or left to Spark for a listed reason.

The table: each function and operator, each of its arguments, each type in its place. A run holds
all of them against Spark's recorded answers, and some against Spark; a soak asks Spark about all.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from soak import tried
from sql_cases.expression_cases import column_of
from sql_cases.implicit_calls import CALLS, Asked, frame, recorded, summed, variations
from sql_cases.spark_examples import documented, functions

from nosync_nb import rows
from nosync_nb.expressions import SqlSettings, compile_expression
from nosync_nb.expressions.functions.registry import FUNCTIONS, OPERATORS, RESULTS
from nosync_nb.rows import Schema

REASONS = {
    "Spark gives the last time for a number beyond all times": "try_to_timestamp of a .*",
    "bytes that are no UTF-8 are text in Spark alone": "a binary as string",
    "the parser drops a + before a value": "a [+] before a value",
    "the function has another form for bytes": r"(left|lpad|rpad|reverse|substr\w*) of a binary",
    "Java writes the value": r"%[sd] of a .*",
    "Java counts the digits of the elements": r"a .* beside elements of .*",
    "arrays are joined by Spark": r"an? array<.*> as string",
    "a literal is asked for": r".* that is not a literal",
    "there is no such operator of decimals here": r".* (pmod|div) .*|div of decimals .*",
    "decimals and timestamps are one another's seconds": (
        r"cast of (decimal.* to timestamp|timestamp to decimal.*)|timestamp_seconds of decimal.*"
    ),
    "a time without a zone is read in the zone of the session": (
        r"(to_)?unix_\w+ of (a )?timestamp_ntz"
    ),
}
"""Why a cast needs Spark, and the pattern of its reason."""

WITHOUT_ARGUMENTS = frozenset(
    ("curdate", "current_date", "current_timestamp", "e", "localtimestamp", "now", "pi", "uuid")
)
DRAWN = frozenset(("rand", "randn", "random"))
"""Functions with a literal seed."""

NEEDING_SPARK = 218
"""Variations that need Spark; the number may only fall."""


def test_every_function_with_kernel_has_call() -> None:
    text = " ".join(CALLS).lower()
    missing = {
        name
        for name in FUNCTIONS.keys() - WITHOUT_ARGUMENTS - DRAWN
        if not re.search(rf"\b{name}\b", text)
    }
    assert missing == set()
    plain = re.sub(r"\{[^}]*\}", "x", text)
    signs = {sign for sign in OPERATORS if not re.fullmatch("neg", sign)}
    assert {sign for sign in signs if sign not in plain} == set()


def test_implicit_casts_equal_recorded_answers_or_need_spark_for_reason() -> None:
    own, answers = frame(), recorded()
    needing: Counter[str] = Counter()
    unlisted, wrong = [], []
    places: dict[tuple[str, int], list[Any]] = {}
    for each in variations():
        answer = answers[each.call][each.place]
        e = own.compiled(each.sql)
        local = e is not None and e.local
        if each.type in answer.get("refused", "").split():
            if local:
                wrong.append(f"{each.sql}: Spark refuses it")
        elif each.type in answer.get("spark", "").split():
            assert e is not None
            reason = next((why for why, text in REASONS.items() if re.fullmatch(text, e.why)), "")
            needing[reason] += 1
            if local or not reason:
                unlisted.append(f"{each.sql}: {e.why}")
        else:
            assert e is not None
            if local:
                places.setdefault((each.call, each.place), []).append((each.type, e))
            else:
                wrong.append(f"{each.sql}: needs Spark ({e.why})")
    for (call, place), done in places.items():
        if summed(call, done) != answers[call][place]["digest"]:
            wrong.append(f"argument {place} of {call}: other values than those held against Spark")
    assert wrong == []
    assert unlisted == []
    assert needing.total() == NEEDING_SPARK, needing


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_implicit_casts_equal_spark(spark: Any) -> None:
    every = list(variations())
    step = tried(97, 1)
    asked = Asked(spark)
    assert list(asked.disagreements(every[13 % step :: step])) == []


@pytest.mark.parametrize("type_", ["bigint", "double", "string", "decimal(10,2)"])
def test_make_date_accepts_types_that_spark_casts_to_int(type_: str) -> None:
    schema = Schema.parse(f"year {type_}, month {type_}, day {type_}")
    e = compile_expression("make_date(year, month, day)", schema)
    texts = {"string": ["2013", "1", "31"]}.get(type_, [2013, 1, 31])
    columns = [column_of([each], type_) for each in texts]
    assert e.local
    assert [str(each) for each in rows.to_pylist(e.evaluate(columns, 1), "date")] == ["2013-01-31"]


WRAPPED = {
    "make_date(x, 1, 1)": "2013-01-01",
    "add_months(date '2013-01-31', x - 2012)": "2013-02-28",
    "left('abc', x - 2011)": "ab",
    "date_from_unix_date(x)": "1975-07-07",
}
"""Spark's results for x = 2 ** 32 + 2013 without ANSI mode."""


@pytest.mark.parametrize("sql", WRAPPED)
def test_bigint_argument_wraps_without_ansi_mode(sql: str) -> None:
    schema, settings = Schema.parse("x bigint"), SqlSettings("UTC", ansi=False)
    e = compile_expression(sql, schema, settings=settings)
    assert e.local
    column = column_of([2**32 + 2013], "bigint")
    assert [str(each) for each in rows.to_pylist(e.evaluate([column], 1), e.type)] == [WRAPPED[sql]]


@pytest.mark.spark
def test_spark_wraps_bigint_argument_without_ansi_mode(spark: Any) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        frame = spark.range(1).selectExpr(f"{2**32 + 2013}L + id as x")
        row = frame.selectExpr(*(f"string({sql})" for sql in WRAPPED)).collect()[0]
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert list(row) == list(WRAPPED.values())


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_functions_of_one_result_type_have_it_in_spark(spark: Any) -> None:
    """Checks its documented examples, and calls with other types of arguments."""
    there = set(functions(spark))
    assert RESULTS.keys() <= there
    examples = {name: documented(spark, name) for name in RESULTS}
    asked = {(name, sql) for name, some in examples.items() for sql in some[:2]}
    frame_ = spark.range(1)
    for name, sql in sorted(asked):
        if re.match(rf"{name}\s*\(.*\)$", sql) and sql.count(f"{name}(") == 1:
            type_ = frame_.selectExpr(f"({sql}) as r").schema[0].dataType.simpleString()
            assert (sql, type_) == (sql, RESULTS[name])
    own = frame()
    for each in variations():
        name = each.call.partition("(")[0]
        plain = re.fullmatch(r"[a-z_0-9]+\(.*\)", each.call) and name in RESULTS
        e = own.compiled(each.sql) if plain else None
        if e is not None and e.local:
            assert (each.sql, e.type) == (each.sql, RESULTS[name])
