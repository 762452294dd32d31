"""Arrow arrays from buffers: equal to those that Arrow makes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb.rows import buffers

VALUES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"])),
    pa.binary(): st.binary(),
    pa.decimal128(10, 2): st.decimals(-(10**6), 10**6, places=2),
}


@pytest.mark.parametrize("type_", VALUES, ids=str)
@given(data=st.data())
def test_lists_become_equal_arrow_arrays(type_: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[type_], max_size=20))
    found = buffers.arrow_from_list(values, type_)
    found.validate(full=True)
    assert found.equals(pa.array(values, type_))


@pytest.mark.parametrize("type_", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")])
def test_times_are_built_from_numbers(type_: pa.DataType) -> None:
    assert buffers.arrow_from_list([1, None, -5], type_).equals(pa.array([1, None, -5], type_))


@given(st.lists(st.none() | st.booleans(), max_size=40), st.integers(0, 20))
def test_booleans_are_read_from_any_slice(values: list[bool | None], start: int) -> None:
    array = pa.array(values, pa.bool_()).slice(start)
    assert [bool(v) for v in values[start:]] == buffers.bools(array).tolist()
    assert [v is None for v in values[start:]] == buffers.null_mask_of(array).tolist()


@given(st.lists(st.integers(-100, 100), max_size=20), st.integers(0, 10), st.data())
def test_numbers_round_trip(values: list[int], start: int, data: st.DataObject) -> None:
    given = np.array(values, np.int64)
    array = buffers.arrow_from_numpy(given).slice(start)
    assert values[start:] == buffers.values_of(array).tolist()
    nulls = np.array([data.draw(st.booleans()) for _ in values], np.bool_)
    assert buffers.arrow_from_numpy(given, nulls=nulls).equals(pa.array(given, mask=nulls))
