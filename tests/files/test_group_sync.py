"""Group syncs: concurrent steps wait together, and errors are raised when all have ended.

A group sync postpones syncs: then a power failure loses nothing, and each file was synced
once.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.faults import FaultyFiles

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import THREADS_MAX, Files, close_all, run_all
from nosync_nb.files.group_sync import GroupSyncFiles

WAIT_S = 60


def test_steps_run_concurrently() -> None:
    met = threading.Barrier(THREADS_MAX)
    run_all([lambda: met.wait(WAIT_S) and None] * THREADS_MAX)
    assert not met.broken


def test_run_all_runs_more_steps_than_threads() -> None:
    done: list[int] = []
    run_all([lambda i=i: done.append(i) for i in range(5 * THREADS_MAX + 3)])  # type: ignore[misc]
    assert sorted(done) == [*range(5 * THREADS_MAX + 3)]
    run_all([])


@pytest.mark.parametrize("bad", range(THREADS_MAX + 1))
def test_step_error_is_raised_after_all_steps_ended(bad: int) -> None:
    """Steps in other threads do not wait for it; the caller gets the error afterwards."""
    done: list[int] = []

    def step(i: int) -> Callable[[], None]:
        def act() -> None:
            if i == bad:
                raise DurabilityError(f"step {i}")
            done.append(i)

        return act

    before = threading.active_count()
    with pytest.raises(DurabilityError, match=f"step {bad}"):
        run_all([step(i) for i in range(THREADS_MAX + 1)])
    assert {*range(1, THREADS_MAX)} - {bad} <= {*done}
    assert threading.active_count() <= before


def test_interrupt_waits_for_running_steps() -> None:
    """The caller closes its files next, so none may be in use."""
    ended, begun = threading.Event(), threading.Event()

    def interrupted() -> None:
        begun.wait(WAIT_S)
        raise KeyboardInterrupt

    def slow() -> None:
        begun.set()
        threading.main_thread().join(0.05)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_all([interrupted, slow])
    assert ended.is_set()


def test_steps_run_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        run_all([lambda i=i: done.append(i) for i in range(4)])  # type: ignore[misc]
    assert sorted(done) == [0, 1, 2, 3]


def test_deferred_syncs_run_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    met = threading.Barrier(4)
    together = GroupSyncFiles(Files())
    together.make_folder(str(tmp_path / "made"))
    for name in ("a", "b", "c"):
        file = together.create(str(tmp_path / "made" / name))
        file.append(name.encode())
        file.sync()
        file.close()
    monkeypatch.setattr("os.fdatasync", lambda fd: met.wait(WAIT_S))
    monkeypatch.setattr("os.fsync", lambda fd: met.wait(WAIT_S))
    together.sync_deferred()
    assert not met.broken


def test_close_all_closes_every_file_despite_error(tmp_path: Path) -> None:
    closed: list[str] = []

    class Closes:
        def __init__(self, name: str, *, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        def close(self) -> None:
            closed.append(self.name)
            if self.fails:
                raise DurabilityError(self.name)

    with pytest.raises(DurabilityError, match="b"):
        close_all([Closes("a"), Closes("b", fails=True), Closes("c")])
    assert sorted(closed) == ["a", "b", "c"]


def write_folder(disk: Files, root: Path) -> dict[str, bytes]:
    """Writes a folder in every way that a log does; returns its contents."""
    root.mkdir(exist_ok=True)
    (root / "before").write_bytes(b"was there")
    top = str(root / "made")
    inner = os.path.join(top, "inner")
    assert disk.make_folder(top)
    assert disk.make_folder(inner)
    assert not disk.make_folder(inner)
    for content in (b"one", b"another"):
        disk.replace(os.path.join(top, "replaced"), content)
    file = disk.create(os.path.join(inner, "segment.tmp"))
    file.append(b"head ")
    file.sync()
    file.append(b"of it")
    file.sync()
    disk.rename(file.path, os.path.join(inner, "segment"))
    file.moved(os.path.join(inner, "segment"))
    disk.sync_folder(inner)
    again = disk.open(file.path, write=True)
    again.write_at(0, b"HEAD")
    again.sync()
    assert (again.size(), again.read_at(0, 4), again.read_all(), again.deleted()) == (
        10,
        b"HEAD",
        b"HEAD of it",
        False,
    )
    assert again.stamp() == file.stamp()
    again.close()
    file.close()
    gone = disk.create(os.path.join(inner, "gone"))
    gone.sync()
    gone.close()
    disk.unlink(os.path.join(inner, "gone"))
    disk.copy(os.path.join(top, "replaced"), os.path.join(inner, "copied"))
    disk.link(str(root / "before"), os.path.join(inner, "linked"))
    disk.sync_folder(inner)
    disk.sync_folder(top)
    return contents(root)


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_group_sync_disk_writes_content_of_plain_disk(tmp_path: Path) -> None:
    expected = write_folder(Files(), tmp_path / "plain")
    assert write_folder(GroupSyncFiles(Files()), tmp_path / "together") == expected
    assert expected["made/inner/segment"] == b"HEAD of it"


@pytest.mark.parametrize("seed", range(12))
def test_deferred_syncs_survive_power_loss(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "disk"
    disk = FaultyFiles(seed=seed)
    together = GroupSyncFiles(disk)
    expected = write_folder(together, root)
    together.sync_deferred()
    disk.lose_power(str(root))
    assert contents(root) == expected


def test_sync_deferred_syncs_each_file_and_folder_once(tmp_path: Path) -> None:
    disk = FaultyFiles()
    together = GroupSyncFiles(disk)
    write_folder(together, tmp_path)
    assert not [step for step in disk.steps if step.action.startswith("sync")]
    before = len(disk.steps)
    together.sync_deferred()
    steps = disk.steps[before:]
    synced = Counter((step.action, step.name) for step in steps)
    assert synced == Counter(
        [("sync", name) for name in ("replaced", "segment", "copied")]
        + [("sync_folder", name) for name in ("inner", "made", tmp_path.name)]
    )
    assert [step.action for step in steps] == ["sync"] * 3 + ["sync_folder"] * 3
    assert [step.name for step in steps[3:]] == ["inner", "made", tmp_path.name]


@pytest.mark.parametrize("at", range(1, 7))
def test_failed_deferred_sync_raises_error(tmp_path: Path, at: int) -> None:
    disk = FaultyFiles()
    together = GroupSyncFiles(disk)
    write_folder(together, tmp_path)
    disk.refuse(at, 1, 5)
    with pytest.raises(DurabilityError):
        together.sync_deferred()
    together.close()
