"""Listing: the branches of a log as people see them: where each forked, its last epoch, who has it.

It is read from the logs themselves, each of which is opened for reading: nothing else says it, so
nothing can say otherwise. One that is damaged is listed as such, beside the others.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from nosync_nb.errors import CorruptLogError, DurabilityError, TrustError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log.owner import HostIdentity, LogOwner
from nosync_nb.store.records import payloads
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel import branches
from nosync_nb.store.timetravel.branches import branch_folder, branch_names, branch_origin


class BranchInfo(NamedTuple):
    """A branch as it is listed.

    Attributes:
        path: of its folder, to be opened.
        at: the epoch at which it forked.
        now: its last epoch.
        owner: who has it open for writing, None if nobody has.
        damaged: why its log cannot be read; then neither epoch is known.
        replicas: where its copies are, if it is at replicas alone and not on this disk; then
            neither epoch is known, and `nosync.open(path, replicas=replicas)` brings it back.
    """

    name: str
    path: str
    at: int
    now: int
    owner: str | None
    damaged: str = ""
    replicas: tuple[str, ...] = ()


def list_branches(files: Files, log: str) -> dict[str, BranchInfo]:
    """The branches of the log in a folder, by name. Cost: each is opened for reading."""
    branches = {}
    for name in branch_names(files, log):
        path = branch_folder(log, name)
        try:
            branches[name] = _listed(path, name)
        except (CorruptLogError, DurabilityError, TrustError) as error:
            branches[name] = BranchInfo(name, path, 0, 0, None, str(error))
    return branches


def _listed(path: str, name: str) -> BranchInfo:
    store = Store.open(path, mode="r")
    try:
        fork = branch_origin(store.meta)
        if fork is None:
            raise CorruptLogError(
                f"'{path}' is no branch: its log says of nothing where it forked",
                hint="move the folder elsewhere and open it there",
            )
        kinds = payloads.EPOCH, payloads.REWIND
        epochs = [store.epoch, *(told.payload.epoch for told in store.tail if told.kind in kinds)]
        owner = store.log.owner
        return BranchInfo(name, path, fork.at, epochs[-1], open_by(owner))
    finally:
        store.close()


def open_by(owner: LogOwner | None) -> str | None:
    """The process that has a log open for writing; None if none is known to.

    An owner on another host or in another container counts as alive.
    """
    if owner is None or owner.released or HostIdentity().alive(owner.identity) is False:
        return None
    return str(owner)


def check_branch_exists(files: Files, path: str) -> None:
    """Raises SchemaError if a folder would be a branch and is not there: none is made by opening.

    Whoever opens a branch of one that was dropped would else begin an empty log in its place.
    """
    while os.path.basename(inner := os.path.dirname(path)) == branches.FOLDER:
        log, name = os.path.dirname(inner), os.path.basename(path)
        if not files.exists(path) and files.exists(os.path.join(log, "generation")):
            raise branches.unknown_branch_error(name, branch_names(files, log))
        path = log
