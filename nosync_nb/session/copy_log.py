"""Copies a log, with everything in it at one moment, into another folder.

The owner of the log is not involved and does not wait. The copy contains the state that a reader
sees at the last published epoch. If the owner merges and deletes a needed file meanwhile, the copy
starts again from the current files. The copy has an id of its own, so it cannot be mistaken for the
log.
"""

from __future__ import annotations

import errno
import os

from nosync_nb.errors import DurabilityError, SchemaError
from nosync_nb.session.opening import open as opened
from nosync_nb.session.opening import plain_path
from nosync_nb.session.session import services_of
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel import branches

TRIES = 8
"""The most times that a copy starts again after the owner has deleted a file that it needs."""


def copy(path: str | os.PathLike[str], to: str | os.PathLike[str]) -> int:
    """Copies a log, also while another process writes it; returns the last epoch in the copy.

    The copy has all inputs, stages, functions, past epochs, labels, idempotency keys and pins. It
    has no branches, no replicas and no pending changes.

    Args:
        path: the folder of the log.
        to: a folder that does not exist yet.

    Raises:
        SchemaError: `to` exists, or its parent folder does not.
        TrustError: the catalog of the log is unsigned or signed with another key: copy its folder.
        CorruptLogError: a file that the log names is damaged or missing.

    Cost: a hard link for each file on the same file system, otherwise a copy of its bytes. The
    owner does no work.

    Examples:
        >>> nosync.copy("flights.nosync", "copied.nosync")
        1
        >>> copied = nosync.open("copied.nosync")
        >>> copied["late"].count()
        2
    """
    target = os.path.realpath(plain_path(to, "copy"))
    with opened(path, mode="r") as reader:
        services = services_of(reader)
        _check_target(services.publisher.store, target)
        for attempt in range(1 + TRIES):
            services.follower.refresh()
            store, beginning = services.publisher.store, services.branch_service.beginning(None)
            try:
                branches.copy(store, target, beginning)
            except DurabilityError as error:
                if error.errno != errno.ENOENT or attempt == TRIES:
                    raise
                continue
            break
        return beginning.version.epoch


def _check_target(store: Store, target: str) -> None:
    """Raises SchemaError if the target folder cannot be created."""
    files, within = store.files, os.path.join(store.path, "")
    why = ""
    if target.startswith(within):
        why = "is inside the log itself"
    elif files.exists(target):
        why = "exists already"
    elif not files.exists(os.path.dirname(target)):
        why = "has no parent folder"
    if why:
        raise SchemaError(f"copy: '{target}' {why}", hint="use a folder that does not exist")
