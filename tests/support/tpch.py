"""Small tables in the schema of TPC-H, with rows for each query of the benchmark."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write_tables(folder: Path, orders: int, *, seed: int = 1) -> None:
    """Writes the tables of the benchmark, with three lines for each order."""
    rng = np.random.default_rng(seed)
    first = (date(1993, 7, 1) - date(1970, 1, 1)).days

    def days(count: int, span: int) -> pa.Array:
        return pa.array(first + rng.integers(0, span, count), pa.int32()).cast(pa.date32())

    def of(values: list[str], count: int) -> pa.Array:
        return pa.array(rng.choice(values, count), pa.string())

    def number(most: int, count: int) -> pa.Array:
        return pa.array(rng.integers(1, most, count) / 100).cast(pa.decimal128(15, 2))

    lines, customers = 3 * orders, max(1, orders // 10)
    tables = {
        "region": {"r_regionkey": [0, 1], "r_name": ["ASIA", "EUROPE"], "r_comment": ["", "x"]},
        "nation": {
            "n_nationkey": range(4),
            "n_name": ["CHINA", "INDIA", "FRANCE", "SPAIN"],
            "n_regionkey": [0, 0, 1, 1],
            "n_comment": [""] * 4,
        },
        "supplier": {
            "s_suppkey": range(8),
            "s_name": of(["s"], 8),
            "s_address": of(["a"], 8),
            "s_nationkey": np.arange(8) % 4,
            "s_phone": of(["1"], 8),
            "s_acctbal": number(9999, 8),
            "s_comment": of(["c", "d"], 8),
        },
        "customer": {
            "c_custkey": range(customers),
            "c_name": [f"Customer#{i}" for i in range(customers)],
            "c_address": of(["x", "y"], customers),
            "c_nationkey": rng.integers(0, 4, customers),
            "c_phone": of(["1", "2"], customers),
            "c_acctbal": number(9999, customers),
            "c_mktsegment": of(["BUILDING", "MACHINERY"], customers),
            "c_comment": of(["c", "d"], customers),
        },
        "orders": {
            "o_orderkey": range(orders),
            "o_custkey": rng.integers(0, customers, orders),
            "o_orderstatus": of(["F", "O"], orders),
            "o_totalprice": number(10**7, orders),
            "o_orderdate": days(orders, 700),
            "o_orderpriority": of(["1-URGENT", "2-HIGH", "3-MEDIUM"], orders),
            "o_clerk": of(["c"], orders),
            "o_shippriority": pa.array(np.zeros(orders, np.int32)),
            "o_comment": of(["c", "d"], orders),
        },
        "lineitem": {
            "l_orderkey": np.arange(lines) // 3,
            "l_partkey": rng.integers(0, 50, lines),
            "l_suppkey": rng.integers(0, 8, lines),
            "l_linenumber": pa.array(np.arange(lines) % 3, pa.int32()),
            "l_quantity": number(20_000, lines),
            "l_extendedprice": number(10**6, lines),
            "l_discount": number(10, lines),
            "l_tax": number(8, lines),
            "l_returnflag": of(["R", "N"], lines),
            "l_linestatus": of(["F", "O"], lines),
            "l_shipdate": days(lines, 700),
            "l_commitdate": days(lines, 700),
            "l_receiptdate": days(lines, 700),
            "l_shipinstruct": of(["NONE"], lines),
            "l_shipmode": of(["MAIL", "SHIP", "AIR"], lines),
            "l_comment": of(["c", "d"], lines),
        },
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
