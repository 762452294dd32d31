"""Tables of the running Spark session in FROM: each is loaded once into an input of its name.

The input records the table that it was loaded from (`Stage.origin`), so that REFRESH TABLE finds it
in a later session too. The load is a load with an idempotency key, which the log records with the
rows. No Spark session is started here.

Failure: 1. A statement loads a table: the input is declared, and its rows wait in the transaction.
2. The process dies, or the cell fails. 3. The next query reads an input without rows. Hence an
input whose load the log has not recorded is loaded again before it is read. The same happens after
a rewind to before the load.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING

from nosync_nb.collections.definition import check_name
from nosync_nb.collections.sql.grammar import TextSpan, failure, words_of
from nosync_nb.collections.sql.statements import RefreshTable
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SchemaError
from nosync_nb.rows import Schema
from nosync_nb.rows.ddl import quoted
from nosync_nb.session.definitions.define import InputDeclarations
from nosync_nb.session.sql.results import RowCounts
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.transactions import Transactions
from nosync_nb.session.writes.idempotency import idempotency_mark
from nosync_nb.session.writes.ingest import IngestService
from nosync_nb.spark.connection import SparkConnection

if TYPE_CHECKING:
    from nosync_nb.spark.catalog_tables import SparkTable


class SparkTables:
    """Loads tables of the running Spark session into inputs; has no state.

    Threads: any may call. Rows are added to the current transaction of the caller.
    """

    def __init__(
        self,
        publisher: Publisher,
        transactions: Transactions,
        spark_connection: SparkConnection,
        declarations: InputDeclarations,
        ingest: IngestService,
    ) -> None:
        self._publisher = publisher
        self._transactions = transactions
        self._spark_connection = spark_connection
        self._declarations = declarations
        self._ingest = ingest

    @property
    def can_load(self) -> bool:
        """True if a Spark session runs, and the log can be written."""
        return self._is_writable and self._spark_connection.present() is not None

    @property
    def _is_writable(self) -> bool:
        return self._publisher.store.log.mode == "w"

    def has(self, names: Sequence[str]) -> bool:
        """Returns True if Spark runs and has a table or a view of a name, given its parts."""
        path = ".".join(map(quoted, names))
        return self.can_load and self._spark_connection.table(path) is not None

    def loaded_from(self, names: Sequence[str]) -> Stage | None:
        """Returns the input that was loaded from a table.

        Args:
            names: the last parts of the table's full name, in any case.
        """
        wanted = [name.lower() for name in names]
        for stage in self._publisher.snapshot.catalog.values():
            path = [name.lower() for name in split_path(stage.origin)]
            if stage.origin and path[-len(wanted) :] == wanted:
                return stage
        return None

    @property
    def has_unloaded(self) -> bool:
        """True if the load of an input is neither in the log nor in the transaction."""
        return any(map(self.is_unloaded, self._publisher.snapshot.catalog.values()))

    def is_unloaded(self, stage: Stage) -> bool:
        """Returns True if the load of an input is neither in the log nor in the transaction."""
        if not stage.origin or not self._is_writable:
            return False
        mark = _load_mark(stage)
        pending = self._transactions.current.inputs.get(stage.name)
        waits = pending is not None and mark in pending.idempotency_keys
        return not waits and not self._publisher.ledger.loaded(mark)

    def load(
        self, text: str, names: Sequence[str], loaded: MutableMapping[str, str]
    ) -> Stage | None:
        """Loads a table into a new input; returns None if Spark does not run or has no such table.

        Args:
            text: the statement, for the position of an error.
            names: the parts of the table's name.
            loaded: receives the name of the input, with a sentence for the user. A statement that
                is undone drops these inputs.

        Raises:
            SqlError: the name of the table is no name of an input, or is in use.
            SchemaError: a column has a type that inputs do not have.

        Cost: that of the table's rows; nothing else is read.
        """
        path = ".".join(map(quoted, names))
        found = self._spark_connection.table(path) if self.can_load else None
        if found is None:
            return None
        span = span_of_path(text, names)
        try:
            check_name(found.name, "input")
            schema = found.schema
        except SchemaError as error:
            raise failure(text, span, str(error), _by_hand(found)) from None
        if any(name.lower() == found.name.lower() for name in self._publisher.snapshot.catalog):
            raise failure(
                text,
                span,
                f"[TABLE_OR_VIEW_ALREADY_EXISTS] {found.path} cannot be loaded, because"
                f" '{found.name}' exists already and was not loaded from it",
                _by_hand(found),
            )
        loaded[found.name] = ""
        self._declarations.declare(found.name, schema, None, origin=found.path)
        stage = self._publisher.snapshot.catalog[found.name]
        self._fill(stage, found, "insert", loaded)
        return stage

    def load_again(self, text: str, stage: Stage, loaded: MutableMapping[str, str]) -> None:
        """Loads an input whose load the log does not have.

        Raises:
            SqlError: Spark does not run, or does not have the table with these columns any more.
        """
        span = span_of_path(text, [stage.name])
        found = self._table_of(text, span, stage, "its load was not committed")
        self._fill(stage, found, "set", loaded)

    def refresh(self, text: str, statement: RefreshTable) -> tuple[str, RowCounts]:
        """Runs REFRESH TABLE; returns the name of the input, and the rows that it changes.

        Raises:
            SqlError: there is no such input, it was not loaded from Spark, Spark does not run, or
                it does not have the table with these columns any more.

        Cost: reads the table and the input.
        """
        names = [each.name for each in statement.names]
        span = TextSpan(statement.names[0].span.start, statement.names[-1].span.stop)
        stage = self._refreshed(text, span, names)
        found = self._table_of(text, span, stage, "REFRESH TABLE")
        before = self._pending_rows(stage.name)
        kind, mark = "set", None
        if self.is_unloaded(stage):
            mark = _load_mark(stage)
        self._ingest.ingest(stage.name, kind, found.frame, mark)
        after = self._pending_rows(stage.name)
        return stage.name, RowCounts(
            inserted=after.inserted - before.inserted, deleted=after.deleted - before.deleted
        )

    def _refreshed(self, text: str, span: TextSpan, names: Sequence[str]) -> Stage:
        """Returns the input that a REFRESH TABLE names."""
        path = ".".join(names)
        stages = self._publisher.snapshot.catalog.items()
        own = [s for n, s in stages if len(names) == 1 and n.lower() == names[0].lower()]
        stage = next((s for s in own if s.name == path), None) or (own[0] if own else None)
        stage = stage or self.loaded_from(names)
        if stage is None:
            loads = f"a query loads it: SELECT * FROM {path}" if self.has(names) else ""
            raise failure(
                text,
                span,
                f"[TABLE_OR_VIEW_NOT_FOUND] there is no input `{path}`",
                loads or "name an input that was loaded from a table of Spark",
            )
        if not stage.is_input:
            raise failure(
                text,
                span,
                f"[EXPECT_TABLE_NOT_VIEW.NO_ALTERNATIVE] REFRESH TABLE: `{path}` is a stage",
                "nothing has to be refreshed: stages follow their inputs",
            )
        if not stage.origin:
            raise failure(
                text,
                span,
                f"REFRESH TABLE: input '{stage.name}' was not loaded from a table of Spark",
                f"set its rows in a Python cell: {stage.name}.set(spark.table('{path}'))",
            )
        return stage

    def _table_of(self, text: str, span: TextSpan, stage: Stage, what: str) -> SparkTable:
        """Returns the table that an input was loaded from, if it still has the same columns."""
        where = f"{what}: input '{stage.name}' was loaded from Spark's table {stage.origin}"
        if self._spark_connection.present() is None:
            raise failure(
                text,
                span,
                f"{where}, and no Spark session runs",
                "start one, as by reading the variable `spark`, and run the statement again",
            )
        found = self._spark_connection.table(stage.origin)
        if found is None:
            raise failure(
                text,
                span,
                f"[TABLE_OR_VIEW_NOT_FOUND] {where}, which does not exist any more",
                f"create it again, or drop the input: session.drop('{stage.name}')",
            )
        changes = _column_changes(stage.schema, found.schema)
        if changes:
            raise failure(
                text,
                span,
                f"{where}, whose columns have changed: {changes}",
                "drop the input with its readers and run their cells again, which loads it:"
                f" session.drop('{stage.name}', cascade=True)",
            )
        return found

    def _fill(
        self, stage: Stage, found: SparkTable, kind: str, loaded: MutableMapping[str, str]
    ) -> None:
        """Adds the rows of a table to the transaction."""
        self._ingest.ingest(stage.name, kind, found.frame, _load_mark(stage))
        count = self._pending_rows(stage.name).inserted
        loaded[stage.name] = (
            f"loaded {count:,} {'row' if count == 1 else 'rows'} of Spark's table {found.path} into"
            f" input '{stage.name}'; REFRESH TABLE {stage.name} loads its changes"
        )

    def _pending_rows(self, name: str) -> RowCounts:
        pending = self._transactions.current.inputs.get(name)
        if pending is None:
            return RowCounts()
        return RowCounts(inserted=pending.rows - pending.removed, deleted=pending.removed)


def _load_mark(stage: Stage) -> str:
    return idempotency_mark(stage.uid, "insert", f"table {stage.origin} of Spark")


def _by_hand(found: SparkTable) -> str:
    table = f"spark.table({found.path!r})"
    return f"load it under another name: x = nosync.input('x', {table}); x.insert({table})"


def _column_changes(old: Schema, new: Schema) -> str:
    """Returns the differences between the columns of an input and of its table as text."""
    before, after = dict(old.fields), dict(new.fields)
    parts = [f"{name} {type_} is new" for name, type_ in after.items() if name not in before]
    parts += [f"{name} is gone" for name in before if name not in after]
    parts += [
        f"{name} is {after[name]}, and was {type_}"
        for name, type_ in before.items()
        if name in after and after[name] != type_
    ]
    return "; ".join(parts)


def split_path(path: str) -> list[str]:
    """Returns the parts of a name such as `spark_catalog.default.t`, without backticks."""
    names: list[str] = []
    for word in words_of(path) if path else ():
        if word.word != ".":
            names.append(word.name or path[word.span.start : word.span.stop])
    return names


def span_of_path(text: str, names: Sequence[str]) -> TextSpan:
    """Returns the part of a text that has a name; the start of the text if none has."""
    words = words_of(text)
    wanted = [each for name in names for each in (name.lower(), ".")][:-1]
    for at in range(len(words) - len(wanted) + 1):
        some = words[at : at + len(wanted)]
        if [(each.name or each.word).lower() for each in some] == wanted:
            return TextSpan(some[0].span.start, some[-1].span.stop)
    return TextSpan(0, 0)
