"""The tutorials: each runs from an empty folder, and survives its kills.

A kernel runs all of them, also through their kills and a second *Run All*. It checks what nbval
checks, and also finds a UsageError. nbval itself runs the shortest one, and in the nightly profile
all without kills.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from internals import process_of
from jupyter.kernels import Kernel, package_path
from soak import tried

from nosync.kernelspec import install

TOP = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((TOP / "tutorials").glob("*.ipynb"))
NEEDS_JAVA = "06-spark"
KILLS = "kills-kernel"
RAISES = "raises-exception"


def cells_of(path: Path) -> list[tuple[str, set[str]]]:
    notebook: Any = nbformat.read(path, as_version=4)
    return [
        (cell.source, set(cell.metadata.get("tags", [])))
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def kills(path: Path) -> bool:
    return any(KILLS in tags for _, tags in cells_of(path))


def for_nbval() -> list[Path]:
    """The tutorials that nbval runs: those without kills, because each starts its own Spark."""
    paths = sorted((path for path in NOTEBOOKS if not kills(path)), key=lambda p: len(cells_of(p)))
    return tried(paths[:1], soak=paths)


def wait_for_death(kernel: Kernel) -> None:
    assert process_of(kernel).wait(timeout=120) == -signal.SIGKILL


def run_all(kernel: Kernel, cells: list[tuple[str, set[str]]]) -> None:
    """Runs cells; each must end with its expected status, and show no unexpected error."""
    for source, tags in cells:
        reply = kernel.run(source, timeout=240)
        expected = "error" if RAISES in tags else "ok"
        assert reply.status == expected, f"{source}\n\n{reply.text}"
        assert expected == "error" or reply.errors == [], f"{source}\n\n{reply.text}"


@pytest.mark.spark
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_runs_and_survives_kills(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.stem != NEEDS_JAVA:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))  # so that no JVM can be started
    kernel = Kernel(tmp_path, notebook=path.name)
    before: list[tuple[str, set[str]]] = []
    try:
        for source, tags in cells_of(path):
            if KILLS not in tags:
                run_all(kernel, [(source, tags)])
                before.append((source, tags))
                continue
            kernel.begin(source)
            wait_for_death(kernel)
            kernel.kill()
            if "for " in source:
                before.append((source, tags))
            run_all(kernel, before)
    finally:
        kernel.close()


@pytest.mark.spark
@pytest.mark.parametrize("path", for_nbval(), ids=lambda path: path.stem)
def test_nbval_accepts_tutorial(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path)
    install(prefix=str(tmp_path / "prefix"))
    environment = {
        **os.environ,
        "PYTHONPATH": package_path(),
        "JUPYTER_PATH": str(tmp_path / "prefix" / "share" / "jupyter"),
        "JPY_SESSION_NAME": str(tmp_path / path.name),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "NOSYNC_KEY_FILE": str(tmp_path / "keys" / "key"),
    }
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-kernel-name", "nosync"]
    command += ["-p", "no:cacheprovider", "-q", path.name]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
