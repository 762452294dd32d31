"""`top`, `rank` and `threshold`: against models, and by counters of rows touched."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.checking import count, run
from hypothesis import given
from hypothesis import strategies as st
from internals import settle_background
from models import model
from models.batch_model import weak_hashes
from models.model import Bag, Row
from strategies import POOLS, all_types, schemas, types, values

import nosync_nb
from nosync_nb import Collection, ExpressionError, SchemaError, Session, StageError, rows
from nosync_nb.operators import OrderCodes, OrderColumn, Step, ordering, top_k
from nosync_nb.rows import Schema
from nosync_nb.trace.batch import Updates

Order_ = Sequence[tuple[int, bool, bool]]  # position, descending, nulls first


pytestmark = pytest.mark.usefixtures("no_disk")


@pytest.fixture(autouse=True, scope="module")
def _small_first_lookup() -> Iterator[None]:
    """Makes the first lookup so small that a second one is needed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_k, "_MORE", 0)
        patch.setattr(top_k, "_FURTHER", 2)
        yield


# -- the model ---------------------------------------------------------------------------------


def sorted_rows(group: Sequence[Row], by: Order_) -> list[Row]:
    found = sorted(group, key=model.row_order)
    for place, descending, nulls_first in reversed(by):
        there = [r for r in found if r[place] is not None]
        missing = [r for r in found if r[place] is None]
        there.sort(key=lambda r, i=place: model.order(r[i]), reverse=descending)  # type: ignore[misc]
        found = missing + there if nulls_first else there + missing
    return found


def windows(held: Bag, keys: Sequence[int], k: int, by: Order_, offset: int) -> Iterator[Any]:
    """Each group in order, and the slice of its window."""
    groups: dict[Row, list[Row]] = {}
    for row, n in held.items():
        groups.setdefault(tuple(row[i] for i in keys), []).extend([row] * max(n, 0))
    for group in groups.values():
        yield sorted_rows(group, by), slice(offset, offset + k)


def top(held: Bag, keys: Sequence[int], k: int, by: Order_, offset: int = 0) -> Bag:
    """The first copies of each group."""
    return model.bag(
        row for ordered, window in windows(held, keys, k, by, offset) for row in ordered[window]
    )


def ranked_rows(held: Bag, keys: Sequence[int], k: int, by: Order_, offset: int = 0) -> Bag:
    """The first copies with their ranks: 1 + the number of rows strictly before."""
    found = []
    for ordered, window in windows(held, keys, k, by, offset):
        marks = [tuple(model.order(row[i]) for i, _, _ in by) for row in ordered]
        found += [(*row, marks.index(m) + 1) for row, m in zip(ordered, marks, strict=True)][window]
    return model.bag(found)


def test_models_of_top_agree() -> None:
    bag = model.bag([("a", 1), ("a", 3), ("a", 3), ("b", 2), ("b", None)])
    for k, offset in ((1, 0), (2, 0), (2, 1)):
        for descending in (False, True):
            by = [(1, descending, not descending)]
            assert top(bag, [0], k, by, offset) == model.top(bag, [0], k, [by[0][:2]], offset)


# -- histories ---------------------------------------------------------------------------------

orders = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=3, unique_by=lambda t: t[0]
)


def text(by: Order_) -> str | None:
    """An order in SQL without its defaults."""
    terms = []
    for place, descending, nulls_first in by:
        nulls = "" if nulls_first != descending else f" nulls {'first' if nulls_first else 'last'}"
        terms.append(f"c{place}{' desc' if descending else ''}{nulls}")
    return ", ".join(terms) or None


@given(st.data(), schemas(all_types, 3, 3), orders, st.integers(1, 4), st.integers(0, 2))
def test_top_keeps_first_copies_of_each_group(
    data: st.DataObject, of: tuple[str, ...], by: Order_, k: int, offset: int
) -> None:
    run(
        data,
        {"a": of},
        lambda a: a.group_by("c0").top(k, by=text(by), offset=offset),
        lambda a: top(a, [0], k, by, offset),
    )


@given(st.data(), schemas(types, 3, 3), orders, st.integers(1, 4))
def test_top_of_all_rows_and_of_several_keys(
    data: st.DataObject, of: tuple[str, ...], by: Order_, k: int
) -> None:
    run(
        data,
        {"a": of},
        lambda a: a.group_by().top(k, by=text(by)).concat(a.group_by("c0", "c2").top(k, text(by))),
        lambda a: model.concat(top(a, [], k, by), top(a, [0, 2], k, by)),
    )


@given(st.data(), schemas(types, 3, 3), orders.filter(bool), st.integers(1, 4), st.integers(0, 2))
def test_rank_is_shared_by_ties_and_follows_changes(
    data: st.DataObject, of: tuple[str, ...], by: Order_, k: int, offset: int
) -> None:
    run(
        data,
        {"a": of},
        lambda a: a.group_by("c1").rank(text(by) or "", k, name="place", offset=offset),
        lambda a: ranked_rows(a, [1], k, by, offset),
    )


@given(st.data())
def test_top_orders_by_expressions(data: st.DataObject) -> None:
    def oracle(a: Bag) -> Bag:
        wide = model.mapped(a, lambda r: (*r, None if r[1] is None else abs(r[1]) % 3))
        return model.mapped(top(wide, [0], 2, [(2, True, True), (1, False, True)]), lambda r: r[:2])

    some = st.tuples(st.booleans(), st.none() | st.integers(-5, 5))
    run(
        data,
        {"a": ("boolean", "int")},
        lambda a: a.group_by("c0").top(2, by="abs(c1) % 3 DESC NULLS FIRST, c1 ASC"),
        oracle,
        pools={"a": some},
    )


@given(st.data(), schemas(types, 2, 2))
def test_negative_count_is_no_row_of_top(data: st.DataObject, of: tuple[str, ...]) -> None:
    run(
        data,
        {"a": of, "b": of},
        lambda a, b: a.concat(b.negate()).group_by("c0").top(2, by="c1 desc"),
        lambda a, b: top(model.concat(a, model.negated(b)), [0], 2, [(1, True, False)]),
    )


@given(st.data(), schemas(all_types, 1, 2), st.integers(1, 3))
def test_threshold_gives_copies_of_function(
    data: st.DataObject, of: tuple[str, ...], least: int
) -> None:
    def function(n: int) -> int:
        assert n > 0
        return n - least if n > least else 0

    run(
        data,
        {"a": of, "b": of},
        lambda a, b: a.concat(b.negate()).threshold(function).concat(a.threshold(lambda n: n > 1)),
        lambda a, b: model.concat(
            model.threshold(
                model.concat(a, model.negated(b)), lambda n: function(n) if n > 0 else 0
            ),
            model.threshold(a, lambda n: int(n > 1)),
        ),
    )


@given(st.data(), orders)
def test_groups_with_equal_hashes_stay_apart(data: st.DataObject, by: Order_) -> None:
    of = ("string", "int", "boolean")
    with weak_hashes():
        run(
            data,
            {"a": of},
            lambda a: (
                a.group_by("c0")
                .top(2, by=text(by))
                .join(a.group_by("c0").rank("c1", 1).select("c0", "rank"), on="c0", how="full")
            ),
            lambda a: model.join(
                top(a, [0], 2, by),
                model.mapped(ranked_rows(a, [0], 1, [(1, False, True)]), lambda r: (r[0], r[3])),
                [(0, 0)],
                "full",
                (3, 2),
            ),
        )


@given(st.data())
def test_top_and_threshold_work_inside_loop(data: st.DataObject) -> None:
    """The shortest ways to each place, and the reachable places."""

    def build(starts: Collection, edges: Collection) -> Collection:
        def shorter(ways: Collection) -> Collection:
            on = ways.join(edges, on={"c0": "d0"}).select("d1 AS c0", "c1 + d2 AS c1")
            return starts.concat(on).group_by("c0").top(1, by="c1")

        def further(places: Collection) -> Collection:
            on = places.join(edges, on={"c0": "d0"}).select("d1 AS c0")
            return starts.select("c0").concat(on).threshold(lambda n: min(n, 1))

        reached = starts.select("c0").iterate(further)
        return starts.iterate(shorter).join(reached, on="c0", how="full")

    def oracle(starts: Bag, edges: Bag) -> Bag:
        def shorter(ways: Bag) -> Bag:
            on = model.join(ways, edges, [(0, 0)], "inner", (2, 3))
            sums = model.mapped(on, lambda r: (r[2], r[1] + r[3]))
            return top(model.concat(starts, sums), [0], 1, [(1, False, True)])

        return model.iterated(starts, shorter)

    place = st.integers(0, 3)
    run(
        data,
        {"a": ("int", "int"), "b": ("int", "int", "int")},
        build,
        oracle,
        pools={
            "a": st.tuples(place, st.integers(0, 2)),
            "b": st.tuples(place, place, st.integers(1, 3)),
        },
    )


# -- order codes -------------------------------------------------------------------------------


@given(st.data(), schemas(all_types, 1, 3))
def test_order_codes_follow_order(data: st.DataObject, of: tuple[str, ...]) -> None:
    schema = Schema([(f"c{i}", t) for i, t in enumerate(of)])
    given_ = data.draw(st.lists(st.tuples(*map(values, of)), min_size=1, max_size=8))
    columns, _ = rows.to_columns(given_, schema, "")
    flags = st.tuples(st.booleans(), st.booleans())
    by = [OrderColumn(i, *data.draw(flags)) for i in data.draw(st.permutations(range(len(of))))]
    ones = np.ones(len(given_), np.int64)
    made = OrderCodes(of, by).apply(Updates(columns, ones), Step((), (), (), ()))
    code = np.asarray(made.columns[-1]).tolist()
    numbers = ordering.order_ranks(columns, of, by)
    bag = [tuple(map(model.value, row)) for row in given_]
    at = np.lexsort(tuple(reversed(numbers))).tolist()
    assert [code[i] for i in at] == sorted(code)
    assert [bag[i] for i in at] == sorted_rows(bag, [tuple(b) for b in by])


def test_order_codes_of_narrow_columns_are_unique() -> None:
    of = ("boolean", "tinyint", "date", "smallint")
    schema = Schema([(f"c{i}", t) for i, t in enumerate(of)])
    days = POOLS["date"]
    given_ = [(b, i, d, 0) for b in (None, True) for i in (-1, None) for d in (*days, None)]
    columns, _ = rows.to_columns(given_, schema, "")
    made = OrderCodes(of, ()).apply(
        Updates(columns, np.ones(len(given_), np.int64)), Step((), (), (), ())
    )
    assert len(set(np.asarray(made.columns[-1]).tolist())) == len(given_)


# -- cost --------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["n desc", "day, n desc", "n % 1000, n", "text desc"])
def test_change_of_large_group_touches_few_rows(tmp_path: Path, by: str) -> None:
    touched = []
    for size in (1_000, 100_000):
        with nosync_nb.open(tmp_path / str(size), spark_rows=10**9) as session:
            a = session.input("a", "k int, n int, day date, text string")
            a.insert([(0, i, None, f"{i:06}") for i in range(size)])
            session.commit()
            session.stage("first", a.group_by("k").top(3, by=by))
            before = session.stats["touched"]
            a.insert([(0, size + 5, None, f"{size:06}"), (0, -5, None, "")])
            session.commit()
            a.remove([(0, size + 5, None, f"{size:06}"), (0, size - 1, None, f"{size - 1:06}")])
            session.commit()
            touched.append(session.stats["touched"] - before)
    assert touched[1] <= touched[0] + 100
    assert touched[1] < 400


def test_change_behind_top_rows_is_not_looked_up(session: Session) -> None:
    a = session.input("a", "k int, n int")
    a.insert([(k, n) for k in range(2) for n in range(500)])
    first = session.stage("first", a.group_by("k").top(3, by="n"))
    every = session.stage("every", a.group_by().top(2, by="n, k", offset=1))
    session.commit()
    a.insert([(0, 800), (1, 900)])
    session.commit()  # from now on it is known where the heads end
    before = session.stats["touched"]
    for n in range(10):
        a.insert([(n % 2, 1000 + n)])
        a.remove([(n % 2, 400 + n)])
        session.commit()
    touched = session.stats["touched"] - before
    assert touched <= 10 * 2 * 2 * 2  # a change of two rows, by what orders and by what cuts
    a.insert([(2, 5)])  # a group that is not full, then
    session.commit()
    a.insert([(2, 9), (2, 7)])
    a.remove([(0, 1)])
    session.commit()
    assert sorted(first.rows()) == [
        *((0, n) for n in (0, 2, 3)), *((1, n) for n in (0, 1, 2)), *((2, n) for n in (5, 7, 9))
    ]  # fmt: skip
    assert sorted(every.rows()) == [(1, 0), (1, 1)]


@pytest.mark.parametrize("keyed", [True, False])
def test_top_rows_are_right_over_many_changes_of_large_groups(
    session: Session, *, keyed: bool
) -> None:
    rng = random.Random(8)
    a = session.input("a", "k int, n int, name string")
    held = Counter((rng.randrange(3), rng.randrange(60), f"prefix {n % 7}") for n in range(300))
    a.insert(list(held.elements()))
    grouped = a.group_by("k") if keyed else a.group_by()
    session.stage("ranks", grouped.rank("n desc", 4))
    session.stage("second", grouped.top(3, by="n, name", offset=2))
    session.stage("two", grouped.top(2, by="n, name"))
    keys = [0] if keyed else []
    for epoch in range(120):
        for _ in range(rng.randrange(1, 4)):
            row = (rng.randrange(3), min(rng.randrange(60), rng.randrange(60)), "prefix 3")
            row = rng.choice([row, rng.choice(list(held))])
            if held[row] and rng.random() < 0.5:
                held[row] -= 1
                a.remove([row])
            else:
                held[row] += 1
                a.insert([row])
        session.commit()
        bag = +held
        ordered = [(1, False, True), (2, False, True)]
        assert count(session["two"]) == top(bag, keys, 2, ordered)
        assert count(session["second"]) == top(bag, keys, 3, ordered, 2)
        assert count(session["ranks"]) == ranked_rows(bag, keys, 4, [(1, True, False)])
        if epoch % 40 == 0:
            settle_background(session)


def test_rows_with_equal_codes_are_distinguished_across_layers(session: Session) -> None:
    a = session.input("a", "k int, name string")
    first = session.stage("first", a.group_by("k").top(2, by="name"))
    last = session.stage("last", a.group_by("k").top(2, by="name desc"))
    names = [f"one prefix {n:03}" for n in range(60)]
    for start in (40, 0, 20):  # a layer each, all codes equal
        a.insert([(0, name) for name in names[start : start + 20]])
        session.commit()
    assert [row.name for row in first.rows()] == names[:2]
    assert [row.name for row in last.rows()] == names[-2:]
    a.remove([(0, names[0]), (0, names[59])])
    session.commit()
    assert [row.name for row in first.rows()] == names[1:3]
    assert [row.name for row in last.rows()] == names[57:59]


def test_top_continues_after_merges_and_restart_from_files(tmp_path: Path) -> None:
    rng = random.Random(4)
    held: list[Row] = [(rng.randrange(3), rng.random(), str(n)) for n in range(12_000)]
    by = [(1, True, False)]

    def change(session: Session, rows_count: int) -> None:
        for _ in range(12):
            held.sort(key=lambda row: row[1])
            gone, new = (
                held[-3:],
                [(rng.randrange(3), rng.random(), "n") for _ in range(rows_count)],
            )
            held[-3:] = new
            session["a"].remove(gone)  # type: ignore[attr-defined]
            session["a"].insert(new)  # type: ignore[attr-defined]
            session.commit()
            assert count(session["best"]) == top(model.bag(held), [0], 3, by)

    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        a = session.input("a", "k int, x double, name string")
        a.insert(held)
        session.commit()
        session.define({"best": a.group_by("k").top(3, by="x desc")}, on="local")
        change(session, 3)
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        assert session.recovery.recomputed == 0
        change(session, 1000)


def test_rank_of_removed_groups_stays_empty(session: Session) -> None:
    a = session.input("a", "k string, n bigint")
    best = session.stage("best", a.group_by("k").rank("n", 1))
    for n in range(40):
        a.insert([("x", n), ("y", n)])
        session.commit()
        a.remove([("x", n)] if n else [("x", n), ("y", n)])
        session.commit()
    assert count(best) == {("y", 1, 1): 1}


# -- errors ------------------------------------------------------------------------------------


def test_invalid_limits_and_orders_are_refused(session: Session) -> None:
    a = session.input("a", "k int, m map<string,int>, rank int")
    group = a.group_by("k")
    for arguments, said in (
        ((0, "k"), "k=0 is not an integer of 1 or more"),
        ((-1, "k"), "k=-1 is not"),
        ((True, "k"), "k=True is not"),
        ((1.5, "k"), r"k=1\.5 is not"),
        ((1, "k", -1), "offset=-1 is not an integer of 0 or more"),
        ((2**31, "k"), "more than 2147483647"),
        ((1, "m"), "a map"),
    ):
        with pytest.raises(SchemaError, match=said):
            group.top(*arguments)
    for by in ("", "k,", "desc", "k descending"):
        with pytest.raises(ExpressionError):
            group.top(1, by=by)
    with pytest.raises((SchemaError, ExpressionError), match="nothing"):
        group.top(1, by="nothing desc")
    with pytest.raises(SchemaError, match="the column 'rank' exists already"):
        group.rank("k", 1)
    with pytest.raises(SchemaError, match="'m' is a map, and maps cannot be keys"):
        a.group_by("m")


@pytest.mark.parametrize("value", [-1, 1.0, "two", None, "raises"])
def test_failing_threshold_is_named_with_row(session: Session, value: Any) -> None:
    def function(n: int) -> Any:
        return (1 // 0 if value == "raises" else value) if n == 2 else 1

    a = session.input("a", "k int")
    session.stage("some", a.threshold(function))
    a.insert([(1,), (7,), (7,)])
    said = rf"returned {value!r} for the count 2 of Row\(k=7\)"
    if value == "raises":
        said = r"raised ZeroDivisionError.* on Row\(k=7\)"
    with pytest.raises(StageError, match=said):
        session.commit()
    session.discard()
    a.insert([(1,)])
    session.commit()
