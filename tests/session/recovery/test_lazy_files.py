"""Restore of a lost disk: frames first, files of rows when they are read."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checks.sessions import wait_until_level
from internals import checkpoint_now, services_of

import nosync_nb
from nosync_nb.errors import CorruptLogError, DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication import remote_call
from nosync_nb.store.replication.address import ReplicaAddress, parse_address
from nosync_nb.store.replication.remote_call import CallPolicy
from nosync_nb.store.replication.restore import lazy_fetch
from nosync_nb.store.replication.restore.lazy_fetch import FetchWorker

WAIT_S = 120.0
ROWS = 70_000


pytestmark = pytest.mark.usefixtures("own_key")


@pytest.fixture
def no_background_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetches files only when they are read."""
    monkeypatch.setattr(lazy_fetch.LazyFetcher, "start", lambda self: None)


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    return [f"file://{tmp_path}/replica-{i}" for i in range(3)]


def lose_log(path: Path, urls: list[str], *, packed: bool = False) -> list[Any]:
    """Makes a log with a large input and a small stage on all replicas, and deletes its folder."""
    with nosync_nb.open(path, replicas=urls) as session:
        edges = session.input("edges", "src int, dst int")
        session.stage("degrees", edges.group_by("src").agg(n="count(*)"))
        edges.insert([(i % 100, i) for i in range(ROWS)])
        session.commit()
        if packed:
            edges.insert([(1, -1)])
            session.commit()
            checkpoint_now(session)
        session.sync("replicas")
        wait_until_level(session)
        rows = session["degrees"].rows()
    shutil.rmtree(path)
    return rows


def files_in(path: Path) -> list[str]:
    return sorted(p.name for inner in ("layers", "history") for p in (path / inner).iterdir())


def replica_files(tmp_path: Path, number: int) -> list[Path]:
    """The row files of a replica."""
    return [
        p for p in (tmp_path / f"replica-{number}").rglob("*") if p.suffix in (".arrow", ".pack")
    ]


@pytest.mark.fault(33)
@pytest.mark.usefixtures("no_background_fetch")
@pytest.mark.parametrize("packed", [False, True])
def test_lost_disk_fetches_only_files_that_are_read(
    tmp_path: Path, urls: list[str], packed: bool
) -> None:
    path = tmp_path / "x.nosync"
    rows = lose_log(path, urls, packed=packed)
    with nosync_nb.open(path, replicas=urls) as session:
        assert files_in(path) == []
        missing = session.info.missing_files
        assert missing.files
        assert any("are not yet on this machine" in note for note in session.recovery.notes)
        assert session["degrees"].rows() == rows
        read = services_of(session).lazy_fetcher.files_read
        assert read <= 1 + packed
        assert session.inputs["edges"].count() == ROWS + packed
        assert len(session.inputs["edges"].rows()) == ROWS + packed
        assert services_of(session).lazy_fetcher.files_read > read
        assert session["degrees"].rows(at=1)[0] == (0, 700)
        assert session.recovery.recomputed == 0
        session.inputs["edges"].insert([(7, 7)])
        session.commit(wait="replicas", timeout=WAIT_S)
        assert session["degrees"].rows()[7] == (7, rows[7].n + 1)


@pytest.mark.fault(33, 36)
@pytest.mark.usefixtures("no_background_fetch")
def test_log_killed_before_all_files_are_fetched_continues(
    tmp_path: Path, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.nosync"
    lose_log(path, urls)
    with nosync_nb.open(path, replicas=urls) as session:
        count = session.info.missing_files.files
    half = path / "layers" / "log1-1-g1-ab.arrow.0123.tmp"
    half.write_bytes(b"half")
    monkeypatch.undo()
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "key"))
    with nosync_nb.open(path) as session:  # the log has the signed addresses of the replicas
        assert not half.exists()
        services_of(session).lazy_fetcher.complete()
        assert count > session.info.missing_files.files == 0
        wait_until_level(session)
    for number in range(3):
        shutil.rmtree(tmp_path / f"replica-{number}")
    with nosync_nb.open(path) as session:
        assert len(session.inputs["edges"].rows()) == ROWS


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


@pytest.mark.fault(14, 15, 33)
@pytest.mark.usefixtures("no_background_fetch")
@pytest.mark.parametrize("harm", [damage, cut, os.unlink], ids=["damaged", "cut", "missing"])
def test_damaged_file_is_fetched_from_another_copy(
    tmp_path: Path, urls: list[str], harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "x.nosync"
    lose_log(path, urls)
    for number in (0, 1):
        for each in replica_files(tmp_path, number):
            harm(each)
    with nosync_nb.open(path, replicas=urls) as session:
        assert len(session.inputs["edges"].rows()) == ROWS
        assert session.recovery.recomputed == 0


@pytest.mark.fault(14, 15, 34)
@pytest.mark.usefixtures("no_background_fetch")
def test_file_without_an_intact_copy_is_named_and_others_are_readable(
    tmp_path: Path, urls: list[str]
) -> None:
    path = tmp_path / "x.nosync"
    rows = lose_log(path, urls)
    saved = tmp_path / "kept"
    shutil.copytree(tmp_path / "replica-0", saved)
    for number in range(3):
        for each in replica_files(tmp_path, number):
            damage(each)
    with nosync_nb.open(path, replicas=urls) as session:
        assert session["degrees"].rows() == rows
        with pytest.raises(CorruptLogError, match="no replica has an intact copy"):
            session.inputs["edges"].rows()
        assert files_in(path) == []
        shutil.rmtree(tmp_path / "replica-0")
        shutil.copytree(saved, tmp_path / "replica-0")
        assert len(session.inputs["edges"].rows()) == ROWS


@pytest.mark.fault(29, 34)
@pytest.mark.usefixtures("no_background_fetch")
def test_unreachable_replicas_are_reported_and_asked_again(tmp_path: Path, urls: list[str]) -> None:
    path = tmp_path / "x.nosync"
    rows = lose_log(path, urls)
    with nosync_nb.open(path, replicas=urls) as session:
        for number in range(3):
            os.rename(tmp_path / f"replica-{number}", tmp_path / f"away-{number}")
        assert session["degrees"].rows() == rows
        with pytest.raises(
            (CorruptLogError, DurabilityError), match=r"is missing|has not been fetched yet"
        ):
            session.inputs["edges"].rows()
        for number in range(3):
            os.rename(tmp_path / f"away-{number}", tmp_path / f"replica-{number}")
        assert len(session.inputs["edges"].rows()) == ROWS


@pytest.mark.fault(33, 35)
@pytest.mark.usefixtures("no_background_fetch")
def test_copy_with_damaged_frames_is_skipped(tmp_path: Path, urls: list[str]) -> None:
    path = tmp_path / "x.nosync"
    rows = lose_log(path, urls)
    (segment,) = (tmp_path / "replica-0").rglob("segment-*")
    damage(segment)
    with nosync_nb.open(path, replicas=urls) as session:
        assert session["degrees"].rows() == rows


@pytest.mark.fault(33)
@pytest.mark.usefixtures("no_background_fetch")
def test_lagging_replica_waits_for_files_that_are_not_local(
    tmp_path: Path, urls: list[str]
) -> None:
    path = tmp_path / "x.nosync"
    lose_log(path, urls)
    shutil.rmtree(tmp_path / "replica-2")
    with nosync_nb.open(path, replicas=urls) as session:
        replication = services_of(session).replication
        with replication.heard:
            assert replication.heard.wait_for(
                lambda: "which the log names, is missing" in replication.status()[2].why, WAIT_S
            )
            assert replication.status()[2].state == "failing"
        assert session.frontiers["edges"].disk == 0
        services_of(session).lazy_fetcher.complete()
        assert session.frontiers["edges"].disk == 1
        wait_until_level(session)
    assert replica_files(tmp_path, 2)


@pytest.mark.usefixtures("no_background_fetch")
def test_fetch_aborted_by_close_is_not_damage(
    tmp_path: Path, urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Background work fetches a file while the session is closed."""
    path = tmp_path / "log"
    rows = lose_log(path, urls)
    session = nosync_nb.open(path, replicas=urls)
    begun, cut_off = threading.Event(), threading.Event()

    def blocking_bring(self: FetchWorker, *_: Any, **__: Any) -> None:
        begun.set()
        assert cut_off.wait(WAIT_S)
        raise CorruptLogError("the file is damaged: it is empty")

    with monkeypatch.context() as patch:
        patch.setattr(FetchWorker, "bring", blocking_bring)
        patch.setattr(FetchWorker, "close", lambda self: cut_off.set())
        services_of(session).worker.submit("read", services_of(session).lazy_fetcher.complete)
        assert begun.wait(WAIT_S)
        session.close()
    with nosync_nb.open(path) as again:
        assert again["degrees"].rows() == rows
        assert len(again["edges"]) == ROWS


class Closing(threading.Event):
    """An event that records the requested timeouts instead of waiting, and is set at the fifth."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if len(self.waits) == 5:
            self.set()
        return self.is_set()


def test_fetcher_backs_off_while_no_replica_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, requests = Closing(), [0]
    unreachable = parse_address(f"file://{tmp_path}/away")

    def replicas() -> list[ReplicaAddress]:
        requests[0] += 1
        if requests[0] == 100:  # the fetcher retries without a pause
            closing.set()
        return [unreachable]

    fake_threading = SimpleNamespace(
        Event=lambda: closing,
        Lock=threading.Lock,
        Condition=threading.Condition,
        Thread=threading.Thread,
    )
    monkeypatch.setattr(lazy_fetch, "threading", fake_threading)
    monkeypatch.setattr(lazy_fetch, "_GRACE_S", 0.5)
    monkeypatch.setattr(remote_call, "FETCH", CallPolicy(retry_s=(2, 10)))
    fetcher = lazy_fetch.LazyFetcher(Files(), str(tmp_path), bytes(16), replicas)
    assert fetcher.expect([FileReference(f"log1-1-g3-a{i}.arrow") for i in range(2)]) == frozenset()
    fetcher.start()
    for thread in threading.enumerate():
        if thread.name == "nosync fetching":
            thread.join(WAIT_S)
    assert closing.waits == [0.5, 2, 4, 8, 10]
