"""Windows: an epoch of one row in a partition of a million, and of many small partitions.

Each case runs beside R1 with epochs of one row in the same process, in turns, and prints both
medians in milliseconds, the rows that an epoch touches, and the time of DuckDB for the whole query
over the same rows. One line of JSON.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

import nosync_nb
from bench.r1 import IN_PROCESS, load
from bench.report import print_result
from bench.workload import Workload

SMALL = 10
"""The number of rows of a small partition."""

CHANGED = 100
"""The number of small partitions that an epoch changes."""

BLOCK = 2
"""The number of epochs of a case, and of R1, that run in a row."""

MS = 1000


class Case(NamedTuple):
    """A window over one large partition.

    Attributes:
        call: the function.
        frame: its frame in Python.
        sql: its frame in SQL.
        place: where rows are inserted, as a share of the partition.
    """

    call: str
    frame: dict[str, Any]
    sql: str
    place: float


CASES = {
    "lag, in the middle": Case("lag(v)", {}, "", 0.5),
    "sum of 100 rows": Case("sum(v)", {"rows_between": (-100, 0)}, "rows 100 preceding", 0.5),
    "max of 100 rows": Case("max(v)", {"rows_between": (-100, 0)}, "rows 100 preceding", 0.5),
    "row_number, at the end": Case("row_number()", {}, "", 1.0),
    "dense_rank, at the end": Case("dense_rank()", {}, "", 1.0),
    "running sum, at the end": Case("sum(v)", {}, "", 1.0),
    "row_number, at 99 %": Case("row_number()", {}, "", 0.99),
}
GROUPS = {
    "lag": "lag(v)",
    "row_number": "row_number()",
    "running sum": "sum(v)",
    "percent_rank": "percent_rank()",
}
SCHEMA = "k int, t bigint, v bigint"


class Beside:
    """Epochs of one row of R1, to run between the epochs of a case."""

    def __init__(self, folder: Path, edges: int) -> None:
        self.session = nosync_nb.open(folder, spark_rows=IN_PROCESS)
        self.edges, _ = load(self.session, Workload(edges, seed=1), strings=False)
        self.number = 0

    def epoch(self) -> float:
        self.number += 1
        source = np.array([self.number])
        table = pa.table({"src": source, "dst": source})
        return timed(lambda: (self.edges.insert(table), self.session.commit()))


def timed(call: Callable[[], Any]) -> float:
    """Returns the milliseconds of a call."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * MS


def rows_of(groups: int, size: int) -> pa.Table:
    """Rows at times 0, 10, 20, ... of each partition."""
    return pa.table(
        {
            "k": np.repeat(np.arange(groups, dtype=np.int32), size),
            "t": np.tile(np.arange(size) * 10, groups),
            "v": np.arange(groups * size) % 1000,
        }
    )


def measure(
    session: Any, beside: Beside, rows: Any, epochs: int, change: Callable[[int], pa.Table]
) -> dict[str, float]:
    """Returns the medians of epochs, and of those of R1 between them."""
    own: list[float] = []
    theirs: list[float] = []
    touched: list[int] = []
    for block in range(epochs // BLOCK):
        for i in range(block * BLOCK, (block + 1) * BLOCK):
            table = change(i)
            before = session.stats["touched"]
            own.append(timed(lambda table=table: (rows.insert(table), session.commit())))  # type: ignore[misc]
            touched.append(session.stats["touched"] - before)
        theirs += [beside.epoch() for _ in range(BLOCK)]
    warm = len(own) // 10
    return {
        "ms": statistics.median(own[warm:]),
        "r1": statistics.median(theirs[warm:]),
        "touched": statistics.median(touched[warm:]),
    }


def from_scratch(rows: pa.Table, call: str, frame: str) -> float:
    """Returns the time in which DuckDB computes the whole query, the best of three."""
    with duckdb.connect() as con:
        con.register("given", rows)
        con.sql("create table r as from given")
        query = (
            f"create or replace table found as select *, {call} over"
            f" (partition by k order by t {frame}) from r"
        )
        return min(timed(lambda: con.execute(query)) for _ in range(3))


def large(folder: Path, beside: Beside, size: int, epochs: int) -> dict[str, Any]:
    """Measures all cases over one partition."""
    table = rows_of(1, size)
    found = {}
    with nosync_nb.open(folder, spark_rows=IN_PROCESS) as session:
        rows = session.input("rows", SCHEMA)
        rows.insert(table)
        session.commit()
        for name, case in CASES.items():
            made = rows.window("k", "t", **case.frame).with_columns(r=case.call)
            first = timed(lambda made=made: session.stage("result", made))  # type: ignore[misc]
            start = int(size * case.place) * 10

            def change(i: int, start: int = start) -> pa.Table:
                return pa.table(
                    {"k": np.zeros(1, np.int32), "t": np.array([start + i]), "v": np.array([i])}
                )

            figures = measure(session, beside, rows, epochs, change)
            session.drop("result")
            duck = from_scratch(table, case.call, case.sql)
            found[name] = {**figures, "first": first, "duckdb": duck}
    return found


def small(folder: Path, beside: Beside, groups: int, epochs: int) -> dict[str, Any]:
    """Measures functions over many small partitions."""
    table = rows_of(groups, SMALL)
    chance = np.random.default_rng(1)
    found = {}
    with nosync_nb.open(folder, spark_rows=IN_PROCESS) as session:
        rows = session.input("rows", SCHEMA)
        rows.insert(table)
        session.commit()
        for name, call in GROUPS.items():
            made = rows.window("k", "t").with_columns(r=call)
            first = timed(lambda made=made: session.stage("result", made))  # type: ignore[misc]

            def change(i: int) -> pa.Table:
                keys = chance.choice(groups, min(CHANGED, groups), replace=False)
                times = np.full(len(keys), SMALL * 5 + 1 + i % 9)
                return pa.table({"k": keys.astype(np.int32), "t": times, "v": keys % 7})

            figures = measure(session, beside, rows, epochs, change)
            session.drop("result")
            found[name] = {**figures, "first": first, "duckdb": from_scratch(table, call, "")}
    return found


def main() -> None:
    """Measures windows over a large partition and over small ones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        beside = Beside(folder / "r1", options.rows)
        found = {
            "large": large(folder / "large", beside, options.rows, options.epochs),
            "small": small(folder / "small", beside, options.rows // SMALL, options.epochs),
        }
        beside.session.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_result(found)


if __name__ == "__main__":
    main()
