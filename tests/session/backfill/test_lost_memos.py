"""Lost memoised results: a nondeterministic stage stops only if results of it are lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from internals import files_with, snapshot_of

import nosync_nb
from nosync_nb import Session, TimeError
from nosync_nb.store import point_in_time
from nosync_nb.store.lazy_layer import files_needed

pytestmark = pytest.mark.usefixtures("own_key")

LOST = r"its memoised results at epoch \d+ are unknown: run the stage's cell"


@pytest.fixture
def session(session: Session) -> Session:
    session.input("edges", "src bigint, dst bigint")
    return session


@pytest.fixture
def no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the changes in frames, as for an epoch of long ago."""
    monkeypatch.setattr(point_in_time, "EPOCHS_MAX", -(1 << 40))


def commit(session: Session, *rows: tuple[int, int]) -> int:
    session.inputs["edges"].insert(list(rows))
    return session.commit()


def commit_epochs(session: Session, count: int) -> None:
    for _ in range(count):
        commit(session, (session.now, session.now + 1))


def draw_random(row: Any) -> tuple[int, float]:
    return row.src, random.random()


Returns = Callable[[Session, int], Session]


@pytest.fixture(params=["branch", "rewind"])
def return_to(request: pytest.FixtureRequest) -> Iterator[Returns]:
    """Continues from an epoch, on a branch or after a rewind."""
    branches: list[Session] = []

    def go(session: Session, at: int) -> Session:
        if request.param == "rewind":
            session.rewind(to=at)
            return session
        branches.append(session.branch(f"at_{at}", at=at))
        return branches[-1]

    yield go
    for branch in branches:
        branch.close()


def test_stage_over_an_unnamed_loop_continues(session: Session, return_to: Returns) -> None:
    loop = nosync_nb.graphs.connected_components(session["edges"])
    session.stage("drawn", loop.with_columns(r="rand()"))
    commit_epochs(session, 4)
    expected = sorted(session["drawn"].rows(at=2))
    back = return_to(session, 2)
    commit(back, (7, 8))
    assert not back.stale
    assert sorted(row for row in back["drawn"].rows() if row.node < 7) == expected


def test_stage_defined_later_is_computed(session: Session, return_to: Returns) -> None:
    commit_epochs(session, 2)
    session.stage("drawn", session["edges"].with_columns(r="rand()"))
    session.stage("sums", session["edges"].with_columns(r="rand()").agg(n="count(*)", s="sum(r)"))
    commit_epochs(session, 1)
    back = return_to(session, 1)
    commit(back, (7, 8))
    assert not back.stale
    assert sorted(row[:2] for row in back["drawn"].rows()) == [(0, 1), (7, 8)]
    back.inputs["edges"].clear()
    back.commit()
    assert back["drawn"].rows() == []
    assert [tuple(row) for row in back["sums"].rows()] == [(0, None)]


@pytest.mark.parametrize("frames", [True, False])
def test_stage_continues_from_an_epoch_without_rows(
    session: Session, return_to: Returns, frames: bool, request: pytest.FixtureRequest
) -> None:
    if not frames:
        request.getfixturevalue("no_frames")
    edges = session["edges"]
    session.stage("drawn", edges.with_columns(u="uuid()"))
    session.stage("top", edges.with_columns(r="rand()").group_by("src").agg(m="max(r)"))
    session.stage("mapped", edges.map(draw_random, "src bigint, r double"), nondeterministic=True)
    commit_epochs(session, 3)
    back = return_to(session, 0)
    commit(back, (7, 8))
    assert not back.stale
    assert [row[0] for name in ("drawn", "top", "mapped") for row in back[name].rows()] == [7] * 3


def test_stage_that_filtered_out_all_rows_continues(session: Session, return_to: Returns) -> None:
    """At that epoch it has no results, although it has read rows."""
    large = session["edges"].filter("src > 2").with_columns(r="rand()")
    session.stage("drawn", large)
    session.stage("top", large.group_by("src").agg(m="max(r)"))
    session.stage("sums", large.group_by("src").agg(s="sum(r)"))
    commit_epochs(session, 5)
    back = return_to(session, 2)
    commit(back, (7, 8))
    assert not back.stale
    assert [row[0] for name in ("drawn", "top", "sums") for row in back[name].rows()] == [7] * 3


@pytest.mark.usefixtures("no_frames")
def test_lost_memoised_results_are_the_reason_of_staleness(
    session: Session, return_to: Returns
) -> None:
    session.stage("drawn", session["edges"].with_columns(r="rand()"))
    session.stage("reads", session["drawn"].group_by("src").agg(n="count(*)"))
    commit_epochs(session, 4)
    expected = session["drawn"].rows(at=2)
    back = return_to(session, 2)
    commit(back, (7, 8))
    with pytest.raises(TimeError, match=LOST):
        back["drawn"].rows()
    assert back.stale["reads"] == "it reads 'drawn', which is stale"
    assert back["drawn"].rows(at=2) == expected
    back.stage("drawn", back["edges"].with_columns(r="rand()"))
    assert not back.stale
    assert back["reads"].rows() == [(0, 1), (1, 1), (7, 1)]


@pytest.mark.usefixtures("no_frames")
def test_readers_without_rows_of_a_stage_with_lost_results_are_unreadable(
    session: Session, return_to: Returns
) -> None:
    """They are not empty: they were defined later or in memory, so their rows are unknown."""
    session.stage("drawn", session["edges"].with_columns(r="rand()"))
    session.stage("light", session["drawn"].select("src"), persist="memory")
    commit_epochs(session, 4)
    session.stage("late", session["drawn"].select("dst"))
    commit_epochs(session, 1)
    back = return_to(session, 2)
    back.commit()
    assert back.stale.keys() == {"drawn", "light", "late"}
    with pytest.raises(TimeError):
        back["late"].rows(at=2)
    back.close()
    with nosync_nb.open(back.path) as opened:
        opened.commit()
        assert opened.stale.keys() == {"drawn", "light", "late"}
        for name in ("light", "late"):
            for at in (None, 2):
                with pytest.raises(TimeError):
                    opened[name].rows(at=at)
        opened.stage("drawn", opened["edges"].with_columns(r="rand()"))
        commit(opened, (7, 8))
        assert not opened.stale
        assert sorted(opened["light"].rows()) == [(0,), (1,), (7,)]
        assert sorted(opened["late"].rows()) == [(1,), (2,), (8,)]


@pytest.mark.usefixtures("no_frames")
def test_stages_that_share_lost_results_stop_together(session: Session) -> None:
    part = session["edges"].with_columns(r="rand()")
    both = {
        "left": part.group_by("src").agg(m="max(r)"),
        "right": part.group_by("dst").agg(m="max(r)"),
    }
    session.define(both, nondeterministic=True)
    commit_epochs(session, 4)
    with session.branch("past", at=2) as branch:
        commit(branch, (7, 8))
        assert branch.stale.keys() == {"left", "right"}


@pytest.mark.usefixtures("no_frames", "large_from_ten_rows")
@pytest.mark.parametrize("lost", [["kinds"], ["counts"], ["pairs"], ["kinds", "pairs"]])
def test_file_missing_in_a_branch_recomputes_its_stage_alone(
    session: Session, lost: list[str]
) -> None:
    """Operator state is not yet rebuilt when the stage is recomputed."""
    edges = session["edges"]
    session.stage("kinds", edges.distinct())
    session.stage("counts", session["kinds"].group_by("src").agg(n="count(*)", m="max(dst)"))
    session.stage("pairs", session["counts"].join(edges, on="src").select("src", "dst", "n"))
    kinds = session["pairs"].filter("n > 1").select("src", "n").distinct()
    session.stage("last", kinds.group_by("src").agg(n="count(*)"))
    names = ("kinds", "counts", "pairs", "last")
    for epoch in range(5):
        commit(session, *((i % 19, 40 * epoch + i) for i in range(40)))
    branch = session.branch("past", at=3)
    with nosync_nb.open(branch.path, mode="r") as reader:
        files = {name for each in lost for name in files_with(reader, each)}
    branch.close()
    assert files
    for name in files:
        Path(branch.path, "layers", name).unlink()
    with nosync_nb.open(branch.path) as branch:
        commit(branch, (1, 1))
        expected = session.branch("whole", at=3)
        commit(expected, (1, 1))
        assert {n for n, how in branch.recovery.stages.items() if how == "recompute"} == {*lost}
        for name in names:
            assert sorted(branch[name].rows()) == sorted(expected[name].rows())
            assert sorted(branch[name].rows(at=3)) == sorted(session[name].rows(at=3))


@pytest.mark.usefixtures("large_from_ten_rows")
def test_memoised_stage_continues_if_a_loop_below_lost_a_file(session: Session) -> None:
    loop = nosync_nb.graphs.connected_components(session["edges"])
    session.stage("drawn", loop.with_columns(r="rand()"))
    commit(session, *((i, i + 1) for i in range(40)))
    expected = sorted(session["drawn"].rows())
    snapshot = snapshot_of(session)
    draw_random = snapshot.graph.named["drawn"]
    whole = {
        n for i in snapshot.graph for n in (*i.traces.values(), *i.state) if i.name is not None
    }
    files = {
        file
        for number, trace in snapshot.version.traces.items()
        if number not in whole
        for file in files_needed(trace)
    } - {
        file
        for n in (*draw_random.traces.values(), *draw_random.state)
        for file in files_needed(snapshot.version.traces[n])
    }
    assert files
    path = session.path
    session.close()
    for name in files:
        Path(path, "layers", name).unlink()
    with nosync_nb.open(path) as opened:
        commit(opened, (70, 71))
        assert not opened.stale
        assert sorted(row for row in opened["drawn"].rows() if row.node < 70) == expected
        opened.inputs["edges"].clear()
        opened.commit()
        assert opened["drawn"].rows() == []


@pytest.mark.usefixtures("no_frames")
def test_rows_of_unnamed_nodes_are_written_beside_a_memory_stage(
    session: Session, return_to: Returns
) -> None:
    """A loop without state at that epoch is recomputed from nodes that only it reads."""
    session.stage("light", session["edges"].distinct(), persist="memory")
    loop = nosync_nb.graphs.connected_components(session["edges"])
    session.stage("sizes", loop.group_by("component").agg(n="count(*)"))
    commit_epochs(session, 5)
    back = return_to(session, 3)
    back.inputs["edges"].remove([(1, 2)])
    back.commit()
    assert sorted(back["sizes"].rows()) == [(0, 2), (2, 2)]
