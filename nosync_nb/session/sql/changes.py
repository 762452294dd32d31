"""Runs the statements that change inputs: INSERT, DELETE, UPDATE, MERGE.

Each statement reads the rows that it needs by queries over the current epoch and the changes of
the earlier statements. It adds its changes to the current transaction, so the caller decides
whether they are committed.
"""

from __future__ import annotations

from nosync_nb.collections.definition import Definition
from nosync_nb.collections.session_protocol import SparkTypeResolver
from nosync_nb.collections.sql.grammar import failure
from nosync_nb.collections.sql.statements import (
    DeleteStatement,
    InsertStatement,
    MergeStatement,
    UpdateStatement,
    Write,
    kind_of,
)
from nosync_nb.dataflow.stage import Stage
from nosync_nb.session.sql.evaluate import StatementReader
from nosync_nb.session.sql.insert import InsertRun
from nosync_nb.session.sql.merge import MergeRun
from nosync_nb.session.sql.results import RowCounts
from nosync_nb.session.sql.statement_run import (
    Tables,
    WriteServices,
)
from nosync_nb.session.sql.tables import Lookup, SqlTables, unknown_table
from nosync_nb.session.sql.update import ChangeRun
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.transactions import Transactions
from nosync_nb.session.writes.ingest import IngestService


class InputStatements:
    """Runs the statements that change inputs; has no state."""

    def __init__(
        self,
        publisher: Publisher,
        transactions: Transactions,
        ingest: IngestService,
        reader: StatementReader,
        tables: SqlTables,
        types: SparkTypeResolver,
    ) -> None:
        self._publisher = publisher
        self._tables = tables
        self._services = WriteServices(publisher, transactions, ingest, reader, types)

    def run(self, text: str, statement: Write, lookup: Tables) -> tuple[str, RowCounts]:
        """Runs a statement; returns the name of the input, and the rows that it changes.

        Args:
            text: the text of all statements.

        Raises:
            SqlError: the statement does not fit the tables, or a value does not fit its column.
        """
        stage = self._target(text, statement, lookup(text))
        given = self._services, stage, text, statement, lookup
        match statement:
            case InsertStatement():
                counts = InsertRun(*given).insert(statement)
            case DeleteStatement():
                counts = ChangeRun(*given).delete(statement)
            case UpdateStatement():
                counts = ChangeRun(*given).update(statement)
            case MergeStatement():
                counts = MergeRun(*given).merge(statement)
            case _:
                raise AssertionError(statement)
        return stage.name, counts

    def _target(self, text: str, statement: Write, lookup: Lookup) -> Stage:
        """Returns the input that a statement changes.

        Raises:
            SqlError: there is no such input, or the name is a stage or a view.
        """
        name, span = statement.target
        found = lookup.existing(name)
        if found is None:
            raise unknown_table(text, span, name, self._tables)
        stage = self._publisher.snapshot.catalog.get(found.name) if found.is_ref else None
        if stage is None or not stage.is_input:
            verb = kind_of(statement)
            read = ", ".join(self._inputs_of(found)[:3])
            where = f"change the inputs that it reads: {read}" if read else "name an input"
            raise failure(
                text,
                span,
                f"[EXPECT_TABLE_NOT_VIEW.NO_ALTERNATIVE] {verb}: `{name}` is a stage or a view;"
                " its rows follow from its definition",
                where,
            )
        return stage

    def _inputs_of(self, definition: Definition) -> list[str]:
        """Returns the inputs that a definition reads, also indirectly."""
        catalog, names = self._publisher.snapshot.catalog, list(definition.references)
        inputs: dict[str, None] = {}
        visited: set[str] = set()
        while names:
            name = names.pop(0)
            stage = catalog.get(name)
            if stage is None or name in visited:
                continue
            visited.add(name)
            if stage.definition is None:
                inputs[name] = None
            else:
                names += stage.definition.references
        return list(inputs)
