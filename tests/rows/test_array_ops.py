"""Vectorised sorts: the order of numpy, also with equal keys."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nosync_nb.rows import array_ops
from nosync_nb.rows.array_ops import sorted_by, stably_sorted_by

BITS = st.integers(0, 64)
ROWS = 3000


def numbers(rng: np.random.Generator, bits: int, low: int) -> Any:
    """Random numbers of `bits` bits, `low` bits from the right."""
    drawn = rng.integers(0, 2**bits, ROWS, np.uint64, endpoint=False) if bits else np.uint64(0)
    return np.zeros(ROWS, np.uint64) | (drawn << np.uint64(min(low, 64 - bits) % 64))


@given(st.integers(0, 2**32), BITS, BITS, BITS, BITS, st.integers(0, ROWS))
def test_two_keys_are_sorted_like_lexsort(
    seed: int, first_bits: int, first_low: int, second_bits: int, second_low: int, n: int
) -> None:
    rng = np.random.default_rng(seed)
    first = numbers(rng, first_bits, first_low)[:n]
    second = numbers(rng, second_bits, second_low)[:n]
    index, wanted = sorted_by(first, second), np.lexsort((second, first))
    assert sorted(index.tolist()) == list(range(n))
    assert (first[index] == first[wanted]).all()
    assert (second[index] == second[wanted]).all()


@given(st.integers(0, 2**32), BITS, BITS, st.integers(0, ROWS))
def test_equal_keys_keep_their_order(seed: int, bits: int, low: int, n: int) -> None:
    given_ = numbers(np.random.default_rng(seed), bits, low)[:n]
    assert (stably_sorted_by(given_) == given_.argsort(kind="stable")).all()


@pytest.mark.parametrize("runs", [1, 2, 700, 1 << 12])
def test_equal_leading_bits_do_not_decide_order(runs: int) -> None:
    rng = np.random.default_rng(runs)
    n = 1 << 13
    first = rng.integers(0, runs, n, np.uint64)
    second = rng.integers(0, 4, n, np.uint64)  # only the last two bits differ
    second[rng.integers(0, n, n // 2)] |= np.uint64(1 << 63)
    with mock.patch.object(array_ops.np, "lexsort", wraps=np.lexsort) as slow:
        index = sorted_by(first, second)
    assert slow.called  # the position leaves no room for the last bits
    wanted = np.lexsort((second, first))
    assert (first[index] == first[wanted]).all()
    assert (second[index] == second[wanted]).all()


@pytest.mark.parametrize("most", [0, 2, 1000])
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 4))
def test_order_behind_leading_bits_is_repaired(
    most: int, seed: int, alike: int, equal: int
) -> None:
    """A few numbers differ only behind the leading bits, and some are equal."""
    rng, n = np.random.default_rng(seed), 1500
    given_ = rng.integers(0, 2**64 - 1, n, np.uint64)
    for _ in range(alike):
        at = rng.integers(0, n, 3 + equal)
        given_[at] = given_[at[0]] & ~np.uint64(7) | rng.integers(0, 8, len(at), np.uint64)
        given_[at[-equal:]] = given_[at[0]]
    wanted = given_.argsort(kind="stable")
    other = rng.permutation(given_)
    with mock.patch.object(array_ops, "WRONG_MAX", most):
        assert (stably_sorted_by(given_) == wanted).all()
        for first, second in ((given_, other), (given_ >> np.uint64(60) << np.uint64(60), given_)):
            index, order = sorted_by(first, second), np.lexsort((second, first))
            assert (first[index] == first[order]).all()
            assert (second[index] == second[order]).all()


def test_hashes_are_sorted_without_lexsort() -> None:
    rng = np.random.default_rng(1)
    first = rng.integers(0, 2**64 - 1, ROWS, np.uint64)[rng.integers(0, ROWS // 4, ROWS)]
    second = rng.integers(0, 2**64 - 1, ROWS, np.uint64)
    with mock.patch.object(array_ops.np, "lexsort", side_effect=AssertionError):
        sorted_by(first, second)
