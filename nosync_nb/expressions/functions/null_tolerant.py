"""Functions that handle nulls themselves: hashes of several values, joined and greatest texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.evaluation.nodes import ValueNode
from nosync_nb.expressions.kernels.vectors import Vector, VectorFrame, full_vector, spread_by_mask
from nosync_nb.expressions.typing_rules import is_decimal
from nosync_nb.rows import buffers
from nosync_nb.rows.types import FIXED, arrow_type


class NullTolerantNode(ValueNode):
    """A function of a row whose null arguments come as None; its result may be None.

    `large` is the same for Arrow arrays and scalars, one of them an array; None: row by row.
    """

    def __init__(
        self,
        type_: str,
        row: Callable[..., Any],
        arguments: Sequence[ValueNode],
        *,
        large: Callable[..., pa.Array | None] | None = None,
    ) -> None:
        super().__init__(type_, arguments)
        self.row = row
        self._large = large

    def evaluate(self, frame: VectorFrame) -> Vector:
        vectors = [argument.evaluate(frame) for argument in self.arguments]
        values = [vector.values for vector in vectors]
        if self._large is not None and any(isinstance(v, pa.Array) for v in values):
            result = self._large(*(buffers.text(v) if isinstance(v, str) else v for v in values))
            if result is not None:
                return Vector(result, buffers.null_mask_of(result) if result.null_count else None)
        types = [argument.type for argument in self.arguments]
        listed = [_values_of_vector(v, frame.n, t) for v, t in zip(vectors, types, strict=True)]
        results = list(map(self.row, *listed))
        return _vector_of_results(results, self.type, frame)


def _vector_of_results(results: list[Any], type_: str, frame: VectorFrame) -> Vector:
    nulls = None
    if None in results:
        nulls = np.fromiter([result is None for result in results], np.bool_, frame.n)
    if type_ in FIXED or is_decimal(type_):
        plain = results if nulls is None else [0 if r is None else r for r in results]
        return Vector(spread_by_mask(plain, type_), nulls)
    if frame.small:
        return Vector(spread_by_mask(results, type_), nulls)
    return Vector(buffers.arrow_from_list(results, arrow_type(type_)), nulls)


def _values_of_vector(vector: Vector, n: int, type_: str) -> list[Any]:
    values = full_vector(vector, n, type_)
    listed: list[Any] = values.to_pylist() if isinstance(values, pa.Array) else values.tolist()
    if vector.nulls is None:
        return listed
    return [None if null else v for v, null in zip(listed, vector.nulls.tolist(), strict=True)]


def joined(separator: Any, *texts: Any) -> Any:
    """`concat_ws` of a row: nulls are omitted."""
    return None if separator is None else separator.join([t for t in texts if t is not None])


def all_joined(separator: Any, *texts: Any) -> pa.Array | None:
    """`concat_ws` of columns; None if a text is null, because Arrow drops rows with nulls."""
    if any(isinstance(text, pa.Array) and text.null_count for text in texts):
        return None
    return pc.binary_join_element_wise(*texts, separator)


def greatest(*values: Any) -> Any:
    """Returns the greatest value that is not null."""
    return max((value for value in values if value is not None), default=None)


def least(*values: Any) -> Any:
    """Returns the least value that is not null."""
    return min((value for value in values if value is not None), default=None)
