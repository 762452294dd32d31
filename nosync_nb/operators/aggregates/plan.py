"""Plans the state of the aggregates of a stage: slots of numbers, and traces of values.

Calls share state: `sum(x)` and `avg(x)` use the same slots, `min(x)` and `count(distinct x)` the
same trace.

- A **slot** is an additive number of a group (accumulators.py).
- A **value index** stores the values of each group, for aggregates that need individual values:
  extremes, distinct values, lists. If its order does not show the extreme value at once, the
  **winner** of each group is stored in an additional trace (extremes.py).
- A **feed** names the slots to which the values of an argument contribute. Its values come from
  all rows, weighted by their diffs, or from a value index. A value of a value index contributes
  once while it is present (extremes.py).

Three kinds of slots have fixed positions: slot 0 counts the rows, slot 1 + 100 i the values of
argument i, and the next one begins their sum. All other slots follow in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.expressions import PAIRS, AggregateCall, Expression
from nosync_nb.operators.aggregates.accumulators import SLOTS
from nosync_nb.rows.types import FIXED, FLOATS, decimal_parts
from nosync_nb.trace.batch import Layout

_BLOCK = 100  # slots: one for a count, and 99 for a sum

SPREADS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
_SQUARES = ("count", "doubles", "squares")
_KINDS: dict[str, tuple[str, ...]] = {
    "count": ("count",),
    **dict.fromkeys(("sum", "avg", "try_sum", "try_avg", "wrapping_sum"), ("count", "sum")),
    **dict.fromkeys(SPREADS, _SQUARES),
    "skewness": (*_SQUARES, "cubes"),
    "kurtosis": (*_SQUARES, "cubes", "fourths"),
    **dict.fromkeys(PAIRS, (*_SQUARES, "doubles 2", "squares 2", "products")),
    "bit_and": ("count", "bits"),
    "bit_or": ("count", "bits"),
    "bit_xor": ("count", "bits"),
}
_BY_PRESENCE = ("bit_and", "bit_or")
_ORDERED = ("min", "max", "min_by", "max_by")


class ValueIndex(NamedTuple):
    """A trace of rows (key..., argument...).

    Attributes:
        arguments: the numbers of the arguments.
        required: the number of leading arguments that must not be null.
        ordered: True if the trace is ordered by its first argument inside each key.
    """

    arguments: tuple[int, ...]
    required: int
    ordered: bool


class SlotFeed(NamedTuple):
    """The slots to which an argument, or a pair of arguments, contributes.

    Attributes:
        argument: the number of the argument.
        second: the number of the second argument of a pair; -1 for a single argument.
        held: the number of the value index among the own traces; -1 if every row contributes.
        slots: the first slot of each kind.
    """

    argument: int
    second: int
    held: int
    slots: dict[str, int]

    @property
    def arguments(self) -> tuple[int, ...]:
        """The numbers of the arguments: one or two."""
        return (self.argument,) if self.second < 0 else (self.argument, self.second)


class CallPlan(NamedTuple):
    """The state of a call: slots, or own traces of the operator.

    Attributes:
        argument: the number of the first argument; -1 if the call has none.
        slots: the first slot of each kind.
        held: the number of the value index among the own traces; -1 if the call reads none.
        winners: the number of the trace of winners among the own traces; -1 if it reads none.
    """

    call: AggregateCall
    argument: int
    slots: dict[str, int]
    held: int
    winners: int


class AggregatePlan(NamedTuple):
    """The state of all calls of an aggregate operator.

    The own traces are the slots (trace 0), then the value indexes, then the traces of winners.

    Attributes:
        plans: the state of each call.
        arguments: the distinct arguments of all calls.
        feeds: the feeds of all slots.
        held: the value indexes; number i is own trace i + 1.
        winners: for each trace of winners, the number of its value index among the own traces.
        slots_count: the number of slots.
    """

    plans: tuple[CallPlan, ...]
    arguments: tuple[Expression, ...]
    feeds: tuple[SlotFeed, ...]
    held: tuple[ValueIndex, ...]
    winners: tuple[int, ...]
    slots_count: int

    def layouts(self, key_types: Sequence[str]) -> tuple[Layout, ...]:
        """Returns the layouts of the own traces: slots, value indexes, then winners."""
        key = tuple(range(len(key_types)))
        slot = "smallint" if self.slots_count < 2**15 else "int"
        layouts = [Layout((*key_types, slot), key)]
        for held in self.held:
            types = (self.arguments[i].type for i in held.arguments)
            layouts.append(Layout((*key_types, *types), key, len(key) if held.ordered else None))
        layouts += [Layout(layouts[number].types, key) for number in self.winners]
        return tuple(layouts)


def _shows_extreme(call: AggregateCall) -> bool:
    """Returns True if order codes distinguish all values, so a lookup finds the extreme one."""
    if call.more or call.argument is None:
        return False
    type_ = call.argument.type
    exact = type_.startswith("decimal") and decimal_parts(type_)[0] <= 18
    return exact or type_ in FIXED


def sum_kind(kind: str, type_: str) -> str:
    """Returns the kind of a sum as doubles: for float arguments it is their ordinary sum."""
    return "sum" if kind == "doubles" and type_ in FLOATS else kind


class _Planner:
    """Assigns numbers to the arguments, traces and slots of calls."""

    def __init__(self, calls: Sequence[AggregateCall]) -> None:
        self.arguments: list[Expression] = []
        self._numbers: dict[str, int] = {}
        for call in calls:
            for argument in call.arguments:
                number = self._numbers.setdefault(argument.fingerprint, len(self.arguments))
                if number == len(self.arguments):
                    self.arguments.append(argument)
        self.held: dict[tuple[tuple[int, ...], int], bool] = {}
        self.winners: dict[tuple[int, bool], int] = {}
        self.feeds: dict[tuple[int, int, int], SlotFeed] = {}
        self.slots_count = 1 + _BLOCK * len(self.arguments)

    def plan(self, call: AggregateCall) -> CallPlan:
        """Returns the plan of a call, and assigns its traces and slots."""
        if call.argument is None:
            return CallPlan(call, -1, {"count": 0}, -1, -1)
        numbers = tuple(self._numbers[a.fingerprint] for a in call.arguments)
        kinds = _KINDS.get(call.function)
        if kinds is None:
            held = self._trace(call, numbers)
            winners = -1
            if call.function in _ORDERED and not _shows_extreme(call):
                greatest = call.function.startswith("max")
                winners = self.winners.setdefault((held, greatest), len(self.winners))
            return CallPlan(call, numbers[0], {}, held, winners)
        held = -1
        if call.distinct or call.function in _BY_PRESENCE:
            held = self._trace(call, numbers)
        key = (numbers[0], numbers[1] if call.function in PAIRS else -1, held)
        feed = self.feeds.setdefault(key, SlotFeed(*key, {}))
        for each in kinds:
            kind = each if feed.second >= 0 else sum_kind(each, call.argument.type)
            if kind not in feed.slots:
                feed.slots[kind] = self._slot(feed, kind)
        return CallPlan(call, numbers[0], feed.slots, -1, -1)

    def _trace(self, call: AggregateCall, numbers: tuple[int, ...]) -> int:
        required = len(numbers) if call.required < 0 else call.required
        if call.function in ("min_by", "max_by"):
            numbers, required = numbers[::-1], 1
        key = (numbers, required)
        self.held[key] = self.held.get(key, False) or call.function in _ORDERED
        return 1 + list(self.held).index(key)

    def _slot(self, feed: SlotFeed, kind: str) -> int:
        if feed.held < 0 > feed.second and kind in ("count", "sum"):
            return 1 + _BLOCK * feed.argument + (kind == "sum")
        self.slots_count += SLOTS[kind]
        return self.slots_count - SLOTS[kind]


def plan_aggregates(calls: Sequence[AggregateCall]) -> AggregatePlan:
    """Plans the state of all calls of an aggregate operator."""
    planner = _Planner(calls)
    plans = [planner.plan(call) for call in calls]
    first = 1 + len(planner.held)
    return AggregatePlan(
        tuple(p if p.winners < 0 else p._replace(winners=first + p.winners) for p in plans),
        tuple(planner.arguments),
        tuple(planner.feeds.values()),
        tuple(ValueIndex(*key, ordered) for key, ordered in planner.held.items()),
        tuple(held for held, _ in planner.winners),
        planner.slots_count,
    )
