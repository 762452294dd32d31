"""Pending changes: visibility in other threads, counts, and reports."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from checks.sessions import in_thread
from internals import notices_of, on_places, settle_background

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import StageError
from nosync_nb.operators import reduce

# -- threads -----------------------------------------------------------------------------------


def test_another_thread_reads_committed_rows_while_rows_are_pending(session: Session) -> None:
    data = session.input("data", "n bigint")
    doubled = session.stage("doubled", data.select("n * 2 as n"))
    data.insert([(1,)])
    session.commit()
    data.insert([(2,), (3,), (4,), (5,)])
    for read in (data.count, data.rows, doubled.rows, doubled.to_arrow, lambda: data.head(1)):
        with pytest.raises(StageError, match="has 4 changes that are not committed"):
            read()
    with pytest.raises(StageError, match=r"^input 'data' has 4 changes"):
        data.count()
    with pytest.raises(StageError, match=r"^'doubled' depends on input 'data', which has 4"):
        doubled.count()
    unnamed = data.filter("n > 0")
    assert in_thread(data.count) == 1
    assert in_thread(data.rows) == in_thread(lambda: data.rows(limit=3)) == [(1,)]
    assert in_thread(doubled.rows) == in_thread(lambda: doubled.head(2)) == [(2,)]
    assert in_thread(unnamed.rows) == [(1,)]
    session.commit()
    assert in_thread(data.count) == data.count() == 5


def test_thread_that_inserts_cannot_read_its_pending_rows(session: Session) -> None:
    data = session.input("data", "n bigint")
    other = in_thread(lambda: (data.insert([(1,)]), data.count()))
    assert isinstance(other, StageError)
    assert data.count() == 0
    data.insert([(2,)])
    with pytest.raises(StageError, match="2 changes"):
        data.count()
    session.discard()
    assert data.count() == 0


def test_committed_transaction_hides_nothing(session: Session) -> None:
    data = session.input("data", "n bigint")
    transaction = session.begin()
    data.insert([(1,)])
    assert in_thread(data.count) == 0
    transaction.commit()
    assert data.count() == in_thread(data.count) == 1


# -- counts of pending rows --------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [(1, "x"), (1, "x"), (2, "y")],
        pd.DataFrame({"n": [1, 1, 2], "s": ["x", "x", "y"]}),
        pa.table({"n": [1, 1, 2], "s": ["x", "x", "y"]}),
        {"n": [1, 1, 2], "s": ["x", "x", "y"]},
    ],
)
def test_insert_counts_rows_with_copies(session: Session, rows: Any) -> None:
    data = session.input("data", "n bigint, s string")
    assert data.insert(rows) == 3
    assert session.pending["data"].rows == 3
    session.commit()
    assert data.count() == 3
    assert data.remove(rows) == 3
    assert (session.pending["data"].rows, session.pending["data"].removed) == (3, 3)
    assert session.discard() == 3


@pytest.mark.spark
def test_insert_of_a_spark_data_frame_counts_rows_with_copies(spark: Any, session: Session) -> None:
    frame = spark.createDataFrame([(1, "x"), (1, "x"), (2, "y")], "n bigint, s string")
    data = session.input("data", "n bigint, s string")
    assert data.insert(frame) == 3
    assert session.pending["data"].rows == 3
    session.commit()
    assert data.count() == 3
    assert data.remove(frame) == 3
    session.commit()
    assert data.count() == 0
    keyed = session.input("keyed", "n bigint, s string", key="n")
    assert keyed.upsert(frame) == 2
    session.commit()
    assert keyed.rows() == [(1, "x"), (2, "y")]


# -- removals of absent rows -------------------------------------------------------------------


def test_commit_looks_up_no_removed_row(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    data = session.input("data", "n bigint")
    data.insert([(n,) for n in range(3000)])
    session.commit()
    lookups: list[int] = []
    on_places(monkeypatch, lookups.append)
    for n in range(100):
        data.remove([(n,)])
        session.commit()
    settle_background(session)
    assert not lookups
    assert data.count() == 2900
    assert lookups


# -- loads with a key --------------------------------------------------------------------------


def test_load_with_a_known_key_and_other_rows_warns_and_does_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with nosync_nb.open(path) as session:
        orders = session.input("orders", "id bigint, price double")
        orders.insert([(1, 5.0), (2, 6.0)], once="load")
        orders.insert([(2, 6.0), (1, 5.0)], once="load")
        assert list(notices_of(session)) == [
            "input 'orders': 'load' is loaded already, nothing to do"
        ]
        with pytest.warns(UserWarning, match="its rows differ from those loaded as 'load'"):
            assert orders.insert([(1, 500.0), (2, 6.0)], once="load") == 0
        session.commit()
    for checkpoint in (False, True):
        with nosync_nb.open(path) as session:
            orders = session["orders"]
            for same in (
                [(2, 6.0), (1, 5.0)],
                pd.DataFrame({"price": [5.0, 6.0], "id": [1, 2]}),
                pa.table({"id": [2, 1], "price": [6.0, 5.0]}),
                iter([(1, 5.0)]),
            ):
                assert orders.insert(same, once="load") == 0
            for other in ([(1, 5.0)], [(1, 5.0), (2, 6.0), (2, 6.0)], [("x", "y")], []):
                with pytest.warns(UserWarning, match=r"use set\(rows\).*, or another key"):
                    assert orders.insert(other, once="load") == 0
            assert orders.rows() == [(1, 5.0), (2, 6.0)]
            assert orders.insert([(3, 7.0)], once="other") == 1
            session.discard()
            if checkpoint:
                for _ in range(1100):
                    session.commit()
                settle_background(session)


def test_block_with_a_known_key_and_other_rows_warns_and_does_nothing(session: Session) -> None:
    data = session.input("data", "n bigint")
    keyed = session.input("keyed", "n bigint, s string", key="n")

    def load(n: int) -> bool:
        with session.epoch(once="day 1") as e:
            data.insert([(n,)])
            keyed.upsert([(1, "a")])
            keyed.delete([7])
        return e.skipped

    assert not load(1)
    assert load(1)
    assert notices_of(session)[-1] == "epoch 'day 1' is loaded already, nothing to do"
    with pytest.warns(UserWarning, match="epoch: its rows differ from those loaded as 'day 1'"):
        assert load(2)
    assert data.rows() == [(1,)]


# -- large groups ------------------------------------------------------------------------------


def test_large_group_warns_once_for_each_stage(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduce, "_LARGE_GROUP", 10)
    data = session.input("data", "k bigint, n bigint")
    data.insert([(1, n) for n in range(20)])
    session.commit()

    def total(key: Any, rows: list[Any]) -> Iterator[tuple[int]]:
        yield (sum(row.n for row in rows),)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = session.stage("first", data.group_by("k").reduce(total, "n bigint"))
        for n in range(5):
            data.insert([(1, n)])
            session.commit()
        session.stage("second", data.group_by("k").reduce(total, "n bigint"))
        data.insert([(1, 100)])
        session.commit()
    warned = [str(each.message) for each in caught if "reduce recomputes" in str(each.message)]
    assert [text.partition(":")[0] for text in warned] == ["stage 'first'", "stage 'second'"]
    assert first.rows() == [(1, 190 + 10 + 100)]


def test_group_warns_only_beyond_the_limit(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduce, "_LARGE_GROUP", 10)
    data = session.input("data", "k bigint, n bigint")
    data.insert([(1, n) for n in range(10)])
    session.commit()
    sizes = data.group_by("k").reduce(lambda key, rows: [(len(rows),)], "n bigint")
    assert session.stage("sizes", sizes).rows() == [(1, 10)]
    data.insert([(1, 10)])
    with pytest.warns(UserWarning, match="a group of 11 rows"):
        session.commit()
