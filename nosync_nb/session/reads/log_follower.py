"""Follows a log as a reader: shows what its owner has committed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.session.recovery.repair import RepairService
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.store import log_reader
from nosync_nb.store.log_reader import RecoveredState
from nosync_nb.store.records.payloads import rewind_target
from nosync_nb.store.safe_decoding import guarded_decoding
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel import branches

Read = TypeVar("Read")

FOLLOW_MAX = 8192
"""Frames after which a reader reloads the log from the newest checkpoint."""


class LogFollower:
    """Refreshes the snapshot of a reader from the log; does nothing for the owner itself.

    Threads: the state here is changed with `_lock` alone, which is taken before the writer lock. A
    close takes it as well. A published snapshot is always complete.

    IMPORTANT: reading frames moves the log's end and changes the ledger before anything is
    published. Meanwhile `_unpublished` is set: a caller that finds it set knows that a refresh was
    interrupted, and reloads the log.

    Args:
        repairs: repairs damaged files, for the log's owner.
        recovered: for a reader, the state of the log at the opening; None if the session writes.
    """

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        signer: CatalogSigner,
        repairs: RepairService,
        recovered: RecoveredState | None,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._signer = signer
        self._repairs = repairs
        self._lock = threading.RLock()
        self._recovered = recovered
        self._frames_followed = 0  # frames since the log was loaded
        self._unpublished = False  # True while frames may be read but not published

    def refresh(self) -> int:
        """Reads what the owner has committed since the last call; returns the last epoch.

        It reloads the log from the newest checkpoint if it cannot follow: the owner was replaced or
        has rewound, the reader is far behind, or an earlier refresh was interrupted.
        """
        if self._recovered is not None:
            with self._lock:
                if not self._writer_lock.closing and (
                    self._unpublished or not self._follow(self._recovered)
                ):
                    self._reload()
        return self._publisher.last_epoch

    def following(self, read: Callable[[], Read]) -> Read:
        """Calls a function that reads, after a refresh.

        A file may be missing because the owner has merged and deleted it. So after an error the log
        is reloaded, and the function is called again. In a session that writes, a damaged file is
        repaired instead.
        """
        if self._recovered is None:
            return self._repairs.repairing(read)
        self.refresh()
        try:
            return read()
        except CorruptLogError:
            with self._lock:
                if self._writer_lock.closing:
                    raise DurabilityError("the session is closed", hint="open it again") from None
                self._reload()
            return read()

    def run_between_refreshes(self, act: Callable[[], None]) -> None:
        """Runs an action, such as releasing the log, while no thread refreshes."""
        with self._lock:
            act()

    def _follow(self, before: RecoveredState) -> bool:
        """Publishes the new frames; returns False if they cannot be followed."""
        store = before.store
        self._unpublished = True
        try:
            frames = store.log.refresh()
            self._frames_followed += len(frames)
            if self._frames_followed > FOLLOW_MAX:
                return False
            with guarded_decoding("the log"):
                tail = store.decoded(frames)
                if rewind_target(tail) is not None:
                    return False
                if tail:
                    self._publish(log_reader.follow_frames(before, tail))
        except (DurabilityError, CorruptLogError):
            return False
        self._unpublished = False
        return True

    def _reload(self) -> None:
        """Reloads the log from the newest checkpoint, even if its folder was renamed."""
        self._unpublished = True
        before = self._publisher.store
        store = Store.open(branches.current_folder(before.files, before.log.place), mode="r")
        try:
            recovered = log_reader.recover_state(store)
            store.release()
            self._publish(recovered)
        except BaseException:
            if self._publisher.store is not store:
                store.close()
            raise
        self._frames_followed = 0
        self._unpublished = False
        before.close()

    def _publish(self, recovered: RecoveredState) -> None:
        with self._writer_lock.lock:
            self._publisher.publish_recovered(recovered)
            self._signer.believe(recovered)
            self._recovered = recovered
