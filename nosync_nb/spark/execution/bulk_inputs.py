"""Converts dataflow changes to inputs of a bulk run, and defers operators that can be fused.

A stateless operator with a single consumer does not run by itself. It becomes a `DeferredBulkRun`
that runs in the query of its consumer, so its output is neither written nor counted. If the rows
are needed for another purpose, it runs by itself after all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nosync_nb.dataflow.runtime.delta import Delta, UnarrangedChange
from nosync_nb.operators import Linear, Operator, Step
from nosync_nb.rows.count_arithmetic import CountError, named_count_error
from nosync_nb.spark.execution.bulk_run import BulkInput, FusedUpstream
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout


class BulkOutput(NamedTuple):
    """The result of a deferred run: its output, the rows that it touched, and its Spark jobs."""

    loose: UnarrangedChange | None
    touched: int
    jobs: str


class DeferredBulkRun:
    """A change that executors compute when its consumer runs.

    Args:
        up: the operator that makes it.
        rows: the number of rows in its input changes.
        from_frame: how many of these came from a DataFrame.
        run: runs the operator by itself.
    """

    def __init__(
        self,
        up: FusedUpstream,
        rows: int,
        from_frame: int,
        run: Callable[[FusedUpstream], BulkOutput],
    ) -> None:
        self.up = up
        self.rows = rows
        self.from_frame = from_frame
        self._run = run
        self._output: BulkOutput | None = None

    @property
    def size_bytes(self) -> int:
        """The size of its input changes."""
        return self.up.size_bytes

    @property
    def was_run_separately(self) -> bool:
        """True if it was run by itself."""
        return self._output is not None

    @property
    def work(self) -> tuple[int, str] | None:
        """The work of running it by itself; see `delta.DeferredChange`."""
        return None if self._output is None else (self._output.touched, self._output.jobs)

    def run_separately(self) -> UnarrangedChange | None:
        """Runs it by itself, once."""
        if self._output is None:
            try:
                self._output = self._run(self.up)
            except CountError as error:
                raise named_count_error(error, self.up.stage, self.up.operator.name) from None
        return self._output.loose


def can_fuse(operator: Operator) -> bool:
    """Returns True if an operator may run in its consumer's query: it has no other effect."""
    return operator.local and operator.spreads and not operator.state and not operator.global_row


def defer_bulk_run(
    operator: Operator,
    inputs: Sequence[BulkInput],
    deltas: Sequence[Delta | None],
    step: Step,
    run: Callable[[FusedUpstream], BulkOutput],
) -> DeferredBulkRun:
    """Defers an operator's step over some changes to its consumer."""
    given = [delta for delta in dict.fromkeys(deltas) if delta is not None]
    size = sum(delta.size_bytes for delta in given)
    up = FusedUpstream(operator, inputs, step.stage, step.first, size)
    return DeferredBulkRun(up, sum(map(len, given)), sum(delta.from_frame for delta in given), run)


def bulk_input_of(
    delta: Delta | None,
    types: tuple[str, ...],
    wanted: Layout | None,
    before: Trace | None,
    *,
    alone: bool,
) -> BulkInput:
    """An input of a bulk run: its files, with the row-wise operators before it.

    Args:
        wanted: the order in which the operator reads it, None: any.
        before: the trace of the input before the change.
        alone: True if the run cannot include fused operators.
    """
    if delta is None:
        return BulkInput(None, types, None, None, before)
    pre = None
    while delta.later is not None:
        source, linear, _ = delta.later
        pieces = linear.pieces if pre is None else (*linear.pieces, *pre.pieces)
        pre = Linear(pieces, types)
        delta = source
    late = delta.pending
    if isinstance(late, DeferredBulkRun):
        if not (alone or late.was_run_separately or (pre is not None and not pre.local)):
            return BulkInput(None, delta.types, None, pre, before, late.up)
        loose = late.run_separately()
        return BulkInput(list(loose.refs) if loose else None, delta.types, None, pre, before)
    if delta.loose is not None:
        return BulkInput(list(delta.loose.refs), delta.types, None, pre, before)
    layouts = sorted(delta.held, key=lambda layout: layout != wanted)
    for layout in layouts:
        held = delta.held[layout]
        if held.refs:
            return BulkInput(list(held.refs), delta.types, layout, pre, before)
    if layouts and wanted in delta.held:
        return BulkInput(list(delta.held[wanted].parts), delta.types, wanted, pre, before)
    return BulkInput([delta.updates], delta.types, None, pre, before)
