"""Disk errors of replicas: one at every call, while copies are made, read and repaired.

The calls of each workload are counted on a working disk. Then the workload runs once for each call,
which fails. Afterwards the acknowledged frames can be read from the copy, each name has its
complete content or none, and the next try succeeds. In soak the log is larger.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from checks.logs import ship_all
from faults.faults import PickyFiles
from internals import checkpoint_now, log_of, settle_background
from soak import tried

from nosync_nb import open as open_session
from nosync_nb.errors import NosyncError
from nosync_nb.files.filesystem import Files
from nosync_nb.store import store
from nosync_nb.store.log.owner import HostIdentity
from nosync_nb.store.records.file_references import FileReference
from nosync_nb.store.replication import config, file_layout
from nosync_nb.store.replication.agent.log_source import LogSource
from nosync_nb.store.replication.agent.shipper import Shipper
from nosync_nb.store.replication.backends.folder import FolderReplica
from nosync_nb.store.replication.consistency import examine_copy
from nosync_nb.store.replication.protocol import LogName
from nosync_nb.store.replication.restore import repair, restore
from nosync_nb.store.replication.restore.lazy_fetch import fetch_file
from nosync_nb.store.verification.survey import survey_log
from nosync_nb.store.verification.verify import ImmutableFile, completed_report, immutable_files

NAME = LogName("/logs/x.nosync", "me")
EPOCHS = tried(5, 60)


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOSYNC_KEY_FILE", str(tmp_path / "keys" / "key"))
    monkeypatch.setattr(store, "SPILL_ROWS", 4)


class Log(NamedTuple):
    """A closed log: its folder, generation and id, and the folder of its copies."""

    path: str
    generation: int
    log_id: bytes
    copies: str

    def files(self) -> dict[str, bytes]:
        """Its files of rows and frames."""
        found = {}
        for folder in ("", *file_layout.FOLDERS.values()):
            for name in os.listdir(os.path.join(self.path, folder)):
                if file_layout.is_file(name):
                    found[name] = Path(self.path, folder, name).read_bytes()
        return found

    def shipped(self, files: Files) -> Shipper:
        """Brings the copy level, on a disk."""
        replica = FolderReplica(self.copies, self.log_id, files=files)
        source = LogSource(self.path, self.generation)
        shipper = Shipper(source, replica, NAME, lambda vote: None)
        try:
            ship_all(shipper)
        finally:
            source.close()
            with suppress(NosyncError):
                replica.close()
        return shipper

    def rows(self) -> dict[str, ImmutableFile]:
        """The files of rows that the log names."""
        found = survey_log(Files(), self.path, HostIdentity(), lambda count: None)
        known = immutable_files(completed_report(Files(), self.path, found, lambda count: None))
        return {name: item for name, item in known.items() if file_layout.is_rows(name)}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    path, copies = str(tmp_path / "x.nosync"), tmp_path / "copies"
    copies.mkdir()
    with open_session(path) as session:
        numbers = session.input("numbers", "x int")
        for epoch in range(EPOCHS):
            numbers.insert([(x,) for x in range(epoch, epoch + (9 if epoch % 3 == 1 else 2))])
            session.commit()
            if epoch == EPOCHS // 2:
                settle_background(session)
                checkpoint_now(session)
        session.sync()
        log = log_of(session)
        return Log(path, log.generation, log.id, str(copies))


def each_call(work: Callable[[PickyFiles], object], reset: Callable[[], None]) -> list[int]:
    """Numbers the calls of a workload; the workload is reset before it runs."""
    disk = PickyFiles()
    reset()
    work(disk)
    count = len(disk.steps)
    assert count
    return list(range(1, count + 1))


@pytest.mark.fault(16, 20)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_failed_call_leaves_copy_level_and_acknowledgement_true(log: Log, code: int) -> None:
    def reset() -> None:
        shutil.rmtree(log.copies)
        os.mkdir(log.copies)

    whole = log.files()
    for number in each_call(log.shipped, reset):
        reset()
        disk = PickyFiles()
        disk.arm(number, code)
        replica = FolderReplica(log.copies, log.log_id, files=disk)
        source = LogSource(log.path, log.generation)
        shipper = Shipper(source, replica, NAME, lambda vote: None)
        with suppress(NosyncError):
            ship_all(shipper)
        known = shipper.acknowledged
        copy = FolderReplica(log.copies, log.log_id)
        if known is not None:
            assert examine_copy(Files(), "copy", copy).end.seq >= known.seq, disk.steps[number - 1]
        ship_all(shipper)  # the disk works again
        source.close()
        replica.close()
        held = copy.held().files
        assert shipper.acknowledged is not None
        for name, size in held.items():
            assert copy.read(name, 0, size + 1) == whole[name][:size], disk.steps[number - 1]
        assert examine_copy(Files(), "copy", copy).end.seq == shipper.acknowledged.seq


@pytest.mark.fault(5, 16)
def test_restore_is_atomic_at_any_failed_call(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "nosync_nb.session.durability.replication.ReplicationService.start", lambda _self: None
    )
    log.shipped(Files())
    end = examine_copy(Files(), "copy", FolderReplica(log.copies, log.log_id)).end
    url = f"file://{log.copies}#{log.log_id.hex()}"
    asked = config.checked_config([url], 1, log=log.path)

    def reset() -> None:
        shutil.rmtree(log.path, ignore_errors=True)

    def restored(disk: Files) -> restore.RestoreResult | None:
        return restore.restore_log(log.path, asked, disk)

    for number in each_call(restored, reset):
        reset()
        disk = PickyFiles()
        disk.arm(number, errno.EIO)
        done = None
        with suppress(NosyncError):
            done = restored(disk)
        if done is None and not os.path.exists(log.path):
            done = restored(Files())
        assert done is None or done.seq == end.seq, disk.steps[number - 1]
        left = [name for name in os.listdir(os.path.dirname(log.path)) if "restoring" in name]
        with open_session(log.path) as session:
            assert session.now == EPOCHS, disk.steps[number - 1]
        assert len(left) <= 1, "the interrupted restore, which the next one deletes"


@pytest.mark.fault(14, 16)
def test_fetch_is_atomic_at_any_failed_call(log: Log) -> None:
    log.shipped(Files())
    whole = log.files()
    for item in log.rows().values():
        path = file_layout.file_path(log.path, item.name)

        def reset(path: str = path) -> None:
            with suppress(FileNotFoundError):
                os.unlink(path)

        def fetched(disk: Files, item: ImmutableFile = item) -> int:
            replica = FolderReplica(log.copies, log.log_id, files=disk)
            return fetch_file(disk, log.path, FileReference(item.name, item.size), replica)

        for number in each_call(fetched, reset):
            reset()
            disk = PickyFiles()
            disk.arm(number, errno.EIO)
            with suppress(NosyncError):
                fetched(disk)
            if os.path.exists(path):
                assert Path(path).read_bytes() == whole[item.name], disk.steps[number - 1]
            fetched(Files())
            assert Path(path).read_bytes() == whole[item.name]


@pytest.mark.fault(12, 16)
def test_repair_is_atomic_at_any_failed_call(
    log: Log,
) -> None:
    log.shipped(Files())
    whole = log.files()
    address = config.checked_config([f"file://{log.copies}"], 1, log=log.path).replicas
    item = next(iter(log.rows().values()))
    path = Path(file_layout.file_path(log.path, item.name))
    bad = bytes([whole[item.name][0] ^ 1]) + whole[item.name][1:]

    def reset() -> None:
        path.write_bytes(bad)

    def repaired(disk: Files) -> repair.RepairedFile | None:
        why = repair.damage_reason(disk, log.path, item, lambda count: None)
        return repair.repair_file(disk, log.path, item, why, address, log.log_id)

    for number in each_call(repaired, reset):
        reset()
        disk = PickyFiles()
        disk.arm(number, errno.EIO)
        with suppress(NosyncError):
            repaired(disk)
        assert path.read_bytes() in (bad, whole[item.name]), disk.steps[number - 1]
        reset()
        assert repaired(Files()) is not None
        assert path.read_bytes() == whole[item.name]
