"""A run of a loop over few changes, row by row in Python; see `run` for what it does and when.

It gives what `run` gives, node by node and time by time, out of a mirror of what the loop holds.
Whatever is unusual (many rows, counts near an overflow, more rounds than usual) makes it give up;
then the epoch is run on the traces, as if nothing had been tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nosync_nb.batch import Layout, Updates, concat_updates
from nosync_nb.operators.aggregate import Aggregate
from nosync_nb.operators.base import Step
from nosync_nb.operators.distinct import Threshold, distinct
from nosync_nb.operators.iterate.grouped import from_scratch
from nosync_nb.operators.iterate.mirror import (
    PLAIN_TYPES,
    Mirror,
    Pairs,
    Pick,
    Row,
    key_picker,
    pairs_of,
    picker,
    updates_of,
)
from nosync_nb.operators.iterate.plan import GROUP, JOIN, LEAVE, VARIABLE, Inner, Reader
from nosync_nb.operators.iterate.rounds import Time
from nosync_nb.operators.iterate.run import Run, tagged
from nosync_nb.operators.iterate.settle import FREE_ROUNDS, Watch
from nosync_nb.operators.join import Join
from nosync_nb.operators.linear import Concat, Consolidate, Linear, Select
from nosync_nb.rows.types import INTEGERS

if TYPE_CHECKING:
    from nosync_nb.operators.iterate.loop import Loop

FEW_ROWS = 64
"""An epoch that changes more rows of the inputs is not tried."""

ROWS_PER_RUN = 300
"""So many rows cost in Python what one run of a node costs in numpy, whatever its rows."""

_COUNT_MAX = 1 << 53
_KNOWN_MAX = 1 << 14

Held = dict[Row, int]
Result = Callable[[Row, list[Held]], Held | None]
"""The output of one key over its rows in each input; None: ask the operator."""


class ManyError(Exception):
    """The changes are not few, or otherwise not for this run."""


class Shape:
    """What is fixed for a loop: how its nodes are run on rows.

    Attributes:
        possible: whether all of them can.
    """

    def __init__(self, loop: Loop) -> None:
        self.possible = all(_is_possible(node) for node in loop.nodes)
        self.nodes: list[Any] = []
        if self.possible:
            self.nodes = [_shape(node) for node in loop.nodes]


class JoinShape:
    """Keys and output of a join: what both take of (left row + right row)."""

    def __init__(self, join: Join) -> None:
        self.keys = (picker(join.keys[0]), picker(join.keys[1]))
        left = len(join.layouts[0].types)
        self.output = picker([i if side == 0 else left + i for side, i in join.outputs])


class GroupShape:
    """Keys and function of an operator by key."""

    def __init__(self, node: Inner) -> None:
        operator = node.operator
        assert operator is not None
        self.keys = [key_picker(operator.grouping(port)) for port in range(len(node.ports))]
        self.output_key = key_picker(Layout(operator.types, operator.output_key))
        self.result: Result | None = None
        if isinstance(operator, Aggregate):
            self.result = _aggregated(operator)
        elif isinstance(operator, Threshold) and operator.function is distinct:
            self.result = _distinct


def _is_possible(node: Inner) -> bool:
    """Whether a node can be run on rows."""
    operator = node.operator
    if not node.types or not PLAIN_TYPES.issuperset(node.types):
        return False
    if operator is None:
        return len(node.ports) == 1 or node.kind != LEAVE or not node.depth
    if not getattr(operator, "local", True) or getattr(operator, "asks", False):
        return False
    if isinstance(operator, Linear | Concat | Consolidate):
        return getattr(operator, "stable", True)
    layouts = [operator.grouping(port) for port in range(len(node.ports))]
    if isinstance(operator, Join):
        layouts = list(operator.layouts)
        if not operator.keys[0] or not operator.outputs:
            return False
    elif not isinstance(operator, Aggregate | Threshold) or operator.global_row:
        return False
    return all(each.types and PLAIN_TYPES.issuperset(each.types) for each in layouts)


def _shape(node: Inner) -> Any:
    operator = node.operator
    if isinstance(operator, Join):
        return JoinShape(operator)
    if node.kind == GROUP:
        return GroupShape(node)
    if isinstance(operator, Linear) and len(operator.pieces) == 1:
        (piece,) = operator.pieces
        if isinstance(piece, Select) and not piece.expressions:
            return picker(piece.outputs)  # type: ignore[arg-type]
    return None


def _distinct(key: Row, inputs: list[Held]) -> Held | None:
    return {row: 1 for row, count in inputs[0].items() if count > 0}


def _aggregated(operator: Aggregate) -> Result | None:
    """What computes an aggregate of plain columns, None if that is another one."""
    if operator.picked is None or not all(e.is_column for e in operator.arguments):
        return None
    calls: list[tuple[str, int]] = []
    for plan in operator.plans:
        call = plan.call
        if call.distinct or call.more or call.function not in _FUNCTIONS:
            return None
        if call.function == "sum" and call.argument and call.argument.type not in INTEGERS:
            return None
        place = -1 if call.argument is None else call.argument.columns[0]
        calls.append((call.function, place))
    chosen = picker(operator.picked)

    def result(key: Row, inputs: list[Held]) -> Held | None:
        held = inputs[0]
        if any(count < 0 for count in held.values()):
            return None
        if not held:
            return {}
        values = [_FUNCTIONS[function](held, place) for function, place in calls]
        return {(*key, *chosen((*key, *values))): 1}

    return result


def _least(held: Held, place: int) -> Any:
    return min([row[place] for row in held if row[place] is not None], default=None)


def _greatest(held: Held, place: int) -> Any:
    return max([row[place] for row in held if row[place] is not None], default=None)


def _rows_counted(held: Held, place: int) -> int:
    return sum(held.values())


def _values_counted(held: Held, place: int) -> int:
    return sum(count for row, count in held.items() if row[place] is not None)


def _sum(held: Held, place: int) -> Any:
    found = [row[place] * count for row, count in held.items() if row[place] is not None]
    total = sum(found) if found else None
    if total is not None and abs(total) > _COUNT_MAX:
        raise ManyError
    return total


_FUNCTIONS: dict[str, Callable[[Held, int], Any]] = {
    "count_star": _rows_counted,
    "count": _values_counted,
    "sum": _sum,
    "min": _least,
    "max": _greatest,
}


class FewRun(Run):
    """One run over few changes.

    Raises:
        ManyError: it is given up; the mirror is of no use any more.
    """

    def __init__(self, loop: Loop, step: Step, mirror: Mirror, budget: int | None) -> None:
        super().__init__(loop, step, (), budget)
        self.mirror = mirror
        self.shape = loop.shape
        self.boxes: dict[tuple[int, Time], dict[int, Pairs]] = {}
        self.waiting: dict[tuple[int, Time], set[Row]] = {}
        self.left: dict[int, Held] = {}

    def start(self) -> None:
        """Gives the changes of the epoch to those who read them, in round 0."""
        for number, delta in enumerate(self.step.deltas):
            held = self.mirror.outside.get(number)
            pairs = [] if delta is None else pairs_of(delta.columns, delta.diff)
            if held is not None:
                after = self.step.after[number]
                assert after is not None
                held.follow(pairs, after)
            self.touched += len(pairs)
            if pairs:
                for reader in self.plan.outside.get(number, ()):
                    self._hand(reader, (), pairs)

    def result(self) -> Updates | None:
        """What leaves the loop."""
        leave = self.plan.nodes[self.plan.output]
        parts = []
        for port, held in self.left.items():
            found = [pair for pair in held.items() if pair[1]]
            if found:
                types = self.plan.nodes[leave.ports[port].number].types
                updates = updates_of(found, types)
                parts.append(tagged(leave, self.plan.nodes, port, updates))
        return concat_updates(parts, self.plan.types) if parts else None

    def _send(self, number: int, time: Time, pairs: Pairs) -> None:
        """Passes on what a node made."""
        if pairs:
            for reader in self.plan.inside[number]:
                self._hand(reader, time, pairs)

    def _hand(self, reader: Reader, time: Time, pairs: Pairs) -> None:
        """Gives updates of a time to a reader, as `Run._give`."""
        node, port = reader
        target = self.plan.nodes[node]
        if target.kind == LEAVE and not target.depth:
            _add(self.left.setdefault(port, {}), pairs)
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

    def _node(self, number: int, time: Time, watch: Watch) -> bool:
        """Runs one node at one time, if there is something for it; whether there was."""
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
            self._paired(number, node, time, boxes)
        elif node.operator is None or isinstance(node.operator, Consolidate):
            found = _consolidated(pairs for pairs in boxes.values())
            self.touched += len(found)
            self._send(number, time, list(found.items()))
        elif isinstance(node.operator, Concat):
            pairs = [pair for each in boxes.values() for pair in each]
            self.touched += len(pairs)
            self._send(number, time, pairs)
        else:
            self._send(number, time, self._rowwise(number, node.operator, boxes[0]))
        work = self.step.touched + self.touched - self.began
        if work > ROWS_PER_RUN * (10 + self.runs) or watch.count >= FREE_ROUNDS:
            raise ManyError
        return True

    def _rowwise(self, number: int, operator: Any, pairs: Pairs) -> Pairs:
        """Runs a linear operator on the rows that it has not seen lately."""
        self.touched += len(pairs)
        pick: Pick | None = self.shape.nodes[number]
        if pick is not None:
            return [(pick(row), diff) for row, diff in pairs]
        known = self.mirror.known.setdefault(number, {})
        missing = list({row: None for row, _ in pairs if row not in known})
        if missing:
            if len(known) > _KNOWN_MAX:
                known.clear()
                missing = list({row: None for row, _ in pairs})
            source = self.plan.nodes[number].ports[0]
            types = self.plan.nodes[source.number].types
            # A linear operator carries diffs over, so a diff can say which row it came from.
            marked = updates_of([(row, i) for i, row in enumerate(missing, 1)], types)
            step = Step([marked], [None], [None], (), stage=self.step.stage)
            found = operator.step(step)
            for row in missing:
                known[row] = []
            if found is not None:
                for made, mark in pairs_of(found.columns, found.diff):
                    known[missing[abs(mark) - 1]].append((made, 1 if mark > 0 else -1))
        return [(made, sign * diff) for row, diff in pairs for made, sign in known[row]]

    def _paired(self, number: int, node: Inner, time: Time, boxes: dict[int, Pairs]) -> None:
        """Pairs dA with B as it was, then A and its change with dB; each pair at its bound."""
        made: dict[Time, Pairs] = {}
        for side in (0, 1):
            delta = _consolidated([boxes[side]]) if side in boxes else None
            if not delta:
                continue
            self._pair_side(number, node, side, delta, time, made)
            state = node.states[side]
            if state is not None:
                trace = self.mirror.states[state]
                for row, diff in delta.items():
                    trace.add(row, time, diff)
        for at, pairs in sorted(made.items()):
            self._send(number, at, pairs)

    def _pair_side(
        self, number: int, node: Inner, side: int, delta: Held, time: Time, made: dict[Time, Pairs]
    ) -> None:
        shape: JoinShape = self.shape.nodes[number]
        other = 1 - side
        state = node.states[other]
        pick, output = shape.keys[side], shape.output
        before = side == 0 and not any(time)
        touched = len(delta)
        for row, diff in delta.items():
            key = pick(row)
            if None in key:
                continue
            if state is None:
                found: Any = self.mirror.outside.get(node.ports[other].number)
                if found is None:
                    continue
                pairs = made.setdefault(time, [])
                theirs = found.at(key, before=before)
                for their, count in theirs.items():
                    pairs.append((output(row + their if side == 0 else their + row), diff * count))
            else:
                theirs = self.mirror.states[state].by_key.get(key, {})
                for (their, at), count in theirs.items():
                    made.setdefault(bound(time, at), []).append(
                        (output(row + their if side == 0 else their + row), diff * count)
                    )
            touched += len(theirs)
        self.step.touched += touched
        for pairs in made.values():
            if pairs and max(abs(diff) for _, diff in pairs) > _COUNT_MAX:
                raise ManyError

    def _by_key(
        self, number: int, node: Inner, time: Time, boxes: dict[int, Pairs], keys: set[Row]
    ) -> None:
        """Evaluates the keys that changed or were scheduled, and schedules their later times."""
        shape: GroupShape = self.shape.nodes[number]
        for port, pairs in boxes.items():
            state = node.states[port]
            pick = shape.keys[port]
            for row, diff in _consolidated([pairs]).items():
                keys.add(pick(row))
                if state is not None:
                    self.mirror.states[state].add(row, time, diff)
        if not keys:
            return
        own = node.states[-1]
        assert own is not None
        output = self.mirror.states[own]
        asked: list[Held] = [{} for _ in node.ports]
        change: Held = {}
        self.step.touched += len(keys)
        for key in keys:
            inputs = []
            for port, source in enumerate(node.ports):
                state = node.states[port]
                if state is None:
                    held = self.mirror.outside.get(source.number)
                    found = {} if held is None else held.at(key, before=False)
                else:
                    found = self._at(number, key, self.mirror.states[state], time)
                self.step.touched += len(found)
                inputs.append(found)
            new = None if shape.result is None else shape.result(key, inputs)
            if new is not None:
                _add(change, new.items())
            else:
                for each, found in zip(asked, inputs, strict=True):
                    each.update(found)
            for row, count in self._at(number, key, output, time).items():
                change[row] = change.get(row, 0) - count
        if any(asked):
            self._ask(node, asked, change)
        made = [pair for pair in change.items() if pair[1]]
        for row, diff in made:
            output.add(row, time, diff)
        self._send(number, time, made)

    def _at(self, number: int, key: Row, state: Any, time: Time) -> Held:
        """What a trace holds at a time for a key; schedules the key where it changes later."""
        found: Held = {}
        late = 0
        for (row, at), count in state.by_key.get(key, {}).items():
            least = bound(time, at)
            if least == time:
                found[row] = found.get(row, 0) + count
                continue
            late += 1
            waiting = self.waiting.get((number, least))
            if waiting is None:
                waiting = self.waiting[number, least] = set()
                self._wake(number, least)
            waiting.add(key)
        self.step.touched += late
        return {row: count for row, count in found.items() if count}

    def _ask(self, node: Inner, asked: list[Held], change: Held) -> None:
        """Adds the output of the operator over some keys."""
        operator = node.operator
        assert operator is not None
        inputs = []
        for port, held in enumerate(asked):
            types = operator.grouping(port).types
            inputs.append(updates_of(held.items(), types) if held else None)
        found = from_scratch(operator, inputs, self.step)
        if found is not None:
            _add(change, pairs_of(found.columns, found.diff))


def bound(time: Time, other: Time) -> Time:
    """The least upper bound of two times."""
    if time == other:
        return time
    if len(time) == 1:
        return time if time > other else other
    return tuple(map(max, time, other))


def _add(held: Held, pairs: Any) -> None:
    for row, diff in pairs:
        held[row] = held.get(row, 0) + diff


def _consolidated(parts: Any) -> Held:
    """The sum of lists of rows, without those that cancel.

    Raises:
        ManyError: if a count grows beyond what can be multiplied.
    """
    found: Held = {}
    for pairs in parts:
        _add(found, pairs)
    kept = {row: diff for row, diff in found.items() if diff}
    if kept and max(map(abs, kept.values())) > _COUNT_MAX:
        raise ManyError
    return kept
