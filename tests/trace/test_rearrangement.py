"""Sorting of parts into another order: equal to sorting them at once."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.batch_model import batches_of, check, counted, layouts

from nosync_nb.dataflow.runtime.delta import SMALL_ROWS, ArrangedChange, Delta
from nosync_nb.rows import parallel
from nosync_nb.trace import batch as batch_module
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates, merge
from nosync_nb.trace.compaction import rearrange_parts


def split_batch(batch: Batch, cuts: list[int]) -> list[Batch]:
    bounds = sorted({0, len(batch), *(min(cut, len(batch)) for cut in cuts)})
    return [batch.slice(a, b) for a, b in pairwise(bounds)] or [batch]


@given(st.data(), st.sampled_from([1, 3]))
def test_rearranged_parts_equal_sorted_whole(data: st.DataObject, some: int) -> None:
    first = data.draw(layouts())
    whole = merge(first, data.draw(batches_of(first)))
    parts = split_batch(whole, data.draw(st.lists(st.integers(0, 20), max_size=3)))
    places = range(len(first.types))
    key = tuple(i for i in places if "map<" not in first.types[i] and data.draw(st.booleans()))
    order = None if first.order is None else data.draw(st.sampled_from([None, first.order]))
    for layout in (Layout(first.types), Layout(first.types, key, order)):
        with (
            mock.patch.object(parallel, "MANY", 1),
            mock.patch.object(parallel, "usable_cores", return_value=some),
            mock.patch.object(batch_module, "GROUP", 2),
        ):
            found = rearrange_parts(layout, parts)
        check(found)
        wanted = arrange(layout, concat_updates([p.updates for p in parts], layout.types))
        assert found.layout == layout
        assert counted([found]) == counted([wanted])
        assert (found.rhash is found.khash) == (wanted.rhash is wanted.khash)


def test_large_change_in_several_files_is_rearranged_by_part() -> None:
    n = SMALL_ROWS + 1
    columns = [np.arange(n), np.arange(n)[::-1] % 7]
    whole = arrange(Layout(("bigint", "bigint")), Updates(list(columns), np.ones(n, np.int64)))
    held = ArrangedChange(tuple(split_batch(whole, [100, 2000])))
    layout = Layout(("bigint", "bigint"), (1,))
    delta = Delta(layout.types, None, {whole.layout: held})
    with mock.patch("nosync_nb.dataflow.runtime.delta.concat_updates", side_effect=AssertionError):
        batch = delta.batch(layout)
    check(batch)
    assert counted([batch]) == counted([whole])


def test_interrupt_of_a_core_is_raised() -> None:
    batch = arrange(Layout(("bigint",)), Updates([np.arange(9)], np.ones(9, np.int64)))
    with (
        mock.patch("nosync_nb.rows.take", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        rearrange_parts(Layout(("bigint",), ()), split_batch(batch, [4]))
