"""Disk errors of the log: only data on disk is called durable."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks.logs import everything, verified_frames
from faults.every_opcode import Struck, count, strike
from faults.faults import FakeMachine, FaultyFiles, HastyFiles, Step
from internals import disk_of, words_of, writer_of
from soak import SOAK

from nosync_nb.errors import DurabilityError, FencedError
from nosync_nb.files.filesystem import File
from nosync_nb.store.log import Log, segments, writer
from nosync_nb.store.log.fencing import WriterLease


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "x.nosync")


class Failing:
    """Fails chosen steps with an errno while it is on."""

    def __init__(self, action: str, code: int, *, name: str = "segment", times: int = 10**9):
        self.action, self.code, self.name, self.times = action, code, name, times
        self.on = False

    def __call__(self, step: Step) -> int | None:
        if (
            not self.on
            or step.action != self.action
            or self.name not in step.name
            or not self.times
        ):
            return None
        self.times -= 1
        return self.code


def open_failing(path: str, failing: Failing, *, background: bool = False, seed: int = 0) -> Log:
    files = FaultyFiles(error_at=failing, halves=True, seed=seed)
    log = Log.open(path, files=files, machine=FakeMachine(), background=background)
    failing.on = True
    return log


def after_power_failure(path: str, log: Log) -> list[bytes]:
    """Returns the remaining frames of a log after a power failure."""
    disk = disk_of(log)
    assert isinstance(disk, FaultyFiles)
    disk.lose_power(path)
    with Log.open(path, files=HastyFiles(), machine=FakeMachine(boot="boot-2")):
        return everything(path)


@pytest.mark.fault(16)
def test_failed_sync_seals_segment_and_rewrites_frames(
    path: str,
) -> None:
    log = open_failing(path, Failing("sync", errno.EIO, times=1))
    log.append(1, b"one")
    log.append(1, b"two")
    log.sync()
    assert log.durable == 2
    names = [segments.file_name(*one) for one in segments.segment_names(os.listdir(path))]
    assert len(names) == 2
    Path(path, names[0]).unlink()
    assert everything(path) == [b"one", b"two"]
    log.append(1, b"three")
    log.sync()
    assert after_power_failure(path, log) == [b"one", b"two", b"three"]


@pytest.mark.fault(16)
@pytest.mark.parametrize("seed", range(4))
def test_failed_sync_continues_after_trimmed_segments(
    path: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 400)
    failing = Failing("sync", errno.EIO, times=1)
    log = open_failing(path, failing, seed=seed)
    failing.on = False
    for _ in range(2):
        for _ in range(12):
            log.append(1, b"before")
        log.sync()
        log.write_checkpoint(b"state")
    payloads = [b"%d" % number for number in range(30)]
    for payload in payloads:
        log.append(1, payload)
        if payload == b"9":
            log.sync()
    assert log.trim()
    failing.on = True
    log.sync()
    assert log.durable == 54
    disk = disk_of(log)
    assert isinstance(disk, FaultyFiles)
    disk.lose_power(path)
    with Log.open(path, files=HastyFiles(), machine=FakeMachine(boot="boot-2")) as again:
        assert [frame.payload for frame in again.frames()][-30:] == payloads


@pytest.mark.fault(16)
def test_file_is_not_synced_again_after_failed_sync(path: str) -> None:
    log = open_failing(path, Failing("sync", errno.EIO, times=1))
    log.append(1, b"one")
    log.sync()
    log.append(1, b"two")
    log.sync()
    disk = disk_of(log)
    assert isinstance(disk, FaultyFiles)
    syncs = [step.name for step in disk.steps if step.action == "sync"]
    failed = "segment-00000001-00000001.log"
    assert syncs.count(failed) == 1
    assert syncs[-1] != failed


@pytest.mark.fault(17)
def test_failing_syncs_freeze_frontier_and_refuse_appends(path: str) -> None:
    failing = Failing("sync", errno.EIO)
    log = open_failing(path, failing)
    log.append(1, b"one")
    for _ in range(3):
        with pytest.raises(DurabilityError, match=r"input/output error \(EIO\)"):
            log.sync()
        with pytest.raises(DurabilityError, match="EIO"):
            log.append(1, b"refused")
        assert log.durable == 0
        assert log.head.seq == 1
    failing.on = False
    log.append(1, b"two")
    log.sync()
    assert log.durable == 2
    assert after_power_failure(path, log) == [b"one", b"two"]


@pytest.mark.fault(19, 20)
@pytest.mark.parametrize("action", ["append", "create", "rename", "sync_folder"])
def test_full_disk_refuses_appends_until_space_is_free(
    path: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 300)
    failing = Failing(action, errno.ENOSPC, name="")
    log = open_failing(path, failing)
    failing.on = False
    kept, seen = [], []
    for number in range(30):
        failing.on = number % 5 in (2, 3)
        payload = b"%d" % number + bytes(20)
        try:
            log.append(1, payload)
        except DurabilityError as error:
            seen.append(error)
            continue
        kept.append(payload)
        if number % 4 == 0:
            try:
                log.sync()
            except DurabilityError:
                assert failing.on
    failing.on = False
    log.sync()
    assert all(error.errno == errno.ENOSPC for error in seen)
    assert all("the disk is full" in str(error.hint) for error in seen)
    assert len(kept) < 30 or action == "sync_folder"
    assert everything(path) == kept
    assert verified_frames(log) == len(kept)
    log.close()
    with Log.open(path, files=HastyFiles(), machine=FakeMachine()) as again:
        assert again.clean
        assert everything(path) == kept


@pytest.mark.fault(48)
def test_interrupted_append_leaves_frame_out(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_failing(path, Failing("none", 0))
    log.append(1, b"one")
    with monkeypatch.context() as pressed:

        def interrupt() -> None:
            raise KeyboardInterrupt

        pressed.setattr(words_of(log), "check", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.append(1, b"two")
    assert log.head.seq == 1
    log.append(1, b"three")
    log.close()
    assert everything(path) == [b"one", b"three"]


@pytest.mark.fault(48)
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("size_bytes", [8, 500])
def test_append_is_atomic_at_any_opcode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    """A large frame begins a segment."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 400)

    def opened_log(name: str) -> tuple[str, Log]:
        path = str(tmp_path / name)
        log = Log.open(path, files=HastyFiles(), machine=FakeMachine(), background=False)
        log.append(1, b"one")
        return path, log

    two = b"2" * size_bytes
    _, log = opened_log("counted")
    opcodes, changed = count(lambda: log.append(1, two), lambda: log.head.seq)
    log.close()
    assert len(changed) == 1
    for number in range(1, opcodes):
        path, log = opened_log(f"{number}")
        strike(lambda log=log: log.append(1, two), number, Struck())
        taken = log.head.seq == 2
        assert taken or number <= changed[0]
        log.append(1, b"three")
        log.close()
        assert everything(path) == [b"one", *[two][:taken], b"three"]


@contextlib.contextmanager
def interrupted(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interrupts the next append after its frame is written and before it is published."""
    real, came = WriterLease.check, []

    def check(lease: WriterLease) -> None:
        if not came:
            came.append(1)
            raise Struck("from outside")
        real(lease)

    with patch.context() as once:
        once.setattr(WriterLease, "check", check)
        yield
    assert came


@pytest.mark.fault(48)
def test_interrupted_commit_closes_no_file_being_synced(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A repair leaves the file open that another thread syncs.

    Failure: 1. The thread syncs a segment. 2. A commit is interrupted, and the next one repairs
    the log. 3. The thread continues with the closed file of that segment.
    """
    syncing, go, real = threading.Event(), threading.Event(), File.sync

    def sync(file: File) -> None:
        if threading.current_thread().name == "nosync log" and not syncing.is_set():
            syncing.set()
            assert go.wait(60)
        real(file)

    monkeypatch.setattr(File, "sync", sync)
    log = Log.open(path, machine=FakeMachine())
    writer = writer_of(log)
    log.append(1, b"one")
    assert syncing.wait(60)
    with pytest.raises(Struck), interrupted(monkeypatch):
        log.append(1, b"two")
    log.append(1, b"three")  # repairs the log unless the thread already did
    go.set()
    log.sync()
    log.append(1, b"four")
    log.sync()
    assert writer.reseals == 1, "the log is repaired once"
    assert caplog.records == []
    log.close()
    assert everything(path) == [b"one", b"three", b"four"]


@pytest.mark.fault(48)
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("size_bytes", [8, 500])
def test_repair_is_atomic_at_any_opcode_and_leaks_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    """A large frame begins a segment after the repair."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 400)
    three = b"3" * size_bytes

    def broken_log(name: str) -> tuple[str, Log]:
        path = str(tmp_path / name)
        log = Log.open(path, files=HastyFiles(), machine=FakeMachine(), background=False)
        log.append(1, b"one")
        log.sync()
        log.append(1, b"two")
        with contextlib.suppress(Struck), interrupted(monkeypatch):
            log.append(1, b"left out")
        return path, log

    _, log = broken_log("counted")
    opcodes, _ = count(lambda: log.append(1, three), lambda: log.head.seq)
    log.close()
    gc.collect()  # exceptions keep frames with open files
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, opcodes, 1 if SOAK else 7):
        path, log = broken_log(f"{number}")
        strike(lambda log=log: log.append(1, three), number, Struck())
        taken = log.head.seq == 3
        log.append(1, b"four")
        log.sync()
        log.append(1, b"five")
        log.close()
        assert everything(path) == [b"one", b"two", *[three][:taken], b"four", b"five"], number
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.fault(16, 24)
def test_fenced_owner_starts_no_segment_after_failed_sync(path: str) -> None:
    fenced = open_failing(path, Failing("sync", errno.EIO, times=3))
    fenced.append(1, b"one")
    with pytest.raises(DurabilityError):
        fenced.sync()
    assert fenced.durable == 0
    with Log.open(path, files=HastyFiles(), machine=FakeMachine(), takeover=True) as new:
        new.append(1, b"two")
        before = os.listdir(path)
        with pytest.raises(FencedError):
            fenced.sync()
        assert os.listdir(path) == before
        assert fenced.durable == 0
    assert everything(path) == [b"one", b"two"]


@pytest.mark.fault(16, 24)
def test_owner_fenced_during_rewrite_reports_nothing_durable(path: str) -> None:
    class Overtaken(FaultyFiles):
        """A disk whose log is taken over when the new segment exists."""

        armed = False

        def sync_folder(self, path: str) -> None:
            super().sync_folder(path)
            if self.armed:
                self.armed = False
                Log.open(path, files=HastyFiles(), machine=FakeMachine(), takeover=True).close()

    failing = Failing("sync", errno.EIO, times=1)
    files = Overtaken(error_at=failing)
    fenced = Log.open(path, files=files, machine=FakeMachine(), background=False)
    failing.on = files.armed = True
    fenced.append(1, b"one")
    with pytest.raises(FencedError):
        fenced.sync()
    assert not files.armed
    assert fenced.durable == 0


def test_deleted_segment_is_rewritten_before_sync_returns(path: str) -> None:
    log = open_failing(path, Failing("none", 0))
    log.append(1, b"one")
    Path(path, "segment-00000001-00000001.log").unlink()
    log.sync()
    assert everything(path) == [b"one"]
    assert verified_frames(log) == 1


@pytest.mark.fault(47)
def test_background_sync_freezes_frontier_and_recovers(path: str) -> None:
    failing = Failing("sync", errno.EIO)
    log = open_failing(path, failing, background=True)
    log.append(1, b"one")
    with pytest.raises(DurabilityError, match="EIO"):
        log.sync()
    assert log.durable == 0
    failing.on = False
    log.sync()
    assert log.durable == 1
    log.close()


def every_step(path: str) -> Iterator[tuple[int, str]]:
    probe = FaultyFiles()
    use_log(probe, FakeMachine(), path + "-probe", [])
    return iter([(step.number, step.action) for step in probe.steps])


def use_log(files: FaultyFiles, machine: FakeMachine, path: str, kept: list[bytes]) -> None:
    """Uses a log until the first error."""
    with Log.open(path, files=files, machine=machine, background=False) as log:
        for number in range(4):
            log.append(1, b"%d" % number)
            kept.append(b"%d" % number)
            log.sync()
        log.write_checkpoint(b"state")
        log.append(1, b"4")
        kept.append(b"4")


@pytest.mark.fault(16)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_error_at_any_step_loses_nothing(path: str, code: int) -> None:
    for number, _ in every_step(f"{path}-{code}"):
        where, kept = f"{path}-{code}-{number}", []

        def once(step: Step, number: int = number) -> int | None:
            return code if step.number == number else None

        machine = FakeMachine()
        with contextlib.suppress(DurabilityError):
            use_log(FaultyFiles(error_at=once, halves=True), machine, where, kept)
        with Log.open(where, files=HastyFiles(), machine=machine.after(), takeover=True) as log:
            found = everything(where)
            assert found == kept
            assert log.head.seq == len(kept)


@pytest.mark.fault(17)
def test_read_only_folder_is_reported_and_readable(path: str) -> None:
    with Log.open(path, files=HastyFiles(), machine=FakeMachine()) as log:
        log.append(1, b"one")
    for code, text in ((errno.EROFS, "read-only"), (errno.EACCES, "permissions")):
        files = FaultyFiles(error_at=lambda step, code=code: code)
        with pytest.raises(DurabilityError) as caught:
            Log.open(path, files=files, machine=FakeMachine())
        assert caught.value.errno == code
        assert text in str(caught.value.hint)
        assert 'mode="r"' in str(caught.value.hint)
        with Log.open(path, mode="r", files=files, machine=FakeMachine()) as reader:
            assert [frame.payload for frame in reader.frames()] == [b"one"]
