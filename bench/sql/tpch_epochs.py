"""A query of TPC-H in SQL, or all 22, over changes of all tables, beside DuckDB; a line of JSON.

An epoch of a share touches that share of the rows of each table: one half is updated, the other
deleted, and what was deleted two epochs ago comes back. Both sides take the same changes, and both
times include applying them. DuckDB then computes the query from scratch. Results must be equal.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import nosync_nb
from bench.r1 import IN_PROCESS
from bench.report import MeasurementError
from bench.sql.compare import difference
from bench.tpch.changes import Epoch, changes
from bench.tpch.data import Tables, generated
from bench.tpch.epochs import forget_peak, memory
from bench.tpch.sql import queries

KEYS = {
    "region": ("r_regionkey",),
    "nation": ("n_nationkey",),
    "supplier": ("s_suppkey",),
    "customer": ("c_custkey",),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}
"""The tables with their primary keys."""
SHARES = (0.0001, 0.001, 0.01)


def read(folder: Path) -> Tables:
    """Reads the tables of a folder with plain strings and decimals."""
    found = {}
    for name in KEYS:
        table = pq.read_table(folder / f"{name}.parquet")
        views = {pa.string_view(): pa.string()}
        fields = [f.with_type(views.get(f.type, f.type)).with_metadata(None) for f in table.schema]
        found[name] = table.cast(pa.schema(fields)).combine_chunks()
    return found


def declare(session: Any, tables: Tables) -> None:
    """Declares the tables as inputs."""
    names = {"int32": "int", "int64": "bigint", "double": "double", "date32[day]": "date"}
    for name, table in tables.items():
        types = (str(field.type) for field in table.schema)
        ddl = (names.get(each, each.replace("decimal128", "decimal")) for each in types)
        columns = zip(table.column_names, ddl, strict=True)
        session.input(name, ", ".join(f"{column} {type_}" for column, type_ in columns))


def take(session: Any, epoch: Epoch) -> None:
    """Commits the changes of an epoch."""
    for name, table in epoch.removals.items():
        session[name].remove(table)
    for name, table in epoch.inserts.items():
        session[name].insert(table)
    session.commit()


def take_beside(base: Any, epoch: Epoch) -> None:
    """Applies the changes of an epoch to DuckDB."""
    for name, table in epoch.removals.items():
        base.register("going", table)
        same = " and ".join(f"{name}.{key} = going.{key}" for key in KEYS[name])
        base.execute(f"delete from {name} using going where {same}")
    for name, table in epoch.inserts.items():
        base.register("coming", table)
        base.execute(f"insert into {name} select * from coming")


class Times:
    """The measured milliseconds of the clock and of the processor (all threads), by share."""

    def __init__(self) -> None:
        self.wall: dict[float, list[float]] = {share: [] for share in SHARES}
        self.cpu: dict[float, list[float]] = {share: [] for share in SHARES}

    @contextmanager
    def measure(self, share: float) -> Iterator[None]:
        """Adds the time that the block takes."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall[share].append(1000 * (time.perf_counter() - wall))
        self.cpu[share].append(1000 * (time.process_time() - cpu))


def load_beside(tables: Tables) -> Any:
    """Loads the tables into a DuckDB in memory."""
    base = duckdb.connect()
    base.execute("set threads to 2")
    for name, table in tables.items():
        base.register("loaded", table)
        base.execute(f"create table {name} as select * from loaded")
    return base


def measure(session: Any, tables: Tables, texts: dict[str, str], epochs: int) -> dict[str, Any]:
    """Loads both sides, runs the epochs of each share, and compares the results.

    DuckDB is loaded last, because its copy of the tables is no memory of the session's load.

    Raises:
        MeasurementError: if a result is not that of DuckDB.
    """
    declare(session, tables)
    for name, text in texts.items():
        session.stage(name, session.sql(text))
    forget_peak()
    started = time.perf_counter()
    take(session, Epoch(tables, {}, tables))
    load, peak = time.perf_counter() - started, memory("VmHWM")
    base = load_beside(tables)
    ours, theirs = Times(), Times()
    now = tables
    for share in SHARES:
        for epoch in changes(now, epochs, share=share / 2, least=0):
            with ours.measure(share):
                take(session, epoch)
            with theirs.measure(share):
                take_beside(base, epoch)
                rows = {name: base.execute(text).fetchall() for name, text in texts.items()}
            for name, found in rows.items():
                if wrong := difference(session[name].rows(), found):
                    raise MeasurementError(f"{name}, share {share}: {wrong}")
            now = epoch.after
    return {
        "load_seconds": load,
        "peak_kib": peak,
        "arrow_bytes": sum(table.nbytes for table in tables.values()),
        "ours_ms": [*ours.wall.values()],
        "theirs_ms": [*theirs.wall.values()],
        "ours_cpu_ms": [*ours.cpu.values()],
        "theirs_cpu_ms": [*theirs.cpu.values()],
    }


def main() -> None:
    """Runs the load and the epochs, and prints their times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sf", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="of the tables, instead of generated ones")
    parser.add_argument("--query", help="one of q01 to q22, instead of all together")
    options = parser.parse_args()
    texts = queries(options.sf)
    if options.query:
        texts = {options.query: texts[options.query]}
    tables = read(options.folder or generated(options.sf))
    tables = {
        name: table for name, table in tables.items() if any(name in t for t in texts.values())
    }
    folder = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        with nosync_nb.open(folder / "tpch.nosync", spark_rows=IN_PROCESS) as session:
            found = measure(session, tables, texts, options.epochs)
        files = [path for path in folder.rglob("*") if path.is_file()]
        found["disk_bytes"] = sum(path.stat().st_size for path in files)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"peer": f"DuckDB {duckdb.__version__}", **found}))


if __name__ == "__main__":
    main()
