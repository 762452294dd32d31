"""Watched folders in a notebook: the cell, the status and the panel show refused files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from jupyter.kernels import Kernel
from jupyter.shell import Notebook

import nosync
from nosync_widgets import overview_poller
from nosync_widgets.overview_poller import OverviewPoller
from nosync_widgets.views.panel import ListView

INPUT = 'flights = nosync.input("flights", "carrier string, delay int")'
WATCH = 'w = nosync.watch("data/*.csv", into=flights, every={})'
GOOD = "carrier,delay\nAA,70\n"
BAD = "carrier,delay\nAA,soon\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def notebook(empty: Notebook, folder: Path) -> Notebook:
    """A notebook that watches a folder; its thread polls only on request."""
    empty.ok(INPUT)
    empty.ok(WATCH.format(3600))
    return empty


def write_settled(path: Path, text: str) -> None:
    """Writes a file with an old time, so that it is settled."""
    path.write_text(text)
    os.utime(path, (path.stat().st_mtime - 7200,) * 2)


def poll_in_thread(notebook: Notebook) -> None:
    """Polls in another thread."""
    thread = threading.Thread(target=notebook.names["w"].look)
    thread.start()
    thread.join()


def test_file_refused_between_cells_is_shown_once_in_next_cell(
    notebook: Notebook, folder: Path
) -> None:
    write_settled(folder / "bad.csv", BAD)
    poll_in_thread(notebook)
    shown = notebook.ok("x = 1")
    assert "NoSync: 'data/bad.csv' was not loaded into 'flights': " in shown
    assert "soon" in shown
    assert "Hint: " in shown
    assert "Warning" not in shown
    assert ".py:" not in shown
    assert "bad.csv" not in notebook.ok("nosync.commit()")
    poll_in_thread(notebook)
    assert "bad.csv" not in notebook.ok("x = 2")


def test_file_refused_by_thread_is_shown_in_next_cell(empty: Notebook, folder: Path) -> None:
    """The thread polls by itself; no cell waits for it."""
    heard = threading.Event()
    empty.names["heard"] = heard
    empty.ok(f"{INPUT}\nflights.inspect(lambda epoch, changes: heard.set())")
    empty.ok(WATCH.format(1))
    write_settled(folder / "a.csv", BAD)
    write_settled(folder / "b.csv", GOOD)
    assert heard.wait(60)  # of the second file; the first was refused before
    assert "'data/a.csv' was not loaded" in empty.ok("x = 1")


def test_file_refused_at_start_of_watch_is_shown_by_that_cell(
    empty: Notebook, folder: Path
) -> None:
    write_settled(folder / "bad.csv", BAD)
    empty.ok(INPUT)
    shown = empty.ok(WATCH.format(3600) + "\nw")
    assert "NoSync: 'data/bad.csv' was not loaded" in shown
    assert "<watching data/*.csv into flights: 0 loaded, 1 refused>" in shown
    assert "Warning" not in shown


def test_young_file_is_counted_at_start_of_watch_and_in_status(
    empty: Notebook, folder: Path
) -> None:
    (folder / "new.csv").write_text(GOOD)
    empty.ok(INPUT)
    shown = empty.ok(WATCH.format(3600) + "\nw")
    assert "NoSync: data/*.csv: 1 still being written" in shown
    assert ".catch_up() waits" in shown
    assert "0 loaded, 1 still being written>" in shown
    status = empty.ok("%dd status")
    assert "watching data/*.csv into flights: 0 loaded, 1 still being written" in status


def test_status_lists_refused_files_with_reasons(notebook: Notebook, folder: Path) -> None:
    assert "watching data/*.csv into flights: 0 loaded" in notebook.ok("%dd status")
    write_settled(folder / "bad.csv", BAD)
    write_settled(folder / "good.csv", GOOD)
    poll_in_thread(notebook)
    shown = notebook.ok("%dd status")
    assert "watching data/*.csv into flights: 1 loaded, 1 refused" in repr(shown.value)
    assert "'data/bad.csv' was not loaded into 'flights': " in repr(shown.value)
    assert "background:#fff3c4" in shown.value.html()
    notebook.ok("w.stop()")
    assert "stopped watching data/*.csv" in notebook.ok("%dd status")
    (folder / "bad.csv").unlink()
    notebook.ok("w.look()")
    assert "data/*.csv" not in notebook.ok("%dd status")


@pytest.fixture
def pulse(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> Iterator[OverviewPoller]:
    """A poller that polls only on `refresh`."""
    monkeypatch.setattr(overview_poller, "LOOK_S", 3600)
    pulse = OverviewPoller(nosync.session())
    yield pulse
    pulse.close()


def test_panel_shows_refused_files_without_commit(
    notebook: Notebook, pulse: OverviewPoller, folder: Path
) -> None:
    listing = ListView(pulse)
    assert listing.state["watches"] == ["watching data/*.csv into flights: 0 loaded"]
    assert listing.state["refused"] == []
    write_settled(folder / "bad.csv", BAD)
    (folder / "new.csv").write_text(GOOD)
    poll_in_thread(notebook)
    pulse.refresh()
    assert listing.state["watches"] == [
        "watching data/*.csv into flights: 0 loaded, 1 still being written, 1 refused"
    ]
    assert ["'data/bad.csv' was not loaded" in each for each in listing.state["refused"]] == [True]
    text, html = listing.static()
    assert "'data/bad.csv' was not loaded" in text
    assert "background:#fff3c4" in html
    listing.close()


def test_cell_waits_for_all_files_and_fails_short_if_one_is_refused(
    notebook: Notebook, folder: Path
) -> None:
    write_settled(folder / "good.csv", GOOD)
    assert notebook.ok("w.catch_up()").value == 1
    assert notebook.ok("flights.count()").value == 1
    write_settled(folder / "bad.csv", BAD)
    shown = notebook.fails("w.catch_up()")
    assert shown.text.count("soon") == 1
    assert "1 file was not loaded into 'flights'" in shown
    assert "Traceback" not in shown


WRITE = f"""
heard.clear()
for name, text in (("{{0}}", {BAD!r}), ("{{1}}", {GOOD!r})):
    with open(f"data/{{{{name}}}}.csv", "w") as file:
        file.write(text)
    os.utime(f"data/{{{{name}}}}.csv", (5, 5))
heard.wait(60)
"""


def test_file_refused_while_cell_runs_is_output_of_that_cell(tmp_path: Path) -> None:
    """The output belongs neither to the cell that started the watch nor to a hidden one."""
    with closing(Kernel(tmp_path)) as kernel:
        kernel.run("import os, threading\nos.mkdir('data')\nheard = threading.Event()")
        kernel.run(f"{INPUT}\nflights.inspect(lambda epoch, changes: heard.set())")
        kernel.run(WATCH.format(1))
        shown = kernel.run(WRITE.format("a", "b"))
        assert "NoSync: 'data/a.csv' was not loaded" in shown
        assert "Warning" not in shown
        assert "c.csv" not in kernel.run(WRITE.format("c", "d"), hidden=True)
        shown = kernel.run("w.stop()")
        assert "NoSync: 'data/c.csv' was not loaded" in shown
        assert "a.csv" not in shown
