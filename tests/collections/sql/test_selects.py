"""SELECT like Spark: 1,200 statements have Spark's columns, types, rows and errors.

The statements and the answers of Spark and DuckDB are in tests/data/selects. Each statement runs
from scratch, as a stage over three epochs with retractions, and from the reopened log.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sql_cases import selects
from sql_cases.select_runs import outcome, outcome_with_spark

pytestmark = pytest.mark.usefixtures("no_disk")


@pytest.mark.parametrize("name", selects.names())
def test_statements_give_answers_of_spark(name: str) -> None:
    """The lists of cases that do not pass yet, and of those that ask for Spark, are exact.

    After a change, tests/support/sql_cases/select_runs.py writes them; they may only shrink.
    """
    expected, asking = selects.pending().get(name, {}), selects.needs_spark().get(name, [])
    differing, asked = outcome(name)
    assert {sql: why for sql, why in differing.items() if sql not in expected} == {}
    passing = [sql for sql in expected if sql not in differing and sql not in asking]
    assert passing == [], "remove what passes from the list"
    assert sorted(asked) == sorted(asking), "each other statement starts no JVM"


@pytest.mark.spark
@pytest.mark.parametrize("name", [*selects.needs_spark()])
def test_statements_that_ask_for_spark_give_its_answers(
    name: str, spark: Any, tmp_path: Path
) -> None:
    expected, asking = selects.pending().get(name, {}), selects.needs_spark()[name]
    found = outcome_with_spark(spark, tmp_path, name, asking)
    assert sorted(found) == sorted(sql for sql in expected if sql in asking), found


@pytest.mark.parametrize("name", selects.names())
def test_every_statement_has_an_answer(name: str) -> None:
    cases, answers = selects.cases(name), selects.recorded(name)
    assert [case.key for case in cases] == [*answers], "tests/support/sql_cases/selects.py asks"
    assert len({case.key for case in cases}) == len(cases)


def test_spark_answered_at_least_600_statements() -> None:
    answered = sum(len(selects.cases(name)) for name in selects.names() if not selects.oracle(name))
    assert answered >= 600


def test_passing_rows_do_not_remain() -> None:
    """The epochs of the incremental run end with the rows of the tables."""
    held: dict[str, list[str]] = {name: [] for name in selects.TABLES}
    for changes in selects.epochs():
        for name, (inserts, removals) in changes.items():
            held[name] += map(repr, inserts)
            for row in removals:
                held[name].remove(repr(row))
    rows = {name: sorted(map(repr, table.rows)) for name, table in selects.TABLES.items()}
    assert {name: sorted(values) for name, values in held.items()} == rows


def test_pending_list_names_only_statements() -> None:
    listed = json.loads(selects.PENDING.read_text())
    assert set(listed) <= set(selects.names())
