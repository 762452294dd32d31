"""Aggregate expressions: calls, outputs, types and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import Aggregation, compile_aggregates
from nosync_nb.rows import Schema

FLIGHTS = Schema.parse(
    "carrier string, dep_delay double, distance bigint, seats int, paid decimal(10,2), "
    "late boolean, f float, day date, tags array<string>, props map<string,int>"
)


def compiled(*sqls: str, keys: tuple[str, ...] = ("carrier",), **more: Any) -> Aggregation:
    named = {f"n{i}": sql for i, sql in enumerate(sqls)}
    return compile_aggregates(named, FLIGHTS, keys, **more)


def calls(found: Aggregation) -> list[tuple[str, str | None, str]]:
    return [(c.function, c.argument.sql if c.argument else None, c.type) for c in found.calls]


def test_equal_calls_are_computed_once() -> None:
    found = compiled(
        "sum(dep_delay) / count(*)", "SUM( Dep_Delay )", "count(1)", "max(distance) - min(distance)"
    )
    assert calls(found) == [
        ("sum", "dep_delay", "double"),
        ("count_star", None, "bigint"),
        ("max", "distance", "bigint"),
        ("min", "distance", "bigint"),
    ]
    assert [e.sql for e in found.outputs] == ["_0 / _1", "_0", "_1", "_2 - _3"]
    assert found.names == ("n0", "n1", "n2", "n3")


def test_outputs_are_row_expressions_over_keys_and_results() -> None:
    found = compiled("round(sum(dep_delay) / count(*), 2)", "upper(carrier) || '!'")
    assert found.inner == Schema.parse("carrier string, _0 double, _1 bigint")
    columns = [np.array(["aa"], object), np.array([10.0]), np.array([3])]
    assert [e.evaluate(columns, 1).tolist() for e in found.outputs] == [[3.33], ["AA!"]]
    assert all(e.local for e in found.outputs)


def test_arguments_are_row_expressions() -> None:
    found = compiled("sum(if(late, distance * 2, 0))", "avg(dep_delay + 1)")
    assert calls(found) == [
        ("sum", "if(late, distance * 2, 0)", "bigint"),
        ("avg", "dep_delay + 1", "double"),
    ]


@pytest.mark.parametrize(
    ("sql", "type_"),
    [
        ("count(tags)", "bigint"), ("sum(seats)", "bigint"), ("sum(f)", "double"),
        ("sum(paid)", "decimal(20,2)"), ("avg(seats)", "double"), ("mean(f)", "double"),
        ("min(carrier)", "string"), ("max(paid)", "decimal(10,2)"), ("max(late)", "boolean"),
        ("min(day)", "date"), ("max(f)", "float"), ("avg(paid)", "decimal(14,6)"),
        ("count(distinct carrier, seats)", "bigint"), ("sum(distinct seats)", "bigint"),
        ("stddev(seats)", "double"), ("var_samp(paid)", "double"),
        ("min_by(tags, paid)", "array<string>"), ("max_by(carrier, late)", "string"),
        ("collect_list(paid)", "array<decimal(10,2)>"), ("collect_set(day)", "array<date>"),
        ("every(late)", "boolean"), ("some(seats > 1)", "boolean"), ("bit_or(seats)", "int"),
        ("count_if(late)", "bigint"),
    ],
)  # fmt: skip
def test_results_have_types_of_spark(sql: str, type_: str) -> None:
    found = compiled(sql)
    assert found.calls[0].type == type_
    assert found.outputs[0].type == type_


def test_filter_clause_becomes_part_of_argument() -> None:
    found = compiled("count(*) filter (where late)", "sum(seats) filter (where seats > 1) + 1")
    assert calls(found) == [
        ("count", "case when late then (1) end", "bigint"),
        ("sum", "case when seats > 1 then (seats) end", "bigint"),
    ]
    assert found.outputs[1].sql == "_1 + 1"


def test_equivalent_calls_are_one_call() -> None:
    assert calls(compiled("every(late)", "bool_and(late)", "min(late)")) == [
        ("min", "late", "boolean")
    ]
    assert calls(compiled("stddev(f)", "std(f)", "stddev_samp( f )")) == [
        ("stddev_samp", "f", "double")
    ]
    assert calls(compiled("max(distinct f)", "max(f)")) == [("max", "f", "float")]
    assert calls(compiled("collect_list(distinct f)", "collect_set(f)")) == [
        ("collect_set", "f", "array<float>")
    ]


def test_distinct_is_separate_call_where_it_matters() -> None:
    found = compiled("sum(seats)", "sum(distinct seats)", "count(distinct seats, carrier)").calls
    assert [(c.function, c.distinct, [a.sql for a in c.arguments]) for c in found] == [
        ("sum", False, ["seats"]),
        ("sum", True, ["seats"]),
        ("count", True, ["seats", "carrier"]),
    ]


def test_count_of_several_columns_counts_rows_without_nulls() -> None:
    found = compiled("count(seats, upper(carrier))")
    assert calls(found) == [
        (
            "count",
            "case when (seats) is not null and (upper(carrier)) is not null then 1 end",
            "bigint",
        )
    ]


def test_filter_of_min_by_applies_to_its_order() -> None:
    (call,) = compiled("min_by(seats, distance) filter (where late)").calls
    assert [a.sql for a in call.arguments] == ["seats", "case when late then (distance) end"]


def test_names_of_results_avoid_those_of_keys() -> None:
    schema = Schema.parse("_0 int, x int")
    found = compile_aggregates({"n": "sum(x) + _0"}, schema, ["_0"])
    assert found.inner.names == ("_0", "__0")
    assert found.outputs[0].sql == "__0 + _0"


def test_columns_named_like_aggregates_are_columns() -> None:
    schema = Schema.parse("count int, max string")
    found = compile_aggregates({"n": "sum(count)", "m": "max"}, schema, ["max"])
    assert [e.sql for e in found.outputs] == ["_0", "max"]


def test_aggregates_in_strings_are_text() -> None:
    found = compiled("concat(carrier, ': sum(x) ', count(*))")
    assert found.outputs[0].sql == "concat(carrier, ': sum(x) ', _0)"


@pytest.mark.parametrize(
    ("sql", "said", "hint"),
    [
        ("grouping(distance)", "unknown aggregate grouping", "count, sum, min, max, avg"),
        ("first(distance)", "first depends on the order of rows", "min_by(distance, o)"),
        ("last_value(seats + 1)", "last_value depends on the order", "max_by(seats + 1, o)"),
        ("first(distance ignore nulls)", "first depends on the order", "min_by(distance, o)"),
        ("max(sum(seats))", "sum is inside max", "stage"),
        ("sum(seats) + distance", "'distance' is neither a key nor inside", "max(distance)"),
        ("distance", "'distance' is neither a key nor inside", "group_by"),
        ("sum(late)", "sum of a boolean", "cast"),
        ("avg(day)", "avg of a date", "avg(unix_date(day))"),
        ("stddev(late)", "stddev of a boolean", "stddev(cast(late as double))"),
        ("var_pop(late)", "var_pop of a boolean", "var_pop(cast(late as double))"),
        ("bit_and(dep_delay)", "bit_and of a double", "bit_and(cast(dep_delay as bigint))"),
        ("bit_xor(late)", "bit_xor of a boolean", "bit_xor(cast(late as bigint))"),
        ("every(seats)", "every of a int", "every(seats > 0)"),
        ("any(distance)", "any of a bigint", "any(distance > 0)"),
        ("count_if(seats)", "count_if of a int", "count_if(seats > 0)"),
        ("sum(distinct late)", "sum of a boolean", "cast"),
        ("collect_set(props)", "collect_set of a map<string,int>", "map_entries"),
        ("max_by(seats)", "max_by takes 2 arguments", "max_by(x, o)"),
        ("min_by(seats, props)", "min_by by a map<string,int>", "props['key']"),
        ("stddev(seats, distance)", "stddev takes one argument", ""),
        ("sum(distinct seats, distance)", "sum takes one argument", ""),
        ("max(props)", "max of a map<string,int>", ""),
        ("max(seats, distance)", "max takes one argument", "greatest"),
        ("sum(sets)", "no column 'sets'", "did you mean 'seats'"),
        ("sum(seats) over (partition by carrier)", "window", "top"),
        ("sum(seats", "expected", ""),
        ("sum(*)", "stands for columns", ""),
    ],
)
def test_invalid_aggregates_are_refused_with_hint(sql: str, said: str, hint: str) -> None:
    with pytest.raises(ExpressionError, match=said) as caught:
        compiled(sql)
    assert hint in str(caught.value.hint)


def test_error_in_output_shows_expression_of_user() -> None:
    found = compiled("sum(distance) / (count(*) - 1)")
    with pytest.raises(ExpressionError) as caught:
        found.outputs[0].evaluate([np.array(["aa"], object), np.array([7]), np.array([1])], 1)
    assert "'sum(distance) / (count(*) - 1)'" in str(caught.value)
    assert "sum(distance)=7, count(*)=1" in str(caught.value)


def test_spark_expressions_in_aggregates_need_spark() -> None:
    def asked(sqls: Any, schema: Schema) -> list[str]:
        assert schema.names[0] == "carrier"
        return ["string"]

    found = compiled("mask(carrier)", "max(mask(carrier))", types=asked)
    assert not found.outputs[0].local
    assert found.outputs[1].local
    assert found.calls[0].argument is not None
    assert not found.calls[0].argument.local


def test_text_is_cast_to_double_by_aggregates_of_numbers() -> None:
    text, number = compiled("sum(carrier)"), compiled("sum(cast(carrier as double))")
    assert text.calls[0].argument is not None
    assert number.calls[0].argument is not None
    assert text.calls[0].argument.fingerprint == number.calls[0].argument.fingerprint
    assert text.calls[0].type == "double"


NUMERIC = ("sum", "avg", "mean", "stddev", "stddev_pop", "variance", "var_pop")
TAKES: dict[tuple[str, ...], str] = {  # aggregates, and the columns of FLIGHTS that they take
    NUMERIC: "carrier dep_delay distance seats paid f",
    ("bit_and", "bit_or", "bit_xor"): "distance seats",
    ("bool_and", "every", "bool_or", "some", "any", "count_if"): "late",
    ("min", "max"): "carrier dep_delay distance seats paid late f day tags",
    ("collect_set",): "carrier dep_delay distance seats paid late f day tags",
    ("count", "collect_list"): "carrier dep_delay distance seats paid late f day tags props",
}


@pytest.mark.parametrize("function", [each for some in TAKES for each in some])
def test_aggregate_of_unsupported_type_is_refused(function: str) -> None:
    takes = next(columns.split() for some, columns in TAKES.items() if function in some)
    for column, type_ in FLIGHTS.fields:
        if column in takes:
            compiled(f"{function}({column})")
            continue
        with pytest.raises(ExpressionError) as caught:
            compiled(f"{function}({column})")
        said = f"there is no {function} of a {type_} ('{column}')"
        assert str(caught.value).endswith(said)
        assert str(caught.value).startswith(f"aggregate '{function}({column})': [DATATYPE_MISMATCH")
        kind = "INVALID_ORDERING" if function in ("min", "max") else "UNEXPECTED_INPUT"
        assert caught.value.error_class == f"DATATYPE_MISMATCH.{kind}_TYPE"
        assert column in str(caught.value.hint)


@pytest.mark.parametrize(
    "sql",
    [
        "count(distinct props)",
        "count(distinct carrier, props)",
        "count(distinct *)",
        "collect_list(distinct props)",
        "max_by(distinct props, seats)",
    ],
)
def test_maps_have_no_distinct_values(sql: str) -> None:
    with pytest.raises(ExpressionError, match=r"no distinct values of a map \('`?props`?'\)"):
        compiled(sql)
    compiled("count(distinct carrier, seats)", "count(props)")
