"""The cost model: decides whether work is cheaper in this process or on executors.

`choose_placement` determines from an estimate the place of a run, and the reason that `explain()`
shows. It reads no clock, no file and no session. All of its input is in the estimate, which
placement.py creates. Its assumptions about machines are the constants below. The first matching
rule applies:

1. A request of the user decides: `%%dd --on` or `spark_rows=`. `%config NoSync.spark = "off"`
   overrides both.
2. A few rows stay in this process.
3. If `FRAME_ROWS` rows or more came as a DataFrame, they stay on the executors, as long as that
   Spark session runs. In a later session, the driver reads their files as fast as an executor.
4. A run that does not fit into the memory of this process goes to Spark. Without Spark it is
   rejected, because the operating system would kill the process.
5. Any other run goes to the place where it is estimated to end first, including a start of Spark.

The figures were measured (`make bench ARGS=load` prints them again). They need not be exact,
because the two places usually differ by seconds, and a wrong choice costs little if the difference
is small. Each session measures the speed of a core in this process. After several runs, the
measurement replaces the constant (`MeasuredRates`).

A single measurement is not reliable: the machine may have been busy, or the rows unusual. So the
measured speed is the median of the last `RUNS_MAX` runs of a kind, with at least `ROWS_MIN` rows
each. It is used if there are at least `RUNS_MIN` such runs. It changes an estimate by at most the
factor `FACTOR_MAX`, so that a few slow runs cannot move all work to the other place.

Loops are not measured, because the cost of a row varies. Expressions that Spark computes are not
measured, because their time depends on Spark.
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
"""A run of at most this number of rows takes milliseconds in this process, without an estimate."""

FRAME_ROWS = 100_000
"""From this number of rows on, the rows of a DataFrame are processed on executors."""

START_SECONDS = 15.0
"""The time to start a JVM and its first job, which starts the Python workers."""

JOB_SECONDS = 1.0
"""The fixed time of a Spark query: the time of one operator over almost no rows."""

ROWS_PER_SECOND: Mapping[str, float] = {
    "row": 20e6,  # filters, expressions that are computed here
    "key": 1.5e6,  # joins, aggregates, distinct: arranged by key
    "order": 0.45e6,  # top, asof, sessions: ordered inside each key
    "function": 0.2e6,  # one call of a Python function for each row
    "foreign": 0.5e6,  # expressions that Spark alone can compute
    "loop": 0.1e6,  # all rounds together
}
"""The number of rows per second of one core in this process, by kind of kernel."""

EXECUTOR_FACTOR: Mapping[str, float] = {
    "row": 6.0,  # executors also read, convert and write each row
    "key": 2.5,  # executors also exchange each row
    "order": 1.5,
    "function": 1.0,
    "foreign": 1.0,
    "loop": 2.5,
}
"""The cost of a row on a core of an executor, relative to its cost in this process."""

SHIPPED_PER_SECOND = 200e6
"""The bytes per second that this process writes from memory to files for executors."""

MEMORY_FACTOR: Mapping[str, float] = {
    "row": 2.0,
    "key": 6.0,
    "order": 9.0,
    "function": 16.0,  # rows as tuples of Python's own values
    "foreign": 4.0,
    "loop": 8.0,
    "load": 1.5,  # as columns; the commit that follows has an estimate of its own
}
"""The maximum memory that a kernel takes in addition to its changes, relative to their bytes."""

RUNS_MIN = 5
RUNS_MAX = 25
ROWS_MIN = 50_000
"""Only runs of at least this number of rows are measured, because fixed costs matter in others."""

FACTOR_MAX = 4.0

MEASURED = ("row", "key", "order", "function")


class CostEstimate(NamedTuple):
    """The estimate of a run.

    Args:
        kind: the kind of kernel, a key of `ROWS_PER_SECOND`; or `load` for the rows of an insert.
        rows: the number of changed rows of all inputs.
        size_bytes: the size of these rows.
        from_frame: the number of rows that came from a DataFrame.
        in_files: the number of bytes in files that executors can read.
        spark: the state of Spark. `absent` means that Spark is not installed, does not start, or
            does not see our files; `off` that the user has switched it off.
        free_bytes: the memory that this process may still take.
        slots: the number of tasks that Spark runs, or would run, at the same time.
        forced: `local`, `spark`, or the maximum number of rows that stay in this process; `None`
            means that the cost decides.
        per_second: the rows per second of a core in this process; 0 means the value of
            `ROWS_PER_SECOND`.
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
        """The memory that the run takes in this process, in addition to its changes."""
        return int(self.size_bytes * MEMORY_FACTOR[self.kind])

    @property
    def here_seconds(self) -> float:
        """The duration of the run in this process."""
        seconds = self.rows / (self.per_second or ROWS_PER_SECOND[self.kind])
        if self.kind == "foreign":  # the values still come from Spark
            seconds += self._start_seconds + JOB_SECONDS
        return seconds

    @property
    def spark_seconds(self) -> float:
        """The duration of the run on executors."""
        here = self.rows / (self.per_second or ROWS_PER_SECOND[self.kind])
        each = EXECUTOR_FACTOR[self.kind] * here
        shipped = (self.size_bytes - self.in_files) / SHIPPED_PER_SECOND
        return self._start_seconds + JOB_SECONDS + shipped + each / max(self.slots, 1)

    @property
    def _start_seconds(self) -> float:
        return 0.0 if self.spark == "running" else START_SECONDS


class PlacementChoice(NamedTuple):
    """The placement of a run.

    Attributes:
        place: `HERE`, `SPARK`, or `NOWHERE` if no place has enough memory.
        why: the reason, for messages.
        rows: the number of changed rows in the estimate; 0 without an estimate.
    """

    place: str
    why: str
    rows: int = 0

    @property
    def on_executors(self) -> bool:
        """True if the place is Spark."""
        return self.place == SPARK


FEW = PlacementChoice(HERE, "few rows")
LOCAL = PlacementChoice(HERE, "as requested")


def choose_placement(estimate: CostEstimate) -> PlacementChoice:
    """Chooses the place of a run, with the reason; equal estimates have equal results."""
    rows, spark, forced = estimate.rows, estimate.spark, estimate.forced
    there = spark in ("startable", "running")
    if forced == "local":
        return LOCAL
    if forced == "spark" and there:
        return PlacementChoice(SPARK, "as requested", rows)
    if isinstance(forced, int):
        if rows > forced and there:
            return PlacementChoice(SPARK, f"{rows:,} rows, spark_rows={forced:,}", rows)
        if rows <= forced:
            return (
                FEW
                if rows <= FEW_ROWS
                else PlacementChoice(HERE, f"{rows:,} rows, as requested", rows)
            )
    if rows <= FEW_ROWS:
        return FEW
    if spark == "running" and estimate.from_frame >= FRAME_ROWS:
        return PlacementChoice(SPARK, f"{estimate.from_frame:,} rows of a DataFrame", rows)
    if estimate.memory_bytes > estimate.free_bytes:
        needed = f"{rows:,} rows need {_size_text(estimate.memory_bytes)}"
        return PlacementChoice(
            SPARK if there else NOWHERE, f"{needed}, {_free_memory_text(estimate)}", rows
        )
    if not there:
        return PlacementChoice(HERE, f"{rows:,} rows, Spark is {spark}", rows)
    return _faster_place(estimate)


def is_small_run(rows: int, forced: Forced) -> bool:
    """Returns True if a run of some rows stays in this process without an estimate.

    `choose_placement` would choose the same place.
    """
    if forced is None:
        return rows <= FEW_ROWS
    return isinstance(forced, int) and rows <= min(forced, FEW_ROWS)


def _faster_place(estimate: CostEstimate) -> PlacementChoice:
    """Returns the place where the run is estimated to end first; this process if both are equal."""
    here, there = estimate.here_seconds, estimate.spark_seconds
    start = "" if estimate.spark == "running" else " with its start"
    why = f"{estimate.rows:,} rows, about {_seconds(here)} here, {_seconds(there)} on Spark{start}"
    return PlacementChoice(SPARK if there < here else HERE, why, estimate.rows)


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s" if value >= 0.1 else "0.1 s"


def _size_text(size_bytes: int) -> str:
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.1f} GiB"
    return f"{size_bytes / (1 << 20):.0f} MiB"


def _free_memory_text(estimate: CostEstimate) -> str:
    return f"{_size_text(max(estimate.free_bytes, 0))} are free"


class MeasuredRates:
    """The measured speed of each kind of kernel. The caller holds the lock of epoch execution."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[float]] = {kind: deque(maxlen=RUNS_MAX) for kind in MEASURED}

    def note(self, kind: str, rows: int, seconds: float) -> None:
        """Records a run in this process, unless it is too small or not of a measured kind."""
        if kind in self._runs and rows >= ROWS_MIN and seconds > 0:
            self._runs[kind].append(rows / seconds)

    def per_second(self, kind: str) -> float:
        """Returns the rows per second for estimates: the constant, or the measured speed."""
        believed, runs = ROWS_PER_SECOND[kind], self._runs.get(kind, ())
        if len(runs) < RUNS_MIN:
            return believed
        return min(max(median(runs), believed / FACTOR_MAX), believed * FACTOR_MAX)
