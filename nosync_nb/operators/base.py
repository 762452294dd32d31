"""What an operator is: a pure kernel over updates and sorted state.

An operator is data (it pickles, and travels to executors) with one method, `step`, which turns the
changes of its inputs into the change of its output. It keeps nothing between calls: everything it
remembers is in traces that the caller passes in and extends with what `step` emits.

Since every key is independent of every other, `step` may be run on all keys at once or on slices
by range of the key hash, in this process or on executors, with equal results.
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
"""What an operator is in a loop: row by row, join, by key."""

ROWS, GROUPS = "rows", "groups"
"""What an audit has functions asked for again: a row that is there, or a group."""


class LoopPlacement(Protocol):
    """Runs the kernels inside a loop elsewhere, one at a time (spark/execution/placement.py)."""

    def wants(self, rows: int) -> bool:
        """Whether a kernel over so many changed rows is to run there."""

    def run(
        self, operator: Operator, step: Step, types: Sequence[tuple[str, ...]]
    ) -> Updates | None:
        """The output of a kernel's step; what it emits is dropped.

        Args:
            types: the column types of each input.
        """


class Step:
    """What a kernel is given for one epoch, and where it leaves what it emits.

    Attributes:
        deltas: the change of each input, None if it did not change; arranged by the layout the
            operator asked for, if it asked.
        before: for each input with a layout, its trace without this epoch's change; else None.
        after: the same with the change.
        state: the operator's own traces before this epoch.
        emitted: the change of each own trace, to be set by the kernel.
        evaluate: asks Spark for expressions that have no proved local form.
        first: whether this is the operator's first epoch.
        touched: rows read or written, counted by kernels.
        place: where a loop may run its kernels; None: here.
        placement: where they ran, if not here.
        memo: what the operator remembers of `state[0]`, if it may; see memo.py.
        held: for an operator that may need the whole of everything, what it gave until now.
        cleared: whether its own traces are emptied before what it emits is added to them.
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
        """Gives it the change of each input."""
        self.deltas = deltas

    def run_at(self, place: LoopPlacement | None) -> None:
        """Says where a loop may run its kernels."""
        self.place = place

    def ran_at(self, placement: str) -> None:
        """Notes where a kernel of a loop ran."""
        self.placement = joined_placement(self.placement, placement)

    def remember(self, memo: Any) -> None:
        """Gives it what the operator remembers of `state[0]`."""
        self.memo = memo

    def add_touched(self, rows_count: int) -> None:
        """Counts rows that were read or written."""
        self.touched += rows_count

    def clear(self) -> None:
        """Has the operator's own traces emptied before what it emits is added."""
        self.cleared = True

    def undo(self, touched: int) -> None:
        """Forgets what an attempt left here since so many rows were touched."""
        self.touched = touched
        self.emitted = [None] * len(self.emitted)


class LookupHop(NamedTuple):
    """A lookup on a leg: an operator over what is carried and the trace of a port.

    Attributes:
        sieve: what is asked of the rows that it gives, if anything.
    """

    port: int
    operator: Operator
    trace: Trace
    sieve: RowPiece | None


class LookupStage(NamedTuple):
    """A share of an operator's step that other operators do, one after the other.

    Attributes:
        port: whose change it begins with, after `start`.
        outputs: the columns of what the last hop gives that are the output's.
    """

    port: int
    start: RowPiece | None
    hops: tuple[LookupHop, ...]
    outputs: tuple[int, ...]


class Operator:
    """The base of operators.

    Attributes:
        name: the word `explain()` shows.
        types: column types of the output.
        layouts: for each input the order its trace must have, or None if only its change is used.
        state: layouts of the operator's own traces.
        global_row: whether there is output before any input (a global aggregate).
        output_key: for operators that work by key, the positions of the key in the output.
        spreads: whether executors can run it on slices by key.
        sorts: whether changes must come in the order of their layout; else they may be batches in
            no order, with the hashes of their keys.
        loose: whether changes may come as updates, in whatever order its layouts have.
        distinct: whether no two rows of an output are equal.
        memo: what makes the memo that it keeps beside its first own trace, if it keeps one.
        whole: whether it may need all that its inputs and its output hold: traces of them are
            kept, those without a layout in any order.
        local: whether it runs without Spark.
        stable: whether its expressions give the same whenever they are evaluated.
        asks: whether it calls a function of the user again to retract what that gave.
        combines: whether equal rows may be added up before they get to it.
        additive: whether a change may come in pieces, each input's for itself: what it gives for
            them adds up.
        memoises: whether its first own trace holds results of functions that may give another
            result next time, so that it cannot be computed again.
        plan: raised when its own traces come to mean something else; see `form`.
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
        """How it keeps what it remembers, as data: from another form nothing is taken over."""
        return [self.name, self.plan, *self.state]

    def step(self, step: Step) -> Updates | None:
        """Computes the change of the output; None or no rows if there is none."""
        raise AssertionError("an operator implements step")

    def legs(self, changed: Sequence[object | None], step: Step) -> Sequence[LookupStage] | None:
        """The step as what others do, which executors run in its stead; None: it is run itself.

        What the legs give adds up, and so does what one gives for pieces of its change.

        Args:
            changed: for each port something if its input has changed.
        """
        return None

    def walk(self, leg: LookupStage, step: Step) -> Updates | None:
        """What a leg gives for the change at its port, or a piece of it; None: nothing."""
        raise AssertionError("an operator with legs implements walk")

    def visited(self, port: int, sizes: Sequence[int]) -> Sequence[int] | None:
        """The ports whose traces a change at a port is looked up in, in order; None: all.

        Args:
            sizes: the rows of each port's trace.
        """
        return None

    def exchange(self) -> Layout | None:
        """The layout by which changes must be cut for slices to be independent; None: any cut."""
        return next((layout for layout in self.layouts if layout is not None), None)

    def grouping(self, port: int) -> Layout:
        """The layout by whose key an input is cut, for operators that work by key."""
        layout = self.layouts[port] or self.exchange()
        assert layout is not None, f"{self.name} does not work by key"
        return layout

    def used(self, port: int) -> frozenset[int] | None:
        """The columns of an input that it looks at, None: all."""
        return None

    def keeping(self) -> Operator:
        """The same for a stage that is not deterministic: it asks no function again."""
        return self

    @property
    def in_loop(self) -> str | None:
        """What it is in a loop, None if it cannot be in one."""
        return None if self.output_key is None else GROUP

    @property
    def audited(self) -> str | None:
        """What an audit asks of it, None if it has no function to ask."""
        if not self.asks:
            return None
        return ROWS if self.output_key is None else GROUPS


class RowPiece:
    """One row-wise piece of a fused chain.

    Attributes:
        local, stable, asks: as an operator's.
        schema: of what it reads, if it evaluates `expressions`.
        outputs: what its columns are, places or expressions; None: it only keeps or drops rows.
    """

    name = "row"
    local = True
    stable = True
    asks = False
    schema: Schema
    expressions: Sequence[Expression] = ()
    outputs: Sequence[int | Expression] | None = None

    def apply(self, updates: Updates, step: Step) -> Updates:
        """The updates after this piece."""
        raise AssertionError("a piece implements apply")

    def types_after(self, types: tuple[str, ...]) -> tuple[str, ...]:
        """The column types after this piece."""
        return types


def joined_placement(old: str, new: str) -> str:
    """One text for the placements of several operators."""
    if not old or not new:
        return old or new
    return old if new in old else f"{old}, {new}"
