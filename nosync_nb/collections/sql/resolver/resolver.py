"""Resolves a query: from sqlglot's tree to relational algebra.

Names mean what they mean in Spark. A subquery becomes a join whose right side may use columns of
the left one, as SQL evaluates it for each row; `unnest` removes that dependency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlglot import exp

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalDistinct,
    LogicalScan,
    LogicalSetOperation,
    Named,
    Numbers,
    Output,
    Relation,
    Scalar,
    TimePoint,
    free_columns,
)
from nosync_nb.collections.sql.grammar import Statement, failure, span_of
from nosync_nb.collections.sql.resolver.expressions import resolve_pieces, resolve_scalar
from nosync_nb.collections.sql.resolver.from_clause import values_query
from nosync_nb.collections.sql.resolver.order import limited
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.scope import NamedRelation, Query, Scope
from nosync_nb.collections.sql.resolver.select import select_query
from nosync_nb.collections.sql.resolver.union_by_name import columns_by_name
from nosync_nb.collections.sql.resolver.with_clause import with_ctes
from nosync_nb.errors import SqlError
from nosync_nb.rows import Schema

Columns = Callable[[str, TimePoint | None], Schema | None]
"""Returns the columns of a table, or None if there is no such table."""
Types = Callable[[Relation], str]
"""Returns the type of the last column of a relation."""


class Resolver:
    """Resolves the queries of one statement; it is the `Context` of the parts of the resolver.

    Args:
        columns: the columns of inputs and stages by name.
        types: returns types; called only for expressions whose columns depend on their type.
    """

    def __init__(self, statement: Statement, columns: Columns, types: Types) -> None:
        self._text, self._columns, self._types = statement.text, columns, types
        self._column_types: dict[Column, str] = {}
        self.numbers = Numbers()
        self.outer: dict[int, Scope] = {}
        self.outer_aggregates: dict[int, Column] = {}

    def query(self, tree: Any, scope: Scope) -> Query:
        """Resolves a query.

        Args:
            scope: the queries of WITH, and the enclosing query.

        Raises:
            SqlError: if a name is unknown or ambiguous, or a clause is not supported.
        """
        scope = with_ctes(self, tree, scope)
        if isinstance(tree, exp.Subquery):
            return self._limited(self.query(tree.this, scope), tree, scope)
        if isinstance(tree, exp.SetOperation):
            return self._limited(self._set_operation(tree, scope), tree, scope)
        if isinstance(tree, exp.Select):
            return select_query(self, tree, scope)
        if isinstance(tree, exp.Values):
            return values_query(self, tree)
        raise self.failed(tree, f"{self.cut(tree)!r} is no query", "write SELECT ...")

    def _limited(self, query: Query, tree: Any, scope: Scope) -> Query:
        """Applies ORDER BY and LIMIT to a query in parentheses or a set operation."""
        tables = [NamedRelation("", query.columns)]
        return limited(self, query, tree, self.rows(query.relation, scope.with_tables(tables)))

    def _set_operation(self, tree: Any, scope: Scope) -> Query:
        self.unsupported(tree, ("side", "kind", "on"))
        left, right = (
            self.query(each, scope).narrowed(self.numbers) for each in (tree.left, tree.right)
        )
        if tree.args.get("by_name"):
            left, right = columns_by_name(self, tree, left, right)
        if len(left.columns) != len(right.columns):
            raise self.failed(
                tree,
                "[NUM_COLUMNS_MISMATCH] the sides of a set operation have"
                f" {len(left.columns)} and {len(right.columns)} columns",
                "select as many columns on both sides",
            )
        kind = type(tree).__name__.lower()
        is_distinct = tree.args.get("distinct", True)
        a, b = left.relation, right.relation
        if is_distinct and kind != "union":
            a, b = LogicalDistinct(a.columns, a), LogicalDistinct(b.columns, b)
        numbers = tuple(self.numbers.new() for _ in left.columns)
        relation: Relation = LogicalSetOperation(numbers, a, b, kind)
        if is_distinct and kind == "union":
            relation = LogicalDistinct(numbers, relation)
        columns = tuple(Named(n, c.name) for n, c in zip(numbers, left.columns, strict=True))
        return Query(relation, columns)

    # -- what the parts of the resolver use ----------------------------------------------------

    def scan(self, name: str, at: TimePoint | None = None) -> Query | None:
        """Returns an input or a stage; None if no table has this name.

        Args:
            at: the point in time whose rows are read once; None for the current and later rows.
        """
        schema = self._columns(name, at)
        if schema is None:
            return None
        columns = tuple(Named(self.numbers.new(), each) for each in schema.names)
        numbers = tuple(each.column for each in columns)
        self._column_types.update(zip(numbers, schema.types, strict=True))
        return Query(LogicalScan(numbers, name, columns, at), columns)

    def type_of(self, scalar: Scalar, rows: Rows) -> str:
        """Returns the type of an expression."""
        if scalar.column is not None and scalar.column in self._column_types:
            return self._column_types[scalar.column]
        if free_columns(rows.relation) or not scalar.columns <= frozenset(rows.relation.columns):
            raise failure(
                self._text,
                scalar.span,
                "the columns that this expression makes depend on the type of an outer column",
                "name them: LATERAL VIEW explode(x) t AS key, value",
            )
        before = Rows(rows.relation, rows.scope, self.numbers)
        number = self.numbers.new()
        before.compute((Output(number, scalar),))
        return self._types(before.relation)

    def column_type(self, number: Column) -> str | None:
        """Returns the type of a column of an input or a stage; None for a computed one."""
        return self._column_types.get(number)

    def rows(self, relation: Relation, scope: Scope) -> Rows:
        """Returns rows to resolve expressions over."""
        return Rows(relation, scope, self.numbers)

    def scalar(self, tree: Any, rows: Rows) -> Scalar:
        """Resolves an expression over rows, which it may extend."""
        return resolve_scalar(self, tree, rows)

    def pieces(self, tree: Any, parts: Iterable[Any], rows: Rows) -> tuple[str | Column, ...]:
        """Returns the text of a tree in which the names of some of its parts are resolved."""
        return resolve_pieces(self, tree, parts, rows)

    def failed(self, tree: Any, what: str, hint: str) -> SqlError:
        """Returns an error at a part of the statement."""
        return failure(self._text, span_of(tree), what, hint)

    def cut(self, tree: Any) -> str:
        """Returns the text of a part of the statement."""
        span = span_of(tree)
        return self._text[span.start : span.stop]

    def unsupported(self, tree: Any, clauses: Sequence[str]) -> None:
        """Raises SqlError for the first of these clauses that a tree has."""
        for each in clauses:
            found = tree.args.get(each)
            if not found:
                continue
            part = found[0] if isinstance(found, list) else found
            part = part if isinstance(part, exp.Expr) and span_of(part).stop else tree
            hint = _INSTEAD.get(each, "leave the clause out")
            name = each.strip("_").replace("_", " ").upper()
            raise self.failed(part, f"the clause {name} is not supported", hint)


_INSTEAD = {
    "distribute": "write ORDER BY: with LIMIT, the first rows depend on the order of all",
    "sort": "write ORDER BY: with LIMIT, the first rows depend on the order of all",
    "cluster": "write ORDER BY: with LIMIT, the first rows depend on the order of all",
    "connect": "write a loop: nosync.iterate(...)",
}
