"""Levels: where a stage is kept, and what may become of that; decided purely.

    memory      its rows and its past are in this process alone, and nothing of them is written
    disk        they are in the log, and come back out of it; after the loss of the disk they are
                computed again, as far as replicas did not get them all the same
    replicas    the same in a log that has replicas: an epoch is safe there when they have it, too;
                what every stage is that nothing is said of

A part without a name has the highest level of those that use it (`Graph.only_of`). Inputs always
have the highest level that there is, and so has what functions give that may give something else:
neither is had again. Nor is a stage that has stopped, nor an earlier version.

What is owed, and to whom `commit(wait=)` waits: on disk, all frames and files of what is not in
memory alone. On replicas, all frames, with the small changes of all stages in them, packs of the
past, which hold those of all stages, and the files of stages of the level `replicas`. Files of
stages on disk come last, when nothing else is lacking (store/records/file_references.py);
nobody waits for them, `frontiers` promises nothing of them, and `recovery_frontier` counts on
running them again.

While replicas lack too much, stages of which nothing is said are kept on disk (scaling.py).

A stage may rise, and the frame that says so is what its new level begins with: from memory it is
computed once more. It may not fall where epochs that were said to be safe would be so no more: to
memory never, and to disk only while the log has no replicas.

Of the past of a stage in memory only the last changes can be told apart, as many rows as would be
run for it after a restart (`UserLimits.replay_rows`): older ones are summed up with each
checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from nosync_nb.dataflow.schema_adaptation import adapted_to_schemas
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.dataflow.stage import DISK, MEMORY, Stage, StageOptions
from nosync_nb.errors import StageError
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.planning.definition_diff import (
    KEPT,
    DefinitionDecision,
    halt_reason,
    unchanged_decision,
)
from nosync_nb.session.planning.replay import RecomputedState
from nosync_nb.session.state.writer_lock import DefinitionOutcome
from nosync_nb.spark.sql_settings import SparkTypes

LEVELS = (MEMORY, DISK, "replicas")


def stage_options(
    on: str, persist: str | None, replication: ReplicationService, *, kept: bool
) -> StageOptions:
    """What is said of stages.

    Args:
        kept: what their functions give is kept, as it may be something else next time.

    Raises:
        StageError: there is no such level, or not here.
    """
    if persist not in (None, *LEVELS):
        raise StageError(f"persist={persist!r} is not known", hint="memory, disk or replicas")
    if persist == "replicas" and not replication.settings.replicas:
        raise StageError(
            "persist='replicas': this log has no replicas",
            hint="open it with replicas=['file:///...'], or use persist='disk'",
        )
    if persist == MEMORY and kept:
        raise StageError(
            "persist='memory': what a nondeterministic stage gave is not had a second time",
            hint="leave it out: it is kept in the log",
        )
    return StageOptions(on, kept, persist=persist or "")


def stages_changing_level(
    before: Mapping[str, Stage], decision: DefinitionDecision, *, copied: bool
) -> dict[str, Stage]:
    """The stages that go on as they are, at another level: as they are to be.

    Args:
        copied: the log has replicas.

    Raises:
        StageError: one would fall.
    """
    stages = {}
    for name, status in decision.status.items():
        old, new = before.get(name), decision.catalog[name]
        if old is None or status not in KEPT or old.options.persist == new.options.persist:
            continue
        if new.in_memory and not old.in_memory:
            raise StageError(
                f"stage '{name}' is kept on disk and cannot be kept in memory alone: epochs that"
                " were safe would be so no more",
                hint=f"session.drop('{name}') and define it again, or define it by another name",
                stage=name,
            )
        if copied and new.options.persist == DISK and not old.in_memory:
            raise StageError(
                f"stage '{name}' is kept on replicas and cannot be kept on disk alone: epochs that"
                " were safe would be so no more",
                hint=f"session.drop('{name}') and define it again, or define it by another name",
                stage=name,
            )
        stages[name] = replace(new, scaled=None)
    return stages


def decision_keeping_levels(
    decision: DefinitionDecision, before: Mapping[str, Stage]
) -> DefinitionDecision:
    """A decision under which some stages stay at the level that they have.

    Args:
        before: those stages as they are.
    """
    catalog = dict(decision.catalog)
    for name, stage in before.items():
        catalog[name] = replace(catalog[name], options=stage.options)
    return decision._replace(catalog=catalog)


@contextmanager
def leaving_memory(names: Iterable[str]) -> Iterator[dict[str, DefinitionOutcome]]:
    """A block in which stages leave memory; what ends it early says which have not.

    What else their cell defines stands by then, as their level is no part of what they mean.
    """
    rose = {name: DefinitionOutcome() for name in names}
    try:
        yield rose
    except BaseException as error:
        left = ", ".join(f"'{name}'" for name, outcome in rose.items() if not outcome.stands)
        if left:
            error.add_note(f"{left}: kept in memory alone, as before, until the cell is run again")
        raise


class ResumedMemoryStages(NamedTuple):
    """Stages that go on: their names, a catalog in which they do, and what is computed for them."""

    names: frozenset[str]
    decision: DefinitionDecision
    afresh: RecomputedState


def resumable_memory_stages(seen: Snapshot, types: SparkTypes) -> ResumedMemoryStages | None:
    """The stages in memory that have stopped and can be computed again, as of all there is.

    Failure: 1. What a stage in memory reads has stopped, so the stage has nothing to begin with
    when the log is opened. 2. What it reads has again what it missed, and goes on. 3. The stage is
    stale until the next opening.

    Returns:
        None if there are none.
    """
    catalog, names = dict(seen.catalog), set[str]()
    for name, stage in seen.catalog.items():
        if stage.in_memory and stage.reason is not None and stage.definition is not None:
            fresh, why = adapted_to_schemas(stage.resumed(), catalog, types)
            if (
                why is None
                and halt_reason(fresh, catalog) is None
                and not stage.options.nondeterministic
            ):
                catalog[name] = replace(fresh, begin=seen.epoch, gaps=())
                names.add(name)
    if not names:
        return None
    parts = frozenset(node.id for node in seen.graph if node.stage in names or node.name in names)
    return ResumedMemoryStages(
        frozenset(names), unchanged_decision(catalog), RecomputedState(refused=parts, replayed=True)
    )
