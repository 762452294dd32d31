"""Subqueries in expressions, as joins whose right side may use columns of the left one.

SQL evaluates a subquery for each row. Such a dependent join has that meaning; `unnest` replaces it
by joins whose sides are independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalJoin,
    Scalar,
    column,
    equality,
    inequality,
    is_null,
)
from nosync_nb.collections.sql.joins.membership import membership
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.scope import Query
from nosync_nb.collections.sql.resolver.trees import (
    is_call,
    members,
    without_parentheses,
    without_wrappers,
)

_Pieces = tuple[str | Column, ...]
_COMPARISONS = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def subquery(context: Context, tree: Any, rows: Rows) -> Query:
    """Resolves a query that may use the columns of rows."""
    return context.query(without_wrappers(tree), rows.scope.inner()).narrowed(context.numbers)


def exists_mark(context: Context, tree: Any, rows: Rows) -> Column:
    """Adds the column of `EXISTS (SELECT ...)`."""
    return rows.mark(subquery(context, tree.this, rows).relation, ())


def in_value(context: Context, tree: Any, rows: Rows) -> _Pieces:
    """Returns `x IN (SELECT ...)` as a value: true or false, never null, as Spark computes it."""
    query = subquery(context, tree.args["query"], rows)
    equal, _ = membership(_pairs(context, tree, query, rows))
    return (rows.mark(query.relation, equal),)


def not_in_value(context: Context, tree: Any, rows: Rows) -> _Pieces:
    """Returns `x NOT IN (SELECT ...)` as a value: false if a row might be equal, because of a null.

    So Spark computes it; a condition has the same result for null as for false.
    """
    query = subquery(context, tree.args["query"], rows)
    equal, others = membership(_pairs(context, tree, query, rows))
    pieces: list[str | Column] = ["(NOT ", rows.mark(query.relation, equal)]
    for each in others:
        pieces += [" AND NOT ", rows.mark(query.relation, each)]
    return (*pieces, ")")


def _pairs(context: Context, tree: Any, query: Query, rows: Rows) -> list[tuple[Scalar, Scalar]]:
    """Returns the values of IN, each with the column that it is compared with."""
    values = [context.scalar(each, rows) for each in _in_values(context, tree, query)]
    return [(a, column(b)) for a, b in zip(values, query.relation.columns, strict=True)]


def _in_values(context: Context, tree: Any, query: Query) -> list[Any]:
    values = members(tree.this) if isinstance(tree.this, exp.Tuple) else [tree.this]
    if is_call(tree.this, "struct"):  # its fields are the values, as those of (a, b) are
        values = list(tree.this.expressions)
    if len(values) != len(query.columns):
        raise context.failed(
            tree,
            f"[DATATYPE_MISMATCH.IN_SUBQUERY_LENGTH_MISMATCH] IN compares {len(values)} values with"
            f" {len(query.columns)} columns",
            "select as many columns as there are values",
        )
    return values


def quantified(context: Context, tree: Any, rows: Rows) -> _Pieces:
    """Returns `x > ANY (SELECT ...)` or `x > ALL (SELECT ...)`, with their nulls."""
    every = isinstance(tree.right, exp.All)
    query = subquery(context, without_parentheses(tree.right.this), rows)
    sign = _COMPARISONS.get(type(tree))
    if len(query.columns) != 1 or sign is None:
        raise context.failed(
            tree, "ANY and ALL compare one value with one column", "write x > ANY (SELECT y FROM t)"
        )
    sign = _NEGATED[sign] if every else sign
    value, other = context.scalar(tree.left, rows), column(query.relation.columns[0])
    holds = equality(value, other) if sign == "=" else inequality(value, sign, other)
    match = rows.mark(query.relation, (holds,))
    unknown = [rows.mark(query.relation, (is_null(each),)) for each in (value, other)]
    found, rest = ("false", "true") if every else ("true", "false")
    nulls = (f" THEN {found} WHEN ", unknown[0], " OR ", unknown[1], " THEN NULL")
    return ("(CASE WHEN ", match, *nulls, f" ELSE {rest} END)")


def scalar_subquery(context: Context, tree: Any, rows: Rows) -> Column:
    """Adds the column of a subquery as a value: null without a row, an error if it has several."""
    query = subquery(context, tree, rows)
    if len(query.columns) != 1:
        raise context.failed(
            tree,
            "[INVALID_SUBQUERY_EXPRESSION.SCALAR_SUBQUERY_RETURN_MORE_THAN_ONE_OUTPUT_COLUMN] a"
            f" subquery as a value has {len(query.columns)} columns",
            "select one column",
        )
    columns = (*rows.relation.columns, *query.relation.columns)
    rows.extend(LogicalJoin(columns, rows.relation, query.relation, "single", ()))
    return query.columns[0].column


def filter_rows(context: Context, parts: Sequence[Any], rows: Rows) -> list[Any]:
    """Applies those conditions that are EXISTS or IN with a subquery, as semi and anti joins.

    Returns:
        the other conditions.
    """
    return [each for each in parts if not _is_applied(context, each, rows)]


def _is_applied(context: Context, part: Any, rows: Rows) -> bool:
    negated, inner = False, part
    while isinstance(inner, exp.Not | exp.Paren):
        negated ^= isinstance(inner, exp.Not)
        inner = inner.this
    kind = "anti" if negated else "semi"
    if isinstance(inner, exp.Exists) and isinstance(inner.this, exp.Query):
        rows.restrict(kind, subquery(context, inner.this, rows).relation, ())
        return True
    if not isinstance(inner, exp.In) or inner.args.get("query") is None:
        return False
    query = subquery(context, inner.args["query"], rows)
    equal, others = membership(_pairs(context, inner, query, rows))
    rows.restrict(kind, query.relation, equal)
    for each in others if negated else ():
        rows.restrict(kind, query.relation, each)
    return True
