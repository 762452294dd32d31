"""Committing: from rows that wait to an epoch that is visible, or to nothing at all.

    compute a draft -> write its frame -> the log checks who owns it -> publish by one assignment

Until the frame is written, an error leaves no trace; from then on the epoch stands, whatever is
raised, and the error says so. What was written survives the death of this process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nosync_nb import rows
from nosync_nb.dataflow.delta import Delta
from nosync_nb.dataflow.graph import Stage
from nosync_nb.dataflow.runner import Draft
from nosync_nb.errors import (
    DurabilityError,
    FencedError,
    OutcomeUnknownError,
    StageError,
    enough_memory,
    warn,
)
from nosync_nb.session import audits, publishing, upkeep
from nosync_nb.session.transactions import Change, InputChanges, Transaction, taken
from nosync_nb.spark.costs import FEW_ROWS
from nosync_nb.trace import glance
from nosync_nb.trace.batch import Updates, row_of

if TYPE_CHECKING:
    from nosync_nb.session.session import Session

Result = TypeVar("Result")


def _state(session: Session, transaction: Transaction, *_: Any) -> str:
    """What a commit has done that had not enough memory."""
    if not transaction:
        return f"epoch {session.now} is the last that is committed, and nothing waits"
    rows_count = sum(changes.rows for changes in transaction.pending.values())
    return (
        f"epoch {session.now + 1} was not committed, its {rows_count} rows still wait and"
        f" epoch {session.now} is as it was"
    )


@enough_memory(
    _state, "commit fewer rows at a time, or session.discard() what waits and free some memory"
)
def commit(session: Session, transaction: Transaction, wait: Any, label: str | None) -> int:
    """Runs a transaction as the next epoch; see `Session.commit`."""
    if wait is not None:
        check_level(wait)
    draft, seq, unused, looked = _committed(session, transaction, label)
    try:
        session._store.remove(unused)
        after(session, draft)
    except BaseException as error:
        _stands(error, draft.epoch)
        raise
    if wait is not None:
        _waited(session, wait, seq, draft.epoch)
    if looked:
        _tell_absent(session, looked)
    return draft.epoch


def _committed(
    session: Session, transaction: Transaction, label: str | None
) -> tuple[Draft, int, set[str], list[tuple[Stage, list[Updates]]]]:
    """What a transaction has become: the epoch, its frame, files of no use, removals to look at."""
    with session._lock:
        publishing.finish(session)
        before = session.now
        try:
            session._writable("commit")
            draft, meta = _computed(session, transaction, label)
            transaction.logged = True
            removing = [each for each in transaction.inputs.values() if each.takes_away]
            unused = transaction.files
            seq = publishing.publish(session, draft, meta, transaction)
            if unused:
                unused -= upkeep.named_files(session)
            looked = session._upkeep.removals.due(removing) if removing else []
            return draft, seq, unused, looked
        except BaseException as error:
            publishing.finish(session)
            if session.now > before:
                _stands(error, session.now)
            raise


def _computed(
    session: Session, transaction: Transaction, label: str | None
) -> tuple[Draft, dict[str, Any]]:
    """The next epoch, and what its frame says besides."""
    snapshot = session._snapshot
    version = snapshot.version
    inputs: dict[int, Delta] = {}
    for name, changes in transaction.inputs.items():
        node = snapshot.graph.named[_still(session, changes).name]
        delta = changes.delta(snapshot.contents(name))
        if delta is not None:
            inputs[node.id] = delta
    meta: dict[str, Any] = {}
    if label is not None:
        named = session._ledger.labelled(label)
        if named is not None:
            raise StageError(
                f"label '{label}' names epoch {named} already",
                hint="use another label",
            )
        meta["label"] = label
    if transaction.once:
        meta["once"] = dict(transaction.once)
    draft = run(session, lambda: session._runner.epoch(version, inputs, version.epoch + 1))
    return draft, meta


def _stands(error: BaseException, epoch: int) -> None:
    """Says so with an error that came when an epoch was committed."""
    error.add_note(f"epoch {epoch} is committed and stands: do not insert its rows again")


def tell_absent(session: Session) -> None:
    """Warns of all rows that were taken away, were not there, and were not looked for yet."""
    with session._lock:
        publishing.finish(session)
        waiting = session._upkeep.removals.waiting()
    if waiting:
        _tell_absent(session, waiting)


def _tell_absent(session: Session, removals: list[tuple[Stage, list[Updates]]]) -> None:
    due: dict[str, tuple[Stage, list[Updates]]] = {}
    for stage, parts in removals:
        due.setdefault(stage.name, (stage, []))[1].extend(parts)
    for stage, parts in due.values():
        _tell_absent_of(session, stage, parts)


def _tell_absent_of(session: Session, stage: Stage, parts: list[Updates]) -> None:
    """Warns of rows that were taken away and were not there: reading the input will raise."""
    snapshot = session._snapshot
    name, types = stage.name, stage.schema.types
    if name not in snapshot.catalog or snapshot.stage(name).schema.types != types:
        return  # dropped meanwhile, or it has other columns
    lacking = glance.lacking(snapshot.contents(name), taken(parts, types))
    if lacking is None:
        return
    row = row_of(lacking.columns, types)
    more = len(lacking.diff) - 1
    others = f", and {more} more row{'' if more == 1 else 's'} below 0" if more else ""
    warn(
        f"input '{name}': row {row!r} was removed and was not there: it is there now"
        f" {int(lacking.diff[0])} times{others}\n"
        f"Hint: reading '{name}' raises until {name}.insert([...]) brings it; its stages go on",
        stacklevel=6,
    )


def discard(session: Session, transaction: Transaction) -> int:
    """Drops what waits, and the files that were written for it; returns the updates dropped."""
    unused = set() if transaction.logged else transaction.files
    count = transaction.clear()
    session._store.remove(unused)
    return count


def run(session: Session, run: Callable[[], Result]) -> Result:
    """Runs stages; inside, the session refuses to be changed."""
    failed = True
    try:
        try:
            session._running = threading.get_ident()
            result = run()
            failed = False
        finally:
            session._running = None
            session._spark.bulk().cleanup(failed=failed)
    except BaseException:  # also one that came on the way out
        session._running = None
        raise
    return result


def after(session: Session, draft: Draft) -> None:
    """Plans background work and tells who wants to hear; outside the lock."""
    try:
        try:
            session._local.telling = True
            session._listeners.tell(draft, session._snapshot)  # before an audit replaces nodes
        finally:
            session._local.telling = False
    except BaseException:  # also one that came on the way out
        session._local.telling = False
        raise
    session._spark.follow_new()
    if draft.due:
        upkeep.plan_merges(session, draft.due)
    if draft.epoch % audits.AUDIT_EVERY == 0:
        audits.audit(session)
    if session._store.log.checkpoint_due:
        upkeep.plan_checkpoint(session)


def waited(session: Session, level: str, seq: int | None) -> None:
    """Waits until a frame (None: the last) has reached a level."""
    check_level(level)
    session._store.log.sync(seq)


def _waited(session: Session, level: str, seq: int, epoch: int) -> None:
    """Waits for an epoch that is committed: what fails now does not undo it."""
    try:
        waited(session, level, seq)
    except FencedError as error:
        error.add_note(f"epoch {epoch} stands in memory here; the log of the new owner may lack it")
        raise
    except DurabilityError as error:
        unknown = OutcomeUnknownError(
            f"epoch {epoch} is committed and stands in memory, but may not be on disk: {error}",
            hint="do not insert its rows again; session.sync() waits for the disk once more",
        )
        unknown.epoch, unknown.errno = epoch, error.errno
        raise unknown from error


def check_level(level: str) -> None:
    """Raises if nothing can be waited for there."""
    if level == "replicas":
        raise DurabilityError("replicas are not part of this version", hint='wait="disk"')
    if level != "disk":
        raise DurabilityError(f"unknown level {level!r}", hint='use "disk"')


@enough_memory(
    lambda session, name, *_: f"the rows for input '{name}' were not taken, and none of them waits",
    "insert them in several pieces, or as a Spark DataFrame",
)
def take(session: Session, name: str, kind: str, data: Any) -> int:
    """Takes rows for an input at the call."""
    stage = _input(session, name)
    schema = stage.schema
    frame = session._spark.is_frame(data)
    fetched = session._spark.fetch(data, stage) if frame else data
    if frame and fetched is None:
        layouts = tuple(session._graph.named[name].traces)
        change = Change(kind, None, session._spark.ingest(data, stage, layouts))
        try:
            return _added(session, stage, change)
        except BaseException:
            session._store.remove(change.files)
            raise
    session._spark.bulk().admit(name, *_size_of(fetched))
    columns, n = rows.to_columns(fetched, schema, f"input '{name}'")
    ones = np.empty(n, np.int64)
    ones.fill(1)
    return _added(session, stage, Change(kind, Updates(columns, ones)))


def _size_of(data: Any) -> tuple[int, int]:
    """Rows and bytes of a table; 0 for few rows, and what is not told at once, such as a list."""
    if type(data) in (list, tuple) or not hasattr(data, "__len__") or len(data) <= FEW_ROWS:
        return 0, 0
    size = getattr(data, "nbytes", None)
    if size is not None:  # of Arrow
        return getattr(data, "num_rows", 0), size
    usage = getattr(data, "memory_usage", None)
    return (0, 0) if usage is None else (len(data), int(usage(index=False).sum()))


def add(session: Session, name: str, change: Change) -> int:
    """Adds a change of an input to the current transaction."""
    return _added(session, _input(session, name), change)


def _added(session: Session, stage: Stage, change: Change) -> int:
    name = stage.name
    with session._lock:  # a commit of the same transaction must not forget what comes meanwhile
        publishing.finish(session)
        inputs = session._current.inputs
        changes = inputs.get(name)
        fresh = changes is None
        if changes is None:
            changes = inputs[name] = InputChanges(stage)
        try:
            count = changes.add(change, session._snapshot.contents(name))
            changes.threads.add(threading.get_ident())
            return count
        except BaseException:
            if fresh:
                del inputs[name]
            raise


def _still(session: Session, changes: InputChanges) -> Stage:
    """The input that changes wait for, if it is still the one they were made for."""
    stage = changes.stage
    now = session._catalog.get(stage.name)
    if now is stage:
        return stage
    if now is None or not now.is_input or (now.uid, now.schema) != (stage.uid, stage.schema):
        raise StageError(
            f"input '{stage.name}' was dropped or renamed while {changes.rows} changes waited",
            hint="session.discard(), and insert into the input that is there now",
            stage=stage.name,
        )
    return now


def _input(session: Session, name: str) -> Stage:
    session._writable("insert")
    stage = session._catalog.get(name)
    if stage is None or not stage.is_input:
        raise StageError(f"there is no input '{name}' any more", hint="define it again")
    return stage
