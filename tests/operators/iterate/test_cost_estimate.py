"""The choice of a loop's method: the same rows and traces under any choices.

Cost normally decides how a loop runs. Here dice decide, so that every choice meets every other,
with crashes, checkpoints, files, readers and replays in between.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks.checking import EDGES, closure, held, merge_all
from hypothesis import given
from hypothesis import strategies as st
from internals import (
    checkpoint_now,
    graph_of,
    log_of,
    services_of,
    settle_background,
    traces_of,
    worked,
)
from loop_cost_switches import both_ways, traces
from models.model import Bag

import nosync_nb
from nosync_nb import Session
from nosync_nb.collections.library import graphs
from nosync_nb.operators.iterate import MARK, loop
from nosync_nb.operators.iterate.key_cache import SPREAD_ROWS, InputKeyCache
from nosync_nb.operators.iterate.loop import PATIENCE_MAX, LoopCostEstimate
from nosync_nb.operators.iterate.plan import AbandonedError
from nosync_nb.trace import Trace
from nosync_nb.trace.batch import Layout, Updates, arrange

NODES = 7


PROGRAMS: Mapping[str, Any] = {
    "ranks": lambda edges: graphs.pagerank(edges, rounds=4),
    "parts": graphs.strongly_connected_components,
    "sides": both_ways,
    "paths": lambda edges: closure(edges).iterate(closure, rounds=2),
    "labels": lambda edges: graphs.label_propagation(edges, rounds=3).filter("label < 5"),
}


class RandomCostEstimate(LoopCostEstimate):
    """A cost estimate with random answers."""

    chance: random.Random
    chosen: dict[str, int]

    def budget(self, rows_count: int) -> int:
        return self.chance.choice([0, 1000, 1 << 60, 1 << 60])

    def followed(self) -> None:
        self.chosen["followed"] += 1

    def keeps(self, *, resting: bool) -> bool:
        kept = self.chance.random() < 0.5
        name = ("kept" if kept else "rested") + (" after rest" if resting else "")
        self.chosen[name] += 1
        return kept


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spills small batches to files."""
    monkeypatch.setattr("nosync_nb.store.store.SPILL_ROWS", 36)
    monkeypatch.setattr("nosync_nb.session.maintenance.maintenance.SPILL_ROWS", 36)


def edited(session: Session, chance: random.Random, live: list[tuple[int, int]]) -> None:
    """Changes some edges, sometimes nearly all."""
    for _ in range(chance.choice([1, 1, 2, 12])):
        if live and chance.random() < 0.5:
            live.pop(chance.randrange(len(live)))
        else:
            live.append((chance.randrange(NODES), chance.randrange(NODES)))
    session["edges"].set(live)
    session.commit()


def reopened(session: Session, path: Path, chance: random.Random) -> Session:
    """Reopens the session after a proper end or a crash, and compares its traces."""
    before = traces(session)
    if chance.random() < 0.5:
        session.close()
        again = nosync_nb.open(path)
    else:
        again = nosync_nb.open(path, takeover=True)
    assert again.recovery.recomputed == 0
    assert traces(again) == before, "what is restored is what was live"
    return again


def compare(session: Session, names: Mapping[str, Any]) -> dict[str, Bag]:
    """Compares each stage with its expression computed from scratch."""
    edges = session["edges"]
    found = {name: held(session[name]) for name in names}
    assert found == {name: held(build(edges)) for name, build in names.items()}
    return found


@pytest.mark.usefixtures("no_disk", "small_files")
@pytest.mark.parametrize("seed", range(4))
def test_loop_is_right_under_any_choice_of_method(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    chosen = dict.fromkeys(
        ("followed", "kept", "rested", "kept after rest", "rested after rest"), 0
    )
    monkeypatch.setattr(RandomCostEstimate, "chance", chance, raising=False)
    monkeypatch.setattr(RandomCostEstimate, "chosen", chosen, raising=False)
    monkeypatch.setattr(loop, "LoopCostEstimate", RandomCostEstimate)
    monkeypatch.setattr(loop.Loop, "memo", RandomCostEstimate)
    names = dict(chance.sample(sorted(PROGRAMS.items()), 3))
    session = nosync_nb.open(tmp_path / "log")
    edges = session.input("edges", EDGES)
    for name, build in names.items():
        session.stage(name, build(edges))
    live: list[tuple[int, int]] = []
    past = []
    for epoch in range(1, 19):
        edited(session, chance, live)
        past.append(compare(session, names))
        what = chance.randrange(5)
        if what == 0:
            session = reopened(session, tmp_path / "log", chance)
        elif what == 1:
            checkpoint_now(session)
        elif what == 2:
            settle_background(session)
            merge_all(session)
        elif epoch == 9:
            name = chance.choice(sorted(names))
            build = names[name]
            names[name] = lambda edges, build=build: build(edges.filter("src <> dst"))
            session.stage(name, names[name](session["edges"]))
            past = [
                {**each, name: held(session[name], at=number)}
                for number, each in enumerate(past, 1)
            ]
            compare(session, names)
    for number, each in enumerate(past, 1):
        assert {name: held(session[name], at=number) for name in names} == each
    with nosync_nb.open(tmp_path / "log", mode="r") as reader:
        assert {name: held(reader[name]) for name in names} == past[-1]
    session["edges"].clear()
    session.commit()
    live_nodes = [node for node in graph_of(session) if not node.frozen]
    kept = {number for node in live_nodes for number in (*node.state, *node.traces.values())}
    assert not kept & traces(session).keys(), "nothing stays of a loop over nothing"
    session.close()
    assert min(chosen.values()) > 0, f"the dice did not try much: {chosen}"


# -- what is chosen --------------------------------------------------------------------------------


def has_resting_loop(session: Session) -> bool:
    """Returns True if some loop rests."""
    services_of(session).writer_lock.run_pre_write_tasks()
    marks = [
        traces_of(session).get(node.state[-1])
        for node in graph_of(session)
        if node.operator is not None and node.operator.state[-1:] == (MARK,)
    ]
    return any(mark is not None and len(mark.consolidated()) for mark in marks)


@given(st.lists(st.booleans(), max_size=300))
def test_resting_loop_retries_at_growing_intervals(dense: list[bool]) -> None:
    effort = LoopCostEstimate()
    worked(effort, 10**9)
    rest = tried = 0
    for each in dense:
        if rest:
            rest = 0 if effort.keeps(resting=True) else rest + 1
            assert rest < PATIENCE_MAX
        elif each:
            tried += 1
            rest = 0 if effort.keeps(resting=False) else 1
        else:
            effort.followed()
            assert effort.budget(0) > 10**9 // 2
            tried = 0
        if tried > 1:
            assert rest, "twice in a row is enough"
            tried = 1


def dense_edges() -> list[tuple[int, int]]:
    """Edges among which every rank depends on every edge."""
    chance = random.Random(1)
    return [(chance.randrange(80), chance.randrange(80)) for _ in range(320)]


def test_dense_loop_is_recomputed_and_logs_only_its_result(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        edges = session.input("edges", EDGES)
        ranks = session.stage("ranks", graphs.pagerank(edges))
        edges.insert(dense_edges())
        session.commit()
        first = session.stats["touched"]
        assert not has_resting_loop(session)
        work, bytes_ = [], []
        for epoch in range(40):
            before = session.stats["touched"], log_of(session).head.offset
            (edges.remove if epoch % 2 else edges.insert)([(5, 60)])
            session.commit()
            work.append(session.stats["touched"] - before[0])
            bytes_.append(log_of(session).head.offset - before[1])
        assert has_resting_loop(session)
        assert held(ranks) == held(graphs.pagerank(edges))
    assert max(work) <= 2 * first, "an epoch costs at most what giving up and running anew cost"
    assert sorted(work)[20] <= 1.1 * first
    assert sum(work[20:]) <= 1.1 * sum(work[:20])
    assert sorted(bytes_)[20] < 80 * 2 * 3 * 24, "the ranks, not what led to them"
    with nosync_nb.open(tmp_path / "log") as session:
        assert has_resting_loop(session)
        session["edges"].insert([(7, 70)])
        session.commit()
        assert held(session["ranks"]) == held(graphs.pagerank(session["edges"]))


def test_loop_returns_to_increments_after_small_changes(session: Session) -> None:
    edges = session.input("edges", EDGES)
    session.stage("ranks", graphs.pagerank(edges))
    edges.insert(dense_edges())
    session.commit()
    first = session.stats["touched"]
    for epoch in range(4):
        (edges.remove if epoch % 2 else edges.insert)([(5, 60)])
        session.commit()
    assert has_resting_loop(session)
    for node in range(PATIENCE_MAX + 2):  # links from nodes without links to them
        edges.insert([(1000 + node, 2000 + node)])
        session.commit()
    assert not has_resting_loop(session)
    before = session.stats["touched"]
    edges.insert([(5000, 6000)])
    session.commit()
    assert session.stats["touched"] - before < first / 50


@pytest.mark.parametrize("bound", ["FRAME_BYTES", "SPILL_ROWS"])
def test_cost_estimate_survives_epoch_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(f"nosync_nb.store.store.{bound}", 4)
    with nosync_nb.open(tmp_path / "log") as session:
        edges = session.input("edges", EDGES)
        session.stage("paths", closure(edges))
        known = []
        for epoch in range(4):
            edges.insert([(epoch, epoch + 1)] * 2 + [(epoch, n) for n in range(50, 60)])
            session.commit()
            known += [t.memos[0] for t in traces_of(session).values() if t.memos]
            assert len(known) == epoch + 1
            assert all(memo is known[0] for memo in known)
        assert list((tmp_path / "log" / "layers").iterdir())


def test_successful_row_runs_shorten_pause() -> None:
    def pause(effort: LoopCostEstimate) -> int:
        """The number of epochs without row cache after an abandoned run on the row path."""
        effort.gave_up()
        return next(n for n in range(1000) if effort.mirrors())

    effort = LoopCostEstimate()
    assert [pause(effort) for _ in range(4)] == [1, 3, 7, 15]
    for _ in range(4):
        effort.was_few()
    assert pause(effort) == 1


@pytest.mark.parametrize("way", ["rows", "traces"])
def test_dense_rounds_are_abandoned_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "traces":
        monkeypatch.setattr(loop, "FEW_ROWS", -1)
    chance = random.Random(3)
    live = [(chance.randrange(100), chance.randrange(100)) for _ in range(400)]
    with nosync_nb.open(tmp_path / "log") as session:
        session.stage("ranks", graphs.pagerank(session.input("edges", EDGES)))
        touched = []
        for _ in range(6):
            before = session.stats["touched"]
            session["edges"].set(live)
            session.commit()
            touched.append(session.stats["touched"] - before)
            live[chance.randrange(400)] = (chance.randrange(100), chance.randrange(100))
    whole = touched[5]  # the loop rests
    assert touched[4] == pytest.approx(whole, rel=0.05)
    most = 1.1 if way == "rows" else 1.5
    assert 0.95 * touched[0] < touched[1] < most * touched[0]
    assert touched[2] < most * whole, "it is found out again, in the same way"


def test_lookup_of_half_of_large_trace_is_abandoned() -> None:
    keys = 3 * SPREAD_ROWS
    layout = Layout(("int", "int"), (0,))
    columns = [np.arange(keys, dtype=np.int32), np.zeros(keys, np.int32)]
    held = Trace.from_batch(arrange(layout, Updates(columns, np.ones(keys, np.int64))))
    known = InputKeyCache(layout)
    known.begin_epoch(held)
    known.learn([(key,) for key in range(keys // 2)])
    with pytest.raises(AbandonedError):
        known.learn([(key,) for key in range(keys // 2, keys // 2 + 2)])
    slow = InputKeyCache(layout)
    for start in range(0, keys, keys // 10):  # an epoch after the other may learn all of it
        slow.begin_epoch(held)
        slow.learn([(key,) for key in range(start, start + keys // 10)])
    assert len(slow.by_key) == keys
