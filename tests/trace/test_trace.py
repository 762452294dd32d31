"""Traces: lookups find the rows of their keys, also when hashes collide."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.batch_model import (
    Count,
    batches_of,
    check,
    counted,
    encoded,
    layouts,
    nonzero,
    numbers,
    weak_hashes,
)

from nosync_nb import rows
from nosync_nb.trace import Layer, Trace, append_young, empty_batch, hash_ranges, layer
from nosync_nb.trace import (
    trace as trace_module,
)
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, merge
from nosync_nb.trace.compaction import LAYERS_MAX

PAIRS = Layout(("bigint", "bigint"), (0,))


def trace_of(layout: Layout, batches: list[Batch], cuts: list[int]) -> Trace:
    """A trace with a layer for each batch; some layers have several parts."""
    trace = Trace(layout)
    for epoch, batch in enumerate(batches):
        places = [c for c in cuts if c < len(batch)]
        # Rows of one key hash are never apart.
        starts = batch.khash.searchsorted(batch.khash[places]).tolist() if places else []
        bounds = sorted({0, len(batch), *starts})
        parts = tuple(batch.slice(a, b) for a, b in pairwise(bounds))
        trace = trace.appended(Layer(epoch, epoch + 1, parts or (batch,)))
    return trace


def young_trace_of(layout: Layout, batches: list[Batch], looks: list[bool]) -> Trace:
    """The same from unordered changes, merged and read on the way."""
    trace = Trace(layout)
    for epoch, (batch, looked) in enumerate(zip(batches, looks, strict=True)):
        backwards = np.arange(len(batch))[::-1]
        trace, _ = append_young(trace, batch.updates.take(backwards), epoch)
        if looked:
            assert all(len(part.khash) == len(part) for each in trace.layers for part in each.keyed)
    return trace


@given(st.data(), st.sampled_from([None, 1, 2]), st.sampled_from([(0, 1), (0, 1000), (1000, 1)]))
def test_lookup_finds_rows_of_its_keys(
    data: st.DataObject, buckets: int | None, bounds: tuple[int, int]
) -> None:
    some, large = bounds  # the thresholds of many probes and of large parts
    with (
        weak_hashes(buckets) if buckets else nullcontext(),
        mock.patch.object(trace_module, "SOME", some),
        mock.patch.multiple(layer, LARGE=large, _SPARSE_SHIFT=0),
        mock.patch.object(layer, "ALIKE_MAX", data.draw(st.sampled_from([1, 16]))),
    ):
        layout = data.draw(layouts())
        batches = data.draw(batches_of(layout))
        if data.draw(st.booleans()):
            cuts = data.draw(st.lists(st.integers(0, 20), max_size=2))
            trace = trace_of(layout, batches, cuts)
        else:
            n = len(batches)
            looks = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
            trace = young_trace_of(layout, batches, looks)
        kinds = layout.types
        places = list(range(len(kinds)) if layout.key is None else layout.key)
        types = [kinds[i] for i in places]
        total = merge(layout, batches)
        # Probes: some existing keys, each once, including null keys.
        chosen = data.draw(st.sets(st.integers(0, max(len(total) - 1, 0)))) if len(total) else set()
        index = np.array(sorted(chosen), np.int64)
        keys = [rows.take(total.columns[i], index) for i in places]
        once: dict[Any, int] = {}
        for i, key in enumerate(encoded(keys, types, len(index))):
            once.setdefault(key, i)
        first = np.array(list(once.values()), np.int64)
        keys = [rows.take(c, first) for c in keys]
        wanted = data.draw(st.none() | st.permutations(range(len(kinds))))
        khash = rows.hash_columns(keys, types, len(first))
        found = trace.lookup(khash, keys, wanted)
        again = trace.lookup(khash, keys, wanted)  # a repeated lookup
    assert (found is None) == (again is None)
    if found is not None and again is not None:
        assert (found.probe == again.probe).all()
        assert (found.diff == again.diff).all()
    held: Counter[Any] = Counter()
    if found is not None:
        assert len(found.diff)
        shown = range(len(kinds)) if wanted is None else wanted
        assert [len(found.diff)] * len(shown) == list(map(len, found.columns))
        got = encoded(found.columns, [kinds[i] for i in shown], len(found.diff))
        for probe, row, diff in zip(found.probe.tolist(), got, found.diff.tolist(), strict=True):
            held[probe, tuple(row)] += diff
    expected: Counter[Any] = Counter()
    probes = {key: i for i, key in enumerate(encoded(keys, types, len(first)))}
    for row, diff in counted(batches).items():
        key = tuple(row[i] for i in places)
        if key in probes:
            shown = range(len(kinds)) if wanted is None else wanted
            expected[probes[key], tuple(row[i] for i in shown)] += diff
    assert nonzero(expected) == nonzero(held)
    assert nonzero(counted([trace.consolidated()])) == nonzero(counted(batches))


WIDE = Layout(("bigint", "string"), (0,))


def trace_with_lookups(epochs: int, keys: int) -> Trace:
    """A trace of small epochs with texts, probed after each of them."""
    trace = Trace(WIDE)
    for epoch in range(epochs):
        own = np.array([(2 * epoch + at) % keys for at in (1, 0)])
        texts = rows.from_arrow(pa.array([f"{epoch}", f"{epoch}"]), "string")
        trace, _ = append_young(trace, Updates([own, texts], np.array([1, -1])), epoch)
        asked = np.arange(keys)
        assert trace.lookup(rows.hash_columns([asked], ["bigint"], keys), [asked]) is not None
    return trace


def test_lookup_hashes_no_row() -> None:
    with mock.patch.object(rows, "extend_hashes", side_effect=AssertionError):
        trace = trace_with_lookups(64, 128)
    assert max(each.rows_count for each in trace.layers) > 16, "layers are merged"
    assert not any(each.is_ordered for each in trace.layers)
    check(trace.consolidated())
    assert all(each.is_ordered for each in trace.layers)


def test_cancelled_rows_of_a_key_do_not_pile_up() -> None:
    """Otherwise each lookup would find the cancelled rows of all epochs."""
    trace = Trace(WIDE)
    asked = np.zeros(1, np.int64)
    khash = rows.hash_columns([asked], ["bigint"], 1)
    for epoch in range(1000):
        texts = rows.from_arrow(pa.array(["a", "b"]), "string")
        diff = np.array([1, -1]) if epoch % 2 else np.array([-1, 1])
        trace, _ = append_young(trace, Updates([np.zeros(2, np.int64), texts], diff), epoch)
        found = trace.lookup(khash, [asked])
        assert found is None or len(found.diff) <= 2 * LAYERS_MAX + 16


@pytest.mark.parametrize("n", [trace_module.MANY, trace_module.MANY + 1])
def test_many_keys_are_found_in_any_order(n: int) -> None:
    batches = [
        numbers(PAIRS, [((key, key + at), 1) for key in range(0, 3 * n, 2)]) for at in (0, 7)
    ]
    trace = trace_of(PAIRS, batches, [500])
    asked = np.random.default_rng(1).permutation(np.arange(n))  # every second key exists
    found = trace.lookup(rows.hash_columns([asked], ["bigint"], n), [asked])
    assert found is not None
    keys, values = found.columns
    assert asked[found.probe].tolist() == keys.tolist()
    found_rows = sorted(zip(keys.tolist(), values.tolist(), strict=True))
    assert found_rows == [(key, key + at) for key in range(0, n, 2) for at in (0, 7)]


@given(st.data())
def test_trace_is_the_sum_of_its_layers(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    batches = data.draw(batches_of(layout))
    trace = trace_of(layout, batches, data.draw(st.lists(st.integers(0, 20), max_size=2)))
    assert sum(map(len, batches)) == trace.rows_count
    check(trace.consolidated())
    assert counted(batches) == counted([trace.consolidated()])
    assert counted(batches) == counted([arrange(layout, trace.updates())])
    more = trace.with_batch(batches[0])
    assert counted([*batches, batches[0]]) == counted([more.consolidated()])
    assert counted(batches) == counted([trace.consolidated()])


@given(st.data())
def test_slices_of_trace_are_disjoint_and_complete(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    batches = data.draw(batches_of(layout))
    trace = trace_of(layout, batches, [])
    middle = data.draw(st.integers(0, 2**64))
    total: Count = Counter()
    for low, high in ((0, middle), (middle, 2**64)):
        piece = trace.cut(low, high)
        assert [(a.lower, a.upper) for a in trace.layers] == [
            (a.lower, a.upper) for a in piece.layers
        ]
        assert all(low <= k < high for part in piece.parts() for k in part.khash.tolist())
        total.update(counted(piece.parts()))
    assert counted(batches) == nonzero(total)


@pytest.mark.fault(46)
def test_empty_trace_is_empty() -> None:
    trace = Trace(PAIRS)
    keys = [np.array([1, 2])]
    khash = rows.hash_columns(keys, ["bigint"], 2)
    assert trace.lookup(khash, keys) is None
    assert len(trace.consolidated()) == 0
    assert len(trace.updates().diff) == 0
    check(empty_batch(PAIRS))
    check(empty_batch(Layout(("string", "array<int>"), (0,), 0)))


def test_key_with_equal_hash_is_not_found() -> None:
    with weak_hashes(1):
        trace = Trace(PAIRS).with_batch(numbers(PAIRS, [((1, 1), 1), ((2, 2), 5)]))
        keys = [np.array([3, 2])]
        found = trace.lookup(rows.hash_columns(keys, ["bigint"], 2), keys, [1])
        assert found is not None
        assert (
            found.probe.tolist(),
            found.columns[0].tolist(),
            found.diff.tolist(),
        ) == ([1], [2], [5])
        keys = [np.array([3])]
        assert trace.lookup(rows.hash_columns(keys, ["bigint"], 1), keys) is None


def test_overlapping_layers_are_refused() -> None:
    batch = numbers(PAIRS, [((1, 1), 1)])
    trace = Trace(PAIRS).appended(Layer(0, 5, (batch,)))
    with pytest.raises(AssertionError):
        trace.appended(Layer(4, 6, (batch,)))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5))))
def test_ranges_are_concatenated(spans: list[tuple[int, int]]) -> None:
    starts = np.array([a for a, _ in spans], np.int64)
    counts = np.array([n for _, n in spans], np.int64)
    expected = [i for a, n in spans for i in range(a, a + n)]
    assert expected == hash_ranges(starts, counts).tolist()
