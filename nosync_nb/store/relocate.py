"""Renames the folder of a log that no process has open, and finds a renamed folder again.

A rename is atomic, and everything else refers to the log by its id: its replicas, and its branches,
which are inside the folder. References to the folder elsewhere are updated by the caller.

Failure: 1. A process opens the log, or one of its branches, by the old path. 2. The folder is
renamed. 3. The process writes to a path where no log is. Hence the opening locks of the log and of
all its branches are taken first, and nothing is renamed if one is locked or has a live owner. An
opening that waits for such a lock finds no log at its path afterwards, and fails.

Failure: 1. A session reads the log. 2. The folder is renamed. 3. The session finds no files. Hence
a reader searches for the folder under its new name, by its `generation` file (`current_folder`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from nosync_nb.errors import CorruptLogError, DurabilityError, TrustError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import owner
from nosync_nb.store.log.owner import LogLocation
from nosync_nb.store.timetravel import branches
from nosync_nb.store.timetravel.branches import open_by


def move(
    files: Files,
    log: str,
    target: str,
    prepare: Callable[[Sequence[tuple[str, str]]], None],
) -> bool:
    """Renames the folder of a log, with its branches. Returns False if nothing was renamed.

    Nothing is renamed if the log or one of its branches is open, if something is at `target`, or
    if the disk refuses. An empty folder at `target` is replaced.

    Args:
        target: a path in the same folder as `log`.
        prepare: is called before the rename, while nothing can be opened, with the old and the new
            path of the log and of each branch.
    """
    with ExitStack() as locks, suppress(DurabilityError, CorruptLogError, TrustError):
        paths = [
            log,
            *(branches.branch_folder(log, name) for name in branches.all_branches(files, log)),
        ]
        for path in paths:
            lock = files.lock(os.path.join(path, "lock"))
            if lock is None:
                return False
            locks.callback(lock.release)
            if open_by(owner.read_owner(files, path)) is not None:
                return False
        prepare([(path, target + path.removeprefix(log)) for path in paths])
        files.rename(log, target)
        with suppress(DurabilityError):  # after a power loss either name is valid
            files.sync_folder(os.path.dirname(target))
        return True
    return False


def current_folder(files: Files, known: LogLocation) -> str:
    """Returns the folder of a log by its known location, also if it was renamed."""
    folder, old = os.path.split(known.path)
    with suppress(DurabilityError):
        for name in (old, *files.names(folder)):
            path = os.path.join(folder, name)
            with suppress(DurabilityError):
                if owner.log_location(files, path)[1:] == known[1:]:
                    return path
    return known.path
