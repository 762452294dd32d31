"""The code on pages: the front page and the how-to pages run, in the order of each page.

A fence `python` is a cell of the notebook that `title="job.ipynb"` names (`flights.ipynb` without
one). With `title="load.py"` it is a script, which the page runs by a `bash` fence. Fences `sh` need
a cluster, an account or an installation, and are not run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from internals import process_of
from jupyter.kernels import Kernel, package_path
from machines.object_server import ObjectServer

TOP = Path(__file__).resolve().parents[2]
PAGES = [TOP / "docs" / "index.md", *sorted((TOP / "docs" / "howto").glob("*.md"))]
NEED_SPARK = {"cluster"}
FENCE = re.compile(r"^```(python|bash)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.M | re.S)
BUCKET = re.compile(r"replicas add s3://([a-z-]+)/")


def environment(folder: Path) -> dict[str, str]:
    """The environment of the page's kernels and commands."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": package_path(),
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "share"),
        "NOSYNC_KEY_FILE": str(folder / "keys" / "key"),
    }


class Reader:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._kernels: dict[str, Kernel] = {}

    def run(self, kind: str, title: str, source: str) -> tuple[str, str]:
        if kind == "bash":
            done = subprocess.run(
                ["bash", "-euc", source], cwd=self._folder, capture_output=True, text=True
            )
            return ("error" if done.returncode else "ok"), done.stdout + done.stderr
        if title.endswith(".py"):
            (self._folder / title).write_text(source)
            return "ok", ""
        kernel = self._kernel(title or "flights.ipynb")
        if "SIGKILL" in source:
            kernel.begin(source)
            assert process_of(kernel).wait(timeout=120) == -signal.SIGKILL
            kernel.kill()
            return "ok", ""
        reply = kernel.run(source, timeout=240)
        return reply.status, reply.text

    def _kernel(self, notebook: str) -> Kernel:
        if notebook not in self._kernels:
            kernel = Kernel(self._folder, notebook=notebook)
            self._stack.callback(kernel.close)
            self._kernels[notebook] = kernel
        return self._kernels[notebook]


def run_fences(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str, str]]:
    """Runs the fences of a page; yields the source, the status and the output of each."""
    text = page.read_text()
    with ExitStack() as stack:
        found = environment(folder)
        buckets = {*BUCKET.findall(text)}
        if buckets:
            server = stack.enter_context(ObjectServer())
            found |= server.environment()
            for bucket in buckets:
                server.make(bucket)
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        reader = Reader(folder, stack)
        for kind, title, source in FENCE.findall(text):
            yield source, *reader.run(kind, title, source)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.spark] if page.stem in NEED_SPARK else [])
        for page in PAGES
    ],
    ids=lambda page: page.stem,
)
def test_code_of_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem not in NEED_SPARK:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))  # so that no JVM can be started
    ran = 0
    for source, status, output in run_fences(page, tmp_path, monkeypatch):
        assert status == "ok", f"{source}\n\n{output}"
        ran += 1
    assert ran
