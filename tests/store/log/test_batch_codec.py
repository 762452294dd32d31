"""The codec of batches: a round trip, and damaged bytes raise an error."""

from __future__ import annotations

import decimal
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb.errors import CorruptLogError
from nosync_nb.rows import arrow_type, objects, to_pylist
from nosync_nb.rows.types import FIXED
from nosync_nb.store.log import batch_codec

TYPES = [*FIXED, "string", "binary", "decimal(20,3)", "array<int>", "struct<a:string,b:bigint>"]
DECIMALS = decimal.Context(prec=38)


def values_of(type_: str) -> st.SearchStrategy[Any]:
    """Values in their object form in a column."""
    if type_ == "string":
        return st.text(max_size=8)
    if type_ == "binary":
        return st.binary(max_size=8)
    if type_ == "boolean":
        return st.booleans()
    if type_ in ("float", "double"):
        return st.floats(width=32 if type_ == "float" else 64, allow_nan=False)
    if type_.startswith("decimal"):
        digits = st.integers(-(10**20) + 1, 10**20 - 1)
        return digits.map(lambda one: decimal.Decimal(one).scaleb(-3, DECIMALS))
    if type_.startswith("array"):
        return st.lists(st.integers(-9, 9) | st.none(), max_size=3)
    if type_.startswith("struct"):
        return st.fixed_dictionaries({"a": st.text(max_size=3), "b": st.integers(-9, 9)})
    bits = 8 * FIXED[type_].itemsize
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@st.composite
def column_of(draw: st.DrawFn, type_: str, rows: int) -> Any:
    one = values_of(type_)
    form = draw(st.sampled_from(["plain", "objects", "arrow"]))
    plain = draw(st.lists(one, min_size=rows, max_size=rows))
    if form == "plain" and type_ in FIXED:
        return np.array(plain, FIXED[type_])
    mixed = [draw(st.sampled_from([value, value, None])) for value in plain]
    if form == "arrow" or type_.endswith(">"):
        spare = pa.array([None, *mixed], arrow_type(type_))
        return spare.slice(1)
    return objects(mixed)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Any], list[str], Any]:
    types = draw(st.lists(st.sampled_from(TYPES), max_size=4))
    rows = draw(st.integers(0, 9))
    columns = [draw(column_of(type_, rows)) for type_ in types]
    size = draw(st.sampled_from([1, 2**7, 2**62]))
    diffs = st.just(1) if size == 1 else st.integers(-size, size - 1)
    return columns, types, np.array(draw(st.lists(diffs, min_size=rows, max_size=rows)), np.int64)


def equal_columns(expected: Any, actual: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return expected.dtype == actual.dtype and expected.tolist() == actual.tolist()
    return bool(expected.equals(actual))


@given(batches())
def test_batch_round_trip_keeps_form(batch: Any) -> None:
    columns, types, diff = batch
    data = batch_codec.encode_batch(columns, types, diff)
    for form in (data, memoryview(data)):
        found, found_diff = batch_codec.decode_batch(form, types)
        assert all(equal_columns(one, two) for one, two in zip(columns, found, strict=True))
        assert diff.tolist() == found_diff.tolist()
        assert found_diff.dtype == np.int64


@given(batches(), st.data())
def test_damaged_bytes_raise_or_decode_within_buffer(batch: Any, data: st.DataObject) -> None:
    columns, types, diff = batch
    good = bytearray(batch_codec.encode_batch(columns, types, diff))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at] = data.draw(st.integers(0, 255))
    del good[data.draw(st.integers(len(good) // 2, len(good))) :]
    try:
        found, found_diff = batch_codec.decode_batch(bytes(good), types)
    except CorruptLogError:
        return
    assert all(len(column) == len(found_diff) for column in found)


@given(batches())
def test_truncated_or_extended_buffer_is_refused(batch: Any) -> None:
    columns, types, diff = batch
    data = batch_codec.encode_batch(columns, types, diff)
    for end in range(len(data)):
        with pytest.raises(CorruptLogError):
            batch_codec.decode_batch(data[:end], types)
    with pytest.raises(CorruptLogError):
        batch_codec.decode_batch(data + bytes(8), types)


def test_diffs_of_one_take_no_space() -> None:
    column, ones = np.arange(10), np.ones(10, np.int64)
    plain = batch_codec.encode_batch([column], ["bigint"], ones)
    assert len(plain) == 16 + 80
    assert len(batch_codec.encode_batch([column], ["bigint"], -ones)) == len(plain) + 16
    assert len(batch_codec.encode_batch([column], ["bigint"], 1000 * ones)) == len(plain) + 80


def test_large_columns_round_trip() -> None:
    rows = 10_000
    columns = [np.arange(rows), pa.array([f"label {one}" for one in range(rows)])]
    diff = np.ones(rows, np.int64)
    found, ones = batch_codec.decode_batch(
        batch_codec.encode_batch(columns, ["bigint", "string"], diff), ["bigint", "string"]
    )
    assert equal_columns(columns[0], found[0])
    assert equal_columns(columns[1], found[1])
    assert ones.sum() == rows


@pytest.mark.fault(45)
def test_newer_format_is_refused() -> None:
    data = bytearray(batch_codec.encode_batch([], [], np.empty(0, np.int64)))
    data[0] = batch_codec.FORMAT + 1
    with pytest.raises(CorruptLogError, match="newer than this program"):
        batch_codec.decode_batch(bytes(data), [])


def test_other_types_are_refused() -> None:
    data = batch_codec.encode_batch([objects(["a", None])], ["string"], np.ones(2, np.int64))
    for types in (["bigint"], ["binary"], ["array<int>"], []):
        with pytest.raises(CorruptLogError):
            batch_codec.decode_batch(data, types)


@given(
    st.lists(st.sampled_from(["bigint", "int", "double", "boolean", "string"]), max_size=3),
    st.data(),
)
def test_many_batches_round_trip_in_order(types: list[str], data: st.DataObject) -> None:
    encoded, rows, diffs = [], [], []
    many = data.draw(st.sampled_from([1, 9]))
    for _ in range(data.draw(st.integers(0, 4))):
        count = data.draw(st.integers(0, 5))
        columns = [data.draw(column_of(type_, count)) for type_ in types]
        size = data.draw(st.sampled_from([1, 2**7, 2**62]))
        some = st.just(1) if size == 1 else st.integers(-size, size - 1)
        diff = np.array(data.draw(st.lists(some, min_size=count, max_size=count)), np.int64)
        encoded.append(batch_codec.encode_batch(columns, types, diff))
        found, found_diff = batch_codec.decode_batch(encoded[-1], types)
        rows.append([to_pylist(c, t) for c, t in zip(found, types, strict=True)])
        diffs += found_diff.tolist()
    columns, diff = batch_codec.decode_batches(encoded * many, types)
    assert diff.tolist() == diffs * many
    for i, (column, type_) in enumerate(zip(columns, types, strict=True)):
        assert to_pylist(column, type_) == [value for each in rows * many for value in each[i]]


def test_damage_in_one_of_many_batches_raises_error() -> None:
    columns = [np.arange(3, dtype=np.int64)]
    good = batch_codec.encode_batch(columns, ["bigint"], np.ones(3, np.int64))
    huge = good[:4] + b"\xff" * 4 + good[8:]
    for bad in (good[:-8], good + bytes(8), b"", bytes([9]) + good[1:], huge):
        for before in (1, 40):
            with pytest.raises(CorruptLogError):
                batch_codec.decode_batches([good] * before + [bad], ["bigint"])


@given(batches(), st.integers(0, 400))
def test_batch_is_encoded_only_below_size_limit(
    batch: tuple[list[Any], list[str], Any], most: int
) -> None:
    expected = batch_codec.encode_batch(*batch)
    found = batch_codec.encode_small(*batch, most)
    assert found == (expected if len(expected) <= most else None)


def test_too_long_text_is_not_copied() -> None:
    text = "ä" * (1 << 20)
    column = objects(["a", None, text])
    diff = np.ones(3, np.int64)
    tracemalloc.start()
    try:
        assert batch_codec.encode_small([column], ["string"], diff, 1 << 16) is None
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(text) // 4
