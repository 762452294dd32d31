"""`open` and `close`: one owner, readers beside it, and replaced owners."""

from __future__ import annotations

import errno
import gc
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checks.sessions import run_threads, values
from internals import (
    checkpoint_now,
    lose_patience,
    merge_trace,
    services_of,
    settle_background,
    store_of,
    traces_of,
)

import nosync_nb
from nosync_nb import DurabilityError, FencedError, NosyncError, SchemaError, Session, StageError
from nosync_nb.session.maintenance import maintenance
from nosync_nb.session.reads import log_follower
from nosync_nb.session.recovery import recover
from nosync_nb.store import store

pytestmark = pytest.mark.usefixtures("own_key")

ANOTHER = """
import sys, nosync_nb
session = nosync_nb.open(sys.argv[1])
numbers = session.input("numbers", "x int")
session.stage("odd", numbers.filter("x % 2 = 1"))
numbers.insert([(1,), (2,)])
session.commit()
print("ready", flush=True)
for line in sys.stdin:
    try:
        numbers.insert([(int(line),)])
        print(session.commit(), flush=True)
    except nosync_nb.FencedError as error:
        print("fenced", session.now, len(session.pending), flush=True)
        session.discard()
"""


class OtherProcess:
    """Another process that owns the log; it commits each number that it receives."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ANOTHER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def commit(self, number: int) -> str:
        assert self.process.stdin
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return self.answer()


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[OtherProcess]:
    process = OtherProcess(tmp_path / "log")
    yield process
    process.process.kill()
    process.process.communicate()


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and the time of its last change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
    }


# -- one process -----------------------------------------------------------------------------------


def test_opening_twice_returns_the_same_session(
    opened: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    assert opened() is session
    monkeypatch.chdir(tmp_path)
    assert nosync_nb.open("log") is session
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    assert nosync_nb.open(tmp_path / "link" / "log") is session
    found = []
    run_threads(*[lambda: found.append(opened())] * 4)
    assert all(each is session for each in found)


@pytest.mark.parametrize("frozen", [False, True])
def test_opening_runs_no_garbage_collection(opened: Callable[..., Session], frozen: bool) -> None:
    with opened() as session:
        numbers = session.input("numbers", "x int")
        for x in range(200):
            numbers.insert([(x,)])
            session.commit()
    collections: list[str] = []

    def note(phase: str, _info: Any) -> None:
        collections.append(phase)

    gc.collect()
    if frozen:
        gc.freeze()
    gc.callbacks.append(note)
    try:
        session = opened()
        count, enabled = gc.get_count()[0], gc.isenabled()
    finally:
        gc.callbacks.remove(note)
        frozen_after = gc.get_freeze_count() > 0
        gc.unfreeze()
    assert enabled
    assert (frozen_after, session.now) == (frozen, 200)
    assert frozen or (not collections and count < gc.get_threshold()[0])


def test_closed_session_refuses_writes_and_the_next_one_continues(
    opened: Callable[..., Session],
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    numbers.insert([(1,)])
    session.commit()
    session.close()
    session.close()
    assert session.closed
    assert values(numbers) == [1]
    for change in (lambda: numbers.insert([(2,)]), session.commit, lambda: session.drop("numbers")):
        with pytest.raises(DurabilityError, match="the session is closed"):
            change()
    after = opened()
    assert after is not session
    assert after.recovery.clean
    after["numbers"].insert([(2,)])
    assert after.commit() == 2


def test_with_block_closes_its_session(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        session.input("numbers", "x int")
    assert session.closed
    with nosync_nb.open(tmp_path / "log") as session:
        assert list(session.inputs) == ["numbers"]


@pytest.mark.fault(48)
def test_close_waits_for_background_work(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nosync_nb.trace.compaction.YOUNG_ROWS", 2)
    monkeypatch.setattr("nosync_nb.store.log.checkpoint.FRAMES_MAX", 2)
    session = opened()
    numbers = session.input("numbers", "x int")
    for start in range(0, 200, 10):
        numbers.insert([(x,) for x in range(start, start + 10)])
        session.commit()
    session.close()
    assert session.stats["checkpoints"] >= 1
    assert session.stats["merges"] >= 1
    assert values(opened()["numbers"]) == list(range(200))


def test_stage_cannot_close_its_session(opened: Callable[..., Session]) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")

    def meddle(row: Any) -> tuple[int]:
        session.close()
        return (row.x,)

    with pytest.warns(UserWarning, match="meddle"):
        session.stage("meddled", numbers.map(meddle, "y int"))
    numbers.insert([(1,)])
    with pytest.raises(StageError, match="close inside a stage's function"):
        session.commit()
    session.discard()
    assert session.commit() == 1


@pytest.mark.fault(47)
def test_file_removed_by_a_new_owner_is_no_failure_of_the_fenced_session(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    session.input("numbers", "x int").insert([(1,)])
    session.commit()

    def missing(*_: Any) -> bytes:
        raise DurabilityError("the new owner removed it", errno=errno.ENOENT)

    monkeypatch.setattr(store_of(session), "checkpoint_payload", missing)
    lose_patience(session)
    services_of(session).maintenance.plan_checkpoint()
    opened(takeover=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.close()


def test_background_error_is_reported_at_close_at_the_latest(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    session.input("numbers", "x int").insert([(1,)])
    session.commit()

    def full(*_: Any) -> bytes:
        raise DurabilityError("the disk is full")

    monkeypatch.setattr(store_of(session), "checkpoint_payload", full)
    services_of(session).maintenance.plan_checkpoint()
    with pytest.warns(UserWarning, match="background work failed: .* the disk is full"):
        session.close()


def test_invalid_arguments_of_open_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="retain=0 is neither"):
        nosync_nb.open(tmp_path / "log", retain=0)
    with pytest.raises(SchemaError, match="the log's owner"):
        nosync_nb.open(tmp_path / "log", retain=7, mode="r")
    with pytest.raises(SchemaError, match="there is no kind of replica 'ftp'"):
        nosync_nb.open(tmp_path / "log", replicas=["ftp://host/logs"])
    assert not (tmp_path / "log").exists()


# -- several processes -----------------------------------------------------------------------------


@pytest.mark.fault(23)
def test_second_owner_is_refused_with_the_process_of_the_first(
    opened: Callable[..., Session], other_process: OtherProcess
) -> None:
    with pytest.raises(
        FencedError, match=f"process {other_process.process.pid} on .*alive"
    ) as caught:
        opened()
    for remedy in ("takeover=True", 'mode="r"'):
        assert remedy in (caught.value.hint or "")
    assert other_process.commit(3) == "2"


def test_fenced_process_commits_nothing(
    opened: Callable[..., Session], other_process: OtherProcess
) -> None:
    assert other_process.commit(3) == "2"
    session = opened(takeover=True)
    assert session.now == 2
    assert values(session["odd"]) == [1, 3]
    assert other_process.commit(5) == "fenced 2 0"
    session["numbers"].insert([(7,)])
    assert session.commit() == 3
    assert other_process.commit(9) == "fenced 2 0"
    assert values(session["odd"]) == [1, 3, 7]
    session.close()
    assert values(opened()["odd"]) == [1, 3, 7]


def test_log_of_a_dead_process_can_be_opened(
    opened: Callable[..., Session], other_process: OtherProcess
) -> None:
    other_process.commit(3)
    other_process.process.kill()
    other_process.process.wait()
    session = opened()
    assert not session.recovery.clean
    assert session.now == 2
    assert values(session["odd"]) == [1, 3]


@pytest.mark.fault(24)
def test_fenced_session_of_the_same_process_changes_nothing_and_closes(
    opened: Callable[..., Session],
) -> None:
    fenced = opened()
    numbers = fenced.input("numbers", "x int")
    numbers.insert([(1,)])
    fenced.commit()
    numbers.insert([(2,)])
    session = opened(takeover=True)
    assert opened() is session
    with pytest.raises(FencedError, match="was taken over by process"):
        fenced.commit()
    assert fenced.now == 1
    assert fenced.pending["numbers"].rows == 1
    assert values(numbers, 1) == [1]
    with pytest.raises(FencedError):
        fenced.stage("late", numbers.distinct())
    assert "late" not in fenced
    with pytest.raises(FencedError):
        checkpoint_now(fenced)
    fenced.close()
    assert session.commit() == 2
    assert values(session["numbers"]) == [1]


# -- readers ---------------------------------------------------------------------------------------


def test_reader_sees_commits_of_another_process(
    opened: Callable[..., Session], other_process: OtherProcess, tmp_path: Path
) -> None:
    reader = opened(mode="r")
    assert reader.mode == "r"
    assert values(reader["odd"]) == [1]
    before = listing(tmp_path / "log")
    assert other_process.commit(3) == "2"
    assert values(reader["odd"]) == [1, 3]
    assert reader.now == 2
    assert other_process.commit(5) == "3"
    assert reader.refresh() == 3
    assert values(reader["odd"], 2) == [1, 3]
    assert values(reader["numbers"].filter("x > 2")) == [3, 5]
    assert reader["odd"].changes(after=1).num_rows == 2
    assert {name for name in listing(tmp_path / "log") if name not in before} == set()
    other_process.process.kill()
    other_process.process.wait()
    assert values(reader["odd"]) == [1, 3, 5]


def test_reader_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DurabilityError, match="there is no log at"):
        nosync_nb.open(tmp_path / "nothing", mode="r")
    assert not (tmp_path / "nothing").exists()


def test_reader_needs_no_key(
    opened: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("doubled", numbers.map(lambda row: (row.x * 2,), "y int"))
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "none"))
    reader = opened(mode="r")
    numbers.insert([(1,)])
    session.commit()
    assert values(reader["doubled"]) == [2]
    assert not (tmp_path / "none").exists()


def test_reader_follows_definitions(opened: Callable[..., Session]) -> None:
    session = opened()
    session.replay_rows = 0
    reader = opened(mode="r")
    numbers = session.input("numbers", "x int")
    numbers.insert([(1,), (2,)])
    session.commit()
    session.stage("odd", numbers.filter("x % 2 = 1"))
    assert values(reader["numbers"]) == [1, 2]
    assert values(reader["odd"]) == [1]
    numbers.insert([(3,)])
    session.commit()
    session.stage("odd", numbers.filter("x = 3"))
    numbers.insert([(3,)])
    session.commit()
    assert reader.refresh() == 3
    assert values(reader["odd"]) == [3, 3]
    assert values(reader["odd@1"]) == [1, 3]
    session.rename("odd", "threes")
    reader.refresh()
    assert values(reader["threes"]) == [3, 3]
    session.drop("threes")
    reader.refresh()
    assert list(reader.stages) == []


@pytest.mark.fault(41)
@pytest.mark.parametrize("followed", [3, 10_000])
def test_reader_follows_merges_checkpoints_and_new_owners(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, followed: int
) -> None:
    """One reader lags behind and starts over at the newest checkpoint."""
    for place in (store, maintenance):
        monkeypatch.setattr(place, "SPILL_ROWS", 6)
    monkeypatch.setattr(log_follower, "FOLLOW_MAX", followed)
    monkeypatch.setattr("nosync_nb.trace.compaction.YOUNG_ROWS", 2)
    session = opened()
    numbers = session.input("numbers", "x int")
    session.stage("counts", numbers.group_by("x").agg(n="count(*)"))
    eager, lazy = opened(mode="r"), opened(mode="r")
    for round_ in range(1, 13):
        session["numbers"].insert([(x,) for x in range(10)], once=round_)
        session.commit()
        for number in list(traces_of(session)):
            merge_trace(session, number)
        if round_ % 2 == 0:
            checkpoint_now(session)
        if round_ % 5 == 0:
            session = opened(takeover=True)
        assert [row.n for row in eager["counts"].rows()] == [round_] * 10
    assert lazy.now == 0
    assert [row.n for row in lazy["counts"].rows()] == [12] * 10
    for reader in (eager, lazy):
        for at in range(1, 13):
            assert [row.n for row in reader["counts"].rows(at)] == [at] * 10


def test_frontiers_of_a_reader_show_synced_epochs(opened: Callable[..., Session]) -> None:
    session = opened()
    numbers = session.input("numbers", "x int")
    reader = opened(mode="r")
    for x in range(3):
        numbers.insert([(x,)])
        session.commit(wait="disk")
    reader.refresh()
    assert reader.frontiers["numbers"].memory == 3
    assert reader.recovery_frontier("power") == 3


def test_failed_recovery_releases_the_log(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened().close()

    def broken(*_: object) -> None:
        raise NosyncError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(recover, "recover", broken)
        with pytest.raises(NosyncError, match="broken"):
            opened()
    assert opened().now == 0


def test_definitions_alone_cause_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nosync_nb.store.log.checkpoint.FRAMES_MAX", 4)
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("numbers", "x int")
        for n in range(8):
            session.stage("some", numbers.filter(f"x > {n}"))
        settle_background(session)
        assert session.stats["checkpoints"] > 0
