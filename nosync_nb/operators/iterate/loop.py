"""The loop as one operator: it follows the changes of an epoch, or runs from scratch.

The state of all its nodes are traces of the operator, with rounds as columns, logged and restored
like any other. `batch_driver` runs the rounds, and `LoopCostEstimate` chooses if they start from
the changes or from nothing. A run from scratch is compared with the previous result. The traces are
then cleared first, or changed by the difference if that is smaller.

Following changes costs in proportion to the rows that they touch in every round, because the whole
history of a key is read again. If nearly all rows are touched, a run from scratch costs a fraction
of that. Therefore following is given up when it has cost three fifths of the last run from scratch,
in a small loop as much as that run, or as soon as rounds are dense (see `batch_driver`, and for
rows `row_driver`). So an epoch costs at most about twice that.

A loop that gave up twice in a row *rests*: it has no traces except a mark, since they would change
altogether. It runs from scratch each epoch, and only the difference of its result is logged. Every
now and then it stores the traces of such a run, and follows the next epoch to see if that pays
again.

The estimates are in memory. They decide the cost of an epoch, never its result. After a restart
they are guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nosync_nb.operators.base import Operator, Step
from nosync_nb.operators.iterate.batch_driver import FREE_WORK, LoopRun
from nosync_nb.operators.iterate.divergence import overflow_error
from nosync_nb.operators.iterate.key_cache import ROWS_MAX, LoopKeyCaches, TooManyChangesError
from nosync_nb.operators.iterate.nested_trace import NestedTrace
from nosync_nb.operators.iterate.plan import AbandonedError, LoopNode, LoopScope, readers_of_nodes
from nosync_nb.operators.iterate.row_driver import FEW_ROWS, RowLoopRun, RowPlan
from nosync_nb.rows.count_arithmetic import CountError
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange, concat_updates, merge

SMALL_WORK = 100_000
"""A loop whose run from scratch costs at most this is small. A change of one row takes as many
rounds as all rows do, so following it costs nearly as much, and still less."""

GUESS = 4
"""After a restart a run from scratch is assumed to cost this many times the rows of the loop's
traces, and not to be small."""

PATIENCE_MIN, PATIENCE_MAX = 4, 64
"""How many epochs a loop rests before it tries to follow again: more each time."""


class LoopCostEstimate:
    """The costs of one loop in the past.

    Attributes:
        whole: the work of its last run from scratch, None if unknown.
        rounds: the work of each of its rounds, those of the outermost loop.
        failed: how many times in a row following was given up.
        patience: the number of epochs of its next rest.
        rests: the number of epochs that it still rests.
        mirror: the key caches of the loop, if any.
        unmirrored: the number of epochs in which they are not rebuilt.
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
        """Returns the key caches, if any; the caller owns them from now on."""
        mirror, self.mirror = self.mirror, None
        return mirror

    def ran_anew(self, work: int, rounds: Mapping[int, int]) -> None:
        """Records a run from scratch."""
        self.whole = work
        self.rounds = rounds

    def gave_up(self) -> None:
        """Records that a run over rows met too many: caches are left out longer each time."""
        self._gaps = min(2 * self._gaps + 1, PATIENCE_MAX)
        self.unmirrored = self._gaps

    def was_few(self) -> None:
        """Records that a run over rows paid: the next failure counts for less."""
        self._gaps //= 2

    def mirrors(self) -> bool:
        """Returns True if missing key caches are rebuilt."""
        if self.unmirrored > 0:
            self.unmirrored -= 1
            return False
        return True

    def budget(self, rows_count: int) -> int:
        """Returns the work that following may cost.

        Args:
            rows_count: the rows of the loop's traces.
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
        """Returns True if a run from scratch stores its traces for the next epoch."""
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
    """Runs a body on its own output.

    Args:
        nodes: all nodes, also of inner loops.
        scope: the outermost loop.
        inputs: for each input from outside the layout in which it is read, or None.
        state: layouts of the nodes' traces, and the number of rounds in each.
        output: the node that leaves the outermost loop.
    """

    name = "iterate"
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
        # However this epoch runs, caches that have not followed it describe another state.
        mirror = effort.take_mirror()
        resting = _rests(step.state[-1])
        if resting:
            return self._run_from_scratch(step, effort, resting=True)
        rows_count = sum(trace.rows_count for trace in step.state)
        budget = effort.budget(rows_count) if rows_count else None
        try:
            few = None if budget is None else self._run_on_rows(step, effort, budget, mirror)
            if few is not None:
                effort.followed()
                return few.result()
            run = self._run(step, step.state, budget, effort)
        except AbandonedError:
            return self._run_from_scratch(step, effort, resting=False)
        if budget is None:  # there were no rows before, so the changes are all rows
            effort.ran_anew(run.work, run.rounds)
        else:
            effort.followed()
        for number, state in enumerate(run.states):
            step.emitted[number] = state.emitted()
        return self._result(run.output)

    def _run_on_rows(
        self, step: Step, effort: LoopCostEstimate, budget: int, mirror: LoopKeyCaches | None
    ) -> RowLoopRun | None:
        """Runs the rounds on rows, if they are few; None if they must run on the traces."""
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
            raise  # a run on rows detects spreading cheaply, so the next epoch tries it again
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
        """Runs the rounds, until nothing changes any more."""
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
        """Runs from scratch; the change is the difference to the previous result."""
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
        """The step of a first run over all current rows."""
        deltas: list[Updates | None] = []
        before: list[Trace | None] = []
        consolidated: dict[int, Updates] = {}
        for trace, layout in zip(step.after, self.layouts, strict=True):
            assert trace is not None, "the inputs of a loop are arranged"
            if id(trace) not in consolidated:
                consolidated[id(trace)] = trace.consolidated().updates
            deltas.append(consolidated[id(trace)] or None)
            before.append(None if layout is None else Trace(layout))
        state = [Trace(layout) for layout in self.state]
        return Step(
            deltas, before, step.after, state,
            stage=step.stage, first=True, evaluate=step.evaluate, place=step.place,
        )  # fmt: skip

    def _replace_traces(self, step: Step, run: LoopRun) -> None:
        """Emits the traces of a run from scratch: all after a clear, or the difference if less."""
        batches = [state.emitted() for state in run.states]
        changed: list[Batch | None] = []
        for old, new in zip(step.state, batches, strict=False):
            parts = [_negated(part) for part in old.parts()]
            parts += [] if new is None else [new]
            changed.append(merge(old.layout, parts) if parts else None)
        if _rows_count(changed) > _rows_count(batches):
            step.clear()
            changed = batches
        for number, batch in enumerate(changed):
            step.emitted[number] = batch

    def _difference(self, step: Step, run: LoopRun) -> Updates | None:
        """The result of a run from scratch, less the previous result."""
        before = () if step.held is None else step.held.parts()
        return self._result([*(part.updates.negated() for part in before), *run.output])

    def _result(self, parts: Sequence[Updates]) -> Updates | None:
        """The sum of the output parts, None without parts."""
        if not parts:
            return None
        batch = arrange(Layout(self.types), concat_updates(parts, self.types))
        return batch.updates if len(batch) else None


def _rests(mark: Trace) -> bool:
    """Returns True if a loop has no traces."""
    return sum(int(part.diff.sum()) for part in mark.parts()) > 0


def _negated(batch: Batch) -> Batch:
    columns, khash, rhash = batch.columns, batch.khash, batch.rhash
    return Batch(batch.layout, columns, khash, rhash, -batch.diff, batch.code)


def _rows_count(batches: Sequence[Batch | None]) -> int:
    return sum(len(batch) for batch in batches if batch is not None)


def _scopes(scope: LoopScope, above: tuple[LoopScope, ...]) -> dict[int, tuple[LoopScope, ...]]:
    """The loops around each node, outermost first."""
    chain = (*above, scope)
    scopes = {}
    for item in scope.items:
        if isinstance(item, LoopScope):
            scopes.update(_scopes(item, chain))
        else:
            scopes[item] = chain
    return scopes
