"""Coverage: which tests run which lines of the engine, and how long they take.

    python scripts/covering.py TEST_FILE RESULT.json SECONDS

A test file is looked at when it is first asked for, and again when it changes; what was found is
kept. What tests do in other processes is not seen.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from copies import Copies
from coverage import Coverage
from mutants import Mutant, spans

MARKS = "not spark and not browser and not slow"
PATIENCE = 8  # lines that are counted take so many times as long


@dataclass
class Test:
    """A test, with what it runs."""

    name: str
    seconds: float
    lines: dict[str, int]
    size: int


@dataclass
class Seen:
    """What the tests of a file run, and of which state of the modules that is known."""

    tests: list[Test]
    engine: dict[str, str]

    @staticmethod
    def of(known: dict[str, Any]) -> Seen:
        """As it is kept."""
        tests = []
        for name, each in known["tests"].items():
            lines = {file: int(mask, 16) for file, mask in each["lines"].items()}
            size = sum(mask.bit_count() for mask in lines.values())
            tests.append(Test(name, each["seconds"], lines, size))
        return Seen(tests, known["engine"])


class Cover:
    """What the tests of a tree run.

    Args:
        top: the tree.
        home: where it is kept what was seen.
        copies: where test files are looked at.
        look_s: so many seconds of the tests of a file, and not of those beyond.
    """

    def __init__(self, top: Path, home: Path, copies: Copies, look_s: float) -> None:
        self._top, self._home, self._copies, self._look_s = top, home, copies, look_s
        self._known: dict[Path, Seen] = {}
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
        home.mkdir(parents=True, exist_ok=True)

    def of(self, mutant: Mutant, files: Iterable[Path]) -> tuple[list[Test], list[Test]]:
        """The tests of some files that run a mutant's line, and others that run its module.

        Where the module changed since, or the line runs when the module is imported, those that
        run any line of it. The others count too: what is computed once for all tests (by a cache)
        shows as run by the first of them alone. Those most devoted to the module, for the seconds
        they take, come first.
        """
        found, others = [], []
        source = (self._top / mutant.file).read_text()
        for seen in map(self._seen, files):
            same = seen.engine.get(mutant.file) == digest(source)
            wanted = _wanted(mutant, source, same=same)
            for test in seen.tests:
                if mask := test.lines.get(mutant.file, 0):
                    (found if mask & wanted else others).append(test)
        for tests in (found, others):
            tests.sort(key=lambda t: -t.lines[mutant.file].bit_count() / t.size / (t.seconds + 0.2))
        return found, others

    def _seen(self, file: Path) -> Seen:
        """What a test file runs."""
        with self._locks[file]:
            if file not in self._known:
                result = result_of(self._home, file)
                known = json.loads(result.read_text()) if result.exists() else {}
                enough = not known.get("left") or known["seconds"] >= self._look_s
                if known.get("test") != digest(file.read_text()) or not enough:
                    known = self._look(file, result)
                self._known[file] = Seen.of(known)
            return self._known[file]

    def _look(self, file: Path, result: Path) -> dict[str, Any]:
        """Looks at a test file, and keeps what it saw, be it nothing."""
        part = result.with_suffix(".part")
        part.unlink(missing_ok=True)
        test, limit = str(file.relative_to(self._top)), PATIENCE * self._look_s
        script = str(Path(__file__).resolve())
        with self._copies.one() as copy:
            copy.run([script, test, str(part), str(self._look_s)], limit)
            if not part.exists():
                nothing = {"test": digest(file.read_text()), "seconds": self._look_s, "left": 1}
                part.write_text(json.dumps({**nothing, "engine": {}, "tests": {}}))
                result.with_suffix(".log").write_text(copy.said())
        part.replace(result)
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def _wanted(mutant: Mutant, source: str, *, same: bool) -> int:
    """The lines of which a test has to run one, as bits."""
    inside = any(name == mutant.function for name, _, _ in spans(source))
    if same and inside:
        return (1 << mutant.span[2] + 1) - (1 << mutant.statement)
    return -1


def result_of(home: Path, test: Path) -> Path:
    """The file with what a test file covers; test files in several folders share a name."""
    return home / f"{'-'.join(test.parts[-3:-1])}-{test.stem}.json"


def digest(text: str) -> str:
    """A short digest of a source."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


class Contexts:
    """Names the running test to the coverage, and keeps how each went."""

    def __init__(self, cover: Coverage, seconds_max: float) -> None:
        self.cover = cover
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.left = 0
        self._seconds_max = seconds_max

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Counts the test's fixtures to the first test that makes them."""
        self.cover.switch_context(item.nodeid)
        began = time.process_time()  # of a machine that does other things too
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - began
            self.cover.switch_context("")
            self.left = len(item.session.items) - len(self.seconds)
            if self.left and sum(self.seconds.values()) > self._seconds_max:
                item.session.shouldstop = "looked long enough"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that does not pass tells nothing of a mutant."""
        if not report.passed:
            self.failed.add(report.nodeid)


def collect(top: Path, test: str, result: Path, seconds_max: float) -> None:
    """Runs a test file and writes what it covers."""
    cover = Coverage(data_file=None, include=[str(top / "nosync_nb" / "*")], config_file=False)
    contexts = Contexts(cover, seconds_max)
    cover.start()
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "--timeout=0", "-m", MARKS]
    pytest.main([test, *options], plugins=[contexts])
    cover.stop()
    data = cover.get_data()
    lines: dict[str, dict[str, int]] = defaultdict(dict)
    engine: dict[str, str] = {}
    for path in sorted(data.measured_files()):
        name = str(Path(path).relative_to(top))
        engine[name] = digest(Path(path).read_text())
        for line, tests in data.contexts_by_lineno(path).items():
            for each in filter(None, tests):
                lines[each][name] = lines[each].get(name, 0) | 1 << line
    good = [each for each in contexts.seconds if each not in contexts.failed]
    found = {
        "test": digest((top / test).read_text()),
        "seconds": seconds_max,
        "left": contexts.left,
        "engine": engine,
        "tests": {
            each: {
                "seconds": round(contexts.seconds[each], 3),
                "lines": {name: f"{mask:x}" for name, mask in lines[each].items()},
            }
            for each in good
        },
        "failed": sorted(contexts.failed),
    }
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    collect(Path.cwd(), sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
