"""Resolves one SELECT, clause by clause in the order in which SQL evaluates them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.algebra import (
    LogicalDistinct,
    Named,
    Output,
    Relation,
    Scalar,
    column,
)
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.from_clause import SAMPLE, from_rows
from nosync_nb.collections.sql.resolver.generators import Generated, generated, is_generator
from nosync_nb.collections.sql.resolver.groups import Item, grouped_rows
from nosync_nb.collections.sql.resolver.names import generated_name
from nosync_nb.collections.sql.resolver.order import limited
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.scope import NamedRelation, Query, Scope
from nosync_nb.collections.sql.resolver.subqueries import filter_rows
from nosync_nb.collections.sql.resolver.trees import conjuncts, without_parentheses
from nosync_nb.rows.ddl import quoted
from nosync_nb.rows.types import nested_parts

_UNSUPPORTED = (
    *("into", "connect", "prewhere", "locks", "match"),
    *("settings", "format", "options", "for_", "exclude"),
)


def select_query(context: Context, tree: exp.Select, scope: Scope) -> Query:
    """Resolves a SELECT.

    Args:
        scope: the queries of WITH, and the enclosing query.
    """
    context.unsupported(tree, _UNSUPPORTED)
    if tree.args.get("sample") is not None:  # `|> TABLESAMPLE`
        raise context.failed(tree.args["sample"], *SAMPLE)
    if tree.args.get("limit") is not None:
        context.unsupported(tree, ("distribute", "sort", "cluster"))
    if not tree.expressions:  # Spark reads `select from t` as the column `from` with an alias
        raise context.failed(
            tree, "[UNRESOLVED_COLUMN] SELECT has no columns", "write SELECT * or list columns"
        )
    if tree.args.get("kind"):
        raise context.failed(tree, "SELECT AS STRUCT is not Spark SQL", "write named_struct(...)")
    rows = from_rows(context, tree, scope)
    for each in tree.args.get("windows") or ():
        rows.windows[each.name.lower()] = each
    if tree.args.get("where") is not None:
        _refuse_calls(context, tree.args["where"], "WHERE")
        _filter(context, tree.args["where"].this, rows)
    items = list(_items(context, tree, rows))
    if tree.args.get("having") is not None:
        _refuse_calls(context, tree.args["having"], "HAVING")
    rows = grouped_rows(context, tree, rows, items)
    if tree.args.get("having") is not None:
        with rows.with_aliases(_aliases(items)), rows.as_having():
            _filter(context, tree.args["having"].this, rows)
    query = _projected(context, tree, rows, items)
    return _ordered(context, tree, query, rows).trimmed()


def _filter(context: Context, tree: Any, rows: Rows) -> None:
    """Applies a condition, each part of a conjunction by itself."""
    for part in filter_rows(context, conjuncts(tree), rows):
        if isinstance(without_parentheses(part), exp.Null):
            raise context.failed(
                part,
                "[DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN] the condition is a null without a type",
                "write a comparison, or false",
            )
        rows.filter(context.scalar(part, rows))


def _refuse_calls(context: Context, clause: Any, name: str) -> None:
    """Raises SqlError for a window function or a generator in a condition, but its subqueries."""
    waiting = [clause]
    while waiting:
        each = waiting.pop()
        if isinstance(each, exp.Window):
            raise context.failed(
                each,
                f"[WINDOW_FUNCTION_NOT_ALLOWED_IN_CLAUSE] a window function in {name}",
                "filter by it with QUALIFY, or compute it in a subquery",
            )
        if is_generator(each):
            raise context.failed(
                each,
                f"[UNSUPPORTED_GENERATOR.OUTSIDE_SELECT] {each.name}() in {name} returns rows",
                "write LATERAL VIEW explode(values) t AS value, and use value here",
            )
        waiting += [e for e in each.iter_expressions() if not isinstance(e, exp.Query)]


def _items(context: Context, tree: exp.Select, rows: Rows) -> Iterator[Item]:
    """Yields the items of the SELECT list; for `*` its columns."""
    scope = rows.scope
    for each in tree.expressions:
        if isinstance(each, exp.Star):
            yield from _starred(context, each, [t for t in scope.tables if not t.qualified_only])
        elif isinstance(each, exp.Column) and isinstance(each.this, exp.Star):
            alias = each.table.lower()
            named = [t for t in scope.tables if t.alias.lower() == alias]
            if named:
                yield from _starred(context, each.this, named[-1:])
            else:
                yield from _fields(context, each, rows)
        elif isinstance(each, exp.Alias):
            yield Item(each.alias, each.this)
        else:
            yield Item(None, each)


def _fields(context: Context, tree: exp.Column, rows: Rows) -> Iterator[Item]:
    """Yields the fields of a struct, as `s.*` does."""
    found, _ = rows.scope.find([tree.table])
    type_ = context.type_of(column(found[0].column), rows) if len(found) == 1 else ""
    if not type_.startswith("struct<"):
        tables = ", ".join(t.alias for t in rows.scope.tables if t.alias)
        raise context.failed(
            tree,
            f"[CANNOT_RESOLVE_STAR_EXPAND] there is no table and no struct {tree.table!r}",
            f"the tables are {tables}",
        )
    for name, _ in nested_parts(type_):
        number = rows.place(Scalar((found[0].column, "." + quoted(name))))
        yield Item(name, None, number)


def _starred(context: Context, star: exp.Star, tables: Sequence[NamedRelation]) -> Iterator[Item]:
    """Yields the columns of `*`, without those of `EXCEPT (...)`."""
    context.unsupported(star, ("rename",))
    shown = [c for t in tables for c in t.columns]
    without, values = star.args.get("except_") or (), star.args.get("replace") or ()
    for each in (*without, *values):
        if each.alias_or_name.lower() not in {c.name.lower() for c in shown}:
            raise context.failed(
                each,
                f"[UNRESOLVED_COLUMN] {each.alias_or_name!r} is no column of `*`",
                f"the columns are {', '.join(c.name for c in shown)}",
            )
    omitted = {each.name.lower() for each in without}
    replaced = {each.alias.lower(): each.this for each in values}
    for each in shown:
        name = each.name.lower()
        if name in replaced:
            yield Item(each.name, replaced[name])
        elif name not in omitted:
            yield Item(each.name, None, each.column)


def _projected(context: Context, tree: exp.Select, rows: Rows, items: Sequence[Item]) -> Query:
    """Computes the SELECT list; the columns of the rows stay beside it, for ORDER BY."""
    with rows.with_aliases({}):
        values = [value for item in items for value in _values(context, tree, item, rows)]
        if tree.args.get("qualify") is not None:
            with rows.with_aliases(_aliases(items)):
                _filter(context, tree.args["qualify"].this, rows)
    outputs: list[Output] = []
    named: list[Named] = []
    for name, scalar in values:
        number = scalar.column
        if number is None:
            number = context.numbers.new()
            outputs.append(Output(number, scalar))
        named.append(Named(number, name))
    rows.compute(tuple(outputs))
    return Query(rows.relation, tuple(named))


def _aliases(items: Sequence[Item]) -> dict[str, Any]:
    """Returns the expression of each alias; of several equal ones that of the first."""
    return {each.name.lower(): each.tree for each in reversed(items) if each.name and each.tree}


def _values(context: Context, tree: exp.Select, item: Item, rows: Rows) -> list[tuple[str, Scalar]]:
    """Resolves an item of the SELECT list: its columns with their names."""
    if item.tree is None:
        return [(item.name or "", _visible(context, tree, item, rows))]
    made = _generated(context, item, rows)
    if made is not None:
        rows.extend(made.over(rows.relation))
        return [(each.name, column(each.column)) for each in made.columns]
    for each in item.tree.walk(prune=lambda part: isinstance(part, exp.Query)):
        if is_generator(each):
            raise context.failed(
                each,
                "[UNSUPPORTED_GENERATOR.NESTED_IN_EXPRESSIONS] a generator inside of an expression",
                f"write it alone: {each.name}(values) AS value",
            )
    scalar = context.scalar(item.tree, rows)
    if item.name:
        rows.add_alias(item.name, item.tree, scalar)
    return [(item.name or generated_name(context, item.tree, rows), scalar)]


def _generated(context: Context, item: Item, rows: Rows) -> Generated | None:
    """Returns what an item generates, if it is the call of a generator."""
    tree, names = item.tree, [item.name] if item.name else []
    if isinstance(tree, exp.Aliases):
        tree, names = tree.this, [each.name for each in tree.expressions]
    return generated(context, tree, rows, names)


def _visible(context: Context, tree: exp.Select, item: Item, rows: Rows) -> Scalar:
    """Returns a column that `*` stands for, which must be a key if the rows are groups."""
    if rows.groups is None:
        return column(item.column)
    key = rows.groups.keys.get(column(item.column).key())
    if key is None:
        raise context.failed(
            tree.expressions[0],
            f"[MISSING_AGGREGATION] `*` names {item.name!r}, which is not in GROUP BY",
            "list the columns",
        )
    return column(key)


def _check_distribution(context: Context, tree: exp.Select, rows: Rows) -> None:
    """Resolves SORT BY, DISTRIBUTE BY and CLUSTER BY, which change no result."""
    for name in ("distribute", "sort", "cluster"):
        clause = tree.args.get(name)
        for each in clause.expressions if clause is not None else ():
            context.scalar(each.this if isinstance(each, exp.Ordered) else each, rows)


def _ordered(context: Context, tree: exp.Select, query: Query, rows: Rows) -> Query:
    """Applies DISTINCT, and then ORDER BY with LIMIT."""
    distinct = tree.args.get("distinct")
    if distinct is None:
        rows.name_results(query.columns)
        _check_distribution(context, tree, rows)
        return limited(context, query, tree, rows)
    if distinct.args.get("on") is not None:
        raise context.failed(
            distinct, "DISTINCT ON is not Spark SQL", "write QUALIFY row_number() OVER (...) = 1"
        )
    query = query.trimmed()
    relation: Relation = LogicalDistinct(query.relation.columns, query.relation)
    query = Query(relation, query.columns)
    kept = set(relation.columns)
    qualified = [
        NamedRelation(t.alias, tuple(c for c in t.columns if c.column in kept), qualified_only=True)
        for t in rows.scope.tables
    ]
    after = context.rows(
        relation, rows.scope.with_tables([NamedRelation("", query.columns), *qualified])
    )
    _check_distribution(context, tree, after)
    return limited(context, query, tree, after)
