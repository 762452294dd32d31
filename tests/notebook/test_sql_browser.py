"""SQL cells in JupyterLab and Chromium: highlighting, completion, an error with its caret, rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter.lab import LabPage, browser_page, write_notebook
from jupyter.server import Server
from playwright.sync_api import expect

CELLS = [
    'flights = nosync.input("flights", "carrier string, day int, delay double")',
    "%%dd sql\n"
    "INSERT INTO flights VALUES ('AA', 1, 5.0), ('UA', 1, 75.0), ('AA', 2, 80.0);\n"
    "CREATE OR REPLACE VIEW late AS\n"
    "    SELECT carrier, count(*) AS n FROM flights WHERE delay > 60 GROUP BY carrier;\n"
    "SELECT * FROM late",
    "%%dd sql\nSELECT carrier,\n       dealy -- a column that does not exist\nFROM flights",
    "%%dd sql\nSELECT f. FROM flights f",
    "x = 1",
]
INPUT, VIEW, WRONG, TYPED, PYTHON = range(5)
_LANGUAGE = """index => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    return notebook.widgets[index].model.mimeType;
}"""
_CARET = """([index, offset]) => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = index;
    notebook.mode = 'edit';
    const editor = notebook.activeCell.editor;
    editor.focus();
    editor.setCursorPosition(editor.getPositionAt(offset));
}"""
_SQL = "text/x-sql"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory, chromium: str) -> Iterator[LabPage]:
    folder = tmp_path_factory.mktemp("lab")
    (folder / "root").mkdir()
    write_notebook(folder / "root" / "sql.ipynb", CELLS)
    server = Server(folder, folder / "root")
    try:
        with browser_page(chromium) as page:
            opened = LabPage(page, server.url, "sql.ipynb")
            page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
            yield opened
    finally:
        server.stop()


def language_of(notebook: LabPage, index: int) -> str:
    language: str = notebook.page.evaluate(_LANGUAGE, index)
    return language


@pytest.mark.browser
def test_sql_cells_in_browser(notebook: LabPage, tmp_path: Path) -> None:
    page = notebook.page
    page.wait_for_function(f"index => ({_LANGUAGE})(index) === '{_SQL}'", arg=VIEW)
    assert language_of(notebook, PYTHON) != _SQL
    colours = [
        notebook.cell(VIEW)
        .locator(".cm-line > span", has_text=re.compile(f"^{word}$"))
        .first.evaluate("node => getComputedStyle(node).color")
        for word in ("CREATE", "'AA'")
    ]
    assert colours[0] != colours[1]

    notebook.run(INPUT)
    shown = notebook.run(VIEW)
    assert "INSERT INTO flights: 3 rows" in shown
    grid = notebook.cell(VIEW).locator(".nosync-grid")
    expect(grid.locator("tbody tr").first).to_contain_text("AA")

    page.evaluate(f"index => {{ ({_RUN_ALONE})(index); }}", WRONG)
    error = notebook.cell(WRONG).locator(".jp-OutputArea-output").first
    expect(error).to_contain_text("[UNRESOLVED_COLUMN]")
    expect(error).to_contain_text("line 3, column 8")
    expect(error).to_contain_text("^^^^^")
    assert "Traceback" not in error.inner_text()

    offset = CELLS[TYPED].index("f.") + 2
    page.evaluate(_CARET, [TYPED, offset])
    page.keyboard.press("Tab")
    items = page.locator(".jp-Completer-item")
    expect(items.first).to_be_visible()
    assert [text.split()[1] for text in items.all_inner_texts()] == ["carrier", "day", "delay"]
    page.screenshot(path=str(picture("sql.png", tmp_path)))
    page.keyboard.press("Escape")


@pytest.mark.browser
def test_cell_follows_its_first_line_in_browser(notebook: LabPage) -> None:
    page = notebook.page
    added = notebook.add("x = 2")
    before = language_of(notebook, added)
    assert before != _SQL
    change = """([index, text]) => {
        const notebook = window.jupyterapp.shell.currentWidget.content;
        notebook.widgets[index].model.sharedModel.setSource(text);
    }"""
    page.evaluate(change, [added, "%%dd sql\nSELECT 1"])
    assert language_of(notebook, added) == _SQL
    page.evaluate(change, [added, "%%dd\nx = 1"])
    assert language_of(notebook, added) == before


_RUN_ALONE = """async (index) => {
    window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
    await window.jupyterapp.commands.execute('notebook:run-cell');
}"""


def picture(name: str, folder: Path) -> Path:
    return Path(os.environ.get("NOSYNC_SCREENSHOTS", folder)) / name
