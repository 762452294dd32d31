"""The grid: messages in, pages and files out, without a front end."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pyarrow.csv
import pyarrow.parquet
import pytest
from internals import asked, services_of
from nbconvert import HTMLExporter

import nosync_nb
from nosync.open_views import OpenViews
from nosync_widgets import throttle
from nosync_widgets.throttle import ThreadBudget, Throttle
from nosync_widgets.views.grid import GridRequest, GridView

STATIC = files("nosync_widgets") / "static"
SCRIPTS = Path(__file__).parents[1] / "support" / "jupyter"


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(throttle, "REST_S", 3600)
    session = nosync_nb.open(str(tmp_path / "log"))
    flights = session.input("flights", "carrier string, delay int")
    session.stage("late", flights.filter("delay > 60"))
    flights.insert([("AA", 70), ("UA", 90), ("B6", 61), ("B6", 61), ("UA", 3), (None, 65)])
    session.commit()
    yield session
    session.close()


@pytest.fixture
def grid(session: Any) -> Iterator[GridView]:
    """A grid of the stage, two rows a page."""
    grid = GridView(session, "late", limit=2)
    yield grid
    grid.close()


def ask_page(grid: GridView, **other: Any) -> Any:
    """Sends a request as the front end does; returns the page that answers."""
    number = grid.page.get("asked", 0) + 1
    now = {key: grid.page.get(key) for key in ("order", "where", "offset", "limit")}
    asked(grid, {"kind": "show", "asked": number, **now, **other})
    assert grid.page["asked"] == number
    return grid.page


def add_flights(session: Any, *rows: tuple[str, int]) -> None:
    session["flights"].insert(list(rows))
    session.commit()


def saved(grid: GridView, monkeypatch: pytest.MonkeyPatch, kind: str) -> Any:
    """The name and the bytes of a download."""
    told: list[Any] = []

    def sends(content: Any, buffers: Any = None) -> None:
        if content:  # not an answer that says nothing
            told.append((content, buffers))

    monkeypatch.setattr(grid, "send", sends)
    asked(grid, {"kind": "download", "format": kind})
    if told[0][0]["kind"] == "failed":
        return told[0][0]["error"], b""
    assert [content["piece"] for content, _ in told] == list(range(told[0][0]["last"] + 1))
    return told[0][0]["name"], b"".join(bytes(buffers[0]) for _, buffers in told)


# -- pages -----------------------------------------------------------------------------------------


def test_grid_opens_on_first_page_with_epoch(grid: GridView) -> None:
    page = grid.page
    assert page["rows"] == [[None, "65"], ["AA", "70"]]
    assert (page["epoch"], page["total"], page["offset"], grid.latest) == (1, 5, 0, 1)
    assert page["columns"][1] == {"name": "delay", "type": "int", "right": True}
    assert grid.title() == "late at epoch 1: rows 1 to 2 of 5"


def test_pages_turn_and_end_at_last_row(grid: GridView) -> None:
    assert ask_page(grid, offset=2)["rows"] == [["B6", "61"], ["B6", "61"]]
    assert ask_page(grid, offset=4)["rows"] == [["UA", "90"]]
    assert (ask_page(grid, offset=400)["rows"], grid.page["offset"]) == ([["UA", "90"]], 4)
    assert ask_page(grid, offset=-3)["offset"] == 0


def test_rows_are_sorted_with_null_first_or_last(grid: GridView) -> None:
    assert ask_page(grid, order=[[1, True]], limit=3)["rows"] == [
        ["UA", "90"],
        ["AA", "70"],
        [None, "65"],
    ]
    assert ask_page(grid, order=[[0, True]])["rows"][0] == ["UA", "90"]
    assert ask_page(grid, order=[[0, True]], offset=3)["rows"] == [["AA", "70"], [None, "65"]]
    assert ask_page(grid, order=[[1, False], [0, True]], offset=0)["rows"][:2] == [["B6", "61"]] * 2
    assert "by delay, carrier desc" in grid.title()


def test_rows_are_filtered_by_sql_and_error_leaves_page(grid: GridView) -> None:
    assert ask_page(grid, where="carrier = 'B6'")["rows"] == [["B6", "61"]] * 2
    assert (grid.page["total"], grid.page["where"]) == (2, "carrier = 'B6'")
    page = ask_page(grid, where="carier = 'B6'")
    assert "carier" in page["error"]
    assert page["rows"] == [["B6", "61"]] * 2
    page = ask_page(grid, where="", order=[[1, True]])
    assert "error" not in page
    assert page["rows"][0] == ["UA", "90"]


def test_page_has_at_most_200_rows(grid: GridView, session: Any) -> None:
    add_flights(session, *((f"{n:04}", 100 + n) for n in range(1000)))
    grid.refresh()
    assert len(ask_page(grid, limit=100_000)["rows"]) == 200
    assert len(ask_page(grid, limit=-1)["rows"]) == 1


def test_malformed_message_changes_nothing(grid: GridView) -> None:
    assert ask_page(grid, order=[[99, True], [-1, True]])["order"] == []
    asked(grid, {"kind": "nothing"})
    asked(grid, {"kind": "download", "format": "exe"})
    assert len(grid.page["rows"]) == 2


def test_top_is_shown_in_its_order(session: Any) -> None:
    worst = session["flights"].group_by("carrier").top(2, by="delay desc")
    session.stage("worst", worst)
    grid = GridView(session, "worst")
    assert grid.page["order"] == [[0, False], [1, True]]
    assert grid.page["rows"][-2:] == [["UA", "90"], ["UA", "3"]]
    grid.close()


def test_values_are_escaped(session: Any) -> None:
    add_flights(session, ("<img src=x onerror=alert(1)>", 99), ("\u202eevil", 98))
    grid = GridView(session, "late")
    assert ["\\u202eevil", "98"] in grid.page["rows"]
    assert "<img" not in grid.static()[1]
    grid.close()


# -- following -------------------------------------------------------------------------------------


def test_grid_follows_commits_on_its_page_in_its_order(grid: GridView, session: Any) -> None:
    ask_page(grid, order=[[1, True]], where="carrier <> 'AA'")
    add_flights(session, ("DL", 99), ("AA", 999))
    grid.refresh()
    assert grid.page["rows"] == [["DL", "99"], ["UA", "90"]]
    assert (grid.page["epoch"], grid.page["asked"], grid.latest) == (2, 0, 2)


def test_many_commits_are_one_page(grid: GridView, session: Any) -> None:
    before = grid.page["number"]
    for number in range(20):
        add_flights(session, ("DL", 100 + number))
        assert grid.pace.waits
    assert grid.page["number"] == before, "nothing was read by who commits"
    grid.pace.run()
    assert (grid.page["number"], grid.page["epoch"], grid.pace.acted) == (before + 1, 21, 1)
    assert not grid.pace.waits


def test_epoch_without_changes_reads_nothing(grid: GridView, session: Any) -> None:
    grid.summing.run()
    summing = grid.summing.acted
    add_flights(session, ("UA", 1))
    grid.refresh()
    assert (grid.page["epoch"], grid.summary["epoch"]) == (2, 2)
    assert not grid.summing.waits
    assert grid.summing.acted == summing


def test_frozen_grid_stays_and_counts_newer_epochs(grid: GridView, session: Any) -> None:
    asked(grid, {"kind": "freeze", "on": True})
    for delay in (91, 92, 93):
        add_flights(session, ("AA", delay))
    grid.refresh()
    assert (grid.frozen, grid.page["epoch"], grid.latest) == (True, 1, 4)
    assert ask_page(grid, order=[[1, True]])["rows"] == [["UA", "90"], ["AA", "70"]]
    asked(grid, {"kind": "freeze", "on": False})
    assert (grid.page["epoch"], grid.page["rows"][0]) == (4, ["AA", "93"])


def test_grid_after_rewind_and_new_version_shows_contents(grid: GridView, session: Any) -> None:
    add_flights(session, ("AA", 99))
    session.rewind(to=1)
    grid.refresh()
    assert (grid.page["epoch"], grid.page["total"]) == (1, 5)
    ask_page(grid, order=[[1, True]], where="delay > 1")
    session.stage("late", session["flights"].filter("delay > 80").select("delay"))
    grid.refresh()
    assert [column["name"] for column in grid.page["columns"]] == ["delay"]
    assert (grid.page["rows"], grid.page["order"], grid.page["where"]) == ([["90"]], [], "")


def test_dropped_stage_is_error_beside_last_rows(grid: GridView, session: Any) -> None:
    session.drop("late")
    grid.refresh()
    assert "there is no stage or input 'late'" in grid.page["error"]
    assert grid.page["rows"]
    assert "late" in grid.static()[0]


def test_grid_moves_to_branch_and_back(grid: GridView, session: Any) -> None:
    with session.branch("what_if") as branch:
        grid.move(branch, "what_if")
        branch["flights"].insert([("ZZ", 999)])
        branch.commit()
        assert grid.pace.waits
        grid.refresh()
        assert grid.page["name"] == "what_if/late"
        assert grid.page["total"] == 6
        grid.move(session, None)
        assert (grid.page["name"], grid.page["total"]) == ("late", 5)


def test_threads_may_read_while_epochs_commit(grid: GridView, session: Any) -> None:
    def ask() -> None:
        for number in range(40):
            grid.show(GridRequest(((1, number % 2 == 0),), "", number % 5, 3))
            grid.refresh()

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(ask) for _ in range(3)]
        for number in range(20):
            add_flights(session, ("DL", 100 + number))
        for each in running:
            each.result()
    grid.refresh()
    assert (grid.page["total"], grid.page["epoch"]) == (25, 21)


def test_closed_grid_receives_no_commit(session: Any) -> None:
    before = services_of(session).subscriptions.subscribers
    grid = GridView(session, "late")
    layout = grid.layout
    grid.close()
    grid.close()
    assert services_of(session).subscriptions.subscribers == before
    assert layout.comm is None
    add_flights(session, ("DL", 99))
    assert not grid.pace.waits


# -- summaries, files, fallback --------------------------------------------------------------------


def test_summaries_are_computed_in_background_with_epoch(grid: GridView, session: Any) -> None:
    assert grid.summary == {}
    assert grid.summing.waits
    grid.summing.run()
    carrier, delay = grid.summary["columns"]
    assert (carrier["nulls"], carrier["distinct"]) == (1, 3)
    assert carrier["common"] == [["B6", 2], ["AA", 1], ["UA", 1]]
    assert (delay["low"], delay["high"], sum(delay["bars"])) == ("61", "90", 5)
    assert grid.summary["epoch"] == 1
    made = threading.Event()
    grid.observe(lambda _: made.set(), "summary")
    ask_page(grid, where="carrier = 'B6'")
    assert made.wait(60), "who asks does not wait for a rest"
    assert grid.summary["columns"][1]["bars"] == [2]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_download_has_all_filtered_rows_in_order(
    grid: GridView, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    ask_page(grid, order=[[1, True]], where="carrier is not null")
    name, data = saved(grid, monkeypatch, kind)
    assert name == f"late-epoch-1.{kind}"
    read = pyarrow.csv.read_csv if kind == "csv" else pyarrow.parquet.read_table
    assert read(io.BytesIO(data)).to_pydict() == {
        "carrier": ["UA", "AA", "B6", "B6"],
        "delay": [90, 70, 61, 61],
    }


def test_nested_values_are_json_in_csv(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = session.input("odd", "tags array<string>, raw binary")
    odd.insert([(["a", "é"], b"\x01"), (None, None)])
    session.commit()
    grid = GridView(session, "odd")
    assert (
        saved(grid, monkeypatch, "csv")[1].decode() == '"tags","raw"\n,\n"[""a"", ""é""]","0x01"\n'
    )
    grid.close()


def test_download_over_limit_is_refused(
    grid: GridView, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.collect_rows = 3
    assert "5 rows are more than session.collect_rows = 3" in saved(grid, monkeypatch, "csv")[0]


def test_static_grid_is_table_with_epoch(grid: GridView) -> None:
    ask_page(grid, order=[[1, True]])
    data = grid.bundle()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "late at epoch 1: rows 1 to 2 of 5 by delay desc</caption>" in data["text/html"]
    assert data["text/plain"].splitlines()[2:] == ["UA          90", "AA          70"]


def test_notebook_converted_to_html_has_table(grid: GridView) -> None:
    output = nbformat.v4.new_output("execute_result", data=grid.bundle(), execution_count=1)
    cell = nbformat.v4.new_code_cell("late", outputs=[output])
    page, _ = HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert "late at epoch 1: rows 1 to 2 of 5</caption>" in page
    assert ">70</td>" in page
    assert "widget-view" not in page


def test_throttle_acts_once_per_burst() -> None:
    begun, go_on, twice = (threading.Event() for _ in range(3))

    def act() -> None:
        (twice if begun.is_set() else begun).set()
        assert go_on.wait(60)

    pace = Throttle(act, ThreadBudget())
    for _ in range(5):
        pace.ask()
    assert begun.wait(60)
    for _ in range(5):
        pace.ask()
    assert pace.waits
    assert pace.acted == 0
    go_on.set()
    assert twice.wait(60)
    pace.close()
    pace.ask()
    assert not pace.waits


def test_throttles_share_budget() -> None:
    budget = ThreadBudget(0.03)
    every = [Throttle(lambda: sum(range(1000)), budget) for _ in range(3)]
    assert budget.rest_s(0.4) == pytest.approx(0.4 * 3 / 0.03)
    assert budget.rest_s(0.0) == throttle.REST_S
    every[0].run()
    assert every[0].spent_s > 0
    for each in every[1:]:
        each.close()
        each.close()
    assert (budget.sharing, budget.rest_s(0.4)) == (1, pytest.approx(0.4 / 0.03))
    every[0].close()


def test_throttle_rests_longer_while_process_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds of rest are due: the process worked half of them, all of them, or was idle."""
    now = {"thread": 0.0, "process": 0.0, "clock": 0.0}
    rests: list[float] = []

    class Timer:
        def __init__(self, rest_s: float, due: Callable[[], None]) -> None:
            rests.append(rest_s)
            self.due, self.daemon = due, False

        def start(self) -> None:
            timers.append(self)

        def cancel(self) -> None:
            pass

    def act() -> None:
        now["thread"] += 0.06

    timers: list[Timer] = []
    clocks = {"thread_time": "thread", "process_time": "process", "monotonic": "clock"}
    told = {name: partial(now.__getitem__, each) for name, each in clocks.items()}
    monkeypatch.setattr(throttle, "time", SimpleNamespace(**told))
    monkeypatch.setattr(throttle, "threading", SimpleNamespace(Timer=Timer, Lock=threading.Lock))
    pace = Throttle(act, ThreadBudget(0.03))
    pace.run()

    def after(clock: float, process: float) -> int:
        now["clock"] += clock
        now["process"] += process
        timers[-1].due()
        return pace.acted

    pace.ask()
    assert after(2.0, 1.0) == 1
    assert after(2.0, 1.0) == 2
    assert rests == pytest.approx([2.0, 2.0])
    pace.ask()
    assert after(2.0, 2.0) == 3
    pace.ask()
    assert after(2.0, 0.2) == 4, "nobody worked whom it could disturb"
    pace.ask()
    pace.ask(soon=True)
    assert after(0.0, 0.0) == 5, "somebody waits"
    pace.close()


def test_open_views_share_one_budget(session: Any) -> None:
    views = OpenViews()
    for name in ("flights", "late"):
        views.grid(session, name, 20, None)
    slider = views.travel(session, "late", None, None)
    budget = views.grid(session, "late", 20, None).summing.budget
    assert slider.pace.budget is budget
    assert budget.sharing == 5
    views.close()
    assert budget.sharing == 0


def test_summary_merges_no_layers_and_loads_no_pandas() -> None:
    """Merging a million rows takes longer than counting; loading pandas takes half a second."""
    script = """
import sys, tempfile, nosync_nb
from nosync_nb.trace.trace import Trace
with tempfile.TemporaryDirectory() as folder, nosync_nb.open(folder + "/log") as session:
    rows = session.input("rows", "n int, s string")
    for n in range(3):
        rows.insert([(n, None), (n, str(n)), (7, "x")])
        session.commit()
    rows.remove([(7, "x")])
    session.commit()
    Trace.consolidated = None
    found = session.cursor(rows).profiles()
    assert [each[:2] for each in found] == [(0, 4), (3, 4)], found
    assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
