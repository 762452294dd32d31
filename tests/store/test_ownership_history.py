"""The ownership history: it identifies an old copy of a disk."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest
from checks.logs import ship_all
from internals import checkpoint_now, log_of

from nosync_nb import Session
from nosync_nb import open as open_session
from nosync_nb.errors import CorruptLogError, FencedError
from nosync_nb.store import ownership_history
from nosync_nb.store.log.frames import Mark
from nosync_nb.store.log.segments import Segment
from nosync_nb.store.ownership_history import OwnershipHistory, OwnerTenure
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.agent.takeover import ReplicaAheadError, TakeoverPoll
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.protocol import LogName

pytestmark = pytest.mark.usefixtures("own_key")


rows = itertools.count()


def commit_epochs(session: Session, count: int) -> None:
    """Commits some epochs durably."""
    edges = session.input("edges", "src int, dst int")
    for _ in range(count):
        edges.insert([(next(rows), 0)])
        session.commit()
    session.sync()


def trim_history(session: Session) -> None:
    """Writes two checkpoints, so that earlier frames are trimmed."""
    for _ in range(2):
        commit_epochs(session, 1)
        checkpoint_now(session)


def replica_of(session: Session, tmp_path: Path) -> FolderReplica:
    place = tmp_path / "replica"
    place.mkdir(exist_ok=True)
    return FolderReplica(str(place), log_of(session).id)


def level_replica(session: Session, tmp_path: Path, poll: TakeoverPoll) -> None:
    """Brings the replica level with the log."""
    source = LogSource(session.path, log_of(session).generation)
    replica = replica_of(session, tmp_path)
    name = LogName("/logs/x.nosync", "me")
    shipper = Shipper(source, replica, name, lambda vote: poll.ask(0, vote))
    ship_all(shipper)


@pytest.mark.fault(15, 32)
@pytest.mark.parametrize("running", [False, True], ids=["backup", "snapshot"])
@pytest.mark.parametrize("silent", [False, True], ids=["wrote", "opened"])
def test_old_disk_is_detected_by_ownership_history(
    tmp_path: Path, *, running: bool, silent: bool
) -> None:
    path, backup = tmp_path / "x.nosync", tmp_path / "backup"
    with open_session(path) as session:
        commit_epochs(session, 3)
        if running:
            shutil.copytree(path, backup)
            commit_epochs(session, 4)
            level_replica(session, tmp_path, TakeoverPoll(1, 1))
    if not running:
        shutil.copytree(path, backup)
        with open_session(path) as session:
            commit_epochs(session, 4)
            level_replica(session, tmp_path, TakeoverPoll(1, 1))
    if silent:  # the replica ends with a segment header without earlier frames
        with open_session(path) as session:
            checkpoint_now(session)
            level_replica(session, tmp_path, TakeoverPoll(1, 1))
        with open_session(path) as session:
            level_replica(session, tmp_path, TakeoverPoll(1, 1))
    shutil.rmtree(path)
    os.rename(backup, path)
    later = False
    for _ in range(4):  # of the lost owner's generation, and later ones
        with open_session(path, takeover=True) as session:
            trim_history(session)
            replica = replica_of(session, tmp_path)
            held, term = replica.held(), replica.promised()
            assert term is not None
            later = log_of(session).generation > term.generation
            with pytest.raises(ReplicaAheadError if later else FencedError):
                level_replica(session, tmp_path, TakeoverPoll(1, 1))
            assert replica.held() == held
    assert later


@pytest.mark.fault(27)
def test_replica_absent_for_several_owners_catches_up(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.nosync"
    with open_session(path) as session:
        commit_epochs(session, 3)
        level_replica(session, tmp_path, TakeoverPoll(1, 1))
    with open_session(path) as session:  # writes only its segment header, which the replica has
        level_replica(session, tmp_path, TakeoverPoll(1, 1))
    for _ in range(3):  # these owners are not in the log
        open_session(path).close()
    for _ in range(2):
        with open_session(path) as session:
            trim_history(session)
    with open_session(path) as session:
        poll = TakeoverPoll(1, 1)
        level_replica(session, tmp_path, poll)
        assert replica_of(session, tmp_path).acknowledged() == session.now + 1


def head(generation: int, word: bytes, before: tuple[int, bytes] | None = None) -> Segment:
    link = None if before is None else (before[0], 1)
    word_before = bytes(8) if before is None else before[1]
    start = Mark(5, 512, bytes(16))
    return Segment(bytes(16), generation, 2, start, link, 0, word, word_before)


@pytest.mark.fault(15)
def test_owner_is_identified_by_word_and_end() -> None:
    mine, other = b"mine....", b"other..."
    reigns = {4: OwnerTenure(mine, 9), 6: OwnerTenure(mine, 12)}
    assert ownership_history.includes_owner(reigns, head(4, mine), 9)
    assert not ownership_history.includes_owner(reigns, head(4, mine), 10)
    assert not ownership_history.includes_owner(reigns, head(4, other), 9)
    assert not ownership_history.includes_owner(reigns, head(5, mine), 9)  # an unknown generation
    assert not ownership_history.includes_owner(reigns, head(7, mine), 9)
    assert ownership_history.includes_owner(
        reigns, head(3, other), 99
    )  # earlier owners are unknown
    assert ownership_history.includes_owner(reigns, None, 99)
    assert ownership_history.includes_owner(
        reigns, head(5, other), 0
    )  # an owner without frames lacks nothing
    assert not ownership_history.includes_owner(reigns, head(5, other), 1)
    assert ownership_history.includes_owner(
        reigns, head(5, other, (4, mine)), 5
    )  # the owner wrote nothing
    assert not ownership_history.includes_owner(reigns, head(5, other, (4, mine)), 6)
    assert not ownership_history.includes_owner(reigns, head(5, other, (4, other)), 5)
    assert ownership_history.includes_owner({}, head(5, other), 5)


def test_saved_owners_are_bounded() -> None:
    words = [number.to_bytes(8, "big") for number in range(1, 2001)]
    heads = [head(number, word) for number, word in enumerate(words, 1)]
    saved = OwnershipHistory(heads, {}, 0, []).saved(7)
    known = ownership_history.decode_ownership(saved)
    assert len(known) == ownership_history.KEPT_MAX
    assert known[2000] == OwnerTenure(words[-1], 7)
    assert ownership_history.includes_owner(known, head(1, b"another."), 5)


@pytest.mark.fault(43)
@pytest.mark.parametrize("owners", [[[1, 2]], [["x", "00", 1]], [[1, "zz", 1]], 7, {"a": 1}])
def test_invalid_owners_are_damage(owners: object) -> None:
    with pytest.raises(CorruptLogError, match="owners"):
        ownership_history.decode_ownership({"owners": owners})


@pytest.mark.fault(32, 33)
def test_retained_frames_are_compared_whoever_wrote_them(tmp_path: Path) -> None:
    """Frames that an unknown owner rewrote are no more than this log has."""
    path = tmp_path / "x.nosync"
    with open_session(path) as session:
        commit_epochs(session, 3)
        source = LogSource(session.path, log_of(session).generation)
        before = source.current_view()
        source.close()
        assert before is not None
        commit_epochs(session, 1)
        checkpoint_now(session)
    own = before.extents[0].segment
    elsewhere = own._replace(generation=9, word=b"another.", before=None)
    with open_session(path) as session:
        commit_epochs(session, 1)
        source = LogSource(session.path, log_of(session).generation)
        source.current_view()
        assert source.holds(before.end, elsewhere)
        assert not source.holds(before.end._replace(chain=bytes(16)), elsewhere)
        (path / own.name).rename(tmp_path / "kept")  # like a trimmed segment
        assert not source.holds(before.end, elsewhere)
        assert source.holds(before.end, own)
        (tmp_path / "kept").rename(path / own.name)
        source.close()
