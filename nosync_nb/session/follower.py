"""Follower: a reader behind the owner of its log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.session.gate import Gate
from nosync_nb.session.publisher import Publisher
from nosync_nb.store import reading
from nosync_nb.store.decoding import decoding
from nosync_nb.store.reading import Recovered
from nosync_nb.store.store import Store

Read = TypeVar("Read")

FOLLOW_MAX = 8192
"""Frames after which a reader begins again at the newest checkpoint."""


class Follower:
    """Shows what the owner of a log has committed by now; nothing to do for the owner itself.

    Threads: `_recovered` and `_followed` are changed with `_lock` alone, which is taken before the
    gate. What is shown is a whole snapshot.

    Args:
        recovered: what the log said when it was opened, for a reader; None: the session writes.
    """

    def __init__(self, gate: Gate, publisher: Publisher, recovered: Recovered | None) -> None:
        self._gate = gate
        self._publisher = publisher
        self._lock = threading.RLock()
        self._recovered = recovered
        self._followed = 0  # frames since the log was opened

    def refresh(self) -> None:
        """Takes in what the owner has committed since the last look.

        If the log cannot be followed from where the reader is, as its owner was replaced, or as the
        reader has fallen far behind, the reader begins again at the newest checkpoint.
        """
        with self._lock:
            if self._recovered is None or self._gate.closing:
                return
            store = self._recovered.store
            try:
                frames = store.log.refresh()
            except (DurabilityError, CorruptLogError):
                self._reload()
                return
            self._followed += len(frames)
            if self._followed > FOLLOW_MAX:
                self._reload()
            elif frames:
                with decoding("the log"):
                    tail = store.decoded(frames)
                    if tail:
                        self._show(reading.follow(self._recovered, tail))

    def following(self, read: Callable[[], Read]) -> Read:
        """Reads what the owner has committed by now.

        A file that the owner has merged away meanwhile is no damage.
        """
        if self._recovered is None:
            return read()
        self.refresh()
        try:
            return read()
        except CorruptLogError:
            with self._lock:
                self._reload()
            return read()

    def _reload(self) -> None:
        """Begins again at the newest checkpoint."""
        before = self._publisher.store
        store = Store.open(before.path, mode="r")
        try:
            recovered = reading.recover(store)
            store.release()
            self._show(recovered)
        except BaseException:
            if self._publisher.store is not store:
                store.close()
            raise
        self._followed = 0
        before.close()

    def _show(self, recovered: Recovered) -> None:
        with self._gate.lock:
            if self._gate.closing:
                raise DurabilityError("the session is closed", hint="open it again")
            self._publisher.show(recovered)
            self._recovered = recovered
