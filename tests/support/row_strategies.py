"""Hypothesis strategies of types, and of values as columns store them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from nosync_nb.rows import arrow_type, from_arrow, objects, to_arrow
from nosync_nb.rows.ddl import SCALARS
from nosync_nb.rows.encoding import encode
from nosync_nb.rows.types import UNIT, decimal_parts, is_nested, nested_parts

DECIMALS = ("decimal(5,2)", "decimal(18,0)", "decimal(38,10)")
INTERVALS = ("interval day to second", "interval day", "interval year to month")
scalar_types = st.sampled_from(SCALARS + DECIMALS + INTERVALS)


def _nest(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    arrays = inner.map(lambda t: f"array<{t}>")
    structs = st.tuples(inner, inner).map(lambda t: f"struct<a:{t[0]},B:{t[1]}>")
    maps = st.tuples(scalar_types, inner).map(lambda t: f"map<{t[0]},{t[1]}>")
    return arrays | structs | maps


nested_types = _nest(st.recursive(scalar_types, _nest, max_leaves=3))
types = scalar_types | nested_types


def integers(bits: int) -> st.SearchStrategy[int]:
    """Integers of some bits, bounds included."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.sampled_from([low, -1, 0, 1, high]) | st.integers(low, high)


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": integers(8),
    "smallint": integers(16),
    "int": integers(32),
    "bigint": integers(64),
    "float": st.floats(width=32, allow_nan=False).map(lambda v: v + 0.0) | st.just(float("nan")),
    "double": st.floats(allow_nan=False).map(lambda v: v + 0.0) | st.just(float("nan")),
    "string": st.text(max_size=12) | st.text("ab\0\U0001f600\uffff", max_size=40),
    "binary": st.binary(max_size=40),
    "date": integers(32),
    "timestamp": integers(64),
    "timestamp_ntz": integers(64),
    "interval day to second": integers(64),
    "interval day": integers(24).map(lambda days: days * UNIT["interval day"]),
    "interval year to month": integers(32),
}


def values(type_: str) -> st.SearchStrategy[Any]:
    """Values of a type as columns store them, never null at the top."""
    if type_ in _VALUES:
        return _VALUES[type_]
    if type_.startswith("decimal"):
        precision, scale = decimal_parts(type_)
        limit = 10**precision - 1
        digits = st.sampled_from([-limit, -1, 0, 1, limit]) | st.integers(-limit, limit)
        return digits.map(lambda n: Decimal(f"{n}e-{scale}"))
    parts = nested_parts(type_)
    inner = [st.none() | values(t) for _, t in parts]
    if type_.startswith("array<"):
        return st.lists(inner[0], max_size=3)
    if type_.startswith("map<"):
        key = parts[0][1]
        pairs = st.tuples(values(key), inner[1])
        return st.lists(pairs, max_size=3, unique_by=lambda pair: encode(pair[0], key))
    return st.tuples(*inner).map(lambda row: dict(zip(("a", "B"), row, strict=True)))


@st.composite
def typed_values(
    draw: st.DrawFn, of: st.SearchStrategy[str] = types, max_size: int = 12
) -> tuple[str, list[Any]]:
    """A type and values of it, some null, some several times."""
    type_ = draw(of)
    pool = draw(st.lists(st.none() | values(type_), min_size=1, max_size=5))
    return type_, draw(st.lists(st.sampled_from(pool), max_size=max_size))


def column_forms(type_: str, items: list[Any]) -> list[Any]:
    """The same column in every physical form that its type allows."""
    array = pa.array(items, arrow_type(type_))
    padded = pa.concat_arrays([pa.nulls(3, array.type), array, pa.nulls(1, array.type)])
    forms = [array, padded.slice(3, len(items))]
    if is_nested(type_):
        return forms
    column = objects(items)
    forms += [column, to_arrow(column, type_)]
    plain = from_arrow(array, type_)
    if isinstance(plain, np.ndarray) and not plain.dtype.hasobject:
        strided = np.empty(2 * len(plain), plain.dtype)[::2]
        strided[:] = plain
        forms += [plain, strided]
    return forms
