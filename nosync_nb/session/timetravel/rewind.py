"""Rewinds a session to an earlier epoch, by one frame of its log.

    plan every trace at that epoch -> compute stages that were defined later
    -> prepare a branch of the current epoch -> write the frame -> assign -> publish the branch

*Data are rewound, definitions are not.* A stage that can be read at that epoch is cut there. One
that cannot is computed from its inputs at that epoch, before the frame is written: if that fails
nothing has changed. An input that was declared later stays, and is empty. Later changes are
subtracted from operator state if the frames contain them (`store/point_in_time.py`). Other operator
state is rebuilt before the next write, from the same inputs.

The frame commits the rewind, for this session and for the next owner of the log; without the frame,
nothing has changed. For a stage that is cut, no row is read and no file is written, whatever its
size. The frame contains the changes to subtract, if they are small (`store/point_in_time.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.epoch_result import EpochResult, VersionState
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import Snapshot, hidden_columns, named_logs, visible_columns
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import NosyncError, StageError, TimeError
from nosync_nb.session.backfill.background import BackgroundRebuild
from nosync_nb.session.backfill.damage import Compiled, stop_without_memos
from nosync_nb.session.backfill.execute import BackfillExecutor
from nosync_nb.session.backfill.plan import Base
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.state.publisher import (
    DefinitionRedo,
    Publisher,
    RewindRedo,
    files_of,
    record_history,
)
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.session.state.transactions import Transactions
from nosync_nb.session.state.writer_lock import DefinitionOutcome, WriterLock
from nosync_nb.session.timetravel.branch import BranchService
from nosync_nb.session.writes.idempotency import RepeatedLoads
from nosync_nb.spark.connection import SparkConnection
from nosync_nb.store import point_in_time
from nosync_nb.store.catalog.epoch_index import RewindMark
from nosync_nb.store.records.payloads import PayloadEntry
from nosync_nb.store.timetravel import branches, catalog_at
from nosync_nb.store.timetravel.trace_plan import GraphAtEpoch, plan_as_of
from nosync_nb.trace import Trace
from nosync_nb.trace.history.history import History

UNDONE_BYTES = 4 << 20
"""The most bytes of undone changes in the frame; larger changes are read from the history."""


class RewindReport(NamedTuple):
    """The result of a rewind.

    Attributes:
        left: the last epoch before the rewind.
        epoch: the epoch that the session continues from.
        branch: the branch with the undone epochs, in the folder `path`.
        cut: the stages and inputs that have their rows at that epoch again.
        computed: stages that were defined later, and were computed from their inputs at that epoch.
        remade: stages whose operators run once over their inputs before the next epoch.
        unknown: stopped stages and earlier versions that have no rows at that epoch.
    """

    left: int
    epoch: int
    branch: str = ""
    path: str = ""
    cut: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    remade: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def undo(self) -> str:
        """The command that opens the branch with the undone epochs."""
        return f"nosync.open({self.path!r})" if self.branch else "nothing is to be undone"


class _StateAtEpoch(NamedTuple):
    """The part of the current session that exists at an earlier epoch."""

    epoch: int
    catalog: dict[str, Stage]
    graph: Graph
    traces: dict[int, Trace]


class RewindService:
    """Rewinds a session; has no state of its own. All steps hold the writer's lock.

    Args:
        background_rebuild: rebuilds missing operator state.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        executor: BackfillExecutor,
        transactions: Transactions,
        spark_connection: SparkConnection,
        signer: CatalogSigner,
        maintenance: Maintenance,
        subscriptions: Subscriptions,
        repeated_loads: RepeatedLoads,
        branch_service: BranchService,
        background_rebuild: BackgroundRebuild,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._executor = executor
        self._transactions = transactions
        self._spark_connection = spark_connection
        self._signer = signer
        self._maintenance = maintenance
        self._subscriptions = subscriptions
        self._repeated_loads = repeated_loads
        self._branch_service = branch_service
        self._background_rebuild = background_rebuild

    def rewind(self, to: Any) -> RewindReport:
        """Rewinds to an earlier epoch; see `Session.rewind`."""
        outcome = DefinitionOutcome()
        try:
            with self._writer_lock.lock:
                self._writer_lock.begin_change("rewind", rebuilt=False)
                self._refuse_pending()
                snapshot = self._publisher.snapshot
                current = snapshot.epoch
                epoch = self._resolve(to, current)
                if epoch == current:
                    return RewindReport(current, epoch)
                report = self._perform(self._plan_at(snapshot, epoch), outcome)
                self._repeated_loads.exclude_after(epoch)
                self._branch_service.finish_backups()
            self._background_rebuild.submit_rebuild()
            self._maintenance.plan_checkpoint()
            self._spark_connection.follow()
            if self._subscriptions.has_listeners:
                self._writer_lock.call_user_functions(
                    self._subscriptions.notify_rewind, snapshot, self._publisher.snapshot
                )
            return report
        except BaseException as error:
            self._writer_lock.complete_interrupted(
                error, outcome, "the session has been rewound; do not rewind again"
            )
            with self._writer_lock.lock, suppress(NosyncError):  # the next caller completes it
                self._branch_service.finish_backups()
            raise

    def _refuse_pending(self) -> None:
        """Raises if rows are pending, because they were meant for the next epoch."""
        if self._transactions.open:
            raise StageError(
                "rewind inside a transaction is not possible",
                hint="rewind after the block",
            )
        waiting = self._transactions.current.pending
        if waiting:
            rows_count = sum(changes.rows for changes in waiting.values())
            raise StageError(
                f"rewind: {rows_count} changes of {', '.join(waiting)} are pending",
                hint="call session.commit() or session.discard() first",
            )

    def _resolve(self, to: Any, now: int) -> int:
        """Returns the epoch of a number, a label or a time; refuses negative numbers."""
        if hasattr(to, "__index__") and not isinstance(to, bool) and to.__index__() < 0:
            raise TimeError(f"epoch {to} is not readable", hint=f"epochs 0 to {now} are")
        return self._publisher.ledger.resolve(to, now)

    def _plan_at(self, snapshot: Snapshot, epoch: int) -> GraphAtEpoch:
        """Plans the session at an epoch; subtracts the later changes if they are small."""
        store, rewinds = self._publisher.store, self._publisher.ledger.rewinds
        frames = point_in_time.recent_frames(store.files, store.log, epoch, snapshot.epoch, rewinds)
        earlier = plan_as_of(snapshot, epoch, frames=frames)
        sizes = (len(entry.data) for own in earlier.taken.values() for _, entry in own)
        return earlier if sum(sizes) <= UNDONE_BYTES else plan_as_of(snapshot, epoch)

    def _perform(self, earlier: GraphAtEpoch, outcome: DefinitionOutcome) -> RewindReport:
        """Prepares the values to assign, writes the frame, and assigns them."""
        publisher, now = self._publisher, self._publisher.snapshot
        catalog = catalog_at.rewound_catalog(now.catalog, earlier)
        computed = [n for n in earlier.unread if catalog[n].live]
        graph_at = publisher.numbered(catalog_at.rewound_graph(now.graph, catalog, earlier))
        point = _StateAtEpoch(
            earlier.epoch, catalog, graph_at, _traces_of(graph_at, earlier.traces)
        )
        draft = EpochResult(VersionState(point.epoch, point.traces), point.epoch)
        new_graph, runner = graph_at, publisher.runner
        incomplete = not computed and (
            self._writer_lock.is_state_missing or not earlier.is_complete
        )
        if computed:
            point, new_graph, runner, draft = self._run_missing(earlier, catalog)
        elif graph_at.nodes is not now.graph.nodes and not incomplete:
            runner = self._executor.runner_of(new_graph)
        taken = point_in_time.undo_entries(earlier.epoch, earlier.taken)
        record, payload = self._redo_record(point, new_graph, runner, draft, taken, outcome)
        rewinds = RewindMark(earlier.epoch, publisher.ledger.incarnation + 1, record.position.seq)
        publisher.store.log.check()
        self._branch_service.finish_backups()
        branch = self._branch_service.leave(rewinds.incarnation)
        rebuild: Callable[[], None] | None = self._rebuild_state if incomplete else None
        publisher.rewind(RewindRedo(publisher, record, rewinds, rebuild), payload)
        path = os.path.join(publisher.store.path, branches.FOLDER, branch)
        return _report(now, earlier, catalog, remade=incomplete)._replace(branch=branch, path=path)

    def _run_missing(
        self, earlier: GraphAtEpoch, catalog: dict[str, Stage]
    ) -> tuple[_StateAtEpoch, Graph, Runner, EpochResult]:
        """Runs stages that were defined later, and missing operator state, at that epoch."""
        publisher, executor, now = self._publisher, self._executor, self._publisher.snapshot

        def compile_at(stages: Mapping[str, Stage]) -> Compiled:
            graph_at = catalog_at.rewound_graph(now.graph, stages, earlier)
            return executor.compile_continuing(stages, publisher.numbered(graph_at), earlier.epoch)

        version = VersionState(earlier.epoch, earlier.traces)
        graph_at, compiled = stop_without_memos(catalog, compile_at, version, earlier.unread)
        point = _StateAtEpoch(
            earlier.epoch, catalog, graph_at, _traces_of(graph_at, earlier.traces)
        )
        publisher.take_numbers(compiled.numbers)
        runner = executor.runner_of(compiled)
        past = HistoricalInputs(publisher.store.history, point.epoch)
        base = Base(graph_at, VersionState(point.epoch, point.traces), past)
        draft = executor.run_plan(runner, base, catalog).draft
        draft.keep(number for number, _ in compiled.layouts())
        return point, compiled, runner, draft

    def _redo_record(
        self,
        point: _StateAtEpoch,
        graph: Graph,
        runner: Runner,
        draft: EpochResult,
        taken: list[PayloadEntry],
        outcome: DefinitionOutcome,
    ) -> tuple[DefinitionRedo, bytes]:
        """Returns the values to assign, and the payload of the frame."""
        publisher, store = self._publisher, self._publisher.store
        sealed = self._signer.sealed(point.catalog, graph, point.epoch, publisher.retention)
        meta = {**sealed.meta, "incarnation": publisher.ledger.incarnation + 1}
        base = VersionState(point.epoch, point.traces)
        payload = store.definition(draft, base, graph, meta, back=taken)
        logs = named_logs(graph)
        history = self._history_after(logs, point.catalog, draft)
        version = VersionState(point.epoch, draft.traces)
        needed = files_of(publisher.snapshot.version) | store.history.files()
        spilled = {ref.path for _, _, change in draft.logged for ref in change.refs}
        retired = frozenset(needed | spilled) - files_of(version) - history.files()
        rewinds = publisher.ledger.incarnation + 1
        after = Snapshot(version, graph, point.catalog, visible_columns(history), rewinds)
        record = publisher.definition_redo(
            after, logs, history, runner, sealed, retired, [draft], outcome=outcome
        )
        return record, payload

    def _history_after(
        self, logs: Mapping[int, str], catalog: Mapping[str, Stage], draft: EpochResult
    ) -> History:
        """Returns the history after a rewind; reads packs for stages computed into other logs."""
        history = self._publisher.store.history.copied(())
        history.truncate(draft.epoch)
        hidden_columns(history, logs, catalog)
        record_history(history, logs.keys(), draft)
        for number in self._publisher.logs.keys() - logs.keys():
            history.drop(number)
        return history

    def _rebuild_state(self) -> None:
        """Requests a run of operators over the current contents of their inputs, to rebuild state.

        A nondeterministic stage stops, because it cannot be run again.
        """
        publisher = self._publisher
        now = publisher.snapshot
        catalog = dict(now.catalog)

        def over(stages: Mapping[str, Stage]) -> Compiled:
            return self._executor.compile_continuing(stages, now.graph, now.epoch)

        stop_without_memos(catalog, over, now.version, frozenset())
        if catalog != now.catalog:
            publisher.compiled(None, now.version, now.graph, catalog)
        self._background_rebuild.plan()


def _traces_of(graph: Graph, traces: Mapping[int, Trace]) -> dict[int, Trace]:
    """Returns the traces that belong to a graph and have layers."""
    return {n: traces[n] for n, _ in graph.layouts() if n in traces and traces[n].layers}


def _stage_to_rerun(node: Node, now: Snapshot, earlier: GraphAtEpoch) -> str | None:
    """Returns the stage of a node that must be run, because of this or an earlier rewind."""
    name = node.stage or node.name
    stage = None if name is None else now.catalog.get(name)
    if stage is None or stage.definition is None or not stage.live:
        return None
    lost = node.id in earlier.bare or node.id in earlier.refused or node.operator is None
    return name if lost or not now.graph.nodes.keys() >= {*node.inputs} else None


def _report(
    now: Snapshot, earlier: GraphAtEpoch, catalog: Mapping[str, Stage], *, remade: bool
) -> RewindReport:
    """Returns the report of a rewind, with its effect on each stage."""
    rerun = {name for node in now.graph if (name := _stage_to_rerun(node, now, earlier)) and remade}
    return RewindReport(
        now.epoch,
        earlier.epoch,
        cut=tuple(name for name in catalog if name not in earlier.unread),
        computed=tuple(n for n in catalog if n in earlier.unread and catalog[n].live),
        remade=tuple(name for name in catalog if name in rerun),
        unknown=tuple(n for n in catalog if n in earlier.unread and not catalog[n].live),
    )
