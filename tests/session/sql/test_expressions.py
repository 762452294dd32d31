"""Expressions in statements: the clock, misspelt names, and values that start no Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from sql_cases.select_runs import without_spark

from nosync_nb import Session
from nosync_nb.errors import ExpressionError, NosyncError, SqlError
from nosync_nb.expressions.syntax.spark_functions import SPARK_FUNCTIONS


@pytest.fixture
def starts(session: Session) -> Iterator[list[str]]:
    """The attempts to start Spark."""
    session.input("t", "id int, b string, at timestamp, tags array<string>", key="id")
    session.input("s", "id int, b string, s decimal(20,2)")
    with without_spark(ansi=True) as attempts:
        yield attempts


@pytest.mark.parametrize(
    ("query", "error", "hint"),
    [
        ("SELECT uper(b) FROM t", "UNRESOLVED_ROUTINE", "did you mean 'upper'"),
        ("SELECT group_concat(b) FROM t", "UNRESOLVED_ROUTINE", "did you mean 'listagg'"),
        ("SELECT strftime(at, 'Y') FROM t", "UNRESOLVED_ROUTINE", "did you mean 'date_format'"),
        ("SELECT iff(id > 1, 1, 2) FROM t", "UNRESOLVED_ROUTINE", "did you mean 'if'"),
        ("SELECT id FROM t WHERE id IN ()", "INVALID_SQL_SYNTAX.EMPTY_IN_PREDICATE", "at least"),
        ("SELECT at AT TIME ZONE 'UTC' FROM t", "PARSE_SYNTAX_ERROR", "from_utc_timestamp"),
        ("SELECT b LIKE ANY () FROM t", "INVALID_SQL_SYNTAX.EMPTY_QUANTIFIED_PATTERN", "list"),
        (
            "SELECT date_format(at, 'YYYY-MM-DD') FROM t",
            "INCONSISTENT_BEHAVIOR_CROSS_VERSION.DATETIME_PATTERN_RECOGNITION",
            "'yyyy-MM-dd'",
        ),
        (
            "SELECT to_char(at, 'ee') FROM t",
            "INCONSISTENT_BEHAVIOR_CROSS_VERSION.DATETIME_WEEK_BASED_PATTERN",
            "DAYOFWEEK_ISO",
        ),
        (
            "SELECT id FROM t UNION SELECT at FROM t",
            "INCOMPATIBLE_COLUMN_TYPE",
            "cast both to one type",
        ),
    ],
)
def test_refused_expression_names_class_and_remedy_without_spark(
    session: Session, starts: list[str], query: str, error: str, hint: str
) -> None:
    with pytest.raises(ExpressionError) as raised:
        session.sql(query)
    assert raised.value.error_class == error
    assert hint in str(raised.value.hint)
    assert starts == []


def test_unknown_function_starts_spark_if_settings_may_add_it(
    session: Session, starts: list[str]
) -> None:
    with pytest.raises(ExpressionError, match="no function 'ST_Area'"):
        session.sql("SELECT ST_Area(b) AS x FROM t")
    assert starts == []
    session.spark_conf["spark.sql.extensions"] = "org.apache.sedona.sql.SedonaSqlExtensions"
    with pytest.raises(NosyncError):
        session.sql("SELECT ST_Area(b) AS x FROM t")
    assert starts == ["start"]


@pytest.mark.spark
def test_names_of_functions_are_those_of_spark(spark: object) -> None:
    names = [row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]  # type: ignore[attr-defined]
    listed = {name.lower() for name in names if name.replace("_", "").isalnum()}
    assert listed == SPARK_FUNCTIONS


def test_statement_has_one_time(session: Session, starts: list[str]) -> None:
    [same] = session.execute("SELECT now() = current_timestamp() AS x, now() AS y, now() AS z")
    [row] = same.first(1)
    assert row.x
    assert row.y == row.z
    session.execute(
        "INSERT INTO t (id, at) SELECT 1, now(); INSERT INTO t (id, at) SELECT 2, now()"
    )
    first, second = sorted(row.at for row in session["t"].rows())
    assert isinstance(first, datetime)
    assert first <= second
    assert starts == []


@pytest.mark.parametrize(
    ("query", "function"),
    [
        ("SELECT * FROM t WHERE at > now() - INTERVAL 7 DAYS", "now"),
        ("SELECT t.id FROM t JOIN s ON t.id = s.id AND rand() < 0.5", "rand"),
        ("SELECT b, count(*) AS n FROM t GROUP BY b HAVING max(at) > current_timestamp", "current"),
        ("SELECT * FROM recent", "now"),
    ],
)
def test_view_with_condition_that_changes_by_itself_is_refused(
    session: Session, starts: list[str], query: str, function: str
) -> None:
    recent = "SELECT * FROM t WHERE at > now() - INTERVAL 7 DAYS"
    session.execute(f"CREATE TEMPORARY VIEW recent AS {recent}")
    with pytest.raises(
        SqlError, match=rf"{function}\w*\(\) is in a condition of view 'v'"
    ) as found:
        session.execute(f"CREATE VIEW v AS {query}")
    assert "CREATE TEMPORARY VIEW" in str(found.value.hint)
    assert "v" not in session
    session.execute("INSERT INTO t (id, at) SELECT 1, now()")
    assert session.sql("SELECT count(*) AS n FROM recent").rows()[0].n == 1


def test_view_with_time_of_each_row_keeps_it_and_says_so(
    session: Session, starts: list[str]
) -> None:
    session.execute("INSERT INTO t (id, b) VALUES (1, 'x')")
    [made] = session.execute("CREATE VIEW v AS SELECT id, now() AS seen FROM t")
    assert made.note == (
        "v: now() is the time at which NoSync computes a row; it does not change afterwards"
    )
    [before] = session["v"].rows()
    session.execute("INSERT INTO t (id, b) VALUES (2, 'y')")
    assert before in session["v"].rows()
    session.execute("DELETE FROM t WHERE id = 1")
    assert [row.id for row in session["v"].rows()] == [2]
    assert starts == []


def test_insert_without_some_columns_starts_no_spark(session: Session, starts: list[str]) -> None:
    session.execute("INSERT INTO t BY NAME SELECT 'Dee' AS b, 4 AS id")
    session.execute("INSERT INTO t (id, b) SELECT 5, 'Eve'")
    session.execute(
        "MERGE INTO t USING (SELECT 6 AS id) n ON t.id = n.id"
        " WHEN NOT MATCHED THEN INSERT (id) VALUES (n.id)"
    )
    assert sorted(tuple(row) for row in session["t"].rows())[0] == (4, "Dee", None, None)
    assert session["t"].count() == 3
    assert starts == []


@pytest.mark.parametrize("clause", ["NOT MATCHED THEN INSERT *", "MATCHED THEN UPDATE SET *"])
def test_merge_of_all_columns_names_those_that_the_source_lacks(
    session: Session, starts: list[str], clause: str
) -> None:
    source = "(SELECT id, max(b) AS b, sum(s) AS s FROM s GROUP BY id)"
    with pytest.raises(SqlError, match="the source has no column `at` of input 't'") as found:
        session.execute(f"MERGE INTO t USING {source} s ON t.id = s.id WHEN {clause}")
    assert found.value.error_class == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    assert "its columns are id, b, s" in str(found.value)
    assert starts == []


def test_aggregate_that_depends_on_order_names_one_that_does_not(
    session: Session, starts: list[str]
) -> None:
    session.execute("INSERT INTO t (id, b) VALUES (1, 'x'), (2, 'y')")
    with pytest.raises(SqlError, match=r"\(line 1, column 11\)") as found:
        session.sql("SELECT b, first(id + 1) AS x FROM t GROUP BY b")
    assert "min_by(id + 1, o)" in str(found.value.hint)
    assert session.sql("SELECT min_by(id + 1, b) AS x FROM t").rows()[0].x == 2
    assert session.sql("SELECT any_value(b) AS x FROM t").rows()[0].x in ("x", "y")
