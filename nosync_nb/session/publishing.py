"""Publishing: an epoch whose frame is in the log is what the session shows, whatever was raised.

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
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_nb.dataflow.runner import Draft
from nosync_nb.session.transactions import Transaction
from nosync_nb.store.ledger import Record
from nosync_nb.store.log import Position
from nosync_nb.trace.batch import Batch, Updates, concat_updates

if TYPE_CHECKING:
    from nosync_nb.session.session import Session


class Unfinished(NamedTuple):
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


def publish(
    session: Session, draft: Draft, meta: Mapping[str, Any], transaction: Transaction
) -> int:
    """Writes an epoch and makes it visible; with the lock. Returns the number of its frame."""
    # As a datetime has it, so that it can be looked up by one.
    utc = session._ledger.not_before(round(time.time(), 6))
    head = session._store.log.head
    position = Position(head.seq + 1, head.offset)
    traces = session._version.traces
    emptied = (layer for number in draft.cleared for layer in traces[number].layers)
    retired = frozenset(ref.path for layer in emptied for ref in layer.files)
    stats = _counted(session.stats, draft)
    session._unfinished = Unfinished(draft, meta, utc, transaction, position, retired, stats)
    written = session._store.write_epoch(draft, utc, meta, session._graph)
    assert written == position
    finish(session)
    return position.seq


def finish(session: Session) -> None:
    """Assigns what a written epoch has left to assign; with the lock, before anything else."""
    record = session._unfinished
    if record is None:
        return
    log = session._store.log
    if log.head.seq >= record.position.seq:
        draft, epoch = record.draft, record.draft.epoch
        log.show()
        log.note(epoch)
        _remember(session, draft)
        session._position = record.position
        session._work.update(draft.work)
        session.stats.update(record.stats)
        session._upkeep.retired |= record.retired | draft.spare
        seq, label, once = record.position.seq, record.meta.get("label"), record.meta.get("once")
        session._ledger.record(Record(epoch, record.utc, seq, log.durable, label, once or {}))
        if session._snapshot.epoch < epoch:
            session._snapshot = session._snapshot.advanced(draft.version())
        record.transaction.forget()
        record.transaction.epoch = epoch
    session._unfinished = None


def _counted(stats: Mapping[str, int], draft: Draft) -> dict[str, int]:
    """The counters after an epoch."""
    work = draft.work.values()
    return {
        "epochs": stats["epochs"] + 1,
        "merged": stats["merged"] + draft.merged,
        "stalls": stats["stalls"] + draft.stalls,
        "touched": stats["touched"] + sum(each.touched for each in work),
        "executed": stats["executed"] + len(work),
    }


def _remember(session: Session, draft: Draft) -> None:
    """Gives those changes of named collections to the history that it has not got yet."""
    history = session._store.history
    for number, layout, held in draft.logged:
        if number not in session._named_logs or history.last(number) >= draft.epoch:
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
