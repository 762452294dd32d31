"""Grouping kernel: each group has the rows of one key, by hashes or by Python values."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from models.batch_model import encoded, layouts, pools, updates_of, weak_hashes

from nosync_nb import rows
from nosync_nb.operators import grouping
from nosync_nb.operators.grouping import FEW, Groups, group_few, group_rows
from nosync_nb.rows import dictionary

BUCKETS = st.sampled_from([None, 1, 2])


def check(found: Groups, columns: list[Any], kinds: tuple[str, ...], n: int) -> None:
    """Asserts that the groups are those of equal rows of the columns."""
    texts = encoded(columns, kinds, n)
    starts = found.starts.tolist()
    members = [found.order[a:b].tolist() for a, b in zip(starts, [*starts, n][1:], strict=True)]
    own = encoded(found.keys, kinds, len(members))
    assert sorted(i for some in members for i in some) == list(range(n))
    assert len(set(own)) == len(own) == len(set(texts)) == len(found)
    for key, some in zip(own, members, strict=True):
        assert {texts[i] for i in some} == {key}


@given(st.data(), BUCKETS)
def test_groups_have_rows_of_one_key_each(data: st.DataObject, buckets: int | None) -> None:
    kinds = data.draw(layouts()).types
    updates = data.draw(updates_of(kinds, data.draw(pools(kinds)), max_size=20))
    n = len(updates.diff)
    with contextlib.nullcontext() if buckets is None else weak_hashes(buckets):
        found = group_rows(updates.columns, kinds, n)
    check(found, updates.columns, kinds, n)
    assert (np.diff(found.khash.astype(object)) >= 0).all()


@given(st.data())
def test_scalar_groups_equal_rows_by_key(data: st.DataObject) -> None:
    kinds = data.draw(layouts()).types
    updates = data.draw(updates_of(kinds, data.draw(pools(kinds)), max_size=20))
    n = len(updates.diff)
    found = group_few(updates.columns, kinds, n)
    if found is None:
        plain = [type(c) is np.ndarray for c in updates.columns]
        assert not all(plain) or {"float", "double"} & set(kinds)
        return
    check(found, updates.columns, kinds, n)
    assert found.values is not None
    assert len(found.values) == len(found)
    assert found.khash.tolist() == rows.hash_columns(found.keys, kinds, len(found)).tolist()


@given(st.data(), st.integers(1, 3), BUCKETS, st.booleans())
def test_dictionary_codes_group_like_hashes(
    data: st.DataObject, width: int, buckets: int | None, nulls: bool
) -> None:
    """Also if two codes have one text, or two hashes are equal."""
    n, kinds = data.draw(st.integers(1, 30)), ("string",) * width
    texts = st.lists(st.sampled_from(["", "a", "b", "ab"]), min_size=1, max_size=4)
    columns: list[Any] = []
    for _ in kinds:
        words = data.draw(texts)
        codes = data.draw(st.lists(st.integers(0, len(words) - 1), min_size=n, max_size=n))
        there = [None if nulls and code == 0 else code for code in codes]
        columns.append(dictionary.dictionary_column(pa.array(there, pa.uint8()), words))
    with contextlib.nullcontext() if buckets is None else weak_hashes(buckets):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grouping, "MANY", 0)
            found = group_rows(columns, kinds, n)
        expected = group_rows(columns, kinds, n)
    check(found, columns, kinds, n)
    assert found.khash.tolist() == expected.khash.tolist()
    if buckets is None:
        assert found.starts.tolist() == expected.starts.tolist()
        assert found.order.tolist() == expected.order.tolist()


def test_nan_is_grouped_by_hash() -> None:
    nans = np.array([math.nan, math.nan])
    assert group_few([nans], ("double",), 2) is None
    assert len(group_rows([nans], ("double",), 2)) == 1


@pytest.mark.parametrize(("n", "few"), [(FEW, True), (FEW + 1, False)])
def test_scalar_grouping_is_bounded(n: int, few: bool) -> None:
    assert (group_few([np.arange(n)], ("bigint",), n) is not None) == few


def test_group_by_nothing_is_one_group() -> None:
    found = group_rows([], (), 3)
    assert found.starts.tolist() == [0]
    assert sorted(found.order.tolist()) == [0, 1, 2]
    few = group_few([], (), 3)
    assert few is not None
    assert few.values == [()]
    check(few, [], (), 3)
    assert few.khash.tolist() == found.khash.tolist()
    assert group_few([], (), 0) is None  # whose group is there as well, see `Aggregate`


@given(st.data(), st.integers(FEW + 1, 3 * FEW), st.integers(0, 99))
def test_many_rows_of_few_keys_are_grouped_without_hashes(
    data: st.DataObject, n: int, seed: int
) -> None:
    kinds = data.draw(layouts()).types
    few = data.draw(updates_of(kinds, data.draw(pools(kinds)), max_size=4))
    assume(len(few.diff))
    at = np.random.default_rng(seed).integers(0, len(few.diff), n)
    columns = [rows.take(column, at) for column in few.columns]
    found = group_few(columns, kinds, n)
    if found is None:
        plain = [type(c) is np.ndarray for c in columns]
        assert not all(plain) or {"float", "double"} & set(kinds)
        return
    check(found, columns, kinds, n)
    assert found.values is not None
    assert found.khash.tolist() == rows.hash_columns(found.keys, kinds, len(found)).tolist()
    assert found.khash.tolist() == sorted(found.khash.tolist())


def test_many_keys_after_few_are_hashed() -> None:
    column = np.concatenate((np.zeros(FEW, np.int64), np.arange(2 * FEW)))
    assert group_few([column], ("bigint",), len(column)) is None


def test_no_rows_have_no_groups() -> None:
    assert group_rows([np.zeros(0, np.int64)], ("bigint",), 0).starts.tolist() == []
