"""Rules: from argument nodes to the node that computes the call.

Each rule casts its arguments as Spark does, selects the kernel of the resulting type and raises
`NotProvedError` for all other types. This module has the rules of numbers, text and dates;
conditionals.py and comparisons.py have others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nosync_nb.expressions.evaluation.nodes import CoalesceNode, LiteralNode, StrictNode, ValueNode
from nosync_nb.expressions.implicit_casts import NotProvedError, cast, implicit, literal_value
from nosync_nb.expressions.kernels import numeric, strings
from nosync_nb.expressions.kernels.kernel import Kernel
from nosync_nb.expressions.typing_rules import NUMBERS, VOID, common_type
from nosync_nb.rows.types import FLOATS, INTEGERS

Rule = Callable[[str, list[ValueNode], bool], ValueNode]
"""A function from name, arguments, and True if timestamps are in UTC, to a node."""


def count(name: str, arguments: list[ValueNode], wanted: int) -> None:
    """Refuses another number of arguments."""
    if len(arguments) != wanted:
        raise NotProvedError(f"{name} of {len(arguments)} arguments")


def _numeric(name: str, arguments: list[ValueNode], utc: bool) -> list[ValueNode]:
    """Returns both arguments cast to the common number type; text beside a number becomes one."""
    count(name, arguments, 2)
    type_ = common_type(arguments[0].type, arguments[1].type)
    if type_ not in NUMBERS:
        raise NotProvedError(f"{arguments[0].type} {name} {arguments[1].type}")
    return [cast(argument, type_, utc=utc) for argument in arguments]


def arithmetic(kernels: numeric.Kernels) -> Rule:
    """Returns the rule of a binary operator whose result has the type of its operands."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        operands = _numeric(name, arguments, utc)
        return StrictNode(name, operands[0].type, kernels(operands[0].type), operands)

    return rule


_plus = arithmetic(numeric.add)
_minus = arithmetic(numeric.subtract)
_DAYS = ("tinyint", "smallint", "int")


def _shifted(name: str, day: ValueNode, days: ValueNode, operation: Any) -> ValueNode:
    kernel = Kernel(lambda a, b: operation(a, b.astype(np.int32)))
    return StrictNode(name, "date", kernel, (day, days))


def plus(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`+`, also of a date and days."""
    count(name, arguments, 2)
    left, right = arguments
    if left.type == "date" and right.type in _DAYS:
        return _shifted(name, left, right, np.add)
    if right.type == "date" and left.type in _DAYS:
        return _shifted(name, right, left, np.add)
    return _plus(name, arguments, utc)


def minus(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`-`, also of a date and days."""
    count(name, arguments, 2)
    if arguments[0].type == "date" and arguments[1].type in _DAYS:
        return _shifted(name, arguments[0], arguments[1], np.subtract)
    return _minus(name, arguments, utc)


def divided(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`/`: a double, unless of decimals."""
    operands = _numeric(name, arguments, utc)
    operands = [cast(operand, "double", utc=utc) for operand in operands]
    return StrictNode(name, "double", numeric.divide("double"), operands)


def integral_divided(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`div`: a bigint."""
    return integers(numeric.integral_divide, "bigint")(name, arguments, utc)


def integers(kernels: numeric.Kernels, type_: str | None = None) -> Rule:
    """A binary operator of integers, computed in `type_` or their common type."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        operands = _numeric(name, arguments, utc)
        if not all(argument.type in (*INTEGERS, "string", VOID) for argument in arguments):
            raise NotProvedError(f"{arguments[0].type} {name} {arguments[1].type}")
        wanted = type_ or operands[0].type
        operands = [cast(operand, wanted, utc=utc) for operand in operands]
        return StrictNode(name, wanted, kernels(wanted), operands)

    return rule


def _number(name: str, node: ValueNode, utc: bool) -> ValueNode:
    """A number of any type; text becomes a double."""
    if node.type not in (*NUMBERS, "string"):
        raise NotProvedError(f"{name} of {node.type}")
    return cast(node, "double", utc=utc) if node.type == "string" else node


def same_type(kernels: numeric.Kernels) -> Rule:
    """A function of one number, of its type."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 1)
        number = _number(name, arguments[0], utc)
        return StrictNode(name, number.type, kernels(number.type), (number,))

    return rule


def positive(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`positive(x)` is x."""
    count(name, arguments, 1)
    return _number(name, arguments[0], utc)


def rounded_to_bigint(function: Any) -> Rule:
    """`floor` and `ceil`: a bigint."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 1)
        if arguments[0].type in INTEGERS:
            return cast(arguments[0], "bigint", utc=utc)
        number = implicit(arguments[0], "double", utc=utc)
        return StrictNode(name, "bigint", numeric.to_whole(function)("double"), (number,))

    return rule


def is_nan(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`isnan`: false for null."""
    count(name, arguments, 1)
    given = arguments[0]
    number = given if given.type in FLOATS else implicit(given, "double", utc=utc)
    node = StrictNode(name, "boolean", numeric.is_nan("double"), (number,))
    return CoalesceNode("boolean", (node, LiteralNode(False, "boolean")))


def cast_to(type_: str) -> Rule:
    """The rule of `int(x)` and similar calls."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 1)
        return cast(arguments[0], type_, utc=utc)

    return rule


def to_date(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`to_date(x)`, without a format."""
    count(name, arguments, 1)
    return implicit(arguments[0], "date", utc=utc)


def concat(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
    """`concat` and `||` of text."""
    if not arguments:
        return LiteralNode("", "string")
    operands = [implicit(argument, "string", utc=utc) for argument in arguments]
    return StrictNode(name, "string", strings.concat, operands)


def clock(function: Callable[[Any], Any], type_: str = "int") -> Rule:
    """The rule of `hour` and similar calls, on the wall clock."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 1)
        time = arguments[0]
        if time.type != "timestamp_ntz":
            time = implicit(time, "timestamp", utc=utc)
            if not utc:
                raise NotProvedError("timestamps in a time zone other than UTC")
        return StrictNode(name, type_, Kernel(function), (time,))

    return rule


def micros(source: str, result: str) -> Rule:
    """`unix_micros` and `timestamp_micros`, in any time zone."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 1)
        given = arguments[0]
        if given.type != source and not (source == "bigint" and given.type in INTEGERS):
            raise NotProvedError(f"{name} of {given.type}")
        return StrictNode(name, result, Kernel(lambda a: a), (cast(given, source, utc=utc),))

    return rule


def truncated(kernels: Callable[[str], Kernel | None], type_: str, place: int) -> Rule:
    """`trunc(date, unit)` and `date_trunc(unit, timestamp)`."""

    def rule(name: str, arguments: list[ValueNode], utc: bool) -> ValueNode:
        count(name, arguments, 2)
        time = implicit(arguments[place], type_, utc=utc)
        kernel = kernels(str(literal_value(arguments[1 - place], "a unit")))
        if kernel is None or (type_ == "timestamp" and not utc):
            raise NotProvedError(f"{name} of this unit and time zone")
        return StrictNode(name, type_, kernel, (time,))

    return rule
