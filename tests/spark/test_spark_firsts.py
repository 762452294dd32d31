"""First runs on executors: how many jobs, and what passes through this process or its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nosync_nb
from nosync_nb.errors import StageError
from nosync_nb.trace import parts

pytestmark = pytest.mark.spark

N = 6000


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the part files that this process writes."""
    names: list[str] = []
    write = parts.write_arrow

    def noted(folder: str, path: str, *rest: Any, **more: Any) -> Any:
        names.append(path)
        return write(folder, path, *rest, **more)

    monkeypatch.setattr(parts, "write_arrow", noted)
    return names


def queries(placement: str) -> int:
    """How many queries of Spark a text names."""
    return placement.count("Spark job")


def test_what_only_the_next_operator_reads_stays_in_one_query(
    tmp_path: Path, spark: Any, written: list[str]
) -> None:
    """A join, a projection and the sum over them: the join's rows are in no file."""
    session = nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=1000)
    with session:
        session.input("lines", "o bigint, n bigint")
        session.input("orders", "o bigint, c bigint")
        lines, orders = session["lines"], session["orders"]
        both = lines.join(orders, on="o").filter("n <> c % 7")
        session.stage("summed", both.select("c", "n * 2 AS n").group_by("c").agg(n="sum(n)"))
        lines.insert(spark.range(N).selectExpr("id % 5000 as o", "id % 7 as n"))
        orders.insert(spark.range(5000).selectExpr("id as o", "id % 4500 as c"))
        session.commit()
        assert queries(session["summed"].explain()) == 1
        assert written == []
        expected: dict[int, int] = {}
        for i in range(N):
            c = i % 5000 % 4500
            if i % 7 != c % 7:
                expected[c] = expected.get(c, 0) + i % 7 * 2
        assert {row.c: row.n for row in session["summed"].rows()} == expected
        lines.remove(spark.range(2000).selectExpr("id % 5000 as o", "id % 7 as n"))
        session.commit()
        here = nosync_nb.open(tmp_path / "here")
        with here:
            for name in ("lines", "orders"):
                here.input(name, session[name].schema.ddl).insert(session[name].to_arrow())
            own = here["lines"].join(here["orders"], on="o").filter("n <> c % 7")
            here.stage("summed", own.select("c", "n * 2 AS n").group_by("c").agg(n="sum(n)"))
            here.commit()
            assert sorted(map(tuple, here["summed"].rows())) == sorted(
                map(tuple, session["summed"].rows())
            )


def test_an_error_on_the_way_is_that_of_the_operator_that_comes_first(
    tmp_path: Path, spark: Any
) -> None:
    """What comes after it lacks rows then, and what it says of them counts for nothing."""

    def first(count: int) -> int:
        if count == 2:
            raise ValueError("on the way")
        return count

    def second(row: Any) -> tuple[int]:
        raise ValueError("behind it")

    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=1000) as session:
        lines = session.input("lines", "o bigint, n bigint")
        orders = session.input("orders", "o bigint, c bigint")
        seen = lines.select("o").threshold(first)
        session.stage("wrong", seen.map(second, "o bigint").group_by("o").count())
        lines.insert(spark.range(N).selectExpr("id % 5000 as o", "id % 7 as n"))
        orders.insert(spark.range(5000).selectExpr("id as o", "id % 4500 as c"))
        there = sorted(path.name for path in Path(session.path, "layers").iterdir())
        with pytest.raises(StageError, match="on the way"):
            session.commit()
        assert sorted(path.name for path in Path(session.path, "layers").iterdir()) == there
        assert session.now == 0
        session.stage("wrong", lines.join(orders, on="o").group_by("o").count())
        session.commit()
        assert session["wrong"].count() == 5000
