"""Operators: pure kernels over updates and sorted state.

An operator is data (it pickles, and travels to executors) with one method, `step`, which turns the
changes of its inputs into the change of its output. It stores nothing between calls: all its state
is in traces that the caller passes in and extends with the batches that `step` emits.

Since every key is independent of every other, `step` may be run on all keys at once or on slices by
range of the key hash, in this process or on executors, with equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from nosync_nb.expressions import Expression
from nosync_nb.rows import Column, Schema
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Layout, Updates

Evaluate = Callable[[Sequence[Any], Schema, list[Column], int], list[Column]]

PLAIN, JOIN, GROUP = "plain", "join", "group"
"""How an operator runs in a loop: row by row, as a join, by key."""

ROWS, GROUPS = "rows", "groups"
"""The input of a function that an audit calls again: an existing row, or a group."""


class LoopPlacement(Protocol):
    """Runs the kernels inside a loop elsewhere, one at a time (spark/execution/placement.py)."""

    def wants(self, rows: int) -> bool:
        """Returns True if a kernel over this many changed rows runs there."""

    def run(
        self, operator: Operator, step: Step, types: Sequence[tuple[str, ...]]
    ) -> Updates | None:
        """Returns the output of a kernel's step; batches that it emits are dropped.

        Args:
            types: the column types of each input.
        """


class Step:
    """The input of a kernel for one epoch, and the place for its emitted batches.

    Attributes:
        deltas: the change of each input, None if it did not change; arranged by the layout that the
            operator requires, if any.
        before: for each input with a layout, its trace without this epoch's change; else None.
        after: the same with the change.
        state: the operator's own traces before this epoch.
        emitted: the change of each own trace, to be set by the kernel.
        evaluate: evaluates in Spark the expressions that have no proved local form.
        first: True in the operator's first epoch.
        touched: rows read or written, counted by kernels.
        place: where a loop may run its kernels; None: in this process.
        placement: where they ran, if not in this process.
        memo: the cached part of `state[0]`, if the operator may have one; see
            aggregates/slot_cache.py.
        held: for an operator that may need its whole output, the current output.
        cleared: True if its own traces are emptied before the emitted batches are added.
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
        self.cleared = False
        self.placement = ""

    def give(self, deltas: Sequence[Updates | Batch | None]) -> None:
        """Sets the change of each input."""
        self.deltas = deltas

    def run_at(self, place: LoopPlacement | None) -> None:
        """Sets where a loop may run its kernels."""
        self.place = place

    def ran_at(self, placement: str) -> None:
        """Records where a kernel of a loop ran."""
        self.placement = joined_placement(self.placement, placement)

    def remember(self, memo: Any) -> None:
        """Sets the cached part of `state[0]`."""
        self.memo = memo

    def add_touched(self, rows_count: int) -> None:
        """Counts rows that were read or written."""
        self.touched += rows_count

    def clear(self) -> None:
        """Empties the operator's own traces before the emitted batches are added."""
        self.cleared = True

    def undo(self, touched: int) -> None:
        """Discards the batches of an attempt, and its touched rows since a count of `touched`."""
        self.touched = touched
        self.emitted = [None] * len(self.emitted)


class LookupHop(NamedTuple):
    """A lookup on a stage: an operator over the carried rows and the trace of a port.

    Attributes:
        sieve: a filter on its output rows, if any.
    """

    port: int
    operator: Operator
    trace: Trace
    sieve: RowPiece | None


class LookupStage(NamedTuple):
    """A part of an operator's step that other operators execute, one after the other.

    Attributes:
        port: the port with whose change it begins, after `start`.
        outputs: the output's columns among those of the last hop.
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
        layouts: for each input the order that its trace must have, or None if only its change is
            used.
        state: layouts of the operator's own traces.
        global_row: True if there is output before any input (a global aggregate).
        output_key: for operators that work by key, the positions of the key in the output.
        spreads: True if executors can run it on slices by key.
        sorts: True if changes must come in the order of their layout; else they may be batches in
            no order, with the hashes of their keys.
        loose: True if changes may come as updates, in whatever order its layouts have.
        distinct: True if no two rows of an output are equal.
        memo: builds the cache beside its first own trace, if it has one.
        whole: True if it may need all rows of its inputs and its output: they are arranged, those
            without a layout in any order.
        local: True if it runs without Spark.
        stable: True if its expressions give the same whenever they are evaluated.
        asks: True if it calls a function of the user again to retract earlier results.
        combines: True if equal rows may be consolidated before they reach it.
        additive: True if a change may come in pieces, each input's for itself: the outputs for them
            add up.
        memoises: True if its first own trace has results of functions that may give another result
            next time, so that it cannot be recomputed.
        plan: raised when the meaning of its own traces changes; see `form`.
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

    def form(self) -> list[Any]:
        """Returns the form of its state, as data: state of another form is never reused."""
        return [self.name, self.plan, *self.state]

    def step(self, step: Step) -> Updates | None:
        """Computes the change of the output; None or no rows if it does not change."""
        raise AssertionError("an operator implements step")

    def lookup_stages(
        self, changed: Sequence[object | None], step: Step
    ) -> Sequence[LookupStage] | None:
        """Returns the step as lookup stages, which executors run instead of it; None: run `step`.

        The outputs of the stages add up, and so do those for pieces of a stage's change.

        Args:
            changed: for each port a value that is not None if its input has changed.
        """
        return None

    def walk(self, leg: LookupStage, step: Step) -> Updates | None:
        """Returns the output of a stage for the change at its port, or a piece of it, if any."""
        raise AssertionError("an operator with legs implements walk")

    def visited(self, port: int, sizes: Sequence[int]) -> Sequence[int] | None:
        """Returns the ports whose traces a change at a port is looked up in, in order; None: all.

        Args:
            sizes: the rows of each port's trace.
        """
        return None

    def exchange(self) -> Layout | None:
        """Returns the layout by which changes are cut into independent slices; None: any cut."""
        return next((layout for layout in self.layouts if layout is not None), None)

    def grouping(self, port: int) -> Layout:
        """Returns the layout by whose key an input is cut, for operators that work by key."""
        layout = self.layouts[port] or self.exchange()
        assert layout is not None, f"{self.name} does not work by key"
        return layout

    def used(self, port: int) -> frozenset[int] | None:
        """Returns the columns of an input that it reads, None: all."""
        return None

    def keeping(self) -> Operator:
        """Returns the same operator for a nondeterministic stage: it memoises results."""
        return self

    @property
    def in_loop(self) -> str | None:
        """The kind of the operator in a loop, None if a loop cannot contain it."""
        return None if self.output_key is None else GROUP

    @property
    def audited(self) -> str | None:
        """The input of the function that an audit calls, None if it has no such function."""
        if not self.asks:
            return None
        return ROWS if self.output_key is None else GROUPS


class RowPiece:
    """One row-wise piece of a fused chain.

    Attributes:
        local, stable, asks: as an operator's.
        schema: of its input, if it evaluates `expressions`.
        outputs: its output columns, positions or expressions; None: it only filters rows.
    """

    name = "row"
    local = True
    stable = True
    asks = False
    schema: Schema
    expressions: Sequence[Expression] = ()
    outputs: Sequence[int | Expression] | None = None

    def apply(self, updates: Updates, step: Step) -> Updates:
        """Returns the updates after this piece."""
        raise AssertionError("a piece implements apply")

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the column types after this piece."""
        return types


def joined_placement(old: str, new: str) -> str:
    """Returns one text for the placements of several operators."""
    if not old or not new:
        return old or new
    return old if new in old else f"{old}, {new}"
