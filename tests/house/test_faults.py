"""The index of failures: `FAULTS.md` lists the tests that are marked."""

from __future__ import annotations

import pytest
from fault_matrix import (
    NOT_RUN,
    ROWS,
    TESTS,
    held,
    level,
    marked,
    pytest_report_teststatus,
    written,
)

NOT_YET = {40}
FAULTS = (TESTS / "FAULTS.md").read_text()


def test_each_fault_row_lists_its_tests_exactly() -> None:
    said, marks = written(FAULTS), held()
    assert list(said) == list(ROWS)
    assert said == {row: marks.get(row, set()) for row in ROWS}
    assert {row for row, names in said.items() if not names} == NOT_YET
    now, lists = FAULTS.splitlines(), level(FAULTS).splitlines()
    assert [line for line in now if line not in lists] == []
    assert len(now) == len(lists)


def test_marks_are_found_in_syntax() -> None:
    source = "@pytest.mark.fault(3, 4)\n@pytest.mark.slow\ndef test_a() -> None: ...\n"
    assert marked(source) == {"test_a": {3, 4}}
    assert marked("@pytest.mark.slow\ndef test_a() -> None: ...\n") == {}
    assert written("# x\n\n## 3. It fails\nText.\n- `a.py::test_a`\n") == {3: {"a.py::test_a"}}


def test_forbidden_tests_are_counted_by_reason() -> None:
    def report(why: str) -> pytest.TestReport:
        skipped = ("file", 1, f"Skipped: {why}")
        return pytest.TestReport("x", ("", 0, ""), {}, "skipped", skipped, "call")

    assert pytest_report_teststatus(report(f"{NOT_RUN}no mounts")) == (
        f"{NOT_RUN}no mounts",
        "n",
        "NOT RUN",
    )
    assert pytest_report_teststatus(report("anything else")) is None
