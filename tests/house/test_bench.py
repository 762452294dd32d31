"""The parts of the measurements that reach into a session run: nobody sees it otherwise."""

from __future__ import annotations

import pytest

from bench.report import run

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
def test_a_measurement_gives_the_right_rows_and_a_figure_for_each_epoch(
    part: tuple[str, ...],
) -> None:
    found = run(*part, *SMALL)
    assert len(found["latencies_ms"]) == 20
    if "bench.snapshots" in part:
        assert len(found["stalls_ms"]) == 10
        assert found["bytes"] > 0
