"""Replica servers as processes; each ends with its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from machines.ports import free_port


class ReplicaServer:
    """A server over a folder; it restarts at its former port.

    Args:
        program: runs instead of the command.

    Attributes:
        url: of the server.
        folder: of its copies.
    """

    def __init__(self, folder: Path, *options: object, program: str | None = None) -> None:
        self.folder, self._options = folder, options
        self._program = ["-m", "nosync_nb.replica"] if program is None else ["-c", program]
        self._process: subprocess.Popen[str] | None = None
        self.port = free_port()
        self.url = ""

    def start(self) -> ReplicaServer:
        """Starts it, and waits until it listens."""
        command = [sys.executable, *self._program, self.folder, "--port", self.port]
        self._process = subprocess.Popen(
            [*map(str, command), *map(str, self._options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(self._process.communicate()[1])
        self.url = line.split()[0]
        self.port = int(self.url.rpartition(":")[2])
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def line(self) -> str:
        """The next line that it prints."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        assert self._process is not None
        self._process.communicate()
        code, self._process = self._process.returncode, None
        return code

    def end(self) -> None:
        if self._process is not None:
            self.send(signal.SIGCONT)
            self.kill()

    def __enter__(self) -> ReplicaServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()


def keepers(path: Path) -> list[int]:
    """The running keepers of a log."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if keeps(pid, path)]


def keeps(pid: int, path: Path) -> bool:
    """Returns True if a process is a keeper of a log."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"nosync_nb.keeper" in command and str(path).encode() in command
