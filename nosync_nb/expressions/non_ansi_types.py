"""The types of operands without ANSI mode, where text is combined with values of other types.

In ANSI mode a text becomes a number. Without it, Spark's type coercion depends on the operation:

- arithmetic casts text to double;
- a comparison casts text to the type of the other side, and beside a decimal both to double;
- choices (`coalesce`, `case`, `if`, `in`, arrays) cast the other values to text.

`non_ansi_operands` casts operands accordingly. Text beside a boolean in a choice is an error in
Spark, and is left to it, as all other pairs of types are.
"""

from __future__ import annotations

from nosync_nb.expressions.evaluation.nodes import ValueNode
from nosync_nb.expressions.implicit_casts import cast
from nosync_nb.expressions.kernels.kernel import NotProvedError
from nosync_nb.expressions.non_ansi import has_non_ansi_cast
from nosync_nb.expressions.typing_rules import NUMBERS, TIMES, VOID, is_decimal

_ARITHMETIC = frozenset("+-*/%")
_COMPARISONS = frozenset(("=", "<>", "<", "<=", ">", ">=", "<=>"))
_CHOICES = frozenset(("in", "case", "coalesce", "nvl", "ifnull", "array", "concat", "||"))
_LAST_TWO = frozenset(("if", "nvl2"))
"""Choices whose first argument is a condition."""


def non_ansi_operands(name: str, nodes: list[ValueNode], *, utc: bool) -> list[ValueNode]:
    """Returns the operands of a call, cast where text is combined with another type.

    Raises:
        NotProvedError: if only Spark can compute one of these casts.
    """
    if name in _LAST_TWO:
        return [*nodes[:1], *non_ansi_operands("case", nodes[1:], utc=utc)]
    kinds = {node.type for node in nodes} - {VOID}
    others = kinds - {"string"}
    if len(others) == len(kinds) or not others:
        return nodes
    is_number = all(type_ in NUMBERS or is_decimal(type_) for type_ in others)
    if name in _ARITHMETIC:
        target = "double" if is_number else ""
    elif name in _COMPARISONS:
        (other,) = others if len(others) == 1 else ("",)
        is_castable = other in (*NUMBERS, *TIMES, "boolean")
        target = "double" if is_decimal(other) else other if is_castable else ""
    else:
        is_printed = name in _CHOICES and all(
            type_ in (*NUMBERS, *TIMES) or is_decimal(type_) for type_ in others
        )
        target = "string" if is_printed else ""
    if not target:
        return nodes
    return [_cast(name, node, target, utc=utc) for node in nodes]


def _cast(name: str, node: ValueNode, target: str, *, utc: bool) -> ValueNode:
    if name in _ARITHMETIC and node.type != "string":
        return node  # the operator casts a number beside a double
    if node.type == VOID:
        return node
    if not has_non_ansi_cast(node.type, target):
        raise NotProvedError(f"cast of {node.type} to {target} without ANSI mode")
    return cast(node, target, utc=utc)
