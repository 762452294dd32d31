"""Defines the durability levels of stages, and which changes of level are allowed. Pure.

    memory      the rows and the history are in this process only, and are never written
    disk        they are in the log; after the loss of the disk they are recomputed where the
                replicas did not receive them
    replicas    the same in a log with replicas: an epoch is safe when they have it, too;
                the default of every stage

An unnamed node has the highest level of the stages that use it (`Graph.only_of`). Inputs always
have the highest level, because they cannot be recomputed. So have nondeterministic stages, stopped
stages and earlier versions.

The replication requirement, for which `commit(wait=)` waits, depends on the level. On the disk: all
frames and files of stages that are not in memory only. On replicas: all frames, with the small
changes of all stages in them; the packs of the history, which contain those of all stages; and the
files of stages of level `replicas`. Files of stages of level `disk` are deferred until nothing else
is missing (store/records/file_references.py). No commit waits for them, `frontiers` reports
nothing for them, and `recovery_frontier` assumes that they are recomputed.

While the backlog of the replicas is too large, stages without an explicit level are treated as
`disk` (backlog_policy.py).

A level may be raised. The new level applies from the frame of that definition on, and a stage in
memory is recomputed once. A level is not lowered if durable epochs would be lost: never to memory,
and to disk only while the log has no replicas.

For a stage in memory, only the latest changes can be read epoch by epoch, up to the number of rows
that a restart would replay for it (`UserLimits.replay_rows`). A checkpoint combines the older
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from nosync_nb.dataflow.stage import DISK, MEMORY, Stage, StageOptions
from nosync_nb.errors import StageError
from nosync_nb.session.backfill.definition_diff import KEPT, DefinitionDecision
from nosync_nb.session.durability.replication import ReplicationService
from nosync_nb.session.state.writer_lock import DefinitionOutcome

LEVELS = (MEMORY, DISK, "replicas")


def stage_options(
    on: str, persist: str | None, replication: ReplicationService, *, kept: bool
) -> StageOptions:
    """Returns the options of stages.

    Args:
        kept: True if the stages are nondeterministic, so that the results of their functions are
            memoised.

    Raises:
        StageError: if the level is unknown, or is not possible for this log or for these stages.
    """
    if persist not in (None, *LEVELS):
        raise StageError(f"persist={persist!r} is unknown", hint="memory, disk or replicas")
    if persist == "replicas" and not replication.settings.replicas:
        raise StageError(
            "persist='replicas': this log has no replicas",
            hint="open it with replicas=['file:///...'], or use persist='disk'",
        )
    if persist == MEMORY and kept:
        raise StageError(
            "persist='memory' is not possible for a nondeterministic stage: its results cannot"
            " be recomputed",
            hint="omit persist, and it is stored in the log",
        )
    return StageOptions(on, kept, persist=persist or "")


def stages_changing_level(
    catalog: Mapping[str, Stage], decision: DefinitionDecision, *, copied: bool
) -> dict[str, Stage]:
    """Returns the unchanged stages whose level changes, with their new level.

    Args:
        copied: True if the log has replicas.

    Raises:
        StageError: if a level would be lowered.
    """
    stages = {}
    for name, status in decision.status.items():
        old, new = catalog.get(name), decision.catalog[name]
        if old is None or status not in KEPT or old.options.persist == new.options.persist:
            continue
        if new.in_memory and not old.in_memory:
            raise StageError(
                f"stage '{name}': persist cannot be lowered from 'disk' to 'memory', epochs"
                " that are durable would be lost",
                hint=f"call session.drop('{name}') and define it again, or define it under another"
                " name",
                stage=name,
            )
        if copied and new.options.persist == DISK and not old.in_memory:
            raise StageError(
                f"stage '{name}': persist cannot be lowered from 'replicas' to 'disk', epochs"
                " that are on replicas would be lost with the disk",
                hint=f"call session.drop('{name}') and define it again, or define it under another"
                " name",
                stage=name,
            )
        stages[name] = replace(new, scaled=None)
    return stages


def decision_keeping_levels(
    decision: DefinitionDecision, before: Mapping[str, Stage]
) -> DefinitionDecision:
    """Returns a decision under which some stages keep their current level.

    Args:
        before: these stages with their current levels.
    """
    catalog = dict(decision.catalog)
    for name, stage in before.items():
        catalog[name] = replace(catalog[name], options=stage.options)
    return decision._replace(catalog=catalog)


@contextmanager
def leaving_memory(names: Iterable[str]) -> Iterator[dict[str, DefinitionOutcome]]:
    """Runs a block in which stages leave memory; an error gets a note with the remaining ones.

    The other definitions of the cell are committed before the block, because the level is not part
    of a stage's meaning.
    """
    outcomes = {name: DefinitionOutcome() for name in names}
    try:
        yield outcomes
    except BaseException as error:
        remaining = ", ".join(
            f"'{name}'" for name, outcome in outcomes.items() if not outcome.committed
        )
        if remaining:
            error.add_note(
                f"{remaining}: stored in memory only, as before, until the cell is run again"
            )
        raise
