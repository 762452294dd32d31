"""The overview of a session: one value for views, made beside commits."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
from internals import checkpoint_now, drain_background, snapshot_of

import nosync_nb
from nosync_nb import Session
from nosync_nb.trace import stats


def filled(session: Session, epochs: int = 3) -> None:
    flights = session.input("flights", "carrier string, delay int")
    session.stage("late", flights.filter("delay > 15"))
    session.stage("counts", session["late"].group_by("carrier").agg(n="count(*)"))
    for epoch in range(epochs):
        flights.insert([("UA", 10 * epoch), ("AA", 20)])
        session.commit()


def test_an_overview_tells_what_each_stage_is_and_how_far(session: Session) -> None:
    filled(session)
    session.sync()
    seen = session.info.overview()
    assert [each.name for each in seen.collections] == ["flights", "late", "counts"]
    flights, late, counts = seen.collections
    assert (flights.is_input, late.is_input) == (True, False)
    assert (flights.reads, late.reads, counts.reads) == ((), ("flights",), ("late",))
    assert [each.rows for each in seen.collections] == [6, 4, 2]
    assert flights.rows == len(session["flights"])
    assert counts.schema == session["counts"].schema
    assert counts.work is not None
    assert counts.work.touched > 0
    assert counts.frontier == session.frontiers["counts"]
    assert counts.size_bytes > 0
    assert (seen.epoch, seen.replicas, late.copies, late.why) == (3, (), (), "")
    assert seen.committed_at == session.epochs()[-1].committed_at
    assert seen.named("late") is late
    assert seen.named("nobody") is None


def test_an_overview_tells_what_each_failure_would_cost(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/copy{number}" for number in (1, 2, 3)]
    with nosync_nb.open(tmp_path / "log", replicas=urls) as session:
        filled(session)
        session.sync("replicas")
        seen = session.info.overview()
        assert [(cost.failure, cost.lost) for cost in seen.costs] == [
            ("kernel", None),
            ("power", None),
            *(("disk", lost) for lost in (0, 1, 2)),
        ]
        for cost in seen.costs:
            assert cost.epoch == session.recovery_frontier(cost.failure, cost.lost)
            assert cost.epochs == 3 - cost.epoch
            assert (cost.since is None) == (cost.epochs == 0)
        assert [cost.epochs for cost in seen.costs[:4]] == [0, 0, 0, 0], "two of three have all"
        assert (seen.quorum, len(seen.replicas)) == (2, 3)
        for each in seen.collections:
            assert sorted(each.copies)[1:] == [3, 3]
            for failure, epoch in each.after.items():
                assert epoch == session.recovery_frontier(failure, stage=each.name)


def test_a_lost_disk_without_replicas_costs_every_epoch_since_the_first(session: Session) -> None:
    filled(session)
    cost = session.info.overview().costs[-1]
    assert (cost.failure, cost.epoch, cost.epochs) == ("disk", 0, 3)
    assert cost.since == session.epochs()[1].committed_at


def test_what_replicas_do_not_owe_is_not_counted_as_theirs(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", replicas=[f"file://{tmp_path}/copy"]) as session:
        filled(session)
        for level in ("memory", "disk"):
            session.stage(level, session["late"].filter("delay > 16"), persist=level)
        session["flights"].insert([("B6", 90)])
        session.commit()
        session.sync("replicas")
        seen = session.info.overview()
        copies = {each.name: each.copies for each in seen.collections}
        assert copies == {
            "flights": (4,),
            "late": (4,),
            "counts": (4,),
            "memory": (0,),
            "disk": (0,),
        }
        levels = {each.name: each.persist for each in seen.collections}
        assert (levels["memory"], levels["disk"], levels["late"]) == ("memory", "disk", "replicas")


def test_looking_puts_no_layer_in_order(session: Session) -> None:
    """Who commits would have to, each time a layer that is young grows."""
    filled(session)
    session.info.overview()
    trace = snapshot_of(session).contents("flights")
    assert [layer.is_young for layer in trace.layers] == [True]
    assert stats.row_sums(trace) == 6
    assert [layer.is_young for layer in trace.layers] == [True]
    assert stats.row_count(trace) == 6


def test_a_mark_moves_with_epochs_definitions_and_disk_and_not_by_itself(session: Session) -> None:
    filled(session)
    session.sync()
    drain_background(session)
    before = session.info.mark()
    assert before.is_like(session.info.mark())
    assert not before.is_like(None)
    session["flights"].insert([("B6", 1)])
    assert session.info.mark().is_like(before), "what waits is not seen"
    session.commit()
    after = session.info.mark()
    assert not after.is_like(before)
    session.stage("more", session["late"].filter("delay > 99"))
    assert not session.info.mark().is_like(after)


def test_a_stage_that_cannot_be_read_says_so_and_hides_no_other(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with nosync_nb.open(log) as session:
        numbers = session.input("numbers", "x bigint")
        session.stage("odd", numbers.filter("x % 2 = 1"))
        numbers.insert(pa.table({"x": list(range(100_000))}))
        session.commit()
        drain_background(session)
        checkpoint_now(session)
    del session, numbers
    gc.collect()  # what is known of rows lives as long as a session that has them
    with nosync_nb.open(log) as session:
        for layer in snapshot_of(session).contents("numbers").layers:
            for ref in layer.files:
                (log / "layers" / ref.path).unlink()
        broken, odd = session.info.overview().collections
        assert broken.rows is None
        assert broken.why.endswith("is damaged: it is missing")
        assert (odd.rows, odd.why) == (50_000, "")


def test_a_stage_that_has_stopped_says_why(session: Session) -> None:
    filled(session)
    session.stage("early", session["late"].filter("delay < 18"))
    session.stage("late", session["flights"].select("carrier"))
    seen = session.info.overview()
    early = seen.named("early")
    assert early is not None
    assert early.why == session.stale["early"]
    assert early.last == early.frontier.memory


def test_a_reader_sees_what_its_owner_has_committed_since(session: Session) -> None:
    filled(session)
    with nosync_nb.open(session.path, mode="r") as reader:
        before = reader.info.mark()
        session["flights"].insert([("B6", 90)])
        session.commit()
        assert not reader.info.mark().is_like(before)
        assert reader.info.overview().epoch == 4
