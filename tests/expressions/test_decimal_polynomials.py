"""Fused decimal sums and products: equal to the nodes one by one, and to Python's decimals."""

from __future__ import annotations

from decimal import Context, Decimal
from itertools import product
from typing import Any

import numpy as np
import pytest

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.expressions import compile_expression
from nosync_nb.expressions.binder import Binder
from nosync_nb.expressions.codegen import compile_polynomial
from nosync_nb.expressions.kernels.vectors import VectorFrame, to_column
from nosync_nb.expressions.syntax.parser import parse
from nosync_nb.rows import Schema

SCHEMA = Schema.parse("p decimal(15,2), d decimal(15,2), t decimal(15,2), w decimal(38,0)")
EXACT = Context(prec=200)
CHARGE = "p * (1 - d) * (1 + t)"
SPECIAL = [0, -1, 1, 99, -100, 10**12 - 1, 1 - 10**12, 5, 50]


def numbers(n: int, most: int, *, seed: int) -> list[Decimal]:
    drawn = np.random.default_rng(seed).integers(-most, most, n).tolist()
    values = [*SPECIAL, *drawn] if most > 10**9 else drawn
    return [Decimal(value).scaleb(-2) for value in values[:n]]


def table(n: int, most: int) -> list[Any]:
    listed = [numbers(n, most, seed=seed) for seed in range(3)]
    wide = [Decimal(10**37 - i) for i in range(n)]
    pairs = zip([*listed, wide], SCHEMA.types, strict=True)
    return [rows.from_arrow(rows.to_arrow(rows.objects(v), t), t) for v, t in pairs]


def both(sql: str, columns: list[Any], n: int) -> tuple[Any, Any, str]:
    """The fused result (None: not fused), the result of single nodes, and the type."""
    node = Binder(SCHEMA, utc=True).bind(parse(sql).tree)
    compiled = compile_polynomial(node)
    assert compiled is not None
    frame = VectorFrame(columns, SCHEMA.types, n)
    return compiled(columns, n), to_column(node.evaluate(frame), node.type, n), node.type


@pytest.mark.parametrize("n", [1, 10, 64, 65, 9000])
@pytest.mark.parametrize("sql", [CHARGE, "p + d", "p * -1", "1.5 - p * d", "p - d * 2 + 0.125"])
def test_fused_polynomial_equals_single_nodes(sql: str, n: int) -> None:
    columns = table(n, 10**6)
    once, expected, type_ = both(sql, columns, n)
    assert once is not None
    assert rows.equal(once, expected, type_).all()
    assert [*map(str, rows.to_pylist(once, type_))] == [*map(str, rows.to_pylist(expected, type_))]


def test_fused_product_equals_python_decimals() -> None:
    columns = table(9000, 10**6)
    once, _, type_ = both(CHARGE, columns, 9000)
    p, d, t = (rows.to_pylist(columns[i], SCHEMA.types[i]) for i in range(3))
    times, minus, plus = EXACT.multiply, EXACT.subtract, EXACT.add
    one = Decimal(1)
    expected = [
        times(times(a, minus(one, b)), plus(one, c)) for a, b, c in zip(p, d, t, strict=True)
    ]
    assert expected == rows.to_pylist(once, type_)


def test_many_rows_over_64_bits_are_left_to_single_nodes() -> None:
    far = "p - 1234567890123456789012345678.25"
    for n, sql in product((9, 2000), (CHARGE, far)):
        columns = table(n, 10**12)
        once, expected, type_ = both(sql, columns, n)
        assert (once is None) == (n > 64)
        if once is not None:
            assert rows.equal(once, expected, type_).all()


def test_zero_has_no_sign_and_all_places() -> None:
    zero, less = rows.objects([Decimal("0.00")]), rows.objects([Decimal("-3.00")])
    once, _, type_ = both("p * d", [zero, less, zero, zero], 1)
    assert str(once[0]) == "0.0000"
    assert rows.hash_columns([once], (type_,), 1).tolist() == (
        rows.hash_columns([rows.objects([Decimal("0.0000")])], (type_,), 1).tolist()
    )


@pytest.mark.parametrize("n", [3, 100])
def test_nulls_and_overflow_are_left_to_single_nodes(n: int) -> None:
    columns = table(n, 1000)
    holed = [None if i % 2 else Decimal("1.00") for i in range(n)]
    columns[1] = rows.from_arrow(
        rows.to_arrow(rows.objects(holed), "decimal(15,2)"), SCHEMA.types[1]
    )
    once, expected, _ = both(CHARGE, columns, n)
    assert once is None
    assert rows.null_mask(expected).tolist() == [value is None for value in holed]
    far = compile_expression("w + w + w + w + w + w + w + w + w + w + w", SCHEMA)
    with pytest.raises(ExpressionError, match="overflow"):
        far.evaluate(columns, n)


def test_rounding_and_other_types_are_not_fused() -> None:
    for sql in ("p / d", "p % d", "p * d * t * p", "w + w + w", "p", "p > d", "-p"):
        node = Binder(SCHEMA, utc=True).bind(parse(sql).tree)
        assert (sql, compile_polynomial(node)) == (sql, None)
