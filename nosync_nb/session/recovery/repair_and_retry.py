"""Refetches a damaged or missing file of rows from a replica, and retries the call that found it.

A call that finds one fails without any change, as it does without replicas. Before the error
reaches the caller, the file is looked for at the replicas. If one of them has a file with the
digest in the log, it replaces the damaged one, and the call is retried. Otherwise the data is
rebuilt from the log, or recomputed, as at an opening that misses the file. Stages that cannot be
rebuilt stop, but only if all replicas have answered, because a replica that is offline may have the
file.

IMPORTANT: the caller asks the replicas without holding a lock of the session. The requests run in a
thread that may hang, and continue as long as data arrives; other threads commit meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from nosync_nb.errors import CorruptLogError, NosyncError, StageError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.recovery.stage_recovery import StageRecovery
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.endpoints import open_copy
from nosync_nb.store.replication.remote_call import Beat, call_remote
from nosync_nb.store.replication.restore import repair
from nosync_nb.store.replication.restore.repair import RepairedFile
from nosync_nb.store.store import Store
from nosync_nb.store.verification.survey import survey_log
from nosync_nb.store.verification.verify import ImmutableFile, completed_report, immutable_files

Result = TypeVar("Result")

_FILES_MAX = 256


class RepairService:
    """Refetches or rebuilds damaged files of a log.

    Its `_lock` serialises repairs: if two threads miss a file, it is fetched once.

    Args:
        stages: rebuilds the data of a file that no replica has.
    """

    def __init__(
        self,
        store: Store,
        replication: ReplicationService,
        subscriptions: Subscriptions,
        stage_recovery: StageRecovery,
    ) -> None:
        self._store = store
        self._replication = replication
        self._say = subscriptions.add_notice
        self._stage_recovery = stage_recovery
        self._lock = threading.Lock()

    def repairing(self, call: Callable[[], Result]) -> Result:
        """Makes a call that changes nothing if it fails; retries it after a repair."""
        try:
            return call()
        except CorruptLogError as error:
            return self.again(error, call)

    def again(self, error: CorruptLogError, call: Callable[[], Result]) -> Result:
        """Repairs the file of an error and retries the call; raises the error if that fails.

        Cost: the log's frames are read, to find the entry of the file.
        """
        tried: set[str] = set()
        while error.file is not None and error.file not in tried and len(tried) < _FILES_MAX:
            tried.add(error.file)
            if not (self._refetch(error.file) or self._rebuild_data(error.file)):
                break
            try:
                return call()
            except CorruptLogError as another:
                error = another
        raise error

    def _rebuild_data(self, name: str) -> bool:
        """Returns True if the data of a file was rebuilt and nothing references it any more."""
        if self._store.log.mode == "r":
            return False
        try:
            done = self._stage_recovery.repair_file(name, stop=self._all_replicas_answer())
        except StageError:  # inside an epoch, which must fail with its own error
            return False
        if done:
            self._say(f"'{name}' is damaged or missing: its data was rebuilt")
        return done

    def _all_replicas_answer(self) -> bool:
        """Returns True if every replica lists its files of the log now."""
        files, log_id = self._store.files, self._store.log.id
        for address in self._replication.settings.replicas:
            try:
                if not call_remote(address.url, partial(_holds_files, files, address, log_id)):
                    return False
            except NosyncError:
                return False
        return True

    def _refetch(self, name: str) -> bool:
        """Returns True if a file is intact after a repair."""
        settings = self._replication.settings
        if not settings.replicas or self._store.log.mode == "r":
            return False
        with self._lock:
            try:
                done = repaired_files(self._store, settings, [name])
            except NosyncError:
                return False
        for each in done.get(name, ()):
            self._say(str(each))
        return name in done


def _holds_files(files: Files, address: ReplicaAddress, log_id: bytes, _beat: Beat) -> bool:
    """Returns True if a replica holds files of a log; an empty mount point does not."""
    with open_copy(address, files, log_id) as replica:
        return bool(replica.held().files)


def repaired_files(
    store: Store, settings: ReplicaConfig, names: Iterable[str]
) -> dict[str, list[RepairedFile]]:
    """Repairs files of rows; returns the intact ones, with the repairs made for each.

    Raises:
        DurabilityError: the log or its disk cannot be read, or written.
        FencedError: another process owns the log.
    """
    intact: dict[str, list[RepairedFile]] = {}
    remaining, count = [*names], -1
    while (
        remaining and len(intact) > count
    ):  # because a repaired file may be a pack, which names others
        count = len(intact)
        files = _immutable_files(store)
        for name in remaining:
            if name in files:
                _repair_one(store, settings, files[name], intact)
        remaining = [name for name in remaining if name not in intact]
    return intact


def _repair_one(
    store: Store,
    settings: ReplicaConfig,
    item: ImmutableFile,
    intact: dict[str, list[RepairedFile]],
) -> None:
    """Repairs one file if it is damaged, and records it in `intact`."""
    why = repair.damage_reason(store.files, store.path, item, _ignore_count)
    if not why:
        intact[item.name] = []
        return
    repaired = repair.repair_file(
        store.files,
        store.path,
        item,
        why,
        settings.replicas,
        store.log.id,
        check=store.log.check,
    )
    if repaired is not None:
        intact[item.name] = [repaired]


def _immutable_files(store: Store) -> dict[str, ImmutableFile]:
    """Returns the log's entries of its files, including files that only packs name."""
    surveyed = survey_log(store.files, store.path, HostIdentity(), _ignore_count)
    return immutable_files(completed_report(store.files, store.path, surveyed, _ignore_count))


def _ignore_count(_count: int) -> None:
    pass
