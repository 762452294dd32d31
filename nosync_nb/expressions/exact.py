"""Rules of the table: comparisons of decimals, with whole numbers too, and of bytes.

Their values have no numpy form: they are Python's in small frames and Arrow's in large ones. Spark
casts decimals of several types to one that holds them all. If that needs more than 38 digits it
drops some; such comparisons are Spark's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nosync_nb.expressions.kernel import TextKernel
from nosync_nb.expressions.nodes import LiteralNode, ValueNode
from nosync_nb.expressions.typing_rules import is_decimal
from nosync_nb.rows import bridge
from nosync_nb.rows.types import decimal_parts

_DIGITS_MAX = 38
_WHOLE = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
"""The digits of a whole number beside a decimal."""


def fits(nodes: Sequence[ValueNode]) -> bool:
    """Tells whether values of these types are compared here; no literal may be null."""
    if any(isinstance(node, LiteralNode) and node.value is None for node in nodes):
        return False
    types = {node.type for node in nodes}
    if types == {"binary"}:
        return True
    if not any(map(is_decimal, types)) or not all(is_decimal(t) or t in _WHOLE for t in types):
        return False
    parts = [decimal_parts(t) if is_decimal(t) else (_WHOLE[t], 0) for t in types]
    scale = max(scale for _, scale in parts)
    return max(precision - scale for precision, scale in parts) + scale <= _DIGITS_MAX


def _comparison(row: Callable[[Any, Any], bool], large: Callable[[Any, Any], Any]) -> TextKernel:
    return TextKernel(row, lambda a, b: large(_arrow(a), _arrow(b)))


def _arrow(values: Any) -> Any:
    """Values as Arrow compares them: whole numbers as decimals."""
    if isinstance(values, np.ndarray) and values.ndim:
        return bridge.of_numpy(values).cast(pa.decimal128(_WHOLE["bigint"], 0))
    if isinstance(values, np.generic):
        return pa.scalar(Decimal(values.item()))
    return pa.scalar(values) if isinstance(values, Decimal | bytes) else values


COMPARISONS = {
    "=": _comparison(operator.eq, pc.equal),
    "<>": _comparison(operator.ne, pc.not_equal),
    "<": _comparison(operator.lt, pc.less),
    "<=": _comparison(operator.le, pc.less_equal),
    ">": _comparison(operator.gt, pc.greater),
    ">=": _comparison(operator.ge, pc.greater_equal),
}


def one_of(wanted: Sequence[Any]) -> TextKernel:
    """`x in (...)` of literals."""

    def large(values: Any) -> Any:
        inside = None
        for each in wanted:
            same = pc.equal(_arrow(values), _arrow(each))
            inside = same if inside is None else pc.or_(inside, same)
        return inside

    return TextKernel(frozenset(wanted).__contains__, large)
