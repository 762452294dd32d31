"""The panel: stages, replicas, and actions on a stage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
from internals import asked
from IPython.core.error import UsageError
from jupyter.kernels import Kernel
from jupyter.shell import Notebook

import nosync
import nosync_nb
from nosync.commands.views import PanelActions
from nosync_widgets import overview_poller
from nosync_widgets.overview_poller import OverviewPoller
from nosync_widgets.views.panel import ListView, Panel

STATIC = files("nosync_widgets") / "static"
SCRIPT = Path(__file__).parents[1] / "support" / "jupyter" / "listing.test.mjs"
CELLS = [
    'flights = nosync.input("flights", "carrier string, delay int")\n'
    'flights.insert([("AA", 10), ("AA", 30), ("UA", 5)])',
    '%%dd --replay 0\nlate = flights.filter("delay > 9")\n'
    'counts = late.group_by("carrier").agg(n="count(*)")',
]


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOSYNC_SESSION", "log")
    monkeypatch.setattr(overview_poller, "LOOK_S", 3600)
    notebook = Notebook()
    for source in ("%load_ext nosync", *CELLS):
        notebook.ok(source)
    yield notebook
    notebook.close()


@pytest.fixture
def panel(notebook: Notebook) -> Iterator[Panel]:
    ours = notebook.shell.magics_manager.registry["NoSync"].notebook
    panel = Panel(OverviewPoller(nosync.session()), PanelActions(ours))
    yield panel
    panel.close()


def click(button: ipywidgets.Button) -> None:
    """Sends a click as the front end does."""
    asked(button, {"event": "click"})


def test_list_shows_schema_rows_and_state(panel: Panel) -> None:
    state = panel.listing.state
    cells = {line["name"]: line["cells"] for line in state["stages"]}
    assert cells["flights"][:3] == ["flights", "carrier string, delay int", "3"]
    assert cells["flights"][-1] == "input"
    assert cells["late"][2::2] == ["2", "1"]
    assert cells["counts"][-1] == "live"
    assert state["replicas"] == []
    assert "no replicas" in state["safe"]
    assert panel.title().endswith("log at epoch 1")


def test_selection_is_shared_by_all_parts(panel: Panel) -> None:
    asked(panel.listing, {"select": "late"})
    assert panel.stage == panel.graph.selected == panel.layers.stage == "late"
    assert [row[0] for row in panel.graph.page["rows"]] == ["AA", "AA"]
    asked(panel.graph, {"select": "counts"})
    assert panel.stage == panel.listing.selected == panel.layers.stage == "counts"
    assert not panel.drop.disabled
    asked(panel.listing, {"select": "nobody"})
    assert panel.stage == ""
    assert panel.drop.disabled


def test_stage_is_renamed_with_its_variable(panel: Panel, notebook: Notebook) -> None:
    panel.choose("counts")
    click(panel.rename)
    assert "a new name" in panel.said.value
    panel.name.set_trait("value", "by_carrier")
    click(panel.rename)
    assert "counts is now by_carrier" in panel.said.value
    assert panel.stage == "by_carrier"
    assert "counts" not in notebook.names
    assert notebook.names["by_carrier"].rows()
    assert [line["name"] for line in panel.listing.state["stages"]][-1] == "by_carrier"


def test_stage_is_dropped_at_second_click(panel: Panel, notebook: Notebook) -> None:
    panel.choose("counts")
    click(panel.drop)
    assert "this deletes counts and its history" in panel.said.value
    assert "counts" in nosync.session()
    click(panel.keep)
    assert panel.drop.description == "Drop"
    click(panel.drop)
    assert panel.drop.description == "Drop counts for good"
    click(panel.drop)
    assert "dropped counts" in panel.said.value
    assert "counts" not in nosync.session()
    assert "counts" not in notebook.names
    assert panel.stage == ""
    assert panel.layers.state["why"] == "", "another one is shown instead"


def test_stage_with_readers_is_not_dropped_alone(panel: Panel) -> None:
    panel.choose("late")
    click(panel.drop)
    assert "it is read by counts" in panel.said.value
    click(panel.drop)
    assert 'role="alert"' in panel.said.value
    assert "late" in nosync.session()
    assert panel.drop.description == "Drop"
    click(panel.drop)
    panel.cascade.set_trait("value", True)
    click(panel.drop)
    assert "dropped counts, late" in panel.said.value
    assert list(nosync.session().stages) == []


def test_other_selection_cancels_drop(panel: Panel) -> None:
    panel.choose("counts")
    click(panel.drop)
    panel.choose("late")
    assert panel.drop.description == "Drop"
    click(panel.drop)
    assert "late" in nosync.session()


def test_rows_and_travel_buttons_open_views_in_panel(panel: Panel) -> None:
    panel.choose("late")
    tabs = panel.children[-1]
    shown = []
    for button, tab in ((panel.rows, 2), (panel.travel, 3)):
        click(button)
        assert tabs.selected_index == tab, panel.said.value
        (view,) = tabs.children[tab].children
        assert (view.stage, view.epoch) == ("late", 1)
        shown.append(view)
    panel.close()
    assert [view.comm is None for view in shown] == [False, False], "they are the notebook's"


def test_stage_dropped_by_cell_is_deselected(panel: Panel, notebook: Notebook) -> None:
    panel.choose("counts")
    notebook.ok("%dd drop counts")
    panel.pulse.refresh()
    assert panel.stage == panel.listing.selected == ""
    assert panel.rename.disabled


def test_buttons_work_while_epochs_commit(panel: Panel, notebook: Notebook) -> None:
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            panel.pulse.refresh()

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for number in range(10):
            nosync.session()["flights"].insert([("DL", number)])
            nosync.session().commit()
            panel.choose("counts")
            panel.name.set_trait("value", "renamed")
            click(panel.rename)
            panel.name.set_trait("value", "counts")
            click(panel.rename)
    finally:
        stop.set()
        watcher.join()
    assert "renamed is now counts" in panel.said.value
    panel.pulse.refresh()
    assert panel.listing.state["epoch"] == 11


def test_replicas_are_listed_with_their_health(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", replicas=[f"file://{tmp_path}/copy"]) as session:
        numbers = session.input("numbers", "x int")
        numbers.insert([(1,)])
        session.commit()
        session.sync("replicas")
        view = ListView(OverviewPoller(session))
        (copy,) = view.state["replicas"]
        assert copy["cells"][:4] == [f"file://{tmp_path}/copy", "up to date", "1", "0"]
        assert view.state["safe"] == "replicas: epoch 1 is on 1 of 1"
        text, html = view.static()
        assert "up to date" in text
        assert "up to date" in html
        view.close()


def test_static_panel_has_all_parts(panel: Panel) -> None:
    data = panel._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    for part in ("inputs and stages at epoch 1", "counts <- late", "layers at epoch 1"):
        assert part in data["text/plain"]
    assert "layers at epoch 1" in data["text/html"]


def test_close_frees_every_part(panel: Panel) -> None:
    parts = [panel.listing, panel.graph, panel.layers, panel.drop, *panel.children]
    panel.close()
    panel.close()
    assert [part.comm for part in parts] == [None] * len(parts)


def test_panel_without_front_end_names_commands(notebook: Notebook) -> None:
    said = notebook.fails("%dd panel")
    assert isinstance(said.error, UsageError)
    assert "%dd status" in said


def test_views_in_kernel_leave_table_and_model(tmp_path: Path) -> None:
    with closing(Kernel(tmp_path)) as kernel:
        for source in CELLS:
            assert kernel.run(source).status == "ok"
        said: dict[str, Any] = {}
        for line in ("layers late", "graph", "panel --here", "panel"):
            reply = said[line] = kernel.run(f"%dd {line}")
            assert reply.status == "ok", reply.text
            assert "<details>" in reply.html
        assert all(said[line].models for line in ("layers late", "graph", "panel --here"))
        assert said["layers late"].models == kernel.run("%dd layers late").models
        assert "opened at the side" in said["panel"].text
        assert kernel.run("%unload_ext nosync").status == "ok"
