"""Reads: rows in their order, at any epoch, in every form, named or not."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import nosync_nb
from nosync_nb import CorruptLogError, Session, StageError, TimeError
from nosync_nb.store import log_reader
from nosync_nb.store.log import Log
from nosync_widgets.tables import changed_rows


@pytest.fixture
def session(session: Session) -> Session:
    """Four epochs of delays: added, added, taken back, nothing."""
    delays = session.input("delays", "carrier string, minutes double")
    session.stage("worst", delays.group_by("carrier").agg(worst="max(minutes)"))
    delays.insert([("UA", 5.0), ("AA", 7.0), ("UA", 9.0)])
    session.commit(label="first")
    delays.insert([("AA", 7.0), ("DL", None), ("DL", math.nan)])
    session.commit()
    delays.remove([("UA", 9.0)])
    session.commit(label="back")
    session.commit()
    return session


def values(collection: Any, at: Any = None) -> list[Any]:
    return [tuple(row) for row in collection.rows(at)]


# -- rows ------------------------------------------------------------------------------------------


def test_rows_are_named_tuples_in_canonical_order_with_copies(session: Session) -> None:
    """Null first, NaN last."""
    rows = session["delays"].rows()
    assert repr(rows[2].minutes) == "None"
    assert repr(rows) == (
        "[Row(carrier='AA', minutes=7.0), Row(carrier='AA', minutes=7.0),"
        " Row(carrier='DL', minutes=None), Row(carrier='DL', minutes=nan),"
        " Row(carrier='UA', minutes=5.0)]"
    )
    assert session["delays"].rows(limit=2) == [("AA", 7.0), ("AA", 7.0)]
    assert session["delays"].rows(limit=0) == []


def test_rows_with_more_copies_than_memory_can_be_read_in_part(session: Session) -> None:
    ones = session.input("ones", "x int")
    ones.insert([(1,), (2,)])
    session.commit()
    many: Any = ones
    for number, doublings in enumerate((10, 10, 10, 10, 10, 10, 2)):
        for _ in range(doublings):
            many = many.concat(many)
        many = session.stage(f"step{number}", many)
    assert many.count() == 2 * 2**62
    assert many.rows(limit=3) == [(1,)] * 3
    assert many.head(2) == [(1,)] * 2
    for read in (many.rows, many.to_arrow):
        with pytest.raises(StageError, match="'step6' has 9223372036854775808 rows"):
            read()


def test_count_includes_copies(session: Session) -> None:
    delays = session["delays"]
    assert delays.count() == len(delays) == 5
    assert delays.count(at=1) == 3
    assert delays.distinct().count() == 4
    assert bool(delays.filter("minutes > 1000"))


def test_head_orders_by_columns(session: Session) -> None:
    delays = session["delays"]
    assert [row.carrier for row in delays.head(2)] == ["AA", "AA"]
    assert [row.carrier for row in delays.head(3, by="carrier desc")] == ["UA", "DL", "DL"]
    by = delays.head(9, by="minutes desc, carrier")
    assert [repr(row.minutes) for row in by] == ["nan", "7.0", "7.0", "5.0", "None"]
    assert delays.head(0) == []


def test_values_round_trip_through_a_commit(session: Session) -> None:
    row = (
        True, 1, 2**40, 0.5, Decimal("1.50"), "ü", b"\0", date(2013, 1, 1),
        datetime(2013, 1, 1, 5, 15, tzinfo=UTC), datetime(2013, 1, 1, 5, 15), [1, None],
    )  # fmt: skip
    types = (
        "a boolean, b tinyint, c bigint, d double, e decimal(10,2), f string, g binary, h date,"
        " i timestamp, j timestamp_ntz, k array<int>"
    )
    mixed = session.input("mixed", types)
    mixed.insert([row, (None,) * 11])
    session.commit()
    assert values(mixed) == [(None,) * 11, row]
    assert [type(v) for v in mixed.rows()[1]] == [type(v) for v in row]
    assert values(mixed, session.now) == values(mixed)


# -- forms -----------------------------------------------------------------------------------------


def test_arrow_has_the_types_of_the_schema_and_expands_copies(session: Session) -> None:
    table = session["delays"].to_arrow()
    assert table.schema == pa.schema([("carrier", pa.string()), ("minutes", pa.float64())])
    assert sorted(table.column("carrier").to_pylist()) == ["AA", "AA", "DL", "DL", "UA"]
    assert session["delays"].to_arrow(at=0).num_rows == 0


def test_to_pandas_reads_an_epoch(session: Session) -> None:
    frame = session["delays"].to_pandas(at="first")
    assert sorted(frame["minutes"]) == [5.0, 7.0, 9.0]
    assert list(frame.columns) == ["carrier", "minutes"]


def test_collection_above_the_limit_is_refused_with_a_hint(session: Session) -> None:
    session.collect_rows = 4
    with pytest.raises(StageError, match="'delays' has 5 rows") as caught:
        session["delays"].to_pandas()
    assert "to_spark" in (caught.value.hint or "")
    session.collect_rows = 5
    assert len(session["delays"].to_pandas()) == 5


def test_schema_has_names_and_types(session: Session) -> None:
    assert session["worst"].schema.ddl == "carrier string, worst double"
    assert session["worst"].schema.names == ("carrier", "worst")
    assert repr(session["worst"]) == "<worst: carrier string, worst double>"


# -- the past --------------------------------------------------------------------------------------


def test_epoch_can_be_a_number_label_time_or_offset(session: Session) -> None:
    worst = session["worst"]
    first = [("AA", 7.0), ("UA", 9.0)]
    times = [epoch.committed_at for epoch in session.epochs()]
    assert times[1] is not None
    for at in (1, np.int64(1), -3, "first", times[1], times[1] + timedelta(microseconds=1)):
        assert values(worst, at) == first
    assert values(worst, 0) == values(worst, -4) == []
    assert values(worst, times[1] - timedelta(seconds=1)) == []
    assert repr(values(worst, "back")) == "[('AA', 7.0), ('DL', nan), ('UA', 5.0)]"
    assert repr(values(worst, datetime.now(UTC))) == repr(values(worst))


def test_changes_are_net_and_half_open(session: Session) -> None:
    delays = session["delays"]

    def changed(after: Any = None, upto: Any = None) -> list[Any]:
        return sorted(
            (row["carrier"], str(row["minutes"]), row["diff"])
            for row in delays.changes(after, upto).to_pylist()
        )

    assert changed(upto=1) == [("AA", "7.0", 1), ("UA", "5.0", 1), ("UA", "9.0", 1)]
    assert changed(after=1, upto=2) == [("AA", "7.0", 1), ("DL", "None", 1), ("DL", "nan", 1)]
    assert changed(after="first", upto="back")[-1] == ("UA", "9.0", -1)
    assert changed(after=0) == changed()
    assert ("UA", "9.0", 1) not in changed()
    assert changed(after=-1) == changed(after=3) == []
    assert delays.changes().schema.names == ["carrier", "minutes", "diff"]


def test_changes_with_a_column_diff_have_counts_in_another(session: Session) -> None:
    scores = session.input("scores", "diff int, DIFF_ int")
    scores.insert([(7, 8)] * 2)
    session.commit()
    table = scores.changes()
    assert table.column_names == ["diff", "DIFF_", "diff__"]
    assert table.to_pylist() == [{"diff": 7, "DIFF_": 8, "diff__": 2}]
    assert changed_rows(scores, 4, 5, 10) == ([(2, ["7", "8"])], 2, 0)


def test_history_lists_readable_epochs(session: Session) -> None:
    assert session["delays"].history() == [range(5)]
    session.replay_rows = 0
    session.stage("late", session["delays"].filter("minutes > 6"))
    session.stage("late", session["delays"].filter("minutes > 8"))
    assert session["late"].history() == [range(4, 5)]
    with pytest.raises(TimeError, match="stage 'late': epoch 3 is not readable, only 4") as caught:
        session["late"].rows(at=3)
    assert caught.value.hint == "read at 4"
    epochs = session.epochs()
    assert [epoch.number for epoch in epochs] == [4]
    assert session["delays"].filter("minutes > 6").history() == []


def test_epochs_are_a_lazy_sequence(session: Session) -> None:
    epochs = session.epochs()
    assert len(epochs) == 5
    assert [epoch.label for epoch in epochs] == [None, "first", None, "back", None]
    assert epochs[0].committed_at is None
    assert epochs[-1].number == 4
    assert [epoch.number for epoch in epochs[1:3]] == [1, 2]
    assert repr(epochs) == "<epochs 0 to 4>"


# -- unnamed ---------------------------------------------------------------------------------------


def test_unnamed_collection_can_be_read_at_any_epoch(session: Session) -> None:
    slow = session["delays"].filter("minutes >= 7").group_by("carrier").agg(n="count(*)")
    assert slow.name is None
    assert values(slow) == [("AA", 2), ("DL", 1)]  # NaN is greatest
    assert values(slow, 1) == [("AA", 1), ("UA", 1)]
    assert values(slow, "first") == [("AA", 1), ("UA", 1)]
    assert slow.count(at=0) == 0
    assert session["worst"].join(slow, on="carrier").count() == 2
    assert list(session.stages) == ["worst"]
    with pytest.raises(StageError, match="an unnamed collection has no history"):
        slow.changes()


def test_read_that_depends_on_pending_changes_is_refused(session: Session) -> None:
    delays, worst = session.inputs["delays"], session["worst"]
    planes = session.input("planes", "tail string")
    delays.insert([("UA", 90.0)])
    expected = r"'delays'(, which)? has a change that is not"
    for read in (delays.rows, worst.rows, worst.count, worst.filter("worst > 1").to_arrow):
        with pytest.raises(StageError, match=expected) as caught:
            read()
        assert "session.commit()" in (caught.value.hint or "")
    assert planes.rows() == []
    assert values(worst, session.now) == values(worst, 4)
    session.discard()
    assert len(worst.rows()) == 3


# -- readers beside the owner ----------------------------------------------------------------------


@pytest.fixture
def reader(session: Session) -> Iterator[Session]:
    with nosync_nb.open(session.path, mode="r") as opened:
        yield opened


def raise_once(patch: pytest.MonkeyPatch, place: Any, name: str, error: BaseException) -> None:
    """Makes the first call of a function raise after its work."""
    call, errors = getattr(place, name), [error]

    def raising(*given: Any) -> Any:
        done = call(*given)
        if errors:
            raise errors.pop()
        return done

    patch.setattr(place, name, raising)


def define_fast(session: Session) -> None:
    session.stage("fast", session["delays"].filter("minutes < 6"))


def commit_one(session: Session) -> None:
    session.inputs["delays"].insert([("UA", 1.0)])
    session.commit()


@pytest.mark.parametrize("missed", [define_fast, commit_one])
@pytest.mark.parametrize(("place", "name"), [(Log, "refresh"), (log_reader, "follow_frames")])
def test_interrupted_reader_misses_nothing(
    session: Session,
    reader: Session,
    monkeypatch: pytest.MonkeyPatch,
    missed: Callable[[Session], None],
    place: Any,
    name: str,
) -> None:
    missed(session)
    raise_once(monkeypatch, place, name, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        reader.refresh()
    for change in (lambda _: None, commit_one, define_fast, commit_one):
        change(session)
        assert reader.refresh() == session.now
        assert reader.stages.keys() == session.stages.keys()
        for stage in ("delays", *session.stages):
            assert repr(values(reader[stage])) == repr(values(session[stage]))


def test_reader_with_inconsistent_frames_starts_over(
    session: Session, reader: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_one(session)
    raise_once(monkeypatch, log_reader, "follow_frames", CorruptLogError("as if frames were lost"))
    assert reader.refresh() == session.now == 5
    assert reader["delays"].count() == 6


@pytest.mark.parametrize("place", [Log, log_reader])
def test_close_waits_for_a_refresh(
    session: Session, reader: Session, monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    """No file is closed while the refresh reads it, so it reports no damage."""
    name = "refresh" if place is Log else "follow_frames"
    call, close = getattr(place, name), Log.close
    inside, ended = threading.Event(), threading.Event()

    def slow(*given: Any) -> Any:
        inside.set()
        ended.wait(0.2)  # times out if closing waits
        return call(*given)

    def close_and_record(log: Log) -> None:
        close(log)
        ended.set()

    commit_one(session)
    monkeypatch.setattr(place, name, slow)
    monkeypatch.setattr(Log, "close", close_and_record)
    with ThreadPoolExecutor(1) as pool:
        refreshed = pool.submit(reader.refresh)
        assert inside.wait(60)
        reader.close()
        assert refreshed.result(60) == 5
    assert reader.closed
    assert ended.is_set()
    commit_one(session)
    assert reader.refresh() == 5
