"""Provenance clocks: which batch of a stage each reader was computed from."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from checks.clocks import BatchClock, BatchLabel, clocks_in_entries, read_clocks
from internals import checkpoint_now, log_of, services_of

import nosync_nb
from nosync_nb import CorruptLogError, Session
from nosync_nb.errors import DurabilityError
from nosync_nb.store import provenance
from nosync_nb.store.provenance import LABEL_BYTES, NO_DIGEST, SIZE_BYTES
from nosync_nb.store.records import payloads
from nosync_nb.store.records.payloads import Payload
from nosync_nb.store.store import Store


def tail_payloads(path: Path) -> list[Payload]:
    """The frames of a log after its checkpoint."""
    store = Store.open(str(path), mode="r")
    try:
        return [each.payload for each in store.tail]
    finally:
        store.close()


def clocks_by_name(session: Session) -> list[dict[str, BatchClock]]:
    """The clocks of each frame after the checkpoint, by current stage names."""
    session.sync()
    names = services_of(session).publisher.logs
    frames = [clocks_in_entries(p.entries) for p in tail_payloads(Path(session.path))]
    return [{names[c.own.log]: c for c in frame if c.own.log in names} for frame in frames]


@pytest.fixture
def session(session: Session) -> Session:
    edges = session.input("edges", "src int, dst int")
    session.input("nodes", "node int, label int")
    joined = edges.join(session["nodes"], on={"dst": "node"})
    session.stage("labels", joined.group_by("label").agg(n="count(*)"))
    session.stage("large", session["labels"].filter("n > 1"))
    edges.insert([(1, 1), (2, 1)])
    session.inputs["nodes"].insert([(1, 7)])
    session.commit()
    return session


def test_clock_names_its_batch_and_input_batches(
    session: Session,
) -> None:
    session.inputs["edges"].insert([(3, 1)])
    session.commit()
    first, second = clocks_by_name(session)[-2:]
    assert list(second) == ["edges", "labels", "large"]
    assert second["edges"].inputs == ()
    assert second["labels"].inputs == (second["edges"].own, first["nodes"].own)
    assert second["large"].inputs == (second["labels"].own,)
    assert [c.own.upper for c in second.values()] == [3, 3, 3]
    assert first["nodes"].own.upper == 2
    assert second["labels"].own.generation == log_of(session).generation
    (frame,) = tail_payloads(Path(session.path))[-1:]
    entries = {e.number: e.data for e in frame.entries}
    for clock in second.values():
        assert clock.own.digest == provenance.batch_digest(entries[clock.own.log])


def test_input_without_batch_has_empty_label(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        left, right = session.input("left", "x int"), session.input("right", "x int")
        session.stage("both", left.concat(right))
        left.insert([(1,)])
        session.commit()
        both = clocks_by_name(session)[-1]["both"]
        log = next(n for n, name in services_of(session).publisher.logs.items() if name == "right")
        assert both.inputs[1] == BatchLabel(log, 0, 0, NO_DIGEST)


def test_definition_and_replay_have_clocks(
    session: Session,
) -> None:
    session.inputs["edges"].insert([(4, 1)])
    session.commit()
    session.define({"late": session["edges"].filter("src > 1")})
    edges, late = clocks_by_name(session)[-2]["edges"], clocks_by_name(session)[-1]["late"]
    assert (late.own.upper, late.inputs) == (3, (edges.own,))
    session.define({"late": session["edges"].filter("src < 4")}, replay=0)
    replayed = clocks_by_name(session)[-1]["late"]
    assert (replayed.own.upper, replayed.inputs) == (2, (edges.own,))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_last_batches_are_restored_on_opening(session: Session, checkpoint: bool) -> None:
    path, nodes = session.path, clocks_by_name(session)[-1]["nodes"].own
    if checkpoint:
        checkpoint_now(session)
    session.close()
    with nosync_nb.open(path) as again:
        again.inputs["edges"].insert([(5, 1)])
        again.commit()
        clock = clocks_by_name(again)[-1]["labels"]
        assert clock.inputs[1] == nodes
        assert clock.own.generation == nodes.generation + 1


def test_failed_frame_leaves_no_label(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    before = clocks_by_name(session)[-1]["edges"].own
    log = log_of(session)

    def refused(*_: object) -> None:
        raise DurabilityError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(log, "append", refused)
        session.inputs["edges"].insert([(6, 1)])
        with pytest.raises(DurabilityError, match="no space"):
            session.commit()
    session.discard()
    session.inputs["nodes"].insert([(2, 8)])
    session.commit()
    session.stage("sources", session["edges"].select("src"))
    assert clocks_by_name(session)[-1]["sources"].inputs == (before,)


@pytest.mark.parametrize("stages", [4, 64])
def test_clock_size_is_independent_of_stage_count(tmp_path: Path, stages: int) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        edges = session.input("edges", "src int, dst int")
        other = session.input("other", "src int")
        for number in range(stages):
            session.stage(f"s{number}", edges.join(other, on="src").filter(f"dst > {-number - 1}"))
        other.insert([(1,)])
        edges.insert([(1, 2)])
        session.commit()
        session.sync()
        frame = tail_payloads(Path(session.path))[-1]
        (entry,) = [e for e in frame.entries if e.kind == payloads.CLOCKS]
        assert len(read_clocks(entry.data)) == stages + 2
        each = SIZE_BYTES + 2 * LABEL_BYTES
        assert len(entry.data) == stages * each + 2 * SIZE_BYTES


def test_truncated_clocks_are_damage_and_spare_room_is_skipped(
    session: Session,
) -> None:
    frame = tail_payloads(Path(session.path))[-1]
    (entry,) = [e for e in frame.entries if e.kind == payloads.CLOCKS]
    data = bytes(entry.data)
    whole = read_clocks(data)
    sizes = [SIZE_BYTES + LABEL_BYTES * len(each.inputs) for each in whole]
    for cut in {*range(len(data))} - {0, *accumulate(sizes)}:
        with pytest.raises(CorruptLogError, match="the clocks of a frame"):
            read_clocks(data[:cut])
    at = LABEL_BYTES + 2
    roomy = data[:at] + (5).to_bytes(2, "little") + data[at + 2 : SIZE_BYTES] + b"seeds"
    assert read_clocks(roomy + data[SIZE_BYTES:]) == whole
