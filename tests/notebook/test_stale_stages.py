"""Stale stages in a notebook: shown with their last rows and a mark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from jupyter.shell import Notebook, Shown

import nosync
from nosync_nb import TimeError
from nosync_widgets import overview_poller
from nosync_widgets.overview_poller import OverviewPoller
from nosync_widgets.views.graph_view import FrontierView
from nosync_widgets.views.grid import GridRequest, GridView
from nosync_widgets.views.layers_view import LayersView
from nosync_widgets.views.panel import ListView
from nosync_widgets.views.time_slider import TravelView

CELLS = [
    'flights = nosync.input("flights", "carrier string, delay int")',
    'flights.insert([("AA", 10), ("AA", 30), ("UA", 5)])',
    '%%dd --replay 0\nbig = flights.filter("delay > 5")\n'
    'per = big.group_by("carrier").agg(worst="max(delay)")\nover = per.filter("worst > 0")',
]
RENAME = '%%dd\nbig = flights.select("carrier", "delay as late").filter("late > 5")'
"""Renames a column that `per` reads."""

AGAIN = '%%dd\nbig = flights.filter("delay > 5")'
COMMIT = 'flights.insert([("DL", 99)])'
WHY = "stale: "
WHEN = ["before the next commit", "after it"]
YELLOW = "background:#fff3c4"


@pytest.fixture
def notebook(empty: Notebook, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    monkeypatch.setattr(overview_poller, "LOOK_S", 3600)
    for source in CELLS:
        empty.ok(source)
    return empty


def make_stale(notebook: Notebook, when: str) -> None:
    notebook.ok(RENAME)
    if when == WHEN[1]:
        notebook.ok(COMMIT)
        notebook.ok(COMMIT)


@pytest.fixture(params=WHEN)
def stale(notebook: Notebook, request: pytest.FixtureRequest) -> Notebook:
    make_stale(notebook, request.param)
    return notebook


@pytest.fixture
def pulse(stale: Notebook) -> Iterator[OverviewPoller]:
    """A poller that polls only on `refresh`."""
    pulse = OverviewPoller(nosync.session())
    yield pulse
    pulse.close()


LOOKS = [
    "per", "over", "%dd show per", "%dd show over", "%dd show per --at 1", "%dd diff per",
    "%dd travel per", "%dd travel per over", "%dd travel big per", "%dd status", "%dd graph",
    "display(per)", "%config NoSync.show = 'rows'\nper", 'per.filter("worst > 0")',
    'per.join(flights, on="carrier")', 'nosync.session()["per"]', "per, over",
]  # fmt: skip


def _all(shown: Shown) -> tuple[str, str]:
    """The text and the HTML of a cell and of its value."""
    html = getattr(shown.value, "html", str)
    return f"{shown.text}\n{shown.value!r}", f"{shown.html}\n{html()}"


@pytest.mark.parametrize("source", LOOKS)
def test_display_of_stale_stage_shows_last_rows_and_mark(stale: Notebook, source: str) -> None:
    lines = source.splitlines() if "%config" in source else [source]
    for line in lines:
        shown = stale.ok(line)
    text, html = _all(shown)
    assert (WHY if source != "%dd graph" else "stale, 1 row") in text
    assert "Error" not in text + html
    assert "cannot be read" not in text + html
    if source not in ("%dd graph", "%dd status", "per, over"):
        assert "AA" in text


@pytest.mark.parametrize("source", ["per", "%dd show per", "%dd travel per"])
def test_mark_is_yellow_in_static_table(stale: Notebook, source: str) -> None:
    shown = stale.ok(source)
    assert YELLOW in _all(shown)[1] + _bundle(stale, shown)


def _bundle(notebook: Notebook, shown: Shown) -> str:
    formatter: Any = notebook.shell.display_formatter
    return str(formatter.format(shown.value)[0].get("text/html", ""))


def test_status_counts_last_rows_of_stale_stage(stale: Notebook) -> None:
    status = stale.ok("%dd status").value
    rows = {row[0]: row for row in status.rows}
    assert rows["per"][2] == "1"
    assert rows["per"][-1].startswith(WHY)
    assert rows["over"][-1] == "stale: it reads 'per', which is stale"


def test_text_of_stale_stage_has_mark(stale: Notebook) -> None:
    assert repr(stale.names["per"]).startswith("<per: carrier string, worst int; stale: ")
    over = stale.names["per"].filter("worst > 1")
    assert repr(over).endswith("; stale: it reads 'per', which is stale>")
    assert "stale" not in repr(stale.names["flights"])


def test_program_that_reads_stale_stage_gets_error(notebook: Notebook) -> None:
    """A program would take the last rows for current ones."""
    make_stale(notebook, WHEN[1])
    with pytest.raises(TimeError, match="'per' is stale since epoch 1"):
        notebook.names["per"].rows()
    assert [tuple(row) for row in notebook.names["per"].rows(at=1)] == [("AA", 30)]


def test_grid_sorts_filters_and_pages_stale_stage(stale: Notebook) -> None:
    grid = GridView(nosync.session(), "per")
    assert grid.page["stale"].startswith(WHY)
    assert grid.page["rows"] == [["AA", "30"]]
    assert grid.page["epoch"] == 1
    grid.show(GridRequest(order=((1, True),), where="worst > 20"), asked=1)
    assert "error" not in grid.page
    assert grid.page["rows"] == [["AA", "30"]]
    assert grid.page["stale"].startswith(WHY)
    text, html = grid.static()
    assert WHY in text
    assert YELLOW in html
    assert WHY in grid.title()
    grid.close()


def test_slider_shows_stale_stage_alone_and_beside_live_one(stale: Notebook) -> None:
    alone = TravelView(nosync.session(), "per")
    assert alone.epoch == 1
    beside = TravelView(nosync.session(), "flights", beside=["per", "over"])
    assert beside.epoch == nosync.session().now
    for page in (alone.page, *beside.page["beside"]):
        assert page["stale"].startswith(WHY)
        assert page["rows"] == [["AA", "30"]]
        assert page["epoch"] == 1
        assert "error" not in page
    assert beside.page["stale"] == ""
    for view in (alone, beside):
        text, html = view.static()
        assert WHY in text
        assert YELLOW in html
        view.close()


def test_panel_views_show_stale_stage(stale: Notebook, pulse: OverviewPoller) -> None:
    listing = ListView(pulse)
    graph = FrontierView(pulse)
    layers = LayersView(pulse, "per")
    line = next(each for each in listing.state["stages"] if each["name"] == "per")
    assert (line["stale"], line["bad"], line["cells"][2]) == (True, False, "1")
    assert line["cells"][-1].startswith(WHY)
    node = next(each for each in graph.state["nodes"] if each["name"] == "per")
    assert node["stale"]
    assert node["why"].startswith(WHY)
    graph.select("per")
    assert graph.page["error"] == ""
    assert graph.page["stale"].startswith(WHY)
    assert (graph.page["epoch"], graph.page["rows"]) == (1, [["AA", "30"]])
    assert layers.state["why"] == ""
    assert layers.state["stale"].startswith(WHY)
    for view in (listing, graph, layers):
        view.close()


def test_open_views_show_mark_while_stage_is_stale(notebook: Notebook) -> None:
    session = nosync.session()
    grid, frozen = GridView(session, "per"), GridView(session, "per")
    frozen.freeze(on=True)
    slider, beside = TravelView(session, "per"), TravelView(session, "flights", beside=["per"])
    views = (grid, frozen, slider, beside)

    def marks() -> list[str]:
        for view in views:
            view.refresh()
        pages = [grid.page, frozen.page, slider.page, *beside.page["beside"]]
        assert not any("error" in page for page in pages)
        return [page.get("stale", "") for page in pages]

    assert marks() == [""] * 4
    notebook.ok(RENAME)
    assert all(mark.startswith(WHY) for mark in marks())
    notebook.ok(COMMIT)
    assert all(mark.startswith(WHY) for mark in marks())
    notebook.ok(AGAIN)
    assert marks() == [""] * 4
    assert grid.page["rows"] == [["AA", "30"], ["DL", "99"]]
    for view in views:
        view.close()


def test_stale_stage_of_another_session_has_mark(notebook: Notebook, tmp_path: Path) -> None:
    notebook.ok('other = nosync.open("other")\nf = other.input("f", "id int, n int")')
    notebook.ok('f.insert([(1, 2)])\nother.commit()\nbig = other.stage("big", f.filter("n > 0"))')
    notebook.ok('mine = other.stage("mine", big.filter("n > 1"))')
    notebook.ok('other.stage("big", f.select("id"))')
    for _ in WHEN:
        text, _ = _all(notebook.ok("mine"))
        assert "stale: " in text
        assert "Error" not in text
        assert "mine, as of epoch 1" in notebook.ok("mine").text
        notebook.ok("f.insert([(5, 6)])\nother.commit()")
    notebook.ok("other.close()")


def test_stale_stage_without_rows_has_mark(
    empty: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage was kept in memory only, and the kernel was restarted."""
    monkeypatch.setattr(overview_poller, "LOOK_S", 3600)
    for source in (*CELLS, "%%dd --persist memory\npart = big.filter('delay > 9')", RENAME):
        empty.ok(source)
    empty.close()
    with closing(Notebook()) as again:
        again.ok("%load_ext nosync")
        session = nosync.session()
        assert "part" in session.stale
        for source in ("part", "%dd show part", "%dd travel part", "%dd status", "%dd graph"):
            text, html = _all(again.ok(source))
            assert "stale" in text
            assert "Error" not in text + html
        grid, slider = GridView(session, "part"), TravelView(session, "part")
        pulse = OverviewPoller(session)
        graph = FrontierView(pulse)
        graph.select("part")
        for page in (grid.page, slider.page, graph.page):
            assert page["stale"].startswith("stale: ")
            assert page["rows"] == []
            assert not page.get("error")
        for view in (grid, slider, graph, pulse):
            view.close()
