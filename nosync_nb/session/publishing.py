"""Publishing: what has its frame in the log is what the session shows, whatever was raised.

An epoch or a definition goes the same way:

    prepare what will be assigned, in one record -> write the frame -> assign

An exception may come between any two steps of this: from a signal, from another thread, or because
memory is refused. Nothing is held back. Instead the record stands from before the frame until all
of it is assigned, and whoever enters next (the error's own way out, a commit, a merge, a closing)
finishes it: if the head of the log has the frame, everything is assigned, else nothing is.

IMPORTANT: each assignment may be made twice, as nobody knows which of them were made. So values are
computed before, and nothing is added to what is there but what is not there yet.

Failure: 1. The frame is written. 2. Ctrl-C; the epoch is not published, its rows still wait. 3. The
same call again writes the same number a second time. 4. At the next opening both count.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.runner import Draft, Runner, Work
from nosync_nb.dataflow.snapshot import Snapshot, named_logs
from nosync_nb.session.transactions import Transaction
from nosync_nb.store.ledger import Record
from nosync_nb.store.log import Position
from nosync_nb.trace.batch import Batch, Updates, concat_updates
from nosync_nb.trace.past.history import History

if TYPE_CHECKING:
    from nosync_nb.session.session import Session


class UnfinishedEpoch(NamedTuple):
    """An epoch between its record and its last assignment.

    Attributes:
        position: where its frame will be, and is if the log goes that far.
        retired: the files that are not needed any more after it.
        stats: the counters after it.
    """

    draft: Draft
    meta: Mapping[str, Any]
    utc: float
    transaction: Transaction
    position: Position
    retired: frozenset[str]
    stats: Mapping[str, int]

    def assign(self, session: Session) -> None:
        """Makes the epoch visible."""
        draft, epoch, log = self.draft, self.draft.epoch, session._store.log
        log.note(epoch)
        history, logs = session._store.history, session._named_logs
        new = {n for n, _, _ in draft.logged if n in logs and history.last(n) < epoch}
        remember(history, new, draft)
        session._position = self.position
        session._works.assign(self.stats, draft.work)
        session._upkeep.retired |= self.retired | draft.spare
        seq, label, once = self.position.seq, self.meta.get("label"), self.meta.get("once")
        session._ledger.record(Record(epoch, self.utc, seq, log.durable, label, once or {}))
        if session._snapshot.epoch < epoch:
            session._snapshot = session._snapshot.advanced(draft.version())
        self.transaction.forget()
        self.transaction.epoch = epoch


class Outcome:
    """Whether a definition stands: its frame is written, whatever was raised then."""

    stands = False


class UnfinishedDefinition(NamedTuple):
    """A definition between its record and its last assignment.

    Attributes:
        position: where its frame will be, and is if the log goes that far.
        snapshot: what readers see after it; its history is `seen(history)`.
        history: the past after it.
        catalog: as its frame has it, and the `signing.digest` of that.
        retired: the files that are not needed any more after it.
        work: what stages did last, after it.
        stats: the counters that it changes, after it.
        names: what descriptions are called after it, None: they have no name any more.
    """

    position: Position
    snapshot: Snapshot
    history: History
    runner: Runner
    catalog: Mapping[str, Any]
    digest: bytes
    retired: frozenset[str]
    work: Mapping[str, Work]
    stats: Mapping[str, int]
    names: Mapping[Definition, str | None]
    outcome: Outcome

    def assign(self, session: Session) -> None:
        """Makes the definition visible."""
        session._position = self.position
        upkeep = session._upkeep
        upkeep.catalog, upkeep.digest = self.catalog, self.digest
        session._runner = self.runner
        session._named_logs = named_logs(self.snapshot.graph)
        session._store.history.become(self.history)
        upkeep.retired |= self.retired
        session._snapshot = self.snapshot
        session._catalog_now = self.snapshot.catalog
        session._works.become(self.stats, self.work)
        for definition, name in self.names.items():
            call(session, definition, name)
        self.outcome.stands = True


def publish(
    session: Session, draft: Draft, meta: Mapping[str, Any], transaction: Transaction
) -> int:
    """Writes an epoch and makes it visible; with the lock. Returns the number of its frame."""
    # As a datetime has it, so that it can be looked up by one.
    utc = session._ledger.not_before(round(time.time(), 6))
    where = position(session)
    traces = session._version.traces
    emptied = (layer for number in draft.cleared for layer in traces[number].layers)
    retired = frozenset(ref.path for layer in emptied for ref in layer.files)
    stats = session._works.after(draft)
    session._unfinished = UnfinishedEpoch(draft, meta, utc, transaction, where, retired, stats)
    written = session._store.write_epoch(draft, utc, meta, session._graph)
    assert written == where
    finish(session)
    return where.seq


def position(session: Session) -> Position:
    """Where the next frame will be; with the lock."""
    head = session._store.log.head
    return Position(head.seq + 1, head.offset)


def install(session: Session, record: UnfinishedDefinition, payload: bytes) -> None:
    """Writes a definition and makes it visible; with the lock."""
    session._unfinished = record
    written = session._store.write_definition(payload)
    assert written == record.position
    finish(session)


def finish(session: Session) -> None:
    """Assigns what a written frame has left to assign; with the lock, before anything else."""
    record = session._unfinished
    if record is None:
        return
    log = session._store.log
    if log.head.seq >= record.position.seq:
        log.show()
        record.assign(session)
    session._unfinished = None


def settle(session: Session, error: BaseException, outcome: Outcome, what: str) -> None:
    """Finishes what an error has interrupted; says with it what stands all the same."""
    with session._lock:
        finish(session)
    if outcome.stands:
        error.add_note(what)


def call(session: Session, definition: Definition, name: str | None) -> None:
    """Notes what a description is called; with None, that it has no name any more."""
    if name is None:
        session._names.pop(definition, None)
    else:
        session._names[definition] = name
        session._listeners.named(definition, name)


def remember(history: History, logs: AbstractSet[int], draft: Draft) -> None:
    """Gives the changes in some logs to a history."""
    for number, layout, held in draft.logged:
        if number not in logs:
            continue
        batch = held.parts[0]
        if held.refs:
            history.append_files(number, draft.epoch, batch.layout, held.refs, held.parts)
        elif batch.layout == layout:
            history.append(number, draft.epoch, batch)
        else:
            history.append_encoded(number, draft.epoch, layout, batch, updates_of)


def updates_of(batches: Sequence[Batch], types: Sequence[str]) -> Updates:
    """The updates of batches that are not arranged as their log is."""
    return concat_updates([batch.updates for batch in batches], types)


Unfinished = UnfinishedEpoch | UnfinishedDefinition
