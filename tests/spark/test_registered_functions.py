"""Registered functions of Spark: a stage keeps the one of its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nosync_nb
from nosync_nb import Collection, ExpressionError, Session

pytestmark = pytest.mark.spark

SOURCE = "def plus(v):\n    return v + {by}\n"


def plus(by: int) -> Callable[[int], int]:
    """A new function object with equal code for equal arguments, as a rerun cell makes."""
    names: dict[str, Any] = {}
    exec(SOURCE.format(by=by), names)
    function: Callable[[int], int] = names["plus"]
    return function


@pytest.fixture
def session(tmp_path: Path, spark: Any) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        session.input("numbers", "id int, v int")
        yield session


def test_stage_keeps_its_function_until_its_cell_runs_again(session: Session, spark: Any) -> None:
    numbers = session.inputs["numbers"]
    spark.udf.register("plus", plus(1), "int")
    session.stage("sums", numbers.select("id", "plus(v) as w"))
    numbers.insert([(1, 1), (2, 2)])
    session.commit()
    spark.udf.register("plus", plus(100), "int")
    numbers.insert([(3, 3)])
    session.commit()
    assert session["sums"].rows() == [(1, 2), (2, 3), (3, 4)]
    session.stage("sums", numbers.select("id", "plus(v) as w"))
    assert session["sums"].rows() == [(1, 101), (2, 102), (3, 103)]
    numbers.remove([(1, 1)])
    session.commit()
    assert session["sums"].rows() == [(2, 102), (3, 103)]
    assert session["sums@1"].rows() == [(1, 2), (2, 3), (3, 4)]


def test_equal_function_leaves_the_stage_unchanged(session: Session, spark: Any) -> None:
    numbers = session.inputs["numbers"]
    for _ in range(2):
        spark.udf.register("plus", plus(1), "int")
        session.stage("sums", numbers.select("id", "plus(v) as w"))
    assert "sums@1" not in session


def test_function_of_another_type_or_kind_is_another_function(session: Session, spark: Any) -> None:
    from pyspark.sql.functions import pandas_udf

    numbers = session.inputs["numbers"]
    made = [(plus(1), "int"), (plus(1), "bigint"), (pandas_udf(plus(1), "int"),)]
    for given in made:
        spark.udf.register("plus", *given)
        session.stage("sums", numbers.select("id", "PLUS (v) as w"))
    assert "sums@2" in session


OPERATORS: dict[str, Callable[[Collection, str], Collection]] = {
    "with_columns": lambda t, call: t.with_columns(w=call),
    "filter": lambda t, call: t.filter(f"{call} > 50"),
    "aggregate": lambda t, call: t.group_by("id").agg(w=f"sum({call})"),
    "top": lambda t, call: t.group_by("id").top(1, by=f"abs({call} - 60)"),
    "join": lambda t, call: t.join(t.rename(id="other", v="u"), on={call: "u"}),
    "explode": lambda t, call: t.select("id", f"explode(array({call}, 0)) as w"),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_keeps_its_function_and_notices_another(
    session: Session, spark: Any, operator: str
) -> None:
    numbers, described = session.inputs["numbers"], OPERATORS[operator]
    numbers.insert([(1, 1), (1, 101), (2, 2)])
    session.commit()
    spark.udf.register("plus", plus(1), "int")
    session.stage("made", described(numbers, "plus(v)"))
    session.stage("first", described(numbers, "(v + 1)"))
    session.stage("second", described(numbers, "(v + 100)"))
    spark.udf.register("plus", plus(100), "int")
    numbers.insert([(3, 3)])
    numbers.remove([(1, 1)])
    session.commit()
    assert session["made"].rows() == session["first"].rows()
    session.stage("made", described(numbers, "plus(v)"))
    assert session["made"].rows() == session["second"].rows()
    assert "made@1" in session


def test_function_that_calls_another_one_counts_with_it(session: Session, spark: Any) -> None:
    numbers = session.inputs["numbers"]
    helper = plus(1)
    spark.udf.register("twice", lambda v: helper(helper(v)), "int")
    session.stage("sums", numbers.select("id", "twice(v) as w"))
    helper = plus(2)
    spark.udf.register("twice", lambda v: helper(helper(v)), "int")
    session.stage("sums", numbers.select("id", "twice(v) as w"))
    assert "sums@1" in session


def test_nondeterministic_function_has_its_results_memoised(session: Session, spark: Any) -> None:
    from pyspark.sql.functions import udf

    def drawn(v):  # type: ignore[no-untyped-def]
        import uuid

        return f"{v} {uuid.uuid4()}"

    numbers = session.inputs["numbers"]
    spark.udf.register("drawn", udf(drawn, "string").asNondeterministic())
    session.stage("drawn", numbers.select("id", "drawn(v) as w"))
    numbers.insert([(1, 1), (2, 2)])
    session.commit()
    first = session["drawn"].rows()
    numbers.remove([(1, 1)])
    session.commit()
    assert session["drawn"].rows() == first[1:]


class JavaFunction:
    """An object that Spark accepts as a Java function."""

    def call(self, value: Any) -> Any:
        return value

    class Java:
        implements = ("org.apache.spark.sql.api.java.UDF1",)


def test_java_function_is_refused_with_the_way_that_works(session: Session, spark: Any) -> None:
    from pyspark.java_gateway import ensure_callback_server_started

    numbers = session.inputs["numbers"]
    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    type_ = gateway.jvm.org.apache.spark.sql.types.DataTypes.IntegerType
    java_session = getattr(spark, "_jsparkSession")  # noqa: B009  (PySpark registers names alone)
    java_session.udf().register("java_plus", JavaFunction(), type_)
    with pytest.raises(
        ExpressionError, match="Spark does not reveal the function 'java_plus'"
    ) as e:
        numbers.select("id", "java_plus(v) as w")
    assert "map(lambda row: (*row, java_plus(row.x))" in str(e.value.hint)


def test_sql_function_is_refused_with_the_way_that_works(session: Session, spark: Any) -> None:
    numbers = session.inputs["numbers"]
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION area(x INT) RETURNS INT RETURN x * x")
    with pytest.raises(ExpressionError, match="Spark does not reveal the function 'area'") as e:
        numbers.select("id", "area(v) as w")
    assert "write the body of a SQL function as an expression" in str(e.value.hint)


def test_large_function_that_spark_broadcasts_is_refused(session: Session, spark: Any) -> None:
    numbers, values = session.inputs["numbers"], list(range(400_000))
    spark.udf.register("large", lambda v: values[v], "int")
    with pytest.raises(ExpressionError, match="Spark does not reveal the function 'large'"):
        numbers.select("id", "large(v) as w")


def test_another_spark_session_must_have_the_same_function(
    tmp_path: Path, spark: Any, second_spark_session: Any
) -> None:
    other = second_spark_session
    used = [spark]
    with nosync_nb.open(tmp_path / "log", spark=lambda: used[0]) as session:
        numbers = session.input("numbers", "id int, v int")
        spark.udf.register("plus", plus(1), "int")
        session.stage("sums", numbers.select("id", "plus(v) as w"))
        numbers.insert([(1, 1)])
        session.commit()
        used[0] = other
        other.udf.register("plus", plus(100), "int")
        numbers.insert([(2, 2)])
        with pytest.raises(ExpressionError, match="has another function 'plus'") as caught:
            session.commit()
        assert "run the cell of the stage" in str(caught.value.hint)
        other.udf.register("plus", plus(1), "int")
        session.commit()
        assert session["sums"].rows() == [(1, 2), (2, 3)]


def test_stage_of_a_log_waits_for_its_cell(tmp_path: Path, spark: Any) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        numbers = session.input("numbers", "id int, v int")
        spark.udf.register("plus", plus(1), "int")
        session.stage("sums", numbers.select("id", "plus(v) as w"))
        numbers.insert([(1, 1)])
        session.commit()
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        numbers = session.inputs["numbers"]
        assert "calls 'plus', which is not allowed in a log" in session.stale["sums"]
        spark.udf.register("plus", plus(100), "int")
        session.stage("sums", numbers.select("id", "plus(v) as w"))
        numbers.insert([(2, 2)])
        session.commit()
        assert session["sums"].rows() == [(1, 101), (2, 102)]
