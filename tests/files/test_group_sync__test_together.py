"""A disk that puts syncs off: after `settle` power takes nothing, and each file was synced once."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from faults.faults import FaultyFiles

from nosync_nb.errors import DurabilityError
from nosync_nb.files.filesystem import Files
from nosync_nb.files.group_sync import GroupSyncFiles


def written(disk: Files, root: Path) -> dict[str, bytes]:
    """Writes a folder in every way that a log does; returns what is there then."""
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


def test_what_is_written_is_what_a_plain_disk_has(tmp_path: Path) -> None:
    expected = written(Files(), tmp_path / "plain")
    assert written(GroupSyncFiles(Files()), tmp_path / "together") == expected
    assert expected["made/inner/segment"] == b"HEAD of it"


@pytest.mark.parametrize("seed", range(12))
def test_power_takes_nothing_of_what_was_settled(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "disk"
    disk = FaultyFiles(seed=seed)
    together = GroupSyncFiles(disk)
    expected = written(together, root)
    together.settle()
    disk.lose_power(str(root))
    assert contents(root) == expected


def test_each_file_and_folder_is_synced_once_and_not_before_it_is_settled(tmp_path: Path) -> None:
    disk = FaultyFiles()
    together = GroupSyncFiles(disk)
    written(together, tmp_path)
    assert not [step for step in disk.steps if step.action.startswith("sync")]
    before = len(disk.steps)
    together.settle()
    steps = disk.steps[before:]
    synced = Counter((step.action, step.name) for step in steps)
    assert synced == Counter(
        [("sync", name) for name in ("replaced", "segment", "copied")]
        + [("sync_folder", name) for name in ("inner", "made", tmp_path.name)]
    )
    assert [step.action for step in steps] == ["sync"] * 3 + ["sync_folder"] * 3
    assert [step.name for step in steps[3:]] == ["inner", "made", tmp_path.name]


@pytest.mark.parametrize("at", range(1, 7))
def test_a_sync_that_fails_when_it_is_settled_is_told(tmp_path: Path, at: int) -> None:
    disk = FaultyFiles()
    together = GroupSyncFiles(disk)
    written(together, tmp_path)
    disk.refuse(at, 1, 5)
    with pytest.raises(DurabilityError):
        together.settle()
    together.close()
