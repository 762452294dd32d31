"""Recognises comparisons in a condition: those that a range join can use.

`x BETWEEN a AND b` is two comparisons. A difference that is compared with a literal becomes a
comparison of its operands: `abs(x - y) < 5` implies `x < y + 5` and `x > y - 5`. Sums are rounded
in another way than differences, so the condition itself still decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.algebra import Inequality, Scalar

_SIGNS = {exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.NEQ: "<>"}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "<>": "<>"}
"""The signs of comparisons whose sides are exchanged."""
_NO_COMPARISONS: tuple[tuple[Inequality, ...], bool] = ((), False)


def comparisons_of(
    tree: Any, scalar: Callable[[Any], Scalar]
) -> tuple[tuple[Inequality, ...], bool]:
    """Returns the comparisons that a condition implies.

    Args:
        scalar: resolves a part of the condition.

    Returns:
        the comparisons; True if the condition is true whenever they are.
    """
    parts = _compared(_unwrapped(tree))
    if not parts or tree.find(exp.Query, exp.Window, exp.AggFunc) is not None:
        return _NO_COMPARISONS
    far = [each for part in parts for each in _of_difference(*part, scalar)]
    if far:
        return tuple(far), False
    return tuple(Inequality(scalar(a), sign, scalar(b)) for a, sign, b in parts), True


def _compared(tree: Any) -> list[tuple[Any, str, Any]]:
    """Returns the compared parts of a condition with their signs."""
    if isinstance(tree, exp.Between) and not tree.args.get("symmetric"):
        return [(tree.this, ">=", tree.args["low"]), (tree.this, "<=", tree.args["high"])]
    sign = _SIGNS.get(type(tree))
    return [] if sign is None else [(tree.this, sign, tree.expression)]


def _of_difference(a: Any, sign: str, b: Any, scalar: Callable[[Any], Scalar]) -> list[Inequality]:
    """Returns what a comparison of a difference with a literal implies for its operands."""
    if _literal(a):
        a, sign, b = b, MIRRORED[sign], a
    limit, tree = _literal(b), _unwrapped(a)
    absolute = isinstance(tree, exp.Abs) or (
        isinstance(tree, exp.Anonymous)
        and tree.name.lower() == "abs"
        and len(tree.expressions) == 1
    )
    if absolute:
        tree = _unwrapped(tree.this if isinstance(tree, exp.Abs) else tree.expressions[0])
    if not limit or not isinstance(tree, exp.Sub) or sign == "<>":
        return []
    if absolute and sign[0] == ">":
        return []
    x, y = scalar(tree.this), scalar(tree.expression)
    found = [Inequality(x, f"{sign[0]}=", y, limit)]
    if absolute:
        found.append(Inequality(x, ">=", y, negated(limit)))
    return found


def negated(literal: str) -> str:
    """Returns the literal with the other sign."""
    return literal[1:] if literal.startswith("-") else f"-{literal}"


def _literal(tree: Any) -> str:
    """Returns a numeric literal as text; empty for any other expression."""
    tree = _unwrapped(tree)
    if isinstance(tree, exp.Neg):
        inner = _literal(tree.this)
        return inner and negated(inner)
    return str(tree.this) if isinstance(tree, exp.Literal) and not tree.is_string else ""


def _unwrapped(tree: Any) -> Any:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return tree
