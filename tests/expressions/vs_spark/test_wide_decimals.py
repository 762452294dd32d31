"""Decimals whose common type would have more than 38 digits: types and values as in Spark.

Spark retains the digits before the point, and rounds the others, before it compares.
"""

from __future__ import annotations

import random
from decimal import Context, Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from nosync_nb import rows
from nosync_nb.expressions import compile_expression
from nosync_nb.rows import Schema
from nosync_nb.rows.types import decimal_parts

TYPES = (
    *("decimal(38,2)", "decimal(38,12)", "decimal(38,18)", "decimal(38,38)", "decimal(38,0)"),
    *("decimal(30,10)", "decimal(10,2)", "bigint"),
)
SCHEMA = Schema([(f"c{i}", type_) for i, type_ in enumerate(TYPES)])
FORMS = (
    *("{0} = {1}", "{0} < {1}", "{0} >= {1}", "{0} <=> {1}", "{0} in ({1}, 0.123456789012345)"),
    *("coalesce({0}, {1})", "greatest({0}, {1})", "{0} between {1} and 124", "nullif({0}, {1})"),
    *("CASE WHEN {0} > {1} THEN {0} ELSE {1} END", "{0} in (1.005, 122.9999999999999)"),
)
EXACT = Context(prec=80)


def value(draw: random.Random, type_: str) -> Any:
    """A value near 123, near half of a digit, or of any size."""
    if draw.random() < 0.05:
        return None
    if type_ == "bigint":
        return draw.choice([0, 1, -1, 123, 2**63 - 1, -(2**63)])
    digits, scale = decimal_parts(type_)
    kind = draw.randrange(3)
    if kind == 0:
        number = Decimal(draw.randrange(1 - 10**digits, 10**digits)).scaleb(-scale, EXACT)
    elif kind == 1 or digits == scale:
        number = Decimal("0.5").scaleb(-draw.choice((0, 1, 2, 11, 12, 17, 18)))
    else:
        number = 123 + Decimal(draw.randrange(-10, 10)).scaleb(-draw.choice((2, 3, 12, 13, 18)))
    return number.quantize(Decimal(1).scaleb(-scale), context=EXACT)


def arrow(type_: str) -> pa.DataType:
    return pa.int64() if type_ == "bigint" else pa.decimal128(*decimal_parts(type_))


@pytest.mark.spark
def test_wide_decimals_are_compared_as_in_spark(spark: Any) -> None:
    draw = random.Random(5)
    columns = [[value(draw, type_) for _ in range(60)] for type_ in TYPES]
    pairs = [pair for pair in product(SCHEMA.names, repeat=2) if "c7" not in pair[:1]]
    texts = list(dict.fromkeys(form.format(*pair) for form in FORMS for pair in pairs))
    ddl = ", ".join(f"{name} {type_}" for name, type_ in SCHEMA.fields)
    frame = spark.createDataFrame(list(zip(*columns, strict=True)), ddl)
    result = frame.selectExpr(*(f"{text} AS e{i}" for i, text in enumerate(texts)))
    expected = list(zip(*result.collect(), strict=True))
    local = [
        rows.from_arrow(pa.array(column, arrow(type_)), type_)
        for column, type_ in zip(columns, TYPES, strict=True)
    ]
    for text, (_, type_), values in zip(texts, result.dtypes, expected, strict=True):
        compiled = compile_expression(text, SCHEMA)
        assert compiled.local, text
        assert compiled.type == type_, text
        found = rows.to_arrow(compiled.evaluate(local, 60), type_).to_pylist()
        assert found == list(values), text


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [("123.45", "123.454999999999", True), ("123.45", "123.455", False), ("0.00", "-0.005", False)],
)
def test_digits_after_the_point_are_rounded_before_comparison(
    left: str, right: str, equal: bool
) -> None:
    schema = Schema.parse("a decimal(38,2), b decimal(38,12)")
    columns = [
        rows.from_arrow(pa.array([Decimal(text).quantize(Decimal(1).scaleb(-scale))], type_), name)
        for text, scale, type_, name in (
            (left, 2, pa.decimal128(38, 2), "decimal(38,2)"),
            (right, 12, pa.decimal128(38, 12), "decimal(38,12)"),
        )
    ]
    compiled = compile_expression("a = b", schema)
    assert rows.to_arrow(compiled.evaluate(columns, 1), "boolean").to_pylist() == [equal]
