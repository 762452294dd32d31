"""Resolves WITH: named queries, each of which may use those before it, and recursive ones.

A recursive query is `first UNION ALL step`, where the step reads the rows that the step before it
returned. It ends when a step returns no rows. If the step is linear in these rows (a filter, a
projection, a join with another relation), the union of all steps is the fixpoint of
`x = first UNION ALL step(x)`, which a loop maintains. Other steps are refused, as Spark does.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.algebra import (
    LogicalFilter,
    LogicalGenerate,
    LogicalJoin,
    LogicalProject,
    LogicalRecursion,
    LogicalSetOperation,
    LogicalVariable,
    Named,
    Relation,
    walk,
)
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.scope import Query, Scope
from nosync_nb.collections.sql.resolver.trees import alias_columns, without_wrappers


def with_ctes(context: Context, tree: Any, scope: Scope) -> Scope:
    """Returns a scope with the queries of a tree's WITH clause."""
    clause = tree.args.get("with_")
    if clause is None:
        return scope
    names: set[str] = set()
    for each in clause.expressions:
        name = each.alias.lower()
        if name in names:
            raise context.failed(
                each,
                f"[DUPLICATED_CTE_NAMES] WITH has two queries {each.alias!r}",
                "rename one of them",
            )
        names.add(name)
        query = _recursive(context, each, scope) if clause.args.get("recursive") else None
        if query is None:
            query = _named(context, context.query(each.this, scope), each)
        scope = scope.with_ctes({name: query})
    return scope


def _named(context: Context, query: Query, tree: exp.CTE) -> Query:
    names = alias_columns(tree)
    if names and len(names) != len(query.columns):
        raise context.failed(
            tree,
            f"[ASSIGNMENT_ARITY_MISMATCH] {len(names)} names for {len(query.columns)} columns",
            "give every column a name",
        )
    return query.renamed(names) if names else query


def _recursive(context: Context, tree: exp.CTE, scope: Scope) -> Query | None:
    """Resolves a query of WITH RECURSIVE; returns None if it does not refer to itself."""
    name = tree.alias.lower()
    body = without_wrappers(tree.this)
    if not any(each.name.lower() == name for each in body.find_all(exp.Table)):
        return None
    if not isinstance(body, exp.Union) or any(body.args.get(each) for each in ("limit", "order")):
        raise context.failed(
            body,
            f"[INVALID_RECURSIVE_CTE] the recursive query {tree.alias!r} is no UNION ALL",
            "write first_query UNION ALL query_of_the_next_rows",
        )
    scope = with_ctes(context, body, scope)
    first = _named(context, context.query(body.left, scope), tree).narrowed(context.numbers)
    columns = tuple(Named(context.numbers.new(), each.name) for each in first.columns)
    variable = LogicalVariable(tuple(each.column for each in columns), first.relation)
    inner = scope.with_ctes({name: Query(variable, columns)})
    step = context.query(body.right, inner).narrowed(context.numbers)
    if len(step.columns) != len(columns):
        raise context.failed(
            body,
            "[NUM_COLUMNS_MISMATCH] the sides of a recursive query have"
            f" {len(columns)} and {len(step.columns)} columns",
            "select as many columns on both sides",
        )
    _check_linear(context, tree, step.relation)
    numbers = tuple(context.numbers.new() for _ in columns)
    is_distinct = bool(body.args.get("distinct", True))
    relation = LogicalRecursion(numbers, first.relation, step.relation, is_distinct)
    return Query(relation, tuple(Named(n, c.name) for n, c in zip(numbers, columns, strict=True)))


def _check_linear(context: Context, tree: exp.CTE, step: Relation) -> None:
    """Raises SqlError if the result of a step is not the sum of the results for each row."""
    depends: dict[int, bool] = {}
    uses = 0
    for each in walk(step):
        below = [depends[id(i)] for i in each.inputs]
        depends[id(each)] = isinstance(each, LogicalVariable) or any(below)
        uses += isinstance(each, LogicalVariable)
        if isinstance(each, LogicalVariable) or not any(below) or _is_linear(each, below):
            continue
        raise context.failed(
            tree,
            f"[INVALID_RECURSIVE_REFERENCE.PLACE] the recursive query {tree.alias!r} refers to"
            " itself below an aggregate, DISTINCT, a window, LIMIT, a subquery or an outer join",
            "filter, project and inner join its rows, and aggregate the result outside",
        )
    if uses != 1:
        raise context.failed(
            tree,
            f"[INVALID_RECURSIVE_REFERENCE.NUMBER] the recursive query {tree.alias!r} refers to"
            f" itself {uses} times in its step",
            "refer to it once",
        )


def _is_linear(relation: Relation, below: list[bool]) -> bool:
    if isinstance(relation, LogicalJoin):
        if relation.kind == "inner":
            return sum(below) == 1
        return relation.kind in ("left", "semi", "anti", "mark") and below == [True, False]
    if isinstance(relation, LogicalSetOperation):
        return relation.kind == "union"
    return isinstance(relation, LogicalProject | LogicalFilter | LogicalGenerate)
