"""TPC-H in SQL: each query and all 22 together, over changes of all tables, beside DuckDB."""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from bench.report import Goals, MeasurementError, Table, run
from bench.sql.tpch_epochs import SHARES
from bench.tpch.sql import QUERIES

EPOCHS = 5
QUICK_EPOCHS = 2
LARGE_SF = 1.0
"""From here on the goals count."""


def tpch_sql(options: argparse.Namespace, goals: Goals) -> None:
    """Measures the queries one by one, each in a session of its own, then all in one session."""
    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    shares = [f"{100 * share:g} %" for share in SHARES]
    columns = ["query      ", "load s", "peak x", "disk x"]
    columns += [f"{who} {share}" for share in shares for who in ("ms", "x DuckDB", "x its CPU")]
    title = f"TPC-H in SQL at SF {options.sf:g}: peak and disk by the Arrow bytes of the tables"
    table = Table(f"{title}; epochs by the share of the rows", *columns)
    worst = dict.fromkeys(SHARES, 0.0)
    for name in QUERIES:
        try:
            found = _measured(options, epochs, "--query", name)
        except MeasurementError as error:
            print(f"{name}: not measured\n{error}")
            continue
        for share, ratio in zip(SHARES, _row(table, name, found), strict=True):
            worst[share] = max(worst[share], ratio)
    found = _measured(options, epochs)
    together = _row(table, f"all {len(QUERIES)}", found)
    peak = _by_arrow_bytes(found)[0]
    if options.sf >= LARGE_SF:
        goals.add("TPC-H in SQL, all at 0.1 % / DuckDB", together[1], 0.3)
        goals.add("TPC-H in SQL, all at 1 % / DuckDB", together[2], 1.2)
        goals.add("TPC-H in SQL, any query at 0.01 % / DuckDB", worst[SHARES[0]], 1.2)
        goals.add("TPC-H in SQL, any query at 0.1 % / DuckDB", worst[SHARES[1]], 1.2)
        goals.add("TPC-H in SQL: peak memory of the load / its Arrow bytes", peak, 3)


def _measured(options: argparse.Namespace, epochs: int, *flags: str) -> dict[str, Any]:
    folder = ("--folder", options.tables) if options.tables else ()
    return run(
        *("-m", "bench.sql.tpch_epochs", "--sf", options.sf, "--epochs", epochs), *folder, *flags
    )


def _by_arrow_bytes(found: dict[str, Any]) -> tuple[float, float]:
    """Returns the peak memory of the load and the disk, as multiples of the tables' Arrow bytes."""
    arrow = found["arrow_bytes"]
    return 1024 * found["peak_kib"] / arrow, found["disk_bytes"] / arrow


def _row(table: Table, title: str, found: dict[str, Any]) -> list[float]:
    """Prints a row; returns the ratios to DuckDB by share."""
    wall, cpu = ([median(each) for each in found[f"ours{unit}_ms"]] for unit in ("", "_cpu"))
    beside, cpu_beside = (
        [median(each) for each in found[f"theirs{unit}_ms"]] for unit in ("", "_cpu")
    )
    ratios = [a / b for a, b in zip(wall, beside, strict=True)]
    cpu_ratios = [a / b for a, b in zip(cpu, cpu_beside, strict=True)]
    cells = [cell for three in zip(wall, ratios, cpu_ratios, strict=True) for cell in three]
    table.row(title, found["load_seconds"], *_by_arrow_bytes(found), *cells)
    return ratios
