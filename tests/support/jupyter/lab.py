"""A notebook in JupyterLab, driven in Chromium."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Locator, Page, expect, sync_playwright

expect.set_options(timeout=60_000)  # five seconds are little where two kernels share a core

_READY = """() => {
    const bar = document.querySelector('#jp-main-statusbar')?.innerText ?? 'Connecting';
    const session = window.jupyterapp?.shell.currentWidget?.context?.sessionContext?.session;
    return !/Connecting|Initializing|Starting/.test(bar) && session?.kernel?.status === 'idle';
}"""
_RUN = """async (index) => {
    window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
    return await window.jupyterapp.commands.execute('notebook:run-cell');
}"""

_NEW = """async (cells) => {
    const app = window.jupyterapp;
    const made = await app.commands.execute('notebook:create-new', { kernelName: 'nosync' });
    await made.context.ready;
    const model = made.content.model.sharedModel;
    for (const source of cells) model.addCell({ cell_type: 'code', source });
    model.deleteCell(0);
}"""

_RUN_ALL = "window.jupyterapp.commands.execute('notebook:run-all-cells')"
_ADD = """(source) => {
    const { model } = window.jupyterapp.shell.currentWidget.content;
    model.sharedModel.addCell({ cell_type: 'code', source });
    return model.cells.length - 1;
}"""
_SAVE = "window.jupyterapp.shell.currentWidget.context.save()"

_INTERRUPT = """() => {
    const notebook = window.jupyterapp.shell.currentWidget;
    return notebook.context.sessionContext.session.kernel.interrupt();
}"""


class LabPage:
    """A notebook open in the browser; cells are counted from 0."""

    def __init__(self, page: Page, url: str, name: str) -> None:
        self.page = page
        page.goto(f"{url}/lab/tree/{name}?reset")
        page.locator(".jp-Notebook").wait_for()
        self.wait_until_ready()

    @classmethod
    def untitled(cls, page: Page, url: str, cells: Sequence[str]) -> LabPage:
        """A new notebook from the launcher; its first save asks for a name."""
        page.goto(f"{url}/lab?reset")
        page.locator(".jp-Launcher").wait_for()
        page.evaluate(_NEW, list(cells))
        made = cls.__new__(cls)
        made.page = page
        made.wait_until_ready()
        return made

    def save_as(self, name: str) -> None:
        """Presses Ctrl+S and types a name into the dialog that asks for one."""
        self.page.keyboard.press("Control+s")
        dialog = self.page.locator(".jp-Dialog")
        dialog.wait_for()
        dialog.locator("input").first.fill(name)
        self.page.keyboard.press("Enter")
        dialog.wait_for(state="detached")
        self.page.wait_for_function(
            "name => window.jupyterapp.shell.currentWidget.context.path === name", arg=name
        )

    def wait_until_ready(self) -> None:
        """Waits until the kernel takes cells; an idle indicator alone is not enough."""
        self.page.wait_for_function(_READY)

    def cell(self, index: int) -> Locator:
        return self.page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{index}"]')

    def run(self, index: int) -> str:
        """Runs a cell to its end and returns the text of its outputs."""
        succeeded = self.page.evaluate(_RUN, index)
        assert succeeded, self.output(index)
        prompt = self.cell(index).locator(".jp-InputArea-prompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"))
        return self.output(index)

    def run_all(self) -> None:
        """Chooses *Run All Cells*, and waits for the end of the last one; none may fail."""
        assert self.page.evaluate(_RUN_ALL), self.page.locator(".jp-OutputArea").all_inner_texts()

    def add(self, source: str) -> int:
        added: int = self.page.evaluate(_ADD, source)
        return added

    def save(self) -> None:
        self.page.evaluate(_SAVE)

    def begin(self, index: int) -> None:
        """Starts a cell and returns when it runs."""
        self.page.evaluate(f"(index) => {{ ({_RUN})(index); }}", index)
        prompt = self.cell(index).locator(".jp-InputArea-prompt")
        expect(prompt).to_have_text("[*]:")

    def interrupt(self, index: int) -> None:
        """Interrupts the kernel as the stop button does, and waits for the end of a cell."""
        self.page.evaluate(_INTERRUPT)
        prompt = self.cell(index).locator(".jp-InputArea-prompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"))

    def output(self, index: int) -> str:
        return "\n".join(self.cell(index).locator(".jp-OutputArea-output").all_inner_texts())

    def kill_kernel(self, pid: int) -> str:
        """Kills the kernel, dismisses the dialog and waits for the next kernel; returns the
        dialog's text.
        """
        os.kill(pid, signal.SIGKILL)
        dialog = self.page.locator(".jp-Dialog")
        expect(dialog).to_contain_text("appears to have died")  # or says what another one says
        text = dialog.locator(".jp-Dialog-content").inner_text()
        button = dialog.get_by_role("button")
        expect(button).to_have_text("Ok")
        button.click()
        indicator = self.page.locator(".jp-Notebook-ExecutionIndicator")
        expect(indicator).to_have_attribute("data-status", "idle")
        self.wait_until_ready()
        return text


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    """Writes a notebook for the NoSync kernel; a cell that begins with # is text."""
    made: list[Any] = [
        nbformat.v4.new_markdown_cell(source)
        if source.startswith("# ")
        else nbformat.v4.new_code_cell(source)
        for source in cells
    ]
    kernel = {"name": "nosync", "display_name": "Python 3 (NoSync)", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel})
    nbformat.write(notebook, path)


def _go_on(lost: Locator) -> None:
    """Closes the dialog that JupyterLab shows after one failed request, because it retries."""
    lost.get_by_role("button", name="Close").click()


@contextmanager
def browser_page(chromium: str) -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--disable-gpu"])
        try:
            page = browser.new_page(
                viewport={"width": 1080, "height": 1158}, device_scale_factor=1.5
            )
            page.set_default_timeout(60_000)
            lost = page.locator(".jp-Dialog", has_text="Server Connection Error")
            page.add_locator_handler(lost, _go_on)
            yield page
        finally:
            browser.close()
