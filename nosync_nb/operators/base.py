"""Operators: pure kernels over updates and sorted state.

An operator is data: it can be pickled and sent to executors. Its main method, `step`, computes the
change of its output from the changes of its inputs. It stores nothing between calls: all its state
is in traces, which the caller passes in, and extends with the batches that `step` emits.

All keys are independent of each other. So `step` may be run on all keys at once, or on slices by
range of the key hash, in this process or on executors. The results are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from nosync_nb.expressions import Expression
from nosync_nb.rows import Column, Schema
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Layout, Updates

Evaluate = Callable[[Sequence[Any], Schema, list[Column], int], list[Column]]

PLAIN, JOIN, GROUP = "plain", "join", "group"
"""The ways in which an operator runs in a loop: row by row, as a join, or key by key."""

ROWS, GROUPS = "rows", "groups"
"""The inputs with which an audit calls a user's function again: existing rows, or groups."""


class UpdateCost(IntEnum):
    """The rows to which the work of an operator's update is proportional, the fewest first."""

    ROWS = 1
    """The changed rows and their matches."""
    GROUPS = 2
    """The groups with a changed row, whatever their size."""
    PARTITIONS = 3
    """All rows of the groups with a changed row."""
    EVERYTHING = 4
    """All rows."""

    @property
    def phrase(self) -> str:
        """The rows, for people."""
        return "everything" if self is UpdateCost.EVERYTHING else f"changed {self.name.lower()}"


class LoopPlacement(Protocol):
    """Runs single kernels of a loop on executors (spark/execution/placement.py)."""

    def wants(self, rows: int) -> bool:
        """Returns True if a kernel with `rows` changed rows should run on executors."""

    def run(
        self, operator: Operator, step: Step, types: Sequence[tuple[str, ...]]
    ) -> Updates | None:
        """Runs the step of a kernel; returns its output, and drops the batches that it emits.

        Args:
            types: the column types of each input.
        """


class Step:
    """The input of a kernel for one epoch, and the batches that the kernel emits.

    Attributes:
        deltas: the change of each input; None if the input did not change. It is arranged by the
            layout that the operator requires, if any.
        before: for each input with a layout, its trace without this epoch's change; None for an
            input without a layout.
        after: like `before`, but with this epoch's change.
        state: the operator's own traces before this epoch.
        emitted: the change of each own trace, set by the kernel.
        evaluate: evaluates in Spark the expressions that have no proved local form.
        first: True in the operator's first epoch.
        touched: the number of rows read or written, counted by kernels.
        place: where a loop may run its kernels; `None` means in this process.
        placement: where the kernels of a loop, or some expressions, ran, as text; empty if all of
            them ran in this process.
        memo: the cache beside `state[0]`, for an operator that has one; see
            aggregates/slot_cache.py.
        held: the current output, for an operator that may need its whole output.
        cleared: True if the own traces are emptied before the emitted batches are added.
        replaces: True if the output is the new contents instead of a change.
    """

    __slots__ = (
        "after",
        "before",
        "cleared",
        "deltas",
        "emitted",
        "evaluate",
        "first",
        "held",
        "memo",
        "place",
        "placement",
        "replaces",
        "stage",
        "state",
        "touched",
    )

    def __init__(
        self,
        deltas: Sequence[Updates | Batch | None],
        before: Sequence[Trace | None],
        after: Sequence[Trace | None],
        state: Sequence[Trace],
        *,
        stage: str = "",
        first: bool = False,
        evaluate: Evaluate | None = None,
        place: LoopPlacement | None = None,
        held: Trace | None = None,
    ) -> None:
        self.deltas = deltas
        self.before = before
        self.after = after
        self.state = state
        self.emitted: list[Batch | None] = [None] * len(state)
        self.stage = stage
        self.first = first
        self.evaluate = evaluate
        self.touched = 0
        self.place = place
        self.memo: Any = None
        self.held = held
        self.cleared = self.replaces = False
        self.placement = ""

    def give(self, deltas: Sequence[Updates | Batch | None]) -> None:
        """Replaces the changes of the inputs."""
        self.deltas = deltas

    def run_at(self, place: LoopPlacement | None) -> None:
        """Sets the executors on which a loop may run its kernels; `None` means this process."""
        self.place = place

    def ran_at(self, placement: str) -> None:
        """Adds the placement of a loop's kernel, or of expressions, to `placement`."""
        self.placement = joined_placement(self.placement, placement)

    def remember(self, memo: Any) -> None:
        """Sets the cache beside `state[0]`."""
        self.memo = memo

    def add_touched(self, rows_count: int) -> None:
        """Adds to the number of rows that were read or written."""
        self.touched += rows_count

    def clear(self) -> None:
        """Requests that the own traces are emptied before the emitted batches are added."""
        self.cleared = True

    def replace(self) -> None:
        """Declares the output to be the new contents: the runner subtracts the previous ones."""
        self.replaces = True

    def undo(self, touched: int) -> None:
        """Discards the batches of an attempt, and resets the number of touched rows."""
        self.touched = touched
        self.emitted = [None] * len(self.emitted)


class LookupHop(NamedTuple):
    """One lookup of a lookup stage: pairs the carried rows with the trace of a port.

    Attributes:
        operator: the join of the carried rows with the trace.
        sieve: a filter on the output rows, if any.
    """

    port: int
    operator: Operator
    trace: Trace
    sieve: RowPiece | None


class LookupStage(NamedTuple):
    """A part of an operator's step: a chain of lookups, which executors can run separately.

    Attributes:
        port: the port whose change is looked up.
        start: a filter on the rows of that change, if any.
        hops: the lookups, in order.
        outputs: the positions of the output's columns in the rows of the last lookup.
    """

    port: int
    start: RowPiece | None
    hops: tuple[LookupHop, ...]
    outputs: tuple[int, ...]


class Operator:
    """The base of operators.

    Attributes:
        name: the word that `explain()` shows.
        types: column types of the output.
        layouts: for each input the layout that its trace must have; None if the operator uses only
            the change of the input.
        state: layouts of the operator's own traces.
        global_row: True if there is output without any input, as for a global aggregate.
        output_key: the positions of the key in the output, for operators that work by key.
        spreads: True if executors can run the operator on slices by key.
        sorts: True if changes must be sorted by their layout. If False, they may be unsorted
            batches with the hashes of their keys.
        loose: True if changes may be plain updates, even for inputs with a layout.
        distinct: True if no two rows of an output are equal.
        memo: builds the cache beside the first own trace, if the operator has such a cache.
        whole: True if the operator may need all rows of its inputs and of its output. All of them
            are arranged; an input without a layout may have any order.
        local: True if the operator runs without Spark.
        stable: True if its expressions return the same values at each evaluation.
        asks: True if it calls a user's function again to retract earlier results.
        combines: True if equal rows may be consolidated before they reach the operator.
        additive: True if a change may be processed in pieces, and the changes of the inputs
            separately: the outputs add up.
        memoises: True if its first own trace stores results of functions that may return another
            result at the next call. Such a trace cannot be recomputed.
        plan: a version number, raised when the meaning of the own traces changes; see `form`.
        update_cost: the rows to which the work of an update is proportional, for `explain()`.
    """

    name = "operator"
    types: tuple[str, ...] = ()
    layouts: tuple[Layout | None, ...] = (None,)
    state: tuple[Layout, ...] = ()
    global_row = False
    output_key: tuple[int, ...] | None = None
    spreads = True
    sorts = True
    loose = False
    distinct = False
    memo: Callable[[], Any] | None = None
    whole = False
    local = True
    stable = True
    asks = False
    combines = False
    additive = False
    memoises = False
    plan = 1
    update_cost = UpdateCost.ROWS

    def form(self) -> list[Any]:
        """Returns the form of the operator's state, as data; only state of equal form is reused."""
        return [self.name, self.plan, *self.state]

    def step(self, step: Step) -> Updates | None:
        """Returns the change of the output; None or no rows if the output does not change."""
        raise AssertionError("an operator implements step")

    def lookup_stages(
        self, changed: Sequence[object | None], step: Step
    ) -> Sequence[LookupStage] | None:
        """Returns the step as lookup stages, which executors run in place of `step`.

        The outputs of the stages add up, as do the outputs for pieces of the change of a stage.

        Args:
            changed: for each port a value that is not None if the input of the port has changed.

        Returns:
            the stages; None if `step` must be run.
        """
        return None

    def walk(self, leg: LookupStage, step: Step) -> Updates | None:
        """Returns the output of a stage for the change, or a piece of the change, at its port."""
        raise AssertionError("an operator with legs implements walk")

    def visited(self, port: int, sizes: Sequence[int]) -> Sequence[int] | None:
        """Returns the ports in whose traces a change at a port is looked up, in order.

        Args:
            sizes: the number of rows of each port's trace.

        Returns:
            the ports; None if all traces may be read.
        """
        return None

    def state_rows(self, inputs: Sequence[float], output: float) -> Sequence[float]:
        """Returns the estimated rows of each own trace, given those of the inputs and the output.

        The default is for an operator that stores the rows of its largest input.
        """
        return [max(inputs, default=output)] * len(self.state)

    def exchange(self) -> Layout | None:
        """Returns the layout by whose key changes are split; None if any split is correct."""
        return next((layout for layout in self.layouts if layout is not None), None)

    def grouping(self, port: int) -> Layout:
        """Returns the layout by whose key an input is grouped, for operators that work by key."""
        layout = self.layouts[port] or self.exchange()
        assert layout is not None, f"{self.name} does not work by key"
        return layout

    def used(self, port: int) -> frozenset[int] | None:
        """Returns the columns of an input that the operator reads; None if it reads all."""
        return None

    def keeping(self) -> Operator:
        """Returns the variant for nondeterministic stages, which memoises results."""
        return self

    @property
    def in_loop(self) -> str | None:
        """The way in which the operator runs in a loop; None if a loop cannot contain it."""
        return None if self.output_key is None else GROUP

    @property
    def audited(self) -> str | None:
        """The input with which an audit calls the user's function; None without a function."""
        if not self.asks:
            return None
        return ROWS if self.output_key is None else GROUPS


class RowPiece:
    """One row-wise piece of a fused chain.

    Attributes:
        local, stable, asks: as for `Operator`.
        schema: the schema of the input, for a piece that evaluates `expressions`.
        outputs: the output columns of a select, as input positions or expressions; None for any
            other piece.
    """

    name = "row"
    local = True
    stable = True
    asks = False
    schema: Schema
    expressions: Sequence[Expression] = ()
    outputs: Sequence[int | Expression] | None = None

    def apply(self, updates: Updates, step: Step) -> Updates:
        """Applies this piece to updates, and returns the result."""
        raise AssertionError("a piece implements apply")

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the column types of the output, given those of the input."""
        return types


def joined_placement(old: str, new: str) -> str:
    """Returns one text for two placements; equal placements are not repeated."""
    if not old or not new:
        return old or new
    return old if new in old else f"{old}, {new}"
