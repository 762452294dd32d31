"""Resolves ORDER BY, LIMIT and OFFSET."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp
from sqlglot.optimizer.simplify import simplify

from nosync_nb.collections.sql.algebra import LogicalFilter, LogicalTop, Named, OrderBy, Scalar
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.scope import Query
from nosync_nb.collections.sql.resolver.trees import integer
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import compile_expression
from nosync_nb.rows import Field, Schema, to_arrow

_MOST_ROWS = 2**31 - 1


def order_terms(
    context: Context, tree: Any, rows: Rows, columns: Sequence[Named]
) -> tuple[OrderBy, ...]:
    """Resolves ORDER BY; its expressions become columns of the rows.

    Args:
        tree: the clause; None without one.
        columns: those to which numbers, as in ORDER BY 1, refer; none in a window.
    """
    terms = []
    for each in tree.expressions if tree is not None else ():
        descending = bool(each.args.get("desc"))
        given = each.args.get("nulls_first")
        nulls_first = not descending if given is None else bool(given)
        if columns and isinstance(each.this, exp.Var) and each.this.name.upper() == "ALL":
            terms += [OrderBy(c.column, descending, nulls_first) for c in columns]
            continue
        number = integer(each.this) if columns else None
        if number is None:
            place = rows.place(context.scalar(each.this, rows))
        elif 0 < number <= len(columns):
            place = columns[number - 1].column
        else:
            raise context.failed(
                each,
                f"[ORDER_BY_POS_OUT_OF_RANGE] ORDER BY {number}: the query has"
                f" {len(columns)} columns",
                "write the number or the name of a column",
            )
        terms.append(OrderBy(place, descending, nulls_first))
    return tuple(terms)


def limited(context: Context, query: Query, tree: Any, rows: Rows) -> Query:
    """Applies LIMIT and OFFSET to the rows of a query, in the order of ORDER BY.

    An order without LIMIT does not change which rows a query returns.
    """
    limit, offset = (_number_of_rows(context, tree, name) for name in ("limit", "offset"))
    query = replace(query, relation=rows.relation)
    order = order_terms(context, tree.args.get("order"), rows, query.columns)
    if limit is None and not offset:
        return query
    relation = rows.relation
    if limit == 0:
        return replace(
            query, relation=LogicalFilter(relation.columns, relation, Scalar(("false",)))
        )
    most = limit if limit is not None else _MOST_ROWS - (offset or 0)
    return replace(
        query, relation=LogicalTop(relation.columns, relation, (), order, most, offset or 0)
    )


def _constant(context: Context, tree: Any) -> int | None:
    """Returns the value of an expression without columns; None if it is no number of rows."""
    text = context.cut(tree)
    try:
        compiled = compile_expression(text, Schema([Field("unused", "int")]))
        if not compiled.local or not compiled.deterministic or compiled.columns:
            return None
        value = to_arrow(compiled.evaluate([None], 1), compiled.type)[0].as_py()
    except NosyncError:
        return None
    is_number = compiled.type in ("tinyint", "smallint", "int") and value is not None
    return int(value) if is_number and value >= 0 else None


def _number_of_rows(context: Context, tree: Any, name: str) -> int | None:
    """Returns the number of LIMIT or OFFSET; None without one."""
    clause = tree.args.get(name)
    value = clause.expression if clause is not None else None
    if value is None or (isinstance(value, exp.Var) and value.name.upper() == "ALL"):
        return None
    number = integer(simplify(value.copy()))
    number = _constant(context, value) if number is None else number
    if number is None:
        raise context.failed(
            clause,
            f"[INVALID_LIMIT_LIKE_EXPRESSION] {name.upper()} is not a constant number of rows",
            f"write {name.upper()} 10",
        )
    return number
