"""Replicas in folders: accepted data survives power failures and fenced shippers."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.faults import FaultyFile, FaultyFiles

from nosync_nb.errors import DurabilityError, FencedError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.log import segments
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.protocol import LogName, OwnerTerm

NAME = LogName("/logs/x.nosync", "me", 3, 2)
FIRST, SECOND = OwnerTerm(3, "first"), OwnerTerm(4, "second")
PART, SEGMENT = "log1-1-g3-ab.arrow", segments.file_name(1, 1)
ID = bytes(range(16))
SEEDS = range(20)


class HookedDisk(FaultyFiles):
    """A disk with seeded power losses and hooks between two steps."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.before_creating: Callable[[], None] | None = None
        self.after_syncing: Callable[[str], None] | None = None
        self.forgets = False

    def create(self, path: str) -> FaultyFile:
        act, self.before_creating = self.before_creating, None
        if act is not None:
            act()
        return super().create(path)

    def sync_folder(self, path: str) -> None:
        if not self.forgets:
            super().sync_folder(path)
        if self.after_syncing is not None:
            self.after_syncing(path)


def copy_with_segment(root: Path, files: Files) -> FolderReplica:
    """A copy granted to the first owner, with a segment."""
    files.make_folder(str(root))
    replica = FolderReplica(str(root), ID, files=files)
    replica.promise(FIRST, NAME)
    replica.store(FIRST, SEGMENT, 0, b"begin", last=True)
    return replica


def reopened(root: Path, files: Files) -> FolderReplica:
    return FolderReplica(str(root), ID, files=files)


@pytest.mark.fault(8, 9, 27)
def test_stored_files_survive_power_loss(tmp_path: Path) -> None:
    for seed in SEEDS:
        root, files = tmp_path / f"{seed}", HookedDisk(seed=seed)
        replica = copy_with_segment(root, files)
        replica.store(FIRST, PART, 0, b"a part", last=True)
        files.lose_power(str(root))
        assert dict(reopened(root, Files()).held().files) == {SEGMENT: 5, PART: 6}
        assert reopened(root, Files()).read(PART, 0, 9) == b"a part"


@pytest.mark.fault(8, 9, 27)
def test_unsynced_data_of_killed_shipper_is_synced_before_it_counts(tmp_path: Path) -> None:
    for seed in SEEDS:
        root, files = tmp_path / f"{seed}", HookedDisk(seed=seed)
        killed = copy_with_segment(root, files)
        killed.append(FIRST, SEGMENT, 5, b" and more")
        files.forgets = True
        killed.store(FIRST, PART, 0, b"a part", last=True)
        files.forgets = False
        held = reopened(root, files).promise(SECOND, NAME)
        assert dict(held.files) == {SEGMENT: 14, PART: 6}
        files.lose_power(str(root))
        assert reopened(root, Files()).held() == held
        assert reopened(root, Files()).read(SEGMENT, 0, 99) == b"begin and more"


@pytest.mark.fault(8, 24, 28)
def test_append_during_new_grant_does_not_count(tmp_path: Path) -> None:
    """The shipper has the segment open, and checks the grant only with its next sync."""
    root, files = tmp_path / "copies", HookedDisk()
    fenced = copy_with_segment(root, files)
    fenced.append(FIRST, SEGMENT, 5, b"!")
    left = [b"x", b"y"]

    def add(path: str) -> None:
        if left and path.endswith("layers"):
            fenced.append(FIRST, SEGMENT, 8 - len(left), left.pop(0))

    files.after_syncing = add
    held = reopened(root, files).promise(SECOND, NAME)
    assert left == [b"y"]
    assert dict(held.files) == {SEGMENT: 6}
    with pytest.raises(FencedError, match="generation 4"):
        fenced.sync(FIRST, 3)


@pytest.mark.fault(24, 28)
def test_fenced_shipper_changes_nothing(
    tmp_path: Path,
) -> None:
    root, files = tmp_path / "copies", HookedDisk()
    fenced = copy_with_segment(root, files)
    reopened(root, files).promise(SECOND, NAME)
    before = sorted(root.rglob("*"))
    for _ in range(2):
        with pytest.raises(FencedError, match="generation 4"):
            fenced.append(FIRST, SEGMENT, 5, b"more")
        with pytest.raises(FencedError, match="generation 4"):
            fenced.store(FIRST, PART, 0, b"a part", last=False)
        with pytest.raises(FencedError, match="generation 4"):
            fenced.discard(FIRST, [SEGMENT])
    assert sorted(root.rglob("*")) == before
    assert dict(reopened(root, files).held().files) == {SEGMENT: 5}


@pytest.mark.fault(24, 28)
def test_file_begun_before_takeover_does_not_appear_after_it(
    tmp_path: Path,
) -> None:
    root, files = tmp_path / "copies", HookedDisk()
    fenced = copy_with_segment(root, files)
    taken: list[int] = []

    def take_over() -> None:
        taken.append(len(reopened(root, files).promise(SECOND, NAME).files))

    files.before_creating = take_over
    with pytest.raises(FencedError, match="generation 4"):
        fenced.store(FIRST, PART, 0, b"a part", last=True)
    assert taken == [1]
    assert dict(reopened(root, files).held().files) == {SEGMENT: 5}


@pytest.mark.fault(41)
def test_deleted_segment_is_not_acknowledged(tmp_path: Path) -> None:
    root, files = tmp_path / "copies", HookedDisk()
    replica = copy_with_segment(root, files)
    replica.append(FIRST, SEGMENT, 5, b"more")
    os.unlink(root / ID.hex() / SEGMENT)
    with pytest.raises(DurabilityError, match="was deleted"):
        replica.sync(FIRST, 2)
    assert replica.acknowledged() == 0


@pytest.mark.fault(31)
def test_append_to_moved_folder_is_not_acknowledged(
    tmp_path: Path,
) -> None:
    root, files = tmp_path / "copies", HookedDisk()
    replica = copy_with_segment(root, files)
    replica.sync(FIRST, 1)
    replica.append(FIRST, SEGMENT, 5, b"more")
    folder, moved = root / ID.hex(), tmp_path / "moved"
    folder.rename(moved)
    shutil.copytree(moved, folder)  # equal names and sizes, not synced
    with pytest.raises(DurabilityError, match="was replaced by another copy"):
        replica.sync(FIRST, 2)
    assert reopened(root, files).acknowledged() == 1


@pytest.mark.fault(31)
def test_truncated_segment_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, files = tmp_path / "copies", HookedDisk()
    replica = copy_with_segment(root, files)
    replica.append(FIRST, SEGMENT, 5, b"more")
    later = (
        time.time_ns() + 10**10
    )  # makes the modification times of folders old enough to be conclusive
    monkeypatch.setattr(time, "time_ns", lambda: later)
    replica.sync(FIRST, 1)
    os.truncate(root / ID.hex() / SEGMENT, 5)  # no name in the folder changes
    with pytest.raises(DurabilityError, match="was replaced by another copy"):
        replica.sync(FIRST, 2)
    assert reopened(root, files).acknowledged() == 1


@pytest.mark.fault(8, 11)
def test_power_loss_leaves_no_later_acknowledgement_than_the_last(tmp_path: Path) -> None:
    seen = set()
    for seed in SEEDS:
        root, files = tmp_path / f"{seed}", HookedDisk(seed=seed)
        replica = copy_with_segment(root, files)
        for seq in (5, 9, 3):
            replica.sync(FIRST, seq)
        files.lose_power(str(root))
        seen.add(reopened(root, Files()).acknowledged())
    assert seen == {3}


@pytest.mark.fault(8, 11, 31)
def test_power_loss_keeps_that_replica_has_acknowledged(tmp_path: Path) -> None:
    seen = set()
    for seed in SEEDS:
        root, files = tmp_path / f"{seed}", HookedDisk(seed=seed)
        replica = copy_with_segment(root, files)
        for seq in (0, 5, 9):
            replica.sync(FIRST, seq)
        files.lose_power(str(root))
        seen.add(reopened(root, Files()).acknowledged())
    assert seen == {5, 9}
    note = root / ID.hex() / "acknowledged"
    note.write_bytes(note.read_bytes()[:8] + bytes(8))  # torn
    assert reopened(root, Files()).acknowledged() == 1


class RecordingDisk(Files):
    """A disk that records listings and existence checks."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def names(self, path: str) -> list[str]:
        self.asked.append(("names", path))
        return super().names(path)

    def exists(self, path: str) -> bool:
        self.asked.append(("exists", path))
        return super().exists(path)


def test_grant_lists_each_folder_once(
    tmp_path: Path,
) -> None:
    """On a mounted volume each listing is a round trip."""
    files = RecordingDisk()
    copy_with_segment(tmp_path, files).store(FIRST, PART, 0, b"rows", last=True)
    copy = str(tmp_path / ID.hex())
    files.asked.clear()
    held = reopened(tmp_path, files).promise(SECOND, NAME)
    assert {*held.files} == {SEGMENT, PART}
    listed = [path for what, path in files.asked if what == "names"]
    inner = [os.path.join(copy, each) for each in ("layers", "history")]
    assert sorted(listed) == sorted([copy, copy, *inner])  # the second time for the sync
    assert [path for what, path in files.asked if what == "exists" and path.startswith(copy)] == []
    files.asked.clear()
    reopened(tmp_path, files).acknowledged()
    assert reopened(tmp_path, files).promised() == SECOND
    assert files.asked == []
