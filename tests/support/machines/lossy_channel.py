"""The channel between a shipper and a replica: messages may be lost, duplicated or late.

A late message arrives after others, when nobody waits for its answer and its sender may have been
replaced. As with servers (store/replicas/copies), no message outlives its session.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError
from nosync_nb.store.replication.protocol import LogName, OwnerTerm, Replica, ReplicaHoldings

WAYS = ("lost", "reply lost", "twice", "late")


Message = partial[Any]


def arrives(message: Message) -> None:
    """Delivers a message whose answer is dropped."""
    with suppress(DurabilityError, FencedError, CorruptLogError):
        message()


class Wire:
    """A replica behind the channel."""

    def __init__(
        self, replica: Replica, pick: random.Random, did: Counter[str], late: list[Message]
    ) -> None:
        self._replica, self._pick, self._did, self._late = replica, pick, did, late
        self._away = False
        self._noise = 0.0

    def reach(self, *, there: bool) -> None:
        self._away = not there

    def disturb(self, share: float) -> None:
        self._noise = share

    def _say(self, action: str, *args: Any, **kwargs: Any) -> Any:
        message = partial(getattr(self._replica, action), *args, **kwargs)
        if self._away:
            self._did["away"] += 1
            raise DurabilityError("the replica cannot be reached")
        way = self._pick.choice(WAYS) if self._pick.random() < self._noise else ""
        if not way:
            return message()
        self._did[way] += 1
        if way == "late":
            self._late.append(message)
        if way in ("lost", "late"):
            raise DurabilityError("nothing is heard from the replica")
        answer = message()
        if way == "reply lost":
            raise DurabilityError("nothing is heard from the replica")
        arrives(message)
        return answer

    @property
    def folder(self) -> str | None:
        return self._replica.folder

    def acknowledged(self) -> int:
        found: int = self._say("acknowledged")
        return found

    def promised(self) -> OwnerTerm | None:
        found: OwnerTerm | None = self._say("promised")
        return found

    def promise(self, term: OwnerTerm, name: LogName) -> ReplicaHoldings:
        found: ReplicaHoldings = self._say("promise", term, name)
        # A promise begins a session, also one of the same term: of those before nothing is taken.
        self._late[:] = [each for each in self._late if each.args[:1] != (term,)]
        return found

    def held(self) -> ReplicaHoldings:
        found: ReplicaHoldings = self._say("held")
        return found

    def store(self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool) -> None:
        self._say("store", term, name, offset, data, last=last)

    def append(self, term: OwnerTerm, name: str, offset: int, data: bytes) -> None:
        self._say("append", term, name, offset, data)

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        self._say("sync", term, seq)

    def digest(self, name: str, size: int) -> bytes:
        found: bytes = self._say("digest", name, size)
        return found

    def read(self, name: str, offset: int, size: int) -> bytes:
        found: bytes = self._say("read", name, offset, size)
        return found

    def discard(self, term: OwnerTerm, names: Iterable[str]) -> None:
        self._say("discard", term, names)

    def close(self) -> None:
        self._replica.close()
