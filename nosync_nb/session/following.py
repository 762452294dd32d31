"""Following: a branch takes what its parent's inputs got since, and runs it through its own stages.

Epoch by epoch, each as one epoch of the branch, with its label and the keys of its loads. With a
key of its own it records which epoch of the parent it was, so that it is taken once: who was
interrupted goes on where it ended, and who follows again takes what came since.

Inputs find each other by what they are (`Stage.uid`), whatever they are called. What an epoch added
to an input is inserted and what it took away removed; in one with a key the rows of the parent win.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import Stage
from nosync_nb.errors import SchemaError, StageError
from nosync_nb.rows import mask
from nosync_nb.session.commits import Commits
from nosync_nb.session.gate import Gate
from nosync_nb.session.inputs import Inputs
from nosync_nb.session.publisher import Publisher
from nosync_nb.session.transactions import Change, Transaction, Transactions
from nosync_nb.store.branches import fork_of
from nosync_nb.trace.batch import Updates, concat_updates
from nosync_nb.trace.epochs import Ranges, check_readable


class _Pair(NamedTuple):
    """An input of the branch, and the log of the same one of the parent."""

    own: Stage
    log: int


class Pursuit:
    """Follows the parent of one session, if that is a branch; owns nothing."""

    def __init__(
        self,
        gate: Gate,
        publisher: Publisher,
        transactions: Transactions,
        inputs: Inputs,
        commits: Commits,
    ) -> None:
        self._gate = gate
        self._publisher = publisher
        self._transactions = transactions
        self._inputs = inputs
        self._commits = commits

    def follow(self, parent: Publisher, upto: object = None) -> int:
        """Commits the epochs of the parent that were not taken yet; returns the last epoch here.

        Args:
            parent: of the session that this is a branch of.
            upto: an epoch of the parent, as in `rows(at=)`; None: its last one.

        Raises:
            SchemaError: it is no branch of that log, or an input has other columns there.
            StageError: rows wait here.
            TimeError: the parent has no such epoch, or one on the way cannot be told apart.

        Cost: that of the epochs.
        """
        self._gate.writable("follow")
        waiting = sum(each.rows for each in self._transactions.current.pending.values())
        if waiting:
            raise StageError(
                f"{waiting} rows wait, and would come before epochs of the parent",
                hint="session.commit() or session.discard() them first",
            )
        fork = fork_of(self._publisher.store.meta)
        if fork is None or fork.of != parent.store.log.id.hex():
            raise SchemaError(
                f"'{self._publisher.store.path}' is no branch of '{parent.store.path}'",
                hint="follow the session that it was branched from",
            )
        seen, ledger = parent.snapshot, parent.ledger
        last = seen.epoch if upto is None else ledger.resolve(upto, seen.epoch)
        mark = f"follow:{fork.of}:"
        known = self._publisher.ledger
        todo = [e for e in range(fork.at + 1, last + 1) if not known.loaded(f"{mark}{e}")]
        pairs = [*self._pairs(seen, todo)]
        recorded, _ = ledger.saved(last)
        labels = {epoch: label for label, epoch in recorded["labels"].items()}
        once: dict[int, dict[str, str]] = {}
        for key, epoch in recorded["once"].items():
            once.setdefault(epoch, {})[key] = recorded["loads"].get(key, "")
        for epoch in todo:
            keys = {**once.get(epoch, {}), f"{mark}{epoch}": ""}
            self._take(seen, pairs, epoch, labels.get(epoch), keys)
        return self._publisher.now

    def _pairs(self, seen: Snapshot, todo: list[int]) -> Iterator[_Pair]:
        """The inputs that are here and there; raises if one cannot be followed."""
        there = {stage.uid: stage for stage in seen.catalog.values() if stage.is_input}
        for own in self._publisher.snapshot.catalog.values():
            other = there.get(own.uid) if own.is_input else None
            if other is None:
                continue
            if (other.schema.types, other.key) != (own.schema.types, own.key):
                raise SchemaError(
                    f"input '{own.name}' is {own.schema}, and in the parent {other.schema}",
                    hint="follow up to an epoch before it was declared anew",
                )
            log = seen.graph.named[other.name].log
            assert log is not None
            ranges = seen.history.epochs(log, seen.epoch)
            readable = Ranges.of(*(r for r in ranges if r.step == 1), range(other.begin))
            for epoch in todo[:1] and (todo[0] - 1, *todo):
                check_readable(other.name, epoch, readable)
            yield _Pair(own, log)

    def _take(
        self,
        seen: Snapshot,
        pairs: list[_Pair],
        epoch: int,
        label: str | None,
        once: Mapping[str, str],
    ) -> None:
        """Commits one epoch of the parent, all of it or nothing."""
        transaction = Transaction(label, keyed=True)
        try:
            with self._transactions.block(transaction):
                for own, log in pairs:
                    batches = seen.history.changes(log, epoch - 1, epoch)
                    updates = [batch.updates for batch in batches if len(batch)]
                    for change in _changes(own, updates):
                        self._inputs.add(own.name, change)
                transaction.once.update(once)
                self._commits.commit(transaction, None, label)
        finally:
            self._commits.discard(transaction)


def _changes(own: Stage, batches: list[Updates]) -> Iterator[Change]:
    """What an epoch did to an input, as calls of a user."""
    if not batches:
        return
    updates = concat_updates(batches, own.schema.types)
    gone = _where(updates, updates.diff < 0)
    if len(gone.diff) and own.key is not None:
        yield Change("delete", Updates([gone.columns[i] for i in own.key], gone.diff))
    elif len(gone.diff):
        yield Change("remove", gone)
    came = _where(updates, updates.diff > 0)
    if len(came.diff):
        yield Change("insert" if own.key is None else "upsert", came)


def _where(updates: Updates, some: npt.NDArray[np.bool_]) -> Updates:
    """Some updates, counted from 1 on."""
    columns = [mask(c, some) for c in updates.columns]
    return Updates(columns, np.abs(updates.diff[some]))
