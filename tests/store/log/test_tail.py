"""The tail of a log: sectors in any order, zeros, garbage, false syncs."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from checks.damaged_bytes import flipped
from faults.faults import SECTOR_BYTES, FakeMachine, FaultyFiles

from nosync_nb.errors import CorruptLogError
from nosync_nb.store.log import Log
from nosync_nb.store.log.frames import build_frame, genesis_mark, scan_buffer

PAYLOADS = [bytes([number]) * 700 for number in range(1, 6)]


def opened(path: Path, boot: str) -> Log:
    machine = FakeMachine(boot=boot)
    return Log.open(str(path), takeover=True, machine=machine, background=False)


def frames_found_by_next_owner(path: Path, boot: str) -> list[bytes]:
    """Returns the frames that the next owner finds; it can append and read back."""
    with opened(path, boot) as log:
        payloads = [frame.payload for frame in log.frames()]
        log.append(1, b"next")
        log.sync()
    with opened(path, boot) as log:
        assert [frame.payload for frame in log.frames()] == [*payloads, b"next"]
    return payloads


def write_log(path: Path) -> tuple[Path, bytes, int]:
    """Writes a log with two durable frames; returns its segment and the end of these."""
    log = opened(path, "boot-1")
    for payload in PAYLOADS[:2]:
        log.append(1, payload)
    log.sync()
    (segment,) = path.glob("segment-*.log")
    durable = segment.stat().st_size
    for payload in PAYLOADS[2:]:
        log.append(1, payload)
    return segment, segment.read_bytes(), durable


def is_complete_prefix(payloads: list[bytes]) -> bool:
    """True if they are a prefix of the appended frames, with all durable ones."""
    return len(payloads) >= 2 and payloads == PAYLOADS[: len(payloads)]


@pytest.mark.fault(11)
def test_sectors_written_in_any_order_are_no_frames(tmp_path: Path) -> None:
    path = tmp_path / "x.nosync"
    segment, content, durable = write_log(path)
    kept = {file.name: file.read_bytes() for file in path.iterdir()}
    first = durable // SECTOR_BYTES + 1
    sectors = range(first, len(content) // SECTOR_BYTES + 1)
    lengths = set()
    for missing in itertools.chain.from_iterable(
        itertools.combinations(sectors, count) for count in (1, 2, len(sectors))
    ):
        for name, each in kept.items():
            (path / name).write_bytes(each)
        for file in path.glob("segment-*"):
            if file != segment:
                file.unlink()
        damaged = bytearray(content)
        for sector in missing:
            where = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
            damaged[where] = bytes(len(damaged[where]))
        segment.write_bytes(damaged)
        payloads = frames_found_by_next_owner(path, "boot-2")
        assert is_complete_prefix(payloads)
        lengths.add(len(payloads))
    assert lengths == {2, 3, 4}


@pytest.mark.fault(11)
def test_new_header_over_old_bytes_is_no_frame(tmp_path: Path) -> None:
    path = tmp_path / "x.nosync"
    segment, content, durable = write_log(path)
    stale = content[:durable] + content[durable : durable + 64] + PAYLOADS[0] * 3
    segment.write_bytes(stale)
    assert frames_found_by_next_owner(path, "boot-2") == PAYLOADS[:2]


@pytest.mark.fault(13)
@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
@pytest.mark.parametrize("tail", ["zeros", "garbage", "ones", "an old frame", "a page of zeros"])
def test_bytes_after_last_frame_are_no_frame(tmp_path: Path, tail: str, boot: str) -> None:
    path = tmp_path / "x.nosync"
    segment, content, durable = write_log(path)
    first = content.index(PAYLOADS[0]) - 64
    tails = {
        "zeros": bytes(70),
        "garbage": random.Random(1).randbytes(5000),
        "ones": b"\xff" * 700,
        "an old frame": content[first:durable],
        "a page of zeros": bytes(4096 - len(content) % 4096),
    }
    segment.write_bytes(content + tails[tail])
    assert frames_found_by_next_owner(path, boot) == PAYLOADS


@pytest.mark.fault(13)
def test_zeros_over_durable_frames_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.nosync"
    segment, content, durable = write_log(path)
    segment.write_bytes(content[: durable - 400] + bytes(len(content) - durable + 400))
    with pytest.raises(CorruptLogError):
        opened(path, "boot-1")


@pytest.mark.fault(12, 13)
def test_scan_names_defect_of_frame() -> None:
    mark = genesis_mark(bytes(16))
    first, after = build_frame(1, PAYLOADS[0], mark, 1, 0)
    second, _ = build_frame(1, PAYLOADS[1], after, 1, 1)  # the first one is durable
    early, _ = build_frame(1, PAYLOADS[1], after, 1, 2)
    other, _ = build_frame(1, PAYLOADS[1], after._replace(seq=4), 1, 1)
    assert scan_buffer(first + second, 0, mark)[1] is None
    for frame, reason in (
        (flipped(second, len(second) // 2), "the payload does not match"),
        (flipped(second, 9), "the header does not match"),
        (second[:-1], "the frame is truncated"),
        (second[:20], "the frame is truncated"),
        (bytes(len(second)), "only zeros follow"),
        (early, "the header contradicts the previous frame"),
        (other, "frame 5 is in the place of frame 2"),
    ):
        frames, damage = scan_buffer(first + frame, 0, mark)
        assert len(frames) == 1
        assert damage is not None
        assert damage.offset == len(first)
        assert reason in damage.reason


@pytest.mark.fault(18)
def test_disk_with_false_syncs_yields_prefix_or_error(
    tmp_path: Path,
) -> None:
    """Such a disk keeps no promise, but the log invents no data either."""
    outcomes = set()
    for seed in range(120):
        path = tmp_path / f"{seed}" / "x.nosync"
        path.parent.mkdir()
        disk = FaultyFiles(seed=seed)
        log = Log.open(str(path), files=disk, machine=FakeMachine(), background=False)
        log.append(1, PAYLOADS[0])
        log.sync()
        disk.lie()
        for payload in PAYLOADS[1:]:
            log.append(1, payload)
            log.sync()
        assert log.durable == len(PAYLOADS)
        disk.lose_power(str(path))
        try:
            payloads = frames_found_by_next_owner(path, "boot-2")
        except CorruptLogError:
            outcomes.add("error")
            continue
        assert payloads == PAYLOADS[: len(payloads)]
        outcomes.add("all" if payloads == PAYLOADS else "a part")
    assert outcomes >= {"all", "a part"}
