"""The peer Spark on R1, two ways; prints one line of JSON.

`recompute`: edges and nodes are cached; after each epoch the changes so far are added as a small
relation with a signed count, and join and sum run again. `stream`: Structured Streaming with the
RocksDB state store; the changes of an epoch are a file, the epoch lasts from its appearance to the
end of its micro-batch. Both are given signed counts, since neither can take an edge away.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.workload import Change, Workload

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def start_spark(*, memory: str = "4g") -> SparkSession:
    """Starts Spark as a good user would on this machine: as many partitions as cores."""
    cores = os.cpu_count() or 2
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.driver.memory", memory)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.adaptive.enabled", "false")  # it only adds planning to tiny jobs
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .getOrCreate()
    )


def base_tables(workload: Workload) -> tuple[pa.Table, pa.Table]:
    """Returns edges (with a count of 1) and nodes as Arrow tables."""
    ones = np.ones(workload.edges_count, np.int64)
    edges = pa.table({"src": workload.src, "dst": workload.dst, "diff": ones})
    return edges, pa.table({"node": workload.node, "label": workload.label})


def change_table(changes: list[Change]) -> pa.Table:
    """Returns epochs as one Arrow table with signed counts."""
    parts: list[tuple[Any, Any, int]] = []
    for change in changes:
        parts += [(change.src, change.dst, 1), (change.gone_src, change.gone_dst, -1)]
    return pa.table(
        {
            "src": np.concatenate([p[0] for p in parts]),
            "dst": np.concatenate([p[1] for p in parts]),
            "diff": np.concatenate([np.full(len(p[0]), p[2], np.int64) for p in parts]),
        }
    )


def read_parquet(spark: SparkSession, folder: Path, name: str, table: pa.Table) -> DataFrame:
    """Passes a large table to Spark by a file, the fastest way."""
    pq.write_table(table, folder / f"{name}.parquet", row_group_size=250_000)
    return spark.read.parquet(str(folder / f"{name}.parquet"))


def counts(edges: DataFrame, nodes: DataFrame) -> DataFrame:
    """Describes the result: edges per label."""
    joined = edges.join(nodes, edges["dst"] == nodes["node"])
    return joined.groupBy("label").agg({"diff": "sum"}).withColumnRenamed("sum(diff)", "n")


def recompute(spark: SparkSession, folder: Path, workload: Workload, changes: list[Change]) -> Any:
    """Measures recomputation from cache; returns the seconds of loading and of each epoch."""
    edge_table, node_table = base_tables(workload)
    started = time.perf_counter()
    edges = read_parquet(spark, folder, "edges", edge_table).cache()
    nodes = read_parquet(spark, folder, "nodes", node_table).cache()
    counts(edges, nodes).collect()
    load_seconds = time.perf_counter() - started
    latencies: list[float] = []
    result: list[Any] = []
    for number in range(len(changes)):
        table = change_table(changes[: number + 1])
        started = time.perf_counter()
        result = counts(edges.unionAll(spark.createDataFrame(table)), nodes).collect()
        latencies.append(time.perf_counter() - started)
    assert {row["label"]: row["n"] for row in result} == workload.expected(changes)
    return load_seconds, latencies


def stream(spark: SparkSession, folder: Path, workload: Workload, changes: list[Change]) -> Any:
    """Measures Structured Streaming with the RocksDB state store."""
    edge_table, node_table = base_tables(workload)
    inbox = folder / "inbox"
    inbox.mkdir()
    nodes = read_parquet(spark, folder, "nodes", node_table).cache()
    nodes.count()
    result: dict[int, int] = {}

    def keep(frame: DataFrame, _: int) -> None:
        result.update({row["label"]: row["n"] for row in frame.collect()})

    edges = spark.readStream.schema("src long, dst long, diff long").parquet(str(inbox))
    writer = counts(edges, nodes).writeStream.outputMode("update").foreachBatch(keep)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        load_seconds = feed(query, folder, "base", edge_table)
        latencies = [
            feed(query, folder, f"epoch-{number}", change_table([change]))
            for number, change in enumerate(changes)
        ]
    finally:
        query.stop()
    assert {label: n for label, n in result.items() if n} == workload.expected(changes)
    return load_seconds, latencies


def feed(query: Any, folder: Path, name: str, table: pa.Table) -> float:
    """Lets a file appear and waits until it is processed; the seconds between."""
    pq.write_table(table, folder / name)
    started = time.perf_counter()
    os.rename(folder / name, folder / "inbox" / f"{name}.parquet")
    query.processAllAvailable()
    return time.perf_counter() - started


def main() -> None:
    """Runs one of the two and prints its latencies in milliseconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["recompute", "stream"])
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    workload = Workload(options.edges, seed=options.seed)
    changes = list(workload.epochs(options.epochs))
    spark = start_spark()
    spark.sparkContext.setLogLevel("ERROR")
    folder = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    try:
        way = recompute if options.way == "recompute" else stream
        load_seconds, latencies = way(spark, folder, workload, changes)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(
        json.dumps(
            {
                "peer": f"Spark {options.way}",
                "load_seconds": load_seconds,
                "latencies_ms": [1000 * x for x in latencies],
            }
        )
    )


if __name__ == "__main__":
    main()
