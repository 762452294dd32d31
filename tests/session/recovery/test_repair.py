"""Repair from replicas: a damaged file is refetched and verified at its first read."""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from internals import (
    catalog_of,
    checkpoint_now,
    graph_of,
    log_of,
    notices_of,
    settle_background,
    store_of,
)

import nosync_nb
from nosync_nb import Session
from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError
from nosync_nb.files.filesystem import Files
from nosync_nb.session.maintenance import maintenance
from nosync_nb.store import store
from nosync_nb.store.replication import config, remote_call
from nosync_nb.store.replication.agent import keeper, scrub
from nosync_nb.store.replication.agent.keeper import ReplicaWorker, run_keeper
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.progress import ReplicaProgress
from nosync_nb.store.replication.agent.scrub import Scrubber, ScrubReport
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.comparison import verified_local_files
from nosync_nb.store.replication.protocol import LogName
from nosync_nb.store.replication.remote_call import CallPolicy
from nosync_nb.store.replication.restore import repair
from nosync_nb.store.verification.survey import LogSurvey, survey_log

SPILL_ROWS = 40


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    monkeypatch.setattr(store, "SPILL_ROWS", SPILL_ROWS)
    monkeypatch.setattr(maintenance, "SPILL_ROWS", SPILL_ROWS)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A closed log with parts and packs, and two replicas that hold all of it."""
    path = tmp_path / "x.nosync"
    with nosync_nb.open(path) as session:
        edges = session.input("edges", "src int, dst int")
        session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        for epoch in range(1, 14):
            count = 3 * SPILL_ROWS if epoch % 5 == 2 else 3
            edges.insert([(i % 60, epoch * 100 + i) for i in range(count)])
            session.commit()
            if epoch in (5, 10):
                settle_background(session)
                checkpoint_now(session)
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            ship_all(session, tmp_path / name)
        urls = [f"file://{tmp_path}/{name}" for name in ("a", "b")]
        own = log_of(session).id
        config.write_config(Files(), str(path), own, config.checked_config(urls, 1, log=str(path)))
    return path


def ship_all(session: Session, folder: Path) -> None:
    """Ships everything of a log to a replica."""
    session.sync()
    log = log_of(session)
    source = LogSource(session.path, log.generation)
    replica = FolderReplica(str(folder), log.id)
    shipper = Shipper(source, replica, LogName(session.path, "me"), lambda why: None)
    while shipper.ship():
        pass
    replica.close()
    source.close()


@pytest.fixture
def session(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """The log, opened again without shipping."""
    monkeypatch.setattr(
        "nosync_nb.session.durability.replication.ReplicationService.start", lambda _self: None
    )
    with nosync_nb.open(log) as session:
        yield session


def replica_copy(log: Path, name: str) -> Path:
    """The folder of the copy at a replica."""
    (copy,) = (log.parent / name).iterdir()
    return copy


def flip_bit(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:150] + bytes([data[150] ^ 8]) + data[151:])


def row_files(log: Path) -> list[Path]:
    return sorted([*log.glob("layers/*.arrow"), *log.glob("history/*.pack")])


def every_read(session: Session) -> list[object]:
    """The rows of every collection at every epoch, and some current reads."""
    names = ("edges", "degrees")
    return [session[n].rows(at=e.number) for n in names for e in session.epochs()] + [
        session["degrees"].count(),
        session["edges"].head(3),
    ]


@pytest.mark.fault(12)
def test_damaged_files_are_repaired_when_they_are_read(log: Path, session: Session) -> None:
    good = {path: path.read_bytes() for path in row_files(log)}
    expected = every_read(session)
    session.close()
    for path in good:
        flip_bit(path)
    with nosync_nb.open(log) as again:
        assert every_read(again) == expected
        notices = [line for line in notices_of(again) if "repaired from" in line]
        again.inputs["edges"].insert([(1, 1)])
        again.commit()
        touched = {path.name for path in row_files(log) if path.read_bytes() == good.get(path)}
    assert notices
    assert len(touched) >= len(notices)
    quarantined = list((log / repair.QUARANTINE).iterdir())
    assert len(quarantined) >= len(notices)
    assert not list(log.rglob("*.tmp"))


@pytest.mark.fault(14)
def test_missing_files_are_refetched_when_a_log_is_opened(log: Path, session: Session) -> None:
    good = {path: path.read_bytes() for path in row_files(log)}
    expected = every_read(session)
    session.close()
    for path in good:
        path.unlink()
    (log / "layers" / "x.arrow.ab12.tmp").write_bytes(b"left by a crash")
    with nosync_nb.open(log) as again:
        assert again.recovery.recomputed == 0
        assert every_read(again) == expected
    for path in row_files(log):
        assert path.read_bytes() == good[path]
    assert not list(log.rglob("*.tmp"))


@pytest.mark.parametrize("act", ["commit", "definition"])
def test_commit_or_definition_repairs_damaged_files(log: Path, session: Session, act: str) -> None:
    expected = session["edges"].rows()
    session.close()
    for path in log.glob("layers/*.arrow"):
        flip_bit(path)
    with nosync_nb.open(log) as again:
        if act == "commit":
            again.inputs["edges"].set([(1, 1), (2, 2)])
            assert again.commit() == again.now
            assert again["edges"].rows() == [(1, 1), (2, 2)]
        else:
            again.stage("same", again["edges"].filter("true"))
            assert again["same"].rows() == expected
        assert [line for line in notices_of(again) if "repaired from" in line]


def test_damaged_replica_copy_is_skipped_by_a_repair(log: Path, session: Session) -> None:
    session.close()
    (part, *_) = log.glob("history/*.pack")
    flip_bit(part)
    flip_bit(replica_copy(log, "a") / "history" / part.name)
    with nosync_nb.open(log) as again:
        every_read(again)
        (notice,) = [line for line in notices_of(again) if "repaired from" in line]
    assert "/b" in notice


def test_damage_without_an_intact_copy_is_reported_as_corruption(
    log: Path, session: Session
) -> None:
    session.close()
    (pack, *_) = log.glob("history/*.pack")
    flip_bit(pack)
    bad = pack.read_bytes()
    for name in ("a", "b"):
        (replica_copy(log, name) / "history" / pack.name).write_bytes(b"other")
    with nosync_nb.open(log) as again:
        with pytest.raises(CorruptLogError, match=pack.name):
            every_read(again)
        again.inputs["edges"].insert([(1, 1)])
        again.commit()
    assert pack.read_bytes() == bad
    (log / "replicas").unlink()
    with nosync_nb.open(log) as again, pytest.raises(CorruptLogError, match=pack.name):
        every_read(again)


def test_repair_times_out_a_hanging_replica_while_commits_continue(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mounted volume hangs: reads of the files end without it and take no lock meanwhile."""
    expected = every_read(session)
    session.close()
    for path in log.glob("history/*.pack"):
        flip_bit(path)
    never, requested, committed = threading.Event(), threading.Event(), threading.Event()
    read = FolderReplica.read

    def hang(replica: FolderReplica, name: str, offset: int, size: int) -> bytes:
        if "/a/" in replica.folder:
            requested.set()
            committed.wait()  # the session commits during this request
            never.wait()
        return read(replica, name, offset, size)

    monkeypatch.setattr(FolderReplica, "read", hang)
    monkeypatch.setattr(remote_call, "DEFAULT", CallPolicy(silent_s=0.3))
    results: list[object] = []
    with nosync_nb.open(log) as again:
        thread = threading.Thread(target=lambda: results.append(every_read(again)))
        thread.start()
        assert requested.wait(60)
        again.inputs["edges"].insert([(9, 9)])
        again.commit()
        committed.set()
        thread.join(60)
        never.set()
        assert not thread.is_alive()
    (rows,) = results
    assert isinstance(rows, list)
    assert rows[:5] == expected[:5]


def test_quarantine_is_limited(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.close()
    sizes = sorted(path.stat().st_size for path in row_files(log))
    monkeypatch.setattr(repair, "QUARANTINE_BYTES", sizes[-1] + sizes[0])
    for path in row_files(log):
        flip_bit(path)
    with nosync_nb.open(log) as again:
        every_read(again)
    sizes_quarantined = [path.stat().st_size for path in (log / repair.QUARANTINE).iterdir()]
    assert sizes_quarantined
    assert sum(sizes_quarantined) <= sizes[-1] + sizes[0]


# -- replicas, verified --------------------------------------------------------------------------


def test_verify_reports_level_replicas(log: Path, session: Session) -> None:
    log_verified = session.verify()
    assert log_verified.whole, log_verified
    assert [each.state for each in log_verified.replicas] == ["level", "level"]
    assert {each.epoch for each in log_verified.replicas} == {session.now}
    assert verified_local_files(str(log)).replicas == log_verified.replicas


@pytest.mark.fault(12, 32)
def test_verify_names_each_differing_file_of_a_replica(log: Path, session: Session) -> None:
    copy = replica_copy(log, "a")
    for path in sorted(copy.rglob("*")):
        if path.suffix not in (".log", ".state", ".arrow", ".pack"):
            continue
        good = path.read_bytes()
        for bad in (good[:80] + bytes([good[80] ^ 1]) + good[81:], good[:-1] + b"x", b""):
            path.write_bytes(bad)
            first, second = session.verify().replicas
            if path.suffix == ".log" and not bad:
                assert first.state in ("behind", "differs"), first
            else:
                assert first.state == "differs", (path, first)
                assert {each.file for each in first.damage} == {path.name}
            assert second.state == "level"
        path.write_bytes(good)
    assert session.verify().whole


@pytest.mark.fault(31)
def test_verify_reports_lost_files_as_differs_and_empty_replica_as_behind(
    log: Path, session: Session
) -> None:
    copy = replica_copy(log, "a")
    (part, *_) = copy.glob("layers/*.arrow")
    part.unlink()
    first, _ = session.verify().replicas
    assert (first.state, [each.file for each in first.damage]) == ("differs", [part.name])
    shutil.rmtree(copy)
    first, _ = session.verify().replicas
    assert first.state == "behind"
    shutil.rmtree(copy.parent)
    first, _ = session.verify().replicas
    assert first.state in ("unreachable", "behind")


def test_verify_reports_a_replica_without_the_last_epochs_as_behind(
    log: Path, session: Session
) -> None:
    before = session.now
    session.inputs["edges"].insert([(5, 5)])
    session.commit()
    session.sync()
    first, _ = session.verify().replicas
    assert (first.state, first.epoch) == ("behind", before)
    assert session.verify().whole


def test_verify_reports_a_silent_replica_as_unreachable(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    list_held = FolderReplica.held

    def hang(replica: FolderReplica):  # type: ignore[no-untyped-def]
        if "/a/" in replica.folder:
            never.wait()
        return list_held(replica)

    monkeypatch.setattr(FolderReplica, "held", hang)
    monkeypatch.setattr(remote_call, "DEFAULT", CallPolicy(silent_s=0.3))
    first, second = session.verify().replicas
    never.set()
    assert (first.state, second.state) == ("unreachable", "level")
    assert "has not answered" in first.why


def test_verify_blames_no_replica_for_local_damage(log: Path, session: Session) -> None:
    (pack, *_) = log.glob("history/*.pack")
    flip_bit(pack)
    found = session.verify()
    assert {each.file for each in found.damage} == {pack.name}
    assert [each.state for each in found.replicas] == ["level", "level"]


# -- scrubbing -----------------------------------------------------------------------------------


class ScrubListener:
    """Records the messages of a scrubber, and the files that it doubts at each replica."""

    def __init__(self, session: Session) -> None:
        self.messages: list[ScrubReport | ReplicaProgress] = []
        self.doubted: dict[str, list[str]] = {"a": [], "b": []}
        self.news = threading.Condition()
        store_ = store_of(session)
        replicas = config.read_config(Files(), session.path, store_.log.id).replicas
        pairs = [(each, self.doubted[each.path[-1]].extend) for each in replicas]
        self.scrubber = Scrubber(
            session.path, store_.log.generation, pairs, self.tell, Files(), rate=None
        )

    def tell(self, message: ScrubReport | ReplicaProgress) -> None:
        with self.news:
            self.messages.append(message)
            self.news.notify_all()

    def wait(self, holds: Callable[[ScrubReport | ReplicaProgress], bool]) -> int:
        """Waits for a message that satisfies `holds`; returns its index."""
        with self.news:
            assert self.news.wait_for(lambda: any(map(holds, self.messages)), 120), self.messages
            return next(i for i, message in enumerate(self.messages) if holds(message))

    @property
    def events(self) -> list[str]:
        return [
            each.event for each in self.messages if isinstance(each, ScrubReport) and each.event
        ]


def test_scrubber_reads_all_immutable_files_and_changes_none(log: Path, session: Session) -> None:
    before = {path: path.stat().st_mtime_ns for path in log.rglob("*") if path.is_file()}
    listener = ScrubListener(session)
    listener.scrubber.round()
    (report,) = listener.messages
    assert isinstance(report, ScrubReport)
    total = sum(path.stat().st_size for path in row_files(log))
    assert (report.rounds, report.repaired, report.event) == (1, 0, "")
    assert report.files >= len(row_files(log))
    assert report.bytes >= total
    after = {path: path.stat().st_mtime_ns for path in log.rglob("*") if path.is_file()}
    assert after == before
    assert listener.doubted == {"a": [], "b": []}


@pytest.mark.fault(12)
def test_scrubber_replaces_damaged_files_and_quarantines_them(log: Path, session: Session) -> None:
    """Checks row files, the newest checkpoint, and the segment of the former owner."""
    segment = sorted(log.glob("segment-*"))[0]
    state = sorted(log.glob("checkpoint-*"))[-1]
    for path in [*row_files(log), state, segment]:
        good = path.read_bytes()
        flip_bit(path)
        bad = path.read_bytes()
        listener = ScrubListener(session)
        listener.scrubber.round()
        assert path.read_bytes() == good, path
        (event,) = listener.events
        assert path.name in event
        assert "repaired from" in event
        (quarantined,) = (log / repair.QUARANTINE).iterdir()
        assert quarantined.read_bytes() == bad
        quarantined.unlink()
        assert listener.doubted == {"a": [], "b": []}
    assert session.verify().whole


@pytest.mark.fault(12, 15)
@pytest.mark.parametrize("spoilt", ["header", "gone", "another"])
def test_scrubber_restores_a_segment_with_a_lost_header(
    log: Path, session: Session, spoilt: str
) -> None:
    path, newest = sorted(log.glob("segment-*"))
    good = path.read_bytes()
    if spoilt == "gone":
        path.unlink()
    else:
        bad = newest.read_bytes() if spoilt == "another" else good[:20] + b"\xff" + good[21:]
        path.write_bytes(bad)
    assert {each.file for each in session.verify().damage} == {path.name}
    listener = ScrubListener(session)
    listener.scrubber.round()
    assert "repaired from" in listener.events[0]
    assert path.read_bytes() == good
    assert session.verify().whole


def test_scrubber_reports_damage_without_an_intact_copy(log: Path, session: Session) -> None:
    (pack, *_) = log.glob("history/*.pack")
    flip_bit(pack)
    for name in ("a", "b"):
        (replica_copy(log, name) / "history" / pack.name).unlink()
    listener = ScrubListener(session)
    listener.scrubber.round()
    assert "no replica has an intact copy" in listener.events[0]
    assert listener.doubted == {"a": [], "b": []}, "a damaged file is not sent"


@pytest.mark.fault(12)
@pytest.mark.parametrize("after", [1, 2])
def test_growing_segment_damaged_after_a_survey_blames_no_replica(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    session.inputs["edges"].insert([(1, 1), (2, 2)])
    session.commit()
    ship_all(session, log.parent / "a")
    grows = sorted(log.glob("segment-*"))[-1]
    count = 0

    def damaging_survey(*args: Any) -> LogSurvey:
        nonlocal count
        survey = survey_log(*args)
        count += 1
        if count == after:
            flip_bit(grows)
        return survey

    if after == 2:  # a first difference causes a second survey
        remote = replica_copy(log, "a") / grows.name
        remote.write_bytes(remote.read_bytes()[:-30] + bytes(30))
    monkeypatch.setattr(scrub, "survey_log", damaging_survey)
    listener = ScrubListener(session)
    listener.scrubber.round()
    assert count > after
    assert listener.doubted == {"a": [], "b": []}


def test_scrubber_of_a_fenced_owner_changes_nothing(log: Path, session: Session) -> None:
    listener = ScrubListener(session)
    (pack, *_) = log.glob("history/*.pack")
    flip_bit(pack)
    bad = pack.read_bytes()
    session.close()
    with nosync_nb.open(log):
        with pytest.raises(FencedError):
            listener.scrubber.round()
        assert pack.read_bytes() == bad


@pytest.mark.fault(12, 32)
def test_keeper_resends_damaged_replica_files_and_reports_starting(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "FIRST_S", 0.0)
    monkeypatch.setattr(scrub, "ROUND_S", 0.05)
    listener = ScrubListener(session)
    bad = sorted(
        [*replica_copy(log, "a").glob("history/*.pack"), *replica_copy(log, "a").glob("layers/*")]
    )
    good = [path.read_bytes() for path in bad]
    session.sync()
    generation = log_of(session).generation
    reading, writing = os.pipe()
    with FileIO(reading) as news:
        thread = threading.Thread(
            target=run_keeper, args=(str(log), generation, news, listener.tell), daemon=True
        )
        thread.start()
        listener.wait(
            lambda message: isinstance(message, ReplicaProgress) and message.condition == "level"
        )
        for path in bad:
            flip_bit(path)
        first = listener.wait(
            lambda message: isinstance(message, ScrubReport) and "sent again" in message.event
        )
        level = ReplicaProgress(0, "level")
        with listener.news:
            assert listener.news.wait_for(
                lambda: (
                    any(
                        isinstance(message, ReplicaProgress) and message[:2] == level[:2]
                        for message in listener.messages[first:]
                    )
                    and [path.read_bytes() for path in bad] == good
                ),
                120,
            ), listener.messages
        doubted = [
            i for i, message in enumerate(listener.messages) if message[:2] == (0, "starting")
        ]
        assert doubted
        os.close(writing)
        thread.join(120)
    assert not thread.is_alive()
    assert session.verify().whole


def test_scrubber_ends_in_the_middle_of_a_file(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "FIRST_S", 0.0)
    log_ = log_of(session)
    scrubber = Scrubber(session.path, log_.generation, [], lambda report: None, Files(), rate=1.0)
    scrubber.start()
    scrubber.end()
    for thread in threading.enumerate():
        if thread.name == "scrub":
            thread.join(60)
            assert not thread.is_alive()


# -- files that no reachable replica has ---------------------------------------------------------


def draw_random(row: Any) -> tuple[int, float]:
    return row.x, random.random()


def random_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[tuple[Any, ...]], set[int | None]]:
    """Makes a log with a nondeterministic stage and two replicas, `a` and `b`.

    Returns:
        Its rows, and the numbers of its log and traces.
    """
    monkeypatch.setattr(
        "nosync_nb.session.durability.replication.ReplicationService.start", lambda _self: None
    )
    with nosync_nb.open(path) as session:
        numbers = session.input("numbers", "x int")
        session.stage("drawn", numbers.map(draw_random, "x int, y double"), nondeterministic=True)
        numbers.insert([(x,) for x in range(3 * SPILL_ROWS)])
        session.commit()
        for name in ("a", "b"):
            path.with_name(name).mkdir()
            ship_all(session, path.with_name(name))
        urls = [path.with_name(name).as_uri() for name in ("a", "b")]
        settings = config.checked_config(urls, 1, log=str(path))
        config.write_config(Files(), str(path), log_of(session).id, settings)
        node = graph_of(session).named["drawn"]
        rows = sorted(map(tuple, session["drawn"].rows()))
        return rows, {node.log, *node.traces.values()}


def test_memoised_rows_wait_for_an_unreachable_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, away = tmp_path / "y.nosync", tmp_path / "b"
    expected, numbers_of_logs = random_log(path, monkeypatch)
    names = [
        p.name
        for p in path.glob("layers/*")
        if int(re.findall(r"\d+", p.name)[0]) in numbers_of_logs
    ]
    assert names
    for name in names:
        flip_bit(path / "layers" / name)
        (replica_copy(path, "a") / "layers" / name).unlink()
    away.rename(tmp_path / "elsewhere")
    with nosync_nb.open(path) as session:
        with pytest.raises(CorruptLogError, match="damaged"):
            session["drawn"].rows()
        assert catalog_of(session)["drawn"].live
        (tmp_path / "elsewhere").rename(away)
        assert sorted(map(tuple, session["drawn"].rows())) == expected
    for name in names:
        file = path / "layers" / name
        file.write_bytes(file.read_bytes()[:-16])
        (replica_copy(path, "b") / "layers" / name).unlink()
    with nosync_nb.open(path) as session:
        with pytest.raises(CorruptLogError, match="damaged"):
            session["drawn"].rows()
        assert not catalog_of(session)["drawn"].live


@pytest.mark.parametrize("mount_point", [False, True])
def test_unmounted_volume_does_not_count_as_loss_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount_point: bool
) -> None:
    """A missing or empty mount point says nothing about the files of its volume."""
    path, away = tmp_path / "y.nosync", tmp_path / "b"
    expected, _ = random_log(path, monkeypatch)
    for file in path.glob("layers/*.arrow"):
        file.unlink()
        (replica_copy(path, "a") / "layers" / file.name).unlink()
    away.rename(tmp_path / "elsewhere")
    if mount_point:
        away.mkdir()
    with nosync_nb.open(path) as session:
        assert catalog_of(session)["drawn"].live
        with pytest.raises(CorruptLogError, match="no replica has an intact copy"):
            session["drawn"].rows()
        assert catalog_of(session)["drawn"].live
        if mount_point:
            away.rmdir()
        (tmp_path / "elsewhere").rename(away)
        assert sorted(map(tuple, session["drawn"].rows())) == expected


def test_keeper_ends_while_a_mount_hangs(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    never, requested = threading.Event(), threading.Event()
    promise = FolderReplica.promise

    def hang(replica: FolderReplica, *args: Any) -> Any:
        if "/a/" in replica.folder:
            requested.set()
            never.wait()
        return promise(replica, *args)

    monkeypatch.setattr(FolderReplica, "promise", hang)
    monkeypatch.setattr(remote_call, "SHIPPING", CallPolicy(give_up_s=0.0))
    for name, value in (("_GRACE_S", 0.1), ("_LOOK_S", 0.1)):
        monkeypatch.setattr(keeper, name, value)
    session.sync()
    listener = ScrubListener(session)
    reading, writing = os.pipe()
    generation = log_of(session).generation
    with FileIO(reading) as news:
        thread = threading.Thread(
            target=run_keeper, args=(str(log), generation, news, listener.tell), daemon=True
        )
        thread.start()
        assert requested.wait(60)
        os.close(writing)
        thread.join(60)
        assert not thread.is_alive()
    workers = [each for each in threading.enumerate() if each.name.endswith("/a")]
    assert [each.daemon for each in workers] == [True], "the process ends without it"
    never.set()
    for each in workers:
        each.join(60)


def test_failing_replica_is_retried_while_the_owner_ends(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, failed, workers = threading.Event(), threading.Event(), list[ReplicaWorker]()
    promise, end = FolderReplica.promise, ReplicaWorker.end

    def fail_once(replica: FolderReplica, *args: Any) -> Any:
        if "/a/" in replica.folder and not failed.is_set():
            assert ended.wait(60)
            failed.set()
            raise DurabilityError("the disk is full")
        return promise(replica, *args)

    def end_and_record(worker: ReplicaWorker) -> None:
        end(worker)
        workers.append(worker)
        if len(workers) == 2:
            ended.set()

    monkeypatch.setattr(ReplicaWorker, "end", end_and_record)
    monkeypatch.setattr(FolderReplica, "promise", fail_once)
    session.inputs["edges"].insert([(7, 7)])
    session.commit(wait="disk")
    log_ = log_of(session)
    reading, writing = os.pipe()
    os.close(writing)
    with FileIO(reading) as news:
        run_keeper(str(log), log_.generation, news, ScrubListener(session).tell)
    assert failed.is_set()
    replica = FolderReplica(str(log.parent / "a"), log_.id)
    assert replica.acknowledged() == log_.durable
    replica.close()
