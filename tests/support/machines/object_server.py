"""An object store of a test's own: moto's server, a process on loopback that ends with the test."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import pytest

_WAIT_S = 60.0
_RUNNING = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
_REQUEST = re.compile(r'"(?:\x1b\[\d+m)*([A-Z]+) (\S+) HTTP/[\d.]+(?:\x1b\[\d+m)*"')


class ObjectServer:
    """The server, as a context manager.

    Attributes:
        url: its endpoint.
        requests: the method and path of each request so far; a thread appends to it.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.url = ""
        self._read = threading.Condition()
        self._marks = 0

    def __enter__(self) -> ObjectServer:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            running = _RUNNING.search(line)
            if running:
                self.url = running[1]
                break
        assert self.url, "the server has ended"
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _follow(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            request = _REQUEST.search(line)
            if request:
                with self._read:
                    self.requests.append((request[1], request[2]))
                    self._read.notify_all()

    def settled(self) -> int:
        self._marks += 1
        mark = f"/moto-api/?mark={self._marks}"
        urllib.request.urlopen(f"{self.url}{mark}").close()
        with self._read:
            assert self._read.wait_for(lambda: ("GET", mark) in self.requests, _WAIT_S)
            return len(self.requests)

    def make(self, bucket: str) -> None:
        urllib.request.urlopen(
            urllib.request.Request(f"{self.url}/{bucket}", data=b"", method="PUT")
        ).close()

    def environment(self) -> dict[str, str]:
        """The environment of a client."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": "never-told",
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def with_bucket() -> Iterator[ObjectServer]:
    """Runs a server with a bucket, and sets the environment of this process for it."""
    with ObjectServer() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment().items():
            patch.setenv(name, value)
        running.make("bucket")
        yield running
