"""Inside: where the kernels of one loop run in one epoch; a round of many rows is for executors.

A loop itself runs in this process, as each of its rounds needs the one before. What it asks of its
kernels is placed round by round; few rows, which most rounds have, are not even weighed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nosync_nb.dataflow.graph import Node
from nosync_nb.operators import Operator, Step
from nosync_nb.spark.execution.cost_model import Forced, is_small_run
from nosync_nb.trace.batch import Updates

if TYPE_CHECKING:
    from nosync_nb.spark.execution.placement import Placement


class LoopPlacementRun:
    """Runs kernels of one loop in one epoch on executors.

    Args:
        frames: how many rows of the loop's inputs came as a DataFrame.
    """

    def __init__(
        self, placement: Placement, node: Node, step: Step, forced: Forced, frames: int
    ) -> None:
        self._placement = placement
        self._node = node
        self._step = step
        self._forced = forced
        self._frames = frames
        self._number = 0

    def wants(self, rows: int) -> bool:
        """Whether so many rows are for executors."""
        if self._forced == "spark":
            return rows > 0
        if is_small_run(rows, self._forced):
            return False
        return self._placement.wants_round(self._node, rows, min(rows, self._frames), self._forced)

    def run(
        self, operator: Operator, step: Step, types: Sequence[tuple[str, ...]]
    ) -> Updates | None:
        """Runs one kernel there."""
        self._number += 1
        updates, jobs = self._placement.run_inside(self._node, operator, step, types, self._number)
        self._step.ran_at(jobs)
        return updates
