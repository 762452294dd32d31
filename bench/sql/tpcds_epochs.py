"""The 99 queries of TPC-DS over changes of all tables, beside DuckDB; a line of JSON.

A query that is refused before it runs is counted apart; its reason is in the result.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

import nosync_nb
from bench.r1 import IN_PROCESS
from bench.sql.compare import difference
from bench.sql.tpch_epochs import declare, take
from bench.tpch.changes import Epoch, changes
from nosync_nb.errors import NosyncError

RELATIVE, ABSOLUTE = 1e-6, 1e-5
"""Quotients of decimals with many digits have six places in Spark."""


def measure(session: Any, folder: Path, epochs: int) -> dict[str, Any]:
    """Runs the queries as stages over the epochs; the first difference of each is in the result."""
    tables = {path.stem: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))}
    texts = {path.stem: path.read_text() for path in sorted(folder.glob("q*.sql"))}
    declare(session, tables)
    base, wrong, refused, latencies = duckdb.connect(), {}, {}, []
    for name, text in texts.items():
        try:
            session.stage(name, session.sql(text))
        except NosyncError as error:
            refused[name] = str(error).partition("\n")[0]
    for number, epoch in enumerate([Epoch(tables, {}, tables), *changes(tables, epochs)]):
        started = time.perf_counter()
        take(session, epoch)
        latencies.append(1000 * (time.perf_counter() - started))
        for name, table in epoch.after.items():
            base.register("changed", table)
            base.execute(f"create or replace table {name} as select * from changed")
        for name in texts.keys() - refused.keys() - wrong.keys():
            theirs = base.execute(texts[name]).fetchall()
            close = {"relative": RELATIVE, "absolute": ABSOLUTE}
            if told := difference(session[name].rows(), theirs, **close):
                wrong[name] = f"epoch {number}: {told}"
    equal = len(texts) - len(refused) - len(wrong)
    return {"equal": equal, "refused": refused, "wrong": wrong, "latencies_ms": latencies}


def main() -> None:
    """Runs the queries and prints how many are equal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="nosync-bench-") as folder,
        nosync_nb.open(f"{folder}/tpcds.nosync", spark_rows=IN_PROCESS) as session,
    ):
        print(json.dumps(measure(session, options.folder, options.epochs)))


if __name__ == "__main__":
    main()
