"""Names of temp views: case, two logs, and errors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from internals import is_seen, notices_of, parts_folder

import nosync_nb
from nosync_nb import ExpressionError, NosyncError
from nosync_nb.files.filesystem import Files

pytestmark = pytest.mark.spark


def test_keys_to_delete_may_be_dataframe(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        planes = session.input("planes", "id bigint, seats int", key="id")
        planes.insert([(1, 10), (2, 20), (3, 30)])
        session.commit()
        frame = spark.sql("select cast(2 as int) as ID, 'x' as other union all select 9, 'y'")
        planes.delete(frame)
        session.commit()
        assert planes.rows() == [(1, 10), (3, 30)]
        session.collect_rows = 1
        with pytest.raises(NosyncError, match="more than 1 keys"):
            planes.delete(frame)


def test_stage_without_view_reports_reason_and_alternative(spark: Any, tmp_path: Path) -> None:
    with (
        nosync_nb.open(tmp_path / "one", spark=spark) as first,
        nosync_nb.open(tmp_path / "two", spark=spark) as second,
    ):
        first.input("Deg", "x int").insert([(1,)])
        first.commit()
        first.input("deg", "x int")
        assert spark.table("DEG").collect()[0][0] == 1
        assert "'Deg' has that name in Spark, which ignores case" in notices_of(first)[-1]
        second.input("deg", "x int")
        spark.catalog.listTables()
        assert f"the log in '{first.path}' has a view of that name" in notices_of(second)[-1]
        assert repr(second.path) in notices_of(second)[-1]
        assert spark.table("DEG").collect()[0][0] == 1


def test_data_source_accepts_time_and_reports_errors(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        given = session.input("given", "x int")
        given.insert([(1,)])
        session.commit()
        given.insert([(2,)])
        session.commit()
        reader = spark.read.format("nosync").option("path", session.path).option("stage", "given")
        first = session.epochs()[1].committed_at
        assert first is not None
        assert reader.option("at", str(first)).load().count() == 1
        assert reader.option("at", first.isoformat()).load().count() == 1
        with pytest.raises(Exception, match="no epoch is labelled 'never'") as caught:
            reader.option("at", "never").load()
        told = str(caught.value)
        assert "serving.py" not in told
        assert "During handling" not in told


def test_frame_of_undone_epoch_shows_no_other_rows(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        given = session.input("behind", "x int")
        for x in range(3):
            given.insert([(x,)])
            session.commit()
        reader = spark.read.format("nosync").option("path", session.path).option("stage", "behind")
        frames = {at: reader.option("at", at).load() for at in (1, 3)}
        assert [frame.count() for frame in frames.values()] == [1, 3]
        session.rewind(to=2)
        given.insert([(7,), (8,)])
        session.commit()
        assert frames[1].count() == 1
        assert reader.option("at", 3).load().count() == 4
        with pytest.raises(Exception, match="epoch 3 was undone") as caught:
            frames[3].collect()
        assert "serving.py" not in str(caught.value)
        assert spark.table("behind").count() == 4


def test_view_errors_are_reported_once(spark: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from pyspark.logger import PySparkLogger

    heard: list[logging.LogRecord] = []
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        monkeypatch.setattr(PySparkLogger.getLogger(name), "handle", _handler(name, heard))
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        given = session.input("given", "s string")
        session.stage("made", given.filter("cast(s as decimal(10,2)) > 1"))
        given.insert([("apple",)])
        with pytest.raises(ExpressionError, match="s='apple'"):
            session.commit()
        with pytest.raises(ExpressionError, match="no_such_function"):
            given.filter("no_such_function(s)")
        assert heard == []
        with pytest.raises(Exception, match="CAST_INVALID_INPUT"):
            spark.sql("select cast(id || 'x' as int) from range(3)").collect()
        assert len(heard) == 1


def _handler(name: str, heard: list[logging.LogRecord]) -> Any:
    logger = logging.getLogger(name)
    return lambda record: heard.append(record) if logger.filter(record) else None


def test_probe_view_of_killed_process_is_deleted(
    spark: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        folder = Path(parts_folder(session))
        with monkeypatch.context() as patch:
            patch.setattr(Files, "unlink", lambda *_: None)
            assert is_seen(spark, str(folder))
        assert len(list(folder.iterdir())) == 1
    with nosync_nb.open(tmp_path / "log"):
        assert list(folder.iterdir()) == []


def test_views_follow_takeover_in_same_process(spark: Any, tmp_path: Path) -> None:
    old = nosync_nb.open(tmp_path / "log", spark=spark)
    old.input("held", "x int").insert([(1,)])
    old.commit()
    assert spark.table("held").count() == 1
    with nosync_nb.open(tmp_path / "log", spark=spark, takeover=True) as new:
        new["held"].insert([(2,)])  # type: ignore[attr-defined]
        new.commit()
        assert spark.table("held").count() == 2
        reader = spark.read.format("nosync").option("path", new.path).option("stage", "held")
        assert reader.load().count() == 2
    old.close()
    assert reader.load().count() == 2
