"""Sets how much history a session retains, its disk budget, and its pinned epochs.

The settings are part of the catalog, so a definition that changes nothing else writes them. The
next checkpoint downsamples the packs (`session/maintenance/maintenance.py`): old history is deleted
once a checkpoint names only the retained history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.errors import SchemaError, TimeError
from nosync_nb.session.backfill.definition_diff import unchanged_decision
from nosync_nb.session.backfill.execute import BackfillExecutor
from nosync_nb.session.maintenance import disk_usage
from nosync_nb.session.maintenance.maintenance import Maintenance
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.writer_lock import DefinitionOutcome, WriterLock
from nosync_nb.store import retention_policy
from nosync_nb.store.catalog.epoch_index import EpochSequence
from nosync_nb.store.retention_policy import Retention
from nosync_nb.trace.history import pack_tree


class RetentionService:
    """Changes the retention settings of a session, which are part of the catalog."""

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        executor: BackfillExecutor,
        maintenance: Maintenance,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._executor = executor
        self._maintenance = maintenance

    @property
    def retention(self) -> Retention:
        """The current retention settings."""
        return self._publisher.retention

    def epochs(self) -> EpochSequence:
        """Returns the epochs at which all live stages can be read."""
        snapshot = self._publisher.snapshot
        live = [s for s in snapshot.catalog.values() if s.live]
        begins = [max(s.begin, *(upper for _, upper in s.gaps), 0) for s in live]
        ranges = [range(max(begins, default=0), snapshot.epoch + 1)]
        thinned = snapshot.history.is_thinned
        for stage in live:
            if thinned or stage.in_memory:
                log = snapshot.graph.named[stage.name].log
                assert log is not None
                ranges = pack_tree.common(ranges, snapshot.history.epochs(log, snapshot.epoch))
        return self._publisher.ledger.epochs(ranges)

    def set(self, asked: Any) -> None:
        """Retains single epochs for a number of epochs or a time, and downsamples older history.

        `None` retains every epoch for ever. Within the limit every epoch is retained. Intervals of
        16 epochs are retained for 16 times as long, intervals of 256 epochs for 256 times as long,
        and so on. Other epochs can no longer be read. The history is downsampled in the background.

        Raises:
            SchemaError: if the argument is neither a number of epochs nor a time.
        """
        epochs, seconds = retention_policy.parse_retention(asked)
        message = f"retain is now {asked!r}"
        self._change(lambda before: before._replace(epochs=epochs, seconds=seconds), message)

    def bound(self, asked: Any) -> None:
        """Bounds the disk usage of the log; history is downsampled in the background to fit.

        The bound is a number of bytes or a size; `None` removes it. It applies to the files that
        the log itself needs, not to files that only its branches need. If the bound is exceeded,
        the oldest epochs become coarser first; pins stay. If the current state grows beyond it,
        commits continue.

        Raises:
            SchemaError: if the argument is not a size, or is smaller than the current state with
                the log's tail. Then nothing has changed.

        Cost: a checkpoint.
        """
        budget = retention_policy.parse_budget(asked)
        if budget is not None:
            with self._writer_lock.lock:
                self._writer_lock.begin_change("budget")
                log = self._publisher.store.log
                grown = log.head.seq > log.checkpoint_seq
            if grown:  # because a checkpoint makes the tail as small as it can be
                self._maintenance.checkpoint()

        def with_budget(current: Retention) -> Retention:
            if budget is not None:
                _check_minimum(budget, disk_usage.minimum_bytes(self._publisher), asked)
            return current._replace(budget=budget)

        self._change(with_budget, f"budget is now {asked!r}")

    def pin(self, at: Any, name: str) -> int:
        """Retains an epoch as it is; see `Session.pin`."""
        if not isinstance(name, str) or not name.strip():
            raise SchemaError(f"pin {name!r}: a pin has a name", hint="write pin(5, 'before June')")
        epoch = 0

        def with_pin(current: Retention) -> Retention:
            nonlocal epoch
            epoch = self._readable_epoch(self._publisher.snapshot, at)
            if current.pins.get(name, epoch) != epoch:
                raise SchemaError(
                    f"'{name}' pins epoch {current.pins[name]} already",
                    hint=f"use another name, or call session.unpin({name!r}) first",
                )
            return current._replace(pins={**current.pins, name: epoch})

        self._change(with_pin, f"'{name}' is pinned")
        return epoch

    def unpin(self, name: str) -> None:
        """Removes a pin; see `Session.unpin`."""

        def without_pin(current: Retention) -> Retention:
            if name not in current.pins:
                names = ", ".join(current.pins) or "none"
                raise SchemaError(f"no epoch is pinned as {name!r}", hint=f"the pins are: {names}")
            return current._replace(pins={n: at for n, at in current.pins.items() if n != name})

        self._change(without_pin, f"'{name}' is no longer pinned")

    def _readable_epoch(self, snapshot: Snapshot, at: Any) -> int:
        """Resolves an epoch, and checks that at least one collection can be read there.

        Raises:
            TimeError: if no collection can be read there; names the readable neighbours of the
                epoch.
        """
        epoch = snapshot.epoch if at is None else self._publisher.ledger.resolve(at, snapshot.epoch)
        logs = [snapshot.graph.named[s.name].log for s in snapshot.catalog.values() if s.live]
        readable = [snapshot.history.epochs(log, snapshot.epoch) for log in logs if log is not None]
        if readable and not any(epoch in each for ranges in readable for each in ranges):
            near = [e for e in pack_tree.nearest_epochs(readable[0], epoch) if e is not None]
            raise TimeError(
                f"epoch {epoch} is no longer retained separately",
                hint=f"pin one of the nearest epochs: {' or '.join(map(str, near))}",
            )
        return epoch

    def _change(self, changed: Callable[[Retention], Retention], done: str) -> None:
        """Writes changed retention settings, completely or not at all."""
        outcome = DefinitionOutcome()
        try:
            with self._writer_lock.lock:
                self._writer_lock.begin_change("retain")
                current = self.retention
                updated = changed(current)
                if updated == current and not self._publisher.removed_limits:
                    return
                decision = unchanged_decision(dict(self._publisher.snapshot.catalog))
                self._executor.install(decision, retention=updated, outcome=outcome)
                self._maintenance.plan_checkpoint()
        except BaseException as error:
            self._writer_lock.complete_interrupted(error, outcome, done)
            raise


def _check_minimum(bound: int, need: int, requested: Any) -> None:
    """Raises if a budget is smaller than the log needs without any history."""
    if bound < need:
        text = retention_policy.size_text
        raise SchemaError(
            f"budget={requested!r}, {text(bound)}, is less than the current state and the log's"
            f" tail need: {text(need)}",
            hint=f"set at least {text(need)} plus space for history, or drop stages",
        )
