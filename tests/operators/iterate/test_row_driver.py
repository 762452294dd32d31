"""Small changes in loops: the row path has the rows, traces and errors of the batch path.

Two sessions get the same edits, and one of them uses the batch path only.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from checks.checking import EDGES, closure, held, merge_all
from internals import on_few, settle_background
from loop_cost_switches import both_ways, traces

import nosync_nb
from nosync_nb import Collection, Session
from nosync_nb.collections.library import graphs
from nosync_nb.errors import DivergenceError, NosyncError
from nosync_nb.operators.iterate import key_cache, loop, row_driver

pytestmark = pytest.mark.usefixtures("no_disk")

NODES = 7


def named(edges: Collection) -> Collection:
    """The edges between texts; node 0 has no name."""
    name = "CASE WHEN {0} > 0 THEN concat('node ', CAST({0} AS STRING)) END AS {0}"
    return edges.select(name.format("src"), name.format("dst"))


def reached_from_one(edges: Collection) -> Collection:
    """The nodes reached from 1, null included, without the neighbours of 2."""
    start = named(edges).filter("src = 'node 1'").select("src AS node")
    far = named(edges).filter("src = 'node 2'").select("dst AS node")
    return start.iterate(
        lambda found: (
            found.join(named(edges), on={"node": "src"})
            .select("dst AS node")
            .concat(start)
            .subtract(far)
        )
    )


def sums(edges: Collection) -> Collection:
    """Aggregates of all kinds of columns, some computed."""
    each = edges.select("src AS node", "dst AS weight").distinct()
    return each.iterate(
        lambda held: (
            held.join(edges.distinct(), on={"node": "src"})
            .group_by("dst")
            .agg(weight="CAST(least(sum(weight) + max(weight) - count(weight), 9) AS INT)")
            .select("dst AS node", "weight")
        ),
        rounds=4,
    )


def counted(edges: Collection) -> Collection:
    """Counts of copies, filtered by their number."""
    return edges.iterate(
        lambda held: (
            held.group_by("dst")
            .agg(
                copies="CAST(count(*) % 5 AS INT)",
                some="max(src)",
                least="min(src)",
                total="sum(src)",
                named="count(src)",
            )
            .filter("copies > 0 AND least < 5")
            .select("some AS src", "CAST((dst + copies + total + named) % 7 AS INT) AS dst")
            .concat(edges)
        ),
        rounds=3,
    )


def extremes(edges: Collection) -> Collection:
    """Extremes by an order with ties, with null values and orders."""
    ends = named(edges)
    return ends.iterate(
        lambda held: (
            held.join(ends.rename({"src": "dst", "dst": "next"}), on="dst")
            .with_columns(half="CAST(length(next) + length(src) AS BIGINT) / 2 > 6")
            .group_by("dst")
            .agg(
                some="min_by(next, src)",
                other="max_by(next, half)",
                third="min_by(src, half)",
                fourth="max_by(src, next)",
            )
            .select("coalesce(some, fourth) AS src", "coalesce(other, third) AS dst")
            .concat(ends)
        ),
        rounds=3,
    )


PROGRAMS: dict[str, Any] = {
    "parts": graphs.connected_components,
    "labels": lambda edges: graphs.label_propagation(edges, rounds=3),
    "core": lambda edges: graphs.k_core(edges, 2),
    "circles": graphs.strongly_connected_components,
    "distances": lambda edges: graphs.distances(
        named(edges), named(edges).filter("src = 'node 1'").select("src AS node")
    ),
    "ranks": lambda edges: graphs.pagerank(edges, rounds=4),
    "paths": lambda edges: closure(edges).iterate(closure, rounds=2),
    "sides": both_ways,
    "behind": reached_from_one,
    "sums": sums,
    "counted": counted,
    "winners": extremes,
}


class Counts:
    """Counts the runs of loops by path, during a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried: Counter[str] = Counter()
        on_few(monkeypatch, lambda enough: self.tried.update(["rows" if enough else "traces"]))


def commit(session: Session, live: list[tuple[int, int]]) -> None:
    session["edges"].set(live)
    session.commit()


@pytest.mark.parametrize("name", PROGRAMS)
def test_row_path_equals_batch_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(monkeypatch)
    monkeypatch.setattr("nosync_nb.operators.iterate.loop.FREE_WORK", 1 << 60)
    for seed, (whole, most) in enumerate(
        [(key_cache.WHOLE_ROWS, key_cache.SUMS_MAX), (20, 8), (0, 0)]
    ):
        monkeypatch.setattr(key_cache, "WHOLE_ROWS", whole)
        monkeypatch.setattr(key_cache, "SUMS_MAX", most)
        compare_paths(PROGRAMS[name], seed, tmp_path / str(seed), monkeypatch)
    assert counts.tried["rows"] >= 12
    assert counts.tried["traces"] >= 30


def compare_paths(build: Any, seed: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares both paths over random edits."""
    chance = random.Random(seed)
    live = [(chance.randrange(NODES), chance.randrange(NODES)) for _ in range(NODES)]
    with nosync_nb.open(path / "a") as rows, nosync_nb.open(path / "b") as batches:
        for session in (rows, batches):
            session.stage("stage", build(session.input("edges", EDGES)))
        for epoch in range(24):
            for _ in range(chance.choice([1, 1, 1, 2, 8])):
                if live and chance.random() < 0.5:
                    live.pop(chance.randrange(len(live)))
                else:
                    live.append((chance.randrange(NODES), chance.randrange(NODES)))
            with monkeypatch.context() as sometimes:
                if epoch % 7 == 6:  # a skipped row cache is read from the traces again
                    sometimes.setattr(row_driver, "ROWS_PER_RUN", 0)
                commit(rows, live)
            with monkeypatch.context() as never:
                never.setattr(loop, "FEW_ROWS", -1)
                commit(batches, live)
            assert held(rows["stage"]) == held(batches["stage"])
            assert traces(rows) == traces(batches)
            if epoch % 5 == 4:
                merge_all(rows)


def fragile(row: Any) -> tuple[int, int]:
    if row[0] == 50:
        raise ValueError("not 50")
    return row[0], row[1]


def test_row_cache_is_right_after_failed_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(monkeypatch)
    chance = random.Random(5)
    live = [(chance.randrange(12), chance.randrange(12)) for _ in range(12)]
    with nosync_nb.open(tmp_path / "log") as session:
        parts = session.stage("parts", graphs.connected_components(session.input("edges", EDGES)))
        session.stage("after", parts.map(fragile, "node int, component int"))
        commit(session, live)
        for epoch in range(20):
            live[chance.randrange(12)] = (chance.randrange(12), chance.randrange(12))
            if epoch % 2:
                with pytest.raises(NosyncError, match="not 50"):
                    commit(session, [*live, (50, chance.randrange(12))])
            if epoch % 3:
                live[chance.randrange(12)] = (chance.randrange(12), chance.randrange(12))
            commit(session, live)
            assert held(parts) == held(graphs.connected_components(session["edges"]))
    assert counts.tried["rows"] >= 25, "those that failed too"


def endless_tokens(edges: Collection) -> Collection:
    """Tokens that move along all edges in each round, and never stop."""
    return edges.filter("src = 0").iterate(
        lambda held: held.join(edges.rename({"src": "dst", "dst": "to"}), on="dst").select(
            "dst AS src", "to AS dst"
        )
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        pytest.param([(2, 3), (2, 3), (3, 2), (3, 2)], "2\\*\\*63", id="counts beyond 64 bits"),
        pytest.param([(2, 3), (3, 2)], "does not converge", id="a circle"),
    ],
)
def test_row_path_raises_divergence_like_batch_path(
    more: list[tuple[int, int]], message: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(monkeypatch)
    live = [(0, 1), (1, 2)]
    stage = session.stage("stage", endless_tokens(session.input("edges", EDGES)))
    for each in [(0, 5), (5, 6), (6, 7)]:
        live.append(each)
        commit(session, live)
    assert counts.tried["rows"] == 2
    for _ in range(2):
        with pytest.raises(DivergenceError, match=message):
            commit(session, [*live, *more])
    assert counts.tried["rows"] == 2
    commit(session, [*live, (7, 8)])
    assert held(stage) == held(endless_tokens(session["edges"]))


@pytest.fixture
def loop_caches(monkeypatch: pytest.MonkeyPatch) -> list[key_cache.LoopKeyCaches]:
    """The row caches that loops create during a test."""
    made: list[key_cache.LoopKeyCaches] = []

    class Noted(key_cache.LoopKeyCaches):
        def __init__(self, loop: Any) -> None:
            super().__init__(loop)
            made.append(self)

    monkeypatch.setattr(loop, "LoopKeyCaches", Noted)
    return made


def test_oversized_row_cache_is_discarded(
    tmp_path: Path, loop_caches: list[key_cache.LoopKeyCaches], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(monkeypatch)
    with nosync_nb.open(tmp_path / "log") as session:
        edges = session.input("edges", EDGES)
        parts = session.stage("parts", graphs.connected_components(edges))
        edges.insert([(node, node + 1) for node in range(20)])
        session.commit()
        for epoch in range(6):
            monkeypatch.setattr(loop, "ROWS_MAX", 1 << 40 if epoch < 3 else 0)
            edges.insert([(epoch, 30 + epoch)])
            session.commit()
            assert len(loop_caches) == 1 + max(0, epoch - 3)
        assert held(parts) == held(graphs.connected_components(edges))
    assert counts.tried == Counter(rows=6)


def test_row_cache_has_neighbourhood_of_change_only(
    tmp_path: Path, loop_caches: list[key_cache.LoopKeyCaches], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cache, "WHOLE_ROWS", 0)
    for count in (20, 200):
        with nosync_nb.open(tmp_path / str(count)) as session:
            edges = session.input("edges", EDGES)
            session.stage("parts", graphs.connected_components(edges))
            edges.insert([(2 * node, 2 * node + 1) for node in range(count)])
            session.commit()
            edges.insert([(1, 2)])
            session.commit()
    assert loop_caches[0].rows_count == loop_caches[1].rows_count > 0


def test_key_with_too_many_rows_uses_batch_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(monkeypatch)
    monkeypatch.setattr(key_cache, "WHOLE_ROWS", 0)
    monkeypatch.setattr(key_cache, "ROWS_MAX", 50)
    with nosync_nb.open(tmp_path / "log") as session:
        edges = session.input("edges", EDGES)
        parts = session.stage("parts", graphs.connected_components(edges))
        edges.insert([(50, node) for node in range(51, 150)])
        session.commit()
        edges.insert([(0, 50)])  # which gives all neighbours of 50 another name
        session.commit()
        assert held(parts) == held(graphs.connected_components(edges))
    assert counts.tried == Counter(traces=1)


def test_row_cache_is_rebuilt_at_growing_intervals(
    tmp_path: Path, loop_caches: list[key_cache.LoopKeyCaches], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cache, "WHOLE_ROWS", 0)
    monkeypatch.setattr(key_cache, "ROWS_MAX", 50)
    with nosync_nb.open(tmp_path / "log") as session:
        edges = session.input("edges", EDGES)
        parts = session.stage("parts", graphs.connected_components(edges))
        edges.insert([(50, node) for node in range(51, 150)])
        edges.insert([(2 * node, 2 * node + 1) for node in range(100, 1000)])
        session.commit()
        for epoch in range(20):
            edges.insert([(-epoch, 50)])
            session.commit()
        assert held(parts) == held(graphs.connected_components(edges))
    assert 3 < len(loop_caches) < 7


def test_row_cache_is_dropped_after_epoch_of_batch_path(session: Session) -> None:
    """Merges delete cancelled rows, and such an epoch runs on the batch path."""
    edges, roots = session.input("edges", "src int, dst int"), session.input("roots", "node int")
    edges.insert([(1, 2), (2, 3), *((3, 10 + i) for i in range(60))])
    session.commit()
    reach = session.stage(
        "reach",
        roots.iterate(
            lambda found: (
                found.join(edges, on={"node": "src"}).select("dst AS node").concat(roots).distinct()
            )
        ),
    )
    for epoch in range(8):
        if epoch % 2:
            roots.remove([(1,)])
        else:
            roots.insert([(1,)])
        session.commit()
        settle_background(session)
        merge_all(session)
        assert reach.count() == (0 if epoch % 2 else 63)
