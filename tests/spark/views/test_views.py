"""Temp views and the data source `nosync`: they follow the session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import nosync_nb
from nosync_nb import rows
from nosync_nb.errors import NegativeMultiplicityError, TimeError
from nosync_nb.rows import Schema
from nosync_nb.spark.execution.tasks import PlanPayload
from nosync_nb.spark.views import snapshot_server, views
from nosync_nb.spark.views.snapshot_server import StageSnapshot
from nosync_nb.spark.views.views import Views, to_spark
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange
from nosync_nb.trace.parts.part_file import open_part, write_parts

pytestmark = pytest.mark.spark

SCHEMA = Schema.parse("k bigint, `a name` string")
LAYOUT = Layout(SCHEMA.types)


def batch(keys: list[int], diffs: list[int]) -> Batch:
    names = rows.objects([f"n{k}" for k in keys])
    return arrange(LAYOUT, Updates([np.array(keys), names], np.array(diffs)))


def trace(*batches: Batch) -> Trace:
    return Trace(LAYOUT, tuple(Layer(i, i + 1, (b,)) for i, b in enumerate(batches)))


def frame_counts(frame: Any) -> Counter[int]:
    return Counter(row[0] for row in frame.collect())


class Session:
    """A session as views see it: snapshots of one stage, by epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.batches = [batch([1, 2, 2], [1, 1, 1])]

    def snapshot(self, stage: str, at: Any) -> StageSnapshot:
        epoch = len(self.batches) - 1 if at is None else at
        if epoch >= len(self.batches):
            raise TimeError(f"stage '{stage}': epoch {at} is not readable")
        return StageSnapshot(epoch, SCHEMA, trace(*self.batches[: epoch + 1]), self.folder)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


@pytest.fixture
def opened_views(spark: Any, session: Session) -> Iterator[Views]:
    made = Views(spark, session.folder, session.snapshot)
    yield made
    made.close()


def test_frame_has_each_row_with_its_count(spark: Any, tmp_path: Path) -> None:
    given = trace(batch([1, 2, 3], [1, 2, 1]), batch([3, 4], [-1, 1]))
    frame = to_spark(spark, given, SCHEMA, PlanPayload.local(str(tmp_path), "view"))
    assert frame_counts(frame) == Counter({1: 1, 2: 2, 4: 1})
    assert frame.columns == ["k", "a name"]
    with pytest.raises(NegativeMultiplicityError, match="has a count of -1"):
        to_spark(spark, trace(batch([7], [-1])), SCHEMA, PlanPayload.local(str(tmp_path), "view"))


def test_executors_read_files_of_large_stage(spark: Any, tmp_path: Path) -> None:
    n = views.SMALL_ROWS + 1
    names = rows.from_arrow(pa.array([f"n{i}" for i in range(n)]), "string")
    whole = arrange(LAYOUT, Updates([np.arange(n), names], np.ones(n, np.int64)))
    refs = tuple(write_parts(str(tmp_path), [whole], "big"))
    parts = tuple(open_part(str(tmp_path), ref, LAYOUT) for ref in refs)
    layers = (Layer(0, 1, parts, refs), Layer(1, 2, (batch([5, 6], [-1, 2]),)))
    frame = to_spark(spark, Trace(LAYOUT, layers), SCHEMA, PlanPayload.local(str(tmp_path), "view"))
    totals = frame.selectExpr("count(*)", "sum(k)", "max(`a name`)").collect()[0]
    assert tuple(totals) == (n + 1, n * (n - 1) // 2 - 5 + 12, "n99999")


def test_view_follows_session(spark: Any, session: Session, opened_views: Views) -> None:
    assert opened_views.create("slow", SCHEMA)
    assert frame_counts(spark.table("slow")) == Counter({1: 1, 2: 2})
    session.batches.append(batch([1, 9], [-1, 1]))
    assert frame_counts(spark.sql("select k from slow")) == Counter({2: 2, 9: 1})
    joined = spark.sql("select a.k from slow a join slow b on a.k = b.k")
    assert frame_counts(joined) == Counter({2: 4, 9: 1})
    assert opened_views.create("slow", SCHEMA)
    assert opened_views.drop("slow")
    assert not spark.catalog.tableExists("slow")


@pytest.mark.parametrize(
    "ask",
    [
        lambda spark: spark.sql("select count(*) from LATE").collect()[0][0],
        lambda spark: spark.sql("select count(*) from identifier(:t)", {"t": "late"}).first()[0],
        lambda spark: spark.table("`late`").count(),
        lambda spark: spark.read.table("late").count(),
        lambda spark: len(spark.catalog.listColumns("late")),
        lambda spark: spark.catalog.tableExists("late") and 1,
        lambda spark: sum(each.name == "late" for each in spark.catalog.listTables()),
        lambda spark: SparkSession.active().table("late").count(),
        lambda spark: spark.range(1).sparkSession.sql("from late |> limit 1").count(),
    ],
)
def test_view_is_created_when_spark_looks_up_its_name(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], int]
) -> None:
    made: list[str] = []
    create = Views.create
    monkeypatch.setattr(
        Views, "create", lambda own, name, schema: made.append(name) or create(own, name, schema)
    )
    with nosync_nb.open(tmp_path / "log", spark=spark) as log:
        flights = log.input("flights", "x int")
        for name in ("late", "later", "others"):
            log.stage(name, flights.filter("x > 1"))
        flights.insert([(1,), (2,)])
        log.commit()
        assert spark.sql("select 1 as flight").count() == 1
        assert made == [], "no definition and no commit makes a view"
        assert ask(spark) == 1
        assert "late" in made
        assert len(made) in (1, 4)
    assert not spark.catalog.tableExists("late")


def test_view_is_created_once_and_again_after_change(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    create = Views.create
    monkeypatch.setattr(
        Views, "create", lambda own, name, schema: made.append(name) or create(own, name, schema)
    )
    with nosync_nb.open(tmp_path / "log", spark=spark) as log:
        flights = log.input("flights", "x int")
        log.stage("late", flights.filter("x > 1"))
        for _ in range(2):
            assert spark.table("late").columns == ["x"]
        log.stage("late", flights.select("x", "x + 1 as y"))
        log.commit()
        assert made == ["late"]
        assert spark.table("late").columns == ["x", "y"]
        assert made == ["late", "late"]


def test_view_of_user_is_never_replaced(spark: Any, opened_views: Views) -> None:
    spark.range(3).createOrReplaceTempView("mine")
    assert not opened_views.create("mine", SCHEMA)
    assert opened_views.create("slow", SCHEMA)
    spark.range(5).createOrReplaceTempView("slow")
    assert not opened_views.create("slow", SCHEMA)
    assert opened_views.drop("slow")
    assert spark.table("mine").count() + spark.table("slow").count() == 8
    for name in ("mine", "slow"):
        spark.catalog.dropTempView(name)


def test_data_source_reads_epoch(spark: Any, session: Session, opened_views: Views) -> None:
    session.batches.append(batch([9], [1]))
    reader = spark.read.format("nosync").option("path", session.folder).option("stage", "slow")
    assert frame_counts(reader.option("at", 0).load()) == Counter({1: 1, 2: 2})
    spark.sql(
        f"CREATE TEMP VIEW by_sql USING nosync OPTIONS (path '{session.folder}', stage 'slow')"
    )
    assert frame_counts(spark.table("by_sql")) == Counter({1: 1, 2: 2, 9: 1})
    spark.catalog.dropTempView("by_sql")
    with pytest.raises(Exception, match="epoch 7 is not readable"):
        reader.option("at", 7).load()


def test_query_reads_one_epoch(session: Session) -> None:
    server = snapshot_server.SnapshotServer(session.folder, session.snapshot)
    try:
        seen = []
        for query in ("app/1", "app/1", "app/2"):
            with snapshot_server.stage_snapshot(session.folder, "slow", None, query) as given:
                seen.append(given.rows)
            if len(seen) == 1:
                session.batches.append(batch([9], [1]))
        assert seen == [2, 2, 3]
        with pytest.raises(TimeError, match="epoch 7"):
            snapshot_server.ask_session(session.folder, "slow", 7)
    finally:
        server.close()
    snapshot_server.SnapshotServer(session.folder, session.snapshot).close()
