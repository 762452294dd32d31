"""The loop as one operator: it follows the changes of an epoch, or runs from scratch.

The state of all nodes is stored in traces of the operator, with rounds as columns. They are logged
and restored like any other traces. `batch_driver` runs the rounds. `LoopCostEstimate` decides if
they start from the changes or from scratch. After a run from scratch, the output is the difference
from the previous result. The traces are then cleared and refilled, or changed by the difference if
that is smaller.

The cost of following changes is proportional to the rows that they touch in each round, because the
whole history of a key is read again. If nearly all rows are touched, a run from scratch costs a
fraction of this. Therefore following is abandoned when it has cost three fifths of the last run
from scratch, or in a small loop the whole cost of that run. It is also abandoned when rounds are
dense (see `batch_driver`, and `row_driver` for runs on rows). So an epoch costs at most about twice
the cost of a run from scratch.

A loop that abandoned following in two successive epochs *rests*. It then has no traces except a
mark, because all of its traces would change in each epoch. It runs from scratch in each epoch, and
logs only the difference of its result. From time to time it stores the traces of such a run, and
follows the next epoch, to test if following pays again.

The estimates are in memory. They affect the cost of an epoch, never its result. After a restart
they are guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nosync_nb.operators.base import Operator, Step, UpdateCost
from nosync_nb.operators.iterate.batch_driver import FREE_WORK, LoopRun
from nosync_nb.operators.iterate.divergence import overflow_error
from nosync_nb.operators.iterate.key_cache import ROWS_MAX, LoopKeyCaches, TooManyChangesError
from nosync_nb.operators.iterate.nested_trace import NestedTrace
from nosync_nb.operators.iterate.plan import AbandonedError, LoopNode, LoopScope, readers_of_nodes
from nosync_nb.operators.iterate.row_driver import FEW_ROWS, RowLoopRun, RowPlan
from nosync_nb.rows.count_arithmetic import CountError
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates, merge
from nosync_nb.trace.difference import difference, negated

SMALL_WORK = 100_000
"""The maximum cost of a run from scratch, in rows, of a small loop. In a small loop following costs
nearly the same, because a single row needs the same number of rounds."""

GUESS = 4
"""The assumed cost of a run from scratch after a restart, in multiples of the rows of the loop's
traces. It is at least `SMALL_WORK`."""

MOST = 0.75
"""With more changed rows than this share of the rows of its inputs a loop runs from scratch."""

SMALL_CHANGE = 4096
"""Up to this number of changed rows a loop follows first, whatever the number of its rows."""

PATIENCE_MIN, PATIENCE_MAX = 4, 64
"""The bounds of the number of epochs for which a loop rests; the number doubles each time."""


class LoopCostEstimate:
    """The costs of one loop in the past.

    Attributes:
        whole: the cost of the last run from scratch in rows; None if it is unknown.
        rounds: the cost of each round of the outermost loop in that run.
        failed: the number of successive epochs that abandoned following the changes.
        patience: the number of epochs of the next rest.
        rests: the number of epochs for which the loop still rests.
        mirror: the key caches of the loop, if any.
        unmirrored: the number of further epochs in which missing key caches are not rebuilt.
    """

    __slots__ = ("_gaps", "failed", "mirror", "patience", "rests", "rounds", "unmirrored", "whole")

    def __init__(self) -> None:
        self.whole: int | None = None
        self.rounds: Mapping[int, int] = {}
        self.failed = 0
        self.patience = PATIENCE_MIN
        self.rests = PATIENCE_MIN
        self.mirror: LoopKeyCaches | None = None
        self.unmirrored = 0
        self._gaps = 0

    def take_mirror(self) -> LoopKeyCaches | None:
        """Takes the key caches, if any, which transfers their ownership to the caller."""
        mirror, self.mirror = self.mirror, None
        return mirror

    def ran_anew(self, work: int, rounds: Mapping[int, int]) -> None:
        """Records the cost of a run from scratch, and of its rounds."""
        self.whole = work
        self.rounds = rounds

    def gave_up(self) -> None:
        """Records that a run on rows had too many changes; caches are then unused for longer."""
        self._gaps = min(2 * self._gaps + 1, PATIENCE_MAX)
        self.unmirrored = self._gaps

    def was_few(self) -> None:
        """Records that a run on rows succeeded; a later failure then has a shorter effect."""
        self._gaps //= 2

    def mirrors(self) -> bool:
        """Returns True if missing key caches may be rebuilt in this epoch; counts the epoch."""
        if self.unmirrored > 0:
            self.unmirrored -= 1
            return False
        return True

    def budget(self, rows_count: int) -> int:
        """Returns the maximum cost of following, in rows.

        Args:
            rows_count: the number of rows of the loop's traces.
        """
        whole = self.whole
        if whole is None:
            whole = max(SMALL_WORK, GUESS * rows_count)
        return max(FREE_WORK, min(SMALL_WORK, whole), 3 * whole // 5)

    def followed(self) -> None:
        """Records that the loop followed an epoch."""
        self.failed = 0
        self.patience = PATIENCE_MIN

    def keeps(self, *, resting: bool) -> bool:
        """Returns True if the current run from scratch stores its traces; records the run."""
        if resting:
            self.rests -= 1
            if self.rests > 0:
                return False
            self.failed = 1
            return True
        self.failed += 1
        if self.failed < 2:
            return True
        self.rests = self.patience
        self.patience = min(2 * self.patience, PATIENCE_MAX)
        return False


MARK = Layout(("int",))
"""The loop's last trace: one row while it rests."""


class Loop(Operator):
    """Runs a body repeatedly on its own output.

    Args:
        nodes: all nodes, including those of inner loops.
        scope: the outermost loop.
        inputs: for each input of the loop the layout in which it is read, or None.
        state: the layouts of the nodes' traces, and the number of rounds in each.
        output: the number of the node that leaves the outermost loop.
    """

    name = "iterate"
    update_cost = UpdateCost.EVERYTHING
    spreads = False
    sorts = False
    loose = True
    distinct = True
    whole = True
    memo = LoopCostEstimate

    def __init__(
        self,
        nodes: Sequence[LoopNode],
        scope: LoopScope,
        inputs: Sequence[Layout | None],
        state: Sequence[tuple[Layout, int]],
        output: int,
    ) -> None:
        self.nodes = tuple(nodes)
        self.scope = scope
        self.layouts = tuple(inputs)
        self.state = (*(layout for layout, _ in state), MARK)
        self.depths = tuple(depth for _, depth in state)
        self.output = output
        self.types = nodes[output].types
        self.global_row = any(n.operator is not None and n.operator.global_row for n in nodes)
        self.scopes = _scopes(scope, ())
        self.inside, self.outside = readers_of_nodes(list(nodes))
        self.shape = RowPlan(self.nodes)

    def form(self) -> list[Any]:
        inner = [
            [n.kind, n.ports, n.depth, n.states, n.operator and [n.operator.name, n.operator.plan]]
            for n in self.nodes
        ]
        return [*super().form(), inner]

    def step(self, step: Step) -> Updates | None:
        effort: LoopCostEstimate = step.memo or LoopCostEstimate()
        step.remember(effort)
        # The caches are taken, because caches that miss this epoch would describe another state.
        mirror = effort.take_mirror()
        resting = _rests(step.state[-1])
        if resting:
            return self._run_from_scratch(step, effort, resting=True)
        rows_count = sum(trace.rows_count for trace in step.state)
        budget = effort.budget(rows_count) if rows_count else None
        if budget is not None and _replaces_most(step):
            return self._run_from_scratch(step, effort, resting=False)
        try:
            few = None if budget is None else self._run_on_rows(step, effort, budget, mirror)
            if few is not None:
                effort.followed()
                return few.result()
            run = self._run(step, step.state, budget, effort)
        except AbandonedError:
            return self._run_from_scratch(step, effort, resting=False)
        if budget is None:  # the traces had no rows, so this run was one from scratch
            effort.ran_anew(run.work, run.rounds)
        else:
            effort.followed()
        for number, state in enumerate(run.states):
            step.emitted[number] = state.emitted()
        return self._result(run.output)

    def _run_on_rows(
        self, step: Step, effort: LoopCostEstimate, budget: int, mirror: LoopKeyCaches | None
    ) -> RowLoopRun | None:
        """Runs the rounds row by row if there are few changes.

        Returns None if the rounds must run on the traces.

        Raises:
            AbandonedError: if a run from scratch is cheaper.
        """
        changed = sum(len(delta.diff) for delta in step.deltas if delta is not None)
        if not self.shape.possible or changed > FEW_ROWS:
            return None
        if step.place is not None and step.place.wants(FEW_ROWS):
            return None
        if mirror is None or not mirror.follows(self, step):
            if not effort.mirrors():
                return None
            mirror = LoopKeyCaches(self)
        touched = step.touched
        run = RowLoopRun(self, self.shape, step, mirror, budget, effort.rounds)
        try:
            run.start()
            run.loop(self.scope, ())
            mirror.leave(step)
        except AbandonedError:
            run.close()
            raise  # no `gave_up`, because a run on rows detects this cheaply in the next epoch too
        except (TooManyChangesError, OverflowError, CountError):
            effort.gave_up()
            step.undo(touched)
            return None
        run.close()
        effort.was_few()
        if mirror.rows_count <= ROWS_MAX:
            effort.mirror = mirror
        return run

    def _run(
        self, step: Step, traces: Sequence[Trace], budget: int | None, effort: LoopCostEstimate
    ) -> LoopRun:
        """Runs the rounds on traces until nothing changes any more."""
        states = [
            NestedTrace(trace, depth) for trace, depth in zip(traces, self.depths, strict=False)
        ]
        run = LoopRun(self, step, states, budget, effort.rounds)
        try:
            run.start()
            run.loop(self.scope, ())
        except CountError as error:
            if not any(run.time):
                raise
            raise overflow_error(step.stage, run.time, run.scope, error) from None
        finally:
            run.close()
        return run

    def _run_from_scratch(
        self, step: Step, effort: LoopCostEstimate, *, resting: bool
    ) -> Updates | None:
        """Runs from scratch, and returns the difference from the previous result."""
        inner = self._full_step(step)
        run = self._run(inner, inner.state, None, effort)
        step.add_touched(inner.touched)
        effort.ran_anew(run.work, run.rounds)
        empty = not any(len(batch) for state in run.states for batch in state.added)
        keeps = effort.keeps(resting=resting) or empty
        if keeps:
            self._replace_traces(step, run)
        elif not resting:
            step.clear()
        if resting == keeps:
            mark = np.array([-1 if resting else 1])
            step.emitted[-1] = arrange(MARK, Updates([np.zeros(1, np.int32)], mark))
        return self._difference(step, run)

    def _full_step(self, step: Step) -> Step:
        """Returns a step for a first run over all current rows of the inputs."""
        deltas: list[Updates | None] = []
        before: list[Trace | None] = []
        after: list[Trace | None] = []
        consolidated: dict[int, Trace] = {}
        for trace, layout in zip(step.after, self.layouts, strict=True):
            assert trace is not None, "the inputs of a loop are arranged"
            if id(trace) not in consolidated:  # each round would read the rows that cancel again
                consolidated[id(trace)] = Trace.from_batch(trace.consolidated())
            after.append(consolidated[id(trace)])
            deltas.append(consolidated[id(trace)].updates() or None)
            before.append(None if layout is None else Trace(layout))
        state = [Trace(layout) for layout in self.state]
        return Step(
            deltas, before, after, state,
            stage=step.stage, first=True, evaluate=step.evaluate, place=step.place,
        )  # fmt: skip

    def _replace_traces(self, step: Step, run: LoopRun) -> None:
        """Emits the traces of a run from scratch.

        Emits their difference from the stored traces, or clears these first if that is smaller.
        """
        batches = [state.emitted() for state in run.states]
        changed: list[Batch | None] = [*batches]
        parts = [*map(_difference_parts, step.state, batches)]
        if sum(_rows_count(each) for each in parts) > _rows_count(batches):
            step.clear()
        else:
            changed = [
                merge(old.layout, each) if each else None
                for old, each in zip(step.state, parts, strict=False)
            ]
        for number, batch in enumerate(changed):
            step.emitted[number] = batch

    def _difference(self, step: Step, run: LoopRun) -> Updates | None:
        """Returns the result of a run from scratch minus the previous result.

        If the rows are many, returns the result, and leaves the subtraction to the runner.
        """
        before = () if step.held is None else step.held.parts()
        if step.held is not None and step.held.rows_count > SMALL_CHANGE:
            step.replace()
            return concat_updates(run.output, self.types)
        return self._result([*(part.updates.negated() for part in before), *run.output])

    def _result(self, parts: Sequence[Updates]) -> Updates | None:
        """Returns the sum of the output parts; None if it is empty."""
        if not parts:
            return None
        batch = arrange(Layout(self.types), concat_updates(parts, self.types))
        return batch.updates if len(batch) else None


def _replaces_most(step: Step) -> bool:
    """Returns True if the changes of the inputs are nearly as many as their rows.

    Following would be abandoned in the first rounds, after it has cost a part of the whole.
    """
    changed = sum(len(delta.diff) for delta in step.deltas if delta is not None)
    if changed <= SMALL_CHANGE:
        return False
    return changed >= MOST * sum(trace.rows_count for trace in step.before if trace is not None)


def _rests(mark: Trace) -> bool:
    """Returns True if a loop rests, so that it has no traces except its mark."""
    return sum(int(part.diff.sum()) for part in mark.parts()) > 0


def _difference_parts(old: Trace, new: Batch | None) -> list[Batch]:
    """Returns the new rows of a trace minus the old ones, in batches without common rows."""
    layers = [layer for layer in old.layers if layer.rows_count]
    if new is not None and len(layers) == 1:
        result = difference(old.layout, new, layers[0].parts)
        if result is not None:
            if result.removed is None:
                return [new, *map(negated, layers[0].parts)]
            return [result.added, result.removed]
    parts = [*([] if new is None else [new]), *map(negated, old.parts())]
    return [merge(old.layout, parts)] if parts else []


def _rows_count(batches: Sequence[Batch | None]) -> int:
    return sum(len(batch) for batch in batches if batch is not None)


def _scopes(scope: LoopScope, above: tuple[LoopScope, ...]) -> dict[int, tuple[LoopScope, ...]]:
    """Returns the loops around each node, outermost first."""
    chain = (*above, scope)
    scopes = {}
    for item in scope.items:
        if isinstance(item, LoopScope):
            scopes.update(_scopes(item, chain))
        else:
            scopes[item] = chain
    return scopes
