"""Window functions by counters of rows touched, over large groups, layers and recovery."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from checks.checking import merge_all
from internals import settle_background

import nosync_nb
from nosync_nb import Collection, Input, Session
from nosync_nb.operators.windows import prefixes

pytestmark = pytest.mark.usefixtures("no_disk")

SCHEMA = "k int, t bigint, v bigint"
LARGE = 100_000


def load(session: Session, groups: int = 1, size: int = LARGE) -> Input:
    """Groups of rows at times 0, 10, 20, ..."""
    rows = session.input("rows", SCHEMA)
    n = groups * size
    table = pa.table(
        {
            "k": np.repeat(np.arange(groups, dtype=np.int32), size),
            "t": np.tile(np.arange(size) * 10, groups),
            "v": np.arange(n) % 1000,
        }
    )
    rows.insert(table)
    session.commit()
    return rows


def touched(session: Session, change: Any) -> int:
    before = session.stats["touched"]
    change()
    session.commit()
    return session.stats["touched"] - before


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as opened:
        yield opened


FEW: dict[str, tuple[dict[str, Any], str]] = {
    "lag": ({}, "lag(v)"),
    "lead": ({}, "lead(v, 3)"),
    "lag of values": ({}, "lag(v, 2) ignore nulls"),
    "rows": ({"rows_between": (-10, 0)}, "sum(v)"),
    "extremes of rows": ({"rows_between": (-10, 10)}, "max(v)"),
    "values": ({"range_between": (-50, 50)}, "avg(v)"),
    "groups": ({"groups_between": (-5, 1)}, "count(distinct v)"),
    "first": ({"rows_between": (-3, None)}, "first_value(v)"),
    "last": ({}, "last_value(v)"),
    "first of all": ({}, "first_value(v)"),
    "second of all": ({}, "nth_value(v, 2)"),
    "first of the partition": ({"rows_between": (None, None)}, "first_value(v)"),
    "first that is not null": ({}, "first_value(nullif(v, 0)) ignore nulls"),
    "last that is not null": ({}, "last_value(nullif(v, 7)) ignore nulls"),
    "next that is not null": (
        {"rows_between": (0, None)},
        "first_value(nullif(v, 7)) ignore nulls",
    ),
}


@pytest.mark.parametrize("case", FEW)
def test_bounded_function_touches_few_rows_of_large_group(case: str, session: Session) -> None:
    frame, call = FEW[case]
    rows = load(session)
    stage = session.stage("result", rows.window("k", "t", **frame).with_columns(r=call))
    middle = LARGE // 2 * 10
    spent = [
        touched(session, lambda: rows.insert([(0, middle + 5, 7)])),
        touched(session, lambda: rows.insert([(0, middle + 6, 7), (0, 55, 1)])),
        touched(session, lambda: rows.remove([(0, middle + 5, 7)])),
    ]
    assert max(spent) < 1000
    assert_from_scratch(stage, rows.window("k", "t", **frame).with_columns(r=call))


def assert_from_scratch(stage: Collection, again: Collection) -> None:
    assert stage.to_arrow().equals(again.to_arrow())


RUNNING = {
    "row_number": "row_number()",
    "rank": "rank()",
    "dense_rank": "dense_rank()",
    "sum": "sum(v)",
    "mean": "avg(cast(v as double))",
    "deviation": "stddev(v)",
    "decimal": "sum(cast(v as decimal(20, 2)))",
    "extremes": "max(v) - min(v * 2)",
    "maximum that was removed": "max(if(t < 10, 5000, v))",
}
EXTREMES = ("extremes", "maximum that was removed")


@pytest.mark.parametrize("case", RUNNING)
def test_running_function_touches_rows_after_change(case: str, session: Session) -> None:
    rows = load(session)
    view = rows.window("k", "t").with_columns(r=RUNNING[case])
    stage = session.stage("result", view)
    end = LARGE * 10
    rows.remove([(0, 0, 0)])
    session.commit()
    at_end = [
        touched(session, lambda: rows.insert([(0, end, 7)])),
        touched(session, lambda: rows.insert([(0, end + 1, 7)])),
        touched(session, lambda: rows.remove([(0, end, 7)])),
    ]
    assert max(at_end) < 1500
    near = touched(session, lambda: rows.insert([(0, end - 20_005, 7)]))
    if case in EXTREMES:  # they do not change after the row
        assert near < 1500
    else:
        assert 2_000 < near < 12_000  # 2,000 rows after it
    assert_from_scratch(stage, view)


def test_frame_to_end_touches_rows_before_change(session: Session) -> None:
    rows = load(session)
    view = rows.window("k", "t", rows_between=(0, None)).with_columns(r="sum(v)")
    stage = session.stage("result", view)
    assert touched(session, lambda: rows.insert([(0, 15, 7)])) < 1000
    assert_from_scratch(stage, view)


def test_change_of_other_column_moves_no_row(session: Session) -> None:
    rows = load(session)
    view = rows.window("k", "t").with_columns(
        n="row_number()", d="dense_rank()", p="percent_rank()", c="count(*)"
    )
    stage = session.stage("result", view)

    def change() -> None:
        rows.remove([(0, 5000, 500)])
        rows.insert([(0, 5000, 501)])

    assert touched(session, change) < 1000
    assert_from_scratch(stage, view)


def test_unchanged_partitions_are_not_touched(session: Session) -> None:
    rows = load(session, groups=2000, size=20)
    view = rows.window("k", "t").with_columns(
        n="row_number()", p="percent_rank()", x="max(v)", last="lag(v)"
    )
    stage = session.stage("result", view)
    spent = [
        touched(session, lambda k=k: rows.insert([(k, 55, 7), (k + 1000, 55, 7)]))  # type: ignore[misc]
        for k in (3, 77, 500)
    ]
    assert max(spent) < 600  # two partitions of 20 rows, before and after
    assert_from_scratch(stage, view)


def test_sums_of_parts_are_computed_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = load(session)
    session.stage("result", rows.window("k", "t").with_columns(r="sum(v)"))
    passes = []
    whole = prefixes.Contributions.sums

    def counted(self: Any, updates: Any, number: Any, n: int, step: Any) -> Any:
        if len(number) == LARGE:
            passes.append(n)
        return whole(self, updates, number, n, step)

    monkeypatch.setattr(prefixes.Contributions, "sums", counted)
    for i in range(20):
        rows.insert([(0, LARGE * 10 + i, i)])
        session.commit()
    assert len(passes) == 1


# -- layers, recovery and other engines --------------------------------------------------------

COLUMNS = "k string, t int, x double, d date, ts timestamp, n decimal(12,2), v bigint, id int"
VIEWS = {
    "positions": ("k", "t, id", {}, {
        "a": "row_number()", "b": "rank()", "c": "lag(v) ignore nulls", "d": "ntile(4)",
        "e": "lead(x, 2, -1.5D)",
    }),
    "peers": ("k", "t", {}, {
        "a": "dense_rank()", "b": "percent_rank()", "c": "cume_dist()", "d": "sum(x)",
        "e": "max(v)",
    }),
    "near": (None, "ts desc, id", {"rows_between": (-4, 3)}, {
        "a": "sum(v)", "b": "min(x)", "c": "first_value(v)", "d": "count(v)",
    }),
    "times": ("k", "ts", {"range_between": (timedelta(hours=-5), timedelta(hours=1))}, {
        "a": "count(*)", "b": "sum(n)", "c": "max(x)",
    }),
    "months": ("k", "d desc", {"range_between": ("-interval 1 month", "interval 1 month")}, {
        "a": "count(*)", "b": "sum(v)",
    }),
    "numbers": ("k", "x", {"range_between": (-2.5, 0)}, {"a": "count(x)", "b": "avg(v)"}),
    "groups": (None, "t", {"groups_between": (-1, None)}, {"a": "sum(v)", "b": "min(v)"}),
    "whole": ("k", None, {}, {"a": "sum(v)", "b": "max(x)", "c": "count(distinct t)"}),
}  # fmt: skip


def views(source: Collection) -> dict[str, Collection]:
    return {
        name: source.window(keys, order, **frame).with_columns(
            {f"r{key}": call for key, call in calls.items()}
        )
        for name, (keys, order, frame, calls) in VIEWS.items()
    }


class Rows:
    """Rows that change at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.held: list[tuple[Any, ...]] = []
        self.count = 0

    def new(self) -> tuple[Any, ...]:
        pick, self.count = self.chance, self.count + 1

        def some(value: Any) -> Any:
            return None if pick.random() < 0.1 else value

        at = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=pick.randrange(3000))
        return (
            some(pick.choice("abc")),
            some(pick.randrange(40)),
            some(pick.randrange(80) / 4),
            some(at.date() + timedelta(days=pick.randrange(70))),
            some(at),
            some(Decimal(pick.randrange(10_000)) / 100),
            some(pick.randrange(-50, 50)),
            self.count,
        )

    def change(self, source: Input, count: int) -> None:
        gone = self.chance.sample(self.held, min(len(self.held), count // 2))
        come = [self.new() for _ in range(count - len(gone))]
        for row in gone[: len(gone) // 2]:  # an update of one column
            place, new = self.chance.randrange(1, 7), self.new()
            come.append((*row[:place], new[place], *row[place + 1 :]))
        source.remove(gone)
        source.insert(come)
        left = set(gone)
        self.held = [row for row in self.held if row not in left] + come


def test_windows_survive_layers_merges_and_recovery(tmp_path: Path) -> None:
    rows = Rows(1)
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        source = session.input("rows", COLUMNS)
        for name, view in views(source).items():
            session.stage(name, view)
        rows.change(source, 600)
        session.commit()
        for epoch in range(30):
            rows.change(source, 6)
            session.commit()
            if epoch % 10 == 5:
                settle_background(session)
        assert_equal_to_scratch(session)
        merge_all(session)
        rows.change(source, 6)
        session.commit()
        assert_equal_to_scratch(session)
        past = {name: session[name].rows(at=20) for name in VIEWS}
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        for _ in range(3):
            rows.change(session.inputs["rows"], 6)
            session.commit()
        assert_equal_to_scratch(session)
        assert {name: session[name].rows(at=20) for name in VIEWS} == past


def assert_equal_to_scratch(session: Session) -> None:
    for name, view in views(session.inputs["rows"]).items():
        assert session[name].rows() == view.rows(), name


DUCK = {
    "positions": "row_number() over w, rank() over w, lag(v ignore nulls) over w, ntile(4) over w,"
    " lead(x, 2, -1.5) over w from r window w as (partition by k order by t nulls first, id)",
    "peers": "dense_rank() over w, percent_rank() over w, cume_dist() over w, sum(x) over w,"
    " max(v) over w from r window w as (partition by k order by t nulls first)",
    "near": "sum(v) over w, min(x) over w, first_value(v) over w, count(v) over w from r"
    " window w as (order by ts desc nulls last, id rows between 4 preceding and 3 following)",
    "times": "count(*) over w, sum(n) over w, max(x) over w from r window w as (partition by k"
    " order by ts nulls first range between interval 5 hour preceding and interval 1 hour"
    " following)",
    "numbers": "count(x) over w, avg(v) over w from r window w as (partition by k order by x"
    " nulls first range between 2.5 preceding and current row)",
    "groups": "sum(v) over w, min(v) over w from r window w as (order by t nulls first"
    " groups between 1 preceding and unbounded following)",
    "whole": "sum(v) over w, max(x) over w, count(distinct t) over w from r"
    " window w as (partition by k)",
}


def test_windows_equal_those_of_duckdb(session: Session) -> None:
    rows = Rows(2)
    source = session.input("rows", COLUMNS)
    for name, view in views(source).items():
        session.stage(name, view)
    for count in (400, 5, 5, 40, 5, 5):
        rows.change(source, count)
        session.commit()
        r = source.to_arrow()  # noqa: F841 - duckdb finds it by its name
        with duckdb.connect() as con:
            con.sql("set timezone = 'UTC'")
            for name, text in DUCK.items():
                found = con.sql(f"select id, {text}").fetchall()
                own = [tuple(row)[7:] for row in session[name].rows()]
                assert sorted(map(plain, own), key=repr) == sorted(map(plain, found), key=repr)


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        float(v) if isinstance(v, int | Decimal) else round(v, 9) if isinstance(v, float) else v
        for v in row
    )
