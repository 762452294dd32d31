"""`agg`: at every epoch equal to its model, and a hot group costs what changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from checks.checking import run
from hypothesis import given
from hypothesis import strategies as st
from models import aggregate_model, model
from models.aggregate_model import Call
from models.batch_model import weak_hashes
from strategies import all_types, types

import nosync_nb
from nosync_nb import Collection, Session
from nosync_nb.errors import ExpressionError
from nosync_nb.operators.aggregates import aggregate

INTEGERS = st.sampled_from(["tinyint", "smallint", "int", "bigint"])


pytestmark = pytest.mark.usefixtures("no_disk")


def check_against_model(
    data: st.DataObject,
    of: Sequence[str],
    calls: Mapping[str, Call],
    *,
    pool: st.SearchStrategy[Any] | None = None,
    negative: bool = True,
) -> None:
    """Compares aggregates by the first column, or of all rows, with the model.

    Args:
        negative: allow negative counts of rows.
    """
    named = {f"n{i}": sql for i, sql in enumerate(calls)}
    wanted = [("count_star",), *calls.values()]
    keyed = data.draw(st.booleans(), label="keyed")

    def build(a: Collection, *others: Collection) -> Collection:
        for b in others:
            a = a.concat(b.rename({"d0": "c0", "d1": "c1", "d2": "c2"}).negate())
        return a.group_by(*(["c0"] if keyed else [])).agg(n="count(*)", **named)

    def oracle(a: model.Bag, *others: model.Bag) -> model.Bag:
        held = model.concat(a, *map(model.negated, others))
        return aggregate_model.aggregated(held, [0] if keyed else [], wanted)

    inputs = {"a": of, "b": of} if negative else {"a": of}
    pools = None if pool is None else dict.fromkeys(inputs, pool)
    run(data, inputs, build, oracle, pools=pools, max_epochs=3)


@given(st.data(), st.sampled_from([0, 2]))
def test_sums_counts_and_means_equal_model(data: st.DataObject, together: int) -> None:
    calls: dict[str, Call] = {
        "sum(c1)": ("sum", 1),
        "count(c1)": ("count", 1),
        "avg(c2)": ("avg", 2),
    }
    with mock.patch.object(aggregate, "_TOGETHER", together):
        check_against_model(data, ("string", "int", "double"), calls)


@given(st.data(), all_types, types)
def test_distinct_counts_lists_and_by_aggregates_equal_model(
    data: st.DataObject, of: str, order: str
) -> None:
    calls: dict[str, Call] = {
        "count(distinct c1)": ("distinct count", 1),
        "count(distinct c1, c2)": ("distinct count", 1, 2),
        "count(c1, c2)": ("count", 1, 2),
        "collect_list(c1)": ("collect_list", 1),
        "collect_set(c1)": ("collect_set", 1),
        "min_by(c1, c2)": ("min_by", 1, 2),
        "max_by(c1, c2)": ("max_by", 1, 2),
        "max_by(c2, c2)": ("max", 2),
        "min(c1)": ("min", 1),
        "max(distinct c1)": ("max", 1),
    }
    check_against_model(data, ("string", of, order), calls)


@given(st.data(), INTEGERS)
def test_bit_aggregates_equal_model(data: st.DataObject, of: str) -> None:
    calls: dict[str, Call] = {
        f"bit_{name}({each}c1)": (f"{each}bit_{name}", 1)
        for name in ("and", "or", "xor")
        for each in ("", "distinct ")
    }
    check_against_model(data, ("boolean", of, "int"), calls)


@given(st.data())
def test_boolean_aggregates_equal_model(data: st.DataObject) -> None:
    calls: dict[str, Call] = {
        "bool_and(c1)": ("bool_and", 1),
        "every(c1)": ("bool_and", 1),
        "bool_or(c1)": ("bool_or", 1),
        "any(c1)": ("bool_or", 1),
        "some(c1)": ("bool_or", 1),
        "count(distinct c1)": ("distinct count", 1),
    }
    check_against_model(data, ("boolean", "boolean", "int"), calls)


SPREADS: dict[str, Call] = {
    "stddev(c1)": ("stddev_samp", 1),
    "stddev_pop(c1)": ("stddev_pop", 1),
    "variance(c1)": ("var_samp", 1),
    "var_pop(c1)": ("var_pop", 1),
    "var_samp(distinct c1)": ("distinct var_samp", 1),
    "stddev_pop(distinct c1)": ("distinct stddev_pop", 1),
}


@given(st.data(), st.sampled_from(["tinyint", "int", "float", "double", "decimal(10,2)"]))
def test_variances_and_sums_are_exact(data: st.DataObject, of: str) -> None:
    sums: dict[str, Call] = {
        "sum(c1)": ("sum", 1),
        "avg(c1)": ("avg", 1),
        "sum(distinct c1)": ("distinct sum", 1),
        "avg(distinct c1)": ("distinct avg", 1),
    }
    decimal = of.startswith("decimal")  # whose averages have a range, and with b may leave it
    check_against_model(data, ("boolean", of, "int"), SPREADS | sums, negative=not decimal)


@given(st.data(), st.lists(st.floats(), min_size=1, max_size=8))
def test_variances_of_any_doubles_are_exact(data: st.DataObject, numbers: list[float]) -> None:
    pool = st.tuples(st.booleans(), st.none() | st.sampled_from(numbers), st.just(0))
    check_against_model(data, ("boolean", "double", "int"), SPREADS, pool=pool)


@given(st.data(), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_variances_of_wide_integers_use_their_doubles(
    data: st.DataObject, numbers: list[int]
) -> None:
    pool = st.tuples(st.booleans(), st.none() | st.sampled_from(numbers), st.just(0))
    check_against_model(data, ("boolean", "bigint", "int"), SPREADS, pool=pool)


@given(st.data(), st.sampled_from([(10, 2), (38, 10), (38, 0), (18, 18)]))
def test_sums_and_means_of_decimals_are_exact(data: st.DataObject, width: tuple[int, int]) -> None:
    precision, scale = width
    digits = min(precision, 33)
    numbers = data.draw(
        st.lists(st.integers(1 - 10**digits, 10**digits - 1), min_size=1, max_size=6)
    )
    decimals = [Decimal(f"{n}E-{scale}") for n in numbers]
    pool = st.tuples(st.booleans(), st.none() | st.sampled_from(decimals), st.just(0))
    calls: dict[str, Call] = {
        "sum(c1)": ("sum", 1),
        "avg(c1)": ("avg", 1),
        "sum(distinct c1)": ("distinct sum", 1),
        "max(c1)": ("max", 1),
    }
    of = ("boolean", f"decimal({precision},{scale})", "int")
    check_against_model(data, of, calls, pool=pool, negative=False)


@given(st.data())
def test_filter_clause_selects_rows(data: st.DataObject) -> None:
    def kept(name: str) -> Callable[..., Any]:
        calls = {
            "n": ("count_star",),
            "d": ("distinct count", 1),
            "b": ("min_by", 1, 2),
            "l": ("collect_list", 1),
        }
        return lambda group: aggregate_model.aggregate(
            model.filtered(group, lambda row: row[2] is not None and row[2] > 0), *calls[name]
        )

    def oracle(a: model.Bag) -> model.Bag:
        return model.summed(
            ((*key, *(kept(name)(group) for name in "ndbl")), 1)
            for key, group in model.groups(a, [0]).items()
        )

    filter_ = "filter (where c2 > 0)"
    run(
        data,
        {"a": ("string", "int", "int")},
        lambda a: a.group_by("c0").agg(
            n=f"count(*) {filter_}",
            d=f"count(distinct c1) {filter_}",
            b=f"min_by(c1, c2) {filter_}",
            l=f"collect_list(c1) {filter_}",
        ),
        oracle,
    )


@given(st.data(), st.integers(1, 3), types, types)
def test_keys_and_values_with_equal_hashes_stay_apart(
    data: st.DataObject, buckets: int, key: str, of: str
) -> None:
    calls: dict[str, Call] = {
        "count(distinct c1)": ("distinct count", 1),
        "count(distinct c1, c2)": ("distinct count", 1, 2),
        "collect_set(c1)": ("collect_set", 1),
        "min_by(c1, c2)": ("min_by", 1, 2),
        "max(c1)": ("max", 1),
        "bit_or(c2)": ("bit_or", 2),
        "stddev(distinct c2)": ("distinct stddev_samp", 2),
    }
    with weak_hashes(buckets):
        check_against_model(data, (key, of, "int"), calls)


def test_aggregates_of_no_rows_are_one_row(session: Session) -> None:
    rows = session.input("rows", "x int, o int")
    found = session.stage(
        "found",
        rows.agg(
            n="count(distinct x)",
            s="stddev_pop(x)",
            b="bit_xor(x)",
            t="bool_or(x > 0)",
            l="collect_set(x)",
            m="min_by(x, o)",
        ),
    )
    session.commit()
    assert found.rows() == [(0, None, None, None, [], None)]


# -- examples ----------------------------------------------------------------------------------


def test_variance_is_exact_after_removal_of_huge_values(session: Session) -> None:
    rows = session.input("rows", "x double")
    stage = session.stage("stage", rows.agg(s="sum(x)", v="var_samp(x)", d="stddev(x)"))
    rows.insert([(0.1,), (0.2,), (0.4,)])
    session.commit()
    before = stage.rows()
    huge = [(1e200,), (-1e-200,), (float("nan"),), (float("inf"),)]
    rows.insert(huge)
    session.commit()
    assert stage.rows() != before
    rows.remove(huge)
    session.commit()
    assert stage.rows() == before
    third = sum(map(Fraction, (0.1, 0.2, 0.4))) / 3
    exact = sum((Fraction(x) - third) ** 2 for x in (0.1, 0.2, 0.4)) / 2
    assert before[0].v == float(exact)


def test_agg_accepts_expressions_over_aggregates(session: Session) -> None:
    rows = session.input("rows", "k string, x int, b boolean")
    rows.insert([("a", 3, True), ("a", 5, True), ("a", 5, False)])
    session.commit()
    found = rows.group_by("k").agg(
        share="count(distinct x) / count(*)",
        all="if(every(b), 'all', 'not all')",
        odd="bit_or(x) - bit_and(x)",
    )
    assert found.rows() == [("a", 2 / 3, "not all", 6)]


def test_aggregates_work_inside_loops(session: Session) -> None:
    roads = session.input("roads", "a string, b string, km int")
    starts = session.input("starts", "at string, via string, km int")

    def body(found: Collection) -> Collection:
        on = found.join(roads.rename({"km": "more"}), on={"at": "a"})
        further = on.select("b AS at", "at AS via", "km + more AS km")
        return (
            starts.concat(further)
            .group_by("at")
            .agg(via="min_by(via, km)", km="min(km)", ways="count(distinct via)")
            .select("at", "via", "km")
        )

    best = session.stage("best", starts.iterate(body))
    starts.insert([("a", None, 0)])
    roads.insert([("a", "b", 5), ("b", "c", 5), ("a", "c", 20), ("c", "d", 1)])
    session.commit()
    assert best.rows() == [("a", None, 0), ("b", "a", 5), ("c", "b", 10), ("d", "c", 11)]
    roads.remove([("b", "c", 5)])
    session.commit()
    assert best.rows() == [("a", None, 0), ("b", "a", 5), ("c", "a", 20), ("d", "c", 21)]


@pytest.mark.parametrize(
    ("type_", "sql", "value"),
    [
        ("bigint", "sum(x)", 2**62),
        ("decimal(38,0)", "sum(x)", Decimal(6 * 10**37)),
        ("decimal(38,38)", "sum(x)", Decimal("0.6")),
        ("decimal(38,2)", "avg(x)", Decimal(10**35)),
    ],
)
def test_total_out_of_range_names_stage_and_changes_nothing(
    session: Session, type_: str, sql: str, value: Any
) -> None:
    rows = session.input("rows", f"x {type_}")
    stage = session.stage("total", rows.agg(t=sql))
    rows.insert([(value,), (value,)])
    with pytest.raises(ExpressionError, match=r"stage 'total': .* is outside the range") as caught:
        session.commit()
    assert "cast(x as" in str(caught.value.hint)
    assert stage.rows(at=session.now) == [(None,)]
    session.discard()
    rows.insert([(value,), (value,), (-value,)] if sql == "sum(x)" else [(Decimal(1),)])
    session.commit()
    assert stage.rows() == [(value if sql == "sum(x)" else Decimal(1),)]


# -- the cost of a hot group -------------------------------------------------------------------

HOT = {
    "extremes": {"least": "min(x)", "most": "max(x)", "late": "max(s)"},
    "distinct": {"kinds": "count(distinct x)", "pairs": "count(distinct x, s)"},
    "by": {"first": "min_by(s, x)", "last": "max_by(s, x)"},
    "truth": {"all": "bool_and(x > 5)", "some": "bool_or(x < 0)"},
    "bits": {"and_": "bit_and(x)", "or_": "bit_or(x)", "xor": "bit_xor(x)"},
    "spread": {"s": "stddev(x)", "d": "sum(distinct x)", "m": "avg(x)"},
    "moments": {"line": "corr(x, x % 7)", "shape": "kurtosis(x)"},
}


@pytest.mark.parametrize("name", HOT)
@pytest.mark.parametrize("keys", [("k",), ()])
def test_hot_group_costs_only_its_changes(name: str, keys: tuple[str, ...], tmp_path: Path) -> None:
    touched = []
    for size in (1_000, 60_000):
        with nosync_nb.open(tmp_path / str(size), spark_rows=10**9) as session:
            rows = session.input("rows", "k string, x bigint, s string")
            rows.insert([("hot", i, f"{i % 99:08}") for i in range(size)])
            session.commit()
            session.stage("stage", rows.group_by(*keys).agg(**HOT[name]))
            before = session.stats["touched"]
            rows.insert([("hot", size + 7, "b"), ("hot", -3, "c"), ("hot", 17, "d")])
            session.commit()
            rows.remove([("hot", 0, f"{0:08}"), ("hot", -3, "c")])
            session.commit()
            touched.append(session.stats["touched"] - before)
    assert touched[1] <= touched[0] + 64, "the size of the group must not matter"
    assert touched[1] < 600 if name != "moments" else 1800


@pytest.mark.parametrize(
    "named",
    [
        {"least": "min(concat('a long prefix ', s))"},
        {"most": "max(concat('a long prefix ', s))"},
        {"first": "min_by(s, 1)", "last": "max_by(s, k)"},
        {"wide": "max(w)"},
    ],
)
def test_values_with_equal_codes_cost_group_only_if_extreme_is_removed(
    named: dict[str, str], tmp_path: Path
) -> None:
    size = 20_000
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        rows = session.input("rows", "k string, s string, w decimal(38,18)")

        def row(i: int) -> tuple[str, str, Decimal]:
            return ("hot", f"{i:05}", Decimal(f"123456789.{i:018}"))

        def cost() -> int:
            before = session.stats["touched"]
            session.commit()
            return session.stats["touched"] - before

        rows.insert([row(i) for i in range(5, size)])
        rows.insert([("cold", "x", None)])
        session.commit()
        stage = session.stage("stage", rows.group_by("k").agg(**named))
        rows.insert([row(30_000), row(1), row(500), ("cold", "y", Decimal(1))])
        assert cost() < 100
        rows.remove([row(7), row(500), row(8_000)])
        assert cost() < 100
        rows.remove([("cold", "x", None), ("cold", "y", Decimal(1))])
        assert cost() < 100
        rows.remove([row(30_000), row(1)])
        assert size - 10 < cost() < 2 * size * len(named)
        assert stage.rows() == rows.group_by("k").agg(**named).rows()


def test_collect_list_costs_its_group_only(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        rows = session.input("rows", "k int, x int")
        rows.insert([(k, x) for k in range(50) for x in range(20)])
        session.commit()
        stage = session.stage("stage", rows.group_by("k").agg(all="collect_list(x)"))
        before = session.stats["touched"]
        rows.insert([(7, 5)])
        session.commit()
        assert session.stats["touched"] - before < 60
        assert stage.rows()[7].all == sorted([*range(20), 5])


def test_mean_of_decimals_rounds_half_away_from_zero(tmp_path: Path) -> None:
    one, digit = Decimal("0.000001"), Decimal("0.0000000001")
    sums = {1: one, 2: -one, 3: 3 * one, 4: -3 * one, 5: 2 * one, 6: -2 * one}
    with nosync_nb.open(tmp_path / "log") as session:
        given = session.input("given", "k int, x decimal(20,6)")
        stage = session.stage("means", given.group_by("k").agg(mean="avg(x)"))
        given.insert([(k, x) for k, total in sums.items() for x in [total, *[Decimal(0)] * 31]])
        session.commit()
        assert stage.schema.types[1] == "decimal(24,10)"
        found = {row.k: row.mean / digit for row in stage.rows()}
    # one in 32 is 312.5 of the last digit
    assert found == {1: 313, 2: -313, 3: 938, 4: -938, 5: 625, 6: -625}


def test_moments_of_two_columns_equal_formulas(session: Session) -> None:
    pairs = session.input("pairs", "x double, y double")
    pairs.insert([(1.0, 2.0), (2.0, 4.0), (3.0, 9.0)])
    stage = session.stage(
        "moments",
        pairs.group_by().agg(
            population="covar_pop(x, y)", sample="covar_samp(x, y)", products="regr_sxy(x, y)"
        ),
    )
    session.commit()
    (found,) = map(tuple, stage.rows())
    assert found == pytest.approx((7 / 3, 7 / 2, 7.0))


def test_count_if_finds_nan_in_list(session: Session) -> None:
    data = session.input("data", "d double")
    nan = "double('NaN')"
    stage = session.stage(
        "counts",
        data.agg(
            inside=f"count_if(d in ({nan}, 1.0D))",
            outside=f"count_if(d not in ({nan}, 1.0D))",
            none="count_if(d in (1.0D))",
            filtered=f"count(*) filter (where d in ({nan}))",
        ),
    )
    data.insert([(math.nan,), (math.nan,), (1.0,), (2.0,), (None,)])
    session.commit()
    assert [tuple(row) for row in stage.rows()] == [(3, 1, 1, 2)]
    data.remove([(math.nan,)])
    session.commit()
    assert [tuple(row) for row in stage.rows()] == [(2, 1, 1, 1)]
