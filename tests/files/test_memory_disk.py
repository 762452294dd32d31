"""The disk in memory of tests: any program of calls has the results of a real disk."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults.faults import Crash
from faults.memory_disk import Inode, MemoryFiles, Tree

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.safe_names import is_safe_file_name

NAMES = ("a", "b", "inner/a", "inner/c", "inner", "a/x", "none/x")


def call(files: Files, root: str, pick: random.Random) -> Any:
    """Makes one random call; returns its result, or the number of its error."""
    path = os.path.join(root, pick.choice(NAMES))
    beside = os.path.join(os.path.dirname(path), pick.choice("abc"))
    data = pick.randbytes(pick.randrange(20))
    which = pick.randrange(11)
    try:
        if which == 0:
            return files.make_folder(path)
        if which == 1:
            with_it = files.create(path)
            with_it.append(data)
            with_it.close()
            return with_it.path
        if which == 2:
            file = files.open(path, write=True)
            file.write_at(pick.randrange(30), data)
            return file.size(), file.read_at(2, 9), file.read_at(100, 1), file.close()
        if which == 3:
            return files.read(path)
        if which == 4:
            return files.rename(path, beside)
        if which == 5:
            return files.unlink(path)
        if which == 6:
            return files.names(path)
        if which == 7:
            return files.exists(path)
        if which == 8:
            return files.sync_folder(path)
        if which == 9:
            return files.replace(path, data)
        status = files.status(path)
        return status.st_mode, status.st_uid, status.st_size if status.st_mode & 0o40000 == 0 else 0
    except DurabilityError as error:
        return type(error), error.errno


@pytest.mark.parametrize("seed", range(40))
def test_calls_return_results_of_real_disk(tmp_path: Path, seed: int) -> None:
    memory = MemoryFiles(Tree())
    real, root = Files(), str(tmp_path / "root")
    for files in (memory, real):
        files.make_folder(root)
    for step in range(60):
        picks = random.Random(seed * 1000 + step), random.Random(seed * 1000 + step)
        assert call(memory, root, picks[0]) == call(real, root, picks[1]), step
    there = {
        str(path.relative_to(root)): path.read_bytes()
        for path in Path(root).rglob("*")
        if path.is_file()
    }
    assert memory.tree.files(root) == there
    assert all(is_safe_file_name(name) for path in there for name in path.split("/"))


@pytest.mark.fault(9)
def test_power_loss_drops_only_unsynced_bytes_and_names() -> None:
    seen = set()
    for seed in range(80):
        files = MemoryFiles(Tree(), seed)
        files.make_folder("/log/inner")
        file = files.create("/log/a")
        file.append(b"synced")
        file.sync()
        files.sync_folder("/log")
        file.append(b" loose")
        files.create("/log/inner/b").append(b"loose")
        files.lose_power("/log")
        left = files.tree.files("/log")
        assert left["a"].startswith(b"synced")
        assert b"synced loose".startswith(left["a"].rstrip(b"\0"))
        seen.add((left["a"] == b"synced", left["a"] == b"synced loose", "inner/b" in left))
        with pytest.raises(Crash):
            file.sync()
    assert {True, False} == {a for a, _, _ in seen} == {b for _, b, _ in seen}
    assert {True, False} == {c for _, _, c in seen}


def test_crash_happens_before_inside_or_after_a_step() -> None:
    left = {}
    for phase in ("before", "inside", "after"):
        files = MemoryFiles(Tree(), seed=3)
        file = files.create("/a")
        files.crash_in(1, phase)
        with pytest.raises(Crash):
            file.append(b"0123456789")
        with pytest.raises(Crash):
            files.create("/b")
        found = files.tree.find("/a")
        assert isinstance(found, Inode)
        left[phase] = bytes(found.content)
    assert left["before"] == b""
    assert 0 < len(left["inside"]) < 10
    assert left["after"] == b"0123456789"


def test_steps_fail_as_often_as_requested() -> None:
    files = MemoryFiles(Tree())
    file = files.create("/a")
    files.refuse(2, 2, 28)
    file.append(b"one")
    for _ in range(2):
        with pytest.raises(DurabilityError, match="ENOSPC"):
            file.append(b"two")
    file.append(b"three")
    assert files.read("/a") == b"onethree"
    lock = files.lock("/lock")
    assert lock is not None
    assert files.lock("/lock") is None
    with suppress(DurabilityError):
        lock.release()
    assert files.lock("/lock") is not None
