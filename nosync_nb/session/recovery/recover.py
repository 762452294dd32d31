"""Recovers a session from its log, and lists the work that is left before the first write.

Recovery reads existing rows and never recomputes them. It has two steps. The first step provides
all that a reader needs: the catalog, the positions of the traces, and the history. Its cost does
not depend on their contents. The second step compiles the stages before the first write.

A catalog is trusted if this user signed it for this log at this epoch. Its functions are restored
if their signatures match. A stage that another key signed, or with a function that is not restored,
is stale: it is readable at its last epoch, and not compiled until its cell is run. A reader runs no
function, and checks no signature.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, NamedTuple

from nosync_nb.collections.functions import signing
from nosync_nb.dataflow.compiler import Compiler
from nosync_nb.dataflow.graph import UNMADE, Graph
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.schema_adaptation import adapted_to_schemas
from nosync_nb.dataflow.snapshot import hidden_columns, named_logs
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import disallowed_reason
from nosync_nb.operators.registry import expressions_of
from nosync_nb.session.backfill import definition_diff
from nosync_nb.session.backfill.background import BackgroundRebuild
from nosync_nb.session.backfill.damage import Compiled, awaits_recheck, stop_without_memos
from nosync_nb.session.backfill.execute import BackfillExecutor
from nosync_nb.session.durability.replication import demotion_text
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.recovery.repair import StageRecovery
from nosync_nb.session.state.publisher import Publisher, files_of
from nosync_nb.session.state.report import READ, STALE, RecoveryReport
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.spark.sql_settings import SparkTypes
from nosync_nb.store import log_reader
from nosync_nb.store.catalog import signature
from nosync_nb.store.catalog.epoch_index import lost_epochs
from nosync_nb.store.lazy_layer import files_needed
from nosync_nb.store.log_reader import CatalogTrust, Described, RecoveredState, WrittenCatalog
from nosync_nb.store.records import file_references, payloads
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication.restore.lazy_fetch import LazyFetcher, MissingSummary
from nosync_nb.store.retention_policy import removed_limits
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.store import Store

LOST_MAX = 1 << 16
"""The most epochs that are reported as lost, whatever number a former owner recorded."""


class RecoveryState(NamedTuple):
    """The initial state of a session.

    Attributes:
        recovered: the contents of its log; stages that cannot resume are stale.
        report: the report for users.
        differs: True if the running stages differ from those in the log.
        behind: True if some stages have missed epochs and may catch up.
        missing: the files that are referenced and missing.
        memory: True if some stages were in memory only.
        without_rows: live stages that were defined after the epoch at which the log begins.
    """

    recovered: RecoveredState
    report: RecoveryReport
    differs: bool = False
    behind: bool = False
    missing: frozenset[str] = frozenset()
    memory: bool = False
    without_rows: frozenset[str] = frozenset()

    @property
    def lacking(self) -> bool:
        """True if some stages must be repaired or recomputed."""
        doubtful = awaits_recheck(self.recovered.snapshot.catalog)
        lost = self.missing or self.without_rows or self.recovered.store.clocks.wrong
        return self.memory or doubtful or bool(lost)


def recover(store: Store, types: SparkTypes, lazy_fetcher: LazyFetcher) -> RecoveryState:
    """Recovers the state of a session from its folder; deletes files that nothing references.

    Args:
        lazy_fetcher: fetches the referenced files that are not local, when they are read.

    Raises:
        CorruptLogError: if the log is invalid.
    """
    log = store.log
    if log.mode == "r":
        recovered = log_reader.recover_state(store)
        store.release()
        return RecoveryState(recovered, _recovery_report(recovered, range(0)))
    describe = _Describer(log.id, types)
    recovered = log_reader.recover_state(store, describe)
    epoch, catalog = recovered.snapshot.epoch, recovered.snapshot.catalog
    lost = lost_epochs(log.noted, recovered.ledger.incarnation, epoch)[:LOST_MAX]
    with guarded_decoding("the log"):
        missing = _files_nowhere(store, lazy_fetcher, store.sweep())
    report = _recovery_report(recovered, lost)
    for note in (*_fetch_note(lazy_fetcher.left), *demotion_text(catalog)):
        report.note(note)
    stages = recovered.data.get("stages", ())
    differs = any(
        (each["life"]["is"] == "stale") != (catalog[each["name"]].reason is not None)
        for each in stages
    )
    without_rows = frozenset(describe.without_rows)
    return RecoveryState(
        recovered, report, differs, describe.behind, missing, describe.memory, without_rows
    )


def _files_nowhere(store: Store, lazy_fetcher: LazyFetcher, names: Sequence[str]) -> frozenset[str]:
    """Registers referenced files that the folder lacks; returns those that no replica has.

    The caller must not have released the records that the store has read.
    """
    if not names:
        return frozenset()
    named = file_references.named_files(store.meta, store.changes)
    references = file_references.references(named)
    return lazy_fetcher.expect(references.get(name, FileReference(name)) for name in names)


def _fetch_note(left: MissingSummary) -> list[str]:
    """Returns a note on the files that only replicas have; empty if there are none."""
    if not left.files:
        return []
    return [
        f"{left.files} file{'s' if left.files != 1 else ''} of rows"
        f" ({left.size_bytes / 1e6:.1f} MB) are not yet on this machine: each is fetched when it is"
        " first read, the others in the background"
    ]


def _recovery_report(recovered: RecoveredState, lost: range) -> RecoveryReport:
    """Returns the report of an opening at which the epochs `lost` are missing."""
    log, (version, _, catalog, *_) = recovered.store.log, recovered.snapshot
    removed = removed_limits(recovered.data)
    stages, reasons = _stage_statuses(catalog)
    return RecoveryReport(
        fresh=log.fresh,
        clean=log.clean,
        resumed_at=version.epoch,
        stages=stages,
        reasons=reasons,
        inputs=sorted(name for name, stage in catalog.items() if stage.is_input),
        lost=list(lost),
        notes=[*log.notes, *([removed] if removed else [])],
    )


def _stage_statuses(catalog: Mapping[str, Stage]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the recovery status of each stage, and the reasons of the stale ones."""
    stages = [s for s in catalog.values() if not s.is_input and not s.frozen]
    ways = {s.name: STALE if s.reason else READ for s in stages}
    return ways, {s.name: s.reason for s in stages if s.reason}


class _Describer:
    """Decodes the stages of a catalog with their functions, and decides which are stale.

    Attributes:
        behind: True if some stages could resume if they had the epochs that they missed.
        memory: True if some stages were in memory only.
        without_rows: the stages that resume and have no rows.
    """

    def __init__(self, log_id: bytes, types: SparkTypes) -> None:
        self._log_id, self._types = log_id, types
        self.behind = self.memory = False
        self.without_rows: set[str] = set()

    def __call__(self, written: WrittenCatalog, trust: CatalogTrust, epoch: int) -> Described:
        """Decodes a catalog; marks the stages with the signer if another key has signed it."""
        signer, data = trust.origin.signer, written.catalog
        if signer is not None:
            data = payloads.foreign_json(data, signer)

        def unseal(text: str, context: str, identity: str) -> Any:
            assert trust.key is not None  # it has signed the catalog
            sealed = base64.b64decode(text)
            return signing.load_signed_function(
                sealed, key=trust.key, context=context, fingerprint=identity
            )

        catalog = payloads.catalog_from_json(data, self._log_id, unseal)
        for name, stage in catalog.items():
            if stage.in_memory and stage.frozen:
                catalog[name] = stage.forgotten("", epoch)
            if stage.definition is None or stage.frozen:
                continue
            why = held = _untrusted_reason(stage, trust.origin)
            if why is None and stage.is_distrusted:
                why = stage.reason
            elif why is None:
                _, why = adapted_to_schemas(stage, catalog, self._types)
                why = (
                    why
                    or definition_diff.halt_reason(stage, catalog)
                    or _unrecoverable_reason(stage)
                )
            lacks = not stage.has(stage.last(epoch))
            if why is not None and (stage.in_memory or lacks):
                stage = stage.forgotten(why, epoch)
            elif why is not None:
                stage = stage.as_stale(why, epoch)
            elif stage.in_memory:
                stage, self.memory = replace(stage.resumed(), gaps=()), True
            elif lacks:
                stage = replace(stage.resumed(), begin=epoch, gaps=())
                self.without_rows.add(name)
            elif stage.last(epoch) == epoch:
                stage = stage.resumed()
            else:
                self.behind = True
            catalog[name] = replace(stage, held=held)
        return data, catalog


def _untrusted_reason(stage: Stage, origin: signature.CatalogOrigin) -> str | None:
    """Returns why a stage may not be compiled before its cell is run; None if it may."""
    if stage.signer is not None:
        return origin.why or signature.is_foreign(stage.signer)
    assert stage.definition is not None
    for part in stage.definition.walk():
        for sql in expressions_of(part):
            why = disallowed_reason(sql)
            if why is not None:
                return f"{why}: run the stage's cell"
    return None


def _unrecoverable_reason(stage: Stage) -> str | None:
    """Returns why a stage in memory cannot be recomputed; None if it can."""
    if stage.in_memory and stage.options.nondeterministic:
        return "the results of its functions were in memory only: run its cell"
    return None


class RecoveryCompletion:
    """Compiles the stages of an opened session before its first write.

    Args:
        report: records which stages could not be recovered.
        stage_recovery: repairs and resumes stages.
        background_rebuild: rebuilds missing operator state before the next write that needs it.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        maintenance: Maintenance,
        executor: BackfillExecutor,
        report: RecoveryReport,
        stage_recovery: StageRecovery,
        background_rebuild: BackgroundRebuild,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._maintenance = maintenance
        self._executor = executor
        self._recovery_report = report
        self._stage_recovery = stage_recovery
        self._background_rebuild = background_rebuild

    def schedule(self, opening: RecoveryState) -> None:
        """Schedules the compilation before the first write."""
        graph = self._publisher.snapshot.graph
        self._writer_lock.run_before_first_write(
            lambda: self._complete(graph, opening, differs=opening.differs)
        )

    def _complete(self, old: Graph, opening: RecoveryState, *, differs: bool) -> None:
        """Compiles the stages and restores their state, so that they can resume.

        Failure: 1. A stage is stale because its key is missing; epochs are committed. 2. The
        session ends, and the key is back. 3. The stage is read at the current epoch, and lacks
        those epochs. Hence the log records that a stage has stopped before the first epoch that it
        misses.
        """
        store, snapshot = self._publisher.store, self._publisher.snapshot
        version, catalog = snapshot.version, dict(snapshot.catalog)
        runner = None
        graph = Compiler(old, self._executor.types, now=version.epoch).compile(catalog)
        if not graph.nodes.keys() <= old.nodes.keys():
            graph = self._without_lost(catalog, old, version, opening.without_rows)
        if graph.nodes.keys() <= old.nodes.keys():
            runner = self._executor.runner_of(graph)
        else:
            differs = True
            graph = _limited_to_log(graph, old)
        traces = store.restored(graph)
        traces.update((n, t) for n, t in version.traces.items() if n in traces)
        self._publisher.compiled(runner, VersionState(version.epoch, traces), graph, catalog)
        self._writer_lock.run_before_first_write(lambda: self._resume(opening, differs=differs))
        self._writer_lock.run_pre_write_tasks(rebuilt=False)

    def _without_lost(
        self,
        catalog: dict[str, Stage],
        old: Graph,
        version: VersionState,
        without_rows: AbstractSet[str],
    ) -> Graph:
        """Compiles a catalog; stops the stages that cannot be run again."""

        def compiled(stages: Mapping[str, Stage]) -> Compiled:
            return self._executor.compile_continuing(stages, old, version.epoch)

        memory = {name for name, stage in catalog.items() if stage.in_memory and stage.live}
        original = dict(catalog)
        _, graph = stop_without_memos(catalog, compiled, version, without_rows | memory)
        if catalog != original:
            hidden_columns(self._publisher.store.history, named_logs(old), catalog)
            self._recovery_report.restored(*_stage_statuses(catalog))
        return graph

    def _resume(self, opening: RecoveryState, *, differs: bool) -> None:
        """Resumes the stages whose inputs are complete; runs again if it was interrupted.

        Failure: 1. A frame after the checkpoint names a file; a later frame no longer does. 2.
        Recovery keeps the file, because it may fall back to the checkpoint, and nothing retires it:
        it stays as long as this owner writes. Hence files that are not live are retired here.
        """
        behind, publisher = opening.behind, self._publisher
        if not publisher.store.foreign:
            live = files_of(publisher.snapshot.version) | publisher.store.history.files()
            publisher.garbage.retire(publisher.store.named - live)
        publisher.store.release()
        if opening.lacking:
            self._stage_recovery.repair(opening.missing, opening.without_rows)
        traces = self._publisher.snapshot.version.traces
        self._maintenance.plan_merges(
            n for n, t in traces.items() if not files_needed(t) & opening.missing
        )
        if behind:
            try:
                self._stage_recovery.resume(differs=differs)
                return
            except NosyncError as error:
                self._recovery_report.note(f"a stage has missed epochs and stays stale: {error}")
        if differs:
            self._background_rebuild.plan()


def _limited_to_log(graph: Graph, old: Graph) -> Graph:
    """Returns a graph compiled over that of a log, limited to what the log contains.

    Nodes that must be run for their state get a plan that no operator has, so that a later
    compilation creates them. Until then they name their inputs, because stages with missing files
    are recomputed from these.

    Failure: 1. Another plan requests one more arrangement of a collection. 2. It is taken for one
    that exists, and its number for one that was not allocated. 3. The definition that creates it
    allocates that number to another trace: two traces have one number, and no log can be opened
    after it.

    Failure: 1. A node of the log's plan is not in this plan, so its state is not read. 2. Another
    compilation gives the plan of the log again. 3. The node is taken for one with complete state,
    and has none. Hence it gets another plan here, under which its state is rebuilt.

    Failure: 1. A branch begins at an epoch at which an unnamed node has no state. 2. A file of a
    stage over it is missing. 3. The plan for that stage needs the node, which is missing. Hence
    unnamed nodes of the old graph are kept.
    """
    parts = [node for node in old if node.name is None and node.id not in graph.nodes]
    nodes = [replace(node, plan=UNMADE) if node.state else node for node in parts]
    for node in graph:
        old_node = old.nodes.get(node.id) if node.name is None else old.named[node.name]
        if old_node is None:
            nodes.append(replace(node, plan=UNMADE))
            continue
        plan = node.plan if node.id == old_node.id else UNMADE
        log, layout, traces = old_node.log, old_node.log_layout, old_node.traces
        nodes.append(replace(node, log=log, log_layout=layout, traces=traces, plan=plan))
    memory, unwritten = graph.memory, graph.unwritten
    return Graph(nodes, graph.numbers, graph.made, memory=memory, unwritten=unwritten)
