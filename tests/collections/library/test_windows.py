"""Event-time windows and as-of joins: against models, and against Spark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from checks.checking import count, held, run
from hypothesis import given
from hypothesis import strategies as st
from models import model
from models.model import Bag, Row

import nosync_nb
from nosync_nb import Collection, SchemaError, Session, StageError
from nosync_nb.collections.library import windows
from nosync_nb.collections.session_protocol import definition_of

START = datetime(2013, 1, 1)
MINUTE = timedelta(minutes=1)
ZONED = {"timestamp": UTC, "timestamp_ntz": None}


pytestmark = pytest.mark.usefixtures("no_disk")


def times(type_: str) -> st.SearchStrategy[Any]:
    """Times around a start and around 1970, null among them."""
    some = [START + n * MINUTE for n in (0, 5, 10, 15, 19, 20, 61)]
    some += [datetime(1970, 1, 1) - timedelta(microseconds=1), datetime(1969, 12, 31, 23, 40)]
    return st.none() | st.sampled_from([t.replace(tzinfo=ZONED[type_]) for t in some])


def boundary_times(type_: str) -> st.SearchStrategy[Any]:
    """Consecutive times on the bounds of short windows."""
    return st.integers(-1, 6).map(lambda n: (START + 5 * n * MINUTE).replace(tzinfo=ZONED[type_]))


def floor_time(time: datetime, width: timedelta) -> datetime:
    """The last multiple of a length at or before a time."""
    zero = datetime(1970, 1, 1, tzinfo=time.tzinfo)
    return zero + (time - zero) // width * width


def windowed(bag: Bag, at: int, size: timedelta, every: timedelta) -> Bag:
    """Every row in every window that contains it."""

    def of(row: Row) -> Iterator[Row]:
        if row[at] is None:
            return
        start = floor_time(row[at], every)
        while start + size > row[at]:
            yield (*row, start, start + size)
            start -= every

    return model.flat_mapped(bag, lambda row: list(of(row)))


# -- windows -----------------------------------------------------------------------------------

kinds = st.sampled_from(sorted(ZONED))


@given(st.data(), kinds, st.sampled_from([1, 7, 15, 60]))
def test_tumbling_assigns_each_row_to_one_window(
    data: st.DataObject, of: str, minutes: int
) -> None:
    run(
        data,
        {"a": ("int", of)},
        lambda a: windows.tumbling(a, on="c1", every=f"{minutes} minutes"),
        lambda a: windowed(a, 1, minutes * MINUTE, minutes * MINUTE),
        pools={"a": st.tuples(st.integers(0, 2), times(of))},
    )


@given(st.data(), kinds, st.sampled_from([(10, 5), (10, 10), (20, 15), (7, 2)]))
def test_sliding_assigns_each_row_to_every_window_that_contains_it(
    data: st.DataObject, of: str, sizes: tuple[int, int]
) -> None:
    size, every = (n * MINUTE for n in sizes)
    run(
        data,
        {"a": ("int", of)},
        lambda a: windows.sliding(a, on="c1", size=size, every=every),
        lambda a: windowed(a, 1, size, every),
        pools={"a": st.tuples(st.integers(0, 2), times(of))},
    )


def in_sessions(bag: Bag, gap: timedelta) -> Bag:
    """Rows (key, time, more) in sessions of their keys."""
    found = []
    for group in model.groups(model.filtered(bag, lambda r: r[1] is not None), [0]).values():
        ordered = sorted(group.elements(), key=lambda r: r[1])
        chains = [[ordered[0]]]
        for row in ordered[1:]:
            if row[1] - chains[-1][-1][1] > gap:
                chains.append([])
            chains[-1].append(row)
        found += [(*row, c[0][1], c[-1][1] + gap) for c in chains for row in c]
    return model.bag(found)


@given(st.data(), kinds, st.sampled_from([1, 5, 10]))
def test_sessions_end_after_gap(data: st.DataObject, of: str, minutes: int) -> None:
    run(
        data,
        {"a": ("int", of, "string")},
        lambda a: windows.sessions(a, on="c1", gap=f"{minutes} minutes", keys="c0"),
        lambda a: in_sessions(a, minutes * MINUTE),
        pools={"a": st.tuples(st.none() | st.integers(0, 1), times(of), st.sampled_from("xy"))},
        max_epochs=3,
    )


def retained_rows(bag: Bag, at: int, retain: timedelta, grain: timedelta) -> Bag:
    """The rows whose grain, by the time in column `at`, is within retention of the newest."""
    there = model.filtered(bag, lambda r: r[at] is not None)
    if not there:
        return there
    newest = floor_time(max(row[at] for row in there), grain)
    least = newest - -(-retain // grain) * grain
    return model.filtered(there, lambda r: floor_time(r[at], grain) >= least)


@given(st.data(), kinds, st.sampled_from([(5, 5, 5), (12, 5, 5), (60, 20, 20), (10, 20, 5)]))
def test_windows_beyond_retention_are_dropped_whole(
    data: st.DataObject, of: str, minutes: tuple[int, int, int]
) -> None:
    retain, size, every = (n * MINUTE for n in minutes)
    run(
        data,
        {"a": ("int", of)},
        lambda a: windows.sliding(a, on="c1", size=size, every=every, retain=retain),
        lambda a: retained_rows(windowed(a, 1, size, every), 2, retain, every),
        pools={"a": st.tuples(st.integers(0, 2), boundary_times(of))},
    )


@given(st.data(), kinds)
def test_rows_beyond_retention_are_dropped(data: st.DataObject, of: str) -> None:
    run(
        data,
        {"a": ("int", of)},
        lambda a: windows.retained(a, on="c1", retain="12 minutes", grain="5 minutes"),
        lambda a: retained_rows(a, 1, 12 * MINUTE, 5 * MINUTE),
        pools={"a": st.tuples(st.integers(0, 2), boundary_times(of))},
    )


def test_late_rows_return_if_newest_row_is_retracted(session: Session) -> None:
    a = session.input("a", "n int, ts timestamp_ntz")
    hourly = windows.tumbling(a, on="ts", every="1 hour", retain="2 hours")
    counts = session.stage("counts", hourly.group_by("window_start").count())
    hours = [START + timedelta(hours=n) for n in range(9)]
    a.insert([(1, hours[0]), (2, hours[2]), (3, hours[2] + MINUTE)])
    session.commit()
    assert count(counts) == {(hours[0], 1): 1, (hours[2], 2): 1}
    a.insert([(4, hours[8])])
    session.commit()
    assert count(counts) == {(hours[8], 1): 1}
    a.insert([(5, hours[1]), (6, hours[6])])  # one is too late
    session.commit()
    assert count(counts) == {(hours[6], 1): 1, (hours[8], 1): 1}
    a.remove([(4, hours[8]), (6, hours[6])])
    session.commit()
    assert count(counts) == {(hours[0], 1): 1, (hours[1], 1): 1, (hours[2], 2): 1}


def test_retention_costs_only_what_it_drops(tmp_path: Path) -> None:
    touched = []
    for size in (1_000, 50_000):
        with nosync_nb.open(tmp_path / str(size), spark_rows=10**9) as session:
            a = session.input("a", "n int, ts timestamp")
            end = datetime(2013, 1, 1, 12, tzinfo=UTC)
            a.insert([(i, end - timedelta(seconds=i % 20_000)) for i in range(size)])
            session.commit()
            hourly = windows.tumbling(a, on="ts", every="1 hour", retain="8 hours")
            session.stage("counts", hourly.group_by("window_start").count())
            before = session.stats["touched"]
            a.insert([(-1, end + timedelta(minutes=10)), (-2, end - timedelta(hours=1))])
            session.commit()
            a.insert([(-3, end + timedelta(minutes=70))])  # the next hour; nothing leaves yet
            session.commit()
            touched.append(session.stats["touched"] - before)
    assert touched[1] <= touched[0] + 50
    assert touched[1] < 400


# -- as-of joins -------------------------------------------------------------------------------


def asof_rows(left: Bag, right: Bag, tolerance: Any) -> Bag:
    """Rows (key, time, x) with the last of (key, time, y) at or before their time."""
    found = []
    for row, n in left.items():
        near = [
            r
            for r in right
            if None not in (row[0], row[1], r[1])
            and model.order(r[0]) == model.order(row[0])  # NaN is a key as any other
            and r[1] <= row[1]
            and (tolerance is None or row[1] - r[1] <= tolerance)
        ]
        best = max(near, key=lambda r: (r[1], model.order(r[2]))) if near else None
        found.append(((*row, best[2] if best else None), n))
    return model.summed(found)


@given(st.data(), kinds, st.sampled_from([None, 5 * MINUTE, 14 * MINUTE]))
def test_asof_join_takes_latest_row_at_or_before(
    data: st.DataObject, of: str, tolerance: timedelta | None
) -> None:
    keys = st.none() | st.sampled_from([1.0, math.nan])
    sides = st.tuples(keys, times(of), st.none() | st.integers(0, 2))
    run(
        data,
        {"a": ("double", of, "int"), "b": ("double", of, "int")},
        lambda a, b: windows.asof_join(
            a, b.rename({"d1": "c1"}), on={"c0": "d0"}, time="c1", tolerance=tolerance
        ),
        lambda a, b: asof_rows(a, b, tolerance),
        pools={"a": sides, "b": sides},
        max_epochs=3,
    )


def test_asof_join_by_integers_without_keys_shows_right_time(session: Session) -> None:
    trades = session.input("trades", "at int, price int")
    quotes = session.input("quotes", "bid int, seen int")
    joined = windows.asof_join(trades, quotes, time={"at": "seen"}, tolerance=3)
    assert joined.schema.names == ("at", "price", "bid", "seen")
    trades.insert([(1, 10), (5, 50), (9, 90), (9, 90)])
    quotes.insert([(7, 2), (8, 5), (8, 5)])
    session.commit()
    assert count(joined) == {(1, 10, None, None): 1, (5, 50, 8, 5): 1, (9, 90, None, None): 2}
    quotes.insert([(6, 6)])
    session.commit()
    assert count(joined)[(9, 90, 6, 6)] == 2


# -- errors, restarts --------------------------------------------------------------------------


def test_lengths_are_fixed_and_positive(session: Session) -> None:
    a = session.input("a", "ts timestamp, n int")
    for every in ("1 month", "0 hours", "-1 hour", "hour", "", 5, timedelta(0), "1 hour 3"):
        with pytest.raises(SchemaError, match="is not a fixed length of time"):
            windows.tumbling(a, on="ts", every=every)  # type: ignore[arg-type]
    ours = definition_of("test", windows.tumbling(a, on="ts", every="1 hour 30 minutes"))
    theirs = definition_of("test", windows.tumbling(a, on="ts", every=timedelta(minutes=90)))
    assert ours.fingerprint({"a": "1"}) == theirs.fingerprint({"a": "1"})


def test_invalid_length_is_named_as_given(session: Session) -> None:
    a = session.input("a", "ts timestamp")
    calls: dict[str, Callable[[], Any]] = {
        "every='1 moon'": lambda: windows.tumbling(a, on="ts", every="1 moon"),
        "every=5": lambda: windows.tumbling(a, on="ts", every=5),  # type: ignore[arg-type]
        "retain='soon'": lambda: windows.tumbling(a, on="ts", every="1 day", retain="soon"),
        "size='big'": lambda: windows.sliding(a, on="ts", size="big", every="1 day"),
        "every='odd'": lambda: windows.sliding(a, on="ts", size="1 day", every="odd"),
        "gap=''": lambda: windows.sessions(a, on="ts", gap=""),
        "grain='x'": lambda: windows.retained(a, on="ts", retain="1 day", grain="x"),
    }
    for said, call in calls.items():
        with pytest.raises(SchemaError, match=f"^{said} is not a fixed length"):
            call()


def test_asof_join_of_clashing_columns_names_rename(session: Session) -> None:
    a = session.input("a", "k int, ts timestamp, n int")
    keyed = a.select("k AS key", "ts", "n AS K")
    for other, on, column in ((a, "k", "n"), (keyed, {"k": "key"}, "K")):
        with pytest.raises(SchemaError, match=f"both sides have a column '{column}'") as caught:
            windows.asof_join(a, other, on=on, time="ts")  # type: ignore[arg-type]
        assert f"rename({{'{column}': 'other_{column}'}})" in str(caught.value.hint)


def test_asof_join_accepts_any_column_names(session: Session) -> None:
    calls = session.input("calls", "k int, t int, Is_Right int")
    rates = session.input("rates", "k int, t int, is_right_ int, rate int")
    calls.insert([(1, 5, 7)])
    rates.insert([(1, 3, 8, 30), (1, 6, 9, 60)])
    session.commit()
    assert windows.asof_join(calls, rates, on="k", time="t").rows() == [(1, 5, 7, 8, 30)]


def test_invalid_arguments_of_windows_are_refused(session: Session, tmp_path: Path) -> None:
    a = session.input("a", "ts timestamp, n int")
    calls: dict[str, Callable[[Any], Any]] = {
        "tumbling": lambda given: windows.tumbling(given, on="ts", every="1 day"),
        "sliding": lambda given: windows.sliding(given, on="ts", size="1 day", every="1 day"),
        "retained": lambda given: windows.retained(given, on="ts", retain="1 day", grain="1 day"),
        "sessions": lambda given: windows.sessions(given, on="ts", gap="1 day"),
        "asof_join": lambda given: windows.asof_join(a, given, time="ts"),
    }
    for name, call in calls.items():
        with pytest.raises(StageError, match=f"^{name}: 'a' is not a collection"):
            call("a")
    for argument in ("on", "time"):
        given: Any = {"on": "n", "time": "ts", argument: 5}
        with pytest.raises(SchemaError, match=f"^asof_join: {argument}=5 does not name columns"):
            windows.asof_join(a, a, **given)
    with nosync_nb.open(tmp_path / "other") as other:
        theirs = other.input("theirs", "ts timestamp, m int")
        with pytest.raises(StageError, match=r"asof_join: the other .* another session"):
            windows.asof_join(a, theirs, time="ts")


def test_invalid_columns_and_sizes_of_windows_are_refused(session: Session) -> None:
    a = session.input("a", "ts timestamp, n int, day date")
    calls: dict[str, Callable[[], Any]] = {
        "the event time 'day' is date": lambda: windows.tumbling(a, on="day", every="1 day"),
        "no column 'nothing'": lambda: windows.tumbling(a, on="nothing", every="1 day"),
        "the column 'window_start' exists already": lambda: windows.tumbling(
            a.rename(n="window_start"), on="ts", every="1 day"
        ),
        "is longer than size": lambda: windows.sliding(a, on="ts", size="1 day", every="2 days"),
        "in 1440 windows": lambda: windows.sliding(a, on="ts", size="1 day", every="1 minute"),
        "more than 10000": lambda: windows.retained(a, on="ts", retain="1 day", grain="1 second"),
        "cannot be a key as well": lambda: windows.sessions(a, on="ts", gap="1 day", keys="TS"),
        "both sides have a column 'n'": lambda: windows.asof_join(a, a, on="day", time="ts"),
        "'n' is int on the left and 'day' is date": lambda: windows.asof_join(
            a, a.drop("n"), on={"n": "day"}, time="ts"
        ),
        "is not one column": lambda: windows.asof_join(a, a, time={}),
        "pass an integer|is int": lambda: windows.asof_join(
            a, a.select("n", "n + 1 AS m"), time="n", tolerance="1 day"
        ),
    }
    for said, call in calls.items():
        with pytest.raises(SchemaError, match=said):
            call()


def test_windows_continue_after_restart(tmp_path: Path) -> None:
    def row(n: int) -> Any:
        return (n % 3, (START + 7 * n * MINUTE).replace(tzinfo=UTC))

    def stages(a: Any) -> dict[str, Collection]:
        return {
            "hours": windows.tumbling(a, on="ts", every="1 hour", retain="3 hours"),
            "visits": windows.sessions(a, on="ts", gap="20 minutes", keys="n"),
            "last": windows.asof_join(a, a.select("n", "ts", "1 AS one"), on="n", time="ts"),
            "top": a.group_by("n").top(2, by="ts desc"),
            "some": a.select("n").threshold(lambda n: n // 3),
        }

    with nosync_nb.open(tmp_path / "log") as session:
        a = session.input("a", "n int, ts timestamp")
        a.insert([row(n) for n in range(40)])
        session.commit()
        session.define(stages(a))
        before = {name: s.rows() for name, s in session.stages.items()}
    with nosync_nb.open(tmp_path / "log") as session:
        assert session.recovery.recomputed == 0
        assert before == {name: s.rows() for name, s in session.stages.items()}
        again = session["a"]
        again.remove([row(39)])  # type: ignore[attr-defined]
        again.insert([row(n) for n in range(40, 60)])  # type: ignore[attr-defined]
        session.commit()
        for name, made in stages(again).items():
            assert session[name].rows() == made.rows()
            assert session[name].rows() != before[name]


# -- Spark -------------------------------------------------------------------------------------


@pytest.mark.spark
def test_windows_equal_spark_sql(tmp_path: Path, spark: Any) -> None:
    from pyspark.sql import functions as f

    minutes = [0, 3, 10, 20, 20, 31, 42, 60, 95, 96]
    given_ = [(n % 2, (START + n * MINUTE).replace(tzinfo=UTC)) for n in minutes]
    given_ += [(1, None), (0, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))]
    frame = spark.createDataFrame(given_, "k int, ts timestamp")
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        a = session.input("a", "k int, ts timestamp")
        a.insert(given_)
        session.commit()
        made = {
            ("10 minutes", "10 minutes"): windows.tumbling(a, on="ts", every="10 minutes"),
            ("20 minutes", "15 minutes"): windows.sliding(
                a, on="ts", size="20 minutes", every="15 minutes"
            ),
        }
        for (size, every), ours in made.items():
            theirs = frame.select("k", "ts", f.window("ts", size, every).alias("w"))
            assert_same(ours, theirs.select("k", "ts", "w.start", "w.end"))
        ours = windows.sessions(a, on="ts", gap="10 minutes", keys="k")
        ours = ours.group_by("k", "window_start", "window_end").count()
        theirs = frame.groupBy("k", f.session_window("ts", "10 minutes").alias("w")).count()
        assert_same(ours, theirs.select("k", "w.start", "w.end", "count"))


@pytest.mark.spark
def test_times_without_zone_are_independent_of_session_zone(tmp_path: Path, spark: Any) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with nosync_nb.open(tmp_path / "log", spark=spark) as session:
            a = session.input("a", "ts timestamp_ntz, z timestamp")
            skipped = datetime(2013, 3, 31, 2, 30)  # no such time on the clocks of Berlin
            a.insert([(skipped, skipped.replace(tzinfo=UTC))])
            session.commit()
            hour = floor_time(skipped, timedelta(hours=1))
            for on, start in (("ts", hour), ("z", hour.replace(tzinfo=UTC))):
                (row,) = windows.tumbling(a, on=on, every="1 hour", retain="1 day").rows()
                assert (row.window_start, row.window_end) == (start, start + timedelta(hours=1))
                assert (row.ts, row.z) == (skipped, skipped.replace(tzinfo=UTC))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def assert_same(ours: Collection, theirs: Any) -> None:
    table = theirs.toArrow().to_pydict()
    assert held(ours) == model.bag(map(model.typed, zip(*table.values(), strict=True)))


def test_session_continues_after_exactly_gap(session: Session) -> None:
    given = session.input("given", "k int, at timestamp")
    stage = session.stage("s", windows.sessions(given, on="at", gap="5 minutes", keys="k"))
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    just = timedelta(microseconds=1)
    given.insert([(1, noon), (1, noon + 5 * MINUTE), (2, noon), (2, noon + 5 * MINUTE + just)])
    session.commit()
    assert [(row[0], row[-1] - row[-2]) for row in stage.rows()] == [
        (1, 10 * MINUTE), (1, 10 * MINUTE), (2, 5 * MINUTE), (2, 5 * MINUTE)
    ]  # fmt: skip
