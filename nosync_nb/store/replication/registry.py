"""Remembered: which replicas this user's logs have, by their folders, in a file beside his key.

What a log says of its replicas is gone with its folder. A notebook whose log is gone asks here, and
nobody else: `nosync.open` asks the replicas that it is given. The file is this user's alone; one
that others can write, or that makes no sense, says nothing.
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
    """Where the file is."""
    return os.path.join(os.path.dirname(signing.key_path()), "replicas.json")


def registered_replicas(files: Files, folder: str) -> tuple[list[str], int] | None:
    """The URLs of the replicas of the log that lay in a folder, and its quorum; None: none."""
    return _told(_read(files), folder)


def is_log_gone(files: Files, parent: str) -> list[str]:
    """The folders in `parent` of logs that had replicas, and are not there any more."""
    known = _read(files)
    return [
        folder
        for folder in known
        if os.path.dirname(folder) == parent
        and _told(known, folder) is not None
        and not files.exists(folder)
    ]


def logs_below(files: Files, folder: str) -> dict[str, tuple[list[str], int]]:
    """By name, the branches of the log in a folder that had replicas and are not there any more.

    Cost: as `forget`.
    """
    where = os.path.join(folder, BRANCHES)
    if json.dumps(where).encode()[:-1] not in _text(files):
        return {}
    known = _read(files)
    return {
        os.path.basename(each): said
        for each in known
        if os.path.dirname(each) == where
        and (said := _told(known, each)) is not None
        and not files.exists(each)
    }


def register_replicas(files: Files, folder: str, log_id: bytes, settings: ReplicaConfig) -> None:
    """Notes the replicas of a log, if they are not noted; of none, forgets it.

    Raises:
        NosyncError: it cannot be written.

    Cost: to parse the file, for a log that is noted; so it is whenever it is opened again.
    """
    if not settings.replicas:
        unregister_replicas(files, folder)
        return
    said = [[f"{each.url}#{log_id.hex()}" for each in settings.replicas], settings.quorum]
    if _read(files).get(folder) == said:
        return
    with _changing(files) as known:
        known.pop(folder, None)
        known[folder] = said


def unregister_replicas(files: Files, folder: str) -> bool:
    """Forgets the replicas of a log; returns whether any were known.

    Raises:
        NosyncError: it cannot be written.

    Cost: some 50 us if none are known, as whenever a log without replicas is opened.
    """
    # Nothing of other logs is looked into before the text of this one stands there.
    if json.dumps(folder).encode() not in _text(files) or folder not in _read(files):
        return False
    with _changing(files) as known:
        known.pop(folder, None)
    return True


def moved(files: Files, old: str, new: str) -> None:
    """Notes that the folder of a log was renamed; its branches, which lie in it, were too.

    Raises:
        NosyncError: it cannot be written.

    Cost: some 50 us if no replicas are known of any of them.
    """
    if json.dumps(old).encode()[:-1] not in _text(files):
        return
    with _changing(files) as known:
        for folder in [each for each in known if each == old or each.startswith(f"{old}/")]:
            replicas = known.pop(folder)
            known.setdefault(new + folder.removeprefix(old), replicas)


_Known = dict[str, object]
"""What the file says by folder: not believed before it is asked for, see `_told`."""


@contextmanager
def _changing(files: Files) -> Iterator[_Known]:
    """A block that changes what is known, once among processes; the oldest make room."""
    where = registry_path()
    files.make_folder(os.path.dirname(where))
    lock = files.lock(f"{where}.lock", wait_s=_LOCK_WAIT_S)
    if lock is None:
        raise DurabilityError(f"'{where}' is being written by another process", hint="try again")
    try:
        known = _read(files)
        yield known
        kept = dict([*known.items()][-_LOGS_MAX:])
        files.replace(where, json.dumps(kept).encode())
    finally:
        lock.release()


def _read(files: Files) -> _Known:
    """What is known, which costs no more than to parse it."""
    text = _text(files)
    try:
        said = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _told(known: _Known, folder: str) -> tuple[list[str], int] | None:
    """What is known of a log; nothing is believed that could not have been written here."""
    said: Any = known.get(folder)
    try:
        urls, quorum = said
        settings = checked_config(urls, quorum, log=folder, look=False)
    except (NosyncError, ValueError, TypeError, AttributeError):
        return None
    return urls, settings.quorum


def _text(files: Files) -> bytes:
    """The file; empty if it is not there, cannot be read, or others can write it."""
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
