"""The replicas of a log and the quorum that makes an epoch safe; stored with the log and signed.

The signature is made with this user's key, because a log may come from an untrusted writer. Without
a signature such a log could make its reader send rows to, or read rows from, any URL.

The settings of a log are lost with its folder. So this user's replicated logs are also registered
by folder, in a file beside the user's key (`register_replicas`). Only a notebook whose log is lost
reads the registry: `nosync.open` uses the replicas that it is given. The file belongs to this user.
It is ignored if other users can write it, or if it is malformed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from nosync_nb.collections.functions import signing
from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError, SchemaError, TrustError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.address import ReplicaAddress, checked_quorum, parse_addresses
from nosync_nb.store.replication.file_layout import BRANCHES

FILE = "replicas"
_PERSON = b"nosync replicas 1"
_BYTES_MAX = 1 << 16

Said = TypeVar("Said")


class FormerReplicas(NamedTuple):
    """The previous replicas of a log: their URLs, and the quorum that made an epoch safe.

    Attributes:
        seq: the number of the log's last frame when the settings were changed.
    """

    urls: tuple[str, ...]
    quorum: int
    seq: int = 0


class ReplicaConfig(NamedTuple):
    """The replicas of a log, and the quorum that makes an epoch safe.

    Attributes:
        former: the previous settings while a change of the quorum is in progress; else None. A
            raised quorum counts when that many replicas hold all frames that precede the change. A
            lowered one counts when as many replicas as the previous quorum have recorded it.
        unprepared: True if a branch took the settings from its parent log, and the sites have not
            been prepared for its copies yet.
    """

    replicas: tuple[ReplicaAddress, ...] = ()
    quorum: int = 0
    former: FormerReplicas | None = None
    unprepared: bool = False

    @property
    def without_former(self) -> ReplicaConfig:
        """These settings after the change is completed."""
        return self._replace(former=None)

    @property
    def promised(self) -> int:
        """The lower of both quorums, which a reader of the replicas must assume; see `changed`."""
        return self.quorum if self.former is None else min(self.quorum, self.former.quorum)

    @property
    def _lowered(self) -> bool:
        return self.former is not None and self.quorum < self.former.quorum

    def changed(self, asked: ReplicaConfig, seq: int) -> ReplicaConfig:
        """Returns the requested settings, as a change of the current ones.

        Failure: 1. Two of three replicas made an epoch safe, and now one does. 2. An epoch on the
        only replica that answers is reported as safe. 3. The disk and that replica are lost, and
        the other two return. By the old rule two of three were always enough to know every safe
        epoch. Hence a lower quorum counts only when as many replicas know it as the old quorum.

        Failure: 1. One of three replicas made an epoch safe, and now two do. 2. The two that lack
        that epoch record the new quorum before they have caught up. 3. The disk and the first
        replica are lost. No replica that answers has the safe epoch, and two of three seem enough
        to say that all is present. Hence replicas record the previous quorum until as many as the
        new one have caught up.

        Args:
            asked: the requested settings.
            seq: the number of the log's last frame.
        """
        former = self.former or FormerReplicas(
            tuple(each.url for each in self.replicas), self.quorum
        )
        if asked.quorum == former.quorum or not (former.quorum and asked.replicas):
            return asked.without_former
        return asked._replace(former=former._replace(seq=seq))

    def settles(self, promised: Iterable[bool], acknowledged: Iterable[int]) -> bool:
        """Returns True if the change is complete, so that the previous settings can be dropped.

        Args:
            promised: see `unconfirmed`.
            acknowledged: the last acknowledged frame of each replica.
        """
        if self.former is None or self._lowered:
            return self.unconfirmed(promised) == 0
        return quorum_index(acknowledged, self.quorum) >= self.former.seq

    def counted(self, promised: Iterable[bool], acknowledged: Sequence[int], announced: int) -> int:
        """Returns the last safe frame or epoch; one that was announced as safe stays safe.

        Args:
            promised: see `unconfirmed`.
            acknowledged: the last acknowledged frame or epoch of each replica.
            announced: the last frame or epoch that was announced before the change.
        """
        if self.former is None or (self._lowered and not self.unconfirmed(promised)):
            return quorum_index(acknowledged, self.quorum)
        safe = min(announced, quorum_index(acknowledged, self.promised))
        if not self._lowered:
            return max(safe, quorum_index(acknowledged, self.quorum))
        both = [n for each, n in self._by_replica(acknowledged) if each.url in self.former.urls]
        return max(safe, quorum_index(both, self.former.quorum))

    def unconfirmed(self, promised: Iterable[bool]) -> int:
        """Returns the number of replicas that must still record a lowered quorum before it counts.

        Args:
            promised: for each replica, True if it has recorded these settings.
        """
        if self.former is None or not self._lowered:
            return 0
        both = [flag for each, flag in self._by_replica(promised) if each.url in self.former.urls]
        return max(0, min(self.former.quorum, len(both)) - sum(both))

    def _by_replica(self, values: Iterable[Said]) -> Iterable[tuple[ReplicaAddress, Said]]:
        return zip(self.replicas, values, strict=True)


def quorum_index(acknowledged: Iterable[int], quorum: int) -> int:
    """Returns the last frame or epoch that `quorum` replicas have acknowledged; 0 if none."""
    ranked = sorted(acknowledged, reverse=True)
    return ranked[quorum - 1] if 0 < quorum <= len(ranked) else 0


def read_quorum(replicas: int, quorum: int) -> int:
    """Returns the number of replicas that must answer so that one of them has every safe frame."""
    return replicas - quorum + 1


def checked_config(
    urls: Sequence[str], quorum: int | None, *, log: str, look: bool = True
) -> ReplicaConfig:
    """Returns the settings after validation; see `parse_addresses` and `checked_quorum`."""
    replicas = parse_addresses(urls, log=log, look=look)
    if not replicas and not quorum:
        return ReplicaConfig()
    return ReplicaConfig(replicas, checked_quorum(quorum, len(replicas)))


def read_config(files: Files, folder: str, log_id: bytes) -> ReplicaConfig:
    """Returns the replica settings of a log; without replicas if none are stored.

    Raises:
        TrustError: the settings are not signed with the user's key for this log in this folder.
        CorruptLogError: the settings are malformed.
    """
    path = os.path.join(folder, FILE)
    if not files.exists(path):
        return ReplicaConfig()
    text, _, mac = files.read(path, most=_BYTES_MAX).rstrip(b"\n").rpartition(b"\n")
    key = signing.existing_user_key(files)
    if key is None or not hmac.compare_digest(
        mac, _mac(key, _identity(files, folder, log_id), text)
    ):
        raise TrustError(
            f"'{path}' lists replicas but is not signed with your key for this folder, which"
            " may be a copy: no replica is used",
            hint="list them again: nosync.open(path, replicas=[...])",
        )
    try:
        fields = json.loads(text)
        settings = checked_config(fields["replicas"], fields["quorum"], log=folder, look=False)
        settings = settings._replace(unprepared=bool(fields.get("unprepared")))
        if "former" not in fields:
            return settings
        urls, *numbers = fields["former"]
        if not all(isinstance(each, str) for each in urls):
            raise ValueError("former")
        if not all(type(each) is int for each in numbers):
            raise ValueError("former")
        return settings._replace(former=FormerReplicas(tuple(urls), *numbers))
    except (SchemaError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptLogError(
            f"'{path}' is damaged: {error}",
            hint="list the replicas again: nosync.open(path, replicas=[...])",
        ) from error


def config_signer(files: Files) -> str:
    """Returns the id of this user's key; empty if there is no key."""
    key = signing.existing_user_key(files)
    return "" if key is None else signing.key_id(key)


def write_config(files: Files, folder: str, log_id: bytes, settings: ReplicaConfig) -> None:
    """Writes the replica settings of a log durably, signed with the user's key."""
    fields: dict[str, Any] = {
        "replicas": [each.url for each in settings.replicas],
        "quorum": settings.quorum,
    }
    if settings.former is not None:
        fields["former"] = settings.former
    if settings.unprepared:
        fields["unprepared"] = True
    text = json.dumps(fields).encode()
    mac = _mac(signing.user_key(files), _identity(files, folder, log_id), text)
    files.replace(os.path.join(folder, FILE), b"\n".join((text, mac, b"")))


def _identity(files: Files, folder: str, log_id: bytes) -> bytes:
    """Returns the log's id and the inode of its control file.

    A copy of the folder has another inode. So the signature is invalid there, and the copy cannot
    take over the replicas.
    """
    path = os.path.join(folder, "generation")
    number = files.status(path).st_ino if files.exists(path) else 0
    return log_id + number.to_bytes(16, "big")


def _mac(key: bytes, log_id: bytes, text: bytes) -> bytes:
    signed = len(log_id).to_bytes(8, "big") + log_id + text
    return hmac.new(key, _PERSON + signed, hashlib.sha256).hexdigest().encode()


_REGISTRY_BYTES_MAX = 1 << 20
_LOGS_MAX = 1000
_LOCK_WAIT_S = 2.0


def registry_path() -> str:
    """Returns the path of the registry, which is beside the user's key."""
    return os.path.join(os.path.dirname(signing.key_path()), "replicas.json")


def registered_replicas(files: Files, folder: str) -> tuple[list[str], int] | None:
    """Returns the replica URLs and the quorum that are registered for a folder, or None."""
    return _checked_entry(_read_entries(files), folder)


def is_log_gone(files: Files, parent: str) -> list[str]:
    """Returns the missing folders in `parent` for which replicas are registered."""
    entries = _read_entries(files)
    return [
        folder
        for folder in entries
        if os.path.dirname(folder) == parent
        and _checked_entry(entries, folder) is not None
        and not files.exists(folder)
    ]


def logs_below(files: Files, folder: str) -> dict[str, tuple[list[str], int]]:
    """Returns URLs and quorum of the replicated branches of a log whose folders are missing.

    The keys are the names of the branches.

    Cost: about 50 us if the registry has no branch of the log; see `unregister_replicas`.
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
    """Registers the replicas of a log if they have changed; unregisters a log without replicas.

    Raises:
        NosyncError: the registry cannot be written.

    Cost: reads and parses the registry, at every opening of a log with replicas.
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
    """Removes the registered replicas of a log; returns True if there were any.

    Raises:
        NosyncError: the registry cannot be written.

    Cost: about 50 us if the registry has no entry for the folder. Every opening of a log without
    replicas has this cost.
    """
    # A search in the text is cheaper than parsing the entries of all logs.
    if json.dumps(folder).encode() not in _read_text(files) or folder not in _read_entries(files):
        return False
    with _locked_entries(files) as entries:
        entries.pop(folder, None)
    return True


def record_move(files: Files, old: str, new: str) -> None:
    """Updates the registry after the folder of a log, with the branches in it, was renamed.

    Raises:
        NosyncError: the registry cannot be written.

    Cost: about 50 us if the registry has no entry for any of them.
    """
    if json.dumps(old).encode()[:-1] not in _read_text(files):
        return
    with _locked_entries(files) as entries:
        for folder in [each for each in entries if each == old or each.startswith(f"{old}/")]:
            replicas = entries.pop(folder)
            entries.setdefault(new + folder.removeprefix(old), replicas)


_Entries = dict[str, object]
"""The registry's entries by folder; `_checked_entry` validates an entry when it is used."""


@contextmanager
def _locked_entries(files: Files) -> Iterator[_Entries]:
    """Locks the registry for a `with` block that changes its entries, and writes them at the end.

    If there are more than `_LOGS_MAX` entries, the oldest are dropped.
    """
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
    """Returns the URLs and the quorum of a folder's entry; None if it is missing or invalid."""
    entry: Any = entries.get(folder)
    try:
        urls, quorum = entry
        settings = checked_config(urls, quorum, log=folder, look=False)
    except (NosyncError, ValueError, TypeError, AttributeError):
        return None
    return urls, settings.quorum


def _read_text(files: Files) -> bytes:
    """Reads the registry; empty if missing, unreadable, or owned or writable by another user."""
    where = registry_path()
    try:
        if not files.exists(where):
            return b""
        status = files.status(where)
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return b""
        return files.read(where, most=_REGISTRY_BYTES_MAX)
    except NosyncError:
        return b""
