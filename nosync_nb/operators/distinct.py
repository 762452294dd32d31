"""Operators on the count of each row: distinct, except_all, subtract, multiplicity, threshold.

The count of a row in the output is a function of its accumulated counts in the inputs. For each row
that changed, the operator evaluates this function before and after the epoch. The change of the
output is the difference of the two values. A row with a negative accumulated count is absent, and
never counts as 1.

`row_counts` returns the counts of rows in a trace. They show if a row appears, disappears or stays.

Cost: a search of O(log rows) for each row in each part, even in a group of a million rows.
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
from nosync_nb.operators.spec import DefinitionPart, Spec, fit_comparing_rows, same_key
from nosync_nb.rows import Column, Schema
from nosync_nb.rows.count_arithmetic import add_at, sums
from nosync_nb.trace import Trace, hash_ranges
from nosync_nb.trace.batch import (
    PLAIN_TYPES,
    Batch,
    Index,
    Layout,
    Updates,
    arrange,
    concat_updates,
    merge,
)

_FEW = 16
"""The maximum number of rows that Python compares; for more rows a numpy search is faster."""

_LIMIT = 1 << 62
_ndarray = np.ndarray


def row_counts(trace: Trace | None, batch: Batch, step: Step | None = None) -> Index:
    """Returns the count in a trace of each row of a batch.

    Args:
        batch: distinct rows, in the layout of the trace.
        step: counts the rows that are read as touched.
    """
    count = np.zeros(len(batch), np.int64)
    if trace is None:
        return count
    touched = 0
    if trace.layout.key is None:
        if len(batch) <= _FEW and PLAIN_TYPES.issuperset(batch.layout.types):
            few = _few_counts(trace, batch)
            if few is not None:
                if step is not None:
                    step.add_touched(few[1])
                return few[0]
        matches = trace.lookup(batch.khash, batch.columns, ())
        if matches is not None:
            add_at(count, matches.probe, matches.diff)
            touched = len(matches.diff)
    else:
        for part in trace.parts():
            touched += _add_counts(part, batch, count)
    if step is not None:
        step.add_touched(touched)
    return count


def _few_counts(trace: Trace, batch: Batch) -> tuple[Index, int] | None:
    """Returns the counts of a few rows, compared in Python, and the number of rows read.

    Returns None if a count is near the limit of 64 bits.
    """
    hashes, counts = batch.khash.tolist(), [0] * len(batch)
    read = 0
    for part in trace.parts():
        held = part.khash
        size = len(held)
        for row, at in enumerate(held.searchsorted(batch.khash).tolist()):
            while at < size and held.item(at) == hashes[row]:
                if _is_same(part, at, batch, row):
                    counts[row] += part.diff.item(at)
                    read += 1
                at += 1
    if any(abs(count) > _LIMIT for count in counts):
        return None
    return np.array(counts, np.int64), read


def _is_same(part: Batch, at: int, batch: Batch, row: int) -> bool:
    """Returns True if row `at` of a part equals row `row` of a batch."""
    for held, asked, type_ in zip(part.columns, batch.columns, batch.layout.types, strict=True):
        if type(held) is _ndarray and type(asked) is _ndarray:
            if held.item(at) != asked.item(row):
                return False
        elif not rows.equal(_one(held, at), _one(asked, row), type_).item():
            return False
    return True


def _one(column: Column, at: int) -> Column:
    return rows.take(column, np.array([at]))


def _add_counts(part: Batch, batch: Batch, count: Index) -> int:
    """Adds the count of each row in a part to `count`; returns the number of rows read."""
    low = part.khash.searchsorted(batch.khash)
    high = part.khash.searchsorted(batch.khash, "right")
    if part.code is not None and batch.code is not None:
        low, high = _narrow_ranges(part.code, batch.code, low, high)
    low, high = _narrow_ranges(part.rhash, batch.rhash, low, high)
    index = hash_ranges(low, high - low)
    if len(index):
        probe = np.arange(len(batch)).repeat(high - low)
        same = np.ones(len(index), bool)
        for held, asked, type_ in zip(part.columns, batch.columns, batch.layout.types, strict=True):
            same &= rows.equal(rows.take(held, index), rows.take(asked, probe), type_)
        add_at(count, probe[same], part.diff[index][same])
    return len(index)


def _narrow_ranges(
    held: npt.NDArray[Any], wanted: npt.NDArray[Any], low: Index, high: Index
) -> tuple[Index, Index]:
    """Narrows each range of rows, in which the values are sorted, to those of the wanted value."""
    first = _bisect_ranges(held, wanted, low, high, right=False)
    return first, _bisect_ranges(held, wanted, first, high, right=True)


def _bisect_ranges(
    held: npt.NDArray[Any], wanted: npt.NDArray[Any], low: Index, high: Index, *, right: bool
) -> Index:
    """Returns the first row of each range whose value is not below the wanted one.

    With `right`, returns the first row whose value is above the wanted one.
    """
    low, high = low.copy(), high.copy()
    while True:
        open_ = (low < high).nonzero()[0]
        if not len(open_):
            return low
        middle = (low[open_] + high[open_]) >> 1
        value = held[middle]
        below = value <= wanted[open_] if right else value < wanted[open_]
        low[open_[below]] = middle[below] + 1
        high[open_[~below]] = middle[~below]


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
    """Maps the counts of a row in the inputs to its count in the output, with a fixed function."""

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
    """Maps the count of a row to its count in the output, with a user's function.

    The function is called only for counts above 0, and once for each count in an epoch.

    Args:
        keeps: True if earlier results are retracted from a trace of memoised results. If False, the
            function is called again to retract them.
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
        """Returns the function's value for each count, and 0 for counts that are not positive.

        Args:
            known: the values that this epoch has computed; extended.
        """
        for place, count in enumerate(counts.tolist()):
            if count > 0 and count not in known:
                known[count] = self._call(count, place, changed, step)
        return np.array([known.get(n, 0) for n in counts.tolist()], np.int64)

    def _call(self, count: int, place: int, changed: Batch, step: Step) -> int:
        """Calls the function for a count.

        Raises:
            StageError: if the function raises, or if it does not return an integer of 0 or more;
                the message names a row with that count.
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
    """Appends the count of each row as the last column."""

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
    """Returns each row that changed in any input once; with several inputs, diffs are useless."""
    batches = [d for d in step.deltas if isinstance(d, Batch)]
    if len(batches) < 2:
        return batches[0] if batches else None
    ones = [
        Batch(b.layout, b.columns, b.khash, b.rhash, np.ones(len(b), np.int64)) for b in batches
    ]
    return merge(ones[0].layout, ones)


def _both(changed: Batch, step: Step) -> tuple[list[Counts], list[Counts]]:
    """Returns the counts of the changed rows in each input, before and after the epoch."""
    before = _counts(changed, step.before, step)
    if len(before) > 1:
        return before, _counts(changed, step.after, step)
    return before, [sums(before[0], changed.diff)]


def _counts(changed: Batch, traces: Sequence[Trace | None], step: Step) -> list[Counts]:
    """Returns the accumulated counts of the changed rows in each trace."""
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
