"""Expressions: a stage of ten of them in process, beside Spark; one line of JSON.

    python -m bench.expressions epochs   {"latencies_ms": [of each epoch of ten rows]}
    python -m bench.expressions rows     {"lines": [[expression, ours ms, Spark's warm ms], ...]}

In `rows` each expression is evaluated over one table, in process and by Spark, whose table is
cached and whose code has run before; the best of three counts. Writing the result is excluded from
both.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import nosync_nb
from bench.report import Goals, Table, percentiles, run
from nosync_nb import rows
from nosync_nb.expressions import compile_expression
from nosync_nb.rows import Schema

SCHEMA = Schema.parse(
    "id bigint, price decimal(15,2), part decimal(4,2), name string, doc string, at timestamp,"
    " x double"
)
TEN = (
    "price * (1 - part)",
    "cast(substring(name, 6, 4) as int) % 7",
    "upper(concat_ws('-', substring(name, 1, 4), 'x'))",
    "regexp_replace(name, '[0-9]+', '#')",
    "split_part(name, ' ', 2)",
    "date_format(at, 'yyyy-MM-dd HH:mm')",
    "add_months(cast(at as date), 1)",
    "md5(name)",
    "round(ln(x + 1), 2)",
    "get_json_object(doc, '$.a')",
)
BATCH = 10


def expressions(options: argparse.Namespace, goals: Goals) -> None:
    """Measures an epoch of ten rows through ten expressions, and many rows beside Spark."""
    epochs = 500 if options.quick else 3000
    each = percentiles(run("-m", "bench.expressions", "epochs", "--epochs", epochs)["latencies_ms"])
    table = Table("A stage of ten expressions, ten rows an epoch", "ms  ", *each)
    table.row("", *each.values())
    goals.add("ten expressions, ten rows, epoch, median, ms", each["p50"], 1)
    size = 100_000 if options.quick else 1_000_000
    found = run("-m", "bench.expressions", "rows", "--rows", size)["lines"]
    table = Table(f"{size:,} rows", f"{'expression':50}", "here ms", "Spark ms", "x Spark")
    for sql, ours, theirs in found:
        table.row(sql, ours, theirs, ours / theirs)
    ours, theirs = (sum(line[k] for line in found) for k in (1, 2))
    table.row("all of them", ours, theirs, ours / theirs)
    worst = max(ours / theirs for _, ours, theirs in found)
    goals.add(f"the slowest of ten, {size:,} rows, here / Spark, warm", worst, 3)


def made(size: int, *, seed: int = 7) -> pa.Table:
    """Returns rows of a shop: prices, names, documents and times."""
    random = np.random.default_rng(seed)
    ids = np.arange(size)
    cents = pa.array(random.integers(1, 10_000_000, size)).cast(pa.decimal128(19, 0))
    parts = pa.array(random.integers(0, 11, size)).cast(pa.decimal128(19, 0))
    hundredth = pa.scalar(Decimal("0.01"))
    numbers = (1000 + random.integers(0, size, size)).tolist()  # two of three are distinct
    columns = {
        "id": pa.array(ids),
        "price": pc.multiply(cents, hundredth).cast(pa.decimal128(15, 2)),
        "part": pc.multiply(parts, hundredth).cast(pa.decimal128(4, 2)),
        "name": pa.array([f"item {n} of {n % 97}" for n in numbers]),
        "doc": pa.array([f'{{"a": {n}, "b": [1, 2]}}' for n in numbers]),
        "at": pa.array(random.integers(0, 2 * 10**15, size)).cast(pa.timestamp("us", "UTC")),
        "x": pa.array(random.random(size)),
    }
    return pa.table(columns)


def best(action: Callable[[], Any], tries: int = 3) -> float:
    """Returns the milliseconds of the fastest run."""
    each = []
    for _ in range(tries):
        start = time.perf_counter()
        action()
        each.append(1000 * (time.perf_counter() - start))
    return min(each)


def epochs(count: int) -> list[float]:
    """Returns the milliseconds of epochs of ten rows through a stage of the ten."""
    rows_of = made(BATCH * count)
    latencies = []
    with tempfile.TemporaryDirectory() as folder, nosync_nb.open(Path(folder) / "log") as session:
        given = session.input("given", ", ".join(f"{n} {t}" for n, t in SCHEMA.fields))
        named = [f"{sql} AS r{k}" for k, sql in enumerate(TEN)]
        session.stage("ten", given.select("id", *named))
        for start in range(0, BATCH * count, BATCH):
            given.insert(rows_of.slice(start, BATCH))
            before = time.perf_counter()
            session.commit()
            latencies.append(1000 * (time.perf_counter() - before))
        assert session["ten"].count() == BATCH * count
    return latencies


def beside_spark(size: int) -> list[tuple[str, float, float]]:
    """Returns, for each expression, the milliseconds over all rows, in process and in Spark."""
    from nosync_nb.spark import launch
    from nosync_nb.spark.spark_session import frame_of

    table = made(size)
    typed = zip(table.columns, SCHEMA.types, strict=True)
    columns = [rows.from_arrow(column.combine_chunks(), type_) for column, type_ in typed]
    spark = launch.start_session({"spark.sql.session.timeZone": "UTC", "spark.log.level": "OFF"})
    frame = frame_of(spark, table, SCHEMA).cache()
    frame.count()
    lines = []
    for sql in TEN:
        e = compile_expression(sql, SCHEMA, types=lambda *_: ["int"])
        assert e.local, e.why
        asked = frame.selectExpr(f"{sql} AS r").write.format("noop").mode("overwrite")
        asked.save()
        ours = best(lambda e=e: e.evaluate(columns, size))  # type: ignore[misc]
        lines.append((sql, ours, best(asked.save)))
    launch.stop_session(spark)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("epochs", "rows"))
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    chosen = parser.parse_args()
    if chosen.part == "epochs":
        print(json.dumps({"latencies_ms": epochs(chosen.epochs)}))
    else:
        print(json.dumps({"lines": beside_spark(chosen.rows)}))
