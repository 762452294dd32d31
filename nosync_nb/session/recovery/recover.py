"""Recovery: what an opening finds, as a value, and what is left to do before the first write.

What was there is read, never computed again. It comes back in two steps. The first is all that a
reader needs: the catalog, where the traces lie, the history; it costs the same whatever they hold.
The second compiles the stages, and is done when the session is written for the first time.

A catalog is believed if this user signed it, here and at its epoch, and its functions come back if
their signatures hold. A stage that another key described, or with a function that does not come
back, is stale, readable at its last epoch, until its cell is run: nothing of it is compiled. A
reader runs nothing, and judges nobody.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from nosync_nb.collections.functions import signing
from nosync_nb.dataflow.compiler import Compiler
from nosync_nb.dataflow.graph import UNMADE, Graph
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.schema_adaptation import adapted_to_schemas
from nosync_nb.dataflow.snapshot import hidden_columns, named_logs
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import NosyncError
from nosync_nb.expressions import disallowed_reason
from nosync_nb.operators.registry import expressions_of
from nosync_nb.session.backfill import lost_memos
from nosync_nb.session.backfill.lost_memos import Compiled
from nosync_nb.session.durability import replication_lag as behind
from nosync_nb.session.durability.lazy_files import LazyFiles
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.planning import backfill_plan, definition_diff, replay
from nosync_nb.session.report import READ, STALE, RecoveryReport
from nosync_nb.session.state.publisher import Publisher, files_of
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.spark.sql_settings import SparkTypes
from nosync_nb.store import log_reader
from nosync_nb.store.catalog import signature
from nosync_nb.store.catalog.epoch_index import lost_epochs
from nosync_nb.store.lazy_layer import files_needed
from nosync_nb.store.log_reader import CatalogTrust, Described, RecoveredState, WrittenCatalog
from nosync_nb.store.records import payloads
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.store import Store

LOST_MAX = 1 << 16
"""Epochs that are told as lost at most, whatever number a former owner left."""


class RecoveryState(NamedTuple):
    """What a session begins with.

    Attributes:
        recovered: what its log says, with the stages that cannot go on as stale ones.
        report: the same for people.
        differs: not the stages go on that the log says.
        behind: some have missed epochs and may have them.
        missing: files that are named and not there.
        memory: some stages were in memory alone.
        anew: the stages that go on and of which nothing is there, as the log begins before them.
    """

    recovered: RecoveredState
    report: RecoveryReport
    differs: bool = False
    behind: bool = False
    missing: frozenset[str] = frozenset()
    memory: bool = False
    anew: frozenset[str] = frozenset()

    @property
    def lacking(self) -> bool:
        """Whether stages lack something that has to be had again."""
        doubtful = backfill_plan.awaits_recheck(self.recovered.snapshot.catalog)
        lost = self.missing or self.anew or self.recovered.store.clocks.wrong
        return self.memory or doubtful or bool(lost)


def recover(store: Store, types: SparkTypes, fetching: LazyFiles) -> RecoveryState:
    """What a session begins with that opened a folder. What nobody names is deleted there.

    Args:
        fetching: is told what is named and not here, and tells what is nowhere.

    Raises:
        CorruptLogError: if what the log says makes no sense.
    """
    log = store.log
    if log.mode == "r":
        recovered = log_reader.recover_state(store)
        store.release()
        return RecoveryState(recovered, _report(recovered, range(0)))
    describe = _Describer(log.id, types)
    recovered = log_reader.recover_state(store, describe)
    epoch, catalog = recovered.snapshot.epoch, recovered.snapshot.catalog
    lost = lost_epochs(log.noted, recovered.ledger.incarnation, epoch)[:LOST_MAX]
    with guarded_decoding("the log"):
        lacking = fetching.expect(store.sweep())
    report = _report(recovered, lost)
    for note in (lacking.said, *behind.demotion_text(catalog)):
        if note:
            report.note(note)
    stages = recovered.data.get("stages", ())
    differs = any(
        (each["life"]["is"] == "stale") != (catalog[each["name"]].reason is not None)
        for each in stages
    )
    anew = frozenset(describe.anew)
    return RecoveryState(
        recovered, report, differs, describe.behind, lacking.missing, describe.memory, anew
    )


def _report(recovered: RecoveredState, lost: range) -> RecoveryReport:
    """Args: `lost` are epochs that are gone."""
    log, (version, _, catalog, _) = recovered.store.log, recovered.snapshot
    stages, reasons = _ways(catalog)
    return RecoveryReport(
        fresh=log.fresh,
        clean=log.clean,
        resumed_at=version.epoch,
        stages=stages,
        reasons=reasons,
        inputs=sorted(name for name, stage in catalog.items() if stage.is_input),
        lost=list(lost),
        notes=[*log.notes],
    )


def _ways(catalog: Mapping[str, Stage]) -> tuple[dict[str, str], dict[str, str]]:
    """Which stages go on and which do not, and why."""
    stages = [s for s in catalog.values() if not s.is_input and not s.frozen]
    ways = {s.name: STALE if s.reason else READ for s in stages}
    return ways, {s.name: s.reason for s in stages if s.reason}


class _Describer:
    """The stages of a catalog with their functions; decides which are stale.

    Attributes:
        behind: whether some of them could go on if they had the epochs that they missed.
        memory: whether some of them were in memory alone.
        anew: those that go on, and of which nothing is there.
    """

    def __init__(self, log_id: bytes, types: SparkTypes) -> None:
        self._log_id, self._types = log_id, types
        self.behind = self.memory = False
        self.anew: set[str] = set()

    def __call__(self, said: WrittenCatalog, judged: CatalogTrust, epoch: int) -> Described:
        """A catalog of another's key is marked as his."""
        signer, data = judged.origin.signer, said.catalog
        if signer is not None:
            data = payloads.foreign_json(data, signer)

        def unseal(text: str, context: str, identity: str) -> Any:
            assert judged.key is not None  # it has signed the catalog
            sealed = base64.b64decode(text)
            return signing.load_signed_function(
                sealed, key=judged.key, context=context, fingerprint=identity
            )

        catalog = payloads.catalog_from_json(data, self._log_id, unseal)
        for name, stage in catalog.items():
            if stage.in_memory and stage.frozen:
                catalog[name] = stage.forgotten("", epoch)
            if stage.definition is None or stage.frozen:
                continue
            why = held = _held(stage, judged.origin)
            if why is None and stage.refused:
                why = stage.reason
            elif why is None:
                _, why = adapted_to_schemas(stage, catalog, self._types)
                why = why or definition_diff.halt_reason(stage, catalog) or _gave(stage)
            lacks = not stage.has(stage.last(epoch))
            if why is not None and (stage.in_memory or lacks):
                stage = stage.forgotten(why, epoch)
            elif why is not None:
                stage = stage.stopped(why, epoch)
            elif stage.in_memory:
                stage, self.memory = replace(stage.resumed(), gaps=()), True
            elif lacks:
                stage = replace(stage.resumed(), begin=epoch, gaps=())
                self.anew.add(name)
            elif stage.last(epoch) == epoch:
                stage = stage.resumed()
            else:
                self.behind = True
            catalog[name] = replace(stage, held=held)
        return data, catalog


def _held(stage: Stage, origin: signature.CatalogOrigin) -> str | None:
    """Why nothing of a stage may be compiled before its cell is run."""
    if stage.signer is not None:
        return origin.why or signature.is_foreign(stage.signer)
    assert stage.definition is not None
    for part in stage.definition.walk():
        for sql in expressions_of(part):
            why = disallowed_reason(sql)
            if why is not None:
                return f"{why}: run the stage's cell"
    return None


def _gave(stage: Stage) -> str | None:
    """Why a stage is not computed again of which nothing is written, None if it is."""
    if stage.in_memory and stage.options.nondeterministic:
        return "what its functions gave was in memory alone: run its cell"
    return None


class ResumeStages(Protocol):
    """Writes which stages go on after a recovery; see `DefinitionService.resume`."""

    def __call__(self, *, extend: bool, differs: bool) -> None: ...


class HealStages(Protocol):
    """Has again what lies in files that are not there; see `BackfillExecutor.heal`."""

    def __call__(self, missing: AbstractSet[str], anew: AbstractSet[str]) -> bool: ...


class RecoveryCompletion:
    """Compiles the stages of a session that was opened, before it is written.

    Args:
        heal: has again what lies in files that are not there.
        report: told what could not be had.
        resume: writes which stages go on.
        lack: has what they lack of what they remember made before the next write that needs it.
    """

    def __init__(
        self,
        gate: WriterLock,
        publisher: Publisher,
        upkeep: Maintenance,
        link: SparkConnection,
        heal: HealStages,
        report: RecoveryReport,
        resume: ResumeStages,
        lack: Callable[[], None],
    ) -> None:
        self._gate = gate
        self._publisher = publisher
        self._upkeep = upkeep
        self._link = link
        self._heal = heal
        self._report = report
        self._resumes = resume
        self._lack = lack

    def begin(self, opening: RecoveryState) -> None:
        """Has it done before the first write."""
        graph = self._publisher.snapshot.graph
        self._gate.first(lambda: self._complete(graph, opening, differs=opening.differs))

    def _complete(self, old: Graph, opening: RecoveryState, *, differs: bool) -> None:
        """Compiles the stages and restores their state, so that they can go on.

        Failure: 1. A stage is stale, as its key is not there; epochs pass. 2. The session ends, and
        the key is back. 3. The stage is read as of now, and lacks those epochs. Hence the log says
        that a stage has stopped before the first epoch that it misses.
        """
        store, snapshot = self._publisher.store, self._publisher.snapshot
        version, catalog = snapshot.version, dict(snapshot.catalog)
        types, runner = self._link.types, None
        graph = Compiler(old, types, now=version.epoch).compile(catalog)
        if not graph.nodes.keys() <= old.nodes.keys():
            graph = self._without_lost(catalog, old, version, opening.anew)
        if graph.nodes.keys() <= old.nodes.keys():
            bulk = self._link.bulk()
            runner = Runner(graph, self._link.evaluate, bulk, spill=bulk.files)
        else:
            differs = True
            graph = _unmade(graph, old)
        traces = store.restored(graph)
        traces.update((n, t) for n, t in version.traces.items() if n in traces)
        self._publisher.compiled(runner, VersionState(version.epoch, traces), graph, catalog)
        self._gate.first(lambda: self._resume(opening, differs=differs))
        self._gate.ready(rebuilt=False)

    def _without_lost(
        self, catalog: dict[str, Stage], old: Graph, version: VersionState, anew: AbstractSet[str]
    ) -> Graph:
        """The graph of a catalog in which the stages have stopped that cannot be run again."""

        def compiled(stages: Mapping[str, Stage]) -> Compiled:
            types, now, none = self._link.types, version.epoch, frozenset[str]()
            return Compiled(old, replay.compile_catalog(stages, old, types, now=now, extended=none))

        memory = {name for name, stage in catalog.items() if stage.in_memory and stage.live}
        before = dict(catalog)
        _, graph = lost_memos.stop(catalog, compiled, version, anew | memory)
        if catalog != before:
            hidden_columns(self._publisher.store.history, named_logs(old), catalog)
            self._report.restored(*_ways(catalog))
        return graph

    def _resume(self, opening: RecoveryState, *, differs: bool) -> None:
        """Lets stages go on that have what they need; again, if it was interrupted.

        Failure: 1. A frame after the checkpoint names a file, a later one has it no more. 2. Who
        opens the log keeps it, as the checkpoint may be gone back to, and nobody tells him to let
        it go: it stays as long as he writes. Hence what is not live is retired by now.
        """
        behind, publisher = opening.behind, self._publisher
        if not publisher.store.foreign:
            live = files_of(publisher.snapshot.version) | publisher.store.history.files()
            publisher.garbage.retire(publisher.store.named - live)
        publisher.store.release()
        if opening.lacking:
            self._heal(opening.missing, opening.anew)
        traces = self._publisher.snapshot.version.traces
        self._upkeep.plan_merges(
            n for n, t in traces.items() if not files_needed(t) & opening.missing
        )
        if not behind:
            if differs:
                self._lack()
            return
        try:
            self._resumes(extend=True, differs=differs)
        except NosyncError as error:
            self._report.note(f"a stage has missed epochs and stays stale: {error}")
            self._resumes(extend=False, differs=differs)


def _unmade(graph: Graph, old: Graph) -> Graph:
    """A graph that was compiled over that of a log, with no more than the log has of it.

    Nodes that have to be run for their state have a plan that no operator has, so that a later
    compilation makes them. Until then they say what they read: stages that lack files are run
    again over that.

    Failure: 1. Another plan asks a collection for one more order. 2. The graph of before takes it
    for one that is there, and its number for one that was not given. 3. The definition that makes
    it gives that number to something else: two traces have one, and no log can be opened after it.

    Failure: 1. A node of the log's plan is none of this one, so what it remembers is not read. 2.
    The plan is made again, and is that of the log. 3. The node is taken for one that remembers all,
    and remembers nothing. So it has another plan from now on, under which that is made anew.

    Failure: 1. A branch begins at an epoch of which a part without a name has no state. 2. A file
    of a stage over it is missing. 3. The plan for that stage needs the part, which is not there.
    """
    parts = [node for node in old if node.name is None and node.id not in graph.nodes]
    nodes = [replace(node, plan=UNMADE) if node.state else node for node in parts]
    for node in graph:
        before = old.nodes.get(node.id) if node.name is None else old.named[node.name]
        if before is None:
            nodes.append(replace(node, plan=UNMADE))
            continue
        plan = node.plan if node.id == before.id else UNMADE
        log, layout, traces = before.log, before.log_layout, before.traces
        nodes.append(replace(node, log=log, log_layout=layout, traces=traces, plan=plan))
    memory, unwritten = graph.memory, graph.unwritten
    return Graph(nodes, graph.numbers, graph.made, memory=memory, unwritten=unwritten)
