"""Ahead: what a definition runs, computed of a snapshot while others have the gate's lock.

    with the lock: a decision is compiled -> without: it is run -> with it: it is installed

What is read of the snapshot stays: files are deleted by the worker, who computes it, or after it.
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
    """Past epochs that stages had missed, those of new versions, already written, and now.

    Attributes:
        over: the past that it was computed over.
        written: how many of `drafts` are written; none says anything of what is in memory alone.
    """

    missed: list[EpochResult]
    drafts: list[EpochResult]
    draft: EpochResult
    over: HistoricalInputs
    written: int


class CancelledError(Exception):
    """Nobody waits any more for what is computed."""


class OffLockCompute:
    """What operators lack, computed of a snapshot by one thread, while others have the gate's lock.

    Args:
        seen: the snapshot; nothing of it that is read is deleted before the worker's next task.
        old, runner: the graph of before, and what runs that of now.
        files: those that it writes.
        rows_max: the most missed rows that are run epoch by epoch.

    Attributes:
        ended: nothing comes of it any more but what has come.
    """

    def __init__(
        self,
        gate: WriterLock,
        seen: Snapshot,
        decision: DefinitionDecision,
        old: Graph,
        runner: Runner,
        files: RunFiles,
        rows_max: int,
    ) -> None:
        self.decision, self.old, self.runner = decision, old, runner
        self.ended = False
        self._gate, self._seen, self._files = gate, seen, files
        self._rows_max = rows_max
        self._cancelled = self._taken = False
        self._computed: OffLockResult | None = None

    def compute(self, doing: ActivityMonitor) -> None:
        """Runs what is lacking; without the lock.

        Raises:
            CancelledError: it was cancelled meanwhile.
        """
        seen, graph = self._seen, self.runner.graph
        new = replay.missing_nodes(graph, self.old)
        stages = dict.fromkeys(node.stage for node in graph if node.id in new)
        what = f"makes what is remembered for {first_names([*stages])}"
        with doing.of(what, len(new)) as going_on:

            def step() -> None:
                if self._cancelled:
                    raise CancelledError
                going_on.step()

            def run() -> OffLockResult:
                missed, base = backfill_plan.catch_up(
                    self.runner, self.old, seen.version, seen.history, self._rows_max
                )
                draft = self.runner.first_run(base.version, base.graph, step=step)
                return OffLockResult(missed, [], draft, base.past, 0)

            self._computed = self._gate.run(run, _nothing)

    def fits(self, now: Snapshot) -> bool:
        """Whether it is what operators lack of a snapshot: the same in other layers, maybe."""
        seen = self._seen
        same = now.graph is seen.graph and now.catalog is seen.catalog
        return same and now.epoch == seen.epoch and self._computed is not None

    def over(self, now: Snapshot) -> OffLockResult:
        """What was computed, over the layers of now; its files are the log's from here on.

        IMPORTANT: before a frame names them, as nobody knows after an error whether it does.
        """
        assert self._computed is not None
        self._taken = True
        self._computed.draft.over(now.version, self._seen.version)
        return self._computed

    def cancel(self) -> None:
        """Nobody waits for it any more: it ends before its next operator."""
        self._cancelled = True

    def end(self) -> None:
        """Nothing comes of it any more."""
        self.ended = True

    def clear(self) -> None:
        """Deletes the files that are nobody's, after its end."""
        self._files.end(failed=not self._taken)


def _nothing(*, failed: bool) -> None:
    """Leaves the files of a run to who adopts it."""


def first_names(names: Sequence[str]) -> str:
    """The first of some names."""
    return f"{', '.join(names[:4])}{' and others' if len(names) > 4 else ''}"
