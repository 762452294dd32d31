"""The hash index: it finds what a search of all hashes finds."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb import rows
from nosync_nb.trace import Trace
from nosync_nb.trace import trace as trace_module
from nosync_nb.trace.batch import Hashes, Layout, Updates, arrange
from nosync_nb.trace.layer import LARGE, SOME, HashPrefixIndex, find_few_hashes, find_hashes

LAST = 2**64 - 1
NUMBERS = st.integers(0, LAST) | st.integers(0, 40) | st.integers(LAST - 40, LAST)


def hashes_of(numbers: list[int]) -> Hashes:
    return np.array(numbers, np.uint64)


@given(st.lists(NUMBERS, min_size=1, max_size=400), st.lists(NUMBERS, max_size=60))
def test_places_equal_those_of_search(held: list[int], asked: list[int]) -> None:
    hashes, wanted = hashes_of(sorted(held)), hashes_of(asked + held[:20])
    bits = HashPrefixIndex(hashes)
    assert (bits.places(hashes, wanted) == hashes.searchsorted(wanted)).all()
    behind = hashes.searchsorted(wanted, "right")
    assert (bits.places(hashes, wanted, behind=True) == behind).all()


@pytest.mark.parametrize("distinct", [1, 3, 1 << 40])
def test_clustered_hashes_have_their_places(distinct: int) -> None:
    rng = np.random.default_rng(distinct)
    pool = rng.integers(0, LAST, min(distinct, 5000), np.uint64, endpoint=True)
    hashes = np.sort(rng.choice(pool, 5000))
    wanted = np.concatenate([pool[:50], rng.integers(0, LAST, 50, np.uint64), hashes[-1:]])
    bits = HashPrefixIndex(hashes)
    for side, behind in (("left", False), ("right", True)):
        places = bits.places(hashes, wanted, behind=behind)
        assert (places == np.searchsorted(hashes, wanted, side)).all()  # type: ignore[call-overload]


@given(
    st.lists(NUMBERS, max_size=200),
    st.lists(NUMBERS, max_size=40),
    st.booleans(),
    st.booleans(),
)
def test_found_hashes_are_the_stored_ones(
    held: list[int], asked: list[int], prefixed: bool, among: bool
) -> None:
    hashes = hashes_of(sorted(held))
    wanted = hashes_of(held[:40] if among else asked + held[:5])
    hit = find_hashes(hashes, wanted, HashPrefixIndex(hashes) if prefixed and held else None)
    every = enumerate(wanted.tolist())
    expected = [(i, at) for i, each in every for at, own in enumerate(sorted(held)) if own == each]
    few = find_few_hashes(hashes, wanted)
    if hit is None or few is None:
        assert hit is few is None
        assert not expected
        return
    for numbers, places in (hit, few):
        assert list(zip(numbers.tolist(), places.tolist(), strict=True)) == expected


def large(rng: np.random.Generator) -> Trace:
    """A trace with a large layer and a small one, three rows a key."""
    layout, n = Layout(("bigint", "bigint"), (0,)), LARGE + 7
    numbers = rng.integers(0, n // 3, n)
    every = arrange(layout, Updates([numbers, np.arange(n)], np.ones(n, np.int64)))
    few = arrange(layout, Updates([np.arange(50), np.arange(50)], -np.ones(50, np.int64)))
    return Trace(layout).with_batch(every).with_batch(few)


@pytest.mark.parametrize("n", [SOME - 1, SOME, 3000])
def test_lookup_in_large_layer_equals_lookup_by_key(n: int) -> None:
    trace = large(np.random.default_rng(1))
    keys = np.random.default_rng(n).choice(LARGE, n, replace=False)
    hit = trace.lookup(rows.hash_columns([keys], ["bigint"], n), [keys], [1])
    got = sorted(zip(*map(np.ndarray.tolist, (hit.probe, hit.columns[0], hit.diff)), strict=True))
    expected = []
    for i in range(n):
        own = keys[i : i + 1]
        one = trace.lookup(rows.hash_columns([own], ["bigint"], 1), [own], [1])
        if one is not None:
            rows_ = zip(one.columns[0].tolist(), one.diff.tolist(), strict=True)
            expected += [(i, *row) for row in rows_]
    assert got == sorted(expected)


@pytest.mark.parametrize(("every", "bits"), [(100, []), (200, [0])])
def test_prefix_bits_are_used_for_sparse_lookups(every: int, bits: list[int]) -> None:
    trace = large(np.random.default_rng(1))
    part = trace.layers[0].parts[0]
    few = part.take(np.arange(0, len(part), every))
    hit = trace.lookup(few.khash, few.columns[:1])
    assert hit is not None
    assert set(hit.probe.tolist()) == set(range(len(few)))
    assert [*trace.layers[0].facts().rows.bits] == bits


def test_layer_caches_prefixes_of_its_parts() -> None:
    trace = large(np.random.default_rng(1))
    keys = np.arange(2 * SOME)
    khash = rows.hash_columns([keys], ["bigint"], len(keys))
    trace.lookup(khash[:1], [keys[:1]])
    assert trace.layers[0].seen is None  # few probes need no index
    trace.lookup(khash, [keys])
    assert [*trace.layers[0].facts().rows.bits] == [0]
    assert not trace.layers[1].facts().rows.bits, "a small layer needs no index"
    kept = trace.layers[0].facts().rows.bits[0]
    with mock.patch.object(trace_module, "find_hashes", wraps=find_hashes) as looked:
        trace.lookup(khash, [keys])
        assert not looked.called, "equal lookups are cached"
        trace.lookup(khash.copy(), [keys])
    assert looked.call_args_list[0].args[2] is kept
