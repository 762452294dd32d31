"""Rules of the table: comparisons of decimals, with whole numbers too, and of bytes.

Spark casts decimals of several types to one that holds them all. If that needs more than 38 digits
it drops some; such comparisons are Spark's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from nosync_nb.expressions.evaluation.nodes import LiteralNode, ValueNode
from nosync_nb.expressions.kernels import exact_integers
from nosync_nb.expressions.kernels.kernel import Kernel, TextKernel
from nosync_nb.expressions.typing_rules import DIGITS_MAX, WHOLE_DIGITS, is_decimal
from nosync_nb.rows.decimals import unscaled_values
from nosync_nb.rows.types import decimal_parts

_OPERATIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "=": (operator.eq, pc.equal),
    "<>": (operator.ne, pc.not_equal),
    "<": (operator.lt, pc.less),
    "<=": (operator.le, pc.less_equal),
    ">": (operator.gt, pc.greater),
    ">=": (operator.ge, pc.greater_equal),
}


def _parts(type_: str) -> tuple[int, int]:
    return decimal_parts(type_) if is_decimal(type_) else (WHOLE_DIGITS[type_], 0)


def fits(nodes: Sequence[ValueNode]) -> bool:
    """Tells whether values of these types are compared here; no literal may be null."""
    if any(isinstance(node, LiteralNode) and node.value is None for node in nodes):
        return False
    types = {node.type for node in nodes}
    if types == {"binary"}:
        return True
    if not any(map(is_decimal, types)):
        return False
    if not all(is_decimal(t) or t in WHOLE_DIGITS for t in types):
        return False
    parts = [_parts(t) for t in types]
    scale = max(scale for _, scale in parts)
    return max(precision - scale for precision, scale in parts) + scale <= DIGITS_MAX


def comparison(name: str, left: str, right: str) -> Kernel | TextKernel:
    """Returns the comparison of two types that fit."""
    compare, large = _OPERATIONS[name]
    if left == right == "binary":
        return TextKernel(compare, large)
    (_, s1), (_, s2) = _parts(left), _parts(right)
    places = max(s1, s2)

    def run(a: Any, b: Any) -> Any:
        result = compare(
            exact_integers.raised(_whole(a), places - s1),
            exact_integers.raised(_whole(b), places - s2),
        )
        return np.asarray(result, np.bool_)

    return Kernel(run)


def _whole(values: Any) -> Any:
    """Integers as 64 bits, in which products are looked at."""
    narrow = isinstance(values, np.ndarray | np.generic) and values.dtype.kind == "i"
    return values.astype(np.int64) if narrow else values


def one_of(wanted: Sequence[Any], type_: str) -> Kernel | TextKernel:
    """`x in (...)` of literals that fit."""
    if type_ == "binary":
        return TextKernel(frozenset(wanted).__contains__)
    scale = decimal_parts(type_)[1] if is_decimal(type_) else 0
    exact = [value * 10**scale for value in wanted]
    values = unscaled_values([int(value) for value in exact if value == int(value)])

    def run(a: Any) -> Any:
        inside = np.zeros(np.shape(a), np.bool_)
        for value in values:
            inside = inside | (a == value)
        return inside

    return Kernel(run)


def chosen(*, least: bool) -> Callable[[Any, Any], Any]:
    """The greater, or the lesser, of decimals of one type."""
    compare = operator.le if least else operator.ge
    return lambda a, b: exact_integers.where(compare(a, b), a, b)
