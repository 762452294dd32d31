"""`reduce`: an error of the function names the stage, the operator and the group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checks.checking import run
from hypothesis import given
from hypothesis import strategies as st
from models import model
from models.model import Bag
from strategies import all_types

import nosync_nb
from nosync_nb import Collection
from nosync_nb.collections.library import windows
from nosync_nb.errors import StageError

pytestmark = pytest.mark.usefixtures("no_disk")

WRONG: dict[str, tuple[Callable[[Any, list[Any]], Any], str]] = {
    "one row, not a list of rows": (lambda k, rows: (1, 2), "row 0 is 1, not a tuple or dict"),
    "values without tuples": (lambda k, rows: [1], "row 0 is 1, not a tuple or dict"),
    "too many values": (lambda k, rows: [(1, 2)], r"row 0 has 2 values for 1 columns: \(1, 2\)"),
    "no values": (lambda k, rows: [()], "row 0 has 0 values for 1 columns"),
    "another name": (lambda k, rows: [{"m": 1}], "unknown column 'm'"),
    "another type": (lambda k, rows: [(1,), ("x",)], "column 'n', row 1: 'x' is not a valid int"),
    "a fraction": (lambda k, rows: [(1.5,)], "column 'n', row 0: 1.5 is not exactly int"),
    "too large": (lambda k, rows: [(2**40,)], "1099511627776 does not fit int"),
    "text": (lambda k, rows: "ab", "returned 'ab' for 'bad', not an iterable of rows"),
    "a number": (lambda k, rows: 3, "returned 3 for 'bad', not an iterable of rows"),
    "an error": (lambda k, rows: [(1 // 0,)], "raised ZeroDivisionError: .* on 'bad'"),
    "an error while yielding": (
        lambda k, rows: ((1 // 0,) for _ in rows),
        "raised ZeroDivisionError: .* on 'bad'",
    ),
    "sorted in place": (
        lambda k, rows: rows.sort(key=lambda row: -row.x) or [(1,)],
        "modified its argument, the rows of 'bad'",
    ),
    "emptied": (lambda k, rows: rows.clear() or [(1,)], "modified its argument, the rows of 'bad'"),
    "a list inside a row": (
        lambda k, rows: rows[0].tags.append("z") or [(1,)],
        "modified its argument, the rows of 'bad'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_failing_function_is_named_with_group_and_changes_nothing(
    name: str, tmp_path: Path
) -> None:
    function, said = WRONG[name]

    def sometimes(key: Any, rows: list[Any]) -> Any:
        return function(key, rows) if key == "bad" else [(len(rows),)]

    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        given = session.input("given", "k string, x int, tags array<string>")
        stage = session.stage("sizes", given.group_by("k").reduce(sometimes, "n int"))
        given.insert([("a", 1, ["p"]), ("b", 1, None)])
        session.commit()
        wrong = [("a", 2, None), ("bad", 1, ["p"]), ("bad", 2, [])]
        given.insert(wrong)
        with pytest.raises(StageError, match=said) as caught:
            session.commit()
        assert str(caught.value).startswith("stage 'sizes': reduce(sometimes)")
        assert (caught.value.stage, caught.value.row) == ("sizes", "bad")
        assert caught.value.hint
        assert (session.now, stage.rows(at=1)) == (1, [("a", 1), ("b", 1)])
        session.discard()
        given.insert([("a", 2, None)])
        session.commit()
        assert stage.rows() == [("a", 2), ("b", 1)]


def test_function_may_return_none_dicts_or_generators(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        given = session.input("given", "k int, x int")
        given.insert([(k, k) for k in range(4)])
        session.commit()
        made: list[Callable[[], Any]] = [
            lambda: None,
            lambda: [{"n": 1}],
            lambda: ((i,) for i in (2, 2)),
            lambda: sorted([(3,)]),
        ]
        found = given.group_by("k").reduce(lambda key, rows: made[key](), "n int")
        assert found.rows() == [(1, 1), (2, 2), (2, 2), (3, 3)]


# -- negative counts -------------------------------------------------------------------------------


def ends(key: Any, rows: list[Any]) -> list[tuple[Any, int]]:
    """The first and the last row of a group, and how many there are."""
    assert rows
    return [(rows[0][1], len(rows)), (rows[-1][1], 0)]


@given(st.data(), all_types, all_types)
def test_negative_count_is_no_row_of_group(data: st.DataObject, of: str, other: str) -> None:
    run(
        data,
        {"a": (of, other), "b": (of, other)},
        lambda a, b: a.concat(b.negate()).group_by("c0").reduce(ends, f"x {other}, n int"),
        lambda a, b: model.reduced(model.concat(a, model.negated(b)), [0], ends),
    )


@given(st.data())
def test_negative_count_is_no_row_of_group_in_loop(data: st.DataObject) -> None:
    def smaller(key: Any, rows: list[Any]) -> list[tuple[int]]:
        return [(max(row[1] or 0 for row in rows) // 2,)]

    def build(a: Collection, b: Collection) -> Collection:
        there = a.concat(b.negate()).filter("c1 >= 0 and c1 < 1000")
        return there.iterate(
            lambda v: v.concat(b.negate()).group_by("c0").reduce(smaller, "c1 int"), rounds=4
        )

    def oracle(a: Bag, b: Bag) -> Bag:
        less = model.negated(b)
        there = model.filtered(
            model.concat(a, less), lambda row: row[1] is not None and 0 <= row[1] < 1000
        )
        return model.iterated(
            there, lambda v: model.reduced(model.concat(v, less), [0], smaller), rounds=4
        )

    run(data, {"a": ("int", "int"), "b": ("int", "int")}, build, oracle)


def test_early_removal_stops_neither_reduce_nor_asof_join(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        calls = session.input("calls", "k string, t int")
        prices = session.input("prices", "k string, t int, price int")
        joined = session.stage("joined", windows.asof_join(calls, prices, on="k", time="t"))
        sizes = session.stage(
            "sizes", calls.group_by("k").reduce(lambda k, rows: [(len(rows),)], "n int")
        )
        calls.insert([("a", 5)])
        prices.insert([("a", 1, 10)])
        prices.remove([("a", 4, 40)])
        calls.remove([("a", 6), ("b", 1)])
        session.commit()
        assert joined.rows() == [("a", 5, 10)]
        assert sizes.rows() == [("a", 1)], "and none of b"
        prices.insert([("a", 4, 40), ("a", 4, 40)])
        calls.insert([("a", 6), ("a", 6), ("b", 1)])
        session.commit()
        assert joined.rows() == [("a", 5, 40), ("a", 6, 40)]
        assert sizes.rows() == [("a", 2)]
        prices.remove([("a", 4, 40)])
        session.commit()
        assert joined.rows() == [("a", 5, 10), ("a", 6, 10)]
