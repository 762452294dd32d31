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
from nosync_nb.store.replication.agent import keeper as keeper_
from nosync_nb.store.replication.agent import scrub
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
            copied(session, tmp_path / name)
        urls = [f"file://{tmp_path}/{name}" for name in ("a", "b")]
        own = log_of(session).id
        config.write_config(Files(), str(path), own, config.checked_config(urls, 1, log=str(path)))
    return path


def copied(session: Session, folder: Path) -> None:
    """Brings a replica level with a log."""
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
    """It, opened anew; nobody ships."""
    monkeypatch.setattr(
        "nosync_nb.session.durability.replication.ReplicationService.start", lambda _self: None
    )
    with nosync_nb.open(log) as session:
        yield session


def copy_of(log: Path, name: str) -> Path:
    """The folder of a replica's copy."""
    (copy,) = (log.parent / name).iterdir()
    return copy


def spoil(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:150] + bytes([data[150] ^ 8]) + data[151:])


def rows_of(log: Path) -> list[Path]:
    return sorted([*log.glob("layers/*.arrow"), *log.glob("history/*.pack")])


def everything(session: Session) -> list[object]:
    """What every stage holds, at every epoch."""
    names = ("edges", "degrees")
    return [session[n].rows(at=e.number) for n in names for e in session.epochs()] + [
        session["degrees"].count(),
        session["edges"].head(3),
    ]


@pytest.mark.fault(12)
def test_damaged_files_are_had_again_when_they_are_read(log: Path, session: Session) -> None:
    good = {path: path.read_bytes() for path in rows_of(log)}
    expected = everything(session)
    session.close()
    for path in good:
        spoil(path)
    with nosync_nb.open(log) as again:
        assert everything(again) == expected
        said = [line for line in notices_of(again) if "repaired from" in line]
        again.inputs["edges"].insert([(1, 1)])
        again.commit()
        touched = {path.name for path in rows_of(log) if path.read_bytes() == good.get(path)}
    assert said
    assert len(touched) >= len(said)
    kept = list((log / repair.QUARANTINE).iterdir())
    assert len(kept) >= len(said)
    assert not list(log.rglob("*.tmp"))


@pytest.mark.fault(14)
def test_missing_files_are_had_again_when_a_log_is_opened(log: Path, session: Session) -> None:
    good = {path: path.read_bytes() for path in rows_of(log)}
    expected = everything(session)
    session.close()
    for path in good:
        path.unlink()
    (log / "layers" / "x.arrow.ab12.tmp").write_bytes(b"of somebody who died")
    with nosync_nb.open(log) as again:
        assert again.recovery.recomputed == 0
        assert everything(again) == expected
    for path in rows_of(log):
        assert path.read_bytes() == good[path]
    assert not list(log.rglob("*.tmp"))


def test_a_commit_that_meets_a_damaged_file_goes_on(log: Path, session: Session) -> None:
    session.close()
    for path in log.glob("layers/*.arrow"):
        spoil(path)
    with nosync_nb.open(log) as again:
        edges = again.inputs["edges"]
        edges.set([(1, 1), (2, 2)])
        epoch = again.commit()
        assert edges.rows() == [(1, 1), (2, 2)]
        assert again.now == epoch
        assert [line for line in notices_of(again) if "repaired from" in line]


def test_a_definition_that_meets_a_damaged_file_goes_on(log: Path, session: Session) -> None:
    expected = session["edges"].rows()
    session.close()
    for path in log.glob("layers/*.arrow"):
        spoil(path)
    with nosync_nb.open(log) as again:
        again.stage("same", again["edges"].filter("true"))
        assert [line for line in notices_of(again) if "repaired from" in line]
        assert again["same"].rows() == expected


def test_a_copy_that_is_damaged_as_well_is_not_taken(log: Path, session: Session) -> None:
    session.close()
    (part, *_) = log.glob("history/*.pack")
    spoil(part)
    spoil(copy_of(log, "a") / "history" / part.name)
    with nosync_nb.open(log) as again:
        everything(again)
        (said,) = [line for line in notices_of(again) if "repaired from" in line]
    assert "/b" in said


def test_without_a_good_copy_the_error_is_what_it_was(log: Path, session: Session) -> None:
    session.close()
    (pack, *_) = log.glob("history/*.pack")
    spoil(pack)
    bad = pack.read_bytes()
    for name in ("a", "b"):
        (copy_of(log, name) / "history" / pack.name).write_bytes(b"other")
    with nosync_nb.open(log) as again:
        with pytest.raises(CorruptLogError, match=pack.name):
            everything(again)
        again.inputs["edges"].insert([(1, 1)])
        again.commit()
    assert pack.read_bytes() == bad
    (log / "replicas").unlink()
    with nosync_nb.open(log) as again, pytest.raises(CorruptLogError, match=pack.name):
        everything(again)


def test_who_reads_waits_no_longer_than_a_replica_says_anything_and_commits_go_on(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mounted volume hangs: reads of the files end without it, and no lock is held meanwhile."""
    expected = everything(session)
    session.close()
    for path in log.glob("history/*.pack"):
        spoil(path)
    never, asked, committed = threading.Event(), threading.Event(), threading.Event()
    read = FolderReplica.read

    def hang(replica: FolderReplica, name: str, offset: int, size: int) -> bytes:
        if "/a/" in replica.folder:
            asked.set()
            committed.wait()  # of the session, while it is asked
            never.wait()
        return read(replica, name, offset, size)

    monkeypatch.setattr(FolderReplica, "read", hang)
    monkeypatch.setattr(remote_call, "DEFAULT", CallPolicy(silent_s=0.3))
    results: list[object] = []
    with nosync_nb.open(log) as again:
        thread = threading.Thread(target=lambda: results.append(everything(again)))
        thread.start()
        assert asked.wait(60)
        again.inputs["edges"].insert([(9, 9)])
        again.commit()
        committed.set()
        thread.join(60)
        never.set()
        assert not thread.is_alive()
    (rows,) = results
    assert isinstance(rows, list)
    assert rows[:5] == expected[:5]


def test_the_quarantine_has_an_end(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.close()
    sizes = sorted(path.stat().st_size for path in rows_of(log))
    monkeypatch.setattr(repair, "QUARANTINE_BYTES", sizes[-1] + sizes[0])
    for path in rows_of(log):
        spoil(path)
    with nosync_nb.open(log) as again:
        everything(again)
    kept = [path.stat().st_size for path in (log / repair.QUARANTINE).iterdir()]
    assert kept
    assert sum(kept) <= sizes[-1] + sizes[0]


# -- replicas, verified --------------------------------------------------------------------------


def test_replicas_that_are_level_are_told_so(log: Path, session: Session) -> None:
    log_verified = session.verify()
    assert log_verified.whole, log_verified
    assert [each.state for each in log_verified.replicas] == ["level", "level"]
    assert {each.epoch for each in log_verified.replicas} == {session.now}
    assert verified_local_files(str(log)).replicas == log_verified.replicas


@pytest.mark.fault(12, 32)
def test_any_file_that_differs_at_a_replica_is_named(log: Path, session: Session) -> None:
    copy = copy_of(log, "a")
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
def test_a_replica_that_lost_files_differs_and_one_that_is_empty_is_behind(
    log: Path, session: Session
) -> None:
    copy = copy_of(log, "a")
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


def test_a_replica_that_lacks_the_last_epochs_is_behind(log: Path, session: Session) -> None:
    before = session.now
    session.inputs["edges"].insert([(5, 5)])
    session.commit()
    session.sync()
    first, _ = session.verify().replicas
    assert (first.state, first.epoch) == ("behind", before)
    assert session.verify().whole


def test_a_replica_that_does_not_answer_is_unreachable(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()
    held = FolderReplica.held

    def hang(replica: FolderReplica):  # type: ignore[no-untyped-def]
        if "/a/" in replica.folder:
            never.wait()
        return held(replica)

    monkeypatch.setattr(FolderReplica, "held", hang)
    monkeypatch.setattr(remote_call, "DEFAULT", CallPolicy(silent_s=0.3))
    first, second = session.verify().replicas
    never.set()
    assert (first.state, second.state) == ("unreachable", "level")
    assert "has not answered" in first.why


def test_damage_of_this_disk_is_not_told_of_a_replica(log: Path, session: Session) -> None:
    (pack, *_) = log.glob("history/*.pack")
    spoil(pack)
    found = session.verify()
    assert {each.file for each in found.damage} == {pack.name}
    assert [each.state for each in found.replicas] == ["level", "level"]


# -- scrubbing -----------------------------------------------------------------------------------


class Heard:
    """What a scrubber tells, and whom it tells of replicas."""

    def __init__(self, session: Session) -> None:
        self.told: list[ScrubReport | ReplicaProgress] = []
        self.doubted: dict[str, list[str]] = {"a": [], "b": []}
        self.news = threading.Condition()
        store_ = store_of(session)
        replicas = config.read_config(Files(), session.path, store_.log.id).replicas
        pairs = [(each, self.doubted[each.path[-1]].extend) for each in replicas]
        self.scrubber = Scrubber(
            session.path, store_.log.generation, pairs, self.tell, Files(), rate=None
        )

    def tell(self, said: ScrubReport | ReplicaProgress) -> None:
        with self.news:
            self.told.append(said)
            self.news.notify_all()

    def wait(self, holds: Callable[[ScrubReport | ReplicaProgress], bool]) -> int:
        """Waits until something was told; returns how much was told before."""
        with self.news:
            assert self.news.wait_for(lambda: any(map(holds, self.told)), 120), self.told
            return next(i for i, said in enumerate(self.told) if holds(said))

    @property
    def events(self) -> list[str]:
        return [each.event for each in self.told if isinstance(each, ScrubReport) and each.event]


def test_a_scrubber_reads_all_that_does_not_change_and_leaves_what_is_whole(
    log: Path, session: Session
) -> None:
    before = {path: path.stat().st_mtime_ns for path in log.rglob("*") if path.is_file()}
    heard = Heard(session)
    heard.scrubber.round()
    (said,) = heard.told
    assert isinstance(said, ScrubReport)
    total = sum(path.stat().st_size for path in rows_of(log))
    assert (said.rounds, said.repaired, said.event) == (1, 0, "")
    assert said.files >= len(rows_of(log))
    assert said.bytes >= total
    after = {path: path.stat().st_mtime_ns for path in log.rglob("*") if path.is_file()}
    assert after == before
    assert heard.doubted == {"a": [], "b": []}


@pytest.mark.fault(12)
def test_a_scrubber_replaces_what_is_bad_here_and_keeps_the_bad_one(
    log: Path, session: Session
) -> None:
    """Rows, the newest checkpoint, and the segment of the owner before."""
    segment = sorted(log.glob("segment-*"))[0]
    state = sorted(log.glob("checkpoint-*"))[-1]
    for path in [*rows_of(log), state, segment]:
        good = path.read_bytes()
        spoil(path)
        bad = path.read_bytes()
        heard = Heard(session)
        heard.scrubber.round()
        assert path.read_bytes() == good, path
        (event,) = heard.events
        assert path.name in event
        assert "repaired from" in event
        (kept,) = (log / repair.QUARANTINE).iterdir()
        assert kept.read_bytes() == bad
        kept.unlink()
        assert heard.doubted == {"a": [], "b": []}
    assert session.verify().whole


@pytest.mark.fault(12, 15)
@pytest.mark.parametrize("spoilt", ["header", "gone", "another"])
def test_a_scrubber_brings_a_segment_back_whose_header_is_lost(
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
    heard = Heard(session)
    heard.scrubber.round()
    assert "repaired from" in heard.events[0]
    assert path.read_bytes() == good
    assert session.verify().whole


def test_a_scrubber_tells_what_nobody_has_whole(log: Path, session: Session) -> None:
    (pack, *_) = log.glob("history/*.pack")
    spoil(pack)
    for name in ("a", "b"):
        (copy_of(log, name) / "history" / pack.name).unlink()
    heard = Heard(session)
    heard.scrubber.round()
    assert "no replica has an intact copy" in heard.events[0]
    assert heard.doubted == {"a": [], "b": []}, "nothing is sent from a file that is damaged"


@pytest.mark.fault(12)
@pytest.mark.parametrize("after", [1, 2])
def test_a_growing_segment_that_goes_bad_after_a_survey_is_no_fault_of_replicas(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    session.inputs["edges"].insert([(1, 1), (2, 2)])
    session.commit()
    copied(session, log.parent / "a")
    grows = sorted(log.glob("segment-*"))[-1]
    count = 0

    def surveyed(*args: Any) -> LogSurvey:
        nonlocal count
        said = survey_log(*args)
        count += 1
        if count == after:
            spoil(grows)
        return said

    if after == 2:  # something differs at first, so that there is a second look
        there = copy_of(log, "a") / grows.name
        there.write_bytes(there.read_bytes()[:-30] + bytes(30))
    monkeypatch.setattr(scrub, "survey_log", surveyed)
    heard = Heard(session)
    heard.scrubber.round()
    assert count > after
    assert heard.doubted == {"a": [], "b": []}


def test_a_scrubber_of_an_owner_who_was_replaced_changes_nothing(
    log: Path, session: Session
) -> None:
    heard = Heard(session)
    (pack, *_) = log.glob("history/*.pack")
    spoil(pack)
    bad = pack.read_bytes()
    session.close()
    with nosync_nb.open(log):
        with pytest.raises(FencedError):
            heard.scrubber.round()
        assert pack.read_bytes() == bad


@pytest.mark.fault(12, 32)
def test_a_keeper_sends_anew_what_is_bad_at_a_replica_which_has_nothing_for_sure_until_then(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "FIRST_S", 0.0)
    monkeypatch.setattr(scrub, "ROUND_S", 0.05)
    heard = Heard(session)
    bad = sorted([*copy_of(log, "a").glob("history/*.pack"), *copy_of(log, "a").glob("layers/*")])
    good = [path.read_bytes() for path in bad]
    session.sync()
    generation = log_of(session).generation
    reading, writing = os.pipe()
    with FileIO(reading) as news:
        keeper = threading.Thread(
            target=run_keeper, args=(str(log), generation, news, heard.tell), daemon=True
        )
        keeper.start()
        heard.wait(lambda said: isinstance(said, ReplicaProgress) and said.condition == "level")
        for path in bad:
            spoil(path)
        first = heard.wait(
            lambda said: isinstance(said, ScrubReport) and "sent again" in said.event
        )
        level = ReplicaProgress(0, "level")
        with heard.news:
            assert heard.news.wait_for(
                lambda: (
                    any(
                        isinstance(said, ReplicaProgress) and said[:2] == level[:2]
                        for said in heard.told[first:]
                    )
                    and [path.read_bytes() for path in bad] == good
                ),
                120,
            ), heard.told
        doubted = [i for i, said in enumerate(heard.told) if said[:2] == (0, "starting")]
        assert doubted
        os.close(writing)
        keeper.join(120)
    assert not keeper.is_alive()
    assert session.verify().whole


def test_a_scrubber_ends_in_the_middle_of_a_file(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "FIRST_S", 0.0)
    log_ = log_of(session)
    scrubber = Scrubber(session.path, log_.generation, [], lambda said: None, Files(), rate=1.0)
    scrubber.start()
    scrubber.end()
    for thread in threading.enumerate():
        if thread.name == "scrub":
            thread.join(60)
            assert not thread.is_alive()


# -- what nobody has who answers -----------------------------------------------------------------


def drawn(row: Any) -> tuple[int, float]:
    return row.x, random.random()


def test_what_cannot_be_computed_waits_for_a_replica_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nosync_nb.session.durability.replication.ReplicationService.start", lambda _self: None
    )
    path, (here, away) = tmp_path / "y.nosync", (tmp_path / "a", tmp_path / "b")
    with nosync_nb.open(path) as session:
        numbers = session.input("numbers", "x int")
        session.stage("drawn", numbers.map(drawn, "x int, y double"), nondeterministic=True)
        numbers.insert([(x,) for x in range(3 * SPILL_ROWS)])
        session.commit()
        expected = sorted(map(tuple, session["drawn"].rows()))
        before = graph_of(session)
        own = {before.named["drawn"].log, *before.named["drawn"].traces.values()}
        for folder in (here, away):
            folder.mkdir()
            copied(session, folder)
        log_id = log_of(session).id
        urls = [f"file://{here}", f"file://{away}"]
        config.write_config(
            Files(), str(path), log_id, config.checked_config(urls, 1, log=str(path))
        )
    names = [p.name for p in path.glob("layers/*") if int(re.findall(r"\d+", p.name)[0]) in own]
    assert names
    for name in names:
        spoil(path / "layers" / name)
        (copy_of(path, "a") / "layers" / name).unlink()
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
        (copy_of(path, "b") / "layers" / name).unlink()
    with nosync_nb.open(path) as session:
        with pytest.raises(CorruptLogError, match="damaged"):
            session["drawn"].rows()
        assert not catalog_of(session)["drawn"].live


@pytest.mark.parametrize("mount_point", [False, True])
def test_an_opening_takes_nothing_for_lost_while_a_volume_is_not_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount_point: bool
) -> None:
    """Neither its folder, if that is not there, nor what it is mounted over tells of its files."""
    monkeypatch.setattr(
        "nosync_nb.session.durability.replication.ReplicationService.start", lambda _self: None
    )
    path, here, away = tmp_path / "y.nosync", tmp_path / "a", tmp_path / "b"
    with nosync_nb.open(path) as session:
        numbers = session.input("numbers", "x int")
        session.stage("drawn", numbers.map(drawn, "x int, y double"), nondeterministic=True)
        numbers.insert([(x,) for x in range(3 * SPILL_ROWS)])
        session.commit()
        expected = sorted(map(tuple, session["drawn"].rows()))
        log_id = log_of(session).id
        for folder in (here, away):
            folder.mkdir()
            copied(session, folder)
        urls = [f"file://{here}", f"file://{away}"]
        config.write_config(
            Files(), str(path), log_id, config.checked_config(urls, 1, log=str(path))
        )
    for file in path.glob("layers/*.arrow"):
        file.unlink()
        (copy_of(path, "a") / "layers" / file.name).unlink()
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


def test_a_keeper_ends_though_a_mount_hangs(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    never, asked = threading.Event(), threading.Event()
    promise = FolderReplica.promise

    def hang(replica: FolderReplica, *args: Any) -> Any:
        if "/a/" in replica.folder:
            asked.set()
            never.wait()
        return promise(replica, *args)

    monkeypatch.setattr(FolderReplica, "promise", hang)
    monkeypatch.setattr(remote_call, "SHIPPING", CallPolicy(give_up_s=0.0))
    for name, value in (("_GRACE_S", 0.1), ("_LOOK_S", 0.1)):
        monkeypatch.setattr(keeper_, name, value)
    session.sync()
    heard = Heard(session)
    reading, writing = os.pipe()
    generation = log_of(session).generation
    with FileIO(reading) as news:
        keeper = threading.Thread(
            target=run_keeper, args=(str(log), generation, news, heard.tell), daemon=True
        )
        keeper.start()
        assert asked.wait(60)
        os.close(writing)
        keeper.join(60)
        assert not keeper.is_alive()
    lanes = [each for each in threading.enumerate() if each.name.endswith("/a")]
    assert [each.daemon for each in lanes] == [True], "the process ends without it"
    never.set()
    for each in lanes:
        each.join(60)


def test_a_replica_that_fails_while_the_owner_ends_is_tried_again(
    log: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, failed, lanes = threading.Event(), threading.Event(), list[ReplicaWorker]()
    promise, end = FolderReplica.promise, ReplicaWorker.end

    def fail_once(replica: FolderReplica, *args: Any) -> Any:
        if "/a/" in replica.folder and not failed.is_set():
            assert ended.wait(60)
            failed.set()
            raise DurabilityError("the disk is full")
        return promise(replica, *args)

    def told(lane: ReplicaWorker) -> None:
        end(lane)
        lanes.append(lane)
        if len(lanes) == 2:
            ended.set()

    monkeypatch.setattr(ReplicaWorker, "end", told)
    monkeypatch.setattr(FolderReplica, "promise", fail_once)
    session.inputs["edges"].insert([(7, 7)])
    session.commit(wait="disk")
    log_ = log_of(session)
    reading, writing = os.pipe()
    os.close(writing)
    with FileIO(reading) as news:
        run_keeper(str(log), log_.generation, news, Heard(session).tell)
    assert failed.is_set()
    replica = FolderReplica(str(log.parent / "a"), log_.id)
    assert replica.acknowledged() == log_.durable
    replica.close()
