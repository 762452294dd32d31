"""What a query is planned as: no operator more than its parts need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import nosync_nb
from nosync_nb import Session
from nosync_nb.collections.session_protocol import definition_of


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with nosync_nb.open(tmp_path / "log") as opened:
        opened.input("t", "a int, b int")
        opened.input("u", "a int, d int")
        yield opened


def operators(session: Session, query: str) -> Counter[str]:
    """Counts the operators of a query."""
    return Counter(part.op for part in definition_of("count", session.sql(query)).walk())


@pytest.mark.parametrize(
    "test", ["b {} (SELECT max(d) FROM u)", "b {} (SELECT d FROM u WHERE u.a = t.a)"]
)
def test_equality_with_subquery_has_the_operators_of_other_comparisons(
    session: Session, test: str
) -> None:
    query = f"SELECT a, {test} AS x FROM t"
    assert operators(session, query.format("=")) == operators(session, query.format(">"))


def test_operators_grow_by_depth_of_nested_subqueries(session: Session) -> None:
    """A subquery beside `=` was once resolved twice, so that each level doubled the ones below."""
    query, joins = "SELECT max(d) FROM u", []
    for _ in range(4):
        query = f"SELECT max(d) FROM u WHERE d = ({query})"
        joins.append(operators(session, query)["join"])
    assert [b - a for a, b in pairwise(joins)] == [joins[1] - joins[0]] * 3
    assert joins[1] - joins[0] <= joins[0]


def test_unused_total_reads_one_of_its_columns(session: Session) -> None:
    """The first call remained, and pruning had removed the column that it reads."""
    totals = "SELECT sum(x) AS s, max(y) AS m FROM (SELECT a AS x, b AS y FROM t)"
    assert session.sql(f"SELECT 1 AS one FROM u CROSS JOIN ({totals})").rows() == []
    session.inputs["u"].insert([(1, 1), (2, 2)])
    session.commit()
    assert session.sql(f"SELECT 1 AS one FROM u CROSS JOIN ({totals})").rows() == [(1,), (1,)]
