"""Follower: a reader behind the owner of its log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.session.recovery.repair_and_retry import RepairService
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.store import log_reader, relocate
from nosync_nb.store.log_reader import RecoveredState
from nosync_nb.store.records.replay import rewind_target
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.store import Store

Read = TypeVar("Read")

FOLLOW_MAX = 8192
"""Frames after which a reader begins again at the newest checkpoint."""


class LogFollower:
    """Shows what the owner of a log has committed by now; nothing to do for the owner itself.

    Threads: what is here is changed with `_lock` alone, which is taken before the gate, and which
    who closes takes as well. What is shown is a whole snapshot.

    IMPORTANT: reading frames moves the log's end and changes the ledger, before anything is shown.
    `_unshown` stands meanwhile: who finds it was interrupted begins again.

    Args:
        recovered: what the log said when it was opened, for a reader; None: the session writes.
        repairs: of files that are damaged, if it writes.
    """

    def __init__(
        self,
        gate: WriterLock,
        publisher: Publisher,
        signer: CatalogSigner,
        repairs: RepairService,
        recovered: RecoveredState | None,
    ) -> None:
        self._gate = gate
        self._publisher = publisher
        self._signer = signer
        self._repairs = repairs
        self._lock = threading.RLock()
        self._recovered = recovered
        self._followed = 0  # frames since the log was opened
        self._unshown = False  # whether frames may have been read that are not shown

    def refresh(self) -> int:
        """Takes in what the owner has committed since the last look; gives the last epoch.

        If the log cannot be followed from where the reader is, as its owner was replaced or has
        gone back to an earlier epoch, or as the reader has fallen far behind or was interrupted, it
        begins again at the newest checkpoint.
        """
        if self._recovered is not None:
            with self._lock:
                if not self._gate.closing and (self._unshown or not self._follow(self._recovered)):
                    self._reload()
        return self._publisher.now

    def following(self, read: Callable[[], Read]) -> Read:
        """Reads what the owner has committed by now.

        A file that the owner has merged away meanwhile is no damage.
        """
        if self._recovered is None:
            return self._repairs.repairing(read)
        self.refresh()
        try:
            return read()
        except CorruptLogError:
            with self._lock:
                if self._gate.closing:
                    raise DurabilityError("the session is closed", hint="open it again") from None
                self._reload()
            return read()

    def between(self, act: Callable[[], None]) -> None:
        """Does something, as giving back the log, while nobody takes in what is in it."""
        with self._lock:
            act()

    def _follow(self, before: RecoveredState) -> bool:
        """Shows what was written after what is shown; whether it could be followed."""
        store = before.store
        self._unshown = True
        try:
            frames = store.log.refresh()
            self._followed += len(frames)
            if self._followed > FOLLOW_MAX:
                return False
            with guarded_decoding("the log"):
                tail = store.decoded(frames)
                if rewind_target(tail) is not None:
                    return False
                if tail:
                    self._show(log_reader.follow_frames(before, tail))
        except (DurabilityError, CorruptLogError):
            return False
        self._unshown = False
        return True

    def _reload(self) -> None:
        """Begins again at the newest checkpoint, also if the log's folder was renamed."""
        self._unshown = True
        before = self._publisher.store
        store = Store.open(relocate.current_folder(before.files, before.log.place), mode="r")
        try:
            recovered = log_reader.recover_state(store)
            store.release()
            self._show(recovered)
        except BaseException:
            if self._publisher.store is not store:
                store.close()
            raise
        self._followed = 0
        self._unshown = False
        before.close()

    def _show(self, recovered: RecoveredState) -> None:
        with self._gate.lock:
            self._publisher.show(recovered)
            self._signer.believe(recovered)
            self._recovered = recovered
