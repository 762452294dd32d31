"""Aggregates in SQL: by group and of all rows, equal to Spark over the rows left by removals."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checks.checking import opened

import nosync_nb
from nosync_nb import Session, rows
from nosync_nb.errors import ExpressionError
from nosync_nb.rows import Schema

SCHEMA = (
    "k int, i int, l bigint, d double, e double, p decimal(10,2), s string, f int,"
    " t tinyint, g float, w decimal(38,0), b boolean, o bigint"
)
_WHOLE = [None, 0, 1, 2, 2, 3, -7, 7, 100, 113, 2**31 - 1, -(2**31)]
_REAL = [None, 0.0, 1.0, 2.5, -2.5, 1e-3, 7.25, 7.25, 100.0, 3.4999999, 1e5]
_STRANGE = [math.inf, -math.inf, math.nan]
_TEXT = [None, "", "a", "b", "a", "é", "😀", "B", "zz"]

CALLS = """
median(i) median(d) median(p) median(l) percentile(i,0.3) percentile(d,0.95D) percentile(p,1)
percentile(i,array(0.0,0.25,1.0)) percentile(i,array(0.5)) percentile(d,0.5,f)
percentile(distinct~i,0.5) percentile(i,0.5)~filter~(where~i>1) median(d)~filter~(where~false)
percentile_cont(0.25)~within~group~(order~by~d~desc) percentile_disc(0.3)~within~group~(order~by~i)
percentile_disc(array(0.3,0.9))~within~group~(order~by~p~desc)
percentile_cont(0.5)~within~group~(order~by~i)~filter~(where~i>1)
approx_percentile(i,0.5) approx_percentile(d,array(0.0,0.3,1.0),1000) percentile_approx(p,0.99)
mode(i,true) mode(d,true) mode()~within~group~(order~by~s) mode()~within~group~(order~by~l~desc)
listagg(s)~within~group~(order~by~s) string_agg(s,'-')~within~group~(order~by~s~desc)
listagg(distinct~s,',')~within~group~(order~by~s) listagg(i,'+')~within~group~(order~by~i)
listagg(s,null)~within~group~(order~by~s)
try_sum(l) try_avg(l) try_sum(d) try_sum(p) try_avg(p) try_sum(distinct~i)
approx_count_distinct(i) approx_count_distinct(s,0.01) count(distinct~i,s)
skewness(i) kurtosis(i) skewness(d) kurtosis(d) skewness(p) kurtosis(l) skewness(distinct~i)
kurtosis(distinct~d)
corr(i,d) corr(d,e) covar_pop(d,e) covar_samp(i,d) covar_samp(p,l) corr(distinct~i,d)
regr_count(d,e) regr_avgx(d,e) regr_avgy(i,d) regr_sxx(d,i) regr_syy(d,i) regr_sxy(i,d)
regr_slope(d,i) regr_intercept(d,i) regr_r2(d,i) regr_r2(i,e) regr_slope(e,d)
corr(d,e)~filter~(where~i>1) covar_pop(i,1) corr(d,d) kurtosis(d)+median(d)
max_by(s,struct(l,i,s)) min_by(i,struct(d,s,i)) count(distinct~i,s,d) covar_samp(d,i)
count(*) count(d) count(i,s) count_if(b) count(distinct~b) sum(w) avg(w) avg(l) bit_xor(distinct~t)
bool_and(b) every(b) bool_or(b) some(b) any(b) max_by(o,if(i~is~null,null,o))
array_sort(collect_list(distinct~t)) array_sort(array_agg(b)) array_sort(collect_set(p))
array_sort(collect_list(i)) array_sort(collect_set(s))
count(distinct~i)~filter~(where~b) stddev(d)~filter~(where~i>0) min_by(s,o)~filter~(where~not~b)
bit_or(i)~filter~(where~b) round(try_divide(stddev(i),count(distinct~t)),6) bit_or(i)-bit_and(i)
"""
EACH = {
    ("sum", "avg", "stddev", "var_pop"): "i t g d p",
    ("min", "max"): "i t l g d p s b",
    ("mean", "std", "stddev_samp", "stddev_pop", "variance", "var_samp"): "d",
    ("count", "sum", "avg", "stddev"): "distinct~i distinct~p distinct~g",
    ("bit_and", "bit_or", "bit_xor"): "i t l",
    ("min_by", "max_by"): "s,o d,o p,o d,d p,p s,s g,g",
}


def calls() -> dict[str, str]:
    listed = [
        f"{f}({a})" for some, arguments in EACH.items() for f in some for a in arguments.split()
    ]
    return {f"c{n}": sql.replace("~", " ") for n, sql in enumerate([*CALLS.split(), *listed])}


def some_rows(seed: int) -> Iterator[tuple[Any, ...]]:
    """Groups of many kinds: nulls, one row, equal rows, infinities, many rows."""
    chosen, numbered = random.Random(seed), count()
    for k, (size, strange) in enumerate(
        [(1, 0), (2, 0), (3, 0), (9, 0), (40, 0), (12, 1), (90, 0)]
    ):
        reals = _REAL + (_STRANGE if strange else [])
        for _ in range(size):
            pick = chosen.choice
            cents = pick([None, *(Decimal(c) / 100 for c in (0, 1, -725, 250, 99999))])
            numbers = (pick(_WHOLE), pick([*_WHOLE, 2**40]), pick(reals), pick(reals), cents)
            small, single = pick([None, -128, -1, 5, 127]), pick([None, 0.5, -1.25, 2.0**20, -0.0])
            wide = pick([None, Decimal(10**32 + 7), Decimal(-(10**31) + 1), Decimal(5)])
            more = (small, single, wide, pick([None, True, False]), 1000 * seed + next(numbered))
            yield (k, *numbers, pick(_TEXT), pick([0, 1, 2, 5]), *more)
    for i in range(3):
        more = (None, None, None, None, 1000 * seed + next(numbered))
        yield (100, *[None] * 6, i, *more)
        yield (101, 5, 5, 0.1, 0.1, Decimal("0.10"), "same", 1, *more)
        yield (102, i, 2**63 - 1 - i, float(i), 3.0 - 2 * i, Decimal(i), "x", 1, *more)


def nearly_equal(own: Any, other: Any) -> bool:
    """Equal, except for the last digits that Spark rounds."""
    if isinstance(own, float) and isinstance(other, float):
        if math.isnan(own) or math.isnan(other):
            return math.isnan(own) and math.isnan(other)
        return own == other or math.isclose(own, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(own, list | tuple) and isinstance(other, list | tuple):
        return len(own) == len(other) and all(map(nearly_equal, own, other))
    return type(own) is type(other) and own == other


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("keys", [("k",), ()])
def test_aggregates_after_removals_equal_spark(
    keys: tuple[str, ...], spark: Any, tmp_path: Path
) -> None:
    left = list(some_rows(1))
    named = calls()
    schema = Schema.parse(SCHEMA)
    with nosync_nb.open(tmp_path / "log", spark_rows=10**9) as session:
        given = session.input("given", SCHEMA)
        stage = session.stage("stage", given.group_by(*keys).agg(**named))
        gone = [row for row in some_rows(2) if row[1] != 2**31 - 1]
        gone += [(102, 1, 2**63 - 1, 1e300, -1e300, Decimal(7), "gone", 3, *[None] * 5)]
        given.insert([*gone, *left])
        session.commit()
        given.remove(gone)
        session.commit()
        size = len(keys)
        found = {row[:size]: row[size:] for row in map(tuple, stage.rows())}
        types = stage.schema.types[size:]
    table, _ = rows.to_columns(left, schema, "proof")
    arrays = [rows.to_arrow(c, t) for c, t in zip(table, schema.types, strict=True)]
    spark.createDataFrame(
        pa.Table.from_arrays(arrays, schema=schema.arrow)
    ).createOrReplaceTempView("aggregate_proof")
    theirs = spark_aggregates(spark, named, keys)
    assert dict(zip(named.values(), types, strict=True)) == {
        named[name]: type_ for name, (type_, _) in theirs.items()
    }
    wrong = [
        (sql, k, values[k], found[k][i])
        for i, sql in enumerate(named.values())
        for values in [theirs[f"c{i}"][1]]
        for k in values.keys() | found.keys()
        if not nearly_equal(found[k][i], values[k])
    ]
    assert not wrong


def spark_aggregates(
    spark: Any, named: dict[str, str], keys: tuple[str, ...]
) -> dict[str, tuple[str, dict[Any, Any]]]:
    """Name -> type and values by key; some distinct aggregates need a query of their own."""
    alone = ("percentile(distinct", "listagg(distinct", "try_sum(distinct", "skewness(distinct")
    alone += ("kurtosis(distinct", "corr(distinct")
    distinct = {name: sql for name, sql in named.items() if "distinct" in sql}
    plain = {name: sql for name, sql in named.items() if name not in distinct}
    apart = [{name: sql} for name, sql in distinct.items() if sql.startswith(alone)]
    simple = {name: sql for name, sql in distinct.items() if not sql.startswith(alone)}
    results = {}
    for some in (plain, simple, *apart):
        selected = ", ".join([*keys, *(f"{sql} as {name}" for name, sql in some.items())])
        grouped = f" group by {', '.join(keys)}" if keys else ""
        frame = spark.sql(f"select {selected} from aggregate_proof{grouped}")
        types = [field.dataType.simpleString() for field in frame.schema]
        values, size = [tuple(row) for row in frame.collect()], len(keys)
        for i, name in enumerate(some, size):
            results[name] = (types[i], {row[:size]: row[i] for row in values})
    return results


@pytest.mark.spark
def test_variances_are_null_and_nan_where_spark_has_them(spark: Any, tmp_path: Path) -> None:
    values = [("one", 5.0), ("inf", math.inf), ("inf", 1.0), ("huge", 1e300), ("huge", -1e300)]
    names = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        given = session.input("given", "k string, x double")
        given.insert(values)
        session.commit()
        found = given.group_by("k").agg(**{name: f"{name}(x)" for name in names})
        spark.createDataFrame(values, "k string, x double").createOrReplaceTempView("given")
        listed = ", ".join(f"{name}(x)" for name in names)
        frame = spark.sql(f"select k, {listed} from given group by k order by k")
        for mine, other in zip(found.rows(), map(tuple, frame.collect()), strict=True):
            assert nearly_equal(tuple(mine), other), (mine, other)


@pytest.mark.parametrize("seed", [3, 4])
def test_aggregates_are_exact_after_removals(session: Session, seed: int) -> None:
    named = {**calls(), "product": "product(d)", "whole": "product(i)"}
    chosen = random.Random(seed)
    pool = list(some_rows(seed))
    given = session.input("given", SCHEMA)
    fresh = session.input("fresh", SCHEMA)
    stage = session.stage("stage", given.group_by("k").agg(**named))
    other = session.stage("other", fresh.group_by("k").agg(**named))
    held: list[Any] = []
    for _ in range(4):
        held += (coming := chosen.choices(pool, k=60))
        given.insert(coming)
        session.commit()
        chosen.shuffle(held)
        held, going = held[:40], held[40:]
        given.remove(going)
        session.commit()
    fresh.insert(held)
    session.commit()
    assert repr(stage.rows()) == repr(other.rows())
    given.remove(held)
    session.commit()
    assert stage.rows() == []


def test_moments_use_rows_with_all_arguments() -> None:
    named = {"s": "sum(y)", "lean": "skewness(x)", "tails": "kurtosis(x)"}
    named |= {"both": "covar_pop(x, y)", "same": "corr(x, x)"}
    named |= {"middle": "percentile(x, 0.5) filter (where y > 1)"}
    with opened() as session:
        given = session.input("given", "x int, y int")
        stage = session.stage("stage", given.agg(**named))
        given.insert([(1, None), (2, 1), (2, 3), (9, 4), (None, 70), (8, 8)])
        session.commit()
        given.remove([(8, 8)])
        session.commit()
        (found,) = stage.rows()
    # of 1, 2, 2, 9 the second to fourth powers of what parts them from 3.5 add up to these
    second, third, fourth = 41, 144, 964.25
    lean, tails = 2 * third / second**1.5, 4 * fourth / second**2 - 3
    assert nearly_equal(tuple(found), (78, lean, tails, 28 / 9, 1.0, 5.5))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.0, 3.0, 3.0], 18.0),
        ([2.0**999, 2.0**999, 2.0**-999, 2.0**-999], 1.0),
        ([-1.5, 2.0], -3.0),
        ([0.0, 5.0], 0.0),
        ([math.inf, -2.0], -math.inf),
        ([math.inf, 0.0], math.nan),
        ([1e200, 1e200], math.inf),
        ([1e-200, -1e-200], 0.0),
        ([0.1] * 10, float(Fraction(0.1) ** 10)),
        ([1e300, 1e300, 1e-300, 1e-300], float(Fraction(1e300) ** 2 * Fraction(1e-300) ** 2)),
        ([None], None),
    ],
)
def test_product_is_rounded_once(
    session: Session, values: list[float | None], expected: float | None
) -> None:
    given = session.input("given", "x double")
    stage = session.stage("stage", given.agg(p="product(x)"))
    given.insert([(x,) for x in values])
    session.commit()
    ((found,),) = stage.rows()
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("percentile(d, 1.5)", "not a constant from 0 to 1"),
        ("percentile(d, e)", "not a constant from 0 to 1"),
        ("percentile(s, 0.5)", "no percentile of a string"),
        ("percentile(d)", "takes 2 to 3 arguments"),
        ("median(d, e)", "median takes 1 arguments"),
        ("percentile(d, 0.5, e)", "a frequency must be an integer"),
        ("percentile_cont(0.5)", "needs an order"),
        ("percentile_cont(0.5) within group (order by d, e)", "takes one value to order by"),
        ("max(d) within group (order by d)", "max does not take an order"),
        ("listagg(distinct s) within group (order by i)", "ordered by themselves"),
        ("listagg(s, 1)", "separator 1.0 is not of type string"),
        ("corr(d)", "corr takes 2 arguments"),
        ("corr(d, array(d))", "no corr of a array<double>"),
        ("kurtosis(array(d))", "no kurtosis of a array<double>"),
        ("median(sum(d))", "sum is inside median"),
        ("histogram_numeric(d, 5)", "unknown aggregate histogram_numeric"),
    ],
)
def test_invalid_aggregates_are_refused_at_definition(
    session: Session, sql: str, said: str
) -> None:
    given = session.input("given", SCHEMA)
    with pytest.raises(ExpressionError, match=said):
        session.stage("stage", given.group_by("k").agg(n=sql))
