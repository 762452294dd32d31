"""Levels: where a stage is kept, and what may become of that; decided purely.

    memory      its rows and its past are in this process alone, and nothing of them is written
    disk        they are in the log, and come back out of it
    replicas    the same in a log that has replicas; there they are with every epoch of the log

A part without a name is written if anything that is written reads it (`Graph.unwritten`). Inputs
are always in the log, and so is what functions give that may give something else: neither is had
again. A stage may rise: it is computed once more, and is in the log from then on. It may not fall
to memory: epochs that were said to be safe on disk would be so no more.
"""

from __future__ import annotations

from collections.abc import Mapping

from nosync_nb.dataflow.stage import MEMORY, Options, Stage
from nosync_nb.errors import StageError
from nosync_nb.session.replication import Replication
from nosync_nb.session.versions import KEPT, Decision

LEVELS = (MEMORY, "disk", "replicas")


def options(on: str, persist: str | None, replication: Replication, *, kept: bool) -> Options:
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
    return Options(on, kept, persist=persist or "")


def moved(before: Mapping[str, Stage], decision: Decision) -> dict[str, Stage]:
    """The stages that go on as they are, at another level: as they are to be.

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
        stages[name] = new
    return stages
