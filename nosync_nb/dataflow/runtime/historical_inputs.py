"""The past of some collections, as input for stages that are computed for past epochs.

The past consists of the session's history, and of the results that a definition has computed so
far. These results enter the history only when the definition is written. Some epochs cannot be read
separately: a stage that has caught up in one step has a gap. A reader of several collections uses
the epochs at which all of them can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from nosync_nb.dataflow.graph import Node
from nosync_nb.dataflow.runtime.delta import ArrangedChange, Delta
from nosync_nb.dataflow.runtime.epoch_result import EpochResult
from nosync_nb.trace.batch import Batch, arrange
from nosync_nb.trace.epoch_ranges import EpochRanges, Interval
from nosync_nb.trace.history.archive import total_of
from nosync_nb.trace.history.history import History


class HistoricalInputs:
    """The history up to the epoch `now`, and additions to it.

    Attributes:
        gaps: the epochs `[lower, upper)` of additions that cannot be read separately, by log.
    """

    def __init__(self, history: History, now: int) -> None:
        self.now = now
        self.gaps: dict[int, list[Interval]] = {}
        self._history = history
        self._added: dict[int, list[tuple[int, Batch]]] = {}

    def add(self, draft: EpochResult) -> None:
        """Adds the log records of a draft."""
        for number, layout, arranged in draft.logged:
            added = self._added.setdefault(number, [])
            for part in arranged.parts:
                batch = part if part.layout == layout else arrange(layout, part.updates)
                added.append((draft.epoch, batch))

    def skip(self, logs: Iterable[int], first: int, steps: Sequence[int]) -> None:
        """Records the gaps of some logs whose additions were computed in steps.

        Args:
            first: the first epoch.
            steps: the following epochs that were computed, in ascending order.
        """
        gaps = [Interval(a + 1, b) for a, b in pairwise([first, *steps]) if b > a + 1]
        for log in logs if gaps else ():
            self.gaps.setdefault(log, []).extend(gaps)

    def readable(self, nodes: Iterable[Node]) -> EpochRanges:
        """Returns the epochs at which all of some collections can be read."""
        whole = EpochRanges.from_ranges(range(self.now + 1))
        for node in nodes:
            assert node.log is not None
            whole &= EpochRanges.from_ranges(*_unit_steps(self._history.epochs(node.log, self.now)))
            for lower, upper in self.gaps.get(node.log, ()):
                whole &= EpochRanges.from_ranges(range(lower), range(upper, self.now + 1))
        return whole

    def state(self, node: Node, epoch: int) -> Batch:
        """Returns a collection at an epoch, in any layout."""
        assert node.log is not None
        return self._sum(node, self._history.state(node.log, epoch), -1, epoch)

    def changes(self, node: Node, after: int, upto: int) -> Batch:
        """Returns the net changes of a collection in `(after, upto]`, in any layout."""
        assert node.log is not None
        return self._sum(node, self._history.changes(node.log, after, upto), after, upto)

    def delta(self, node: Node, after: int, upto: int) -> Delta | None:
        """Returns the changes as input of the dataflow; None if they are empty."""
        batch = self.changes(node, after, upto)
        if not len(batch):
            return None
        return Delta(node.types, batch.updates, {batch.layout: ArrangedChange((batch,))})

    def _sum(self, node: Node, batches: list[Batch], after: int, upto: int) -> Batch:
        assert node.log is not None
        added = self._added.get(node.log, ())
        batches = batches + [batch for epoch, batch in added if after < epoch <= upto]
        return total_of(batches, node.log_layout)


def _unit_steps(epochs: Iterable[range]) -> Iterator[range]:
    """Converts ranges to ranges of step 1, because downsampled history has larger steps."""
    for each in epochs:
        if each.step == 1:
            yield each
        else:
            yield from (range(epoch, epoch + 1) for epoch in each)
