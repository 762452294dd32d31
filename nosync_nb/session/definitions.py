"""Defining: inputs, stages, their versions; how the catalog changes and what follows from it.

A definition changes the graph without advancing the epoch, all stages of a call or none. It is
decided by fingerprint: equal ones change nothing. An edited stage becomes a new version; the old
one stays readable as `name@version`. Stages that read it follow by name: they are compiled over
the new version, or, if a column they need is gone, become stale and say so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_nb.collections.collection import Collection
from nosync_nb.collections.definition import Definition, check_name, reference, replaced
from nosync_nb.collections.host import definition_of
from nosync_nb.dataflow.graph import Graph, Stage
from nosync_nb.dataflow.snapshot import unknown
from nosync_nb.dataflow.states import state
from nosync_nb.errors import StageError
from nosync_nb.session import (
    installation,
    publishing,
    replay,
    versions,
)
from nosync_nb.session.publishing import Outcome
from nosync_nb.session.report import EXTEND, RECOMPUTE, STALE

if TYPE_CHECKING:
    from nosync_nb.session.session import Session

Catalog = Mapping[str, Stage]


class StageReport(NamedTuple):
    """What defining a stage did.

    `status` is new, unchanged, changed, followed (it reads something that changed), resumed,
    extended (it resumed, and the epochs that it had missed were run) or stale; `rows` its rows
    now; `seconds` what computing it took; `hint` what the user may want to do next.
    """

    name: str
    status: str
    rows: int
    epoch: int
    seconds: float
    placement: str
    durability: str
    version: int
    hint: str | None = None


def define(
    session: Session,
    collections: Mapping[str, Collection],
    options: dict[str, Any],
    *,
    replay: int | None,
    again: bool,
) -> list[StageReport]:
    """See `Session.define`."""
    outcome = Outcome()
    try:
        return _define(session, collections, options, replay, outcome, again=again)
    except BaseException as error:
        publishing.settle(session, error, outcome, _defined(collections))
        raise


def _defined(collections: Iterable[str]) -> str:
    names = [f"'{name}'" for name in collections]
    one = len(names) == 1
    what = f"stage {names[0]} is defined" if one else f"stages {', '.join(names)} are defined"
    return f"{what} and stand{'s' if one else ''}"


def outcome_of(session: Session, collections: Mapping[str, Collection]) -> str:
    """What a definition has done that had not enough memory."""
    names = session._names
    if all(names.get(definition_of(n, each)) == n for n, each in collections.items()):
        return _defined(collections)
    return f"{', '.join(collections)}: not defined, and every stage is as it was"


def _define(
    session: Session,
    collections: Mapping[str, Collection],
    options: dict[str, Any],
    replay: int | None,
    outcome: Outcome,
    *,
    again: bool,
) -> list[StageReport]:
    start = time.perf_counter()
    with session._lock:
        publishing.finish(session)
        session._writable("define")
        _refuse_inputs(session, collections)
        described = _described(session, collections)
        session._listeners.refuse_unnamed(described)
        trees = _trees(session, described)
        catalog = dict(session._catalog)
        for name, tree in trees.items():
            old = catalog.get(name)
            if old is None:
                catalog[name] = Stage(name, tree.schema, tree, begin=session.now, options=options)
            else:
                kept = _demoted(old, tree, options)
                catalog[name] = replace(
                    old, schema=tree.schema, definition=tree, options=kept, signer=None, held=None
                )
        redone = _redone(session, trees, replay, again=again)
        decision = versions.decided(
            session._snapshot, session._types, catalog, trees.keys(), again=redone
        )
        status = decision.status
        names = {definition: name for name, definition in described.items()}
        if decision.changes(session._catalog):
            _decided(session, decision, replay, names=names, outcome=outcome)
        else:
            for definition, name in names.items():
                publishing.call(session, definition, name)
    seconds = time.perf_counter() - start
    session._spark.follow()
    wanted = [n for n in status if n in trees or status[n] != "unchanged"]
    return [_report(session, n, status[n], seconds, trees, replay) for n in wanted]


def _redone(
    session: Session, trees: Mapping[str, Definition], first: int | None, *, again: bool
) -> set[str]:
    """The stages that are computed anew even if they are equal: all, or those short of a past."""
    if again:
        return set(trees)
    return set() if first is None else replay.lacking(session, trees, first)


def _demoted(old: Stage, tree: Definition, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a stage; one that was found not to be deterministic stays so till its edit."""
    assert old.definition is not None
    if not old.options.get("demoted") or old.signer is not None:
        return dict(options)
    names = {name: name for each in (tree, old.definition) for name in each.references}
    if tree.fingerprint(names) != old.definition.fingerprint(names):
        return dict(options)
    return {**options, "nondeterministic": True, "demoted": True}


def resume(session: Session, *, extend: bool, differs: bool) -> None:
    """Writes which stages go on after a recovery and which do not.

    Args:
        extend: brings those to now that have missed epochs and can have them.
        differs: not the stages go on that the log says.
    """
    decision = versions.resumed(session._snapshot, session._types, extend=extend)
    if decision.extended or differs:
        _decided(session, decision, None)


def _decided(
    session: Session, decision: versions.Decision, replay_from: int | None, **more: Any
) -> None:
    """Installs a decision, and tells what became of stages that had stopped."""
    missed = installation.install(session, decision, replay_from=replay_from, **more)
    report = session.recovery
    stale = {name for name, kind in report.stages.items() if kind == STALE}
    for name in stale & decision.extended:
        report.stages[name] = EXTEND
    for name, why in decision.lost.items():
        session._say(f"stage '{name}' had missed epochs and is computed anew, as {why}")
        if name in stale:
            report.stages[name] = RECOMPUTE
    report.recomputed += sum(len(draft.work.keys() & stale) for draft in missed)


def _refuse_inputs(session: Session, collections: Mapping[str, Any]) -> None:
    """Raises if a stage would take the name of an input."""
    for name, collection in collections.items():
        old = session._catalog.get(name)
        if old is not None and old.is_input and getattr(collection, "name", None) != name:
            raise StageError(
                f"'{name}' is an input and cannot become a stage",
                hint="name the result differently",
                stage=name,
            )


def _described(session: Session, collections: Mapping[str, Any]) -> dict[str, Definition]:
    """What collections of this session describe, each under the name that it is to have."""
    for name in collections:
        check_name(name, "stage")
    return {
        name: definition_of(f"stage '{name}'", each, session._host, "the collection", stage=name)
        for name, each in collections.items()
    }


def _trees(session: Session, described: Mapping[str, Definition]) -> dict[str, Definition]:
    """The definitions with references by name, ordered so that what is read comes first."""
    by_id: dict[int, Definition] = {}
    for name, tree in described.items():
        if not tree.is_ref:
            by_id[id(tree)] = reference(name, tree.schema)
    for tree in described.values():
        for part in tree.walk():
            known = session._names.get(part)
            if id(part) not in by_id and known in session._catalog:
                by_id[id(part)] = reference(str(known), part.schema)
    trees = {}
    for name, tree in described.items():
        if tree.is_ref and tree.name == name:
            continue
        own = {k: v for k, v in by_id.items() if k != id(tree) or v.name != name}
        first = next((n for n, each in described.items() if each is tree), name)
        if first == name:
            own.pop(id(tree), None)
        trees[name] = replaced(tree, own)
        if name in trees[name].references:
            raise StageError(
                f"stage '{name}' depends on itself",
                hint="name the result differently, as in late_delays = delays.filter(...)",
                stage=name,
            )
    return versions.ordered(trees)


def _report(
    session: Session,
    name: str,
    status: str,
    seconds: float,
    named: Iterable[str],
    asked: int | None,
) -> StageReport:
    snapshot = session._snapshot
    stage = snapshot.stage(name)
    last = snapshot.last(stage)
    work = session._works.last(name)
    hint = replay.told(session, stage, status, named, asked)
    if stage.reason:
        hint = f"stale: {stage.reason}"
    computed = status in ("new", "changed", "followed", "extended")
    return StageReport(
        name,
        status,
        int(state(snapshot, name, last).diff.sum()),
        last,
        (work.seconds if work else seconds) if computed else 0.0,
        work.placement if work and computed else "nothing to do",
        f"durable through {min(session._durable_epoch(), last)}",
        stage.version,
        hint,
    )


def drop(session: Session, names: Sequence[str], *, cascade: bool) -> None:
    """See `Session.drop`."""
    outcome = Outcome()
    try:
        _drop(session, names, outcome, cascade=cascade)
        session._spark.follow()
    except BaseException as error:
        gone = ", ".join(f"'{name}'" for name in names)
        publishing.settle(session, error, outcome, f"{gone}: dropped, and stays so")
        raise


def _drop(session: Session, names: Sequence[str], outcome: Outcome, *, cascade: bool) -> None:
    with session._lock:
        publishing.finish(session)
        session._writable("drop")
        gone = set(names)
        for name in names:
            if name not in session._catalog:
                raise unknown(session._catalog, name)
        for name in names:
            readers = [d for d in session._graph.dependants(name) if "@" not in d]
            if not cascade and set(readers) - gone:
                raise StageError(
                    f"'{name}' is read by {', '.join(readers)}",
                    hint=f"drop them too: session.drop('{name}', cascade=True)",
                )
            gone |= set(readers)
        gone |= {n for n in session._catalog if n.partition("@")[0] in gone}
        _refuse_pending(session, gone, "drop")
        catalog = {n: s for n, s in session._catalog.items() if n not in gone}
        installation.install(
            session,
            versions.kept(catalog),
            work={name: work for name, work in session._works.stages.items() if name not in gone},
            names={d: None for d, name in session._names.items() if name in gone},
            outcome=outcome,
        )


def rename(session: Session, old: str, new: str) -> None:
    """See `Session.rename`."""
    outcome = Outcome()
    try:
        _rename(session, old, new, outcome)
        session._spark.follow()
    except BaseException as error:
        publishing.settle(session, error, outcome, f"'{old}' is called '{new}' now, and stays so")
        raise


def _rename(session: Session, old: str, new: str, outcome: Outcome) -> None:
    with session._lock:
        publishing.finish(session)
        session._writable("rename")
        if old not in session._catalog:
            raise unknown(session._catalog, old)
        if new in session._catalog:
            raise StageError(f"'{new}' is there already", hint="drop it first")
        _refuse_pending(session, {old}, "rename")
        catalog: dict[str, Stage] = {}
        for name, stage in session._catalog.items():
            if stage.definition is not None:
                by_id = {
                    id(p): reference(_renamed(p.name, old, new), p.schema)
                    for p in stage.definition.walk()
                    if p.is_ref and _renamed(p.name, old, new) != p.name
                }
                stage = replace(stage, definition=replaced(stage.definition, by_id))
            elif name == old:
                stage = replace(stage, options={**stage.options, "uid": stage.uid})
            name = _renamed(name, old, new)
            catalog[name] = replace(stage, name=name)
        nodes = (
            replace(
                n, name=n.name and _renamed(n.name, old, new), stage=_renamed(n.stage, old, new)
            )
            for n in session._graph
        )
        installation.install(
            session,
            versions.kept(catalog),
            renamed=Graph(nodes, session._graph.numbers),
            work={(new if name == old else name): w for name, w in session._works.stages.items()},
            names={d: new for d, name in session._names.items() if name == old},
            outcome=outcome,
        )


def _renamed(name: str, old: str, new: str) -> str:
    """A name, or that of one of its versions, after a rename."""
    base, at, version = name.partition("@")
    return new + at + version if base == old else name


def _refuse_pending(session: Session, names: AbstractSet[str], what: str) -> None:
    """Raises if inputs have changes that wait: they would be lost."""
    for name, changes in session.pending.items():
        if name in names:
            raise StageError(
                f"{what}: input '{name}' has {changes.rows} changes that are not committed",
                hint="session.commit() or session.discard() first",
                stage=name,
            )
