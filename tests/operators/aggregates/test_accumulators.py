"""Sums in parts: many values are added in chunks, with the result of one addition."""

from __future__ import annotations

import tracemalloc
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb.operators.aggregates import aggregate
from nosync_nb.operators.aggregates.accumulators import Slots
from nosync_nb.operators.aggregates.aggregate import (
    AT_ONCE,
    FeedValues,
    all_contributions,
    feed_contributions,
)
from nosync_nb.operators.aggregates.plan import SlotFeed
from nosync_nb.rows.count_arithmetic import CountError

GROUPS = 4

values = {"double": st.floats(width=64), "bigint": st.integers(-(2**63), 2**63 - 1)}
counts = st.one_of(st.integers(-2, 2), st.sampled_from([2**32, -(2**32), 2**33]))


def slots_of_rows(type_: str, drawn: list[tuple[Any, int, int]]) -> Slots | str:
    """The slots of (value, count, group), or "too many" beyond 64 bits."""
    dtype = np.float64 if type_ == "double" else np.int64
    column = np.array([value for value, _, _ in drawn], dtype)
    diff = np.array([count for _, count, _ in drawn], np.int64)
    number = np.array([group for _, _, group in drawn], np.int64)
    feed = SlotFeed(0, -1, -1, {"count": 1, "sum": 100})
    try:
        return feed_contributions(FeedValues(feed, [column], type_), diff, number, GROUPS)
    except CountError:
        return "too many"


def nonzero_slots(slots: Slots | str) -> Any:
    """Slots without those that are all zero."""
    if isinstance(slots, str):
        return slots
    return {slot: numbers.tolist() for slot, numbers in slots.items() if numbers.any()}


@pytest.mark.parametrize("type_", [*values])
@given(data=st.data())
def test_chunked_contributions_equal_single_addition(type_: str, data: st.DataObject) -> None:
    drawn = data.draw(
        st.lists(st.tuples(values[type_], counts, st.integers(0, GROUPS - 1)), max_size=12)
    )
    drawn.sort(key=lambda each: each[2])
    at_once = slots_of_rows(type_, drawn)
    with mock.patch.object(aggregate, "AT_ONCE", 3):
        assert nonzero_slots(slots_of_rows(type_, drawn)) == nonzero_slots(at_once)


@pytest.mark.parametrize("bins_max", [0, aggregate.BINS_MAX], ids=["bin by bin", "at once"])
@given(data=st.data())
def test_scalar_contributions_equal_vectorised_ones(bins_max: int, data: st.DataObject) -> None:
    each = st.tuples(st.one_of(values["double"], st.floats(-1e6, 1e6)), counts, st.integers(0, 3))
    drawn = data.draw(st.lists(each, min_size=1, max_size=aggregate.FEW))
    few = slots_of_rows("double", drawn)
    with mock.patch.multiple(aggregate, FEW=0, BINS_MAX=bins_max):
        many = slots_of_rows("double", drawn)
    # Of many the products alone may be too much, though they fit together.
    assert nonzero_slots(few) == nonzero_slots(many) or (many == "too many" != few)


@given(st.data(), st.integers(1, 4))
def test_contributions_of_several_columns_equal_those_of_each(
    data: st.DataObject, width: int
) -> None:
    """Also with an integer column, and with non-finite values."""
    numbers = st.one_of(values["double"], st.floats(-1e6, 1e6))
    n = data.draw(st.integers(1, 12))
    given_: list[FeedValues] = []
    for place in range(width):
        type_ = data.draw(st.sampled_from(["double", "float", "bigint"]))
        of_type = st.floats(width=32) if type_ == "float" else numbers
        drawn = data.draw(st.lists(values.get(type_, of_type), min_size=n, max_size=n))
        dtype = {"double": np.float64, "float": np.float32, "bigint": np.int64}[type_]
        slots = {"count": 1 + 200 * place, "sum": 2 + 200 * place}
        given_.append(FeedValues(SlotFeed(place, -1, -1, slots), [np.array(drawn, dtype)], type_))
    small = st.integers(-2, 2)
    diff = np.array(data.draw(st.lists(small, min_size=n, max_size=n)), np.int64)
    number = np.array([at % GROUPS for at in range(n)], np.int64)
    with mock.patch.object(aggregate, "FEW", 0):
        together = all_contributions(given_, diff, number, GROUPS)
    each: Slots = {}
    for alone in given_:
        each |= feed_contributions(alone, diff, number, GROUPS)
    assert nonzero_slots(together) == nonzero_slots(each)


def test_intermediate_count_may_exceed_64_bits() -> None:
    drawn = [(1.0, 2**34, 0)] * 4 + [(1.0, -(2**34), 0)] * 4
    whole = slots_of_rows("double", drawn)
    assert not isinstance(whole, str)
    with mock.patch.object(aggregate, "AT_ONCE", 4):
        assert nonzero_slots(slots_of_rows("double", drawn)) == nonzero_slots(whole) == {}


def test_memory_of_contributions_is_bounded() -> None:
    n = 8 * AT_ONCE
    column, diff = np.arange(n) / 8, np.ones(n, np.int64)
    number = np.arange(n) * GROUPS // n
    feed = SlotFeed(0, -1, -1, {"count": 1, "sum": 100})
    tracemalloc.start()
    try:
        feed_contributions(FeedValues(feed, [column], "double"), diff, number, GROUPS)
        assert tracemalloc.get_traced_memory()[1] < 4 * column.nbytes
    finally:
        tracemalloc.stop()
