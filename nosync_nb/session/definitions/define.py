"""Declares inputs, and defines, drops and renames stages.

A definition changes the graph without advancing the epoch: all stages of a call, or none.
A definition with an equal fingerprint changes nothing. An edited stage becomes a new version, and
the old one stays readable as `name@version`. Its readers follow by name: they are compiled over the
new version. Readers that need a missing column become stale, and the report lists them.

Inputs are declared by name, with their columns and their key. An existing input with equal columns
is reused. A declaration with other columns is an error, and never changes the existing input.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import pyarrow as pa

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.definition import (
    Definition,
    check_name,
    reference_to,
    with_replaced_parts,
)
from nosync_nb.collections.session_protocol import SessionProtocol, definition_of
from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.snapshot import rows_count, unknown_name_error
from nosync_nb.dataflow.stage import Stage, StageOptions
from nosync_nb.errors import CorruptLogError, SchemaError, StageError, enough_memory
from nosync_nb.operators.constant import BYTES_MAX, constant_bytes
from nosync_nb.rows import Schema, infer_schema
from nosync_nb.session.backfill import definition_diff, plan
from nosync_nb.session.backfill.execute import BackfillExecutor
from nosync_nb.session.durability import levels
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.recovery.repair import RepairService
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.report import RecoveryReport, StageReport
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.transactions import Transactions
from nosync_nb.session.state.writer_lock import DefinitionOutcome, WriterLock
from nosync_nb.spark.connection import SparkConnection


class DefinitionService:
    """Defines, drops and renames the stages of a session; has no state of its own.

    Args:
        report: the report of the opening; records which stages resume.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        executor: BackfillExecutor,
        transactions: Transactions,
        subscriptions: Subscriptions,
        spark_connection: SparkConnection,
        host: SessionProtocol,
        report: RecoveryReport,
        repairs: RepairService,
        replication: ReplicationService,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._executor = executor
        self._definition_names = publisher.definition_names
        self._transactions = transactions
        self._subscriptions = subscriptions
        self._spark_connection = spark_connection
        self._types = spark_connection.types
        self._host = host
        self._report = report
        self._repairs = repairs
        self._replication = replication

    @enough_memory(
        lambda self, collections, **_: self.outcome_of(collections),
        "define one stage at a time, over fewer rows, or with Spark: %%dd --on spark",
    )
    def define(
        self,
        collections: Mapping[str, Collection],
        *,
        on: str = "auto",
        persist: str | None = None,
        replay: int | None = None,
        nondeterministic: bool = False,
        again: bool = False,
    ) -> list[StageReport]:
        """Defines several stages, all or none; they refer to each other by name.

        Args:
            on: where to run the stages: auto, local or spark.
            persist: their durability level (see `levels`); `None` leaves it unchanged, and means
                the highest level for new stages.
            replay: the first epoch to compute for a new version; `None` means the current one. An
                unchanged stage is also replayed if its inputs can be read at such epochs and it
                cannot.
            nondeterministic: the results of functions are memoised; see `Session.stage`.
            again: True to recompute the stages even if nothing changed.
        """
        options = levels.stage_options(on, persist, self._replication, kept=nondeterministic)
        return self.define_checked(collections, options, replay=replay, again=again)

    def define_checked(
        self,
        collections: Mapping[str, Collection],
        options: StageOptions,
        *,
        replay: int | None = None,
        again: bool = False,
    ) -> list[StageReport]:
        """Defines several stages with options that are already checked."""
        outcome = DefinitionOutcome()
        try:
            try:
                return self._define(collections, options, replay, outcome, again=again)
            except CorruptLogError as error:
                if outcome.committed:
                    raise
                return self._repairs.again(
                    error,
                    lambda: self._define(collections, options, replay, outcome, again=again),
                )
        except BaseException as error:
            self._writer_lock.complete_interrupted(error, outcome, _defined_text(collections))
            raise

    def status(
        self, collections: Mapping[str, Collection], *, nondeterministic: bool = False, **_: Any
    ) -> Mapping[str, str]:
        """Returns what `define` would change, by name: new, unchanged, changed, ...

        Args:
            nondeterministic: as for `define`; its other options decide nothing here.

        Raises:
            StageError: the definitions are not possible.

        Cost: in proportion to the definitions. Changes nothing.
        """
        options = levels.stage_options("auto", None, self._replication, kept=nondeterministic)
        described = self._definitions_of(collections)
        catalog = self._publisher.snapshot.catalog
        _refuse_inputs(catalog, collections)
        trees = self._ordered_definitions(catalog, described)
        return self._decision(trees, options, set()).status

    def outcome_of(self, collections: Mapping[str, Collection]) -> str:
        """Returns a message with the outcome of a definition that ran out of memory."""
        names = self._definition_names
        if all(names.assigned_name(definition_of(n, each)) == n for n, each in collections.items()):
            return _defined_text(collections)
        return f"{', '.join(collections)}: not defined, and no stage has changed"

    def demote(self, name: str) -> None:
        """Redefines a stage as nondeterministic, although its cell does not declare it."""
        stage = self._publisher.snapshot.catalog[name]
        assert stage.definition is not None
        options = StageOptions(stage.options.on, nondeterministic=True, demoted=True)
        collections = {name: Collection(self._host, stage.definition)}
        self.define_checked(collections, options)

    def _define(
        self,
        collections: Mapping[str, Collection],
        options: StageOptions,
        first: int | None,
        outcome: DefinitionOutcome,
        *,
        again: bool,
    ) -> list[StageReport]:
        start = time.perf_counter()
        described = self._definitions_of(collections)
        for tree in described.values():  # before the lock, because Spark may have to start
            self._types.confirm(tree)
        with self._writer_lock.lock:
            self._writer_lock.begin_change("define")
            snapshot = self._publisher.snapshot
            _refuse_inputs(snapshot.catalog, collections)
            self._subscriptions.refuse_unnamed(described)
            trees = self._ordered_definitions(snapshot.catalog, described)
            redone = set(trees) if again else set()
            if first is not None and not again:
                redone = plan.stages_lacking_history(snapshot, trees, first)
            decision = self._decision(trees, options, redone)
            copied = bool(self._replication.settings.replicas)
            moved = levels.stages_changing_level(snapshot.catalog, decision, copied=copied)
            risen = {n: stage for n, stage in moved.items() if snapshot.catalog[n].in_memory}
            decision = levels.decision_keeping_levels(
                decision, {n: snapshot.catalog[n] for n in risen}
            )
            status = decision.status
            names = {definition: name for name, definition in described.items()}
            changes = decision.changes(snapshot.catalog)
            if changes or moved.keys() - risen.keys():
                self._install_decision(decision, first, names=names, outcome=outcome)
            else:
                for definition, name in names.items():
                    self._definition_names.call(definition, name)
            self._raise_levels(risen)
        seconds = time.perf_counter() - start
        self._notify(decision.notices if changes else ())
        self._spark_connection.follow()
        reported = [n for n in status if n in trees or status[n] != "unchanged"]
        return [self._stage_report(n, status[n], seconds, trees, first) for n in reported]

    def _decision(
        self, trees: Mapping[str, Definition], options: StageOptions, again: AbstractSet[str]
    ) -> definition_diff.DefinitionDecision:
        """Decides what definitions change in the current snapshot."""
        snapshot = self._publisher.snapshot
        catalog = definition_diff.requested_catalog(snapshot, trees, options, again=again)
        return definition_diff.decide(snapshot, self._types, catalog, trees.keys(), again=again)

    def _raise_levels(self, risen: Mapping[str, Stage]) -> None:
        """Moves stages from memory to their new level by recomputing them once.

        This is the last step, because these stages run only code that has run before, while other
        definitions may fail.
        """
        with levels.leaving_memory(risen) as rose:
            for name, stage in risen.items():
                catalog = dict(self._publisher.snapshot.catalog)
                catalog[name] = replace(catalog[name], options=stage.options)
                self._executor.install(
                    definition_diff.unchanged_decision(catalog),
                    plan.level_plan(self._publisher.snapshot, name),
                    outcome=rose[name],
                )

    def _install_decision(
        self, decision: definition_diff.DefinitionDecision, first: int | None, **more: Any
    ) -> None:
        """Installs a decision, and records which stopped stages resumed."""
        planned = plan.definition_plan(decision.status.values(), first)
        result = self._executor.install(decision, planned, **more)
        work = [draft.work for draft in result.missed]
        self._report.resumed(decision.extended, decision.lost, work)

    def _notify(self, notices: Iterable[str]) -> None:
        for text in notices:
            self._subscriptions.add_notice(text)

    def _definitions_of(self, collections: Mapping[str, Any]) -> dict[str, Definition]:
        """Returns the definitions of some collections of this session, by stage name."""
        for name in collections:
            check_name(name, "stage")
        argument = "the collection"
        definitions = {
            name: definition_of(f"stage '{name}'", each, self._host, argument, stage=name)
            for name, each in collections.items()
        }
        for name, tree in definitions.items():
            _check_constants(name, tree)
        return definitions

    def _ordered_definitions(
        self, catalog: Mapping[str, Stage], described: Mapping[str, Definition]
    ) -> dict[str, Definition]:
        """Returns the definitions with references by name, inputs before their readers."""
        by_id: dict[int, Definition] = {}
        for name, tree in described.items():
            if not tree.is_ref:
                by_id[id(tree)] = reference_to(name, tree.schema)
        for tree in described.values():
            for part in tree.walk():
                given_name = self._definition_names.assigned_name(part)
                if id(part) not in by_id and given_name in catalog:
                    by_id[id(part)] = reference_to(str(given_name), part.schema)
        trees = {}
        for name, tree in described.items():
            if tree.is_ref and tree.name == name:
                continue
            replacements = {k: v for k, v in by_id.items() if k != id(tree) or v.name != name}
            first = next((n for n, each in described.items() if each is tree), name)
            if first == name:
                replacements.pop(id(tree), None)
            trees[name] = with_replaced_parts(tree, replacements)
            if name in trees[name].references:
                raise StageError(
                    f"stage '{name}' depends on itself",
                    hint="name the result differently, as in late_delays = delays.filter(...)",
                    stage=name,
                )
        return definition_diff.topological_order(trees)

    def _stage_report(
        self, name: str, status: str, seconds: float, named: Iterable[str], replay_from: int | None
    ) -> StageReport:
        publisher = self._publisher
        snapshot = publisher.snapshot
        stage = snapshot.stage(name)
        last = snapshot.last(stage)
        work = publisher.metrics.last(name)
        hint = plan.replay_message(snapshot, stage, status, named, replay_from)
        if stage.reason:
            hint = f"stale: {stage.reason}"
        computed = status in ("new", "changed", "followed", "extended")
        return StageReport(
            name,
            status,
            rows_count(snapshot, name, last),
            last,
            (work.seconds if work else seconds) if computed else 0.0,
            work.placement if work and computed else "nothing to do",
            "in memory only"
            if stage.in_memory
            else f"durable through {min(publisher.durable, last)}",
            stage.version,
            hint,
        )

    def drop(self, names: Sequence[str], *, cascade: bool) -> None:
        """Drops stages; see `Session.drop`."""
        outcome = DefinitionOutcome()
        try:
            self._drop(names, outcome, cascade=cascade)
            self._spark_connection.follow()
        except BaseException as error:
            listed = ", ".join(f"'{name}'" for name in names)
            self._writer_lock.complete_interrupted(
                error, outcome, f"{listed}: dropped; do not drop again"
            )
            raise

    def _drop(self, names: Sequence[str], outcome: DefinitionOutcome, *, cascade: bool) -> None:
        with self._writer_lock.lock:
            self._writer_lock.begin_change("drop")
            snapshot = self._publisher.snapshot
            catalog = snapshot.catalog
            dropped = set(names)
            for name in names:
                if name not in catalog:
                    raise unknown_name_error(catalog, name)
            for name in names:
                readers = _readers(catalog, name)
                if not cascade and set(readers) - dropped:
                    raise StageError(
                        f"'{name}' is read by {', '.join(readers)}",
                        hint=f"drop them too: session.drop('{name}', cascade=True)",
                    )
                dropped |= set(readers)
            dropped |= {n for n in catalog if n.partition("@")[0] in dropped}
            self._refuse_pending(dropped, "drop")
            metrics = self._publisher.metrics.stages
            self._executor.install(
                definition_diff.unchanged_decision(
                    {n: s for n, s in catalog.items() if n not in dropped}
                ),
                work={name: work for name, work in metrics.items() if name not in dropped},
                names=dict.fromkeys(self._definition_names.called(dropped)),
                outcome=outcome,
            )

    def rename(self, old: str, new: str) -> None:
        """Renames a stage or an input; see `Session.rename`."""
        outcome = DefinitionOutcome()
        try:
            self._rename(old, new, outcome)
            self._spark_connection.follow()
        except BaseException as error:
            self._writer_lock.complete_interrupted(
                error, outcome, f"'{old}' has been renamed to '{new}'; do not rename it again"
            )
            raise

    def _rename(self, old: str, new: str, outcome: DefinitionOutcome) -> None:
        with self._writer_lock.lock:
            self._writer_lock.begin_change("rename")
            snapshot = self._publisher.snapshot
            if old not in snapshot.catalog:
                raise unknown_name_error(snapshot.catalog, old)
            if new in snapshot.catalog:
                raise StageError(f"'{new}' exists already", hint="drop it first")
            self._refuse_pending({old}, "rename")
            metrics = self._publisher.metrics.stages
            self._executor.install(
                definition_diff.unchanged_decision(renamed_catalog(snapshot.catalog, old, new)),
                renamed=renamed_graph(snapshot.graph, old, new),
                work={(new if name == old else name): work for name, work in metrics.items()},
                names=dict.fromkeys(self._definition_names.called({old}), new),
                outcome=outcome,
            )

    def _refuse_pending(self, names: AbstractSet[str], what: str) -> None:
        """Raises if inputs have pending changes, because these would be lost."""
        for name, changes in self._transactions.current.pending.items():
            if name in names:
                raise StageError(
                    f"{what}: input '{name}' has {changes.rows} uncommitted changes",
                    hint="call session.commit() or session.discard() first",
                    stage=name,
                )


def _defined_text(collections: Iterable[str]) -> str:
    names = [f"'{name}'" for name in collections]
    single = len(names) == 1
    subject = f"stage {names[0]} is defined" if single else f"stages {', '.join(names)} are defined"
    return f"{subject}; do not define {'it' if single else 'them'} again"


def _check_constants(name: str, tree: Definition) -> None:
    """Raises StageError if a definition has more constant rows than a catalog should."""
    size = constant_bytes([*tree.walk()])
    if size > BYTES_MAX:
        table, epoch = next(
            (part.params["table"], part.params["epoch"])
            for part in tree.walk()
            if part.op == "constant"
        )
        raise StageError(
            f"stage '{name}': the rows of '{table}' at epoch {epoch} take {size / 1e6:.0f} MB in"
            f" its definition, more than {BYTES_MAX >> 20} MiB",
            hint="load them into an input once, and read that:"
            f" session.input('{table}_{epoch}', session['{table}'].schema)"
            f".insert(session['{table}'].at({epoch}))",
            stage=name,
        )


def _refuse_inputs(catalog: Mapping[str, Stage], collections: Mapping[str, Any]) -> None:
    """Raises if a stage has the name of an input."""
    for name, collection in collections.items():
        old = catalog.get(name)
        if old is not None and old.is_input and getattr(collection, "name", None) != name:
            raise StageError(
                f"'{name}' is an input and cannot become a stage",
                hint="name the result differently",
                stage=name,
            )


def _readers(catalog: Mapping[str, Stage], name: str) -> list[str]:
    """Returns the direct and indirect readers of a collection or its versions, also if stopped."""
    readers: dict[str, None] = {}
    count = -1
    while count < len(readers):
        count = len(readers)
        for stage in catalog.values():
            if stage.definition is not None and not stage.frozen:
                read = {n for ref in stage.definition.references for n in (ref, ref.split("@")[0])}
                if name in read or not read.isdisjoint(readers):
                    readers[stage.name] = None
    return list(readers)


class InputDeclarations:
    """Declares the inputs of a session, and records those that were declared from data."""

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        executor: BackfillExecutor,
        spark_connection: SparkConnection,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._executor = executor
        self._spark_connection = spark_connection
        self._from_data: list[str] = []

    def from_data(self) -> list[str]:
        """Returns the inputs declared from data with rows since the last call.

        Such a declaration takes only the columns, so the user is notified that it took no rows.
        """
        names, self._from_data = self._from_data, []
        return names

    def declare(self, name: str, schema: Any, key: Any, *, origin: str = "") -> None:
        """Declares an input with these columns and this key, or checks an existing one.

        Args:
            origin: the table of a Spark session that a new input is loaded from.

        Raises:
            SchemaError: if the name is a stage, or an input with other columns or another key.
        """
        columns = _parsed_schema(schema)
        if self._exists(name, columns, key):
            return
        if columns is None:
            raise SchemaError(
                f"input '{name}' needs columns",
                hint=f"session.input('{name}', 'id bigint, name string')",
            )
        columns.usable(f"input '{name}'")
        key_positions = None
        if key is not None:
            names = [key] if isinstance(key, str) else list(key)
            key_positions = tuple(columns.index(k) for k in names)
            for position in key_positions:
                if columns.types[position].startswith("map"):
                    name_of_map = columns.names[position]
                    raise SchemaError(
                        f"input '{name}': '{name_of_map}' is a map, and maps cannot be keys",
                        hint="key the input by other columns, or declare it without key=",
                    )
        outcome = DefinitionOutcome()
        try:
            self._create(name, columns, key, key_positions, origin, outcome)
            if _has_rows(schema):
                self._from_data.append(name)
            self._spark_connection.follow()
        except BaseException as error:
            self._writer_lock.complete_interrupted(
                error, outcome, f"input '{name}' is defined; do not define it again"
            )
            raise

    def _create(
        self,
        name: str,
        columns: Schema,
        key: Any,
        key_positions: tuple[int, ...] | None,
        origin: str,
        outcome: DefinitionOutcome,
    ) -> None:
        """Creates an input, unless another thread has created it meanwhile."""
        with self._writer_lock.lock:
            self._writer_lock.begin_change("input")
            if self._exists(name, columns, key):
                return
            now, catalog = self._publisher.last_epoch, self._publisher.snapshot.catalog
            uid = self._unused_identity(name)
            stage = Stage(name, columns, key=key_positions, begin=now, uid=uid, origin=origin)
            stage = stage.identified({})
            self._executor.install(
                definition_diff.unchanged_decision({**catalog, name: stage}), outcome=outcome
            )

    def _exists(self, name: str, columns: Schema | None, key: Any) -> bool:
        """Returns True if the input exists; raises if it differs from the request."""
        stage = self._publisher.snapshot.catalog.get(name)
        if stage is None:
            return False
        if not stage.is_input:
            raise SchemaError(f"'{name}' is a stage, not an input", hint="use another name")
        _check_same_input(stage, columns, key)
        return True

    def _unused_identity(self, name: str) -> str:
        """Returns an unused identity for an input, under which no load is recorded."""
        snapshot = self._publisher.snapshot
        taken = {s.uid for s in snapshot.catalog.values() if s.is_input}
        recorded = self._publisher.ledger.has_loads(json.dumps([name])[:-1] + ",")
        return f"{name}#{snapshot.graph.numbers}" if name in taken or recorded else name


def _parsed_schema(schema: Any) -> Schema | None:
    if schema is None or isinstance(schema, Schema):
        return schema
    if isinstance(schema, str):
        return Schema.parse(schema)
    if type(schema).__module__.startswith("pyspark.sql"):
        from nosync_nb.spark import ingest

        return ingest.schema_of(schema)
    if hasattr(schema, "__arrow_c_schema__") and not hasattr(schema, "__arrow_c_stream__"):
        return Schema.from_arrow(_arrow_schema(schema))
    return infer_schema(schema)


def _has_rows(schema: Any) -> bool:
    """Returns True if the columns were taken from data with rows, or from a stream."""
    if isinstance(schema, str | Schema | pa.Schema):
        return False
    if hasattr(schema, "__arrow_c_schema__") and not hasattr(schema, "__arrow_c_stream__"):
        return False
    if type(schema).__module__.startswith("pyspark.sql"):
        return hasattr(schema, "schema")  # a DataFrame; a StructType has none
    try:
        return len(schema) > 0
    except TypeError:  # a stream: its length is unknown before it is read
        return True


def _arrow_schema(source: Any) -> pa.Schema:
    """Returns the schema of an object that exports one through Arrow.

    Raises:
        SchemaError: if the object is the type of a single column.
    """
    try:
        return pa.schema(source)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise SchemaError(
            f"a {type(source).__name__} is not the schema of a table: {reason}",
            hint="give the columns as text, 'name type, ...', or as a pyarrow.Schema",
        ) from None


def _check_same_input(stage: Stage, schema: Schema | None, key: Any) -> None:
    if schema is not None and schema != stage.schema:
        raise SchemaError(
            f"input '{stage.name}' has columns ({stage.schema.ddl}), not ({schema.ddl})",
            hint=f"use another name, or drop it first: session.drop('{stage.name}', cascade=True)",
        )
    names = None if key is None else [key] if isinstance(key, str) else list(key)
    current = None if stage.key is None else [stage.schema.names[i] for i in stage.key]
    if names is not None and names != current:
        raise SchemaError(
            f"input '{stage.name}' has key {current}, not {names}",
            hint=f"leave key out, use another name, or drop it first: session.drop('{stage.name}')",
        )


def renamed_catalog(catalog: Mapping[str, Stage], old: str, new: str) -> dict[str, Stage]:
    """Returns a catalog after a rename. References and earlier versions (`name@2`) follow.

    Logs, traces and fingerprints do not depend on names, so they stay the same.
    """
    renamed: dict[str, Stage] = {}
    for name, stage in catalog.items():
        if stage.definition is not None:
            by_id = {
                id(p): reference_to(_renamed(p.name, old, new), p.schema)
                for p in stage.definition.walk()
                if p.is_ref and _renamed(p.name, old, new) != p.name
            }
            stage = replace(stage, definition=with_replaced_parts(stage.definition, by_id))
        name = _renamed(name, old, new)
        renamed[name] = replace(stage, name=name)
    return renamed


def renamed_graph(graph: Graph, old: str, new: str) -> Graph:
    """Returns a graph after a rename."""
    nodes = (
        replace(n, name=n.name and _renamed(n.name, old, new), stage=_renamed(n.stage, old, new))
        for n in graph
    )
    return Graph(nodes, graph.numbers)


def _renamed(name: str, old: str, new: str) -> str:
    """Returns the new name of a collection or of one of its versions."""
    base, at, version = name.partition("@")
    return new + at + version if base == old else name
