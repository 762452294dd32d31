"""Lists and drops the copies of branches at replicas.

The list comes from the file beside the user's key (`store/replication/config.py`), so no replica
is contacted. That file may be lost with the log's own disk. Hence restoring a log lists the
branches at its replicas, and records them in the file again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError, TrustError, warn
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication import config
from nosync_nb.store.replication.address import ReplicaAddress, parse_address
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.remote_branches import RemoteBranch, drop_copies, remote_branches
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel import branches
from nosync_nb.store.timetravel.branches import BranchInfo


class BranchCopies(NamedTuple):
    """The copies of a branch; `here` is True if its log is on this disk."""

    path: str
    log_id: bytes | None
    replicas: Sequence[ReplicaAddress]
    here: bool


def remote_branch_list(files: Files, log: str) -> dict[str, BranchInfo]:
    """Returns the branches of a log that are only at replicas, by name."""
    registered = config.logs_below(files, log)
    return {
        name: BranchInfo(name, branches.branch_folder(log, name), 0, 0, None, replicas=tuple(urls))
        for name, (urls, _) in registered.items()
    }


def branch_copies(files: Files, log: str, name: str) -> BranchCopies:
    """Returns the copies of a branch; none if nothing is known of it."""
    path = branches.branch_folder(log, name)
    is_local = name in branches.branch_names(files, log)
    if is_local:
        with suppress(CorruptLogError, DurabilityError, TrustError):  # then the registry is used
            return _copies_in_log(files, path)
    registered = config.registered_replicas(files, path)
    addresses = [parse_address(url) for url in registered[0]] if registered is not None else []
    return BranchCopies(path, addresses[0].log_id if addresses else None, addresses, is_local)


def _copies_in_log(files: Files, path: str) -> BranchCopies:
    """Returns the copies that the branch's own log names."""
    store = Store.open(path, mode="r")
    try:
        log_id = store.log.id
        own = config.read_config(files, path, log_id)
        return BranchCopies(path, log_id, () if own.unprepared else own.replicas, True)
    finally:
        store.close()


def drop_remote_copies(files: Files, copies: BranchCopies, generation: int | None) -> None:
    """Deletes the copies of a dropped branch; warns of those that could not be deleted.

    These stay registered, so that the branch is listed as one at replicas, and can be dropped
    again.

    Args:
        generation: of the owner that dropped the local log; None: there was no local log.
    """
    left: Mapping[str, str] = {}
    if copies.log_id is not None and copies.replicas:
        left = drop_copies(
            files, copies.path, copies.log_id, copies.replicas, generation=generation
        )
        remaining = tuple(each for each in copies.replicas if each.url in left)
        with suppress(NosyncError):
            config.register_replicas(
                files, copies.path, copies.log_id, ReplicaConfig(remaining, len(remaining))
            )
    else:
        with suppress(NosyncError):
            config.unregister_replicas(files, copies.path)
    if left:
        name = os.path.basename(copies.path)
        reasons = "; ".join(f"{url}: {why}" for url, why in left.items())
        warn(
            f"branch '{name}' is dropped locally, but a copy remains at {reasons}; drop it"
            " again when that replica is reachable",
            stacklevel=4,
        )


def record_restored_branches(files: Files, log: str, replicas: ReplicaConfig) -> list[str]:
    """Registers the branches that replicas have of a restored log; returns messages about them.

    Cost: one request for each branch at each replica.
    """
    messages = []
    for branch in remote_branches(files, log, replicas.replicas):
        path = branches.branch_folder(log, branch.name)
        if not files.exists(path):
            _register(files, path, branch)
            messages.append(
                f"branch '{branch.name}' is at its replicas: nosync.open({path!r},"
                f" replicas={list(branch.urls)!r}) restores it"
            )
    return messages


def _register(files: Files, path: str, branch: RemoteBranch) -> None:
    checked = config.checked_config(branch.urls, branch.quorum, log=path, look=False)
    (log_id,) = {address.log_id for address in checked.replicas}
    assert log_id is not None
    with suppress(NosyncError):  # the home folder is read-only: the message is enough
        config.register_replicas(files, path, log_id, checked)
