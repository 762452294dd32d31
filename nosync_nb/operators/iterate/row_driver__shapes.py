"""How the nodes of a loop are run on rows in Python: keys, outputs and functions, once for a loop.

An operator that has no such function is asked for the keys in question (see `few`); one whose
columns are not mirrored makes the whole loop run on its traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nosync_nb.operators.aggregates.aggregate import Aggregate
from nosync_nb.operators.base import GROUP, PLAIN
from nosync_nb.operators.distinct import Threshold, distinct
from nosync_nb.operators.iterate.key_cache import (
    PLAIN_TYPES,
    Row,
    TooManyChangesError,
    key_picker,
    value_picker,
)
from nosync_nb.operators.iterate.plan import LEAVE, LoopNode
from nosync_nb.operators.iterate.round_state__sums import COUNT_MAX, Held
from nosync_nb.operators.joins.join import Join
from nosync_nb.operators.linear import Linear, Select
from nosync_nb.rows.types import INTEGERS
from nosync_nb.trace.batch import Layout

if TYPE_CHECKING:
    from nosync_nb.operators.iterate.loop import Loop

Result = Callable[[Row, list[Held]], Held | None]
"""The output of one key over its rows in each input; None: ask the operator."""


class RowPlan:
    """What is fixed for a loop: how its nodes are run on rows.

    Attributes:
        possible: whether all of them can.
    """

    def __init__(self, loop: Loop) -> None:
        self.possible = all(_is_possible(node) for node in loop.nodes)
        self.nodes: list[Any] = []
        if self.possible:
            self.nodes = [_shape(node) for node in loop.nodes]


class JoinRowPlan:
    """Keys and output of a join: what both take of (left row + right row)."""

    def __init__(self, join: Join) -> None:
        self.keys = (value_picker(join.keys[0]), value_picker(join.keys[1]))
        left = len(join.layouts[0].types)
        self.output = value_picker([i if side == 0 else left + i for side, i in join.outputs])


class GroupRowPlan:
    """Keys and function of an operator by key."""

    def __init__(self, node: LoopNode) -> None:
        operator = node.operator
        assert operator is not None
        self.keys = [key_picker(operator.grouping(port)) for port in range(len(node.ports))]
        self.output_key = key_picker(Layout(operator.types, operator.output_key))
        self.result: Result | None = None
        if isinstance(operator, Aggregate):
            self.result = _aggregated(operator)
        elif isinstance(operator, Threshold) and operator.function is distinct:
            self.result = _distinct


def _is_possible(node: LoopNode) -> bool:
    """Whether a node can be run on rows."""
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


def _shape(node: LoopNode) -> Any:
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


def _distinct(key: Row, inputs: list[Held]) -> Held | None:
    return {row: 1 for row, count in inputs[0].items() if count > 0}


def _aggregated(operator: Aggregate) -> Result | None:
    """What computes an aggregate of plain columns, None if that is another one."""
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
    made = value_picker([*range(len(operator.keys)), *operator.picked])
    if len(calls) == 1 and list(operator.picked) == [len(operator.keys)]:
        return _alone(*calls[0])

    def result(key: Row, inputs: list[Held]) -> Held | None:
        held = inputs[0]
        if not held:
            return {}
        if min(held.values()) < 0:
            return None
        return {made((*key, *[function(held, *places) for function, places in calls])): 1}

    return result


def _alone(function: Callable[..., Any], places: list[int]) -> Result:
    """What computes an aggregate of one call, after its key."""

    def result(key: Row, inputs: list[Held]) -> Held | None:
        held = inputs[0]
        if not held:
            return {}
        if min(held.values()) < 0:
            return None
        return {(*key, function(held, *places)): 1}

    return result


def _least(held: Held, place: int) -> Any:
    return min(_values(held, place), default=None)


def _greatest(held: Held, place: int) -> Any:
    return max(_values(held, place), default=None)


def _least_by(held: Held, place: int, order: int) -> Any:
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


def _greatest_by(held: Held, place: int, order: int) -> Any:
    greatest = _greatest(held, order)
    if greatest is None:
        return None
    values = [row[place] for row in held if row[order] == greatest]
    return max((value for value in values if value is not None), default=None)


def _values(held: Held, place: int) -> list[Any]:
    """The values of a column that are not null."""
    values = [row[place] for row in held]
    return [value for value in values if value is not None] if None in values else values


def _rows_counted(held: Held) -> int:
    return sum(held.values())


def _values_counted(held: Held, place: int) -> int:
    return sum(count for row, count in held.items() if row[place] is not None)


def _sum(held: Held, place: int) -> Any:
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
"""Each of the rows of a key and the places of its arguments; of equal orders as everywhere."""
