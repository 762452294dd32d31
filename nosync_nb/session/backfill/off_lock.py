"""Computes the run of a definition from a snapshot while other threads hold the writer's lock.

    with the lock: compile a decision -> without it: run it -> with it: install it

The files of the snapshot stay readable, because only the worker deletes files. The run is a task of
the worker, so deletions come after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.dataflow.graph import Graph
from nosync_nb.dataflow.runtime.activity import ActivityMonitor
from nosync_nb.dataflow.runtime.epoch_result import EpochResult
from nosync_nb.dataflow.runtime.historical_inputs import HistoricalInputs
from nosync_nb.dataflow.runtime.runner import Runner
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.session.planning import backfill_plan, replay
from nosync_nb.session.planning.definition_diff import DefinitionDecision
from nosync_nb.session.state.writer_lock import WriterLock
from nosync_nb.store.spill_files import RunFiles


class OffLockResult(NamedTuple):
    """The epochs that a run has computed: missed ones, those of new versions, and the current one.

    Attributes:
        over: the history that the run has read.
        written: how many of `drafts` are written; drafts with rows in memory only are not counted.
    """

    missed: list[EpochResult]
    drafts: list[EpochResult]
    draft: EpochResult
    over: HistoricalInputs
    written: int


class CancelledError(Exception):
    """The run was cancelled, because no caller waits for its result."""


class OffLockCompute:
    """Computes missing operator state from a snapshot in one thread, without the writer's lock.

    Args:
        seen: the snapshot; its files are not deleted before the worker's next task.
        old, runner: the previous graph, and the runner of the new one.
        files: the files that the run writes.
        rows_max: up to so many missed rows are run epoch by epoch.

    Attributes:
        ended: True if the run has ended and its result cannot change any more.
    """

    def __init__(
        self,
        gate: WriterLock,
        snapshot: Snapshot,
        decision: DefinitionDecision,
        old: Graph,
        runner: Runner,
        files: RunFiles,
        rows_max: int,
    ) -> None:
        self.decision, self.old, self.runner = decision, old, runner
        self.ended = False
        self._gate, self._snapshot, self._files = gate, snapshot, files
        self._rows_max = rows_max
        self._cancelled = self._adopted = False
        self._result: OffLockResult | None = None

    def compute(self, doing: ActivityMonitor) -> None:
        """Runs the missing nodes; without the lock.

        Raises:
            CancelledError: it was cancelled meanwhile.
        """
        snapshot, graph = self._snapshot, self.runner.graph
        new = replay.missing_nodes(graph, self.old)
        stages = dict.fromkeys(node.stage for node in graph if node.id in new)
        what = f"makes what is remembered for {first_names([*stages])}"
        with doing.record(what, len(new)) as progress:

            def step() -> None:
                if self._cancelled:
                    raise CancelledError
                progress.step()

            def run() -> OffLockResult:
                missed, base = backfill_plan.catch_up(
                    self.runner, self.old, snapshot.version, snapshot.history, self._rows_max
                )
                draft = self.runner.first_run(base.version, base.graph, step=step)
                return OffLockResult(missed, [], draft, base.past, 0)

            self._result = self._gate.run(run, _keep_files)

    def fits(self, now: Snapshot) -> bool:
        """Returns True if the result applies to a snapshot; the rows may be in other layers."""
        snapshot = self._snapshot
        same = now.graph is snapshot.graph and now.catalog is snapshot.catalog
        return same and now.epoch == snapshot.epoch and self._result is not None

    def over(self, now: Snapshot) -> OffLockResult:
        """Returns the result over the current layers; from here on the log owns its files.

        IMPORTANT: this is called before a frame names the files, because after an error it is
        unknown whether the frame was written.
        """
        assert self._result is not None
        self._adopted = True
        self._result.draft.over(now.version, self._snapshot.version)
        return self._result

    def cancel(self) -> None:
        """Cancels the run: it stops before its next operator."""
        self._cancelled = True

    def end(self) -> None:
        """Marks the run as ended."""
        self.ended = True

    def clear(self) -> None:
        """Deletes the files that the log does not own, after the end of the run."""
        self._files.end(failed=not self._adopted)


def _keep_files(*, failed: bool) -> None:
    """Leaves the files of a run to the caller that adopts it."""


def first_names(names: Sequence[str]) -> str:
    """Returns the first of some names as a text."""
    return f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''}"
