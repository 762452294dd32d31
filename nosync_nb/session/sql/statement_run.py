"""A statement that changes an input while it runs: its queries, values and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.collections.sql.composed import ComposedText, composed
from nosync_nb.collections.sql.grammar import TextSpan, failure
from nosync_nb.collections.sql.query import ordered_query
from nosync_nb.collections.sql.statements import (
    Assignment,
    MergeStatement,
    Name,
    Write,
    alias_of,
)
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SchemaError, SqlError, likely
from nosync_nb.session.sql.assignment import StoreAssignmentError, fitted
from nosync_nb.session.sql.evaluate import StatementReader
from nosync_nb.session.sql.key_lookup import finds_equal, is_named_once, key_values
from nosync_nb.session.sql.tables import Lookup
from nosync_nb.session.sql.values import NULLS
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.transactions import PendingCall, Transactions, rows_of_keys
from nosync_nb.session.writes.commit import last_change
from nosync_nb.session.writes.ingest import IngestService
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange

Tables = Callable[[str], Lookup]
"""Returns the tables for the queries of a text."""


class StatementQuery(NamedTuple):
    """A query of a statement, for error positions."""

    definition: Definition
    names: tuple[str, ...]


class WriteServices:
    """What the statements that change inputs use of the session; has no state."""

    def __init__(
        self,
        publisher: Publisher,
        transactions: Transactions,
        ingest: IngestService,
        reader: StatementReader,
        types: SparkTypeResolver,
    ) -> None:
        self._publisher = publisher
        self._transactions = transactions
        self._ingest = ingest
        self._reader = reader
        self._types = types

    def reserve(self, stage: Stage) -> None:
        """Records that the current transaction reads an input, which must not change until then."""
        epoch = last_change(self._publisher.snapshot, stage.name)
        self._transactions.current.require_unchanged(stage.name, epoch)

    @property
    def reader(self) -> StatementReader:
        """Evaluates queries."""
        return self._reader

    @property
    def types(self) -> SparkTypeResolver:
        """The types of expressions."""
        return self._types

    def add(self, stage: Stage, kind: str, updates: Updates) -> int:
        """Adds a change of an input to the transaction."""
        if not len(updates.diff):
            return 0
        return self._ingest.add(stage.name, PendingCall(kind, updates))

    def insert_values(self, stage: Stage, values: Sequence[tuple[object, ...]]) -> int:
        """Adds rows of Python values."""
        return self._ingest.ingest(stage.name, "insert", list(values))


class StatementRun:
    """One statement that runs.

    Args:
        stage: the input that it changes.
        text: the text of all statements.
    """

    def __init__(
        self, services: WriteServices, stage: Stage, text: str, statement: Write, lookup: Tables
    ) -> None:
        self._all, self._text, self._statement, self._lookup = services, text, statement, lookup
        self.stage = stage
        self._narrowed: Batch | None = None
        self._names = [name.lower() for name in self.stage.schema.names]
        self._width = len(self._names)

    # -- queries -------------------------------------------------------------------------------

    @property
    def _target(self) -> tuple[str | TextSpan, ...]:
        """The input as a table of a FROM clause."""
        name, alias = self._statement.target.span, self._statement.alias
        return (name,) if alias is None else (name, " AS ", alias.span)

    @property
    def _qualifier(self) -> TextSpan:
        """The name of the input's row in expressions."""
        alias = self._statement.alias
        return self._statement.target.span if alias is None else alias.span

    def _compose(self, *pieces: str | TextSpan | None) -> ComposedText:
        with_ = self._statement.with_
        return composed(self._text, self._statement.span, with_, " " if with_ else None, *pieces)

    def _query(self, text: ComposedText) -> StatementQuery:
        """Returns a query, with numbers as the names of its columns."""
        lookup = self._lookup(text.text)
        with text.errors_at_origin(lookup.hint):
            types, past = self._all.types, lookup.at
            found = ordered_query(text.text, lookup, types, past=past, numbered=True)
            return StatementQuery(found.definition, found.names)

    def _rows(
        self, text: ComposedText, query: StatementQuery, values: Sequence[int | None]
    ) -> SelectedRows:
        """Evaluates a query, with some of its columns converted to those of the input.

        Args:
            values: for each column of the input, the position of its value; None: null.
        """
        with text.errors_at_origin():
            fit = fitted(query.definition, values, self.stage.schema.fields, self._all.types)
            batch = self._all.reader.rows(fit.definition, self._contents_for(fit.definition))
        fit.check(batch)
        return SelectedRows(batch.columns, batch.diff, fit.columns)

    def _failed(self, span: TextSpan, what: str, hint: str) -> SqlError:
        return failure(self._text, span, what, hint)

    def _misfit(self, error: StoreAssignmentError, spans: dict[int, TextSpan]) -> SqlError:
        """Returns the error for a value that does not fit its column."""
        misfit = error.misfit
        span = spans.get(misfit.column, self._statement.span)
        return self._failed(span, f"{misfit.reason} of input '{self.stage.name}'", misfit.hint)

    def _column(self, name: Name) -> int:
        """Returns the position of a column of the input."""
        try:
            return self._names.index(name.name.lower())
        except ValueError:
            names = self.stage.schema.names
            raise self._failed(
                name.span,
                f"[UNRESOLVED_COLUMN.WITH_SUGGESTION] input '{self.stage.name}' has no column"
                f" `{name.name}`",
                likely(name.name, names, "the columns are"),
            ) from None

    def _assigned(self, assignments: Sequence[Assignment]) -> dict[int, Assignment]:
        """Returns assignments by the position of their column."""
        found: dict[int, Assignment] = {}
        names = {self._statement.target.name.lower()}
        if self._statement.alias is not None:
            names = {self._statement.alias.name.lower()}
        for each in assignments:
            if each.table is not None and each.table.name.lower() not in names:
                raise self._failed(
                    each.table.span,
                    f"[UNRESOLVED_COLUMN] `{each.table.name}` is not the input's name here;"
                    " fields of structs cannot be assigned alone",
                    "assign the whole column: named_struct(...)",
                )
            position = self._column(each.column)
            if position in found:
                raise self._failed(
                    each.column.span,
                    f"[COLUMN_ALREADY_EXISTS] column `{each.column.name}` is assigned twice",
                    "assign each column once",
                )
            found[position] = each
        return found

    def _value(self, span: TextSpan, column: int) -> tuple[str | TextSpan, ...]:
        """Returns the text of a value for a column; NULL has no type of its own."""
        if self._text[span.start : span.stop].upper() in NULLS:
            return (f"CAST(NULL AS {self.stage.schema.types[column]})",)
        return ("(", span, ")")

    # -- rows by key ---------------------------------------------------------------------------

    def _narrow(self, condition: TextSpan | None, source: TextSpan | None = None) -> None:
        """Reads only the rows of the input with the keys that a condition fixes, if it does.

        Args:
            source: the other table of the statement, whose columns may be values of the keys.
        """
        key, name = self.stage.key, self.stage.name
        statement = self._statement
        other = None if source is None else alias_of(self._text, source)
        if key is None or condition is None or (source is not None and other is None):
            return
        keys = [self._names[place] for place in key]
        table = self._text_of(self._qualifier)
        found = key_values(
            self._text, condition, keys, table, None if other is None else self._text_of(other)
        )
        if found is None or not is_named_once(self._text, statement.span, statement.target.name):
            return
        values = [piece for span in found for piece in (", ", span)][1:]
        tables = () if source is None else (" FROM ", source)
        query = self._query(self._compose("SELECT DISTINCT ", *values, *tables))
        fields = [self.stage.schema.fields[place] for place in key]
        given = query.definition.schema.types
        if name in query.definition.references or not all(
            finds_equal(value, each.type) for value, each in zip(given, fields, strict=True)
        ):
            return
        fit = fitted(query.definition, range(len(key)), fields, self._all.types)
        batch = self._all.reader.rows(fit.definition)
        columns = [batch.columns[place] for place in fit.columns]
        contents = self._all.reader.contents(name)
        layout = Layout(self.stage.schema.types, key)
        rows_found = rows_of_keys(self.stage, columns, contents)
        self._narrowed = arrange(layout, rows_found)

    def _text_of(self, span: TextSpan) -> str:
        """Returns the name that a part of the text is, without backticks."""
        return self._text[span.start : span.stop].strip("`")

    def _contents_for(self, definition: Definition) -> Mapping[str, Batch]:
        """Returns the narrowed rows of the input, if a query reads it once."""
        name = self.stage.name
        refs = [ref for ref in definition.refs if ref.name == name]
        return {name: self._narrowed} if self._narrowed is not None and len(refs) == 1 else {}

    # -- rows of the input ---------------------------------------------------------------------

    def _targets(self, text: ComposedText) -> Updates:
        """Returns the rows of the input that a query selects."""
        return self._rows(text, self._query(text), range(self._width)).values()

    def _updated(
        self, assigned: dict[int, NewValue], source: Sequence[str | TextSpan]
    ) -> tuple[Updates, Updates]:
        """Returns rows of the input, and the rows that replace them."""
        pieces: list[str | TextSpan] = ["SELECT ", self._qualifier, ".*"]
        places: list[int | None] = list(range(self._width))
        for at, (column, each) in enumerate(assigned.items()):
            pieces += [", ", *each.pieces]
            places[column] = self._width + at
        text = self._compose(*pieces, *source)
        query = self._query(text)
        try:
            found = self._rows(text, query, places)
        except StoreAssignmentError as error:
            raise self._misfit(error, spans_of(assigned)) from None
        return found.first(self._width), found.values()

    # -- the transaction -----------------------------------------------------------------------

    def _add(self, kind: str, updates: Updates) -> int:
        """Adds a change of the input; returns the number of rows."""
        self._wrapped(lambda: self._all.add(self.stage, kind, updates))
        return int(updates.diff.sum())

    def _wrapped(self, add: Callable[[], int]) -> int:
        """Raises the error of a change at the statement."""
        try:
            return add()
        except SchemaError as error:
            is_merge = isinstance(self._statement, MergeStatement)
            reason = "[MERGE_CARDINALITY_VIOLATION] " if is_merge else ""
            hint = error.hint or "change the values"
            if "upsert" in hint:
                hint = "insert each key once; MERGE INTO replaces rows that are present"
            raise self._failed(self._statement.span, f"{reason}{error}", hint) from error


class NewValue(NamedTuple):
    """A new value: its text, and the part of the statement that it stands for."""

    pieces: tuple[str | TextSpan, ...]
    span: TextSpan


class SelectedRows(NamedTuple):
    """The rows of a query, and the positions of the columns that fit the input."""

    columns: Sequence[Any]
    diff: Any
    positions: tuple[int, ...]

    def values(self) -> Updates:
        """Returns the columns that fit the input."""
        return Updates([self.columns[i] for i in self.positions], self.diff)

    def first(self, count: int) -> Updates:
        """Returns the first columns of the query."""
        return Updates(list(self.columns[:count]), self.diff)


def spans_of(values: Mapping[int, NewValue]) -> dict[int, TextSpan]:
    """Returns the parts of the statement that new values stand for, by position of the column."""
    return {column: value.span for column, value in values.items()}
