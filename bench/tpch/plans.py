"""Plans: eight queries of TPC-H maintained over refreshes, beside engines that recompute them."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import PATHWAY, TOP, Goals, MeasurementError, Table, run
from bench.sql.tpch import tpch_sql

EPOCHS = 20
QUICK_EPOCHS = 4
PATHWAY_SF_MAX = 0.2
"""Beyond, it takes more memory than the machine has: 2.7 GB at 0.1."""
LARGE_SF = 1.0
"""From here on what a load takes is its rows, not the program, and has a limit."""


def by_rows(found: dict[str, Any], figure: str) -> dict[int, float]:
    """Returns the median of a figure over the epochs of each size, without the first of each."""
    each: dict[int, list[float]] = {}
    for rows, value in zip(found["rows"], found[figure], strict=True):
        each.setdefault(rows, []).append(value)
    return {rows: median(values[1:] or values) for rows, values in each.items()}


def tpch(options: argparse.Namespace, goals: Goals) -> None:
    """Measures TPC-H; DuckDB checks each result of each epoch."""
    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    flags = ("--sf", options.sf, "--epochs", epochs)
    if options.sql:
        tpch_sql(options, goals)
    elif options.decimals:
        decimals(flags, goals)
    else:
        measured(flags, goals)
        private(("--sf", options.sf), goals)


def decimals(flags: Sequence[str | int | float | Path], goals: Goals) -> None:
    """Runs the queries with decimals and with doubles, and shows the additional cost.

    Raises:
        MeasurementError: if the two do not give the same rows.
    """
    sizes = [str(each) for each in flags]
    with tempfile.TemporaryDirectory(prefix="nosync-bench-") as folder:
        files = [Path(folder) / "doubles.json", Path(folder) / "decimals.json"]
        doubles = run("-m", "bench.tpch.epochs", *sizes, "--results", files[0])
        exact = run("-m", "bench.tpch.epochs", *sizes, "--results", files[1], "--decimals")
        near, sure = ([*map(json.loads, file.read_text().splitlines())] for file in files)
    for epoch, (one, other) in enumerate(zip(near, sure, strict=True)):
        for name, found in one.items():
            _check(f"{name}, epoch {epoch}", found, other[name])
    table = Table(
        "TPC-H with decimals(15,2): load s and epochs, ms of the processor",
        "values          ",
        "load s  ",
        *(f"{rows} rows" for rows in by_rows(doubles, "cpu_ms")),
    )
    for title, found in (("doubles", doubles), ("decimals", exact)):
        table.row(title, found["load_cpu_seconds"], *by_rows(found, "cpu_ms").values())
    more = {
        rows: each / by_rows(doubles, "cpu_ms")[rows]
        for rows, each in by_rows(exact, "cpu_ms").items()
    }
    table.row(
        "ratio to doubles", exact["load_cpu_seconds"] / doubles["load_cpu_seconds"], *more.values()
    )
    for rows, ratio in more.items():
        goals.add(f"TPC-H, epochs of {rows:,} rows: decimals / doubles", ratio, 1.5)


def _check(what: str, near: list[Any], exact: list[Any]) -> None:
    """Compares rows of decimals to those of doubles; averages of decimals have six places."""
    floats = [
        any(isinstance(row[i], float) for row in near) for i in range(len(near[0] if near else ()))
    ]
    read = [
        [float(v) if f and v is not None else v for v, f in zip(row, floats, strict=True)]
        for row in exact
    ]

    def order(row: list[Any]) -> list[str]:
        return [str(value) for value in row if not isinstance(value, float)]

    for one, other in zip(sorted(near, key=order), sorted(read, key=order), strict=True):
        for a, b in zip(one, other, strict=True):
            if a != b and not (
                isinstance(a, float) and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)
            ):
                raise MeasurementError(f"{what}: {other} with decimals, {one} with doubles")


def private(flags: Sequence[str | int | float | Path], goals: Goals) -> None:
    """Shows what queries of many joins keep, each in a session of its own and beside all others.

    Materialize's figures are of query 3 at scale factor 1, with decimals ("Delta Joins and Late
    Materialization"); "beside others" is what it calls delta queries. It keeps the numbers of a
    group in one row, and the ten rows of the result are not among them.
    """
    seen = run("-m", "bench.tpch.private", *map(str, flags))
    title = "TPC-H: rows that a query keeps for itself, and rows of inputs by all their keys"
    ways = ("written", "planned", "beside others")
    groups = "a row for each group"
    table = Table(title, "query", *ways, groups, *(f"inputs, {way}" for way in ways))
    for name, kept in seen.items():
        private, shared = ([f"{kept[way][of]:,}" for way in ways] for of in ("private", "shared"))
        table.row(name, *private, f"{kept['beside others']['by groups']:,}", *shared)
    table.row("q3 of Materialize, SF 1", "4,173,794", None, None, "23,240", None, None, None)
    if float(flags[1]) >= LARGE_SF:
        rows = seen["q3"]["beside others"]["by groups"]
        goals.add("TPC-H: private rows of query 3 / scale factor", rows / float(flags[1]), 23_240)


def measured(flags: Sequence[str | int | float | Path], goals: Goals) -> None:
    """Runs all engines on the same tables, and shows the figures."""
    sizes = [str(each) for each in flags]
    with tempfile.TemporaryDirectory(prefix="nosync-bench-") as folder:
        results = Path(folder) / "results.json"
        ours = run("-m", "bench.tpch.epochs", *sizes, "--results", results)
        peers, pathway = [], None
        if PATHWAY.exists() and float(sizes[1]) <= PATHWAY_SF_MAX:
            peers = ["--peers", Path(folder) / "pathway.json"]
            script = TOP / "bench" / "peers" / "pathway_tpch.py"
            pathway = run(script, *sizes, "--results", peers[1], python=PATHWAY)
        theirs = run("-m", "bench.peers.duckdb_tpch", *sizes, "--results", results, *peers)
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
    if pathway is not None:
        _beside(pathway, ours, theirs["wrong"][0], table, goals)
    load = ours["arrow_bytes"]
    memory, disk = 1024 * ours["peak_kib"] / load, ours["disk_bytes"] / load
    table = Table("TPC-H: what the load takes, by its Arrow bytes", "Arrow MB", "peak x", "disk x")
    table.row(f"{load / 1e6:,.0f}", memory, disk)
    if float(sizes[1]) >= LARGE_SF:
        goals.add("TPC-H: peak memory of the load / its Arrow bytes", memory, 3)
        goals.add("TPC-H: disk / Arrow bytes of the load", disk, 1.5)


def _beside(
    pathway: dict[str, Any], ours: dict[str, Any], wrong: int, table: Table, goals: Goals
) -> None:
    """Shows Pathway, which keeps all in memory alone, and ours as ratios to it.

    Args:
        wrong: how many of its results were not DuckDB's.
    """
    own, peer = by_rows(ours, "latencies_ms"), by_rows(pathway, "latencies_ms")
    title = f"{pathway['peer']}, memory only; {wrong} of {8 + 8 * len(pathway['rows'])} wrong"
    table.row(title, pathway["load_seconds"], *peer.values())
    load = ours["load_seconds"] / pathway["load_seconds"]
    table.row("ratio to Pathway", load, *(own[rows] / peer[rows] for rows in own))
    for rows, ms in own.items():
        goals.add(f"TPC-H, epochs of {rows:,} rows / Pathway", ms / peer[rows], 0.3)
    goals.add("TPC-H: load / Pathway", load, 0.1)
    goals.add("TPC-H: peak memory / Pathway", ours["peak_kib"] / pathway["peak_kib"], 0.25)
