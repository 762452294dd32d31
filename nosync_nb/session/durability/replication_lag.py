"""Behind: what replicas lack of a log, for people and for who decides what is owed to them.

It is said of what a keeper has told last; nobody is asked. And which stages are scaled back for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nosync_nb.dataflow.stage import Stage
from nosync_nb.session.report import listed_names
from nosync_nb.store.catalog.epoch_index import EpochIndex
from nosync_nb.store.replication.agent.progress import ReplicaProgress


class ReplicaStatus(NamedTuple):
    """One replica, for people: `epoch` is the last that can be read back from it alone.

    What it lacks is counted in epochs, in bytes that are to be shipped, and in seconds since the
    first epoch that it lacks was committed. `last_bytes` are those of files that come last, as they
    are of stages that are kept on disk: no epoch waits for them.

    `frame` is the last of the log's that it has. `state` is `starting`, `level`, `behind`,
    `failing` (`why` tells; it is tried again), `fenced` or `ahead` (another owner, or a replica
    that knows more: this session may not go on).
    """

    url: str
    state: str
    epoch: int
    behind: int
    behind_bytes: int
    behind_s: float
    bytes_sent: int
    why: str
    last_bytes: int = 0
    frame: int = 0


def replica_status(
    url: str, told: ReplicaProgress, ledger: EpochIndex, now: int, end: int
) -> ReplicaStatus:
    """One replica.

    Args:
        now: the last epoch; `end`: where the stream of frames ends, in bytes.
    """
    epoch = ledger.held(told.seq, told.epoch)
    lacks = epoch < now
    state = "behind" if told.condition == "level" and lacks else told.condition
    since = ledger.committed(epoch + 1) if lacks else None
    return ReplicaStatus(
        url,
        state,
        epoch,
        max(0, now - epoch),
        _lacks(told, end) if told.offset >= 0 else told.backlog_bytes,
        0.0 if since is None else max(0.0, time.time() - since),
        told.bytes_sent,
        told.why,
        told.last_bytes,
        told.seq,
    )


class ReplicationBacklog(NamedTuple):
    """What replicas lack by which the next epoch is safe, in bytes.

    Attributes:
        owed: of what epochs wait for; last: of files that come last.
        seen: up to where in the stream of frames it was looked at.
        most: that of the replica that lacks most, whether epochs wait for it or not.
    """

    owed: int
    last: int
    seen: int
    most: int


def backlog_of(told: Iterable[ReplicaProgress], quorum: int, end: int) -> ReplicationBacklog | None:
    """What the quorum lacks that lacks least, as others keep no epoch waiting.

    Args:
        end: where the stream of frames ends, in bytes.

    Returns:
        None if that is known of too few.
    """
    known = [each for each in told if each.offset >= 0]
    if not 0 < quorum <= len(known):
        return None
    least = sorted((_lacks(each, end), each.last_bytes, each.offset) for each in known)[:quorum]
    owed, last, seen = zip(*least, strict=True)
    return ReplicationBacklog(
        max(owed), max(last), min(seen), max(_lacks(each, end) for each in known)
    )


def _lacks(told: ReplicaProgress, end: int) -> int:
    """The bytes that epochs wait for, of files as far as the stream was looked at."""
    return max(0, end - told.offset) + told.backlog_bytes


def demoted_stages(catalog: Mapping[str, Stage]) -> dict[str, int]:
    """The stages that are scaled back, with the last epoch that replicas had of each."""
    return {n: s.scaled for n, s in catalog.items() if s.scaled is not None and s.on_disk}


def demotion_text(catalog: Mapping[str, Stage]) -> list[str]:
    """The same in a line, for people; none if there are none."""
    names = [f"{name} (after epoch {epoch})" for name, epoch in demoted_stages(catalog).items()]
    if not names:
        return []
    return [
        f"scaled back, as replicas lacked too much; files are sent last of {listed_names(names)}"
    ]
