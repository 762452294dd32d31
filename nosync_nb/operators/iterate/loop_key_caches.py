"""A mirror: what a loop holds of the keys it looked at, as Python values: few changes cost little.

Following one edge through a loop touches a few rows in each round, and numpy costs the same for one
row as for hundreds. A mirror has rows of the loop's traces, and of the inputs that it looks into,
in dicts by key (see `known`, and `stepped` for what is evaluated by key). It is kept with what the
loop remembers (see `effort`): in memory, of one trace at a time, never wrong but missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nosync_nb.operators.base import GROUP, Step
from nosync_nb.operators.iterate.key_cache import (
    InputKeyCache,
    KeyCache,
    Pairs,
    Row,
    TimedKeyCache,
    cached_upper,
)
from nosync_nb.operators.iterate.round_state import RoundState

if TYPE_CHECKING:
    from nosync_nb.operators.iterate.loop import Loop


class LoopKeyCaches:
    """What is known of all that a loop looks into.

    Attributes:
        states: of each trace of the loop, without its mark.
        outside: of each input that has a layout.
        known: for each row-wise node what it made of a row, as rows with signs.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        by_key = {s for n in loop.nodes if n.kind == GROUP and n.depth == 1 for s in n.states}
        self.states = [
            (RoundState if number in by_key else TimedKeyCache)(layout, depth)
            for number, (layout, depth) in enumerate(zip(loop.state, loop.depths, strict=False))
        ]
        self.outside = {
            number: InputKeyCache(layout)
            for number, layout in enumerate(loop.layouts)
            if layout is not None
        }
        self.known: dict[int, dict[Row, Pairs]] = {}
        self._uppers: list[tuple[int, bool]] = []

    @property
    def rows_count(self) -> int:
        """How many rows and keys are known."""
        every: list[KeyCache[Any]] = [*self.states, *self.outside.values()]
        return sum(each.rows_count for each in every)

    def follows(self, loop: Loop, step: Step) -> bool:
        """Whether it holds what the traces do before an epoch.

        An epoch may have failed after the loop ran: what it had changed was not kept then.
        """
        if self.loop is not loop:
            return False
        for number, held in self.outside.items():
            trace = step.before[number]
            if trace is None or cached_upper(trace) != held.upper:
                return False
        return all(
            (cached_upper(trace) > upper) if changed else (cached_upper(trace) == upper)
            for trace, (upper, changed) in zip(step.state, self._uppers, strict=False)
        )

    def begin(self, step: Step) -> None:
        """An epoch begins: what is not known is looked up in its traces."""
        for state, trace in zip(self.states, step.state, strict=False):
            state.begin(trace)

    def leave(self, step: Step) -> None:
        """Emits what the epoch changed, and ends it."""
        self._uppers = []
        for number, state in enumerate(self.states):
            batch = step.emitted[number] = state.emitted()
            self._uppers.append((cached_upper(step.state[number]), batch is not None))
            state.close()
        for held in self.outside.values():
            held.close()
