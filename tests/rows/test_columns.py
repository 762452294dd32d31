"""Columns: every operation equals the one on Python lists, in every physical form."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_strategies import column_forms, typed_values

from nosync_nb.errors import SchemaError
from nosync_nb.rows import (
    SMALL,
    concat,
    empty,
    encode,
    equal,
    from_arrow,
    full_null,
    mask,
    null_mask,
    slice_,
    take,
    take_many,
    to_arrow,
    to_pylist,
    widen,
)
from nosync_nb.rows.encoding import encode_column


def codes(items: list[Any], type_: str) -> list[bytes]:
    """The expected encodings of a column."""
    return [encode(value, type_) for value in items]


@given(typed_values(), st.data())
def test_take_mask_and_slice_equal_list_operations(
    drawn: tuple[str, list[Any]], data: st.DataObject
) -> None:
    type_, items = drawn
    n = len(items)
    index = data.draw(st.lists(st.integers(0, n - 1), max_size=8)) if n else []
    keep = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    for form in column_forms(type_, items):
        taken = take(form, np.array(index, np.int64))
        assert codes([items[i] for i in index], type_) == encode_column(taken, type_)
        many = take_many(form, np.array(index * 16, np.int64), type_)
        assert codes([items[i] for i in index] * 16, type_) == encode_column(many, type_)
        masked = mask(form, np.array(keep, np.bool_))
        kept = [value for value, ok in zip(items, keep, strict=True) if ok]
        assert codes(kept, type_) == encode_column(masked, type_)
        assert codes(items[start:stop], type_) == encode_column(slice_(form, start, stop), type_)


@given(typed_values(), st.data())
def test_concat_joins_any_forms(drawn: tuple[str, list[Any]], data: st.DataObject) -> None:
    type_, items = drawn
    forms = column_forms(type_, items)
    chosen = data.draw(st.lists(st.sampled_from(range(len(forms))), max_size=4))
    joined = concat([forms[i] for i in chosen], type_)
    assert codes(items * len(chosen), type_) == encode_column(joined, type_)
    long = concat([forms[i] for i in chosen] * (SMALL // 10), type_)
    assert len(long) == len(joined) * (SMALL // 10)
    if len(long) > SMALL:
        assert not (isinstance(long, np.ndarray) and long.dtype.hasobject)
        assert codes(items, type_) == encode_column(slice_(long, 0, len(items)), type_)


@given(typed_values())
def test_arrow_round_trip_keeps_values_and_nulls(drawn: tuple[str, list[Any]]) -> None:
    type_, items = drawn
    for form in column_forms(type_, items):
        array = to_arrow(form, type_)
        array.validate(full=True)
        for way in (array, pa.chunked_array([array, array.slice(0, 0)])):
            back = from_arrow(way, type_)
            assert codes(items, type_) == encode_column(back, type_)
        missing = null_mask(form)
        expected = [value is None for value in items]
        assert expected == (missing.tolist() if missing is not None else [False] * len(items))
        assert (missing is None) == (True not in expected)


@given(typed_values(max_size=4))
def test_large_columns_behave_like_small_ones(drawn: tuple[str, list[Any]]) -> None:
    type_, items = drawn
    many = items * (SMALL // 2)
    array = to_arrow(column_forms(type_, items)[0], type_)
    large = from_arrow(pa.concat_arrays([array] * (SMALL // 2)), type_)
    assert len(many) == len(large)
    if not items:
        return
    assert equal(large, to_arrow(large, type_), type_).all()
    index = np.arange(len(many) - 100, len(many))
    expected = codes([many[i] for i in index], type_)
    assert expected == encode_column(take(large, index), type_)
    assert expected[:5] == encode_column(take(large, index[:5]), type_)
    keep = np.zeros(len(many), np.bool_)
    keep[index] = True
    assert expected == encode_column(mask(large, keep), type_)


def test_floats_are_canonical() -> None:
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    for count in (1, SMALL):
        array = pa.array(np.concatenate([odd, [-0.0, 1.0]] * count))
        found = from_arrow(array, "double").view(np.uint64)[:4].tolist()
        assert found == [0x7FF8000000000000, 0x7FF8000000000000, 0, 0x3FF0000000000000]
        holed = pa.concat_arrays([array, pa.nulls(1, array.type)])
        assert equal(from_arrow(holed, "double"), from_arrow(holed, "double"), "double").all()


def test_python_values_have_natural_types() -> None:
    moment = 1_700_000_000_123_456
    assert to_pylist(np.array([0, -1], np.int32), "date") == [date(1970, 1, 1), date(1969, 12, 31)]
    (aware,) = to_pylist(np.array([moment]), "timestamp")
    assert aware == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    (naive,) = to_pylist(np.array([moment]), "timestamp_ntz")
    assert naive == aware.replace(tzinfo=None)
    nested = pa.array(
        [[("k", [Decimal("1.50")])]], pa.map_("string", pa.list_(pa.decimal128(5, 2)))
    )
    assert to_pylist(nested, "map<string,array<decimal(5,2)>>") == [{"k": [Decimal("1.50")]}]


def test_date_outside_python_range_raises_error() -> None:
    with pytest.raises(SchemaError, match="outside the years 1 to 9999"):
        to_pylist(np.array([2**31 - 1], np.int32), "date")


@pytest.mark.parametrize("type_", ["int", "string", "decimal(5,2)", "array<int>"])
def test_empty_and_null_columns(type_: str) -> None:
    assert len(empty(type_)) == 0
    for n in (0, 3, SMALL + 1):
        column = full_null(type_, n)
        assert to_pylist(column, type_) == [None] * n
    assert equal(full_null(type_, 2), full_null(type_, 2), type_).tolist() == [True, True]


@pytest.mark.parametrize(
    ("old", "new", "items"),
    [
        ("tinyint", "bigint", [-128, None, 127]),
        ("int", "double", [-(2**31), None, 2**31 - 1]),
        ("float", "double", [1.5, None, float("inf")]),
        ("int", "decimal(12,2)", [7, None, -1]),
        ("decimal(5,2)", "decimal(7,3)", [Decimal("1.25"), None, Decimal("-999.99")]),
    ],
)
def test_widening_keeps_values(old: str, new: str, items: list[Any]) -> None:
    for values in (items, [v for v in items if v is not None]):
        for form in column_forms(old, values):
            found = to_pylist(widen(form, old, new), new)
            assert values == found
            assert not {type(v) for v in found} & {bool}


def test_narrowing_is_refused() -> None:
    with pytest.raises(SchemaError, match="bigint does not widen to int"):
        widen(np.arange(3), "bigint", "int")
