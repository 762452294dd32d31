"""The overview of a session: one value for views, computed beside commits."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
from internals import checkpoint_now, drain_background, snapshot_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.trace import stats


def fill(session: Session, epochs: int = 3) -> None:
    flights = session.input("flights", "carrier string, delay int")
    session.stage("late", flights.filter("delay > 15"))
    session.stage("counts", session["late"].group_by("carrier").agg(n="count(*)"))
    for epoch in range(epochs):
        flights.insert([("UA", 10 * epoch), ("AA", 20)])
        session.commit()


def test_overview_has_rows_reads_frontier_and_size_of_each_stage(session: Session) -> None:
    fill(session)
    session.sync()
    overview = session.info.overview()
    assert [each.name for each in overview.collections] == ["flights", "late", "counts"]
    flights, late, counts = overview.collections
    assert (flights.is_input, late.is_input) == (True, False)
    assert (flights.reads, late.reads, counts.reads) == ((), ("flights",), ("late",))
    assert [each.rows for each in overview.collections] == [6, 4, 2]
    assert flights.rows == len(session["flights"])
    assert counts.schema == session["counts"].schema
    assert counts.work is not None
    assert counts.work.touched > 0
    assert counts.frontier == session.frontiers["counts"]
    assert counts.size_bytes > 0
    assert (overview.epoch, overview.replicas, late.copies, late.why) == (3, (), (), "")
    assert overview.committed_at == session.epochs()[-1].committed_at
    assert overview.named("late") is late
    assert overview.named("nobody") is None


def test_overview_has_the_loss_of_each_failure(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/copy{number}" for number in (1, 2, 3)]
    with nosync_nb.open(tmp_path / "log", replicas=urls) as session:
        fill(session)
        session.sync("replicas")
        overview = session.info.overview()
        assert [(cost.failure, cost.lost) for cost in overview.costs] == [
            ("kernel", None),
            ("power", None),
            *(("disk", lost) for lost in (0, 1, 2)),
        ]
        for cost in overview.costs:
            assert cost.epoch == session.recovery_frontier(cost.failure, cost.lost)
            assert cost.epochs == 3 - cost.epoch
            assert (cost.since is None) == (cost.epochs == 0)
        assert [cost.epochs for cost in overview.costs[:4]] == [0, 0, 0, 0], "two of three have all"
        assert (overview.quorum, len(overview.replicas)) == (2, 3)
        for each in overview.collections:
            assert sorted(each.copies)[1:] == [3, 3]
            for failure, epoch in each.after.items():
                assert epoch == session.recovery_frontier(failure, stage=each.name)


def test_lost_disk_without_replicas_loses_every_epoch(session: Session) -> None:
    fill(session)
    cost = session.info.overview().costs[-1]
    assert (cost.failure, cost.epoch, cost.epochs) == ("disk", 0, 3)
    assert cost.since == session.epochs()[1].committed_at


def test_replica_copies_exclude_memory_and_disk_stages(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", replicas=[f"file://{tmp_path}/copy"]) as session:
        fill(session)
        for level in ("memory", "disk"):
            session.stage(level, session["late"].filter("delay > 16"), persist=level)
        session["flights"].insert([("B6", 90)])
        session.commit()
        session.sync("replicas")
        overview = session.info.overview()
        copies = {each.name: each.copies for each in overview.collections}
        assert copies == {
            "flights": (4,),
            "late": (4,),
            "counts": (4,),
            "memory": (0,),
            "disk": (0,),
        }
        levels = {each.name: each.persist for each in overview.collections}
        assert (levels["memory"], levels["disk"], levels["late"]) == ("memory", "disk", "replicas")


def test_overview_sorts_no_layer(session: Session) -> None:
    """A sorted young layer would have to be sorted again by each commit."""
    fill(session)
    session.info.overview()
    trace = snapshot_of(session).contents("flights")
    assert [layer.is_young for layer in trace.layers] == [True]
    assert stats.row_sums(trace) == 6
    assert [layer.is_young for layer in trace.layers] == [True]
    assert stats.row_count(trace) == 6


def test_mark_changes_with_epochs_and_definitions_only(session: Session) -> None:
    fill(session)
    session.sync()
    drain_background(session)
    before = session.info.mark()
    assert before.is_like(session.info.mark())
    assert not before.is_like(None)
    session["flights"].insert([("B6", 1)])
    assert session.info.mark().is_like(before), "pending rows are not counted"
    session.commit()
    after = session.info.mark()
    assert not after.is_like(before)
    session.stage("more", session["late"].filter("delay > 99"))
    assert not session.info.mark().is_like(after)


def test_unreadable_stage_is_reported_and_hides_no_other(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with nosync_nb.open(log) as session:
        numbers = session.input("numbers", "x bigint")
        session.stage("odd", numbers.filter("x % 2 = 1"))
        numbers.insert(pa.table({"x": list(range(100_000))}))
        session.commit()
        drain_background(session)
        checkpoint_now(session)
    del session, numbers
    gc.collect()  # statistics live as long as a session with these rows
    with nosync_nb.open(log) as session:
        for layer in snapshot_of(session).contents("numbers").layers:
            for ref in layer.files:
                (log / "layers" / ref.path).unlink()
        broken, odd = session.info.overview().collections
        assert broken.rows is None
        assert broken.why.endswith("is damaged: it is missing")
        assert (odd.rows, odd.why) == (50_000, "")


def test_stale_stage_is_reported_with_its_reason(session: Session) -> None:
    fill(session)
    session.stage("early", session["late"].filter("delay < 18"))
    session.stage("late", session["flights"].select("carrier"))
    overview = session.info.overview()
    early = overview.named("early")
    assert early is not None
    assert early.why == session.stale["early"]
    assert early.last == early.frontier.memory


def test_reader_overview_follows_its_owner(session: Session) -> None:
    fill(session)
    with nosync_nb.open(session.path, mode="r") as reader:
        before = reader.info.mark()
        session["flights"].insert([("B6", 90)])
        session.commit()
        assert not reader.info.mark().is_like(before)
        assert reader.info.overview().epoch == 4
