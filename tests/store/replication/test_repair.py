"""Repair, step by step: only an owner changes a log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from faults.faults import FaultyFiles

from nosync_nb.errors import FencedError
from nosync_nb.files.filesystem import Files
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication import file_layout
from nosync_nb.store.replication.address import parse_address
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.protocol import LogName, OwnerTerm
from nosync_nb.store.replication.restore import lazy_fetch, repair
from nosync_nb.store.replication.restore.repair import RepairedFile
from nosync_nb.store.verification.verify import ImmutableFile

ID = bytes(range(16))
TERM, NAME = OwnerTerm(1, "me"), LogName("/logs/x.nosync", "me")
PART = "log1-1-g3-ab.arrow"
SEEDS = range(20)


def damage_of(files: Files, path: str, _counted: object) -> str:
    return "" if files.read(path) == b"whole" else "it is not whole"


def log_with_bad_file(root: Path, files: Files) -> str:
    """Creates the folder of a log with a damaged file, and a replica beside it."""
    folder = str(root / "log")
    for each in (root, root / "log", root / "copies", *file_layout.FOLDERS.values()):
        files.make_folder(os.path.join(folder, each))
    replica = FolderReplica(str(root / "copies"), ID)
    replica.promise(TERM, NAME)
    replica.store(TERM, PART, 0, b"whole", last=True)
    files.replace(file_layout.file_path(folder, PART), b"bad")
    return folder


def repaired(
    files: Files, root: Path, folder: str, error: Exception | None = None
) -> RepairedFile | None:
    def check() -> None:
        if error is not None:
            raise error

    item = ImmutableFile(PART, None, damage_of, True, 0)
    address = parse_address(f"file://{root}/copies")
    return repair.repair_file(files, folder, item, "bad", [address], ID, check=check)


@pytest.mark.fault(24)
def test_fenced_owner_repairs_nothing(tmp_path: Path) -> None:
    folder = log_with_bad_file(tmp_path, Files())
    before = {path: path.is_file() and path.read_bytes() for path in Path(folder).rglob("*")}
    with pytest.raises(FencedError):
        repaired(Files(), tmp_path, folder, FencedError("taken over"))
    assert {p: p.is_file() and p.read_bytes() for p in Path(folder).rglob("*")} == before
    assert repaired(Files(), tmp_path, folder) is not None
    assert Path(file_layout.file_path(folder, PART)).read_bytes() == b"whole"


@pytest.mark.fault(9, 12)
def test_repaired_file_survives_power_loss(tmp_path: Path) -> None:
    for seed in SEEDS:
        root, files = tmp_path / f"{seed}", FaultyFiles(seed=seed)
        folder = log_with_bad_file(root, files)
        assert repaired(files, root, folder) is not None
        files.lose_power(folder)
        assert Path(file_layout.file_path(folder, PART)).read_bytes() == b"whole"


@pytest.mark.fault(9, 33)
def test_fetched_file_survives_power_loss(tmp_path: Path) -> None:
    def whole(files: Files, path: str, _wanted: FileReference) -> None:
        assert damage_of(files, path, None) == ""

    for seed in SEEDS:
        root, files = tmp_path / f"{seed}", FaultyFiles(seed=seed)
        folder = log_with_bad_file(root, files)
        replica = FolderReplica(str(root / "copies"), ID)
        size = lazy_fetch.fetch_file(files, folder, FileReference(PART, 5), replica, prove=whole)
        assert size == 5
        files.lose_power(folder)
        assert Path(file_layout.file_path(folder, PART)).read_bytes() == b"whole"
