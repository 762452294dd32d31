"""Clock and random values in expressions: results are memoised by row."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nosync_nb
from nosync_nb import ExpressionError, Session
from nosync_nb.expressions import compile_expression
from nosync_nb.rows import Schema

EXPRESSIONS = ("uuid() AS id", "rand() AS r", "randn() AS g", "random() AS q", "now() AS t",
               "current_timestamp AS u", "current_timestamp() AS v", "current_date AS d",
               "current_date() AS e", "curdate() AS f", "localtimestamp() AS l")  # fmt: skip


def bag(session: Session, name: str) -> Counter[Any]:
    return Counter(tuple(row) for row in session[name].rows())


def test_retraction_removes_emitted_values(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    session.stage("tags", numbers.select("n", *EXPRESSIONS))
    numbers.insert([(1,), (1,), (2,), (3,)])
    session.commit()
    first = bag(session, "tags")
    assert sorted(first.values()) == [1, 1, 2], "copies of a row share what was made of it"
    numbers.remove([(1,), (2,)])
    numbers.insert([(4,)])
    session.commit()
    second = bag(session, "tags")
    assert {row: n for row, n in second.items() if row[0] != 4} == {
        row: 1 for row in first if row[0] != 2
    }
    numbers.remove([(1,), (3,), (4,)])
    session.commit()
    assert not bag(session, "tags")


def test_random_filter_retracts_emitted_rows(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    session.stage("some", numbers.filter("rand() < 0.5"))
    numbers.insert([(n,) for n in range(200)])
    session.commit()
    assert 20 < len(session["some"].rows()) < 180
    numbers.remove([(n,) for n in range(200)])
    session.commit()
    assert session["some"].rows() == []


def test_one_epoch_has_one_clock(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    session.stage("times", numbers.select("n", "now() AS t", "current_timestamp AS u"))
    before = datetime.now(UTC) - timedelta(seconds=1)
    numbers.insert([(1,), (2,)])
    session.commit()
    (_, t, u), (_, v, w) = session["times"].rows()
    assert t == u == v == w
    assert before < t.astimezone(UTC) < datetime.now(UTC) + timedelta(seconds=1)
    numbers.insert([(3,)])
    session.commit()
    assert session["times"].rows()[2][1] > t


def test_emitted_values_survive_restart(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "n int")
        session.stage("tags", numbers.select("n", *EXPRESSIONS))
        numbers.insert([(n,) for n in range(5)])
        session.commit()
        before = bag(session, "tags")
    with nosync_nb.open(tmp_path / "log") as session:
        assert session.recovery.recomputed == 0
        assert bag(session, "tags") == before
        session["numbers"].remove([(n,) for n in range(4)])
        session.commit()
        assert bag(session, "tags") == {row: 1 for row in before if row[0] == 4}


def test_rerun_of_cell_changes_nothing(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    session.stage("tags", numbers.select("n", "uuid() AS id"))
    numbers.insert([(1,)])
    session.commit()
    before = bag(session, "tags")
    session.stage("tags", numbers.select("n", "uuid() AS id"))
    assert bag(session, "tags") == before


def test_values_have_their_type() -> None:
    schema = Schema.parse("n int")
    columns = [np.arange(5000, dtype=np.int32)]
    for n in (10, 5000):
        for text, type_ in (("rand()", "double"), ("uuid()", "string"), ("now()", "timestamp")):
            e = compile_expression(text, schema)
            assert (e.type, e.local, e.deterministic) == (type_, True, False)
            assert len(e.evaluate(columns, n)) == n
    ids = compile_expression("uuid()", schema).evaluate(columns, 5000).to_pylist()
    assert len({len(i) for i in ids}) == 1 < len(set(ids)) == 5000
    day = compile_expression("current_date() - 1 < current_date", schema)
    assert day.evaluate(columns, 3).tolist() == [True] * 3
    today = compile_expression("datediff(current_date(), date '1970-01-01')", schema)
    assert abs(int(today.evaluate(columns, 1)[0]) - time.time() // 86_400) <= 1


def test_nondeterministic_aggregate_names_remedy(session: Session) -> None:
    numbers = session.input("numbers", "n int")
    with pytest.raises(ExpressionError, match="is not deterministic") as caught:
        session.stage("sums", numbers.agg(s="sum(rand())"))
    assert "as a column of a stage or view first" in str(caught.value.hint)
