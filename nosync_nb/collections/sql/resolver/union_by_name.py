"""UNION BY NAME: the columns of both sides correspond by name.

Spark has no such clause; the meaning is that of DuckDB. A column that one side lacks is null there.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.algebra import LogicalProject, Named, Output, Scalar, column
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.scope import Query


def columns_by_name(context: Context, tree: Any, left: Query, right: Query) -> tuple[Query, Query]:
    """Returns both sides of a union with the same columns in the order of their first occurrence.

    Raises:
        SqlError: if a side has two columns of one name, or for EXCEPT and INTERSECT.
    """
    if not isinstance(tree, exp.Union):
        raise context.failed(
            tree,
            "[PARSE_SYNTAX_ERROR] only UNION can be BY NAME",
            "select the columns in the same order on both sides",
        )
    for side, part in ((left, tree.left), (right, tree.right)):
        names = [each.name.lower() for each in side.columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise context.failed(
                part,
                f"[AMBIGUOUS_REFERENCE] UNION BY NAME: two columns of a side are named {twice!r}",
                "rename one of them with AS",
            )
    shown = {each.name.lower(): each.name for each in (*right.columns, *left.columns)}
    order = list(dict.fromkeys(each.name.lower() for each in (*left.columns, *right.columns)))
    names = [shown[each] for each in order]
    return _with_columns(context, left, names), _with_columns(context, right, names)


def _with_columns(context: Context, side: Query, names: list[str]) -> Query:
    own = {each.name.lower(): each.column for each in side.columns}
    outputs = []
    for name in names:
        number = own.get(name.lower())
        value = Scalar(("NULL",)) if number is None else column(number)
        outputs.append(Output(number or context.numbers.new(), value))
    columns = tuple(each.column for each in outputs)
    relation = LogicalProject(columns, side.relation, tuple(outputs))
    return Query(relation, tuple(Named(c, name) for c, name in zip(columns, names, strict=True)))
