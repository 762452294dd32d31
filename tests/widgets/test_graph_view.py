"""The graph of stages: progress, costs of failures, rows of one stage."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from internals import asked, drain_background

import nosync_nb
from nosync_widgets.overview_poller import OverviewPoller
from nosync_widgets.views.graph_view import FrontierView, overview_table

STATIC = files("nosync_widgets") / "static"
SCRIPT = Path(__file__).parents[1] / "support" / "jupyter" / "frontier.test.mjs"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    session = nosync_nb.open(str(tmp_path / "log"))
    flights = session.input("flights", "carrier string, delay int")
    session.stage("late", flights.filter("delay > 4"))
    session.stage("counts", session["late"].group_by("carrier").agg(n="count(*)"))
    for rows in [[("AA", 1), ("UA", 5)], [("UA", 9)]]:
        flights.insert(rows)
        session.commit()
    session.sync()
    yield session
    session.close()


@pytest.fixture
def view(pulse: OverviewPoller) -> Iterator[FrontierView]:
    view = FrontierView(pulse)
    yield view
    view.close()


def node(view: FrontierView, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in view.state["nodes"] if each["name"] == name)
    return found


def test_node_shows_columns_rows_executor_and_progress(view: FrontierView, session: Any) -> None:
    assert [each["name"] for each in view.state["nodes"]] == ["flights", "late", "counts"]
    flights, late = node(view, "flights"), node(view, "late")
    assert (flights["kind"], flights["reads"], flights["ran"]) == ("input", [], "changed by you")
    assert (late["kind"], late["reads"], late["version"]) == ("stage", ["flights"], 1)
    assert late["detail"].startswith("2 rows · ")
    assert late["ran"].endswith(" · in process")
    assert late["levels"] == [["memory", 2], ["disk", 2]]
    assert late["columns"][1] == {"name": "delay", "type": "int", "right": True}
    assert late["after"] == [["kernel", 2], ["power", 2], ["disk", 0]]
    assert view.title() == "graph of epoch 2: 1 input, 2 stages"


def test_costs_of_failures_are_in_words(view: FrontierView, session: Any, tmp_path: Path) -> None:
    told = {each["what"]: each["text"] for each in view.state["costs"]}
    assert told["the kernel dies"] == "nothing would be lost"
    assert told["the disk is lost"].startswith("back to epoch 0: all 2 epochs would be lost, since")
    urls = [f"file://{tmp_path}/copy{number}" for number in (1, 2)]
    with nosync_nb.open(tmp_path / "other", replicas=urls) as other:
        numbers = other.input("numbers", "x int")
        numbers.insert([(1,)])
        other.commit()
        other.sync("replicas")
        costs = FrontierView(OverviewPoller(other)).state["costs"]
        assert [each["what"] for each in costs[2:]] == [
            "the disk is lost",
            "the disk and 1 replica are lost",
        ]
        assert {each["text"] for each in costs[:3]} == {"nothing would be lost"}


def test_single_lost_epoch_is_not_called_all(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "one") as session:
        session.input("numbers", "x int").insert([(1,)])
        session.commit()
        view = FrontierView(OverviewPoller(session))
        told = {each["what"]: each["text"] for each in view.state["costs"]}
        assert told["the disk is lost"].startswith("back to epoch 0: 1 epoch would be lost, since")
        view.close()


def test_selected_stage_shows_its_current_rows(
    view: FrontierView, pulse: OverviewPoller, session: Any
) -> None:
    assert view.page == {}
    asked(view, {"select": "counts"})
    assert view.selected == view.state["selected"] == "counts"
    assert (view.page["stage"], view.page["epoch"], view.page["rows"]) == (
        "counts",
        2,
        [["UA", "2"]],
    )
    session["flights"].insert([("B6", 50)])
    session.commit()
    pulse.refresh()
    assert (view.page["epoch"], view.page["rows"]) == (3, [["B6", "1"], ["UA", "2"]])
    asked(view, {"select": ""})
    assert view.page == {}


def test_rows_are_few_and_read_once_per_epoch(
    view: FrontierView, pulse: OverviewPoller, session: Any
) -> None:
    session["flights"].insert([(f"{number:05}", number) for number in range(1000)])
    session.commit()
    pulse.refresh()
    view.select("flights")
    assert (len(view.page["rows"]), view.page["more"]) == (20, True)
    before = view.page["rows"]
    view.show()
    assert view.page["rows"] is before
    drain_background(session)


def test_rows_after_rewind_are_those_of_new_epoch(
    view: FrontierView, pulse: OverviewPoller, session: Any
) -> None:
    view.select("late")
    assert view.page["rows"] == [["UA", "5"], ["UA", "9"]]
    session.rewind(to=1)
    session["flights"].insert([("DL", 70)])
    assert session.commit() == 2
    pulse.refresh()
    assert (view.page["epoch"], view.page["rows"]) == (2, [["DL", "70"], ["UA", "5"]])


def test_rows_carry_their_epoch(view: FrontierView, pulse: OverviewPoller, session: Any) -> None:
    """The epoch may advance between two polls, as it does while a cell commits."""
    view.select("late")
    session["flights"].insert([("DL", 70)])
    session.commit()
    view.show()
    assert (view.state["epoch"], view.page["epoch"]) == (2, 3)
    assert view.page["rows"] == [["DL", "70"], ["UA", "5"], ["UA", "9"]]


def test_stopped_stage_shows_reason_and_last_rows(
    view: FrontierView, pulse: OverviewPoller, session: Any
) -> None:
    session.stage("late", session["flights"].filter("delay > 4").select("delay"))
    session["flights"].insert([("B6", 50)])
    session.commit()
    pulse.refresh()
    view.select("counts")
    assert "carrier" in node(view, "counts")["why"]
    assert view.page["rows"] or view.page["error"]
    assert node(view, "late")["version"] == 2


def test_dropped_stage_is_deselected(
    view: FrontierView, pulse: OverviewPoller, session: Any
) -> None:
    view.select("counts")
    session.drop("counts")
    pulse.refresh()
    assert (view.selected, view.page) == ("", {})
    assert [each["name"] for each in view.state["nodes"]] == ["flights", "late"]
    asked(view, {"select": "nobody"})
    assert view.selected == ""


def test_graph_follows_into_branch(view: FrontierView, pulse: OverviewPoller, session: Any) -> None:
    view.select("late")
    with session.branch("what_if", at=1) as branch:
        pulse.move(branch, "what_if")
        assert (view.state["name"], view.state["epoch"]) == ("what_if", 1)
        assert view.page["rows"] == [["UA", "5"]]
        branch["flights"].insert([("DL", 7)])
        branch.commit()
        pulse.refresh()
        assert view.page["rows"] == [["DL", "7"], ["UA", "5"]]
        pulse.move(session, None)
        assert view.page["rows"] == [["UA", "5"], ["UA", "9"]]


def test_names_and_values_are_text(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        evil = session.input("evil", "`<i>` string")
        evil.insert([("<script>\u202e",)])
        session.commit()
        view = FrontierView(OverviewPoller(session))
        view.select("evil")
        assert "\u202e" not in view.page["rows"][0][0]
        text, html = view.static()
        assert view.state["nodes"][0]["columns"][0]["name"] == "<i>"
        assert text == "evil   (1 row · 66 B)"
        assert "<i>" not in html
        view.close()


def test_static_graph_is_lines_and_table(view: FrontierView) -> None:
    data, _ = view._repr_mimebundle_()
    assert "counts <- late   (1 row" in data["text/plain"]
    assert "inputs and stages at epoch 2" in data["text/html"]
    assert "if the kernel dies: nothing would be lost" in data["text/html"]


def test_static_table_has_schema_and_state(session: Any) -> None:
    text = overview_table(session.info.overview()).text()
    assert "carrier string, delay int" in text
    assert "live" in text


def test_close_frees_view(view: FrontierView, pulse: OverviewPoller, session: Any) -> None:
    view.select("late")
    view.close()
    view.close()
    session["flights"].insert([("DL", 7)])
    session.commit()
    pulse.refresh()
    assert view.page["epoch"] == 2
