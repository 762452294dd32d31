"""The rows to which the expressions of one query refer.

An expression that needs more than text over columns (a subquery, a window function) extends the
relation by a column, and refers to that column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nosync_nb.collections.sql.algebra import (
    Column,
    LogicalFilter,
    LogicalJoin,
    LogicalProject,
    Named,
    Numbers,
    Output,
    Relation,
    Scalar,
    column,
)
from nosync_nb.collections.sql.resolver.scope import Scope


@dataclass
class QueryGroups:
    """The groups of a query with GROUP BY or aggregates.

    Attributes:
        ungrouped: the rows before they are grouped.
        keys: the column of each key by `Scalar.key` of its expression.
        set_number: the column with the number of the grouping set; 0 without grouping sets.
        queries: the column of each key with a subquery by the text of the key.
        calls: the aggregates by `Scalar.key` of their call.
        called: the column of each aggregate by the identity of its tree.
        has_keys: True if the query has GROUP BY.
        is_having: True while the condition of HAVING is resolved.
    """

    ungrouped: Rows
    keys: Mapping[Any, Column]
    set_number: Column = 0
    queries: dict[Any, Column] = field(default_factory=dict)
    calls: dict[Any, Output] = field(default_factory=dict)
    called: dict[int, Column] = field(default_factory=dict)
    has_keys: bool = True
    is_having: bool = False


class Rows:
    """A relation under construction, and what names mean in it.

    Attributes:
        groups: the keys and aggregates, if the rows are groups.
        aliases: the trees of SELECT items by alias in lower case, to which expressions may refer.
        resolved: the aliases that are resolved.
        results: the columns of the SELECT list by name, which come before those of FROM.
        repeated: the names of several columns of the list, which refer to columns of FROM alone.
        windows: the windows of the WINDOW clause by name.
        added: the results of subqueries and window functions, by the identity of their tree: an
            expression that is resolved twice adds them once.
    """

    def __init__(self, relation: Relation, scope: Scope, numbers: Numbers) -> None:
        self.relation, self.scope = relation, scope
        self.groups: QueryGroups | None = None
        self._numbers = numbers
        self.aliases: dict[str, Any] = {}
        self.resolved: dict[str, Scalar] = {}
        self.results: dict[str, Column] = {}
        self.repeated: frozenset[str] = frozenset()
        self.windows: dict[str, Any] = {}
        self.added: dict[int, tuple[str | Column, ...]] = {}

    def adopt(self, groups: QueryGroups) -> None:
        """Declares the rows to be groups, to whose keys and aggregates expressions refer."""
        self.groups, self.windows = groups, groups.ungrouped.windows

    def extend(self, relation: Relation) -> None:
        """Replaces the relation by one that has all of its columns, and perhaps more."""
        self.relation = relation

    def filter(self, condition: Scalar) -> None:
        """Retains the rows for which a condition is true."""
        self.relation = LogicalFilter(self.relation.columns, self.relation, condition)

    def name_results(self, columns: Iterable[Named]) -> None:
        """Declares the columns of the SELECT list, which come before those of FROM."""
        listed = [(each.name.lower(), each.column) for each in columns]
        counts = Counter(name for name, _ in listed)
        self.repeated = frozenset(name for name, count in counts.items() if count > 1)
        self.results = {name: number for name, number in listed if name not in self.repeated}

    @contextmanager
    def with_aliases(self, trees: Mapping[str, Any]) -> Iterator[None]:
        """Lets expressions refer to items of the SELECT list by these names in lower case."""
        before, self.aliases = self.aliases, {**self.aliases, **trees}
        try:
            yield
        finally:
            self.aliases = before

    @contextmanager
    def as_having(self) -> Iterator[None]:
        """Lets the errors of expressions be those of the condition of HAVING."""
        if self.groups is not None:
            self.groups.is_having = True
        try:
            yield
        finally:
            if self.groups is not None:
                self.groups.is_having = False

    def add_alias(self, name: str, tree: Any, value: Scalar) -> None:
        """Lets the following expressions refer to an item of the SELECT list."""
        self.aliases.setdefault(name.lower(), tree)
        self.resolved.setdefault(name.lower(), value)

    def place(self, scalar: Scalar) -> Column:
        """Returns the column of an expression, and computes it if there is none."""
        if scalar.column is not None:
            return scalar.column
        number = self._numbers.new()
        self.compute((Output(number, scalar),))
        return number

    def compute(self, outputs: tuple[Output, ...]) -> None:
        """Adds computed columns."""
        if outputs:
            passed = tuple(Output(each, column(each)) for each in self.relation.columns)
            columns = (*self.relation.columns, *(each.column for each in outputs))
            self.relation = LogicalProject(columns, self.relation, (*passed, *outputs))

    def restrict(self, kind: str, right: Relation, conditions: tuple[Scalar, ...]) -> None:
        """Retains the rows with ("semi") or without ("anti") a match."""
        self.relation = LogicalJoin(self.relation.columns, self.relation, right, kind, conditions)

    def mark(self, right: Relation, conditions: tuple[Scalar, ...]) -> Column:
        """Adds a column that is true for the rows that have a match."""
        number = self._numbers.new()
        columns = (*self.relation.columns, number)
        self.relation = LogicalJoin(columns, self.relation, right, "mark", conditions, number)
        return number
