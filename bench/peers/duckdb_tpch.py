"""The peer DuckDB on TPC-H: all queries recomputed after each refresh; one line of JSON.

It also checks the others: the results of NoSync after each epoch (`--results`) are compared to its
own. For peers (`--peers`) it counts the differing results.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import duckdb

from bench.report import MeasurementError
from bench.tpch.data import Refreshes, Tables, generated, read
from bench.tpch.queries import SQL

TOLERANCE = 1e-9
"""Relative: sums of doubles differ by the order in which they are added."""


def take(base: Any, inserts: Tables, removals: Tables) -> None:
    """Applies a refresh; orders are distinct, so keys identify rows."""
    for name, table in inserts.items():
        base.register("coming", table)
        base.execute(f"insert into {name} select * from coming")
    for name, table in removals.items():
        base.register("going", table)
        key = table.schema.names[0]
        base.execute(f"delete from {name} where {key} in (select {key} from going)")


def close(ours: Any, theirs: Any) -> bool:
    """Returns True if two values are equal, or doubles nearly so."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=TOLERANCE)
    return bool(ours == theirs)


def check(epoch: int, name: str, ours: list[Any], theirs: list[Any]) -> None:
    """Compares the rows of a query to DuckDB's.

    Raises:
        MeasurementError: it names the first difference.
    """

    def order(row: list[Any]) -> list[str]:
        return [str(value) for value in row if not isinstance(value, float)]

    ours, theirs = sorted(ours, key=order), sorted(theirs, key=order)
    for one, other in zip(ours, theirs, strict=False):
        if len(one) != len(other) or not all(map(close, one, other)):
            raise MeasurementError(f"{name}, epoch {epoch}: {one} instead of {other}")
    if len(ours) != len(theirs):
        raise MeasurementError(f"{name}, epoch {epoch}: {len(ours)} rows instead of {len(theirs)}")


def measure(
    refreshes: Refreshes, others: list[list[dict[str, Any]]], peers: list[list[dict[str, Any]]]
) -> dict[str, Any]:
    """Loads and runs the epochs, and compares each to the results of NoSync and of peers."""
    base = duckdb.connect()
    base.execute("set threads to 2")
    clock = time.perf_counter
    started = clock()
    for name, table in refreshes.load.items():
        base.register("loaded", table)
        base.execute(f"create table {name} as select * from loaded")
    load_seconds = clock() - started
    latencies, sizes, epoch = [], [], 0
    wrong = [0] * len(peers)

    def compute() -> float:
        started = clock()
        found = {name: base.execute(sql).fetchall() for name, sql in SQL.items()}
        seconds = clock() - started
        theirs = json.loads(json.dumps(found, default=str))
        for other in others:
            for name, rows in theirs.items():
                check(epoch, name, other[epoch][name], rows)
        for number, peer in enumerate(peers):
            for name, rows in theirs.items():
                try:
                    check(epoch, name, peer[epoch][name], rows)
                except MeasurementError:
                    wrong[number] += 1
        return seconds

    first_seconds = compute()
    for epoch, (size, inserts, removals) in enumerate(refreshes, 1):  # noqa: B007 (compute has it)
        started = clock()
        take(base, inserts, removals)
        latencies.append(clock() - started + compute())
        sizes.append(size)
    return {
        "load_seconds": load_seconds + first_seconds,
        "rows": sizes,
        "latencies_ms": [1000 * each for each in latencies],
        "wrong": wrong,
    }


def main() -> None:
    """Runs the load and the epochs, and prints their times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="of the tables, instead of generated ones")
    parser.add_argument("--results", type=Path, nargs="*", default=[])
    parser.add_argument("--peers", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    tables = read(options.folder or generated(options.sf))
    others, peers = (
        [[*map(json.loads, path.read_text().splitlines())] for path in paths]
        for paths in (options.results, options.peers)
    )
    found = measure(Refreshes(tables, options.epochs), others, peers)
    print(json.dumps({"peer": f"DuckDB {duckdb.__version__}", **found}))


if __name__ == "__main__":
    main()
