"""Determinants: the clock, and random values, which are not made of the row.

A stage with one of them keeps what came out by its row, as `--nondeterministic` does, so that a
retraction takes back what was given; after a restart it is read from the log, never asked again.
All expressions that are evaluated together see one clock.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nosync_nb import rows
from nosync_nb.expressions.evaluation.nodes import LiteralNode, ValueNode
from nosync_nb.expressions.functions import nondeterministic__seeds
from nosync_nb.expressions.functions.rules import Rule, count
from nosync_nb.expressions.implicit_casts import NotProvedError
from nosync_nb.expressions.kernels import datetimes
from nosync_nb.expressions.kernels.vectors import Vector, VectorFrame, load_column
from nosync_nb.expressions.syntax.analyzer import analyze
from nosync_nb.expressions.syntax.parser import parse
from nosync_nb.expressions.typing_rules import VOID
from nosync_nb.rows import Schema

Seeded = Callable[[int, int], Any]
"""A seed, and how many values -> the values."""


class _Clock(threading.local):
    """What time it is, in microseconds since 1970; None: look."""

    micros: int | None = None


_CLOCK = _Clock()


@contextmanager
def statement_clock() -> Iterator[None]:
    """The clock stands still, for what this thread evaluates inside."""
    before = _CLOCK.micros
    _CLOCK.micros = _now() if before is None else before
    try:
        yield
    finally:
        _CLOCK.micros = before


def _now() -> int:
    return time.time_ns() // 1000 if _CLOCK.micros is None else _CLOCK.micros


class ClockNode(ValueNode):
    """The time of the clock, as days or microseconds."""

    def __init__(self, type_: str) -> None:
        super().__init__(type_, ())

    def evaluate(self, frame: VectorFrame) -> Vector:
        micros = _now()
        if self.type == "date":
            return Vector(np.int32(micros // datetimes.DAY), None)
        return Vector(np.int64(micros), None)


class RandomNode(ValueNode):
    """Another value for each row, at every evaluation."""

    def __init__(self, type_: str, draw: Callable[[int], Any]) -> None:
        super().__init__(type_, ())
        self.draw = draw

    def evaluate(self, frame: VectorFrame) -> Vector:
        return load_column(self.draw(frame.n), self.type, small=frame.small)


def _clock(type_: str, *, zoned: bool) -> Rule:
    """`zoned`: what the clock shows depends on the time zone."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 0)
        if zoned and not utc:
            raise NotProvedError("the clock in a time zone other than UTC")
        return ClockNode(type_)

    return rule


def _random(type_: str, draw: Callable[[int], Any], seeded: Seeded | None = None) -> Rule:
    """Random values; with a seed those that Spark gives to the rows of one partition."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not arguments or seeded is None:
            count(name, arguments, 0)
            return RandomNode(type_, draw)
        count(name, arguments, 1)
        seed = arguments[0]
        if not isinstance(seed, LiteralNode) or seed.type not in ("int", "bigint", VOID):
            raise NotProvedError(f"{name} with a seed that is no whole number")
        return RandomNode(type_, lambda n: seeded(seed.value or 0, n))

    return rule


_DRAWN = _random(
    "double", lambda n: np.random.default_rng().random(n), nondeterministic__seeds.uniform
)

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
        nondeterministic__seeds.normal,
    ),
    "uuid": _random("string", lambda n: rows.objects([str(uuid.uuid4()) for _ in range(n)])),
}
NAMES = ("current_date", "current_timestamp", "localtimestamp")
"""Those that may stand without parentheses."""


def call_without_arguments(name: str, *, utc: bool) -> ValueNode:
    """`current_date`, where there is no such column.

    Raises:
        NotProvedError: if it is nothing of the kind.
    """
    if name.lower() not in NAMES:
        raise NotProvedError(f"function {name}")
    return FUNCTIONS[name.lower()](name.lower(), [], utc)


def is_nondeterministic(sql: str, schema: Schema) -> bool:
    """Whether two evaluations of an expression may differ.

    Raises:
        ExpressionError: if it cannot be read, or names a column that is not there.
    """
    parsed = parse(sql)
    return not analyze(parsed.tree, schema, parsed.sql).deterministic
