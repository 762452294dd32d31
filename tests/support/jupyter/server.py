"""A Jupyter server, and what a front end asks of it; kernels are talked to beside it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import nbformat
from jupyter_client.blocking.client import BlockingKernelClient
from ports import free_port

from jupyter.kernels import Front, package_path

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


@contextmanager
def served(folder: Path, root: Path, *, app: str = "jupyterlab") -> Iterator[str]:
    """Runs a server over `root` with the kernel installed; gives its address.

    Args:
        folder: of the server alone: its home, settings, kernels.
        app: `jupyter_server` has no pages, and starts in half the time.
    """
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
        "PYTHONWARNINGS": "ignore:pkg_resources is deprecated",  # as `make lab` has it
    }
    install = [sys.executable, "-m", "nosync", "install", "--prefix", str(folder / "prefix")]
    subprocess.run(install, env=environ, check=True, capture_output=True, timeout=60)
    port = free_port()
    config = folder / "config.py"
    config.write_text(
        _CONFIG.format(
            port=port,
            root=str(root),
            workspaces=str(folder / "workspaces"),
            settings=str(folder / "settings"),
        )
    )
    command = [sys.executable, "-m", app, "--config", str(config)]
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
            raise RuntimeError("the server did not start:\n" + "".join(said[-20:]))
        drain.start()
        _await(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=120)
        if drain.ident is not None:
            drain.join(timeout=120)
        server.stderr.close()


def _await(port: int) -> None:
    """Waits until somebody listens there: the server says that it runs before it does."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=120).close()
            return
        except ConnectionRefusedError:
            threading.Event().wait(0.02)


class ServedNotebook(Front):
    """A notebook of a server, as a page has it open: its file, its session, its kernel.

    Args:
        folder: of the server.
        path: of the notebook, from the server's root on; "": a new one, which the server names.
    """

    def __init__(self, url: str, folder: Path, path: str = "") -> None:
        self._url = url
        self.path = path or str(self._ask("POST", "contents", {"type": "notebook"})["path"])
        wanted = {"path": self.path, "name": self.path, "type": "notebook"}
        session = self._ask("POST", "sessions", {**wanted, "kernel": {"name": "nosync"}})
        self._session, self._kernel = session["id"], session["kernel"]["id"]
        self._connection = folder / "runtime" / f"kernel-{self._kernel}.json"
        super().__init__(self._connected())

    def _ask(self, method: str, what: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = Request(f"{self._url}/api/{what}", data, method=method)
        request.add_header("Content-Type", "application/json")
        with build_opener(ProxyHandler({})).open(request, timeout=60) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    def _connected(self) -> BlockingKernelClient:
        client = BlockingKernelClient(connection_file=str(self._connection))
        client.load_connection_file()
        client.start_channels(hb=False)  # a kernel that is slow for a second is not a dead one
        client.wait_for_ready(timeout=60)
        return client

    def save(self, *cells: tuple[str, str]) -> None:
        """Saves cells of these ids and texts, as the page does."""
        made = [nbformat.v4.new_code_cell(text, id=known) for known, text in cells]
        content = nbformat.v4.new_notebook(cells=made)
        notebook = {"type": "notebook", "format": "json", "content": content}
        self._ask("PUT", f"contents/{self.path}", notebook)

    def rename(self, path: str) -> None:
        """Renames the file and tells the session, as the page does."""
        self._ask("PATCH", f"contents/{self.path}", {"path": path})
        self._ask("PATCH", f"sessions/{self._session}", {"path": path, "name": path})
        self.path = path

    def copy(self) -> str:
        """Duplicates the file, and returns the path of the copy."""
        return str(self._ask("POST", "contents", {"copy_from": self.path})["path"])

    def delete(self) -> None:
        """Deletes the file."""
        self._ask("DELETE", f"contents/{self.path}")

    def restart(self) -> None:
        """Restarts the kernel as the menu does."""
        self.leave()
        self._ask("POST", f"kernels/{self._kernel}/restart")
        self._client = self._connected()

    def leave(self) -> None:
        """Closes the page; the session goes on."""
        self._client.stop_channels()

    def close(self) -> None:
        """Ends the session, and the kernel with it."""
        self.leave()
        self._ask("DELETE", f"sessions/{self._session}")
