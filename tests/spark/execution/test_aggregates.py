"""Aggregates in SQL: the same over the same rows, here and in Spark."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import nosync_nb

pytestmark = pytest.mark.spark

SCHEMA = (
    "k string, i int, t tinyint, l bigint, f float, x double, d decimal(12,3), w decimal(38,0), "
    "b boolean, s string, o bigint"
)
NUMBERS = ("i", "t", "l", "f", "x", "d")
AGGREGATES = [
    "count(*)",
    "count(x)",
    "count(i, s)",
    "count(distinct i, s)",
    "count_if(b)",
    *(f"{f}({c})" for f in ("sum", "avg", "min", "max", "stddev", "var_pop") for c in NUMBERS),
    *(f"{f}(x)" for f in ("mean", "std", "stddev_samp", "stddev_pop", "variance", "var_samp")),
    *(f"{f}(distinct {c})" for f in ("count", "sum", "avg", "stddev") for c in ("i", "d", "f")),
    *(f"count(distinct {c})" for c in ("s", "b", "x")),
    *(f"{f}({c})" for f in ("bit_and", "bit_or", "bit_xor") for c in ("i", "t", "l")),
    "bit_xor(distinct t)",
    *(f"{f}(b)" for f in ("bool_and", "every", "bool_or", "some", "any")),
    *(f"{f}({c}, o)" for f in ("min_by", "max_by") for c in ("s", "x", "d")),
    *(f"{f}({c}, {c})" for f in ("min_by", "max_by") for c in ("x", "d", "s", "f")),
    "max_by(o, if(i is null, null, o))",
    *(f"{f}({c})" for f in ("collect_list", "collect_set") for c in ("s", "d", "i")),
    "collect_list(distinct t)",
    "array_agg(b)",
    "sum(w)",
    "avg(w)",
    "count(distinct i) filter (where b)",
    "stddev(x) filter (where i > 0)",
    "min_by(s, o) filter (where not b)",
    "bit_or(i) filter (where b)",
    "round(stddev(i) / count(distinct t), 6)",
    "bit_or(i) - bit_and(i)",
]


def made(rng: random.Random, number: int) -> tuple[Any, ...]:
    """A row: nulls, copies, NaN; a group of nulls alone; the order is unique."""
    key = rng.choice([None, "a", "b", "c", "nulls"])
    if key == "nulls":
        return (key, *[None] * 9, number)
    row = (
        rng.choice([-7, 0, 12, 13, 2**31 - 1]),
        rng.choice([-128, -1, 5, 127]),
        rng.choice([-(2**55), 3, 2**40 + 1, 9]),
        rng.choice([0.5, -1.25, 2.0**20, 0.0, -0.0]),
        rng.choice([1e-3, 0.1, -7.5, 1e6, *([math.nan] if key == "c" else [])]),
        rng.choice([Decimal("0.005"), Decimal("-7.125"), Decimal("123456789.001")]),
        rng.choice([Decimal(10**32 + 7), Decimal(-(10**31) + 1), Decimal(5)]),
        rng.choice([True, False]) if key != "b" else True,
        rng.choice(["", "x", "é", "longer than eight", "longer than nine"]),
    )
    return (key, *(None if rng.random() < 0.15 else v for v in row), number)


def same(ours: Any, theirs: Any) -> bool:
    """Equal, but for the order in arrays and for the last digits of doubles."""
    if isinstance(ours, list):
        return sorted(map(repr, ours)) == sorted(map(repr, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        both_nan = math.isnan(ours) and math.isnan(theirs)
        return both_nan or math.isclose(ours, theirs, rel_tol=1e-9)
    return type(ours) is type(theirs) and bool(ours == theirs)


@pytest.mark.parametrize("keys", [("k",), ()])
def test_aggregates_agree_with_spark(keys: tuple[str, ...], spark: Any, tmp_path: Path) -> None:
    named = {f"n{i}": sql for i, sql in enumerate(AGGREGATES)}
    rng = random.Random(11)
    with nosync_nb.open(tmp_path / "log", spark=spark) as session:
        given = session.input("given", SCHEMA)
        stage = session.stage("stage", given.group_by(*keys).agg(**named))
        held = [made(rng, number) for number in range(120)]
        given.insert(held)
        session.commit()
        given.remove(held[:60])
        session.commit()
        spark.createDataFrame(held[60:], SCHEMA).createOrReplaceTempView("given")
        group = f"group by {', '.join(keys)}" if keys else ""
        listed = ", ".join([*keys, *(f"{sql} as {name}" for name, sql in named.items())])
        frame = spark.sql(f"select {listed} from given {group}")
        assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
            (f.name, f.type) for f in stage.schema.fields
        ]
        theirs = {row[: len(keys)]: row for row in map(tuple, frame.collect())}
        ours = {row[: len(keys)]: row for row in map(tuple, stage.rows())}
        assert ours.keys() == theirs.keys()
        for key, row in ours.items():
            for (name, sql), mine, other in zip(
                [*((k, k) for k in keys), *named.items()], row, theirs[key], strict=True
            ):
                assert same(mine, other), (key, name, sql, mine, other)


def test_spark_gives_null_and_nan_for_spreads_where_we_do(spark: Any, tmp_path: Path) -> None:
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
            assert all(map(same, tuple(mine), other)), (mine, other)
