"""Recovering: a session after the last frame of its log, and a reader behind its owner.

What was there is read, never computed again. It comes back in two steps. The first is all that a
reader needs: the catalog, where the traces lie, the history; it costs the same whatever they hold.
The second compiles the stages, and is done when the session is written for the first time.

Functions come back if their signature holds. A stage with one that does not, or whose key is not
there, is stale, readable at its last epoch, until its cell is run again. A reader runs nothing and
needs no functions.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nosync_nb import defining, journal, trust, versions
from nosync_nb.dataflow import Runner, Version
from nosync_nb.errors import CorruptLogError, DurabilityError, NosyncError, TrustError
from nosync_nb.graph import Compiler, Graph, Stage
from nosync_nb.rebasing import rebased
from nosync_nb.recovery import READ, STALE, RecoveryReport
from nosync_nb.repeats import Repeats
from nosync_nb.snapshot import Snapshot, hide, named_logs, seen
from nosync_nb.store import Store, Told

if TYPE_CHECKING:
    from nosync_nb.session import Session

FOLLOW_MAX = 8192
"""Frames after which a reader begins again at the newest checkpoint."""


def recover(session: Session) -> None:
    """Brings a new session to the state after the last frame of its log."""
    store = session._store
    log = store.log
    report = session.recovery = RecoveryReport(
        fresh=log.fresh, clean=log.clean, notes=list(log.notes)
    )
    times = array("d")
    times.frombytes(store.times)
    session._times = times
    session._labels = dict(store.meta.get("labels", {}))
    session._once = dict(store.meta.get("once", {}))
    session._durable = store.epoch
    session._upkeep.expiring = set(store.meta.get("retired", ()))
    session._position = store.position
    epoch, data = _told(session, store.tail, store.epoch, store.meta.get("catalog"))
    if log.mode == "w":
        report.lost = list(range(epoch + 1, log.noted + 1))
        missing = store.sweep()
        report.notes += [f"'{name}' is missing: what it holds cannot be read" for name in missing]
    session._snapshot = Snapshot(Version(epoch, {}), Graph(), {}, seen(store.history))
    if data is not None:
        _restore(session, data, epoch)
    if log.mode == "w" and epoch:
        session._repeats = Repeats(epoch)
    report.resumed_at = epoch


def _told(
    session: Session, tail: list[Told], epoch: int, catalog: Mapping[str, Any] | None
) -> tuple[int, Mapping[str, Any] | None]:
    """Takes labels, times and loads from frames; returns the last epoch and the catalog."""
    for seq, kind, payload in tail:
        if kind == journal.DEFINITION:
            catalog = payload.meta["catalog"]
        if kind != journal.EPOCH:
            continue
        epoch = payload.epoch
        session._times.append(payload.utc)
        session._unsynced.append((seq, epoch))
        for mark in payload.meta.get("once", ()):
            session._once[mark] = epoch
        if "label" in payload.meta:
            session._labels[payload.meta["label"]] = epoch
    return epoch, catalog


def _restore(session: Session, data: Mapping[str, Any], epoch: int) -> None:
    """Makes what a catalog names readable."""
    store = session._store
    catalog, behind = _catalog(session, data, epoch)
    # Numbers that a definition took which never came about are not given again.
    taken = (e.number for each in store.tail for _, e in journal.changes(each.payload))
    old = Graph(journal.restored_nodes(data), max((data["numbers"], *taken)))
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
    store.release()
    try:
        defining.resume(session, extend=behind, differs=differs)
    except NosyncError as error:
        if not behind:
            raise
        session.recovery.notes.append(f"a stage has missed epochs and stays stale: {error}")
        defining.resume(session, extend=False, differs=differs)


def _catalog(
    session: Session, data: Mapping[str, Any], epoch: int
) -> tuple[dict[str, Stage], bool]:
    """The catalog with its functions; decides which stages are stale.

    Returns: also whether some of them could go on if they had the epochs that they missed.
    """
    if session._store.log.mode == "r":
        return journal.catalog_from_json(data, None), False
    behind = False
    catalog = journal.catalog_from_json(data, lambda sealed: _unseal(session, sealed))
    for stage in catalog.values():
        if stage.definition is None or stage.frozen:
            continue
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


def _begin(
    session: Session, data: Mapping[str, Any], catalog: dict[str, Stage], graph: Graph
) -> None:
    """Makes a catalog that of the session, except for readers."""
    session._catalog_now = catalog
    session._upkeep.catalog = data
    session._named_logs = named_logs(graph)
    hide(session._store.history, session._named_logs, catalog)
    session.recovery.stages = {
        n: STALE if s.reason else READ
        for n, s in catalog.items()
        if not s.is_input and not s.frozen
    }
    session.recovery.reasons = {n: s.reason for n, s in catalog.items() if s.reason}


def _unseal(session: Session, sealed: bytes) -> Any:
    try:
        if session._key is None:
            session._key = trust.user_key()
    except OSError as error:
        raise TrustError(f"the key cannot be read: {error}") from error
    return trust.unseal(sealed, key=session._key)


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
        tail = store.decoded(frames)
        before = session._snapshot
        graph, catalog = before.graph, before.catalog
        epoch, data = _told(session, tail, before.epoch, None)
        if data is not None:
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
        session._unsynced.clear()
        recover(session)
