"""The time slider: over a real session, without a front end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from internals import asked, services_of

import nosync_nb
from nosync_widgets import throttle
from nosync_widgets.tables import collection_table
from nosync_widgets.views.time_slider import RowCountSeries, Timeline, TravelView, past_of


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    session = nosync_nb.open(str(tmp_path / "log"))
    flights = session.input("flights", "carrier string, delay int")
    session.stage("worst", flights.group_by("carrier").agg(worst="max(delay)"))
    for number, rows in enumerate([[("AA", 1), ("UA", 5)], [("UA", 9)], [("B6", None)]], 1):
        with session.epoch(label=f"day {number}"):
            flights.insert(rows)
    yield session
    session.close()


@pytest.fixture
def view(session: Any) -> Iterator[TravelView]:
    view = TravelView(session, "worst")
    yield view
    view.close()


def test_slider_opens_at_latest_epoch(view: TravelView) -> None:
    assert view.epoch == 3
    assert view.page["rows"] == [["AA", "1"], ["B6", None], ["UA", "9"]]
    assert view.page["changes"] == [[1, ["B6", None]]]
    assert view.page["label"] == "day 3"


def test_travel_reads_epoch_and_its_changes(view: TravelView) -> None:
    view.travel(2)
    assert view.page["rows"] == [["AA", "1"], ["UA", "9"]]
    assert view.page["by"] == ["carrier"]
    assert view.page["changes"] == [[0, ["UA", ["5", "9"]], 1]]
    assert view.page["fresh"] == ["", "→"]
    assert (view.page["added"], view.page["removed"], view.page["before"]) == (1, 1, 1)
    assert view.title() == "worst at epoch 2 (day 2): +1 −1 since epoch 1"


def test_front_end_travels_by_message(view: TravelView) -> None:
    asked(view, {"epoch": 1})
    assert view.epoch == view.page["asked"] == 1
    assert view.page["rows"] == [["AA", "1"], ["UA", "5"]]


def test_every_message_is_answered_by_new_page(view: TravelView) -> None:
    before = view.page
    asked(view, {"epoch": 3})
    assert view.page != before
    asked(view, {"epoch": 99})
    assert (view.epoch, view.page["asked"]) == (3, 99)


def test_new_epochs_do_not_move_slider(view: TravelView, session: Any) -> None:
    view.travel(1)
    session["flights"].insert([("DL", 7)])
    session.commit()
    view.refresh()
    assert view.epoch == 1
    assert view.steps[-1][1] == 4
    view.travel()
    assert ["DL", "7"] in view.page["rows"]


def test_commit_asks_open_views_to_refresh(
    view: TravelView, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "REST_S", 3600)
    for delay in (7, 8):
        session["flights"].insert([("DL", delay)])
        session.commit()
        assert view.pace.waits
    assert Timeline(view.steps).latest == 3, "many commits in a row are one message, later"
    view.pace.run()
    assert Timeline(view.steps).latest == 5
    assert not view.pace.waits


def test_reloaded_view_shows_new_version(view: TravelView, session: Any) -> None:
    session.stage("worst", session["flights"].filter("false"))
    view.refresh(reload=True)
    assert view.page["rows"] == []


def test_error_is_shown_in_view(view: TravelView, session: Any) -> None:
    session.drop("worst")
    view.travel(1)
    assert "worst" in view.page["error"]
    assert "worst" in view.static()[0]


def test_view_after_rewind_shows_rows_of_new_epochs(view: TravelView, session: Any) -> None:
    view.travel(3)
    session.rewind(to=1)
    session["flights"].insert([("DL", 70)])
    session.commit()
    session["flights"].insert([("DL", 80)])
    assert session.commit() == 3
    view.refresh()
    assert view.epoch == 3
    assert view.page["rows"] == [["AA", "1"], ["DL", "80"], ["UA", "5"]]
    session.rewind(to=2)
    view.refresh()
    assert view.epoch == 2
    assert view.page["rows"] == [["AA", "1"], ["DL", "70"], ["UA", "5"]]


def test_view_on_branch_follows_its_commits_and_names_it(
    view: TravelView, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "REST_S", 3600)
    with session.branch("what_if", at=2) as branch:
        view.move(branch, "what_if")
        assert view.epoch == 2
        assert view.title() == "what_if/worst at epoch 2 (day 2): +1 −1 since epoch 1"
        session["flights"].insert([("ZZ", 1)])
        session.commit()
        assert not view.pace.waits
        branch["flights"].insert([("DL", 70)])
        branch.commit()
        assert view.pace.waits
        view.refresh()
        assert view.epoch == 3, "it stood at the latest"
        assert view.page["rows"] == [["AA", "1"], ["DL", "70"], ["UA", "9"]]
        view.travel(1)
        view.move(session, None)
        assert view.epoch == 1
        assert view.page["name"] == "worst"


def test_static_slider_is_table(view: TravelView) -> None:
    data, _ = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<table>" in data["text/html"]
    assert "+  B6        null" in data["text/plain"]


def test_top_is_in_its_order_at_each_epoch(session: Any) -> None:
    """In the widget and in its static copy."""
    session.stage("most", session["flights"].group_by().top(2, by="delay desc"))
    each = session["flights"].group_by("carrier").top(1, by="delay desc")
    session.define({"each": each}, replay=0)
    view = TravelView(session, "most", beside=["each"], limit=2)
    assert view.page["rows"] == [["UA", "9"]]
    assert (view.page["ordered"], view.page["more"]) == (" by delay desc", True)
    lines = view.static()[0].splitlines()
    assert lines[0].endswith(" by delay desc")
    assert "the first 1 row" in lines
    session["flights"].insert([("ZZ", 99)])
    session.commit()
    view.travel()
    assert view.page["rows"] == [["ZZ", "99"]]
    view.travel(2)
    beside = view.page["beside"][0]
    assert (beside["ordered"], beside["rows"]) == (" by carrier, delay desc", [["AA", "1"]])
    view.close()


def test_static_view_names_missing_past(session: Any) -> None:
    session.stage("late", session["flights"].filter("delay > 3"))
    session.define({"old": session["flights"].filter("delay > 3")}, replay=0)
    for stage, beside in (("late", "old"), ("old", "late")):
        view = TravelView(session, stage, beside=[beside])
        for shown in view.static():
            assert shown.count("late begins at epoch 3, when it was defined") == 1
            assert "%%dd --replay 0" in shown
            assert "old begins" not in shown
        view.close()


def test_threads_may_travel_while_epochs_commit(view: TravelView, session: Any) -> None:
    def move() -> None:
        for number in range(60):
            view.travel(number % 3 + 1)

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(move) for _ in range(3)]
        for number in range(20):
            session["flights"].insert([("DL", number)])
            session.commit()
        for each in running:
            each.result()
    assert "error" not in view.page
    assert view.page["rows"]


def test_page_is_bounded(session: Any) -> None:
    session["flights"].insert([(f"{number:05}", number) for number in range(1000)])
    session.commit()
    view = TravelView(session, "flights", limit=50)
    assert len(view.page["rows"]) == 50
    assert len(view.page["changes"]) == 50
    assert view.page["more"]
    assert view.page["added"] == 1000
    view.close()


def test_closed_views_receive_no_commit_and_free_layout(session: Any) -> None:
    before = services_of(session).subscriptions.subscribers
    views = [TravelView(session, "worst") for _ in range(3)]
    assert services_of(session).subscriptions.subscribers == before + 3
    for view in views:
        view.close()
        view.close()
    assert services_of(session).subscriptions.subscribers == before
    session["flights"].insert([("DL", 7)])
    session.commit()
    assert not any(view.pace.waits for view in views)


@pytest.mark.parametrize(("limit", "said"), [(2, True), (3, False), (4, False)])
def test_rows_shown_completely_are_not_called_first(session: Any, limit: int, said: bool) -> None:
    view = TravelView(session, "worst", at=3, limit=limit)
    assert view.page["more"] is said
    assert len(view.page["rows"]) == min(limit, 3)
    for shown in (*view.static(), collection_table(session["worst"], limit=limit).text()):
        assert (f"the first {limit}" in shown) is said
    view.close()


@pytest.mark.parametrize(("limit", "said"), [(1, True), (2, False), (3, False)])
def test_changes_shown_completely_are_not_called_first(
    session: Any, limit: int, said: bool
) -> None:
    view = TravelView(session, "worst", at=1, limit=limit)
    assert view.page["changes_more"] is said
    view.close()


def test_slider_at_latest_epoch_follows_commits(view: TravelView, session: Any) -> None:
    session["flights"].insert([("AA", 70)])
    session.commit()
    view.refresh()
    assert view.epoch == 4
    assert view.page["changes"] == [[0, ["AA", ["1", "70"]], 1]]
    asked(view, {"epoch": 3})
    session["flights"].insert([("AA", 80)])
    session.commit()
    view.refresh()
    assert view.epoch == 3


def test_rows_without_key_are_added_and_removed_by_copies(session: Any) -> None:
    flights = session["flights"]
    with session.epoch():
        flights.insert([("DL", 7)] * 3)
        flights.remove([("UA", 5)])
    view = TravelView(session, "flights")
    assert view.page["by"] == []
    assert view.page["changes"] == [[3, ["DL", "7"]], [-1, ["UA", "5"]]]
    assert view.page["fresh"] == ["", "", "+", "+", "+", ""]
    view.close()


def test_new_rows_are_marked_in_large_load_and_rows_with_lists(session: Any) -> None:
    wide = session.input("wide", "number int, tags array<string>")
    wide.insert([(number, ["a"]) for number in range(0, 4000, 2)])
    session.commit()
    wide.insert([(number, ["a"]) for number in range(1, 4000, 2)])
    session.commit()
    view = TravelView(session, "wide", limit=10)
    assert view.page["fresh"] == ["", "+"] * 5
    assert view.page["changes"][0] == [1, ["1", view.page["rows"][1][1]]]
    assert view.page["changes_more"]
    view.close()


def test_large_update_shows_first_pairs(session: Any) -> None:
    stock = session.input("stock", "item int, left int", key="item")
    stock.upsert([(item, item) for item in range(30_000)])
    session.commit()
    stock.upsert([(item, -item) for item in range(30_000)])
    session.commit()
    view = TravelView(session, "stock", limit=3)
    assert view.page["changes"] == [
        [0, [str(item), [str(item), str(-item)]], 1] for item in (1, 2, 3)
    ]
    assert (view.page["added"], view.page["removed"]) == (29_999, 29_999)
    view.close()


def test_course_counts_rows_at_each_epoch(view: TravelView, session: Any) -> None:
    assert view.course == {}, "nobody asked for it"
    asked(view, {"course": -1})
    worst = session["worst"]
    expected = [[epoch, worst.count(epoch)] for epoch in range(4)]
    rest = {"every": 1, "of": "rows", "columns": [[1, "worst"]], "marks": [], "past": ""}
    assert view.course == {"points": expected, **rest}
    session.branch("what_if", at=2).close()
    session.stage("worst", session["flights"].filter("delay > 5"))
    view.refresh(reload=True)
    assert [epoch for epoch, _ in view.course["marks"]] == [2, 3]
    assert view.course["marks"][0][1] == "branch what_if forked"
    assert "version 1 of worst ended" in view.course["marks"][1][1]


def test_long_course_is_coarse_and_counts_each_epoch_once(session: Any) -> None:
    flights, course = session["flights"], RowCountSeries()
    for number in range(450):
        flights.insert([("AA", number)])
        session.commit()
    timeline = Timeline(flights.history())
    counted = course.points(flights, timeline)
    points = counted["points"]
    assert len(points) <= 200
    assert counted["every"] == 4
    assert [epoch for epoch, _ in points][:3] == [0, 4, 8]
    assert points[-1] == [session.now, flights.count()]
    assert all(rows == flights.count(epoch) for epoch, rows in points[::40])
    session.drop("worst")
    assert course.points(flights, timeline) == counted


def test_stage_defined_late_names_command_for_its_past(session: Any) -> None:
    session.stage("late", session["flights"].filter("delay > 3"))
    view = TravelView(session, "late")
    asked(view, {"course": -1})
    assert view.course["past"].startswith("late begins at epoch 3")
    session.define({"late": session["flights"].filter("delay > 3")}, replay=0)
    view.refresh(reload=True)
    assert view.course["past"] == ""
    assert len(view.course["points"]) == 4
    view.close()


def test_stage_without_missing_past_is_offered_no_command(session: Any) -> None:
    assert session.now == 3
    seats = session.input("seats", "n int")
    for n in range(3):
        seats.insert([(n,)])
        session.commit()
        session.stage(f"after_{n}", seats.filter("n >= 0"))
    session.define({"again": seats.filter("n > 0")}, replay=3)
    offered = {name: past_of(session, name) for name in session.stages}
    assert {name for name, past in offered.items() if past} == {"after_1", "after_2"}
    assert "%%dd --replay 3" in offered["after_1"], "from where it can be replayed"
    joined = session["flights"].join(seats, on={"delay": "n"})
    session.stage("joined", joined)
    assert past_of(session, "joined").startswith("joined begins at epoch 6")
    session.define({"joined": joined}, replay=3)
    assert past_of(session, "joined") == "", "from where all that it reads begins"


def test_course_sums_column_at_each_epoch(view: TravelView, session: Any) -> None:
    with session.epoch():
        session["flights"].remove([("AA", 1), ("UA", 9)])
    view.refresh()
    asked(view, {"course": 1})
    assert view.course["of"] == "sum of worst"
    expected = [
        [epoch, sum(row.worst or 0 for row in session["worst"].rows(at=epoch))]
        for epoch in range(5)
    ]
    assert expected[-1][1] < expected[-2][1]
    assert view.course["points"] == expected
    asked(view, {"course": -1})
    assert view.course["of"] == "rows"


@pytest.mark.parametrize(
    ("kind", "values", "total"),
    [
        ("double", [1.5, None, float("nan"), float("inf"), 2.0], 3.5),
        ("bigint", [2**63 - 1] * 3 + [None], 3 * (2**63 - 1)),
        ("decimal(10,2)", [Decimal("1.25"), Decimal("-3.50")], -2.25),
    ],
)
def test_sums_skip_null_and_nan_and_fit_large_numbers(
    session: Any, kind: str, values: list[Any], total: float
) -> None:
    numbers = session.input("numbers", f"name string, value {kind}")
    numbers.insert([("a", value) for value in values])
    session.commit()
    view = TravelView(session, "numbers")
    asked(view, {"course": 1})
    assert view.course["points"][-1] == [session.now, total]
    view.close()


def test_slider_moves_several_stages(session: Any) -> None:
    session.stage("late", session["flights"].filter("delay > 5"))
    view = TravelView(session, "worst", beside=["flights", "late", "gone"], limit=40)
    view.travel(2)
    flights, late, gone = view.page["beside"]
    assert (flights["name"], flights["epoch"], len(flights["rows"])) == ("flights", 2, 3)
    assert flights["changes"] == [[1, ["UA", "9"]]]
    assert "epoch 2" in late["error"], "it begins at epoch 3"
    assert "gone" in gone["error"]
    text, html = view.static()
    assert "worst at epoch 2" in text
    assert "flights at epoch 2" in text
    assert html.count("<table>") == 2
    assert view.title().endswith("with flights, late, gone")
    session["flights"].insert([(f"{n:03}", 7) for n in range(300)])
    session.commit()
    view.travel()
    assert [len(each["rows"]) for each in (view.page, *view.page["beside"][:2])] == [10] * 3
    view.close()
