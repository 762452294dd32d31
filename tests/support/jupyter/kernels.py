"""A real kernel, started from the installed kernelspec, as a Jupyter server would."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

import nosync
import nosync_nb
import nosync_widgets
from nosync.kernelspec import install

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def package_path() -> str:
    packages = (nosync, nosync_widgets, nosync_nb)
    roots = {str(Path(str(package.__file__)).parent.parent) for package in packages}
    return os.pathsep.join(sorted(roots))


@dataclass
class Reply:
    """The result of a cell: `status` of the reply, its text, HTML and displayed widgets."""

    status: str
    text: str
    html: str
    errors: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)

    def __contains__(self, part: str) -> bool:
        return part in self.text


class Front:
    """Runs cells in a kernel, as a front end does, over a connected client."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client: Any = client

    def run(
        self, source: str, *, cell: str | None = None, hidden: bool = False, timeout: float = 60
    ) -> Reply:
        """Runs a cell and returns its result.

        Args:
            cell: its id, which JupyterLab sends, and runners do not.
            hidden: as VS Code runs code of its own.
        """
        reply = Reply("", "", "")

        def collect(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                reply.text += content["text"]
            elif message["msg_type"] == "error":
                text = _COLOUR.sub("", "\n".join(content["traceback"]))
                reply.text += text + "\n"
                reply.errors.append(text)
            elif message["msg_type"] in ("display_data", "execute_result"):
                data = content["data"]
                reply.text += data.get("text/plain", "") + "\n"
                reply.html += data.get("text/html", "")
                model = data.get("application/vnd.jupyter.widget-view+json")
                if model:
                    reply.models.append(model["model_id"])

        self._client.session.metadata.clear()
        if cell is not None:
            self._client.session.metadata.update(cellId=cell)
        answer = self._client.execute_interactive(
            source, store_history=not hidden, timeout=timeout, output_hook=collect
        )
        reply.status = answer["content"]["status"]
        return reply

    def begin(self, source: str) -> str:
        identity: str = self._client.execute(source)
        return identity

    def wait_for_text(self, part: str, *, timeout: float = 60) -> None:
        while True:
            message = self._client.get_iopub_msg(timeout=timeout)
            if part in message["content"].get("text", ""):
                return

    def finish(self, identity: str, *, timeout: float = 60) -> Reply:
        while True:
            answer = self._client.get_shell_msg(timeout=timeout)
            if answer["parent_header"].get("msg_id") == identity:
                break
        reply = Reply(answer["content"]["status"], answer["content"].get("ename", "") + "\n", "")
        while True:
            message = self._client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != identity:
                continue
            content = message["content"]
            if message["msg_type"] == "error":
                reply.errors.append(_COLOUR.sub("", "\n".join(content["traceback"])))
            reply.text += content.get("text", "") + content.get("data", {}).get("text/plain", "")
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return reply


class Kernel(Front):
    """The kernel of one notebook; `restart` and `kill` keep its name, as servers do.

    Args:
        notebook: its file below `folder`; None: no name is known, as in VS Code.
    """

    def __init__(self, folder: Path, *, notebook: str | None = "flights.ipynb") -> None:
        prefix = folder / "prefix"
        install(prefix=str(prefix))
        self._env = {
            "NOSYNC_KEY_FILE": str(prefix / "keys" / "key"),  # not beside the user's own logs
            **os.environ,
            "PYTHONPATH": package_path(),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        self._env.pop("JPY_SESSION_NAME", None)
        self._folder = folder
        if notebook is not None:
            self.rename(notebook)
        # By default the path is relative to each process's folder; a socket's has 107 bytes.
        self._sockets = Path(tempfile.mkdtemp(prefix="nosync-"))
        self._kernels = str(prefix / "share" / "jupyter" / "kernels")
        self._manager = self._managed()
        super().__init__(self._started())

    def _managed(self) -> KernelManager:
        """Makes a manager whose connection file has the kernel's id in its name, as servers do."""
        known = str(uuid4())
        manager = KernelManager(
            kernel_name="nosync",
            transport="ipc",
            ip=str(self._sockets / known),
            connection_file=str(self._sockets / f"kernel-{known}.json"),
        )
        manager.kernel_spec_manager.kernel_dirs.insert(0, self._kernels)
        return manager

    def rename(self, notebook: str) -> None:
        """Sets the name of the notebook for the next process."""
        self._env["JPY_SESSION_NAME"] = str(self._folder / notebook)

    def _started(self, folder: str = "") -> BlockingKernelClient:
        self._manager.start_kernel(env=self._env, cwd=str(self._folder / folder))
        return self._connected()

    def _connected(self) -> BlockingKernelClient:
        client: BlockingKernelClient = self._manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        return client

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        """Restarts as the menu does: a clean shutdown, then a new process."""
        self._client.stop_channels()
        self._manager.restart_kernel(now=False, env=self._env, cwd=str(self._folder))
        self._client = self._connected()

    def kill(self, before: Callable[[], object] = lambda: None) -> None:
        """Kills the process, calls `before`, then starts a new one."""
        self._client.stop_channels()
        self._manager.signal_kernel(signal.SIGKILL)
        provisioner = self._manager.provisioner
        assert provisioner is not None
        provisioner.process.wait(timeout=120)  # type: ignore[attr-defined]
        before()
        self._manager.restart_kernel(now=True, env=self._env, cwd=str(self._folder))
        self._client = self._connected()

    def renew(self, notebook: str, *, folder: str = "") -> None:
        """Ends the process and starts another kernel in `folder`, as on another day."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=False)
        self._manager = self._managed()
        self.rename(notebook)
        self._client = self._started(folder)

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        shutil.rmtree(self._sockets, ignore_errors=True)
