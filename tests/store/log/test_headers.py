"""Headers of log files: against each flipped bit, and against power failures."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
from checks.damaged_bytes import flipped
from faults.faults import FakeMachine, FaultyFiles, HastyFiles

from nosync_nb.errors import CorruptLogError, FencedError
from nosync_nb.store.log import Log, checkpoint, owner, segments
from nosync_nb.store.log.checkpoint import Checkpoint, Mark
from nosync_nb.store.log.segments import Segment

SEEDS = range(20)
CRC_BYTES = 4


def checkpoint_at(seq: int) -> Checkpoint:
    return Checkpoint(Mark(seq, 64 * seq, bytes(16)), 1, b"state")


def new_segment() -> Segment:
    return Segment(bytes(16), 2, 3, Mark(7, 448, bytes(range(16))), (2, 2), 5)


def flips(data: bytes) -> list[bytes]:
    """Every version of some bytes with one bit flipped."""
    return [flipped(data, bit // 8, bit % 8) for bit in range(8 * len(data))]


def with_checksum(head: bytes) -> bytes:
    """A header with its checksum, like one of another kind of file."""
    return head + zlib.crc32(head).to_bytes(CRC_BYTES, "little") + bytes(CRC_BYTES)


@pytest.mark.fault(12)
def test_flipped_bit_in_checkpoint_header_is_detected(tmp_path: Path) -> None:
    files = HastyFiles()
    checkpoint.write_checkpoint(files, str(tmp_path), checkpoint_at(7))
    data = files.read(str(tmp_path / checkpoint.file_name(7, 1)))
    head = data[: checkpoint.HEADER_BYTES]
    assert checkpoint.mark_of(head) == checkpoint_at(7).mark
    assert checkpoint.mark_of(head[:-1]) is None
    own = head[:-CRC_BYTES]  # the checksum of the payload follows; the mark does not need it
    for changed in flips(own):
        assert checkpoint.mark_of(changed + head[-CRC_BYTES:]) is None


@pytest.mark.fault(12)
def test_flipped_bit_in_segment_header_is_detected() -> None:
    head = segments.encode_header(new_segment())
    assert segments.decode_header(head) == new_segment()
    assert segments.decode_header(head[:-1]) is None
    own, padding = head[:-CRC_BYTES], head[-CRC_BYTES:]
    assert all(segments.decode_header(changed + padding) is None for changed in flips(own))


def test_other_file_with_valid_checksum_is_no_segment() -> None:
    own = segments.encode_header(new_segment())[: -2 * CRC_BYTES]
    assert segments.decode_header(with_checksum(own)) == new_segment()
    assert segments.decode_header(with_checksum(b"OTHER" + own[5:])) is None


@pytest.mark.fault(12)
def test_flipped_bit_in_owner_file_is_detected(tmp_path: Path) -> None:
    Log.open(str(tmp_path), files=HastyFiles(), machine=FakeMachine()).close()
    file = tmp_path / "owner"
    data = file.read_bytes()
    assert owner.read_owner(HastyFiles(), str(tmp_path)) is not None
    for at in range(len(data) - 1):  # all but the line end
        file.write_bytes(flipped(data, at))
        with pytest.raises(CorruptLogError, match="the owner of this log is unknown"):
            owner.read_owner(HastyFiles(), str(tmp_path))


@pytest.mark.fault(9)
def test_removed_checkpoint_stays_removed_after_power_loss(tmp_path: Path) -> None:
    for seed in SEEDS:
        path, files = str(tmp_path / f"{seed}"), FaultyFiles(seed=seed)
        files.make_folder(path)
        for seq in (1, 2):
            checkpoint.write_checkpoint(files, path, checkpoint_at(seq))
        checkpoint.remove_checkpoint(files, path, [checkpoint.file_name(2, 1)])
        files.lose_power(path)
        assert os.listdir(path) == [checkpoint.file_name(1, 1)]


@pytest.mark.fault(9)
@pytest.mark.parametrize("sync", [True, False])
def test_created_segment_survives_power_loss_if_synced(tmp_path: Path, sync: bool) -> None:
    seen = set()
    for seed in SEEDS:
        path, files = str(tmp_path / f"{seed}"), FaultyFiles(seed=seed)
        files.make_folder(path)
        segments.create_segment(files, path, new_segment(), [b"frame"], sync=sync).close()
        files.lose_power(path)
        file = Path(path, new_segment().name)
        seen.add(
            file.exists() and file.read_bytes() == segments.encode_header(new_segment()) + b"frame"
        )
    assert seen == ({True} if sync else {True, False})


def log_with_unread_checkpoint(path: str) -> tuple[Log, Log, Path]:
    """An owner that could not read the newest checkpoint, and the next owner that could."""
    machine = FakeMachine()
    with Log.open(path, files=HastyFiles(), machine=machine) as first:
        for number in range(3):
            first.append(1, b"%d" % number)
            first.write_checkpoint(b"state %d" % number)
    newest = max(Path(path).glob("checkpoint-*"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    fenced = Log.open(path, files=HastyFiles(), machine=machine.after())
    assert fenced.unread == [newest.name]
    newest.write_bytes(whole)
    return fenced, Log.open(path, files=HastyFiles(), machine=machine, takeover=True), newest


@pytest.mark.fault(24)
def test_fenced_owner_deletes_no_checkpoint(tmp_path: Path) -> None:
    fenced, new, newest = log_with_unread_checkpoint(str(tmp_path / "log"))
    assert new.checkpoint == b"state 2"
    with pytest.raises(FencedError, match="taken over"):
        fenced.write_checkpoint(b"fenced")
    assert newest.exists()
    new.close()
