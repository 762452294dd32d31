"""Plans the state of the aggregates of a stage: slots of numbers, and traces of values.

Calls share: `sum(x)` and `avg(x)` the same slots, `min(x)` and `count(distinct x)` the same trace.

- A **slot** is a number of a group that adds up (accumulators.py).
- A **value index** has the values of each group, for aggregates that depend on the presence of
  values and not on their number: extremes, distinct values, lists. Where its order does not show
  the least value at once, the **winner** of each group is stored in a trace beside it
  (extremes.py).
- A **feed** names the slots that the values of an argument go to: of every row, weighed by its
  diff, or of the values of a value index, each once while it is present (extremes.py).

Slots 0 (rows), 1 + 100 i (values of argument i) and the sum after it have fixed positions; the
others follow in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nosync_nb.expressions import PAIRS, AggregateCall, Expression
from nosync_nb.operators.aggregates.accumulators import SLOTS
from nosync_nb.rows.types import FIXED, FLOATS, decimal_parts
from nosync_nb.trace.batch import Layout

_BLOCK = 100  # a count, and a sum, whose last offset is below 99

SPREADS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
_SQUARES = ("count", "doubles", "squares")
_KINDS: dict[str, tuple[str, ...]] = {
    "count": ("count",),
    **dict.fromkeys(("sum", "avg", "try_sum", "try_avg"), ("count", "sum")),
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
        arguments: their numbers.
        required: how many of them, from the first, must not be null.
        ordered: True if it is ordered by its first argument.
    """

    arguments: tuple[int, ...]
    required: int
    ordered: bool


class SlotFeed(NamedTuple):
    """Slots fed by an argument, or by a pair of them.

    Attributes:
        argument: its number; `second`: that of the other one, or -1.
        held: the number of the value index among the own traces; -1: every row counts.
        slots: kind -> first slot.
    """

    argument: int
    second: int
    held: int
    slots: dict[str, int]

    @property
    def arguments(self) -> tuple[int, ...]:
        """The numbers of its arguments."""
        return (self.argument,) if self.second < 0 else (self.argument, self.second)


class CallPlan(NamedTuple):
    """The state of a call: slots, or own traces of the operator.

    Attributes:
        argument: the number of its first argument, -1: it has none.
        slots: kind -> first slot.
        held, winners: numbers among the own traces, -1: it has none.
    """

    call: AggregateCall
    argument: int
    slots: dict[str, int]
    held: int
    winners: int


class AggregatePlan(NamedTuple):
    """All calls of an aggregate; value index i is own trace i + 1.

    Attributes:
        winners: for each trace of winners, which follow the value indexes, the number of its value
            index.
    """

    plans: tuple[CallPlan, ...]
    arguments: tuple[Expression, ...]
    feeds: tuple[SlotFeed, ...]
    held: tuple[ValueIndex, ...]
    winners: tuple[int, ...]
    slots_count: int

    def layouts(self, key_types: Sequence[str]) -> tuple[Layout, ...]:
        """Returns the layouts of the own traces: slots, value indexes, winners."""
        key = tuple(range(len(key_types)))
        slot = "smallint" if self.slots_count < 2**15 else "int"
        layouts = [Layout((*key_types, slot), key)]
        for held in self.held:
            types = (self.arguments[i].type for i in held.arguments)
            layouts.append(Layout((*key_types, *types), key, len(key) if held.ordered else None))
        layouts += [Layout(layouts[number].types, key) for number in self.winners]
        return tuple(layouts)


def _shows_extreme(call: AggregateCall) -> bool:
    """Returns True if a trace ordered by codes has the extreme value of a group at its end."""
    if call.more or call.argument is None:
        return False
    type_ = call.argument.type
    exact = type_.startswith("decimal") and decimal_parts(type_)[0] <= 18
    return exact or type_ in FIXED


def sum_kind(kind: str, type_: str) -> str:
    """Returns the kind of a sum: floats share the slots of doubles, other numbers have own ones."""
    return "sum" if kind == "doubles" and type_ in FLOATS else kind


class _Planner:
    """Assigns arguments, traces and slots."""

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
        """Returns the plan of a call."""
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
    """Plans all calls."""
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
