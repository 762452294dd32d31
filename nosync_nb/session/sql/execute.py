"""Runs SQL statements: all of them, or none.

    parse all -> evaluate each over the changes of those before it -> define the views ->
    commit the changes, or hand them to the transaction of the caller -> drop views

Until the views are defined nothing has changed, whatever is raised: the changes are in a fork of
the transaction. If the commit fails then, the views are restored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.definition import Definition, check_name, reference_to
from nosync_nb.collections.equivalence import is_equivalent
from nosync_nb.collections.session_protocol import SessionProtocol
from nosync_nb.collections.sql.composed import composed
from nosync_nb.collections.sql.grammar import TextSpan, failure, sql_reason
from nosync_nb.collections.sql.parameters import Arguments, bind_parameters
from nosync_nb.collections.sql.query import OrderedQuery, ordered_query
from nosync_nb.collections.sql.statements import (
    CreateView,
    DropView,
    Inspect,
    Name,
    RefreshTable,
    SelectStatement,
    SqlStatement,
    Write,
    kind_of,
    parse_cell,
)
from nosync_nb.dataflow.snapshot import rows_count
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import MisuseError, NosyncError, SchemaError, SqlError, StageError
from nosync_nb.expressions import statement_clock
from nosync_nb.session.definitions.define import DefinitionService
from nosync_nb.session.sql.changes import InputStatements
from nosync_nb.session.sql.evaluate import StatementReader
from nosync_nb.session.sql.results import QueryRows, StatementResult, order_text
from nosync_nb.session.sql.tables import Lookup, SqlTables, TemporaryView, unknown_table
from nosync_nb.session.sql.unstable import unstable_note
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.report import StageReport
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.transactions import Transaction, Transactions
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.session.writes.commit import ChangedMeanwhileError, CommitService

_ATTEMPTS = 8
"""The most times that statements run again because another thread has changed their input."""

UNORDERED = (
    "ORDER BY without LIMIT orders this display only: the rows of a collection have no order"
)


@dataclass
class _Plan:
    """What statements have decided, before anything changes.

    Attributes:
        definitions: views by name in lower case, as later statements read them; None for a dropped
            one.
        references: the same, as later views read them: a view that is a stage by its name.
        views: the views to define, by name.
        temporary: the temporary views to add, by name in lower case; None for a dropped one.
        stages: the definitions of the views to define, by name.
        dropped: the stages to drop.
        shown: the view that the last SELECT shows whole, `SELECT * FROM view`; else None.
        loaded: the inputs that are loaded from tables of Spark, each with a sentence for the user;
            None if nothing may be loaded.
    """

    definitions: dict[str, Definition | None] = field(default_factory=dict)
    references: dict[str, Definition | None] = field(default_factory=dict)
    views: dict[str, Collection] = field(default_factory=dict)
    temporary: dict[str, TemporaryView | None] = field(default_factory=dict)
    stages: dict[str, Definition] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    shown: str | None = None
    loaded: dict[str, str] | None = field(default_factory=dict)
    results: list[StatementResult] = field(default_factory=list)


class _Before(NamedTuple):
    """The views before statements run, to restore them."""

    catalog: Mapping[str, Stage]
    views: Mapping[str, TemporaryView]


class SqlService:
    """Runs queries and statements of a session; has no state of its own."""

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        transactions: Transactions,
        host: SessionProtocol,
        definitions: DefinitionService,
        commits: CommitService,
        tables: SqlTables,
        changes: InputStatements,
        reader: StatementReader,
        subscriptions: Subscriptions,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._transactions = transactions
        self._host = host
        self._definitions = definitions
        self._commits = commits
        self._tables = tables
        self._changes = changes
        self._reader = reader
        self._subscriptions = subscriptions

    def collection(
        self, query: str, args: Arguments | None = None, *, loads: bool = True
    ) -> Collection:
        """Returns a SELECT as a collection; see `Session.sql`.

        Args:
            loads: True to load tables of the running Spark session, as an epoch of its own.
        """
        self._tables.refresh()
        query = bind_parameters(query, args)
        if not loads or not self._tables.spark.has_unloaded:
            try:
                return self._collection(query, None)
            except SqlError as error:
                if not loads or not self._may_be_in_spark(error):
                    raise
        plan, before, transaction = _Plan(), self._before(), Transaction()
        loaded = plan.loaded = {}
        try:
            with self._transactions.block(transaction):
                found = self._collection(query, loaded)
                if transaction:
                    self._commits.commit(transaction, None, None)
        except BaseException as error:
            committed = transaction.epoch is not None
            self._end_interrupted(plan, before, error, committed=committed)
            raise
        finally:
            self._commits.discard(transaction)
        for sentence in loaded.values():
            self._subscriptions.add_notice(sentence)
        return found

    def _may_be_in_spark(self, error: SqlError) -> bool:
        """Returns True if a query failed for a table that the running Spark session may have."""
        is_unknown = error.reason.startswith("[TABLE_OR_VIEW_NOT_FOUND]")
        return is_unknown and self._tables.spark.can_load

    def _collection(self, query: str, loaded: dict[str, str] | None) -> Collection:
        text = composed(query, TextSpan(0, len(query)), TextSpan(0, len(query)))
        lookup = Lookup(self._tables, query, loaded=loaded)
        with text.errors_at_origin(lookup.hint):
            found = ordered_query(query, lookup, self._host.types, past=lookup.at, unique=True)
        return Collection(self._host, found.definition)

    def execute(
        self, text: str, args: Arguments | None = None, *, commit: bool, **options: Any
    ) -> list[StatementResult]:
        """Runs statements; see `Session.execute`."""
        self._tables.refresh()
        text = bind_parameters(text, args)
        statements = parse_cell(text)
        for statement in statements[:-1]:
            if isinstance(statement, SelectStatement | Inspect):
                raise failure(
                    text,
                    statement.span,
                    "[UNSUPPORTED_STATEMENT] only the last statement is displayed, and this one"
                    " changes nothing",
                    "move it to the end, into a cell of its own, or write CREATE VIEW name AS ...",
                )
        changing = Write | CreateView | DropView | RefreshTable
        changes = any(isinstance(each, changing) for each in statements)
        if not changes and not self._tables.spark.has_unloaded:  # a SELECT waits for no lock
            plan = _Plan(loaded=None)
            try:
                self._plan(plan, text, statements, options)
                return plan.results
            except SqlError as error:
                if not self._may_be_in_spark(error):
                    raise
        transactions = self._transactions
        joins = not commit and (transactions.open or transactions.shared.ender is not None)
        run = self._run_joined if joins else self._run_alone
        return run(text, statements, options)

    # -- transactions --------------------------------------------------------------------------

    def _run_joined(
        self, text: str, statements: list[SqlStatement], options: Mapping[str, Any]
    ) -> list[StatementResult]:
        """Runs statements within the current transaction, which its owner commits."""
        current = self._transactions.current
        with self._writer_lock.lock:
            fork, base = current.fork(), current.fork()
        plan, before = _Plan(), self._before()
        try:
            with self._transactions.block(fork):
                self._plan(plan, text, statements, options)
                reports = self._define(plan, options)
            with self._writer_lock.lock:
                snapshot = self._publisher.snapshot
                contents = {name: snapshot.contents(name) for name in fork.inputs}
                current.adopt(fork, base, contents)
            self._drop(plan)
        except BaseException as error:
            self._publisher.store.remove(fork.files - current.files)
            self._end_interrupted(plan, before, error, committed=current.has_adopted(fork))
            raise
        return self._finished(plan, reports)

    def _run_alone(
        self, text: str, statements: list[SqlStatement], options: Mapping[str, Any]
    ) -> list[StatementResult]:
        """Runs statements as a transaction of their own."""
        for left in reversed(range(_ATTEMPTS)):
            transaction = Transaction()
            try:
                return self._attempt(transaction, text, statements, options)
            except ChangedMeanwhileError:
                if not left:
                    raise
            finally:
                self._commits.discard(transaction)
        raise AssertionError

    def _attempt(
        self,
        transaction: Transaction,
        text: str,
        statements: list[SqlStatement],
        options: Mapping[str, Any],
    ) -> list[StatementResult]:
        plan, before = _Plan(), self._before()
        try:
            with self._transactions.block(transaction):
                self._plan(plan, text, statements, options)
                reports = self._define(plan, options)
                if transaction:
                    self._commits.commit(transaction, None, None)
                self._drop(plan)
        except BaseException as error:
            committed = transaction.epoch is not None
            self._end_interrupted(plan, before, error, committed=committed)
            raise
        return self._finished(plan, reports)

    def _before(self) -> _Before:
        return _Before(dict(self._publisher.snapshot.catalog), self._tables.views)

    def _end_interrupted(
        self, plan: _Plan, before: _Before, error: BaseException, *, committed: bool
    ) -> None:
        """Completes statements that an error has interrupted, or undoes their views.

        Failure: 1. The changes are committed. 2. Ctrl-C comes before the views are dropped. A cell
        is one transaction, so they are dropped nevertheless.

        Args:
            committed: True if the changes of inputs cannot be undone any more.
        """
        catalog = self._publisher.snapshot.catalog
        gone = plan.dropped and not any(name in catalog for name in plan.dropped)
        if committed or gone:
            self._drop(plan)
        else:
            self._restore(plan, before, error)

    def _define(self, plan: _Plan, options: Mapping[str, Any]) -> list[StageReport]:
        return self._definitions.define(plan.views, **options) if plan.views else []

    def _restore(self, plan: _Plan, before: _Before, error: BaseException) -> None:
        """Restores the views that a plan has changed, and drops the inputs that it has loaded."""
        if plan.temporary:
            self._tables.restore_views(before.views)
        catalog = self._publisher.snapshot.catalog
        old = before.catalog
        changed = [n for n in plan.views if n in catalog and catalog[n] is not old.get(n)]
        try:
            new = [name for name in changed if name not in old]
            if new:
                self._definitions.drop(new, cascade=False)
            for name in changed:
                stage = old.get(name)
                if stage is not None and stage.definition is not None:
                    same = {name: Collection(self._host, stage.definition)}
                    self._definitions.define_checked(same, stage.options)
            loaded = [name for name in plan.loaded or () if name in catalog and name not in old]
            if loaded:
                self._definitions.drop(loaded, cascade=False)
        except NosyncError as second:
            left = ", ".join([*changed, *(plan.loaded or ())])
            error.add_note(f"{left} could not be restored: {second}")

    def _drop(self, plan: _Plan) -> None:
        """Drops stages, then changes the temporary views; may be repeated."""
        catalog = self._publisher.snapshot.catalog
        left = [name for name in plan.dropped if name in catalog]
        if left:
            self._definitions.drop(left, cascade=False)
        if plan.temporary:
            added = [view for view in plan.temporary.values() if view is not None]
            gone = [name for name, view in plan.temporary.items() if view is None]
            self._tables.change_views(added, gone)

    def _finished(self, plan: _Plan, reports: Sequence[StageReport]) -> list[StatementResult]:
        """Returns the results, with the reports of the stages."""
        results = list(plan.results)
        others = [report for report in reports if report.name not in plan.views]
        for at in reversed(range(len(results))):
            found = results[at]
            report = next((each for each in reports if each.name == found.name), None)
            if found.statement != "CREATE VIEW" or report is None:
                continue
            report = self._current(report)
            schema = self._publisher.snapshot.stage(report.name).schema
            stage = Collection(self._host, reference_to(report.name, schema))
            results[at] = replace(found, collection=stage, report=report, reports=(report, *others))
            others = []
            if report.name == plan.shown:  # the stage itself, which has a live grid
                results[-1] = StatementResult("SELECT", collection=stage)
        return results

    def _current(self, report: StageReport) -> StageReport:
        """Returns a report with the rows after the commit, which follows the definition."""
        snapshot = self._publisher.snapshot
        last = snapshot.last(snapshot.stage(report.name))
        if last == report.epoch:
            return report
        rows = rows_count(snapshot, report.name, last)
        return report._replace(rows=rows, epoch=last)

    # -- statements ----------------------------------------------------------------------------

    def _plan(
        self,
        plan: _Plan,
        text: str,
        statements: list[SqlStatement],
        options: Mapping[str, Any],
    ) -> None:
        """Evaluates statements, one after another; changes only the current transaction."""
        for statement in statements:
            earlier = set(plan.loaded or ())
            try:
                with statement_clock():
                    result = self._result(text, statement, plan, options)
                loaded = (plan.loaded or {}).items()
                notes = [note for name, note in loaded if name not in earlier]
                notes = [each for each in (*notes, result.note) if each]
                plan.results.append(replace(result, note="; ".join(notes)))
            except SqlError:
                raise
            except Exception as error:
                if len(statements) > 1 and isinstance(error, NosyncError):
                    line = text.count("\n", 0, statement.span.start) + 1
                    head = " ".join(text[statement.span.start : statement.span.stop].split())
                    error.add_note(f"In the statement of line {line}: {head[:60]}")
                raise

    def _result(
        self, text: str, statement: SqlStatement, plan: _Plan, options: Mapping[str, Any]
    ) -> StatementResult:
        lookup: Callable[[str], Lookup] = partial(self._lookup, plan)
        match statement:
            case Write():
                name, counts = self._changes.run(text, statement, lookup)
                return StatementResult(kind_of(statement), name, *counts)
            case CreateView():
                return self._create(text, statement, plan, options)
            case DropView():
                return self._plan_drop(text, statement, plan)
            case RefreshTable():
                name, counts = self._tables.spark.refresh(text, statement)
                return StatementResult(kind_of(statement), name, *counts)
            case SelectStatement():
                return self._select(text, statement.span, plan)
            case Inspect():
                return self._inspect(text, statement, plan)
        raise AssertionError(statement)

    def _lookup(self, plan: _Plan, text: str) -> Lookup:
        return Lookup(self._tables, text, plan.definitions, loaded=plan.loaded)

    def _query(
        self,
        text: str,
        span: TextSpan,
        planned: Mapping[str, Definition | None],
        defining: str | None = None,
        loaded: dict[str, str] | None = None,
        **names: bool,
    ) -> OrderedQuery:
        """Returns the query that is a part of the text; see `Lookup` for the other arguments.

        Args:
            names: how its columns are named, as for `ordered_query`.
        """
        part = composed(text, span, span)
        lookup = Lookup(self._tables, part.text, planned, defining, loaded)
        with part.errors_at_origin(lookup.hint):
            return ordered_query(part.text, lookup, self._host.types, past=lookup.at, **names)

    def _select(self, text: str, span: TextSpan, plan: _Plan) -> StatementResult:
        """Reads a SELECT now, so that an error in a row undoes the statements before it."""
        found = self._query(text, span, plan.definitions, loaded=plan.loaded, unique=True)
        collection = Collection(self._host, found.definition)
        names = found.ordered.schema.names
        order = order_text(names, len(found.definition.schema), found.order)
        is_table = found.definition.is_ref and found.definition.name not in (plan.loaded or ())
        if is_table and not order:
            return StatementResult("SELECT", collection=collection)
        if not order:
            plan.shown = next((n for n, v in plan.stages.items() if v is found.definition), None)
        with composed(text, span, span).errors_at_origin():
            batch = self._reader.rows(found.ordered)
        return StatementResult(
            "SELECT",
            collection=collection,
            order=order,
            note=UNORDERED if found.order and not found.limited else "",
            rows=QueryRows(batch, found.definition.schema, found.order),
        )

    def _create(
        self, text: str, statement: CreateView, plan: _Plan, options: Mapping[str, Any]
    ) -> StatementResult:
        own = statement.name.name.lower()
        numbered = bool(statement.columns)
        query = partial(self._query, text, statement.query, numbered=numbered)
        found = query(plan.references, own, plan.loaded)
        definition = inlined = self._renamed(text, statement, found)
        if plan.views:
            same = query(plan.definitions, own, plan.loaded)
            inlined = self._renamed(text, statement, same)
        name, note = statement.name.name, ""
        if found.order and not found.limited:
            note = f"{name}: ORDER BY without LIMIT has no effect: the rows of a view have no order"
        known = self._known(text, statement.name, plan)
        temporary = known in plan.temporary or known.lower() in self._tables.views
        with _at(text, statement.name.span):
            check_name(known, "stage")
        if statement.temporary:
            self._refuse_stage(text, statement, known)
            view = TemporaryView(known, definition)
            if statement.only_if_new and temporary:
                return StatementResult("CREATE VIEW", known, note=f"{known} exists already")
            if temporary and not statement.replace:
                old = self._tables.views.get(known.lower())
                if old is None or not _reads_the_same(old.definition, definition):
                    raise self._exists(text, statement, "a temporary view")
            plan.temporary[known.lower()] = view
            plan.definitions[known.lower()] = inlined
            plan.references[known.lower()] = definition
            collection = Collection(self._host, definition)
            return StatementResult("CREATE VIEW", known, collection=collection, note=note)
        if temporary:
            raise self._exists(text, statement, "a temporary view")
        pair = definition, inlined
        return self._create_stage(text, statement, plan, known, pair, options, note)

    def _create_stage(
        self,
        text: str,
        statement: CreateView,
        plan: _Plan,
        name: str,
        pair: tuple[Definition, Definition],
        options: Mapping[str, Any],
        note: str,
    ) -> StatementResult:
        """Plans a view that is a stage. Without OR REPLACE, an equal one may exist already.

        Args:
            pair: the definition, and the same with the earlier views of the cell written out.
        """
        definition, inlined = pair
        old = self._publisher.snapshot.catalog.get(name)
        if old is not None and old.is_input:
            raise self._exists(text, statement, "an input")
        clock = unstable_note(text, statement.query, name, definition)
        note = "; ".join(each for each in (note, clock) if each)
        exists = old is not None or name in plan.views
        if name in plan.dropped:
            exists = False
        if exists and statement.only_if_new:
            return StatementResult("CREATE VIEW", name, note=f"{name} exists already")
        views = {**plan.views, name: Collection(self._host, definition)}
        with _at(text, statement.span):
            status = self._definitions.status(views, **options).get(name, "")
        if exists and not statement.replace:
            before = plan.views.get(name) is None and old is not None and old.definition
            if not before or not _reads_the_same(before, definition):
                raise self._exists(text, statement, "a stage with another definition")
        plan.views[name] = Collection(self._host, definition)
        plan.stages[name] = inlined
        if name in plan.dropped:
            plan.dropped.remove(name)
        if status == "unchanged" and old is not None:  # its rows are there
            inlined = reference_to(name, old.schema)
        plan.definitions[name.lower()] = inlined
        plan.references[name.lower()] = reference_to(name, definition.schema)
        return StatementResult("CREATE VIEW", name, note=note)

    def _renamed(self, text: str, statement: CreateView, found: OrderedQuery) -> Definition:
        """Returns the query of a view, with the listed names for its columns."""
        names = [name.name for name in statement.columns]
        if not names:
            return found.definition
        if len(names) != len(found.names):
            kind = "NOT_ENOUGH" if len(found.names) < len(names) else "TOO_MANY"
            raise failure(
                text,
                statement.columns[0].span,
                f"[CREATE_VIEW_COLUMN_ARITY_MISMATCH.{kind}_DATA_COLUMNS] {len(names)} names for"
                f" the {len(found.names)} columns of the query",
                "write one name for each column",
            )
        fields = found.definition.schema.fields
        with _at(text, statement.columns[0].span):
            schema = type(found.definition.schema)(
                [each._replace(name=name) for each, name in zip(fields, names, strict=True)]
            )
        return found.definition.then("select", schema, {"outputs": list(range(len(names)))})

    def _known(self, text: str, name: Name, plan: _Plan) -> str:
        """Returns the spelling of a name under which a view is known, or else the given one."""
        for other in [*plan.views, *plan.temporary]:
            if other.lower() == name.name.lower():
                return other
        found = self._tables.stages_called(name.name)
        if len(found) > 1:
            self._lookup(plan, text).existing(name.name)  # raises
        return found[0].name if found else name.name

    def _refuse_stage(self, text: str, statement: CreateView, name: str) -> None:
        if name in self._publisher.snapshot.catalog:
            raise self._exists(text, statement, "an input or a stage")

    def _exists(self, text: str, statement: CreateView, what: str) -> SqlError:
        replace = what.startswith(("a stage", "a temporary"))
        hint = "write CREATE OR REPLACE VIEW to change it" if replace else "use another name"
        if what == "a temporary view" and not statement.temporary:
            hint = f"drop it first: DROP VIEW {statement.name.name}"
        return failure(
            text,
            statement.name.span,
            f"[TABLE_OR_VIEW_ALREADY_EXISTS] `{statement.name.name}` is {what} already",
            hint,
        )

    def _plan_drop(self, text: str, statement: DropView, plan: _Plan) -> StatementResult:
        name, span = statement.name
        wanted = name.lower()
        if plan.temporary.get(wanted) is not None or (
            wanted in self._tables.views and wanted not in plan.temporary
        ):
            plan.temporary[wanted] = None
            plan.definitions.pop(wanted, None)
            plan.references.pop(wanted, None)
            return StatementResult("DROP VIEW", name)
        found = self._lookup(plan, text).existing(name)
        if found is None:
            if statement.only_if_known:
                return StatementResult("DROP VIEW", name, note=f"{name} does not exist")
            raise unknown_table(text, span, name, self._tables)
        known = self._known(text, statement.name, plan)
        stage = self._publisher.snapshot.catalog.get(known)
        if stage is not None and stage.is_input:
            raise failure(
                text,
                span,
                f"[WRONG_COMMAND_FOR_OBJECT_TYPE] DROP VIEW: `{known}` is an input",
                f"drop it with `%dd drop {known}`, or session.drop({known!r})",
            )
        plan.views.pop(known, None)
        plan.stages.pop(known, None)
        plan.definitions[wanted] = plan.references[wanted] = None
        if stage is not None:
            self._refuse_readers(text, span, known, plan)
            plan.dropped.append(known)
        return StatementResult("DROP VIEW", known)

    def _refuse_readers(self, text: str, span: TextSpan, name: str, plan: _Plan) -> None:
        """Raises if a stage reads a view that is to be dropped."""
        readers = [
            stage.name
            for stage in self._publisher.snapshot.catalog.values()
            if stage.definition is not None
            and not stage.frozen
            and name in {each.partition("@")[0] for each in stage.definition.references}
            and stage.name not in plan.dropped
        ]
        if readers:
            raise failure(
                text,
                span,
                f"[UNSUPPORTED_DROP] `{name}` is read by {', '.join(readers)}",
                f"drop the readers before it: DROP VIEW {readers[0]}",
            )

    def _inspect(self, text: str, statement: Inspect, plan: _Plan) -> StatementResult:
        if statement.kind == "explain":
            assert statement.query is not None
            found = self._query(text, statement.query, plan.definitions, unique=True)
            collection = Collection(self._host, found.definition)
            explained = str(collection.explain())
            return StatementResult("EXPLAIN", collection=collection, text=explained)
        if statement.kind == "describe":
            assert statement.name is not None
            name, span = statement.name
            definition = self._lookup(plan, text).existing(name)
            if definition is None:
                raise unknown_table(text, span, name, self._tables)
            table = tuple((each.name, each.type) for each in definition.schema.fields)
            return StatementResult("DESCRIBE", name, columns=("col_name", "data_type"), table=table)
        rows = [
            (stage.name, "false", "input" if stage.is_input else "stage")
            for stage in self._publisher.snapshot.catalog.values()
            if not stage.frozen
            and stage.name not in {*plan.dropped, *plan.views}
            and (statement.kind == "tables" or not stage.is_input)
        ]
        rows += [(name, "false", "stage") for name in plan.views]
        views = {**self._tables.views, **plan.temporary}
        rows += [(view.name, "true", "view") for view in views.values() if view is not None]
        return StatementResult(
            "SHOW", columns=("tableName", "isTemporary", "kind"), table=tuple(sorted(rows))
        )


def _reads_the_same(one: Definition, other: Definition) -> bool:
    """Returns True if two definitions compute the same of the same tables by name."""
    named = {name: name for name in (*one.references, *other.references)}
    return is_equivalent(one, other, named)


class _at:  # noqa: N801 - reads as a preposition
    """Raises errors of schemas and definitions at a part of a text."""

    def __init__(self, text: str, span: TextSpan) -> None:
        self._text, self._span = text, span

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, SchemaError | StageError | MisuseError):
            hint = error.hint or "change this part"
            raise failure(self._text, self._span, sql_reason(error), hint) from error
