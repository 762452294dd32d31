"""The fault matrix: the tests of each row of `FAULTS.md`, and the rows that a run has tried.

A test declares its rows by `@pytest.mark.fault(row, ...)`. `python tests/support/fault_matrix.py`
updates the lists of `FAULTS.md`, and a house test compares them. A test that needs a right which
the machine refuses (a name space, a mount) is skipped by `forbidden` and counted in the last line
of the run with its reason. In CI nothing else is skipped.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NoReturn

import pytest

TESTS = Path(__file__).resolve().parents[1]
NOT_RUN = "not run: "
ROWS = range(1, 49)


def rows(item: pytest.Item) -> list[int]:
    return sorted({row for mark in item.iter_markers("fault") for row in mark.args})


def forbidden(why: str) -> NoReturn:
    """Skips a test that this machine does not let run; `why` names the missing right."""
    pytest.skip(NOT_RUN + why)


def marked(source: str) -> dict[str, set[int]]:
    """The fault rows of the tests in a source, by name of the test."""
    found: dict[str, set[int]] = defaultdict(set)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    found[node.name] |= {ast.literal_eval(row) for row in mark.args}
    return found


def written(text: str) -> dict[int, set[str]]:
    """The tests that `FAULTS.md` lists in each section."""
    parts = re.split(r"^## (\d+)\. ", text, flags=re.M)
    return {
        int(number): set(re.findall(r"^- `([^`]+)`$", body, flags=re.M))
        for number, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def held() -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, rows_held in marked(path.read_text()).items():
            for row in rows_held:
                found[row].add(f"{path.relative_to(TESTS)}::{name}")
    return found


def level(text: str) -> str:
    """Updates the lists of tests in a text of `FAULTS.md`; its other text stays."""
    first, *parts = re.split(r"^(?=## \d+\. )", text, flags=re.M)
    found = held()
    for number, part in zip(ROWS, parts, strict=True):
        said = re.sub(r"^(- `[^`]+`|Not yet\.)\n", "", part, flags=re.M).strip()
        names = "".join(f"- `{name}`\n" for name in sorted(found[number]))
        first += f"{said}\n\n{names or 'Not yet.'}".rstrip() + "\n\n"
    return first.rstrip() + "\n"


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Counts refused tests separately: the last line has their number and reason."""
    if report.skipped and isinstance(report.longrepr, tuple):
        why = report.longrepr[2].removeprefix("Skipped: ")
        if why.startswith(NOT_RUN):
            return why, "n", "NOT RUN"
    return None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the tried and untried rows, and the events of simulated lives."""
    ran: dict[int, set[str]] = defaultdict(set)
    did: Counter[str] = Counter()
    lives = 0
    for kind, reports in terminalreporter.stats.items():
        for report in reports:
            if getattr(report, "when", "") != ("setup" if kind == "skipped" else "call"):
                continue
            for name, value in report.user_properties:
                if name == "fault":
                    for row in value:
                        ran[row].add(kind)
                if name == "lives":
                    lives += value[0]
                    did.update(value[1])
    if lives:
        terminalreporter.write_line(f"{lives} simulated lives:")
        for action, count in sorted(did.items()):
            terminalreporter.write_line(f"{count:10} {action}")
    if ran:
        terminalreporter.write_line(_tried(ran))


def _tried(ran: dict[int, set[str]]) -> str:
    failed = sorted(row for row, kinds in ran.items() if "failed" in kinds)
    partly = sorted(row for row, kinds in ran.items() if any(NOT_RUN in kind for kind in kinds))
    line = f"faults: {sum('passed' in kinds for kinds in ran.values())} of {len(ROWS)} rows tried"
    line += f"; failed: {failed}" if failed else ""
    return line + (f"; in part, as the machine forbids the rest: {partly}" if partly else "")


if __name__ == "__main__":
    path = TESTS / "FAULTS.md"
    path.write_text(level(path.read_text()))
