"""A program in its own name spaces, which may mount disks and has another host name.

Not every machine grants that right. The attempt shows it, and the test is then counted as not run,
with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from fault_matrix import forbidden

TOP = Path(__file__).resolve().parents[3]
FORBIDDEN = 77
"""The exit status of a program that lacks a right; its output says why."""


@cache
def _refused(spaces: str) -> str:
    """The reason why this machine grants no such name spaces; empty if it does."""
    if shutil.which("unshare") is None:
        return "no program unshare"
    tried = subprocess.run(
        ["unshare", *spaces.split(), "true"], capture_output=True, text=True, check=False
    )
    return "" if tried.returncode == 0 else f"no name spaces ({spaces})"


def run(spaces: str, code: str, *arguments: str, **env: str) -> str:
    """Runs a program in name spaces; returns what it prints.

    Args:
        spaces: options of `unshare`.
    """
    if why := _refused(spaces):
        forbidden(why)
    path = [str(TOP), str(TOP / "tests" / "support")]
    done = subprocess.run(
        ["unshare", *spaces.split(), sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == FORBIDDEN:
        forbidden(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
