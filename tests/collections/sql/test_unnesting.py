"""Subqueries below operators whose inputs correspond by position: equal to DuckDB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import nosync_nb
from nosync_nb import Session

T = [(1, 2), (2, 2), (3, None), (None, 4)]
U = [(1, 2), (2, 3), (2, 3), (4, None), (None, 1)]
COUNTED = "SELECT a, d, (SELECT count(*) FROM t WHERE t.a = u.d) AS n FROM u"
FILTERED = f"SELECT * FROM ({COUNTED}) AS c WHERE n < 2"
CORRELATED = "SELECT a, d, m FROM u, LATERAL (SELECT b + u.d AS m FROM t WHERE t.a <= u.d)"
QUERIES = [
    f"{{}} {operation} {{}}".format(*sides)
    for subquery in (COUNTED, FILTERED, CORRELATED)
    for operation in ("UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL")
    for sides in ((subquery, "SELECT 1, 2, 1"), ("SELECT a, b, 2 AS n FROM t", subquery))
] + [
    f"WITH RECURSIVE r(a, d, n) AS ({COUNTED} UNION"
    " SELECT a, d, n + 1 FROM r WHERE n < 3) SELECT * FROM r",
]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log") as opened:
        opened.input("t", "a long, b long").insert(T)
        opened.input("u", "a long, d long").insert(U)
        opened.commit()
        yield opened


@pytest.mark.parametrize("query", QUERIES)
def test_columns_of_subqueries_keep_their_positions(session: Session, query: str) -> None:
    db = duckdb.connect()
    for name, columns, rows in (("t", "a bigint, b bigint", T), ("u", "a bigint, d bigint", U)):
        db.execute(f"CREATE TABLE {name} ({columns})")
        db.executemany(f"INSERT INTO {name} VALUES (?, ?)", rows)
    expected = Counter(db.execute(query).fetchall())
    assert Counter(tuple(row) for row in session.sql(query).rows()) == expected


def test_conditions_on_columns_that_depend_on_the_left_side(session: Session) -> None:
    """They were conditions of the join, which computed these columns only afterwards."""
    other = "SELECT 'z' AS x FROM u WHERE d > 1"
    inner = f"SELECT q.x, CASE WHEN 4 = t.a THEN 3 ELSE t.a END AS c FROM ({other}) AS q"
    query = (
        "SELECT t.a, max(l.x) OVER (PARTITION BY l.x) AS n"
        f" FROM t CROSS JOIN LATERAL ({inner}) AS l WHERE l.c = t.b"
    )
    assert session.sql(query).rows() == [(2, "z")] * 3
