"""Clauses of other dialects are refused: the parser reads them, and they would have no effect."""

from __future__ import annotations

import pytest

from nosync_nb import Session
from nosync_nb.errors import SqlError


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ("SELECT a FROM t FETCH FIRST 2 ROWS ONLY", "LIMIT n"),
        ("SELECT a FROM t OFFSET 3 ROWS FETCH NEXT 2 ROWS ONLY", "LIMIT n"),
        ("SELECT a FROM t ORDER BY a FETCH FIRST 2 ROWS WITH TIES", "LIMIT n"),
        ("SELECT a FROM t LIMIT 10 PERCENT", "LIMIT n"),
        ("SELECT t.a FROM t ASOF JOIN u ON t.a >= u.a", "asof_join"),
        ("SELECT a FROM t@1", "`t@1`"),
        ("SELECT a FROM (SELECT a FROM t@77)", "`t@77`"),
        ("SELECT t.a FROM t LEFT JOIN u ON", "correct the statement here"),
        ("SELECT t.a FROM t JOIN u ON WHERE t.a > 1", "correct the statement here"),
    ],
)
def test_clause_is_refused_with_position_and_remedy(
    session: Session, query: str, hint: str
) -> None:
    session.input("t", "a int")
    session.input("u", "a int")
    with pytest.raises(SqlError, match=r"(?s)\[PARSE_SYNTAX_ERROR\].*line 1, column") as error:
        session.sql(query)
    assert hint in (error.value.hint or "")


def test_joins_with_conditions_are_read(session: Session) -> None:
    session.input("t", "a int").insert([(1,), (2,)])
    session.input("u", "a int").insert([(2,)])
    session.commit()
    assert session.sql("SELECT t.a FROM t JOIN u ON t.a = u.a").rows() == [(2,)]
    assert len(session.sql("SELECT t.a FROM t JOIN u").rows()) == 2
