"""Bulk load on Spark: NoSync beside plain Spark doing the same; one line of JSON.

Both read edges and nodes from Parquet, join, count per label, and write the edges, sorted by key,
and the result to disk. Plain Spark overwrites nothing and has no history: it does the least that
is necessary.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import nosync_nb
from bench.peers.spark_r1 import start_spark
from bench.r1 import define, node_table
from bench.workload import Workload


def write_inputs(workload: Workload, folder: Path) -> None:
    """Writes the data that both sides read."""
    from bench.r1 import edge_table

    pq.write_table(
        edge_table(workload.src, workload.dst, strings=False),
        folder / "edges.parquet",
        row_group_size=500_000,
    )
    pq.write_table(node_table(workload, strings=False), folder / "nodes.parquet")


def plain(spark: Any, folder: Path) -> float:
    """Lets Spark do it: join and count and write, edges sorted by key."""
    started = time.perf_counter()
    edges = spark.read.parquet(str(folder / "edges.parquet"))
    nodes = spark.read.parquet(str(folder / "nodes.parquet"))
    edges.repartitionByRange("dst").sortWithinPartitions("dst").write.parquet(
        str(folder / "edges-sorted")
    )
    joined = edges.join(nodes, edges["dst"] == nodes["node"])
    joined.groupBy("label").count().write.parquet(str(folder / "result"))
    return time.perf_counter() - started


def ours(spark: Any, folder: Path, workload: Workload) -> float:
    """Loads the same DataFrames, with the stage defined before."""
    session = nosync_nb.open(folder / "load.nosync", spark=spark)
    edges, nodes, stage = define(session, strings=False)
    started = time.perf_counter()
    nodes.insert(spark.read.parquet(str(folder / "nodes.parquet")))
    edges.insert(spark.read.parquet(str(folder / "edges.parquet")))
    session.commit(wait="disk")
    seconds = time.perf_counter() - started
    assert {row.label: row.n for row in stage.rows()} == workload.expected([])
    session.close()
    return seconds


def main() -> None:
    """Runs both sides, each twice in turn (the first warms the JVM), and prints the seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    workload = Workload(options.edges, seed=options.seed)
    spark = start_spark()
    spark.sparkContext.setLogLevel("ERROR")
    base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    found: dict[str, list[float]] = {"plain": [], "ours": []}
    try:
        for number in range(2):
            folder = base / str(number)
            folder.mkdir()
            write_inputs(workload, folder)
            found["plain"].append(plain(spark, folder))
            found["ours"].append(ours(spark, folder, workload))
            shutil.rmtree(folder)
    finally:
        spark.stop()
        shutil.rmtree(base, ignore_errors=True)
    print(json.dumps({key: values[-1] for key, values in found.items()}))


if __name__ == "__main__":
    main()
