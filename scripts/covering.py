"""Coverage: which tests of one file run which lines of the engine, and how long they take.

    python scripts/covering.py TEST_FILE RESULT.json

One file at a time, so that a collection that was interrupted goes on where it was, and a test file
that changed is looked at anew alone. What tests do in other processes is not seen.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from hashlib import blake2b
from pathlib import Path

import pytest
from coverage import Coverage
from mutants import spans

MARKS = "not spark and not browser and not slow"


class Contexts:
    """Names the running test to the coverage, and keeps how each went."""

    def __init__(self, cover: Coverage) -> None:
        self.cover = cover
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

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

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that does not pass tells nothing of a mutant."""
        if not report.passed:
            self.failed.add(report.nodeid)


def collect(top: Path, test: str, result: Path) -> None:
    """Runs a test file and writes what it covers."""
    engine = sorted(str(p) for p in (top / "nosync_nb").rglob("*.py"))
    cover = Coverage(data_file=None, include=[str(top / "nosync_nb" / "*")], config_file=False)
    contexts = Contexts(cover)
    cover.start()
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-m", MARKS]
    pytest.main([test, *options], plugins=[contexts])
    cover.stop()
    data = cover.get_data()
    lines: dict[str, dict[str, int]] = defaultdict(dict)
    for path in engine:
        name = str(Path(path).relative_to(top))
        for line, tests in data.contexts_by_lineno(path).items():
            for each in filter(None, tests):
                lines[each][name] = lines[each].get(name, 0) | 1 << line
    sources = {str(Path(path).relative_to(top)): Path(path).read_text() for path in engine}
    good = [each for each in contexts.seconds if each not in contexts.failed]
    found = {
        "test": digest((top / test).read_text()),
        "engine": {name: digest(text) for name, text in sources.items()},
        "functions": {name: list(spans(text)) for name, text in sources.items()},
        "tests": {
            each: {
                "seconds": round(contexts.seconds[each], 3),
                "lines": {name: f"{mask:x}" for name, mask in lines[each].items()},
            }
            for each in good
        },
        "failed": sorted(contexts.failed),
    }
    part = result.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.replace(result)


def digest(text: str) -> str:
    """A short digest of a source."""
    return blake2b(text.encode(), digest_size=8).hexdigest()


if __name__ == "__main__":
    collect(Path.cwd(), sys.argv[1], Path(sys.argv[2]))
