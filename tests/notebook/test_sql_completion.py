"""Completion of SQL: the tables in scope, and what is expected at the cursor."""

from __future__ import annotations

import pytest

from nosync.sql_completion import complete_sql, sql_before_cursor

TABLES = {"flights": ("carrier", "day", "dep delay"), "Late": ("carrier", "n")}


DISTINCT = ["distinct", "desc", "delete from", "drop view", "describe"]


def complete(text: str) -> list[str]:
    """The completions at the character | of a SQL cell."""
    cell = "%%dd sql\n" + text
    at = cell.index("|")
    found = sql_before_cursor(cell.replace("|", ""), at)
    assert found is not None
    return [item.text for item in complete_sql(*found, TABLES, ("count", "sum")).items]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM |", ["flights", "Late"]),
        ("SELECT * FROM flights f JOIN l|", ["Late"]),
        ("INSERT INTO |", ["flights", "Late"]),
        ("SELECT l.| FROM flights f JOIN Late AS l ON true", ["carrier", "n"]),
        ("SELECT * FROM flights, late l WHERE l.|", ["carrier", "n"]),
        ("SELECT `flights`.| FROM flights", ["carrier", "day", "`dep delay`"]),
        ("SELECT dep| FROM flights", ["`dep delay`"]),
        ("SELECT `dep| FROM flights", ["`dep delay`"]),
        ("SELECT nul| FROM late", ["nulls first", "nulls last", "null"]),
        ("SELECT d| FROM late WHERE 'FROM flights' = ''", DISTINCT),
        ("SELECT 1 FROM late; SELECT ca| FROM flights", ["carrier", "case", "cast"]),
        ("SELECT x.| FROM flights", []),
        ("WITH quick AS (SELECT 1) SELECT * FROM q|", ["quick"]),
        ("SELECT 'it''s fl|", []),
        ("SELECT 1 -- fl|", []),
        ("MERGE INTO flights f USING late s ON f.day = s.|", ["carrier", "n"]),
    ],
)  # fmt: skip
def test_completions_are_those_of_the_statement(text: str, expected: list[str]) -> None:
    assert complete(text) == expected


def test_only_sql_cells_and_lines_have_sql() -> None:
    for text in ("%%dd\nx = 1", "%%dd sqlite\nx", "print('%%dd sql')\n", "%dd show sql "):
        assert sql_before_cursor(text, len(text)) is None
    assert sql_before_cursor("%%dd sql", 4) is None
    assert sql_before_cursor("%%dd sql late\nSELECT", 20) == ("SELECT", "")
    text = "a = 1\nb = %dd sql SELECT x FROM t\nc = 2"
    assert sql_before_cursor(text, text.index(" FROM")) == ("SELECT x", " FROM t")
