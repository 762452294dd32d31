"""Detects loops that do not converge, and reports the rows that keep changing.

When no other input arrives any more, the body is a function of the loop's variables. So if the
variables ever return to the values of an earlier round, they repeat for ever. A sum of row hashes
detects this. A loop that does not repeat is stopped after a number of rounds that no loop with its
input size should need.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nosync_nb import rows
from nosync_nb.errors import DivergenceError, titled
from nosync_nb.operators.base import Step
from nosync_nb.operators.iterate.nested_trace import NestedTrace, Time
from nosync_nb.operators.iterate.plan import LoopBody, LoopScope
from nosync_nb.rows.count_arithmetic import CountError
from nosync_nb.trace.batch import Batch

FREE_ROUNDS = 1000
"""The number of rounds of an epoch that run before the detection starts."""

ROUNDS_MIN, ROUNDS_MAX, ROUNDS_PER_ROW = 10_000, 1_000_000, 100
_WORD = (1 << 64) - 1
_SHOWN = 3
_LEVELS, _ROWS = "RECURSION_LEVEL_LIMIT_EXCEEDED", "RECURSION_ROW_LIMIT_EXCEEDED"


class DivergenceDetector:
    """Checks the rounds of one loop in one run for repetition, and limits their number."""

    def __init__(
        self, loop: LoopBody, scope: LoopScope, step: Step, states: Sequence[NestedTrace]
    ) -> None:
        self.loop = loop
        self.scope = scope
        self.step = step
        self.states = states
        self.count = 0
        self.time: Time = ()
        self.begun = -1  # rounds after this one occur only in this epoch; -1 means not yet computed
        self.sum = (0, 0)
        self.seen: dict[tuple[int, int], int] = {}
        self.last: list[tuple[int, Batch]] = []

    def begin_round(self, time: Time) -> None:
        """Starts a round."""
        self.count += 1
        self.time = time
        self.last = []

    def changed(self, node: int, batch: Batch) -> None:
        """Records the change of a variable in this round."""
        if self.count < FREE_ROUNDS:
            return
        self.last.append((node, batch))

    def end(self) -> None:
        """Ends a round.

        Raises:
            DivergenceError: if the loop cannot converge, or exceeds its limit of rounds.
        """
        if self.scope.rounds is not None or self.count < FREE_ROUNDS:
            return
        if self.begun < 0:
            self.begun = max(self._last_stored_round(), self.time[-1])
        if self.time[-1] <= self.begun:
            return
        self._compare()
        inputs = sum(t.rows_count for t in self.step.after if t is not None)
        inputs += sum(len(d.diff) for d in self.step.deltas if d is not None)
        most = min(ROUNDS_MAX, max(ROUNDS_MIN, ROUNDS_PER_ROW * inputs))
        if self.count > most:
            raise DivergenceError(
                f"{self._title()} did not converge in {self.count} rounds; {self._changing_rows()}",
                hint="limit the rounds with iterate(body, rounds=...), or end the body with"
                " distinct() or a min aggregate",
            )

    def _last_stored_round(self) -> int:
        """Returns the last round of this loop that the stored traces contain."""
        place = self.scope.depth - 1
        inside = set(self.scope.nodes())
        latest = 0
        for number in inside:
            for each in self.loop.nodes[number].states:
                if each is None or self.states[each].depth <= place:
                    continue
                state = self.states[each]
                for part in state.trace.parts():
                    if len(part):
                        latest = max(latest, int(part.columns[state.width + place].max()))
        return latest

    def _compare(self) -> None:
        """Adds the change of this round to the hash sums, and searches a round with equal sums.

        Raises:
            DivergenceError: if an earlier round has equal sums.
        """
        plain, mixed = self.sum
        for node, batch in self.last:
            diff = batch.diff.astype(np.uint64)
            tag = np.uint64(node * 0x9E3779B97F4A7C15 & _WORD)
            hashes = batch.rhash ^ tag
            plain = (plain + int((hashes * diff).sum(dtype=np.uint64))) & _WORD
            other = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            other ^= other >> np.uint64(32)
            mixed = (mixed + int((other * diff).sum(dtype=np.uint64))) & _WORD
        self.sum = (plain, mixed)
        now = self.time[-1]
        before = self.seen.setdefault(self.sum, now)
        if before != now:
            raise DivergenceError(
                f"{self._title()} does not converge: round {now}"
                f" has the same rows as round {before} (period {now - before});"
                f" {self._changing_rows()}",
                hint="make the body monotone, or limit the rounds: iterate(body, rounds=...)",
            )

    def _title(self) -> str:
        return _title(self.step.stage, self.time, _LEVELS)

    def _changing_rows(self) -> str:
        """Returns a text with some rows that still change."""
        shown = []
        for node, batch in self.last:
            types = self.loop.nodes[node].types
            columns = [rows.slice_(c, 0, _SHOWN) for c in batch.columns]
            values = [rows.to_pylist(c, t) for c, t in zip(columns, types, strict=True)]
            shown += [repr(row) for row in zip(*values, strict=True)]
        return f"rows that still change: {', '.join(shown[:_SHOWN])}"


def overflow_error(stage: str, time: Time, scope: LoopScope, error: CountError) -> DivergenceError:
    """Returns the error for a loop in which the count of a row exceeded 64 bits.

    Args:
        time: the round in which this happened, after those of the outer loops.
        scope: the loop that was running.
    """
    row = "a row" if error.row is None else f"row {error.row!r}"
    bound = (
        "limit the rounds with iterate(body, rounds=...)"
        if scope.rounds is None
        else "reduce rounds="
    )
    return DivergenceError(
        f"{_title(stage, time, _ROWS)} does not converge: counts grow, and"
        f" in round {time[-1]} {row} is counted more than 2**63 - 1 times",
        hint="end the body with distinct() or an aggregate, so that copies do not add up; or"
        f" {bound}",
    )


def _title(stage: str, time: Time, error_class: str) -> str:
    """Returns the names of the stage and the loop, with Spark's error class, for messages."""
    where = f" (inner loop, at {time[:-1]} of the loops around it)" if len(time) > 1 else ""
    return f"{titled(stage)}: [{error_class}] iterate{where}"
