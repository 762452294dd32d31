"""Parameters of SQL: values of Python come back as they are, and errors name the parameter."""

from __future__ import annotations

import math
from collections import namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from nosync_nb import Session
from nosync_nb.errors import SqlError

Pair = namedtuple("Pair", "a b")
VALUES = [
    None,
    True,
    7,
    -7,
    -(2**31),
    2**31,
    -(2**63) + 1,
    10**30,
    1.5,
    -0.25,
    1e300,
    math.inf,
    "it's \\ \n :x ? --",
    b"\x00\xff",
    Decimal("-1.50"),
    date(2024, 2, 29),
    datetime(2024, 2, 29, 1, 2, 3, 4),
    timedelta(days=-2, microseconds=5),
    [1, None, 3],
    {"a": 1},
    Pair(1, "x"),
    np.int64(5),
    np.float32(0.5),
    np.array([1, 2]),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_value_comes_back(session: Session, value: Any) -> None:
    for query, args in (("SELECT :v AS x", {"v": value}), ("SELECT ? AS x", [value])):
        ((found,),) = session.sql(query, args).rows()
        assert found == plain(value)


def plain(value: Any) -> Any:
    """The value as rows have it: lists and dicts."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value._asdict() if isinstance(value, Pair) else value


def test_moment_with_zone_comes_back(session: Session) -> None:
    moment = datetime(2024, 1, 1, 12, tzinfo=UTC)
    ((same,),) = session.sql("SELECT :a = :b AS x", {"a": moment, "b": moment}).rows()
    assert same is True


def test_query_with_value_is_the_query_with_the_literal(session: Session) -> None:
    rows = session.input("rows", "k int, v string")
    rows.insert([(1, "a"), (2, "b"), (3, "c")])
    session.commit()
    session.stage("some", session.sql("SELECT k FROM rows WHERE k > :k", {"k": 1}))
    same = session.define({"some": session.sql("SELECT k FROM rows WHERE k > 1")})
    assert [each.status for each in same] == ["unchanged"]
    assert session["some"].rows() == [(2,), (3,)]


def test_writing_statements_take_parameters(session: Session) -> None:
    rows = session.input("rows", "k int, v string")
    session.execute("INSERT INTO rows VALUES (?, ?), (?, ?)", [1, "a", 2, None])
    session.execute("UPDATE rows SET v = :v WHERE k = :k", {"v": "z", "k": 2})
    session.execute("DELETE FROM rows WHERE k = :k", {"k": 1})
    assert rows.rows() == [(2, "z")]
    assert session.sql("SELECT k FROM rows LIMIT :n", {"n": 1}).rows() == [(2,)]


@pytest.mark.parametrize(
    ("query", "args", "message"),
    [
        ("SELECT :x", None, r"\[UNBOUND_SQL_PARAMETER\] the parameter :x has no value"),
        ("SELECT\n  :x", {"y": 1}, r"\(line 2, column 3\)"),
        ("SELECT ?, ?", [1], r"the parameter \? has no value"),
        ("SELECT :x", {"x": object()}, r"\[INVALID_SQL_ARG\] the value of :x is of type object"),
        ("SELECT :x", {"x": Decimal("NaN")}, "is NaN"),
        ("SELECT :x", {"x": 10**40}, "more than 38 digits"),
    ],
)
def test_bad_parameters(session: Session, query: str, args: Any, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        session.sql(query, args)


def test_deeply_nested_value_is_refused(session: Session) -> None:
    value: Any = 1
    for _ in range(1000):
        value = [value]
    with pytest.raises(SqlError, match="nested too deeply"):
        session.sql("SELECT :x", {"x": value})


def test_colons_that_are_no_parameters(session: Session) -> None:
    query = "SELECT '1'::int AS a, ':x' AS b, `a:b` FROM (SELECT 2 AS `a:b`)"
    assert session.sql(query).rows() == [(1, ":x", 2)]
