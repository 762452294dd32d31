"""Errors of expressions: one class, which names the expression, and no effect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nosync_nb
from nosync_nb import ExpressionError, Session

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

_ROWS = [(1, "x", "2024-01-02"), (2, "7", "2024-02-30")]


@pytest.fixture(scope="module")
def session(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session with rows and an existing stage."""
    path: Path = tmp_path_factory.mktemp("bad") / "log"
    with nosync_nb.open(path, spark=spark) as session:
        given = session.input("given", "i int, s string, d string")
        session.stage("good", given.select("i", "upper(s) AS s"))
        given.insert(_ROWS)
        session.commit()
        yield session


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("nosuch(s)", "UNRESOLVED_ROUTINE"),
        ("upper(s, i, i)", "WRONG_NUM_ARGS"),
        ("i + array(1)", "DATATYPE_MISMATCH"),
        ("interval 1 day + i", "DATATYPE_MISMATCH"),
        ("ts - i", "no column 'ts'"),
        ("s rlike '(a'", "PATTERN"),
        ("regexp_replace(s, '[', 'x')", "PATTERN"),
        ("date_format(date'2024-01-01', 'bbbb')", "INVALID_DATETIME_PATTERN|pattern"),
        ("to_date(d, 'yyyy-QQQQQQ')", "pattern|INCONSISTENT_BEHAVIOR"),
        ("format_string('%q', i)", "UnknownFormatConversion|format|'q'"),
        ("to_number(s, 'zz')", "INVALID_FORMAT"),
        ("from_json(s, 'a nosuchtype')", "UNSUPPORTED_DATATYPE|PARSE|nosuchtype"),
        ("cast(s as int)", r"'x' is not of type int in the row s='x'"),
        ("cast(d as date)", r"'2024-02-30' is not of type date in the row d='2024-02-30'"),
        ("cast(s as interval day)", "INVALID_INTERVAL|CAST|interval"),
        ("element_at(array(1), i)", "INVALID_ARRAY_INDEX|index|in the row i=2"),
        ("i * interval 150000000 years", "overflow in the row i=2"),
        ("make_date(i, 13, 1)", "in the row i="),
    ],
)
def test_invalid_expression_is_named_and_changes_nothing(
    sql: str, why: str, session: Session
) -> None:
    before, names = session.now, list(session.stages)
    with pytest.raises(ExpressionError) as caught:
        session.stage("bad", session["given"].select("i", f"{sql} AS x"))
    said = str(caught.value)
    assert sql in said, said
    assert re.search(why, said), said
    assert (session.now, list(session.stages)) == (before, names)
    assert sorted(session["good"].rows()) == [(1, "X"), (2, "7")]


def test_failed_cast_rolls_epoch_back(session: Session) -> None:
    given = session.inputs["given"]
    fine = session.stage("fine", session["given"].filter("i > 5").select("cast(s as int) AS n"))
    given.insert([(6, "6", None), (7, "seven", None)])
    with pytest.raises(ExpressionError, match="'seven' is not of type int in the row s='seven'"):
        session.commit()
    session.discard()
    assert fine.rows() == []
    assert sorted(session["good"].rows()) == [(1, "X"), (2, "7")]
    given.insert([(6, "6", None)])
    session.commit()
    assert fine.rows() == [(6,)]
    given.remove([(6, "6", None)])
    session.commit()
    session.drop("fine")
