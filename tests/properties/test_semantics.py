"""Public cases of incremental semantics, and known bugs of incremental engines.

Expected rows are written by hand, as a third opinion beside engine and model.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from internals import settle_background
from models import model
from strategies import key

import nosync_nb
from nosync_nb import Collection, ExpressionError, Input, NegativeMultiplicityError, Session, rows
from nosync_nb.collections.session_protocol import session_of

FRUIT = [("apple", 5), ("apple", 5), ("banana", 2)]
MORE = [("apple", 3), ("apple", 2), ("kiwi", 2)]


def count(collection: Collection, at: Any = None) -> dict[Any, int]:
    """The rows with their counts."""
    return dict(Counter(tuple(row) for row in collection.rows(at=at)))


def net(collection: Collection) -> dict[Any, int]:
    """The net changes of the last epoch."""
    now = session_of(collection).epoch(None)
    table = collection.changes(after=now - 1, upto=now)
    return {tuple(row[:-1]): row[-1] for row in zip(*table.to_pydict().values(), strict=True)}


def change(session: Session, source: Input, diffs: Mapping[Any, int]) -> None:
    """Commits signed rows as one epoch."""
    for row, n in diffs.items():
        (source.insert if n > 0 else source.remove)([row] * abs(n))
    session.commit()


# -- public cases ----------------------------------------------------------------------------------


def test_case_1_concat_joins_and_counts_fruit(session: Session) -> None:
    a = session.input("a", "fruit string, price int")
    b = session.input("b", "fruit string, price int")
    both = session.stage("both", a.concat(b))
    pairs = session.stage("pairs", a.join(b.rename({"price": "other"}), on="fruit"))
    counts = session.stage("counts", both.group_by("fruit").count())
    a.insert(FRUIT)
    b.insert(MORE)
    session.commit()
    assert len(count(both)) == 5
    assert count(pairs) == {("apple", 5, 3): 2, ("apple", 5, 2): 2}
    assert count(counts) == {("apple", 4): 1, ("banana", 1): 1, ("kiwi", 1): 1}
    assert model.concat(model.bag(FRUIT), model.bag(MORE)) == count(both)
    assert model.join(model.bag(FRUIT), model.bag(MORE), [(0, 0)], "inner", (2, 2)) == count(pairs)


def test_case_2_multiplicities_weigh_aggregates(session: Session) -> None:
    a = session.input("a", "fruit string, price int")
    found = session.stage(
        "found",
        a.group_by("fruit").agg(
            total="sum(price)", n="count(*)", least="min(price)", most="max(price)"
        ),
    )
    change(session, a, {("apple", 11): 1, ("apple", 3): 2, ("banana", 2): 3, ("coconut", 3): 1})
    assert count(found) == {
        ("apple", 17, 3, 3, 11): 1,
        ("banana", 6, 3, 2, 2): 1,
        ("coconut", 3, 1, 3, 3): 1,
    }


def test_case_3_emptied_key_is_only_retracted_from_counts(
    session: Session,
) -> None:
    a = session.input("a", "k string, v string")
    counts = session.stage("counts", a.group_by("k").count())
    change(session, a, {("one", "a"): 1, ("one", "b"): 1})
    assert net(counts) == {("one", 2): 1}
    change(session, a, {("one", "c"): 1, ("two", "a"): 1})
    assert net(counts) == {("one", 2): -1, ("one", 3): 1, ("two", 1): 1}
    change(session, a, {("two", "a"): -1})
    assert net(counts) == {("two", 1): -1}


def test_case_4_distinct_over_signs(session: Session) -> None:
    a = session.input("a", "x int")
    once = session.stage("once", a.distinct())
    rounds = [
        ({1: 2, 2: -2, 3: 1, 4: -1, 5: 1, 6: 2}, {1, 3, 5, 6}),
        ({1: 3, 2: 1, 3: -1, 4: 3, 5: -2}, {1, 4, 6}),
        ({1: -4, 2: 1, 3: -1, 4: -3, 5: 4}, {1, 5, 6}),
    ]
    for diffs, present in rounds:
        change(session, a, {(x,): n for x, n in diffs.items()})
        assert count(once) == {(x,): 1 for x in present}


def joins(session: Session, a: Collection, b: Collection) -> dict[str, Collection]:
    """Every kind of join by k."""
    return {
        how: session.stage(f"{how}_join", a.join(b, on="k", how=how))
        for how in ("inner", "left", "right", "full", "semi", "anti")
    }


def test_case_5_joins_and_a_deleted_match(session: Session) -> None:
    a, b = session.input("a", "k int, v string"), session.input("b", "k int, w string")
    found = joins(session, a, b)
    a.insert([(1, "A"), (2, "B")])
    b.insert([(2, "X"), (3, "Y")])
    session.commit()
    assert count(found["inner"]) == {(2, "B", "X"): 1}
    assert count(found["left"]) == {(1, "A", None): 1, (2, "B", "X"): 1}
    assert count(found["right"]) == {(2, "B", "X"): 1, (3, None, "Y"): 1}
    assert count(found["full"]) == {(1, "A", None): 1, (2, "B", "X"): 1, (3, None, "Y"): 1}
    assert count(found["semi"]) == {(2, "B"): 1}
    assert count(found["anti"]) == {(1, "A"): 1}
    b.set([(1, "X"), (2, "Y")])
    session.commit()
    change(session, b, {(2, "Y"): -1})
    assert net(found["inner"]) == {(2, "B", "Y"): -1}
    assert net(found["left"]) == {(2, "B", "Y"): -1, (2, "B", None): 1}
    assert net(found["right"]) == {(2, "B", "Y"): -1}
    assert net(found["full"]) == {(2, "B", "Y"): -1, (2, "B", None): 1}
    assert net(found["semi"]) == {(2, "B"): -1}
    assert net(found["anti"]) == {(2, "B"): 1}


def test_case_6_left_join_pads_once_per_left_row(session: Session) -> None:
    a, b = session.input("a", "k int, v string"), session.input("b", "k int, w string")
    left = session.stage("left", a.join(b, on="k", how="left"))
    a.insert([(1, "A")])
    b.insert([(1, "X"), (1, "Y")])
    session.commit()
    assert count(left) == {(1, "A", "X"): 1, (1, "A", "Y"): 1}
    change(session, b, {(1, "X"): -1})
    assert net(left) == {(1, "A", "X"): -1}
    change(session, b, {(1, "Y"): -1})
    assert net(left) == {(1, "A", "Y"): -1, (1, "A", None): 1}
    change(session, a, {(1, "A"): 1})
    assert count(left) == {(1, "A", None): 2}


def test_case_6_null_keys_match_nothing_and_are_padded(session: Session) -> None:
    a, b = session.input("a", "k int, v string"), session.input("b", "k int, w string")
    found = joins(session, a, b)
    a.insert([(None, "p")])
    b.insert([(None, "q"), (4, "z"), (4, "z")])
    session.commit()
    assert count(found["inner"]) == {}
    padded = {(None, "p", None): 1, (None, None, "q"): 1, (4, None, "z"): 2}
    assert count(found["full"]) == padded
    assert count(found["left"]) == {(None, "p", None): 1}
    assert count(found["semi"]) == {}
    assert count(found["anti"]) == {(None, "p"): 1}
    change(session, a, {(4, "A"): 1, (4, "B"): 1})
    assert net(found["full"]) == {(4, None, "z"): -2, (4, "A", "z"): 2, (4, "B", "z"): 2}
    change(session, a, {(4, "A"): -1, (4, "B"): -1})
    assert count(found["full"]) == padded


def test_case_7_three_way_self_join_finds_one_triangle(session: Session) -> None:
    edges = session.input("edges", "a int, b int")
    steps = edges.join(edges.select("a AS b", "b AS c"), on="b")
    triangles = session.stage("triangles", steps.join(edges.rename({"b": "c"}), on=["a", "c"]))
    change(session, edges, {(0, 1): 1, (1, 2): 1, (0, 2): 1})
    assert count(triangles) == {(0, 1, 2): 1}
    change(session, edges, {(1, 2): -1})
    assert net(triangles) == {(0, 1, 2): -1}


def test_case_10_multiplicities_over_epochs_and_replay(session: Session) -> None:
    a = session.input("a", "k int, v int")
    live = session.stage("live", a.select("k").multiplicity())
    epochs = [
        {(2, 0): 1, (1, 0): 1, (1, 3): 1, (4, 2): 1},
        {(2, 0): -1, (1, 0): -1},
        {(2, 0): 1, (1, 3): -1},
        {(1, 0): 1, (1, 3): 1, (2, 0): -1, (4, 2): -1},
    ]
    wanted = [
        {(1, 2): 1, (2, 1): 1, (4, 1): 1},
        {(1, 1): 1, (1, 2): -1, (2, 1): -1},
        {(1, 1): -1, (2, 1): 1},
        {(1, 2): 1, (2, 1): -1, (4, 1): -1},
    ]
    for diffs, changes in zip(epochs, wanted, strict=True):
        change(session, a, diffs)
        assert net(live) == changes
    held: Counter[Any] = Counter()
    for number, changes in enumerate(wanted, 1):
        held.update(changes)
        assert count(live, at=number) == {row: n for row, n in held.items() if n}
    late = (
        a.select("v", "k").select("k").multiplicity()
    )  # another definition, so it is replayed separately
    session.define({"late": late}, replay=0)
    for number, changes in enumerate(wanted, 1):
        table = session["late"].changes(after=number - 1, upto=number).to_pydict()
        found = zip(table["k"], table["count"], table["diff"], strict=True)
        assert {(k, n): diff for k, n, diff in found} == changes


def test_case_11_cancelled_batch_still_advances_epoch(
    session: Session,
) -> None:
    a = session.input("a", "x int")
    stage = session.stage("stage", a.distinct())
    a.insert([(1,), (2,)])
    a.remove([(1,), (2,)])
    assert session.commit() == 1
    assert count(stage) == {}
    assert net(stage) == net(a) == {}
    assert session.commit() == 2 == session.now


def test_case_12_groups_with_only_nulls(session: Session) -> None:
    a = session.input("a", "k string, x double")
    found = session.stage(
        "found",
        a.group_by("k").agg(t="sum(x)", m="avg(x)", c="count(x)", n="count(*)", low="min(x)"),
    )
    whole = session.stage("whole", a.agg(t="sum(x)", c="count(x)"))
    assert count(whole) == {(None, 0): 1}
    change(session, a, {("a", None): 2})
    assert count(found) == {("a", None, None, 0, 2, None): 1}
    assert count(whole) == {(None, 0): 1}
    change(session, a, {("a", None): -2})
    assert net(found) == {("a", None, None, 0, 2, None): -1}
    assert count(found) == {}
    assert net(whole) == {}


# -- known bugs of incremental engines -------------------------------------------------------------


def test_min_ignores_retracted_duplicate_value(session: Session) -> None:
    a = session.input("a", "k int, x int")
    least = session.stage("least", a.group_by("k").agg(x="min(x)"))
    change(session, a, {(1, 3): 2, (1, 7): 1})
    change(session, a, {(1, 3): -1})
    assert count(least) == {(1, 3): 1}
    change(session, a, {(1, 3): -1})
    assert count(least) == {(1, 7): 1}


def test_nan_and_null_are_different_values_and_groups(session: Session) -> None:
    a = session.input("a", "x double")
    once = session.stage("once", a.distinct())
    groups = session.stage("groups", a.group_by("x").count())
    a.insert([(math.nan,), (None,), (float("nan"),), (0.0,), (-0.0,)])
    session.commit()
    assert [model.typed(row) for row in once.rows()] == [
        model.typed(row) for row in ((None,), (0.0,), (math.nan,))
    ]
    assert [row.count for row in groups.rows()] == [1, 2, 2]
    a.remove([(-math.nan,), (math.nan,), (0.0,), (0.0,)])
    session.commit()
    assert count(once) == {(None,): 1}


def test_rows_of_equal_hashes_stay_apart(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    def weak(columns: Any, types: Any, n: int) -> Any:
        return np.zeros(n, np.uint64)

    for module in ("nosync_nb.trace.batch.rows", "nosync_nb.trace.trace.rows"):
        monkeypatch.setattr(f"{module}.hash_columns", weak, raising=False)
    assert rows.hash_columns([], (), 2).tolist() == [0, 0]
    a = session.input("a", "k string, x int")
    once = session.stage("once", a.distinct())
    counts = session.stage("counts", a.group_by("k").agg(n="count(*)", most="max(x)"))
    pairs = session.stage("pairs", a.join(a.select("k", "x AS y"), on="k"))
    change(session, a, {("a", 1): 2, ("b", 1): 1, ("a", 2): 1})
    change(session, a, {("a", 1): -1, ("c", 5): 1, ("b", 1): -1})
    assert count(once) == {("a", 1): 1, ("a", 2): 1, ("c", 5): 1}
    assert count(counts) == {("a", 2, 2): 1, ("c", 1, 5): 1}
    assert count(pairs) == {
        ("a", 1, 1): 1,
        ("a", 1, 2): 1,
        ("a", 2, 1): 1,
        ("a", 2, 2): 1,
        ("c", 5, 5): 1,
    }


def test_removing_an_unseen_row_inserts_it_nowhere(session: Session) -> None:
    a = session.input("a", "x int")
    once = session.stage("once", a.distinct())
    change(session, a, {(1,): -1})
    assert count(once) == {}
    with pytest.raises(NegativeMultiplicityError, match=r"row \(1,\) has a count of -1"):
        a.rows()
    change(session, a, {(1,): 1})
    assert count(once) == {} == count(a)
    change(session, a, {(1,): 1})
    assert count(once) == {(1,): 1} == count(a)


def test_both_join_sides_change_in_one_epoch_after_merges(session: Session) -> None:
    a, b = session.input("a", "k int"), session.input("b", "k int, w int")
    joined = session.stage("joined", a.join(b, on="k"))
    held: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    for epoch in range(40):
        a.insert([(epoch % 3,)])
        b.insert([(epoch % 4, epoch)])
        held[0][epoch % 3,] += 1
        held[1][epoch % 4, epoch] += 1
        if epoch % 5 == 4:
            b.remove([((epoch - 2) % 4, epoch - 2)])
            held[1][(epoch - 2) % 4, epoch - 2] -= 1
        session.commit()
        wanted = model.join(held[0], model.summed(held[1].items()), [(0, 0)], "inner", (1, 2))
        assert count(joined) == wanted
    settle_background(session)
    assert count(joined) == wanted


def test_equal_definitions_under_two_names_are_independent(session: Session) -> None:
    a = session.input("a", "k string, x int")
    one = session.stage("one", a.group_by("k").agg(n="count(*)"))
    two = session.stage("two", a.group_by("k").agg(n="count(*)"))
    change(session, a, {("a", 1): 2})
    assert count(one) == count(two) == {("a", 2): 1}
    session.drop("one")
    change(session, a, {("a", 1): 1})
    assert count(two) == {("a", 3): 1}


def test_values_of_different_types_are_never_equal(session: Session) -> None:
    a = session.input("a", "x boolean")
    b = session.input("b", "x double")
    with pytest.raises(nosync_nb.SchemaError):
        a.concat(b)
    a.insert([(True,)])
    b.insert([(1,)])
    session.commit()
    assert [type(c.rows()[0].x) for c in (a, b)] == [bool, float]


def test_sum_overflows_only_by_its_final_value(session: Session) -> None:
    a = session.input("a", "x bigint")
    total = session.stage("total", a.agg(t="sum(x)"))
    big = 2**63 - 1
    change(session, a, {(big,): 2, (-big,): 1})
    assert count(total) == {(big,): 1}
    a.insert([(big,)])
    with pytest.raises(ExpressionError, match="is outside the range"):
        session.commit()
    assert count(total, at=session.now) == {(big,): 1}
    session.discard()
    change(session, a, {(big,): -2})
    assert count(total) == {(-big,): 1}


def test_sums_of_doubles_are_exact_and_independent_of_order(session: Session) -> None:
    a = session.input("a", "x double")
    total = session.stage("total", a.agg(t="sum(x)"))
    numbers = [0.1, 1e16, -1e16, 1e-300, 3.3, 1e308, 1e308, -1e308]
    for x in numbers:
        change(session, a, {(x,): 1})
    assert count(total) == {(model.exact_sum([(x, 1) for x in numbers]),): 1} == {(1e308,): 1}
    change(session, a, {(math.inf,): 1})
    change(session, a, {(-math.inf,): 1})
    assert math.isnan(total.rows()[0].t)
    change(session, a, {(-math.inf,): -1, (math.inf,): -1})
    for x in numbers[1:]:
        change(session, a, {(x,): -1})
    assert count(total) == {(0.1,): 1}


def test_sums_of_decimals_are_exact(session: Session) -> None:
    a = session.input("a", "k int, x decimal(10,2)")
    found = session.stage("found", a.group_by("k").agg(t="sum(x)", n="count(x)", low="min(x)"))
    change(session, a, {(1, Decimal("0.10")): 2, (1, Decimal("99999999.99")): 3, (1, None): 1})
    assert found.schema.types[1] == "decimal(20,2)"
    assert count(found) == {(1, Decimal("300000000.17"), 5, Decimal("0.10")): 1}


def test_reduce_function_sees_no_empty_group(session: Session) -> None:
    a = session.input("a", "k int, x int")

    def most(k: Any, group: list[Any]) -> list[tuple[int]]:
        assert group
        return [(group[-1].x,)]

    early = session.stage("early", a.group_by("k").reduce(most, "x int"))
    change(session, a, {(1, 3): 2, (1, 7): 1, (2, 5): 1})
    change(session, a, {(2, 5): -1, (1, 7): -1})
    late = session.stage("late", a.group_by("k").reduce(most, "y int"))
    assert count(early) == count(late) == {(1, 3): 1}


def test_function_changes_a_copy_of_captured_values(session: Session) -> None:
    calls: list[str] = []

    def record_call(row: Any) -> tuple[str, int]:
        calls.append(row.x)
        return (row.x, len(calls))

    a = session.input("a", "x string")
    noting = session.stage("noting", a.map(record_call, "x string, calls int"))
    change(session, a, {("a",): 1})
    change(session, a, {("b",): 1})
    assert count(noting) == {("a", 1): 1, ("b", 2): 1}
    assert calls == []
    (report,) = session.define({"noting": a.map(record_call, "x string, calls int")})
    assert report.status == "unchanged"
    calls.append("of the user")
    (report,) = session.define({"noting": a.map(record_call, "x string, calls int")})
    assert report.status == "changed"
    assert count(noting) == {("a", 2): 1, ("b", 3): 1}


def test_unstorable_function_is_reported_once(session: Session) -> None:
    lock = threading.Lock()

    def locked(row: Any) -> bool:
        with lock:
            return row.x > 0

    a = session.input("a", "x int")
    with pytest.warns(UserWarning, match="'locked' cannot be stored: 'lock' is an object"):
        kept = session.stage("kept", a.filter(locked))
    session.stage("other", a.distinct())
    change(session, a, {(1,): 1, (0,): 1})
    assert count(kept) == {(1,): 1}


# -- the model, where the engine has no such operator ----------------------------------------------


def test_model_computes_outer_joins() -> None:
    a, b = model.bag([(1, "A"), (2, "B")]), model.bag([(2, "X"), (3, "Y")])
    assert model.join(a, b, [(0, 0)], "right", (2, 2)) == {(2, "B", "X"): 1, (3, None, "Y"): 1}
    assert set(model.join(a, b, [(0, 0)], "full", (2, 2))) == {
        (1, "A", None),
        (2, "B", "X"),
        (3, None, "Y"),
    }
    a, b = model.bag([(None, "p")]), model.bag([(None, "q")])
    full = model.join(a, b, [(0, 0)], "full", (2, 2))
    assert full == {(None, "p", None): 1, (None, None, "q"): 1}


def test_model_computes_loops() -> None:
    edges = model.bag([(1, 2), (2, 3), (3, 2)])

    def step(found: model.Bag) -> model.Bag:
        further = model.join(found, edges, [(0, 0)], "inner", (1, 2))
        return model.distinct(
            model.concat(model.bag([(1,)]), model.mapped(further, lambda r: r[1:]))
        )

    assert model.iterated(model.bag([(1,)]), step) == model.bag([(1,), (2,), (3,)])
    assert model.iterated(model.bag([(1,)]), step, rounds=1) == model.bag([(1,), (2,)])
    edges = model.bag([(2, 3), (3, 2)])
    assert model.iterated(model.bag([(1,)]), step) == model.bag([(1,)])


def test_model_computes_top_rows() -> None:
    held = model.bag([("a", 1), ("a", 3), ("a", 3), ("b", 2), ("b", None)])
    assert model.top(held, [0], 2, [(1, True)]) == {("a", 3): 2, ("b", 2): 1, ("b", None): 1}
    assert model.top(held, [0], 1, [(1, False)], offset=1) == {("a", 3): 1, ("b", 2): 1}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), max_size=6))
def test_model_sums_are_consistent(diffs: list[tuple[int, int]]) -> None:
    held = model.summed(((x,), n) for x, n in diffs)
    assert model.concat(held, model.negated(held)) == model.bag()
    assert set(model.distinct(held)) == {row for row, n in held.items() if n > 0}
    assert all(held.values())
    assert key((-0.0, math.nan)) == (0.0, model.NAN)
