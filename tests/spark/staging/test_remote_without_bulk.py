"""Remote executors without a staging area: few rows use Arrow, more are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from internals import is_seen, parts_folder

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import NosyncError, SchemaError
from nosync_nb.spark.staging import staging

pytestmark = pytest.mark.spark

MESSAGE = "Spark's executors cannot read the session's folder"


@pytest.fixture
def remote(spark: Any, tmp_path: Path) -> Iterator[Session]:
    """A session with a folder that no executor sees, as on a cluster without shared storage."""
    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=1000) as session:
        staging.assume_shared(spark, parts_folder(session), shared=False)
        yield session


def test_small_dataframe_uses_arrow(spark: Any, remote: Session) -> None:
    given = remote.input("given", "x bigint, y double")
    doubled = remote.stage("doubled", given.group_by("x").agg(n="count(*)"))
    given.insert(spark.range(900).selectExpr("double('nan') as y", "cast(id % 10 as int) as x"))
    remote.commit()
    assert [row.n for row in doubled.rows()] == [90] * 10
    assert all(row.y != row.y for row in given.head(3))
    given.remove(spark.range(1).selectExpr("id as x", "double('nan') as y"))
    remote.commit()
    assert doubled.rows()[0] == (0, 89)
    assert not os.listdir(parts_folder(remote))


def test_larger_dataframe_is_refused_with_remedy(spark: Any, remote: Session) -> None:
    given = remote.input("given", "x bigint")
    with pytest.raises(
        NosyncError, match="'given': the DataFrame has more than 1000 rows"
    ) as found:
        given.insert(spark.range(1001).selectExpr("id as x"))
    assert MESSAGE in str(found.value)
    assert (
        "open it with bulk=URL, a location that driver and executors can reach"
        in found.value.__notes__[0]
    )
    assert not remote.pending
    with pytest.raises(SchemaError, match="unknown column 'z'"):
        given.insert(spark.range(3).selectExpr("id as z"))


def test_rows_of_driver_run_in_process(spark: Any, remote: Session) -> None:
    given = remote.input("given", "x bigint")
    odd = remote.stage("odd", given.filter("x % 2 = 1"))
    given.insert(pa.table({"x": np.arange(5000)}))
    remote.commit()
    assert odd.count() == 2500
    assert "in process" in odd.explain()
    assert odd.to_spark().count() == 2500


def test_stage_forced_on_spark_is_refused(spark: Any, remote: Session) -> None:
    given = remote.input("given", "x bigint")
    given.insert([(1,), (2,)])
    remote.commit()
    with pytest.raises(NosyncError, match="stage 'odd' is to run on Spark"):
        remote.define({"odd": given.filter("x % 2 = 1")}, on="spark")
    assert "odd" not in remote


def test_large_export_to_spark_is_refused(spark: Any, remote: Session) -> None:
    given = remote.input("given", "x bigint")
    given.insert(pa.table({"x": np.arange(100_001)}))
    remote.commit()
    with pytest.raises(NosyncError, match="to_spark of 100001 rows"):
        given.to_spark()


def test_executors_report_whether_they_see_folder(spark: Any, tmp_path: Path) -> None:
    assert is_seen(spark, str(tmp_path))
    assert os.listdir(tmp_path) == []
    assert staging.workers_share_folder(spark, str(tmp_path))
