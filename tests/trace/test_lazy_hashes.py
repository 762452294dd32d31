"""Lazy hashes of a change: each is computed once."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from models.batch_model import count, counted, layouts, pools, updates_of, weak_hashes

from nosync_nb import rows
from nosync_nb.dataflow.runtime.delta import ArrangedChange, Delta, LazyHashes, layer_of
from nosync_nb.trace.batch import FEW_ROWS, Layout, Updates, arrange

PAIRS = Layout(("bigint", "bigint"), (0,))
BUCKETS = st.sampled_from([None, 1, 2])


@given(st.data(), BUCKETS)
def test_distinct_rows_need_no_order(data: st.DataObject, buckets: int | None) -> None:
    layout = data.draw(layouts())
    updates = data.draw(updates_of(layout.types, data.draw(pools(layout.types)), max_size=5))
    with contextlib.nullcontext() if buckets is None else weak_hashes(buckets):
        found = LazyHashes(layout.types, updates).unordered(layout)
        sorted_ = arrange(layout, updates)
    expected = counted([sorted_])
    if found is None:
        return
    assert len(found) == len(expected) == len(sorted_), "no row occurs twice"
    assert expected == count(found.updates, layout.types)
    assert sorted(found.khash.tolist()) == sorted_.khash.tolist()


def test_possibly_equal_rows_are_sorted() -> None:
    def loose(listed: list[Any]) -> bool:
        columns = [np.array([row[i] for row, _ in listed]) for i in (0, 1)]
        diff = np.array([n for _, n in listed])
        return LazyHashes(PAIRS.types, Updates(columns, diff)).unordered(PAIRS) is not None

    assert loose([((1, 2), 1), ((1, 3), -1), ((2, 2), 5)])
    assert not loose([((1, 2), 1), ((1, 2), -1)])
    assert not loose([((1, 2), 1), ((1, 2), 1)])
    assert not loose([((1, 2), 0)])
    with weak_hashes():  # distinct integers need no hash
        assert loose([((i, i), 1) for i in range(3)])
        assert not loose([((0, float(i)), 1) for i in range(3)])


def test_rows_distinct_by_numbers_are_not_hashed_as_a_whole() -> None:
    types = ("bigint", "int", "string")
    texts = np.array([f"text {i}" for i in range(300)], object)
    updates = Updates(
        [np.arange(300) // 3, np.arange(300, dtype=np.int32) % 3, texts], np.ones(300, np.int64)
    )
    hashed = LazyHashes(types, updates)
    with mock.patch.object(LazyHashes, "of_rows", side_effect=AssertionError):
        found = hashed.unordered(Layout(types, (0,)))
    assert found is not None
    assert len(found) == 300
    updates.columns[1] %= 2  # two of three differ only in their texts
    found = LazyHashes(types, updates).unordered(Layout(types, (0,)))
    assert found is not None
    texts[2] = texts[0]
    assert LazyHashes(types, updates).unordered(Layout(types, (0,))) is None


@given(st.data(), BUCKETS)
def test_hashes_are_equal_in_any_order_of_requests(
    data: st.DataObject, buckets: int | None
) -> None:
    types = data.draw(layouts()).types
    updates = data.draw(updates_of(types, data.draw(pools(types)), max_size=5))
    n = len(updates.diff)
    with contextlib.nullcontext() if buckets is None else weak_hashes(buckets):
        hashed = LazyHashes(types, updates)
        for _ in range(4):
            places = data.draw(st.permutations(range(len(types))))
            places = tuple(places[: data.draw(st.integers(0, len(types)))])
            columns, kinds = [updates.columns[i] for i in places], [types[i] for i in places]
            assert (
                rows.hash_columns(columns, kinds, n).tolist() == hashed.hashes_of(places).tolist()
            )


@given(st.data(), BUCKETS)
def test_change_is_arranged_as_without_cached_hashes(
    data: st.DataObject, buckets: int | None
) -> None:
    layout = data.draw(layouts())
    updates = data.draw(updates_of(layout.types, data.draw(pools(layout.types)), max_size=5))
    with contextlib.nullcontext() if buckets is None else weak_hashes(buckets):
        hashed = LazyHashes(layout.types, updates)
        hashed.unordered(layout)
        found, expected = hashed.arranged(layout), arrange(layout, updates)
    assert expected.khash.tolist() == found.khash.tolist()
    assert (expected.rhash is expected.khash) == (found.rhash is found.khash)
    assert counted([expected]) == counted([found])


def test_unordered_change_becomes_young_layer() -> None:
    layout = Layout(("int", "string"), (0,))
    columns = [np.array([3, 1, 2], np.int32), np.array(["c", "a", "b"], object)]
    updates = Updates(columns, np.array([2, 1, -1], np.int64))
    loose, arranged = LazyHashes(layout.types, updates).unordered(layout), arrange(layout, updates)
    assert loose is not None
    young = layer_of(ArrangedChange((loose,)), layout, 5)
    layer = layer_of(ArrangedChange((arranged,)), layout, 5)
    assert layer.parts[0] is arranged
    for each in (young, layer):
        assert (each.lower, each.upper) == (5, 6)
        assert [part.layout for part in each.parts] == [layout]
        assert counted(each.parts) == counted([arranged])


def test_duplicate_rows_are_hashed_once() -> None:
    hashed: list[int] = []
    strong, more = rows.hash_columns, rows.extend_hashes

    def counting(columns: Any, types: Any, n: int) -> Any:
        hashed.append(n * len(columns))
        return strong(columns, types, n)

    def counting_extended(hashes: Any, columns: Any, types: Any, n: int) -> Any:
        hashed.append(n * len(columns))
        return more(hashes, columns, types, n)

    rows_count = 2 * FEW_ROWS
    values = np.maximum(np.arange(rows_count), 1)  # 1 twice
    ones = np.ones(rows_count, np.int64)
    delta = Delta(("bigint",) * 3, Updates([values, values, values], ones))
    with (
        mock.patch.object(rows, "hash_columns", counting),
        mock.patch.object(rows, "extend_hashes", counting_extended),
    ):
        assert len(delta.with_hashes(Layout(delta.types, (0,)))) == rows_count - 1
        assert sum(hashed) == 3 * rows_count, "the key, then the other columns"
        assert len(delta.batch(Layout(delta.types))) == rows_count - 1
        assert sum(hashed) == 3 * rows_count
