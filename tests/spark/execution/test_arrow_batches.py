"""The Arrow batch size: set for NoSync's own jobs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import nosync_nb
from nosync_nb.spark import ingest
from nosync_nb.spark.execution import shuffle_records
from nosync_nb.spark.execution.shuffle_records import HashRanges
from nosync_nb.spark.ingest import ROWS, can_count_rows, rows_per_batch
from nosync_nb.trace.batch import Layout, Updates

pytestmark = pytest.mark.spark

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
MANY = 4 * ROWS


def lengths() -> Any:
    """A function that reports the number of rows; workers cannot import this file."""

    def each(records: Any) -> Any:
        for record in records:
            yield pa.RecordBatch.from_pydict({"rows": [record.num_rows]})

    return each


def one_partition(spark: Any) -> Any:
    return spark.range(0, MANY, 1, 1)


def batch_lengths(spark: Any) -> list[int]:
    frame = one_partition(spark).mapInArrow(lengths(), "rows bigint")
    return [row[0] for row in frame.collect()]


def test_batches_count_rows_in_own_jobs_only(spark: Any) -> None:
    before = dict(spark.conf.getAll)
    assert batch_lengths(spark) == [MANY]
    with rows_per_batch(spark, wanted=True):
        assert batch_lengths(spark) == [ROWS] * (MANY // ROWS)
    with rows_per_batch(spark, wanted=False):
        assert batch_lengths(spark) == [MANY]
    with pytest.raises(ZeroDivisionError), rows_per_batch(spark, wanted=True):
        raise ZeroDivisionError
    assert batch_lengths(spark) == [MANY]
    assert dict(spark.conf.getAll) == before, "the session is as it was"


def test_setting_of_user_takes_precedence(spark: Any) -> None:
    frame = one_partition(spark)
    assert can_count_rows(spark, frame, ("bigint", "double", "date"))
    for key, value in ((RECORDS, "20000"), (BYTES, "1m")):
        spark.conf.set(key, value)
        try:
            assert not can_count_rows(spark, frame, ("bigint",))
        finally:
            spark.conf.unset(key)
    assert can_count_rows(spark, frame, ("bigint",))


@pytest.mark.parametrize("type_", ["string", "binary", "array<int>", "decimal(10,2)"])
def test_types_of_variable_length_are_not_counted_by_rows(spark: Any, type_: str) -> None:
    assert not can_count_rows(spark, one_partition(spark), ("bigint", type_))


def test_functions_of_user_get_usual_batches(spark: Any) -> None:
    from pyspark.sql.functions import pandas_udf

    doubled = pandas_udf(lambda numbers: 2 * numbers, "bigint")
    frames = [
        one_partition(spark).mapInArrow(lengths(), "rows bigint"),
        one_partition(spark).mapInPandas(lambda each: each, "id bigint"),
        one_partition(spark).select(doubled("id")),
    ]
    for frame in frames:
        assert not can_count_rows(spark, frame, ("bigint",))


def test_unknown_setting_is_not_set(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_BYTES", "spark.sql.execution.arrow.unknownSetting")
    assert not can_count_rows(spark, one_partition(spark), ("bigint",))


def test_numeric_frames_are_loaded_by_row_count_without_loss(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    whole = ingest.rows_per_batch

    def noted(session: Any, *, wanted: bool) -> Any:
        told.append(wanted)
        return whole(session, wanted=wanted)

    monkeypatch.setattr(ingest, "rows_per_batch", noted)
    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=0) as session:
        numbers = session.input("numbers", "id bigint, half double")
        texts = session.input("texts", "id bigint, text string")
        sums = session.stage("sums", numbers.agg(n="count(*)", s="sum(id)", h="sum(half)"))
        numbers.insert(one_partition(spark).selectExpr("id", "id / 2.0D AS half"))
        texts.insert(one_partition(spark).selectExpr("id", "cast(id AS string) AS text"))
        session.commit()
        assert told == [True, False]
        total = sum(range(MANY))
        assert [tuple(row) for row in sums.rows()] == [(MANY, total, total / 2)]
        assert texts.count() == MANY


def test_small_blocks_have_same_rows() -> None:
    updates = Updates([np.arange(MANY)], np.ones(MANY, np.int64))
    layout = Layout(("bigint",))
    whole, small = (
        [*shuffle_records.cut_by_range(updates, layout, HashRanges(2), 0, most)]
        for most in (1 << 20, 1 << 10)
    )
    assert len(whole) == 2 < len(small)
    for place in (0, 1):
        assert {b.place for b in small} == {0, 1}
        one, other = (
            shuffle_records.join_records(
                [b.payload for b in made if b.place == place], layout.types
            ).updates
            for made in (whole, small)
        )
        assert one.columns[0].tolist() == other.columns[0].tolist()
