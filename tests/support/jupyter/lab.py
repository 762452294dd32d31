"""JupyterLab with one notebook, driven in Chromium."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Locator, Page, expect, sync_playwright

from jupyter.kernels import package_path

_CONFIG = """
c = get_config()
c.ServerApp.ip = "127.0.0.1"
c.ServerApp.port = {port}
c.ServerApp.port_retries = 0
c.ServerApp.open_browser = False
c.ServerApp.allow_root = True
c.ServerApp.root_dir = {root!r}
c.ServerApp.password = ""
c.ServerApp.disable_check_xsrf = True
c.IdentityProvider.token = ""
c.LabApp.expose_app_in_browser = True
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.workspaces_dir = {workspaces!r}
c.LabApp.user_settings_dir = {settings!r}
"""
_SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": (
        '{"fetchNews": "false", "checkForUpdates": false}'
    ),
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
}
_READY = """() => {
    const bar = document.querySelector('#jp-main-statusbar')?.innerText ?? 'Connecting';
    const session = window.jupyterapp?.shell.currentWidget?.context?.sessionContext?.session;
    return !/Connecting|Initializing|Starting/.test(bar) && session?.kernel?.status === 'idle';
}"""
_RUN = """async (index) => {
    window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
    return await window.jupyterapp.commands.execute('notebook:run-cell');
}"""

_INTERRUPT = """() => {
    const notebook = window.jupyterapp.shell.currentWidget;
    return notebook.context.sessionContext.session.kernel.interrupt();
}"""


class LabPage:
    """A notebook open in the browser; cells are counted from 0."""

    def __init__(self, page: Page, url: str, name: str) -> None:
        self.page = page
        page.goto(f"{url}/lab/tree/{name}?reset")
        page.locator(".jp-Notebook").wait_for(timeout=60_000)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Waits until the kernel takes cells; an idle indicator alone is not enough."""
        self.page.wait_for_function(_READY, timeout=60_000)

    def cell(self, index: int) -> Locator:
        """The cell with its outputs."""
        return self.page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{index}"]')

    def run(self, index: int) -> str:
        """Runs a cell to its end and returns the text of its outputs."""
        succeeded = self.page.evaluate(_RUN, index)
        assert succeeded, self.output(index)
        prompt = self.cell(index).locator(".jp-InputArea-prompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"), timeout=60_000)
        return self.output(index)

    def begin(self, index: int) -> None:
        """Starts a cell and returns when it runs."""
        self.page.evaluate(f"(index) => {{ ({_RUN})(index); }}", index)
        prompt = self.cell(index).locator(".jp-InputArea-prompt")
        expect(prompt).to_have_text("[*]:")

    def interrupt(self, index: int) -> None:
        """Interrupts the kernel as the stop button does, and waits for the end of a cell."""
        self.page.evaluate(_INTERRUPT)
        prompt = self.cell(index).locator(".jp-InputArea-prompt")
        expect(prompt).to_have_text(re.compile(r"\[\d+\]:"), timeout=30_000)

    def output(self, index: int) -> str:
        """The text of a cell's outputs."""
        return "\n".join(self.cell(index).locator(".jp-OutputArea-output").all_inner_texts())

    def kill_kernel(self, pid: int) -> str:
        """Kills the kernel, dismisses the dialog, waits for the next; returns the dialog's text."""
        os.kill(pid, signal.SIGKILL)
        dialog = self.page.locator(".jp-Dialog")
        dialog.wait_for(timeout=30_000)
        text = dialog.locator(".jp-Dialog-content").inner_text()
        dialog.get_by_role("button", name="Ok").click()
        indicator = self.page.locator(".jp-Notebook-ExecutionIndicator")
        expect(indicator).to_have_attribute("data-status", "idle", timeout=60_000)
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


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """Runs a JupyterLab over `folder/root` with the kernel installed; gives its address."""
    (folder / "root").mkdir(exist_ok=True)
    for name, text in _SETTINGS.items():
        file = folder / "settings" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    environ = {
        **os.environ,
        "HOME": str(folder),
        "PYTHONPATH": package_path(),
        "JUPYTER_PATH": str(folder / "prefix" / "share" / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    install = [sys.executable, "-m", "nosync", "install", "--prefix", str(folder / "prefix")]
    subprocess.run(install, env=environ, check=True, capture_output=True, timeout=60)
    port = _free_port()
    config = folder / "config.py"
    config.write_text(
        _CONFIG.format(
            port=port,
            root=str(folder / "root"),
            workspaces=str(folder / "workspaces"),
            settings=str(folder / "settings"),
        )
    )
    command = [sys.executable, "-m", "jupyterlab", "--config", str(config)]
    server = subprocess.Popen(
        command, env=environ, cwd=folder, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert server.stderr is not None
    drain = threading.Thread(target=server.stderr.read, daemon=True)
    try:
        said = []
        for line in server.stderr:
            said.append(line)
            if "is running at" in line:
                break
        else:
            raise RuntimeError("JupyterLab did not start:\n" + "".join(said[-20:]))
        drain.start()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)
        if drain.ident is not None:
            drain.join(timeout=30)
        server.stderr.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def browser_page(chromium: str) -> Iterator[Page]:
    """A page of a headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--disable-gpu"])
        try:
            yield browser.new_page(
                viewport={"width": 1080, "height": 1158}, device_scale_factor=1.5
            )
        finally:
            browser.close()
