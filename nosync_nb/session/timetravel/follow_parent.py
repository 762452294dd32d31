"""Follows the parent of a branch: commits the parent's later input changes in the branch.

Each epoch of the parent becomes one epoch of the branch, with its label and the keys of its loads.
It is recorded under a key of its own, so each epoch is taken once. An interrupted call continues
where it ended, and a later call takes the later epochs. A load that the branch has already
committed under the same key is not taken twice.

Epochs with the same number are distinguished by their commit time. A rewind of the parent may have
undone epochs that the branch began with or has taken. Then the call fails, because it would mix
rows of two histories.

Inputs are matched by their identity (`Stage.uid`), not by their name. The rows that an epoch added
to an input are inserted, and those that it deleted are removed; in an input with a key the rows of
the parent win.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.rows import mask
from nosync_nb.session.state.publisher import Publisher
from nosync_nb.session.state.transactions import PendingCall, Transaction, Transactions
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.session.writes.commit import CommitService
from nosync_nb.session.writes.idempotency import BLOCK, load_text
from nosync_nb.session.writes.ingest import IngestService
from nosync_nb.store.catalog.epoch_index import EpochIndex
from nosync_nb.store.timetravel.branches import BranchOrigin, branch_origin
from nosync_nb.trace.batch import Updates, concat_updates
from nosync_nb.trace.epoch_ranges import EpochRanges, check_readable


class _InputPair(NamedTuple):
    """An input of the branch, and the log of the same input in the parent."""

    own: Stage
    log: int


class ParentFollower:
    """Follows the parent of one session, if that is a branch; has no state of its own."""

    def __init__(
        self,
        writer_lock: WriterLock,
        publisher: Publisher,
        transactions: Transactions,
        ingest: IngestService,
        commits: CommitService,
    ) -> None:
        self._writer_lock = writer_lock
        self._publisher = publisher
        self._transactions = transactions
        self._ingest = ingest
        self._commits = commits

    def follow(self, parent: Publisher, upto: object = None) -> int:
        """Commits the epochs of the parent that were not taken yet; returns the last epoch here.

        Args:
            parent: the publisher of the parent session.
            upto: an epoch of the parent, as in `rows(at=)`; `None` means its last one.

        Raises:
            SchemaError: this log is not a branch of the parent, or the inputs of both do not match.
            StageError: rows are pending in the branch.
            TimeError: the parent has no such epoch, or an epoch up to it is not retained
                separately.

        Cost: that of committing the epochs in the branch.
        """
        self._writer_lock.writable("follow")
        waiting = sum(each.rows for each in self._transactions.current.pending.values())
        if waiting:
            raise StageError(
                f"{waiting} rows are pending, and would be committed before epochs of the parent",
                hint="call session.commit() or session.discard() first",
            )
        fork = branch_origin(self._publisher.store.meta)
        if fork is None or fork.of != parent.store.log.id.hex():
            raise SchemaError(
                f"'{self._publisher.store.path}' is not a branch of '{parent.store.path}'",
                hint="follow the session that it was branched from",
            )
        snapshot, ledger = parent.snapshot, parent.ledger
        last = snapshot.epoch if upto is None else ledger.resolve(upto, snapshot.epoch)
        recorded, _ = ledger.saved(last)
        common = self._common_epoch(fork, parent)
        todo = [e for e in range(common + 1, last + 1) if not self._is_taken(fork, e)]
        pairs = [*self._input_pairs(snapshot, common, todo)]
        labels = {epoch: label for label, epoch in recorded["labels"].items()}
        once: dict[int, dict[str, str]] = {}
        for key, epoch in recorded["once"].items():
            once.setdefault(epoch, {})[key] = recorded["loads"].get(key, "")
        activities = self._publisher.metrics.activities
        with activities.record(f"following epochs {common + 1} to {last}", len(todo)) as taking:
            for epoch in todo:
                at = _commit_time(ledger, epoch)
                self._take_epoch(
                    snapshot, pairs, epoch, labels.get(epoch), once.get(epoch, {}), (fork, at)
                )
                taking.step()
        return self._publisher.last_epoch

    def _is_taken(self, fork: BranchOrigin, epoch: int) -> bool:
        """Returns True if an epoch of the parent was taken."""
        return self._publisher.ledger.loaded(_parent_key(fork, epoch))

    def _common_epoch(self, fork: BranchOrigin, parent: Publisher) -> int:
        """Returns the last epoch that branch and parent have in common, and neither has undone.

        Raises:
            StageError: the parent has undone an epoch that the branch has; the hint undoes it in
                the branch as well.
        """
        branch_index, parent_index = self._publisher.ledger, parent.ledger
        recorded, _ = branch_index.saved()
        common: int = min([fork.at, *(epoch for _, epoch in recorded["rewinds"])])
        ours, theirs = (each.saved(common)[1] for each in (branch_index, parent_index))
        if ours != theirs:
            same = (
                branch_index.committed(e) == parent_index.committed(e) for e in range(1, common + 1)
            )
            epoch = 1 + len([*takewhile(bool, same)])
            raise _undone_error(parent, epoch, epoch - 1)
        prefix = _parent_key(fork, "")
        marks = {int(m[len(prefix) :]): m for m in recorded["once"] if m.startswith(prefix)}
        for epoch in sorted(marks):
            if recorded["loads"].get(marks[epoch]) != _commit_time(parent_index, epoch):
                raise _undone_error(parent, epoch, recorded["once"][marks[epoch]] - 1)
        return common

    def _input_pairs(
        self, snapshot: Snapshot, common: int, todo: list[int]
    ) -> Iterator[_InputPair]:
        """Yields the inputs that both logs have; raises if one cannot be followed.

        An input that existed at the fork has the same log number in both logs; a later input of
        that name has another number. An input that was dropped in the branch is left out.

        Args:
            common: the last epoch that both have.
            todo: the epochs to take.
        """
        parent_inputs = {stage.uid: stage for stage in snapshot.catalog.values() if stage.is_input}
        own_graph, catalog = self._publisher.snapshot.graph, self._publisher.snapshot.catalog
        for local in catalog.values() if todo else ():
            if not local.is_input:
                continue
            peer, log = parent_inputs.get(local.uid), own_graph.named[local.name].log
            if peer is None and local.begin >= common:
                continue  # only this branch has the input
            if peer is not None and (peer.schema.types, peer.key) != (
                local.schema.types,
                local.key,
            ):
                raise SchemaError(
                    f"input '{local.name}' has {local.schema}, but {peer.schema} in the parent",
                    hint="follow only up to an epoch before the parent declared it again",
                )
            different = peer is None or log != snapshot.graph.named[peer.name].log
            if peer is None or (different and min(local.begin, peer.begin) < common):
                raise SchemaError(
                    f"the parent has dropped the input '{local.name}' that this branch began with",
                    hint="do not follow, or drop it in the branch as well and declare it again",
                )
            yield self._input_pair(snapshot, local, peer, todo)
        branch_uids = {stage.uid for stage in catalog.values() if stage.is_input}
        for new in (stage for uid, stage in parent_inputs.items() if uid not in branch_uids):
            if todo and common <= new.begin < todo[-1]:
                raise SchemaError(
                    f"the parent has a new input '{new.name}', which the branch does not have",
                    hint=f"declare it in the branch: session.input('{new.name}',"
                    f" '{new.schema.ddl}'); or follow only to the epoch before:"
                    f" upto={new.begin}",
                )

    def _input_pair(
        self, snapshot: Snapshot, local: Stage, peer: Stage, todo: list[int]
    ) -> _InputPair:
        """Pairs an input with the parent's, if each epoch is retained separately there."""
        log = snapshot.graph.named[peer.name].log
        assert log is not None
        ranges = snapshot.history.epochs(log, snapshot.epoch)
        readable = EpochRanges.from_ranges(*(r for r in ranges if r.step == 1), range(peer.begin))
        for epoch in (todo[0] - 1, *todo):
            check_readable(peer.name, epoch, readable)
        return _InputPair(local, log)

    def _take_epoch(
        self,
        snapshot: Snapshot,
        pairs: list[_InputPair],
        epoch: int,
        label: str | None,
        once: Mapping[str, str],
        mark: tuple[BranchOrigin, str],
    ) -> None:
        """Commits one epoch of the parent, completely or not at all."""
        ledger = self._publisher.ledger
        loaded = {key for key in once if ledger.loaded(key)}
        if any(key.startswith(BLOCK) for key in loaded):
            return  # the whole epoch is one load
        if label is not None and ledger.labelled(label) is not None:
            label = None  # another epoch here has this label
        transaction = Transaction(label, keyed=True)
        try:
            with self._transactions.block(transaction):
                for local, log in pairs:
                    batches = snapshot.history.changes(log, epoch - 1, epoch)
                    updates = [batch.updates for batch in batches if len(batch)]
                    changes = [*_calls(local, updates)]
                    if not _is_loaded(local, changes, {k: once[k] for k in loaded}, epoch):
                        for change in changes:
                            self._ingest.add(local.name, change)
                fork, at = mark
                fresh = {key: load for key, load in once.items() if key not in loaded}
                transaction.record({**fresh, _parent_key(fork, epoch): at})
                self._commits.commit(transaction, None, label)
        finally:
            self._commits.discard(transaction)


def _parent_key(fork: BranchOrigin, epoch: int | str) -> str:
    """Returns the key under which an epoch of the parent is recorded."""
    return f"follow:{fork.of}:{epoch}"


def _commit_time(ledger: EpochIndex, epoch: int) -> str:
    """Returns the commit time of an epoch, which distinguishes epochs with the same number."""
    return repr(ledger.committed(epoch))


def _undone_error(parent: Publisher, epoch: int, last_common: int) -> StageError:
    """Returns the error for a parent that has undone an epoch of the branch."""
    return StageError(
        f"'{parent.store.path}' was rewound to before epoch {epoch}, which this branch has"
        " already taken from it",
        hint=f"rewind as well with session.rewind(to={last_common}), then follow; or create a new"
        " branch",
    )


def _is_loaded(
    input_stage: Stage, changes: list[PendingCall], loads: Mapping[str, str], epoch: int
) -> bool:
    """Returns True if an epoch's changes to an input were loaded here already, under its key.

    Raises:
        StageError: only some of the rows were loaded, and it is unknown which.
    """
    prefix = json.dumps([input_stage.uid])[:-1] + ","
    keys = [key for key in loads if key.startswith(prefix)]
    if not keys or not changes:
        return False
    if any(loads[key] == load_text(input_stage, changes) for key in keys):
        return True
    raise StageError(
        f"epoch {epoch} of the parent has rows for input '{input_stage.name}' beside a load"
        f" that this branch has already: {', '.join(keys)}",
        hint="rewind to before that load with session.rewind(to=E) and follow again, or follow only"
        f" to the epoch before: upto={epoch - 1}",
    )


def _calls(input_stage: Stage, batches: list[Updates]) -> Iterator[PendingCall]:
    """Yields the changes of an epoch to an input, as calls of a user."""
    if not batches:
        return
    updates = concat_updates(batches, input_stage.schema.types)
    deleted = _select(updates, updates.diff < 0)
    if len(deleted.diff) and input_stage.key is not None:
        yield PendingCall(
            "delete", Updates([deleted.columns[i] for i in input_stage.key], deleted.diff)
        )
    elif len(deleted.diff):
        yield PendingCall("remove", deleted)
    inserted = _select(updates, updates.diff > 0)
    if len(inserted.diff):
        yield PendingCall("insert" if input_stage.key is None else "upsert", inserted)


def _select(updates: Updates, selected: npt.NDArray[np.bool_]) -> Updates:
    """Returns the selected updates with their absolute counts."""
    columns = [mask(c, selected) for c in updates.columns]
    return Updates(columns, np.abs(updates.diff[selected]))
