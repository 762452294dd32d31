"""Committing: from rows that wait to an epoch that is visible, or to nothing at all.

    compute a draft -> write its frame -> the log checks who owns it -> publish by one assignment

Until the frame is written, an error leaves no trace; from its first byte to the publication,
interrupts wait. What was written survives the death of this process.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nosync_nb import auditing, inspecting, interrupts, maintenance, rows
from nosync_nb.batch import Batch, Updates, concat_updates
from nosync_nb.dataflow import Draft
from nosync_nb.delta import Delta
from nosync_nb.errors import DurabilityError, StageError
from nosync_nb.graph import Stage
from nosync_nb.transaction import Change, InputChanges, Transaction

if TYPE_CHECKING:
    from nosync_nb.session import Session

MERGE_EVERY = 16

Result = TypeVar("Result")


def commit(session: Session, transaction: Transaction, wait: Any, label: str | None) -> int:
    """Runs a transaction as the next epoch; see `Session.commit`."""
    if wait is not None:
        check_level(wait)
    with session._lock:
        session._writable("commit")
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
            if label in session._labels:
                raise StageError(
                    f"label '{label}' names epoch {session._labels[label]} already",
                    hint="use another label",
                )
            meta["label"] = label
        if transaction.once:
            meta["once"] = list(transaction.once)
        draft = run(session, lambda: session._runner.epoch(version, inputs, version.epoch + 1))
        transaction.logged = True
        seq = publish(session, draft, meta)
        unused = transaction.files
        if unused:
            unused -= maintenance.named_files(session)
        transaction.forget()
    session._store.remove(unused)
    after(session, draft)
    if wait is not None:
        waited(session, wait, seq)
    return draft.epoch


def discard(session: Session, transaction: Transaction) -> int:
    """Drops what waits, and the files that were written for it; returns the updates dropped."""
    unused = set() if transaction.logged else transaction.files
    count = transaction.clear()
    session._store.remove(unused)
    return count


def run(session: Session, run: Callable[[], Result]) -> Result:
    """Runs stages; inside, the session refuses to be changed."""
    session._running = threading.get_ident()
    failed = True
    try:
        result = run()
        failed = False
    finally:
        session._running = None
        session._spark.bulk().cleanup(failed=failed)
    return result


def publish(session: Session, draft: Draft, meta: Mapping[str, Any]) -> int:
    """Writes an epoch and makes it visible; in between, signals wait."""
    utc = round(time.time(), 6)  # as a datetime has it, so that it can be looked up by one
    if session._times:
        utc = max(utc, session._times[-1])  # a clock that is set back does not mix up epochs
    with interrupts.deferred():
        position = session._position = session._store.write_epoch(draft, utc, meta)
        remember(session, draft)
        session._times.append(utc)
        session._unsynced.append((position.seq, draft.epoch))
        for key in meta.get("once", ()):
            session._once[key] = draft.epoch
        if "label" in meta:
            session._labels[meta["label"]] = draft.epoch
        session._snapshot = session._snapshot.advanced(draft.version())
    session.stats["epochs"] += 1
    session.stats["merged"] += draft.merged
    return position.seq


def remember(session: Session, draft: Draft) -> None:
    """Gives the changes of named collections to the history."""
    history = session._store.history
    for number, layout, held in draft.logged:
        if number in session._named_logs:
            batch = held.parts[0]
            if held.refs:
                history.append_files(number, draft.epoch, batch.layout, held.refs, held.parts)
            elif batch.layout == layout:
                history.append(number, draft.epoch, batch)
            else:
                history.append_encoded(number, draft.epoch, layout, batch, _updates)
    work = draft.work
    session._work.update(work)
    stats = session.stats
    for each in work.values():
        stats["touched"] += each.touched
        stats["executed"] += 1


def after(session: Session, draft: Draft) -> None:
    """Plans background work and tells who wants to hear; outside the lock."""
    session._local.telling = True
    try:
        if session._inspectors.named:
            inspecting.tell(session, draft)  # before an audit, which may replace nodes
        for callback in session._subscribers:
            try:
                callback(draft.epoch)
            except Exception as error:
                warnings.warn(f"a subscriber raised {error!r}", stacklevel=2)
    finally:
        session._local.telling = False
    session._spark.follow_new()
    if draft.epoch % MERGE_EVERY == 0:
        maintenance.plan_merges(session)
    if draft.epoch % auditing.AUDIT_EVERY == 0:
        auditing.audit(session)
    if session._store.log.checkpoint_due:
        maintenance.plan_checkpoint(session)


def waited(session: Session, level: str, seq: int | None) -> None:
    """Waits until a frame (None: the last) has reached a level."""
    check_level(level)
    session._store.log.sync(seq)


def check_level(level: str) -> None:
    """Raises if nothing can be waited for there."""
    if level == "replicas":
        raise DurabilityError("replicas are not part of this version", hint='wait="disk"')
    if level != "disk":
        raise DurabilityError(f"unknown level {level!r}", hint='use "disk"')


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
    columns, n = rows.to_columns(fetched, schema, f"input '{name}'")
    ones = np.empty(n, np.int64)
    ones.fill(1)
    return _added(session, stage, Change(kind, Updates(columns, ones)))


def add(session: Session, name: str, change: Change) -> int:
    """Adds a change of an input to the current transaction."""
    return _added(session, _input(session, name), change)


def _added(session: Session, stage: Stage, change: Change) -> int:
    name = stage.name
    with session._lock:  # a commit of the same transaction must not forget what comes meanwhile
        inputs = session._current.inputs
        changes = inputs.get(name)
        fresh = changes is None
        if changes is None:
            changes = inputs[name] = InputChanges(stage)
        try:
            return changes.add(change, session._snapshot.contents(name))
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


def _updates(batches: Sequence[Batch], types: Sequence[str]) -> Updates:
    return concat_updates([batch.updates for batch in batches], types)


def _input(session: Session, name: str) -> Stage:
    session._writable("insert")
    stage = session._catalog.get(name)
    if stage is None or not stage.is_input:
        raise StageError(f"there is no input '{name}' any more", hint="define it again")
    return stage
