"""Names of a query: tables with their columns, nested as the queries of a statement are.

A name refers to a column of the innermost query that has one. Names are compared as Spark compares
them: upper and lower case are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalProject,
    Named,
    Numbers,
    Output,
    Relation,
    column,
)

UNGROUPED: Column = 0
"""In place of the number of a column that grouping has made unavailable."""


@dataclass(frozen=True)
class NamedRelation:
    """A relation of a FROM clause, with the names under which it is seen.

    Attributes:
        alias: its name; empty for the columns that USING merges, and for a query's own columns.
        qualified_only: True if only `alias.column` refers to its columns, and `*` omits them.
    """

    alias: str
    columns: tuple[Named, ...]
    qualified_only: bool = False

    def named(self, name: str) -> list[Named]:
        """Returns its columns of a name."""
        return [each for each in self.columns if each.name.lower() == name.lower()]


@dataclass(frozen=True)
class Query:
    """A resolved query: its relation, which may have more columns, and its columns by name."""

    relation: Relation
    columns: tuple[Named, ...]

    def renamed(self, names: Sequence[str]) -> Query:
        """Returns the query with other names for its columns."""
        pairs = zip(self.columns, names, strict=True)
        return Query(self.relation, tuple(Named(c.column, name) for c, name in pairs))

    def narrowed(self, numbers: Numbers) -> Query:
        """Returns the query with a relation of its columns alone, each once, in their order."""
        wanted = tuple(each.column for each in self.columns)
        if len(set(wanted)) == len(wanted):
            return self.trimmed()
        own = tuple(numbers.new() for _ in self.columns)
        pairs = list(zip(own, self.columns, strict=True))
        outputs = tuple(Output(number, column(c.column)) for number, c in pairs)
        named = tuple(Named(number, c.name) for number, c in pairs)
        return Query(LogicalProject(own, self.relation, outputs), named)

    def trimmed(self) -> Query:
        """Returns the query with a relation of its columns alone.

        Two of its columns can be the same one of the relation, as in `SELECT a, a`: a name that
        both have is not ambiguous.
        """
        wanted = tuple(dict.fromkeys(each.column for each in self.columns))
        if wanted == self.relation.columns:
            return self
        outputs = tuple(Output(each, column(each)) for each in wanted)
        return replace(self, relation=LogicalProject(wanted, self.relation, outputs))

    def copied(self, numbers: Numbers) -> Query:
        """Returns the query with new numbers: a query that is used twice is two tables."""
        own = {each.column: numbers.new() for each in self.columns}
        outputs = tuple(Output(number, column(each)) for each, number in own.items())
        named = tuple(Named(own[each.column], each.name) for each in self.columns)
        return Query(LogicalProject(tuple(own.values()), self.relation, outputs), named)


@dataclass(frozen=True)
class Scope:
    """The tables that names refer to.

    Attributes:
        ctes: the queries of WITH by their name in lower case.
        outer: the scope of the enclosing query.
    """

    tables: tuple[NamedRelation, ...] = ()
    ctes: Mapping[str, Query] = field(default_factory=dict)
    outer: Scope | None = None

    def with_tables(self, tables: Sequence[NamedRelation]) -> Scope:
        """Returns a scope with other tables."""
        return replace(self, tables=tuple(tables))

    def with_ctes(self, ctes: Mapping[str, Query]) -> Scope:
        """Returns a scope with more queries of WITH."""
        return replace(self, ctes={**self.ctes, **ctes})

    def inner(self) -> Scope:
        """Returns the empty scope of a query inside this one."""
        return Scope((), self.ctes, self)

    def columns(self) -> Iterator[Named]:
        """Yields the columns of all tables, in order."""
        for table in self.tables:
            if not table.qualified_only:
                yield from table.columns

    def find(self, names: Sequence[str]) -> tuple[list[Named], int]:
        """Returns the columns that a name may refer to in this scope alone.

        Args:
            names: the parts of the name: `column`, `table.column`, either with fields of a struct.

        Returns:
            the columns, more than one if the name is ambiguous; the number of parts used.
        """
        if len(names) > 1:
            alias = names[0].lower()
            tables = [each for each in self.tables if each.alias.lower() == alias]
            if found := _distinct([c for each in tables for c in each.named(names[1])]):
                return found, 2
        tables = [each for each in self.tables if not each.qualified_only]
        return _distinct([c for each in tables for c in each.named(names[0])]), 1


def _distinct(columns: Sequence[Named]) -> list[Named]:
    return list({each.column: each for each in columns}.values())
