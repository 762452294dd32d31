"""The number of layers stays small, also after a restart."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from internals import services_of, settle_background, traces_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.session.state.worker import BackgroundWorker
from nosync_nb.trace.compaction import LAYERS_MAX, STALL_LAYERS


def most_layers(session: Session) -> int:
    """The greatest number of layers of a trace."""
    return max((len(trace.layers) for trace in traces_of(session).values()), default=0)


def rows_held(session: Session) -> int:
    """The updates in all layers."""
    return sum(trace.rows_count for trace in traces_of(session).values())


def one_sided(session: Session, epochs: int, seed: int) -> None:
    """Epochs of a join's left side, with a change of its right side in each tenth."""
    chance = random.Random(seed)
    live: list[tuple[int, int]] = []
    for epoch in range(1, epochs + 1):
        rows = [(chance.randrange(10**9), chance.randrange(20)) for _ in range(5)]
        session["left"].insert(rows)
        live += rows
        if len(live) > 100:
            session["left"].remove(live[:5])
            del live[:5]
        if epoch % 10 == 0:
            session["right"].upsert([(chance.randrange(20), f"n{chance.randrange(50)}")])
        session.commit()
        assert most_layers(session) <= STALL_LAYERS
    session["left"].remove(live)
    session.commit()


def test_join_with_rarely_changing_side_keeps_few_layers(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", spark_rows=1 << 40) as session:
        left, right = (
            session.input("left", "id int, g int"),
            session.input("right", "g int, name string", key="g"),
        )
        session.stage("joined", left.join(right, on="g"))
        for seed in range(4):
            one_sided(session, 200, seed)
            settle_background(session)
            assert most_layers(session) <= LAYERS_MAX
    with nosync_nb.open(tmp_path / "log") as session:
        one_sided(session, 50, 9)
        settle_background(session)
        assert most_layers(session) <= LAYERS_MAX


def test_layers_of_many_upserts_stay_level(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)

    def rows(keys: object) -> pa.Table:
        return pa.table({"k": keys, "g": chance.integers(0, 100, len(keys))})  # type: ignore[arg-type]

    with nosync_nb.open(tmp_path / "log", spark_rows=1 << 40) as session:
        orders = session.input("orders", "k bigint, g bigint", key="k")
        groups = session.input("groups", "g bigint, name string")
        groups.insert([(i, f"n{i}") for i in range(100)])
        session.stage("joined", orders.join(groups, on="g"))
        session.stage("counted", orders.group_by("g").agg(n="count(*)"))
        session.stage("largest", orders.group_by("g").top(3, by="k desc"))
        orders.upsert(rows(np.arange(8000)))
        session.commit()
        first = rows_held(session)
        for _ in range(50):
            orders.upsert(rows(chance.choice(8000, 2000, replace=False)))
            session.commit()
            settle_background(session)
            assert most_layers(session) <= LAYERS_MAX
            assert rows_held(session) <= 5 * first, "cancelled rows do not pile up"


def test_large_epoch_waits_for_late_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    catch_up = BackgroundWorker.catch_up

    def record_wait(self: BackgroundWorker, seconds: float) -> None:
        waits.append(seconds)
        catch_up(self, seconds)

    busy, ended = threading.Event(), threading.Event()
    with nosync_nb.open(tmp_path / "log", spark_rows=1 << 40) as session:
        numbers = session.input("numbers", "n int")
        services_of(session).worker.submit("a long merge", lambda: (busy.set(), ended.wait())[0])
        try:
            busy.wait()
            monkeypatch.setattr(BackgroundWorker, "catch_up", record_wait)
            for epoch in range(LAYERS_MAX + 8):
                behind = most_layers(session) >= LAYERS_MAX
                numbers.insert(pa.table({"n": np.arange(5000 * epoch, 5000 * epoch + 5000)}))
                started = time.perf_counter()
                session.commit()
                took = time.perf_counter() - started
                assert len(waits) == behind, "the commit waits once if the worker is late"
                assert all(0 < seconds < took for seconds in waits)
                waits.clear()
            numbers.insert([(-1,)])
            session.commit()
            assert not waits, "a small epoch does not wait"
        finally:
            ended.set()
        monkeypatch.undo()
        settle_background(session)
        assert numbers.count() == 5000 * (LAYERS_MAX + 8) + 1


@pytest.mark.parametrize("young", [True, False])
def test_commit_merges_if_worker_falls_behind(tmp_path: Path, young: bool) -> None:
    busy, waiting = threading.Event(), threading.Event()

    def task() -> None:
        busy.set()
        waiting.wait()

    with nosync_nb.open(tmp_path / "log", spark_rows=1 << 40) as session:
        numbers = session.input("numbers", "n int")
        count = 4 if young else 3000
        services_of(session).worker.submit("a long merge", task)
        try:
            busy.wait()
            for epoch in range(60):
                numbers.insert(pa.table({"n": np.arange(count * epoch, count * epoch + count)}))
                session.commit()
                assert most_layers(session) <= STALL_LAYERS
            assert (session.stats["stalls"] > 0) == (not young)
            assert session.stats["merges"] == 0
        finally:
            waiting.set()
        settle_background(session)
        assert most_layers(session) <= LAYERS_MAX
        assert numbers.count() == 60 * count
