"""A row-wise chain with memoised results, for functions that may give another result next time.

The function is called once for each row that appears, whatever its count. A trace stores the
results by row, so that a retraction removes exactly these. When the last copy of a row is removed,
so are its results; if the row returns, the function is called again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nosync_nb import rows
from nosync_nb.expressions import statement_clock
from nosync_nb.operators.base import Operator, Step
from nosync_nb.operators.linear import Linear
from nosync_nb.operators.row_counts import row_counts
from nosync_nb.rows.count_arithmetic import products
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates


class MemoizedMap(Operator):
    """A row-wise chain whose results are memoised by input row.

    Args:
        types: of the input.
        linear: the chain.
    """

    memoises = True

    def __init__(self, types: Sequence[str], linear: Linear) -> None:
        self.given = tuple(types)
        self.linear = linear
        self.name = f"{linear.name}, kept"
        self.types = linear.types
        self.local = linear.local
        self.layouts = (Layout(self.given),)
        self.state = (Layout((*self.given, *self.types), tuple(range(len(self.given)))),)

    def step(self, step: Step) -> Updates | None:
        delta = step.deltas[0]
        if not isinstance(delta, Batch) or not len(delta):
            return None
        before = row_counts(step.before[0], delta, step)
        after = before + delta.diff
        step.add_touched(len(delta))
        outputs: list[Updates] = []
        kept: list[Updates] = []
        old = step.state[0].lookup(delta.khash, delta.columns)
        if old is not None:
            step.add_touched(len(old.diff))
            self._existing_rows(
                old.probe, Updates(old.columns, old.diff), delta, after, outputs, kept
            )
        fresh = ((before == 0) & (after != 0)).nonzero()[0]
        if len(fresh):
            self._new_rows(fresh, delta, after, step, outputs, kept)
        if kept:
            change = arrange(self.state[0], concat_updates(kept, self.state[0].types))
            step.emitted[0] = change if len(change) else None
        return concat_updates(outputs, self.types) if outputs else None

    def _existing_rows(
        self,
        probe: np.ndarray[tuple[int], np.dtype[np.int64]],
        old: Updates,
        delta: Batch,
        after: np.ndarray[tuple[int], np.dtype[np.int64]],
        made: list[Updates],
        kept: list[Updates],
    ) -> None:
        """Rows that exist: more or fewer copies of the memoised results."""
        made.append(Updates(old.columns[len(self.given) :], products(old.diff, delta.diff[probe])))
        gone = (after[probe] == 0).nonzero()[0]
        if len(gone):
            kept.append(old.take(gone).negated())

    def _new_rows(
        self,
        fresh: np.ndarray[tuple[int], np.dtype[np.int64]],
        delta: Batch,
        after: np.ndarray[tuple[int], np.dtype[np.int64]],
        step: Step,
        made: list[Updates],
        kept: list[Updates],
    ) -> None:
        """Rows that appear: the chain runs on one copy; diffs identify the row of each result."""
        columns = [rows.take(c, fresh) for c in delta.columns]
        numbered = Updates(columns, np.arange(1, len(fresh) + 1))
        inner = Step(
            [numbered], [None], [None], (), stage=step.stage, first=True, evaluate=step.evaluate
        )
        with statement_clock():
            output = self.linear.step(inner)
        if output is None or not len(output.diff):
            return
        owner = np.abs(output.diff) - 1
        sign = np.sign(output.diff)
        made.append(Updates(output.columns, sign * after[fresh[owner]]))
        inputs = [rows.take(c, owner) for c in columns]
        kept.append(Updates([*inputs, *output.columns], sign))
