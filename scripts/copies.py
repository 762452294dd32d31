"""Copies of the tree, with a warm Python in each: there one thing at a time is changed and tested.

Nothing of the tree itself is touched. What is compiled in a copy is valid for the text that it was
compiled from, not for its second and size: a mutant differs from its module in neither.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mutants import Mutant
from warm import Warm

NO_TESTS = 4  # how pytest ends if it cannot find a test, or cannot import what it is in
START_S = 30
OPTIONS = ("-x", "-q", "--tb=line", "-p", "no:cacheprovider", "--timeout=0")
REWRITTEN = "ignore::pytest.PytestAssertRewriteWarning"  # Hypothesis is there before pytest


class Copy:
    """A copy of the tree, or what else lies in a folder.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = path / "out"
        """What the last run said."""
        folders = (path, path / "widgets", path / "magics")
        env = {**os.environ, "PYTHONPATH": ":".join(map(str, folders))}
        env |= {"HYPOTHESIS_PROFILE": "mutate", "PYTEST_ADDOPTS": f"-W {REWRITTEN}"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        self._warm = Warm(path, env)

    def run(self, argv: list[str], limit: float, **env: str) -> int | None:
        """Runs a Python program: how it ended, None if that takes too long.

        Args:
            limit: of seconds of the processor's time, beside those to start.
        """
        return self._warm.run(argv, self.out, START_S + limit, env)

    def ask(self, tests: list[str], limit: float, *options: str, **env: str) -> int | None:
        """Runs tests until one fails."""
        (self.path / "chosen").write_text("\n".join(tests))
        return self.run(["-m", "pytest", *OPTIONS, *options, "@chosen"], limit, **env)

    def said(self) -> str:
        """What the last run said."""
        return self.out.read_text(errors="replace")

    def failed(self) -> str | None:
        """The test that failed in the last run, if one did."""
        found = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", self.said(), flags=re.M)
        return found[1] if found else None

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Has a mutant in place of its module for a while."""
        module = self.path / mutant.file
        source = module.read_text()
        module.write_text(mutant.apply(source))
        try:
            yield
        finally:
            module.write_text(source)

    def close(self) -> None:
        """Ends its Python."""
        self._warm.close()


class Copies:
    """Some copies of a tree, one for each job.

    Args:
        top: the tree, in which `git` tells what belongs to it.
        home: where the copies lie.
    """

    def __init__(self, top: Path, home: Path, count: int) -> None:
        self._top = top
        self._paths = [home / f"copy{number}" for number in range(count)]
        self._all: list[Copy] = []
        self._free: queue.Queue[Copy] = queue.Queue()

    def __enter__(self) -> Copies:
        first, *others = self._paths
        self._remove()
        listed = ["git", "ls-files", "-co", "--exclude-standard"]
        names = subprocess.run(listed, cwd=self._top, capture_output=True, text=True, check=True)
        for name in names.stdout.splitlines():
            if (self._top / name).is_file():
                (first / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self._top / name, first / name)
        how = ("-m", "compileall", "-q", "--invalidation-mode", "checked-hash")
        subprocess.run([sys.executable, *how, "nosync_nb"], cwd=first, check=True)
        for path in others:
            shutil.copytree(first, path)
        self._all = [Copy(path) for path in self._paths]
        for each in self._all:
            self._free.put(each)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._all:
            each.close()
        self._remove()

    @contextmanager
    def one(self) -> Iterator[Copy]:
        """A copy that nobody else uses meanwhile."""
        copy = self._free.get()
        try:
            yield copy
        finally:
            self._free.put(copy)

    def _remove(self) -> None:
        for path in self._paths:
            shutil.rmtree(path, ignore_errors=True)
