"""TPC-DS in SQL: how many of the 99 queries are equal to DuckDB over epochs of changes."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from statistics import median

from bench.report import PATHWAY, TOP, Goals, MeasurementError, Table, run

SCALE = 0.01
EPOCHS = 10
QUICK_EPOCHS = 2
EQUAL = 95


def tpcds(options: argparse.Namespace, goals: Goals) -> None:
    """Makes tables and texts once, runs the queries, and shows which differ or are refused."""
    folder = options.tables or made()
    epochs = QUICK_EPOCHS if options.quick else EPOCHS
    found = run("-m", "bench.sql.tpcds_epochs", "--folder", folder, "--epochs", epochs)
    table = Table(
        f"TPC-DS at SF {SCALE:g}, {epochs} epochs of changes of all tables",
        *("equal", "refused", "wrong", "load s", "epoch ms"),
    )
    load, *later = found["latencies_ms"]
    counts = (str(found["equal"]), str(len(found["refused"])), str(len(found["wrong"])))
    table.row(*counts, load / 1000, median(later))
    for kind in ("refused", "wrong"):
        for name, why in sorted(found[kind].items()):
            print(f"{name} {kind}: {why[:200]}")
    goals.add("TPC-DS: queries equal to DuckDB", found["equal"], EQUAL, at_least=True)
    goals.add("TPC-DS: queries with wrong rows", len(found["wrong"]), 0)


def made() -> Path:
    """Returns the folder of tables and texts, which the peers' Python makes once."""
    folder = TOP / ".tools" / f"tpcds-{SCALE:g}"
    if not folder.exists():
        new = folder.with_suffix(".new")
        _make(new)
        new.rename(folder)
    return folder


def _make(folder: Path) -> None:
    """Runs the script that makes the data.

    Raises:
        MeasurementError: if DuckDB's extension is not installed, or fails.
    """
    script = TOP / "bench" / "sql" / "tpcds_data.py"
    command = [PATHWAY, script, "--sf", SCALE, "--folder", folder]
    try:
        subprocess.run([*map(str, command)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MeasurementError(f"TPC-DS (make bench installs it): {error}") from error
