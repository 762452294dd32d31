"""Live views: they follow a session, and show the layers of a stage."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import pytest
from internals import asked, drain_background, services_of

import nosync_nb
from nosync_widgets import overview_poller
from nosync_widgets.overview_poller import OverviewPoller
from nosync_widgets.views.graph_view import FrontierView
from nosync_widgets.views.layers_view import LayersView
from nosync_widgets.views.panel import ListView, Panel

STATIC = files("nosync_widgets") / "static"
SCRIPTS = Path(__file__).parents[1] / "support" / "jupyter"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    session = nosync_nb.open(str(tmp_path / "log"))
    flights = session.input("flights", "carrier string, delay int")
    session.stage("worst", flights.group_by("carrier").agg(worst="max(delay)"))
    for rows in [[("AA", 1), ("UA", 5)], [("UA", 9)]]:
        flights.insert(rows)
        session.commit()
    session.sync()
    yield session
    session.close()


@pytest.fixture
def view(pulse: OverviewPoller) -> Iterator[LayersView]:
    view = LayersView(pulse, "flights")
    yield view
    view.close()


def add_flights(session: Any, *rows: tuple[str, int]) -> int:
    session["flights"].insert(list(rows))
    return int(session.commit())


def test_view_adds_no_listener_to_commits(view: LayersView, session: Any) -> None:
    assert services_of(session).subscriptions.subscribers == 0
    assert not services_of(session).subscriptions.has_listeners
    add_flights(session, ("DL", 1))
    assert view.state["epoch"] == 2


def test_many_commits_are_published_once(pulse: OverviewPoller, session: Any) -> None:
    told = []
    pulse.subscribe(lambda: told.append(pulse.overview.epoch))
    for delay in range(20):
        add_flights(session, ("DL", delay))
    session.sync()
    drain_background(session)
    pulse.refresh()
    pulse.refresh()
    assert told == [22]


def test_poller_polls_while_subscribed(session: Any) -> None:
    pulse, told = OverviewPoller(session), threading.Event()
    leave = pulse.subscribe(lambda: told.set() if pulse.overview.epoch == 3 else None)
    add_flights(session, ("DL", 1))
    assert told.wait(60)
    leave()
    leave()
    told.clear()
    leave = pulse.subscribe(lambda: told.set() if pulse.overview.epoch == 4 else None)
    add_flights(session, ("DL", 1))
    assert told.wait(60), "it looks again for who comes later"
    leave()


def test_layers_are_shown_with_their_places(view: LayersView) -> None:
    state = view.state
    assert (state["stage"], state["epoch"], state["last"]) == ("flights", 2, 2)
    (layer,) = state["layers"]
    assert (layer["lower"], layer["upper"], layer["rows"]) == (1, 3, "3 rows")
    assert not layer["merging"]
    assert [(each["kind"], each["epoch"]) for each in state["places"]] == [
        ("memory", 2),
        ("disk", 2),
    ]
    assert state["stages"] == [["flights", "flights"], ["worst", "worst"]]
    assert view.title() == "layers of flights at epoch 2: 1 layer"


def test_replica_is_shown_as_place_with_its_epoch(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/copy"
    with nosync_nb.open(tmp_path / "log", replicas=[url]) as session:
        flights = session.input("flights", "carrier string, delay int")
        session.stage("here", flights.filter("delay > 1"), persist="disk")
        session.stage("nowhere", flights.filter("delay > 2"), persist="memory")
        pulse = OverviewPoller(session)
        view = LayersView(pulse, "flights")
        add_flights(session, ("UA", 1))
        session.sync("replicas")
        pulse.refresh()
        memory, disk, copy = view.state["places"]
        assert (memory["epoch"], disk["epoch"], copy["epoch"]) == (1, 1, 1)
        assert (copy["name"], copy["where"]) == ("replica 1", url)
        assert view.state["quorum"] == 1
        view.choose("here")
        assert [each["kind"] for each in view.state["places"]] == ["memory", "disk"]
        view.choose("nowhere")
        assert [each["kind"] for each in view.state["places"]] == ["memory"]
        view.close()


def test_merge_is_shown_while_it_runs_and_after(
    view: LayersView, pulse: OverviewPoller, session: Any
) -> None:
    def load(number: int) -> None:
        session["flights"].insert([(f"{number}-{each}", each) for each in range(5000)])
        session.commit()

    for number in range(3):
        load(number)
    pulse.refresh()
    before = view.state["layers"]
    assert [(each["lower"], each["upper"]) for each in before[-3:]] == [(3, 4), (4, 5), (5, 6)]
    publisher = services_of(session).publisher
    trace = publisher.snapshot.contents("flights")
    trace.layers[-1].claim()
    view.show()
    assert [each["merging"] for each in view.state["layers"]][-2:] == [False, True]
    trace.layers[-1].release()
    load(3)
    drain_background(session)
    pulse.refresh()
    assert len(view.state["layers"]) < len(before)
    assert view.state["layers"][-1]["upper"] == 7


def test_front_end_selects_stage_by_message(view: LayersView) -> None:
    asked(view, {"stage": "worst"})
    assert view.stage == view.state["stage"] == "worst"
    asked(view, {"stage": "nobody"})
    assert view.state["why"] == "stage 'nobody' does not exist any more"
    assert view.state["layers"] == []
    asked(view, {})
    assert view.static()[0]


def test_view_of_empty_session_reports_it(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        view = LayersView(OverviewPoller(session))
        assert view.state["why"] == "no inputs and no stages yet"
        view.close()


def test_dropped_stage_is_reported(view: LayersView, pulse: OverviewPoller, session: Any) -> None:
    view.choose("worst")
    session.drop("worst")
    pulse.refresh()
    assert "any more" in view.state["why"]
    assert [name for name, _ in view.state["stages"]] == ["flights"]


def test_views_follow_into_branch_and_name_it(
    view: LayersView, pulse: OverviewPoller, session: Any
) -> None:
    with session.branch("what_if", at=1) as branch:
        pulse.move(branch, "what_if")
        assert (view.state["name"], view.state["epoch"]) == ("what_if/flights", 1)
        add_flights(session, ("ZZ", 1))
        add_flights(branch, ("DL", 7))
        pulse.refresh()
        assert view.state["epoch"] == 2
        pulse.move(session, None)
        assert (view.state["name"], view.state["epoch"]) == ("flights", 3)


def test_error_is_shown_in_view_until_it_is_over(
    view: LayersView, pulse: OverviewPoller, session: Any
) -> None:
    reader = nosync_nb.open(session.path, mode="r")
    pulse.move(reader, None)
    assert view.state["error"] == ""
    pulse.move(cast(Any, None), None)
    assert "AttributeError" in view.state["error"]
    assert view.state["layers"], "what was shown stays"
    pulse.move(session, None)
    assert view.state["error"] == ""
    reader.close()


@pytest.mark.parametrize("opens", [LayersView, FrontierView, ListView, Panel])
def test_views_of_closed_session_name_remedy(
    opens: Any, pulse: OverviewPoller, session: Any
) -> None:
    again = "run %dd panel" if opens is Panel else "run this cell again"
    view: Any = Panel(pulse, cast(Any, None)) if opens is Panel else opens(pulse)
    views = [view.listing, view.graph, view.layers] if opens is Panel else [view]
    session.close()
    pulse.refresh()
    closed = f"the session was closed, and this view is no longer updated; to continue, {again}"
    assert [each.state["error"] for each in views] == [closed] * len(views)
    assert {each.state["epoch"] for each in views} == {2}
    asked(views[0], {"stage": "worst"})
    assert views[0].state["error"] == closed

    with nosync_nb.open(session.path) as following:
        pulse.move(following, None)
        assert {each.state["error"] for each in views} == {""}
    view.close()


def test_views_of_log_taken_over_name_remedy(
    view: LayersView, pulse: OverviewPoller, session: Any
) -> None:
    taken = "import nosync_nb, sys; nosync_nb.open(sys.argv[1], takeover=True).close()"
    subprocess.run([sys.executable, "-c", taken, session.path], check=True, timeout=300)
    pulse.refresh()
    said = view.state["error"]
    assert said.startswith(
        "another process has taken over this log, and this view is no longer updated"
    )
    assert said.endswith(f"`%dd open {session.path} --takeover`, then run this cell again")
    assert view.state["layers"]


def test_failed_poll_is_repeated(
    view: LayersView, pulse: OverviewPoller, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(overview_poller.OverviewPoller, "_build", _raises)
        add_flights(session, ("DL", 7))
        pulse.refresh()
        assert (view.state["epoch"], view.state["error"]) == (2, "MemoryError: none")
    pulse.refresh()
    assert (view.state["epoch"], view.state["error"]) == (3, "")


def _raises(_pulse: OverviewPoller) -> Any:
    raise MemoryError("none")


def test_static_view_is_table_with_epoch(view: LayersView) -> None:
    data, _ = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<table>" in data["text/html"]
    assert "layers at epoch 2" in data["text/plain"]
    assert "memory+disk" in data["text/plain"]


def test_close_frees_view_and_layout(pulse: OverviewPoller, session: Any, view: LayersView) -> None:
    layout = view.layout
    view.close()
    view.close()
    assert view.comm is None
    assert layout.comm is None
    add_flights(session, ("DL", 7))
    pulse.refresh()
    asked(view, {"stage": "worst"})
    assert view.state["epoch"] == 2


def test_threads_may_poll_and_select_while_epochs_commit(
    view: LayersView, pulse: OverviewPoller, session: Any
) -> None:
    def look() -> None:
        for number in range(30):
            pulse.refresh()
            asked(view, {"stage": ("flights", "worst")[number % 2]})

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(look) for _ in range(3)]
        for number in range(20):
            add_flights(session, ("DL", number))
        for each in running:
            each.result()
    pulse.refresh()
    assert (view.state["epoch"], view.state["error"]) == (22, "")


def contrast(one: str, other: str) -> float:
    """The contrast of two colours of a style sheet, by WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_text_on_layers_is_readable_in_light_and_dark() -> None:
    colours = re.findall(r"--nosync-(\w+): (#[0-9a-f]{6});", (STATIC / "live.css").read_text())
    for kind in ("memory", "disk", "some", "copied"):
        own, label = ([c for name, c in colours if name == each] for each in (kind, "label"))
        assert len(own) == len(label) == 2
        assert all(contrast(*pair) >= 4.5 for pair in zip(own, label, strict=True)), kind


def test_update_is_sent_in_context_of_last_message(
    view: LayersView, pulse: OverviewPoller, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its next message waits for the running cell."""
    where: ContextVar[str] = ContextVar("where", default="a cell")
    told: list[str] = []
    monkeypatch.setattr(view.comm, "send", lambda *_args, **_more: told.append(where.get()))

    def ask() -> None:
        where.set("a subshell")
        asked(view, {"stage": "worst"})

    add_flights(session, ("DL", 1))
    pulse.refresh()
    copy_context().run(ask)
    add_flights(session, ("DL", 2))
    thread = threading.Thread(target=pulse.refresh)
    thread.start()
    thread.join()
    assert told[0] == "a cell"
    assert told[1:] == ["a subshell"] * 3, "the answer, another stage, a commit"
