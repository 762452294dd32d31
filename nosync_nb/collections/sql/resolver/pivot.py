"""Resolves PIVOT and UNPIVOT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalAggregate,
    LogicalFilter,
    LogicalProject,
    LogicalSetOperation,
    Named,
    Output,
    Relation,
    Scalar,
    column,
)
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.names import generated_name
from nosync_nb.collections.sql.resolver.rows import QueryGroups, Rows
from nosync_nb.collections.sql.resolver.scope import NamedRelation, Query, Scope
from nosync_nb.collections.sql.resolver.trees import (
    aggregate_calls,
    members,
    parts_of_call,
    text_literal,
)


def pivoted(context: Context, query: Query, tree: exp.Pivot, scope: Scope) -> Query:
    """Applies PIVOT or UNPIVOT to a query."""
    query = query.narrowed(context.numbers)
    around = Scope((NamedRelation("", query.columns),), scope.ctes, scope.outer)
    rows = context.rows(query.relation, around)
    if tree.args.get("unpivot"):
        return _unpivoted(context, query, tree, rows)
    if any(not isinstance(each, exp.In) or each.args.get("query") for each in tree.args["fields"]):
        raise context.failed(
            tree, "PIVOT without a list of values is not supported", "write FOR x IN (1, 2, 3)"
        )
    return _pivoted(context, query, tree, rows)


def _pivoted(context: Context, query: Query, tree: exp.Pivot, rows: Rows) -> Query:
    """One row for each group of the other columns, one column for each value and expression.

    A value without rows in a group has null in place of each result, even of a count.
    """
    (field,) = tree.args["fields"]
    compared = [context.scalar(each, rows) for each in members(field.this)]
    used = {c for each in compared for c in each.columns}
    expressions = [
        (each.alias, each.this) if isinstance(each, exp.Alias) else ("", each)
        for each in tree.expressions
    ]
    calls: list[Output] = []
    outputs: list[tuple[str, Any, QueryGroups, Column]] = []
    for value in field.expressions:
        name, test = _value(context, value, compared, rows)
        present = Output(context.numbers.new(), Scalar(("count(*)", *test)))
        calls.append(present)
        groups = QueryGroups(rows, {})
        for alias, expression in expressions:
            for call in aggregate_calls(expression):
                pieces = context.pieces(call, parts_of_call(call), rows)
                used |= Scalar(pieces).columns
                calls.append(Output(context.numbers.new(), Scalar((*pieces, *test))))
                groups.called[id(call)] = calls[-1].column
            shown = alias or generated_name(context, expression, None)
            title = f"{name}_{shown}" if len(expressions) > 1 else name
            outputs.append((title, expression, groups, present.column))
    keys = [each for each in query.columns if each.column not in used]
    numbers = tuple(each.column for each in keys)
    columns = (*numbers, *(each.column for each in calls))
    relation = LogicalAggregate(columns, rows.relation, numbers, tuple(calls))
    named: list[Named] = []
    made: list[Output] = [Output(each, column(each)) for each in numbers]
    for title, expression, groups, present_column in outputs:
        after = context.rows(relation, Scope())
        after.adopt(groups)
        pieces = context.scalar(expression, after).pieces
        number = context.numbers.new()
        shown_value = Scalar(("CASE WHEN ", present_column, " > 0 THEN ", *pieces, " END"))
        made.append(Output(number, shown_value))
        named.append(Named(number, title))
    return Query(
        LogicalProject(tuple(o.column for o in made), relation, tuple(made)), (*keys, *named)
    )


def _value(
    context: Context, tree: Any, compared: Sequence[Scalar], rows: Rows
) -> tuple[str, tuple[str | Column, ...]]:
    """Returns the name of a value of PIVOT, and the FILTER clause of its rows."""
    is_named = isinstance(tree, exp.PivotAlias | exp.Alias)
    value = tree.this if is_named else tree
    constants = [context.scalar(each, rows) for each in members(value)]
    if len(constants) != len(compared):
        raise context.failed(
            tree,
            f"[PIVOT_VALUE_DATA_TYPE_MISMATCH] a value of PIVOT has {len(constants)} parts, FOR"
            f" names {len(compared)} columns",
            "give a value for every column",
        )
    test: list[str | Column] = [" FILTER (WHERE "]
    for i, (a, b) in enumerate(zip(compared, constants, strict=True)):
        test += [" AND (" if i else "(", *a.pieces, ") <=> (", *b.pieces, ")"]
    names = [generated_name(context, each, None) for each in members(value)]
    names = ["null" if name == "NULL" else name for name in names]
    name = names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"
    return (tree.args["alias"].name if is_named else name), (*test, ")")


def _unpivoted(context: Context, query: Query, tree: exp.Pivot, rows: Rows) -> Query:
    """One row for each row and each listed column, with the column's name and its value."""
    (field,) = tree.args["fields"]
    value_names = [each.name for part in tree.expressions for each in members(part)]
    listed: list[tuple[str, list[Column]]] = []
    for each in field.expressions:
        aliased = isinstance(each, exp.PivotAlias | exp.Alias)
        trees = members(each.this if aliased else each)
        numbers = []
        for one in trees:
            number = context.scalar(one, rows).column
            if number is None:
                raise context.failed(one, "UNPIVOT lists columns only", "name a column")
            numbers.append(number)
        if len(numbers) != len(value_names):
            raise context.failed(
                each,
                f"[UNPIVOT_VALUE_SIZE_MISMATCH] UNPIVOT has {len(value_names)} value columns, but"
                f" {len(numbers)} columns here",
                "list as many columns",
            )
        names = {c.column: c.name for c in query.columns}
        label = each.args["alias"].name if aliased else "_".join(names[n] for n in numbers)
        listed.append((label, numbers))
    for i, name in enumerate(value_names):
        types = [context.type_of(column(numbers[i]), rows) for _, numbers in listed]
        other = next((t for t in types if ("string" in (t, types[0])) and t != types[0]), None)
        if other is not None:
            raise context.failed(
                tree,
                f"[UNPIVOT_VALUE_DATA_TYPE_MISMATCH] the values of {name!r} are of types"
                f" {types[0]} and {other}",
                "cast them to one type in a subquery",
            )
    gone = {number for _, numbers in listed for number in numbers}
    others = [each for each in query.columns if each.column not in gone]
    relation: Relation | None = None
    for label, numbers in listed:
        made = [Output(context.numbers.new(), column(each.column)) for each in others]
        made.append(Output(context.numbers.new(), Scalar((text_literal(label),))))
        made += [Output(context.numbers.new(), column(each)) for each in numbers]
        part: Relation = LogicalProject(tuple(o.column for o in made), rows.relation, tuple(made))
        if relation is not None:
            together = tuple(context.numbers.new() for _ in made)
            part = LogicalSetOperation(together, relation, part, "union")
        relation = part
    assert relation is not None
    if not tree.args.get("include_nulls"):
        test: list[str | Column] = []
        for each in relation.columns[-len(value_names) :]:
            test += [" OR " if test else "", each, " IS NOT NULL"]
        relation = LogicalFilter(relation.columns, relation, Scalar(tuple(test)))
    labels = [*(each.name for each in others), field.this.name, *value_names]
    return Query(
        relation, tuple(Named(c, n) for c, n in zip(relation.columns, labels, strict=True))
    )
