"""Rules of comparisons, membership, conditionals, three-valued logic and tests for null.

Text patterns are in `patterns.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np

from nosync_nb.expressions.evaluation.nodes import (
    CaseNode,
    CoalesceNode,
    ExtremeNode,
    InNode,
    IsNullNode,
    LiteralNode,
    LogicNode,
    SameNode,
    StrictNode,
    ValueNode,
)
from nosync_nb.expressions.functions import decimals, patterns, rules
from nosync_nb.expressions.functions.rules import Rule, check_arity
from nosync_nb.expressions.implicit_casts import cast, only, to_common
from nosync_nb.expressions.kernels import numeric, strings
from nosync_nb.expressions.kernels.kernel import Kernel, NotProvedError, TextKernel
from nosync_nb.expressions.typing_rules import VOID, is_decimal, is_known
from nosync_nb.rows.types import FIXED, FLOATS, INTEGERS


def comparison(kernels: numeric.Kernels, text: TextKernel) -> Rule:
    """Returns the rule that compares two numbers, times, booleans, texts or byte strings."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        left, right = arguments
        if left.type == right.type == VOID:
            return LiteralNode(None, "boolean")
        written = isinstance(left, LiteralNode) and left.value is not None
        if written and not isinstance(right, LiteralNode):  # the rules below expect it on the right
            return COMPARISONS[_MIRRORED[name]](_MIRRORED[name], [right, left], utc)
        if left.type in INTEGERS and isinstance(right, LiteralNode):
            whole_number = _beside_decimal(name, right)
            if whole_number is not None:
                right = whole_number
        if decimals.is_comparable((left, right)):
            kernel = decimals.comparison(name, left.type, right.type)
            return StrictNode(name, "boolean", kernel, (left, right))
        left, right = to_common([left, right], utc=utc)
        if left.type == "binary" or is_decimal(left.type):
            kernel = decimals.comparison(name, left.type, right.type)
            return StrictNode(name, "boolean", kernel, (left, right))
        if left.type == "string":
            return StrictNode(name, "boolean", text, (left, right))
        if left.type in FLOATS and isinstance(right, LiteralNode) and right.value == right.value:
            return StrictNode(name, "boolean", Kernel(numeric.BESIDE_NUMBER[name]), (left, right))
        return StrictNode(name, "boolean", kernels(left.type), (left, right))

    return rule


_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

COMPARISONS: dict[str, Rule] = {
    "=": comparison(numeric.equal, strings.equal),
    "<>": comparison(numeric.not_equal, strings.not_equal),
    "<": comparison(numeric.less, strings.less),
    "<=": comparison(numeric.less_equal, strings.less_equal),
    ">": comparison(numeric.greater, strings.greater),
    ">=": comparison(numeric.greater_equal, strings.greater_equal),
}


def _beside_decimal(name: str, literal: LiteralNode) -> LiteralNode | None:
    """Returns the integer that may replace a decimal literal in a comparison with an integer.

    Returns None if the literal is not a decimal, or if it has a fraction that no integer equals.
    """
    value = literal.value
    if not isinstance(value, Decimal):
        return None
    floor = int(value // 1) - (1 if value < 0 and value % 1 else 0)
    is_whole = value == floor
    if not is_whole and name in ("=", "<>"):
        return None
    number = floor if is_whole or name in (">", "<=") else floor + 1
    type_ = "int" if -(2**31) <= number < 2**31 else "bigint"
    if not -(2**63) <= number < 2**63:
        raise NotProvedError("an integer beside a decimal beyond bigint")
    return LiteralNode(number, type_)


def _are_untyped(nodes: Sequence[ValueNode]) -> bool:
    """Returns True if all values are nulls without a type."""
    return all(node.type == VOID for node in nodes)


def null_safe_equal(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `<=>`."""
    check_arity(name, arguments, 2)
    if all(argument.type == VOID for argument in arguments):
        return LiteralNode(True, "boolean")
    equal = COMPARISONS["="]("=", arguments, utc)
    assert isinstance(equal, StrictNode)
    return SameNode(equal)


def null_if(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `nullif(a, b)`; the result has the type of `a`."""
    check_arity(name, arguments, 2)
    if arguments[0].type == VOID:
        return LiteralNode(None, VOID)
    if not is_known(arguments[0].type):
        raise NotProvedError(f"nullif of {arguments[0].type}")
    equal = COMPARISONS["="]("=", arguments, utc)
    return CaseNode([(equal, LiteralNode(None, arguments[0].type))], arguments[0])


_FEW = 8


def in_(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `x in (...)`; a list of literals becomes one lookup."""
    if len(arguments) < 2:
        raise NotProvedError("an empty list after in")
    if _are_untyped(arguments):
        return LiteralNode(None, "boolean")
    given = [arguments[0], *(x for x in arguments[1:] if x.type != VOID)]
    exactly = len(given) > 1 and decimals.is_comparable(given)
    value, *listed = arguments if exactly else to_common(arguments, utc=utc)
    literals = [x for x in listed if isinstance(x, LiteralNode)]
    if len(literals) < len(listed):
        return _any_equal(value, listed, utc)
    wanted = [x.value for x in literals if x.value is not None]
    if exactly or value.type == "binary" or is_decimal(value.type):
        matches = StrictNode(name, "boolean", decimals.is_one_of(wanted, value.type), (value,))
    elif value.type == "string":
        matches = StrictNode(name, "boolean", patterns.one_of(frozenset(wanted)), (value,))
    else:
        values = np.array(wanted, FIXED[value.type])
        matches = StrictNode(name, "boolean", _member(values), (value,))
    return InNode(matches, with_null=len(wanted) < len(listed))


def _any_equal(value: ValueNode, listed: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `x in (...)` with values that depend on the row, as equalities joined by `or`."""
    equal = [COMPARISONS["="]("=", [value, each], utc) for each in listed]
    return reduce(lambda a, b: LogicNode(a, b, conjunction=False), equal)


def _member(values: Any) -> Kernel:
    """Returns the kernel of `x in (...)` for literals of a fixed type; NaN equals NaN."""
    with_nan = bool((values != values).any())
    numbers = values[values == values]

    def run(a: Any) -> Any:
        if len(numbers) > _FEW:
            inside = np.isin(a, numbers)
        else:
            inside = np.zeros(np.shape(a), np.bool_)
            for value in numbers:
                inside = inside | (a == value)
        return inside | (a != a) if with_nan else inside

    return Kernel(run)


def extreme(choices: Callable[[str], Any]) -> Rule:
    """Returns the rule of `greatest` or `least`.

    Args:
        choices: returns the function that selects one of two values of a fixed type.
    """

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if len(arguments) < 2:
            raise NotProvedError(f"{name} of {len(arguments)} arguments")
        if _are_untyped(arguments):
            return LiteralNode(None, VOID)
        kinds = {argument.type for argument in arguments} - {VOID}
        if "string" in kinds and len(kinds) > 1:
            raise NotProvedError(f"{name} of text and something else")
        operands = to_common(arguments, utc=utc)
        if is_decimal(operands[0].type):
            return ExtremeNode(operands, decimals.extreme(least=name == "least"), name)
        if operands[0].type in ("string", "binary"):
            row = rules.least if name == "least" else rules.greatest
            return rules.NullTolerantNode(operands[0].type, row, operands)
        if operands[0].type not in FIXED:
            raise NotProvedError(f"{name} of {operands[0].type}")
        return ExtremeNode(operands, choices(operands[0].type), name)

    return rule


def case(
    branches: list[tuple[ValueNode, ValueNode]], default: ValueNode | None, utc: bool
) -> ValueNode:
    """Returns the node of `case when`, `if` or a similar call, with results of a common type."""
    conditions = [condition for condition, _ in branches]
    if any(condition.type != "boolean" for condition in conditions):
        raise NotProvedError("a condition that is not boolean")
    results = [result for _, result in branches]
    results.append(default if default is not None else LiteralNode(None, VOID))
    if _are_untyped(results) and not any(condition.raises for condition in conditions):
        return LiteralNode(None, VOID)
    results = to_common(results, utc=utc)
    return CaseNode(list(zip(conditions, results[:-1], strict=True)), results[-1])


def _condition(node: ValueNode, utc: bool) -> ValueNode:
    """Returns an argument cast to boolean, if Spark accepts its type as a condition.

    A null is accepted as well; Spark refuses it only in `case when null`.
    """
    if node.type not in ("boolean", "string", VOID):
        raise NotProvedError(f"a {node.type} as condition")
    return cast(node, "boolean", utc=utc)


def if_(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `if(condition, then, else)`."""
    check_arity(name, arguments, 3)
    condition = cast(only(arguments[0], "boolean", name="a condition"), "boolean", utc=utc)
    return case([(condition, arguments[1])], arguments[2], utc)


def nvl2(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `nvl2(x, if not null, if null)`."""
    check_arity(name, arguments, 3)
    return case([(IsNullNode(arguments[0]), arguments[2])], arguments[1], utc)


def coalesce(wanted: int | None = None) -> Rule:
    """Returns the rule of `coalesce`, or of a similar call with exactly `wanted` arguments."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        if not arguments or (wanted is not None and len(arguments) != wanted):
            raise NotProvedError(f"{name} of {len(arguments)} arguments")
        if _are_untyped(arguments):
            return LiteralNode(None, VOID)
        operands = to_common(arguments, utc=utc)
        return operands[0] if len(operands) == 1 else CoalesceNode(operands[0].type, operands)

    return rule


def is_null(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `x is null`, for any type."""
    check_arity(name, arguments, 1)
    return IsNullNode(arguments[0])


def is_not_null(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `x is not null`."""
    return not_("not", [is_null(name, arguments, utc)], utc)


def logic(*, conjunction: bool) -> Rule:
    """Returns the rule of `and` or `or`."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 2)
        if {argument.type for argument in arguments} in ({"string"}, {"string", VOID}):
            raise NotProvedError(f"{name} of texts")  # Spark casts a text only beside a boolean
        left, right = (_condition(argument, utc) for argument in arguments)
        return LogicNode(left, right, conjunction=conjunction)

    return rule


def not_(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """Binds `not`."""
    check_arity(name, arguments, 1)
    condition = _condition(arguments[0], utc)
    return StrictNode(name, "boolean", Kernel(np.logical_not), (condition,))


def is_truth(*, wanted: bool) -> Rule:
    """Returns the rule of `is true` or `is false`, which return false for null."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        check_arity(name, arguments, 1)
        node = _condition(arguments[0], utc)
        if not wanted:
            node = not_("not", [node], utc)
        return CoalesceNode("boolean", (node, LiteralNode(False, "boolean")))

    return rule
