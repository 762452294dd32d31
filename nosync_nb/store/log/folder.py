"""Checks that a folder may hold a log, before anything in it is trusted or listed.

A folder that is a link leads to files outside the log: git and archives contain links. The content
of a folder that other users can write may be replaced at any moment. Both are refused, also inside
a log.
"""

from __future__ import annotations

import os
import stat

from nosync_nb.errors import DurabilityError, TrustError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import segments
from nosync_nb.store.log.owner import HostIdentity


def check_log_folder(files: Files, folder: str, machine: HostIdentity, *, write: bool) -> None:
    """Checks that a folder is suitable for a log; for writing, creates it if it is missing.

    Raises:
        TrustError: the folder is a link, belongs to another user, or can be written by other users.
        DurabilityError: there is no log to read, the folder cannot be written or has other files,
            or locks and maps do not work there.
    """
    if not files.exists(folder):
        if not write:
            raise DurabilityError(
                f"there is no log at '{folder}'", hint="open it for writing to create one"
            )
        files.make_folder(folder)
    is_owned_by_user(files, folder, write=write, fresh=True)  # first: a listing follows links
    strange = [name for name in files.names(folder) if not name.startswith((".", *_OURS))]
    log = holds_log(files, folder, write=write)  # after it: another process may create it
    if not write:
        if not log:
            raise DurabilityError(f"'{folder}' holds no log", hint="check the path")
        return
    if not log and strange:
        raise DurabilityError(
            f"'{folder}' is not empty and holds no log ('{strange[0]}')",
            hint="use a new or an empty folder",
        )
    if not log:
        files.restrict(folder)
        files.sync_folder(os.path.dirname(folder))  # its creator may not have synced it
    kind = machine.file_system(folder)
    if machine.is_network(kind):
        raise DurabilityError(
            f"'{folder}' is on a network file system ({kind}), where two writers cannot exclude"
            " each other",
            hint="keep the log on a local disk",
        )


_OURS = ("generation.", "owner", "lock")


def holds_log(files: Files, folder: str, *, write: bool) -> bool:
    """Returns True if a folder holds a log, or the beginning of one.

    Raises the errors of `is_owned_by_user`.
    """
    if not files.exists(folder):
        return False
    is_owned_by_user(files, folder, write=write, fresh=True)
    names = files.names(folder)
    log = "generation" in names or bool(segments.segment_names(names))
    is_owned_by_user(files, folder, write=write, fresh=not log)
    return log


def path_inside(files: Files, folder: str, *, write: bool) -> None:
    """Checks a folder inside a log; with `write`, creates it if it is missing.

    Raises:
        TrustError: it is a link, belongs to another user, or can be written by other users.
        DurabilityError: it is not a folder, or cannot be created.
    """
    if files.exists(folder):
        is_owned_by_user(files, folder, write=write)
    elif write:
        files.make_folder(folder)


def is_owned_by_user(files: Files, folder: str, *, write: bool, fresh: bool = False) -> None:
    """Raises an error for a link, a foreign owner, or a folder that other users can write.

    Args:
        write: True if the log will be written, so that a foreign owner is refused.
        fresh: True if the folder holds nothing that could be trusted, so that write permissions of
            other users do no harm.
    """
    status = files.status(folder)
    if stat.S_ISLNK(status.st_mode):
        raise TrustError(
            f"'{folder}' is a link", hint=f"open its target '{os.path.realpath(folder)}'"
        )
    if not stat.S_ISDIR(status.st_mode):
        raise DurabilityError(f"'{folder}' is not a folder", hint="use a folder for the log")
    if write and status.st_uid != os.getuid():
        raise TrustError(
            f"'{folder}' belongs to user {status.st_uid}, not to {os.getuid()}",
            hint='open it as its owner, or read it with mode="r"',
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not fresh:
        raise TrustError(
            f"'{folder}' is writable by other users (mode {stat.S_IMODE(status.st_mode):o})",
            hint=f"chmod 700 '{folder}'",
        )
