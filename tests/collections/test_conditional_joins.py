"""Joins of collections on a condition: the definitions of SQL, columns, errors and hints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from checks.checking import count

from nosync_nb import Collection, ExpressionError, Input, SchemaError, Session
from nosync_nb.collections.session_protocol import definition_of
from nosync_nb.errors import SqlError

pytestmark = pytest.mark.usefixtures("no_disk")
KINDS = ("inner", "left", "right", "full", "semi", "anti")


@pytest.fixture
def both(session: Session) -> tuple[Input, Input]:
    a = session.input("a", "k int, x int, y double")
    b = session.input("b", "j int, low int, high int, z double")
    a.insert([(1, 5, 1.0), (1, 5, 1.0), (2, 7, None), (None, 3, 2.0), (9, None, 0.0)])
    b.insert([(1, 3, 6, 0.5), (2, 8, 9, 1.0), (None, 1, 4, 3.0), (1, 5, 5, 1.0)])
    session.commit()
    return a, b


def fingerprint(collection: Collection) -> str:
    return definition_of("test", collection).fingerprint({"a": "A", "b": "B"})


CONDITIONS = (
    "x BETWEEN low AND high",
    "x > low AND y <> z",
    "abs(x - low) < 3",
    "x + low > 7 OR y < z",
    "x <= high AND low <= k",
    "k = j AND x BETWEEN low AND high",
)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("how", KINDS)
def test_condition_has_definition_of_sql(
    session: Session, both: tuple[Input, Input], how: str, condition: str
) -> None:
    a, b = both
    columns = "k, x, y" if how in ("semi", "anti") else "k, x, y, j, low, high, z"
    query = f"SELECT {columns} FROM a {how} JOIN b ON {condition}"
    joined = a.join(b, how=how, where=condition)
    assert fingerprint(joined) == fingerprint(session.sql(query))
    assert count(joined) == count(session.sql(query))


@pytest.mark.parametrize("how", KINDS)
def test_keys_beside_condition_are_shown_as_without(both: tuple[Input, Input], how: str) -> None:
    """A condition that is always true changes neither columns nor rows, whatever the key."""
    a, b = both
    other = b.rename(j="k")
    for keys, right in (("k", other), ({"k": "j"}, b), ({"k + 0": "j"}, b), ({"k": "j + 0"}, b)):
        plain = a.join(right, on=keys, how=how)
        same = a.join(right, on=keys, how=how, where="x IS NOT NULL OR x IS NULL OR low > 0")
        assert same.schema == plain.schema
        assert count(same) == count(plain)


@pytest.mark.parametrize("how", KINDS)
def test_columns_of_equal_name_are_told_apart_by_their_side(
    session: Session, both: tuple[Input, Input], how: str
) -> None:
    a, _ = both
    later = a.join(a, on="k", how="semi", where="left.x < right.x")
    assert count(later) == {}
    earlier = a.join(a.rename(x="other", y="w"), on="k", how=how, where="left.k + x > right.k + 5")
    assert sum(count(earlier).values()) > 0 or how in ("inner", "semi", "left")
    with pytest.raises(SqlError, match="AMBIGUOUS_REFERENCE"):
        a.join(a, on="k", how="semi", where="x < 3")


WRONG: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str, str]] = {
    "condition_as_key": (
        lambda a, b: a.join(b, on="x BETWEEN low AND high"),
        ExpressionError,
        "not an expression of one side",
        "where='x BETWEEN low AND high'",
    ),
    "no_key": (lambda a, b: a.join(b), SchemaError, "no key columns", "where="),
    "key_of_other_type": (lambda a, b: a.join(b, on=3), SchemaError, "neither a column", "where="),
    "no_text": (lambda a, b: a.join(b, where=3), SchemaError, "where=3", "as text"),
    "cross": (
        lambda a, b: a.join(b, how="cross", where="x < low"),
        SchemaError,
        "a cross join has no condition",
        "leave out how=",
    ),
    "same_column": (
        lambda a, b: a.join(b.rename(j="k"), where="x < low"),
        SchemaError,
        "both sides have a column 'k'",
        "rename",
    ),
    "not_boolean": (
        lambda a, b: a.join(b, where="x + low"),
        ExpressionError,
        "not boolean",
        "compar",
    ),
    "aggregate": (lambda a, b: a.join(b, where="max(x) > low"), Exception, "max", ""),
    "two_statements": (
        lambda a, b: a.join(b, where="x < low; SELECT 1"),
        SqlError,
        "2 statements",
        "",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_join_names_its_remedy(both: tuple[Input, Input], name: str) -> None:
    call, kind, message, hint = WRONG[name]
    with pytest.raises(kind, match=message) as caught:
        call(*both)
    assert hint in str(getattr(caught.value, "hint", ""))


def test_unknown_column_is_shown_in_condition(both: tuple[Input, Input]) -> None:
    a, b = both
    with pytest.raises(SqlError) as caught:
        a.join(b, on={"k": "j"}, where="x < lowest")
    assert "\n  x < lowest\n      ^^^^^^" in str(caught.value)


def test_filter_above_join_is_evaluated_below_it(
    session: Session, both: tuple[Input, Input]
) -> None:
    a, b = both
    session.stage("few", a.join(b, where="x BETWEEN low AND high").filter("y > 1 AND z > 2"))
    plan = session["few"].explain()
    assert plan.index("join in order") < plan.index("filter z > 2")
    assert count(session["few"]) == {(None, 3, 2.0, None, 1, 4, 3.0): 1}
