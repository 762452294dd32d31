"""Replication lag: what each replica still misses, for status output and for the backlog policy.

It is computed from the last messages of the keeper; no replica is contacted.
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
    """The status of one replica: `epoch` is the last that can be restored from it alone.

    Its lag is given in epochs, in bytes to ship, and in seconds since the first missing epoch was
    committed. `last_bytes` are those of deferred files, which belong to stages of level `disk`: no
    epoch waits for them.

    `frame` is its last frame of the log. `state` is `starting`, `level`, `behind`, `failing` (`why`
    has the reason; the keeper retries), `fenced` (another owner) or `ahead` (the replica has more
    than this session). After the last two this session cannot continue.
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
    url: str, progress: ReplicaProgress, ledger: EpochIndex, now: int, end: int
) -> ReplicaStatus:
    """Returns the status of one replica.

    Args:
        now: the current epoch.
        end: the length of the stream of frames, in bytes.
    """
    epoch = ledger.last_contained_epoch(progress.seq, progress.epoch)
    lacks = epoch < now
    state = "behind" if progress.condition == "level" and lacks else progress.condition
    since = ledger.committed(epoch + 1) if lacks else None
    return ReplicaStatus(
        url,
        state,
        epoch,
        max(0, now - epoch),
        _missing_bytes(progress, end) if progress.offset >= 0 else progress.backlog_bytes,
        0.0 if since is None else max(0.0, time.time() - since),
        progress.bytes_sent,
        progress.why,
        progress.last_bytes,
        progress.seq,
    )


class ReplicationBacklog(NamedTuple):
    """The bytes that replicas must receive before the next epoch is safe.

    Attributes:
        owed: bytes in frames and files that epochs wait for.
        last: bytes in deferred files.
        seen: the offset in the stream of frames up to which files were counted.
        most: the largest backlog of any replica, whether epochs wait for it or not.
    """

    owed: int
    last: int
    seen: int
    most: int


def backlog_of(
    replicas: Iterable[ReplicaProgress], quorum: int, end: int
) -> ReplicationBacklog | None:
    """Returns the backlog of the most advanced quorum, because other replicas delay no epoch.

    Args:
        end: the length of the stream of frames, in bytes.

    Returns:
        None if it is known of too few replicas.
    """
    known = [replica for replica in replicas if replica.offset >= 0]
    if not 0 < quorum <= len(known):
        return None
    least = sorted(
        (_missing_bytes(replica, end), replica.last_bytes, replica.offset) for replica in known
    )[:quorum]
    owed, last, counted = zip(*least, strict=True)
    return ReplicationBacklog(
        max(owed), max(last), min(counted), max(_missing_bytes(replica, end) for replica in known)
    )


def _missing_bytes(progress: ReplicaProgress, end: int) -> int:
    """Returns the bytes that epochs wait for, with the files counted so far."""
    return max(0, end - progress.offset) + progress.backlog_bytes


def demoted_stages(catalog: Mapping[str, Stage]) -> dict[str, int]:
    """Returns the demoted stages, with the last epoch that replicas had of each."""
    return {n: s.scaled for n, s in catalog.items() if s.scaled is not None and s.on_disk}


def demotion_text(catalog: Mapping[str, Stage]) -> list[str]:
    """Returns the demoted stages as a line for users; empty without such stages."""
    names = [f"{name} (after epoch {epoch})" for name, epoch in demoted_stages(catalog).items()]
    if not names:
        return []
    return [
        "scaled back because of the replication backlog; files are sent last of"
        f" {listed_names(names)}"
    ]
