"""`Collection.window`: the API, its errors with Spark's classes, and its definitions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from nosync_nb import Collection, ExpressionError, Input, MisuseError, SchemaError, Session
from nosync_nb.collections.definition import Definition
from nosync_nb.collections.session_protocol import definition_of

pytestmark = pytest.mark.usefixtures("no_disk")

SCHEMA = "k string, t int, x double, d date, ts timestamp, m map<string, int>, amount decimal(5,2)"


@pytest.fixture
def rows(session: Session) -> Input:
    made = session.input("rows", SCHEMA)
    made.insert([("a", i, i / 2, None, None, None, None) for i in range(4)])
    made.insert([("b", 1, None, None, None, None, None)])
    session.commit()
    return made


def column(collection: Collection, *names: str) -> list[Any]:
    found = [tuple(getattr(row, name) for name in names) for row in collection.rows()]
    return [each[0] for each in found] if len(names) == 1 else found


def operators(collection: Collection) -> list[str]:
    found: list[str] = []

    def walk(part: Definition) -> None:
        found.append(part.op)
        for each in part.inputs:
            walk(each)

    walk(definition_of("test", collection))
    return found


def test_expressions_over_functions_are_computed(rows: Input) -> None:
    made = rows.window("k", "t").with_columns(
        gain="x - lag(x, 1, 0)", share="round(x - sum(x), 2)", twice="lag(x) + lag(x)"
    )
    assert column(made, "gain", "twice") == [
        (0.0, None), (0.5, 0.0), (0.5, 1.0), (0.5, 2.0), (None, None),
    ]  # fmt: skip
    assert made.schema.names[-3:] == ("gain", "share", "twice")


def test_results_replace_columns_in_their_place(rows: Input) -> None:
    made = rows.window("k", "t").with_columns({"X": "sum(x)", "t": "row_number()"})
    assert made.schema.names == ("k", "t", "X", "d", "ts", "m", "amount")
    assert column(made, "t", "X") == [(1, 0.0), (2, 0.5), (3, 1.5), (4, 3.0), (1, None)]


def test_keys_and_orders_may_be_expressions(rows: Input) -> None:
    made = rows.window(["t % 2 AS odd"], ["x desc nulls first", "k"]).with_columns(n="row_number()")
    assert column(made, "k", "t", "n") == [
        ("a", 0, 2), ("a", 1, 3), ("a", 2, 1), ("a", 3, 2), ("b", 1, 1),
    ]  # fmt: skip
    assert "odd" not in made.schema.names


def test_types_are_those_of_spark(rows: Input) -> None:
    made = rows.window("k", "t").with_columns(
        a="row_number()", b="rank()", c="dense_rank()", d1="ntile(2)", e="percent_rank()",
        f="cume_dist()", g="lag(amount)", h="lead(amount, 1, 5)", i="avg(amount)", j="sum(t)",
        l="count(*)", o="nth_value(k, 2)", p="collect_list(t)",
    )  # fmt: skip
    assert made.schema.types[7:] == (
        "int", "int", "int", "int", "double", "double", "decimal(5,2)", "decimal(5,2)",
        "decimal(9,6)", "bigint", "bigint", "string", "array<int>",
    )  # fmt: skip


def test_unbounded_of_pyspark_is_none(rows: Input) -> None:
    spark = rows.window("k", "t", rows_between=(-sys.maxsize, sys.maxsize))
    plain = rows.window("k", "t", rows_between=(None, None))
    call = {"s": "sum(x)"}
    ours, theirs = (definition_of("test", w.with_columns(call)) for w in (plain, spark))
    assert ours.params == theirs.params


def test_range_takes_numbers_texts_and_times(rows: Input) -> None:
    for order, low, high in (
        ("t", -1, 0), ("x", -0.5, Decimal("0.5")), ("amount", "-1.5", "2"), ("t", None, 2),
        ("d", timedelta(days=-1), timedelta(0)), ("d", "-interval 1 month", 0), ("d", -3, 3),
        ("ts", timedelta(hours=-1), timedelta(seconds=1)), ("ts", "-interval 2 years", None),
        ("ts desc", timedelta(days=-1, microseconds=5), 0),
    ):  # fmt: skip
        made = rows.window("k", order, range_between=(low, high)).with_columns(c="count(*)")
        assert sum(column(made, "c")) > 0


def test_functions_of_one_window_are_one_operator(rows: Input) -> None:
    made = rows.window("k", "t").with_columns(
        a="row_number()", b="lag(x + 1)", c="sum(x) / count(*)", d="lag(x + 1)"
    )
    assert operators(made).count("window") == 1


def test_sql_and_python_are_the_same_definition(session: Session, rows: Input) -> None:
    for text, made in (
        (
            "row_number() over (partition by k order by t)",
            rows.window("k", "t").with_columns(r="row_number()"),
        ),
        (
            "lag(x, 2) ignore nulls over (partition by k order by t desc)",
            rows.window("k", "t desc").with_columns(r="lag(x, 2) ignore nulls"),
        ),
        (
            "sum(x) over (partition by k order by t rows between 3 preceding and current row)",
            rows.window("k", "t", rows_between=(-3, 0)).with_columns(r="sum(x)"),
        ),
        (
            "max(x) over (order by t range between 3 preceding and unbounded following)",
            rows.window(order_by="t", range_between=(-3, None)).with_columns(r="max(x)"),
        ),
        ("max(x) over (partition by k)", rows.window("k").with_columns(r="max(x)")),
    ):
        session.stage("result", made)
        query = session.sql(f"select *, {text} r from rows")
        (report,) = session.define({"result": query}, on=None)
        assert report.status == "unchanged", text
        session.drop("result")


def test_explain_shows_functions_with_their_frames(rows: Input) -> None:
    text = str(rows.window("k", "t desc", rows_between=(-3, 0)).with_columns(s="sum(x)").explain())
    assert "window by k, ordered by t desc: s = sum(x) over rows 3 preceding to current row" in text
    text = str(rows.window("k", "t").with_columns(p="lag(x, 2) ignore nulls").explain())
    assert "window by k, ordered by t: p = lag(x, 2) ignore nulls" in text


Build = Callable[[Collection], Any]
WRONG: dict[str, tuple[Build, type[Exception], str]] = {
    "no order": (
        lambda c: c.window("k").with_columns(n="row_number()"),
        ExpressionError,
        "WINDOW_FUNCTION_FRAME_NOT_ORDERED",
    ),
    "frame of lag": (
        lambda c: c.window("k", "t", rows_between=(-1, 0)).with_columns(n="lag(x)"),
        ExpressionError,
        "cannot specify a window frame",
    ),
    "nulls of sum": (
        lambda c: c.window("k", "t").with_columns(n="sum(x) ignore nulls"),
        ExpressionError,
        "FUNCTION_WITH_UNSUPPORTED_SYNTAX",
    ),
    "nulls of row_number": (
        lambda c: c.window("k", "t").with_columns(n="row_number() ignore nulls"),
        ExpressionError,
        "FUNCTION_WITH_UNSUPPORTED_SYNTAX",
    ),
    "filter of lag": (
        lambda c: c.window("k", "t").with_columns(n="lag(x) filter (where x > 1)"),
        ExpressionError,
        "FUNCTION_WITH_UNSUPPORTED_SYNTAX",
    ),
    "no buckets": (
        lambda c: c.window("k", "t").with_columns(n="ntile(0)"),
        ExpressionError,
        "VALUE_OUT_OF_RANGE",
    ),
    "buckets of a column": (
        lambda c: c.window("k", "t").with_columns(n="ntile(t)"),
        ExpressionError,
        "NON_FOLDABLE_INPUT",
    ),
    "row 0": (
        lambda c: c.window("k", "t").with_columns(n="nth_value(x, 0)"),
        ExpressionError,
        "VALUE_OUT_OF_RANGE",
    ),
    "offset of a column": (
        lambda c: c.window("k", "t").with_columns(n="lag(x, t)"),
        ExpressionError,
        "NON_FOLDABLE_INPUT",
    ),
    "too many arguments": (
        lambda c: c.window("k", "t").with_columns(n="lag(x, 1, 2, 3)"),
        ExpressionError,
        "WRONG_NUM_ARGS",
    ),
    "bounds exchanged": (
        lambda c: c.window("k", "t", rows_between=(2, 1)).with_columns(n="sum(x)"),
        ExpressionError,
        "SPECIFIED_WINDOW_FRAME_WRONG_COMPARISON",
    ),
    "values exchanged": (
        lambda c: c.window("k", "t", range_between=(2, 1)).with_columns(n="sum(x)"),
        ExpressionError,
        "SPECIFIED_WINDOW_FRAME_WRONG_COMPARISON",
    ),
    "rows of half": (
        lambda c: c.window("k", "t", rows_between=(-0.5, 0)).with_columns(n="sum(x)"),
        ExpressionError,
        "rows_between has the bound -0.5",
    ),
    "values without an order": (
        lambda c: c.window("k", range_between=(-1, 0)).with_columns(n="sum(x)"),
        ExpressionError,
        "RANGE_FRAME_WITHOUT_ORDER",
    ),
    "values of two orders": (
        lambda c: c.window("k", "t, x", range_between=(-1, 0)).with_columns(n="sum(x)"),
        ExpressionError,
        "RANGE_FRAME_MULTI_ORDER",
    ),
    "values of text": (
        lambda c: c.window("t", "k", range_between=(-1, 0)).with_columns(n="sum(x)"),
        ExpressionError,
        "RANGE_FRAME_INVALID_TYPE",
    ),
    "hours of a date": (
        lambda c: c.window("k", "d", range_between=(timedelta(hours=-1), 0)).with_columns(
            n="sum(x)"
        ),
        ExpressionError,
        "RANGE_FRAME_INVALID_TYPE",
    ),
    "number of a time": (
        lambda c: c.window("k", "ts", range_between=(-1, 0)).with_columns(n="sum(x)"),
        ExpressionError,
        "RANGE_FRAME_INVALID_TYPE",
    ),
    "months and days": (
        lambda c: c.window(
            "k", "ts", range_between=("-interval 1 month", "interval 1 day")
        ).with_columns(n="sum(x)"),
        ExpressionError,
        "SPECIFIED_WINDOW_FRAME_DIFF_TYPES",
    ),
    "value of a column": (
        lambda c: c.window("k", "t", range_between=("-x", 0)).with_columns(n="sum(x)"),
        ExpressionError,
        "SPECIFIED_WINDOW_FRAME_WITHOUT_FOLDABLE",
    ),
    "median in an order": (
        lambda c: c.window("k", "t").with_columns(n="median(x)"),
        ExpressionError,
        "INVALID_WINDOW_SPEC_FOR_AGGREGATION_FUNC",
    ),
    "two frames": (
        lambda c: c.window("k", "t", rows_between=(-1, 0), range_between=(-1, 0)),
        ExpressionError,
        "are two frames",
    ),
    "no pair": (lambda c: c.window("k", "t", rows_between=-1), ExpressionError, "not a pair"),
    "no function": (
        lambda c: c.window("k", "t").with_columns(n="x + 1"),
        ExpressionError,
        "calls no window function",
    ),
    "nothing": (lambda c: c.window("k", "t").with_columns(), ExpressionError, "nothing to compute"),
    "over": (
        lambda c: c.window("k", "t").with_columns(n="row_number() over (order by t)"),
        ExpressionError,
        "the window is not part of the expression",
    ),
    "nested": (
        lambda c: c.window("k", "t").with_columns(n="lag(lag(x))"),
        ExpressionError,
        "lag is inside lag",
    ),
    "named in the text": (
        lambda c: c.window("k", "t").with_columns(n="sum(x) as total"),
        ExpressionError,
        "the keyword",
    ),
    "unnamed": (lambda c: c.window("k", "t").with_columns("sum(x)"), MisuseError, "by name"),
    "other method": (lambda c: c.window("k", "t").agg(n="sum(x)"), MisuseError, "no 'agg'"),
    "partition by a map": (lambda c: c.window("m", "t"), SchemaError, "is a map"),
    "order by a map": (lambda c: c.window("k", "m"), SchemaError, "order by a map"),
    "unknown key": (lambda c: c.window("nope", "t"), SchemaError, "nope"),
    "unknown order": (lambda c: c.window("k", "nope"), ExpressionError, "nope"),
    "random order": (lambda c: c.window("k", "rand()"), ExpressionError, "not deterministic"),
    "random argument": (
        lambda c: c.window("k", "t").with_columns(n="lag(rand())"),
        ExpressionError,
        "not deterministic",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_window_is_refused_with_remedy(case: str, rows: Input) -> None:
    build, kind, text = WRONG[case]
    with pytest.raises(kind) as error:
        build(rows)
    assert text in str(error.value)
    assert error.value.hint  # type: ignore[attr-defined]


def test_overflow_of_frame_fails_as_in_spark_and_applies_nothing(
    session: Session, rows: Input
) -> None:
    made = rows.window("k", "t", range_between=(-1, 1)).with_columns(n="count(*)")
    stage = session.stage("result", made)
    before = stage.rows()
    rows.insert([("a", 2**31 - 1, None, None, None, None, None)])
    with pytest.raises(ExpressionError, match="result"):
        session.commit()
    session.discard()
    assert stage.rows() == before


# -- queries -----------------------------------------------------------------------------------


def planned(session: Session, text: str) -> list[str]:
    return operators(session.sql(text))


def test_equal_windows_of_query_are_merged(session: Session, rows: Input) -> None:
    found = planned(
        session,
        "select row_number() over (partition by k order by t) a, lag(x + 1) over (partition by k"
        " order by t) b, sum(x) over (partition by k order by t desc) c, rank() over (partition by"
        " k order by t) d from rows",
    )
    assert found.count("window") == 2


def test_function_of_function_is_not_merged(session: Session, rows: Input) -> None:
    text = (
        "select k, t, lag(n) over (partition by k order by t) m from (select *, row_number() over"
        " (partition by k order by t) n from rows)"
    )
    assert planned(session, text).count("window") == 2
    assert column(session.sql(text), "m") == [None, 1, 2, 3, None]


@pytest.mark.parametrize(
    ("condition", "windows", "expected"),
    [
        ("n <= 2", 1, [1, 2, 1]),
        ("n < 2", 1, [1, 1]),
        ("2 >= n", 1, [1, 2, 1]),
        ("n = 2", 0, [2]),
        ("n <= 2 and t > 0", 1, [2, 1]),
        ("n > 2", 1, [3, 4]),
        ("n <= 0", 1, []),
    ],
)
def test_first_row_numbers_are_planned_as_top(
    session: Session, rows: Input, condition: str, windows: int, expected: list[int]
) -> None:
    query = (
        "select k, t, n from (select *, row_number() over (partition by k order by t) n from rows)"
        f" where {condition}"
    )
    found = planned(session, query)
    assert found.count("window") == windows
    assert ("top" in found) == (condition not in ("n > 2", "n <= 0"))
    assert column(session.sql(query), "n") == expected


def test_qualify_without_its_number_has_no_window(session: Session, rows: Input) -> None:
    found = planned(
        session, "select k, t from rows qualify row_number() over (partition by k order by t) <= 2"
    )
    assert "window" not in found
    assert "top" in found


def test_other_functions_stay_below_first_rows(session: Session, rows: Input) -> None:
    query = (
        "select k, t, total from (select *, row_number() over (partition by k order by t) n,"
        " sum(t) over (partition by k order by t rows between current row and 1 following) total"
        " from rows) where n = 1"
    )
    assert column(session.sql(query), "total") == [1, 1]


def test_condition_on_partitions_passes_their_window(session: Session, rows: Input) -> None:
    query = (
        "select t, r from (select *, row_number() over (partition by k order by t) r from rows)"
        " where k = 'b' and r > 0"
    )
    found = planned(session, query)
    assert (
        found.index("filter") < found.index("window") < len(found) - 1 - found[::-1].index("filter")
    )
    assert column(session.sql(query), "t", "r") == [(1, 1)]
