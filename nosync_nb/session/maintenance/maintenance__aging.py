"""Aging: the past is packed, and made coarser as it grows old, or the log too large.

All of it is a part of a checkpoint, which is what lets go of files: one after the other, by whoever
writes one. Packs are put in place between epochs, with the gate's lock.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.session.limits import UserLimits
from nosync_nb.session.maintenance import disk_usage
from nosync_nb.session.state.background_errors import WHILE, Failures
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.store.retention_policy import Retention
from nosync_nb.trace.batch import Layout
from nosync_nb.trace.history.archive import total_of
from nosync_nb.trace.history.downsampling import RetainedEpochs
from nosync_nb.trace.history.pack_plans import PackPlan, PackResult, YieldingPause


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
