"""From the text of a query to its definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from sqlglot import exp

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.collections.sql.algebra import (
    LogicalProject,
    LogicalScan,
    LogicalTop,
    Named,
    OrderBy,
    Output,
    Relation,
    TimePoint,
    column,
)
from nosync_nb.collections.sql.arrange import arranged
from nosync_nb.collections.sql.grammar import (
    Statement,
    TextSpan,
    failure,
    parse_statements,
    span_of,
)
from nosync_nb.collections.sql.lower import Lowering
from nosync_nb.collections.sql.prune import pruned
from nosync_nb.collections.sql.resolver.resolver import Resolver
from nosync_nb.collections.sql.resolver.scope import Scope
from nosync_nb.collections.sql.unnest import unnested
from nosync_nb.collections.sql.window_plans import planned_windows
from nosync_nb.errors import SqlError
from nosync_nb.expressions.syntax.parser import run_with_recursion_room
from nosync_nb.rows import Schema

_ALL_ROWS = 2**31 - 1

TableDefinition = Callable[[str], Definition | None]
"""Returns the definition of a table by name: a reference, or that of a view; None if unknown.

A name with several parts has each in backticks: `` `db`.`t` ``.
"""


class PastTable(Protocol):
    """The rows of a table at a point in time."""

    @property
    def schema(self) -> Schema:
        """The columns of the table."""

    def definition(self, positions: Sequence[int]) -> Definition:
        """Returns a constant definition of the rows with some of their columns."""


PastTables = Callable[[str, TimePoint], PastTable | None]
"""Returns a table at a point in time by name; None if there is no such table."""


class OrderPosition(NamedTuple):
    """One column of an ORDER BY, by position."""

    position: int
    descending: bool
    nulls_first: bool


class OrderedQuery(NamedTuple):
    """A query with the order of its rows.

    Attributes:
        definition: the query.
        ordered: the query, followed by the columns of its ORDER BY.
        order: the positions of these columns in `ordered`; empty without ORDER BY.
        limited: True if the query has a LIMIT, so that the order decides which rows it has.
        names: the names of its columns, which need not be distinct.
    """

    definition: Definition
    ordered: Definition
    order: tuple[OrderPosition, ...]
    limited: bool
    names: tuple[str, ...]


def query_definition(text: str, table: TableDefinition, types: SparkTypeResolver) -> Definition:
    """Returns the definition of a SELECT.

    Args:
        table: returns the definition of an input, a stage or a view by name, or None.

    Raises:
        SqlError: if the text is not one query, or names what does not exist.
    """
    return ordered_query(text, table, types).definition


def ordered_query(
    text: str,
    table: TableDefinition,
    types: SparkTypeResolver,
    *,
    past: PastTables | None = None,
    numbered: bool = False,
    unique: bool = False,
) -> OrderedQuery:
    """Returns the definition of a SELECT, and the order of its ORDER BY.

    The rows of a collection have no order. So ORDER BY without LIMIT changes no definition; it is
    for a reader that shows the rows.

    Args:
        past: returns the tables of VERSION AS OF and TIMESTAMP AS OF.
        numbered: True to name the columns `_0`, `_1`, ..., because theirs need not be distinct.
        unique: True to name the second of two columns `id` `id_1`, as for a display.

    Raises:
        SqlError: as in `query_definition`.
    """
    return run_with_recursion_room(
        partial(_ordered_query, text, table, types, past, numbered=numbered, unique=unique),
        lambda: SqlError(
            "[FAILED_TO_PARSE_TOO_COMPLEX] the statement is nested too deeply",
            hint="define a part of it first: CREATE VIEW part AS SELECT ...",
        ),
    )


def _ordered_query(
    text: str,
    table: TableDefinition,
    types: SparkTypeResolver,
    past: PastTables | None,
    *,
    numbered: bool,
    unique: bool,
) -> OrderedQuery:
    statement = _only_statement(text)
    tree = statement.tree
    limited = tree.args.get("limit") is not None or tree.args.get("offset") is not None
    is_ordered = tree.args.get("order") is not None
    if is_ordered and not limited:  # with a limit, the resolver resolves the order
        tree.set("limit", exp.Limit(expression=exp.Literal.number(_ALL_ROWS)))

    tables = _Tables(table, past)

    def type_of_last(relation: Relation) -> str:
        made = arranged(unnested(arranged(relation), resolver.numbers))
        last = Named(relation.columns[-1], "value")
        wanted = pruned(made, [last.column])
        lowered = Lowering(statement.text, tables.scan, types).lower(wanted, [last])
        return lowered.schema.types[0]

    resolver = Resolver(statement, tables.columns, type_of_last)
    query = resolver.query(tree, Scope())
    shown = query.columns
    if numbered:
        shown = tuple(Named(c.column, f"_{i}") for i, c in enumerate(query.columns))
    elif unique:
        shown = _unique_names(query.columns)
    else:
        _check_names(statement, query.columns)
    relation, terms = (query.relation, ()) if not is_ordered else _with_order(query.relation)
    if terms and not limited:
        relation = _without_limit(relation)
    relation = planned_windows(arranged(unnested(arranged(relation), resolver.numbers)))

    def lowered(columns: Sequence[Named]) -> Definition:
        wanted = pruned(relation, [each.column for each in columns])
        return Lowering(statement.text, tables.scan, types).lower(wanted, columns)

    definition = ordered = lowered(shown)
    columns, order = _order_columns(shown, terms)
    if len(columns) > len(shown):
        ordered = lowered(columns)
    return OrderedQuery(
        definition, ordered, order, limited, tuple(each.name for each in query.columns)
    )


class _Tables:
    """The tables of one query; each is looked up once."""

    def __init__(self, table: TableDefinition, past: PastTables | None) -> None:
        self._table, self._past = table, past
        self._current: dict[str, Definition | None] = {}
        self._earlier: dict[tuple[str, str, int | str], PastTable | None] = {}
        self._constants: dict[tuple[int, tuple[int, ...]], Definition] = {}

    def columns(self, name: str, at: TimePoint | None) -> Schema | None:
        """Returns the columns of a table; None if there is none."""
        found = self._definition(name) if at is None else self._at(name, at)
        return None if found is None else found.schema

    def scan(self, relation: LogicalScan) -> Definition:
        """Returns a table, or some columns of its rows at a point in time."""
        if relation.at is None:
            definition = self._definition(relation.name)
            assert definition is not None
            return definition
        found = self._at(relation.name, relation.at)
        assert found is not None
        places = {name: place for place, name in enumerate(found.schema.names)}
        positions = tuple(places[each.name] for each in relation.named)
        key = id(found), positions
        if key not in self._constants:
            self._constants[key] = found.definition(positions)
        return self._constants[key]

    def _definition(self, name: str) -> Definition | None:
        if name not in self._current:
            self._current[name] = self._table(name)
        return self._current[name]

    def _at(self, name: str, at: TimePoint) -> PastTable | None:
        assert self._past is not None
        key = name, at.kind, at.value
        if key not in self._earlier:
            self._earlier[key] = self._past(name, at)
        return self._earlier[key]


def _unique_names(columns: Sequence[Named]) -> tuple[Named, ...]:
    """Returns columns with a number behind the names that others before them have."""
    names = {each.name.lower() for each in columns}
    counts: Counter[str] = Counter()
    shown = []
    for each in columns:
        own, name = each.name.lower(), each.name
        if counts[own]:
            number = counts[own]
            while f"{own}_{number}" in names:
                number += 1
            name = f"{each.name}_{number}"
            names.add(name.lower())
        counts[own] += 1
        shown.append(Named(each.column, name))
    return tuple(shown)


def _check_names(statement: Statement, columns: Sequence[Named]) -> None:
    """Raises SqlError if two columns have the same name: those of a collection differ."""
    names: set[str] = set()
    for each in columns:
        if each.name.lower() in names:
            raise failure(
                statement.text,
                span_of(statement.tree),
                f"[COLUMN_ALREADY_EXISTS] two columns are named {each.name!r}",
                f"name one of them: ... AS {each.name}_1",
            )
        names.add(each.name.lower())


def _with_order(relation: Relation) -> tuple[Relation, tuple[OrderBy, ...]]:
    """Returns a query's relation with the columns of its ORDER BY, and the order.

    The resolver applies the order by a `Top`, above which may be a selection of columns.
    """
    if isinstance(relation, LogicalTop):
        return relation, relation.order
    if not isinstance(relation, LogicalProject) or not isinstance(relation.source, LogicalTop):
        return relation, ()
    outputs = list(relation.outputs)
    numbers = {each.value.column: each.column for each in outputs}
    terms = []
    for term in relation.source.order:
        if term.column not in numbers:
            numbers[term.column] = term.column
            outputs.append(Output(term.column, column(term.column)))
        terms.append(term._replace(column=numbers[term.column]))
    columns = tuple(each.column for each in outputs)
    return LogicalProject(columns, relation.source, tuple(outputs)), tuple(terms)


def _without_limit(relation: Relation) -> Relation:
    """Returns a relation without the `Top` of its order."""
    if isinstance(relation, LogicalTop):
        return relation.source
    assert isinstance(relation, LogicalProject)
    assert isinstance(relation.source, LogicalTop)
    return replace(relation, source=relation.source.source)


def _order_columns(
    columns: tuple[Named, ...], terms: tuple[OrderBy, ...]
) -> tuple[tuple[Named, ...], tuple[OrderPosition, ...]]:
    """Returns the columns of a query and those of its order, and the order by position."""
    places = {each.column: place for place, each in reversed(list(enumerate(columns)))}
    names = {each.name.lower() for each in columns}
    found = list(columns)
    order = []
    for each in terms:
        place = places.get(each.column)
        if place is None:
            place = places[each.column] = len(found)
            name = f"order_{place}"
            while name in names:
                name += "_"
            found.append(Named(each.column, name))
        order.append(OrderPosition(place, each.descending, each.nulls_first))
    return tuple(found), tuple(order)


def _only_statement(text: str) -> Statement:
    """Returns the only statement of a text."""
    statements = parse_statements(text)
    if len(statements) != 1:
        raise SqlError(
            f"[PARSE_SYNTAX_ERROR] the text has {len(statements)} statements",
            hint="pass one SELECT; session.execute() runs several statements",
        )
    if not isinstance(statements[0].tree, exp.Query | exp.Values | exp.Table):
        word = text.split(maxsplit=1)[0].upper()
        raise failure(
            text,
            TextSpan(len(text) - len(text.lstrip()), len(text.rstrip())),
            f"[UNSUPPORTED_STATEMENT] {word} is not a query",
            "session.execute() and `%%dd sql` cells run statements that write",
        )
    return statements[0]
