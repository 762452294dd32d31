"""A process that has imported all that tests import but the product, and forks for each run.

    python scripts/warm.py TOP      (a line of JSON asks, a line of JSON answers)

Most of a run of a few tests are imports of numpy, Arrow, pytest and hypothesis, which no mutant
changes: here they are made once. A run ends with all that it has started: what its processes leave
behind is adopted here (on Linux) and killed, keepers and servers that left its group too.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

_ADOPTS = 36  # PR_SET_CHILD_SUBREAPER of Linux
_LOOK_S = 0.05


def serve(top: Path) -> None:
    """Answers each line of the input, until it ends or the one who asks does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ADOPTS, 1, 0, 0, 0)
    for name in _imported(top):
        with contextlib.suppress(BaseException):  # what cannot be imported alone is imported later
            importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"code": run(asked)}), flush=True)


def run(asked: dict[str, Any]) -> int | None:
    """The exit code of one run, None if its time or its processor's time was up."""
    child = os.fork()
    if child == 0:
        _be(asked)
    ends = time.monotonic() + asked["seconds"]
    status = None
    try:
        while status is None and time.monotonic() < ends:
            done, found = os.waitpid(child, os.WNOHANG)
            status = found if done else time.sleep(_LOOK_S)
    finally:
        _end_all()
    code = None if status is None else os.waitstatus_to_exitcode(status)
    return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code


def _imported(top: Path) -> list[str]:
    """The modules that the engine and a first test import, but for those below the tree."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        test = "tests/rows/test_counts.py"
        out = os.devnull
        asked = {"cwd": str(top), "env": {"PYTHONPATH": str(top)}, "out": out, "cpu_s": 300}
        asked |= {"pytest": ["--collect-only", "-q", "-p", "no:cacheprovider", test]}
        _be(asked, report=writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        names = pipe.read().split()
    os.waitpid(child, 0)
    return names


def _be(asked: dict[str, Any], *, report: int | None = None) -> None:
    """Becomes the run that was asked for; does not return."""
    code = 70
    try:
        os.setsid()
        limit = int(asked["cpu_s"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(out, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(asked["cwd"])
        os.environ.update(asked["env"])
        sys.dont_write_bytecode = True  # a mutant of the same second and size is another file
        sys.path[:0] = [asked["cwd"], *asked["env"]["PYTHONPATH"].split(":")]
        if "pytest" in asked:
            import pytest

            code = int(pytest.main([*asked["pytest"], "-W", _REWRITE]))
        else:
            sys.argv = asked["script"]
            runpy.run_path(asked["script"][0], run_name="__main__")
            code = 0
        if report is not None:
            os.write(report, " ".join(_outside(asked["cwd"])).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


_REWRITE = "ignore::pytest.PytestAssertRewriteWarning"  # plugins that were imported before


def _outside(top: str) -> list[str]:
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith(top) and "conftest" not in name:
            found.append(name)
    return found


def _end_all() -> None:
    """Kills and waits for whatever descends from here."""
    while True:
        for process in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = list(parents.get(os.getpid(), []))
    for each in found:
        found += parents.get(each, [])
    return found


if __name__ == "__main__":
    serve(Path(sys.argv[1]).resolve())
