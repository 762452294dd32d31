"""Disk usage: every file is counted once, under its purpose."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from internals import checkpoint_now, drain_background, graph_of, services_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.session.maintenance import disk_usage
from nosync_nb.session.maintenance.disk_usage import DiskUsage, measure_disk_usage
from nosync_nb.session.state.worker import BackgroundWorker


def sizes_below(folder: Path) -> dict[str, int]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.stat().st_size for path in paths}


def test_each_file_counts_once_for_its_purpose(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with nosync_nb.open(log) as session:
        numbers = session.input("numbers", "x bigint")
        session.stage("odd", numbers.filter("x % 2 = 1"))
        numbers.insert(pa.table({"x": list(range(100_000))}))
        session.commit()
        for epoch in range(40):
            numbers.insert([(epoch,)])
            session.commit()
        drain_background(session)
        checkpoint_now(session)
        (log / "layers" / "stray.txt").write_bytes(b"x" * 1000)
        other = log / "branches" / "other" / "layers"
        other.mkdir(parents=True)
        part = next(path for path in (log / "layers").iterdir() if path.suffix != ".txt")
        os.link(part, other / part.name)
        (other / "own").write_bytes(b"x" * 77)
        found = measure_disk_usage(services_of(session).publisher)
        sizes = sizes_below(log)
        assert found.branches == 77
        assert found.garbage >= 1000
        assert found.live > 100_000
        assert found.history > 0
        assert found.log >= sum(size for name, size in sizes.items() if os.sep not in name)
        assert found.total == sum(sizes.values()) - part.stat().st_size
        assert found.files == len(sizes) - 1


def test_usage_of_an_empty_log_is_its_log_files(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        found = measure_disk_usage(services_of(session).publisher)
    assert found == DiskUsage(log=found.log, files=found.files)
    assert found.log > 0


def input_traces(session: Session, rows_by_name: dict[str, int]) -> dict[str, int]:
    """Makes inputs of four epochs, and returns the number of the trace of each."""
    numbers = {}
    for name, rows in rows_by_name.items():
        each = session.input(name, "x bigint")
        for epoch in range(4):
            each.insert(pa.table({"x": range(rows * epoch, rows * (epoch + 1))}))
            session.commit()
        numbers[name] = next(iter(graph_of(session).named[name].traces.values()))
    return numbers


def test_merge_with_the_best_gain_per_written_byte_runs_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(
        BackgroundWorker, "submit", lambda _, key, task, **_later: waiting.append(task)
    )
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = input_traces(session, {"large": 40_000, "small": 2000, "middle": 9000})
        monkeypatch.setattr(
            type(services_of(session).maintenance), "merge", lambda _, n: order.append(n)
        )
        waiting.clear()
        services_of(session).maintenance.plan_merges(numbers.values())
        assert len(waiting) == 3
        for task in waiting:
            task()
        assert order == [numbers[name] for name in ("small", "middle", "large")]


def test_due_merge_is_not_starved_by_another_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[int] = []
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = input_traces(session, {"large": 40_000, "small": 2000})
        upkeep, worker = services_of(session).maintenance, services_of(session).worker
        worker.drain()

        def merge(_: object, number: int) -> None:
            order.append(number)
            if len(order) == 1:  # a concurrent commit, whose merge is queued already
                upkeep.plan_merges([number])

        monkeypatch.setattr(type(upkeep), "merge", merge)
        monkeypatch.setattr(disk_usage, "merge_gain", lambda trace: 1 / trace.rows_count)
        released = threading.Event()
        worker.submit(object(), released.wait)
        upkeep.plan_merges(numbers.values())
        released.set()
        worker.drain()
        assert order == [numbers["small"], numbers["small"], numbers["large"]]
