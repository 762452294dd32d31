"""Resolves FROM: tables, subqueries, joins and VALUES."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.algebra import (
    LogicalJoin,
    LogicalSingle,
    LogicalValues,
    Named,
    Output,
    Relation,
    Scalar,
    TimePoint,
    column,
    equality,
    free_columns,
)
from nosync_nb.collections.sql.grammar import span_of
from nosync_nb.collections.sql.resolver.context import Context
from nosync_nb.collections.sql.resolver.generators import generated, lateral_view, table_function
from nosync_nb.collections.sql.resolver.pivot import pivoted
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.scope import NamedRelation, Query, Scope
from nosync_nb.collections.sql.resolver.trees import alias_columns, conjuncts
from nosync_nb.rows.ddl import quoted

_TABLE_CLAUSES = ("hints", "system_time", "format", "pattern", "ordinality", "when", "only")
SAMPLE = (
    "TABLESAMPLE is not maintained incrementally: a sample differs at every run",
    "filter by a hash of a key: WHERE pmod(xxhash64(id), 10) = 0",
)


def from_rows(context: Context, tree: exp.Select, scope: Scope) -> Rows:
    """Resolves the FROM clause of a SELECT."""
    from_ = tree.args.get("from_")
    if from_ is None:
        return context.rows(LogicalSingle(()), scope)
    relation, tables = _joined(context, from_.this, scope)
    relation, tables = _joins(context, relation, tables, tree.args.get("joins") or (), scope)
    for each in tree.args.get("laterals") or ():
        relation, tables = lateral_view(context, relation, tables, each, scope)
    return context.rows(relation, scope.with_tables(tables))


def _joined(context: Context, tree: Any, scope: Scope) -> tuple[Relation, list[NamedRelation]]:
    """Resolves a table with the joins and the lateral views that follow it."""
    relation, tables = _table(context, tree, scope)
    if isinstance(tree, exp.Table | exp.Subquery):
        relation, tables = _joins(context, relation, tables, tree.args.get("joins") or (), scope)
        for each in tree.args.get("laterals") or ():
            relation, tables = lateral_view(context, relation, tables, each, scope)
    return relation, tables


def _table(context: Context, tree: Any, scope: Scope) -> tuple[Relation, list[NamedRelation]]:
    """Resolves one relation.

    Args:
        scope: the tables before it, which LATERAL sees, and the enclosing query.
    """
    if tree.args.get("sample") or isinstance(tree, exp.TableSample):
        raise context.failed(tree, *SAMPLE)
    if isinstance(tree, exp.TableAlias):  # the name that `|> AS x` gives to the query before it
        tree = exp.Table(this=tree.this)
    if isinstance(tree, exp.Table):
        context.unsupported(tree, _TABLE_CLAUSES)
        if isinstance(tree.this, exp.Func):
            around = Scope((), scope.ctes, scope.outer)
            query = table_function(context, tree.this, around, alias_columns(tree))
        else:
            query = _named_table(context, tree, scope)
    elif isinstance(tree, exp.Lateral):
        inner = tree.this
        if isinstance(inner, exp.Func):
            around = Scope((), scope.ctes, scope)
            query = table_function(context, inner, around, alias_columns(tree))
        else:
            query = context.query(inner, Scope((), scope.ctes, scope))
    elif isinstance(tree, exp.Subquery):
        if isinstance(tree.this, exp.Table):  # a join in parentheses
            return _joined(context, tree.this, scope)
        query = context.query(tree.this, Scope((), scope.ctes, scope.outer))
    elif isinstance(tree, exp.Values):
        query = values_query(context, tree)
    else:
        raise context.failed(
            tree, f"{context.cut(tree)!r} is no table", "name an input or a stage of this session"
        )
    for pivot in tree.args.get("pivots") or ():
        query = pivoted(context, query, pivot, scope)
    names = alias_columns(tree)
    if names:
        query = _renamed(context, query, names, tree)
    return query.relation, [NamedRelation(_alias(tree), query.columns)]


def _alias(tree: Any) -> str:
    pivots = tree.args.get("pivots") or ()
    last = pivots[-1].alias if pivots else ""
    return last or tree.alias_or_name


def _named_table(context: Context, tree: exp.Table, scope: Scope) -> Query:
    name = tree.name
    version = tree.args.get("version")
    if not tree.args.get("db"):
        query = scope.ctes.get(name.lower())
        if query is not None and version is not None:
            raise context.failed(
                version,
                f"[UNSUPPORTED_FEATURE.TIME_TRAVEL] `{name}` is a query of WITH, which has no"
                " earlier rows",
                "write AS OF behind the tables that it reads",
            )
        if query is not None:
            return query.copied(context.numbers)
    path = [each.name for each in tree.parts]
    at = None if version is None else _time_point(context, version)
    found = context.scan(name if len(path) == 1 else ".".join(map(quoted, path)), at)
    if found is None:
        shown = context.cut(tree.this) if len(path) == 1 else ".".join(path)
        raise context.failed(
            tree.this,
            f"[TABLE_OR_VIEW_NOT_FOUND] there is no table {shown!r}",
            "name an input or a stage of this session",
        )
    return found


def _time_point(context: Context, tree: exp.Version) -> TimePoint:
    """Resolves `VERSION AS OF` or `TIMESTAMP AS OF`."""
    kind, value = tree.name.lower(), tree.args.get("expression")
    if tree.args["kind"] != "AS OF" or value is None:
        raise context.failed(
            tree,
            f"[PARSE_SYNTAX_ERROR] {tree.args['kind']} is not a form of time travel",
            "write t VERSION AS OF epoch, or t TIMESTAMP AS OF time",
        )
    if kind == "timestamp":
        return TimePoint(kind, context.cut(value), span_of(value))
    if isinstance(value, exp.Literal) and (value.is_string or value.name.isdecimal()):
        return TimePoint(kind, value.name if value.is_string else int(value.name), span_of(value))
    raise context.failed(
        value,
        f"[PARSE_SYNTAX_ERROR] VERSION AS OF: {context.cut(value)!r} is neither the number of an"
        " epoch nor a label",
        "write VERSION AS OF 3 or VERSION AS OF 'monday'; an expression can follow TIMESTAMP AS OF",
    )


def _renamed(context: Context, query: Query, names: Sequence[str], tree: Any) -> Query:
    if len(names) != len(query.columns):
        raise context.failed(
            tree,
            f"[ASSIGNMENT_ARITY_MISMATCH] {len(names)} names for {len(query.columns)} columns",
            "give every column a name",
        )
    return query.renamed(names)


def values_query(context: Context, tree: Any) -> Query:
    """VALUES: constant rows."""
    found: list[tuple[Scalar, ...]] = []
    for row in tree.expressions:
        items = row.expressions if isinstance(row, exp.Tuple) else [row]
        rows = context.rows(LogicalSingle(()), Scope())
        found.append(tuple(context.scalar(each, rows) for each in items))
        if not isinstance(rows.relation, LogicalSingle):
            raise context.failed(
                row,
                "[INVALID_INLINE_TABLE.CANNOT_EVALUATE_EXPRESSION_IN_INLINE_TABLE] VALUES has a"
                " subquery",
                "write SELECT ... UNION ALL SELECT ...",
            )
        if len(found[-1]) != len(found[0]):
            raise context.failed(
                row,
                f"[INVALID_INLINE_TABLE.NUM_COLUMNS_MISMATCH] a row has {len(found[-1])} values,"
                f" the first one {len(found[0])}",
                "give all rows the same number of values",
            )
    columns = tuple(Named(context.numbers.new(), f"col{i + 1}") for i in range(len(found[0])))
    return Query(LogicalValues(tuple(each.column for each in columns), tuple(found)), columns)


# -- joins -----------------------------------------------------------------------------------------


def _joins(
    context: Context,
    relation: Relation,
    tables: list[NamedRelation],
    trees: Sequence[Any],
    scope: Scope,
) -> tuple[Relation, list[NamedRelation]]:
    """Resolves joins, from left to right."""
    for each in trees:
        made = _generated(context, relation, tables, each, scope)
        if made is not None:
            relation, tables = made
            continue
        right, more = _joined(context, each.this, scope.with_tables(tables))
        relation, tables = _join(context, (relation, tables), (right, more), each, scope)
    return relation, tables


def _generated(
    context: Context, relation: Relation, tables: list[NamedRelation], tree: Any, scope: Scope
) -> tuple[Relation, list[NamedRelation]] | None:
    """Resolves `, LATERAL explode(x)`, which repeats each row; returns None for other joins."""
    lateral = tree.this
    if not isinstance(lateral, exp.Lateral) or not isinstance(lateral.this, exp.Func):
        return None
    on = tree.args.get("on")
    kind = _kind(tree)
    if kind not in ("inner", "left") or not (on is None or isinstance(on, exp.Boolean)):
        return None
    rows = context.rows(relation, scope.with_tables(tables))
    names = alias_columns(lateral)
    made = generated(context, lateral.this, rows, names, is_outer=kind == "left")
    if made is None:
        return None
    return made.over(rows.relation), [*tables, NamedRelation(lateral.alias, made.columns)]


def _join(
    context: Context,
    left: tuple[Relation, list[NamedRelation]],
    right: tuple[Relation, list[NamedRelation]],
    tree: Any,
    scope: Scope,
) -> tuple[Relation, list[NamedRelation]]:
    context.unsupported(tree, ("global_", "match_condition", "pivots"))
    kind = _kind(tree)
    refuses = kind in ("right", "full")
    if refuses and not free_columns(right[0]).isdisjoint(left[0].columns):
        raise context.failed(
            tree.this,
            f"[INVALID_LATERAL_JOIN_TYPE] a {kind.upper()} join with LATERAL",
            "write LEFT JOIN LATERAL, or name the other table first",
        )
    tables, more = left[1], right[1]
    using = [each.name for each in tree.args.get("using") or ()]
    if (tree.args.get("method") or "").upper() == "NATURAL":
        theirs = {c.name.lower() for t in more for c in t.columns}
        using = [c.name for t in tables for c in t.columns if c.name.lower() in theirs]
    merged = [
        (_using(context, name, tables, tree), _using(context, name, more, tree)) for name in using
    ]
    conditions = [equality(column(a.column), column(b.column)) for a, b in merged]
    rows = context.rows(right[0], scope.with_tables([*tables, *more]))
    on = tree.args.get("on")
    for part in conjuncts(on) if on is not None else ():
        conditions.append(context.scalar(part, rows))
        _check_condition(context, part, conditions[-1], left[0], rows)
    columns = (*left[0].columns, *rows.relation.columns)
    if kind in ("semi", "anti"):
        columns = left[0].columns
    relation = LogicalJoin(columns, left[0], rows.relation, kind, tuple(conditions))
    if kind in ("semi", "anti"):
        return relation, tables
    if merged:
        return _merged(context, relation, [*tables, *more], merged, kind)
    return relation, [*tables, *more]


def _check_condition(
    context: Context, tree: Any, condition: Scalar, left: Relation, rows: Rows
) -> None:
    """Raises SqlError for a condition of a join that is a value, and not boolean.

    The types of other conditions follow from their operators.
    """
    if not isinstance(tree, exp.Column | exp.Literal | exp.Null | exp.Binary) or isinstance(
        tree, exp.Predicate | exp.Connector
    ):
        return
    columns = (*left.columns, *rows.relation.columns)
    pairs = context.rows(LogicalJoin(columns, left, rows.relation, "inner", ()), Scope())
    is_null = isinstance(tree, exp.Null)
    if is_null or context.type_of(condition, pairs) != "boolean":
        raise context.failed(
            tree,
            f"[JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE] the condition {context.cut(tree)!r} of a join is"
            " not boolean",
            "write a comparison, as in ON a.id = b.id",
        )


def _kind(tree: Any) -> str:
    side, kind = (str(tree.args.get(name) or "").lower() for name in ("side", "kind"))
    if kind in ("semi", "anti"):
        return kind
    if isinstance(tree.this, exp.Lateral) and tree.this.args.get("outer"):
        return "left"
    return side if side in ("left", "right", "full") else "inner"


def _using(context: Context, name: str, tables: Sequence[NamedRelation], tree: Any) -> Named:
    shown = [each for each in tables if not each.qualified_only]
    found = list(dict.fromkeys(c for t in shown for c in t.named(name)))
    if len(found) != 1:
        what = "is ambiguous" if found else "does not exist"
        raise context.failed(
            tree,
            f"[UNRESOLVED_USING_COLUMN_FOR_JOIN] USING ({name}): the column {what} on one side",
            "write ON with the columns of both sides",
        )
    return found[0]


def _merged(
    context: Context,
    relation: Relation,
    tables: list[NamedRelation],
    merged: Sequence[tuple[Named, Named]],
    kind: str,
) -> tuple[Relation, list[NamedRelation]]:
    """Makes one column of each pair that USING names; `t.key` is still the side's own column."""
    rows = context.rows(relation, Scope())
    firsts: list[Named] = []
    outputs: list[Output] = []
    for a, b in merged:
        number = b.column if kind == "right" else a.column
        if kind == "full":
            number = context.numbers.new()
            outputs.append(Output(number, Scalar(("coalesce(", a.column, ", ", b.column, ")"))))
        firsts.append(Named(number, a.name))
    rows.compute(tuple(outputs))
    gone = {c.column for pair in merged for c in pair}
    rest = [
        NamedRelation(
            t.alias, tuple(c for c in t.columns if c.column not in gone), t.qualified_only
        )
        for t in tables
    ]
    qualified = [NamedRelation(t.alias, t.columns, qualified_only=True) for t in tables]
    return rows.relation, [NamedRelation("", tuple(firsts)), *rest, *qualified]
