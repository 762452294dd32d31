"""Totals of many groups: equal to each group alone, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nosync_nb.operators.aggregates import results
from nosync_nb.operators.aggregates.accumulators import Slots, contributions
from nosync_nb.operators.aggregates.results import SCALAR_GROUPS_MAX, group_totals
from nosync_nb.rows import to_pylist

BASE = 100
GROUPS = SCALAR_GROUPS_MAX + 1
EXACT = float(1 << 53)
LEAST = 5e-324

doubles = st.floats(width=64)
near = st.sampled_from([1.0, EXACT, EXACT + 2, -EXACT, 0.5, 2.0**-60, 2.0**-113, -(2.0**-113)])
tiny = st.floats(-1e-305, 1e-305)
huge = st.floats(1e307, allow_infinity=False)
values = st.lists(st.one_of(doubles, near, tiny, huge), max_size=6)
integers = st.lists(st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)), max_size=6)


def slots_of(groups: list[list[Any]], type_: str, dtype: Any) -> tuple[Slots, Any]:
    """The slots of groups of values, and the number of values of each group; the rest are empty."""
    flat = np.array([v for group in groups for v in group], dtype)
    number = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    slots: Slots = {}
    for offset, (index, parts) in contributions("sum", flat, type_, len(flat)).items():
        slots[BASE + offset] = np.zeros(GROUPS, np.int64)
        np.add.at(slots[BASE + offset], number[index], parts)
    return slots, np.bincount(number, minlength=GROUPS)


def same_bits(left: list[Any], right: list[Any]) -> bool:
    """Compares values bit by bit; all NaN are equal."""
    return [np.float64(v).tobytes() if v == v else "NaN" for v in left if v is not None] == [
        np.float64(v).tobytes() if v == v else "NaN" for v in right if v is not None
    ] and [v is None for v in left] == [v is None for v in right]


def same_paths(function: str, groups: list[list[Any]], type_: str, result: str, dtype: Any) -> bool:
    """Compares the vectorised path, which must apply, with the scalar path."""
    slots, count = slots_of(groups, type_, dtype)
    quick = group_totals(function, slots, BASE, type_, result, count)
    assert quick is not None
    compute: Callable[..., list[Any]] = (
        results.sum_column if function == "sum" else results.mean_column
    )
    plain = results.totals_column(compute(slots, BASE, type_, result, count), result)
    return same_bits(to_pylist(quick, result), to_pylist(plain, result))


@given(
    st.lists(st.lists(st.one_of(doubles, near, near, st.floats(-1e9, 1e9)), max_size=6), max_size=8)
)
@example([[EXACT, 1.0]])
@example([[EXACT, 1.0, 2.0**-60]])
@example([[EXACT, 1.0, -(2.0**-113)]])
@example([[1.7e308, 1.7e308, -1.7e308], [LEAST, LEAST]])
def test_float_sums_are_rounded_like_integer_sums(groups: list[list[float]]) -> None:
    slots, count = slots_of(groups, "double", np.float64)
    quick = results.sum_column(slots, BASE, "double", "double", count)
    with mock.patch.object(results, "GREATEST", results.LEAST - 1):
        exact = results.sum_column(slots, BASE, "double", "double", count)
    assert same_bits(quick, exact)


def test_small_sums_use_no_wide_integers() -> None:
    slots, count = slots_of([[1.25, 2.5], [1e100, 3.0]], "double", np.float64)
    slots[BASE - 1] = slots[BASE + 99] = count  # of how many values, here and of the next argument
    with mock.patch.object(results, "exact_sums", side_effect=AssertionError):
        assert results.sum_column(slots, BASE, "double", "double", count)[:3] == [3.75, 1e100, None]


@given(st.lists(values, max_size=8), st.sampled_from(["sum", "avg"]))
@example([[EXACT, 1.0, 2.0**-60]], "sum")  # above the middle by what no digit of 61 bits shows
@example([[EXACT, 1.0]], "sum")  # the middle: to the even one
@example([[EXACT, 1.0, -(2.0**-113)]], "sum")
@example([[LEAST, -LEAST], [LEAST, LEAST], [-LEAST]], "sum")
@example([[1.7e308, 1.7e308], [1.7e308, 1.7e308, -1.7e308]], "sum")
@example([[float("inf")], [float("-inf")], [float("inf"), float("-inf")], [float("nan")]], "sum")
def test_totals_of_doubles_equal_those_of_each_group(
    groups: list[list[float]], function: str
) -> None:
    assert same_paths(function, groups, "double", "double", np.float64)


@given(st.lists(integers, max_size=8), st.sampled_from([("sum", "bigint"), ("avg", "double")]))
def test_totals_of_integers_equal_those_of_each_group(
    groups: list[list[int]], asked: tuple[str, str]
) -> None:
    slots, count = slots_of(groups, "bigint", np.int64)
    if group_totals(asked[0], slots, BASE, "bigint", asked[1], count) is not None:
        assert same_paths(asked[0], groups, "bigint", asked[1], np.int64)


def test_totals_of_small_integers_are_vectorised() -> None:
    groups = [[n, -n, 7] for n in range(GROUPS)]
    slots, count = slots_of(groups, "bigint", np.int64)
    for function, result in (("sum", "bigint"), ("avg", "double")):
        assert group_totals(function, slots, BASE, "bigint", result, count) is not None
        assert same_paths(function, groups, "bigint", result, np.int64)


@pytest.mark.parametrize("number", [2**62, -(2**62), 2**63 - 1])
def test_totals_that_may_overflow_are_left_to_scalar_path(number: int) -> None:
    slots: Slots = {BASE + 1: np.full(GROUPS, number)}
    for type_, result in (("double", "double"), ("bigint", "bigint")):
        assert group_totals("sum", slots, BASE, type_, result, np.ones(GROUPS, np.int64)) is None


def test_mean_has_no_negative_zero() -> None:
    slots, count = slots_of([[1.0, -1.0]] * GROUPS, "double", np.float64)
    count = -count  # of rows that are there less than 0 times
    found = to_pylist(group_totals("avg", slots, BASE, "double", "double", count), "double")
    assert {*map(str, found)} == {"0.0"}


def test_totals_of_many_groups_run_no_python_per_group(session: Any) -> None:
    rows = [(n % 500, n / 8) for n in range(2000)]
    v = session.input("v", "k int, x double")
    session.stage("s", v.group_by("k").agg(t="sum(x)", m="avg(x)"))
    v.insert(rows)
    with mock.patch.object(results, "exact_sums", side_effect=AssertionError("one by one")):
        session.commit()
    expected = {k: [x for key, x in rows if key == k] for k in range(500)}
    assert {r.k: (r.t, r.m) for r in session["s"].rows()} == {
        k: (sum(xs), sum(xs) / len(xs)) for k, xs in expected.items()
    }
    assert results.SCALAR_GROUPS_MAX < 500
