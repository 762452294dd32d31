"""Random numbers from a seed, as Spark draws them for the rows of its first partition.

Spark draws by a generator of shifts and exclusive ors over 64 bits, which begins at a hash of the
seed; each expression has one of its own, and so has each evaluation of it.

Source: G. Marsaglia, Xorshift RNGs, Journal of Statistical Software 2003; doubles and the polar
method of normal ones are those of `java.util.Random`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from nosync_nb.expressions.functions.hashes import murmur

_ARRAY_SEED = 0x3C074A61
_MASK = (1 << 64) - 1


def _bits(seed: int) -> Callable[[int], int]:
    """What draws so many bits, up to 32, as a number without a sign."""
    blob = (seed & _MASK).to_bytes(8, "big")
    low = murmur(blob, _ARRAY_SEED)
    state = murmur(blob, low) << 32 | low

    def draw(count: int) -> int:
        nonlocal state
        state ^= state << 21 & _MASK
        state ^= state >> 35
        state ^= state << 4 & _MASK
        return state & ((1 << count) - 1)

    return draw


def _doubles(seed: int) -> Iterator[float]:
    draw = _bits(seed)
    while True:
        yield ((draw(26) << 27) + draw(27)) * 2.0**-53


def _normals(seed: int) -> Iterator[float]:
    uniform = _doubles(seed)
    while True:
        x, y = (2 * next(uniform) - 1 for _ in range(2))
        square = x * x + y * y
        if 0 < square < 1:
            scale = math.sqrt(-2 * math.log(square) / square)
            yield x * scale
            yield y * scale


def uniform(seed: int, n: int) -> Any:
    """`n` doubles from 0 to 1."""
    return np.fromiter(islice(_doubles(seed), n), np.float64, n)


def normal(seed: int, n: int) -> Any:
    """`n` doubles around 0, which may differ from Java's in the last place: its logarithm does."""
    return np.fromiter(islice(_normals(seed), n), np.float64, n)
