"""Large batches are written once: log, history and traces name the same files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import nosync_nb
from nosync_nb import Session, maintenance
from nosync_nb.errors import SchemaError

ROWS = 70_000
"""More than a frame of the log holds."""


def table(start: int) -> pa.Table:
    x = np.arange(start, start + ROWS)
    return pa.table({"x": x, "k": x % 1000})


def files(session: Session) -> set[str]:
    return set(os.listdir(session._store.parts))


def sums(session: Session) -> list[tuple[int, int]]:
    """Rows and sum of the input at every epoch."""
    tables = [session["numbers"].to_arrow(at) for at in range(1, session.now + 1)]
    return [(t.num_rows, int(np.asarray(t["x"]).sum())) for t in tables]


def test_a_large_epoch_is_one_file(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "x bigint, k bigint")
        for epoch in range(3):
            numbers.insert(table(epoch * ROWS))
            session.commit()
            assert len(files(session)) == epoch + 1


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_log_in_the_order_of_a_trace_comes_back(tmp_path: Path, checkpointed: bool) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "x bigint, k bigint")
        names = session.input("names", "k bigint, name string")
        joined = session.stage("joined", numbers.join(names, on="k"))
        names.insert([(3, "three")])
        session.commit()
        numbers.insert(table(0))
        session.commit()
        assert len(files(session)) == 1  # in the order of the join
        numbers.insert(table(ROWS))
        numbers.remove([(3, 3)])
        session.commit()
        expected, rows = sums(session), joined.rows()
        assert [n for n, _ in expected] == [0, ROWS, 2 * ROWS - 1]
        if checkpointed:
            maintenance.checkpoint(session)
        numbers.remove([(1003, 3)])
        session.commit()
        session.sync()
        shutil.copytree(session.path, tmp_path / "killed")
    with nosync_nb.open(tmp_path / "killed", takeover=True) as session:
        assert sums(session)[:3] == expected
        assert len(session["joined"].rows()) == len(rows) - 1
        assert session["joined"].rows(at=3) == rows
        session.inputs["numbers"].insert([(1003, 3)])
        session.commit()
        assert session["joined"].rows() == rows
        # A stage in another order than all the files.
        session.stage("doubles", session["numbers"].group_by("x").agg(n="count(*)"))
        assert session["doubles"].count() == 2 * ROWS - 1


@pytest.mark.spark
def test_a_dataframe_is_written_in_the_orders_that_are_read(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        numbers = session.input("numbers", "x bigint, k bigint")
        names = session.input("names", "k bigint, name string")
        joined = session.stage("joined", numbers.join(names, on="k"))
        other = session.stage("other", numbers.join(names.rename({"k": "x"}), on="x"))
        names.insert([(3, "three")])
        session.commit()
        before = files(session)
        numbers.insert(spark.range(9000).selectExpr("id as x", "id % 1000 as k"))
        written = files(session) - before
        session.commit()
        layouts = session._graph.named["numbers"].traces
        assert len(layouts) == 2
        traces = [session._version.traces[number] for number in layouts.values()]
        named = {ref.path for trace in traces for layer in trace.layers for ref in layer.files}
        assert named == written
        assert joined.count() == 9
        assert other.count() == 1
        assert numbers.count() == 9000
        session.sync()
        shutil.copytree(session.path, tmp_path / "killed")
    with nosync_nb.open(tmp_path / "killed", takeover=True) as session:
        assert session["numbers"].count() == 9000
        assert session["joined"].count() == 9


@pytest.mark.spark
def test_of_two_rows_of_a_dataframe_with_one_key_one_counts(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        keyed = session.input("keyed", "k bigint, x bigint", key="k")
        keyed.insert(spark.range(10).selectExpr("id % 7 as k", "id as x"))
        session.commit()
        assert [row.k for row in keyed.rows()] == list(range(7))
        with pytest.raises(SchemaError, match="is there already"):
            keyed.insert(spark.range(1).selectExpr("id as k", "id as x"))
