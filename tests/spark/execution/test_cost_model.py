"""The cost model: a table of estimates, places and reasons."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nosync_nb.files import memory
from nosync_nb.spark.execution.cost_model import (
    FEW_ROWS,
    FRAME_ROWS,
    HERE,
    NOWHERE,
    ROWS_PER_SECOND,
    SPARK,
    CostEstimate,
    choose_placement,
)

MILLION = 1_000_000
GIB = 1 << 30


def estimate(kind: str, rows: int, spark: Any, **given: Any) -> CostEstimate:
    """An estimate for two columns of numbers in 8 GiB."""
    return CostEstimate(
        kind, rows, **{"size_bytes": 24 * rows, "free_bytes": 8 * GIB, **given}, spark=spark
    )


TABLE: list[tuple[str, CostEstimate, str, str]] = [
    # rows of the driver, Spark not running: few rows start no JVM
    ("a few rows", estimate("key", 10, "startable"), HERE, "few rows"),
    ("10^4", estimate("key", 10_000, "startable"), HERE, "10,000 rows"),
    ("10^5", estimate("key", 100_000, "startable"), HERE, "with its start"),
    ("10^6", estimate("key", MILLION, "startable"), HERE, "about 0.7 s here"),
    ("10^7", estimate("key", 10 * MILLION, "startable"), HERE, "with its start"),
    ("10^7 in files", estimate("key", 10 * MILLION, "startable", in_files=240 * MILLION), HERE, ""),
    (
        "functions worth a JVM",
        estimate("function", 10 * MILLION, "startable", slots=4),
        SPARK,
        "50 s",
    ),
    # the same with Spark running
    ("10^4, running", estimate("key", 10_000, "running"), HERE, "10,000 rows"),
    ("10^5, running", estimate("key", 100_000, "running"), HERE, "0.1 s here"),
    ("10^6, running", estimate("key", MILLION, "running"), HERE, "on Spark"),
    ("10^6 rows by row", estimate("row", MILLION, "running"), HERE, "0.1 s here"),
    ("10^4 functions, running", estimate("function", 10_000, "running"), HERE, ""),
    ("10^6 functions, running", estimate("function", MILLION, "running"), SPARK, "5.0 s here"),
    ("10^6 for 32 slots", estimate("order", MILLION, "running", slots=32), SPARK, "2.2 s here"),
    ("10^7, running", estimate("key", 10 * MILLION, "running"), HERE, "6.7 s here"),
    ("10^7 for 32 slots", estimate("key", 10 * MILLION, "running", slots=32), SPARK, ""),
    ("Spark's own expressions", estimate("foreign", MILLION, "startable", slots=4), SPARK, ""),
    # what came as a DataFrame
    ("a frame", estimate("key", FRAME_ROWS, "running", from_frame=FRAME_ROWS), SPARK, "DataFrame"),
    ("row by row", estimate("row", MILLION, "running", from_frame=MILLION), SPARK, "DataFrame"),
    ("a small frame", estimate("key", 99_999, "running", from_frame=99_999), HERE, "here"),
    ("a few of a frame", estimate("key", 20, "running", from_frame=20), HERE, "few rows"),
    ("and much beside", estimate("key", MILLION, "running", from_frame=MILLION // 2), SPARK, ""),
    ("little of a frame", estimate("key", MILLION, "running", from_frame=9), HERE, ""),
    ("after a restart", estimate("key", MILLION, "startable", from_frame=MILLION), HERE, ""),
    ("off", estimate("key", MILLION, "off", from_frame=MILLION), HERE, "Spark is off"),
    # memory
    ("too large", estimate("key", 100 * MILLION, "running"), SPARK, "GiB, 8.0 GiB are free"),
    ("worth a JVM", estimate("key", 100 * MILLION, "startable"), SPARK, "8.0 GiB are free"),
    ("too large, absent", estimate("key", 100 * MILLION, "absent"), NOWHERE, "100,000,000 rows"),
    ("too large, off", estimate("key", 100 * MILLION, "off"), NOWHERE, "13.4 GiB"),
    ("in little memory", estimate("key", MILLION, "absent", free_bytes=GIB // 8), NOWHERE, "MiB"),
    ("absent", estimate("key", 10 * MILLION, "absent"), HERE, "Spark is absent"),
    (
        "a load",
        estimate("load", MILLION, "absent", free_bytes=GIB // 64),
        NOWHERE,
        "16 MiB are free",
    ),
    # what the user said
    ("local", estimate("key", 100 * MILLION, "running", forced="local"), HERE, "as requested"),
    ("spark", estimate("key", 1, "startable", forced="spark"), SPARK, "as requested"),
    ("spark, off", estimate("key", MILLION, "off", forced="spark"), HERE, "Spark is off"),
    ("above", estimate("key", 1001, "startable", forced=1000), SPARK, "spark_rows=1,000"),
    ("below", estimate("key", 1000, "running", forced=1000), HERE, "few rows"),
    ("none here", estimate("key", 1, "running", forced=0), SPARK, "spark_rows=0"),
    ("all here", estimate("function", 10 * MILLION, "running", forced=10**9), HERE, "as requested"),
    (
        "all here, in files and from a frame",
        estimate(
            "key", MILLION, "running", forced=10**9, from_frame=MILLION, in_files=24 * MILLION
        ),
        HERE,
        "as requested",
    ),
    ("above, off", estimate("key", 5000, "off", forced=1000), HERE, "Spark is off"),
    ("above, absent", estimate("key", 5000, "absent", forced=1000), HERE, "Spark is absent"),
]


@pytest.mark.parametrize(
    ("given", "place", "why"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_estimate_has_one_place_and_reason(given: CostEstimate, place: str, why: str) -> None:
    chosen = choose_placement(given)
    assert chosen.place == place, chosen
    assert why in chosen.why
    assert choose_placement(given) == chosen


@pytest.mark.parametrize("kind", ROWS_PER_SECOND)
@pytest.mark.parametrize("spark", ["startable", "running"])
@pytest.mark.parametrize("slots", [1, 2, 64])
def test_more_rows_never_move_run_back_from_spark(kind: str, spark: str, slots: int) -> None:
    sizes = [FEW_ROWS + 1, *(10**power for power in range(4, 10))]
    places = [
        choose_placement(estimate(kind, rows, spark, slots=slots, free_bytes=1 << 60)).place
        for rows in sizes
    ]
    assert all(not (a == SPARK and b == HERE) for a, b in pairwise(places)), places


@pytest.mark.parametrize("kind", ROWS_PER_SECOND)
@pytest.mark.parametrize("spark", ["startable", "running"])
def test_cost_chooses_faster_place(kind: str, spark: str) -> None:
    for rows in (5_000, 10**5, 10**6, 10**7, 10**8):
        given = estimate(kind, rows, spark, slots=8, free_bytes=1 << 60)
        cheaper = SPARK if given.spark_seconds < given.here_seconds else HERE
        assert choose_placement(given).place == cheaper


def described_system(folder: Path, **texts: str) -> dict[str, str]:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return {name: str(folder / name) for name in ("meminfo", "max", "current", "stat")}


@pytest.mark.parametrize(
    ("limit", "stat", "free"),
    [
        ("max", "anon 5\n", 2048 * 1024),  # no container: what the machine has
        ("1000000", "anon 5\ninactive_file 70\n", 400_070),
        ("500000", "anon 5\n", 0),
        ("9000000000", "inactive_file 0\n", 2048 * 1024),
    ],
)
def test_free_memory_is_limited_by_machine_and_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, stat: str, free: int
) -> None:
    meminfo = "MemTotal: 9 kB\nMemAvailable:    2048 kB\n"
    paths = described_system(tmp_path, meminfo=meminfo, max=limit, current="600000", stat=stat)
    monkeypatch.setattr(memory, "_SYSTEM", paths["meminfo"])
    monkeypatch.setattr(memory, "_GROUPS", ((paths["max"], paths["current"], paths["stat"]),))
    assert memory.free_bytes() == free


def test_free_memory_is_unlimited_if_system_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_SYSTEM", "/proc/none")
    monkeypatch.setattr(memory, "_GROUPS", ())
    assert memory.free_bytes() == memory.UNKNOWN
    monkeypatch.undo()
    assert 0 < memory.free_bytes() <= memory.UNKNOWN
