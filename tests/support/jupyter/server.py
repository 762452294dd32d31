"""A Jupyter server and its API; kernels are contacted directly."""

from __future__ import annotations

import json
import os
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
import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from machines.ports import free_port

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
_DAY_NS = 24 * 3600 * 10**9
_SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": (
        '{"fetchNews": "false", "checkForUpdates": false}'
    ),
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
}


@contextmanager
def served(folder: Path, root: Path, *, app: str = "jupyterlab") -> Iterator[str]:
    """Runs a server over `root` for the block; yields its address.

    Args:
        folder: of the server alone: its home, settings, kernels.
        app: `jupyter_server` has no pages, and starts in half the time.
    """
    server = Server(folder, root, app=app)
    try:
        yield server.url
    finally:
        server.stop()


class Server:
    """A server over `root` with the kernel installed; arguments as of `served`.

    Attributes:
        url: its address, another one after `begin_next_day`.
    """

    def __init__(self, folder: Path, root: Path, *, app: str = "jupyterlab") -> None:
        self._folder, self._root, self._app = folder, root, app
        self._day = 0
        for name, text in _SETTINGS.items():
            file = folder / "settings" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        prefix = str(folder / "prefix")
        install = [sys.executable, "-m", "nosync", "install", "--prefix", prefix]
        subprocess.run(install, env=self._environ(), check=True, capture_output=True, timeout=60)
        self.url = self._start()

    @property
    def runtime(self) -> Path:
        return self._folder / ("runtime" if self._day == 0 else f"runtime-{self._day}")

    def _environ(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self._folder),
            "PYTHONPATH": package_path(),
            "JUPYTER_PATH": str(self._folder / "prefix" / "share" / "jupyter"),
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "IPYTHONDIR": str(self._folder / "ipython"),
            "PYTHONWARNINGS": "ignore:pkg_resources is deprecated",  # as `make lab` has it
        }

    def _start(self) -> str:
        port = free_port()
        config = self._folder / "config.py"
        config.write_text(
            _CONFIG.format(
                port=port,
                root=str(self._root),
                workspaces=str(self._folder / "workspaces"),
                settings=str(self._folder / "settings"),
            )
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._app, "--config", str(config)],
            env=self._environ(),
            cwd=self._folder,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        stderr = self._process.stderr
        assert stderr is not None
        self._drain = threading.Thread(target=stderr.read, daemon=True)
        said = []
        for line in stderr:
            said.append(line)
            if "is running at" in line:
                break
        else:
            self.stop()
            raise RuntimeError("the server did not start:\n" + "".join(said[-20:]))
        self._drain.start()
        _await(port)
        return f"http://127.0.0.1:{port}"

    def begin_next_day(self) -> None:
        """Kills the server and its kernels, lets a day pass, and starts another server.

        The new server reuses no kernel id, connection file or address.
        """
        kernels = psutil.Process(self._process.pid).children()
        for each in (self._process, *kernels):  # a kernel ends by itself, but a second later
            each.kill()
        self._wait()
        _, left = psutil.wait_procs(kernels, timeout=120)
        assert not left
        for path in (self._root, *self._root.rglob("*")):
            status = path.stat()
            os.utime(path, ns=(status.st_atime_ns - _DAY_NS, status.st_mtime_ns - _DAY_NS))
        self._day += 1
        self.url = self._start()

    def stop(self) -> None:
        """Ends the server and its kernels, by force if necessary.

        It sends SIGTERM only: after Ctrl-C a pending message to a dead kernel can keep the process
        forever.
        """
        kernels = psutil.Process(self._process.pid).children()
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for each in psutil.wait_procs(kernels, timeout=10)[1]:
            each.kill()
        self._wait()

    def _wait(self) -> None:
        self._process.wait(timeout=120)
        if self._drain.ident is not None:
            self._drain.join(timeout=120)
        if self._process.stderr is not None:
            self._process.stderr.close()


def _await(port: int) -> None:
    """Waits until the port accepts connections: the server reports that it runs before it
    listens.
    """
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=120).close()
            return
        except ConnectionRefusedError:
            threading.Event().wait(0.02)


class ServedNotebook(Front):
    """An open notebook of a server: its file, its session, its kernel.

    Args:
        folder: of the server.
        path: of the notebook below the server's root; "": a new one, which the server names.
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
        made = [nbformat.v4.new_code_cell(text, id=known) for known, text in cells]
        content = nbformat.v4.new_notebook(cells=made)
        notebook = {"type": "notebook", "format": "json", "content": content}
        self._ask("PUT", f"contents/{self.path}", notebook)

    def rename(self, path: str) -> None:
        """Renames the file and updates the session, as the page does."""
        self._ask("PATCH", f"contents/{self.path}", {"path": path})
        self._ask("PATCH", f"sessions/{self._session}", {"path": path, "name": path})
        self.path = path

    def copy(self) -> str:
        return str(self._ask("POST", "contents", {"copy_from": self.path})["path"])

    def delete(self) -> None:
        self._ask("DELETE", f"contents/{self.path}")

    def restart(self) -> None:
        self.leave()
        self._ask("POST", f"kernels/{self._kernel}/restart")
        self._client = self._connected()

    def leave(self) -> None:
        """Closes the page; the session continues."""
        self._client.stop_channels()

    def close(self) -> None:
        self.leave()
        self._ask("DELETE", f"sessions/{self._session}")
