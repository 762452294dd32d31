"""Rates: how fast kernels run in this process, as a session has measured it.

`costs` begins with what it believes of machines. One run says little against that: something else
may have had the machine, or the rows were odd. So a measurement counts once there are `RUNS_MIN` of
its kind, each over `ROWS_MIN` rows and more, as the median of the last `RUNS_MAX`; and it moves an
estimate by at most `FACTOR_MAX`, so that no run of bad luck sends everything to the other place.

Loops are not measured, as what a row of theirs costs is not the next one's, nor are expressions
that Spark computes: what they take is Spark's.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from nosync_nb.spark.execution.cost_model import ROWS_PER_SECOND

RUNS_MIN = 5
RUNS_MAX = 25
ROWS_MIN = 50_000
"""From so many rows on the fixed costs of a run do not matter."""

FACTOR_MAX = 4.0

MEASURED = ("row", "key", "order", "function")


class MeasuredRates:
    """What was measured of each kind of kernel; used with the lock under which epochs are run."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[float]] = {kind: deque(maxlen=RUNS_MAX) for kind in MEASURED}

    def note(self, kind: str, rows: int, seconds: float) -> None:
        """Notes a run in this process; one that says nothing is passed over."""
        if kind in self._runs and rows >= ROWS_MIN and seconds > 0:
            self._runs[kind].append(rows / seconds)

    def per_second(self, kind: str) -> float:
        """The rows a second that an estimate goes by."""
        believed, runs = ROWS_PER_SECOND[kind], self._runs.get(kind, ())
        if len(runs) < RUNS_MIN:
            return believed
        return min(max(median(runs), believed / FACTOR_MAX), believed * FACTOR_MAX)
