"""The parts of the benchmark that reach into a session: each runs and prints its table."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.replicas import faults, fencing, kills, pairs, persist
from bench.report import Goals, MeasurementError, run
from bench.sql import tpch
from bench.tpch import plans
from tests.support.tpch import write_tables
from tests.support.tpch_tables import tables

SMALL = ("--edges", 500, "--epochs", 20)


@pytest.mark.parametrize(
    "part",
    [
        ("-m", "bench.r1", "--no-log"),
        ("-m", "bench.snapshots", "aligned"),
        ("-m", "bench.snapshots", "unaligned", "--loop"),
    ],
    ids=" ".join,
)
def test_measurement_has_right_rows_and_figure_per_epoch(part: tuple[str, ...]) -> None:
    found = run(*part, *SMALL)
    assert len(found["latencies_ms"]) == 20
    if "bench.snapshots" in part:
        assert len(found["stalls_ms"]) == 10
        assert found["bytes"] > 0


def test_ten_expressions_are_measured_per_epoch() -> None:
    found = run("-m", "bench.expressions", "epochs", "--epochs", 12)
    assert len(found["latencies_ms"]) == 12
    assert min(found["latencies_ms"]) > 0


def test_joins_on_ranges_equal_duckdb_and_touch_few_rows() -> None:
    found = run("-m", "bench.ranges", "--rows", 3000)["lines"]
    assert len(found) == 5
    assert all(min(line[1:5]) > 0 and max(line[5:]) < 300 for line in found)


def test_pages_and_epochs_beside_open_grid_are_measured() -> None:
    pages = run("-m", "bench.views", "pages", "--rows", 9000)["views"]
    assert len(pages) == 11
    assert min(first for first, _ in pages.values()) > 0
    small = ("--rows", 500, "--epochs", 5, "--blocks", 2)
    blocks = run("-m", "bench.views", "r1", *small)["views"]["edges"]
    assert [len(blocks[kind]) for kind in ("open", "closed")] == [2, 2]


def test_windows_are_measured_beside_r1_and_duckdb() -> None:
    found = run("-m", "bench.windows", "--rows", 2000, "--epochs", 20)
    for part in ("large", "small"):
        assert len(found[part]) > 3
        for figures in found[part].values():
            assert min(figures.values()) > 0


def test_large_epochs_are_measured_over_first_run() -> None:
    found = run("-m", "bench.large_epochs", "select", "--rows", 20_000, "--rounds", 1)
    assert found["first"] > 0
    assert found.keys() == {"first", "epoch", "input", "ratio", "from_scratch"}


def test_notebook_waits_are_measured() -> None:
    steps = run("-m", "bench.notebook", "steps", "--rows", 5000)["notebook"]
    assert [sent for _, _, sent in steps.values()] == [104, 200, 20, 20]
    restarts = run("-m", "bench.notebook", "restarts", "--runs", 1)["notebook"]
    assert all(min(restarts[name]) > 0 for name in ("plain", "NoSync"))


SMALLEST = argparse.Namespace(kind="folder", quick=True, pairs=1, edges=500, epochs=20)


def test_first_write_waits_for_late_replica_once_per_stage() -> None:
    command = ("-m", "bench.r1", "--edges", 500, "--epochs", 5, "--write-first", 2)
    found = pairs.copied("server", pairs.TROUBLES[1], command)
    assert found.epochs["p50"] > 2 * 2 * 1000 * pairs.LATE_S  # there and back, for each stage
    assert found.keeper > 0


def test_session_that_ends_before_commit_is_noticed(tmp_path: Path) -> None:
    said = tmp_path / "epochs"
    said.write_text("0.5 1.5 .\n")
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        kills.wait_for(said, 1, process)  # it is there already
        with pytest.raises(MeasurementError, match=r"the session ended \(3\)"):
            kills.wait_for(said, 2, process)


@pytest.mark.parametrize("section", [pairs.pairs, persist.persist, kills.kills, faults.lost])
def test_replica_section_shows_its_table(
    section: Callable[[argparse.Namespace, Goals], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pairs, "STAGES", (2,))
    monkeypatch.setattr(persist, "LAYERS", (2,))
    monkeypatch.setattr(kills, "BEFORE_S", 0.5)
    monkeypatch.setattr(kills, "AFTER_S", 1.0)
    monkeypatch.setattr(kills, "VICTIMS", ("nobody", "keeper"))
    goals = Goals()
    section(SMALLEST, goals)
    shown = capsys.readouterr().out
    assert shown.count("| ") > 10
    goals.show()
    assert "|" in capsys.readouterr().out


def test_kill_beside_replicas_is_followed_by_rows_and_fence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fencing, "TRIES", 1)
    found = fencing.recovered({"small": (500, 1)}, 5)["small"]
    assert found["cpu_seconds"] > 0
    assert 0 < found["seconds"] < found["fence_seconds"]


def test_tpch_with_decimals_has_same_rows_and_ratio_per_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tables(tmp_path, 2200)
    goals = Goals()
    plans.decimals(("--epochs", 1, "--folder", tmp_path), goals)
    assert "ratio to doubles" in capsys.readouterr().out
    assert len(goals.kept) == 5
    assert all(ratio > 0 for _, ratio, _ in goals.kept)


def test_tpch_in_sql_has_ratio_per_query_and_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, table in tables(0.002).items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    monkeypatch.setattr(tpch, "QUERIES", {"q03": tpch.QUERIES["q03"]})
    monkeypatch.setattr(tpch, "_measured", partial(_one_query, tmp_path))
    goals = Goals()
    tpch.tpch_sql(argparse.Namespace(quick=True, sf=tpch.LARGE_SF), goals)
    assert "| q03 " in capsys.readouterr().out
    assert len(goals.kept) == 5
    assert all(figure > 0 for _, figure, _ in goals.kept)


def _one_query(folder: Path, options: Any, epochs: int, *flags: str) -> dict[str, Any]:
    """Runs one query where all are measured together: they are compared elsewhere."""
    flags = flags or ("--query", "q06")
    command = ("-m", "bench.sql.tpch_epochs", "--sf", 0.002, "--epochs", 1, "--folder", folder)
    return run(*command, *flags)


def test_tpch_equals_duckdb_after_each_refresh(tmp_path: Path) -> None:
    write_tables(tmp_path, 2200)
    results, flags = tmp_path / "results.json", ("--epochs", 2, "--folder", tmp_path)
    ours = run("-m", "bench.tpch.epochs", *flags, "--results", results)
    assert ours["rows"] == [10, 10, 70, 70, 150, 150, 750, 7500]
    assert (
        len(run("-m", "bench.peers.duckdb_tpch", *flags, "--results", results)["latencies_ms"]) == 8
    )
    lines = results.read_text().splitlines()
    found = json.loads(lines[-1])
    assert all(found.values()), "a query without rows shows nothing"
    found["q12"][0][1] += 1
    results.write_text("\n".join([*lines[:-1], json.dumps(found)]))
    with pytest.raises(MeasurementError, match="q12, epoch 8"):
        run("-m", "bench.peers.duckdb_tpch", *flags, "--results", results)
