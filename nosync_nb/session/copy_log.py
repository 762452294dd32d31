"""Copying: a log of its own in another folder, with all that a log holds at one moment.

Whoever writes the log is not asked and does not wait: what is copied is what a reader sees, as of
the last epoch that is published. A file that was merged away meanwhile is no damage: then it is
begun again with what is there now. The copy has an id of its own, so nobody takes it for the log.
"""

from __future__ import annotations

import errno
import os

from nosync_nb.errors import DurabilityError, SchemaError
from nosync_nb.session.opening import open as opened
from nosync_nb.session.opening import plain_path
from nosync_nb.session.session import owners_of
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel import branches

TRIES = 8
"""How often it is begun again when the owner deletes a file that is needed."""


def copy(path: str | os.PathLike[str], to: str | os.PathLike[str]) -> int:
    """Copies a log, whether somebody writes it or not; gives the last epoch that the copy has.

    All of it is there: inputs, stages and their functions, the past, labels, keys of loads, pins.
    What is not copied are branches, replicas, and what is pending.

    Args:
        path: the folder of the log. `to`: a folder that is not there yet.

    Raises:
        SchemaError: there is something at `to`, or no folder to make it in.
        TrustError: another key, or none, has signed what the log computes: copy its folder.
        CorruptLogError: something that the log names is damaged or missing.

    Cost: a hard link for each file on one file system, else their bytes; nothing of the owner's.
    """
    target = os.path.realpath(plain_path(to, "copy"))
    with opened(path, mode="r") as reader:
        owners = owners_of(reader)
        _free(owners.publisher.store, target)
        for attempt in range(1 + TRIES):
            owners.follower.refresh()
            store, beginning = owners.publisher.store, owners.branching.beginning(None)
            try:
                branches.copy(store, target, beginning)
            except DurabilityError as error:
                if error.errno != errno.ENOENT or attempt == TRIES:
                    raise
                continue
            break
        return beginning.version.epoch


def _free(store: Store, target: str) -> None:
    """Raises SchemaError if nothing can be made there."""
    files, within = store.files, os.path.join(store.path, "")
    why = ""
    if target.startswith(within):
        why = "lies in the log itself"
    elif files.exists(target):
        why = "is there already"
    elif not files.exists(os.path.dirname(target)):
        why = "has no folder to be made in"
    if why:
        raise SchemaError(f"copy: '{target}' {why}", hint="name a folder that is not there yet")
