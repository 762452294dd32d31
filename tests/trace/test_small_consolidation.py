"""Consolidation of few updates: equal to sorting by hashes."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.batch_model import count, few_layouts, layouts, pools, updates_of

from nosync_nb import rows
from nosync_nb.dataflow.runtime.delta import Delta
from nosync_nb.rows.count_arithmetic import CountError
from nosync_nb.trace.batch import FEW_ROWS, UNORDERED, Layout, Updates, arrange, consolidate_few

PAIRS = ("bigint", "string")


def pairs(*listed: tuple[int, str | None, int]) -> Updates:
    numbers, texts, diffs = zip(*listed, strict=True) if listed else ((), (), ())
    return Updates(
        [np.array(numbers, np.int64), np.array(texts, object)], np.array(diffs, np.int64)
    )


def listed(updates: Updates) -> list[tuple[Any, ...]]:
    return list(zip(*(c.tolist() for c in updates.columns), updates.diff.tolist(), strict=True))


@given(st.data(), layouts() | few_layouts)
def test_consolidation_keeps_the_collection(data: st.DataObject, layout: Layout) -> None:
    types = layout.types
    updates = data.draw(updates_of(types, data.draw(pools(types)), max_size=8))
    before, held = count(updates, types), updates.diff.tolist()
    found = consolidate_few(types, updates)
    if found is None:
        return
    assert count(found, types) == before
    assert len(found.diff) == len(before), "each row occurs once, none with diff 0"
    assert (found is updates) == (len(held) == len(before) and 0 not in held)
    assert updates.diff.tolist() == held


@given(st.data())
def test_change_is_equal_in_any_form_requested_first(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    updates = data.draw(updates_of(layout.types, data.draw(pools(layout.types)), max_size=8))
    expected = count(arrange(layout, updates).updates, layout.types)
    delta = Delta(layout.types, updates)
    for name in data.draw(
        st.permutations(["consolidated_if_few", "with_hashes", "batch", "updates"])
    ):
        form = getattr(delta, name)
        if name == "consolidated_if_few":
            form = form()
        elif name != "updates":
            form = form(layout)
        if form is not None:
            made = form if name == "updates" else form.updates
            assert count(made, layout.types) == expected
        if name in ("with_hashes", "batch"):
            columns = [form.columns[i] for i in layout.places]
            kinds = [layout.types[i] for i in layout.places]
            hashes = rows.hash_columns(columns, kinds, len(form))
            assert form.khash.tolist() == hashes.tolist()


def test_rows_keep_first_place_and_cancelled_rows_go() -> None:
    updates = pairs((2, "b", 1), (1, None, 1), (2, "b", 2), (3, "c", 1), (3, "c", -1), (1, "a", -1))
    found = consolidate_few(PAIRS, updates)
    assert found is not None
    assert listed(found) == [(2, "b", 3), (1, None, 1), (1, "a", -1)]
    found = consolidate_few(PAIRS, pairs((1, "a", 1), (1, "a", -1)))
    assert found is not None
    assert listed(found) == []
    apart = pairs((1, "a", 1), (1, "b", -1), (2, "a", 1))
    assert consolidate_few(PAIRS, apart) is apart
    nothing = consolidate_few(PAIRS, pairs((1, "a", 0)))
    assert nothing is not None
    assert listed(nothing) == []


def test_rows_without_columns_are_equal() -> None:
    found = consolidate_few((), Updates([], np.array([2, 3, -1], np.int64)))
    assert found is not None
    assert found.diff.tolist() == [4]


def test_nans_and_zeros_are_equal() -> None:
    numbers = np.array([math.nan, 1.5, math.nan, 1.5, 0.0])
    found = consolidate_few(("double",), Updates([numbers], np.ones(5, np.int64)))
    assert found is not None
    assert found.diff.tolist() == [2, 2, 1]
    with_nulls = np.array([math.nan, None, math.nan], object)
    assert consolidate_few(("double",), Updates([with_nulls], np.ones(3, np.int64))) is None


def test_many_rows_and_large_counts_are_not_consolidated() -> None:
    many = FEW_ROWS + 1
    assert consolidate_few(("bigint",), Updates([np.arange(many)], np.ones(many, np.int64))) is None
    large = Updates([np.array([1, 1])], np.array([1 << 62, 1 << 62], np.int64))
    assert consolidate_few(("bigint",), large) is None
    with pytest.raises(CountError, match="row \\(1,\\) is counted more than"):
        Delta(("bigint",), large).with_hashes(Layout(("bigint",), (0,)))


def test_few_rows_are_consolidated_without_hash() -> None:
    delta = Delta(PAIRS, pairs((1, "a", 1), (2, "b", 1), (1, "a", -1)))
    with mock.patch.object(rows, "hash_columns", side_effect=AssertionError):
        few = delta.consolidated_if_few()
    assert few is not None
    assert few.layout is UNORDERED
    assert listed(few.updates) == [(2, "b", 1)]
    assert listed(delta.updates) == [(2, "b", 1)], "the consolidated updates replace the original"
    assert delta.consolidated_if_few() is few
