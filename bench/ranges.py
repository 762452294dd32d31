"""Joins on ranges: an epoch of one row, beside DuckDB from scratch; one line of JSON.

    python -m bench.ranges   {"lines": [[query, first run ms, a point ms, an interval ms,
                              DuckDB ms, touched by a point, by an interval], ...]}

There are ten times more points than intervals. The latencies are medians. DuckDB applies the change
of one row, and computes the query again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import nosync_nb
from bench.report import Goals, Table, run

QUERIES = {
    "points in intervals": "SELECT id, n FROM p JOIN i ON p.t BETWEEN i.low AND i.high",
    "points beside starts": "SELECT id, n FROM p JOIN i ON abs(p.t - i.low) < 5000",
    "points outside of intervals": "SELECT id FROM p ANTI JOIN i ON p.t BETWEEN i.low AND i.high",
    "intervals that overlap": "SELECT x.n, y.n m FROM i x JOIN i y ON x.low <= y.high"
    " AND y.low <= x.high",
    "points that are no start": "SELECT id FROM p WHERE t NOT IN (SELECT low FROM i)",
}
BESIDE_STARTS = "SELECT id, n FROM p JOIN i ON p.t BETWEEN i.low - 4999 AND i.low + 4999"
"""The second query for DuckDB, which compares all pairs if it is written with `abs`."""
SPAN, LENGTH, EPOCHS = 10**9, 20_000, 20


def ranges(options: argparse.Namespace, goals: Goals) -> None:
    """Measures joins on ranges: the first run, and epochs of one row on both sides."""
    size = 100_000 if options.quick else 1_000_000
    found = run("-m", "bench.ranges", "--rows", size)["lines"]
    heads = ("first ms", "point ms", "interval", "DuckDB ms", "rows", "rows")
    table = Table(f"{size:,} points, {size // 10:,} intervals", f"{'query':28}", *heads)
    for line in found:
        table.row(*line)
        goals.add(f"{line[0]}, one row, NoSync / DuckDB", max(line[2:4]) / line[4], 0.2)


def latencies(session: Any, change: Callable[[int], Any]) -> tuple[float, int]:
    """Returns the median of the milliseconds of epochs, and that of the rows that they touch."""
    each, touched = [], []
    for number in range(EPOCHS):
        change(number)
        before, start = session.stats["touched"], time.perf_counter()
        session.commit()
        each.append(1000 * (time.perf_counter() - start))
        touched.append(session.stats["touched"] - before)
    return median(each), int(median(touched))


def measure(size: int) -> list[tuple[Any, ...]]:
    """Returns the figures of each query."""
    import duckdb

    random = np.random.default_rng(7)
    few = size // 10
    low = random.integers(0, SPAN, few)
    high = low + random.integers(0, LENGTH * 1_000_000 // size, few)
    tables = {
        "p": pa.table({"id": np.arange(size), "t": random.integers(0, SPAN, size)}),
        "i": pa.table({"n": np.arange(few), "low": low, "high": high}),
    }
    moments = iter(random.integers(0, SPAN, 10 * EPOCHS * len(QUERIES)).tolist())
    database = duckdb.connect(config={"threads": 2})
    for name, table in tables.items():
        database.register("given", table)
        database.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
    lines = []
    for name, query in QUERIES.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            nosync_nb.open(Path(folder) / "log", spark_rows=10**12) as session,
        ):
            p = session.input("p", "id bigint, t bigint")
            i = session.input("i", "n bigint, low bigint, high bigint")
            p.insert(tables["p"])
            i.insert(tables["i"])
            session.commit()
            start = time.perf_counter()
            stage = session.stage("found", session.sql(query))
            first = 1000 * (time.perf_counter() - start)
            start = time.perf_counter()
            database.execute("INSERT INTO p VALUES (-1, 0)")
            text = BESIDE_STARTS if "abs" in query else query
            expected = database.sql(text).to_arrow_table().num_rows
            theirs = 1000 * (time.perf_counter() - start)
            database.execute("DELETE FROM p WHERE id = -1")
            assert abs(len(stage) - expected) <= 1, (name, len(stage), expected)
            point, rows = latencies(session, lambda n, p=p: p.insert([(size + n, next(moments))]))
            interval, others = latencies(
                session, lambda n, i=i: i.insert([(n, t := next(moments), t + LENGTH)])
            )
            lines.append((name, first, point, interval, theirs, rows, others))
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    print(json.dumps({"lines": measure(parser.parse_args().rows)}))
