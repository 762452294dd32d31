"""Formats of views: figures, tables, timelines, pictures, reports."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import nosync_widgets
from nosync_nb import RecoveryReport
from nosync_widgets import formats
from nosync_widgets.recovery_report import report_html
from nosync_widgets.tables import Table
from nosync_widgets.views.graph_view import GraphPicture
from nosync_widgets.views.time_slider import Timeline

SCRIPT = Path(__file__).parents[1] / "support" / "jupyter" / "travel.test.mjs"
STATIC = Path(nosync_widgets.__file__).parent / "static"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (None, None),
        (True, "true"),
        (3, "3"),
        (0.1, "0.1"),
        (2 / 3, "0.6667"),
        (1e300, "1e+300"),
        (float("nan"), "NaN"),
        (float("-inf"), "-inf"),
        (b"\x01\xff", "0x01ff"),
        ("x" * 200, "x" * 119 + "…"),
    ],
)
def test_values_are_short(item: object, expected: str | None) -> None:
    assert expected == formats.value(item)


def test_midnights_are_shown_as_dates() -> None:
    days = [datetime(2024, 2, 8, tzinfo=UTC), datetime(2024, 2, 9, tzinfo=UTC)]
    noon = datetime(2024, 2, 9, 12, 30, tzinfo=UTC)
    show = formats.like([(days[0], days[0], 1), (days[1], noon, None), (None, None, None)])
    assert show((days[0], days[0], None)) == ["2024-02-08", "2024-02-08 00:00:00+00:00", None]
    assert show((noon, noon, 1)) == [str(noon), str(noon), "1"]
    abroad = datetime(2024, 2, 8, tzinfo=timezone(timedelta(hours=2)))
    assert formats.like([(abroad,)])((abroad,)) == [str(abroad)]


def test_folded_view_says_how_to_open_it_again() -> None:
    summary = formats.folded("rows of <b>", "<table></table>").partition("</summary>")[0]
    assert "rows of &lt;b&gt;" in summary
    assert "run this cell again" in summary


def test_time_is_local_and_names_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        shown = formats.moment(datetime(2026, 1, 31, 18, tzinfo=UTC))
    time.tzset()
    assert shown == "2026-02-01 03:00:00 JST"


def test_figures_carry_their_units() -> None:
    assert [formats.seconds(s) for s in (0.00031, 0.042, 0.42, 1.3, 125)] == [
        "0.31 ms",
        "42.0 ms",
        "420 ms",
        "1.3 s",
        "2 min 5 s",
    ]
    assert [formats.size(812), formats.size(1_468_006)] == ["812 B", "1.4 MiB"]
    assert [formats.count(1, "row"), formats.count(336776, "row")] == ["1 row", "336,776 rows"]
    assert formats.moment(datetime(2025, 1, 1, tzinfo=UTC))[0] == "2"


def test_table_escapes_every_cell() -> None:
    table = Table("<b>", ["<i>"], [["<script>alert(1)</script>"], [None]], types=["string"])
    assert "<script>" not in table.html()
    assert "&lt;script&gt;" in table.html()
    assert "<caption" in table.html()
    assert 'scope="col"' in table.html()


def test_null_differs_from_text_null() -> None:
    html = Table("", ["x"], [[None], ["null"]]).html()
    assert html.count("null</em>") == 1
    assert html.count("null") == 2


def test_table_of_many_rows_scrolls_without_its_notes() -> None:
    def drawn(rows: int) -> str:
        return Table("t", ["n"], [["1"]] * rows, notes=["the first of them"]).html()

    assert "overflow" not in drawn(40)
    assert drawn(41).startswith('<div><div style="max-height:480px;overflow:auto"><table>')
    assert drawn(41).endswith("</table></div><div>the first of them</div></div>")


def test_numbers_are_right_aligned() -> None:
    text = Table("t", ["n", "s"], [["1", "a"], ["100", "b"]], types=["int", "string"]).text()
    assert text.splitlines() == ["t", "  n  s", "  1  a", "100  b"]


def test_timeline_has_no_gaps_between_positions() -> None:
    timeline = Timeline([(0, 0), (16, 16), (32, 32), range(40, 41), (43, 46), range(5, 5)])
    assert list(timeline) == [0, 16, 32, 40, 43, 44, 45, 46]
    assert [timeline.before(e) for e in timeline] == [None, 0, 16, 32, 40, 43, 44, 45]
    assert [timeline.nearest(e) for e in (-3, 15, 31, 42, 99)] == [0, 0, 16, 40, 46]
    assert len(timeline.steps) == 3
    with pytest.raises(IndexError):
        timeline[8]


def test_timeline_of_many_epochs_is_small() -> None:
    assert len(Timeline([(0, 100_000)])) == 100_001
    assert len(Timeline((e, e) for e in range(0, 1600, 16)).steps) == 1
    assert Timeline([]).latest is None
    assert Timeline([]).nearest(3) is None


def test_graph_is_drawn_or_written(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = GraphPicture({"a:b": (), "<c>": ("a:b",)}, inputs=["a:b"], details={"<c>": "2 rows"})
    assert picture.text().splitlines() == ["a:b", "<c> <- a:b   (2 rows)"]
    if shutil.which("dot"):
        svg = picture._repr_mimebundle_()["image/svg+xml"]
        assert svg.startswith("<svg")
        assert "&lt;c&gt;" in svg
    monkeypatch.setenv("PATH", "")
    assert {"text/plain"} == set(picture._repr_mimebundle_())


def test_recovery_report_is_table_of_text() -> None:
    report = RecoveryReport(fresh=False, resumed_at=1, not_restored={"<x>": "In[3] <x> = 1"})
    assert "recovered at epoch 1" in report_html(report)
    assert "&lt;x&gt;" in report_html(report)
    assert "success" in report_html(report)
    report.stages["slow"] = "stale"
    assert "warn" in report_html(report)
