"""NoSync on TPC-H: eight queries maintained over refreshes, in process; one line of JSON.

Measured from `insert` of Arrow tables to the return of `commit()`. The result of each query after
each epoch is written to a file, one line an epoch, which `bench.peers.duckdb_tpch` compares to its
own.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

import nosync_nb
from bench.r1 import IN_PROCESS
from bench.tpch.data import Refreshes, Tables, generated, read
from bench.tpch.queries import stages

_DDL = {
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.float64(): "double",
    pa.string(): "string",
    pa.date32(): "date",
    pa.decimal128(15, 2): "decimal(15,2)",
}


class Times:
    """The measured seconds of the clock and of the processor (all threads)."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def measure(self, action: Callable[[], Any]) -> None:
        """Runs something, and notes how long it took."""
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)


def declare(session: Any, tables: Tables) -> dict[str, Any]:
    """Declares the tables as inputs."""
    of = {}
    for name, table in tables.items():
        columns = ", ".join(f"{field.name} {_DDL[field.type]}" for field in table.schema)
        of[name] = session.input(name, columns)
    return of


def define(session: Any, tables: Tables) -> dict[str, Any]:
    """Defines the inputs and the stages."""
    queries = stages(declare(session, tables))
    return {name: session.stage(name, query) for name, query in queries.items()}


def write(results: TextIO, queries: dict[str, Any]) -> None:
    """Writes the current results of the queries as a line of JSON."""
    found = {name: [*map(list, stage.rows())] for name, stage in queries.items()}
    print(json.dumps(found, default=str), file=results, flush=True)


def forget_peak() -> None:
    """Resets the peak of memory, so that reading the tables does not count."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")


def memory(what: str) -> int:
    """Returns the memory of this process in KiB; see proc(5)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{what}:")).split()[1])


def measure(session: Any, refreshes: Refreshes, results: TextIO) -> dict[str, Any]:
    """Loads, then runs the epochs."""
    queries = define(session, refreshes.load)
    load, epochs, sizes = Times(), Times(), []

    def take(inserts: Tables, removals: Tables) -> None:
        for name, table in inserts.items():
            session[name].insert(table)
        for name, table in removals.items():
            session[name].remove(table)
        session.commit()

    forget_peak()
    load.measure(lambda: take(refreshes.load, {}))
    peak, own = memory("VmHWM"), memory("RssAnon")
    write(results, queries)
    for size, inserts, removals in refreshes:
        epochs.measure(lambda inserts=inserts, removals=removals: take(inserts, removals))
        sizes.append(size)
        write(results, queries)
    return {
        "load_seconds": load.wall[0],
        "load_cpu_seconds": load.cpu[0],
        "peak_kib": peak,
        "own_kib": own,
        "arrow_bytes": sum(table.nbytes for table in refreshes.load.values()),
        "rows": sizes,
        "latencies_ms": [1000 * each for each in epochs.wall],
        "cpu_ms": [1000 * each for each in epochs.cpu],
    }


def main() -> None:
    """Runs the load and the epochs, and prints their times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="of the tables, instead of generated ones")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--decimals", action="store_true", help="instead of doubles")
    options = parser.parse_args()
    source = options.folder or generated(options.sf)
    refreshes = Refreshes(read(source, decimals=options.decimals), options.epochs)
    folder = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        session = nosync_nb.open(folder / "tpch.nosync", spark_rows=IN_PROCESS)
        with options.results.open("w") as results:
            found = measure(session, refreshes, results)
        session.close()
        files = [path for path in folder.rglob("*") if path.is_file()]
        found["disk_bytes"] = sum(path.stat().st_size for path in files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"peer": "NoSync", **found}))


if __name__ == "__main__":
    main()
