"""Large batches on disk: log, history and traces name the same files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from checks.checking import merge_all
from internals import (
    checkpoint_now,
    graph_of,
    history_of,
    parts_folder,
    services_of,
    settle_background,
    snapshot_of,
    store_of,
    traces_of,
    tree_of,
)

import nosync_nb
from nosync_nb import DurabilityError, Session
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.session.state.publisher import files_of
from nosync_nb.trace.history.pack_tree import FANOUT

ROWS = 70_000
"""More than a frame of the log holds."""


def table(start: int) -> pa.Table:
    x = np.arange(start, start + ROWS)
    return pa.table({"x": x, "k": x % 1000})


def files(session: Session) -> set[str]:
    return set(os.listdir(parts_folder(session)))


def referenced_files(session: Session) -> set[str]:
    """The part files of the current state and the history."""
    named = files_of(snapshot_of(session).version) | history_of(session).files()
    return {name for name in named if name.endswith(".arrow")}


def sums(session: Session) -> list[tuple[int, int]]:
    """Rows and sum of the input at every epoch."""
    tables = [session["numbers"].to_arrow(at) for at in range(1, session.now + 1)]
    return [(t.num_rows, int(np.asarray(t["x"]).sum())) for t in tables]


def test_large_epoch_is_one_file(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "x bigint, k bigint")
        for epoch in range(3):
            numbers.insert(table(epoch * ROWS))
            session.commit()
            assert len(files(session)) == epoch + 1


@pytest.mark.parametrize("checkpointed", [False, True])
def test_log_in_trace_order_is_recovered(tmp_path: Path, checkpointed: bool) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "x bigint, k bigint")
        names = session.input("names", "k bigint, name string")
        joined = session.stage("joined", numbers.join(names, on="k"))
        names.insert([(3, "three")])
        session.commit()
        numbers.insert(table(0))
        session.commit()
        assert len(files(session)) == 1  # arranged for the join
        numbers.insert(table(ROWS))
        numbers.remove([(3, 3)])
        session.commit()
        expected, rows = sums(session), joined.rows()
        assert [n for n, _ in expected] == [0, ROWS, 2 * ROWS - 1]
        if checkpointed:
            checkpoint_now(session)
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
def test_dataframe_is_written_once_per_arrangement(spark: Any, tmp_path: Path) -> None:
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
        layouts = graph_of(session).named["numbers"].traces
        assert len(layouts) == 2
        traces = [traces_of(session)[number] for number in layouts.values()]
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
def test_dataframe_with_duplicate_key_is_refused(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        keyed = session.input("keyed", "k bigint, x bigint", key="k")
        frame = spark.range(10).selectExpr("id % 7 as k", "id as x")
        with pytest.raises(SchemaError, match="occurs twice in the rows"):
            keyed.insert(frame)
        keyed.upsert(frame)
        session.commit()
        assert [row.k for row in keyed.rows()] == list(range(7))
        before = files(session)
        with pytest.raises(SchemaError, match="exists already"):
            keyed.insert(spark.range(9000).selectExpr("id as k", "id as x"))
        assert files(session) == before


def load_and_fail(session: Session) -> None:
    with session.epoch():
        session.inputs["numbers"].insert(session.spark.range(9000).selectExpr("id as k", "id as x"))
        session.inputs["numbers"].insert([("no number", 1)])


@pytest.mark.spark
def test_files_without_epoch_are_deleted(spark: Any, tmp_path: Path) -> None:
    def large(times: int) -> Any:
        return spark.range(9000).selectExpr("id as k", f"id * {times} as x")

    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=1000) as session:
        numbers = session.input("numbers", "k bigint, x bigint")
        keyed = session.input("keyed", "k bigint, x bigint", key="k")
        numbers.insert(large(1))
        assert len(files(session)) > 0
        assert session.discard() == 9000
        assert files(session) == set()
        with pytest.raises(SchemaError):
            load_and_fail(session)
        assert files(session) == set()
        transaction = session.begin()
        numbers.insert(large(1))
        assert transaction.discard() == 9000
        assert files(session) == set()
        keyed.insert(large(1))
        session.commit()
        keyed.upsert(large(2))
        session.commit()
        assert files(session) <= services_of(session).publisher.named_files
        assert keyed.count() == 9000
        assert {row.x for row in keyed.rows()} == {2 * k for k in range(9000)}


@pytest.mark.spark
def test_files_of_failed_run_are_deleted(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        numbers = session.input("numbers", "x bigint")
        numbers.insert([(n,) for n in range(100)])
        session.commit()
        session.define({"counts": numbers.group_by("x").agg(n="count(*)")}, on="spark")
        whole = numbers.map(lambda row: (1 // (row.x - 200),), "q bigint")
        session.define({"quotients": whole}, on="spark")

        def fail_for_one_key(key: Any, rows: list[Any]) -> list[tuple[int]]:
            return [(1 // (rows[0].x - 7),)]  # fails in one range after others have written

        before = files(session)
        with pytest.raises(StageError, match="ZeroDivisionError"):
            session.define(
                {"reduced": numbers.group_by("x").reduce(fail_for_one_key, "q int")}, on="spark"
            )
        assert files(session) == before
        numbers.insert([(200,)])
        with pytest.raises(StageError, match="ZeroDivisionError"):
            session.commit()
        session.discard()
        assert files(session) == before


@pytest.mark.spark
def test_files_of_merged_small_layers_are_deleted(spark: Any, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        numbers = session.input("numbers", "x bigint, k bigint")
        other = session.input("other", "x bigint, k bigint")
        session.stage("by_x", numbers.join(other.rename({"k": "l"}), on="x"))
        session.stage("by_k", numbers.join(other.rename({"x": "y"}), on="k"))
        for n in range(8):
            few = spark.range(20).selectExpr(f"id + {n} as x", "id as k")
            more = [(n, each) for each in range(200)]  # so that small layers are merged with it
            numbers.insert(more if n % 4 == 3 else few)
            session.commit()
        settle_background(session)
        assert files(session) <= services_of(session).publisher.named_files


@pytest.mark.spark
def test_files_of_possibly_written_frame_stay(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark, spark_rows=1000) as session:
        numbers = session.input("numbers", "id bigint")
        numbers.insert(spark.range(9000))
        write = store_of(session).write_epoch

        def written_and_then_lost(*given: Any) -> None:
            write(*given)
            raise DurabilityError("the disk went away")

        monkeypatch.setattr(store_of(session), "write_epoch", written_and_then_lost)
        with pytest.raises(DurabilityError):
            session.commit()
        session.discard()
        monkeypatch.undo()
        session.sync()
        shutil.copytree(session.path, tmp_path / "killed")
    with nosync_nb.open(tmp_path / "killed", takeover=True) as session:
        assert session["numbers"].count() == 9000


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_dropped_stage_are_deleted(tmp_path: Path, packed: bool) -> None:
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        numbers = session.input("numbers", "x bigint, k bigint")
        numbers.insert(table(0))
        session.commit()
        doubled = session.stage("doubled", numbers.select("2 * x as x"))
        for n in range(3):
            # Small changes before and after the large one.
            if packed:
                checkpoint_now(session)
            numbers.insert(table(ROWS) if n == 1 else [(1, 1)])
            session.commit()
        merge_all(session)
        assert doubled.count() == 2 * ROWS + 2
        if packed:
            checkpoint_now(session)
        checkpoint_now(session)
        before = files(session)
        session.drop("doubled")
        assert files(session) == before, "the log names them until a checkpoint follows"
        session.sync()
        shutil.copytree(session.path, tmp_path / "killed")
        checkpoint_now(session)
        checkpoint_now(session)
        assert files(session) == referenced_files(session) < before
        for _ in range(FANOUT):  # until the packs are summed
            numbers.insert([(1, 1)])
            session.commit()
            checkpoint_now(session)
        assert tree_of(history_of(session))[0].level == 1
        assert referenced_files(session) <= files(session)
        assert numbers.count(at=4) == 2 * ROWS + 2
    with nosync_nb.open(tmp_path / "log") as session:
        assert session["numbers"].count(at=4) == 2 * ROWS + 2
    with nosync_nb.open(tmp_path / "killed", takeover=True) as session:
        assert list(session.stages) == []
        assert session["numbers"].count() == 2 * ROWS + 2
