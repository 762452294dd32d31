"""Equality, hash, order and encoding of values agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_strategies import column_forms, typed_values, types, values

from nosync_nb.rows import (
    concat,
    encode,
    equal,
    hash_columns,
    objects,
    order_codes,
    sort_indices,
    to_pylist,
)
from nosync_nb.rows.encoding import encode_column


@given(typed_values())
def test_equality_agrees_with_encodings_and_hashes(drawn: tuple[str, list[Any]]) -> None:
    type_, items = drawn
    left = [a for a in items for _ in items]
    right = [b for _ in items for b in items]
    expected = [encode(a, type_) == encode(b, type_) for a, b in zip(left, right, strict=True)]
    others = column_forms(type_, right)
    for at, form in enumerate(column_forms(type_, left)):
        for other in (others[at], others[-1 - at]):
            assert expected == equal(form, other, type_).tolist()
    hashes = hash_columns([column_forms(type_, items)[0]], [type_], len(items)).tolist()
    assert expected == [a == b for a in hashes for b in hashes]


@given(typed_values())
def test_forms_have_equal_hashes_codes_and_encodings(drawn: tuple[str, list[Any]]) -> None:
    type_, items = drawn
    encoded = [encode(value, type_) for value in items]
    first, *others = column_forms(type_, items)
    hashes = hash_columns([first], [type_], len(items)).tolist()
    codes = order_codes(first, type_).tolist()
    assert encoded == encode_column(first, type_)
    for form in others:
        assert hashes == hash_columns([form], [type_], len(items)).tolist()
        assert codes == order_codes(form, type_).tolist()
        assert encoded == encode_column(form, type_)


@given(typed_values(max_size=6))
def test_many_rows_hash_and_sort_like_few(drawn: tuple[str, list[Any]]) -> None:
    type_, items = drawn
    hashes = hash_columns([column_forms(type_, items)[0]], [type_], len(items)).tolist()
    for form in column_forms(type_, items * 300):
        assert hashes * 300 == hash_columns([form], [type_], 300 * len(items)).tolist()
        found = sort_indices([form], [type_])
        encoded = [encode(value, type_) for value in items]
        expected = sorted(range(300 * len(items)), key=lambda i: encoded[i % len(items)])
        assert expected == found.tolist()


@given(st.data(), st.lists(types, min_size=1, max_size=3), st.integers(0, 10))
def test_rows_sort_by_their_encodings(data: st.DataObject, kinds: list[str], n: int) -> None:
    columns = []
    for type_ in kinds:
        pool = data.draw(st.lists(st.none() | values(type_), min_size=1, max_size=3))
        columns.append(data.draw(st.lists(st.sampled_from(pool), min_size=n, max_size=n)))
    keys = [
        b"".join(encode(column[i], type_) for column, type_ in zip(columns, kinds, strict=True))
        for i in range(n)
    ]
    for repeat in (1, 50):
        expected = sorted(range(n * repeat), key=(keys * repeat).__getitem__)
        for at in (0, -1):
            forms = [
                column_forms(type_, column * repeat)[at]
                for column, type_ in zip(columns, kinds, strict=True)
            ]
            assert expected == sort_indices(forms, kinds).tolist()


@given(typed_values())
def test_codes_never_contradict_the_order(drawn: tuple[str, list[Any]]) -> None:
    type_, items = drawn
    codes = order_codes(column_forms(type_, items)[0], type_).tolist()
    ranked = sorted(zip([encode(value, type_) for value in items], codes, strict=True))
    assert [code for _, code in ranked] == sorted(codes)


@given(typed_values(max_size=8))
def test_no_encoding_is_prefix_of_another(drawn: tuple[str, list[Any]]) -> None:
    type_, items = drawn
    encoded = {encode(value, type_) for value in items}
    assert not [(a, b) for a in encoded for b in encoded if a != b and b.startswith(a)]


def test_null_is_least_and_nan_greatest() -> None:
    column = objects([float("nan"), 1.0, None, float("inf"), float("-inf"), 0.0])
    assert sort_indices([column], ["double"]).tolist() == [2, 4, 5, 1, 3, 0]


def test_text_is_ordered_by_bytes() -> None:
    words = ["\uffff", "\U00010000", "", "a", "a\0", "ab", None]
    expected = [None, "", "a", "a\0", "ab", "\uffff", "\U00010000"]
    for column in (objects(words), pa.array(words * 40, pa.string())):
        order = sort_indices([column], ["string"])
        found = [words[i % len(words)] for i in order.tolist()]
        assert expected == list(dict.fromkeys(found))


def test_maps_are_equal_in_any_entry_order() -> None:
    type_ = "map<string,int>"
    assert encode({"a": 1, "b": None}, type_) == encode({"b": None, "a": 1}, type_)
    assert encode({"a": 1}, type_) < encode({"a": 1, "b": 1}, type_)


def test_nested_signed_zeros_are_equal() -> None:
    column = pa.array([[0.0], [-0.0]], pa.list_(pa.float64()))
    same = equal(column.slice(0, 1), column.slice(1, 1), "array<double>")
    assert same.tolist() == [True]


def test_sort_without_columns_is_empty() -> None:
    assert sort_indices([], []).tolist() == []


@pytest.mark.parametrize("type_", ["bigint", "string", "array<int>"])
def test_sort_without_rows_is_empty(type_: str) -> None:
    column = concat([], type_)
    assert sort_indices([column], [type_]).tolist() == []
    assert order_codes(column, type_).tolist() == []
    assert to_pylist(column, type_) == []
    assert isinstance(sort_indices([column], [type_]), np.ndarray)
