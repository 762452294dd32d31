"""Arrow streams of collections: other libraries take a stage, an input or a past epoch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import altair
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import nosync_nb
from nosync_nb import Session, StageError, TimeError
from nosync_nb.errors import MisuseError, OutOfMemoryError
from nosync_widgets.tables import Table

FIRST = [("AA", 70), ("UA", 90)]
CURRENT = [("AA", 70), ("B6", 61), ("B6", 61), ("UA", 90)]


@pytest.fixture
def session(session: Session) -> Session:
    """Two epochs; one late flight occurs twice."""
    flights = session.input("flights", "carrier string, delay int")
    session.stage("late", flights.filter("delay > 60"))
    flights.insert([("AA", 70), ("UA", 90), ("UA", 3)])
    session.commit(label="monday")
    flights.insert([("B6", 61), ("B6", 61)])
    session.commit()
    return session


def by_pyarrow(late: Any) -> list[tuple[Any, ...]]:
    table = pa.table(late)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def by_polars(late: Any) -> list[tuple[Any, ...]]:
    return pl.DataFrame(late).rows()


def by_duckdb(late: Any) -> list[tuple[Any, ...]]:
    return duckdb.sql("from late").fetchall()


def by_pandas(late: Any) -> list[tuple[Any, ...]]:
    """Uses the stream from pandas 3 on, and the interchange protocol before."""
    if hasattr(pd.DataFrame, "from_arrow"):
        frame = pd.DataFrame.from_arrow(late)
    else:
        frame = pd.api.interchange.from_dataframe(late)
    return [tuple(row) for row in frame.itertuples(index=False)]


def by_altair(late: Any) -> list[tuple[Any, ...]]:
    chart = altair.Chart(late).mark_bar().encode(x="carrier", y="delay").to_dict()
    assert chart["encoding"]["y"]["type"] == "quantitative"
    rows = chart["datasets"][chart["data"]["name"]]
    return [tuple(row.values()) for row in rows]


def by_hvplot(late: Any) -> list[tuple[Any, ...]]:
    bars = late.hvplot.bar(x="carrier", y="delay")
    assert (type(bars).__name__, bars.kdims, bars.vdims) == ("Bars", ["carrier"], ["delay"])
    return [tuple(row) for row in bars.dframe().itertuples(index=False)]


LIBRARIES = [by_pyarrow, by_polars, by_duckdb, by_pandas, by_altair, by_hvplot]


@pytest.mark.parametrize("read_by", LIBRARIES)
def test_libraries_read_a_stage_an_input_and_a_dated_view(session: Session, read_by: Any) -> None:
    late = session["late"]
    assert sorted(read_by(late)) == CURRENT
    assert sorted(read_by(late.at(1))) == sorted(read_by(late.at("monday"))) == FIRST
    assert sorted(read_by(session["flights"])) == sorted([*CURRENT, ("UA", 3)])
    assert sorted(read_by(late.filter("delay > 80"))) == [("UA", 90)]


def test_missing_hvplot_is_reported_with_its_installation(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hvplot", None)
    for each in (session["late"], session["late"].at(1)):
        assert not hasattr(each, "hvplot")
        with pytest.raises(MisuseError) as raised:
            _ = each.hvplot
        assert "pip install hvplot" in "".join(raised.value.__notes__)


def test_query_of_a_library_reads_the_current_rows(session: Session) -> None:
    late = session["late"]  # duckdb finds it by its name
    assert duckdb.sql("select count(*) from late").fetchall() == [(4,)]
    session["flights"].insert([("DL", 99)])
    session.commit()
    assert duckdb.sql("select count(*), count(*) filter (delay > 80) from late").fetchall() == [
        (5, 2)
    ]
    assert late.count() == 5


def test_schema_is_read_without_rows(session: Session) -> None:
    session["flights"].insert([("DL", 99)])  # pending, so reading rows raises
    assert pa.schema(session["late"]) == pa.schema(
        [("carrier", pa.string()), ("delay", pa.int32())]
    )
    with pytest.raises(StageError, match="depends on input 'flights'"):
        pa.table(session["late"])


def test_rows_of_one_session_are_inserted_into_another(session: Session, tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "other") as other:
        copied = other.input("copied", session["late"])
        assert copied.insert(session["late"].at(1)) == 2
        other.commit()
        assert [tuple(row) for row in copied.rows()] == FIRST


def test_dated_view_is_read_like_a_collection(session: Session) -> None:
    dated = session["late"].at(-1)
    session["flights"].insert([("DL", 99)])
    assert session.commit() == 3
    assert (dated.epoch, dated.name, len(dated), bool(dated)) == (1, "late", 2, True)
    assert [tuple(row) for row in dated.rows()] == FIRST
    assert [tuple(row) for row in dated.rows(limit=1)] == FIRST[:1]
    assert dated.to_pandas().shape == (2, 2)
    assert repr(dated) == "<late at epoch 1: carrier string, delay int>"
    with pytest.raises(TimeError, match="epoch 9 is not readable"):
        session["late"].at(9)


def test_dated_view_of_an_undone_epoch_raises(session: Session) -> None:
    retained, undone = session["late"].at(1), session["late"].at(2)
    session.rewind(to=1)
    session["flights"].insert([("DL", 99)])
    assert session.commit() == 2
    assert sorted(by_polars(retained)) == FIRST
    with pytest.raises(TimeError, match="epoch 2 was undone by a rewind"):
        by_polars(undone)


def test_dated_view_is_an_operand_with_the_rows_of_its_epoch(session: Session) -> None:
    both = session["late"].concat(session["late"].at(1))
    assert both.count() == session["late"].count() + session["late"].at(1).count()


def test_stream_has_at_most_the_collectable_rows(session: Session) -> None:
    session.collect_rows = 3
    with pytest.raises(StageError, match=r"more than session\.collect_rows = 3"):
        by_polars(session["late"])


def test_displayed_table_is_a_stream_of_texts() -> None:
    table = Table("", ["stage", "", ""], [["late", None, "4"]], types=["string"] * 3)
    assert pl.DataFrame(table).to_dicts() == [{"stage": "late", "": None, "_": "4"}]


def test_copies_beyond_memory_are_refused_before_they_are_made(tmp_path: Path) -> None:
    """A row with a large count takes bytes in a log, and terabytes as rows of a table."""
    with nosync_nb.open(tmp_path / "log") as session:
        texts = session.input("texts", "k int, t string, parts array<string>")
        copies = session.input("copies", "k int")
        session.stage("many", texts.join(copies, on="k").join(copies, on="k"))
        texts.insert([(1, "x" * (1 << 20), ["y" * (1 << 20)]), (2, "few", [])])
        copies.insert([(1,)] * 2000 + [(2,)])
        session.commit()
        many = session["many"]
        assert many.count() == 2000**2 + 1
        before = pa.total_allocated_bytes()
        for read in (
            many.to_arrow,
            many.to_pandas,
            lambda: pa.table(many),
            lambda: many.at(1).to_arrow(),
        ):
            with pytest.raises(OutOfMemoryError, match="could not be read"):
                read()
        assert pa.total_allocated_bytes() - before < 1 << 24
        assert [row.t for row in many.filter("k = 2").rows()] == ["few"]
        assert many.head(1)[0].k == 1
