"""What the parts of the resolver use of each other: queries contain expressions, and vice versa."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from nosync_nb.collections.sql.algebra import Column, Numbers, Relation, Scalar, TimePoint
from nosync_nb.collections.sql.resolver.rows import Rows
from nosync_nb.collections.sql.resolver.scope import Query, Scope
from nosync_nb.errors import SqlError


class Context(Protocol):
    """Resolves the trees of one statement.

    Attributes:
        numbers: numbers new columns.
        outer: the scope in which a name of an enclosing query was found, by the identity of its
            tree.
        outer_aggregates: the column of an aggregate of a query that one of its subqueries uses, by
            the identity of its tree.
    """

    numbers: Numbers
    outer: dict[int, Scope]
    outer_aggregates: dict[int, Column]

    def query(self, tree: Any, scope: Scope) -> Query:
        """Resolves a query whose enclosing query has a scope; `scope` itself has no tables."""

    def scalar(self, tree: Any, rows: Rows) -> Scalar:
        """Resolves an expression over rows, which it may extend."""

    def pieces(self, tree: Any, parts: Iterable[Any], rows: Rows) -> tuple[str | Column, ...]:
        """Returns the text of a tree in which the names of some of its parts are resolved."""

    def scan(self, name: str, at: TimePoint | None = None) -> Query | None:
        """Returns an input or a stage; None if no table has this name.

        Args:
            at: the point in time whose rows are read once; None for the current and later rows.
        """

    def type_of(self, scalar: Scalar, rows: Rows) -> str:
        """Returns the type of an expression, as DDL.

        Raises:
            SqlError: if it depends on a column of an enclosing query, whose type is not known.
        """

    def column_type(self, number: Column) -> str | None:
        """Returns the type of a column of an input or a stage; None for a computed one."""

    def rows(self, relation: Relation, scope: Scope) -> Rows:
        """Returns rows to resolve expressions over."""

    def failed(self, tree: Any, what: str, hint: str) -> SqlError:
        """Returns an error at a part of the statement."""

    def cut(self, tree: Any) -> str:
        """Returns the text of a part of the statement."""

    def unsupported(self, tree: Any, clauses: Sequence[str]) -> None:
        """Raises SqlError for the first of these clauses that a tree has."""
