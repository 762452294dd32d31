"""Creates branches: sessions that continue from an epoch of this one, independently of it.

The initial state of a branch is read with the writer's lock, so that it is consistent. It consists
of the traces at the epoch (`store/timetravel/trace_plan.py`), the stages as a log of that epoch has
them (`store/timetravel/catalog_at.py`), signed again for the id of the new log, and the history up
to the epoch. The parent is not changed, and no row is copied. Afterwards the branch is a log like
any other (`store/timetravel/branches.py`), and is opened like any other.

The list of branches that are only at replicas comes from the file beside the user's key
(`store/replication/config.py`), so no replica is contacted. That file may be lost with the log's
own disk. Hence restoring a log lists the branches at its replicas, and records them in the file
again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from nosync_nb.collections.definition import check_name
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.snapshot import named_logs
from nosync_nb.errors import (
    CorruptLogError,
    DurabilityError,
    NosyncError,
    SchemaError,
    TrustError,
    warn,
)
from nosync_nb.files.filesystem import Files
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.signer import CatalogSigner
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.store import point_in_time
from nosync_nb.store.replication import config
from nosync_nb.store.replication.address import ReplicaAddress, parse_address
from nosync_nb.store.replication.config import ReplicaConfig, checked_config
from nosync_nb.store.replication.remote_branches import RemoteBranch, drop_copies, remote_branches
from nosync_nb.store.store import Store
from nosync_nb.store.timetravel import branches
from nosync_nb.store.timetravel.branches import BranchInfo, BranchStart
from nosync_nb.store.timetravel.catalog_at import (
    catalog_of_branch,
    historical_catalog,
    with_historical_catalog,
)
from nosync_nb.store.timetravel.trace_plan import plan_as_of

NOW, THEN = "now", "then"
"""The stages of a branch: the current ones, or those at the epoch."""


class BranchService:
    """Creates, lists and drops the branches of one session; has no state of its own."""

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        signer: CatalogSigner,
        replication: ReplicationService,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._signer = signer
        self._replication = replication

    def make(self, name: str, at: Any = None, *, definitions: str = NOW) -> str:
        """Creates a branch and leaves it closed; see `Session.fork`. Returns its folder."""
        name = check_name(name, "branch")
        if definitions not in (NOW, THEN):
            raise SchemaError(
                f"definitions={definitions!r:.60} is unknown",
                hint="use 'now' for the current definitions, or 'then' for those at that epoch",
            )
        with self._writer_lock.lock:
            self._writer_lock.begin_change("branch", rebuilt=False)
            replicas = self._replicas(name)
            beginning = self.beginning(at, then=definitions == THEN)._replace(replicas=replicas)
            return branches.create_branch(self._publisher.store, name, beginning)

    def leave(self, incarnation: int) -> str:
        """Prepares the backup branch of a rewind, from the current epoch; returns its name.

        The caller holds the lock.

        Args:
            incarnation: the incarnation of the epochs after the rewind.
        """
        store, number = self._publisher.store, incarnation
        names = branches.branch_names(store.files, store.path)
        while f"{branches.BACKUP_PREFIX}{number}" in names:
            number += 1
        name = f"{branches.BACKUP_PREFIX}{number}"
        replicas = ReplicaConfig()
        with suppress(SchemaError):  # its name is too long for a bucket, so it stays local
            replicas = self._replicas(name)
        beginning = self.beginning(None)._replace(replicas=replicas)
        branches.prepare_backup_branch(store, name, incarnation, beginning)
        return name

    def _replicas(self, name: str) -> ReplicaConfig:
        """Returns the replicas of a branch: its parent's, below `branches/NAME`.

        A server stores logs by their ids, so its URL stays the same.
        """
        settings, store = self._replication.settings, self._publisher.store
        urls = [
            each.url
            if each.kind.startswith("grpc")
            else f"{each.url.rstrip('/')}/{branches.FOLDER}/{name}"
            for each in settings.replicas
        ]
        checked = checked_config(
            urls, settings.quorum, log=branches.branch_folder(store.path, name), look=False
        )
        return checked._replace(unprepared=bool(urls))

    def finish_backups(self) -> None:
        """Publishes the backup branches of finished rewinds, and deletes those of failed ones."""
        branches.finish_backup_branches(self._publisher.store, self._publisher.ledger.incarnation)

    def beginning(self, at: Any, *, then: bool = False) -> BranchStart:
        """Returns the initial state of a log that continues from an epoch.

        The caller holds the writer's lock, or has opened the log for reading.

        Args:
            then: True for the definitions at the epoch, False for the current ones.

        Raises:
            TimeError: there is no such epoch, or it is no longer retained separately.
            TrustError: the catalog of this log is unsigned, or signed with another key.
        """
        publisher = self._publisher
        store, snapshot = publisher.store, publisher.snapshot
        if store.foreign or not self._signer.origin.is_by_this_user:
            raise TrustError(
                f"'{store.path}' is unsigned or signed with another key, so it cannot be branched",
                hint="run the cells that define its stages, or import the key with `python -m"
                " nosync key import`",
            )
        epoch = snapshot.epoch if at is None else publisher.ledger.resolve(at, snapshot.epoch)
        reads = store.log.mode == "r" or epoch == snapshot.epoch
        logs = named_logs(snapshot.graph)
        if then:
            snapshot = with_historical_catalog(
                snapshot, historical_catalog(store, epoch, snapshot.epoch), store.log.id
            )
        rewinds = publisher.ledger.rewinds
        frames = (
            []
            if reads
            else point_in_time.recent_frames(store.files, store.log, epoch, snapshot.epoch, rewinds)
        )
        plan = plan_as_of(snapshot, epoch, frames=frames, moved=then)
        catalog, graph = catalog_of_branch(snapshot, plan)
        past = store.history.copied(())
        past.truncate(epoch)
        for number in logs.keys() - named_logs(graph) if then else ():
            past.drop(number)
        recorded, times = publisher.ledger.saved(epoch)

        def record(log_id: bytes) -> Mapping[str, Any]:
            sealed = CatalogSigner(log_id).sealed(catalog, graph, epoch, publisher.retention)
            return {**sealed.meta, **recorded}

        version = VersionState(epoch, plan.traces)
        return BranchStart(version, graph, past, snapshot.graph.unwritten, record, times)

    @property
    def by_name(self) -> Mapping[str, BranchInfo]:
        """The branches, by name, including those that are only at replicas."""
        store = self._publisher.store
        local = branches.list_branches(store.files, store.path)
        return {**remote_branch_list(store.files, store.path), **local}

    def drop(self, name: str) -> None:
        """Deletes a branch that no session has open, and its copies at replicas.

        If a replica cannot be reached, a warning names it. The branch is then listed as a branch at
        replicas, and can be dropped again.

        Raises:
            SchemaError: there is no such branch, or it has branches itself.
            FencedError: a session has it open.
        """
        if not isinstance(name, str):
            raise SchemaError(
                f"{name!r:.60} is not the name of a branch", hint="name one of .branches"
            )
        store = self._publisher.store
        copies, generation = branch_copies(store.files, store.path, name), None
        with self._writer_lock.lock:
            self._writer_lock.begin_change("dropping a branch", rebuilt=False)
            if copies.here or not copies.replicas:
                generation = branches.drop_branch(store, name)
        drop_remote_copies(store.files, copies, generation)


# -- copies at replicas ------------------------------------------------------------------------


class BranchCopies(NamedTuple):
    """The copies of a branch; `here` is True if its log is on this disk."""

    path: str
    log_id: bytes | None
    replicas: Sequence[ReplicaAddress]
    here: bool


def remote_branch_list(files: Files, log: str) -> dict[str, BranchInfo]:
    """Returns the branches of a log that are only at replicas, by name."""
    registered = config.logs_below(files, log)
    return {
        name: BranchInfo(name, branches.branch_folder(log, name), 0, 0, None, replicas=tuple(urls))
        for name, (urls, _) in registered.items()
    }


def branch_copies(files: Files, log: str, name: str) -> BranchCopies:
    """Returns the known copies of a branch, from its log or from the registry."""
    path = branches.branch_folder(log, name)
    is_local = name in branches.branch_names(files, log)
    if is_local:
        with suppress(CorruptLogError, DurabilityError, TrustError):  # then the registry is used
            return _copies_in_log(files, path)
    registered = config.registered_replicas(files, path)
    addresses = [parse_address(url) for url in registered[0]] if registered is not None else []
    return BranchCopies(path, addresses[0].log_id if addresses else None, addresses, is_local)


def _copies_in_log(files: Files, path: str) -> BranchCopies:
    """Returns the copies that the branch's own log names."""
    store = Store.open(path, mode="r")
    try:
        log_id = store.log.id
        own = config.read_config(files, path, log_id)
        return BranchCopies(path, log_id, () if own.unprepared else own.replicas, True)
    finally:
        store.close()


def drop_remote_copies(files: Files, copies: BranchCopies, generation: int | None) -> None:
    """Deletes the copies of a dropped branch; warns of those that could not be deleted.

    These stay registered, so that the branch is listed as a branch at replicas, and can be dropped
    again.

    Args:
        generation: the generation of the owner that dropped the local log; None if there was no
            local log.
    """
    left: Mapping[str, str] = {}
    if copies.log_id is not None and copies.replicas:
        left = drop_copies(
            files, copies.path, copies.log_id, copies.replicas, generation=generation
        )
        remaining = tuple(each for each in copies.replicas if each.url in left)
        with suppress(NosyncError):
            config.register_replicas(
                files, copies.path, copies.log_id, ReplicaConfig(remaining, len(remaining))
            )
    else:
        with suppress(NosyncError):
            config.unregister_replicas(files, copies.path)
    if left:
        name = os.path.basename(copies.path)
        reasons = "; ".join(f"{url}: {why}" for url, why in left.items())
        warn(
            f"branch '{name}' is dropped locally, but a copy remains at {reasons}; drop it"
            " again when that replica is reachable",
            stacklevel=4,
        )


def record_restored_branches(files: Files, log: str, replicas: ReplicaConfig) -> list[str]:
    """Registers the branches that replicas have of a restored log; returns messages about them.

    Cost: one request for each branch at each replica.
    """
    messages = []
    for branch in remote_branches(files, log, replicas.replicas):
        path = branches.branch_folder(log, branch.name)
        if not files.exists(path):
            _register(files, path, branch)
            messages.append(
                f"branch '{branch.name}' is at its replicas: nosync.open({path!r},"
                f" replicas={list(branch.urls)!r}) restores it"
            )
    return messages


def _register(files: Files, path: str, branch: RemoteBranch) -> None:
    checked = config.checked_config(branch.urls, branch.quorum, log=path, look=False)
    (log_id,) = {address.log_id for address in checked.replicas}
    assert log_id is not None
    with suppress(NosyncError):  # the home folder is read-only: the message is enough
        config.register_replicas(files, path, log_id, checked)
