"""Takeover of replicas: URLs, grants and refusals."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checks.damaged_bytes import flipped
from checks.logs import ship_all
from faults.memory_disk import MemoryFiles, Tree
from internals import checkpoint_now, log_of

from nosync_nb import Session
from nosync_nb import open as open_session
from nosync_nb.errors import (
    CorruptLogError,
    DurabilityError,
    FencedError,
    SchemaError,
    TrustError,
)
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import Log
from nosync_nb.store.records import payloads
from nosync_nb.store.replication import config, consistency, file_layout
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.agent.takeover import (
    QuorumPendingError,
    ReplicaAheadError,
    TakeoverPoll,
    TakeoverVote,
)
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.consistency import CopyClaims, DuplicateReplicaError
from nosync_nb.store.replication.protocol import LogName, OwnerTerm
from nosync_nb.store.replication.restore import restore

ID = bytes(range(16))
NAME = LogName("/logs/x.nosync", "me")


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))


@pytest.fixture
def session_on_disk(tmp_path: Path) -> Iterator[Session]:
    """A session with three epochs on disk."""
    with open_session(tmp_path / "x.nosync") as session:
        edges = session.input("edges", "src int, dst int")
        session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        for i in range(3):
            edges.insert([(i, i), (i, i + 1)])
            session.commit()
        session.sync()
        yield session


def source_of(session: Session) -> LogSource:
    return LogSource(session.path, log_of(session).generation)


def made_folder(path: Path) -> str:
    """A folder for copies."""
    path.mkdir(exist_ok=True)
    return str(path)


def name_of(session: Session) -> LogName:
    return LogName(session.path, config.config_signer(Files()))


@pytest.mark.fault(44)
@pytest.mark.parametrize(
    ("urls", "message"),
    [
        (["s4://bucket"], "no kind of replica 's4'"),
        (["/mnt/b"], "no kind of replica ''"),
        (["file://host/mnt"], "not an absolute folder"),
        (["file://user:secret@host/mnt"], "not contain a user or password"),
        (["file:///"], "root"),
        (["file:relative"], "not an absolute folder"),
        (["file:///mnt/a#xyz"], "not the id of a log"),
        ([7], "not a valid replica URL"),
        (["file:///mnt/a", "file:///mnt/b/../a"], "the same location"),
        (["grpc://[::1]:7", "grpc://[0:0:0:0:0:0:0:1]:7"], "the same location"),
        (["grpc://127.0.0.1:7", "grpc://[::ffff:127.0.0.1]:7"], "the same location"),
        (["file:///logs/x.nosync/inside"], "contain each other"),
        (["file:///logs"], "contain each other"),
        ("file:///mnt/a", "not a list"),
        ([f"file:///mnt/{i}" for i in range(17)], "more than 16"),
    ],
)
def test_invalid_replica_urls_are_refused_with_hint(urls: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message) as caught:
        config.checked_config(urls, None, log="/logs/x.nosync")
    assert "secret" not in str(caught.value)
    assert caught.value.hint


def test_quorum_defaults_to_majority() -> None:
    urls = [f"file:///mnt/{i}" for i in range(3)]
    assert config.checked_config(urls, None, log="/x").quorum == 2
    assert config.checked_config(urls, 3, log="/x").quorum == 3
    for wrong in (0, 4, True, "2"):
        with pytest.raises(SchemaError, match="quorum"):
            config.checked_config(urls, wrong, log="/x")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="without replicas"):
        config.checked_config([], 1, log="/x")


def test_read_quorum_meets_every_write_quorum() -> None:
    assert [config.quorum_index([7, 3, 5], q) for q in (1, 2, 3, 4)] == [7, 5, 3, 0]
    for count in range(1, 6):
        for needed in range(1, count + 1):
            assert config.read_quorum(count, needed) + needed == count + 1


def test_replica_config_holds_for_its_user_and_log_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, folder = Files(), str(tmp_path / "log")
    files.make_folder(folder)
    assert config.read_config(files, folder, ID) == config.ReplicaConfig()
    named = config.checked_config([f"file://{tmp_path}/r"], 1, log=folder)
    config.write_config(files, folder, ID, named)
    assert config.read_config(files, folder, ID) == named
    with pytest.raises(TrustError, match="no replica is used"):
        config.read_config(files, folder, bytes(16))
    path = Path(folder, config.FILE)
    path.write_bytes(path.read_bytes().replace(b"/r", b"/s"))
    with pytest.raises(TrustError):
        config.read_config(files, folder, ID)
    config.write_config(files, folder, ID, named)
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "other" / "key"))
    with pytest.raises(TrustError):
        config.read_config(files, folder, ID)


def test_unmounted_volume_is_not_filled(tmp_path: Path) -> None:
    replica = FolderReplica(str(tmp_path / "mnt" / "b" / "logs"), ID)
    with pytest.raises(DurabilityError, match="does not exist"):
        replica.promise(OwnerTerm(1, "me"), NAME)
    assert not (tmp_path / "mnt").exists()


@pytest.mark.parametrize("text", [b"", b"{}", b'{"generation": 1}\n00000000\n', b"\xff" * 9000])
def test_damaged_fencing_record_is_reported(tmp_path: Path, text: bytes) -> None:
    replica = FolderReplica(made_folder(tmp_path / "r"), ID)
    replica.promise(OwnerTerm(1, "me"), NAME)
    Path(replica.folder, "promise").write_bytes(text)
    with pytest.raises((CorruptLogError, DurabilityError), match=r"fencing record|/promise'"):
        replica.held()


LEVEL, AHEAD, EMPTY = TakeoverVote("", 4), TakeoverVote("it has frame 9", 4), TakeoverVote("", 0)


TORN, OLDER = LEVEL._replace(generation=5, torn=True), TakeoverVote("it has frame 9", 3)
PENDING, AHEAD_ERROR = (QuorumPendingError, None), (ReplicaAheadError, "frame 9")
POLLS: dict[str, list[tuple[tuple[int, int], list[tuple[int, TakeoverVote, Any]]]]] = {
    "owner ships after a quorum of level replicas": [
        # The frame was on one replica only, so it was not announced.
        ((3, 2), [(0, LEVEL, PENDING), (1, AHEAD, PENDING), (2, LEVEL, None), (1, AHEAD, None)]),
        ((3, 2), [(0, AHEAD, PENDING), (1, AHEAD, AHEAD_ERROR), (2, LEVEL, PENDING)]),
        ((1, 1), [(0, AHEAD, AHEAD_ERROR)]),
    ],
    "torn replica is no vote against one ahead": [
        ((3, 2), [(0, AHEAD, PENDING), (1, TORN, PENDING),
                  (2, LEVEL, (QuorumPendingError, "1 of 2")), (0, AHEAD, AHEAD_ERROR)]),
        ((3, 2), [(0, TORN, PENDING), (1, LEVEL, None)]),  # no replica is ahead
    ],
    "empty replica is no vote while another may be ahead": [
        # The replica may have been emptied.
        ((2, 2), [(0, EMPTY, PENDING), (1, AHEAD, AHEAD_ERROR), (0, EMPTY, PENDING)]),
        ((3, 2), [(0, EMPTY, PENDING), (1, EMPTY, PENDING), (2, EMPTY, None), (0, EMPTY, None)]),
        ((3, 2), [(0, LEVEL, PENDING), (1, EMPTY, PENDING), (2, LEVEL, None), (1, EMPTY, None)]),
        # The owner of generation 4 had all announced epochs, and continued.
        ((3, 2), [(0, OLDER, PENDING), (1, LEVEL, None), (0, OLDER, None)]),
    ],
    "empty replica gets nothing while a silent one may be ahead": [
        # With a quorum of one the frame may have been announced.
        ((3, 1), [(0, EMPTY, (QuorumPendingError, "this log is empty, and 2")),
                  (1, EMPTY, (QuorumPendingError, "this log is empty, and 1")),
                  (2, AHEAD, AHEAD_ERROR)]),
        ((2, 1), [(0, EMPTY, PENDING), (1, EMPTY, None), (0, EMPTY, None)]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("polls", POLLS.values(), ids=POLLS)
def test_owner_ships_only_if_no_announced_frame_is_lost(polls: Any) -> None:
    for size, votes in polls:
        poll = TakeoverPoll(*size)
        for number, vote, refusal in votes:
            if refusal is None:
                poll.ask(number, vote)
                continue
            with pytest.raises(refusal[0], match=refusal[1]) as caught:
                poll.ask(number, vote)
            if "is empty" in (refusal[1] or ""):
                assert "%dd replicas remove URL" in str(caught.value.hint)


def test_unreadable_replica_is_not_recommended_for_restore() -> None:
    damaged = AHEAD._replace(damage="'the replica' ends at 7")
    with pytest.raises(ReplicaAheadError, match="frame 9") as caught:
        TakeoverPoll(1, 1).ask(0, damaged)
    hint = str(caught.value.hint)
    assert hint.startswith("its copy cannot be read ('the replica' ends at 7)")
    assert "move the log's folder away" not in hint
    poll = TakeoverPoll(2, 2)
    with pytest.raises(QuorumPendingError):
        poll.ask(0, damaged)
    with pytest.raises(ReplicaAheadError) as caught:
        poll.ask(1, AHEAD)
    assert "move the log's folder away" in str(caught.value.hint), "the other copy is readable"


def test_copy_counts_once_under_several_urls() -> None:
    claims = CopyClaims(["file:///d", "grpc://127.0.0.1:7"])
    claims.claim(0, "a")
    claims.claim(0, "a")
    with pytest.raises(DuplicateReplicaError, match="it is the same copy as 'file:///d'"):
        claims.claim(1, "a")
    claims.claim(1, "b")
    claims.claim(0, "c")
    claims.claim(1, "a")


def test_shipped_bytes_follow_the_change(session_on_disk: Session, tmp_path: Path) -> None:
    replica = FolderReplica(made_folder(tmp_path / "r"), source_of(session_on_disk).log_id)
    shipper = Shipper(source_of(session_on_disk), replica, NAME, lambda why: None)
    assert shipper.ship()
    assert not shipper.ship()
    sent = []
    for i in range(4):
        before = shipper.bytes_sent
        session_on_disk.inputs["edges"].insert([(i, i)])
        session_on_disk.commit(wait="disk")
        assert shipper.ship()
        sent.append(shipper.bytes_sent - before)
    assert max(sent) < 600
    known = shipper.acknowledged
    assert known is not None
    assert known.epoch == session_on_disk.now


@pytest.mark.fault(33)
def test_log_with_history_is_restored_from_copy(session_on_disk: Session, tmp_path: Path) -> None:
    path = session_on_disk.path
    url = f"file://{tmp_path}/r"
    replica = FolderReplica(made_folder(tmp_path / "r"), source_of(session_on_disk).log_id)
    shipper = Shipper(
        source_of(session_on_disk), replica, name_of(session_on_disk), lambda why: None
    )
    checkpoint_now(session_on_disk)
    session_on_disk.inputs["edges"].insert([(9, 9)])
    session_on_disk.commit(wait="disk")
    ship_all(shipper)
    rows = {at: session_on_disk["degrees"].rows(at=at) for at in range(5)}
    session_on_disk.close()
    os.rename(path, f"{path}.lost")
    restored = restore.restore_log(path, config.checked_config([url], None, log=path))
    assert restored is not None
    with open_session(path) as session:
        assert {at: session["degrees"].rows(at=at) for at in range(5)} == rows
        assert session.recovery.recomputed == 0
        session.inputs["edges"].insert([(9, 9)], once="again")
        session.commit()
        assert session["degrees"].rows()[-1].n == 2
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".restoring")]


@pytest.mark.fault(8, 9, 33)
def test_restored_log_survives_power_loss(session_on_disk: Session, tmp_path: Path) -> None:
    replica = FolderReplica(made_folder(tmp_path / "r"), source_of(session_on_disk).log_id)
    shipper = Shipper(
        source_of(session_on_disk), replica, name_of(session_on_disk), lambda why: None
    )
    checkpoint_now(session_on_disk)
    ship_all(shipper)
    message = config.checked_config([f"file://{tmp_path}/r"], None, log=session_on_disk.path)
    seen = []
    for seed in range(10):
        files = MemoryFiles(Tree(), seed)
        files.make_folder(str(tmp_path))
        for path in sorted(
            each for name in ("r", "keys") for each in tmp_path.glob(f"{name}/**/*")
        ):
            if path.is_dir():
                files.make_folder(str(path))
            else:
                files.make_folder(str(path.parent))
                files.replace(str(path), path.read_bytes())
        assert restore.restore_log(session_on_disk.path, message, files) is not None
        before = files.tree.files(session_on_disk.path)
        files.lose_power(str(tmp_path))
        assert files.tree.files(session_on_disk.path) == before
        seen.append(sorted(before))
    assert "generation" in seen[0]
    assert any(map(file_layout.is_segment, seen[0]))


@pytest.mark.fault(34)
def test_restore_needs_read_quorum_and_names_silent_replicas(
    session_on_disk: Session, tmp_path: Path
) -> None:
    path = session_on_disk.path
    replica = FolderReplica(made_folder(tmp_path / "r"), source_of(session_on_disk).log_id)
    shipper = Shipper(
        source_of(session_on_disk), replica, name_of(session_on_disk), lambda why: None
    )
    shipper.ship()
    session_on_disk.close()
    os.rename(path, f"{path}.lost")
    urls = [f"file://{tmp_path}/r", f"file://{tmp_path}/away/1", f"file://{tmp_path}/away/2"]
    named = config.checked_config(urls, 2, log=path)
    with pytest.raises(DurabilityError, match="1 of its 3 replicas") as caught:
        restore.restore_log(path, named)
    assert "away/1" in str(caught.value)
    assert caught.value.hint
    assert not os.path.exists(path)
    term = replica.promised()
    for number in (1, 2):  # an empty replica may have been emptied
        (tmp_path / "away" / str(number)).mkdir(parents=True)
    with pytest.raises(DurabilityError, match="has no data of the log"):
        restore.restore_log(path, named)
    assert restore.restore_log(path, config.checked_config(urls[:1], 1, log=path)) is not None
    assert term is not None
    now = replica.promised()
    assert now is not None
    assert now.generation > term.generation


def test_restore_selects_log_by_path_and_key_or_by_id(
    session_on_disk: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, log_id = session_on_disk.path, source_of(session_on_disk).log_id
    replica = FolderReplica(made_folder(tmp_path / "r"), log_id)
    Shipper(source_of(session_on_disk), replica, name_of(session_on_disk), lambda why: None).ship()
    session_on_disk.close()
    os.rename(path, f"{path}.lost")
    url = f"file://{tmp_path}/r"

    def named(*urls: str) -> config.ReplicaConfig:
        return config.checked_config(urls, None, log=path)

    elsewhere = str(tmp_path / "elsewhere" / "x.nosync")
    assert restore.restore_log(elsewhere, named(url)) is None
    with pytest.raises(SchemaError, match="00000000") as caught:
        restore.restore_log(elsewhere, named(f"{url}#{bytes(16).hex()}"))
    assert log_id.hex() in str(caught.value.hint)
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "other" / "key"))
    with pytest.raises(SchemaError, match="another key") as caught:
        restore.restore_log(path, named(url))
    assert log_id.hex() in str(caught.value)
    assert not os.path.exists(path)
    assert restore.restore_log(elsewhere, named(f"{url}#{log_id.hex()}")) is not None
    with open_session(elsewhere, mode="r") as session:
        assert session.now == 3
    assert named(f"{url}#{log_id.hex()}").replicas[0].url == url


@pytest.mark.fault(14)
def test_missing_part_is_damage_of_acknowledged_copy(
    session_on_disk: Session, tmp_path: Path
) -> None:
    edges = session_on_disk.inputs["edges"]
    edges.insert([(i, i) for i in range(70_000)])
    session_on_disk.commit(wait="disk")
    source = source_of(session_on_disk)
    replica = FolderReplica(made_folder(tmp_path / "r"), source.log_id)
    Shipper(source, replica, NAME, lambda why: None).ship()
    files = Files()
    consistency.examine_copy(files, "url", replica)
    parts = sorted(Path(replica.folder, "layers").iterdir())
    assert parts
    parts[0].unlink()
    with pytest.raises(CorruptLogError, match="is damaged: it acknowledged frame"):
        consistency.examine_copy(files, "url", replica)


def ship_session(session: Session, replica: FolderReplica, poll: TakeoverPoll) -> None:
    shipper = Shipper(source_of(session), replica, NAME, lambda why: poll.ask(0, why))
    ship_all(shipper)


@pytest.mark.fault(15, 32)
def test_old_disk_is_detected_after_replica_dropped_frames(
    tmp_path: Path,
) -> None:
    path, backup = tmp_path / "x.nosync", tmp_path / "backup"
    replica = None
    for opening in range(3):
        with open_session(path) as session:
            edges = session.input("edges", "src int, dst int")
            for i in range(5):
                edges.insert([(opening, i)])
                session.commit()
            if opening == 2:
                checkpoint_now(session)
            session.sync()
            source = source_of(session)
            replica = replica or FolderReplica(made_folder(tmp_path / "r"), source.log_id)
            ship_session(session, replica, TakeoverPoll(1, 1))
        if not backup.exists():
            shutil.copytree(path, backup)
    assert replica is not None
    held = dict(replica.held().files)
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    for opening in range(4):  # the last one has a later generation than the replica
        with open_session(path) as session:
            session.inputs["edges"].insert([(90 + opening, 9)])
            session.commit(wait="disk")
            with pytest.raises(FencedError):
                ship_session(session, replica, TakeoverPoll(1, 1))
    assert dict(replica.held().files) == held


@pytest.mark.fault(32)
def test_old_disk_without_epochs_is_detected(tmp_path: Path) -> None:
    path, backup = tmp_path / "x.nosync", tmp_path / "backup"
    with Log.open(path) as log:
        shutil.copytree(path, backup)
        log.append(payloads.EPOCH, payloads.encode_payload(1, 0.0, {"label": "one"}, []))
        log.sync()
        source = LogSource(str(path), log.generation)
        replica = FolderReplica(made_folder(tmp_path / "r"), source.log_id)
        Shipper(source, replica, NAME, lambda why: TakeoverPoll(1, 1).ask(0, why)).ship()
    held = dict(replica.held().files)
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    for owner in range(3):  # also owners that begin before the replica's end
        with Log.open(path, takeover=True) as log:
            for label in ("another", "one more"):
                log.append(
                    payloads.EPOCH, payloads.encode_payload(owner + 1, 0.0, {"label": label}, [])
                )
            log.sync()
            source = LogSource(str(path), log.generation)
            with pytest.raises(FencedError):
                Shipper(source, replica, NAME, lambda why: TakeoverPoll(1, 1).ask(0, why)).ship()
        assert dict(replica.held().files) == held


@pytest.mark.fault(10)
def test_torn_tail_behind_acknowledged_frames_is_cut(
    session_on_disk: Session, tmp_path: Path
) -> None:
    replica = FolderReplica(made_folder(tmp_path / "r"), source_of(session_on_disk).log_id)
    ship_session(session_on_disk, replica, TakeoverPoll(1, 1))
    whole = consistency.examine_copy(Files(), "url", replica).end
    (segment,) = Path(replica.folder).glob("segment-*")
    acknowledged = segment.stat().st_size
    note = Path(replica.folder, "acknowledged").read_bytes()
    for i in range(40):  # each frame contains the durable mark of the disk
        session_on_disk.inputs["edges"].insert([(i, i)])
        session_on_disk.commit(wait="disk")
    ship_session(session_on_disk, replica, TakeoverPoll(1, 1))
    data = bytearray(segment.read_bytes())
    data[acknowledged : acknowledged + 512] = bytes(512)
    segment.write_bytes(data)
    with pytest.raises(CorruptLogError, match="is damaged"):
        consistency.examine_copy(Files(), "url", replica)
    Path(replica.folder, "acknowledged").write_bytes(note)
    assert consistency.examine_copy(Files(), "url", replica).end == whole


@pytest.mark.fault(32)
def test_copied_log_does_not_use_replicas_of_original(tmp_path: Path) -> None:
    path, copy = tmp_path / "x.nosync", tmp_path / "y.nosync"
    with open_session(path) as session:
        log_id = source_of(session).log_id
    named = config.checked_config([f"file://{tmp_path}/r"], 1, log=str(path))
    config.write_config(Files(), str(path), log_id, named)
    shutil.copytree(path, copy)
    with pytest.raises(TrustError, match="may be a copy"):
        config.read_config(Files(), str(copy), log_id)
    path.rename(tmp_path / "moved.nosync")
    assert config.read_config(Files(), str(tmp_path / "moved.nosync"), log_id) == named


@pytest.mark.fault(44)
def test_unsigned_replica_config_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.nosync"
    with open_session(path) as session:
        session.input("a", "n int")
    forged_config = {"replicas": [f"file://{tmp_path}/theirs"], "quorum": 1}
    Path(path, config.FILE).write_bytes(
        json.dumps(forged_config).encode() + b"\n" + b"0" * 64 + b"\n"
    )
    with open_session(path) as session:
        assert any("no replica is used" in note for note in session.recovery.notes)
        assert session.replicas.status() == []
    assert not (tmp_path / "theirs").exists()


@pytest.mark.fault(12)
def test_damaged_file_is_not_shipped_over_good_copy(
    session_on_disk: Session, tmp_path: Path
) -> None:
    session_on_disk.inputs["edges"].insert([(i, i) for i in range(70_000)])
    session_on_disk.commit(wait="disk")
    checkpoint_now(session_on_disk)
    for i in range(5):
        session_on_disk.inputs["edges"].insert([(i, i)])
        session_on_disk.commit(wait="disk")
    source, name = source_of(session_on_disk), name_of(session_on_disk)
    replica = FolderReplica(made_folder(tmp_path / "r"), source.log_id)
    ship_session(session_on_disk, replica, TakeoverPoll(1, 1))
    shipper = Shipper(source, replica, name, lambda why: None)
    ship_all(shipper)
    good = {path.name: path.read_bytes() for path in Path(replica.folder).rglob("*.*")}
    for path in sorted(Path(session_on_disk.path).rglob("*.*")):
        if path.name not in good or path.suffix not in (".log", ".state", ".arrow", ".pack"):
            continue
        data = path.read_bytes()
        at = min(len(data), len(good[path.name])) - 20
        path.write_bytes(flipped(data, at))
        other = FolderReplica(made_folder(tmp_path / path.name), source.log_id)
        fresh = Shipper(source, other, name, lambda why: None)
        shipper.doubt([path.name])
        for each in (shipper, fresh):
            with pytest.raises(CorruptLogError, match=path.name):
                each.ship()
            assert each.acknowledged is None or each.acknowledged.seq == 0
        assert path.name not in other.held().files
        path.write_bytes(data)
        now = {each.name: each.read_bytes() for each in Path(replica.folder).rglob("*.*")}
        assert {each: now[each] for each in good} == good
    ship_all(shipper)
    assert shipper.acknowledged is not None


def test_frames_are_verified_before_append_to_copy(
    session_on_disk: Session, tmp_path: Path
) -> None:
    source = source_of(session_on_disk)
    replica = FolderReplica(made_folder(tmp_path / "r"), source.log_id)
    shipper = Shipper(source, replica, NAME, lambda why: None)
    ship_all(shipper)
    known = shipper.acknowledged
    for i in range(3):
        session_on_disk.inputs["edges"].insert([(i, i)])
        session_on_disk.commit(wait="disk")
    view = source.current_view()
    assert view is not None
    segment, size = view.extents[-1]
    path = Path(source.folder, segment.name)
    data = path.read_bytes()
    path.write_bytes(flipped(data, size - 30))
    with pytest.raises(CorruptLogError, match="is damaged on this machine"):
        shipper.ship()
    assert shipper.acknowledged == known
    copy = Path(replica.folder, segment.name).read_bytes()
    assert copy == data[: len(copy)]
    assert len(copy) < size
