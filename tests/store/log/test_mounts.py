"""Mounted disks that fill up or lose power."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines.other_host import FORBIDDEN, run

COMMON = f"""
import os, subprocess, sys
from nosync_nb.errors import DurabilityError
from nosync_nb.store.log import Log

def mount(*options):
    done = subprocess.run(["mount", *options], capture_output=True, text=True)
    if done.returncode:
        print("no mounts:", done.stderr.strip())
        sys.exit({FORBIDDEN})

def opened(path):
    return Log.open(path, takeover=True, background=False)
"""

FULL = (
    COMMON
    + """
place = sys.argv[1]
mount("-t", "tmpfs", "-o", "size=1m", "none", place)
path, ballast = place + "/x.nosync", place + "/ballast"
log, kept, refused = opened(path), [], 0
for round in range(3):
    with open(ballast, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    for number in range(60):
        payload = bytes([number]) * 700
        try:
            log.append(1, payload)
            kept.append(payload)
        except DurabilityError as error:
            refused += 1
            assert "the disk is full" in error.hint, error.hint
    os.unlink(ballast)
    log.append(1, b"again")
    kept.append(b"again")
    log.sync()
    assert log.durable == len(kept)
assert refused
log.close()
with opened(path) as again:
    assert [frame.payload for frame in again.frames()] == kept
print("refused", refused)
"""
)

POWER = (
    COMMON
    + """
import fcntl, random, struct
place = sys.argv[1]
image, disk = place + "/image", place + "/disk"
with open(image, "wb") as file:
    file.truncate(16 << 20)
made = subprocess.run(["mkfs.ext4", "-q", "-F", image], capture_output=True, text=True)
if made.returncode:
    print("no program mkfs.ext4")
    sys.exit(77)
os.mkdir(disk)
SHUTDOWN, WITHOUT_JOURNAL = 0x8004587D, 2
pick, appended, lost = random.Random(1), [], 0
for round in range(12):
    mount("-o", "loop", image, disk)
    # another boot: unsynced data and the processes of the previous one are gone
    log = opened(disk + "/x.nosync")
    found = [frame.payload for frame in log.frames()]
    if round:
        assert len(found) >= durable, (len(found), durable)
        assert found == appended[: len(found)]
        lost += len(appended) - len(found)
    appended = found
    log.sync()
    durable = len(found)
    for number in range(pick.randrange(1, 30)):
        appended.append(b"%d-%d" % (round, number) * pick.randrange(1, 300))
        log.append(1, appended[-1])
        if pick.random() < 0.2:
            log.sync()
            durable = log.durable
            assert durable == len(appended)
    folder = os.open(disk, os.O_RDONLY)
    try:
        fcntl.ioctl(folder, SHUTDOWN, struct.pack("I", WITHOUT_JOURNAL))
    except OSError as error:
        print("no disk whose power can go:", error.strerror)
        sys.exit(77)
    os.close(folder)
    for again in range(2):  # every call fails, and nothing is promised
        try:
            log.append(1, b"into nothing" * 500)
            log.sync()
        except DurabilityError:
            pass
        else:
            raise AssertionError("the disk is gone")
    assert log.durable == durable
    try:
        log.close()
    except DurabilityError:
        pass
    del log
    done = subprocess.run(["umount", "-l", disk], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
print("lost", lost)
"""
)


@pytest.mark.fault(20)
def test_full_mounted_disk_refuses_frames_and_keeps_accepted(tmp_path: Path) -> None:
    output = run("-m", FULL, str(tmp_path))
    assert int(output.split()[1]) > 0


@pytest.mark.fault(8, 9, 17)
def test_power_loss_of_mounted_disk_keeps_durable_frames(tmp_path: Path) -> None:
    """Until it is mounted again, every write fails and none is called durable."""
    output = run("-m", POWER, str(tmp_path))
    assert int(output.split()[1]) > 0, "no unsynced frame was lost: the power did not fail"
