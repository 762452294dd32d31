"""Hints for pandas and PySpark habits: the error names the method that does the same here."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, GroupedData

from nosync_nb import MisuseError, Session


class Column:
    """Prints like a PySpark column, which needs a JVM."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Column<'{self.text}'>"


def foreign_names(cls: type, own: Any) -> list[str]:
    return [name for name in dir(cls) if not name.startswith("_") and name not in dir(own)]


def hint(owner: Any, name: str) -> str:
    with pytest.raises(MisuseError) as caught:
        getattr(owner, name)
    return str(caught.value.hint)


def test_methods_of_pandas_and_pyspark_are_not_taken_for_typos(session: Session) -> None:
    t = session.input("t", "id int, g string, v int")
    owners = [(DataFrame, t), (pd.DataFrame, t), (GroupedData, t.group_by("g"))]
    guessed = {
        (cls.__module__, name): hint(owner, name)
        for cls, owner in owners
        for name in foreign_names(cls, owner)
        if "did you mean" in hint(owner, name)
    }
    assert guessed == {}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("dropDuplicates", "use group_by('x').top(1, by='y') for one row of each x"),
        ("rollup", "use group_by(...).agg(...) for each set of columns"),
        ("merge", "use upsert(rows) on an input with key="),
        ("mapInPandas", "use map(function, schema='...')"),
        ("unpivot", "explode(map('a', a, 'b', b)) AS (name, value)"),
        ("fliter", "did you mean 'filter'?"),
    ],
)
def test_hint_names_equivalent(session: Session, name: str, shown: str) -> None:
    assert shown in hint(session.input("t", "id int"), name)


@pytest.mark.parametrize(
    ("text", "written"),
    [("sum(v)", "agg(name='sum(v)')"), ("sum(v) AS total", "agg(total='sum(v)')")],
)
def test_hint_writes_pyspark_column_as_text(session: Session, text: str, written: str) -> None:
    grouped = session.input("t", "g string, v int").group_by("g")
    with pytest.raises(MisuseError) as caught:
        grouped.agg(Column(text))
    assert caught.value.hint == f"write {written}"


def test_hints_that_are_calls_work(session: Session) -> None:
    t = session.input("t", "id int, a int, b int, x string")
    t.insert([(1, 2, 3, "a"), (2, 5, 6, "b"), (2, 5, 6, "b")])
    session.commit()
    long = t.select("id", "explode(map('a', a, 'b', b)) AS (name, value)")
    assert long.head(2) == [(1, "a", 2), (1, "b", 3)]
    spread = t.group_by("id").agg(a="count_if(x = 'a')", b="count_if(x = 'b')")
    assert spread.rows() == [(1, 1, 0), (2, 0, 2)]
    assert t.group_by("id").top(1, by="a").rows() == [(1, 2, 3, "a"), (2, 5, 6, "b")]
    assert t.except_all(t.except_all(t.distinct())).rows() == t.distinct().rows()
    assert t.group_by("id").rank(by="x", k=10).count() == 3
