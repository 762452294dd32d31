"""Operands that Spark evaluates before an expression: those that `between` and `nullif` read twice.

Spark computes such an operand once, on every row, before the expression around it. That holds for
every call outside of branches (of `case`, `if`, `coalesce` and similar calls, except their first
condition). So a row raises even where `false and ...` or a null beside the call would skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp

from nosync_nb.expressions.evaluation.nodes import ValueNode
from nosync_nb.expressions.kernels.vectors import Vector, VectorFrame

_CHOICES = frozenset(("if", "nvl2", "coalesce", "nvl", "ifnull", "nanvl", "zeroifnull"))
"""Calls whose first argument alone Spark always evaluates."""
_FIRST_LEFT = (exp.And, exp.Or, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)


class SharedOperandNode(ValueNode):
    """An expression, and operands that may raise before it.

    Attributes:
        inner: the expression.
        first: operands in it, which are evaluated on every row.
    """

    def __init__(self, inner: ValueNode, first: Sequence[ValueNode]) -> None:
        super().__init__(inner.type, (*first, inner), raises=True)
        self.inner = inner
        self.first = tuple(first)

    def evaluate(self, frame: VectorFrame) -> Vector:
        for node in self.first:
            node.evaluate(frame)
        return self.inner.evaluate(frame)


def is_shared_operand(
    call: exp.Expression, operand: exp.Expression, is_variable: Callable[..., Any]
) -> bool:
    """Returns True if Spark evaluates the operand of a call first, and the node would not.

    Args:
        is_variable: returns True if a name is the variable of an enclosing lambda.
    """
    if _is_cheap(operand) or any(is_variable(c.name) for c in operand.find_all(exp.Column)):
        return False
    return _is_always(call) and not _is_asked_first(call)


def _is_cheap(tree: Any) -> bool:
    """Returns True if Spark computes it twice instead: columns, fields, elements, constants."""
    if isinstance(tree, exp.Paren):
        return _is_cheap(tree.this)
    if isinstance(tree, exp.Bracket | exp.Dot):
        return all(_is_cheap(each) for each in (tree.this, *tree.expressions))
    return isinstance(tree, exp.Column | exp.Identifier) or not tree.find(exp.Column)


def _is_always(tree: Any) -> bool:
    """Returns True if no branch encloses it."""
    while tree.parent is not None:
        parent = tree.parent
        if isinstance(parent, exp.If) and isinstance(parent.parent, exp.Case):
            if tree is not parent.this or parent is not parent.parent.args["ifs"][0]:
                return False
            tree = parent.parent
            continue
        chooses = isinstance(parent, exp.Anonymous) and parent.name.lower() in _CHOICES
        if chooses and tree is not parent.expressions[0]:
            return False
        if isinstance(parent, exp.If | exp.Case) and tree is not parent.this:
            return False
        tree = parent
    return True


def _is_asked_first(tree: Any) -> bool:
    """Returns True if it is evaluated on every row in its own position."""
    while tree.parent is not None:
        parent = tree.parent
        passes = isinstance(parent, exp.Paren | exp.Not | exp.Alias)
        if not passes and not (isinstance(parent, _FIRST_LEFT) and tree is parent.this):
            return False
        tree = parent
    return True
