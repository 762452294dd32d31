"""An overview of a session at one moment, as one value for views.

A view stores it, compares it and shows it in any thread. Building one reads rows only to count rows
that were not counted before. It sorts nothing, and takes no lock that a commit takes. A stage that
cannot be read is listed with the reason, and does not hide other stages. `OverviewMark` detects,
much more cheaply, whether anything has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_nb.dataflow.runtime.epoch_result import StageWork
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.rows import Schema
from nosync_nb.session.durability.replication import ReplicaStatus
from nosync_nb.session.feeds.folder_watch import WatchStatus
from nosync_nb.store.durability import FailureClass, Frontier
from nosync_nb.trace import stats

if TYPE_CHECKING:
    from nosync_nb.session.services import Services


class StageOutline(NamedTuple):
    """A stage or an input.

    Attributes:
        reads: the names of the collections that it reads; empty for an input.
        persist: its durability level: memory, disk or replicas.
        rows: the number of its rows, duplicates included; None if they cannot be read (see `why`).
        size_bytes: the size of its layers; approximate for layers in memory.
        last: its last epoch.
        live: True if it follows the next epoch.
        why: the reason why it has stopped or cannot be read; empty otherwise.
        work: the work of its last run in this process; None if it has not run.
        frontier: its last epoch at each durability level.
        copies: its last epoch at each replica, in the order of the replicas.
        after: the last epoch that would survive each class of failure.
        stale: True if it is stale, and `why` is the reason.
    """

    name: str
    is_input: bool
    schema: Schema
    reads: tuple[str, ...]
    version: int
    persist: str
    rows: int | None
    size_bytes: int
    last: int
    live: bool
    why: str
    work: StageWork | None
    frontier: Frontier
    copies: tuple[int, ...]
    after: Mapping[str, int]
    stale: bool

    @property
    def status_text(self) -> str:
        """The text for a view: `stale: ...`, or the reason why it cannot be read; else empty."""
        return f"stale: {self.why}" if self.stale else self.why


class FailureCost(NamedTuple):
    """The cost of a failure at this moment.

    Attributes:
        failure: the class of the failure: kernel, power or disk.
        lost: the number of replicas that are lost with the disk; None means as many as the quorum
            allows.
        epoch: the epoch to which the session would recover.
        epochs: the number of epochs that would be lost.
        since: the commit time of the first lost epoch; None if no epoch would be lost.
    """

    failure: str
    lost: int | None
    epoch: int
    epochs: int
    since: datetime | None


class Overview(NamedTuple):
    """A session at one moment; `committed_at` is None at epoch 0."""

    epoch: int
    committed_at: datetime | None
    collections: tuple[StageOutline, ...]
    costs: tuple[FailureCost, ...]
    replicas: tuple[ReplicaStatus, ...]
    quorum: int
    watches: tuple[WatchStatus, ...]

    def named(self, name: str) -> StageOutline | None:
        """Returns the stage or input with a name; None if there is none."""
        return next((each for each in self.collections if each.name == name), None)


class OverviewMark(NamedTuple):
    """A token of one moment, to compare with `is_like` alone."""

    snapshot: Snapshot
    durable: int
    replicas: tuple[tuple[Any, ...], ...]
    tasks: int
    watches: tuple[WatchStatus, ...]

    def is_like(self, other: OverviewMark | None) -> bool:
        """Returns True if the overviews of both moments are the same."""
        return other is not None and self.snapshot is other.snapshot and self[1:] == other[1:]


def overview_mark(services: Services) -> OverviewMark:
    """Returns a token that changes whenever the overview changes.

    Cost: a few us, plus a few for each replica.
    """
    services.follower.refresh()
    publisher = services.publisher
    snapshot, durable = publisher.snapshot, publisher.store.log.durable
    copies = tuple(
        (copy.url, copy.state, copy.frame, copy.epoch, copy.behind_bytes > 0, copy.bytes_sent)
        for copy in services.replication.status()
    )
    return OverviewMark(
        snapshot, durable, copies, services.worker.tasks_count, services.folder_watches.status()
    )


def build_overview(services: Services) -> Overview:
    """Builds the current overview; inputs come first, then stages in order of definition.

    Cost: O(stages x (layers + replicas)); a layer's rows are counted once.
    """
    services.follower.refresh()
    publisher, frontiers = services.publisher, services.frontiers
    of_stages, of_replicas = frontiers.of_stages(), frontiers.of_replicas()
    after = {failure.value: frontiers.of_failure(failure) for failure in FailureClass}
    costs = _costs(services)
    snapshot = publisher.snapshot  # last, so that it is not older than the frontiers
    outlines = []
    for name in sorted(snapshot.catalog, key=lambda each: not snapshot.catalog[each].is_input):
        stage = snapshot.catalog[name]
        if stage.frozen or name not in of_stages:
            continue
        rows, size, why = _rows_and_size(services, snapshot, stage)
        copies = tuple(copy.get(name, 0) for copy in of_replicas)
        outlines.append(
            StageOutline(
                name,
                stage.is_input,
                stage.schema,
                snapshot.reads[name],
                stage.version,
                stage.options.persist or "replicas",
                rows,
                size,
                snapshot.last(stage),
                stage.goes_on,
                stage.held or stage.reason or why,
                publisher.metrics.last(name),
                of_stages[name],
                copies,
                {failure: left.get(name, 0) for failure, left in after.items()},
                stage.reason is not None,
            )
        )
    replication, ledger = services.replication, publisher.ledger
    return Overview(
        snapshot.epoch,
        _utc_time(ledger.committed(snapshot.epoch)),
        tuple(outlines),
        costs,
        tuple(replication.status()),
        replication.settings.quorum,
        services.folder_watches.status(),
    )


def _rows_and_size(
    services: Services, snapshot: Snapshot, stage: Stage
) -> tuple[int | None, int, str]:
    """Returns the row count and the bytes of a stage, and the reason if it cannot be read."""
    try:
        layers = services.maintenance.layers(stage.name)
        return (
            stats.row_sums(snapshot.contents(stage.name)),
            sum(each["bytes"] for each in layers),
            "",
        )
    except Exception as error:  # a damaged or deleted file must not hide other stages
        return None, 0, str(error)


def _costs(services: Services) -> tuple[FailureCost, ...]:
    """Returns the costs of each class of failure; for a lost disk, by number of lost replicas."""
    replicas = len(services.replication.settings.replicas)
    kinds: list[tuple[str, int | None]] = [("kernel", None), ("power", None)]
    kinds += [("disk", lost) for lost in range(replicas)] or [("disk", None)]
    return tuple(_cost(services, failure, lost) for failure, lost in kinds)


def _cost(services: Services, failure: str, lost: int | None) -> FailureCost:
    epoch = services.frontiers.after(failure, lost)
    gone = max(0, services.publisher.last_epoch - epoch)
    since = services.publisher.ledger.committed(epoch + 1) if gone else None
    return FailureCost(failure, lost, epoch, gone, _utc_time(since))


def _utc_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
