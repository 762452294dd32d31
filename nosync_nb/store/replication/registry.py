"""The registry of this user's replicated logs, by folder, in a file beside the user's key.

The settings of a log are lost with its folder. Only a notebook whose log is lost reads the
registry: `nosync.open` uses the replicas that it is given. The file belongs to this user. It is
ignored if other users can write it, or if it is malformed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nosync_nb.collections.functions import signing
from nosync_nb.errors import DurabilityError, NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.config import ReplicaConfig, checked_config
from nosync_nb.store.replication.file_layout import BRANCHES

_BYTES_MAX = 1 << 20
_LOGS_MAX = 1000
_LOCK_WAIT_S = 2.0


def registry_path() -> str:
    """Returns the path of the registry."""
    return os.path.join(os.path.dirname(signing.key_path()), "replicas.json")


def registered_replicas(files: Files, folder: str) -> tuple[list[str], int] | None:
    """Returns the replica URLs and the quorum of the log that was in a folder; None: none."""
    return _checked_entry(_read_entries(files), folder)


def is_log_gone(files: Files, parent: str) -> list[str]:
    """Returns the folders in `parent` of replicated logs that do not exist any more."""
    entries = _read_entries(files)
    return [
        folder
        for folder in entries
        if os.path.dirname(folder) == parent
        and _checked_entry(entries, folder) is not None
        and not files.exists(folder)
    ]


def logs_below(files: Files, folder: str) -> dict[str, tuple[list[str], int]]:
    """Returns the replicated branches of a log whose folders do not exist any more, by name.

    Cost: as `unregister_replicas`.
    """
    where = os.path.join(folder, BRANCHES)
    if json.dumps(where).encode()[:-1] not in _read_text(files):
        return {}
    entries = _read_entries(files)
    return {
        os.path.basename(each): entry
        for each in entries
        if os.path.dirname(each) == where
        and (entry := _checked_entry(entries, each)) is not None
        and not files.exists(each)
    }


def register_replicas(files: Files, folder: str, log_id: bytes, settings: ReplicaConfig) -> None:
    """Records the replicas of a log if they are new; unregisters a log without replicas.

    Raises:
        NosyncError: the registry cannot be written.

    Cost: it parses the file, if the log is recorded already; so does every later opening.
    """
    if not settings.replicas:
        unregister_replicas(files, folder)
        return
    entry = [[f"{each.url}#{log_id.hex()}" for each in settings.replicas], settings.quorum]
    if _read_entries(files).get(folder) == entry:
        return
    with _locked_entries(files) as entries:
        entries.pop(folder, None)
        entries[folder] = entry


def unregister_replicas(files: Files, folder: str) -> bool:
    """Removes the replicas of a log; returns True if there were any.

    Raises:
        NosyncError: the registry cannot be written.

    Cost: some 50 us if the registry has no entry, as at every opening of a log without replicas.
    """
    # A search in the text is cheaper than parsing the entries of all logs.
    if json.dumps(folder).encode() not in _read_text(files) or folder not in _read_entries(files):
        return False
    with _locked_entries(files) as entries:
        entries.pop(folder, None)
    return True


def record_move(files: Files, old: str, new: str) -> None:
    """Records that the folder of a log was renamed, with the branches in it.

    Raises:
        NosyncError: the registry cannot be written.

    Cost: some 50 us if the registry has no replicas of any of them.
    """
    if json.dumps(old).encode()[:-1] not in _read_text(files):
        return
    with _locked_entries(files) as entries:
        for folder in [each for each in entries if each == old or each.startswith(f"{old}/")]:
            replicas = entries.pop(folder)
            entries.setdefault(new + folder.removeprefix(old), replicas)


_Entries = dict[str, object]
"""The content of the registry by folder; `_checked_entry` validates an entry when it is used."""


@contextmanager
def _locked_entries(files: Files) -> Iterator[_Entries]:
    """A block that changes the registry under a lock among processes; the oldest entries go."""
    where = registry_path()
    files.make_folder(os.path.dirname(where))
    lock = files.lock(f"{where}.lock", wait_s=_LOCK_WAIT_S)
    if lock is None:
        raise DurabilityError(f"'{where}' is being written by another process", hint="try again")
    try:
        entries = _read_entries(files)
        yield entries
        newest = dict([*entries.items()][-_LOGS_MAX:])
        files.replace(where, json.dumps(newest).encode())
    finally:
        lock.release()


def _read_entries(files: Files) -> _Entries:
    """Reads the registry without validating its entries."""
    text = _read_text(files)
    try:
        entries = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _checked_entry(entries: _Entries, folder: str) -> tuple[list[str], int] | None:
    """Returns the validated entry of a log; None if this code could not have written it."""
    entry: Any = entries.get(folder)
    try:
        urls, quorum = entry
        settings = checked_config(urls, quorum, log=folder, look=False)
    except (NosyncError, ValueError, TypeError, AttributeError):
        return None
    return urls, settings.quorum


def _read_text(files: Files) -> bytes:
    """Reads the file; empty if it is missing, unreadable, or writable by other users."""
    where = registry_path()
    try:
        if not files.exists(where):
            return b""
        status = files.status(where)
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return b""
        return files.read(where, most=_BYTES_MAX)
    except NosyncError:
        return b""
