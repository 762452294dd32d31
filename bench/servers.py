"""Where the replicas of a measurement are: folders, or servers, processes that end with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.report import TOP, MeasurementError

KINDS = ("folder", "server")
_TICKS = os.sysconf("SC_CLK_TCK")


class Places:
    """Replicas in the folders `replica-0`, `replica-1`, ... of a folder.

    Attributes:
        urls: of them, in order.
    """

    def __init__(self, folder: Path, urls: list[str], servers: list[subprocess.Popen[str]]) -> None:
        self._folder, self._servers = folder, servers
        self.urls = urls

    def lose(self, number: int) -> None:
        """Takes one away, with its disk."""
        if self._servers:
            self._servers[number].kill()
            self._servers[number].wait()
        shutil.rmtree(self._folder / f"replica-{number}")

    def cpu_seconds(self) -> float:
        """What the servers have computed until now."""
        fields = (Path(f"/proc/{each.pid}/stat").read_text().split() for each in self._servers)
        return sum((int(each[13]) + int(each[14])) / _TICKS for each in fields)


@contextmanager
def places(kind: str, folder: Path, count: int) -> Iterator[Places]:
    """Replicas of a kind, as long as the block runs."""
    folders = [folder / f"replica-{number}" for number in range(count)]
    if kind == "folder":
        yield Places(folder, [f"file://{each}" for each in folders], [])
        return
    with ExitStack() as ends:
        servers, urls = [], []
        for each in folders:
            command = [sys.executable, "-m", "nosync_nb.replica", str(each), "--port", "0"]
            server = subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE, text=True)
            ends.callback(server.communicate)
            ends.callback(server.kill)
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise MeasurementError("a replica server did not start")
            servers.append(server)
            urls.append(line.split()[0])
        yield Places(folder, urls, servers)
