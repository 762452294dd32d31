"""Renaming of a log's folder: completely, and only while it is closed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from internals import checkpoint_now

import nosync_nb
from nosync_nb import DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.timetravel.branches import move_log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A closed log of 20,000 rows with a branch and a branch of that."""
    with nosync_nb.open(tmp_path / "log") as session:
        numbers = session.input("x", "a bigint")
        session.stage("counts", session["x"].group_by("a").agg(n="count(*)"))
        numbers.insert([(i,) for i in range(20_000)])
        session.commit()
        checkpoint_now(session)
        with session.branch("outer") as outer:
            outer.branch("inner").close()
    return tmp_path / "log"


def move_to(log: Path, target: Path) -> bool:
    return move_log(Files(), str(log), str(target), lambda _: None)


def test_move_names_old_and_new_paths_of_log_and_branches(log: Path) -> None:
    target, named = log.with_name("new"), []

    def prepare(paths: Sequence[tuple[str, str]]) -> None:
        assert log.exists()
        named.extend(paths)

    assert move_log(Files(), str(log), str(target), prepare)
    inner = ("", "/branches/outer", "/branches/outer/branches/inner")
    assert named == [(f"{log}{each}", f"{target}{each}") for each in inner]
    assert not log.exists()
    with nosync_nb.open(target) as session:
        assert session["counts"].count() == 20_000
        assert list(session.branches) == ["outer"]
        assert session.verify().whole


@pytest.mark.parametrize("part", ["", "branches/outer", "branches/outer/branches/inner"])
def test_open_log_or_branch_is_not_moved(log: Path, part: str) -> None:
    target = log.with_name("new")
    with nosync_nb.open(log / part):
        assert not move_to(log, target)
    lock = Files().lock(str(log / part / "lock"))
    assert lock is not None
    assert not move_to(log, target)
    lock.release()
    (log / part / "owner").write_bytes(b"damaged")
    assert not move_to(log, target)
    assert log.exists()
    assert not target.exists()


@pytest.mark.parametrize("call", ["lock", "read", "rename"])
def test_failing_disk_moves_nothing(log: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DurabilityError("the disk refuses")

    with monkeypatch.context() as patched:
        patched.setattr(Files, call, refuse)
        assert not move_to(log, log.with_name("new"))
    with nosync_nb.open(log) as session:
        assert session["counts"].count() == 20_000


def test_move_with_failed_sync_has_moved(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise DurabilityError("the disk refuses")

    with monkeypatch.context() as patched:
        patched.setattr(Files, "sync_folder", refuse)
        assert move_to(log, log.with_name("new"))
    assert not log.exists()


def test_readers_continue_after_folder_is_renamed(log: Path) -> None:
    target = log.with_name("new")
    with nosync_nb.open(log, mode="r") as early, nosync_nb.open(log, mode="r") as late:
        assert early["counts"].count() == 20_000
        assert move_to(log, target)
        assert late["counts"].count() == 20_000
        with nosync_nb.open(target) as session:
            session.inputs["x"].insert([(7,)])
            session.commit()
            assert early["x"].count() == late["x"].count() == 20_001
        os.rename(target, log)
        with nosync_nb.open(log) as session:
            session.inputs["x"].insert([(8,)])
            session.commit()
            assert early["x"].count() == late["x"].count() == 20_002
