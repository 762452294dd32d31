"""`to_spark`: the files of a lazy DataFrame exist when it is executed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from internals import (
    checkpoint_now,
    merge_trace,
    parts_folder,
    services_of,
    settle_background,
    snapshot_of,
    traces_of,
)

import nosync_nb
from nosync_nb import Session
from nosync_nb.spark import spark_session

pytestmark = pytest.mark.spark


def merged(session: Session) -> None:
    """Runs all planned merges, also those of the worker."""
    for number in list(traces_of(session)):
        merge_trace(session, number)
    settle_background(session)


def replace_files(session: Session) -> None:
    """Merges files until only a DataFrame needs the former ones."""
    numbers = session.inputs["numbers"]
    for start in (200_000, 400_000, 600_000):
        numbers.insert(pa.table({"x": np.arange(start, start + 120_000)}))
        session.commit()
    merged(session)
    for _ in range(4):
        session.commit()
        checkpoint_now(session)


@pytest.mark.fault(41)
def test_dataframe_is_readable_after_merge_of_its_files(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        numbers = session.input("numbers", "x bigint")
        for start in range(0, 120_000, 30_000):
            numbers.insert(pa.table({"x": np.arange(start, start + 30_000)}))
            session.commit()
        merged(session)
        (layer,) = snapshot_of(session).contents("numbers").layers
        (first,) = {ref.path for ref in layer.files}
        frame = numbers.to_spark()
        derived = frame.selectExpr("x % 2 AS odd").groupBy("odd").count()
        replace_files(session)
        assert first not in {
            ref.path
            for each in snapshot_of(session).contents("numbers").layers
            for ref in each.files
        }
        assert {tuple(row) for row in derived.collect()} == {(0, 60_000), (1, 60_000)}
        services_of(session).publisher.garbage.exports.clear()  # as if many were made since
        for _ in range(2):
            session.commit()
            checkpoint_now(session)
        assert first not in os.listdir(parts_folder(session))
        with pytest.raises(Exception, match="this DataFrame reads have been merged and deleted"):
            frame.selectExpr("sum(x)").collect()
        assert numbers.to_spark().count() == 480_000


def test_dataframe_of_reader_reports_deleted_files(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        numbers = session.input("numbers", "x bigint")
        for start in range(0, 120_000, 30_000):
            numbers.insert(pa.table({"x": np.arange(start, start + 30_000)}))
            session.commit()
        merged(session)  # what was inserted is the history's too
        checkpoint_now(session)
        with nosync_nb.open(tmp_path / "log", spark=spark, mode="r") as reader:
            theirs = reader.inputs["numbers"]
            frame = theirs.to_spark()
            assert frame.count() == 120_000
            replace_files(session)
            with pytest.raises(Exception, match="merged and deleted") as caught:
                frame.selectExpr("sum(x)").collect()
            assert 'mode="r" cannot retain files' in str(caught.value)
            assert theirs.to_spark().count() == 480_000, "made again, it has what there is now"


def test_files_written_for_dataframe_are_deleted_after_it(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        numbers = session.input("numbers", "x bigint")
        for start in (0, 120_000):
            numbers.insert(pa.table({"x": np.arange(start, start + 120_000)}))
            session.commit()
        frame = numbers.to_spark(at=1)
        (spilled,) = services_of(session).publisher.garbage.spilled
        for _ in range(4):
            session.commit()
            checkpoint_now(session)
        assert frame.count() == 120_000
        services_of(session).publisher.garbage.exports.clear()  # as if many were made since
        for _ in range(2):
            session.commit()
            checkpoint_now(session)
        assert spilled not in os.listdir(parts_folder(session))


def test_views_follow_later_spark_session_and_renames(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(spark_session, "find_session", lambda *_: None)
        session = nosync_nb.open(tmp_path / "log")
        numbers = session.input("numbers", "x int")
        session.stage("odd_ones", numbers.filter("x % 2 = 1"))
        assert not spark.catalog.tableExists("odd_ones")
    with session:
        numbers.insert([(1,), (2,)])
        session.commit()
        assert spark.table("odd_ones").count() == 1
        asked: list[Any] = []
        find = spark_session.find_session
        monkeypatch.setattr(
            spark_session, "find_session", lambda *given: asked.append(given) or find(*given)
        )
        session.commit()
        assert not asked, "an epoch asks no more once the views are there"
        session.rename("odd_ones", "odd")
        assert spark.table("odd").count() == 1
        assert not spark.catalog.tableExists("odd_ones")
