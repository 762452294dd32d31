"""The snapshot server of temp views: its answers, and the files that they need."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from internals import ended, log_of, services_of, settle_background

import nosync_nb
from nosync_nb.rows import Schema
from nosync_nb.spark.execution.tasks import StoredTrace
from nosync_nb.spark.staging.location import StagingArea
from nosync_nb.spark.views import snapshot_server
from nosync_nb.spark.views.snapshot_server import SnapshotServer, StageSnapshot
from nosync_nb.trace import Layer, Trace
from nosync_nb.trace.batch import Batch, Layout, Updates, arrange

SCHEMA = Schema.parse("k bigint")
LAYOUT = Layout(SCHEMA.types)
LARGE = 60_000
"""A number of rows that stay in memory and are too many to travel."""


def batch(start: int, count: int) -> Batch:
    return arrange(LAYOUT, Updates([np.arange(start, start + count)], np.ones(count, np.int64)))


class Session:
    """A session as its server sees it; `traces` are its current stages."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.epoch = 0
        self.traces: dict[str, Trace] = {}

    def snapshot(self, stage: str, at: Any) -> StageSnapshot:
        return StageSnapshot(self.epoch, SCHEMA, self.traces[stage], self.folder)

    def commit(self, stage: str, *batches: Batch) -> None:
        self.epoch += 1
        layers = (Layer(i, i + 1, (each,)) for i, each in enumerate(batches))
        self.traces[stage] = Trace(LAYOUT, tuple(layers))

    def files(self) -> set[str]:
        return set(os.listdir(self.folder))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


@pytest.fixture
def server(session: Session) -> Iterator[SnapshotServer]:
    server = SnapshotServer(session.folder, session.snapshot)
    yield server
    server.close()


def rows(session: Session, trace: StoredTrace) -> int:
    return trace.cut(StagingArea(session.folder), 0, 2**64).rows_count


def test_files_of_last_answer_only_remain_after_many_epochs(
    session: Session, server: SnapshotServer
) -> None:
    for epoch in range(1, 30):
        session.commit("big", batch(epoch, LARGE), batch(-epoch, 10))
        with snapshot_server.stage_snapshot(session.folder, "big") as found:
            assert rows(session, found.trace) == LARGE + 10
        assert len(session.files()) == 1
    server.close()
    assert session.files() == set()


def test_small_layers_travel_in_answer(session: Session, server: SnapshotServer) -> None:
    for epoch in range(400):
        session.commit("some", batch(epoch, 2000))
        with snapshot_server.stage_snapshot(session.folder, "some") as found:
            assert rows(session, found.trace) == 2000
    assert session.files() == set()


def test_layer_is_written_once_for_many_readers(session: Session, server: SnapshotServer) -> None:
    first = batch(0, LARGE)
    session.commit("big", first)
    session.traces["other"] = session.traces["big"]
    with snapshot_server.stage_snapshot(session.folder, "big"):
        written = session.files()
    session.traces["big"] = session.traces["big"].appended(Layer(1, 2, (batch(LARGE, 10),)))
    with snapshot_server.stage_snapshot(session.folder, "big") as found:
        assert rows(session, found.trace) == LARGE + 10
    assert session.files() == written
    assert len(written) == 1


@pytest.mark.fault(41)
def test_files_being_read_are_retained(session: Session, server: SnapshotServer) -> None:
    session.commit("big", batch(0, LARGE))
    with snapshot_server.stage_snapshot(session.folder, "big") as old:
        for epoch in range(1, 5):
            session.commit("big", batch(epoch, LARGE))
            snapshot_server.ask_session(session.folder, "big")
        assert len(session.files()) == 2
        assert rows(session, old.trace) == LARGE
        server.close()
        assert rows(session, old.trace) == LARGE
    assert session.files() == set()


def test_dropped_stage_leaves_no_files(session: Session, server: SnapshotServer) -> None:
    session.commit("big", batch(0, LARGE))
    snapshot_server.ask_session(session.folder, "big")
    assert len(session.files()) == 1
    server.forget("big")
    assert session.files() == set()


class SocketSquatter:
    """Binds the first socket names of a folder and never answers, as another user might."""

    def __init__(self, folder: Path | str, count: int) -> None:
        self.sockets = []
        for name in snapshot_server.socket_addresses(str(folder))[:count]:
            taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            taken.bind(name)
            taken.listen(0)
            self.sockets.append(taken)

    def __enter__(self) -> None:
        for each in list(self.sockets):  # its queue is full: a connection does not even wait
            for _ in range(3):
                client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                client.setblocking(False)
                with contextlib.suppress(OSError):
                    client.connect(each.getsockname())
                self.sockets.append(client)

    def __exit__(self, *_: object) -> None:
        for each in self.sockets:
            each.close()


def view_of(session: nosync_nb.Session) -> SnapshotServer:
    """The snapshot server of a session, without Spark."""
    number = log_of(session).generation
    return SnapshotServer(session.path, services_of(session).spark_connection.snapshot, number)


def rows_seen(folder: Path) -> int:
    return snapshot_server.ask_session(str(folder), "given").rows


def test_replaced_session_is_answered_by_its_successor(tmp_path: Path) -> None:
    old = nosync_nb.open(tmp_path / "log")
    given = old.input("given", "x int")
    given.insert([(1,)])
    old.commit()
    first = view_of(old)
    new = nosync_nb.open(tmp_path / "log", takeover=True)
    second = view_of(new)
    new["given"].insert([(2,)])  # type: ignore[attr-defined]
    new.commit()
    assert rows_seen(tmp_path / "log") == 2
    second.close()
    assert rows_seen(tmp_path / "log") == 2  # read from the log, not from the old session
    new.close()
    first.close()
    old.close()


def test_session_replaced_during_request_hangs_up(tmp_path: Path) -> None:
    old = nosync_nb.open(tmp_path / "log")
    old.input("given", "x int").insert([(1,)])
    old.commit()
    new = nosync_nb.open(tmp_path / "log", takeover=True)
    new["given"].insert([(2,)])  # type: ignore[attr-defined]
    new.commit()
    late = SnapshotServer(
        old.path, services_of(old).spark_connection.snapshot, log_of(new).generation
    )
    assert rows_seen(tmp_path / "log") == 2
    assert ended(late)
    new.close()
    old.close()


def test_closed_session_answers_no_request(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        session.input("given", "x int").insert([(1,)])
        session.commit()
        server = view_of(session)
        assert rows_seen(tmp_path / "log") == 1
    assert rows_seen(tmp_path / "log") == 1
    server.close()


def test_foreign_owner_of_socket_name_is_ignored(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        session.input("given", "x int").insert([(1,)])
        session.commit()
        with SocketSquatter(session.path, 1):
            server = view_of(session)
            assert rows_seen(tmp_path / "log") == 1
            server.close()
        with SocketSquatter(session.path, snapshot_server.NAMES):
            with pytest.raises(OSError, match="in use"):
                view_of(session)
            assert rows_seen(tmp_path / "log") == 1


def test_session_of_another_release_is_error_with_remedy(
    session: Session, server: SnapshotServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier release answers with classes of a removed module, `nosync_nb.spark.serving`."""
    session.commit("some", batch(0, 10))
    monkeypatch.setattr(
        snapshot_server.pickle, "dumps", lambda served: b"cnosync_nb.spark.serving\nServed\n."
    )
    with (
        pytest.raises(nosync_nb.NosyncError, match="runs another release of nosync") as caught,
        snapshot_server.stage_snapshot(session.folder, "some"),
    ):
        pytest.fail("the answer was loaded")
    assert caught.value.hint == "restart its kernel, then read again"


def test_folder_without_session_is_read_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        given = session.input("given", "x int")
        session.stage("twice", given.concat(given))
        for x in range(3):
            given.insert([(x,)])
            session.commit(label=f"l{x}")
        moment = session.epochs()[2].committed_at
        settle_background(session)

    def made(*_: Any, **__: Any) -> None:
        raise AssertionError("a session is made")

    monkeypatch.setattr(nosync_nb.Session, "__init__", made)
    folder = str(tmp_path / "log")
    for at, count in ((None, 6), (2, 4), ("l0", 2), (str(moment), 4)):
        found = snapshot_server.ask_session(folder, "twice", at)
        assert rows_of(found) == count, at
    with pytest.raises(nosync_nb.TimeError, match="epoch 4 is not readable"):
        snapshot_server.ask_session(folder, "twice", 4)
    with pytest.raises(nosync_nb.StageError, match="no stage or input 'twise'"):
        snapshot_server.ask_session(folder, "twise")


@pytest.mark.parametrize("by", ["session", "folder"])
def test_undone_epoch_is_not_confused_with_new_one(tmp_path: Path, by: str) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        given = session.input("given", "x int")
        for x in range(4):
            given.insert([(x,)])
            session.commit(label=f"l{x}")
        server = view_of(session) if by == "session" else None
        folder = str(tmp_path / "log")
        pins = {at: snapshot_server.ask_session(folder, "given", at).pin for at in (2, 4, "l3")}
        with snapshot_server.stage_snapshot(folder, "given", None, "app/1") as now:
            assert now.rows == 4
        session.rewind(to=3)
        with pytest.raises(nosync_nb.TimeError, match="epoch 4 is not readable"):
            snapshot_server.ask_session(folder, "given", 4, pin=pins[4])
        given.insert([(9,), (9,)])
        session.commit()
        assert rows_of(snapshot_server.ask_session(folder, "given", 2, pin=pins[2])) == 2
        assert rows_of(snapshot_server.ask_session(folder, "given", 4)) == 5
        for at in (4, "l3"):
            with pytest.raises(nosync_nb.TimeError, match="epoch 4 was undone") as told:
                snapshot_server.ask_session(folder, "given", at, pin=pins[at])
            assert "session.branches" in told.value.__notes__[0]
        anew = snapshot_server.ask_session(folder, "given", 4).pin
        if server is not None:  # the rest of a query that began before
            with (
                pytest.raises(nosync_nb.TimeError, match="was undone"),
                snapshot_server.stage_snapshot(folder, "given", None, "app/1"),
            ):
                pass
            server.close()
        session.rewind(to=1)
        session.commit()
        assert session.now == 2
        with pytest.raises(nosync_nb.TimeError, match="epoch 2 was undone"):
            snapshot_server.ask_session(folder, "given", 2, pin=pins[2])
        with pytest.raises(nosync_nb.TimeError):
            snapshot_server.ask_session(folder, "given", 4, pin=anew)


def test_memory_only_stage_is_read_through_socket_only(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        given = session.input("given", "x int")
        even = given.filter("x % 2 = 0")
        session.define({"even": even}, persist="memory")
        given.insert([(x,) for x in range(10)])
        session.commit()
        server = view_of(session)
        folder = str(tmp_path / "log")
        assert rows_of(snapshot_server.ask_session(folder, "even")) == 5
        server.close()
        with pytest.raises(nosync_nb.TimeError, match="in memory only"):
            snapshot_server.ask_session(folder, "even")


def rows_of(served: snapshot_server.SerializedSnapshot) -> int:
    """The rows that a reader gets, with copies."""
    trace = served.trace.cut(StagingArea(served.folder), 0, 2**64)
    return int(trace.consolidated().diff.sum())
