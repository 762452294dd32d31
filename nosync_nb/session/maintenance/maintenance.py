"""Merges layers, writes checkpoints, and packs and downsamples the history in the background.

The committing thread plans this work and the worker performs it. Results are adopted between
epochs, with the writer's lock, if the layers that they replace are still live.

Packing and downsampling are part of a checkpoint, because a checkpoint is what allows files to be
deleted. The thread that writes the checkpoint does them one after the other. Packs are adopted
between epochs, with the writer's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Any

from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.runtime.delta import ArrangedChange
from nosync_nb.dataflow.runtime.epoch_result import ENDLESS, EpochResult, VersionState
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.errors import NosyncError
from nosync_nb.files.memory import release_memory
from nosync_nb.session.maintenance import disk_usage
from nosync_nb.session.maintenance.offloaded_merges import OffloadedMerge, OffloadedMerges
from nosync_nb.session.state.limits import UserLimits
from nosync_nb.session.state.publisher import Publisher, files_of
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.session.state.worker import WHILE, BackgroundWorker, Failures
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.store import trace_recovery
from nosync_nb.store.records import file_references
from nosync_nb.store.retention_policy import Retention
from nosync_nb.store.store import SPILL_ROWS
from nosync_nb.store.trace_recovery import nonnegative_text
from nosync_nb.trace import Layer, adopt_merged, place_merged, stats
from nosync_nb.trace import plan_merges as plan
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.compaction import INLINE_ROWS, LAYERS_MAX, merge_ranges
from nosync_nb.trace.history.archive import total_of
from nosync_nb.trace.history.downsampling import RetainedEpochs
from nosync_nb.trace.history.pack_plans import PackPlan, PackResult, YieldingPause
from nosync_nb.trace.parts.part_file import PartRef

CLEARING = 3
"""Checkpoints until files are deleted, including the one that omits the deleted history."""

LOOKED_UP = 2
"""The most rows looked up for negative counts before a merge, as a multiple of its rows."""

PATIENCE_FRAMES = 256
"""Frames after which a checkpoint or a merge that failed is tried again."""

MERGING = "merging the layers"

LENT = 0.25
"""The share of an epoch's time for which a commit waits for the worker when it is behind."""


class Maintenance:
    """Merges layers and writes checkpoints of the published version.

    Attributes:
        patience: the first frame after which a failed checkpoint is retried; the worker sets it.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        signer: CatalogSigner,
        worker: BackgroundWorker,
        limits: UserLimits,
        merges: OffloadedMerges,
    ) -> None:
        self.patience = 0
        self._writer_lock, self._publisher, self._signer = writer_lock, publisher, signer
        self._worker, self._merges = worker, merges
        self._aging = HistoryAging(writer_lock, publisher, limits, worker.failures)
        self._due: set[int] = set()  # traces to merge
        self._failed: dict[int, int] = {}  # after a failed merge: the frame to wait for
        self._checkpointing = threading.Lock()
        self._clearing = 0  # guarded by `_checkpointing`
        merges.on_answer(self._queue_proposals)

    def plan_merges(self, numbers: Iterable[int]) -> None:
        """Queues a merge for each of some traces whose layers are out of proportion."""
        self._merges.overdue()
        traces, due = self._publisher.snapshot.version.traces, [*numbers]
        if self._failed:
            seq = self._publisher.store.log.head.seq
            due = [number for number in due if self._failed.get(number, 0) <= seq]
        for number in due:
            if disk_usage.merge_gain(traces.get(number)):
                self._due.add(number)
                self._worker.submit(("merge", number), self._merge_best, name=MERGING)

    def _merge_best(self) -> None:
        """Merges the due trace that saves most layers for the bytes that the merge writes."""
        due, traces = tuple(self._due), self._publisher.snapshot.version.traces
        best = max(due, key=lambda number: disk_usage.merge_gain(traces.get(number)), default=None)
        if best is not None:
            self._due.discard(best)
            self._attempt(best, lambda: self.merge(best))
        if self._due:  # because a task may have merged another trace, which then was due again
            self._worker.submit(object(), self._merge_best, name=MERGING)

    def _attempt(self, number: int, merge: Callable[[], None]) -> None:
        """Merges layers of a trace; after an error it waits until the log has grown."""
        merged, log = False, self._publisher.store.log
        with self._worker.failures.attempt(f"{MERGING} of {self._publisher.title_of(number)}"):
            log.check()
            merge()
            merged = True
        if merged:
            self._failed.pop(number, None)
        else:
            self._failed[number] = log.head.seq + PATIENCE_FRAMES

    def layers(self, name: str) -> list[dict[str, Any]]:
        """Returns the layers of a stage, oldest first; see `disk_usage.stage_layers`."""
        return disk_usage.stage_layers(self._publisher.snapshot, name, self._publisher.durable)

    def plan_giving_back(self) -> None:
        """Queues a task that returns memory to the operating system after a large run."""
        name = "returning memory to the system"
        self._worker.submit("memory", release_memory, name=name, later=True)

    def keep_up(self, draft: EpochResult, seconds: float) -> None:
        """Waits for the worker after a large epoch that took `seconds`, if the worker is behind.

        Failure: 1. Large epochs follow one another, and the worker waits for the interpreter after
        each of its steps. 2. Layers pile up, each lookup visits all of them, and epochs take twice
        as long. Hence the commit waits for a share of the epoch's time.
        """
        if draft.largest <= INLINE_ROWS or not draft.due:
            return
        if max(len(draft.traces[number].layers) for number in draft.due) > LAYERS_MAX:
            self._worker.catch_up(seconds * LENT)

    def plan_due(self, draft: EpochResult) -> None:
        """Queues a checkpoint, if the log has grown enough for one, or files wait to be deleted.

        It is queued only after another frame, because a second checkpoint at the same frame would
        replace the first, and no previous one would be left. After an epoch in files it waits for a
        pause, because it takes long and small epochs often follow immediately.
        """
        log = self._publisher.store.log
        if log.checkpoint_due or (self._clearing and log.head.seq > log.checkpoint_seq):
            self.plan_checkpoint(later=draft.largest == ENDLESS)

    def plan_checkpoint(self, *, later: bool = False) -> None:
        """Queues a checkpoint; after a failed one, only when the log has grown enough."""
        if self._publisher.store.log.head.seq >= self.patience:
            name = "writing a checkpoint"
            self._worker.submit("checkpoint", self.checkpoint, name=name, later=later)

    def merge(self, number: int) -> None:
        """Runs the planned merges of one trace, until none is left.

        Large merges are offloaded to the keeper. Their layers stay claimed until the keeper
        answers.
        """
        while True:
            with self._writer_lock.lock:
                self._writer_lock.finish()
                trace = self._publisher.snapshot.version.traces.get(number)
                planned = None if trace is None else plan(trace)
                if trace is None or planned is None:
                    return
                inputs = trace.layers[planned.start : planned.stop]
                for layer in inputs:
                    layer.claim()
                graph = self._publisher.snapshot.graph
                named, written = number in nonnegative_text(graph), number not in graph.unwritten
            merging, offloaded = OffloadedMerge(number, trace.layout, inputs), False
            try:
                if named:
                    rows_max = LOOKED_UP * sum(layer.rows_count for layer in inputs)
                    with suppress(NosyncError):  # a reader of a damaged layer reports it
                        stats.keep_nonnegative(trace, planned.stop, rows_max)
                if merging.is_large and written and self._merges.ready:
                    merging = self._with_files(merging)
                    offloaded = self._merges.ask(merging)
                if not offloaded and not self._merge_layers(merging):
                    return
            finally:
                if not offloaded:
                    merging.release()

    def _with_files(self, merging: OffloadedMerge) -> OffloadedMerge:
        """Returns a merge whose layers are all in files; layers in memory are written first."""
        number, layout, inputs = merging
        layers = []
        for layer in inputs:
            filed = layer
            if not layer.files:
                stem = f"trace{number}-{layer.lower}-{layer.upper}"
                change = self._publisher.store.spill(layer.parts, layout, stem)
                filed = Layer(layer.lower, layer.upper, change.parts, change.refs)
                self._replace_layers(number, (layer,), filed)
            layers.append(filed)
        for layer in layers:
            layer.claim()
        return merging._replace(inputs=tuple(layers))

    def _queue_proposals(self) -> None:
        name = "adopting merges of the keeper"
        self._worker.submit("proposals", self.take_proposals, name=name)

    def take_proposals(self) -> None:
        """Adopts the merges of the keeper, and performs those that failed there in this thread."""
        self._retire_files(self._merges.unwanted())
        while (proposal := self._merges.next()) is not None:
            self._attempt(proposal[0].number, partial(self._take_proposal, *proposal))

    def _take_proposal(self, merging: OffloadedMerge, files: tuple[PartRef, ...]) -> None:
        """Handles one proposal. A proposal without files means that the merge has failed."""
        change = None
        try:
            live = self._is_live(merging)
            change = self._merges.verified_parts(merging, files) if live and files else None
            if change is not None:
                self._publisher.metrics.count("proposals", self._adopt_merge(merging, change))
            elif live:
                self._merge_layers(merging)
        finally:
            merging.release()
            if change is None:
                self._retire_files({ref.path for ref in files})
        self.merge(merging.number)

    def _is_live(self, merging: OffloadedMerge) -> bool:
        with self._writer_lock.lock:
            self._writer_lock.finish()
            trace = self._publisher.snapshot.version.traces.get(merging.number)
            live = trace is not None and place_merged(trace, merging.inputs) is not None
            return live and not self._publisher.fenced

    def _merge_layers(self, merging: OffloadedMerge) -> bool:
        """Merges layers of a trace and replaces them with the result, if they are still live."""
        number, layout, inputs = merging
        parts = merge_ranges(layout, [layer.parts for layer in inputs])
        change = ArrangedChange(tuple(parts))
        unwritten = self._publisher.snapshot.graph.unwritten
        count = sum(len(p) for p in parts)
        if count > SPILL_ROWS and number not in unwritten:
            change = self._publisher.store.spill(parts, layout, merging.stem(count))
        return self._adopt_merge(merging, change)

    def _adopt_merge(self, merging: OffloadedMerge, change: ArrangedChange) -> bool:
        """Replaces layers with their merge, if they are still live."""
        inputs = merging.inputs
        output = Layer(inputs[0].lower, inputs[-1].upper, change.parts, change.refs)
        adopted = self._replace_layers(merging.number, inputs, output)
        self._publisher.metrics.count("merges", adopted)
        return adopted

    def _retire_files(self, names: set[str]) -> None:
        """Marks files as unused."""
        if names:
            with self._writer_lock.lock:
                self._writer_lock.finish()
                self._publisher.garbage.retire(names)

    def _replace_layers(self, number: int, inputs: tuple[Layer, ...], output: Layer) -> bool:
        """Replaces layers with a single one, if they are live, and retires the unused files."""
        with self._writer_lock.lock:
            self._writer_lock.finish()
            version = self._publisher.snapshot.version
            current = version.traces.get(number)
            adopted = None if current is None else adopt_merged(current, inputs, output)
            if adopted is None:
                self._publisher.garbage.retire({ref.path for ref in output.files})
                return False
            merged = VersionState(version.epoch, {**version.traces, number: adopted})
            self._publisher.replace(merged)
            self._publisher.garbage.retire({r.path for layer in inputs for r in layer.files})
            return True

    def checkpoint(self) -> None:
        """Writes the current state, so that the next opening reads only the frames after it.

        IMPORTANT: the position in the log, the version and the plan of the pack are read under one
        lock, so that the frames after the position are exactly the changes that neither contains.
        No checkpoint is written while operator state is missing, because it would omit that state.
        If the session is rewound meanwhile, the history of that position is gone, and the
        checkpoint is repeated: if a power failure then takes the frame of the rewind, a checkpoint
        without that history would be damage.

        Failure: 1. Two threads plan packs of the same history, up to two epochs. 2. The pack of the
        earlier epoch is adopted, the other one is not, and its checkpoint records that all is
        packed. Hence checkpoints are written one after the other, whichever thread requests them.
        """
        store = self._publisher.store
        with self._checkpointing:
            store.log.check()
            try:
                version = self._write_checkpoint()
            except BaseException:
                self.patience = store.log.head.seq + PATIENCE_FRAMES
                raise
            if version is None:
                return
            self._publisher.metrics.count("checkpoints")
            self._clearing = max(0, self._clearing - 1)
            with self._writer_lock.lock:
                self._writer_lock.finish()
                expired = self._publisher.garbage.expired()
                live = self._publisher.named_files | files_of(version)
            store.remove(expired - live)

    def _write_checkpoint(self) -> VersionState | None:
        """Writes a checkpoint and returns its version; None if no checkpoint can be written."""
        publisher, store = self._publisher, self._publisher.store
        with self._writer_lock.lock:
            self._writer_lock.finish()
            self._writer_lock.run_pre_write_tasks(rebuilt=False)
            snapshot, position = publisher.snapshot, publisher.position
            version, graph = snapshot.version, snapshot.graph
            if position is None or self._writer_lock.is_state_missing:
                return None
            recorded, times = publisher.ledger.saved()
            meta = {
                "catalog": publisher.catalog,
                "signed": self._signer.signed(version.epoch, publisher.digest),
                **recorded,
                "retired": sorted(publisher.garbage.leave()),
                **store.clocks.saved(),
                **store.succession.saved(position.seq),
            }
            plan = store.history.pack(version.epoch, graph.unwritten)
            incarnation = publisher.ledger.incarnation
        self._aging.pack(plan)
        previous_files, needed = store.history.files(), files_of(version)
        bounded = publisher.retention.budget is not None
        thinned = self._aging.thin(needed)
        fitted = self._aging.fit_into_budget(needed, again=self._clearing > 0) if bounded else None
        if fitted is not None:
            self._clearing = CLEARING if fitted else 0
        # Replaced packs are retired later, because the previous checkpoint still names them.
        meta["retired"] = sorted({*meta["retired"], *(previous_files - store.history.files())})
        version = self._move_to_files(version, graph, thinned=thinned or bounded)
        past = self._history_record(incarnation)
        if past is None:
            return self._write_checkpoint()
        meta.update(
            file_references.recorded_requirement(
                file_references.local_numbers(snapshot.catalog, graph), store.history
            )
        )
        payload = store.checkpoint_payload(version, graph, meta, times, past)
        store.log.write_checkpoint(payload, position)
        store.log.trim()
        return version

    def _history_record(self, incarnation: int) -> Mapping[str, Any] | None:
        """Returns the history record of a checkpoint; None if the session was rewound meanwhile."""
        with self._writer_lock.lock:
            self._writer_lock.finish()
            if self._publisher.ledger.incarnation != incarnation:
                return None
            return self._publisher.store.history.manifest()

    def _move_to_files(self, version: VersionState, graph: Graph, *, thinned: bool) -> VersionState:
        """Returns a version with its large layers in files; live ones are replaced as well."""
        traces, pause = dict(version.traces), YieldingPause(self._writer_lock.give_way)
        for number in trace_recovery.trace_logs(graph).keys() & traces.keys():
            try:
                pairs = self._publisher.store.write_layers(number, traces[number], thinned=thinned)
            except Exception as error:
                error.add_note(f"{WHILE}writing {self._publisher.title_of(number)} to files")
                raise
            for layer, filed in pairs:
                adopted = adopt_merged(traces[number], (layer,), filed)
                assert adopted is not None
                traces[number] = adopted
                self._replace_layers(number, (layer,), filed)
            pause()
        return VersionState(version.epoch, traces)


class HistoryAging:
    """Packs the history of the published version, and downsamples it as the retention requires."""

    def __init__(
        self, writer_lock: WriterLock, publisher: Publisher, limits: UserLimits, failures: Failures
    ) -> None:
        self._writer_lock, self._publisher, self._limits = writer_lock, publisher, limits
        self._failures = failures
        self._fitted_retention: Retention | None = None  # guarded by the lock of checkpoints

    def pack(self, plan: PackPlan | None) -> None:
        """Writes a planned pack, and drops history of stages in memory that no restart replays.

        The checkpoint depends on the pack, because it records that all earlier history is packed.
        It does not depend on the other steps of this class.
        """
        if plan is not None:
            at: list[int] = []
            try:
                self._adopt_pack(plan.perform(self._pause(), at.append))
            except Exception as error:
                if at:
                    error.add_note(f"{WHILE}packing {self._publisher.title_of(at[-1])}")
                raise
        self._shorten_memory_history()

    def thin(self, needed: AbstractSet[str]) -> bool:
        """Combines packs, and downsamples old ones.

        Returns:
            True if the retention allows downsampling, or if an error occurred.

        Args:
            needed: the files that are needed for other purposes than the history.
        """
        with self._failures.attempt("downsampling history"):
            return self._downsample(needed)
        return True

    def _downsample(self, needed: AbstractSet[str]) -> bool:
        publisher, history = self._publisher, self._publisher.store.history
        keep = self._retained_epochs(publisher.snapshot)
        while (tidy := history.tidy(keep, needed)) and self._adopt_pack(
            tidy.perform(self._pause())
        ):
            keep = self._retained_epochs(publisher.snapshot)
        return keep is not None

    def fit_into_budget(self, needed: AbstractSet[str], *, again: bool) -> bool | None:
        """Downsamples the history until the log fits its budget. Returns True if it wrote a pack.

        Args:
            again: True if the checkpoint is written only to delete files. If the log was fitted to
                the same settings before, nothing is done, and None is returned.

        Cost: a pack is written at most twice for each factor of 16 that it becomes coarser.
        """
        with self._failures.attempt("reducing history to the budget"):
            return self._downsample_to_budget(needed, again=again)
        return False

    def _downsample_to_budget(self, needed: AbstractSet[str], *, again: bool) -> bool | None:
        publisher, history = self._publisher, self._publisher.store.history
        retention, fitted = publisher.retention, False
        if again and retention == self._fitted_retention:
            return None
        while disk_usage.over_budget(publisher):
            keep = self._least_retained(publisher.snapshot)
            plan = None if keep is None else history.tidy(keep, needed, to_fit=True)
            if plan is None or not self._adopt_pack(plan.perform(self._pause()), bounded=True):
                break
            fitted = True
        self._fitted_retention = retention
        return fitted

    def _pause(self) -> YieldingPause:
        """Returns a pause that also waits for a running epoch, for a bounded time."""
        return YieldingPause(self._writer_lock.give_way)

    def _shorten_memory_history(self) -> None:
        """Drops history of stages in memory that is longer than a restart would replay.

        The inputs of a stopped stage stay readable at its last epoch, because it resumes there.
        """
        snapshot = self._publisher.snapshot
        for name, stage in snapshot.catalog.items():
            node = snapshot.graph.named[name]
            if stage.in_memory and stage.live and node.log is not None:
                with self._failures.attempt(f"combining the history of stage '{name}'"):
                    self._sum_up_oldest(snapshot, node.log, node.log_layout)

    def _sum_up_oldest(self, snapshot: Snapshot, log: int, layout: Layout) -> None:
        """Combines the oldest changes of a log, if it has more than a restart would replay."""
        epoch = snapshot.history.excess(log, self._limits.replay_rows)
        if epoch is None or min(self._last_epochs(snapshot), default=epoch) < epoch:
            return
        batch = total_of(snapshot.history.state(log, epoch), layout)
        with self._writer_lock.lock:
            self._writer_lock.finish()
            self._publisher.store.history.shorten(log, epoch, batch, snapshot.history)
            self._publisher.repacked()

    def _retained_epochs(self, snapshot: Snapshot) -> RetainedEpochs | None:
        """Returns the epochs to retain separately; None if these are all epochs."""
        policy, ledger = self._publisher.retention, self._publisher.ledger
        return policy.keep(snapshot.epoch, ledger.since, self._last_epochs(snapshot))

    def _least_retained(self, snapshot: Snapshot) -> RetainedEpochs | None:
        """Returns the epochs to retain even beyond the budget; None without a budget."""
        policy, keep = self._publisher.retention, self._retained_epochs(snapshot)
        if policy.budget is None:
            return None
        stop = snapshot.epoch + 1
        return keep or RetainedEpochs(stop, policy.pinned(self._last_epochs(snapshot)))

    def _last_epochs(self, snapshot: Snapshot) -> list[int]:
        """Returns the last epochs of stopped stages: their inputs must stay readable there."""
        return [s.last(snapshot.epoch) for s in snapshot.catalog.values() if s.reason is not None]

    def _adopt_pack(self, packed: PackResult, *, bounded: bool = False) -> bool:
        """Adopts a pack; the files of the packs that it replaces are retired.

        A pack is rejected if the retention was raised while it was written.

        Args:
            bounded: True if the pack was downsampled to fit the budget, whatever its age.
        """
        with self._writer_lock.lock:
            self._writer_lock.finish()
            snapshot, history = self._publisher.snapshot, self._publisher.store.history
            least = self._least_retained(snapshot) if bounded else None
            keep = self._retained_epochs(snapshot) if least is None else least._replace(single=1)
            if history.loses(packed, keep):
                self._publisher.garbage.retire(packed.files)
                return True
            previous_files = history.files()
            adopted = history.adopt(packed)
            self._publisher.repacked()
            unused = previous_files - history.files() if adopted else packed.files
            self._publisher.garbage.retire(unused)
            return adopted
