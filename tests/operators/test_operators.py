"""Operators: at every epoch equal to their models over the accumulated inputs.

Stages are defined before the first epoch or between two, so the tests cover backfills and changes.
Besides the rows they compare the changes, every past epoch, and the same expression without a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from checks.checking import run
from hypothesis import given
from hypothesis import strategies as st
from models import model
from models.model import Bag, Row
from strategies import all_types, schemas, types

from nosync_nb import Collection

pytestmark = pytest.mark.usefixtures("no_disk")


# -- linear ------------------------------------------------------------------------------------


def sql_compare(row: Row, test: Callable[[Any, Any], bool], one: int, other: Any) -> bool:
    """A comparison in SQL: not true if a side is null; NaN is the greatest."""
    left, right = row[one], row[other] if isinstance(other, int) else other[0]
    return left is not None and right is not None and test(model.order(left), model.order(right))


@given(st.data())
def test_inputs_have_inserted_rows_less_removed_ones(data: st.DataObject) -> None:
    of = data.draw(schemas(all_types))
    run(data, {"a": of}, lambda a: a.filter("true"), lambda a: a)


# Where Arrow knows the comparison; that it means what Spark's does is proved elsewhere.
compared = types.filter(lambda t: t != "binary" and not t.startswith("decimal"))


@given(st.data(), compared)
def test_filter_keeps_rows_whose_predicate_is_true(data: st.DataObject, of: str) -> None:
    run(
        data,
        {"a": (of, of)},
        lambda a: a.filter("c0 >= c1"),
        lambda a: model.filtered(a, lambda r: sql_compare(r, lambda x, y: x >= y, 0, 1)),
    )


@given(st.data(), compared)
def test_filter_accepts_null_safe_equality_and_functions(data: st.DataObject, of: str) -> None:
    run(
        data,
        {"a": (of, of)},
        lambda a: a.where("c0 <=> c1").concat(a.filter(lambda r: r.c0 is None)),
        lambda a: model.concat(
            model.filtered(a, lambda r: model.order(r[0]) == model.order(r[1])),
            model.filtered(a, lambda r: r[0] is None),
        ),
    )


@given(st.data(), schemas(types, 3, 3))
def test_select_drop_rename_and_with_columns_pick_columns(
    data: st.DataObject, of: tuple[str, ...]
) -> None:
    run(
        data,
        {"a": of},
        lambda a: a.select("c2", "c0 AS x", "1 AS n").concat(
            a.drop("c1").rename({"c0": "x"}).with_columns(n="2").select("c2", "x", "n")
        ),
        lambda a: model.concat(
            model.mapped(a, lambda r: (r[2], r[0], 1)), model.mapped(a, lambda r: (r[2], r[0], 2))
        ),
    )


@given(st.data())
def test_select_computes_and_rows_may_become_equal(data: st.DataObject) -> None:
    run(
        data,
        {"a": ("int", "smallint")},
        lambda a: a.select("cast(c1 as bigint) * 2 AS x", "c0 > 0 AS y"),
        lambda a: model.mapped(
            a, lambda r: (None if r[1] is None else r[1] * 2, None if r[0] is None else r[0] > 0)
        ),
    )


@given(st.data(), all_types)
def test_map_and_flat_map_call_function_per_row(data: st.DataObject, of: str) -> None:
    run(
        data,
        {"a": (of, "int")},
        lambda a: a.map(lambda r: (r.c0, r.c1 is None), f"x {of}, y boolean").concat(
            a.flat_map(lambda r: [(r.c0, False)] * 2 if r.c1 == 1 else [], f"x {of}, y boolean")
        ),
        lambda a: model.concat(
            model.mapped(a, lambda r: (r[0], r[1] is None)),
            model.flat_mapped(a, lambda r: [(r[0], False)] * 2 if r[1] == 1 else []),
        ),
    )


@given(st.data(), schemas(all_types, 1, 2))
def test_concat_adds_and_negate_subtracts(data: st.DataObject, of: tuple[str, ...]) -> None:
    run(
        data,
        {"a": of, "b": of},
        lambda a, b: (
            a.concat(b.rename(dict(zip(b.schema.names, a.schema.names, strict=True))), a)
            .concat(a.negate())
            .consolidate()
        ),
        lambda a, b: model.concat(a, b),
    )


# -- multisets ---------------------------------------------------------------------------------


@given(st.data(), schemas(all_types, 1, 2))
def test_distinct_has_each_row_once(data: st.DataObject, of: tuple[str, ...]) -> None:
    run(data, {"a": of}, lambda a: a.distinct(), model.distinct)


@given(st.data(), schemas(all_types, 1, 2))
def test_distinct_omits_rows_with_negative_count(data: st.DataObject, of: tuple[str, ...]) -> None:
    run(
        data,
        {"a": of, "b": of},
        lambda a, b: a.concat(b.negate()).distinct(),
        lambda a, b: model.distinct(model.concat(a, model.negated(b))),
    )


@given(st.data(), schemas(all_types, 1, 2))
def test_multiplicity_adds_count(data: st.DataObject, of: tuple[str, ...]) -> None:
    run(data, {"a": of}, lambda a: a.multiplicity(), model.multiplicity)


@given(st.data(), schemas(all_types, 1, 2))
def test_except_all_subtracts_counts(data: st.DataObject, of: tuple[str, ...]) -> None:
    run(data, {"a": of, "b": of}, lambda a, b: a.except_all(b), model.except_all)


@given(st.data(), schemas(all_types, 1, 2))
def test_subtract_omits_rows_of_right_side(data: st.DataObject, of: tuple[str, ...]) -> None:
    run(data, {"a": of, "b": of}, lambda a, b: a.subtract(b), model.subtract)


# -- keyed -------------------------------------------------------------------------------------

HOW = ("inner", "left", "right", "full", "semi", "anti")


@pytest.mark.parametrize("how", HOW)
@given(data=st.data(), of=all_types)
def test_joins_pair_rows_of_equal_keys(how: str, data: st.DataObject, of: str) -> None:
    run(
        data,
        {"a": (of, "int"), "b": ("string", of)},
        lambda a, b: a.join(b, on={"c0": "d1"}, how=how),
        lambda a, b: model.join(a, b, [(0, 1)], how, (2, 2)),
    )


@pytest.mark.parametrize("how", HOW)
@given(data=st.data(), of=schemas(types, 2, 2))
def test_joins_by_several_columns(how: str, data: st.DataObject, of: tuple[str, ...]) -> None:
    run(
        data,
        {"a": of, "b": (*of, "boolean")},
        lambda a, b: a.join(b, on={"c0": "d0", "c1": "d1"}, how=how),
        lambda a, b: model.join(a, b, [(0, 0), (1, 1)], how, (2, 3)),
    )


@pytest.mark.parametrize("how", HOW)
@given(data=st.data(), of=types)
def test_collection_joins_itself(how: str, data: st.DataObject, of: str) -> None:
    run(
        data,
        {"a": (of, of)},
        lambda a: a.join(a.select("c0 AS x", "c1 AS y"), on={"c1": "x"}, how=how),
        lambda a: model.join(a, a, [(1, 0)], how, (2, 2)),
    )


CALLS = {
    "n": ("count(*)", ("count_star", 0)),
    "some": ("count(c1)", ("count", 1)),
    "least": ("min(c1)", ("min", 1)),
    "most": ("max(c1)", ("max", 1)),
}
SUMS = {"total": ("sum(c1)", ("sum", 1)), "mean": ("avg(c1)", ("avg", 1))}


def grouped(data: st.DataObject, of: tuple[str, ...], calls: Mapping[str, Any], keys: int) -> None:
    names = {name: sql for name, (sql, _) in calls.items()}
    wanted = [call for _, call in calls.values()]
    places = [i for i in range(len(of)) if i != 1][:keys]
    run(
        data,
        {"a": of},
        lambda a: a.group_by(*(f"c{i}" for i in places)).agg(**names),
        lambda a: model.aggregated(a, places, wanted),
    )


@given(st.data(), all_types, types)
def test_counts_and_extremes_of_groups(data: st.DataObject, of: str, argument: str) -> None:
    grouped(data, (of, argument), CALLS, 1)


@given(st.data(), schemas(types, 3, 3))
def test_groups_by_several_columns_and_by_none(data: st.DataObject, of: tuple[str, ...]) -> None:
    grouped(data, of, CALLS, 2)
    grouped(data, of, CALLS, 0)


@given(st.data(), types, st.sampled_from(["tinyint", "smallint", "int", "float", "double"]))
def test_sums_and_means_of_groups_are_exact(data: st.DataObject, of: str, argument: str) -> None:
    grouped(data, (of, argument), SUMS | CALLS, 1)
    grouped(data, (of, argument), SUMS, 0)


@given(st.data(), st.lists(st.floats(), min_size=1, max_size=8))
def test_sums_of_any_doubles_are_exact_and_rounded_once(
    data: st.DataObject, numbers: list[float]
) -> None:
    some = st.tuples(st.none() | st.booleans(), st.sampled_from(numbers))
    names = {name: sql for name, (sql, _) in SUMS.items()}
    run(
        data,
        {"a": ("boolean", "double")},
        lambda a: a.group_by("c0").agg(**names),
        lambda a: model.aggregated(a, [0], [call for _, call in SUMS.values()]),
        pools={"a": some},
    )


@given(st.data(), all_types, all_types)
def test_reduce_sees_groups_in_canonical_order(data: st.DataObject, of: str, other: str) -> None:
    run(
        data,
        {"a": (of, other)},
        lambda a: a.group_by("c0").reduce(
            lambda k, rows: [(rows[0].c1, len(rows)), (rows[-1].c1, 0)], f"x {other}, n int"
        ),
        lambda a: model.reduced(
            a, [0], lambda k, rows: [(rows[0][1], len(rows)), (rows[-1][1], 0)]
        ),
    )


@given(st.data())
def test_operators_compose(data: st.DataObject) -> None:
    def build(a: Collection, b: Collection) -> Collection:
        counts = a.group_by("c0").agg(n="count(*)", most="max(c1)")
        late = counts.join(b, on={"c0": "d0"}, how="left").filter("n > 1 or d1 is null")
        return late.select("c0 AS k", "n").distinct().except_all(b.select("d0 AS k", "2L AS n"))

    def oracle(a: Bag, b: Bag) -> Bag:
        counts = model.aggregated(a, [0], [("count_star", 0), ("max", 1)])
        joined = model.join(counts, b, [(0, 0)], "left", (3, 2))
        late = model.filtered(joined, lambda r: r[1] > 1 or r[3] is None)
        pairs = model.distinct(model.mapped(late, lambda r: r[:2]))
        return model.except_all(pairs, model.mapped(b, lambda r: (r[0], 2)))

    run(data, {"a": ("string", "int"), "b": ("string", "boolean")}, build, oracle)


@given(st.data(), schemas(all_types, 1, 2), st.sampled_from(["subtract", "except_all"]))
def test_negative_right_side_removes_nothing(
    data: st.DataObject, of: tuple[str, ...], which: str
) -> None:
    run(
        data,
        {"a": of, "b": of},
        lambda a, b: getattr(a, which)(a.concat(b.negate()).negate()),
        lambda a, b: getattr(model, which)(a, model.concat(b, model.negated(a))),
    )
