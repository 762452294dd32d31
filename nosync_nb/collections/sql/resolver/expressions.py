"""Resolves expressions: the user's text, with columns in place of names, calls and subqueries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.algebra import Column, Named, Scalar, equality, single_spaced
from nosync_nb.collections.sql.grammar import NOWHERE, TextSpan, span_of
from nosync_nb.collections.sql.joins.comparisons import comparisons_of
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.groups import (
    GROUPING_FUNCTIONS,
    aggregate_column,
    group_key,
    grouping_value,
)
from nosync_nb.collections.sql.resolver.literals import check_literal
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.scope import UNGROUPED, Scope
from nosync_nb.collections.sql.resolver.subqueries import (
    exists_mark,
    in_value,
    not_in_value,
    quantified,
    scalar_subquery,
)
from nosync_nb.collections.sql.resolver.trees import (
    FieldEquality,
    field_equalities,
    is_aggregate_call,
    is_call,
    is_equality,
    is_time_unit,
    text_literal,
    without_parentheses,
)
from nosync_nb.collections.sql.resolver.window_clause import window_column
from nosync_nb.errors import SqlError
from nosync_nb.expressions import is_unit, listed_patterns

_Pieces = tuple[str | Column, ...]


def resolve_scalar(context: Context, tree: Any, rows: Rows) -> Scalar:
    """Resolves an expression over rows, which are extended by what its subqueries return."""
    inner = without_parentheses(tree)
    if isinstance(inner, FieldEquality):
        left, right = (resolve_scalar(context, each, rows) for each in (inner.left, inner.right))
        _check_same_type(context, inner, (left, right), rows)
        return equality(left, right, null_safe=True)
    pieces = resolve_pieces(context, tree, [tree], rows)
    sides = None
    if isinstance(inner, exp.EQ | exp.NullSafeEQ):
        operands = (inner.left, inner.right)
        if not any(isinstance(each, exp.Any | exp.All) for each in operands):
            left, right = (resolve_scalar(context, each, rows) for each in operands)
            sides = (left, right)
    compared = comparisons_of(inner, partial(context.scalar, rows=rows))
    return Scalar(pieces, span_of(tree), sides, isinstance(inner, exp.NullSafeEQ), *compared)


def resolve_pieces(context: Context, tree: Any, parts: Iterable[Any], rows: Rows) -> _Pieces:
    """Returns the text of a tree in which some of its parts are resolved over rows."""
    found: list[tuple[TextSpan, _Pieces]] = []
    waiting = list(parts)
    while waiting:
        each = waiting.pop()
        value = _value(context, each, rows)
        if value is None:
            waiting += [part for part in each.iter_expressions() if not is_time_unit(part)]
        else:
            found.append((span_of(each), value))
    span = span_of(tree)
    text = context.cut(tree) if span != NOWHERE else tree.sql("spark")  # JOIN without ON: true
    pieces: list[str | Column] = []
    at = span.start
    for part, value in sorted(found, key=lambda pair: pair[0]):
        pieces += [single_spaced(text[at - span.start : part.start - span.start]), *value]
        at = part.stop
    pieces.append(single_spaced(text[at - span.start :]))
    return tuple(each for each in pieces if each != "")


def _value(context: Context, tree: Any, rows: Rows) -> _Pieces | None:
    """Returns what stands for a part of an expression; None: its parts are resolved instead."""
    if rows.groups is not None and (key := group_key(context, tree, rows.groups)) is not None:
        return (key,)
    if isinstance(tree, exp.Column):
        return (context.cut(tree),) if is_unit(tree) else _column(context, tree, rows)
    check_literal(context, tree)
    if id(tree) in rows.added:
        return rows.added[id(tree)]
    added = _added(context, tree, rows)
    if added is not None:
        rows.added[id(tree)] = added
        return added
    if is_aggregate_call(tree):
        return (aggregate_column(context, tree, rows),)
    if (fields := _compared_fields(context, tree, rows)) is not None:
        return fields
    if isinstance(tree, exp.Tuple) or is_call(tree, "struct"):
        return _struct(context, tree, rows)
    if isinstance(tree, exp.Anonymous) and str(tree.this).lower() in GROUPING_FUNCTIONS:
        return grouping_value(context, tree, rows)
    return None


def _added(context: Context, tree: Any, rows: Rows) -> _Pieces | None:
    """Returns what stands for a subquery or a window function, whose result is added to the rows.

    Returns None for any other expression.
    """
    if isinstance(tree, exp.Window):
        return (window_column(context, tree, rows),)
    if isinstance(tree, exp.Exists) and isinstance(tree.this, exp.Query):
        return (exists_mark(context, tree, rows),)
    if isinstance(tree, exp.In) and tree.args.get("query") is not None:
        return in_value(context, tree, rows)
    if isinstance(tree, exp.Binary) and isinstance(tree.right, exp.Any | exp.All):
        if isinstance(tree, exp.Like | exp.ILike):
            parts = [tree.left, *listed_patterns(tree.right)]
            return resolve_pieces(context, tree, parts, rows)
        return quantified(context, tree, rows)
    if isinstance(tree, exp.Subquery | exp.Select | exp.SetOperation):
        return (scalar_subquery(context, tree, rows),)
    negated = without_parentheses(tree.this) if isinstance(tree, exp.Not) else None
    if isinstance(negated, exp.In) and negated.args.get("query") is not None:
        return not_in_value(context, negated, rows)
    return None


def _compared_fields(context: Context, tree: Any, rows: Rows) -> _Pieces | None:
    """Returns `(a, b) = (c, d)` or `(a, b) IN ((c, d), ...)` as comparisons of the fields.

    Fields that are both null are equal, as in any comparison of structs. Returns None for any other
    expression.
    """
    negated = isinstance(tree, exp.NEQ | exp.NullSafeNEQ | exp.Not)
    inner = without_parentheses(tree.this) if isinstance(tree, exp.Not) else tree
    if isinstance(inner, exp.In) and isinstance(inner.this, exp.Tuple):
        options = [field_equalities(inner.this, each) for each in inner.expressions]
    elif not isinstance(tree, exp.Not) and (negated or is_equality(tree)):
        options = [field_equalities(tree.left, tree.right)]
    else:
        return None
    if not options or not all(options):
        return None
    pieces: list[str | Column] = ["(NOT ((" if negated else "(("]
    for i, option in enumerate(options):
        pieces.append(") OR (" if i else "")
        for j, each in enumerate(option):
            pieces += [" AND " if j else "", *resolve_scalar(context, each, rows).pieces]
    pieces.append(")))" if negated else "))")
    return tuple(each for each in pieces if each != "")


def _check_same_type(
    context: Context, pair: FieldEquality, values: tuple[Scalar, Scalar], rows: Rows
) -> None:
    """Raises SqlError if two fields have different types, which Spark does not convert."""
    try:
        types = [
            "void" if isinstance(tree, exp.Null) else context.type_of(each, rows)
            for tree, each in zip((pair.left, pair.right), values, strict=True)
        ]
    except SqlError:  # a column of an enclosing query
        return
    if types[0] != types[1]:
        raise context.failed(
            pair.right,
            "[DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES] fields that are compared have the types"
            f" {types[0]} and {types[1]}",
            f"write cast(... AS {types[0]})",
        )


def _struct(context: Context, tree: Any, rows: Rows) -> _Pieces:
    """Returns `struct(a, b + 1 AS c)` or `(a, b)`, whose fields have the names of the columns."""
    pieces: list[str | Column] = ["named_struct("]
    for i, each in enumerate(tree.expressions):
        if isinstance(each, exp.Star) or isinstance(each.this, exp.Star):
            alias = each.table.lower() if isinstance(each, exp.Column) else None
            for c in _starred(rows.scope, alias):
                pieces += [", " * (len(pieces) > 1), text_literal(c.name), ", ", c.column]
            continue
        value = each.this if isinstance(each, exp.Alias) else each
        is_named = isinstance(each, exp.Alias | exp.Column)
        name = each.alias_or_name if is_named else f"col{i + 1}"
        pieces += [", " * (len(pieces) > 1), text_literal(name), ", "]
        pieces += context.scalar(value, rows).pieces
    return (*pieces, ")")


def _starred(scope: Scope, alias: str | None) -> Iterator[Named]:
    """Yields the columns of `t.*`; without a table's name those of `*`."""
    for table in scope.tables:
        is_shown = not table.qualified_only if alias is None else alias == table.alias.lower()
        if is_shown:
            yield from table.columns


def _column(context: Context, tree: exp.Column, rows: Rows) -> _Pieces:
    """Resolves a name: a column, an alias of an earlier item, or a field of a struct."""
    parts = tree.parts
    names = [part.name for part in parts]
    first = names[0].lower()
    if len(names) == 1 and first in rows.results:
        return (rows.results[first],)
    scope: Scope | None = rows.scope
    while scope is not None:
        found, used = scope.find(names)
        if len(found) > 1:
            condition = "UNRESOLVED_COLUMN" if first in rows.repeated else "AMBIGUOUS_REFERENCE"
            raise context.failed(
                tree,
                f"[{condition}] {'.'.join(names)!r} is the name of several columns",
                "write table.column, or give the columns different names with AS",
            )
        if found:
            (one,) = found
            if one.column == UNGROUPED:
                raise context.failed(
                    tree,
                    f"[{_ungrouped_class(scope, rows)}] the column {names[-1]!r} is neither in"
                    " GROUP BY nor in an aggregate",
                    "add it to GROUP BY, or use min(), max() or any other aggregate",
                )
            if scope is not rows.scope:
                context.outer[id(tree)] = scope
            if (key := _map_key(context, one.column, names[used:])) is not None:
                return (one.column, key)
            return (one.column, *_fields(context, parts[used:]))
        if scope is rows.scope and first in rows.aliases and first not in rows.repeated:
            alias = _alias(context, first, rows)
            return ("(", *alias.pieces, ")", *_fields(context, parts[1:]))
        scope = scope.outer
    known = [each.name for each in rows.scope.columns()]
    raise context.failed(
        tree,
        f"[UNRESOLVED_COLUMN] there is no column {'.'.join(names)!r}",
        f"the columns are {', '.join(known)}" if known else "name a table in FROM",
    )


def _ungrouped_class(scope: Scope, rows: Rows) -> str:
    """Returns Spark's error class for a column that grouping has made unavailable."""
    if scope is rows.scope and rows.groups is not None:
        if not rows.groups.has_keys:
            return "MISSING_GROUP_BY"
        if rows.groups.is_having:
            return "UNRESOLVED_COLUMN"
    return "MISSING_AGGREGATION"


def _map_key(context: Context, number: Column, names: list[str]) -> str | None:
    """Returns `['key']` for `m.key` if `m` is a map; None if it is a struct."""
    is_map = len(names) == 1 and (context.column_type(number) or "").startswith("map<")
    return f"[{text_literal(names[0])}]" if is_map else None


def _fields(context: Context, parts: Iterable[Any]) -> tuple[str, ...]:
    return tuple("." + context.cut(part) for part in parts)


def _alias(context: Context, name: str, rows: Rows) -> Scalar:
    """Resolves the item of the SELECT list that has an alias."""
    known = rows.resolved.get(name)
    if known is None:
        tree = rows.aliases.pop(name)  # while it is resolved, the alias does not exist
        try:
            known = rows.resolved[name] = resolve_scalar(context, tree, rows)
        finally:
            rows.aliases[name] = tree
    return known
