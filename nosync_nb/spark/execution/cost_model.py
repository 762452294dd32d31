"""Costs: whether work is cheaper in this process or on executors; one pure function decides.

`choose` turns an estimate into a place and the reason that `explain()` shows. It reads no clock, no
file and no session: what it has to know is in the estimate (placement.py makes them), what it
believes of machines is in the constants below. The rules, in their order:

1. What the user said holds: `%%dd --on`, `spark_rows=`; `%config NoSync.spark = "off"` over both.
2. A few rows stay in this process.
3. Rows that came as a DataFrame stay with the executors that hold them, from `FRAME_ROWS` on. They
   do so while that Spark runs: later, the driver holds their files as well as anybody.
4. What does not fit this process's memory is for Spark; without Spark it is refused, as the
   system would end a process that tried.
5. The rest goes where it is estimated to end first, starting Spark included.

The figures are those of the machines this was measured on (`make bench ARGS=load` prints them
again). They need not be exact: between the places lie a second or many, and an estimate that errs
by half of a difference costs little. What a core does in this process is measured by each session,
and put in place of what is believed here after several runs (`MeasuredRates`).

One run says little against that: something else may have had the machine, or the rows were odd. So
a measurement counts once there are `RUNS_MIN` of its kind, each over `ROWS_MIN` rows and more, as
the median of the last `RUNS_MAX`; and it moves an estimate by at most `FACTOR_MAX`, so that no run
of bad luck sends everything to the other place.

Loops are not measured, as what a row of theirs costs is not the next one's, nor are expressions
that Spark computes: what they take is Spark's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Literal, NamedTuple, TypeAlias

State: TypeAlias = Literal["absent", "off", "startable", "running"]
Forced: TypeAlias = Literal["local", "spark"] | int | None

HERE, SPARK, NOWHERE = "in process", "Spark", "nowhere"

FEW_ROWS = 4096
"""So many rows cost milliseconds here; nothing is estimated."""

FRAME_ROWS = 100_000
"""From so many rows on, what came as a DataFrame is run by the executors that hold it."""

START_SECONDS = 15.0
"""Starting a JVM, and the first job in it, which starts its Python workers."""

JOB_SECONDS = 1.0
"""A Spark query of one operator that has next to no rows."""

ROWS_PER_SECOND: Mapping[str, float] = {
    "row": 20e6,  # filters, columns of expressions that are computed here
    "key": 1.5e6,  # joins, aggregates, distinct: arranged by key
    "order": 0.45e6,  # top, asof, sessions: ordered inside each key
    "function": 0.2e6,  # one call of a Python function for each row
    "foreign": 0.5e6,  # expressions that Spark alone can compute
    "loop": 0.1e6,  # all rounds together
}
"""What one core does in this process, by kind of kernel."""

EXECUTOR_FACTOR: Mapping[str, float] = {
    "row": 6.0,  # a row that costs nothing here is read, turned and written there
    "key": 2.5,  # and exchanged
    "order": 1.5,
    "function": 1.0,
    "foreign": 1.0,
    "loop": 2.5,
}
"""What a row costs a core of an executor, by what it costs here."""

SHIPPED_PER_SECOND = 200e6
"""Bytes that lie in this process and are written for executors to read."""

MEMORY_FACTOR: Mapping[str, float] = {
    "row": 2.0,
    "key": 6.0,
    "order": 9.0,
    "function": 16.0,  # rows as tuples of Python's own values
    "foreign": 4.0,
    "loop": 8.0,
    "load": 1.5,  # as columns; the commit that follows is weighed by itself
}
"""Memory that a kernel takes at most beside its changes, by their bytes."""

RUNS_MIN = 5
RUNS_MAX = 25
ROWS_MIN = 50_000
"""From so many rows on the fixed costs of a run do not matter."""

FACTOR_MAX = 4.0

MEASURED = ("row", "key", "order", "function")


class CostEstimate(NamedTuple):
    """What is to be run, and with what.

    Args:
        kind: of the kernel, one of `ROWS_PER_SECOND`; `load`: the rows of one insert.
        rows: changed rows, of all inputs.
        size_bytes: what these rows take.
        from_frame: how many of the rows came as a DataFrame.
        in_files: how many of the bytes lie in files, where executors can read them.
        spark: `absent`: not installed, does not start, or does not see our files; `off`: by the
            user; `startable`; `running`.
        free_bytes: memory that this process may still take.
        slots: tasks that Spark runs, or would run, at a time.
        forced: `local`, `spark`, or the most rows that stay in process; None: by cost.
        per_second: rows that a core does in this process; 0: as `ROWS_PER_SECOND` has it.
    """

    kind: str
    rows: int
    size_bytes: int = 0
    from_frame: int = 0
    in_files: int = 0
    spark: State = "absent"
    free_bytes: int = 1 << 62
    slots: int = 2
    forced: Forced = None
    per_second: float = 0.0

    @property
    def memory_bytes(self) -> int:
        """What it takes in this process, beside what is there."""
        return int(self.size_bytes * MEMORY_FACTOR[self.kind])

    @property
    def here_seconds(self) -> float:
        """How long it takes in this process."""
        seconds = self.rows / (self.per_second or ROWS_PER_SECOND[self.kind])
        if self.kind == "foreign":  # it asks Spark all the same
            seconds += self._starting + JOB_SECONDS
        return seconds

    @property
    def spark_seconds(self) -> float:
        """How long it takes on executors."""
        here = self.rows / (self.per_second or ROWS_PER_SECOND[self.kind])
        each = EXECUTOR_FACTOR[self.kind] * here
        shipped = (self.size_bytes - self.in_files) / SHIPPED_PER_SECOND
        return self._starting + JOB_SECONDS + shipped + each / max(self.slots, 1)

    @property
    def _starting(self) -> float:
        return 0.0 if self.spark == "running" else START_SECONDS


class PlacementChoice(NamedTuple):
    """A place (`HERE`, `SPARK`, or `NOWHERE`: none is large enough), the reason, and the rows."""

    place: str
    why: str
    rows: int = 0

    @property
    def there(self) -> bool:
        """Whether on executors."""
        return self.place == SPARK


FEW = PlacementChoice(HERE, "few rows")
LOCAL = PlacementChoice(HERE, "as asked")


def choose_placement(estimate: CostEstimate) -> PlacementChoice:
    """The place of a run, and why. Pure: equal estimates are placed alike."""
    rows, spark, forced = estimate.rows, estimate.spark, estimate.forced
    there = spark in ("startable", "running")
    if forced == "local":
        return LOCAL
    if forced == "spark" and there:
        return PlacementChoice(SPARK, "as asked", rows)
    if isinstance(forced, int):
        if rows > forced and there:
            return PlacementChoice(SPARK, f"{rows:,} rows, spark_rows={forced:,}", rows)
        if rows <= forced:
            return (
                FEW if rows <= FEW_ROWS else PlacementChoice(HERE, f"{rows:,} rows, as asked", rows)
            )
    if rows <= FEW_ROWS:
        return FEW
    if spark == "running" and estimate.from_frame >= FRAME_ROWS:
        return PlacementChoice(SPARK, f"{estimate.from_frame:,} rows of a DataFrame", rows)
    if estimate.memory_bytes > estimate.free_bytes:
        needed = f"{rows:,} rows need {_size(estimate.memory_bytes)}"
        return PlacementChoice(SPARK if there else NOWHERE, f"{needed}, {_free(estimate)}", rows)
    if not there:
        return PlacementChoice(HERE, f"{rows:,} rows, Spark is {spark}", rows)
    return _cheaper(estimate)


def is_small_run(rows: int, forced: Forced) -> bool:
    """Whether so many rows run in this process without being weighed; as `choose` says of them."""
    if forced is None:
        return rows <= FEW_ROWS
    return isinstance(forced, int) and rows <= min(forced, FEW_ROWS)


def _cheaper(estimate: CostEstimate) -> PlacementChoice:
    """The place where it ends first; in process if that is about the same."""
    here, there = estimate.here_seconds, estimate.spark_seconds
    start = "" if estimate.spark == "running" else " with its start"
    why = f"{estimate.rows:,} rows, about {_seconds(here)} here, {_seconds(there)} on Spark{start}"
    return PlacementChoice(SPARK if there < here else HERE, why, estimate.rows)


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s" if value >= 0.1 else "0.1 s"


def _size(size_bytes: int) -> str:
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.1f} GiB"
    return f"{size_bytes / (1 << 20):.0f} MiB"


def _free(estimate: CostEstimate) -> str:
    return f"{_size(max(estimate.free_bytes, 0))} are free"


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
