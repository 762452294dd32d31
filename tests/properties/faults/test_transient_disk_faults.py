"""Transient disk errors: only the call that met one fails.

Whichever step of an opening or a closing the disk refuses: once the disk works, the same process
opens the log again, reads the committed epochs and commits more.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults.faults import FakeMachine, HastyFiles, PickyFiles, opener
from internals import checkpoint_now, lose_file, merge_trace, services_of, traces_of

from nosync_nb import FencedError, NosyncError, Session
from nosync_nb.files.filesystem import Files, raise_durability_error
from nosync_nb.store.log import Log, checkpoint

CODES = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENOMEM]


@pytest.fixture(autouse=True)
def small(own_key: None, large_from_four_rows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "open", partial(Log.open, background=False))


@pytest.fixture
def open_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Session]:
    """Opens the log of the test on another disk."""
    return opener(monkeypatch, tmp_path / "log")


def commit_one_more(session: Session) -> None:
    """Commits an epoch of one row."""
    rows = session.inputs["rows"] if "rows" in session.inputs else session.input("rows", "k int")
    rows.insert([(session.now,)])
    session.commit()


def count_steps(disk: PickyFiles, act: Callable[[], Any]) -> int:
    disk.arm(0, 0)
    act()
    return len(disk.steps)


@pytest.mark.fault(17, 21)
def test_no_disk_error_locks_a_process_out_of_its_log(
    open_on: Callable[..., Session],
) -> None:
    disk = PickyFiles()
    with open_on(disk) as session:
        commit_one_more(session)
        checkpoint_now(session)
        commit_one_more(session)
    sessions: list[Session] = []
    opening = count_steps(disk, lambda: sessions.append(open_on(disk)))
    closing = count_steps(disk, sessions[0].close)
    assert opening > 30
    assert closing > 5
    epochs, refused = 2, 0
    for code in CODES:
        for at in range(1, opening + closing + 1):
            disk.arm(at, code)
            try:
                session = open_on(disk)
                commit_one_more(session)
                epochs += 1
                session.close()
            except FencedError:
                pytest.fail(f"locked out: errno {code} at step {at}, {disk.steps[-1]}")
            except NosyncError:
                refused += 1
            disk.arm(0, 0)
            with open_on(disk) as session:
                assert session.now == epochs, (code, at)
                if not at % 8:
                    assert session["rows"].rows() == [(k,) for k in range(epochs)], (code, at)
    assert refused > opening * len(CODES) // 2


def test_failed_opening_keeps_clean_log_clean(open_on: Callable[..., Session]) -> None:
    """A failed opening writes nothing, so the log still ends with the previous session."""
    disk = PickyFiles()
    with open_on(disk) as session:
        commit_one_more(session)
    steps = count_steps(disk, lambda: open_on(disk).close())
    for at in range(1, steps + 1):
        disk.arm(at, errno.ENOSPC)
        try:
            session = open_on(disk)
        except NosyncError:
            disk.arm(0, 0)
            with open_on(disk) as session:
                assert session.recovery.clean, at
                assert not session.recovery.lost
        else:
            disk.arm(0, 0)
            session.close()


def test_failed_opening_after_restart_keeps_torn_tail_harmless(
    tmp_path: Path,
) -> None:
    """An unsynced hole counts as a loss of power until a frame is written on the boot.

    Failure: 1. The power fails; an unsynced frame is torn, and a later one is intact. 2. The
    first opening finds the disk full. 3. The second one, on the same boot, reports damage.
    """
    path, machine, disk = str(tmp_path / "log"), FakeMachine(), PickyFiles()
    opened = partial(Log.open, path, files=disk, background=False)
    log = opened(machine=machine)
    places = [log.append(1, bytes([number]) * 100) for number in range(5)]
    lose_file(log)
    (segment,) = (tmp_path / "log").glob("segment-*")
    data = bytearray(segment.read_bytes())
    data[128 + places[3].offset + 60] ^= 1
    segment.write_bytes(data)
    restarted = machine.after(boot="boot-2")
    failed = 0
    for at in range(40, 1, -1):
        disk.arm(at, errno.ENOSPC)
        try:
            opened(machine=restarted).close()
        except NosyncError:
            failed += 1
            break
    assert failed
    disk.arm(0, 0)
    log = opened(machine=restarted)
    assert len(list(log.frames())) == 3
    assert "never synced" in log.notes[0]
    log.close()


# -- checkpoints that cannot be read once ----------------------------------------------------------


class Flaky(HastyFiles):
    """A disk that cannot read one file, and records deletions."""

    def __init__(self) -> None:
        self.unreadable = ""
        self.code = errno.EIO
        self.deleted: list[str] = []

    def read(self, path: str, *, most: int | None = None) -> bytes:
        if self.unreadable and Path(path).name == self.unreadable:
            raise_durability_error(OSError(self.code, ""), "read", path)
        return super().read(path, most=most)

    def unlink(self, path: str) -> None:
        if self.exists(path):
            self.deleted.append(Path(path).name)
        super().unlink(path)


def everything(session: Session) -> dict[str, Any]:
    return {
        name: [session[name].rows(at=at) for at in range(session.now + 1)]
        for name in ("rows", "sums")
    }


@pytest.fixture
def log_with_checkpoints(
    open_on: Callable[..., Session], tmp_path: Path
) -> tuple[Path, dict[str, Any]]:
    """A log with two checkpoints, merged layers and packs between them; and its rows."""
    with open_on(HastyFiles()) as session:
        rows = session.input("rows", "k int, v int")
        session.stage("sums", rows.group_by("k").agg(total="sum(v)"))
        for epoch in range(6):
            rows.insert([(k, epoch) for k in range(12)])
            session.commit()
            if epoch in (2, 4):
                for number in list(traces_of(session)):
                    merge_trace(session, number)
                checkpoint_now(session)
        wanted = everything(session)
    shutil.move(tmp_path / "log", tmp_path / "whole")
    return tmp_path / "whole", wanted


def newest(folder: Path) -> str:
    return checkpoint.checkpoint_names([p.name for p in folder.iterdir()])[0]


@pytest.mark.fault(6)
@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("more", ["nothing", "epochs", "checkpoint", "killed before checkpoint"])
def test_unreadable_checkpoint_loses_no_file(
    open_on: Callable[..., Session],
    log_with_checkpoints: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    more: str,
) -> None:
    whole, wanted = log_with_checkpoints
    log, disk = tmp_path / "log", Flaky()
    shutil.copytree(whole, log)
    disk.unreadable, disk.code = newest(log), code
    session = open_on(disk)
    assert "the previous one is used" in session.recovery.notes[0]
    assert [name for name in disk.deleted if name.endswith((".arrow", ".pack"))] == []
    assert everything(session) == wanted
    if more != "nothing":
        session.inputs["rows"].insert([(k, 100) for k in range(12)])
        session.commit()
        for number in list(traces_of(session)):
            merge_trace(session, number)
        wanted = everything(session)
    if more == "checkpoint":
        checkpoint_now(session)
        assert disk.unreadable in disk.deleted
    if more == "killed before checkpoint":
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "write_checkpoint", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                checkpoint_now(session)
    disk.unreadable = ""
    for _ in range(3):  # killed each time; the second one deletes unreferenced files
        session = open_on(disk, takeover=True)
        assert everything(session) == wanted
        session.inputs["rows"].insert([(1, 1000 + session.now)])
        session.commit()
        wanted = everything(session)
        checkpoint_now(session)
    named = services_of(session).publisher.named_files
    session.close()
    with open_on(disk) as session:
        assert everything(session) == wanted
    left = {p.name for p in log.rglob("*") if p.suffix in (".arrow", ".pack")}
    assert left <= named


@pytest.mark.fault(14)
def test_file_with_failing_stat_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.lstat

    def refuse(path: Any, **options: Any) -> Any:
        if str(path).endswith("x"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(path, **options)

    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(NosyncError, match="EIO"):
        Files().exists(str(tmp_path / "x"))
    assert not Files().exists(str(tmp_path / "y"))
    (tmp_path / "z").touch()
    assert not Files().exists(str(tmp_path / "z" / "below a file"))
