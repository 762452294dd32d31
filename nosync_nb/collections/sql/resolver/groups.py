"""Resolves GROUP BY, grouping sets, and the aggregates of a query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlglot import exp

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalAggregate,
    LogicalProject,
    LogicalSetOperation,
    Named,
    Output,
    Relation,
    Scalar,
    column,
    single_spaced,
)
from nosync_nb.collections.sql.grammar import span_of
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.rows import QueryGroups, Rows
from nosync_nb.collections.sql.resolver.scope import UNGROUPED, NamedRelation, Scope
from nosync_nb.collections.sql.resolver.trees import (
    aggregate_calls,
    has_aggregate,
    has_query,
    integer,
    is_aggregate_call,
    members,
    parts_of_call,
)
from nosync_nb.errors import SqlError

_CLAUSES = ("having", "qualify", "order", "sort", "distribute", "cluster")
"""The clauses that may have aggregates, apart from the SELECT list."""
GROUPING_FUNCTIONS = ("grouping", "grouping_id")
_Pieces = tuple[str | Column, ...]


class Item(NamedTuple):
    """An item of the SELECT list.

    Attributes:
        name: its alias; None without one.
        tree: its expression; None for a column that `*` stands for.
        column: that column.
    """

    name: str | None
    tree: Any
    column: Column = 0


def grouped_rows(context: Context, select: Any, rows: Rows, items: Sequence[Item]) -> Rows:
    """Returns the groups of a SELECT; its rows as they are, if it does not group them."""
    group, having = select.args.get("group"), select.args.get("having")
    trees = [item.tree for item in items if item.tree is not None]
    trees += [select.args[name] for name in _CLAUSES if select.args.get(name)]
    if group is None and having is None and not any(has_aggregate(each) for each in trees):
        return rows
    sets, is_analytic = _grouping_sets(context, group, items)
    keys: dict[Any, Column] = {}
    columns: list[list[Column]] = []
    for each in sets:
        placed = []
        for item in each:
            scalar = _key(context, item, rows, items)
            if scalar.key() not in keys:
                keys[scalar.key()] = rows.place(scalar)
            placed.append(keys[scalar.key()])
        columns.append(placed)
    extra: tuple[Column, ...] = ()
    new: Mapping[Column, Column] = {each: each for each in keys.values()}
    if is_analytic:
        new, extra = _repeat(context, rows, list(dict.fromkeys(keys.values())), columns)
        keys = {text: new[each] for text, each in keys.items()}
    groups = QueryGroups(rows, keys, extra[0] if extra else 0, has_keys=group is not None)
    for each, placed in zip(sets, columns, strict=True):
        for item, number in zip(each, placed, strict=True):
            if item.tree is not None and has_query(item.tree):
                groups.queries[_text(context, item.tree)] = new[number]
    for tree in trees:
        for call in aggregate_calls(tree):
            _aggregate(context, call, groups)
        for call in _aggregates_of_subqueries(tree, rows.scope):
            _aggregate(context, call, groups)
            context.outer_aggregates[id(call)] = groups.called[id(call)]
    numbers = (*dict.fromkeys(groups.keys.values()), *extra)
    calls = tuple(groups.calls.values())
    relation = LogicalAggregate(
        (*numbers, *(each.column for each in calls)), rows.relation, numbers, calls
    )
    made = context.rows(relation, _scope_of_groups(rows.scope, new))
    made.adopt(groups)
    return made


def _text(context: Context, tree: Any) -> Any:
    """Returns a value that is equal for equal texts of an expression."""
    return Scalar((single_spaced(context.cut(tree)),)).key()


def _scope_of_groups(scope: Scope, keys: Mapping[Column, Column]) -> Scope:
    """Returns a scope in which names refer to the keys of the groups alone."""
    return scope.with_tables(
        [
            NamedRelation(
                t.alias,
                tuple(Named(keys.get(c.column, UNGROUPED), c.name) for c in t.columns),
                t.qualified_only,
            )
            for t in scope.tables
        ]
    )


def _key(context: Context, item: Item, rows: Rows, items: Sequence[Item]) -> Scalar:
    """Resolves a key: an expression over the rows, or else the alias of an item."""
    if item.tree is None:
        return column(item.column)
    if has_aggregate(item.tree):
        raise context.failed(
            item.tree, "[GROUP_BY_AGGREGATE] GROUP BY has an aggregate", "group by columns of FROM"
        )
    try:
        return context.scalar(item.tree, rows)
    except SqlError:
        tree = item.tree
        name = tree.name.lower() if isinstance(tree, exp.Column) and not tree.table else None
        for each in items:
            if name is not None and each.name is not None and each.name.lower() == name:
                if has_aggregate(each.tree):
                    raise context.failed(
                        tree,
                        f"[GROUP_BY_AGGREGATE] {each.name!r} is an aggregate",
                        "group by columns of FROM",
                    ) from None
                return context.scalar(each.tree, rows)
        raise


# -- grouping sets ---------------------------------------------------------------------------------


def _grouping_sets(
    context: Context, group: Any, items: Sequence[Item]
) -> tuple[list[list[Item]], bool]:
    """Returns the grouping sets: the product of those of each element of GROUP BY.

    Returns:
        the sets; True if GROUP BY has ROLLUP, CUBE or GROUPING SETS.
    """
    if group is None:
        return [[]], False
    names = ("all", "cube", "rollup", "grouping_sets")
    if not group.expressions and not any(group.args.get(each) for each in names):
        raise context.failed(
            group, "[PARSE_SYNTAX_ERROR] GROUP BY has no expressions", "write GROUP BY a, b"
        )
    if group.args.get("all"):
        own = [each for each in items if each.tree is None or not has_aggregate(each.tree)]
        return [own], False
    elements = list(group.expressions)
    for name in ("cube", "rollup"):  # GROUP BY a, b WITH CUBE
        for each in group.args.get(name) or ():
            elements = [type(each)(expressions=elements)]
    for each in group.args.get("grouping_sets") or ():
        elements = [each]  # GROUP BY a, b GROUPING SETS ((a), (b)) has these sets alone
    sets: list[list[Item]] = [[]]
    for each in elements:
        listed = _sets_of(each)
        if listed is None:
            own_sets = [
                _listed(context, members(each) if isinstance(each, exp.Tuple) else [each], items)
            ]
        else:
            own_sets = [_listed(context, one, items) for one in listed]
        sets = [[*a, *b] for a in sets for b in own_sets]
    return sets, any(sets) and any(_sets_of(each) is not None for each in elements)


def _listed(context: Context, trees: Sequence[Any], items: Sequence[Item]) -> list[Item]:
    """Returns the keys of a list, in which numbers refer to the SELECT list."""
    found = []
    for each in trees:
        number = integer(each)
        if number is None:
            found.append(Item(None, each))
        elif not 0 < number <= len(items):
            raise context.failed(
                each,
                f"[GROUP_BY_POS_OUT_OF_RANGE] GROUP BY {number}: the query has"
                f" {len(items)} columns",
                "write the number of a column, or an expression",
            )
        elif items[number - 1].tree is not None and has_aggregate(items[number - 1].tree):
            raise context.failed(
                each,
                f"[GROUP_BY_POS_AGGREGATE] GROUP BY {number} refers to an aggregate",
                "write the number of a column without an aggregate",
            )
        else:
            found.append(items[number - 1])
    return found


def _sets_of(tree: Any) -> list[list[Any]] | None:
    """Returns the grouping sets of ROLLUP, CUBE and GROUPING SETS; None for an expression."""
    parts = [members(each) for each in tree.expressions]
    if isinstance(tree, exp.Rollup):
        return [[m for p in parts[:n] for m in p] for n in range(len(parts), -1, -1)]
    if isinstance(tree, exp.Cube):
        sets: list[list[Any]] = [[]]
        for part in reversed(parts):
            sets = [[*part, *each] for each in sets] + sets
        return sets
    if isinstance(tree, exp.GroupingSets):
        return [own for each in tree.expressions for own in _sets_of(each) or [members(each)]]
    return None


def _repeat(
    context: Context, rows: Rows, keys: Sequence[Column], sets: Sequence[Sequence[Column]]
) -> tuple[Mapping[Column, Column], tuple[Column, ...]]:
    """Repeats each row for each grouping set, with nulls in the keys that it leaves out.

    Returns:
        the new column of each key; the columns with the number of the set (`grouping_id`) and, if
        two sets are equal, with their position.
    """
    source = rows.relation
    new = {each: context.numbers.new() for each in keys}
    extra: tuple[Column, ...] = (context.numbers.new(),)
    if len({frozenset(each) for each in sets}) < len(sets):
        extra = (*extra, context.numbers.new())
    columns = (*source.columns, *new.values(), *extra)
    repeated: Relation | None = None
    for position, own in enumerate(sets):
        outputs = [Output(each, column(each)) for each in source.columns]
        for each in keys:
            absent = Scalar(("CASE WHEN true THEN NULL ELSE ", each, " END"))
            outputs.append(Output(new[each], column(each) if each in own else absent))
        bits = "".join("0" if each in own else "1" for each in keys)
        values = (int(bits or "0", 2), position)
        for number, value in zip(extra, values, strict=False):
            outputs.append(Output(number, Scalar((f"{value}L",))))
        part = LogicalProject(columns, source, tuple(outputs))
        repeated = (
            part if repeated is None else LogicalSetOperation(columns, repeated, part, "union")
        )
    assert repeated is not None
    rows.extend(repeated)
    return new, extra


# -- parts of expressions --------------------------------------------------------------------------


def group_key(context: Context, tree: Any, groups: QueryGroups) -> Column | None:
    """Returns the column of the key that an expression is; None if it is no key."""
    if isinstance(tree, exp.Literal) or not isinstance(tree, exp.Expr):
        return None
    if has_query(tree):
        return groups.queries.get(_text(context, tree)) if groups.queries else None
    if any(is_aggregate_call(each) for each in tree.walk()):
        return None
    try:
        return groups.keys.get(context.scalar(tree, groups.ungrouped).key())
    except SqlError:
        return None


def aggregate_column(context: Context, tree: Any, rows: Rows) -> Column:
    """Returns the column of an aggregate."""
    if id(tree) in context.outer_aggregates:
        return context.outer_aggregates[id(tree)]
    if rows.groups is None:
        raise context.failed(
            tree,
            "[INVALID_WHERE_CONDITION] an aggregate is not allowed here",
            "compute it in a subquery, or filter groups with HAVING",
        )
    return rows.groups.called[id(tree)]


def _aggregates_of_subqueries(tree: Any, scope: Scope) -> Iterator[Any]:
    """Yields the aggregates of a query in conditions of its subqueries, as `max(t.c)`.

    Such an aggregate has columns of the query alone, each with the name of its table.
    """
    tables = {each.alias.lower() for each in scope.tables if each.alias}
    for query in (each for each in tree.walk() if isinstance(each, exp.Select)):
        where = query.args.get("where")
        for call in aggregate_calls(where) if where is not None else ():
            columns = [each.table.lower() for each in call.find_all(exp.Column)]
            inner: set[str] = set()
            around: Any = query
            while around is not None and around is not tree.parent:
                if isinstance(around, exp.Select):
                    inner |= {each.alias_or_name.lower() for each in _sources(around)}
                around = around.parent
            if columns and set(columns) <= tables - inner:
                yield call


def _sources(select: Any) -> Iterator[Any]:
    """Yields the tables and subqueries of FROM."""
    from_ = select.args.get("from_")
    if from_ is not None:
        yield from_.this
        yield from (each.this for each in from_.this.args.get("joins") or ())
    yield from (each.this for each in select.args.get("joins") or ())


def _aggregate(context: Context, tree: Any, groups: QueryGroups) -> None:
    """Adds an aggregate to groups; equal ones are computed once."""
    for part in parts_of_call(tree):
        if any(isinstance(each, exp.Window) for each in part.walk()):
            raise context.failed(
                tree,
                "a window function inside of an aggregate is not allowed",
                "compute the window function in a subquery",
            )
        if has_aggregate(part):
            raise context.failed(
                tree,
                "[NESTED_AGGREGATE_FUNCTION] an aggregate inside of an aggregate is not allowed",
                "compute the inner one in a subquery",
            )
    pieces = context.pieces(tree, parts_of_call(tree), groups.ungrouped)
    scalar = Scalar(pieces, span_of(tree))
    known = groups.calls.get(scalar.key())
    if known is None:
        known = groups.calls[scalar.key()] = Output(context.numbers.new(), scalar)
    groups.called[id(tree)] = known.column


def grouping_value(context: Context, tree: Any, rows: Rows) -> _Pieces:
    """Returns `grouping(key)`, 1 if a grouping set leaves it out, or `grouping_id()`, all bits."""
    groups = rows.groups
    if groups is None or not groups.set_number:
        raise context.failed(
            tree,
            "[UNSUPPORTED_GROUPING_EXPRESSION] grouping() and grouping_id() need grouping sets",
            "write GROUP BY ROLLUP (...), CUBE (...) or GROUPING SETS (...)",
        )
    every = list(dict.fromkeys(groups.keys.values()))
    given = [group_key(context, each, groups) for each in tree.expressions]
    if str(tree.this).lower() == "grouping_id":
        if given and given != every:
            raise context.failed(
                tree,
                "[GROUPING_ID_COLUMN_MISMATCH] grouping_id() has other columns than GROUP BY",
                "write grouping_id()",
            )
        return (groups.set_number,)
    key = given[0] if len(given) == 1 else None
    if key is None:
        raise context.failed(
            tree,
            "[GROUPING_COLUMN_MISMATCH] the argument of grouping() is no key of GROUP BY",
            "write one expression of GROUP BY",
        )
    shift = len(every) - 1 - every.index(key)
    return ("cast(shiftright(", groups.set_number, f", {shift}) & 1 as tinyint)")
