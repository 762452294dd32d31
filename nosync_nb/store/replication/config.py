"""Replicas: which replicas a log has, and how many of them make an epoch safe; kept with the log.

They are signed with this user's key. A log is data from a stranger until then: one that names
replicas would otherwise have whoever opens it write its rows, or read, where the stranger wants.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from nosync_nb.collections.functions import signing
from nosync_nb.errors import CorruptLogError, SchemaError, TrustError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.replication.address import ReplicaAddress, checked_quorum, parse_addresses

FILE = "replicas"
_PERSON = b"nosync replicas 1"
_BYTES_MAX = 1 << 16

Said = TypeVar("Said")


class FormerReplicas(NamedTuple):
    """The replicas of a log as they were: their URLs, and how many of them made an epoch safe.

    Attributes:
        seq: the last frame of the log when that was changed.
    """

    urls: tuple[str, ...]
    quorum: int
    seq: int = 0


class ReplicaConfig(NamedTuple):
    """The replicas of a log, and how many of them make an epoch safe.

    Attributes:
        former: what they were when it took more of them, until so many know of the change; or when
            it took fewer, until so many as it takes now have what was there then.
        unprepared: they were taken from the log that this is a branch of, and what has to be there
            before copies can be was not made yet.
    """

    replicas: tuple[ReplicaAddress, ...] = ()
    quorum: int = 0
    former: FormerReplicas | None = None
    unprepared: bool = False

    @property
    def settled(self) -> ReplicaConfig:
        """The same when enough of them know it."""
        return self._replace(former=None)

    @property
    def promised(self) -> int:
        """The quorum by which who reads replicas reckons; see `changed`."""
        return self.quorum if self.former is None else min(self.quorum, self.former.quorum)

    @property
    def _lowered(self) -> bool:
        return self.former is not None and self.quorum < self.former.quorum

    def changed(self, asked: ReplicaConfig, seq: int) -> ReplicaConfig:
        """What is asked for, as it follows this.

        Failure: 1. Of three replicas two made an epoch safe, and now one does. 2. An epoch on the
        only one that answers is told to be safe. 3. The disk and that replica are gone, and the
        other two come back: two of three were always enough to know what was safe. Hence a lower
        quorum counts when as many know it as it took before.

        Failure: 1. Of three replicas one made an epoch safe, and now two do. 2. The two that lack
        that epoch promise so, before they are level. 3. The disk and the first one are gone: what
        was safe is with nobody who answers, and two of three are enough to say that all is there.
        Hence replicas promise the quorum before until as many as it takes now are level.

        Args:
            seq: the last frame of the log.
        """
        former = self.former or FormerReplicas(
            tuple(each.url for each in self.replicas), self.quorum
        )
        if asked.quorum == former.quorum or not (former.quorum and asked.replicas):
            return asked.settled
        return asked._replace(former=former._replace(seq=seq))

    def settles(self, promised: Iterable[bool], acknowledged: Iterable[int]) -> bool:
        """Whether what they were before needs to be known no more.

        Args:
            promised: see `owed`.
            acknowledged: by each replica, the last frame.
        """
        if self.former is None or self._lowered:
            return self.owed(promised) == 0
        return quorum_index(acknowledged, self.quorum) >= self.former.seq

    def counted(self, promised: Iterable[bool], acknowledged: Sequence[int], announced: int) -> int:
        """How far the log is safe, in frames or in epochs; what was announced stays so.

        Args:
            promised: see `owed`.
            acknowledged: by each replica.
            announced: before the settings were changed.
        """
        if self.former is None or (self._lowered and not self.owed(promised)):
            return quorum_index(acknowledged, self.quorum)
        there = min(announced, quorum_index(acknowledged, self.promised))
        if not self._lowered:
            return max(there, quorum_index(acknowledged, self.quorum))
        both = [n for each, n in self._each(acknowledged) if each.url in self.former.urls]
        return max(there, quorum_index(both, self.former.quorum))

    def owed(self, promised: Iterable[bool]) -> int:
        """How many more replicas have to know the quorum before it counts.

        Args:
            promised: of each replica, whether it has promised itself under these settings.
        """
        if self.former is None or not self._lowered:
            return 0
        both = [said for each, said in self._each(promised) if each.url in self.former.urls]
        return max(0, min(self.former.quorum, len(both)) - sum(both))

    def _each(self, said: Iterable[Said]) -> Iterable[tuple[ReplicaAddress, Said]]:
        return zip(self.replicas, said, strict=True)


def quorum_index(acknowledged: Iterable[int], quorum: int) -> int:
    """The greatest number that at least `quorum` replicas have acknowledged; 0 if there is none."""
    ranked = sorted(acknowledged, reverse=True)
    return ranked[quorum - 1] if 0 < quorum <= len(ranked) else 0


def read_quorum(replicas: int, quorum: int) -> int:
    """How many of the replicas must answer so that one of them has all that was ever safe."""
    return replicas - quorum + 1


def checked_config(
    urls: Sequence[str], quorum: int | None, *, log: str, look: bool = True
) -> ReplicaConfig:
    """Returns the settings that somebody asks for; see `parse_all` and `checked_quorum`."""
    replicas = parse_addresses(urls, log=log, look=look)
    if not replicas and not quorum:
        return ReplicaConfig()
    return ReplicaConfig(replicas, checked_quorum(quorum, len(replicas)))


def read_config(files: Files, folder: str, log_id: bytes) -> ReplicaConfig:
    """Returns the settings of a log.

    Raises:
        TrustError: somebody else wrote them, or they were moved from another log.
        CorruptLogError: they make no sense.
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
            f"'{path}' names replicas, and your key has not signed it for this folder, which may be"
            " a copy: none of them is asked",
            hint="name them again: nosync.open(path, replicas=[...])",
        )
    try:
        said = json.loads(text)
        settings = checked_config(said["replicas"], said["quorum"], log=folder, look=False)
        settings = settings._replace(unprepared=bool(said.get("unprepared")))
        if "former" not in said:
            return settings
        urls, *numbers = said["former"]
        if not all(isinstance(each, str) for each in urls):
            raise ValueError("former")
        if not all(type(each) is int for each in numbers):
            raise ValueError("former")
        return settings._replace(former=FormerReplicas(tuple(urls), *numbers))
    except (SchemaError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptLogError(
            f"'{path}' is damaged: {error}", hint="name the replicas again when you open the log"
        ) from error


def config_signer(files: Files) -> str:
    """The id of this user's key; empty if there is none."""
    key = signing.existing_user_key(files)
    return "" if key is None else signing.key_id(key)


def write_config(files: Files, folder: str, log_id: bytes, settings: ReplicaConfig) -> None:
    """Writes the settings of a log, durably."""
    said: dict[str, Any] = {
        "replicas": [each.url for each in settings.replicas],
        "quorum": settings.quorum,
    }
    if settings.former is not None:
        said["former"] = settings.former
    if settings.unprepared:
        said["unprepared"] = True
    text = json.dumps(said).encode()
    mac = _mac(signing.user_key(files), _identity(files, folder, log_id), text)
    files.replace(os.path.join(folder, FILE), b"\n".join((text, mac, b"")))


def _identity(files: Files, folder: str, log_id: bytes) -> bytes:
    """What the log is and a copy of its folder is not: that would take the replicas from it."""
    path = os.path.join(folder, "generation")
    number = files.status(path).st_ino if files.exists(path) else 0
    return log_id + number.to_bytes(16, "big")


def _mac(key: bytes, log_id: bytes, text: bytes) -> bytes:
    signed = len(log_id).to_bytes(8, "big") + log_id + text
    return hmac.new(key, _PERSON + signed, hashlib.sha256).hexdigest().encode()
