"""What waits, who sees it, and what is told of it before and after it is committed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from internals import inside

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import NegativeMultiplicityError, StageError
from nosync_nb.operators import reduce
from nosync_nb.session import removals
from nosync_nb.session.session import owners_of
from nosync_nb.trace import Trace, stats
from nosync_nb.trace.batch import Updates


def elsewhere(read: Callable[[], Any]) -> Any:
    """What a read gives in another thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(read())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


# -- threads -----------------------------------------------------------------------------------


def test_another_thread_reads_what_is_committed_while_rows_wait(session: Session) -> None:
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
    assert elsewhere(data.count) == 1
    assert elsewhere(data.rows) == elsewhere(lambda: data.rows(limit=3)) == [(1,)]
    assert elsewhere(doubled.rows) == elsewhere(lambda: doubled.head(2)) == [(2,)]
    assert elsewhere(unnamed.rows) == [(1,)]
    session.commit()
    assert elsewhere(data.count) == data.count() == 5


def test_who_inserts_is_told_that_its_rows_wait_whichever_thread_it_is(session: Session) -> None:
    data = session.input("data", "n bigint")
    other = elsewhere(lambda: (data.insert([(1,)]), data.count()))
    assert isinstance(other, StageError)
    assert data.count() == 0
    data.insert([(2,)])
    with pytest.raises(StageError, match="2 changes"):
        data.count()
    session.discard()
    assert data.count() == 0


def test_a_transaction_that_is_committed_hides_nothing_afterwards(session: Session) -> None:
    data = session.input("data", "n bigint")
    transaction = owners_of(session).commits.begin()
    data.insert([(1,)])
    assert elsewhere(data.count) == 0
    transaction.commit()
    assert data.count() == elsewhere(data.count) == 1


# -- counts of what waits ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [(1, "x"), (1, "x"), (2, "y")],
        pd.DataFrame({"n": [1, 1, 2], "s": ["x", "x", "y"]}),
        pa.table({"n": [1, 1, 2], "s": ["x", "x", "y"]}),
        {"n": [1, 1, 2], "s": ["x", "x", "y"]},
    ],
)
def test_an_insert_counts_rows_with_their_copies(session: Session, rows: Any) -> None:
    data = session.input("data", "n bigint, s string")
    assert data.insert(rows) == 3
    assert session.pending["data"].rows == 3
    session.commit()
    assert data.count() == 3
    assert data.remove(rows) == 3
    assert (session.pending["data"].rows, session.pending["data"].removed) == (3, 3)
    assert session.discard() == 3


@pytest.mark.spark
def test_an_insert_of_a_data_frame_counts_rows_with_their_copies(
    spark: Any, session: Session
) -> None:
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


# -- rows removed that were not there ----------------------------------------------------------


def test_removing_a_row_that_is_not_there_is_told_at_the_commit(session: Session) -> None:
    orders = session.input("orders", "id bigint, fruit string")
    total = session.stage("total", orders.group_by().agg(n="count(*)"))
    orders.insert([(1, "fig"), (2, "plum")])
    session.commit()
    orders.remove([(999999, "fig"), (2, "plum")])
    with pytest.warns(UserWarning, match=r"input 'orders': row \(999999, 'fig'\) was removed and"):
        assert session.commit() == 2
    assert total.rows() == [(0,)]
    assert orders.rows(at=1) == [(1, "fig"), (2, "plum")]
    with pytest.raises(NegativeMultiplicityError, match="999999"):
        orders.rows()
    orders.insert([(999999, "fig")])
    session.commit()
    assert orders.rows() == [(1, "fig")]


def test_in_a_long_loop_it_is_told_some_epochs_later(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, looked = _removals_in_a_loop(session, monkeypatch, waiting=64)
    assert 100 <= told[0] <= 100 + 64
    assert len(set(told)) == 1
    here = threading.current_thread()
    assert looked.count(here) == removals.REMOVALS_FREE  # the worker does the others
    assert len(looked) == removals.REMOVALS_FREE + (200 - removals.REMOVALS_FREE) // 64


def test_in_a_long_loop_it_is_told_however_long_the_worker_is_busy(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    owners_of(session).worker.submit("busy", ended.wait)
    told, looked = _removals_in_a_loop(session, monkeypatch, waiting=20, settled=False)
    ended.set()
    assert 100 <= told[0] <= 100 + removals.REMOVALS_BEHIND * 20
    assert set(looked) == {threading.current_thread()}


def test_many_rows_of_an_epoch_are_looked_for_by_the_worker_unless_it_is_busy(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "REMOVALS_PAUSE_S", 3600.0)
    monkeypatch.setattr(removals, "REMOVALS_ROWS", 4100)
    data = session.input("data", "n bigint")
    data.insert([(n,) for n in range(60_000)])
    session.commit()
    looked = _looked(monkeypatch)
    here, worker = threading.current_thread(), owners_of(session).worker
    first, many = iter(range(0, 60_000, 2000)), 2000

    def remove(*more: int) -> None:
        start = next(first)
        data.remove([*((n,) for n in range(start, start + many)), *((n,) for n in more)])
        session.commit()

    remove(77_777)
    worker.settle()
    assert len(looked) == 1
    assert looked[0] is not here
    with pytest.warns(UserWarning, match=r"row \(77777,\) was removed and was not there"):
        remove()  # it is told with the next epoch
    for _ in range(removals.REMOVALS_FREE):
        data.remove([(59_999,)])
        data.insert([(59_999,)])
        session.commit()
    worker.settle()
    looked.clear()
    ended = threading.Event()
    worker.submit("busy", ended.wait)
    try:
        for _ in range(8):  # in a loop so many rows are looked for together as well
            remove()
        assert not looked, "they wait"
        remove()
        assert looked == [here], "no more of them do"
    finally:
        ended.set()


def test_what_a_loop_left_is_told_at_the_end_of_the_cell(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, _ = _removals_in_a_loop(session, monkeypatch, waiting=2048)
    assert not told
    with pytest.warns(UserWarning, match=r"row \(999,\) was removed and was not there"):
        owners_of(session).commits.tell_absent()
    owners_of(session).commits.tell_absent()  # once


def test_what_a_loop_left_is_told_when_the_session_is_closed(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    _removals_in_a_loop(session, monkeypatch, waiting=2048)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"row \(999,\)"):
            session.close()
    assert session.closed
    with nosync_nb.open(session.path) as again:  # the log is free, though the warning was an error
        assert again.now == 201


def test_what_is_known_of_an_epoch_is_not_looked_for_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = session.input("data", "n bigint")
    data.insert([(n,) for n in range(1000)])
    session.commit()
    looked: list[int] = []
    lacking = stats.lacking

    def counted(trace: Trace, taken: Updates) -> Updates | None:
        looked.append(len(taken.diff))
        return lacking(trace, taken)

    monkeypatch.setattr(stats, "lacking", counted)
    for n in range(removals.REMOVALS_FREE + 100):
        data.remove([(n,)])
        session.commit()
    assert looked == [1] * removals.REMOVALS_FREE
    looked.clear()
    assert data.count() == 900 - removals.REMOVALS_FREE  # by which it is known of all epochs
    for n in (998, 999, 5000):
        data.remove([(n,)])
        session.commit()
    with pytest.warns(UserWarning, match=r"row \(5000,\) was removed and was not there"):
        owners_of(session).commits.tell_absent()
    assert looked == [3]


def test_an_input_that_has_other_columns_meanwhile_is_not_looked_into(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    _removals_in_a_loop(session, monkeypatch, waiting=2048)
    session.drop("data")
    session.input("data", "n bigint, note string")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        owners_of(session).commits.tell_absent()


def test_what_came_with_rows_that_were_taken_away_is_not_kept_until_somebody_looks(
    session: Session,
) -> None:
    data = session.input("data", "n bigint")
    data.insert([(n,) for n in range(5000)])
    data.remove([(1,)])
    changes = owners_of(session).transactions.current.inputs["data"]
    made = changes.delta(inside(session).snapshot.contents("data"))
    ((_, updates, _),) = removals.Removals().due([removals.Removing(changes, made)], 1)
    assert updates.diff.tolist() == [-1]


def test_what_waits_to_be_looked_at_is_what_the_trace_has_of_it(session: Session) -> None:
    data = session.input("data", "n bigint")
    data.insert([(n,) for n in range(5)])
    data.remove([(1,), (7,)])
    changes = owners_of(session).transactions.current.inputs["data"]
    made = changes.delta(inside(session).snapshot.contents("data"))
    assert made is not None
    ((_, updates, _),) = removals.Removals().due([removals.Removing(changes, made)], 1)
    assert updates is made.updates


def _looked(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Who looks for removed rows from now on, each time."""
    looked: list[threading.Thread] = []
    real = stats.lacking

    def lacking(*given: Any) -> Any:
        looked.append(threading.current_thread())
        return real(*given)

    monkeypatch.setattr(stats, "lacking", lacking)
    return looked


def _removals_in_a_loop(
    session: Session, monkeypatch: pytest.MonkeyPatch, waiting: int, *, settled: bool = True
) -> tuple[list[int], list[threading.Thread]]:
    """Removes 200 rows, an epoch each; the 100th is not there. When it was told, who looked."""
    monkeypatch.setattr(removals, "REMOVALS_PAUSE_S", 3600.0)
    monkeypatch.setattr(removals, "REMOVALS_WAITING", waiting)
    data = session.input("data", "n bigint")
    data.insert([(n,) for n in range(200)])
    session.commit()
    looked = _looked(monkeypatch)
    told: list[int] = []
    for n in range(200):
        data.remove([(n,)] if n != 100 else [(999,)])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session.commit()
        told += [n] * len(caught)
        if settled:
            owners_of(session).worker.settle()
    return told, looked


def test_several_are_counted_and_one_is_named(session: Session) -> None:
    data = session.input("data", "n bigint")
    data.remove([(n,) for n in (5, 6, 7, 7)])
    with pytest.warns(UserWarning, match=r"and 2 more rows below 0"):
        session.commit()


def test_removing_what_is_there_or_comes_with_it_is_not_told(
    session: Session, recwarn: pytest.WarningsRecorder
) -> None:
    warnings.simplefilter("always")
    data = session.input("data", "n bigint, s string")
    by_key = session.input("by_key", "n bigint, s string", key="n")
    session.stage("per", data.group_by("s").agg(c="count(*)"))
    rows = [(n, f"s{n % 7}") for n in range(3000)]
    data.insert(rows)
    by_key.insert(rows)
    session.commit()
    for start in range(0, 3000, 300):
        data.insert([(-1, "new")])
        data.remove([*rows[start : start + 300], (-1, "new")])
        by_key.remove(rows[start : start + 300])
        session.commit()
    data.remove([])
    session.commit()
    assert (data.count(), by_key.count()) == (0, 0)
    assert [str(w.message) for w in recwarn] == []


# -- loads with a key --------------------------------------------------------------------------


def test_a_load_with_a_known_key_and_other_rows_is_told_and_not_done(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with nosync_nb.open(path) as session:
        orders = session.input("orders", "id bigint, price double")
        orders.insert([(1, 5.0), (2, 6.0)], once="load")
        orders.insert([(2, 6.0), (1, 5.0)], once="load")
        assert list(owners_of(session).listeners.notices) == [
            "input 'orders': 'load' is there already, nothing to do"
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
                owners_of(session).worker.settle()


def test_a_block_with_a_known_key_and_other_rows_is_told_and_not_done(session: Session) -> None:
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
    assert (
        owners_of(session).listeners.notices[-1] == "epoch 'day 1' is there already, nothing to do"
    )
    with pytest.warns(UserWarning, match="epoch: its rows differ from those loaded as 'day 1'"):
        assert load(2)
    assert data.rows() == [(1,)]


# -- large groups ------------------------------------------------------------------------------


def test_a_large_group_is_told_once_a_stage_whatever_its_size_becomes(
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
    told = [str(each.message) for each in caught if "reduce evaluates" in str(each.message)]
    assert [text.partition(":")[0] for text in told] == ["stage 'first'", "stage 'second'"]
    assert first.rows() == [(1, 190 + 10 + 100)]


def test_a_group_is_large_beyond_the_bound_alone(
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
