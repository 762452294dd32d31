"""Repairs: a file of rows that is damaged or gone is had again from a replica at first touch.

A call that meets one fails with nothing changed, as without replicas. Before the error reaches
anybody the file is looked for elsewhere, and if one with the digest that the log knows is put in
its place the call is made again. Where none has it, what it held is made again out of the log, or
computed, as at an opening that does not find it. What cannot be had so stops only if all replicas
have answered: one that is away may have the file.

IMPORTANT: replicas are asked by who holds no lock of the session, in a thread that may hang, and
for so long as something comes; another thread commits meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from nosync_nb.errors import CorruptLogError, NosyncError, StageError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.state.subscriptions import Subscriptions
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.replication.address import ReplicaAddress
from nosync_nb.store.replication.config import ReplicaConfig
from nosync_nb.store.replication.endpoints import connect_site
from nosync_nb.store.replication.remote_call import Beat, call_remote
from nosync_nb.store.replication.restore import repair
from nosync_nb.store.replication.restore.repair import RepairedFile
from nosync_nb.store.store import Store
from nosync_nb.store.verification.inventory import ImmutableFile, immutable_files
from nosync_nb.store.verification.survey import survey_log
from nosync_nb.store.verification.verify import completed_report

Result = TypeVar("Result")

_FILES_MAX = 256


class RepairService:
    """Has files of a log again that a session misses.

    Owns, under `_lock`, the right to mend: two threads that miss a file have it fetched once.

    Args:
        regain: has again what lay in a file that nobody has; whether nothing needs that now. Its
            second argument says whether stages stop of which it cannot be had.
    """

    def __init__(
        self,
        store: Store,
        replication: ReplicationService,
        listeners: Subscriptions,
        regain: Callable[[str, bool], bool],
    ) -> None:
        self._store = store
        self._replication = replication
        self._say = listeners.say
        self._regain = regain
        self._lock = threading.Lock()

    def repairing(self, call: Callable[[], Result]) -> Result:
        """Makes a call that changes nothing if it fails; again, if what it met is repaired."""
        try:
            return call()
        except CorruptLogError as error:
            return self.again(error, call)

    def again(self, error: CorruptLogError, call: Callable[[], Result]) -> Result:
        """Repairs what a call has met and makes it again; else raises its error.

        Cost: the log's frames are read, to know which file it was.
        """
        tried: set[str] = set()
        while error.file is not None and error.file not in tried and len(tried) < _FILES_MAX:
            tried.add(error.file)
            if not (self._repaired(error.file) or self._regained(error.file)):
                break
            try:
                return call()
            except CorruptLogError as another:
                error = another
        raise error

    def _regained(self, name: str) -> bool:
        """Whether nothing needs a file any more that nobody has."""
        if self._store.log.mode == "r":
            return False
        try:
            done = self._regain(name, self._all_answer())
        except StageError:  # in the middle of an epoch, which is to fail with the error it met
            return False
        if done:
            self._say(f"'{name}' is damaged or missing: what it held was made again")
        return done

    def _all_answer(self) -> bool:
        """Whether every replica says now what it holds of the log."""
        files, log_id = self._store.files, self._store.log.id
        for address in self._replication.settings.replicas:
            try:
                if not call_remote(address.url, _Holds(files, address, log_id)):
                    return False
            except NosyncError:
                return False
        return True

    def _repaired(self, name: str) -> bool:
        """Whether a file is whole by now."""
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


class _Holds:
    """Whether a replica holds something of a log; an empty mount point does not."""

    def __init__(self, files: Files, address: ReplicaAddress, log_id: bytes) -> None:
        self._files, self._address, self._log_id = files, address, log_id

    def __call__(self, _beat: Beat) -> bool:
        replica = connect_site(self._address, self._files).replica(self._log_id)
        try:
            return bool(replica.held().files)
        finally:
            replica.close()


def repaired_files(
    store: Store, settings: ReplicaConfig, names: Iterable[str]
) -> dict[str, list[RepairedFile]]:
    """Has files of rows again; returns those that are whole by now, with what was done for each.

    Raises:
        DurabilityError: the log or its disk cannot be read, or written.
        FencedError: the log is somebody else's.
    """
    whole: dict[str, list[RepairedFile]] = {}
    left, before = [*names], -1
    while left and len(whole) > before:  # what is had may be a pack, which names others
        before = len(whole)
        known = _known(store)
        for name in left:
            if name in known:
                _mend(store, settings, known[name], whole)
        left = [name for name in left if name not in whole]
    return whole


def _mend(
    store: Store, settings: ReplicaConfig, item: ImmutableFile, whole: dict[str, list[RepairedFile]]
) -> None:
    """Has one file again, if it is not whole, and notes it."""
    why = repair.damage_reason(store.files, store.path, item, _uncounted)
    if not why:
        whole[item.name] = []
        return
    one = repair.repair_file(
        store.files,
        store.path,
        item,
        why,
        settings.replicas,
        store.log.id,
        check=store.log.check,
    )
    if one is not None:
        whole[item.name] = [one]


def _known(store: Store) -> dict[str, ImmutableFile]:
    """What the log says of its files, those that packs alone name included."""
    surveyed = survey_log(store.files, store.path, HostIdentity(), _uncounted)
    return immutable_files(completed_report(store.files, store.path, surveyed, _uncounted))


def _uncounted(_count: int) -> None:
    pass
