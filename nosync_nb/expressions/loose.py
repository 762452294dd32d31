"""Functions that look at nulls themselves: hashes of several values, joined and greatest texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nosync_nb.expressions.nodes import ValueNode
from nosync_nb.expressions.typing_rules import is_decimal
from nosync_nb.expressions.vectors import Vector, VectorFrame, full, spread
from nosync_nb.rows import bridge
from nosync_nb.rows.types import FIXED, arrow_type


class LooseNode(ValueNode):
    """A function of a row whose null arguments come as None; its result may be None."""

    def __init__(self, type_: str, row: Callable[..., Any], arguments: Sequence[ValueNode]) -> None:
        super().__init__(type_, arguments)
        self.row = row

    def evaluate(self, frame: VectorFrame) -> Vector:
        vectors = [argument.evaluate(frame) for argument in self.arguments]
        types = [argument.type for argument in self.arguments]
        listed = [_listed(v, frame.n, t) for v, t in zip(vectors, types, strict=True)]
        results = list(map(self.row, *listed))
        return _spread(results, self.type, frame)


def _spread(results: list[Any], type_: str, frame: VectorFrame) -> Vector:
    nulls = None
    if None in results:
        nulls = np.fromiter([result is None for result in results], np.bool_, frame.n)
    if type_ in FIXED or is_decimal(type_):
        plain = results if nulls is None else [0 if r is None else r for r in results]
        return Vector(spread(plain, type_), nulls)
    if frame.small:
        return Vector(spread(results, type_), nulls)
    return Vector(bridge.of_list(results, arrow_type(type_)), nulls)


def _listed(vector: Vector, n: int, type_: str) -> list[Any]:
    values = full(vector, n, type_)
    listed: list[Any] = values.to_pylist() if isinstance(values, pa.Array) else values.tolist()
    if vector.nulls is None:
        return listed
    return [None if null else v for v, null in zip(listed, vector.nulls.tolist(), strict=True)]


def joined(separator: Any, *texts: Any) -> Any:
    """`concat_ws` of a row: what is null is left out."""
    return None if separator is None else separator.join([t for t in texts if t is not None])


def greatest(*values: Any) -> Any:
    """The greatest value that is not null."""
    return max((value for value in values if value is not None), default=None)


def least(*values: Any) -> Any:
    """The least value that is not null."""
    return min((value for value in values if value is not None), default=None)
