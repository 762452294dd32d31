"""Plans: eight queries of TPC-H kept up over refreshes, beside who computes them anew."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import Goals, Table, run

EPOCHS = 20
QUICK_EPOCHS = 4


def by_rows(found: dict[str, Any], figure: str) -> dict[int, float]:
    """The median of a figure over the epochs of each size; the first of each is warm-up."""
    each: dict[int, list[float]] = {}
    for rows, value in zip(found["rows"], found[figure], strict=True):
        each.setdefault(rows, []).append(value)
    return {rows: median(values[1:] or values) for rows, values in each.items()}


def tpch(options: argparse.Namespace, goals: Goals) -> None:
    """Measures TPC-H; DuckDB holds each result of each epoch against its own."""
    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    measured(("--sf", options.sf, "--epochs", epochs), goals)


def measured(flags: Sequence[str | int | float | Path], goals: Goals) -> None:
    """Runs everybody on the same tables, and shows the figures."""
    sizes = [str(each) for each in flags]
    with tempfile.TemporaryDirectory(prefix="nosync-bench-") as folder:
        results = Path(folder) / "results.json"
        ours = run("-m", "bench.tpch", *sizes, "--results", results)
        theirs = run("-m", "bench.peer_duckdb", *sizes, "--results", results)
    own, cpu = by_rows(ours, "latencies_ms"), by_rows(ours, "cpu_ms")
    peer = by_rows(theirs, "latencies_ms")
    columns = ("load s  ", *(f"{rows} rows" for rows in own))
    table = Table(
        "TPC-H 1, 3, 4, 5, 6, 10, 12, 18: load and epochs, ms", "who               ", *columns
    )
    table.row("NoSync", ours["load_seconds"], *own.values())
    table.row("NoSync, CPU", ours["load_cpu_seconds"], *cpu.values())
    table.row(f"{theirs['peer']}, anew", theirs["load_seconds"], *peer.values())
    table.row("ratio to DuckDB", None, *(own[rows] / peer[rows] for rows in own))
    load = ours["arrow_bytes"]
    memory, disk = 1024 * ours["peak_kib"] / load, ours["disk_bytes"] / load
    table = Table("TPC-H: what the load takes, by its Arrow bytes", "Arrow MB", "peak x", "disk x")
    table.row(f"{load / 1e6:,.0f}", memory, disk)
    goals.add("TPC-H: peak memory of the load / its Arrow bytes", memory, 3)
    goals.add("TPC-H: disk / Arrow bytes of the load", disk, 1.5)
