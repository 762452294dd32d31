"""Operators on the count of each row: distinct, except_all, subtract, multiplicity, threshold.

For each row that changed, the accumulated count of the row in every input before and after the
epoch gives the count of the row in the output before and after. The change of the output is their
difference. A row with a negative accumulated count is absent, and never counts as 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nosync_nb import rows
from nosync_nb.errors import StageError, text_of, titled
from nosync_nb.expressions import Types
from nosync_nb.operators import user_functions
from nosync_nb.operators.base import Operator, Step
from nosync_nb.operators.row_counts import row_counts
from nosync_nb.operators.spec import DefinitionPart, Spec, fit_comparing_rows, same_key
from nosync_nb.rows import Schema
from nosync_nb.rows.count_arithmetic import sums
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates, merge

Counts = npt.NDArray[np.int64]


def distinct(counts: list[Counts]) -> Counts:
    """Returns 1 for each row with a positive count."""
    return (counts[0] > 0).astype(np.int64)


def except_all(counts: list[Counts]) -> Counts:
    """Returns the left count minus the right one, never below 0."""
    left: Counts = counts[0] - counts[1]
    return left.clip(0)


def subtract(counts: list[Counts]) -> Counts:
    """Returns 1 for each row that exists on the left and not on the right."""
    return ((counts[0] > 0) & (counts[1] <= 0)).astype(np.int64)


class Threshold(Operator):
    """Maps the counts of a row in the inputs to its count in the output."""

    distinct = True

    def __init__(
        self,
        name: str,
        types: Sequence[str],
        function: Callable[[list[Counts]], Counts],
        inputs: int = 1,
    ) -> None:
        self.name = name
        self.types = tuple(types)
        self.function = function
        self.layouts = (Layout(self.types),) * inputs
        self.output_key = tuple(range(len(self.types)))

    def step(self, step: Step) -> Updates | None:
        changed = _changed(step)
        if changed is None:
            return None
        before, after = _both(changed, step)
        diff = self.function(after) - self.function(before)
        index = diff.nonzero()[0]
        return Updates([rows.take(c, index) for c in changed.columns], diff[index])


class ThresholdFunction(Operator):
    """Maps the count of a row to its count in the output, by a function of the user.

    The function is called for counts above 0 only, once for each count in an epoch.

    Args:
        keeps: retracts memoised results from a trace of its own, and does not call the function
            again.
    """

    name = "threshold"
    asks = True

    def __init__(
        self, function: Callable[[int], Any], schema: Schema, *, keeps: bool = False
    ) -> None:
        self.function = function
        self.memoises = keeps
        if keeps:
            self.state = (Layout(schema.types),)
        self.schema = schema
        self.types = schema.types
        self.layouts = (Layout(self.types),)
        self.output_key = tuple(range(len(self.types)))

    def step(self, step: Step) -> Updates | None:
        changed = _changed(step)
        if changed is None:
            return None
        results: dict[int, int] = {}
        (before,), (after,) = _both(changed, step)
        if self.state:
            (old,) = _counts(changed, step.state, step)
        else:
            old = self._copies(before, changed, step, results)
        diff = self._copies(after, changed, step, results) - old
        index = diff.nonzero()[0]
        change = Updates([rows.take(c, index) for c in changed.columns], diff[index])
        if self.state and len(index):
            step.emitted[0] = arrange(self.state[0], change)
        return change

    def keeping(self) -> Operator:
        return ThresholdFunction(self.function, self.schema, keeps=True)

    def _copies(self, counts: Counts, changed: Batch, step: Step, known: dict[int, int]) -> Counts:
        """The function's value for each count; 0 for counts that are not positive."""
        for place, count in enumerate(counts.tolist()):
            if count > 0 and count not in known:
                known[count] = self._call(count, place, changed, step)
        return np.array([known.get(n, 0) for n in counts.tolist()], np.int64)

    def _call(self, count: int, place: int, changed: Batch, step: Step) -> int:
        """Calls the function.

        Raises:
            StageError: if it raises, or returns no integer or a negative one; names a row.
        """
        one = [rows.take(c, np.array([place])) for c in changed.columns]
        (row,) = user_functions.named_tuples(one, self.schema, 1)
        value = user_functions.call_user_function(self.function, step.stage, row, count)
        if isinstance(value, int | np.integer | np.bool_) and 0 <= value < 2**63:
            return int(value)
        name = getattr(self.function, "__name__", "function")
        raise StageError(
            f"{titled(step.stage)}: threshold({name}) returned {text_of(value)} for the count"
            f" {count} of {row!r}",
            hint="return the number of copies of the row: an integer, 0 or more",
            stage=step.stage,
            row=row,
        )


class Multiplicity(Operator):
    """Each row with its count as a last column."""

    name = "multiplicity"

    def __init__(self, types: Sequence[str]) -> None:
        self.types = (*types, "bigint")
        self.layouts = (Layout(tuple(types)),)
        self.output_key = tuple(range(len(types)))

    def step(self, step: Step) -> Updates | None:
        changed = _changed(step)
        if changed is None:
            return None
        (before,), (after,) = _both(changed, step)
        parts = []
        for count, sign in ((before, -1), (after, 1)):
            index = ((before != after) & (count != 0)).nonzero()[0]
            columns = [rows.take(c, index) for c in changed.columns]
            parts.append(Updates([*columns, count[index]], np.full(len(index), sign, np.int64)))
        return concat_updates(parts, self.types)


def _changed(step: Step) -> Batch | None:
    """The rows that changed in any input, each once (their diffs are of no use)."""
    batches = [d for d in step.deltas if isinstance(d, Batch)]
    if len(batches) < 2:
        return batches[0] if batches else None
    ones = [
        Batch(b.layout, b.columns, b.khash, b.rhash, np.ones(len(b), np.int64)) for b in batches
    ]
    return merge(ones[0].layout, ones)


def _both(changed: Batch, step: Step) -> tuple[list[Counts], list[Counts]]:
    """The counts of each changed row in each input, before and after the epoch."""
    before = _counts(changed, step.before, step)
    if len(before) > 1:
        return before, _counts(changed, step.after, step)
    return before, [sums(before[0], changed.diff)]


def _counts(changed: Batch, traces: Sequence[Trace | None], step: Step) -> list[Counts]:
    """The accumulated count of each changed row in each trace."""
    step.add_touched(len(changed))
    return [row_counts(trace, changed, step) for trace in traces]


def _threshold(name: str, function: Callable[[list[Counts]], Counts]) -> Spec:
    def build(part: DefinitionPart, types: Types | None) -> Operator:
        return Threshold(name, part.schema.types, function, len(part.inputs))

    return Spec(name, fit_comparing_rows, build=build, key=same_key)


def _function(part: DefinitionPart, types: Types | None) -> Operator:
    return ThresholdFunction(part.functions[0], part.schema)


SPECS = (
    _threshold("distinct", distinct),
    _threshold("except_all", except_all),
    _threshold("subtract", subtract),
    Spec(
        "multiplicity",
        fit_comparing_rows,
        build=lambda part, _: Multiplicity(part.inputs[0].schema.types),
        key=same_key,
    ),
    Spec(
        "threshold", fit_comparing_rows, build=_function, key=same_key
    ),  # the function gets counts, not rows
)
