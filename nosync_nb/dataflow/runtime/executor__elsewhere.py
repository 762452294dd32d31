"""Elsewhere: what a runner asks of who decides where operators run, and runs them on executors.

The room of Spark answers it (`nosync_nb.spark.execution.placement`); without it everything runs in
process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nosync_nb.dataflow.graph import Graph, Node
from nosync_nb.dataflow.runtime.delta import ArrangedChange, Delta
from nosync_nb.operators import LoopPlacement, Step
from nosync_nb.operators.base import joined_placement


class OperatorResult(NamedTuple):
    """What running one operator gave."""

    delta: Delta | None
    emitted: list[ArrangedChange | None]
    touched: int
    placement: str

    def with_late(self, deltas: Sequence[Delta | None]) -> OperatorResult:
        """With what those operators took that were left to this one, and had to be run before."""
        touched, placement = self.touched, self.placement
        for delta in dict.fromkeys(deltas):
            work = None if delta is None else delta.late_work
            if work is not None:
                touched += work[0]
                placement = joined_placement(work[1], placement)
        return self._replace(touched=touched, placement=placement)


class PlacementDecision(Protocol):
    """Where one run goes; see `nosync_nb.spark.execution.cost_model`."""

    @property
    def there(self) -> bool:
        """Whether on executors."""

    @property
    def why(self) -> str:
        """The reason, for people."""

    @property
    def rows(self) -> int:
        """The changed rows that were weighed, 0 if they were too few for that."""


class BulkExecutor(Protocol):
    """Runs an operator on Spark executors; see `nosync_nb.spark`."""

    def choose(self, node: Node, deltas: list[Delta | None]) -> PlacementDecision:
        """Where this run goes."""

    def run(
        self, node: Node, deltas: list[Delta | None], step: Step, graph: Graph, *, fuse: bool
    ) -> OperatorResult:
        """Runs it there; with `fuse`, leaves it to the one that reads it, if that can be."""

    def inside(self, node: Node, deltas: list[Delta | None], step: Step) -> LoopPlacement | None:
        """Where the kernels inside a loop may run; None: all of them here."""

    def measured(self, node: Node, rows: int, seconds: float) -> None:
        """Hears how long a run that was weighed, and stayed in this process, has taken."""


class SpillTarget(Protocol):
    """Puts what a run gives into files as it comes; see `nosync_nb.store.spill_files`."""

    def spilled(self, number: int, held: ArrangedChange, epoch: int) -> ArrangedChange:
        """The batch of a log or a trace: in files if it is large, else as it is."""

    def rest(self, size_bytes: int) -> None:
        """Is told that so many bytes of files were read; it may let go of their pages."""
