"""The shares of CI's minutes and the time of each, printed at the end of a run.

A whole run has less than 25 minutes on two cores, with its set-up. A share that is exceeded moves
cases to `make soak`, never a promise. Times depend on the machine, so no test checks them.
"""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest

SHARES = (  # the first whose pattern is found in the path of a test below tests/
    ("notebook", 4.0, r"^notebook/"),
    ("expressions", 1.5, r"^expressions/"),
    ("plans", 1.5, r"^dataflow/optimizer/|plan|stage_catch_up|test_explain"),
    ("branches", 1.5, r"^session/timetravel/|branch|rewind|compare|retention|budgets"),
    (
        "replicas and faults",
        4.0,
        r"^store/|^session/(backfill|durability|recovery)/|^properties/faults/|replica|fault"
        r"|persist_levels|recovery|written_once",
    ),
    ("engine and Spark", 7.0, ""),
)


def share(path: str) -> str:
    """The share of a test, by its path below `tests/`."""
    return next(name for name, _, pattern in SHARES if re.search(pattern, path))


class Shares:
    """A plugin of pytest that adds up the times of each share, on all workers."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[share(report.nodeid.removeprefix("tests/"))] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the table after long runs."""
        elapsed, whole = time.monotonic() - self._began, self._seconds.total()
        if elapsed < 120:
            return
        terminalreporter.section("shares: minutes of this run")
        for name, given, _ in SHARES:
            taken = self._seconds[name] / whole * elapsed / 60
            terminalreporter.write_line(f"{name:<20} {taken:5.1f} of {given:.1f}")
