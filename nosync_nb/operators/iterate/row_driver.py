"""Runs a loop over a few changes, row by row in Python; see `LoopRun` for the steps of a run.

A run uses the key caches of the loop, and has the same result as `LoopRun` for each node and time.
It is given up in an unusual epoch, for example with many rows, counts near an overflow, or many
rounds. `LoopRun` then runs the epoch on the traces, as if the run on rows had not been tried.

`RowPlan` prepares the nodes of a loop once: keys, outputs, and functions on rows. Keys of operators
without such a function are evaluated by the operator itself. If the key caches do not support the
column types of a node, the whole loop runs on its traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from nosync_nb.operators.aggregates.aggregate import Aggregate
from nosync_nb.operators.base import GROUP, JOIN, PLAIN, Step
from nosync_nb.operators.distinct import Threshold, distinct
from nosync_nb.operators.iterate.batch_driver import (
    RUN_ROWS,
    LoopRun,
    evaluate_from_scratch,
    tagged_rows,
)
from nosync_nb.operators.iterate.divergence import FREE_ROUNDS, DivergenceDetector
from nosync_nb.operators.iterate.key_cache import (
    COUNT_MAX,
    PLAIN_TYPES,
    InputKeyCache,
    LoopKeyCaches,
    Pairs,
    Pick,
    RoundState,
    Row,
    RowCounts,
    TimedKeyCache,
    TooManyChangesError,
    add_pairs,
    columns_of_rows,
    consolidated_pairs,
    key_picker,
    least_upper_bound,
    rows_of_columns,
    value_picker,
    without_zeros,
)
from nosync_nb.operators.iterate.nested_trace import Time
from nosync_nb.operators.iterate.plan import (
    LEAVE,
    VARIABLE,
    AbandonedError,
    LoopBody,
    LoopNode,
    LoopReader,
)
from nosync_nb.operators.join import Join
from nosync_nb.operators.linear import Concat, Consolidate, Linear, Select
from nosync_nb.rows.types import INTEGERS
from nosync_nb.trace.batch import Layout, Updates, concat_updates

FEW_ROWS = 64
"""The maximum number of changed input rows of an epoch that is run on rows."""

ROWS_PER_RUN = 300
"""The number of rows in Python that cost the same as the fixed cost of a node's run in numpy."""

SPARSE_ROWS = 2000
"""After this number of touched rows, the cost is compared with the last run from scratch. More than
a third of its cost in the same rounds is too much, because the change will spread further."""

ENDLESS = 1 << 60
"""The assumed cost from scratch of a round that the last run from scratch did not reach."""

_KNOWN_MAX = 1 << 14
_DIFF = itemgetter(1)

Result = Callable[[Row, list[RowCounts]], RowCounts | None]
"""Returns the output of a key, given its rows in each input; None if the operator must do it."""


class RowPlan:
    """The preparation of a loop's nodes for runs on rows.

    Attributes:
        possible: True if all nodes can run on rows.
        nodes: the preparation of each node; empty if such a run is not possible.
    """

    def __init__(self, nodes: Sequence[LoopNode]) -> None:
        self.possible = all(_is_possible(node) for node in nodes)
        self.nodes: list[Any] = []
        if self.possible:
            self.nodes = [_node_plan(node) for node in nodes]


class JoinRowPlan:
    """The keys of both sides of a join, and its output as a function of left row + right row."""

    def __init__(self, join: Join) -> None:
        self.keys = (value_picker(join.keys[0]), value_picker(join.keys[1]))
        left = len(join.layouts[0].types)
        self.output = value_picker([i if side == 0 else left + i for side, i in join.outputs])


class GroupRowPlan:
    """The keys of an operator by key, and its function on rows, if any."""

    def __init__(self, node: LoopNode) -> None:
        operator = node.operator
        assert operator is not None
        self.keys = [key_picker(operator.grouping(port)) for port in range(len(node.ports))]
        self.output_key = key_picker(Layout(operator.types, operator.output_key))
        self.result: Result | None = None
        if isinstance(operator, Aggregate):
            self.result = _aggregate_function(operator)
        elif isinstance(operator, Threshold) and operator.function is distinct:
            self.result = _distinct


def _is_possible(node: LoopNode) -> bool:
    """Returns True if a node can run on rows, with key caches of its column types."""
    operator = node.operator
    if not node.types or not PLAIN_TYPES.issuperset(node.types):
        return False
    if operator is None:
        return len(node.ports) == 1 or node.kind != LEAVE or not node.depth
    if not operator.local or operator.asks:
        return False
    if node.kind == PLAIN:
        return operator.stable
    layouts = [operator.grouping(port) for port in range(len(node.ports))]
    if isinstance(operator, Join):
        layouts = list(operator.layouts)
        if not operator.keys[0] or not operator.outputs:
            return False
    elif not isinstance(operator, Aggregate | Threshold) or operator.global_row:
        return False
    return all(each.types and PLAIN_TYPES.issuperset(each.types) for each in layouts)


def _node_plan(node: LoopNode) -> Any:
    operator = node.operator
    if isinstance(operator, Join):
        return JoinRowPlan(operator)
    if node.kind == GROUP:
        return GroupRowPlan(node)
    if isinstance(operator, Linear) and len(operator.pieces) == 1:
        (piece,) = operator.pieces
        if isinstance(piece, Select) and not piece.expressions:
            return value_picker(piece.outputs)  # type: ignore[arg-type]
    return None


def _distinct(key: Row, inputs: list[RowCounts]) -> RowCounts | None:
    return {row: 1 for row, count in inputs[0].items() if count > 0}


def _aggregate_function(operator: Aggregate) -> Result | None:
    """Returns a function on rows for an aggregate of plain columns; None for any other."""
    if operator.picked is None or not all(e.is_column for e in operator.arguments):
        return None
    calls: list[tuple[Callable[..., Any], list[int]]] = []
    for plan in operator.plans:
        call = plan.call
        if call.distinct or call.function not in _FUNCTIONS:
            return None
        if call.function == "sum" and call.argument and call.argument.type not in INTEGERS:
            return None
        places = [argument.columns[0] for argument in call.arguments]
        calls.append((_FUNCTIONS[call.function], places))
    pick = value_picker([*range(len(operator.keys)), *operator.picked])
    if len(calls) == 1 and list(operator.picked) == [len(operator.keys)]:
        return _single_call(*calls[0])

    def result(key: Row, inputs: list[RowCounts]) -> RowCounts | None:
        held = inputs[0]
        if not held:
            return {}
        if min(held.values()) < 0:
            return None
        return {pick((*key, *[function(held, *places) for function, places in calls])): 1}

    return result


def _single_call(function: Callable[..., Any], places: list[int]) -> Result:
    """Returns a function on rows for an aggregate that outputs its key and one call."""

    def result(key: Row, inputs: list[RowCounts]) -> RowCounts | None:
        held = inputs[0]
        if not held:
            return {}
        if min(held.values()) < 0:
            return None
        return {(*key, function(held, *places)): 1}

    return result


def _least(held: RowCounts, place: int) -> Any:
    return min(_values(held, place), default=None)


def _greatest(held: RowCounts, place: int) -> Any:
    return max(_values(held, place), default=None)


def _least_by(held: RowCounts, place: int, order: int) -> Any:
    least: Any = None
    values: list[Any] = []
    for row in held:
        rank = row[order]
        if rank is None:
            continue
        if least is None or rank < least:
            least, values = rank, [row[place]]
        elif rank == least:
            values.append(row[place])
    return min(values) if values and None not in values else None


def _greatest_by(held: RowCounts, place: int, order: int) -> Any:
    greatest = _greatest(held, order)
    if greatest is None:
        return None
    values = [row[place] for row in held if row[order] == greatest]
    return max((value for value in values if value is not None), default=None)


def _values(held: RowCounts, place: int) -> list[Any]:
    values = [row[place] for row in held]
    return [value for value in values if value is not None] if None in values else values


def _rows_counted(held: RowCounts) -> int:
    return sum(held.values())


def _values_counted(held: RowCounts, place: int) -> int:
    return sum(count for row, count in held.items() if row[place] is not None)


def _sum(held: RowCounts, place: int) -> Any:
    total: Any = None
    for row, count in held.items():
        value = row[place]
        if value is not None:
            total = value * count if total is None else total + value * count
    if total is not None and abs(total) > COUNT_MAX:
        raise TooManyChangesError
    return total


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "count_star": _rows_counted,
    "count": _values_counted,
    "sum": _sum,
    "min": _least,
    "max": _greatest,
    "min_by": _least_by,
    "max_by": _greatest_by,
}
"""Aggregates as functions of the rows of a key and the positions of the arguments. They break ties
as the kernel does."""


class RowLoopRun(LoopRun):
    """One run over a few changes, row by row.

    Raises:
        TooManyChangesError: the run is given up, and the key caches are no longer usable.
        AbandonedError: the changes have spread over most rows, so that following them on traces is
            abandoned as well.
    """

    def __init__(
        self,
        loop: LoopBody,
        shape: RowPlan,
        step: Step,
        mirror: LoopKeyCaches,
        budget: int | None,
        usual: Mapping[int, int],
    ) -> None:
        super().__init__(loop, step, (), budget, usual)
        self.usually = 0
        self.mirror = mirror
        self.shape = shape
        self.boxes: dict[tuple[int, Time], dict[int, Pairs]] = {}
        self.waiting: dict[tuple[int, Time], set[Row]] = {}
        self.left: dict[int, RowCounts] = {}

    def start(self) -> None:
        """Sends the changes of the epoch to the nodes that read them, in round 0."""
        self.mirror.begin_epoch(self.step)
        for number, delta in enumerate(self.step.deltas):
            held = self.mirror.outside.get(number)
            pairs = [] if delta is None else rows_of_columns(delta.columns, delta.diff)
            if held is not None:
                after = self.step.after[number]
                assert after is not None
                held.follow(pairs, after)
            self.touched += len(pairs)
            if pairs:
                for reader in self.plan.outside.get(number, ()):
                    self._pass_on(reader, (), pairs)

    def result(self) -> Updates | None:
        """Returns the updates that have left the loop; None if there are none."""
        leave = self.plan.nodes[self.plan.output]
        parts = []
        for port, held in self.left.items():
            pairs = [pair for pair in held.items() if pair[1]]
            if pairs:
                types = self.plan.nodes[leave.ports[port].number].types
                updates = columns_of_rows(pairs, types)
                parts.append(tagged_rows(leave, self.plan.nodes, port, updates))
        return concat_updates(parts, self.plan.types) if parts else None

    def _measure(self, number: int, work: int) -> None:
        """Compares the cost with that of the same rounds in the last run from scratch.

        Raises:
            AbandonedError: if the cost is too high; see `SPARSE_ROWS`.
        """
        self.usually += self.usual.get(number, ENDLESS)
        rows_count = self.work - RUN_ROWS * self.runs
        costs = rows_count * RUN_ROWS // ROWS_PER_RUN
        if rows_count > SPARSE_ROWS and 3 * costs > self.usually:
            raise AbandonedError

    def _send(self, number: int, time: Time, pairs: Pairs) -> None:
        """Passes the output of a node on to its readers."""
        if pairs:
            for reader in self.plan.inside[number]:
                self._pass_on(reader, time, pairs)

    def _pass_on(self, reader: LoopReader, time: Time, pairs: Pairs) -> None:
        """Passes updates to a reader, like `LoopRun._give`."""
        node, port = reader
        target = self.plan.nodes[node]
        if target.kind == LEAVE and not target.depth:
            add_pairs(self.left.setdefault(port, {}), pairs)
        elif target.kind != VARIABLE:
            self._box(node, port, time[: target.depth], pairs)
        elif port == 0:
            around = time + (0,) * (target.depth - 1 - len(time))
            self._box(node, 0, (*around, 0), pairs)
            self._box(node, 0, (*around, 1), [(row, -diff) for row, diff in pairs])
        else:
            self._box(node, port, (*time[:-1], time[-1] + 1), pairs)

    def _box(self, node: int, port: int, time: Time, pairs: Pairs) -> None:
        depth = self.plan.nodes[node].depth
        if len(time) < depth:
            time = time + (0,) * (depth - len(time))
        boxes = self.boxes.get((node, time))
        if boxes is None:
            boxes = self.boxes[node, time] = {}
            self._wake(node, time)
        held = boxes.get(port)
        if held is None:
            boxes[port] = list(pairs)
        else:
            held += pairs

    def _node(self, number: int, time: Time, watch: DivergenceDetector) -> bool:
        """Runs one node at one time; returns False if there was no input and nothing scheduled.

        Raises:
            TooManyChangesError: if a run on traces is cheaper, or the loop may not converge.
        """
        boxes = self.boxes.pop((number, time), None)
        node = self.plan.nodes[number]
        if node.kind == GROUP:
            keys = self.waiting.pop((number, time), None)
            if boxes is None and keys is None:
                return False
            self._by_key(number, node, time, boxes or {}, keys or set())
        elif boxes is None:
            return False
        elif node.kind == JOIN:
            self._join_rows(number, node, time, boxes)
        elif node.operator is None or isinstance(node.operator, Consolidate):
            sums = consolidated_pairs(pairs for pairs in boxes.values())
            self.touched += len(sums)
            self._send(number, time, list(sums.items()))
        elif isinstance(node.operator, Concat):
            pairs = [pair for each in boxes.values() for pair in each]
            self.touched += len(pairs)
            self._send(number, time, pairs)
        else:
            self._send(number, time, self._rowwise(number, node.operator, boxes[0]))
        work = self.step.touched + self.touched - self.began
        if work > ROWS_PER_RUN * (10 + self.runs) or watch.count >= FREE_ROUNDS:
            raise TooManyChangesError
        return True

    def _rowwise(self, number: int, operator: Any, pairs: Pairs) -> Pairs:
        """Returns the output of a linear operator; it runs only for rows that are not cached."""
        self.touched += len(pairs)
        pick: Pick | None = self.shape.nodes[number]
        if pick is not None:
            return [(pick(row), diff) for row, diff in pairs]
        memoised = self.mirror.known.setdefault(number, {})
        missing = list({row: None for row, _ in pairs if row not in memoised})
        if missing:
            if len(memoised) > _KNOWN_MAX:
                memoised.clear()
                missing = list({row: None for row, _ in pairs})
            source = self.plan.nodes[number].ports[0]
            types = self.plan.nodes[source.number].types
            # A linear operator passes diffs on, so a diff can be the number of the input row.
            marked = columns_of_rows([(row, i) for i, row in enumerate(missing, 1)], types)
            step = Step([marked], [None], [None], (), stage=self.step.stage)
            output = operator.step(step)
            for row in missing:
                memoised[row] = []
            if output is not None:
                for output_row, mark in rows_of_columns(output.columns, output.diff):
                    memoised[missing[abs(mark) - 1]].append((output_row, 1 if mark > 0 else -1))
        return [
            (output_row, sign * diff) for row, diff in pairs for output_row, sign in memoised[row]
        ]

    def _join_rows(self, number: int, node: LoopNode, time: Time, boxes: dict[int, Pairs]) -> None:
        """Pairs dA with B, then A + dA with dB; each pair belongs to the bound of both times."""
        outputs: dict[Time, Pairs] = {}
        for side in (0, 1):
            delta = consolidated_pairs([boxes[side]]) if side in boxes else None
            if not delta:
                continue
            self._pair_side(number, node, side, delta, time, outputs)
            state = node.states[side]
            if state is not None:
                self.mirror.states[state].add(delta, time)
        for at, pairs in sorted(outputs.items()):
            self._send(number, at, pairs)

    def _pair_side(
        self,
        number: int,
        node: LoopNode,
        side: int,
        delta: RowCounts,
        time: Time,
        made: dict[Time, Pairs],
    ) -> None:
        shape: JoinRowPlan = self.shape.nodes[number]
        other = 1 - side
        state = node.states[other]
        pick, output = shape.keys[side], shape.output
        keys = [key for key in map(pick, delta) if None not in key]
        touched = len(delta)
        if state is None:
            outside = self.mirror.outside[node.ports[other].number]
            outside.learn(keys)
            before = side == 0 and not any(time)
            pairs = made.setdefault(time, [])
            for row, diff in delta.items():
                key = pick(row)
                if None in key:
                    continue
                theirs = outside.at(key, before=before)
                touched += len(theirs)
                if side == 0:
                    pairs += [(output(row + each), diff * n) for each, n in theirs.items()]
                else:
                    pairs += [(output(each + row), diff * n) for each, n in theirs.items()]
        else:
            trace = self.mirror.states[state]
            trace.learn(keys)
            bounds: dict[Time, Time] = {}
            for row, diff in delta.items():
                key = pick(row)
                if None in key:
                    continue
                held = trace.by_key[key]
                touched += len(held)
                for (each, at), count in held.items():
                    least = bounds.get(at)
                    if least is None:
                        least = bounds[at] = least_upper_bound(time, at)
                    there = made.get(least)
                    if there is None:
                        there = made[least] = []
                    there.append((output(row + each if side == 0 else each + row), diff * count))
        self.step.touched += touched
        for pairs in made.values():
            if pairs and max(map(abs, map(_DIFF, pairs))) > COUNT_MAX:
                raise TooManyChangesError

    def _by_key(
        self, number: int, node: LoopNode, time: Time, boxes: dict[int, Pairs], keys: set[Row]
    ) -> None:
        """Evaluates the keys that changed or were scheduled, and schedules their later times."""
        shape: GroupRowPlan = self.shape.nodes[number]
        changed = {port: consolidated_pairs([pairs]) for port, pairs in boxes.items()}
        for port, sums in changed.items():
            keys.update(map(shape.keys[port], sums))
        if not keys:
            return
        inputs, output = self._caches_of(node)
        for each in (*inputs, output):
            each.learn(keys)
        for port, sums in changed.items():
            into = inputs[port]
            if isinstance(into, TimedKeyCache):
                into.add(sums, time)
        asked: list[RowCounts] = [{} for _ in node.ports]
        change: RowCounts = {}
        bounds: dict[Time, Time] = {}
        touched = len(keys)
        result, wait = shape.result, self._schedule
        for key in keys:
            counts = []
            for each in inputs:
                if isinstance(each, RoundState):
                    held, after = each.at(key, time)
                    if after is not None:
                        wait(number, after, key)  # which schedules the next time in turn
                elif isinstance(each, TimedKeyCache):
                    held = self._rows_at(number, key, each, time, bounds)
                else:
                    held = each.at(key, before=False)
                touched += len(held)
                counts.append(held)
            new = None if result is None else result(key, counts)
            if isinstance(output, RoundState):
                old, after = output.at(key, time)
                if after is not None:
                    wait(number, after, key)
            else:
                old = self._rows_at(number, key, output, time, bounds)
            if new == old:
                continue
            if new is None:
                for every, held in zip(asked, counts, strict=True):
                    every.update(held)
            else:
                for row, count in new.items():
                    change[row] = change.get(row, 0) + count
            for row, count in old.items():
                change[row] = change.get(row, 0) - count
        self.step.touched += touched
        if any(asked):
            self._evaluate_by_operator(node, asked, change)
        made = without_zeros(change)
        output.add(made, time)
        self._send(number, time, list(made.items()))

    def _caches_of(
        self, node: LoopNode
    ) -> tuple[list[TimedKeyCache | InputKeyCache], TimedKeyCache]:
        """Returns the caches of a node's inputs, and that of its output."""
        states, outside = self.mirror.states, self.mirror.outside
        *reads, own = node.states
        assert own is not None
        ports = zip(reads, node.ports, strict=True)
        return [outside[p.number] if s is None else states[s] for s, p in ports], states[own]

    def _rows_at(
        self, number: int, key: Row, state: TimedKeyCache, time: Time, bounds: dict[Time, Time]
    ) -> RowCounts:
        """Returns a key's rows at a time, and schedules the key at the bounds of later changes.

        Args:
            bounds: the cached least upper bounds of `time` and other times; extended.

        Returns:
            the counts of rows, which the caller must not change.
        """
        counts: RowCounts = {}
        held = state.by_key[key]
        if not held:
            return counts
        late = 0
        later: set[Time] = set()
        for (row, at), count in held.items():
            least = bounds.get(at)
            if least is None:
                least = least_upper_bound(time, at)
                least = bounds[at] = time if least == time else least
            if least is time:
                counts[row] = counts.get(row, 0) + count
            else:
                later.add(least)
                late += 1
        if later:
            self.step.touched += late
            for at in later:
                self._schedule(number, at, key)
        return without_zeros(counts)

    def _schedule(self, number: int, time: Time, key: Row) -> None:
        """Schedules a key for a later time."""
        waiting = self.waiting.get((number, time))
        if waiting is None:
            waiting = self.waiting[number, time] = set()
            self._wake(number, time)
        waiting.add(key)

    def _evaluate_by_operator(
        self, node: LoopNode, asked: list[RowCounts], change: RowCounts
    ) -> None:
        """Evaluates some keys with the operator, and adds its output to `change`.

        Args:
            asked: the rows of these keys in each input.
        """
        operator = node.operator
        assert operator is not None
        inputs = []
        for port, held in enumerate(asked):
            types = operator.grouping(port).types
            inputs.append(columns_of_rows(held.items(), types) if held else None)
        output = evaluate_from_scratch(operator, inputs, self.step)
        if output is not None:
            add_pairs(change, rows_of_columns(output.columns, output.diff))
