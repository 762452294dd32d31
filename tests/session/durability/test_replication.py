"""Replicas of a session: quorums, waits, losses and other owners, with real keepers."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest
from internals import checkpoint_now, log_of, services_of
from machines.replica_servers import ReplicaServer, keepers

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import DurabilityError, FencedError, OutcomeUnknownError, SchemaError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.durability.replication import ReplicaStatus, ReplicationService
from nosync_nb.store import store
from nosync_nb.store.log.segments import HEADER_BYTES
from nosync_nb.store.replication.agent.keeper import NICE
from nosync_nb.store.replication.backends.folder import FolderReplica, read_promise
from nosync_nb.store.replication.config import checked_config, read_config
from nosync_nb.store.replication.protocol import LogName, OwnerTerm

WAIT_S = 120.0


pytestmark = pytest.mark.usefixtures("own_key")


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    return [f"file://{tmp_path}/replica-{i}" for i in range(3)]


def open_replicated(path: Path, urls: list[str], **options: int) -> Session:
    """A session with a stage, and an epoch on a quorum of its replicas."""
    session = nosync_nb.open(path, replicas=urls, **options)
    edges = session.input("edges", "src int, dst int")
    session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
    edges.insert([(1, 2), (1, 3)])
    session.commit(wait="replicas", timeout=WAIT_S)
    return session


def replication(session: Session) -> ReplicationService:
    return services_of(session).replication


def wait_until(
    session: Session, holds: Callable[[list[ReplicaStatus]], bool]
) -> list[ReplicaStatus]:
    """Waits until the status of the replicas satisfies a condition; returns it."""
    with replication(session).heard:
        satisfied = replication(session).heard.wait_for(
            lambda: holds(replication(session).status()), WAIT_S
        )
    assert satisfied, replication(session).status()
    return replication(session).status()


@pytest.mark.fault(33)
def test_epoch_reaches_each_level_and_survives_the_loss_of_the_disk(
    tmp_path: Path, urls: list[str]
) -> None:
    path = tmp_path / "x.nosync"
    with open_replicated(path, urls) as session:
        wait_until(session, lambda all_: all(each.epoch == 1 for each in all_))
        assert session.frontiers["degrees"] == (1, 1, 1)
        assert session.recovery_frontier("disk") == session.recovery_frontier("disk", lost=2) == 1
        assert session.recovery_frontier("disk", lost=3) == 0
        rows = session["degrees"].rows()
    shutil.rmtree(path)
    shutil.rmtree(tmp_path / "replica-1")
    with nosync_nb.open(path, replicas=urls) as session:
        assert session["degrees"].rows() == rows
        assert session.recovery.recomputed == 0
        assert any("restored from" in note for note in session.recovery.notes)
        session.inputs["edges"].insert([(7, 7)])
        assert session.commit(wait="replicas", timeout=WAIT_S) == 2
        wait_until(session, lambda all_: all(each.epoch == 2 for each in all_))


@pytest.mark.fault(27)
def test_keeper_of_a_killed_kernel_ships_what_was_written(tmp_path: Path, urls: list[str]) -> None:
    path = tmp_path / "x.nosync"
    program = f"""
import os, signal
import nosync_nb
session = nosync_nb.open({str(path)!r}, replicas={urls!r})
edges = session.input("edges", "src int, dst int")
session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
edges.insert([(1, 2)])
session.commit(wait="replicas", timeout={WAIT_S})
for i in range(50):
    edges.insert([(i, i)])
    session.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=WAIT_S)
    assert ended.returncode == -signal.SIGKILL
    for pid in keepers(path):
        wait_for_end(pid)
    shutil.rmtree(path)
    with nosync_nb.open(path, replicas=urls) as session:
        assert session.now == 51
        assert sum(row.n for row in session["degrees"].rows()) == 51


def test_emptied_replicas_do_not_let_an_old_copy_overwrite_safe_epochs(
    tmp_path: Path, urls: list[str]
) -> None:
    path, image = tmp_path / "x.nosync", tmp_path / "image"
    open_replicated(path, urls).close()
    shutil.copytree(path, image)
    with nosync_nb.open(path, replicas=urls, quorum=2) as session:
        session.inputs["edges"].insert([(7, 7)])
        assert session.commit(wait="replicas", timeout=WAIT_S) == 2
        wait_until(session, lambda all_: all_[1].epoch == 2)
    shutil.rmtree(path)
    shutil.copytree(image, path)
    for number in (0, 2):
        shutil.rmtree(tmp_path / f"replica-{number}")
        (tmp_path / f"replica-{number}").mkdir()
    for _ in range(2):
        with nosync_nb.open(path, replicas=urls, quorum=2, takeover=True) as session:
            wait_until(session, lambda all_: all_[1].state in ("ahead", "fenced"))
    shutil.rmtree(path)
    with nosync_nb.open(path, replicas=urls[1:2], on_loss="gap") as session:
        assert session.now == 2
        assert (7, 7) in session["edges"].rows()


def test_lower_quorum_is_recorded_at_all_replicas(tmp_path: Path, urls: list[str]) -> None:
    path = tmp_path / "x.nosync"
    with open_replicated(path, urls) as session:
        wait_until(session, lambda all_: all(each.epoch == 1 for each in all_))
        nosync_nb.open(path, replicas=urls, quorum=1)
        session.inputs["edges"].insert([(7, 7)])
        session.commit(wait="replicas", timeout=WAIT_S)
        wait_until(session, lambda all_: all(each.epoch == 2 for each in all_))
        log_id = log_of(session).id
        for number in range(3):
            copy = str(tmp_path / f"replica-{number}" / log_id.hex())
            promise = read_promise(Files(), copy)
            assert promise is not None
            assert promise.name.quorum == 1


def test_relative_key_file_is_resolved_from_the_kernel(
    tmp_path: Path, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOSYNC_KEY_FILE", "keys/key")
    with open_replicated(tmp_path / "x.nosync", urls[:1]) as session:
        session.sync("replicas", timeout=WAIT_S)


def wait_for_end(pid: int) -> None:
    """Waits for the end of a process that is not a child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], WAIT_S)[0]
    finally:
        os.close(descriptor)


@pytest.mark.fault(27)
def test_keeper_that_dies_is_restarted(tmp_path: Path, urls: list[str]) -> None:
    path = tmp_path / "x.nosync"
    with open_replicated(path, urls) as session:
        (pid,) = keepers(path)
        os.kill(pid, signal.SIGKILL)
        session.inputs["edges"].insert([(2, 2)])
        assert session.commit(wait="replicas", timeout=WAIT_S) == 2
        assert pid not in keepers(path)


def test_keeper_yields_processors_to_commits(tmp_path: Path, urls: list[str]) -> None:
    """The keeper has a scheduling group of its own, so its nice value counts for the group."""
    with open_replicated(tmp_path / "x.nosync", urls) as session:
        (pid,) = keepers(Path(session.path))
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.nice(0) + NICE, 19)
        group = Path(f"/proc/{pid}/autogroup")
        if group.exists() and "autogroup-0 " not in group.read_text():
            assert group.read_text().endswith(f"nice {NICE}\n")
        ours = sorted(os.sched_getaffinity(0))
        assert sorted(os.sched_getaffinity(pid)) == ours[len(ours) // 2 :]


def test_sync_waits_for_definitions(tmp_path: Path, urls: list[str]) -> None:
    path = tmp_path / "x.nosync"
    with open_replicated(path, urls[:1]) as session:
        (pid,) = keepers(path)
        os.kill(pid, signal.SIGSTOP)
        try:
            session.stage("late", session["edges"].filter("src = 1"))
            with pytest.raises(DurabilityError, match="0 of 1 replicas"):
                session.sync("replicas", timeout=0.2)
            assert session.recovery_frontier("disk", stage="late") == 0
            assert session.recovery_frontier("disk") == session.frontiers["edges"].replicas == 1
        finally:
            os.kill(pid, signal.SIGCONT)
        session.sync("replicas", timeout=WAIT_S)
        assert session.recovery_frontier("disk", stage="late") == 1
        assert session.recovery_frontier("disk", 0, "late") == session.frontiers["late"].replicas
        assert session.recovery_frontier("disk", 1, "late") == 0


@pytest.mark.fault(29)
def test_unreachable_replica_delays_nothing_and_is_reported(
    tmp_path: Path, urls: list[str]
) -> None:
    away = f"file://{tmp_path}/not/there"
    with open_replicated(tmp_path / "x.nosync", [*urls[:2], away]) as session:
        status = wait_until(session, lambda all_: all_[2].state == "failing")
        assert "does not exist" in status[2].why
        assert re.search(r"; since \d\d:\d\d:\d\d$", status[2].why)
        assert session.frontiers["edges"].replicas == 1
        session.inputs["edges"].insert([(2, 2)])
        assert session.commit(wait="replicas", timeout=WAIT_S) == 2
        status = wait_until(session, lambda all_: all_[0].epoch == all_[1].epoch == 2)
        stream = HEADER_BYTES + log_of(session).head.offset
        assert [(each.behind, each.behind_bytes) for each in status] == [
            (0, 0),
            (0, 0),
            (2, stream),
        ]
        assert status[0].behind_s == 0 < status[2].behind_s
        (tmp_path / "not" / "there").mkdir(parents=True)
        (last,) = wait_until(session, lambda all_: all_[2].epoch == 2)[2:]
        assert (last.state, last.behind, last.behind_bytes, last.behind_s) == ("level", 0, 0, 0)


@pytest.mark.fault(29)
def test_timeout_of_a_replica_wait_reports_the_committed_epoch(
    tmp_path: Path, urls: list[str]
) -> None:
    path = tmp_path / "x.nosync"
    with open_replicated(path, urls[:1]) as session:
        shutil.rmtree(tmp_path / "replica-0")
        (tmp_path / "replica-0").write_text("")  # prevents a folder of that name
        wait_until(session, lambda all_: all_[0].state == "failing")
        session.inputs["edges"].insert([(2, 2)])
        with pytest.raises(OutcomeUnknownError, match="epoch 2") as caught:
            session.commit(wait="replicas", timeout=0.2)
        assert caught.value.epoch == 2
        assert session.now == 2
        with pytest.raises(DurabilityError, match="0 of 1 replicas have epoch 2"):
            session.sync("replicas", timeout=0.2)
        (tmp_path / "replica-0").unlink()
        (tmp_path / "replica-0").mkdir()
        session.sync("replicas", timeout=WAIT_S)


@pytest.mark.fault(48)
def test_interrupt_of_a_replica_wait_reports_the_committed_epoch(
    tmp_path: Path, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_replicated(tmp_path / "x.nosync", urls[:1]) as session:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(replication(session), "wait", interrupt)
        with pytest.raises(OutcomeUnknownError, match="interrupted") as caught:
            session.commit(wait="replicas")
        assert caught.value.epoch == session.now == 2


def test_replica_of_a_later_owner_fences_this_session(tmp_path: Path, urls: list[str]) -> None:
    path = tmp_path / "x.nosync"
    with open_replicated(path, urls) as session:
        log_id = log_of(session).id
        later = FolderReplica(str(tmp_path / "replica-0"), log_id)
        later.promise(OwnerTerm(99, "another"), LogName(str(path), ""))
        with suppress(FencedError):  # the keeper may have read the fencing record already
            session.inputs["edges"].insert([(2, 2)])
            session.commit()
        publisher = services_of(session).publisher
        status = wait_until(session, lambda all_: all_[0].state == "fenced" and publisher.fenced)
        assert "generation 99" in status[0].why
        session.discard()
        now, degrees = session.now, len(session["degrees"].rows())
        assert (now, degrees) in [(1, 1), (2, 2)]
        with pytest.raises(FencedError, match="generation 99"):
            session.inputs["edges"].insert([(3, 3)])
        with pytest.raises(FencedError, match="generation 99"):
            session.commit()
        assert session.now == now
        session.discard()
        assert len(session["degrees"].rows()) == degrees


def test_replicas_of_the_last_opening_are_kept_and_can_be_changed(
    tmp_path: Path, urls: list[str]
) -> None:
    path = tmp_path / "x.nosync"
    open_replicated(path, urls[:1]).close()
    with nosync_nb.open(path) as session:
        assert [each.url for each in replication(session).status()] == urls[:1]
        wait_until(session, lambda all_: all_[0].epoch == 1)
        same = nosync_nb.open(path, replicas=urls, quorum=3)
        assert same is session
        wait_until(session, lambda all_: [each.epoch for each in all_] == [1, 1, 1])
        assert session.frontiers["edges"].replicas == 1
    with nosync_nb.open(path, quorum=1) as session:
        assert replication(session).settings.quorum == 1
    with nosync_nb.open(path, replicas=[]) as session:
        assert session.frontiers["edges"].replicas is None
        with pytest.raises(DurabilityError, match="no replicas"):
            session.commit(wait="replicas")
        assert session.now == 1
    with pytest.raises(SchemaError, match="without replicas"):
        nosync_nb.open(path, quorum=1)
    with pytest.raises(SchemaError, match="the log's owner"):
        nosync_nb.open(path, mode="r", replicas=urls)


def test_commit_makes_no_call_for_replicas(
    tmp_path: Path, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_replicated(tmp_path / "x.nosync", urls[:1]) as session:
        session.sync()
        called = Event()
        monkeypatch.setattr(ReplicationService, "wait", lambda *_: called.set())
        monkeypatch.setattr(ReplicationService, "safe", lambda *_: called.set())
        session.inputs["edges"].insert([(2, 2)])
        session.commit()
        assert not called.is_set()


@pytest.mark.fault(32)
def test_copy_behind_two_urls_counts_once(tmp_path: Path) -> None:
    server = ReplicaServer(tmp_path / "d").start()
    try:
        here = f"file://{tmp_path}/d"
        with nosync_nb.open(tmp_path / "x.nosync", replicas=[here, server.url]) as session:
            session.input("edges", "src int, dst int").insert([(1, 2)])
            session.commit()
            status = wait_until(session, lambda all_: all(each.epoch or each.why for each in all_))
            twice = [each for each in status if not each.epoch]
            assert [each.state for each in twice] == ["failing"]
            (other,) = {here, server.url} - {twice[0].url}
            assert f"is the same copy as '{other}'" in twice[0].why
            assert "run `%dd replicas remove` for one of the two" in twice[0].why
            assert session.recovery_frontier("disk") == 0
            replication(session).change(checked_config([here], None, log=session.path))
            wait_until(session, lambda all_: all(each.epoch == 1 for each in all_))
            assert session.recovery_frontier("disk", lost=0) == 1
        shutil.rmtree(tmp_path / "x.nosync")
        with pytest.raises(DurabilityError, match="1 of its 2 replicas can be read; 2 are needed"):
            nosync_nb.open(tmp_path / "x.nosync", replicas=[here, server.url], quorum=1)
    finally:
        server.end()


def test_backlog_bytes_equal_the_bytes_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither trimmed frames nor frames that the replica has are counted."""
    monkeypatch.setattr(store, "SPILL_ROWS", 40)
    path, away = tmp_path / "x.nosync", tmp_path / "not" / "there"

    def add(rows: int) -> None:
        numbers.insert([(x,) for x in range(rows)])
        session.commit()

    with nosync_nb.open(path) as session:
        numbers = session.input("numbers", "x int")
        for epoch in range(40):
            add(100 if epoch == 7 else 9)
            if epoch % 10 == 9:
                checkpoint_now(session)
        session.sync()
    with nosync_nb.open(path, replicas=[f"file://{away}"]) as session:
        numbers = session.inputs["numbers"]
        (lacks,) = wait_until(session, lambda all_: all_[0].state == "failing")
        away.mkdir(parents=True)
        (level,) = wait_until(session, lambda all_: all_[0].state == "level")
        assert level.bytes_sent == lacks.behind_bytes
        away.rename(tmp_path / "elsewhere")
        wait_until(session, lambda all_: all_[0].state == "failing")
        before = {*path.rglob("layers/*.arrow")}
        head = log_of(session).head.offset
        add(120)
        session.sync()
        files = sum(each.stat().st_size for each in {*path.rglob("layers/*.arrow")} - before)
        frames = log_of(session).head.offset - head
        assert files
        wait_until(session, lambda all_: all_[0].behind_bytes == files + frames)
        (tmp_path / "elsewhere").rename(away)
        (again,) = wait_until(session, lambda all_: all_[0].state == "level")
        assert again.bytes_sent - level.bytes_sent == files + frames


@pytest.mark.fault(33)
def test_lower_quorum_takes_effect_after_enough_replicas_confirm_it(
    tmp_path: Path, urls: list[str]
) -> None:
    path, away = tmp_path / "x.nosync", [tmp_path / f"replica-{i}" for i in (1, 2)]
    with open_replicated(path, urls) as session:
        wait_until(session, lambda all_: all(each.epoch == 1 for each in all_))
        for folder in away:
            folder.rename(folder.with_suffix(".away"))
            folder.write_text("")  # prevents a folder of that name
        replication(session).change(checked_config(urls, 1, log=session.path))
        session.inputs["edges"].insert([(2, 2)])
        session.commit()
        wait_until(session, lambda all_: all_[0].epoch == 2)
        assert session.recovery_frontier("disk") == session.frontiers["edges"].replicas == 1
        with pytest.raises(
            DurabilityError,
            match="the lower quorum takes effect when 1 more replicas have confirmed it",
        ):
            session.sync("replicas", timeout=0.1)
        assert read_config(Files(), session.path, log_of(session).id).former
        away[0].unlink()
        away[0].with_suffix(".away").rename(away[0])
        session.sync("replicas", timeout=WAIT_S)
        assert session.recovery_frontier("disk") == 2
        assert not read_config(Files(), session.path, log_of(session).id).former


@pytest.mark.fault(24)
def test_owner_refused_by_replicas_is_followed_by_an_accepted_one(
    tmp_path: Path, urls: list[str]
) -> None:
    path = tmp_path / "x.nosync"
    with open_replicated(path, urls[:1]) as session:
        log_id = log_of(session).id
    FolderReplica(str(tmp_path / "replica-0"), log_id).promise(
        OwnerTerm(99, "another"), LogName(str(path), "")
    )
    with nosync_nb.open(path) as session:
        (status,) = wait_until(session, lambda all_: all_[0].state == "fenced")
        assert "close it and open the log again" in status.why
    with nosync_nb.open(path) as session:
        assert log_of(session).generation == 100
        session.inputs["edges"].insert([(2, 2)])
        assert session.commit(wait="replicas", timeout=WAIT_S) == 2


@pytest.mark.fault(32)
def test_replica_with_frames_of_another_log_is_reported(tmp_path: Path, urls: list[str]) -> None:
    ids = []
    for number in range(2):
        with open_replicated(tmp_path / f"{number}.nosync", urls[number : number + 1]) as session:
            ids.append(log_of(session).id.hex())
    own = tmp_path / "replica-0" / ids[0]
    shutil.rmtree(own)
    shutil.copytree(tmp_path / "replica-1" / ids[1], own)
    with nosync_nb.open(tmp_path / "0.nosync") as session:
        (status,) = wait_until(session, lambda all_: bool(all_[0].why))
        assert status.state == "failing"
        assert f"holds frames of log {ids[1]}" in status.why
        assert f"delete the copy '{ids[0]}'" in status.why
        session.inputs["edges"].insert([(2, 2)])
        session.commit()
        shutil.rmtree(own)
        session.sync("replicas", timeout=WAIT_S)
        assert wait_until(session, lambda all_: all_[0].epoch == 2)


def block_frames(session: Session, folder: Path) -> list[Path]:
    """Makes a replica refuse frames, but not fencing records; returns the blocking folders."""
    copy = folder / log_of(session).id.hex()
    names = [path.name for path in Path(session.path).glob("segment-*")]
    assert names
    for name in names:
        (copy / name).unlink(missing_ok=True)
        (copy / name).mkdir()
    return [copy / name for name in names]


@pytest.mark.fault(27, 33)
def test_announced_epochs_stay_announced_after_changes_and_keeper_restart(
    tmp_path: Path, urls: list[str]
) -> None:
    path, replaced = tmp_path / "x.nosync", tmp_path / "replica-1"
    with open_replicated(path, urls) as session:
        wait_until(session, lambda all_: all(each.epoch == 1 for each in all_))
        replaced.rename(tmp_path / "away")
        replaced.write_text("")  # prevents a folder of that name
        replication(session).change(checked_config(urls[:2], 2, log=session.path))
        assert session.frontiers["edges"].replicas == 1
        wait_until(session, lambda all_: [each.state for each in all_] == ["level", "failing"])
        assert [each.epoch for each in replication(session).status()] == [1, 1]
        (pid,) = keepers(path)
        os.kill(pid, signal.SIGKILL)
        wait_until(session, lambda all_: "keeper" in all_[0].why)
        assert session.recovery_frontier("disk") == 1
        wait_until(session, lambda all_: all_[0].state == "level" and "keeper" not in all_[1].why)
        assert session.frontiers["edges"].replicas == 1
        copy = FolderReplica(str(tmp_path / "made"), log_of(session).id)
        (tmp_path / "made").mkdir()
        copy.promise(OwnerTerm(0, ""), LogName("", ""))
        (Path(copy.folder) / "acknowledged").mkdir()  # it cannot acknowledge
        replaced.unlink()
        (tmp_path / "made").rename(replaced)  # another copy, which is empty
        wait_until(session, lambda all_: all_[1].epoch == 0)
        assert session.frontiers["edges"].replicas == 0


@pytest.mark.fault(33)
def test_higher_quorum_is_recorded_after_enough_replicas_have_safe_epochs(
    tmp_path: Path, urls: list[str]
) -> None:
    path, others = tmp_path / "x.nosync", [tmp_path / f"replica-{i}" for i in (1, 2)]
    with open_replicated(path, urls, quorum=1) as session:
        wait_until(session, lambda all_: all(each.epoch == 1 for each in all_))
        log_id = log_of(session).id

        def recorded_quorums() -> list[int]:
            copies = (str(tmp_path / f"replica-{i}" / log_id.hex()) for i in range(3))
            promises = [read_promise(Files(), copy) for copy in copies]
            return [each.name.quorum for each in promises if each is not None]

        blockers = [path for folder in others for path in block_frames(session, folder)]
        session.inputs["edges"].insert([(2, 2)])
        session.commit(wait="replicas", timeout=WAIT_S)
        replication(session).change(checked_config(urls, 2, log=session.path))
        wait_until(
            session, lambda all_: [each.state for each in all_] == ["level"] + 2 * ["failing"]
        )
        assert recorded_quorums() == [1, 1, 1]
        assert session.recovery_frontier("disk") == 2
        session.inputs["edges"].insert([(3, 3)])
        with pytest.raises(OutcomeUnknownError):
            session.commit(wait="replicas", timeout=0.1)
        for each in blockers:
            each.rmdir()
        session.sync("replicas", timeout=WAIT_S)
        settings = replication(session)
        wait_until(session, lambda all_: not settings.settings.former)
        wait_until(session, lambda all_: all(each.state == "level" for each in all_))
        assert recorded_quorums() == [2, 2, 2]
        assert not read_config(Files(), session.path, log_id).former
        assert session.recovery_frontier("disk") == 3


@pytest.mark.fault(31)
def test_old_copy_put_back_does_not_acknowledge_missing_epochs(
    tmp_path: Path, urls: list[str]
) -> None:
    path, folder = tmp_path / "x.nosync", tmp_path / "replica-0"
    with open_replicated(path, urls[:1]) as session:
        shutil.copytree(folder, tmp_path / "backup")
        for i in range(2):
            session.inputs["edges"].insert([(i, 7)])
            session.commit(wait="replicas", timeout=WAIT_S)
        folder.rename(tmp_path / "away")
        (tmp_path / "backup").rename(folder)
        session.inputs["edges"].insert([(9, 9)])
        assert session.commit(wait="replicas", timeout=WAIT_S) == 4
        rows = session["degrees"].rows()
    shutil.rmtree(path)
    with nosync_nb.open(path, replicas=urls[:1]) as session:
        assert session.now == 4
        assert session["degrees"].rows() == rows
