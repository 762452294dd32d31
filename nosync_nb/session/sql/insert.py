"""Runs INSERT."""

from __future__ import annotations

from collections.abc import Sequence

from nosync_nb.collections.sql.grammar import TextSpan
from nosync_nb.collections.sql.statements import (
    InsertStatement,
    Name,
)
from nosync_nb.session.sql.assignment import StoreAssignmentError, fitted, kind_of_type
from nosync_nb.session.sql.results import RowCounts
from nosync_nb.session.sql.statement_run import (
    StatementRun,
)
from nosync_nb.session.sql.values import NULLS, LiteralRows, rows_of_literals
from nosync_nb.trace.batch import Updates, concat_updates

_CELLS_MAX = 256
"""The most values of VALUES that one query computes."""


class InsertRun(StatementRun):
    """An INSERT that runs."""

    def insert(self, statement: InsertStatement) -> RowCounts:
        """Runs INSERT."""
        if statement.rows:
            return RowCounts(inserted=self._insert_values(statement))
        text = self._compose("SELECT * FROM (", statement.query, ")")
        query = self._query(text)
        if statement.by_name:
            listed = [Name(name, statement.query) for name in query.names]
        else:
            listed = list(statement.columns)
        sources = self._sources(listed, len(query.names), statement)
        try:
            found = self._rows(text, query, sources)
        except StoreAssignmentError as error:
            raise self._misfit(error, {}) from None
        return RowCounts(inserted=self._add("insert", found.values()))

    def _sources(
        self, listed: Sequence[Name], count: int, statement: InsertStatement
    ) -> list[int | None]:
        """Returns the position of the value of each column of the input."""
        if listed:
            places: list[int | None] = [None] * self._width
            for at, name in enumerate(listed):
                position = self._column(name)
                if places[position] is not None:
                    raise self._failed(
                        name.span,
                        f"[COLUMN_ALREADY_EXISTS] column `{name.name}` is listed twice",
                        "list each column once",
                    )
                places[position] = at
        else:
            places = list(range(self._width))
        wanted = len(listed) or self._width
        if count != wanted:
            kind = "NOT_ENOUGH_DATA_COLUMNS" if count < wanted else "TOO_MANY_DATA_COLUMNS"
            columns = ", ".join(name.name for name in listed) or ", ".join(self.stage.schema.names)
            raise self._failed(
                statement.query,
                f"[INSERT_COLUMN_ARITY_MISMATCH.{kind}] {count} values for {wanted} columns of"
                f" input '{self.stage.name}'",
                f"write a value for each of: {columns}",
            )
        return places

    def _insert_values(self, statement: InsertStatement) -> int:
        """Inserts the rows of VALUES."""
        first = statement.rows[0]
        for row in statement.rows:
            if len(row) != len(first):
                raise self._failed(
                    TextSpan(row[0].start, row[-1].stop),
                    f"[INVALID_INLINE_TABLE.NUM_COLUMNS_MISMATCH] this row has {len(row)} values,"
                    f" and the first one {len(first)}",
                    "write as many values in each row",
                )
        sources = self._sources(list(statement.columns), len(first), statement)
        fields = self.stage.schema.fields
        literal = rows_of_literals(self._text, statement.rows, sources, fields)
        if not isinstance(literal, LiteralRows):
            span, misfit = literal
            raise self._misfit(StoreAssignmentError(misfit), {misfit.column: span})
        kinds = _Kinds([source for source in sources if source is not None])
        size = max(1, _CELLS_MAX // len(first))
        pieces = [
            self._computed_rows(literal.others[at : at + size], sources, kinds)
            for at in range(0, len(literal.others), size)
        ]
        self._refuse_mixed(statement, literal, kinds)
        count = 0
        if literal.values:
            count += self._wrapped(lambda: self._all.insert_values(self.stage, literal.values))
        if pieces:
            count += self._add("insert", concat_updates(pieces, self.stage.schema.types))
        return count

    def _refuse_mixed(
        self, statement: InsertStatement, literal: LiteralRows, kinds: _Kinds
    ) -> None:
        """Raises if a column of VALUES has values of types without a common one, as in Spark."""
        others = {id(row) for row in literal.others}
        for row in statement.rows:
            if id(row) not in others:
                kinds.add_literals(self._text, row)
        if kinds.mixed is not None:
            raise self._failed(
                kinds.mixed,
                "[INVALID_INLINE_TABLE.INCOMPATIBLE_TYPES_IN_INLINE_TABLE] the column of this value"
                " has values of other types",
                "write values of one type in each column",
            )

    def _computed_rows(
        self, some: Sequence[tuple[TextSpan, ...]], sources: Sequence[int | None], kinds: _Kinds
    ) -> Updates:
        """Evaluates some rows of VALUES as the columns of one row.

        A union of rows would be as deep as there are rows.
        """
        columns = {source: target for target, source in enumerate(sources) if source is not None}
        pieces: list[str | TextSpan] = ["SELECT "]
        for row in some:
            for at, span in enumerate(row):
                pieces += [*self._value(span, columns[at]), ", "]
        text = self._compose(*pieces[:-1])
        query = self._query(text)
        types = iter(query.definition.schema.types)
        for row in some:
            kinds.add(self._text, row, [next(types) for _ in row])
        fields = [field for _ in some for field in self.stage.schema.fields]
        width = len(some[0])
        places = [
            None if source is None else row * width + source
            for row in range(len(some))
            for source in sources
        ]
        try:
            with text.errors_at_origin():
                fit = fitted(query.definition, places, fields, self._all.types)
                batch = self._all.reader.rows(fit.definition)
            fit.check(batch)
        except StoreAssignmentError as error:
            number, column = divmod(error.misfit.column, self._width)
            source = sources[column]
            assert source is not None
            raise self._misfit(error, {error.misfit.column: some[number][source]}) from None
        parts = []
        for start in range(0, len(fit.columns), self._width):
            each = fit.columns[start : start + self._width]
            parts.append(Updates([batch.columns[i] for i in each], batch.diff))
        return concat_updates(parts, self.stage.schema.types)


class _Kinds:
    """The kinds of the values in each column of VALUES: numbers, strings, times, ...

    Attributes:
        mixed: the first value that is of another kind than those before it in its column.
    """

    def __init__(self, columns: Sequence[int]) -> None:
        self._kinds: dict[int, str] = {}
        self._columns = columns
        self.mixed: TextSpan | None = None

    def add(self, text: str, row: Sequence[TextSpan], types: Sequence[str]) -> None:
        """Adds a row with the types of its values."""
        for column in self._columns:
            span = row[column]
            if text[span.start : span.stop].upper() not in NULLS:
                self._add(column, span, kind_of_type(types[column]))

    def add_literals(self, text: str, row: Sequence[TextSpan]) -> None:
        """Adds a row of literals."""
        for column in self._columns:
            span = row[column]
            word = text[span.start : span.stop].upper()
            if word not in NULLS:
                kind = "string" if word[0] in "'\"" else "number"
                self._add(column, span, "boolean" if word in ("TRUE", "FALSE") else kind)

    def _add(self, column: int, span: TextSpan, kind: str) -> None:
        if self._kinds.setdefault(column, kind) != kind and self.mixed is None:
            self.mixed = span
