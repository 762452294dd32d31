"""The tables of `VERSION AS OF` and `TIMESTAMP AS OF`: their rows are read once.

The rows at an epoch never change. So they become a part of the definition that reads them, like
those of VALUES. Such a definition does not need the history any more: it is the same after a
restart, on a branch, after a rewind, and when the history is downsampled or the table is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from nosync_nb.collections.definition import Definition, constant_definition
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.collections.sql.algebra import TimePoint
from nosync_nb.collections.sql.composed import composed
from nosync_nb.collections.sql.grammar import failure
from nosync_nb.collections.sql.query import TableDefinition, ordered_query
from nosync_nb.errors import NosyncError, SqlError, TimeError
from nosync_nb.expressions import compile_expression
from nosync_nb.rows import Field, Schema, to_pylist
from nosync_nb.session.sql.evaluate import RowsAtEpoch, StatementReader
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.trace.batch import Updates

_INPUT = "[INVALID_TIME_TRAVEL_TIMESTAMP_EXPR.INPUT]"


class TableAtEpoch:
    """The rows of a table at an epoch; see `PastTable`."""

    def __init__(self, name: str, found: RowsAtEpoch) -> None:
        self._name, self._found = name, found

    @property
    def schema(self) -> Schema:
        """The columns of the table."""
        return self._found.schema

    def definition(self, positions: Sequence[int]) -> Definition:
        """Returns a constant definition of the rows with some of their columns."""
        batch = self._found.batch
        schema = Schema([self.schema.fields[place] for place in positions])
        updates = Updates([batch.columns[place] for place in positions], batch.diff)
        return constant_definition(schema, updates, self._name, self._found.epoch)


class TimeTravel:
    """Reads tables at an epoch; has no state."""

    def __init__(
        self, publisher: Publisher, reader: StatementReader, types: SparkTypeResolver
    ) -> None:
        self._publisher = publisher
        self._reader = reader
        self._types = types

    def table(self, text: str, name: str, at: TimePoint, tables: TableDefinition) -> TableAtEpoch:
        """Returns the rows of an input or a stage at a point in time.

        Args:
            text: the text of the statement.
            tables: the tables of a subquery in a TIMESTAMP expression.

        Raises:
            SqlError: there is no such epoch, its rows are no longer retained separately, or the
                expression is not a time.
        """
        value: int | str | datetime = at.value
        if at.kind == "timestamp":
            value = self._time(text, at, tables)
        try:
            return TableAtEpoch(name, self._read(name, value))
        except TimeError as error:
            raise failure(text, at.span, str(error), self._hint(name, value, error)) from error

    def _read(self, name: str, value: int | str | datetime) -> RowsAtEpoch:
        """Reads a table; a text is a label, or the number of an epoch if no label is equal."""
        try:
            return self._reader.rows_at(name, value)
        except TimeError:
            if isinstance(value, str) and value.isdecimal() and not self._is_label(value):
                return self._reader.rows_at(name, int(value))
            raise

    def _is_label(self, text: str) -> bool:
        snapshot = self._publisher.snapshot
        try:
            self._publisher.ledger.resolve(text, snapshot.epoch)
        except TimeError:
            return False
        return True

    def _hint(self, name: str, value: int | str | datetime, error: TimeError) -> str:
        """Returns the hint of a read that failed; it names an earlier version with the epoch."""
        hint = error.hint or "name another epoch"
        snapshot = self._publisher.snapshot
        try:
            epoch = self._publisher.ledger.resolve(value, snapshot.epoch)
        except TimeError:
            return hint
        for stage in reversed(list(snapshot.catalog.values())):
            is_version = stage.frozen and stage.name.rpartition("@")[0] == name
            if is_version and stage.begin <= epoch <= snapshot.last(stage):
                return (
                    f"read the version of that time: `{stage.name}` VERSION AS OF {epoch}; {hint}"
                )
        return hint

    def _time(self, text: str, at: TimePoint, tables: TableDefinition) -> datetime:
        """Evaluates the expression of TIMESTAMP AS OF, as Spark does: once, without columns."""
        try:
            values = self._values(text, at, tables)
        except NosyncError as error:
            if isinstance(error, SqlError) and error.reason.startswith("["):
                raise
            what = f"{_INPUT} {at.value} is not a time"
            raise failure(text, at.span, what, _TIME_HINT) from error
        if len(values) != 1 or values[0] is None:
            raise failure(text, at.span, f"{_INPUT} {at.value} is not a time", _TIME_HINT)
        found: datetime = values[0]
        found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
        if found > datetime.now(UTC) + timedelta(seconds=1):
            raise failure(
                text,
                at.span,
                f"{_INPUT} {found:%Y-%m-%d %H:%M:%S} UTC is in the future",
                "name a time that has passed; without AS OF, the table has its current rows",
            )
        return found

    def _values(self, text: str, at: TimePoint, tables: TableDefinition) -> list[Any]:
        """Returns the values of the expression of TIMESTAMP AS OF.

        A literal is evaluated in this process alone, because a malformed one must not start Spark.
        """
        if _LITERAL.fullmatch(str(at.value)):
            unit = Schema([Field("unit", "boolean")])
            cast = f"CAST(({at.value}) AS TIMESTAMP)"
            kind, settings = (lambda *_: ["timestamp"]), self._types.settings
            expression = compile_expression(cast, unit, types=kind, settings=settings)
            return to_pylist(expression.evaluate([np.ones(1, bool)], 1), "timestamp")
        for pieces in (("SELECT (", ")"), ("SELECT CAST((", ") AS TIMESTAMP)")):
            part = composed(text, at.span, pieces[0], at.span, pieces[1])
            with part.errors_at_origin():
                query = ordered_query(part.text, tables, self._types, numbered=True)
            if not _CASTABLE.match(query.definition.schema.types[0]):
                return []
        with part.errors_at_origin():
            batch = self._reader.rows(query.definition)
        return to_pylist(batch.columns[0], "timestamp")


_CASTABLE = re.compile("string|date|timestamp|tinyint|smallint|int$|bigint|float|double|decimal")
_LITERAL = re.compile(r"""\s*(\w+\s*)?('[^']*'|"[^"]*")\s*""")
_TIME_HINT = "write TIMESTAMP AS OF '2026-01-31 12:00:00', or an expression such as now()"
