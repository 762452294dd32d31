"""Errors of statements and of rows: Spark's error class, the part or the value, the remedy."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import DivergenceError, ExpressionError, NosyncError, SqlError


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log") as session:
        session.input("t", "a int, b string, xs array<int>, p decimal(6,2), day date")
        session.input("u", "a int, d int")
        session["t"].insert([(1, "x", [1, 2], None, None), (2, "3", [], None, None)])
        session["u"].insert([(1, 10), (5, 0)])
        session.commit()
        yield session


ROWS = {
    "100 / d": ("DIVIDE_BY_ZERO", "d=0", "try_divide"),
    "100 % d": ("REMAINDER_BY_ZERO", "d=0", "try_mod"),
    "a * 1000000000": ("ARITHMETIC_OVERFLOW", "a=5", "cast(a as bigint)"),
    "tinyint(a) * tinyint(100)": ("BINARY_ARITHMETIC_OVERFLOW", "a=5", "cast(a as bigint)"),
    "cast(a * 100 as tinyint)": ("CAST_OVERFLOW", "a=5", "try_cast"),
    "cast(a * 25 as decimal(2, 0))": (
        "NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION",
        "a=5",
        "double",
    ),
    "cast(concat('x', a) as int)": ("CAST_INVALID_INPUT", "'x1'", "try_cast"),
    "array(1, 2)[a]": ("INVALID_ARRAY_INDEX", "a=5", "get(a, i)"),
    "element_at(array(1, 2), a)": ("INVALID_ARRAY_INDEX_IN_ELEMENT_AT", "a=5", "try_element_at"),
    "element_at(array(1, 2), a + 9)": ("INVALID_ARRAY_INDEX_IN_ELEMENT_AT", "a=1", "get(a, i)"),
    "timestampadd(year, a * 100000, timestamp '2024-01-01 00:00:00')": (
        "DATETIME_OVERFLOW",
        "a=5",
        "smaller",
    ),
    "interval '1' day / d": ("INTERVAL_DIVIDED_BY_ZERO", "d=0", "nullif"),
    "split_part('a.b', '.', d)": ("INVALID_INDEX_OF_ZERO", "d=0", "1 for the first"),
    "to_date(concat('x', a), 'yyyy')": ("CANNOT_PARSE_TIMESTAMP", "'x1'", "try_to_timestamp"),
}
"""Expressions over `u` that fail for a row: the class, a part of the message and of the hint."""


@pytest.mark.parametrize("text", ROWS)
@pytest.mark.parametrize("language", ["python", "sql"])
def test_row_that_fails_names_class_value_and_remedy(
    session: Session, text: str, language: str
) -> None:
    name, value, remedy = ROWS[text]
    before = (session.now, list(session.stages))
    actions: dict[str, Callable[[], object]] = {
        "python": lambda: session.stage("bad", session["u"].select(f"{text} AS x")),
        "sql": lambda: session.execute(f"CREATE VIEW bad AS SELECT {text} AS x FROM u"),
    }
    with pytest.raises(ExpressionError) as caught:
        actions[language]()
    error = caught.value
    assert error.error_class == name
    assert f"[{name}] " in str(error)
    assert value in str(error)
    assert remedy in str(error.hint)
    assert (session.now, list(session.stages)) == before
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.error_class, str(copy), copy.hint) == (name, str(error), error.hint)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sum(n)", "ARITHMETIC_OVERFLOW"),
        ("sum(cast(n as decimal(38, 0)) * 10000000000000000000)", "NUMERIC_VALUE_OUT_OF_RANGE"),
        ("sum(make_dt_interval(100000000))", "INTERVAL_ARITHMETIC_OVERFLOW"),
    ],
)
def test_total_that_does_not_fit_names_class(session: Session, text: str, name: str) -> None:
    session.input("big", "n bigint")
    total = session.stage("total", session.sql(f"SELECT {text} AS s FROM big"))
    session["big"].insert([(2**62,)])
    session.commit()
    kept = total.rows()
    session["big"].insert([(2**62,), (2**62,)])
    with pytest.raises(ExpressionError, match="stage 'total'") as caught:
        session.commit()
    assert caught.value.error_class.partition(".")[0] == name
    session.discard()
    assert total.rows() == kept


def test_division_by_zero_in_maintained_row_refuses_epoch_alone(session: Session) -> None:
    share = session.stage("share", session.sql("SELECT a, 100 / d AS x FROM u WHERE a < 5"))
    many = session.stage("many", session.sql("SELECT count(*) AS n FROM t"))
    before = (session.now, share.rows(), many.rows(), session["u"].rows())
    session["u"].insert([(2, 0), (3, 5)])
    session["t"].insert([(9, None, None, None, None)])
    with pytest.raises(ExpressionError, match=r"stage 'share': .* in the row .*d=0") as caught:
        session.commit()
    assert caught.value.error_class == "DIVIDE_BY_ZERO"
    now = session.now
    assert (now, *(each.rows(at=now) for each in (share, many, session["u"]))) == before
    session["u"].remove([(2, 0)])  # the row that fails; the others are still waiting
    session.commit()
    assert session.now == before[0] + 1
    assert sorted(share.rows()) == [(1, 10.0), (3, 20.0)]
    assert many.rows() == [(3,)]
    with pytest.raises(ExpressionError, match="stage 'share'") as refused:
        session.execute("INSERT INTO t SELECT a, b, xs, p, day FROM t; INSERT INTO u VALUES (4, 0)")
    assert refused.value.error_class == "DIVIDE_BY_ZERO"
    assert many.rows() == [(3,)]
    with pytest.raises(SqlError, match="line 2, column 1") as refused:
        session.execute("DELETE FROM u WHERE a = 99;\nUPDATE u SET d = 1 / (d - d)")
    assert refused.value.reason.startswith("[DIVIDE_BY_ZERO] ")
    assert session.execute("INSERT INTO u VALUES (4, 4)")[0].inserted == 1
    assert sorted(share.rows()) == [(1, 10.0), (3, 20.0), (4, 25.0)]


STATEMENTS = {
    "SELECT a, b, count(*) FROM t GROUP BY a": ("MISSING_AGGREGATION", "b"),
    "SELECT a, count(*) FROM t": ("MISSING_GROUP_BY", "a"),
    "SELECT a FROM t GROUP BY a HAVING day > 1": ("UNRESOLVED_COLUMN", "day"),
    "SELECT * FROM t WHERE b": ("DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN", "b"),
    "SELECT * FROM u WHERE a IN (SELECT a, d FROM u)": (
        "DATATYPE_MISMATCH.IN_SUBQUERY_LENGTH_MISMATCH",
        "a IN (SELECT a, d FROM u)",
    ),
    "SELECT t.a FROM t JOIN u ON t.a": ("JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE", "t.a"),
    "SELECT t.a FROM t JOIN u ON t.a + u.d": ("JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE", "t.a + u.d"),
    "SELECT t.a FROM t JOIN u ON NULL": ("JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE", "NULL"),
    "SELECT a FROM t LIMIT a": ("INVALID_LIMIT_LIKE_EXPRESSION", ""),
    "SELECT a FROM t WHERE explode(xs) = 1": (
        "UNSUPPORTED_GENERATOR.OUTSIDE_SELECT",
        "explode(xs)",
    ),
    "SELECT 1 + explode(xs) FROM t": ("UNSUPPORTED_GENERATOR.NESTED_IN_EXPRESSIONS", "explode(xs)"),
    "SELECT explode(a) AS x FROM t": ("DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE", ""),
    "SELECT a,, b FROM t": ("PARSE_SYNTAX_ERROR", ","),
    "SELECT a, b, FROM t": ("TRAILING_COMMA_IN_SELECT", ","),
    "SELECT a FROM t ORDER BY a,": ("PARSE_SYNTAX_ERROR", ","),
    "SELECT a FROM t WHERE row_number() OVER (ORDER BY a) = 1": (
        "WINDOW_FUNCTION_NOT_ALLOWED_IN_CLAUSE",
        "row_number() OVER (ORDER BY a)",
    ),
    "SELECT rank() FROM t": ("WINDOW_FUNCTION_WITHOUT_OVER_CLAUSE", "rank()"),
    "SELECT ntile(a) OVER (ORDER BY a) FROM t": ("DATATYPE_MISMATCH.NON_FOLDABLE_INPUT", "a"),
    "SELECT sum(a) OVER (ORDER BY a ROWS BETWEEN UNBOUNDED FOLLOWING AND CURRENT ROW) FROM t": (
        "DATATYPE_MISMATCH.SPECIFIED_WINDOW_FRAME_INVALID_BOUND",
        "",
    ),
    "WITH x AS (SELECT 1 AS a), X AS (SELECT 2 AS a) SELECT * FROM x": ("DUPLICATED_CTE_NAMES", ""),
    "SELECT a FROM t UNION ALL SELECT xs FROM t": ("INCOMPATIBLE_COLUMN_TYPE", ""),
    "SELECT a AS x, b AS X FROM t": ("COLUMN_ALREADY_EXISTS", ""),
    "SELECT DATE '2024-02-30' AS d": ("INVALID_TYPED_LITERAL", "DATE '2024-02-30'"),
    "SELECT cast(a AS nothing) FROM t": ("UNSUPPORTED_DATATYPE", "nothing"),
    "SELECT sum(a) FILTER (WHERE a) AS s FROM t": ("INVALID_AGGREGATE_FILTER.NOT_BOOLEAN", ""),
    "SELECT upper(b) FILTER (WHERE a > 1) AS s FROM t": (
        "INVALID_SQL_SYNTAX.FUNCTION_WITH_UNSUPPORTED_SYNTAX",
        "upper(b) FILTER (WHERE a > 1)",
    ),
    "SELECT * FROM t FULL JOIN LATERAL (SELECT d FROM u WHERE u.a = t.a) x ON true": (
        "INVALID_LATERAL_JOIN_TYPE",
        "",
    ),
    "FROM t |> AGGREGATE a": (
        "PIPE_OPERATOR_AGGREGATE_EXPRESSION_CONTAINS_NO_AGGREGATE_FUNCTION",
        "a",
    ),
    "SELECT * FROM range('x')": ("CAST_INVALID_INPUT", ""),
    "SELECT * FROM range()": ("WRONG_NUM_ARGS", ""),
}
"""Statements that are refused before anything is defined: the class, and the marked part."""


@pytest.mark.parametrize("text", STATEMENTS)
def test_refused_statement_names_class_and_part(session: Session, text: str) -> None:
    name, part = STATEMENTS[text]
    before = (session.now, list(session.stages), list(session.inputs))
    with pytest.raises(SqlError) as caught:
        session.execute(f"CREATE VIEW bad AS\n{text}")
    error = caught.value
    assert error.error_class.startswith(name)
    assert error.reason.startswith(f"[{name}")
    assert error.hint
    line, shown, caret = str(error).split("\n")
    assert "(line 2, column " in line or not part
    if part:
        start = caret.index("^")
        assert shown[start : start + caret.count("^")] == part
    assert (session.now, list(session.stages), list(session.inputs)) == before


FORMS = {
    "SELECT {}a{} AS x FROM t": "(",
    "SELECT {}a{} AS y FROM t": "abs(",
    "SELECT a FROM {}t{}": "(SELECT a FROM ",
}


@pytest.mark.parametrize("form", FORMS)
def test_deep_statement_is_refused_with_class(session: Session, form: str) -> None:
    for deep in (10, 20):
        text = form.format(FORMS[form] * deep, ")" * deep)
        assert session.sql(text).count() == 2
    for deep in (500, 5000):
        with pytest.raises(SqlError) as caught:
            session.sql(form.format(FORMS[form] * deep, ")" * deep))
        assert caught.value.error_class == "FAILED_TO_PARSE_TOO_COMPLEX"
        assert caught.value.hint
        assert len(str(caught.value)) < 1000


def test_query_of_a_megabyte_runs_and_its_error_is_short(session: Session) -> None:
    long = "x" * 1_000_000
    assert session.sql(f"SELECT length('{long}') AS n FROM u").rows() == [(1_000_000,)] * 2
    with pytest.raises(SqlError) as caught:
        session.sql(f"SELECT length('{long}') AS n, nope FROM u")
    assert caught.value.error_class == "UNRESOLVED_COLUMN"
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SELECT 1 AS n UNION ALL SELECT n + 1 FROM r", "RECURSION_LEVEL_LIMIT_EXCEEDED"),
        ("SELECT 1 AS n UNION ALL SELECT n FROM r", "RECURSION_LEVEL_LIMIT_EXCEEDED"),
        ("SELECT 1 AS n UNION ALL SELECT n FROM r, u", "RECURSION_ROW_LIMIT_EXCEEDED"),
    ],
)
def test_recursion_that_does_not_end_names_class(session: Session, text: str, name: str) -> None:
    with pytest.raises(DivergenceError, match="stage 'endless'") as caught:
        session.execute(f"CREATE VIEW endless AS WITH RECURSIVE r AS ({text}) SELECT * FROM r")
    assert caught.value.error_class == name
    assert caught.value.hint
    assert list(session.stages) == []


def test_error_class_is_empty_without_one() -> None:
    assert NosyncError("stage 's': there is no row [1]").error_class == ""
    assert NosyncError("stage 's': [A_B.C_D] text [E_F] more").error_class == "A_B.C_D"
    assert NosyncError("expression \"'[A_B] '\": nothing").error_class == ""
