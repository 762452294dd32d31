"""Disk errors in sessions: a refusal, a full disk or a flipped bit leaves nothing half done."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.faults import FaultyFiles, HastyFiles, Step, opener
from internals import checkpoint_now, log_of
from samples import everything, people, state
from soak import tried

import nosync_nb
from nosync_nb import (
    CorruptLogError,
    DurabilityError,
    NosyncError,
    OutcomeUnknownError,
    Session,
)
from nosync_nb.session.maintenance import maintenance
from nosync_nb.store import store
from nosync_nb.store.log import checkpoint, fencing, owner, segments

pytestmark = pytest.mark.usefixtures("own_key")


CHANGES = {"create", "append", "write_at", "rename", "sync", "sync_folder", "unlink"}


class Disk(FaultyFiles):
    """A disk on which every change fails while `error` is set."""

    def __init__(self, *, actions: set[str] = CHANGES, halves: bool = False) -> None:
        super().__init__(error_at=self._error_at, halves=halves)
        self.error = 0
        self.actions = actions

    def _error_at(self, step: Step) -> int | None:
        return self.error if self.error and step.action in self.actions else None


@pytest.fixture
def open_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Any], Session]:
    """Opens the log of the test on another disk."""
    return opener(monkeypatch, tmp_path / "log")


@pytest.mark.fault(20)
@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EROFS", "EIO"])
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("spill", [1, 1 << 16])
def test_refused_write_refuses_epoch_until_disk_recovers(
    open_on: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    halves: bool,
    spill: int,
) -> None:
    monkeypatch.setattr(store, "SPILL_ROWS", spill)
    monkeypatch.setattr(store, "SPILL_BYTES", 300)
    monkeypatch.setattr(store, "SETTLED_BYTES", 100)
    disk = Disk(halves=halves)
    with open_on(disk) as session:
        people(session)
        session.sync()
        before = state(session)
        disk.error = getattr(errno, code)
        session["people"].insert([("di", 30, 4.0), ("ed", 30, 5.0)])
        for _ in range(2):
            with pytest.raises(DurabilityError, match=code) as caught:
                session.commit()
            assert caught.value.hint
            assert caught.value.errno == disk.error
        with pytest.raises(DurabilityError, match=code):
            session.stage("late", session["people"].distinct())
        with pytest.raises(DurabilityError, match=code):
            checkpoint_now(session)
        assert session.pending["people"].rows == 2
        assert session.now == before["now"]
        assert "late" not in session
        disk.error = 0
        assert session.commit(wait="disk") == 3
        session.stage("late", session["people"].distinct())
        checkpoint_now(session)
        assert session["by_age"].rows() == [(20, 2), (30, 2)]
        wanted = state(session)
    with open_on(disk) as session:
        found = state(session)
        assert {**found, "frames": 0} == {**wanted, "frames": 0}
        assert session.recovery.clean


@pytest.fixture
def failing_sync(open_on: Callable[..., Session]) -> Iterator[tuple[Disk, Session]]:
    """A session at durable epoch 2 whose disk fails at syncs; afterwards the log is reopened."""
    disk = Disk(actions={"sync"})
    with open_on(disk) as session:
        people(session)
        session.sync()
        disk.error = errno.EIO
        yield disk, session
        wanted = session["by_age"].rows()
    with open_on(disk) as session:
        assert session["by_age"].rows() == wanted


@pytest.mark.fault(16)
def test_failed_sync_loses_nothing_and_is_reported(failing_sync: tuple[Disk, Session]) -> None:
    disk, session = failing_sync
    session["people"].insert([("di", 30, 4.0)])
    with pytest.raises(OutcomeUnknownError, match=r"epoch 3 is committed .*EIO") as caught:
        session.commit(wait="disk")
    assert caught.value.epoch == session.now == 3
    assert caught.value.errno == errno.EIO
    assert "do not insert its rows again" in (caught.value.hint or "")
    assert not session.pending
    assert session.recovery_frontier("power") == 2
    disk.error = 0
    session.sync()
    assert session.recovery_frontier("power") == session.now
    assert session["by_age"].rows() == [(20, 2), (30, 1)]


@pytest.mark.fault(17)
def test_transaction_with_failed_sync_has_ended(failing_sync: tuple[Disk, Session]) -> None:
    disk, session = failing_sync
    begun = session.begin("loaded")
    session["people"].insert([("di", 30, 4.0)])
    with pytest.raises(OutcomeUnknownError, match="epoch 3"):
        begun.commit(wait="disk")
    session["people"].insert([("ed", 30, 4.0)])
    assert session.pending["people"].rows == 1
    disk.error = 0
    assert session.commit() == 4
    session["people"].insert([("flo", 30, 4.0)])
    assert session.commit(wait="disk") == 5
    assert session.epochs()[3].label == "loaded"
    assert session["by_age"].rows() == [(20, 2), (30, 3)]


@pytest.mark.fault(17)
def test_log_on_read_only_disk_is_readable(open_on: Callable[..., Session]) -> None:
    disk = Disk()
    with open_on(disk) as session:
        people(session)
        wanted = state(session)
    disk.error = errno.EROFS
    with pytest.raises(DurabilityError, match="EROFS") as caught:
        open_on(disk)
    assert 'mode="r"' in (caught.value.hint or "")
    with open_on(disk, mode="r") as session:
        assert state(session) == wanted


@pytest.mark.fault(45)
@pytest.mark.parametrize("writer", [segments, checkpoint, owner, fencing])
@pytest.mark.parametrize(("format_", "age"), [(99, "newer"), (5, "from before the first release")])
def test_log_of_another_format_is_refused_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: Any, format_: int, age: str
) -> None:
    path = tmp_path / "log"
    with monkeypatch.context() as patch:
        patch.setattr(writer, "FORMAT", format_)
        with nosync_nb.open(path) as session:
            people(session)
            checkpoint_now(session)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != "owner"}
    with pytest.raises(CorruptLogError, match=f"format {format_} is {age}") as caught:
        nosync_nb.open(path)
    remedy = "upgrade nosync" if age == "newer" else "the version of nosync that wrote it"
    assert remedy in (caught.value.hint or "")
    changed = {p.name for p, content in before.items() if p.read_bytes() != content}
    assert changed <= {"generation"}


# -- damage ----------------------------------------------------------------------------------------

SAMPLES = tried(10, soak=100)


@pytest.fixture
def intact_log(
    tmp_path: Path, open_on: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A log with every kind of file, its rows, and its rows after one more epoch."""
    monkeypatch.setattr(store, "SPILL_ROWS", 4)
    monkeypatch.setattr(maintenance, "SPILL_ROWS", 4)
    with open_on(HastyFiles()) as session:
        people(session)
        planes, everybody = session.inputs["planes"], session.inputs["people"]
        seats = session["grown"].join(planes.select("seats AS age", "tail"), on="age")
        session.stage("seated", seats)
        for at in range(3, 8):
            planes.upsert([(f"t{i}", i + at) for i in range(12)])
            everybody.insert([(f"p{i}", i + at, 0.5) for i in range(5)])
            session.commit()
            if at in (4, 6):
                checkpoint_now(session)
        before = everything(session)
    shutil.copytree(tmp_path / "log", tmp_path / "more")
    shutil.move(tmp_path / "log", tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "log")
    with open_on(HastyFiles()) as session:
        commit_one_more(session)
        after = everything(session)
    return tmp_path / "whole", before, after


def commit_one_more(session: Session) -> None:
    session["people"].insert([("zoe", 12, 1.0), ("abe", 50, 1.0)])
    session["planes"].delete(["t3", "a"])
    session.commit()


def damaged_files(folder: Path) -> list[str]:
    """The files that can be damaged, at most two of each kind."""
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(os.path.basename(name)[:4], []).append(name)
    assert {"segm", "chec", "gene", "owne", "lock", "log1", "trac", "pack"} <= set(kinds)
    return [name for kind in kinds.values() for name in kind[-2:] if "lock" not in name]


def outcome(
    open_on: Callable[..., Session], folder: Path, name: str, before: Any, after: Any
) -> str:
    """Opens, reads and commits; everything that is read must be right."""
    try:
        with open_on(HastyFiles()) as session:
            assert everything(session) == before, f"{name}: other data"
            commit_one_more(session)
            assert everything(session) == after, f"{name}: other data after the next epoch"
            return "right"
    except NosyncError as error:
        reported = str(error)
    assert os.path.basename(name) in reported or str(folder) in reported
    return "reported"


@pytest.mark.fault(12)
@pytest.mark.slow
def test_damage_of_any_byte_is_reported_or_harmless(
    tmp_path: Path,
    open_on: Callable[..., Session],
    intact_log: tuple[Path, dict[str, Any], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never yields other data or an error of a lower layer."""
    origin, before, after = intact_log
    folder = tmp_path / "log"
    pick = random.Random(7)
    reported = 0
    for name in damaged_files(origin):
        content = (origin / name).read_bytes()
        places = {0, len(content) - 1, *(pick.randrange(len(content)) for _ in range(SAMPLES))}
        damages: list[bytes | None] = [None]
        for place in sorted(places):
            bad = bytearray(content)
            bad[place] ^= 1 << pick.randrange(8)
            damages.append(bytes(bad))
        damages += [content[: len(content) // 2], b"", content + b"more"]
        for damage in damages:
            shutil.rmtree(folder)
            shutil.copytree(origin, folder)
            if damage is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(damage)
            reported += outcome(open_on, folder, name, before, after) == "reported"
    assert reported > 60


def test_valid_checksum_with_invalid_payload_is_damage(
    tmp_path: Path, open_on: Callable[..., Session]
) -> None:
    """A checksum proves the writer, not that the content is valid."""
    path = tmp_path / "log"
    with nosync_nb.open(path) as session:
        people(session)
        log_of(session).append(1, b"\0" * 7)
    with pytest.raises(CorruptLogError, match="a frame cannot be decoded"):
        nosync_nb.open(path)
    text = json.dumps({"nothing": 1}).encode()
    (path / "owner").write_bytes(text + f"\n{zlib.crc32(text):08x}\n".encode())
    with pytest.raises(CorruptLogError, match="owner' is damaged"):
        nosync_nb.open(path)
