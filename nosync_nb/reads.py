"""Reads: the rows of a collection at an epoch, its changes, and when it may not be read.

Readers take the session's version once and work on it without a lock.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from nosync_nb.batch import Batch, Layout, arrange, merge
from nosync_nb.dataflow import Runner, Version
from nosync_nb.definition import Definition
from nosync_nb.epochs import resolved
from nosync_nb.errors import StageError, TimeError
from nosync_nb.frontier import Ranges, check_readable
from nosync_nb.graph import Compiler, Graph, Stage
from nosync_nb.trace import Layer, Trace, empty_batch

if TYPE_CHECKING:
    from nosync_nb.reading import Readable
    from nosync_nb.session import Session


def unknown(session: Session, name: str) -> StageError:
    """The error of a name that is not known."""
    near = get_close_matches(name, session._catalog, 1)
    known = f"did you mean '{near[0]}'? " if near else ""
    return StageError(
        f"there is no stage or input '{name}'",
        hint=f"{known}known are: {', '.join(session._catalog) or 'none'}",
        stage=name,
    )


def contents(session: Session, name: str) -> Trace:
    """Any trace of a named collection, as it is now."""
    node = session._graph.named[name]
    layout, number = next(iter(node.traces.items()))
    return session._version.traces.get(number) or Trace(layout)


def read(session: Session, collection: Readable, at: Any) -> Batch:
    """The consolidated rows of a collection at an epoch."""
    name = collection.name
    version = session._version
    epoch = version.epoch if at is None else resolved(session, at)
    if at is None:
        refuse_pending(session, collection._definition, name)
        if name is not None and session._catalog[name].frozen:
            epoch = session._epoch_of(session._catalog[name])
    if name is None:
        return scratch(session, collection._definition, None if at is None else epoch)
    return state(session, name, epoch, version)


def state(session: Session, name: str, epoch: int, version: Version) -> Batch:
    """The rows of a named collection at an epoch."""
    stage = session._catalog[name]
    node = session._graph.named[name]
    if epoch == stage.options.get("last", version.epoch):
        for number in node.traces.values():
            trace = version.traces.get(number)
            if trace is not None:
                return trace.consolidated()
        return empty_batch(node.log_layout)
    assert node.log is not None
    _check(session, name, epoch)
    found = session._store.history.state(node.log, epoch)
    layout = node.log_layout
    return merge(layout, found) if found else empty_batch(layout)


def snapshot_trace(session: Session, name: str, at: Any) -> tuple[int, Trace]:
    """The epoch that `at` names, and a named collection as it was then, as a trace."""
    if name not in session._catalog:
        raise unknown(session, name)
    version = session._version
    epoch = version.epoch if at is None else resolved(session, at)
    stage = session._catalog[name]
    if epoch == version.epoch and session._epoch_of(stage) == epoch and not stage.reason:
        for number in session._graph.named[name].traces.values():
            trace = version.traces.get(number)
            if trace is not None:
                return epoch, trace
    batch = state(session, name, epoch, version)
    return epoch, _trace(batch.layout, batch, epoch)


def _check(session: Session, name: str, epoch: int) -> None:
    stage = session._catalog[name]
    last = session._epoch_of(stage)
    if stage.reason is not None and epoch > last:
        raise TimeError(
            f"stage '{name}' is stale since epoch {last}: {stage.reason}",
            hint=f"run the cell that defines it, or read what it was: .rows(at={last})",
        )
    check_readable(name, epoch, Ranges.of(range(stage.begin, last + 1)))


def changes(session: Session, collection: Readable, after: Any, upto: Any) -> Batch:
    """Net changes in `(after, upto]`, consolidated; see `Readable.changes`."""
    name = collection.name
    if name is None:
        raise StageError(
            "an unnamed collection has no history", hint="name it: session.stage('name', c)"
        )
    stage, node = session._catalog[name], session._graph.named[name]
    assert node.log is not None
    last = session._epoch_of(stage) if upto is None else resolved(session, upto)
    first = None if after is None else resolved(session, after)
    _check(session, name, last)
    if first is not None:
        _check(session, name, first)
        found = session._store.history.changes(node.log, first, last)
    else:
        found = session._store.history.state(node.log, last)
    return merge(node.log_layout, found) if found else empty_batch(node.log_layout)


def history_of(session: Session, collection: Readable) -> list[range]:
    """The readable epochs of a collection."""
    name = collection.name
    if name is None:
        return []
    stage = session._catalog[name]
    return [range(stage.begin, session._epoch_of(stage) + 1)]


def check_size(session: Session, count: int, name: str | None) -> None:
    """Raises if so many rows are not to be collected."""
    if count > session.collect_rows:
        raise StageError(
            f"'{name or 'collection'}' has {count} rows, more than collect_rows ="
            f" {session.collect_rows}",
            hint="use .to_spark(), or raise session.collect_rows",
        )


def refuse_pending(session: Session, definition: Definition, name: str | None) -> None:
    """Raises if what is read would not show changes that wait."""
    pending = session._current.pending
    if not pending:
        return
    names = {name} if name else set(definition.references())
    reached: set[str] = set()
    while names:
        each = names.pop()
        if each in pending:
            raise StageError(
                f"'{name or 'this collection'}' depends on input '{each}', which has"
                f" {pending[each].rows} changes that are not committed",
                hint="session.commit() first, or session.discard(); .rows(at=session.now)"
                " reads the last epoch",
            )
        reached.add(each)
        stage = session._catalog.get(each)
        if stage is not None and stage.definition is not None:
            names |= set(stage.definition.references()) - reached


def scratch(session: Session, definition: Definition, epoch: int | None) -> Batch:
    """Evaluates an unnamed collection from scratch; nothing of it is kept.

    Args:
        epoch: as of which epoch; None: now.
    """
    version = session._version
    at = version.epoch if epoch is None else epoch
    catalog = {
        n: Stage(n, session._catalog[n].schema) for n in dict.fromkeys(definition.references())
    }
    existing = Compiler(Graph(), session._types).compile(catalog)
    traces = {}
    for name in catalog:
        batch = state(session, name, at, version)
        (layout, number), *_ = existing.named[name].traces.items()
        traces[number] = _trace(layout, arrange(layout, batch.updates), at)
    graph = Compiler(existing, session._types).compile(
        {**catalog, "": Stage("", definition.schema, definition)}
    )
    runner = Runner(graph, session._spark.evaluate)
    draft = runner.first_run(Version(at, traces), existing)
    node = graph.nodes[next(reversed(graph.nodes))]
    for number in node.traces.values():
        trace = draft.traces.get(number)
        if trace is not None:
            return trace.consolidated()
    return empty_batch(node.log_layout)


def _trace(layout: Layout, batch: Batch, epoch: int) -> Trace:
    return Trace(layout, (Layer(epoch, epoch + 1, (batch,)),)) if len(batch) else Trace(layout)


def explain(session: Session, collection: Any) -> str:
    """The operators of a collection, outermost first, with where its stages ran last."""
    lines: list[str] = []

    def show(tree: Definition, depth: int) -> None:
        name = session._name_of(tree)
        label = _described(tree)
        if tree.is_ref:
            label = f"{tree.name}"
            work = session._work.get(tree.name)
            if work is not None:
                label += f"  [{work.placement}, {work.seconds * 1e3:.1f} ms]"
        elif name:
            label += f"  = {name}"
        lines.append("  " * depth + label)
        for each in tree.inputs:
            show(each, depth + 1)

    definition = collection._definition
    name = collection.name
    if definition.is_ref and name is not None:
        stage = session._catalog[name]
        show(definition, 0)
        if stage.definition is not None:
            show(stage.definition, 1)
    else:
        show(definition, 0)
    return "\n".join(lines)


def _described(tree: Definition) -> str:
    shown = []
    for key, value in tree.params.items():
        shown.append(f"{key}={value!r}")
    names = [getattr(f, "__name__", "function") for f in tree.functions]
    return f"{tree.op}({', '.join([*names, *shown])})"
