"""The replicas of a measurement: folders, or servers, which are processes that end with it.

A server may be delayed, by a proxy on which every byte takes some time longer, or be stopped.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
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

    def stop(self, number: int) -> None:
        """Has a server answer nothing any more."""
        self._servers[number].send_signal(signal.SIGSTOP)

    def cpu_seconds(self) -> float:
        """What the servers have computed until now."""
        return sum(computed(each.pid) for each in self._servers)


def computed(pid: int) -> float:
    """Returns the CPU seconds of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def keepers(path: str) -> list[int]:
    """Returns the processes that ship a log."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"nosync_nb.keeper" in words and path.encode() in words:
            found.append(int(folder.name))
    return found


class LateWay:
    """A port of this machine that forwards to another, each way with a delay.

    It ends with the process.

    Attributes:
        port: of it.
    """

    def __init__(self, port: int, delay_s: float) -> None:
        self._target, self._delay_s = port, delay_s
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open = [self._listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Ends all connections, and takes no more."""
        for each in self._open:
            with suppress(OSError):  # the other end has gone
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                here, _ = self._listening.accept()
                self._open.append(here)
                there = socket.create_connection(("127.0.0.1", self._target))
                self._open.append(there)
                for source, target in ((here, there), (there, here)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    due: queue.Queue[tuple[float, bytes]] = queue.Queue()
                    threading.Thread(target=self._hear, args=(source, due), daemon=True).start()
                    threading.Thread(target=self._say, args=(target, due), daemon=True).start()

    def _hear(self, source: socket.socket, due: queue.Queue[tuple[float, bytes]]) -> None:
        data = b"begun"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            due.put((time.monotonic() + self._delay_s, data))

    def _say(self, target: socket.socket, due: queue.Queue[tuple[float, bytes]]) -> None:
        with suppress(OSError):  # the other end has gone
            while True:
                when, data = due.get()
                time.sleep(max(0.0, when - time.monotonic()))
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(data)


@contextmanager
def places(kind: str, folder: Path, count: int, *, late_s: float = 0.0) -> Iterator[Places]:
    """Provides replicas of a kind, as long as the block runs.

    Args:
        late_s: the delay of the first of them, each way.
    """
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
            url = line.split()[0]
            if late_s and not urls:
                way = LateWay(int(url.rpartition(":")[2]), late_s)
                ends.callback(way.close)
                url = f"grpc://127.0.0.1:{way.port}"
            urls.append(url)
        yield Places(folder, urls, servers)
