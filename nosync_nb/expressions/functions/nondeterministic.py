"""Nondeterministic functions: the clock, and random values with and without a seed.

A stage that uses one memoises its results by row, as `--nondeterministic` does, so that a
retraction removes exactly what was emitted. After a restart, the results are read from the log and
never recomputed. All expressions that are evaluated together read the same clock.

Random values with a seed are those that Spark draws for the rows of its first partition. Spark's
generator applies shifts and exclusive-ors to a 64-bit state, which begins as a hash of the seed.
Each evaluation of each expression has its own generator.

Source: G. Marsaglia, Xorshift RNGs, Journal of Statistical Software 2003. Doubles, and the polar
method for normal values, are those of `java.util.Random`.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from nosync_nb import rows
from nosync_nb.expressions.evaluation.nodes import LiteralNode, ValueNode
from nosync_nb.expressions.functions.hashes import murmur
from nosync_nb.expressions.functions.rules import Rule, check_arity
from nosync_nb.expressions.kernels import datetimes
from nosync_nb.expressions.kernels.kernel import NotProvedError
from nosync_nb.expressions.kernels.vectors import Vector, VectorFrame, load_column
from nosync_nb.expressions.syntax.analyzer import analyze
from nosync_nb.expressions.syntax.parser import parse
from nosync_nb.expressions.typing_rules import VOID
from nosync_nb.rows import Schema

_ARRAY_SEED = 0x3C074A61
_MASK = (1 << 64) - 1


def _bit_generator(seed: int) -> Callable[[int], int]:
    """Returns a function that draws a number of bits, at most 32, as an unsigned number."""
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
    draw = _bit_generator(seed)
    while True:
        yield ((draw(26) << 27) + draw(27)) * 2.0**-53


def _normals(seed: int) -> Iterator[float]:
    _seeded_uniform = _doubles(seed)
    while True:
        x, y = (2 * next(_seeded_uniform) - 1 for _ in range(2))
        square = x * x + y * y
        if 0 < square < 1:
            scale = math.sqrt(-2 * math.log(square) / square)
            yield x * scale
            yield y * scale


def _seeded_uniform(seed: int, n: int) -> Any:
    """Returns `n` doubles, uniformly distributed from 0 to 1."""
    return np.fromiter(islice(_doubles(seed), n), np.float64, n)


def _seeded_normal(seed: int, n: int) -> Any:
    """Returns `n` normally distributed doubles.

    The last digit may differ from Java's, because its logarithm does.
    """
    return np.fromiter(islice(_normals(seed), n), np.float64, n)


Seeded = Callable[[int, int], Any]
"""Returns random values, given a seed and the number of values."""


class _Clock(threading.local):
    """The time of a frozen clock in microseconds since 1970; None if the clock is not frozen."""

    micros: int | None = None


_CLOCK = _Clock()


@contextmanager
def statement_clock() -> Iterator[None]:
    """Freezes the clock for all evaluations of this thread inside the block."""
    before = _CLOCK.micros
    _CLOCK.micros = _current_micros() if before is None else before
    try:
        yield
    finally:
        _CLOCK.micros = before


def _current_micros() -> int:
    return time.time_ns() // 1000 if _CLOCK.micros is None else _CLOCK.micros


class ClockNode(ValueNode):
    """The current time, in days or microseconds since 1970."""

    def __init__(self, type_: str) -> None:
        super().__init__(type_, ())

    def evaluate(self, frame: VectorFrame) -> Vector:
        micros = _current_micros()
        if self.type == "date":
            return Vector(np.int32(micros // datetimes.DAY), None)
        return Vector(np.int64(micros), None)


class RandomNode(ValueNode):
    """Random values, different for each row and each evaluation."""

    def __init__(self, type_: str, draw: Callable[[int], Any]) -> None:
        super().__init__(type_, ())
        self.draw = draw

    def evaluate(self, frame: VectorFrame) -> Vector:
        return load_column(self.draw(frame.n), self.type, small=frame.small)


def _clock(type_: str, *, zoned: bool) -> Rule:
    """Returns the rule of a function of the clock.

    Args:
        zoned: True if the result depends on the time zone.
    """

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 0)
        if zoned and not utc:
            raise NotProvedError("the clock in a time zone other than UTC")
        return ClockNode(type_)

    return rule


def _random(type_: str, draw: Callable[[int], Any], seeded: Seeded | None = None) -> Rule:
    """Returns the rule of random values; with a seed, those of Spark for one partition."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not arguments or seeded is None:
            check_arity(name, arguments, 0)
            return RandomNode(type_, draw)
        check_arity(name, arguments, 1)
        seed = arguments[0]
        if not isinstance(seed, LiteralNode) or seed.type not in ("int", "bigint", VOID):
            raise NotProvedError(f"{name} with a seed that is not an integer")
        return RandomNode(type_, lambda n: seeded(seed.value or 0, n))

    return rule


_DRAWN = _random("double", lambda n: np.random.default_rng().random(n), _seeded_uniform)

FUNCTIONS: dict[str, Rule] = {
    "now": _clock("timestamp", zoned=False),
    "current_timestamp": _clock("timestamp", zoned=False),
    "localtimestamp": _clock("timestamp_ntz", zoned=True),
    "current_date": _clock("date", zoned=True),
    "curdate": _clock("date", zoned=True),
    "rand": _DRAWN,
    "random": _DRAWN,
    "randn": _random(
        "double",
        lambda n: np.random.default_rng().standard_normal(n),
        _seeded_normal,
    ),
    "uuid": _random("string", lambda n: rows.objects([str(uuid.uuid4()) for _ in range(n)])),
}
NAMES = ("current_date", "current_timestamp", "localtimestamp")
"""Functions of the clock that may be called without parentheses."""


def call_without_arguments(name: str, *, utc: bool) -> ValueNode:
    """Returns the node of `current_date` or a similar call without parentheses.

    Raises:
        NotProvedError: for any other name.
    """
    if name.lower() not in NAMES:
        raise NotProvedError(f"function {name}")
    return FUNCTIONS[name.lower()](name.lower(), [], utc)


def is_nondeterministic(sql: str, schema: Schema) -> bool:
    """Returns True if two evaluations of an expression may differ.

    Raises:
        ExpressionError: if the expression cannot be parsed, or names a missing column.
    """
    parsed = parse(sql)
    return not analyze(parsed.tree, schema, parsed.sql).deterministic
