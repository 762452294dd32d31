"""Overview: all that is to be seen of a session at one moment, for views.

It is a value: a view keeps it, compares it and shows it in any thread. Making one reads no rows
that were not read before but to count them, puts nothing in order, and takes no lock that a commit
takes; what cannot be read is said of its stage and hides no other. `mark` tells, much cheaper,
whether there is anything new to be seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_nb.dataflow.runtime.epoch_result import StageWork
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.rows import Schema
from nosync_nb.session.durability.replication_lag import ReplicaStatus
from nosync_nb.session.feeds.folder_watch import WatchStatus
from nosync_nb.store.durability.recovery_frontier import FailureClass, Frontier
from nosync_nb.trace import stats

if TYPE_CHECKING:
    from nosync_nb.session.services import Services


class StageOutline(NamedTuple):
    """A stage or an input.

    Attributes:
        reads: the names of what it reads; none of an input.
        persist: where it is kept: memory, disk or replicas.
        rows: how many it has, copies counted; None: they cannot be read, and `why` tells.
        size_bytes: of its layers; in memory about so many.
        last: its last epoch.
        live: whether it goes on with the next one.
        why: why it has stopped, or cannot be read; empty if neither.
        work: what it did when it ran last, here; None: it has not.
        frontier: its last epoch at each level.
        copies: that at each replica, in their order.
        after: by class of failure, the last epoch that it would have.
        stale: whether `why` is that of a stale stage.
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
    def told(self) -> str:
        """What a view says of it: `stale: ...`, or why it cannot be read; empty: nothing."""
        return f"stale: {self.why}" if self.stale else self.why


class FailureCost(NamedTuple):
    """What a failure now would cost.

    Attributes:
        failure: its class: kernel, power or disk.
        lost: how many replicas are lost with the disk; None: as many as the quorum allows.
        epoch: the one that all would be brought back to.
        epochs: how many would be gone.
        since: when the first of them was committed; None: none would be gone.
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
        """The stage or input of a name."""
        return next((each for each in self.collections if each.name == name), None)


class OverviewMark(NamedTuple):
    """What tells one moment from another: compared with `is_like`, and no further use."""

    snapshot: Snapshot
    durable: int
    replicas: tuple[tuple[Any, ...], ...]
    tasks: int
    watches: tuple[WatchStatus, ...]

    def is_like(self, other: OverviewMark | None) -> bool:
        """Whether there is nothing to be seen now that was not to be seen then."""
        return other is not None and self.snapshot is other.snapshot and self[1:] == other[1:]


def overview_mark(owners: Services) -> OverviewMark:
    """The mark of now. Cost: some us, and some more a replica."""
    owners.follower.refresh()
    publisher = owners.publisher
    seen, durable = publisher.snapshot, publisher.store.log.durable
    copies = tuple(
        (copy.url, copy.state, copy.frame, copy.epoch, copy.behind_bytes > 0, copy.bytes_sent)
        for copy in owners.replication.status()
    )
    return OverviewMark(seen, durable, copies, owners.worker.tasks_count, owners.watches.status())


def build_overview(owners: Services) -> Overview:
    """What is to be seen now, stages in the order in which they were defined, inputs first.

    Cost: O(stages x (layers + replicas)); a layer's rows are counted once.
    """
    owners.follower.refresh()
    publisher, frontiers = owners.publisher, owners.frontiers
    of_stages, of_replicas = frontiers.of_stages(), frontiers.of_replicas()
    after = {failure.value: frontiers.of_failure(failure) for failure in FailureClass}
    costs = _costs(owners)
    seen = publisher.snapshot  # not older than what was asked before
    shown = []
    for name in sorted(seen.catalog, key=lambda each: not seen.catalog[each].is_input):
        stage = seen.catalog[name]
        if stage.frozen or name not in of_stages:
            continue
        rows, size, why = _held(owners, seen, stage)
        copies = tuple(copy.get(name, 0) for copy in of_replicas)
        shown.append(
            StageOutline(
                name,
                stage.is_input,
                stage.schema,
                seen.reads[name],
                stage.version,
                stage.options.persist or "replicas",
                rows,
                size,
                seen.last(stage),
                stage.goes_on,
                stage.held or stage.reason or why,
                publisher.works.last(name),
                of_stages[name],
                copies,
                {failure: left.get(name, 0) for failure, left in after.items()},
                stage.reason is not None,
            )
        )
    replication, ledger = owners.replication, publisher.ledger
    return Overview(
        seen.epoch,
        _moment(ledger.committed(seen.epoch)),
        tuple(shown),
        costs,
        tuple(replication.status()),
        replication.settings.quorum,
        owners.watches.status(),
    )


def _held(owners: Services, seen: Snapshot, stage: Stage) -> tuple[int | None, int, str]:
    """The rows of a stage, its bytes, and why they cannot be read."""
    try:
        layers = owners.upkeep.layers(stage.name)
        return stats.row_sums(seen.contents(stage.name)), sum(each["bytes"] for each in layers), ""
    except Exception as error:  # a file that is damaged, or gone meanwhile
        return None, 0, str(error)


def _costs(owners: Services) -> tuple[FailureCost, ...]:
    """What each class of failure would cost, and a lost disk with each number of replicas."""
    replicas = len(owners.replication.settings.replicas)
    kinds: list[tuple[str, int | None]] = [("kernel", None), ("power", None)]
    kinds += [("disk", lost) for lost in range(replicas)] or [("disk", None)]
    return tuple(_cost(owners, failure, lost) for failure, lost in kinds)


def _cost(owners: Services, failure: str, lost: int | None) -> FailureCost:
    epoch = owners.frontiers.after(failure, lost)
    gone = max(0, owners.publisher.now - epoch)
    since = owners.publisher.ledger.committed(epoch + 1) if gone else None
    return FailureCost(failure, lost, epoch, gone, _moment(since))


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
