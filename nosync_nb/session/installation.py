"""Installation: a catalog that was decided becomes the session's, as a whole or not at all.

All that can fail is done before the frame is written: to compile, to run what is new, to sign, to
write large batches to files, to read packs for what is dropped. What follows are assignments, of
values that were computed before; see `publishing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from nosync_nb.collections.definition import Definition
from nosync_nb.dataflow.graph import Graph, Stage
from nosync_nb.dataflow.runner import Draft, Runner, Version, Work
from nosync_nb.dataflow.snapshot import Snapshot, hide, named_logs, seen
from nosync_nb.session import commits, lag, publishing, replay, sealing, upkeep, versions
from nosync_nb.session.publishing import Outcome
from nosync_nb.trace.past.history import History

if TYPE_CHECKING:
    from nosync_nb.session.session import Session


def install(
    session: Session,
    decision: versions.Decision,
    *,
    replay_from: int | None = None,
    renamed: Graph | None = None,
    work: Mapping[str, Work] | None = None,
    names: Mapping[Definition, str | None] | None = None,
    outcome: Outcome | None = None,
) -> list[Draft]:
    """Compiles a catalog, computes what is new, writes the definition and makes it visible.

    Args:
        work: what stages did last, as it is to be after a rename, or a drop.
        names: what descriptions are called after it.
        outcome: told that it stands.

    Returns:
        past epochs of stages that had missed them.
    """
    status = decision.status
    catalog = {name: _stopped(stage, session.now) for name, stage in decision.catalog.items()}
    old, graph = _compiled(session, decision, catalog, renamed or session._graph)
    spark = session._spark
    runner = Runner(graph, spark.evaluate, spark.bulk())
    before = session._version
    session._catalog_now = catalog
    try:
        missed, base = commits.run(session, lambda: lag.extended(session, graph, old))
        drafts, draft = replay.computed(session, base, runner, catalog, replay_from, status)
    finally:
        session._catalog_now = session._catalog
    draft.traces = {n: draft.traces[n] for n, _ in graph.layouts() if n in draft.traces}
    lag.with_gaps(catalog, graph, base.past)
    made = sealing.sealed(session, catalog, graph, draft.epoch)
    store = session._store
    payload = store.definition(draft, before, made.meta, missed, len(drafts))
    past = [*missed, *drafts, draft]
    history = _after(session, graph, catalog, past)
    version = Version(before.epoch, draft.traces)
    needed = upkeep.files_of(before) | store.history.files()
    done = [item for each in past for item in each.work.items()]
    record = publishing.UnfinishedDefinition(
        publishing.position(session),
        Snapshot(version, graph, catalog, seen(history)),
        history,
        runner,
        made.catalog,
        made.digest,
        frozenset(needed - upkeep.files_of(version) - history.files()),
        {**(session._works.stages if work is None else work), **dict(done)},
        session._works.after_runs(work for _, work in done),
        names or {},
        outcome or Outcome(),
    )
    publishing.install(session, record, payload)
    if store.log.checkpoint_due:
        upkeep.plan_checkpoint(session)
    _tell_stale(session, catalog, status)
    return missed


def _tell_stale(session: Session, catalog: Mapping[str, Stage], status: Mapping[str, str]) -> None:
    for stage in catalog.values():
        if stage.reason is not None and status.get(stage.name) == "stale":
            session._say(f"stage '{stage.name}' is stale: {stage.reason}")


def _after(
    session: Session, graph: Graph, catalog: Mapping[str, Stage], past: Iterable[Draft]
) -> History:
    """The history after a definition. Packs may be read: what a dropped stage had is looked for."""
    history = session._store.history.copied()
    logs = named_logs(graph)
    hide(history, logs, catalog)
    for each in past:
        publishing.remember(history, logs.keys(), each)
    for number in session._named_logs.keys() - logs.keys():
        history.drop(number)
    return history


def _compiled(
    session: Session, decision: versions.Decision, catalog: Mapping[str, Stage], old: Graph
) -> tuple[Graph, Graph]:
    """The graph before and that of a catalog, with numbers that nothing was written under."""
    taken = session._numbers
    if old.numbers < taken:  # a definition that failed may have written under some
        old = Graph(old, taken, old.made)
    graph = replay.compiled(
        catalog,
        old,
        session._types,
        now=session.now,
        anew=decision.anew,
        extended=decision.extended,
    )
    session._numbers = graph.numbers
    return old, graph


def _stopped(stage: Stage, now: int) -> Stage:
    """A stage that stops now, if it does; the one that others see is left as it is."""
    if stage.reason is None or "last" in stage.options:
        return stage
    return replace(stage, options={**stage.options, "last": now})
