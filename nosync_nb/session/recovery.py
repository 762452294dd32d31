"""Recovering: a session after the last frame of its log, and a reader behind its owner.

What was there is read, never computed again. It comes back in two steps. The first is all that a
reader needs: the catalog, where the traces lie, the history; it costs the same whatever they hold.
The second compiles the stages, and is done when the session is written for the first time.

A catalog is believed if this user signed it, here and at its epoch, and its functions come back if
their signatures hold. A stage that another key described, or with a function that does not come
back, is stale, readable at its last epoch, until its cell is run: nothing of it is compiled. A
reader runs nothing, and judges nobody.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nosync_nb.collections.functions import trust
from nosync_nb.dataflow.compiler import Compiler
from nosync_nb.dataflow.fitting import rebased
from nosync_nb.dataflow.graph import Graph, Stage
from nosync_nb.dataflow.runner import Runner, Version
from nosync_nb.dataflow.snapshot import Snapshot, hide, named_logs, seen
from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError
from nosync_nb.expressions import refusal
from nosync_nb.operators.specs import expressions_of
from nosync_nb.session import definitions, upkeep, versions
from nosync_nb.session.report import READ, STALE, RecoveryReport
from nosync_nb.store import journal, reading, signing
from nosync_nb.store.decoding import decoding
from nosync_nb.store.ledger import Ledger
from nosync_nb.store.reading import Said
from nosync_nb.store.store import Store, Told

if TYPE_CHECKING:
    from nosync_nb.session.session import Session

FOLLOW_MAX = 8192
"""Frames after which a reader begins again at the newest checkpoint."""


LOST_MAX = 1 << 16
"""Epochs that are told as lost at most, whatever number a former owner left."""


def recover(session: Session) -> None:
    """Brings a new session to the state after the last frame of its log.

    Raises:
        CorruptLogError: if what it says makes no sense.
    """
    with decoding("the log"):
        _recover(session)


def _recover(session: Session) -> None:
    store = session._store
    log = store.log
    report = session.recovery = RecoveryReport(
        fresh=log.fresh, clean=log.clean, notes=list(log.notes)
    )
    session._ledger = Ledger.restored(store.epoch, store.times, store.meta)
    session._upkeep.expiring = set(store.retired)
    session._position = store.position
    epoch, said = _told(session, store.tail, store.epoch, store.meta)
    data = None if said is None else _believed(session, said)
    if store.foreign:  # by what somebody else wrote nothing is deleted
        session._upkeep.expiring.clear()
    if log.mode == "w":
        report.lost = list(range(epoch + 1, min(log.noted, epoch + LOST_MAX) + 1))
        missing = store.sweep()
        report.notes += [f"'{name}' is missing: what it holds cannot be read" for name in missing]
    session._snapshot = Snapshot(Version(epoch, {}), Graph(), {}, seen(store.history))
    if data is not None:
        _restore(session, data, epoch)
    if log.mode == "w" and epoch:
        session._repeats.begin(epoch)
    report.resumed_at = epoch


def _told(
    session: Session, tail: list[Told], epoch: int, meta: Mapping[str, Any]
) -> tuple[int, Said | None]:
    """Takes labels, times and loads from frames; returns the last epoch and the catalog."""
    return reading.told(session._ledger, tail, epoch, meta, session._store.log.durable)


def _believed(session: Session, said: Said) -> Mapping[str, Any]:
    """The catalog as far as it is believed: one of another's key is marked as his."""
    session._said = said
    key, unfit, origin = reading.judged(session._store, said)
    if session._store.log.mode == "r":
        return said.catalog
    session._key = key
    if not origin.own and unfit is not None:
        origin = origin._replace(why=unfit)
    session._origin = origin
    if origin.signer is None:
        return said.catalog
    return journal.foreign_json(said.catalog, origin.signer)


def _restore(session: Session, data: Mapping[str, Any], epoch: int) -> None:
    """Makes what a catalog names readable."""
    store = session._store
    catalog, behind = _catalog(session, data, epoch)
    old = reading.restored_graph(store.tail, data)
    _begin(session, data, catalog, old)
    store.remember(old, store.tail)
    version = Version(epoch, store.restored(old))
    session._snapshot = Snapshot(version, old, catalog, seen(store.history))
    if store.log.mode == "r":
        store.release()
    else:
        live = {each["name"]: each["reason"] is None for each in data["stages"]}
        differs = any(live[n] != (s.reason is None) for n, s in catalog.items())
        session._unready = lambda: _complete(session, old, differs=differs, behind=behind)
        if behind:
            session._ready()


def _complete(session: Session, old: Graph, *, differs: bool, behind: bool) -> None:
    """Compiles the stages and restores their state, so that they can go on.

    Failure: 1. A stage is stale, as its key is not there; epochs pass. 2. The session ends, and
    the key is back. 3. The stage is read as of now, and lacks those epochs. Hence the log says that
    a stage has stopped before the first epoch that it misses.

    Args:
        differs: not the stages go on that the log says.
        behind: some have missed epochs and may have them.
    """
    store, version = session._store, session._version
    compiler = Compiler(old, session._types, now=version.epoch)
    graph = compiler.compile(session._catalog)
    traces = store.restored(graph)
    traces.update((n, t) for n, t in version.traces.items() if n in traces)
    session._runner = Runner(graph, session._spark.evaluate, session._spark.bulk())
    whole = Version(version.epoch, traces)
    session._snapshot = session._snapshot._replace(version=whole, graph=graph)
    session._unready = lambda: _resume(session, differs=differs, behind=behind)
    session._unready()


def _resume(session: Session, *, differs: bool, behind: bool) -> None:
    """Lets stages go on that have what they need; again, if it was interrupted."""
    session._store.release()
    upkeep.plan_merges(session, session._version.traces)
    try:
        definitions.resume(session, extend=behind, differs=differs)
    except NosyncError as error:
        if not behind:
            raise
        session.recovery.notes.append(f"a stage has missed epochs and stays stale: {error}")
        definitions.resume(session, extend=False, differs=differs)


def _catalog(
    session: Session, data: Mapping[str, Any], epoch: int
) -> tuple[dict[str, Stage], bool]:
    """The catalog with its functions; decides which stages are stale.

    Returns: also whether some of them could go on if they had the epochs that they missed.
    """
    if session._store.log.mode == "r":
        return journal.catalog_from_json(data, b"", None), False
    behind = False
    catalog = journal.catalog_from_json(
        data, session._store.log.id, lambda *sealed: _unseal(session, *sealed)
    )
    for stage in catalog.values():
        if stage.definition is None or stage.frozen:
            continue
        stage.held = _held(session, stage)
        why = stage.held
        if why is None:
            fresh = rebased(replace(stage, reason=None), catalog, session._types)
            why = fresh.reason or versions.halted(stage, catalog)
        if why is not None:
            stage.reason = why
            stage.options.setdefault("last", epoch)
        elif stage.options.get("last") == epoch:
            stage.reason = None
            del stage.options["last"]
        else:
            behind = behind or stage.reason is not None
    return catalog, behind


def _held(session: Session, stage: Stage) -> str | None:
    """Why nothing of a stage may be compiled before its cell is run."""
    if stage.signer is not None:
        return session._origin.why or signing.foreign(stage.signer)
    assert stage.definition is not None
    for part in stage.definition.walk():
        for sql in expressions_of(part):
            why = refusal(sql)
            if why is not None:
                return f"{why}: run the stage's cell"
    return None


def _begin(
    session: Session, data: Mapping[str, Any], catalog: dict[str, Stage], graph: Graph
) -> None:
    """Makes a catalog that of the session, except for readers."""
    session._catalog_now = catalog
    session._upkeep.catalog = data
    if session._store.log.mode == "w":
        session._upkeep.digest = signing.digest(data)
    session._named_logs = named_logs(graph)
    hide(session._store.history, session._named_logs, catalog)
    session.recovery.stages = {
        n: STALE if s.reason else READ
        for n, s in catalog.items()
        if not s.is_input and not s.frozen
    }
    session.recovery.reasons = {n: s.reason for n, s in catalog.items() if s.reason}


def _unseal(session: Session, text: str, context: str, identity: str) -> Any:
    assert session._key is not None  # it has signed the catalog
    data = base64.b64decode(text)
    return trust.unseal(data, key=session._key, context=context, fingerprint=identity)


# -- following -----------------------------------------------------------------------------------


def follow(session: Session) -> None:
    """Takes in what the owner of the log has committed since the last look.

    If the log cannot be followed from where the reader is, as its owner was replaced, or as the
    reader has fallen far behind, the reader begins again at the newest checkpoint.
    """
    with session._lock:
        store = session._store
        try:
            frames = store.log.refresh()
        except (DurabilityError, CorruptLogError):
            reload(session)
            return
        if not frames:
            return
        store.followed += len(frames)
        if store.followed > FOLLOW_MAX:
            reload(session)
            return
        with decoding("the log"):
            tail = store.decoded(frames)
            if tail:
                _take_in(session, tail)


def _take_in(session: Session, tail: list[Told]) -> None:
    """Makes visible to a reader what frames say."""
    store = session._store
    before = session._snapshot
    graph, catalog = before.graph, before.catalog
    epoch, said = _told(session, tail, before.epoch, {})
    if said is not None:
        data = _believed(session, said)
        graph = Graph(journal.restored_nodes(data), data["numbers"])
        catalog, _ = _catalog(session, data, epoch)
        _begin(session, data, catalog, graph)
    store.remember(graph, tail)
    traces = store.followed_by(graph, before.version, before.graph, tail)
    session._snapshot = Snapshot(Version(epoch, traces), graph, catalog, seen(store.history))


def reload(session: Session) -> None:
    """Begins again at the newest checkpoint."""
    with session._lock:
        store = Store.open(session.path, mode="r")
        session._store.close()
        session._store = store
        recover(session)
