"""Maintenance: merges, checkpoints and what can be seen of layers.

All of it is planned by the committing thread and performed by the worker; results are adopted
between epochs, with the gate's lock, if what they replace is still live.
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
from nosync_nb.session.limits import UserLimits
from nosync_nb.session.maintenance import disk_usage
from nosync_nb.session.maintenance.offloaded_merges import OffloadedMerge, OffloadedMerges
from nosync_nb.session.state.background_errors import WHILE, Failures
from nosync_nb.session.state.publisher import Publisher, files_of
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.store import trace_recovery
from nosync_nb.store.records import file_references
from nosync_nb.store.records.nonnegative_layers import nonnegative_text
from nosync_nb.store.retention_policy import Retention
from nosync_nb.store.store import SPILL_ROWS
from nosync_nb.trace import Layer, Merge, Trace, adopt_merged, place_merged, stats
from nosync_nb.trace import plan_merges as plan
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.compaction import INLINE_ROWS, LAYERS_MAX
from nosync_nb.trace.history.archive import total_of
from nosync_nb.trace.history.downsampling import RetainedEpochs
from nosync_nb.trace.history.pack_plans import PackPlan, PackResult, YieldingPause
from nosync_nb.trace.merge import merge_ranges
from nosync_nb.trace.parts.part_file import PartRef

CLEARING = 3
"""So many checkpoints, the one that names less of the past among them, until files are deleted."""

LOOKED_UP = 2
"""Of a merge so many times the rows are looked at for whether they were there, not more."""

PATIENCE_FRAMES = 256
"""Frames after which a checkpoint or a merge that failed is tried again."""

MERGING = "merging the layers"

LENT = 0.25
"""For what share of an epoch's time the worker is waited for when it is behind."""


class Maintenance:
    """Merges layers and writes checkpoints of what is published.

    Attributes:
        patience: the frame from which on a failed checkpoint is tried again; the worker's.
    """

    def __init__(
        self,
        gate: WriterLock,
        publisher: Publisher,
        signer: CatalogSigner,
        worker: BackgroundWorker,
        limits: UserLimits,
        merges: OffloadedMerges,
    ) -> None:
        self.patience = 0
        self._gate, self._publisher, self._signer = gate, publisher, signer
        self._worker, self._merges = worker, merges
        self._aging = HistoryAging(gate, publisher, limits, worker.failures)
        self._due: set[int] = set()  # traces that are to be merged
        self._failed: dict[int, int] = {}  # of which a merge failed: the frame to wait for
        self._spared: set[int] = set()  # those that wait, as enough was written
        self._checkpointing = threading.Lock()
        self._clearing = 0  # with `_checkpointing`, as what follows

    def plan_merges(self, numbers: Iterable[int]) -> None:
        """Queues a merge for each of some traces whose layers are out of proportion.

        Those that have waited, as enough was written, are among them when more may be.
        """
        self._merges.proposals.overdue()
        traces, due = self._publisher.snapshot.version.traces, [*numbers]
        if self._failed:
            seq = self._publisher.store.log.head.seq
            due = [number for number in due if self._failed.get(number, 0) <= seq]
        if self._spared and not disk_usage.should_defer_rewrites(self._publisher):
            due += [self._spared.pop() for _ in range(len(self._spared))]
        for number in due:
            if disk_usage.merge_gain(traces.get(number)):
                self._due.add(number)
                self._worker.submit(("merge", number), self._merge_best, name=MERGING)

    def _merge_best(self) -> None:
        """Merges the trace, of those that are due, that saves most layers for what it writes."""
        due, traces = tuple(self._due), self._publisher.snapshot.version.traces
        best = max(due, key=lambda number: disk_usage.merge_gain(traces.get(number)), default=None)
        if best is not None:
            self._due.discard(best)
            self._attempt(best, lambda: self.merge(best))
        if self._due:  # the task of one may have merged another, which then was due again
            self._worker.submit(object(), self._merge_best, name=MERGING)

    def _attempt(self, number: int, merge: Callable[[], None]) -> None:
        """Merges layers of a trace; after an error not again before the log has grown."""
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
        """The layers of a stage, oldest first; see `footprint.layers`."""
        return disk_usage.stage_layers(self._publisher.snapshot, name, self._publisher.durable)

    def plan_giving_back(self) -> None:
        """Queues giving the system the memory that a large run has left free."""
        name = "giving memory back to the system"
        self._worker.submit("memory", release_memory, name=name, later=True)

    def keep_up(self, draft: EpochResult, seconds: float) -> None:
        """Lets the worker run after a large epoch that took so long, if it is behind.

        Failure: large epochs follow one another, and the worker waits for the interpreter after
        each of its steps. Layers pile up, each is looked into, and epochs take twice as long.
        """
        if draft.largest <= INLINE_ROWS or not draft.due:
            return
        if max(len(draft.traces[number].layers) for number in draft.due) > LAYERS_MAX:
            self._worker.catch_up(seconds * LENT)

    def plan_due(self, draft: EpochResult) -> None:
        """Queues a checkpoint, if the log has grown enough for one, or files wait to be deleted.

        One after another frame alone: two of one frame would be one, and none the one before. That
        of an epoch in files waits for a pause: it takes long, and often small ones follow at once.
        """
        log = self._publisher.store.log
        if log.checkpoint_due or (self._clearing and log.head.seq > log.checkpoint_seq):
            self.plan_checkpoint(later=draft.largest == ENDLESS)

    def plan_checkpoint(self, *, later: bool = False) -> None:
        """Queues a checkpoint; after a failed one, not before the log has grown again."""
        if self._publisher.store.log.head.seq >= self.patience:
            name = "writing a checkpoint"
            self._worker.submit("checkpoint", self.checkpoint, name=name, later=later)

    def merge(self, number: int) -> None:
        """Merges the layers of one trace that are planned, until nothing is left to plan.

        Large ones the keeper is asked for: what he has in hand stays claimed until he answers.
        """
        while True:
            with self._gate.lock:
                self._gate.finish()
                trace = self._publisher.snapshot.version.traces.get(number)
                planned = None if trace is None else self._planned(number, trace)
                if trace is None or planned is None:
                    return
                inputs = trace.layers[planned.start : planned.stop]
                for layer in inputs:
                    layer.claim()
                graph = self._publisher.snapshot.graph
                named, written = number in nonnegative_text(graph), number not in graph.unwritten
            merging, asked = OffloadedMerge(number, trace.layout, inputs), False
            try:
                if named:
                    most = LOOKED_UP * sum(layer.rows_count for layer in inputs)
                    with suppress(NosyncError):  # a file of another layer is its readers' business
                        stats.keep_nonnegative(trace, planned.stop, most)
                if merging.is_large and written and self._merges.ready:
                    merging = self._filed(merging)
                    asked = self._merges.ask(merging)
                if not asked and not self._merged(merging):
                    return
            finally:
                if not asked:
                    merging.release()

    def _planned(self, number: int, trace: Trace) -> Merge | None:
        """The next merge of a trace; one that writes files waits if enough was written."""
        planned, seen = plan(trace), self._publisher.snapshot
        if planned is None or number in seen.graph.unwritten:
            return planned
        inputs = trace.layers[planned.start : planned.stop]
        large = sum(layer.rows_count for layer in inputs) > SPILL_ROWS
        if large and disk_usage.should_defer_rewrites(self._publisher):
            planned = plan(trace, spare=True)
            if planned is None:
                self._spared.add(number)
        return planned

    def _filed(self, merging: OffloadedMerge) -> OffloadedMerge:
        """A merge of layers that all lie in files; those in memory are written first."""
        number, layout, inputs = merging
        layers = []
        for layer in inputs:
            filed = layer
            if not layer.files:
                stem = f"trace{number}-{layer.lower}-{layer.upper}"
                held = self._publisher.store.spill(layer.parts, layout, stem)
                self._publisher.store.writes.repeat(held.refs)
                filed = Layer(layer.lower, layer.upper, held.parts, held.refs)
                self._replaced(number, (layer,), filed)
            layers.append(filed)
        for layer in layers:
            layer.claim()
        return merging._replace(inputs=tuple(layers))

    def take_proposals(self) -> None:
        """Takes what the keeper has merged, and merges here what came to nothing."""
        self._retire(self._merges.proposals.unwanted())
        while (said := self._merges.proposals.next()) is not None:
            self._attempt(said[0].number, partial(self._take, *said))

    def _take(self, merging: OffloadedMerge, files: tuple[PartRef, ...]) -> None:
        """Takes one proposal; without files it came to nothing."""
        held = None
        try:
            live = self._is_live(merging)
            held = self._merges.proven(merging, files) if live and files else None
            if held is not None:
                self._publisher.works.count("proposals", self._taken(merging, held))
            elif live:
                self._merged(merging)
        finally:
            merging.release()
            if held is None:
                self._retire({ref.path for ref in files})
        self.merge(merging.number)

    def _is_live(self, merging: OffloadedMerge) -> bool:
        with self._gate.lock:
            self._gate.finish()
            trace = self._publisher.snapshot.version.traces.get(merging.number)
            live = trace is not None and place_merged(trace, merging.inputs) is not None
            return live and not self._publisher.fenced

    def _merged(self, merging: OffloadedMerge) -> bool:
        """Merges layers of a trace and puts the result in their place, if they are still live."""
        number, layout, inputs = merging
        parts = merge_ranges(layout, [layer.parts for layer in inputs])
        held = ArrangedChange(tuple(parts))
        unwritten = self._publisher.snapshot.graph.unwritten
        count = sum(len(p) for p in parts)
        if count > SPILL_ROWS and number not in unwritten:
            held = self._publisher.store.spill(parts, layout, merging.stem(count))
        return self._taken(merging, held)

    def _taken(self, merging: OffloadedMerge, held: ArrangedChange) -> bool:
        """Puts what layers were merged to in their place, if they are still live."""
        inputs = merging.inputs
        self._publisher.store.writes.repeat(held.refs)
        output = Layer(inputs[0].lower, inputs[-1].upper, held.parts, held.refs)
        adopted = self._replaced(merging.number, inputs, output)
        self._publisher.works.count("merges", adopted)
        return adopted

    def _retire(self, names: set[str]) -> None:
        """Notes files that nobody needs."""
        if names:
            with self._gate.lock:
                self._gate.finish()
                self._publisher.garbage.retire(names)

    def _replaced(self, number: int, inputs: tuple[Layer, ...], output: Layer) -> bool:
        """Puts a layer in the place of others, if they are live; files of no use are retired."""
        with self._gate.lock:
            self._gate.finish()
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
        """Writes the state of now, so that the next opening reads only what follows it.

        IMPORTANT: the log's position, the version and the plan of what is packed are taken under
        one lock, so that what follows the position is exactly what is in none of them; there is
        none while operators lack what they remember, which it would be without. If the session goes
        back meanwhile, the past of that position is not there any more, and it is done anew:
        without the frame of the rewind, which may be lost with the power, a checkpoint without it
        would be damage.

        Failure: two plan packs of the same past, up to two epochs. That of the earlier one is put
        in place, the other one is not, and its checkpoint says that all is packed. So they are
        written one after the other, whoever asks.
        """
        store = self._publisher.store
        with self._checkpointing:
            store.log.check()
            try:
                version = self._checkpointed()
            except BaseException:
                self.patience = store.log.head.seq + PATIENCE_FRAMES
                raise
            if version is None:
                return
            self._publisher.works.count("checkpoints")
            self._clearing = max(0, self._clearing - 1)
            with self._gate.lock:
                self._gate.finish()
                expired = self._publisher.garbage.expired()
                live = self._publisher.named_files | files_of(version)
            store.remove(expired - live)

    def _checkpointed(self) -> VersionState | None:
        """The version of which a checkpoint is written now; None if there is nothing to write."""
        publisher, store = self._publisher, self._publisher.store
        with self._gate.lock:
            self._gate.finish()
            self._gate.ready(rebuilt=False)
            snapshot, position = publisher.snapshot, publisher.position
            version, graph = snapshot.version, snapshot.graph
            if position is None or self._gate.lacking:
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
        before, needed = store.history.files(), files_of(version)
        bounded = publisher.retention.bounded
        thinned = self._aging.thin(needed)
        fitted = self._aging.fit(needed, again=self._clearing > 0) if bounded else None
        if fitted is not None:
            self._clearing = CLEARING if fitted else 0
        # Packs that are thinned out now: the checkpoint before this one names them still.
        meta["retired"] = sorted({*meta["retired"], *(before - store.history.files())})
        version = self._settled(version, graph, thinned=thinned or bounded)
        past = self._past(incarnation)
        if past is None:
            return self._checkpointed()
        meta.update(
            file_references.recorded_requirement(
                file_references.local_numbers(snapshot.catalog, graph), store.history
            )
        )
        payload = store.checkpoint_payload(version, graph, meta, times, past)
        store.log.write_checkpoint(payload, position)
        store.writes.count(len(payload), again=True)
        store.log.trim()
        return version

    def _past(self, incarnation: int) -> Mapping[str, Any] | None:
        """What a checkpoint says of the history; None if the session has gone back since."""
        with self._gate.lock:
            self._gate.finish()
            if self._publisher.ledger.incarnation != incarnation:
                return None
            return self._publisher.store.history.manifest()

    def _settled(self, version: VersionState, graph: Graph, *, thinned: bool) -> VersionState:
        """A version of which large layers lie in files; those that are live do so from now on."""
        traces, rest = dict(version.traces), YieldingPause(self._gate.give_way)
        for number in trace_recovery.trace_logs(graph).keys() & traces.keys():
            try:
                pairs = self._publisher.store.settled(number, traces[number], thinned=thinned)
            except Exception as error:
                error.add_note(f"{WHILE}writing {self._publisher.title_of(number)} to files")
                raise
            for layer, filed in pairs:
                self._publisher.store.writes.repeat(filed.files)
                made = adopt_merged(traces[number], (layer,), filed)
                assert made is not None
                traces[number] = made
                self._replaced(number, (layer,), filed)
            rest()
        return VersionState(version.epoch, traces)


class HistoryAging:
    """Packs the past of what is published, and thins it out as its retention says."""

    def __init__(
        self, gate: WriterLock, publisher: Publisher, limits: UserLimits, failures: Failures
    ) -> None:
        self._gate, self._publisher, self._limits = gate, publisher, limits
        self._failures = failures
        self._fitted: Retention | None = None  # whoever writes the checkpoint has its lock

    def pack(self, plan: PackPlan | None) -> None:
        """Writes a pack that was planned, and lets go of what no restart would bring back.

        The checkpoint depends on the pack, because it says that all before it is packed. It depends
        on nothing else here.
        """
        if plan is not None:
            at: list[int] = []
            try:
                self._adopt(plan.perform(self._rest(), at.append))
            except Exception as error:
                if at:
                    error.add_note(f"{WHILE}packing {self._publisher.title_of(at[-1])}")
                raise
        self._shorten()

    def thin(self, needed: AbstractSet[str]) -> bool:
        """Sums packs up, and thins out what is old; whether anything may be thinned out.

        Args:
            needed: files that others than the past need.
        """
        with self._failures.attempt("thinning out the past"):
            return self._thinned(needed)
        return True

    def _thinned(self, needed: AbstractSet[str]) -> bool:
        publisher, history = self._publisher, self._publisher.store.history
        keep = self._kept(publisher.snapshot)
        while (tidy := history.tidy(keep, needed)) and self._adopt(tidy.perform(self._rest())):
            keep = self._kept(publisher.snapshot)
        return keep is not None

    def fit(self, needed: AbstractSet[str], *, again: bool) -> bool | None:
        """Thins out the past as long as the log takes more than its budget; whether it did.

        Of what takes more the bytes go first: fewer of them may be fewer files.

        Args:
            again: this checkpoint is written to have files deleted: if it was done for the same
                budget before, nothing is looked at, and None returned.

        Cost: a pack is written at most twice for each factor of 16 that it becomes coarser.
        """
        with self._failures.attempt("fitting the past into the budget"):
            return self._fit(needed, again=again)
        return False

    def _fit(self, needed: AbstractSet[str], *, again: bool) -> bool | None:
        publisher, history = self._publisher, self._publisher.store.history
        said, fitted = publisher.retention, False
        if again and said == self._fitted:
            return None
        while beyond := disk_usage.over_budget(publisher):
            keep = self._least(publisher.snapshot)
            plans = (history.tidy(keep, needed, less=each) for each in beyond if keep is not None)
            plan = next((each for each in plans if each is not None), None)
            if plan is None or not self._adopt(plan.perform(self._rest()), bounded=True):
                break
            fitted = True
        self._fitted = said
        return fitted

    def _rest(self) -> YieldingPause:
        """How it rests: also as long as an epoch goes on, within bounds."""
        return YieldingPause(self._gate.give_way)

    def _shorten(self) -> None:
        """Lets go of the past of stages in memory that is more than a restart would bring back.

        Where a stage has stopped what it reads stays readable: it goes on from there.
        """
        seen = self._publisher.snapshot
        for name, stage in seen.catalog.items():
            node = seen.graph.named[name]
            if stage.in_memory and stage.live and node.log is not None:
                with self._failures.attempt(f"summing up the past of stage '{name}'"):
                    self._shortened(seen, node.log, node.log_layout)

    def _shortened(self, seen: Snapshot, log: int, layout: Layout) -> None:
        """Sums up the oldest changes of a log, if they are more than a restart would replay."""
        epoch = seen.history.excess(log, self._limits.replay_rows)
        if epoch is None or min(self._held(seen), default=epoch) < epoch:
            return
        batch = total_of(seen.history.state(log, epoch), layout)
        with self._gate.lock:
            self._gate.finish()
            self._publisher.store.history.shorten(log, epoch, batch, seen.history)
            self._publisher.repacked()

    def _kept(self, seen: Snapshot) -> RetainedEpochs | None:
        """Which epochs are to be told apart as they are; None: all of them."""
        said, ledger = self._publisher.retention, self._publisher.ledger
        return said.keep(seen.epoch, ledger.since, self._held(seen))

    def _least(self, seen: Snapshot) -> RetainedEpochs | None:
        """Which epochs are to be told apart whatever the log takes; None: it has no budget."""
        said, keep = self._publisher.retention, self._kept(seen)
        if not said.bounded:
            return None
        return keep or RetainedEpochs(seen.epoch + 1, said.pinned(self._held(seen)))

    def _held(self, seen: Snapshot) -> list[int]:
        """Where stages have stopped: what they read stays readable, as they go on from there."""
        return [s.last(seen.epoch) for s in seen.catalog.values() if s.reason is not None]

    def _adopt(self, packed: PackResult, *, bounded: bool = False) -> bool:
        """Puts a pack in place; the files of what it replaces are retired.

        One that was thinned out while somebody said to keep more is not taken.

        Args:
            bounded: it was thinned out for the budget, whatever its age.
        """
        with self._gate.lock:
            self._gate.finish()
            seen, history = self._publisher.snapshot, self._publisher.store.history
            least = self._least(seen) if bounded else None
            keep = self._kept(seen) if least is None else least._replace(single=1)
            if history.loses(packed, keep):
                self._publisher.garbage.retire(packed.files)
                return True
            before = history.files()
            adopted = history.adopt(packed)
            self._publisher.repacked()
            gone = before - history.files() if adopted else packed.files
            self._publisher.garbage.retire(gone)
            return adopted
