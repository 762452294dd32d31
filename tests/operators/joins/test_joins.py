"""Joins: outer, computed keys, cross, several at once, and their errors.

test_operators.py compares each kind with the model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from checks.checking import count, held, run
from hypothesis import given
from hypothesis import strategies as st
from models import model
from models.model import Bag

import nosync_nb
from nosync_nb import Collection, ExpressionError, Input, SchemaError, Session, StageError
from nosync_nb.collections.session_protocol import definition_of
from nosync_nb.operators import join, multiway_join
from nosync_nb.operators.multiway_join import LookupKey, MultiwayJoin
from nosync_nb.rows import buffers

KINDS = ("inner", "left", "right", "full", "semi", "anti")
pytestmark = pytest.mark.usefixtures("no_disk")


def join_inputs(session: Session) -> tuple[Input, Input]:
    return session.input("a", "k int, v string"), session.input("b", "k int, w string")


def test_right_join_shows_names_of_left_keys(session: Session) -> None:
    a = session.input("a", "x string, id int, y string, no int")
    b = session.input("b", "w string, n int, m int")
    joined = session.stage("joined", a.join(b, on={"no": "n", "id": "m"}, how="right"))
    assert joined.schema.names == ("x", "id", "y", "no", "w")
    a.insert([("x", 1, "y", 2)])
    b.insert([("both", 2, 1), ("alone", 7, 8), ("half", 2, None)])
    session.commit()
    assert count(joined) == {
        ("x", 1, "y", 2, "both"): 1,
        (None, 8, None, 7, "alone"): 1,
        (None, None, None, 2, "half"): 1,
    }


# -- many inputs -------------------------------------------------------------------------------


def chain() -> MultiwayJoin:
    """Four inputs of two columns, each joined with the next one."""
    middle = [LookupKey(i, key) for i in (1, 2) for key in ((0,), (1,), (0, 1))]
    ports = [LookupKey(0, (1,)), *middle, LookupKey(3, (0,))]
    same = [[(i, 1), (i + 1, 0)] for i in range(3)]
    return MultiwayJoin([("int", "int")] * 4, ports, same, [], [(0, 0), (3, 1)])


SIZES = st.lists(st.integers(0, 3), min_size=8, max_size=8)


@given(st.lists(st.tuples(st.integers(0, 3), SIZES)))
def test_multiway_join_looks_up_smallest_input_first(asked: list[tuple[int, list[int]]]) -> None:
    joined = chain()
    with mock.patch.object(multiway_join, "_ORDERS_MAX", 2):
        for source, sizes in asked:
            order = joined.order(source, sizes)
            assert order == chain().order(source, sizes)
            if 0 in [n for n, p in zip(sizes, joined.ports, strict=True) if p.input != source]:
                assert order == ()
                continue
            assert sorted(joined.ports[at].input for at in order) == sorted({0, 1, 2, 3} - {source})
            if source in (1, 2):  # both neighbours have a key: the smaller one is first
                next_to = [at for at, port in enumerate(joined.ports) if port in beside(source)]
                assert sizes[order[0]] == min(sizes[at] for at in next_to)


def beside(source: int) -> set[LookupKey]:
    """The lookup keys of the neighbours of a middle input."""
    return {LookupKey(source - 1, (1,)), LookupKey(source + 1, (0,))}


# -- several joins, several changes ------------------------------------------------------------


@pytest.mark.parametrize("how", ["inner", "full"])
@given(data=st.data())
def test_joins_of_joins_see_changes_of_all_inputs_in_one_epoch(
    how: str, data: st.DataObject
) -> None:
    def build(a: Collection, b: Collection) -> Collection:
        pairs = a.join(b, on={"c0": "d0"}, how=how)
        again = a.join(b, on={"c1": "d0"}, how=how).rename({"c0": "e0", "c1": "e1", "d1": "e2"})
        return pairs.join(again, on={"d1": "e1"}, how=how)

    def oracle(a: Bag, b: Bag) -> Bag:
        pairs = model.join(a, b, [(0, 0)], how, (2, 2))
        again = model.join(a, b, [(1, 0)], how, (2, 2))
        return model.join(pairs, again, [(2, 1)], how, (3, 3))

    small = st.tuples(*[st.none() | st.integers(0, 2)] * 2)
    pools = {"a": small, "b": small}
    run(data, {"a": ("int", "int"), "b": ("int", "int")}, build, oracle, pools=pools)


# -- keys --------------------------------------------------------------------------------------


def by_expressions(a: Bag, b: Bag, how: str) -> Bag:
    """`a.join(b, on={"abs(c0)": "d0", "c1": "d1 + 1"}, how)`, pair by pair."""
    outer = how in ("right", "full")

    def meet(x: model.Row, y: model.Row) -> bool:
        return None not in (*x, *y) and abs(x[0]) == y[0] and x[1] == y[1] + 1

    def shown(y: model.Row) -> model.Row:
        return y if outer else y[1:]  # d0 repeats |c0|, but where there is no left row

    pairs = [((*x, *shown(y)), n * m) for x, n in a.items() for y, m in b.items() if meet(x, y)]
    lonely = [(x, n) for x, n in a.items() if not any(meet(x, y) for y in b)]
    if how in ("semi", "anti"):
        alone = dict(lonely)
        return model.summed((x, n) for x, n in a.items() if (x in alone) == (how == "anti"))
    if how in ("left", "full"):
        pairs += [((*x, *((None, None) if outer else (None,))), n) for x, n in lonely]
    if outer:
        pairs += [
            ((None, None if y[1] is None else y[1] + 1, *y), m)
            for y, m in b.items()
            if not any(meet(x, y) for x in a)
        ]
    return model.summed(pairs)


@pytest.mark.parametrize("how", KINDS)
@given(data=st.data())
def test_keys_may_be_expressions_of_either_side(how: str, data: st.DataObject) -> None:
    some = st.tuples(*[st.none() | st.integers(-2, 2)] * 2)
    run(
        data,
        {"a": ("int", "int"), "b": ("int", "int")},
        lambda a, b: a.join(b, on={"abs(c0)": "d0", "c1": "d1 + 1"}, how=how),
        lambda a, b: by_expressions(a, b, how),
        pools={"a": some, "b": some},
    )


def test_computed_keys_are_hidden_and_clash_only_in_outer_joins(session: Session) -> None:
    people = session.input("people", "name string, age int")
    logins = session.input("logins", "name string, day int")
    people.insert([("Ada", 36), ("Bob", 5)])
    logins.insert([("ada", 1), ("eve", 2)])
    session.commit()
    joined = people.join(logins, on={"lower(name)": "name"})
    assert joined.schema.ddl == "name string, age int, day int"
    assert count(joined) == {("Ada", 36, 1): 1}
    assert count(people.join(logins, on={"lower(`name`)": "name"}, how="anti")) == {("Bob", 5): 1}
    with pytest.raises(SchemaError, match="both sides have a column 'name'"):
        people.join(logins, on={"lower(name)": "name"}, how="full")
    renamed = logins.rename({"name": "login"})
    assert count(people.join(renamed, on={"lower(name)": "login"}, how="full")) == {
        ("Ada", 36, "ada", 1): 1,
        ("Bob", 5, None, None): 1,
        (None, None, "eve", 2): 1,
    }


def test_keys_of_different_width_meet_in_wider_type(session: Session) -> None:
    a, b = session.input("a", "k tinyint, x int"), session.input("b", "k bigint, y int")
    a.insert([(1, 1), (2, 2)])
    b.insert([(2, 3), (2**40, 4)])
    session.commit()
    full = a.join(b, on="k", how="full")
    assert full.schema.types == ("bigint", "int", "int")
    assert count(full) == {(1, 1, None): 1, (2, 2, 3): 1, (2**40, None, 4): 1}
    for how, row in (("semi", (2, 2)), ("anti", (1, 1))):
        found = a.join(b, on="k", how=how)
        assert (found.schema, count(found)) == (a.schema, {row: 1})
        assert b.join(a, on="k", how=how).schema == b.schema


@given(data=st.data(), how=st.sampled_from(KINDS))
def test_rows_of_wider_and_narrower_keys_meet(data: st.DataObject, how: str) -> None:
    run(
        data,
        {"a": ("smallint", "float"), "b": ("int", "double")},
        lambda a, b: a.join(b, on={"c0": "d0", "c1": "d1"}, how=how),
        lambda a, b: model.join(a, b, [(0, 0), (1, 1)], how, (2, 2)),
    )


def test_invalid_keys_are_refused_with_names_and_types(session: Session) -> None:
    a = session.input("a", "k int, s string, m map<string,int>")
    b = session.input("b", "i int, t string, n map<string,int>")
    for on, said in (
        ({"k": "t"}, "key 'k' is int on the left and 't' is string on the right"),
        ({"k + 1": "lower(t)"}, "'k \\+ 1' is int on the left and its expression is string"),
        ({"m": "n"}, "'m' is a map, and maps cannot be keys"),
        ({"nothing": "t"}, "no column 'nothing'"),
        ({"k": "nothing"}, "no column 'nothing'"),
        ([], "no key columns"),
        (None, "no key columns"),
        ({"k": 3}, "3 is neither a column nor an expression"),
    ):
        with pytest.raises(SchemaError, match=said):
            a.join(b, on=on)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="unknown kind 'natural'"):
        a.join(b, on={"k": "i"}, how="natural")


def test_common_column_is_refused_with_rename(session: Session) -> None:
    a, b = session.input("a", "k int, v int"), session.input("b", "k int, V int")
    with pytest.raises(SchemaError, match="both sides have a column 'V'") as caught:
        a.join(b, on="k")
    assert "rename({'V': 'other_V'})" in caught.value.__notes__[0]
    assert a.join(b, on="k", how="semi").schema.names == ("k", "v")


def test_kinds_may_be_spelled_as_in_spark(session: Session) -> None:
    a, b = join_inputs(session)
    for spelled, kind in (
        ("outer", "full"),
        ("fullouter", "full"),
        ("full_outer", "full"),
        ("LEFT_OUTER", "left"),
        ("rightouter", "right"),
        ("left_semi", "semi"),
        ("leftanti", "anti"),
    ):
        ours = definition_of("test", a.join(b, on="k", how=spelled))
        theirs = definition_of("test", a.join(b, on="k", how=kind))
        assert ours.fingerprint({"a": "1", "b": "2"}) == theirs.fingerprint({"a": "1", "b": "2"})


# -- cross -------------------------------------------------------------------------------------


@given(st.data())
def test_cross_join_pairs_all_rows(data: st.DataObject) -> None:
    def build(a: Collection, b: Collection) -> Collection:
        with pytest.warns(UserWarning, match="pairs every row with every row"):
            return a.join(b, how="cross")

    run(
        data,
        {"a": ("int",), "b": ("string", "int")},
        build,
        lambda a, b: model.summed(((*x, *y), n * m) for x, n in a.items() for y, m in b.items()),
    )


def test_objects_of_row_with_many_partners_are_converted_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = session.input("a", "x int"), session.input("b", "y decimal(9,2), z decimal(9,2)")
    with pytest.warns(UserWarning, match="cross"):
        pairs = a.join(b, how="cross")
    over = session.stage("over", pairs.filter("x > z").select("x", "y"))
    sizes, convert = [], buffers.arrow_from_list

    def counted(values: Sequence[Any], type_: Any) -> Any:
        sizes.append(len(values))
        return convert(values, type_)

    a.insert([(i,) for i in range(3000)])
    b.insert([(Decimal("0.50"), Decimal("2900.00"))])
    session.commit()
    monkeypatch.setattr(buffers, "arrow_from_list", counted)
    a.insert([(3000,)])
    b.remove([(Decimal("0.50"), Decimal("2900.00"))])
    b.insert([(Decimal("0.75"), Decimal("2990.00"))])
    session.commit()
    assert sizes
    assert max(sizes) <= 64
    assert count(over) == {(x, Decimal("0.75")): 1 for x in range(2991, 3001)}


def test_large_cross_join_is_refused_and_epoch_stays_open(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = session.input("a", "x int"), session.input("b", "y int")
    with pytest.warns(UserWarning, match="cross"):
        pairs = session.stage("pairs", a.join(b, how="cross"))
    monkeypatch.setattr(join, "CROSS_ROWS_MAX", 60)
    a.insert([(i,) for i in range(10)])
    b.insert([(i,) for i in range(6)])
    session.commit()
    assert pairs.count() == 60
    a.insert([(i,) for i in range(11)])
    with pytest.raises(
        StageError, match=r"11 changed rows of one side with 6 .* 66 rows"
    ) as caught:
        session.commit()
    assert "join on a key" in caught.value.__notes__[0]
    session.discard()
    assert pairs.count() == 60
    with pytest.raises(SchemaError, match="a cross join has no key columns"):
        a.join(b, on={"x": "y"}, how="cross")


# -- Spark -------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize("how", KINDS)
def test_joins_equal_spark_sql(how: str, tmp_path: Path, spark: Any) -> None:
    rng = random.Random(KINDS.index(how))

    def key() -> Any:
        return rng.choice([None, *range(6)])

    left = [(key(), rng.choice([None, 0.0, float("nan"), 1.5]), i % 3) for i in range(40)]
    right = [(key(), rng.choice([None, -0.0, float("nan"), 2.5]), i % 4) for i in range(30)]
    ours = "k bigint, d double, x int", "k bigint, d double, y int"
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        a, b = session.input("a", ours[0]), session.input("b", ours[1])
        joined = session.stage("joined", a.join(b, on=["k", "d"], how=how))
        for source, given_ in ((a, left), (b, right)):
            source.insert(given_)
            session.commit()
        a.remove(left[::4])
        b.remove(right[::3])
        session.commit()
        left = [r for i, r in enumerate(left) if i % 4]
        right = [r for i, r in enumerate(right) if i % 3]
        frames = [spark.createDataFrame(r, s) for r, s in zip((left, right), ours, strict=True)]
        theirs = frames[0].join(
            frames[1], on=["k", "d"], how=f"left_{how}" if how in ("semi", "anti") else how
        )
        wanted = model.bag(map(model.typed, map(tuple, theirs.collect())))
        assert held(joined) == wanted


@pytest.mark.spark
def test_nondeterministic_keys_and_orders_are_refused(tmp_path: Path, spark: Any) -> None:
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        a, b = join_inputs(session)
        with pytest.raises(ExpressionError, match="is not deterministic"):
            a.join(b, on={"rand()": "k"})
        with pytest.raises(ExpressionError, match="is not deterministic"):
            a.group_by("k").top(1, by="rand()")
