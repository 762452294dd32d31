"""Defining: inputs, stages, their versions; how the catalog changes and what follows from it.

A definition changes the graph without advancing the epoch, all stages of a call or none. It is
decided by fingerprint: equal ones change nothing. An edited stage becomes a new version; the old
one stays readable as `name@version`. Stages that read it follow by name: they are compiled over
the new version, or, if a column they need is gone, become stale and say so.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nosync_nb import committing, interrupts, reads, replay, trust, versions
from nosync_nb.collection import Collection
from nosync_nb.dataflow import Runner, Version
from nosync_nb.definition import Definition, check_name, reference, replaced
from nosync_nb.errors import SchemaError, StageError, TrustError
from nosync_nb.graph import Compiler, Graph, Stage
from nosync_nb.inputs import Input
from nosync_nb.journal import catalog_json
from nosync_nb.rows import Schema, infer_schema
from nosync_nb.snapshot import Snapshot, seen, unknown

if TYPE_CHECKING:
    from nosync_nb.session import Session

Catalog = Mapping[str, Stage]


class StageReport(NamedTuple):
    """What defining a stage did.

    `status` is new, unchanged, changed or followed (it reads something that changed); `rows` its
    rows now; `seconds` what computing it took; `hint` what the user may want to do next.
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


def input_(session: Session, name: str, schema: Any, key: Any) -> Input:
    """See `Session.input`."""
    wanted = _schema(schema)
    if name in session:
        return _known_input(session, name, wanted, key)
    if wanted is None:
        raise SchemaError(
            f"input '{name}' needs columns",
            hint=f"session.input('{name}', 'id bigint, name string')",
        )
    places = None
    if key is not None:
        names = [key] if isinstance(key, str) else list(key)
        places = tuple(wanted.index(k) for k in names)
        for place in places:
            if wanted.types[place].startswith("map"):
                raise SchemaError(f"input '{name}': a map cannot be a key")
    with session._lock:
        session._writable("input")
        if name in session:  # somebody else was faster
            return _known_input(session, name, wanted, key)
        options: dict[str, object] = {"uid": _unused(session, name)}
        stage = Stage(name, wanted, key=places, begin=session.now, options=options)
        _install(session, {**session._catalog, name: stage})
    session._spark.follow()
    return session[name]  # type: ignore[return-value]


def _known_input(session: Session, name: str, wanted: Schema | None, key: Any) -> Input:
    """The input that is there, if it is as wanted."""
    stage = session._snapshot.stage(name)
    if not stage.is_input:
        raise SchemaError(f"'{name}' is a stage, not an input", hint="use another name")
    _same_input(stage, wanted, key)
    return session[name]  # type: ignore[return-value]


def _unused(session: Session, name: str) -> str:
    """An identity that no input has, and under which no load is recorded: the name, if it is so."""
    taken = {s.uid for s in session._catalog.values() if s.is_input}
    recorded = any(mark.startswith(json.dumps([name])[:-1] + ",") for mark in session._once)
    return f"{name}#{session._graph.numbers}" if name in taken or recorded else name


def _schema(schema: Any) -> Schema | None:
    if schema is None or isinstance(schema, Schema):
        return schema
    if isinstance(schema, str):
        return Schema.parse(schema)
    if type(schema).__module__.startswith("pyspark.sql"):
        from nosync_nb.spark import ingest

        return ingest.schema_of(schema)
    return infer_schema(schema)


def _same_input(stage: Stage, wanted: Schema | None, key: Any) -> None:
    if wanted is not None and wanted != stage.schema:
        raise SchemaError(
            f"input '{stage.name}' has columns ({stage.schema.ddl}), not ({wanted.ddl})",
            hint=f"use another name, or drop it first: session.drop('{stage.name}', cascade=True)",
        )
    names = None if key is None else [key] if isinstance(key, str) else list(key)
    held = None if stage.key is None else [stage.schema.names[i] for i in stage.key]
    if names is not None and names != held:
        raise SchemaError(
            f"input '{stage.name}' has key {held}, not {names}",
            hint=f"leave key out, use another name, or drop it first: session.drop('{stage.name}')",
        )


def define(
    session: Session,
    collections: Mapping[str, Collection],
    options: dict[str, Any],
    *,
    replay: int | None,
    again: bool,
) -> list[StageReport]:
    """See `Session.define`."""
    start = time.perf_counter()
    with session._lock:
        session._writable("define")
        _refuse_inputs(session, collections)
        trees = _trees(session, collections)
        catalog = dict(session._catalog)
        changed = []
        for name, tree in trees.items():
            old = catalog.get(name)
            if old is None:
                catalog[name] = Stage(name, tree.schema, tree, begin=session.now, options=options)
                changed.append(name)
            else:
                new = replace(old, schema=tree.schema, definition=tree, options=dict(options))
                catalog[name] = new
        decision = versions.decided(session, catalog, set(trees), changed, again=again)
        status = decision.status
        if decision.changes(session._catalog):
            _install(
                session,
                decision.catalog,
                replay_from=replay,
                status=status,
                anew=decision.anew,
            )
        for name, collection in collections.items():
            session._names[id(collection._definition)] = (collection._definition, name)
    seconds = time.perf_counter() - start
    session._spark.follow()
    wanted = [n for n in status if n in trees or status[n] != "unchanged"]
    return [_report(session, n, status[n], seconds) for n in wanted]


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


def _trees(session: Session, collections: Mapping[str, Collection]) -> dict[str, Definition]:
    """The definitions with references by name, ordered so that what is read comes first."""
    by_id: dict[int, Definition] = {}
    for key, (definition, name) in session._names.items():
        if name in session._catalog and id(definition) == key:
            by_id[key] = reference(name, definition.schema)
    for name, collection in collections.items():
        check_name(name, "stage")
        if not isinstance(collection, Collection):
            raise StageError(
                f"stage '{name}': {collection!r} is not a collection",
                hint="give what an operator returns, as in flights.filter(...)",
                stage=name,
            )
        if collection._session is not session:
            raise StageError(f"stage '{name}' is described over another session's collections")
        if not collection._definition.is_ref:
            by_id[id(collection._definition)] = reference(name, collection.schema)
    trees = {}
    for name, collection in collections.items():
        tree = collection._definition
        if tree.is_ref and tree.name == name:
            continue
        own = {k: v for k, v in by_id.items() if k != id(tree) or v.name != name}
        first = next((n for n, c in collections.items() if c._definition is tree), name)
        if first == name:
            own.pop(id(tree), None)
        trees[name] = replaced(tree, own)
        if name in set(trees[name].references()):
            raise StageError(
                f"stage '{name}' depends on itself",
                hint="name the result differently, as in late_delays = delays.filter(...)",
                stage=name,
            )
    return versions.ordered(trees)


def _install(
    session: Session,
    catalog: Catalog,
    *,
    replay_from: int | None = None,
    status: Mapping[str, str] | None = None,
    anew: AbstractSet[str] = frozenset(),
    renamed: Graph | None = None,
) -> None:
    """Compiles a catalog, computes what is new, writes the definition and makes it visible."""
    catalog = {name: _stopped(stage, session.now) for name, stage in catalog.items()}
    old = renamed or session._graph
    compiler = Compiler(old, session._types, now=session.now, anew=anew)
    graph = compiler.compile(catalog)
    runner = Runner(graph, session._spark.evaluate, session._spark.bulk())
    before = session._version
    session._catalog_now = catalog
    try:
        drafts, draft = replay.computed(session, graph, runner, catalog, replay_from, status or {})
    except BaseException:
        session._graph.numbers = graph.numbers
        raise
    finally:
        session._catalog_now = session._catalog
    draft.traces = {n: draft.traces[n] for n, _ in graph.layouts() if n in draft.traces}
    content = catalog_json(catalog, graph, session._seal)
    with interrupts.deferred():
        session._position = session._store.write_definition(draft, before, content, {})
        session._upkeep.catalog = content
        session._catalog_now = catalog
        session._runner = runner
        history = session._store.history
        begun = set(session._named_logs)
        session._named_logs = named_logs(graph)
        for number in session._named_logs.keys() - begun:
            history.begin(number, catalog[session._named_logs[number]].begin)
        for past in (*drafts, draft):
            committing.remember(session, past)
        for number in begun - session._named_logs.keys():
            history.drop(number)
        version = Version(before.epoch, draft.traces)
        session._snapshot = Snapshot(version, graph, catalog, seen(history))
    for stage in catalog.values():
        if stage.reason is not None and (status or {}).get(stage.name) == "stale":
            session._say(f"stage '{stage.name}' is stale: {stage.reason}")


def _stopped(stage: Stage, now: int) -> Stage:
    """A stage that stops now, if it does; the one that others see is left as it is."""
    if stage.reason is None or "last" in stage.options:
        return stage
    return replace(stage, options={**stage.options, "last": now})


def named_logs(graph: Graph) -> dict[int, str]:
    """The logs of named collections, which have a history."""
    return {n.log: n.name for n in graph if n.name and n.log is not None}


def _report(session: Session, name: str, status: str, seconds: float) -> StageReport:
    snapshot = session._snapshot
    stage = snapshot.stage(name)
    last = snapshot.last(stage)
    work = session._work.get(name)
    hint = None
    if status == "changed":
        hint = _readable_from(session, stage)
    if stage.reason:
        hint = f"stale: {stage.reason}"
    computed = status in ("new", "changed", "followed")
    return StageReport(
        name,
        status,
        int(reads.state(snapshot, name, last).diff.sum()),
        last,
        (work.seconds if work else seconds) if computed else 0.0,
        work.placement if work and computed else "nothing to do",
        f"durable through {min(session._durable_epoch(), last)}",
        stage.version,
        hint,
    )


def _readable_from(session: Session, stage: Stage) -> str:
    """From where an edited stage can be read, and how to see more of it."""
    before = f"the version before is '{stage.name}@{stage.version - 1}'"
    if stage.begin < session.now:
        return f"replayed from epoch {stage.begin}; {before}"
    return f"computed as of epoch {stage.begin}: `%%dd --replay 0` for the past; {before}"


def drop(session: Session, names: Sequence[str], *, cascade: bool) -> None:
    """See `Session.drop`."""
    with session._lock:
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
        _install(session, catalog)
        session._names = {k: v for k, v in session._names.items() if v[1] not in gone}
    session._spark.follow()


def rename(session: Session, old: str, new: str) -> None:
    """See `Session.rename`."""
    with session._lock:
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
        _install(session, catalog, renamed=Graph(nodes, session._graph.numbers))
        session._names = {k: (d, new if n == old else n) for k, (d, n) in session._names.items()}


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


def seal(session: Session, function: Any) -> bytes | None:
    """A function as signed bytes; None, with a warning, if it or the key cannot be had."""
    try:
        if session._key is None:
            session._key = trust.user_key()
        return trust.seal(function, key=session._key)
    except (StageError, TrustError) as error:
        warnings.warn(
            f"{error}; after a restart its stage is stale until its cell is run", stacklevel=2
        )
        return None
