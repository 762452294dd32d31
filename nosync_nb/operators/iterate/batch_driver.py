"""One run of a loop: the rounds of an epoch, until nothing changes any more.

A time inside a loop is (epoch, round), inside a nested loop (epoch, round, round). Times are
compared as vectors. In an epoch the rounds run in lexicographic order, which extends the order of
times. So the input of a node at a time is complete when the node runs:

- A variable is its source in round 0, and in each later round the result of the body in the
  previous round: `source + (result - source)`, delayed by one round.
- A join pairs its change with all earlier rows of the other side. A pair belongs to the least upper
  bound of the rounds of both rows, which may be a later round.
- An operator by key evaluates the changed keys from scratch, on their rows at that time.

For an operator by key, the change of a key at time T is the operator's result over the input rows
at T, minus the output rows that exist at T. A key is evaluated again at the least upper bound of T
and each time at which its input or output changes later. These evaluations schedule further times
in turn. So all bounds are reached, including the bounds of three or more times in nested loops.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nosync_nb import rows
from nosync_nb.operators.base import GROUP, JOIN, LoopPlacement, Operator, Step
from nosync_nb.operators.grouping import first_of_keys, group_rows
from nosync_nb.operators.iterate.divergence import DivergenceDetector
from nosync_nb.operators.iterate.nested_trace import ROUND, NestedTrace, Time, at_least_upper_bounds
from nosync_nb.operators.iterate.plan import (
    LEAVE,
    VARIABLE,
    AbandonedError,
    LoopBody,
    LoopNode,
    LoopReader,
    LoopScope,
)
from nosync_nb.operators.join import PairingJoin
from nosync_nb.rows import Column
from nosync_nb.rows.count_arithmetic import CountError
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import (
    Batch,
    Hashes,
    Index,
    Layout,
    Updates,
    arrange,
    concat_updates,
    no_updates,
)


class KeyBatch(NamedTuple):
    """Keys that an operator evaluates, with their hashes."""

    khash: Hashes
    columns: list[Column]

    @classmethod
    def of_all(cls) -> KeyBatch:
        """Returns the one key of an operator without grouping columns."""
        return cls(rows.hash_columns([], (), 1), [])

    @classmethod
    def merged(cls, parts: Sequence[KeyBatch], types: Sequence[str]) -> KeyBatch | None:
        """Returns each key of `parts` once; None if there is no key."""
        n = sum(len(p.khash) for p in parts)
        if not n:
            return None
        if not types:
            return cls.of_all()
        if len(parts) == 1 and bool((parts[0].khash[1:] != parts[0].khash[:-1]).all()):
            return parts[0]
        columns = [rows.concat([p.columns[i] for p in parts], t) for i, t in enumerate(types)]
        groups = group_rows(columns, types, n)
        return cls(groups.khash, groups.keys)

    def select(self, index: Index) -> KeyBatch:
        """Returns the keys at some positions, each once."""
        index = np.unique(index)
        return KeyBatch(self.khash[index], [rows.take(c, index) for c in self.columns])


def key_types(operator: Operator) -> tuple[str, ...]:
    """Returns the types of the key by which an operator works."""
    layout = operator.grouping(0)
    return tuple(layout.types[place] for place in layout.places)


def keys_of(batch: Batch) -> KeyBatch:
    """Returns the keys of a batch, each once."""
    columns = [batch.columns[place] for place in batch.layout.places]
    index = first_of_keys(batch)
    if len(index) == len(batch):
        return KeyBatch(batch.khash, columns)
    return KeyBatch(batch.khash[index], [rows.take(column, index) for column in columns])


def evaluate_keys(
    node: LoopNode, keys: KeyBatch, time: Time, states: Sequence[NestedTrace], step: Step
) -> tuple[Updates | None, list[tuple[Time, Index]]]:
    """Evaluates some keys at a time, and adds the change to the trace of the output.

    Returns:
        the change of the output; and pairs (later time, positions in `keys`) for the keys that must
        be evaluated again.
    """
    operator = node.operator
    assert operator is not None
    later: list[tuple[Time, Index]] = []
    inputs: list[Updates | None] = []
    for port, source in enumerate(node.ports):
        state = node.states[port]
        if state is None:
            trace = step.after[source.number]
            matches = None if trace is None else trace.lookup(keys.khash, keys.columns)
            inputs.append(None if matches is None else Updates(matches.columns, matches.diff))
            continue
        held = states[state].at(time, keys.khash, keys.columns)
        inputs.append(None if held is None else held.updates)
        if held is not None:
            later += held.later
    output = node.states[-1]
    assert output is not None
    step.add_touched(len(keys.khash) + sum(len(i.diff) for i in inputs if i is not None))
    parts = []
    new = evaluate_from_scratch(operator, inputs, step)
    if new is not None and len(new.diff):
        parts.append(new)
    old = states[output].at(time, keys.khash, keys.columns)
    if old is not None:
        later += old.later
        if len(old.updates.diff):
            parts.append(old.updates.negated())
    step.add_touched(sum(len(probe) for _, probe in later))
    if not parts:
        return None, later
    layout = Layout(operator.types, operator.output_key)
    change = arrange(layout, concat_updates(parts, operator.types))
    if not len(change):
        return None, later
    states[output].append(change, time)
    return change.updates, later


def evaluate_from_scratch(
    operator: Operator, inputs: Sequence[Updates | None], step: Step
) -> Updates | None:
    """Returns the output of an operator over inputs that consist of the given rows only."""
    deltas: list[Updates | Batch | None] = []
    before: list[Trace | None] = []
    after: list[Trace | None] = []
    for layout, updates in zip(operator.layouts, inputs, strict=True):
        if layout is None:
            types = operator.grouping(len(deltas)).types
            deltas.append(updates if updates is not None else no_updates(types))
            before.append(None)
            after.append(None)
            continue
        batch = None if updates is None else arrange(layout, updates)
        if batch is not None and not len(batch):
            batch = None
        deltas.append(batch)
        before.append(Trace(layout))
        after.append(Trace(layout) if batch is None else Trace.from_batch(batch))
    state = [Trace(layout) for layout in operator.state]
    if not operator.global_row and all(d is None or not len(d.diff) for d in deltas):
        return None
    inner = Step(deltas, before, after, state, stage=step.stage, first=True, evaluate=step.evaluate)
    rows_count = sum(len(d.diff) for d in deltas if d is not None)
    if step.place is not None and step.place.wants(rows_count):
        given = [operator.grouping(port).types for port in range(len(deltas))]
        return step.place.run(operator, inner, given)
    return operator.step(inner)


RUN_ROWS = 1000
"""The fixed cost of one run of a node, in rows."""

FREE_WORK = 40_000
"""The cost below which following is never abandoned for dense rounds, in rows: about 10 ms."""

DENSE = 2
"""A round is dense if it costs more than `DENSE` times its cost in the last run from scratch. Then
the change has spread over nearly all rows, and reads their whole history. After `DENSE` successive
dense rounds the run is abandoned, because further rounds will be dense too."""

NOTHING_USUAL: Mapping[int, int] = MappingProxyType({})


class LoopRun:
    """One run of a loop.

    Args:
        states: the traces of the nodes, which the run extends.
        budget: the maximum cost of the run in rows; `None` means no limit.
        usual: the cost of each round of the outermost loop in the last run from scratch, if known.

    Attributes:
        rounds: the cost of each round of the outermost loop in this run.
        runs: the number of node runs so far.
        output: the updates that have left the outermost loop.
    """

    def __init__(
        self,
        loop: LoopBody,
        step: Step,
        states: Sequence[NestedTrace],
        budget: int | None = None,
        usual: Mapping[int, int] = NOTHING_USUAL,
    ) -> None:
        self.plan = loop
        self.step = step
        self.states = states
        self.budget = budget
        self.usual = usual
        self.rounds: dict[int, int] = {}
        self.dense = 0
        self.began = step.touched
        self.touched = 0
        self.runs = 0
        self.inbox: dict[tuple[int, Time], dict[int, list[Updates]]] = {}
        self.scheduled: dict[tuple[int, Time], list[KeyBatch]] = {}
        self.heaps: dict[int, list[Time]] = {id(s): [] for c in loop.scopes.values() for s in c}
        self.known: set[tuple[int, Time]] = set()
        self.output: list[Updates] = []
        self.scope = loop.scope
        self.time: Time = ()

    def start(self) -> None:
        """Sends the changes of the epoch to the nodes that read them, in round 0."""
        for number, delta in enumerate(self.step.deltas):
            if delta is None or not len(delta.diff):
                continue
            updates = Updates(delta.columns, delta.diff)
            self.touched += len(delta.diff)
            for reader in self.plan.outside.get(number, ()):
                self._give(reader, (), updates)
        if self.step.first:
            for number, node in enumerate(self.plan.nodes):
                if node.operator is not None and node.operator.global_row:
                    time = (0,) * node.depth
                    self._wake(number, time)
                    self.scheduled.setdefault((number, time), []).append(KeyBatch.of_all())

    @property
    def work(self) -> int:
        """The cost so far, in rows: the touched rows, and `RUN_ROWS` for each run of a node."""
        return self.step.touched - self.began + self.touched + RUN_ROWS * self.runs

    def close(self) -> None:
        """Adds the touched rows to those of the epoch's step; `work` does not change."""
        self.step.add_touched(self.touched)
        self.began += self.touched

    def loop(self, scope: LoopScope, prefix: Time) -> None:
        """Runs the rounds of one loop that begin with `prefix`, until none is pending.

        Raises:
            AbandonedError: if the run exceeds its budget, or if its rounds are dense.
        """
        heap = self.heaps[id(scope)]
        watch = DivergenceDetector(self.plan, scope, self.step, self.states)
        depth = len(prefix)
        while heap and heap[0][:depth] < prefix:
            heapq.heappop(heap)  # a time of an earlier outer round, which no longer runs
        while heap and heap[0][:depth] == prefix:
            time = heapq.heappop(heap)
            before = self.work
            if scope.rounds is not None and time[-1] >= scope.rounds:
                continue
            watch.begin_round(time)
            for item in scope.items:
                self.scope, self.time = scope, time
                if isinstance(item, LoopScope):
                    self.loop(item, time)
                elif self._node(item, time, watch):
                    self.runs += 1
                    if self.budget is not None and self.work > self.budget:
                        raise AbandonedError
            self.known.discard(
                (id(scope), time)
            )  # not before the run: its output belongs to this time too
            watch.end()
            if not prefix:
                self._measure(time[0], self.work - before)

    def _measure(self, number: int, work: int) -> None:
        """Records the cost of a round of the outermost loop.

        Raises:
            AbandonedError: if the rounds have become dense and the run costs more than `FREE_WORK`.
        """
        self.rounds[number] = work
        self.dense = self.dense + 1 if work > DENSE * self.usual.get(number, work) else 0
        if self.budget is not None and self.dense == DENSE and self.work > FREE_WORK:
            raise AbandonedError

    def _deliver(self, node: int, port: int, time: Time, updates: Updates) -> None:
        """Puts updates into the inbox of a node; in an inner loop they arrive in round 0."""
        depth = self.plan.nodes[node].depth
        time = time + (0,) * (depth - len(time))
        self._wake(node, time)
        self.inbox.setdefault((node, time), {}).setdefault(port, []).append(updates)

    def _wake(self, node: int, time: Time) -> None:
        """Schedules the rounds of all loops around a node, so that the node runs at a time."""
        for depth, scope in enumerate(self.plan.scopes[node], 1):
            mark = (id(scope), time[:depth])
            if mark not in self.known:
                self.known.add(mark)
                heapq.heappush(self.heaps[id(scope)], time[:depth])

    def _emit(self, number: int, time: Time, updates: Updates | None) -> None:
        """Passes the output of a node on to its readers."""
        if updates is None or not len(updates.diff):
            return
        for reader in self.plan.inside[number]:
            self._give(reader, time, updates)

    def _give(self, reader: LoopReader, time: Time, updates: Updates) -> None:
        """Passes updates to a reader, at the time at which they arrive there.

        A variable receives its source in round 0 and its negation in round 1, and the result of the
        body in the next round. Updates that leave a loop lose their last round.
        """
        node, port = reader
        target = self.plan.nodes[node]
        if target.kind == LEAVE:
            updates = tagged_rows(target, self.plan.nodes, port, updates)
            if not target.depth:
                self.output.append(updates)
                return
        if target.kind != VARIABLE:
            self._deliver(node, port, time[: target.depth], updates)
        elif port == 0:
            around = time + (0,) * (target.depth - 1 - len(time))
            self._deliver(node, 0, (*around, 0), updates)
            self._deliver(node, 0, (*around, 1), updates.negated())
        else:
            self._deliver(node, port, (*time[:-1], time[-1] + 1), updates)

    def _node(self, number: int, time: Time, watch: DivergenceDetector) -> bool:
        """Runs one node at one time; returns False if there was no input and nothing scheduled."""
        inbox = self.inbox.pop((number, time), None)
        node = self.plan.nodes[number]
        if node.kind == GROUP:
            keys = self.scheduled.pop((number, time), None)
            if inbox is None and keys is None:
                return False
            self._group(number, node, time, inbox or {}, keys or [])
            return True
        if inbox is None:
            return False
        if node.kind == JOIN:
            self._join(number, node, time, inbox)
        elif node.operator is None:
            updates = concat_updates([u for each in inbox.values() for u in each], node.types)
            batch = arrange(Layout(node.types), updates)
            self.touched += len(batch)
            if len(batch):
                if node.kind == VARIABLE:
                    watch.changed(number, batch)
                self._emit(number, time, batch.updates)
        else:
            self._emit(number, time, self._plain(node.operator, node, inbox))
        return True

    def _plain(
        self, operator: Operator, node: LoopNode, inbox: dict[int, list[Updates]]
    ) -> Updates | None:
        """Runs a stateless operator."""
        deltas = [
            self._input_of(inbox.get(port), operator.layouts[port], self._types(node, port))
            for port in range(len(node.ports))
        ]
        none = [None] * len(deltas)
        step = Step(deltas, none, none, (), stage=self.step.stage, evaluate=self.step.evaluate)
        place = self.step.place
        if place is not None and place.wants(sum(len(d.diff) for d in deltas if d is not None)):
            types = [self._types(node, port) for port in range(len(node.ports))]
            output = place.run(operator, step, types)
        else:
            output = operator.step(step)
        self.touched += step.touched
        return output

    def _input_of(
        self, parts: list[Updates] | None, layout: Layout | None, types: tuple[str, ...]
    ) -> Updates | Batch | None:
        if not parts:
            return None
        updates = concat_updates(parts, types)
        if layout is None:
            return updates
        batch = arrange(layout, updates)
        return batch if len(batch) else None

    def _types(self, node: LoopNode, port: int) -> tuple[str, ...]:
        source = node.ports[port]
        if not source.outside:
            return self.plan.nodes[source.number].types
        operator = node.operator
        layout = None if operator is None else operator.layouts[port]
        return node.types if layout is None else layout.types

    # -- joins ---------------------------------------------------------------------------------

    def _join(
        self, number: int, node: LoopNode, time: Time, inbox: dict[int, list[Updates]]
    ) -> None:
        """Pairs dA with B, then A + dA with dB; each pair belongs to the bound of both times."""
        operator = node.operator
        assert isinstance(operator, PairingJoin)
        deltas = []
        for side in (0, 1):
            layout = operator.layouts[side]
            assert layout is not None
            given = self._input_of(inbox.get(side), layout, layout.types)
            deltas.append(given if isinstance(given, Batch) else None)
        outputs: dict[Time, list[Updates]] = {}
        self._pairs(node, operator, 0, deltas[0], time, outputs)
        self._keep(node, 0, deltas[0], time)
        self._pairs(node, operator, 1, deltas[1], time, outputs, after=True)
        self._keep(node, 1, deltas[1], time)
        for at, parts in sorted(outputs.items()):
            self._emit(number, at, concat_updates(parts, operator.types))

    def _keep(self, node: LoopNode, port: int, delta: Batch | None, time: Time) -> None:
        """Adds a change to the trace of an input, if the node stores this input."""
        state = node.states[port]
        if state is not None and delta is not None:
            self.states[state].append(delta, time)

    def _pairs(
        self,
        node: LoopNode,
        operator: PairingJoin,
        side: int,
        delta: Batch | None,
        time: Time,
        made: dict[Time, list[Updates]],
        *,
        after: bool = False,
    ) -> None:
        """Pairs the change of one side with the trace of the other, and adds the pairs to `made`.

        Args:
            after: True to read an input of the loop after its change.
        """
        if delta is None:
            return
        other = 1 - side
        state = node.states[other]
        if state is None:  # an input of the loop is complete from round 0 on
            port = node.ports[other].number
            early = not any(time) and not after
            trace = (self.step.before if early else self.step.after)[port]
            marks: tuple[int, ...] = ()
        else:
            trace = self.states[state].trace
            width = self.states[state].width
            marks = tuple(range(width, width + self.states[state].depth))
        if trace is None or not trace.layers:
            return
        place = self.step.place
        pairs: tuple[Updates, list[Column]] | None
        if place is not None and place.wants(len(delta)):
            pairs = self._pairs_there(place, operator, side, delta, trace, len(marks))
        else:
            pairs = operator.pairs(side, delta, trace, self.step, marks)
        if pairs is None:
            return
        updates, rounds = pairs
        for at, part in at_least_upper_bounds(updates, rounds, time):
            made.setdefault(at, []).append(part)

    def _pairs_there(
        self,
        place: LoopPlacement,
        operator: PairingJoin,
        side: int,
        delta: Batch,
        trace: Trace,
        marks: int,
    ) -> tuple[Updates, list[Column]] | None:
        """Computes the pairs on executors, with the rounds of the other side as columns.

        Args:
            marks: the number of these rounds.
        """
        other = 1 - side
        deltas: list[Updates | Batch | None] = [None, None]
        before: list[Trace | None] = [None, None]
        deltas[side], before[other] = delta, trace
        step = Step(deltas, before, before, (), stage=self.step.stage)
        wider = operator.with_columns(other, (ROUND,) * marks)
        try:
            output = place.run(wider, step, [layout.types for layout in wider.layouts])
        except CountError as error:
            row = None if error.row is None else error.row[: len(operator.types)]
            raise CountError(row=row) from None
        self.touched += step.touched
        if output is None:
            return None
        width = len(operator.types)
        return Updates(output.columns[:width], output.diff), output.columns[width:]

    # -- by key --------------------------------------------------------------------------------

    def _group(
        self,
        number: int,
        node: LoopNode,
        time: Time,
        inbox: dict[int, list[Updates]],
        scheduled: list[KeyBatch],
    ) -> None:
        """Evaluates the keys that changed or were scheduled, and schedules their later times."""
        operator = node.operator
        assert operator is not None
        keys = list(scheduled)
        for port in range(len(node.ports)):
            layout = operator.grouping(port)
            given = self._input_of(inbox.get(port), layout, layout.types)
            if isinstance(given, Batch):
                self._keep(node, port, given, time)
                keys.append(keys_of(given))
        merged = KeyBatch.merged(keys, key_types(operator))
        if merged is None:
            return
        change, later = evaluate_keys(node, merged, time, self.states, self.step)
        for at, probe in later:
            self._wake(number, at)
            waiting = self.scheduled.setdefault((number, at), [])
            waiting.append(merged.select(probe))
        if change is not None:
            self._emit(number, time, change)


def tagged_rows(leave: LoopNode, nodes: Sequence[LoopNode], port: int, updates: Updates) -> Updates:
    """Converts the rows of one of several variables to rows of one collection.

    The result has the number of the variable, then the columns of all variables; the columns of the
    other variables are null. With a single variable the rows are unchanged.
    """
    if len(leave.ports) == 1:
        return updates
    n = len(updates.diff)
    columns: list[Column] = [np.full(n, port, np.int32)]
    for number, source in enumerate(leave.ports):
        if number == port:
            columns += updates.columns
        else:
            columns += [rows.full_null(t, n) for t in nodes[source.number].types]
    return Updates(columns, updates.diff)
