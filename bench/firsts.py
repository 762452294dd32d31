"""First runs by Spark: load, a join of three and a count, beside plain Spark; one line of JSON.

All of them read lines, orders and customers from Parquet, join them and sum per segment. Plain
Spark writes the result alone. A second variant of it also writes its inputs sorted by key, which
lookups need. Each runs twice in turn; the first run warms the JVM and its workers.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import nosync_nb
from bench.peers.spark_r1 import start_spark

FEW = 1000
SCHEMAS = {
    "lines": "line_order bigint, part bigint, quantity bigint, price double",
    "orders": "order_id bigint, buyer bigint, day int, status string",
    "customers": "customer_id bigint, segment string, balance double",
}
KEYS = {"lines": "line_order", "orders": "order_id", "customers": "customer_id"}


def tables(lines: int, seed: int) -> dict[str, pa.Table]:
    """Returns the inputs: four lines an order, ten orders a customer."""
    random = np.random.default_rng(seed)
    orders, customers = max(lines // 4, 1), max(lines // 40, 1)
    statuses = np.array(["open", "filled", "pending"])[random.integers(0, 3, orders)]
    segments = np.array([f"segment {n}" for n in range(20)])[random.integers(0, 20, customers)]
    return {
        "lines": pa.table(
            {
                "line_order": random.integers(0, orders, lines),
                "part": random.integers(0, lines, lines),
                "quantity": random.integers(1, 50, lines),
                "price": random.integers(100, 100_000, lines) / 4,
            }
        ),
        "orders": pa.table(
            {
                "order_id": np.arange(orders),
                "buyer": random.integers(0, customers, orders),
                "day": random.integers(0, 2000, orders).astype(np.int32),
                "status": statuses,
            }
        ),
        "customers": pa.table(
            {
                "customer_id": np.arange(customers),
                "segment": segments,
                "balance": random.integers(0, 1_000_000, customers) / 4,
            }
        ),
    }


def plain(spark: Any, folder: Path, *, inputs: bool) -> float:
    """Lets Spark join, count and write, and write its inputs sorted by key."""
    started = time.perf_counter()
    frames = {name: spark.read.parquet(str(folder / f"{name}.parquet")) for name in SCHEMAS}
    if inputs:
        for name, frame in frames.items():
            by = KEYS[name]
            target = str(folder / f"{name}-sorted")
            frame.repartitionByRange(by).sortWithinPartitions(by).write.parquet(target)
    joined = frames["lines"].join(
        frames["orders"], frames["lines"]["line_order"] == frames["orders"]["order_id"]
    )
    joined = joined.where("quantity > 5").join(
        frames["customers"], joined["buyer"] == frames["customers"]["customer_id"]
    )
    summed = joined.groupBy("segment").agg({"*": "count", "quantity": "sum"})
    summed.write.parquet(str(folder / f"result-{inputs}"))
    return time.perf_counter() - started


def ours(spark: Any, folder: Path, lines: int) -> dict[str, Any]:
    """Loads the same DataFrames and defines the same stage."""
    session = nosync_nb.open(folder / "firsts.nosync", spark=spark)
    for name, schema in SCHEMAS.items():
        session.input(name, schema)
    started = time.perf_counter()
    for name in reversed(SCHEMAS):
        session[name].insert(spark.read.parquet(str(folder / f"{name}.parquet")))
    inserted = time.perf_counter()
    session.commit(wait="disk")
    committed = time.perf_counter()
    joined = session["lines"].join(session["orders"], on={"line_order": "order_id"})
    joined = joined.filter("quantity > 5")
    joined = joined.join(session["customers"], on={"buyer": "customer_id"})
    summed = joined.group_by("segment").agg(n="count(*)", total="sum(quantity)")
    (report,) = session.define({"summed": summed}, on=None)
    ended = time.perf_counter()
    expected = spark.read.parquet(str(folder / "result-True"))
    names = expected.columns
    wanted = {(r["segment"], r["count(1)"], r["sum(quantity)"]) for r in expected.collect()}
    assert set(names) == {"segment", "count(1)", "sum(quantity)"}
    assert {(row.segment, row.n, row.total) for row in session["summed"].rows()} == wanted
    few = spark.createDataFrame([(n, n, n, 0.5) for n in range(FEW)], SCHEMAS["lines"])
    before = time.perf_counter()
    session["lines"].insert(few)
    session.commit(wait="disk")
    small = time.perf_counter() - before
    session.close()
    files = [path for path in (folder / "firsts.nosync").rglob("*") if path.is_file()]
    return {
        "insert": inserted - started,
        "commit": committed - inserted,
        "define": ended - committed,
        "all": ended - started,
        "few": small,
        "jobs": jobs(report.placement),
        "bytes": sum(path.stat().st_size for path in files),
    }


def jobs(placement: str) -> int:
    """Counts the Spark jobs that a text names, such as `Spark job 3, Spark jobs 5-7`."""
    named = re.findall(r"Spark jobs? (\d+)(?:-(\d+))?", placement)
    return sum(int(last or first) - int(first) + 1 for first, last in named)


def main() -> None:
    """Runs each way twice in turn and prints the seconds of the second time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    given = tables(options.lines, options.seed)
    spark = start_spark()
    spark.sparkContext.setLogLevel("ERROR")
    base = Path(tempfile.mkdtemp(prefix="nosync-bench-"))
    seconds: dict[str, Any] = {}
    try:
        for number in range(options.runs):
            folder = base / str(number)
            folder.mkdir()
            for name, table in given.items():
                pq.write_table(table, folder / f"{name}.parquet", row_group_size=250_000)
            seconds = {
                "plain": plain(spark, folder, inputs=False),
                "sorted": plain(spark, folder, inputs=True),
                "ours": ours(spark, folder, options.lines),
                "given_bytes": sum(table.nbytes for table in given.values()),
            }
            shutil.rmtree(folder)
    finally:
        spark.stop()
        shutil.rmtree(base, ignore_errors=True)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
