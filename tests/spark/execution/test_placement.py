"""Placement: executors and this process agree."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from checks.checking import merge_all
from internals import graph_of, notices_of, slots_of, spark_unseen, traces_of
from soak import tried

import nosync_nb
from nosync_nb import Collection, Session
from nosync_nb.errors import ExpressionError, NosyncError, OutOfMemoryError
from nosync_nb.spark import launch, spark_session
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.execution import cost_model, placement
from nosync_nb.spark.execution.placement import Placement

Rows = dict[str, list[Any]]
EPOCHS = tried(1, soak=5)
"""The number of epochs after the first run; a soak covers states of many layers."""


def stages(session: Session) -> dict[str, Collection]:
    edges, nodes = session["edges"], session["nodes"]
    joined = edges.filter("v IS NOT NULL").join(nodes, on={"a": "k"}).with_columns(twice="v * 2")
    return {
        "joined": joined,
        "summed": joined.group_by("w").agg(
            n="count(*)", most="max(v)", total="sum(v)", mean="avg(twice)", least="min(b)"
        ),
        "present": joined.group_by("w").agg(
            kinds="count(distinct b, v)",
            spread="stddev(v)",
            bits="bit_and(a) + bit_or(a) + bit_xor(a)",
            by="min_by(b, v)",
            all="collect_set(b)",
            most="sum(distinct twice)",
            some="bool_or(v > 1)",
        ),
        "different": edges.select("a", "b").distinct(),
        "counted": edges.select("b").multiplicity(),
        "reduced": edges.group_by("a").reduce(
            lambda key, rows: [(len(rows), str(rows[0].b))], "n int, first string"
        ),
        "left_": nodes.join(edges, on={"k": "a"}, how="left"),
        "lonely": nodes.join(edges, on={"k": "a"}, how="anti"),
        "all_pairs": edges.join(nodes, on={"a % 12": "k", "b": "lower(w)"}, how="full"),
        "nobody": edges.join(nodes, on={"a": "k"}, how="right"),
        "best": edges.group_by("b").top(3, by="v desc nulls first, a % 5", offset=1),
        "places": edges.group_by().rank(by="v, b desc", k=20),
        "numbered": edges.window("b", "v desc nulls first, a % 5").with_columns(
            number="row_number()", peers="dense_rank()", before="lag(v)", sums="sum(a)"
        ),
        "around": edges.window("a", "v", range_between=(-1.0, 1.0)).with_columns(
            near="count(*)", most="max(v)", kinds="count(distinct b)"
        ),
        "ranked": edges.window(order_by="v").with_columns(r="rank()", share="percent_rank()"),
        "twice": edges.select("a", "b").threshold(lambda n: n // 2),
        "pairs": cross_join(nodes, edges.group_by("b").count()),
        "total": edges.agg(n="count(*)", mean="avg(v)"),
        "minus": edges.select("a").except_all(nodes.select("k AS a")),
        "reached": nodes.select("k AS a").iterate(
            lambda value: (
                value.join(
                    edges.filter("a IS NOT NULL").select("a", "(a * 5 + length(b)) % 15 AS next"),
                    on="a",
                )
                .select("next AS a")
                .concat(nodes.select("k AS a").filter("a % 4 = 0"))
                .distinct()
            )
        ),
        "nearest": nodes.filter("k % 5 = 0")
        .select("k AS a", "0 AS hops")
        .iterate(
            lambda value: (
                value.join(edges.select("a", "(a * 5 + 1) % 13 AS next"), on="a")
                .select("next AS a", "hops + 1 AS hops")
                .concat(nodes.filter("k % 5 = 0").select("k AS a", "0 AS hops"))
                .group_by("a")
                .agg(hops="min(hops)")
            )
        ),
        "pieces": edges.flat_map("posexplode_outer(split(b, '')) AS (i, letter)"),
        "shout": edges.select("upper(b) AS u", "a").map(
            lambda row: (row.u, row.a), "u string, a bigint"
        ),
    }


def cross_join(left: Collection, right: Collection) -> Collection:
    with pytest.warns(UserWarning, match="cross"):
        return left.join(right, how="cross")


def history(path: Path, on: str, spark: Any, seed: int) -> list[Rows]:
    """The rows of every stage at every epoch of a random history with retractions."""
    rng = random.Random(seed)
    held = [edge_row(rng) for _ in range(300)]
    with nosync_nb.open(path, spark=spark) as session:
        session.input("edges", "a bigint, b string, v double")
        session.input("nodes", "k bigint, w string", key="k")
        session["edges"].insert(held)  # type: ignore[attr-defined]
        session["nodes"].upsert([(i, f"w{i % 4}") for i in range(15)])  # type: ignore[attr-defined]
        session.commit()
        session.define(stages(session), on=on)
        found = [all_rows(session)]
        for _ in range(EPOCHS):
            gone = [held.pop(rng.randrange(len(held))) for _ in range(25)]
            new = [edge_row(rng) for _ in range(8)]
            held += new
            session["edges"].remove(gone)  # type: ignore[attr-defined]
            session["edges"].insert(new)  # type: ignore[attr-defined]
            session["nodes"].upsert([(rng.randrange(20), "new")])  # type: ignore[attr-defined]
            session["nodes"].delete([rng.randrange(15)])  # type: ignore[attr-defined]
            session.commit()
            found.append(all_rows(session))
    with nosync_nb.open(path, spark=spark) as session:
        assert session.recovery.recomputed == 0
        assert repr(found[-1]) == repr(all_rows(session))
    return found


def edge_row(rng: random.Random) -> tuple[Any, ...]:
    """A row with nulls, NaN, copies and letters beyond ASCII."""
    value = rng.choice([None, 1.5, float("nan"), 2.0, -3.25, 1e300])
    return (rng.choice([None, *range(12)]), rng.choice(["x", "y", None, "é", ""]), value)


def all_rows(session: Session) -> Rows:
    return {name: stage.rows() for name, stage in session.stages.items()}


@pytest.mark.spark
def test_every_operator_has_same_rows_on_executors_and_in_process(
    tmp_path: Path, spark: Any
) -> None:
    with spark_unseen():
        here = history(tmp_path / "here", "local", None, seed=7)
    there = history(tmp_path / "there", "spark", spark, seed=7)
    for epoch, (ours, theirs) in enumerate(zip(here, there, strict=True)):
        for name in ours:
            assert repr(ours[name]) == repr(theirs[name]), (epoch, name)


@pytest.mark.spark
def test_large_first_run_is_on_spark_and_small_epoch_is_not(tmp_path: Path, spark: Any) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=1000) as session:
        numbers = session.input("numbers", "n bigint")
        numbers.insert([(i,) for i in range(2000)])
        session.commit()
        (report,) = session.define({"odd": numbers.filter("n % 2 = 1").group_by("n").count()})
        assert "Spark job" in report.placement
        numbers.insert([(1,)])
        session.commit()
        assert "[in process" in session["odd"].explain()
        assert session["odd"].agg(n="sum(count)").rows()[0].n == 1001
        (report,) = session.define({"here": numbers.agg(n="count(*)")}, on="local")
        assert report.placement == "in process"


SECRETLY = "started Spark"


@pytest.fixture
def spark_must_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is available, and starting it fails the test."""

    def start(*_: Any) -> None:
        raise AssertionError(SECRETLY)

    monkeypatch.setattr(SparkConnection, "require", start)
    monkeypatch.setattr(Placement, "_slots", lambda *_: 2)


def number_table(count: int) -> pa.Table:
    return pa.table({"k": np.arange(count) % 1000, "x": np.arange(count)})


def joined(session: Session, start: str = "k >= 0") -> Collection:
    """A join and a count of input `rows`; another predicate makes another stage."""
    rows, names = session["rows"].filter(start), session["names"]
    return rows.join(names, on={"k": "n"}).group_by("label").agg(n="count(*)")


def with_inputs(session: Session) -> None:
    session.input("rows", "k bigint, x bigint")
    names = session.input("names", "n bigint, label bigint")
    names.insert([(n, n % 7) for n in range(1000)])


@pytest.mark.parametrize("spark_rows", [None, 10**9])
def test_rows_of_driver_start_no_jvm(
    tmp_path: Path, spark_must_not_start: None, spark_rows: int | None
) -> None:
    """Neither the rows of an epoch do, nor those of a first run, which are in files already."""
    with nosync_nb.open(tmp_path / "log", spark_rows=spark_rows) as session:
        with_inputs(session)
        before = session.stage("before", joined(session))
        session["rows"].insert(number_table(150_000))  # type: ignore[attr-defined]
        session.commit()
        held = [traces_of(session)[n] for n in graph_of(session).named["rows"].traces.values()]
        assert all(trace.layers[0].files for trace in held)
        (report,) = session.define({"after": joined(session, "k >= -1")})
        assert report.placement == "in process"
        assert before.rows() == session["after"].rows()
        assert ("with its start" if spark_rows is None else "as requested") in before.explain()
        session["rows"].insert([(1, 1)])  # type: ignore[attr-defined]
        session.commit()
        assert "ms: few rows]" in before.explain()


def test_nothing_runs_on_spark_if_it_is_off(tmp_path: Path, spark_must_not_start: None) -> None:
    with nosync_nb.open(tmp_path / "log", spark_rows=1000) as session:
        session.spark_off = True
        with_inputs(session)
        session["rows"].insert(number_table(9000))  # type: ignore[attr-defined]
        session.commit()
        (report,) = session.define({"asked": joined(session)}, on="spark")
        assert report.placement == "in process"
        assert "Spark is off" in session["asked"].explain()
        loop = session["rows"].iterate(lambda v: v.select("k", "x % 7 AS x").distinct())
        session.define({"loop": loop}, on="spark")
        assert session["loop"].count() > 0
        session.spark_off = False
        with pytest.raises(AssertionError, match=SECRETLY):
            session.define({"there": joined(session, "k >= -2")}, on="spark")


def test_expression_that_needs_spark_is_error_if_spark_is_off(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        spark_session, "find_session", lambda _user: None
    )  # other tests have one running
    session.spark_off = True
    with_inputs(session)
    session["rows"].insert([(1, 1)])  # type: ignore[attr-defined]
    session.commit()
    with pytest.raises(
        ExpressionError,
        match=r"xpath_int.*\(function xpath_int\) needs Spark, which is switched off",
    ) as caught:
        session["rows"].select("upper(string(k)) = xpath_int(string(k), 'a') AS x").rows()
    assert "use 'UPPER(STRING(k))', which needs no Spark" in str(caught.value.hint)
    assert session["rows"].select("upper(cast(k AS string)) AS text").rows()[0].text == "1"


def test_reason_is_published_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def start(_conf: object) -> None:
        now = session.info.activity
        said.append("" if now is None else now.what)
        raise NosyncError("there is no Java")

    monkeypatch.setattr(
        spark_session, "find_session", lambda _user: None
    )  # other tests have one running
    monkeypatch.setattr(launch, "start_session", start)
    with nosync_nb.open(tmp_path / "log") as session:
        with_inputs(session)
        asked = session["rows"].select("upper(string(k)) = xpath_int(string(k), 'a') AS x")
        with pytest.raises(NosyncError, match=r"xpath_int.* needs Spark, but there is no Java"):
            session.stage("asked", asked)
        (notice,) = notices_of(session)
    assert notice.startswith('starts Spark for the expression "upper(string(k)) = xpath_int(')
    assert notice.endswith("(function xpath_int); 'UPPER(STRING(k))' would run in this process")
    assert len(said) == 1
    assert "starts Spark for" in said[0]
    assert "xpath_int" in said[0]


def test_rows_that_fit_in_no_memory_are_refused_before_commit(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.spark_off = True
    with_inputs(session)
    counted = session.stage("counted", joined(session))
    rows: Any = session["rows"]
    session.commit()
    table = number_table(50_000)
    monkeypatch.setattr(placement, "free_bytes", lambda: table.nbytes)
    with pytest.raises(OutOfMemoryError, match="input 'rows': 50,000 rows need"):
        rows.insert(table)
    with pytest.raises(OutOfMemoryError, match="none of them is pending"):
        rows.insert(table.to_pandas())
    with pytest.raises(OutOfMemoryError, match="input 'rows': 50,000 rows need"):
        rows.insert([tuple(row.values()) for row in table.to_pylist()])
    assert not session.pending
    monkeypatch.setattr(placement, "free_bytes", lambda: 2 * table.nbytes)
    rows.insert(table)
    with pytest.raises(OutOfMemoryError, match="stage 'counted': 50,000 rows need") as caught:
        session.commit()
    assert "--on local" in str(caught.value.hint)
    assert (session.now, counted.rows(at=1)) == (1, [])
    assert session.pending["rows"].rows == 50_000
    monkeypatch.undo()
    session.commit()
    monkeypatch.setattr(placement, "free_bytes", lambda: table.nbytes)
    with pytest.raises(OutOfMemoryError, match="stage 'more'"):
        session.define({"more": joined(session, "k >= -1")})
    assert "more" not in session
    (report,) = session.define({"more": joined(session, "k >= -1")}, on="local")
    assert (report.placement, report.rows) == ("in process", 7)


def test_below_spark_rows_neither_memory_nor_spark_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: Any, **__: Any) -> Any:
        raise AssertionError("asked")

    monkeypatch.setattr(placement, "free_bytes", asked)
    monkeypatch.setattr(SparkConnection, "state", asked)
    with nosync_nb.open(tmp_path / "log", spark_rows=9000) as session:
        with_inputs(session)
        session.commit()
        counted = session.stage("counted", joined(session))
        session["rows"].insert(number_table(9000))  # type: ignore[attr-defined]
        session.commit()
        assert "9,000 rows, as requested" in counted.explain()
        session["rows"].insert(number_table(9001))  # type: ignore[attr-defined]
        with pytest.raises(AssertionError, match="asked"):
            session.commit()


def test_slots_default_to_cores_before_workers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Way:
        def present(self) -> None:
            return None

    monkeypatch.setattr(placement.os, "cpu_count", lambda: 5)
    asked = Placement(Way(), None, None)  # type: ignore[arg-type]
    assert (slots_of(asked, "running"), slots_of(asked, "startable")) == (5, 5)
    monkeypatch.setattr("nosync_nb.spark.workers.task_slots", lambda spark: 7)
    assert (slots_of(asked, "running"), slots_of(asked, "startable")) == (7, 5)


@pytest.mark.spark
def test_dataframe_rows_stay_on_spark_after_merge(tmp_path: Path, spark: Any) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        with_inputs(session)
        rows: Any = session["rows"]
        for part in range(3):
            frame = spark.range(cost_model.FRAME_ROWS // 3 + 1)
            rows.insert(frame.selectExpr("id % 1000 as k", f"id + {part} as x"))
            session.commit()
        (report,) = session.define({"counts": joined(session)})
        assert "Spark job" in report.placement
        assert f"{cost_model.FRAME_ROWS + 2:,} rows of a DataFrame" in session["counts"].explain()
        merge_all(session)
        (report,) = session.define({"again": joined(session, "k >= -1")})
        assert "Spark job" in report.placement
        assert session["again"].rows() == session["counts"].rows()
        rows.insert(spark.range(5).selectExpr("id as k", "id as x"))
        session.commit()
        assert "[in process" in session["counts"].explain()
    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=10**9) as session:
        (report,) = session.define({"never": joined(session, "k >= -2")})
        assert report.placement == "in process"


def test_work_of_epoch_is_independent_of_unchanged_state(tmp_path: Path) -> None:
    touched = []
    for size in (1_000, 50_000):
        with nosync_nb.open(tmp_path / str(size), spark_rows=10**9) as session:
            edges = session.input("edges", "src bigint, dst bigint")
            nodes = session.input("nodes", "node bigint, label bigint")
            nodes.insert([(i, i % 100) for i in range(1_000)])
            edges.insert([(i, i % 1_000) for i in range(size)])
            session.commit()
            counts = edges.join(nodes, on={"dst": "node"}).group_by("label").agg(n="count(*)")
            session.stage("counts", counts)
            before = session.stats["touched"]
            edges.insert([(1, 5), (2, 6), (3, 7)])
            edges.remove([(8, 8)])
            session.commit()
            touched.append(session.stats["touched"] - before)
    assert touched[0] == touched[1]
    assert touched[0] < 50


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No Spark session is found; every start is recorded and fails."""
    starts: list[str] = []

    def start(_conf: object) -> None:
        starts.append("start")
        raise NosyncError("there is no Java")

    monkeypatch.setattr(
        spark_session, "find_session", lambda _user: None
    )  # other tests have one running
    monkeypatch.setattr(launch, "start_session", start)
    return starts


def test_make_date_of_bigints_starts_no_spark(tmp_path: Path, without_spark: list[str]) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        flights = session.input("flights", "year bigint, month bigint, day bigint")
        dated = flights.with_columns(date="make_date(year, month, day)")
        session.stage("dated", dated)
        flights.insert([(2013, 1, day) for day in range(1, 32)])
        session.commit()
        assert str(session["dated"].rows()[0].date) == "2013-01-01"
        assert "waits for Spark" not in session["dated"].explain()
    assert without_spark == []


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda left, right: left.select("xpath_int(s, 'a') AS n", "nosuch + 1 AS m"), "nosuch"),
        (lambda left, right: left.with_columns(n="myudf(s)", m="nosuch"), "nosuch"),
        (lambda left, right: left.select("myudf(s) AS n", "nosuch AS m"), "nosuch"),
        (
            lambda left, right: left.with_columns(n="xpath_int(s, 'a')").join(right, on="id"),
            "both sides have a column 's'",
        ),
        (
            lambda left, right: left.join(right, on={"xpath_int(s, 'a')": "id"}),
            "both sides have a column 'id'|both sides have a column 's'",
        ),
        (
            lambda left, right: left.join(right, on={"myudf(s)": "id"}),
            "both sides have a column 's'",
        ),
        (lambda left, right: left.filter("xpath_int(s, 'a') + 1"), "int, not boolean"),
        (lambda left, right: left.group_by("id").agg(n="sum(xpath_int(nosuch, 'a'))"), "nosuch"),
    ],
)
def test_names_and_types_are_checked_before_spark_starts(
    tmp_path: Path, without_spark: list[str], describe: Any, message: str
) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        left = session.input("left", "id int, s string")
        right = session.input("right", "id int, s string")
        with pytest.raises(NosyncError, match=message):
            describe(left, right)
    assert without_spark == []


def test_stage_with_spark_expression_starts_spark_when_defined(
    session: Session, without_spark: list[str]
) -> None:
    rows = session.input("rows", "id int, s string")
    found = rows.with_columns(n="xpath_int(s, 'a')")
    assert "n int" in found.schema.ddl
    assert without_spark == []
    with pytest.raises(NosyncError, match=r"\(function xpath_int\) needs Spark"):
        session.stage("found", found)
    assert without_spark == ["start"]
    assert "found" not in session
