"""Non-ANSI mode: rewrites the nodes of an expression to compute Spark's results without ANSI mode.

Nodes are bound for ANSI mode. Without it, a supported kernel differs only on rows that raise in
ANSI mode: integers wrap around, floats are clipped to the integer range, and invalid values become
null. `non_ansi_expression` rewrites the nodes accordingly. It supports the kernels for which this
is true, and leaves all others to Spark. It also leaves expressions to Spark whose common types
depend on the mode (`same_without_ansi` checks the casts).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from nosync_nb.expressions.evaluation.nested_nodes import RowwiseNode
from nosync_nb.expressions.evaluation.nodes import (
    CaseNode,
    CoalesceNode,
    ExtremeNode,
    InNode,
    IsNullNode,
    LogicNode,
    SameNode,
    SharedOperandNode,
    StrictNode,
    ValueNode,
)
from nosync_nb.expressions.functions import datetimes, strings
from nosync_nb.expressions.functions.intervals import MARK
from nosync_nb.expressions.functions.mathematics import looked_at_last
from nosync_nb.expressions.kernels import collections, numeric
from nosync_nb.expressions.kernels.casts import integer_parser_without_ansi
from nosync_nb.expressions.kernels.datetimes import timestamp_parser_without_ansi
from nosync_nb.expressions.kernels.kernel import Kernel, NotProvedError, TextKernel, null_on_error
from nosync_nb.expressions.typing_rules import NUMBERS, TIMES, is_decimal
from nosync_nb.rows.ddl import INTERVALS
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS

_WRAPPING = frozenset(("+", "-", "*", "neg", "negative", "abs"))
_DECIMAL = frozenset(("+", "-", "*"))
_EITHER = frozenset(("getbit", "bit_get", "timestamp_millis", "timestamp_seconds", "split_part"))
_EITHER_BY_ROW = frozenset(("slice", "sequence", "try_element_at", "map"))
"""Calls that raise for the same values with ANSI mode and without."""
_ENDS = {"floor": np.floor, "ceil": np.ceil, "ceiling": np.ceil}
_NULL_BY_ZERO = frozenset(("/", "%", "mod", "pmod"))
_BY_ZERO = _NULL_BY_ZERO | {"div"}
_MADE = ("date", "timestamp", "timestamp_ltz", "timestamp_ntz")
_MAKING = frozenset(f"make_{kind}" for kind in _MADE)


def same_without_ansi(source: str, target: str) -> bool:
    """Returns True if a cast has the same results in both modes, except on rows that raise."""
    if source == target:
        return True
    if INTERVALS.intersection((source, target)):
        return source != "string"
    if source in (*NUMBERS, "boolean"):
        return target in (*NUMBERS, "boolean", "string") or is_decimal(target)
    if source in TIMES:
        return target in (*TIMES, "string")
    if source == "string":
        return target in (*FLOATS, *TIMES, "boolean") or is_decimal(target)
    return is_decimal(source) and (target in (*FLOATS, "boolean") or is_decimal(target))


def has_non_ansi_cast(source: str, target: str) -> bool:
    """Returns True if a cast without ANSI mode is computed here."""
    return same_without_ansi(source, target) or (source == "string" and target in INTEGERS)


def non_ansi_expression(node: ValueNode) -> ValueNode:
    """Returns a node that computes Spark's results without ANSI mode.

    Raises:
        NotProvedError: if only Spark knows these results.
    """
    if not node.raises:
        return node
    if isinstance(node, StrictNode):
        inner = [non_ansi_expression(argument) for argument in node.arguments]
        made = StrictNode(node.name, node.type, _kernel(node), inner)
        return looked_at_last(made) if node.name in _BY_ZERO else made
    if isinstance(node, RowwiseNode):
        return _rowwise(node)
    if isinstance(node, CaseNode):
        branches = [
            (non_ansi_expression(condition), non_ansi_expression(result))
            for condition, result in node.branches
        ]
        return CaseNode(branches, non_ansi_expression(node.default))
    inner = [non_ansi_expression(argument) for argument in node.arguments]
    if isinstance(node, SharedOperandNode):
        first = [each for each in inner[:-1] if each.raises]
        return SharedOperandNode(inner[-1], first) if first else inner[-1]
    if isinstance(node, LogicNode):
        return LogicNode(*inner, conjunction=node.conjunction)
    if isinstance(node, IsNullNode):
        return IsNullNode(*inner)
    if isinstance(node, CoalesceNode):
        return CoalesceNode(node.type, inner)
    if isinstance(node, ExtremeNode):
        return ExtremeNode(inner, node.choose, node.name)
    if isinstance(node, InNode) and isinstance(inner[0], StrictNode):
        return InNode(inner[0], with_null=node.with_null)
    if isinstance(node, SameNode):
        return SameNode(StrictNode(node.equal.name, "boolean", _kernel(node.equal), inner))
    raise NotProvedError("the type of this call without ANSI mode")


def _kernel(node: StrictNode) -> Kernel | TextKernel:
    kernel, name = node.kernel, node.name
    if not kernel.raises or name.startswith(MARK):
        return kernel
    types = [argument.type for argument in node.arguments]
    if name == "cast":
        return _cast(kernel, types[0], node.type)
    whole = all(type_ in INTEGERS for type_ in types)
    decimal = all(is_decimal(type_) for type_ in types)
    number = all(type_ in NUMBERS or is_decimal(type_) for type_ in types)
    if isinstance(kernel, Kernel) and whole and name in _WRAPPING:
        return replace(kernel, checks=(), bounds=None, floats=True)
    if isinstance(kernel, Kernel) and whole and name == "div":
        return Kernel(kernel.run, right_first=True, floats=True, missing=numeric.is_zero)
    if name in _ENDS and types == ["double"]:
        ends, cut = _saturated("bigint"), _ENDS[name]
        return Kernel(lambda a: ends(cut(a)), floats=True)
    if name in strings.EITHER or name in _EITHER:
        return kernel
    if name == "read" and isinstance(kernel, TextKernel):
        return kernel.lenient or kernel
    if (decimal and name in _DECIMAL) or (number and name in _NULL_BY_ZERO):
        return null_on_error(kernel)
    if isinstance(kernel, Kernel) and name in _MAKING:
        return datetimes.null_if_missing(kernel)
    raise NotProvedError(f"{name} without ANSI mode")


def _cast(kernel: Kernel | TextKernel, source: str, target: str) -> Kernel | TextKernel:
    if target in INTEGERS and isinstance(kernel, Kernel):
        if source in INTEGERS:
            return replace(kernel, checks=(), bounds=None)
        if source in FLOATS:
            return Kernel(_saturated(target), floats=True)
    if INTERVALS.intersection((source, target)):
        return kernel  # a value that does not fit is an error in either mode
    if source == "string" and target in INTEGERS:
        return integer_parser_without_ansi(target)
    if (source, target) == ("string", "timestamp"):
        return timestamp_parser_without_ansi()
    if source == "date" and target in TIMES:
        return kernel  # a day out of the range of timestamps is an error in either mode
    if same_without_ansi(source, target):
        return null_on_error(kernel)
    raise NotProvedError(f"cast of {source} to {target} without ANSI mode")


def _saturated(target: str) -> Any:
    """Returns the cast of floats as in Java: NaN becomes 0, and values out of range are clipped.

    Types shorter than int wrap around from int.
    """
    dtype = FIXED[target]
    inner = "bigint" if target == "bigint" else "int"
    least, greatest = numeric.limits(inner)

    def run(a: Any) -> Any:
        wide = np.where(a == a, a, 0).astype(np.float64)
        high, low = wide >= float(greatest), wide <= float(least)
        some = np.where(high | low, 0.0, wide).astype(np.int64)
        return (
            np.where(high, greatest, np.where(low, least, some)).astype(FIXED[inner]).astype(dtype)
        )

    return run


def _rowwise(node: RowwiseNode) -> ValueNode:
    """Rewrites a call of Python values, so that a missing element becomes null."""
    of_map = node.name == "[]" and node.arguments[0].type.startswith("map<")
    if of_map or node.name in _EITHER_BY_ROW:
        inner = [non_ansi_expression(argument) for argument in node.arguments]
        more = {"raises": not of_map, "strict": node.strict}
        return RowwiseNode(node.name, node.type, node.function, inner, **more)
    function = {"[]": collections.get, "element_at": collections.try_element_at}.get(node.name)
    if function is None or not node.arguments[0].type.startswith("array<"):
        raise NotProvedError(f"{node.name} without ANSI mode")
    inner = [non_ansi_expression(argument) for argument in node.arguments]
    return RowwiseNode(node.name, node.type, function, inner, raises=node.name == "element_at")
