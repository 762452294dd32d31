"""The key caches of a loop, as Python values, which make few changes cheap.

Following one edge through a loop touches a few rows in each round, and numpy costs the same for one
row as for hundreds. The caches have rows of the loop's traces, and of its arranged inputs, in dicts
by key (see `key_cache`, and `round_state` for operators by key). They live with the cost estimate
of the loop (see `cost_estimate`), in memory and for one version of the traces. They may be
incomplete, but never wrong.
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
    """The cached keys of all traces and inputs that a loop looks up.

    Attributes:
        states: of each trace of the loop, without its mark.
        outside: of each input that has a layout.
        known: for each row-wise node the output of a row, as rows with signs.
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
        """The number of cached rows and keys."""
        every: list[KeyCache[Any]] = [*self.states, *self.outside.values()]
        return sum(each.rows_count for each in every)

    def follows(self, loop: Loop, step: Step) -> bool:
        """Returns True if the caches agree with the traces before an epoch.

        An epoch may have failed after the loop ran; its changes were discarded then.
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

    def begin_epoch(self, step: Step) -> None:
        """Starts an epoch: keys that are not cached are looked up in its traces."""
        for state, trace in zip(self.states, step.state, strict=False):
            state.begin_epoch(trace)

    def leave(self, step: Step) -> None:
        """Emits the changes of the epoch, and ends it."""
        self._uppers = []
        for number, state in enumerate(self.states):
            batch = step.emitted[number] = state.emitted()
            self._uppers.append((cached_upper(step.state[number]), batch is not None))
            state.close()
        for held in self.outside.values():
            held.close()
