"""A warm Python: it has imported what every test needs, and runs programs in forks of itself.

A program begins in milliseconds, where a new Python takes seconds to import numpy, Arrow and
pytest. Nothing of the engine is imported beforehand: what a fork imports is as it lies on the disk
at that moment. When a program has ended, so has everything that it started (on Linux; elsewhere,
what stayed in its group).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

IMPORTED = ("numpy", "pyarrow.compute", "pyarrow.parquet", "coverage", "pytest")
IMPORTED += ("hypothesis", "hypothesis.stateful")
LINUX = sys.platform == "linux"
LOOK_S = 1.0
IDLE_S = 120
"""So long nothing runs in a program that waits for what never comes; tests wait for up to 60 s."""
WAITING = 10  # by the clock, a program may take so many times what it may of the processor's time
SET_DEATH_SIGNAL, SET_SUBREAPER = 1, 36  # of `prctl`


class Warm:
    """A warm Python in a folder.

    Args:
        place: the folder in which its programs run.
        env: their environment.
    """

    def __init__(self, place: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            cwd=place,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt is ours to handle
        )

    def run(self, argv: list[str], out: Path, limit: float, env: dict[str, str]) -> int | None:
        """Runs a program; returns how it ended, None if it was given up.

        Args:
            argv: `-m` and a module, or a script, then its arguments.
            out: the file that gets what it says.
            limit: of seconds of the processor's time.
            env: is added to the environment.
        """
        asked = {"argv": argv, "out": str(out), "limit": limit, "env": env}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        code: int | None = json.loads(self._process.stdout.readline())
        return code

    def close(self) -> None:
        """Ends it, with the program that it runs."""
        self._process.terminate()
        self._process.communicate()


def main() -> None:
    """Runs one program after the other, as they are asked for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if LINUX:  # whoever loses its parent becomes a child of ours, and is seen; we end with our own
        ctypes.CDLL(None).prctl(SET_SUBREAPER, 1, 0, 0, 0)
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        ended, alive = os.pipe()
        child = os.fork()
        if not child:
            os.close(ended)
            _become(**asked)
        os.close(alive)
        try:
            code = _watched(child, ended, asked["limit"])
        finally:
            os.close(ended)
            _end(child)
        print(json.dumps(code), flush=True)


def _become(argv: list[str], out: str, limit: float, env: dict[str, str]) -> None:
    """Runs a program in this process, and ends with it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    if LINUX:
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 1))
    said = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (said, 1), (said, 2)):
        os.dup2(source, number)
    os.environ.update(env)
    module = argv[0] == "-m"
    sys.argv = argv[module:]
    if module:
        sys.path[0] = os.getcwd()
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(argv[0]).resolve().parent)
        runpy.run_path(argv[0], run_name="__main__")
    sys.exit(0)


def _watched(child: int, ended: int, limit: float) -> int | None:
    """Waits for a program; None if it takes too much, too long, or does nothing any more."""
    began = moved = time.monotonic()
    used = 0.0
    while True:
        select.select([ended], [], [], LOOK_S)  # its end of the pipe is closed with it
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code
        now = time.monotonic()
        before, used = used, sum(_descendants().values())
        if used != before or not LINUX:
            moved = now
        if now - moved > IDLE_S or used > limit or now - began > WAITING * limit + IDLE_S:
            return None


def _descendants() -> dict[int, float]:
    """The processes below this one, with the seconds that they and their dead have used."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
            used[int(stat.parent.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    found = list(children.get(os.getpid(), ()))
    for each in found:
        found += children.get(each, ())
    return {each: used[each] for each in found}


def _end(child: int) -> None:
    """Ends what is left of a program, and waits until it is gone."""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    while True:
        for process in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
