"""Conditionals: three-valued logic, branches, and tests for null."""

from __future__ import annotations

import numpy as np

from nosync_nb.expressions.evaluation.nodes import (
    CaseNode,
    CoalesceNode,
    IsNullNode,
    LiteralNode,
    LogicNode,
    StrictNode,
    ValueNode,
)
from nosync_nb.expressions.functions.rules import Rule, count
from nosync_nb.expressions.implicit_casts import NotProvedError, cast, only, to_common
from nosync_nb.expressions.kernels.kernel import Kernel
from nosync_nb.expressions.typing_rules import VOID


def case(
    branches: list[tuple[ValueNode, ValueNode]], default: ValueNode | None, utc: bool
) -> ValueNode:
    """`case when`; `if` and similar calls become one too."""
    conditions = [condition for condition, _ in branches]
    if any(condition.type != "boolean" for condition in conditions):
        raise NotProvedError("a condition that is not boolean")
    results = [result for _, result in branches]
    results.append(default if default is not None else LiteralNode(None, VOID))
    results = to_common(results, utc=utc)
    return CaseNode(list(zip(conditions, results[:-1], strict=True)), results[-1])


def _condition(node: ValueNode, utc: bool) -> ValueNode:
    """Returns an argument that Spark accepts as a boolean; null too, except in `case when null`."""
    if node.type not in ("boolean", "string", VOID):
        raise NotProvedError(f"a {node.type} as condition")
    return cast(node, "boolean", utc=utc)


def if_(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`if(condition, then, else)`."""
    count(name, arguments, 3)
    condition = cast(only(arguments[0], "boolean", name="a condition"), "boolean", utc=utc)
    return case([(condition, arguments[1])], arguments[2], utc)


def nvl2(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`nvl2(x, if not null, if null)`."""
    count(name, arguments, 3)
    return case([(IsNullNode(arguments[0]), arguments[2])], arguments[1], utc)


def coalesce(wanted: int | None = None) -> Rule:
    """The first argument that is not null."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not arguments or (wanted is not None and len(arguments) != wanted):
            raise NotProvedError(f"{name} of {len(arguments)} arguments")
        operands = to_common(arguments, utc=utc)
        return operands[0] if len(operands) == 1 else CoalesceNode(operands[0].type, operands)

    return rule


def is_null(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`x is null`, of any type."""
    count(name, arguments, 1)
    return IsNullNode(arguments[0])


def is_not_null(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`x is not null`."""
    return not_("not", [is_null(name, arguments, utc)], utc)


def logic(*, conjunction: bool) -> Rule:
    """`and` and `or`."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 2)
        if {argument.type for argument in arguments} in ({"string"}, {"string", VOID}):
            raise NotProvedError(f"{name} of texts")  # Spark casts a text only beside a boolean
        left, right = (_condition(argument, utc) for argument in arguments)
        return LogicNode(left, right, conjunction=conjunction)

    return rule


def not_(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`not`."""
    count(name, arguments, 1)
    condition = _condition(arguments[0], utc)
    return StrictNode(name, "boolean", Kernel(np.logical_not), (condition,))


def is_truth(*, wanted: bool) -> Rule:
    """`is true` and `is false`: null is false."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 1)
        node = _condition(arguments[0], utc)
        if not wanted:
            node = not_("not", [node], utc)
        return CoalesceNode("boolean", (node, LiteralNode(False, "boolean")))

    return rule
