"""First runs on executors: the number of jobs, and bytes through this process."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import nosync_nb
from nosync_nb.dataflow.runtime.delta import Delta
from nosync_nb.dataflow.runtime.executor import OperatorResult
from nosync_nb.errors import StageError
from nosync_nb.operators import Linear, Step
from nosync_nb.spark.execution.bulk_run import BulkOutput, DeferredBulkRun
from nosync_nb.trace.parts import part_file

pytestmark = pytest.mark.spark

N = 6000


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the part files that this process writes."""
    names: list[str] = []
    write = part_file.write_arrow

    def noted(folder: str, path: str, *rest: Any, **more: Any) -> Any:
        names.append(path)
        return write(folder, path, *rest, **more)

    monkeypatch.setattr(part_file, "write_arrow", noted)
    return names


def queries(placement: str) -> int:
    """The number of Spark queries in a placement text."""
    return placement.count("Spark job")


def test_operators_with_one_reader_run_in_one_query(
    tmp_path: Path, spark: Any, written: list[str]
) -> None:
    """A join, a projection and a sum over them: the join's rows are in no file."""
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


def test_first_failing_operator_of_chain_is_reported(tmp_path: Path, spark: Any) -> None:
    """Later operators lack rows then, so their errors are ignored."""

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


def test_spark_expression_after_join_is_second_query(tmp_path: Path, spark: Any) -> None:
    """A Spark expression has its own query: the join runs before it."""
    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=1000) as session:
        lines = session.input("lines", "o bigint, n bigint")
        orders = session.input("orders", "o bigint, c bigint")
        lines.insert([(i % 5000, i % 7) for i in range(N)])
        orders.insert([(i, i % 4500) for i in range(5000)])
        session.commit()
        before = session.stats["touched"]
        both = lines.join(orders, on="o")
        session.stage("masked", both.select("mask(cast(c as string)) AS c"))
        assert queries(session["masked"].explain()) == 2
        assert session.stats["touched"] - before >= 2 * N


def test_deferred_operator_is_reported_with_its_reader() -> None:
    late = DeferredBulkRun(Any, 1, 0, lambda _: BulkOutput(None, 7, "Spark jobs 3-5"))  # type: ignore[arg-type]
    delta = Delta(("bigint",), pending=late)
    row = Delta(("bigint",), later=(delta, Linear((), ("bigint",)), Step((), [], [], [])))
    done = OperatorResult(None, [], 2, "in process")
    assert done.with_late([row, None]) == done, "it may still run on the way"
    late.run_separately()
    assert done.with_late([row, None, row]) == (None, [], 9, "Spark jobs 3-5, in process")


def test_interrupt_of_chain_changes_nothing_and_commit_succeeds_later(
    tmp_path: Path, spark: Any
) -> None:
    begun, never = str(tmp_path / "begun"), str(tmp_path / "never")
    os.mkfifo(begun)
    os.mkfifo(never)  # a pipe without writer

    def stuck(row: Any) -> tuple[int]:
        open(begun, "w").close()
        open(never).close()
        return (row.o,)

    def interrupt() -> None:
        with open(begun):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts = threading.Thread(target=interrupt)
    try:
        with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=1000) as session:
            lines = session.input("lines", "o bigint, n bigint")
            orders = session.input("orders", "o bigint, c bigint")
            both = lines.join(orders, on="o")
            session.stage("counts", both.map(stuck, "o bigint").group_by("o").count())
            orders.insert([(i, i) for i in range(5000)])
            lines.insert(spark.range(N).selectExpr("id % 5000 as o", "id % 7 as n"))
            there = sorted(path.name for path in Path(session.path, "layers").iterdir())
            interrupts.start()
            with pytest.raises(KeyboardInterrupt):
                session.commit()
            interrupts.join(60)
            assert sorted(path.name for path in Path(session.path, "layers").iterdir()) == there
            assert (session.now, session.pending["lines"].rows) == (0, N)
            session.stage("counts", both.group_by("o").count())
            session.commit()  # a task that was not cancelled would have its place for ever
            assert session["counts"].count() == 5000
            assert queries(session["counts"].explain()) == 1
    finally:
        signal.signal(signal.SIGINT, before)
