"""Questions about sqlglot's trees, without names or scopes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from nosync_nb.expressions.aggregates import is_aggregate_name
from nosync_nb.expressions.syntax.analyzer import is_unit


def is_aggregate_call(tree: Any) -> bool:
    """Returns True for the call of an aggregate function, with its FILTER and WITHIN GROUP."""
    if isinstance(tree, exp.Filter | exp.WithinGroup):
        return is_aggregate_call(tree.this)
    return isinstance(tree, exp.Anonymous) and is_aggregate_name(str(tree.this).lower())


def is_call(tree: Any, name: str) -> bool:
    """Returns True for the call of a function."""
    return isinstance(tree, exp.Anonymous) and str(tree.this).lower() == name


def parts_of_call(tree: Any) -> Iterator[Any]:
    """Yields the arguments of an aggregate, its FILTER, and its WITHIN GROUP."""
    for each in tree.iter_expressions():
        if each is tree.this and isinstance(tree, exp.Filter | exp.WithinGroup):
            yield from parts_of_call(each)
        else:
            yield each


def aggregate_calls(tree: Any) -> Iterator[Any]:
    """Yields the aggregates in an expression, but not those of its subqueries.

    `sum(sum(x)) OVER (...)` is a window function over the aggregate `sum(x)`.
    """
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, exp.Query):
            continue
        if isinstance(each, exp.Window):
            waiting += [e for e in each.iter_expressions() if e is not each.this]
            function = each.this
            while isinstance(function, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
                waiting += [e for e in function.iter_expressions() if e is not function.this]
                function = function.this
            waiting += list(function.iter_expressions())
        elif is_aggregate_call(each):
            yield each
        else:
            waiting += list(each.iter_expressions())


def has_aggregate(tree: Any) -> bool:
    """Returns True if an expression calls an aggregate, outside of subqueries and windows."""
    return next(aggregate_calls(tree), None) is not None


def has_query(tree: Any) -> bool:
    """Returns True if an expression has a subquery or a window function."""
    return any(isinstance(each, exp.Query | exp.Window) for each in tree.walk())


def conjuncts(tree: Any) -> list[Any]:
    """Returns the parts of a conjunction, and conditions that follow from its disjunctions."""
    parts: list[Any] = []
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        inner = without_parentheses(each)
        if isinstance(inner, exp.And):
            waiting += [inner.right, inner.left]
        elif is_equality(inner) and (fields := field_equalities(inner.left, inner.right)):
            parts += fields
        else:
            parts.append(each)
            if isinstance(inner, exp.Or):
                parts += _common_conditions(inner)
    return parts


@dataclass(frozen=True)
class FieldEquality:
    """One of the equalities `a <=> c` for which `(a, b) = (c, d)` stands.

    It is no tree, because its operands remain parts of the tree of the statement.
    """

    left: Any
    right: Any


def is_equality(tree: Any) -> bool:
    """Returns True for `a = b` and `a <=> b`."""
    return isinstance(tree, exp.EQ | exp.NullSafeEQ)


def field_equalities(left: Any, right: Any) -> list[FieldEquality]:
    """Returns the equalities for which `(a, b) = (c, d)` stands; empty for other operands."""
    left, right = without_parentheses(left), without_parentheses(right)
    if not isinstance(left, exp.Tuple) or not isinstance(right, exp.Tuple):
        return []
    if len(left.expressions) != len(right.expressions):
        return []
    pairs = zip(left.expressions, right.expressions, strict=True)
    return [FieldEquality(a, b) for a, b in pairs]


def is_time_unit(tree: Any) -> bool:
    """Returns True for a unit such as DAY in `dateadd(DAY, 1, d)`, which is not a column."""
    return isinstance(tree, exp.Column) and is_unit(tree)


def _common_conditions(tree: exp.Or) -> list[Any]:
    """Returns conditions that are in every branch of a disjunction: they can be join keys."""
    branches: list[Any] = []
    waiting: list[Any] = [tree]
    while waiting:
        each = without_parentheses(waiting.pop())
        if isinstance(each, exp.Or):
            waiting += [each.right, each.left]
        else:
            branches.append(conjuncts(each))
    first, *others = branches
    return [each for each in first if all(each in other for other in others)]


def without_parentheses(tree: Any) -> Any:
    """Returns the expression in parentheses."""
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return tree


def members(tree: Any) -> list[Any]:
    """Returns the expressions of a list in parentheses, or the expression itself."""
    if isinstance(tree, exp.Tuple):
        return list(tree.expressions)
    return members(tree.this) if isinstance(tree, exp.Paren) else [tree]


def integer(tree: Any) -> int | None:
    """Returns the value of an integer literal without a sign; None for any other expression."""
    if isinstance(tree, exp.Literal) and not tree.is_string and tree.this.isdigit():
        return int(tree.this)
    return None


def signed_integer(tree: Any) -> int | None:
    """Returns the value of an integer literal, perhaps with a minus sign."""
    if isinstance(tree, exp.Neg):
        value = integer(tree.this)
        return None if value is None else -value
    return integer(tree)


def text_literal(text: str) -> str:
    """Returns a string as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def alias_columns(tree: Any) -> list[str]:
    """Returns the column names of an alias, as in `AS t (a, b)`."""
    alias = tree.args.get("alias")
    if not isinstance(alias, exp.TableAlias):
        return []
    return [each.name for each in alias.args.get("columns") or ()]


def without_wrappers(tree: Any) -> Any:
    """Returns the query in parentheses, if the parentheses have no clauses of their own."""
    clauses = ("with_", "order", "limit", "offset")
    while isinstance(tree, exp.Subquery) and not any(tree.args.get(each) for each in clauses):
        tree = tree.this
    return tree
