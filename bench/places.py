"""Placement: load and first runs in process, on Spark, and as chosen; one line of JSON.

Spark is started before and has run each kind of query once. It prints the seconds of two steps:
rows are loaded (`insert` of an Arrow table, or of a DataFrame over Parquet, and `commit`), and a
join and count of them is defined. Executors load the rows of a DataFrame in any case. The figures
in `nosync_nb/spark/execution/cost_model.py` were measured this way.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import nosync_nb
from bench.peers.spark_r1 import start_spark
from bench.r1 import edge_table, node_table
from bench.workload import Workload

WAYS = ("local", "spark", "auto")
RATED = 1_000_000


class Loads:
    """Opens a log for each load; all on one Spark session."""

    def __init__(self, spark: Any, base: Path, seed: int) -> None:
        self.spark = spark
        self.base = base
        self.seed = seed
        self.number = 0

    def opened(self) -> Any:
        """A session with both inputs."""
        self.number += 1
        session = nosync_nb.open(self.base / str(self.number), spark=self.spark)
        session.input("edges", "src bigint, dst bigint")
        session.input("nodes", "node bigint, label bigint")
        return session

    def given(self, rows: int, origin: str) -> tuple[Any, Any]:
        """Edges and nodes, as Arrow tables or as DataFrames."""
        workload = Workload(rows, seed=self.seed)
        edges = edge_table(workload.src, workload.dst, strings=False)
        nodes = node_table(workload, strings=False)
        return (edges, nodes) if origin == "arrow" else (self._frame(edges), self._frame(nodes))

    def _frame(self, table: pa.Table) -> Any:
        self.number += 1
        path = self.base / f"{self.number}.parquet"
        pq.write_table(table, path)
        return self.spark.read.parquet(str(path))

    def seconds(self, rows: int, origin: str, on: str) -> tuple[float, str]:
        """How long load and first run take, and where the first run was."""
        edges, nodes = self.given(rows, origin)
        with self.opened() as session:
            started = time.perf_counter()
            session["nodes"].insert(nodes)
            session["edges"].insert(edges)
            session.commit()
            counts = session["edges"].join(session["nodes"], on={"dst": "node"})
            counts = counts.group_by("label").agg(n="count(*)")
            (report,) = session.define({"counts": counts}, on=on)
            seconds = time.perf_counter() - started
            assert sum(row.n for row in session["counts"].rows()) == rows
        shutil.rmtree(session.path)
        return seconds, report.placement

    def rates(self, rows: int) -> dict[str, list[float]]:
        """Seconds of each kind of kernel: here, and on Spark."""
        found: dict[str, list[float]] = {}
        for on in ("local", "spark"):
            with self.opened() as session:
                for name, table in zip(("edges", "nodes"), self.given(rows, "arrow"), strict=True):
                    session[name].insert(table)
                session.commit()
                for kind, collection in kinds(session).items():
                    started = time.perf_counter()
                    session.define({kind: collection}, on=on)
                    found.setdefault(kind, []).append(time.perf_counter() - started)
        return found


def kinds(session: Any) -> dict[str, Any]:
    """Returns a stage for each kind of kernel that has a rate, except loops and Spark's own."""
    edges, nodes = session["edges"], session["nodes"]
    return {
        "row": edges.filter("src % 3 = 1").select("src", "dst + 1 AS next"),
        "key": edges.group_by("dst").agg(n="count(*)", total="sum(src)"),
        "key_join": edges.join(nodes, on={"dst": "node"}),
        "order": edges.group_by("dst").top(2, by="src"),
        "function": edges.map(lambda row: (row.src, row.dst + 1), "a bigint, b bigint"),
    }


def main() -> None:
    """Prints the cost of each placement, the rates of kernels, and the costs of Spark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    started = time.perf_counter()
    spark = start_spark()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        loads = Loads(spark, base, options.seed)
        loads.seconds(1000, "frame", "spark")
        start = time.perf_counter() - started
        loads.rates(1000)  # what is compiled and imported once
        price = loads.rates(1000)["key"][1]
        lines = []
        for origin in ("arrow", "frame"):
            for rows in options.rows:
                ways = {on: loads.seconds(rows, origin, on) for on in WAYS}
                taken = {on: seconds for on, (seconds, _) in ways.items()}
                lines.append({"origin": origin, "rows": rows, **taken, "chosen": ways["auto"][1]})
        rates = {kind: [RATED / s for s in pair] for kind, pair in loads.rates(RATED).items()}
    finally:
        spark.stop()
        shutil.rmtree(base, ignore_errors=True)
    print(json.dumps({"lines": lines, "rates": rates, "start": start, "job": price}))


if __name__ == "__main__":
    main()
