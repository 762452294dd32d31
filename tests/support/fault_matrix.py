"""The fault matrix: which tests hold which rows of `FAULTS.md`, and what a run has tried of it.

A test says so by `@pytest.mark.fault(row, ...)`; `python tests/support/fault_matrix.py` brings the
lists of `FAULTS.md` level with that, and a test of the house asks for it. What needs a right that
this machine does not give (a name space, a mount) is found out when it runs: it is then skipped by
`forbidden`, and counted in the last line of the run under its reason, also in CI, where nothing
else is skipped.
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
    """The rows that a test holds."""
    return sorted({row for mark in item.iter_markers("fault") for row in mark.args})


def forbidden(why: str) -> NoReturn:
    """Ends a test that this machine does not let run; `why` names what it lacks."""
    pytest.skip(NOT_RUN + why)


def marked(source: str) -> dict[str, set[int]]:
    """The tests of a file that hold rows, by their names."""
    found: dict[str, set[int]] = defaultdict(set)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.fault":
                    found[node.name] |= {ast.literal_eval(row) for row in mark.args}
    return found


def written(text: str) -> dict[int, set[str]]:
    """The tests that `FAULTS.md` names in each of its sections."""
    parts = re.split(r"^## (\d+)\. ", text, flags=re.M)
    return {
        int(number): set(re.findall(r"^- `([^`]+)`$", body, flags=re.M))
        for number, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def held() -> dict[int, set[str]]:
    """The tests of each row, by their marks."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, rows_held in marked(path.read_text()).items():
            for row in rows_held:
                found[row].add(f"{path.relative_to(TESTS)}::{name}")
    return found


def level(text: str) -> str:
    """`FAULTS.md` with the tests of now in each section; what it says otherwise stays."""
    first, *parts = re.split(r"^(?=## \d+\. )", text, flags=re.M)
    found = held()
    for number, part in zip(ROWS, parts, strict=True):
        said = re.sub(r"^(- `[^`]+`|Not yet\.)\n", "", part, flags=re.M).strip()
        names = "".join(f"- `{name}`\n" for name in sorted(found[number]))
        first += f"{said}\n\n{names or 'Not yet.'}".rstrip() + "\n\n"
    return first.rstrip() + "\n"


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Counts by itself what the machine forbids: the last line says how often, and why."""
    if report.skipped and isinstance(report.longrepr, tuple):
        why = report.longrepr[2].removeprefix("Skipped: ")
        if why.startswith(NOT_RUN):
            return why, "n", "NOT RUN"
    return None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says what was tried of the matrix and what was not, and what happened in simulated lives."""
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
