"""Shipping: while owners change, disks fail and copies have another history."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checks.logs import ship_all
from faults.faults import FakeMachine, FaultyFiles
from internals import checkpoint_now, log_of

from nosync_nb import open as open_session
from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.store import store
from nosync_nb.store.log import checkpoint, fencing, owner, segments, writer
from nosync_nb.store.log.segments import HEADER_BYTES
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.agent import log_source
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.agent.takeover import TakeoverVote
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.consistency import examine_copy
from nosync_nb.store.replication.protocol import LogName, OwnerTerm, ReplicaHoldings

NAME = LogName("/logs/x.nosync", "me")
SEEDS = range(10)


pytestmark = pytest.mark.usefixtures("own_key")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A log of three epochs that was closed."""
    path = str(tmp_path / "x.nosync")
    with open_session(path) as session:
        session.input("edges", "src int, dst int")
    commit_more(path, 3)
    return path


def commit_more(path: str, epochs: int, *, checkpoint: bool = False) -> None:
    """Opens the log again; the next generation commits."""
    with open_session(path) as session:
        for i in range(epochs):
            session.inputs["edges"].insert([(log_of(session).generation, i)])
            session.commit(wait="disk")
        if checkpoint:
            checkpoint_now(session)


def current_generation(path: str) -> int:
    """The generation of the last owner."""
    found = owner.read_owner(Files(), path)
    assert found is not None
    return found.generation


def take_over(path: str) -> None:
    """Another process becomes the owner, and publishes."""
    lease = fencing.claim_lease(Files(), path, FakeMachine(), takeover=True, generation_min=0)
    lease.acquire()
    lease.publish(64)
    lease.publish_durable(1)
    lease.close()


class RecordingReplica(FolderReplica):
    """A copy in a folder that records its calls, with a hook after each."""

    def __init__(self, root: Path, log_id: bytes, *, files: Files | None = None) -> None:
        root.mkdir(exist_ok=True)
        super().__init__(str(root), log_id, files=files)
        self.calls: list[tuple[str, object]] = []
        self.after: Callable[[str, object], None] = lambda call, about: None

    def _did(self, call: str, about: object) -> None:
        self.calls.append((call, about))
        self.after(call, about)

    def store(self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool) -> None:
        super().store(term, name, offset, data, last=last)
        self._did("store", name)

    def append(self, term: OwnerTerm, name: str, offset: int, data: bytes) -> None:
        super().append(term, name, offset, data)
        self._did("append", name)

    def sync(self, term: OwnerTerm, seq: int | None) -> None:
        super().sync(term, seq)
        self._did("sync", seq)

    def digest(self, name: str, size: int) -> bytes:
        self._did("digest", name)
        return super().digest(name, size)


def shipper_of(
    path: str, replica: FolderReplica, ask: Callable[[TakeoverVote], None] = lambda vote: None
) -> Shipper:
    return Shipper(LogSource(path, current_generation(path)), replica, NAME, ask)


def recorded_copy(path: str, root: Path, *, files: Files | None = None) -> RecordingReplica:
    return RecordingReplica(root, LogSource(path, current_generation(path)).log_id, files=files)


# -- owners ----------------------------------------------------------------------------------------


@pytest.mark.fault(24, 32)
def test_disagreeing_owner_and_control_block_ship_nothing(path: str) -> None:
    number, content = current_generation(path), Path(path, "owner").read_bytes()
    first = owner.read_owner(Files(), path)
    assert first is not None
    owner.write_owner(
        Files(), path, first._replace(generation=number + 1)
    )  # the new owner has not published yet
    with pytest.raises(FencedError):
        LogSource(path, number)
    take_over(path)
    Path(path, "owner").write_bytes(content)  # an old copy of the file
    with pytest.raises(FencedError):
        LogSource(path, number)


def test_unchanged_log_has_unchanged_view(path: str) -> None:
    with open_session(path) as session:
        source = LogSource(path, current_generation(path))
        before = source.current_view()
        assert before is not None
        assert source.current_view() is before
        session.inputs["edges"].insert([(7, 7)])
        session.commit(wait="disk")
        after = source.current_view()
        assert after is not None
        assert after.epoch == before.epoch + 1
        assert source.current_view() is after
        checkpoint_now(session)
        checkpointed = source.current_view()
        assert checkpointed is not None
        assert (checkpointed.end, checkpointed.state is None) == (after.end, False)
        source.close()


@pytest.mark.fault(24)
def test_view_of_fenced_owner_raises_error(path: str) -> None:
    before = LogSource(path, current_generation(path))
    assert before.current_view() is not None
    take_over(path)
    with pytest.raises(FencedError):
        before.current_view()


@pytest.mark.fault(24)
def test_owner_fenced_during_view_is_not_shipped(path: str) -> None:
    class Overtaken(Files):
        """A disk whose log is taken over while its segments are read."""

        armed = False

        def open(self, path_: str, *, write: bool = False) -> File:
            if file_layout.is_segment(os.path.basename(path_)) and self.armed:
                self.armed = False
                take_over(path)
            return super().open(path_, write=write)

    files = Overtaken()
    before = LogSource(path, current_generation(path), files=files)
    files.armed = True
    with pytest.raises(FencedError):
        before.current_view()
    assert not files.armed


@pytest.mark.fault(24, 28)
def test_data_of_owner_fenced_while_shipping_is_not_acknowledged(path: str, tmp_path: Path) -> None:
    replica = recorded_copy(path, tmp_path / "copies")
    taken = []

    def overtake(call: str, about: object) -> None:
        if call == "store" and not taken:
            taken.append(about)
            take_over(path)

    replica.after = overtake
    shipper = shipper_of(path, replica)
    with pytest.raises(FencedError):
        shipper.ship()
    assert taken
    assert shipper.acknowledged is None
    assert replica.acknowledged() == 0


# -- views -----------------------------------------------------------------------------------------


@pytest.mark.fault(21)
def test_frame_missed_by_failed_view_is_in_next_view(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "SPILL_ROWS", 0)  # each epoch references a file of rows
    commit_more(path, 2)
    made, count = log_source.ShippedFrame, []
    monkeypatch.setattr(
        log_source, "ShippedFrame", lambda *arguments: count.append(1) or made(*arguments)
    )
    whole = LogSource(path, current_generation(path)).current_view()
    assert whole is not None
    assert whole.files
    for number in range(len(count)):
        left = [*[True] * number, False]

        def refused(*arguments: Any, left: list[bool] = left) -> object:
            if left and not left.pop(0):
                raise MemoryError
            return made(*arguments)

        looked = LogSource(path, current_generation(path))
        monkeypatch.setattr(log_source, "ShippedFrame", refused)
        with pytest.raises(MemoryError):
            looked.current_view()
        assert looked.current_view() == whole


# -- shipped data ----------------------------------------------------------------------------------


@pytest.mark.fault(8)
def test_acknowledged_growth_of_segment_survives_power_loss(path: str, tmp_path: Path) -> None:
    with open_session(path) as session:
        copies = []
        for seed in SEEDS:
            files = FaultyFiles(seed=seed)
            replica = recorded_copy(path, tmp_path / f"{seed}", files=files)
            copies.append((files, replica, shipper_of(path, replica)))
        for shipper in (each for _, _, each in copies):
            ship_all(shipper)
        session.inputs["edges"].insert([(7, 7)])
        session.commit(wait="disk")
        for files, replica, shipper in copies:
            assert shipper.ship()
            assert ("append", replica.calls[-2][1]) == replica.calls[-2]
            held = replica.held()
            files.lose_power(replica.folder)
            left = FolderReplica(
                os.path.dirname(replica.folder), bytes.fromhex(os.path.basename(replica.folder))
            )
            assert left.held() == held


@pytest.mark.fault(8, 27)
def test_segment_is_durable_before_next_one_exists(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        """The shipper ends here."""

    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 800)
    with open_session(path) as session:
        copies = []
        for seed in SEEDS:
            files = FaultyFiles(seed=seed)
            replica = recorded_copy(path, tmp_path / f"{seed}", files=files)
            copies.append((files, replica, shipper_of(path, replica)))
        for shipper in (each for _, _, each in copies):
            ship_all(shipper)
        for i in range(8):
            session.inputs["edges"].insert([(7, i)])
            session.commit(wait="disk")
        for files, replica, shipper in copies:
            seen: list[tuple[str, object]] = []

            def kill(call: str, about: object, seen: list[tuple[str, object]] = seen) -> None:
                seen.append((call, about))
                if call == "store" and "append" in dict(seen):
                    raise KilledError

            replica.after = kill
            with pytest.raises(KilledError):
                shipper.ship()
            grown = Path(replica.folder, str(dict(seen)["append"]))
            whole = grown.read_bytes()
            files.lose_power(replica.folder)
            assert grown.read_bytes() == whole


def test_refused_data_is_not_counted_as_sent(path: str, tmp_path: Path) -> None:
    class Refusing(RecordingReplica):
        def store(
            self, term: OwnerTerm, name: str, offset: int, data: bytes, *, last: bool
        ) -> None:
            raise DurabilityError("full")

    shipper = shipper_of(
        path, Refusing(tmp_path / "copies", LogSource(path, current_generation(path)).log_id)
    )
    with pytest.raises(DurabilityError, match="full"):
        shipper.ship()
    assert shipper.bytes_sent == 0


@pytest.mark.fault(31)
def test_deleted_copy_is_noticed_and_rebuilt(path: str, tmp_path: Path) -> None:
    replica = recorded_copy(path, tmp_path / "copies")
    shipper = shipper_of(path, replica)
    assert shipper.ship()
    assert not shipper.ship()
    held = replica.held().files
    shutil.rmtree(replica.folder)
    with pytest.raises(DurabilityError, match="was replaced by another copy"):
        shipper.ship()
    assert shipper.ship()
    assert replica.held().files == held


@pytest.mark.fault(41)
def test_replaced_checkpoint_is_sent_once(path: str, tmp_path: Path) -> None:
    commit_more(path, 1, checkpoint=True)
    replica = recorded_copy(path, tmp_path / "copies")
    (newest,) = sorted(Path(path).glob("checkpoint-*"))[-1:]

    def replace(call: str, about: object) -> None:
        if call == "store" and not file_layout.is_checkpoint(str(about)) and not replaced:
            replaced.append(about)
            shutil.copy(newest, f"{newest}.copy")
            os.replace(f"{newest}.copy", newest)

    replaced: list[object] = []
    replica.after = replace
    shipper = shipper_of(path, replica)
    ship_all(shipper)
    assert replaced
    assert replica.calls.count(("store", newest.name)) == 1


# -- the vote --------------------------------------------------------------------------------------


@pytest.mark.fault(32)
def test_first_owner_with_complete_log_skips_vote(tmp_path: Path) -> None:
    def ask(vote: TakeoverVote) -> None:
        raise AssertionError(vote)

    path = str(tmp_path / "new.nosync")
    with open_session(path) as session:
        session.input("edges", "src int, dst int").insert([(1, 2)])
        session.commit(wait="disk")
        shipper = shipper_of(path, recorded_copy(path, tmp_path / "copies"), ask)
        ship_all(shipper)
        assert shipper.acknowledged.seq == log_of(session).head.seq


@pytest.mark.fault(32)
def test_first_owner_with_trimmed_log_asks_for_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 700)
    votes: list[TakeoverVote] = []
    path = str(tmp_path / "new.nosync")
    with open_session(path) as session:
        edges = session.input("edges", "src int, dst int")
        for i in range(9):
            edges.insert([(1, i)])
            session.commit(wait="disk")
            if i % 3 == 2:
                checkpoint_now(session)
        assert current_generation(path) == 1
        shipper = shipper_of(path, recorded_copy(path, tmp_path / "copies"), votes.append)
        ship_all(shipper)
    assert len(votes) == 1


@pytest.mark.fault(32)
def test_replica_of_log_without_epochs_is_not_ahead(tmp_path: Path) -> None:
    path = str(tmp_path / "empty.nosync")
    votes: list[TakeoverVote] = []
    for _ in range(3):
        open_session(path).close()
        shipper = shipper_of(path, recorded_copy(path, tmp_path / "copies"), votes.append)
        ship_all(shipper)
    assert [vote.ahead for vote in votes] == ["", ""]


@pytest.mark.fault(32)
def test_copy_that_begins_at_its_checkpoint_is_readable(path: str, tmp_path: Path) -> None:
    commit_more(path, 2, checkpoint=True)
    commit_more(path, 2)
    replica = recorded_copy(path, tmp_path / "copies")
    shipper = shipper_of(path, replica)
    ship_all(shipper)
    (name,) = filter(file_layout.is_segment, replica.held().files)
    (state,) = filter(file_layout.is_checkpoint, replica.held().files)
    header = replica.read(state, 0, checkpoint.HEADER_BYTES)
    assert (
        checkpoint.mark_of(header)
        == segments.decode_header(replica.read(name, 0, HEADER_BYTES)).start
    )
    assert examine_copy(Files(), "copy", replica).end.seq == shipper.acknowledged.seq


@pytest.mark.fault(10, 32)
@pytest.mark.parametrize(("checkpoint", "short"), [(True, 1), (True, -2), (False, 1)])
def test_short_segment_loses_frames_without_later_checkpoint(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, checkpoint: bool, short: int
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 700)
    with open_session(path) as session:
        replica = recorded_copy(path, tmp_path / "copies")
        shipper = shipper_of(path, replica)
        for i in range(20):
            session.inputs["edges"].insert([(99, i)])
            session.commit(wait="disk")
            ship_all(shipper)
        if checkpoint:
            with monkeypatch.context() as patch:
                patch.setattr(FolderReplica, "discard", lambda *_: None)
                checkpoint_now(session)
                ship_all(shipper)
        held = replica.held().files
        names = sorted(filter(file_layout.is_segment, held))
        assert len(names) > 3
        os.truncate(file_layout.file_path(replica.folder, names[short]), held[names[short]] - 10)
        if checkpoint:
            assert examine_copy(Files(), "copy", replica).end.seq == shipper.acknowledged.seq
            return
        with pytest.raises(CorruptLogError, match="is damaged: it acknowledged frame"):
            examine_copy(Files(), "copy", replica)


def test_own_segments_are_compared_once(path: str, tmp_path: Path) -> None:
    replica = recorded_copy(path, tmp_path / "copies")
    while shipper_of(path, replica).ship():
        break
    again = recorded_copy(path, tmp_path / "copies")
    shipper_of(path, again).ship()
    asked = [about for call, about in again.calls if call == "digest"]
    own = [name for name in asked if name == asked[-1]]
    assert current_generation(path) > 1
    assert len(own) == 1


@pytest.mark.fault(32)
def test_frames_of_other_log_are_reported_and_kept(path: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.nosync")
    with open_session(other) as session:
        session.input("edges", "src int, dst int")
    commit_more(other, 1)
    theirs, own = (
        recorded_copy(other, tmp_path / "copies"),
        recorded_copy(path, tmp_path / "copies"),
    )
    assert shipper_of(other, theirs).ship()
    os.rename(theirs.folder, own.folder)
    before = own.held()
    with pytest.raises((CorruptLogError, FencedError), match="another"):
        shipper_of(path, own).ship()
    commit_more(path, 1)  # a later generation than the copy's
    with pytest.raises(CorruptLogError, match="holds frames of log"):
        shipper_of(path, recorded_copy(path, tmp_path / "copies")).ship()
    assert own.held() == before


@pytest.mark.fault(32, 35)
def test_acknowledgement_of_abandoned_history_is_withdrawn(path: str, tmp_path: Path) -> None:
    shutil.copytree(path, f"{path}.old")
    commit_more(path, 2)
    replica = recorded_copy(path, tmp_path / "copies")
    assert shipper_of(path, replica).ship()
    assert replica.acknowledged() > 0
    shutil.rmtree(path)
    os.rename(f"{path}.old", path)
    for _ in range(2):  # a later generation than the replica's
        commit_more(path, 1)
    votes: list[TakeoverVote] = []

    class KilledError(Exception):
        """The shipper ends when it has begun."""

    def kill(call: str, about: object) -> None:
        if call in ("store", "append"):
            raise KilledError

    again = recorded_copy(path, tmp_path / "copies")
    again.after = kill
    with pytest.raises(KilledError):
        shipper_of(path, again, votes.append).ship()
    assert [(bool(vote.ahead), vote.damage) for vote in votes] == [(True, "")]
    assert again.acknowledged() == 1  # the replica still knows that it acknowledged


@pytest.mark.fault(12, 32)
def test_damaged_replica_that_is_ahead_is_reported(path: str, tmp_path: Path) -> None:
    shutil.copytree(path, f"{path}.old")
    commit_more(path, 2)
    replica = recorded_copy(path, tmp_path / "copies")
    assert shipper_of(path, replica).ship()
    held, folder = replica.held().files, replica.folder
    assert folder is not None
    newest = max(name for name in held if name.startswith("segment-"))
    shutil.rmtree(path)
    os.rename(f"{path}.old", path)
    for _ in range(2):
        commit_more(path, 1)
    with open(os.path.join(folder, newest), "r+b") as file:
        file.seek(held[newest] - 30)  # in its last acknowledged frame
        file.write(b"spoilt")
    votes: list[TakeoverVote] = []
    shipper = shipper_of(path, recorded_copy(path, tmp_path / "copies"), votes.append)
    with suppress(CorruptLogError, FencedError):
        shipper.ship()
    assert [bool(vote.ahead) for vote in votes] == [True]
    assert "is damaged: it acknowledged frame" in votes[0].damage


# -- backlog ---------------------------------------------------------------------------------------


@pytest.mark.fault(28, 29)
def test_backlog_of_dead_replica_is_bounded_by_checkpoints(path: str, tmp_path: Path) -> None:
    """The shipper knows only the frames since the last checkpoint."""

    class Dead(FolderReplica):
        def promise(self, term: OwnerTerm, name: LogName) -> ReplicaHoldings:
            raise DurabilityError("it is dead")

    def steps() -> int:
        gc.collect()
        return sum(type(each) is log_source.ShippedFrame for each in gc.get_objects())

    counts, lacks = [], []
    with open_session(path) as session:
        log = log_of(session)
        shipper = Shipper(
            LogSource(path, log.generation),
            Dead(str(tmp_path / "no"), log.id),
            NAME,
            lambda vote: None,
        )
        for _ in range(6):
            for i in range(200):
                session.inputs["edges"].insert([(1, i)])
                session.commit()
            session.sync()
            with pytest.raises(DurabilityError, match="dead"):
                shipper.ship()
            counts.append(steps())
            lacks.append(shipper.backlog_bytes)
            checkpoint_now(session)
            checkpoint_now(session)  # trims the frames that the first one retains
    assert 200 <= max(counts) <= 2 * 200
    assert all(lacks)
    assert shipper.bytes_sent == 0
