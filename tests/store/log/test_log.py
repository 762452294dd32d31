"""The log: frames are read back, damage is found, one owner writes, readers follow."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checks.damaged_bytes import flipped
from checks.logs import everything, verified_frames
from faults.faults import FakeMachine, HastyFiles
from internals import words_of

from nosync_nb.errors import CorruptLogError, DurabilityError, FencedError, TrustError
from nosync_nb.files.filesystem import File, Files
from nosync_nb.store.log import (
    FramePosition,
    Log,
    checkpoint,
    frame_index,
    frames,
    recovery,
    segments,
    writer,
)
from nosync_nb.store.log.fencing import SILENT_S
from nosync_nb.store.log.owner import HostIdentity, ProcessIdentity, _start_ticks


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "x.nosync")


def open_log(path: str, machine: FakeMachine | None = None, **options: object) -> Log:
    options = {"files": HastyFiles(), "background": False, **options}
    return Log.open(path, machine=machine or FakeMachine(), **options)


def write_log(path: str, count: int, *, close: bool = True, size: int = 20) -> list[bytes]:
    """Writes a log of `count` frames; without `close` its owner is dead and nothing is synced."""
    payloads = [b"%d:" % number + bytes([number % 256]) * size for number in range(count)]
    log = open_log(path)
    for payload in payloads:
        log.append(1, payload)
    if close:
        log.close()
    return payloads


def segment_paths(path: str) -> list[Path]:
    return [
        Path(path) / segments.file_name(*one) for one in segments.segment_names(os.listdir(path))
    ]


def snapshot(path: str) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in segment_paths(path)}


# Reading back


def test_frames_return_in_order_with_kind_and_position(path: str) -> None:
    with open_log(path) as first:
        assert first.fresh
        assert not first.clean
        positions = [first.append(kind, b"x" * kind) for kind in range(20)]
    with open_log(path) as again:
        found = list(again.frames())
        assert [(frame.position, frame.kind, frame.payload) for frame in found] == [
            (position, kind, b"x" * kind) for kind, position in enumerate(positions)
        ]
        assert again.clean
        assert not again.fresh
        assert again.notes == []


def test_only_frames_after_checkpoint_are_replayed(path: str) -> None:
    with open_log(path) as first:
        positions = [first.append(1, b"%d" % number) for number in range(6)]
        first.write_checkpoint(b"state", positions[3])
    with open_log(path) as again:
        assert again.checkpoint == b"state"
        assert again.checkpoint_seq == 4
        assert [frame.payload for frame in again.frames()] == [b"4", b"5"]
        assert again.read(positions[0]).payload == b"0"


def test_old_frames_are_found_across_segments_and_openings(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 500)
    positions: list[FramePosition] = []
    for number in range(4):
        with open_log(path) as one:
            positions += [one.append(number, b"%d" % number * size) for size in (3, 300, 9000)]
            one.write_checkpoint(b"")
            for index, position in enumerate(positions):
                frame = one.read(position)
                assert (frame.position, frame.kind) == (position, index // 3)
    assert len(segment_paths(path)) >= 8
    with open_log(path, mode="r") as reader:
        assert [reader.read(one).kind for one in positions] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert verified_frames(reader) == 12


def test_openings_without_appends_leave_no_files(path: str) -> None:
    write_log(path, 3)
    before = len(os.listdir(path))
    for _ in range(5):
        open_log(path).close()
    assert len(os.listdir(path)) <= before + 1


@pytest.mark.fault(46)
def test_payload_may_be_empty_or_megabytes(path: str) -> None:
    payloads = [b"", bytes(1), bytes(7), os.urandom(3 << 20), frames.MAGIC * 40]
    with open_log(path) as first:
        positions = [first.append(255, payload) for payload in payloads]
    with open_log(path) as again:
        assert [frame.payload for frame in again.frames()] == payloads
        assert [again.read(position).payload for position in positions] == payloads


@pytest.mark.fault(46)
def test_payload_above_limit_is_refused_before_writing(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "PAYLOAD_BYTES_MAX", 100)
    with open_log(path) as first:
        with pytest.raises(DurabilityError, match="larger than 100"):
            first.append(1, bytes(101))
        assert first.append(1, bytes(100)) == FramePosition(1, 0)


def test_checkpoint_is_due_after_many_frames_or_bytes(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "FRAMES_MAX", 3)
    with open_log(path) as first:
        first.append(1, b"")
        first.append(1, b"")
        assert not first.checkpoint_due
        first.append(1, b"")
        assert first.checkpoint_due
        first.write_checkpoint(b"")
        assert not first.checkpoint_due
        first.append(1, bytes(checkpoint.BYTES_MAX))
        assert first.checkpoint_due


def test_checkpoint_is_due_after_twice_its_size(path: str) -> None:
    """Checkpoints then cost half of the frames; after few frames none is due, however small."""
    few, size_bytes = checkpoint.FRAMES_MIN, 30_000
    with open_log(path) as first:
        first.write_checkpoint(bytes(size_bytes), first.append(1, b""))
        frames_bytes = [0]
        while not first.checkpoint_due:
            frames_bytes.append(first.append(1, b"some row").offset)
        assert few < len(frames_bytes) < checkpoint.FRAMES_MAX
        assert 2 * size_bytes <= first.head.offset - frames_bytes[1] < 2 * size_bytes + 100
        first.write_checkpoint(b"")
    with open_log(path) as again:
        for _ in range(few):
            assert not again.checkpoint_due
            again.append(1, b"some row")
        assert again.checkpoint_due


def test_all_files_are_private_to_user(path: str) -> None:
    write_log(path, 1)
    assert os.stat(path).st_mode & 0o777 == 0o700
    assert {os.stat(os.path.join(path, name)).st_mode & 0o777 for name in os.listdir(path)} == {
        0o600
    }


def test_note_is_left_for_next_owner(path: str) -> None:
    first = open_log(path)
    assert first.noted == 0
    first.append(1, b"x")
    first.note(7)
    first.note(2**44 - 1)
    with open_log(path, FakeMachine(boot="boot-2")) as again:
        assert again.noted == 2**44 - 1
        first.note(9)
        again.note(3)
    with open_log(path, mode="r") as reader:
        assert reader.noted == 3
        reader.note(4)
        assert reader.noted == 3


# Damage


@pytest.mark.fault(10, 13)
@pytest.mark.parametrize("way", ["cut", "zeros", "garbage"])
def test_torn_last_frame_is_dropped_at_every_byte(path: str, way: str) -> None:
    payloads = write_log(path, 4, close=False)
    (file,) = segment_paths(path)
    content = file.read_bytes()
    last = frames.frame_bytes(len(payloads[-1]))
    for kept in range(last):
        loose = {"cut": 0, "zeros": last - kept + 64, "garbage": last - kept}[way]
        whole = content[: len(content) - last + kept]
        for leftover in segment_paths(path):
            leftover.unlink()
        file.write_bytes(whole + (os.urandom(loose) if way == "garbage" else bytes(loose)))
        with open_log(path) as again:
            assert [frame.payload for frame in again.frames()] == payloads[:3]
            assert len(again.notes) == (0 if way == "cut" and not kept else 1)
            assert verified_frames(again) == 3
            Path(path, "owner").unlink()


@pytest.mark.fault(12)
def test_flipped_bit_raises_error_and_changes_nothing(path: str) -> None:
    payloads = write_log(path, 2, size=1)
    (file,) = segment_paths(path)
    content = file.read_bytes()
    owner = Path(path, "owner").read_bytes()
    unused = range(segments.HEADER_BYTES - 4, segments.HEADER_BYTES)
    for bit in range(8 * len(content)):
        if bit // 8 in unused:
            continue
        damaged = flipped(content, bit // 8, bit % 8)
        file.write_bytes(damaged)
        with pytest.raises(CorruptLogError, match="segment-00000001-00000001"):
            open_log(path, mode="r")
        if bit % 101 == 0:
            with pytest.raises(CorruptLogError, match="segment-00000001-00000001"):
                open_log(path)
            assert snapshot(path) == {str(file): damaged}
            Path(path, "owner").write_bytes(owner)
    file.write_bytes(content)
    Path(path, "owner").write_bytes(owner)
    with open_log(path) as again:
        assert [frame.payload for frame in again.frames()] == payloads


@pytest.mark.fault(12)
def test_flipped_bit_in_unsynced_log_yields_no_other_data(path: str) -> None:
    payloads = write_log(path, 3, size=1, close=False)
    (file,) = segment_paths(path)
    content = file.read_bytes()
    for bit in range(8 * segments.HEADER_BYTES, 8 * len(content)):
        file.write_bytes(flipped(content, bit // 8, bit % 8))
        for machine in (FakeMachine(), FakeMachine(boot="boot-2")):
            try:
                with open_log(path, machine, mode="r") as again:
                    found = [frame.payload for frame in again.frames()]
            except CorruptLogError:
                continue
            assert found == payloads[: len(found)]
            assert len(found) == 2 or machine.me.boot == "boot-2"


@pytest.mark.fault(11, 12)
def test_damage_before_valid_frames_is_dropped_only_after_a_restart(path: str) -> None:
    payloads = write_log(path, 4, close=False)
    (file,) = segment_paths(path)
    file.write_bytes(flipped(file.read_bytes(), segments.HEADER_BYTES + 150))
    with pytest.raises(CorruptLogError, match=r"damaged at byte 224: the payload.*frame 2 was"):
        open_log(path)
    with open_log(path, FakeMachine(boot="boot-2")) as again:
        assert [frame.payload for frame in again.frames()] == payloads[:1]
        assert "never synced" in again.notes[0]


@pytest.mark.fault(15)
def test_later_frame_proves_earlier_frame_durable(path: str) -> None:
    first = open_log(path)
    first.append(1, b"one")
    first.append(1, b"two")
    first.sync()
    first.append(1, b"three")
    (file,) = segment_paths(path)
    file.write_bytes(flipped(file.read_bytes(), segments.HEADER_BYTES + 100))
    control = Path(path, "generation")
    control.write_bytes(control.read_bytes()[:40] + bytes(4096 - 40))
    with pytest.raises(CorruptLogError, match="everything up to 2 was on disk"):
        open_log(path, FakeMachine(boot="boot-2"))


@pytest.mark.fault(15)
def test_missing_swapped_or_old_segment_is_detected(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 400)
    write_log(path, 30)
    files = segment_paths(path)
    assert len(files) >= 5
    first, second = files[1].read_bytes(), files[2].read_bytes()
    owner = Path(path, "owner").read_bytes()

    def refused() -> None:
        Path(path, "owner").write_bytes(owner)
        with pytest.raises(CorruptLogError):
            open_log(path)

    files[1].unlink()
    refused()
    files[1].write_bytes(second)
    files[2].write_bytes(first)
    refused()
    files[1].write_bytes(first[:300])
    files[2].write_bytes(second)
    refused()
    files[1].write_bytes(first)
    last = files[-1].read_bytes()
    files[-1].unlink()
    refused()
    files[-1].write_bytes(last)
    Path(path, "owner").write_bytes(owner)
    open_log(path).close()


@pytest.mark.fault(12)
def test_damaged_checkpoint_falls_back_to_previous_one(path: str) -> None:
    with open_log(path) as first:
        for number in range(6):
            first.append(1, b"%d" % number)
            if number in (1, 3):
                first.write_checkpoint(b"state %d" % number)
    newest = sorted(Path(path).glob("checkpoint-*"))[-1]
    content = newest.read_bytes()
    for at in range(len(content)):
        newest.write_bytes(flipped(content, at, 2))
        with open_log(path) as again:
            assert again.checkpoint == b"state 1"
            assert [frame.payload for frame in again.frames()] == [b"2", b"3", b"4", b"5"]
            assert "the previous one is used" in again.notes[0]
    newest.unlink()
    with open_log(path) as again:
        assert again.checkpoint == b"state 1"


def test_two_checkpoints_are_retained(path: str) -> None:
    with open_log(path) as first:
        for _ in range(5):
            first.append(1, b"")
            first.write_checkpoint(b"")
    assert len(list(Path(path).glob("checkpoint-*"))) == 2


def log_of_segments(path: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Log, list[FramePosition]]:
    """A log of some thirty segments, with a checkpoint after every ten of its hundred frames."""
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 400)
    made = open_log(path)
    positions = []
    for number in range(100):
        positions.append(made.append(1, b"%d" % number * 20))
        if number % 10 == 9:
            made.write_checkpoint(b"state %d" % number)
    return made, positions


def test_retained_small_frames_are_bounded(
    path: str,
) -> None:
    """Also with segments that are far from full, and with frequent checkpoints."""
    near = segments.NEAR_FRAMES
    with open_log(path) as made:
        for round_ in range(1, 7):
            for number in range(near):
                made.append(1, b"%d" % number)
                if number in (1, 2):
                    made.write_checkpoint(b"again")
                    made.trim()
            made.write_checkpoint(b"state")
            made.trim()
            assert near <= len(frame_index.retained_frames(Files(), path, made.head)) <= 3 * near, (
                round_
            )
            made.append(1, b"one more")
            made.write_checkpoint(b"again")
            made.trim()
            made.write_checkpoint(b"and again")
            made.trim()
            assert near < len(frame_index.retained_frames(Files(), path, made.head)) <= 3 * near, (
                round_
            )
        assert verified_frames(made) == made.head.seq


def test_retained_frames_are_read_during_trim(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are trimmed between any two calls to the disk; the others are read completely."""

    class Trimming(Files):
        calls = 0
        """The number of files that are opened before the trim."""

        def open(self, path: str, *, write: bool = False) -> File:
            self.calls -= 1
            if self.calls == 0:
                made.trim()
            return super().open(path, write=write)

    looks, disk = 0, Trimming()
    while disk.calls <= 0:
        looks += 1
        shutil.rmtree(path, ignore_errors=True)
        made, _ = log_of_segments(path, monkeypatch)
        before = frame_index.retained_frames(Files(), path, made.head)
        disk.calls = looks
        read = frame_index.retained_frames(disk, path, made.head)
        after = frame_index.retained_frames(Files(), path, made.head)
        assert read == before[-len(read) :]
        assert len(read) >= len(after) > 0
        made.close()
    assert looks > 20


def test_trim_deletes_only_segments_before_both_checkpoints(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, positions = log_of_segments(path, monkeypatch)
    before = segment_paths(path)
    gone = made.trim()
    assert [one.name for one in before] == gone + [one.name for one in segment_paths(path)]
    assert 0 < len(segment_paths(path)) < len(before) // 3
    assert made.trim() == []
    assert made.read(positions[90]).payload == b"90" * 20
    assert verified_frames(made) == 100
    made.append(1, b"after")
    made.close()
    with open_log(path) as again:
        assert again.checkpoint == b"state 99"
        assert [frame.payload for frame in again.frames()] == [b"after"]
        assert verified_frames(again) == 101
        assert again.trim() == []
    newest, _ = sorted(Path(path).glob("checkpoint-*"), reverse=True)
    newest.write_bytes(newest.read_bytes()[:-1])
    with open_log(path) as again:
        assert again.checkpoint == b"state 89"
        assert [frame.payload for frame in again.frames()][-1] == b"after"


@pytest.mark.fault(24)
def test_fenced_owner_trims_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, positions = log_of_segments(path, monkeypatch)
    before = segment_paths(path)
    new = open_log(path, takeover=True)
    with pytest.raises(FencedError):
        made.trim()
    assert set(before) <= set(segment_paths(path))
    assert new.read(positions[0]).payload == b"0" * 20


@pytest.mark.fault(41)
def test_reader_of_trimmed_frames_must_reopen(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 400)
    with open_log(path) as made:
        made.append(1, b"first")
        with Log.open(path, mode="r", machine=FakeMachine()) as reader:
            for number in range(40):
                made.append(1, b"%d" % number * 20)
                if number % 10 == 9:
                    made.write_checkpoint(b"state")
            assert made.trim()
            with pytest.raises(DurabilityError, match="open it again"):
                reader.refresh()


@pytest.mark.fault(6)
def test_crashed_trim_is_completed_by_next_trim(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = log_of_segments(path, monkeypatch)
    unlink, left = HastyFiles.unlink, [3]

    def crash(files: HastyFiles, where: str) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        unlink(files, where)

    monkeypatch.setattr(HastyFiles, "unlink", crash)
    with pytest.raises(KeyboardInterrupt):
        made.trim()
    monkeypatch.setattr(HastyFiles, "unlink", unlink)
    count = len(segment_paths(path))
    made.close()
    with open_log(path) as again:
        assert verified_frames(again) == 100
        again.append(1, b"more")
        again.write_checkpoint(b"newest")
        assert len(again.trim()) > 10
        assert len(segment_paths(path)) < count // 3
        assert verified_frames(again) == 101


def test_read_of_damaged_old_frame_names_file(path: str) -> None:
    with open_log(path) as first:
        position = first.append(1, b"abc")
        first.append(1, b"def")
        first.write_checkpoint(b"")
        (file,) = segment_paths(path)
        at = segments.HEADER_BYTES + frames.HEADER_BYTES
        file.write_bytes(flipped(file.read_bytes(), at))
        with pytest.raises(CorruptLogError, match=r"segment-.* is damaged at byte 128: frame 1"):
            first.read(position)
        with pytest.raises(CorruptLogError):
            verified_frames(first)


def test_checkpoint_of_earlier_frame_reads_no_payload(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    read_at = File.read_at

    def counted(self: File, offset: int, size: int) -> bytes:
        sizes.append(size)
        return read_at(self, offset, size)

    with open_log(path) as first:
        large = first.append(1, bytes(1_000_000))
        first.append(1, b"after")
        monkeypatch.setattr(File, "read_at", counted)
        first.write_checkpoint(b"state", large)
        assert 0 < sum(sizes) < 1000
    with open_log(path) as again:
        assert again.checkpoint == b"state"
        assert [frame.payload for frame in again.frames()] == [b"after"]


@pytest.mark.parametrize("at", [0, 20, -4])
def test_checkpoint_of_damaged_frame_is_refused(path: str, at: int) -> None:
    with open_log(path) as first:
        position = first.append(1, b"abc")
        end = first.head.offset
        first.append(1, b"def")
        (file,) = segment_paths(path)
        place = segments.HEADER_BYTES + (end + at if at < 0 else at)
        file.write_bytes(flipped(file.read_bytes(), place))
        with pytest.raises(CorruptLogError, match=r"segment-.* is damaged at byte 128: frame 1"):
            first.write_checkpoint(b"state", position)
        assert not [name for name in os.listdir(path) if name.startswith("checkpoint")]


def test_wrong_position_raises_error(path: str) -> None:
    with open_log(path) as first:
        position = first.append(1, b"abc")
        for wrong in (FramePosition(2, 0), FramePosition(1, 8), FramePosition(1, 4096)):
            with pytest.raises(CorruptLogError):
                first.read(wrong)
        assert first.read(position).payload == b"abc"


@pytest.mark.fault(45)
@pytest.mark.parametrize("name", ["segment", "frame", "checkpoint", "owner", "generation"])
def test_newer_format_is_refused(path: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from nosync_nb.store.log import checkpoint, fencing, owner

    modules = {
        "segment": segments,
        "frame": frames,
        "checkpoint": checkpoint,
        "owner": owner,
        "generation": fencing,
    }
    with monkeypatch.context() as newer:
        newer.setattr(modules[name], "FORMAT", 7)
        with open_log(path) as first:
            first.append(1, b"x")
            if name == "checkpoint":
                first.write_checkpoint(b"")
    if name == "generation":
        Path(path, "owner").unlink()
    with pytest.raises(CorruptLogError, match="newer than this program"):
        open_log(path)


# Owners


@pytest.mark.fault(23)
def test_living_owner_is_named_with_remedies(path: str) -> None:
    machine = FakeMachine()
    first = open_log(path, machine)
    with pytest.raises(FencedError, match=rf"process {machine.me.pid} on here .*since 2023") as e:
        open_log(path, machine.after())
    assert "takeover=True" in str(e.value.hint)
    assert 'mode="r"' in str(e.value.hint)
    assert 'mode="r"' in str(e.value.hint)
    with pytest.raises(FencedError, match="this process"):
        open_log(path, machine)
    first.append(1, b"still mine")
    first.close()
    open_log(path, machine.after()).close()


@pytest.mark.parametrize("boot", [None, "boot-2"], ids=["killed", "restarted"])
def test_dead_owner_is_replaced(path: str, boot: str | None) -> None:
    machine = FakeMachine()
    open_log(path, machine).append(1, b"x")
    if boot is None:
        machine.die()
    with open_log(path, machine.after(boot=boot)) as again:
        assert not again.clean
        assert again.head.seq == 1


@pytest.mark.fault(42)
@pytest.mark.parametrize("where", [{"host": "there"}, {"namespace": "container"}])
def test_remote_owner_is_dead_when_heartbeat_stops(path: str, where: dict[str, str]) -> None:
    first = open_log(path, background=False)
    other = FakeMachine(**where)
    other.meanwhile.append(words_of(first).beat)
    with pytest.raises(FencedError, match="it is alive"):
        open_log(path, other)
    other.wait(10**9)
    open_log(path, other).close()
    assert other.listened_s == 2 * SILENT_S <= 4


@pytest.mark.fault(24)
def test_checkpoint_written_after_fencing_is_not_adopted(path: str) -> None:
    machine = FakeMachine()

    class Overtaken(HastyFiles):
        def replace(self, path_: str, data: Any, *, sync: bool = True, folder: bool = True) -> None:
            super().replace(path_, data, sync=sync, folder=folder)
            if "checkpoint-" in path_:
                open_log(path, machine.after(), takeover=True).close()

    log = Log.open(path, files=Overtaken(), machine=machine)
    log.append(1, b"x")
    with pytest.raises(FencedError):
        log.write_checkpoint(b"state")
    assert log.checkpoint_seq == 0


def fenced_and_new(path: str) -> tuple[Log, Log]:
    """An owner with a frame and a checkpoint, and the owner that took over."""
    machine = FakeMachine()
    fenced = open_log(path, machine)
    fenced.append(1, b"before")
    fenced.write_checkpoint(b"early")
    return fenced, open_log(path, machine.after(), takeover=True)


@contextmanager
def unchecked(log: Log) -> Iterator[None]:
    """The owner of a log works as if its process had been stopped after each check."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words_of(log), "check", lambda: None)
        yield


@pytest.mark.fault(24)
def test_fenced_owner_cannot_write(path: str) -> None:
    fenced, new = fenced_and_new(path)
    for act in (
        lambda: fenced.append(1, b"fenced"),
        lambda: fenced.append(1, b"fenced"),
        fenced.check,
        lambda: fenced.write_checkpoint(b"fenced"),
        fenced.close,
    ):
        with pytest.raises(FencedError, match=rf"taken over by process {new.owner.identity.pid}"):
            act()
    new.append(1, b"after")
    new.close()
    with open_log(path) as again:
        assert [frame.payload for frame in again.frames()] == [b"after"]
        assert everything(path) == [b"before", b"after"]
        assert again.clean


def test_checkpoint_written_during_takeover_is_removed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = open_log(path)
    old.append(1, b"one")
    plain, new = checkpoint.write_checkpoint, []

    def write_after_takeover(*args: Any) -> None:
        new.append(open_log(path, takeover=True))
        plain(*args)

    monkeypatch.setattr(checkpoint, "write_checkpoint", write_after_takeover)
    with pytest.raises(FencedError):
        old.write_checkpoint(b"late")
    monkeypatch.setattr(checkpoint, "write_checkpoint", plain)
    new[0].close()
    with open_log(path) as third:
        assert third.checkpoint != b"late"
        assert [frame.payload for frame in third.frames()] == [b"one"]


@pytest.mark.fault(24)
def test_frontier_of_fenced_owner_does_not_rise(path: str) -> None:
    machine = FakeMachine()
    fenced = open_log(path, machine)
    fenced.append(1, b"before")
    with open_log(path, machine.after(), takeover=True) as new:
        with pytest.raises(FencedError, match="taken over"):
            fenced.sync()
        assert fenced.durable == 0
        assert new.durable == 1
    assert everything(path) == [b"before"]


@pytest.mark.fault(24)
def test_frames_of_fenced_owner_after_takeover_are_ignored(path: str) -> None:
    fenced, new = fenced_and_new(path)
    with unchecked(fenced):
        fenced.append(1, b"fenced")
        fenced.sync()
        with open_log(path, mode="r") as reader:
            assert reader.head.seq == 1
        fenced.write_checkpoint(b"fenced")
    new.append(1, b"after")
    new.write_checkpoint(b"late")
    new.append(1, b"more")
    new.close()
    with open_log(path) as again:
        assert again.checkpoint == b"late"
        assert everything(path) == [b"before", b"after", b"more"]


@pytest.mark.fault(24)
def test_durable_mark_of_fenced_owner_covers_no_new_frame(path: str) -> None:
    fenced, new = fenced_and_new(path)
    new.append(1, b"after")
    with unchecked(fenced):
        for _ in range(5):
            fenced.append(1, b"fenced")
        fenced.sync()
    with open_log(path, FakeMachine(boot="boot-2")) as again:
        assert [frame.payload for frame in again.frames()] == [b"after"]
        assert everything(path) == [b"before", b"after"]


@pytest.mark.fault(24)
def test_checkpoint_of_fenced_owner_is_ignored(path: str) -> None:
    fenced, new = fenced_and_new(path)
    new.append(1, b"after")
    with unchecked(fenced):
        fenced.append(1, b"fenced")
        fenced.append(1, b"fenced")
        fenced.write_checkpoint(b"fenced")
    new.close()
    with open_log(path) as again:
        assert again.checkpoint == b"early"
        assert [frame.payload for frame in again.frames()] == [b"after"]
        assert "replaced" in again.notes[0]


def test_damaged_owner_file_requires_takeover(path: str) -> None:
    write_log(path, 2)
    owner = Path(path, "owner")
    owner.write_bytes(owner.read_bytes().replace(b'"pid"', b'"pad"'))
    with pytest.raises(CorruptLogError, match="the owner of this log is unknown"):
        open_log(path)
    with open_log(path, takeover=True) as again:
        assert again.head.seq == 2


@pytest.mark.fault(21)
def test_failed_opening_releases_log(path: str) -> None:
    write_log(path, 3)
    (file,) = segment_paths(path)
    content = file.read_bytes()
    file.write_bytes(content[:-30])
    machine = FakeMachine()
    for _ in range(2):
        with pytest.raises(CorruptLogError):
            open_log(path, machine)
    file.write_bytes(content)
    with open_log(path, machine) as again:
        assert again.head.seq == 3
        assert again.clean


def test_interrupted_opening_releases_log(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(path, 3)
    machine = FakeMachine()

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(recovery, "begin_segment", interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_log(path, machine)
    with open_log(path, machine) as again:
        assert again.head.seq == 3
        assert again.clean


def test_lost_generation_file_is_recreated(path: str) -> None:
    write_log(path, 3)
    Path(path, "generation").unlink()
    Path(path, "owner").unlink()
    with open_log(path) as again:
        assert again.generation == 2
        assert again.head.seq == 3


# Folders


@pytest.mark.fault(22)
@pytest.mark.parametrize("mode", ["r", "w"])
def test_folder_writable_by_others_is_refused(path: str, mode: str) -> None:
    write_log(path, 1)
    for bits in (0o777, 0o770, 0o702):
        os.chmod(path, bits)
        with pytest.raises(TrustError, match="is writable by other users") as e:
            open_log(path, mode=mode)
        assert "chmod 700" in str(e.value.hint)


@pytest.mark.fault(22)
def test_folder_of_other_user_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(path, 1)
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(TrustError, match="belongs to user") as e:
        open_log(path)
    assert 'mode="r"' in str(e.value.hint)
    open_log(path, mode="r").close()


def test_link_is_refused_and_names_target(path: str) -> None:
    write_log(path, 1)
    os.symlink(path, path + "-link")
    with pytest.raises(TrustError, match="is a link") as e:
        open_log(path + "-link")
    assert path in str(e.value.hint)


def test_folder_with_other_files_is_refused(path: str) -> None:
    os.mkdir(path)
    Path(path, ".gitignore").write_text("*")
    open_log(path).close()
    assert os.stat(path).st_mode & 0o777 == 0o700
    other = path + "-other"
    os.mkdir(other, 0o755)
    Path(other, "thesis.tex").write_text("")
    with pytest.raises(DurabilityError, match=r"not empty and holds no log \('thesis.tex'\)"):
        open_log(other)
    assert os.stat(other).st_mode & 0o777 == 0o755


def test_network_file_system_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine()
    monkeypatch.setattr(machine, "file_system", lambda _: "nfs4")
    with pytest.raises(DurabilityError, match="network file system") as e:
        open_log(path, machine)
    assert "local disk" in str(e.value.hint)


# Readers


def test_reader_follows_without_lease(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 400)
    machine = FakeMachine()
    owner = open_log(path, machine)
    owner.append(1, b"0")
    with open_log(path, FakeMachine(), mode="r") as reader:
        seen = [frame.payload for frame in reader.frames()]
        for number in range(1, 30):
            owner.append(1, b"%d" % number)
            if number % 3 == 0:
                seen += [frame.payload for frame in reader.refresh()]
        seen += [frame.payload for frame in reader.refresh()]
        assert reader.refresh() == []
        assert seen == [b"%d" % number for number in range(30)]
        machine.die()
        other = open_log(path, machine.after())
        other.append(1, b"30")
        assert [frame.payload for frame in reader.refresh()] == [b"30"]
        offset = 0
        for number in range(31):
            frame = reader.read(FramePosition(number + 1, offset))
            assert frame.payload == b"%d" % number
            offset = frame.end.offset
        assert reader.read(FramePosition(1, 0)).payload == b"0"
        assert reader.durable == 30
        other.sync()
        assert reader.durable == 31
        for act in (lambda: reader.append(1, b""), reader.sync, reader.check):
            with pytest.raises(FencedError, match="open for reading"):
                act()


def test_reader_stops_at_published_frames(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = open_log(path)
    for first, second in ((b"one", b"two"), (b"three", b"four")):
        published = owner.head.seq
        with open_log(path, mode="r") as reader, monkeypatch.context() as silent:
            silent.setattr(words_of(owner), "publish", lambda _: None)
            owner.append(1, first)
            assert reader.refresh() == []
            with open_log(path, mode="r") as late:
                assert late.head.seq == published
        owner.append(1, second)
        with open_log(path, mode="r") as late:
            assert late.head.seq == published + 2


def test_reader_of_missing_log_raises_error(tmp_path: Path) -> None:
    with pytest.raises(DurabilityError, match="there is no log"):
        open_log(str(tmp_path / "none"), mode="r")
    with pytest.raises(DurabilityError, match="holds no log"):
        open_log(str(tmp_path), mode="r")
    assert os.listdir(tmp_path) == []


def test_reader_writes_nothing(path: str) -> None:
    class ReadOnly(Files):
        def create(self, path: str):
            raise AssertionError(path)

        rename = unlink = sync_folder = restrict = make_folder = lock = create

    write_log(path, 3, close=False)
    with Log.open(path, mode="r", files=ReadOnly(), machine=FakeMachine()) as reader:
        assert reader.head.seq == 3
        assert verified_frames(reader) == 3


# Threads


def test_durable_rises_in_background_and_calls_back(path: str) -> None:
    seen: list[int] = []
    with Log.open(path, machine=FakeMachine()) as first:
        first.on_durable(seen.append)
        for number in range(50):
            first.append(1, b"x")
            if number % 10 == 0:
                first.sync(number + 1)
                assert first.durable >= number + 1
        first.sync()
        assert first.durable == 50
    assert seen == sorted(seen)


def test_sync_does_not_wait_for_group_delay(path: str) -> None:
    with Log.open(path, machine=FakeMachine(), delay_s=3600) as first:
        first.append(1, b"x")
        first.sync()
        assert first.durable == 1
        first.append(1, b"y")


@pytest.mark.fault(47)
def test_failing_callback_is_logged_and_harmless(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_log(path) as first:
        first.on_durable(lambda seq: 1 // 0)
        first.append(1, b"x")
        first.sync()
        assert first.durable == 1
    assert "ZeroDivisionError" in caplog.text


def test_threads_append_sync_and_read_concurrently(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_BYTES_MAX", 3000)
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return run

    with Log.open(path, machine=FakeMachine()) as first:

        def work() -> None:
            for number in range(60):
                position = first.append(1, threading.current_thread().name.encode())
                if number % 7 == 0:
                    first.sync(position.seq)
                    assert first.durable >= position.seq
                assert first.read(position).position == position

        def checkpoints() -> None:
            for _ in range(5):
                first.write_checkpoint(b"state")

        jobs = [threading.Thread(target=guarded(work)) for _ in range(4)]
        jobs.append(threading.Thread(target=guarded(checkpoints)))
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert failures == []
        assert verified_frames(first) == 240
    assert len(everything(path)) == 240


def test_close_is_idempotent_and_later_append_fails(path: str) -> None:
    first = open_log(path)
    first.close()
    first.close()
    with pytest.raises(DurabilityError, match="is closed"):
        first.append(1, b"")


@pytest.mark.parametrize("later", [0, 1, -1])
def test_reused_pid_of_dead_owner_does_not_lock_log(path: str, later: int) -> None:
    """The pid of the owner is alive; its start time decides if it is the owner."""
    parent = os.getppid()

    class Parent(HostIdentity):
        def identity(self) -> ProcessIdentity:
            me = super().identity()
            return me._replace(pid=parent, started=(_start_ticks(parent) or 0) + later)

    here = HostIdentity()
    assert here.alive(here.identity())
    assert here.alive(Parent().identity()) is (later == 0)
    first = Log.open(path, machine=Parent())
    first.append(1, b"x")
    if later:
        with Log.open(path, machine=here) as again:
            assert again.head.seq == 1
    else:
        with pytest.raises(FencedError, match=f"process {parent}"):
            Log.open(path, machine=here)
