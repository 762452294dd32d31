"""`copy`: a log of its own from a log that another process may write."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checks.sessions import run_threads
from internals import checkpoint_now, drain_background, log_of

import nosync_nb
from nosync_nb import DurabilityError, SchemaError, Session, TimeError, TrustError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.timetravel.branches import MAKING


@pytest.fixture
def session(session: Session) -> Session:
    return fill(session)


def fill(session: Session) -> Session:
    numbers = session.input("numbers", "x bigint")
    session.stage("odd", numbers.filter("x % 2 = 1"))
    session.stage("sums", session["odd"].map(lambda row: (row.x % 10, row.x), "k bigint, x bigint"))
    numbers.insert(pa.table({"x": list(range(70_000))}), once="load")
    session.commit(label="load")
    for epoch in range(2, 30):
        numbers.insert([(epoch,)])
        session.commit(label=f"day {epoch}")
    session.pin(7, "seventh")
    return session


def everything(session: Session) -> dict[Any, Any]:
    rows: dict[Any, Any] = {}
    for name in (*session.inputs, *session.stages):
        for epoch in (e for each in session[name].history() for e in each):
            rows[name, epoch] = session[name].count(at=epoch)
    return {**rows, "epochs": list(session.epochs()), "pins": session.pins}


def test_copy_is_an_independent_log_with_the_same_contents(
    session: Session, tmp_path: Path
) -> None:
    expected = everything(session)
    inodes = {path.stat().st_ino for path in (tmp_path / "log" / "layers").iterdir()}
    assert nosync_nb.copy(tmp_path / "log", tmp_path / "copy") == session.now
    with nosync_nb.open(tmp_path / "copy") as copied:
        assert everything(copied) == expected
        assert copied.recovery.recomputed == 0
        assert set(copied.recovery.stages.values()) == {"read"}
        assert log_of(copied).id != log_of(session).id
        assert copied.inputs["numbers"].insert([(1,)], once="load") == 0
        assert not copied.pending
        copied.inputs["numbers"].insert([(10**9 + 1,)])
        assert copied.commit() == session.now + 1
        assert len(copied["sums"]) == len(session["sums"]) + 1
        own = {path.stat().st_ino for path in (tmp_path / "copy" / "layers").iterdir()}
        assert own & inodes
    assert everything(session) == expected


def test_owner_continues_during_a_copy(session: Session, tmp_path: Path) -> None:
    session.inputs["numbers"].insert([(7,)])
    epoch = nosync_nb.copy(tmp_path / "log", tmp_path / "copy")
    session.commit()
    checkpoint_now(session)
    with nosync_nb.open(tmp_path / "copy") as copied:
        assert copied.now == epoch == session.now - 1
        assert not copied.pending


def test_copy_survives_a_concurrent_merge_of_a_file(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, merged = Files.link, []

    def link(files: Files, source: str, target: str) -> None:
        if not merged:
            merged.append(source)
            Path(source).rename(f"{source}.away")
            try:
                real(files, source, target)
            finally:
                Path(f"{source}.away").rename(source)
        real(files, source, target)

    monkeypatch.setattr(Files, "link", link)
    nosync_nb.copy(tmp_path / "log", tmp_path / "copy")
    assert merged
    with nosync_nb.open(tmp_path / "copy") as copied:
        assert everything(copied) == everything(session)


def test_copy_without_hard_links_copies_bytes(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(files: Files, source: str, target: str) -> None:
        raise DurabilityError("there are no hard links", errno=18)

    monkeypatch.setattr(Files, "link", link)
    nosync_nb.copy(tmp_path / "log", tmp_path / "copy")
    parts = list((tmp_path / "copy" / "layers").iterdir())
    assert parts
    assert all(path.stat().st_nlink == 1 for path in parts)
    with nosync_nb.open(tmp_path / "copy") as copied:
        assert everything(copied) == everything(session)
        assert copied.verify().whole


@pytest.mark.parametrize("call", ["link", "rename", "sync_folder", "create", "replace"])
@pytest.mark.parametrize("number", [0, 2])
def test_failing_disk_leaves_whole_copy_or_none(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    real, left = getattr(Files, call), [number]

    def failing(self: Files, *args: Any, **kwargs: Any) -> Any:
        if "copy" in str(args).replace(str(tmp_path), ""):  # the log is written meanwhile
            left[0] -= 1
            if left[0] < 0:
                raise DurabilityError("the disk is full", errno=28)
        return real(self, *args, **kwargs)

    before = everything(session)
    monkeypatch.setattr(Files, call, failing)
    if call == "link":  # then bytes are copied
        monkeypatch.setattr(Files, "copy", failing)
    try:
        nosync_nb.copy(tmp_path / "log", tmp_path / "copy")
    except DurabilityError:
        assert [path.name for path in tmp_path.iterdir()] == ["log"]
    monkeypatch.undo()
    if not (tmp_path / "copy").exists():
        nosync_nb.copy(tmp_path / "log", tmp_path / "copy")
    with nosync_nb.open(tmp_path / "copy") as copied:
        assert everything(copied) == before
    assert not list(tmp_path.glob(f"*{MAKING}*"))


def test_copy_of_invalid_source_or_target_is_refused(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for to in ("log", "nowhere/copy"):
        with pytest.raises(SchemaError, match="copy:") as error:
            nosync_nb.copy(tmp_path / "log", tmp_path / to)
        assert "does not exist" in str(error.value.hint)
    with pytest.raises(DurabilityError, match=r"no log|cannot"):
        nosync_nb.copy(tmp_path / "none", tmp_path / "copy")
    for path, to in (("a\0b", "c"), (tmp_path / "log", "a\0b"), (tmp_path / "log", b"a\0b")):
        with pytest.raises(SchemaError, match=r"'a\\x00b' is not a path"):
            nosync_nb.copy(path, to)  # type: ignore[arg-type]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another"))
    with pytest.raises(TrustError, match="another key"):
        nosync_nb.copy(tmp_path / "log", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


OPEN = """
import sys, nosync_nb
try:
    nosync_nb.open(sys.argv[1])
except nosync_nb.FencedError as error:
    print(error, error.hint)
"""


def test_opening_copied_folder_of_open_log_names_the_original(
    session: Session, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "log", tmp_path / "copied")
    command = [sys.executable, "-c", OPEN, str(tmp_path / "copied")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"is a copy of '{tmp_path / 'log'}', which process" in output
    assert f"nosync.copy('{tmp_path / 'log'}', FOLDER)" in output
    assert f"a branch of '{tmp_path / 'log'}': session.branch(NAME) there" in output
    assert f"`%dd open {tmp_path / 'log'} --branch NAME`" in output
    with nosync_nb.open(tmp_path / "copied", mode="r") as reader:
        assert reader.now == session.now
    with nosync_nb.open(tmp_path / "copied", takeover=True) as taken:
        assert any("is a copy of" in note for note in taken.recovery.notes)
        assert taken.now == session.now
    assert session.commit() == session.now
    assert everything(session)


def test_moved_or_restored_folder_is_no_copy(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log") as session:
        fill(session)
    (tmp_path / "log").rename(tmp_path / "moved")
    with nosync_nb.open(tmp_path / "moved") as moved:
        assert not any("copy" in note for note in moved.recovery.notes)
    shutil.copytree(tmp_path / "moved", tmp_path / "backup")
    shutil.rmtree(tmp_path / "moved")
    (tmp_path / "backup").rename(tmp_path / "moved")
    with nosync_nb.open(tmp_path / "moved") as back:
        assert not any("copy" in note for note in back.recovery.notes)


def test_copy_has_the_same_retained_epochs(tmp_path: Path) -> None:
    with nosync_nb.open(tmp_path / "log", retain=5) as session:
        numbers = session.input("numbers", "x bigint")
        for epoch in range(200):
            numbers.insert([(epoch,)])
            session.commit()
            if epoch in (99, 199):
                drain_background(session)
                checkpoint_now(session)
        nosync_nb.copy(tmp_path / "log", tmp_path / "copy")
        with nosync_nb.open(tmp_path / "copy") as copied:
            assert copied.retain == 5
            assert copied["numbers"].history() == session["numbers"].history()
            with pytest.raises(TimeError):
                copied["numbers"].rows(at=20)


def test_folder_created_at_the_target_during_a_copy_is_left(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Files.rename

    def rename(files: Files, source: str, target: str) -> None:
        if target == str(tmp_path / "copy"):
            (tmp_path / "copy").mkdir()
            (tmp_path / "copy" / "thesis.txt").write_text("mine")
        real(files, source, target)

    monkeypatch.setattr(Files, "rename", rename)
    with pytest.raises(DurabilityError, match="rename"):
        nosync_nb.copy(tmp_path / "log", tmp_path / "copy")
    assert (tmp_path / "copy" / "thesis.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "log"]


def test_concurrent_copies_to_one_target_leave_one(session: Session, tmp_path: Path) -> None:
    found: list[object] = []

    def copying() -> None:
        try:
            found.append(nosync_nb.copy(tmp_path / "log", tmp_path / "copy"))
        except (DurabilityError, SchemaError) as error:
            found.append(error)

    run_threads(copying, copying, copying)
    assert found.count(session.now) == 1, found
    with nosync_nb.open(tmp_path / "copy") as copied:
        assert everything(copied) == everything(session)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "log"]


@pytest.mark.parametrize("to", ["", "/layers/copy", "/branches/copy"])
def test_copy_into_the_log_itself_is_refused(session: Session, tmp_path: Path, to: str) -> None:
    with pytest.raises(SchemaError, match="copy:"):
        nosync_nb.copy(tmp_path / "log", f"{tmp_path / 'log'}{to}")
    assert session.verify().whole
