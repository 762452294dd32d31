"""Batches: sums of rows are preserved, also when all hashes collide."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.batch_model import (
    batches_of,
    check,
    count,
    counted,
    encoded,
    layouts,
    numbers,
    pools,
    updates_of,
    weak_hashes,
)

from nosync_nb import rows
from nosync_nb.errors import ExpressionError
from nosync_nb.trace.batch import (
    Layout,
    Updates,
    arrange,
    arranged_pieces,
    concat_updates,
    joined_updates,
    merge,
    no_updates,
)

PAIRS = Layout(("bigint", "bigint"), (0,))
BUCKETS = st.sampled_from([None, 1, 2])


@st.composite
def arranged(draw: st.DrawFn) -> tuple[Layout, Updates]:
    layout = draw(layouts())
    return layout, draw(updates_of(layout.types, draw(pools(layout.types))))


@given(arranged(), BUCKETS)
def test_arranging_keeps_sums(case: tuple[Layout, Updates], buckets: int | None) -> None:
    layout, updates = case
    expected = count(updates, layout.types)
    if buckets is None:
        batch = arrange(layout, updates)
        check(batch)
    else:
        with weak_hashes(buckets):
            batch = arrange(layout, updates)
            check(batch)
    assert expected == counted([batch])
    assert len(batch) == len(expected)


@given(arranged(), BUCKETS, st.integers(1, 5))
def test_pieces_are_cuts_of_arranged_rows(
    case: tuple[Layout, Updates], buckets: int | None, rows_max: int
) -> None:
    def check_pieces() -> None:
        layout, updates = case
        whole = arrange(layout, updates)
        rhash = rows.hash_columns(updates.columns, layout.types, len(updates.diff))
        pieces = [each for each in arranged_pieces(layout, updates, rhash, rows_max) if len(each)]
        for piece in pieces:
            check(piece)
        assert counted(pieces) == counted([whole])
        khashes = [piece.khash.tolist() for piece in pieces]
        assert all(low[-1] < high[0] for low, high in itertools.pairwise(khashes))
        assert list(itertools.chain(*khashes)) == whole.khash.tolist()
        runs = [len([*run]) for _, run in itertools.groupby(whole.khash.tolist())]
        if runs and len(updates.diff) == len(whole):
            assert max(map(len, pieces)) <= rows_max + max(runs)

    if buckets is None:
        check_pieces()
    else:
        with weak_hashes(buckets):
            check_pieces()


@given(st.data(), BUCKETS)
def test_merging_adds_up(data: st.DataObject, buckets: int | None) -> None:
    def merged() -> None:
        layout = data.draw(layouts())
        batches = data.draw(batches_of(layout))
        batch = merge(layout, batches)
        check(batch)
        assert counted(batches) == counted([batch])
        assert len(counted(batches)) == len(batch)

    if buckets is None:
        merged()
    else:
        with weak_hashes(buckets):
            merged()


def test_concat_of_nothing_has_no_rows() -> None:
    none = concat_updates([], ("bigint", "string"))
    assert [len(column) for column in none.columns] == [0, 0]
    assert not none


@given(st.data())
def test_merge_is_independent_of_batching(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    pool = data.draw(pools(layout.types))
    some = data.draw(st.lists(updates_of(layout.types, pool), min_size=1, max_size=4))
    at_once = arrange(layout, concat_updates(some, layout.types))
    in_steps = merge(layout, [arrange(layout, each) for each in some])
    assert at_once.khash.tolist() == in_steps.khash.tolist()
    assert at_once.diff.tolist() == in_steps.diff.tolist()
    kinds = layout.types
    assert encoded(at_once.columns, kinds, len(at_once)) == encoded(
        in_steps.columns, kinds, len(in_steps)
    )


@given(st.data())
def test_cuts_of_key_range_are_disjoint_and_complete(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    batch = merge(layout, data.draw(batches_of(layout)))
    points = data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=3))
    if len(batch):
        points += [int(batch.khash[len(batch) // 2])]
    bounds = [0, *sorted(points), 2**64]
    cuts = [batch.cut(low, high) for low, high in itertools.pairwise(bounds)]
    assert len(batch) == sum(map(len, cuts))
    for piece, low, high in zip(cuts, bounds, bounds[1:], strict=False):
        check(piece)
        assert all(low <= k < high for k in piece.khash.tolist())
        assert (piece.rhash is piece.khash) == (batch.rhash is batch.khash)
    again = joined_updates(layout, data.draw(st.permutations(cuts)))
    check(again)
    assert counted([batch]) == counted([again])


@pytest.mark.fault(46)
def test_cancelled_batch_has_no_rows() -> None:
    batch = numbers(PAIRS, [((1, 2), 1), ((1, 2), -3), ((1, 2), 2)])
    assert len(batch) == 0
    check(batch)
    assert len(arrange(PAIRS, no_updates(PAIRS.types))) == 0


def test_order_of_key_columns_is_part_of_the_hash() -> None:
    swapped = Layout(("bigint", "bigint"), (1, 0))
    batch = numbers(swapped, [((1, 2), 1)])
    assert rows.hash_columns([batch.columns[1], batch.columns[0]], swapped.types, 1) == batch.khash


def test_colliding_rows_keep_order_of_their_code() -> None:
    with weak_hashes(1):
        batch = numbers(
            Layout(("bigint", "bigint"), (), 1), [((2, 5), 1), ((1, 9), 1), ((1, 9), 1)]
        )
    assert batch.columns[1].tolist() == [5, 9]
    assert batch.diff.tolist() == [1, 2]


def test_dates_beyond_python_years_may_collide() -> None:
    layout = Layout(("date",))
    with weak_hashes(1):
        days = np.array([2**31 - 1, 0, 2**31 - 1], np.int32)
        batch = arrange(layout, Updates([days], np.ones(3, np.int64)))
    assert dict(zip(batch.columns[0].tolist(), batch.diff, strict=True)) == {2**31 - 1: 2, 0: 1}


@pytest.mark.parametrize("sign", [1, -1])
def test_count_above_64_bits_raises_error(sign: int) -> None:
    big = sign * (2**62)
    numbers(PAIRS, [((1, 1), big), ((1, 1), -big), ((1, 1), sign * (2**62 - 1)), ((1, 1), big)])
    with pytest.raises(ExpressionError, match="more than"):
        numbers(PAIRS, [((1, 1), big), ((1, 1), big), ((1, 1), sign)])


@given(st.data())
def test_batch_survives_pickle(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    batch = merge(layout, data.draw(batches_of(layout)))
    again: Any = pickle.loads(pickle.dumps(batch))
    assert layout == again.layout
    assert counted([batch]) == counted([again])
    assert (again.rhash is again.khash) == (batch.rhash is batch.khash)
