"""Plans of traces at an epoch: each trace is right, or reported as missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from internals import checkpoint_now, graph_of, snapshot_of, store_of

import nosync_nb
from nosync_nb import Session, TimeError
from nosync_nb.dataflow.runtime.epoch_result import VersionState
from nosync_nb.dataflow.snapshot import Snapshot
from nosync_nb.rows import to_pylist
from nosync_nb.store.log import Frame
from nosync_nb.store.log.frame_index import retained_frames
from nosync_nb.store.point_in_time import RecentFrames
from nosync_nb.store.timetravel.trace_plan import GraphAtEpoch, plan_as_of
from nosync_nb.trace import Trace

EDGES = [(i % 7, i % 5) for i in range(40)]


@pytest.fixture
def session(session: Session) -> Session:
    edges = session.input("edges", "src long, dst long")
    nodes = session.input("nodes", "node long, label string", key="node")
    nodes.upsert([(i, f"n{i}") for i in range(7)])
    joined = edges.filter("src != 3").join(nodes, on={"dst": "node"})
    session.stage("labels", joined.group_by("label").agg(n="count(*)", most="max(src)"))
    session.stage("pairs", edges.distinct())
    return session


def commit_epochs(session: Session, first: int, last: int) -> dict[int, Snapshot]:
    """Commits up to an epoch; returns the snapshot after each."""
    seen = {}
    for i in range(first, last + 1):
        edges = session.inputs["edges"]
        edges.insert(EDGES[i : i + 3])
        if i > 2:
            edges.remove(EDGES[i - 2 : i - 1])
        assert session.commit() == i
        seen[i] = snapshot_of(session)
    return seen


def rows(trace: Trace | None) -> list[tuple[object, ...]]:
    if trace is None:
        return []
    batch = trace.consolidated()
    pairs = zip(batch.columns, trace.layout.types, strict=True)
    columns = [to_pylist(column, spark_type) for column, spark_type in pairs]
    return sorted(zip(*columns, batch.diff.tolist(), strict=True), key=repr)


def check(now: Snapshot, was: Snapshot, made: GraphAtEpoch) -> None:
    """Compares planned traces with past ones; their layers ascend and end at the epoch."""
    for number, trace in made.traces.items():
        for bounds in ([x.lower for x in trace.layers], [x.upper for x in trace.layers]):
            assert bounds == sorted(bounds)
            assert not bounds or bounds[-1] <= made.epoch + 1
        if number in dict(was.graph.layouts()):
            assert rows(trace) == rows(was.version.traces.get(number)), number
    for node in now.graph:
        if node.id in made.refused:
            continue
        own = set(node.traces.values())
        if node.id not in made.bare:
            own |= set(node.state)
        assert own <= made.traces.keys(), node


def test_every_planned_trace_equals_its_past_state(session: Session) -> None:
    seen = commit_epochs(session, 1, 24)
    now = seen[24]
    for epoch, was in seen.items():
        made = plan_as_of(now, epoch)
        check(now, was, made)
        assert not made.unread
    assert plan_as_of(now, 24).is_complete
    assert not plan_as_of(now, 11).is_complete  # operator state has no history


def test_planned_files_are_those_of_earlier_layers(session: Session) -> None:
    edges = session.inputs["edges"]
    edges.insert([(i, i) for i in range(70_000)])
    session.commit()
    commit_epochs(session, 2, 6)
    now = snapshot_of(session)
    number = next(iter(now.graph.named["edges"].traces.values()))
    files = [ref.path for layer in now.version.traces[number].layers for ref in layer.files]
    assert files
    for epoch in (1, 3, 6):
        made = plan_as_of(now, epoch).traces[number]
        assert [ref.path for layer in made.layers for ref in layer.files] == files


def test_stage_defined_later_is_reported(session: Session) -> None:
    seen = commit_epochs(session, 1, 9)
    session.replay_rows = 0
    session.stage("late", session["edges"].group_by("dst").agg(n="count(*)"))
    session.stage("fast", session["pairs"].filter("src > 2"))
    later = commit_epochs(session, 10, 14)
    now = later[14]
    for epoch, was in {**seen, **later}.items():
        made = plan_as_of(now, epoch)
        check(now, was, made)
        assert made.unread == ({"late", "fast"} if epoch < 9 else set())
        assert {now.graph.named[name].id for name in made.unread} <= made.refused


def test_input_declared_later_is_empty(session: Session) -> None:
    commit_epochs(session, 1, 4)
    more = session.input("more", "x long")
    more.insert([(1,)])
    session.commit()
    now = snapshot_of(session)
    made = plan_as_of(now, 3)
    assert not made.unread
    assert [rows(made.traces[n]) for n in now.graph.named["more"].traces.values()] == [[]]


def test_layers_of_caught_up_stage_are_not_split(session: Session) -> None:
    """A stage stops, epochs pass, and it catches up in one step."""
    seen = commit_epochs(session, 1, 5)
    session.replay_rows = 0
    session.input("side", "src long, w long")
    side = session["side"]
    session.stage("base", session["edges"].with_columns(twice="src * 2"))
    joined = session["base"].filter("twice > 2").join(side, on="src", how="left")
    session.stage("over", joined.group_by("src").agg(n="count(*)"))
    seen |= commit_epochs(session, 6, 9)
    session.stage("base", session["edges"].with_columns(thrice="src * 3"))
    assert session.stale
    seen |= commit_epochs(session, 10, 13)
    session.stage("base", session["edges"].with_columns(twice="src * 2"))
    assert not session.stale
    seen |= commit_epochs(session, 14, 16)
    now = seen[16]
    for epoch, was in seen.items():
        check(now, was, plan_as_of(now, epoch))


def test_plan_is_unchanged_after_reopening(session: Session, tmp_path: Path) -> None:
    seen = commit_epochs(session, 1, 12)
    session.close()
    with nosync_nb.open(tmp_path / "log") as again:
        again.inputs["edges"].insert([(1, 1)])
        again.commit()
        now = snapshot_of(again)
        for epoch, was in seen.items():
            check(now, was, plan_as_of(now, epoch))


@pytest.mark.parametrize("epoch", [-1, 5, 99])
def test_missing_epoch_raises_error(session: Session, epoch: int) -> None:
    commit_epochs(session, 1, 4)
    with pytest.raises(TimeError, match="is not readable") as caught:
        plan_as_of(snapshot_of(session), epoch)
    assert "epochs 0 to 4 are" in str(caught.value.hint)


def test_epoch_0_is_empty(session: Session) -> None:
    commit_epochs(session, 1, 4)
    now = snapshot_of(session)
    made = plan_as_of(now, 0)
    assert not any(rows(trace) for trace in made.traces.values())


def kept_frames(session: Session) -> list[Frame]:
    store = store_of(session)
    return retained_frames(store.files, store.path, store.log.head)


def test_rewind_frame_covers_all_undone_epochs(session: Session) -> None:
    commit_epochs(session, 1, 6)
    session.rewind(3)
    *before, rewind = kept_frames(session)
    number = next(iter(graph_of(session).named["edges"].traces.values()))
    assert not RecentFrames(before[-1:], 3).is_complete  # the frames of epochs 4 and 5 are missing
    for frames in ([rewind], [*before[-1:], rewind]):
        assert RecentFrames(frames, 3).is_complete
        assert not RecentFrames(frames, 3).of_trace(number, number).since
        assert not RecentFrames(frames, 2).is_complete


def test_recent_epochs_are_planned_from_frames(session: Session) -> None:
    """With the frames nothing must be recomputed, whichever layers were merged."""
    seen = commit_epochs(session, 1, 24)
    now, frames = seen[24], kept_frames(session)
    for epoch, was in seen.items():
        made = plan_as_of(now, epoch, frames=frames)
        check(now, was, made)
        assert made.is_complete or epoch < 2, epoch
        assert sum(len(t.layers) for t in made.traces.values()) < 16 * len(made.traces)


def test_frames_are_used_after_checkpoints_but_not_over_definitions(
    session: Session,
) -> None:
    seen = commit_epochs(session, 1, 8)
    checkpoint_now(session)
    seen |= commit_epochs(session, 9, 12)
    checkpoint_now(session)
    session.stage("late", session["edges"].group_by("dst").agg(n="count(*)"))
    seen |= commit_epochs(session, 13, 16)
    checkpoint_now(session)
    seen |= commit_epochs(session, 17, 20)
    now, frames = seen[20], kept_frames(session)
    for epoch, was in seen.items():
        check(now, was, plan_as_of(now, epoch, frames=frames))
    assert plan_as_of(now, 18, frames=frames).is_complete
    assert plan_as_of(now, 14, frames=frames).is_complete
    cut_off = [frame for frame in frames if frame.position.seq > frames[-2].position.seq]
    assert not plan_as_of(now, 14, frames=cut_off).is_complete


def test_plan_after_rewind_is_right(session: Session) -> None:
    """A layer with undone changes cannot be used for earlier epochs."""
    seen = commit_epochs(session, 1, 24)
    made = plan_as_of(seen[24], 20, frames=kept_frames(session))
    back = seen[24]._replace(version=VersionState(20, made.traces))
    for epoch in range(1, 21):
        check(back, seen[epoch], plan_as_of(back, epoch))
