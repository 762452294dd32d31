"""Keys and orders as text: what `group_by`, `head` and `top` accept, and maps as keys."""

from __future__ import annotations

from typing import Any

import pytest

from nosync_nb import ExpressionError, SchemaError, Session


@pytest.fixture
def rides(session: Session) -> Any:
    rides = session.input("rides", "a int, b string, x double, m map<string,int>, `n, o` int")
    rides.insert(
        [
            (1, "x", 7.5, {"k": 1, "l": 2}, 9),
            (1, "y", 12.0, {"l": 2, "k": 1}, 9),
            (2, "x", None, None, None),
        ]
    )
    session.commit()
    return rides


def values(collection: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in collection.rows()]


def test_group_by_accepts_columns_in_one_text(rides: Any) -> None:
    expected = values(rides.group_by("a", "b").count())
    assert values(rides.group_by("a, b").count()) == expected
    assert values(rides.group_by(["`a`, B"]).count()) == expected
    assert values(rides.group_by("n, o").count()) == [(None, 1), (9, 2)]


def test_group_by_accepts_an_expression_with_a_name(session: Session, rides: Any) -> None:
    bucket = "cast(x as int) * 5 AS bucket"
    assert values(rides.group_by(bucket).count()) == [(None, 1), (35, 1), (60, 1)]
    assert values(rides.group_by(f"b, {bucket}").agg(n="count(*)", most="max(a)")) == [
        ("x", None, 1, 2),
        ("x", 35, 1, 1),
        ("y", 60, 1, 1),
    ]
    firsts = session.stage("firsts", rides.group_by("coalesce(b, '', 'c') AS c").top(1, by="x"))
    assert firsts.schema.names == ("a", "b", "x", "m", "n, o", "c")
    rides.remove([(2, "x", None, None, None)])
    session.commit()
    assert [row.x for row in firsts.rows()] == [7.5, 12.0]
    sums = rides.group_by("a + 1 AS c").reduce(lambda key, rows: [(len(rows),)], "n int")
    assert values(sums) == [(2, 2)]


@pytest.mark.parametrize(
    ("keys", "error", "told", "hint"),
    [
        ("a + 1", ExpressionError, "'a + 1' has no name", "group_by('a + 1 AS name')"),
        (
            "lower(b) AS b",
            SchemaError,
            "the column 'b' exists already",
            "group_by('lower(b) AS b_key')",
        ),
        ("a, nope", SchemaError, "no column 'nope'", "the columns are"),
        ("nope + 1 AS c", ExpressionError, "no column 'nope'", "the columns are"),
        ("a,", SchemaError, "no column ''", "the columns are"),
        ("explode(array(a)) AS c", ExpressionError, "generates several rows", "select('*'"),
    ],
)
def test_group_by_refuses_other_texts(
    rides: Any, keys: str, error: type[Exception], told: str, hint: str
) -> None:
    with pytest.raises(error) as caught:
        rides.group_by(keys)
    assert told in str(caught.value)
    assert hint in str(getattr(caught.value, "hint", ""))


def test_hint_about_a_map_as_a_key_works(session: Session, rides: Any) -> None:
    with pytest.raises(SchemaError, match="maps cannot be keys") as caught:
        rides.group_by("m")
    assert caught.value.hint is not None
    call = caught.value.hint.removeprefix("group by its entries: ")
    entries = eval(f"rides.{call}.count()", {"rides": rides})
    assert [row[-1] for row in entries.rows()] == [1, 2]
    with pytest.raises(SchemaError, match="maps cannot be keys") as caught:
        rides.join(rides.select("m"), on="m")
    assert caught.value.hint is not None
    call = caught.value.hint.removeprefix("join on their entries: ")
    joined = eval(f"rides.join(rides, {call}, how='semi')", {"rides": rides})
    assert joined.count() == 2
    nested = session.input("nested", "z array<map<int,int>>")
    with pytest.raises(SchemaError, match="maps cannot be keys") as caught:
        nested.group_by("z")
    assert "cast(z as string) AS entries" in str(caught.value.hint)
    with pytest.raises(SchemaError, match="'m' is a map, and maps cannot be keys"):
        session.input("keyed", "m map<int,int>, v int", key="m")


@pytest.mark.parametrize(
    "by",
    [
        "x desc",
        "x desc nulls first",
        "x nulls last, b",
        "x nulls first",
        "b desc, x desc nulls last",
        "coalesce(x, 0) desc, lower(b)",
        "length(b || 'a,b'), a desc",
        "`n, o` desc, b desc",
        "a % 2, x nulls last",
        "m['k'] desc, x",
    ],
)
@pytest.mark.parametrize("n", [1, 2, 9])
def test_head_accepts_what_top_accepts(rides: Any, by: str, n: int) -> None:
    ranked = rides.group_by().rank(by, 9, name="place")
    rows = sorted(ranked.rows(), key=lambda row: row.place)
    top = rides.group_by().top(n, by=by)
    head = rides.head(n, by=by)
    assert sorted(map(repr, head)) == sorted(map(repr, top.rows()))
    places = {repr(tuple(row)[:-1]): row.place for row in rows}
    assert [places[repr(tuple(row))] for row in head] == sorted(places.values())[:n]


def test_head_accepts_exact_column_name_and_refuses_unknown_ones(session: Session) -> None:
    data = session.input("data", "`x-y` int, x int, y int")
    data.insert([(1, 5, 1), (2, 1, 7)])
    session.commit()
    assert [row[0] for row in data.head(2, by="x-y desc")] == [2, 1]
    assert data.head(1, by="") == data.head(1, by=None) == data.head(1)
    with pytest.raises(SchemaError, match="no column 'zz'"):
        data.head(1, by="zz desc")
    with pytest.raises(ExpressionError, match="no column 'zz'"):
        data.head(1, by="abs(zz) desc")
    with pytest.raises(ExpressionError):
        data.head(1, by="x up")
